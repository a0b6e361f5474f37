# SPDX-License-Identifier: Apache-2.0
"""One seed for all tests, slices of the long tests, and a summary of measurements at the end."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

import pytest

from airflow_mv.core.catalog import Layout
from tests.airflow.conftest import _airflow, airflow, sales
from tests.builders import Lake, lake

__all__ = ["_airflow", "airflow", "sales"]

#: A new seed each night; 0 in every other run.
SEED = int(os.environ.get("TORTURE_SEED") or 0)
#: ``2/4``: the second quarter of the long tests.
SLICE = os.environ.get("TORTURE_SLICE") or "1/1"

_figures: list[tuple[str, dict[str, Any]]] = []


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep one slice of the long tests; short ones are in every slice."""
    number, count = (int(part) for part in SLICE.split("/"))
    assert 1 <= number <= count, f"slice {SLICE!r} must be like 2/4"
    slow = [item for item in items if item.get_closest_marker("slow")]
    out = [item for place, item in enumerate(slow) if place % count != number - 1]
    config.hook.pytest_deselected(items=out)
    items[:] = [item for item in items if item not in out]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what was measured."""
    if not _figures:
        return
    terminalreporter.write_sep("=", f"torture, seed {SEED}, slice {SLICE}")
    for title, values in _figures:
        terminalreporter.write_line(title)
        terminalreporter.write_line(
            "    " + ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in values.items())
        )


@pytest.fixture
def seed() -> int:
    """The seed of all random choices of a test."""
    return SEED


@pytest.fixture
def figures(request: pytest.FixtureRequest) -> Callable[..., None]:
    """Collects a test's measurements for the summary at the end."""

    def take(**values: Any) -> None:
        rounded = {name: round(value, 2) if isinstance(value, float) else value for name, value in values.items()}
        _figures.append((request.node.name, rounded))

    return take


@pytest.fixture(scope="session")
def processes() -> ForkServerContext:
    """Starts processes with all modules imported, so that their run time is the work itself."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.torture.warm"])
    return context


@pytest.fixture(params=["sqlite", "postgres"])
def uri(request: pytest.FixtureRequest) -> str:
    """A catalog database, of each kind."""
    return str(request.getfixturevalue(f"{request.param}_uri"))


@pytest.fixture
def layout() -> Layout:
    """The layout of the view; a test with a parameter of this name uses others."""
    return "pointed"


@pytest.fixture
def home(uri: str, warehouse: Path, layout: Layout) -> Iterator[Lake]:
    """A lake with a base table and a view that was never refreshed."""
    with lake(uri, warehouse, layout=layout) as found:
        found.table()
        found.view()
        yield found
