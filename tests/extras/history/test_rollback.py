# SPDX-License-Identifier: Apache-2.0
"""A rollback is refused where its rows are unavailable, and leaves valid metadata."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyiceberg.table import StaticTable

from airflow_mv.actions import create_view as create
from airflow_mv.core.define.definition import Definition
from airflow_mv.errors import RefreshNotFoundError
from airflow_mv.extras.history.rollback import rollback
from airflow_mv.extras.maintenance.orphans import expire
from tests.builders import QUERY, Lake, lake
from tests.extras.maintenance.support import (
    NOW,
    VIEW,
    refreshed,
    rewrite,
)

DAY = 86_400_000


@pytest.fixture
def home(sqlite_uri: str, warehouse: Path) -> Iterator[Lake]:
    with lake(sqlite_uri, warehouse) as found:
        found.table()
        yield found


def forget_tag(home: Lake, refresh_id: str) -> None:
    document = json.loads(home.catalog.files.read(home.storage().location, what="file"))
    del document["refs"][f"refresh-{refresh_id}"]
    rewrite(home, document)
    expire(home.catalog, VIEW, older_than=NOW)


def redefine(home: Lake, refresh_id: str) -> None:
    definition = Definition(QUERY.replace("sum", "max"), time_travel=True)
    create(home.catalog, VIEW, definition, stager=home.stager, replace=True)


@pytest.mark.parametrize(
    ("prepare", "says"),
    [(forget_tag, "have expired"), (redefine, r"is of version 1 of the view, and the current version is 2")],
)
def test_a_rollback_to_an_unavailable_refresh_is_refused(
    home: Lake, prepare: Callable[[Lake, str], None], says: str
) -> None:
    first, _ = refreshed(home, 2, time_travel=True)
    prepare(home, first)
    before = home.storage().location
    with pytest.raises(RefreshNotFoundError, match=says):
        rollback(home.catalog, VIEW, first)
    assert home.storage().location == before


def test_metadata_after_expiry_and_rollback_is_valid_for_pyiceberg(home: Lake) -> None:
    """pyiceberg validates that refs, log and current snapshot agree."""
    first, *_ = refreshed(home, 3, time_travel=True)
    rollback(home.catalog, VIEW, first)
    expire(home.catalog, VIEW, older_than=NOW)
    metadata = StaticTable.from_metadata(home.storage().location).metadata
    assert metadata.current_snapshot_id == metadata.refs["main"].snapshot_id == metadata.snapshot_log[-1].snapshot_id
    assert {entry.snapshot_id for entry in metadata.snapshot_log} <= {item.snapshot_id for item in metadata.snapshots}
    times = [entry.timestamp_ms for entry in metadata.snapshot_log]
    assert times == sorted(times)
