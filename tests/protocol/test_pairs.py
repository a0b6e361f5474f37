# SPDX-License-Identifier: Apache-2.0
"""Any two commands may run at the same time: an invariant holds in each schedule, and each end stands in the docs."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from airflow_mv.core.catalog import Layout
from tests.builders import LAYOUTS
from tests.protocol.lake_pairs import PAIRS as LAKE_PAIRS
from tests.protocol.lake_pairs import aged_lake
from tests.protocol.pairs import COMMANDS, Tried, pairs, try_pair
from tests.protocol.simulation.product import simulating

DOCS = Path("docs/maintenance.md")
#: In the normal run one pair in so many, at one call in so many.
ONE_IN, EVERY = 15, 40
#: In the long run one call in so many of a real catalog.
LAKE_EVERY = 7


@cache
def documented() -> dict[tuple[str, str], set[str]]:
    """The errors with which a command may end beside another one, by both names."""
    text = DOCS.read_text().partition("## Commands at the same time")[2].partition("\n## ")[0]
    found: dict[tuple[str, str], set[str]] = defaultdict(set)
    for row in re.findall(r"^\| ([a-z, ]+) \| ([a-z, ]+) \| (`.+?`) \|", text, re.MULTILINE):
        for command in row[0].split(", "):
            for other in row[1].split(", "):
                found[command, other] |= set(re.findall(r"`(\w+)`", row[2]))
    return found


def require_documented(tried: Tried, one: str, two: str) -> None:
    """Fail if a command has ended in a way that the docs do not name."""
    for command, other in ((one, two), (two, one)):
        strange = set(tried.ends[command]) - {"done"} - documented().get((command, other), set())
        assert not strange, (command, other, strange)


@pytest.fixture(scope="module")
def world() -> Iterator[None]:
    with simulating():
        yield


def test_the_table_names_commands_that_exist() -> None:
    known = {*COMMANDS, "interval", "sync"}
    assert {name for pair in documented() for name in pair} <= known
    assert len(documented()) > 30


@pytest.mark.usefixtures("world")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_some_pairs_of_commands_break_nothing(layout: Layout) -> None:
    for one, two in list(pairs(layout))[LAYOUTS.index(layout) :: ONE_IN]:
        require_documented(try_pair(one, two, layout, every=EVERY, mixed=1), one, two)


@pytest.mark.slow
@pytest.mark.timeout(0)
@pytest.mark.usefixtures("world")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_pair_of_commands_breaks_nothing(layout: Layout, capsys: pytest.CaptureFixture[str]) -> None:
    """At every call."""
    tried = {(one, two): try_pair(one, two, layout) for one, two in pairs(layout)}
    _report(layout, tried, capsys)
    for (one, two), found in tried.items():
        require_documented(found, one, two)


@pytest.mark.slow
@pytest.mark.timeout(0)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_pair_with_an_interval_or_the_registry_breaks_nothing(
    layout: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a real catalog: the simulation has neither."""
    with aged_lake(tmp_path, layout, monkeypatch) as aged:
        tried = {(one, two): aged.try_pair(one, two, every=LAKE_EVERY) for one, two in LAKE_PAIRS}
    _report(layout, tried, capsys)
    for (one, two), found in tried.items():
        require_documented(found, one, two)


def _report(layout: str, tried: dict[tuple[str, str], Tried], capsys: pytest.CaptureFixture[str]) -> None:
    with capsys.disabled():
        print(f"\n{layout}: {len(tried)} pairs, {sum(item.schedules for item in tried.values())} schedules")
