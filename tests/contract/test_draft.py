# SPDX-License-Identifier: Apache-2.0
"""The draft "Materialized View Spec" (apache/iceberg#11041): a view of this package is one there, and the reverse.

The branches for Spark (apache/iceberg#9830) and Trino (trinodb/trino#31027) need an Iceberg that is not released, so
they are not built here. Their rules are: :class:`Reader` finds the storage table and decides freshness as they do.
Their records are read in ``tests/core/spec/test_refresh_state.py``.
"""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest

from airflow_mv.actions import create_view
from airflow_mv.common.refresh_state import REFRESH_STATE_KEY
from airflow_mv.common.status import status
from airflow_mv.core.define.definition import Definition
from airflow_mv.core.freshness.state import State
from airflow_mv.core.spec.view import with_storage_table
from airflow_mv.extras.maintenance.orphans import expire
from tests.branches import create_branch
from tests.builders import Lake, orders

VIEW = "sales.daily"
ALL = "SELECT id, region FROM "


class Reader:
    """An engine that follows the draft. It knows no property of this package."""

    def __init__(self, home: Lake, view: str = VIEW) -> None:
        self._home, self._metadata = home, home.catalog.load(view).metadata

    @property
    def storage_table(self) -> tuple[str, ...] | None:
        """The table with the rows, as the current version names it; ``None`` if it is a common view."""
        field = self._metadata.current_version.document().get("storage-table")
        return (*field["namespace"], field["name"]) if field else None

    @property
    def state(self) -> dict[str, Any] | None:
        """The state in the summary of the storage table's current snapshot."""
        assert self.storage_table is not None
        snapshot = self._home.iceberg.load_table(self.storage_table).current_snapshot()
        text = snapshot.summary[REFRESH_STATE_KEY] if snapshot and snapshot.summary else None
        return json.loads(text) if text else None

    @property
    def is_fresh(self) -> bool:
        """Whether the version is the refreshed one, and each source is as it was: its uuid, and its snapshot."""
        state = self.state
        if state is None or state["view-version-id"] != self._metadata.current_version_id:
            return False
        return all(map(self._same, state["source-states"]))

    def _same(self, source: dict[str, Any]) -> bool:
        name = (*source["namespace"], source["name"])
        if source["type"] == "view":
            view = self._home.catalog.load(".".join(name)).metadata
            return (view.view_uuid, view.current_version_id) == (source["uuid"], source["version-id"])
        table = self._home.iceberg.load_table(name)
        if (ref := source.get("ref")) is not None:
            found = table.metadata.refs.get(ref)
            head = found.snapshot_id if found else None
        else:
            current = table.current_snapshot()
            head = current.snapshot_id if current else -1
        return (str(table.metadata.table_uuid), head) == (source["uuid"], source["snapshot-id"])


@pytest.fixture
def home(registered_home: Lake) -> Lake:
    if not registered_home.catalog.is_sql:
        pytest.skip("Iceberg's server does not store the field")
    registered_home.table()
    return registered_home


def test_another_engine_finds_the_rows_and_decides_freshness_as_this_package_does(home: Lake) -> None:
    """A new view is not fresh; a base table that was never written counts, a nested view too."""
    home.table("empty", rows=None)
    home.plain_view("plain", f"{ALL}lake.sales.orders", columns=("id", "region"))
    home.view(sql=f"{ALL}lake.sales.plain UNION ALL {ALL}lake.sales.empty")
    assert Reader(home).storage_table == ("sales", "daily__storage")
    assert not Reader(home).is_fresh
    changes = (
        lambda: home.append((4, "east", 1)),
        lambda: home.append((5, "east", 1), name="empty"),
        lambda: home.plain_view("plain", f"{ALL}lake.sales.orders WHERE id > 1", columns=("id", "region")),
    )
    for change in changes:
        home.refresh()
        assert (Reader(home).is_fresh, status(home.catalog, VIEW).state) == (True, State.FRESH)
        change()
        assert not Reader(home).is_fresh
        assert status(home.catalog, VIEW).state in (State.STALE, State.DEFINITION_CHANGED)


def test_a_branch_is_compared_with_its_own_snapshot_and_a_fixed_snapshot_with_none(home: Lake) -> None:
    create_branch(home.load(), "audit", home.head())
    fixed = home.head()
    home.view(sql=f"{ALL}orders VERSION AS OF 'audit' UNION ALL {ALL}orders VERSION AS OF {fixed}")
    home.refresh()
    state = Reader(home).state
    assert state is not None
    assert [item.get("ref") for item in state["source-states"]] == ["audit"]
    home.append((4, "east", 1))
    assert (Reader(home).is_fresh, status(home.catalog, VIEW).state) == (True, State.FRESH)
    home.load().append(orders(((5, "east", 1),)), branch="audit")
    assert (Reader(home).is_fresh, status(home.catalog, VIEW).state) == (False, State.STALE)


def test_another_definition_is_not_fresh_until_it_is_refreshed(home: Lake) -> None:
    home.view()
    home.refresh()
    create_view(home.catalog, VIEW, Definition(f"{ALL}lake.sales.orders"), stager=home.stager, replace=True)
    assert not Reader(home).is_fresh
    home.refresh()
    assert Reader(home).is_fresh


def test_a_materialized_view_of_another_engine_becomes_one_of_this_package_and_stays_one_of_the_draft(
    home: Lake,
) -> None:
    """It keeps its name, uuid and definition. Its rows are then in a table of this package, which its version names."""
    view = home.plain_view("daily", f"{ALL}lake.sales.orders", columns=("id", "region"))
    theirs = home.iceberg.create_table("sales.st_1", schema=home.load().schema().select("id", "region"))
    named = with_storage_table(
        view.metadata, {"namespace": ["sales"], "name": "st_1"}, summary={"engine-name": "other"}, now_ms=1
    )
    assert home.catalog.replace(view, named)
    assert Reader(home).storage_table == theirs.name()
    create_view(home.catalog, VIEW, Definition(None, layout="registered"), stager=home.stager)
    home.refresh()
    assert home.catalog.load(VIEW).metadata.view_uuid == view.metadata.view_uuid
    assert (Reader(home).storage_table, Reader(home).is_fresh) == (("sales", "daily__storage"), True)
    assert sorted(row["id"] for row in home.read(VIEW)) == [1, 2, 3]


def test_the_record_stays_when_earlier_snapshots_expire(home: Lake) -> None:
    home.view()
    for _ in range(2):
        home.refresh()
        home.append((4, "east", 1))
    home.refresh()
    state = Reader(home).state
    assert expire(home.catalog, VIEW, older_than=timedelta(0)).snapshot_ids
    assert (Reader(home).state, Reader(home).is_fresh) == (state, True)
