# SPDX-License-Identifier: Apache-2.0
"""The catalogs and layouts that the contract suite, and the extras that change views, run on."""

from __future__ import annotations

import inspect
import os
import re
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet

from airflow_mv.core.catalog import STORED_LAYOUTS
from tests.builders import Lake, lake

#: Each catalog by the fixture of its address (without ``_uri``), and the layouts that it supports.
CATALOGS = {
    "sqlite": tuple(STORED_LAYOUTS),
    "postgres": tuple(STORED_LAYOUTS),
    "rest": ("registered", "table"),
    "glue": ("table",),
    "hive": ("table",),
}
#: Names the store of all homes in the environment, one of those in :mod:`tests.stores`. Tests that look at the files
#: of a local folder are skipped then, and so are those in which a command is refused because it must delete files.
STORE = "AIRFLOW_MV_TEST_STORE"
#: The store that refuses to delete.
NO_DELETE = "no-delete"
#: The address fixture and the layout of each lake: every layout in each catalog that supports it.
HOMES = {
    f"{home}-{layout}": (f"{home}_uri", layout)
    for home, supported in CATALOGS.items()
    for layout in STORED_LAYOUTS
    if layout in supported
}
_MARKS = {"postgres_uri": [pytest.mark.postgres], "rest_uri": [pytest.mark.rest]}
#: The homes of the normal run, by layout. A test has one of them; the long run has the others: each catalog and each
#: layout occurs, and their other combinations add little.
_TURNS = (("sqlite-pointed",), ("postgres-registered", "rest-registered"), ("sqlite-table", "rest-table", "glue-table"))
#: The same for tests of what is far above the catalog, without the slow ones.
_TURNS_ABOVE = (("sqlite-pointed",), ("sqlite-registered", "rest-registered"), ("sqlite-table", "rest-table"))
_ABOVE = {
    *("test_adopt.py", "test_base_snapshots.py", "test_changed_definitions.py", "test_clocks.py", "test_compact.py"),
    *("test_folders.py", "test_maintenance.py", "test_repair.py"),
}
#: A test of an invariant runs in each layout.
_INVARIANT = re.compile(r"test_i\d\d_")


def home_parameter(name: str) -> ParameterSet:
    """A lake with the marks of the services that it needs."""
    return pytest.param(name, marks=_MARKS.get(HOMES[name][0], ()))


def in_homes(wanted: Callable[[str], bool]) -> pytest.MarkDecorator:
    """Run a test in these homes only: the others have nothing to test."""
    return pytest.mark.parametrize(
        "every_home", [home_parameter(name) for name in HOMES if wanted(name)], indirect=True
    )


@pytest.fixture(params=[home_parameter(name) for name in HOMES])
def every_home(request: pytest.FixtureRequest, warehouse: Path) -> Iterator[Lake]:
    """An empty lake in each catalog and layout."""
    with _home_of(request, warehouse) as found:
        yield found


@pytest.fixture(params=[home_parameter(name) for name in HOMES if name.endswith("-registered")])
def registered_home(request: pytest.FixtureRequest, warehouse: Path) -> Iterator[Lake]:
    """An empty lake in each catalog, in the registered layout."""
    with _home_of(request, warehouse) as found:
        yield found


@contextmanager
def _home_of(request: pytest.FixtureRequest, warehouse: Path) -> Iterator[Lake]:
    fixture, layout = HOMES[request.param]
    if how := os.environ.get(STORE):
        from tests.stores import STORES  # it imports extras, without which the tests of the core pass

        if "warehouse" in inspect.signature(request.function).parameters:
            pytest.skip("it looks at the files of a local folder")
        with STORES[how](request, layout) as found:
            yield found
        return
    with lake(str(request.getfixturevalue(fixture)), warehouse, layout=layout) as found:
        yield found


def take_turns(items: list[pytest.Item]) -> None:
    """Let the homes take turns: most faults are planted above the catalog. The long run has all.

    A test with other parameters has the next layout for each of their values. So with three values or more it runs in
    each layout, as a test of an invariant always does.
    """
    tests: dict[str, dict[str, dict[str, pytest.Item]]] = {}
    for item in items:
        home = _home(item)
        if home is not None:
            values = tests.setdefault(f"{item.path.name}::{item.name.partition('[')[0]}", {})
            values.setdefault(item.name.replace(home, ""), {})[home] = item
    for name, values in tests.items():
        file, _, test = name.partition("::")
        turns = _TURNS_ABOVE if file in _ABOVE else _TURNS
        in_each = _INVARIANT.match(test) is not None and len(values) < len(turns)
        for number, key in enumerate(sorted(values)):
            kept = _kept(turns, set(values[key]), zlib.crc32(name.encode()) + number, in_each=in_each)
            for home, item in values[key].items():
                if home not in kept:
                    item.add_marker(pytest.mark.slow)


def _kept(turns: tuple[tuple[str, ...], ...], homes: set[str], turn: int, *, in_each: bool) -> set[str]:
    """Return the homes of the normal run: in each layout or in one, the catalog whose turn it is."""
    layouts = [[home for home in group if home in homes] for group in turns]
    found = [group[turn // len(turns) % len(group)] for group in layouts if group]
    return {*(found if in_each or not found else [found[turn % len(found)]])}


def _home(item: pytest.Item) -> str | None:
    """Return the home that a test's fixture has, if it has one of those that take turns."""
    parameters = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
    given = (parameters.get(name) for name in ("every_home", "registered_home", "bare", "home"))
    return next((str(name) for name in given if name in HOMES), None)
