# SPDX-License-Identifier: Apache-2.0
"""The catalogs and layouts that the contract suite runs on."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet

from airflow_mv.catalog import STORED_LAYOUTS
from tests.builders import Lake, lake

#: The address fixture and the layout of each lake: every layout in each catalog that supports it.
HOMES = {
    f"{home}-{layout.name}": (f"{home}_uri", layout.name)
    for home in ("sqlite", "postgres", "rest", "glue", "hive")
    for layout in STORED_LAYOUTS.values()
    if (home in ("sqlite", "postgres") or not layout.swaps_pointers)
    and (home not in ("glue", "hive") or not layout.needs_views)
}
_FOLDER = Path(__file__).parent
_MARKS = {"postgres_uri": [pytest.mark.postgres], "rest_uri": [pytest.mark.rest]}
#: Each catalog and each layout occurs among the others; their other combinations add little.
_SLOW = ("sqlite-registered", "postgres-pointed", "postgres-table", "hive-table")
#: A test with several homes of a group runs with one of them in the normal run, and with the others in the long run.
_TURNS = (("postgres-registered", "rest-registered"), ("sqlite-table", "rest-table", "glue-table"))


def home_parameter(name: str) -> ParameterSet:
    """A lake with the marks of the services that it needs."""
    return pytest.param(name, marks=[*_MARKS.get(HOMES[name][0], []), *([pytest.mark.slow] if name in _SLOW else [])])


def takes_turn(home: str | None, turn: int) -> bool:
    """Whether a home is the one of its group that the normal run has in this turn; true for one without a group."""
    return not any(home in group and home != group[turn % len(group)] for group in _TURNS)


@pytest.fixture(params=[home_parameter(name) for name in HOMES])
def every_home(request: pytest.FixtureRequest, warehouse: Path) -> Iterator[Lake]:
    """An empty lake in each catalog and layout."""
    fixture, layout = HOMES[request.param]
    with lake(str(request.getfixturevalue(fixture)), warehouse, layout=layout) as found:
        yield found


@pytest.fixture(params=[home_parameter(name) for name in HOMES if name.endswith("-registered")])
def registered_home(request: pytest.FixtureRequest, warehouse: Path) -> Iterator[Lake]:
    """An empty lake in each catalog, in the registered layout."""
    with lake(str(request.getfixturevalue(HOMES[request.param][0])), warehouse, layout="registered") as found:
        yield found


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let the catalogs of a group take turns, by the name of the test and its other parameters.

    Most faults are planted above the catalog.
    """
    for item in items:
        if isinstance(item, pytest.Function) and item.path.is_relative_to(_FOLDER) and hasattr(item, "callspec"):
            home = _home(item.callspec.params)
            if not takes_turn(home, zlib.crc32(item.name.replace(home or "", "").encode())):
                item.add_marker(pytest.mark.slow)


def _home(parameters: Mapping[str, object]) -> str:
    """Return the home that a test's fixture has; none for a test with lost answers, which shares out its own cases."""
    if {"kind", "fault"} <= set(parameters):
        return ""
    names = ("every_home", "registered_home", "bare", "home")
    return str(next((parameters[name] for name in names if name in parameters), ""))
