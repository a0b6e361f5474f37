# SPDX-License-Identifier: Apache-2.0
"""A refresh is planned from its inputs alone: they are values, and planning reads nothing else."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from airflow_mv import checks
from airflow_mv.core.catalog import Layout
from airflow_mv.core.ivm import Comparison
from airflow_mv.core.refresh.choose import compile_plan
from airflow_mv.core.refresh.inputs import RefreshInputs, RefreshOptions, load_inputs
from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.core.spec.reasons import Mode
from tests.builders import Lake, lake

SQL = "SELECT o.*, n.amount AS other FROM lake.sales.orders AS o JOIN lake.sales.names AS n ON o.id = n.id"
BIG = "SELECT id, region FROM orders WHERE amount > 1000"
CHECKS = (checks.sql("SELECT count(*) > 0 FROM {rows} AS r JOIN lake.sales.orders AS o ON o.id = r.id"),)


@dataclass
class FixedStatistics:
    """Statistics with a fixed answer; they read nothing."""

    matches: bool
    requests: int = 0

    def added_rows_may_match(
        self, _table: Identifier, _location: str, _snapshots: Collection[int], _filters: Sequence[Sequence[Comparison]]
    ) -> bool:
        self.requests += 1
        return self.matches

    def rows_copied(self, _table: Identifier, _location: str, _snapshots: Collection[int]) -> int | None:
        return None

    def fields_without_nulls(
        self, _table: Identifier, _location: str, _snapshots: Collection[int], _fields: Collection[int]
    ) -> frozenset[int]:
        return frozenset()


@pytest.fixture(params=["pointed", "registered"])
def home(request: pytest.FixtureRequest, sqlite_uri: str, warehouse: Path) -> Iterator[Lake]:
    layout: Layout = request.param
    with lake(sqlite_uri, warehouse, layout=layout) as found:
        found.table()
        found.table("names")
        yield found


def vanish(home: Lake, warehouse: Path) -> None:
    """Remove the catalog and all files."""
    shutil.rmtree(warehouse)
    home.iceberg.engine.dispose()  # type: ignore[attr-defined]
    Path(str(home.iceberg.engine.url.database)).unlink()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("options", "mode"),
    [
        (RefreshOptions(on_fallback="fail"), Mode.APPEND),
        (RefreshOptions(full=True), Mode.FULL),
    ],
)
def test_a_plan_is_a_function_of_its_inputs(home: Lake, warehouse: Path, options: RefreshOptions, mode: Mode) -> None:
    """The plan is the same without a catalog and without files: choosing and compiling read nothing."""
    home.view(sql=SQL, refresh_strategy="incremental")
    home.refresh()
    home.append((2, "east", 7))
    home.append((3, "east", 7))
    inputs = load_inputs(home.catalog, "sales.daily", replace(options, checks=CHECKS))
    inputs = replace(inputs, statistics=FixedStatistics(matches=True))
    planned = compile_plan(inputs)
    vanish(home, warehouse)
    assert planned.mode == mode
    assert compile_plan(inputs) == planned


@pytest.mark.parametrize("matches", [False, True])
def test_only_statistics_are_read_while_a_mode_is_chosen(home: Lake, warehouse: Path, *, matches: bool) -> None:
    """They are requested only where a filter may prove that appended rows do not matter."""
    home.view(sql=BIG, refresh_strategy="incremental")
    home.refresh()
    fresh = load_inputs(home.catalog, "sales.daily", RefreshOptions())
    home.append((7, "east", 5000))
    stale = load_inputs(home.catalog, "sales.daily", RefreshOptions(on_fallback="fail"))
    vanish(home, warehouse)
    assert (mode_of(fresh, known := FixedStatistics(matches)), known.requests) == (Mode.NOOP, 0)
    full = replace(stale, options=RefreshOptions(full=True))
    assert (mode_of(full, known := FixedStatistics(matches)), known.requests) == (Mode.FULL, 0)
    wanted = Mode.APPEND if matches else Mode.FAST_FORWARD
    assert (mode_of(stale, known := FixedStatistics(matches)), known.requests) == (wanted, 1)


def mode_of(inputs: RefreshInputs, statistics: FixedStatistics) -> Mode:
    return compile_plan(replace(inputs, statistics=statistics)).mode


def test_a_fresh_view_opens_no_metadata_of_its_base_tables(home: Lake) -> None:
    """Assessing a fresh view opens no metadata file of a base table; a stale view opens each base table once."""
    home.view(sql=SQL)
    home.refresh()
    assert load_inputs(home.catalog, "sales.daily", RefreshOptions()).tables == {}
    home.append()
    names = [str(name) for name in load_inputs(home.catalog, "sales.daily", RefreshOptions()).tables]
    assert sorted(names) == ["lake.sales.names", "lake.sales.orders"]
