# SPDX-License-Identifier: Apache-2.0
"""The catalogs and layouts that the contract suite runs on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet

from airflow_mv.catalog import STORED_LAYOUTS
from tests.builders import Lake, lake

#: The address fixture and the layout of each lake: every layout in each catalog that supports it.
HOMES = {
    f"{home}-{layout.name}": (f"{home}_uri", layout.name)
    for home in ("sqlite", "postgres", "rest")
    for layout in STORED_LAYOUTS.values()
    if home != "rest" or not layout.swaps_pointers
}
_MARKS = {"postgres_uri": [pytest.mark.postgres], "rest_uri": [pytest.mark.rest]}
#: Each catalog and each layout occurs among the others; their other combinations add little.
_SLOW = ("sqlite-registered", "postgres-pointed")


def home_parameter(name: str) -> ParameterSet:
    """A lake with the marks of the services that it needs."""
    return pytest.param(name, marks=[*_MARKS.get(HOMES[name][0], []), *([pytest.mark.slow] if name in _SLOW else [])])


@pytest.fixture(params=[home_parameter(name) for name in HOMES])
def every_home(request: pytest.FixtureRequest, warehouse: Path) -> Iterator[Lake]:
    """An empty lake in each catalog and layout."""
    fixture, layout = HOMES[request.param]
    with lake(str(request.getfixturevalue(fixture)), warehouse, layout=layout) as found:
        yield found


@pytest.fixture(params=[home_parameter(name) for name in HOMES if "pointed" not in name])
def registered_home(request: pytest.FixtureRequest, warehouse: Path) -> Iterator[Lake]:
    """An empty lake in each catalog, in the registered layout."""
    with lake(str(request.getfixturevalue(HOMES[request.param][0])), warehouse, layout="registered") as found:
        yield found
