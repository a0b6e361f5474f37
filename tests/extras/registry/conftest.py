# SPDX-License-Identifier: Apache-2.0
"""A lake with a registry: in a namespace of its catalog, or in a folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_mv.actions import refresh_views
from airflow_mv.extras.registry.registry import Registry, require_registry
from airflow_mv.extras.registry.settings import PLACE
from tests.builders import Lake, lake


@pytest.fixture(params=["namespace", "folder"])
def home(request: pytest.FixtureRequest, sqlite_uri: str, warehouse: Path) -> Iterator[Lake]:
    """A lake with a base table, and a registry without a row."""
    place = "airflow_mv" if request.param == "namespace" else f"{warehouse}/registry"
    with lake(sqlite_uri, warehouse, layout="pointed", **{PLACE: place}) as found:
        found.action = refresh_views
        found.table()
        yield found


@pytest.fixture
def registry(home: Lake) -> Registry:
    """The lake's registry."""
    return require_registry(home.catalog)
