# SPDX-License-Identifier: Apache-2.0
"""Pending changes of real commits: which commits count, and when a pending change is announced again."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event

from airflow_mv.actions import create_view as create
from airflow_mv.core.define.definition import Definition
from airflow_mv.core.freshness.observe import observe
from airflow_mv.core.freshness.state import SnapshotSet
from airflow_mv.errors import BaseTableNotFoundError, ConfigurationError
from airflow_mv.extras.pending.changes import PendingChanges, pending_changes
from airflow_mv.extras.pending.criteria import Announcements, PendingCriteria
from tests.builders import Lake, lake

JOINED = (
    "SELECT o.region, count(*) AS n FROM lake.sales.orders o JOIN lake.sales.regions r ON o.region = r.region "
    "GROUP BY o.region"
)


@pytest.fixture
def home(sqlite_uri: str, warehouse: Path) -> Iterator[Lake]:
    """A refreshed view of one table, and one of two tables."""
    with lake(sqlite_uri, warehouse) as found:
        found.table()
        found.table("regions")
        found.view()
        found.view("joined", sql=JOINED)
        found.refresh()
        found.refresh("sales.joined")
        yield found


def pending(home: Lake, view: str = "sales.daily", **wanted: Any) -> PendingChanges | None:
    return pending_changes(observe(home.catalog, view), PendingCriteria(**wanted))


def mark(home: Lake) -> str:
    found = pending(home)
    assert found is not None
    return found.mark


def test_a_commit_is_a_pending_change_with_its_snapshots_and_rows(home: Lake) -> None:
    """A refresh that it triggers can report its cause. Ids are text, because JavaScript would round them."""
    assert pending(home) is None
    old, new = home.head(), home.append((8, "west", 1), (9, "west", 2))
    found = pending(home)

    assert found is not None
    (table,) = found.to_dict()["tables"]
    assert table == {
        "identifier": "lake.sales.orders",
        "from": str(old),
        "to": str(new),
        "change": "appended",
        "snapshots": 1,
        "rows_added": 2,
        "rows_deleted": 0,
    }
    assert found.to_dict()["refresh_id"] == home.storage().state.current_refresh_id
    home.refresh()
    assert pending(home) is None


def test_a_compaction_is_not_a_pending_change_alone_or_after_others(home: Lake) -> None:
    """An hourly compaction triggers no refresh, and no second one of those that are due."""
    home.compact()
    assert pending(home) is None
    home.append()
    before = mark(home)
    home.compact()
    assert mark(home) == before
    home.append()
    assert mark(home) != before


def test_a_view_that_was_never_refreshed_has_a_pending_change(home: Lake) -> None:
    """Never refreshed at all, or not since its definition changed."""
    home.view("new")
    found = pending(home, "sales.new", require="all")
    assert found is not None
    assert found.to_dict()["refresh_id"] is None
    definition = Definition("SELECT region FROM lake.sales.orders")
    create(home.catalog, "sales.daily", definition, stager=home.stager, replace=True)
    changed = pending(home)
    assert changed is not None
    assert [reason["code"] for reason in changed.to_dict()["reasons"]] == ["DEFINITION_CHANGED"]


def test_a_rollback_is_a_pending_change(home: Lake) -> None:
    """Rows were removed."""
    old = home.head()
    home.append()
    home.refresh()
    home.roll_back(old)
    assert pending(home) is not None


def test_a_pending_change_may_require_all_any_or_some_base_tables(home: Lake) -> None:
    """A view of facts and dimensions need not be refreshed after each change of a dimension."""
    home.append()
    assert pending(home, "sales.joined") is not None
    assert pending(home, "sales.joined", require="all") is None
    assert pending(home, "sales.joined", tables=("sales.regions",)) is None
    assert pending(home, "sales.joined", tables=("sales.orders",), require="all") is not None
    home.append(name="regions")
    assert pending(home, "sales.joined", require="all") is not None
    with pytest.raises(ConfigurationError, match=r"does not read lake\.sales\.order \(named in 'tables'\)"):
        pending(home, "sales.joined", tables=("sales.order",))


def test_a_quiet_period_waits_after_the_last_commit_with_a_limit(home: Lake) -> None:
    """A writer may be between two of ten commits, or never pause."""
    home.append()
    now = datetime.now(UTC)
    five = timedelta(minutes=5)

    def announced(at: datetime, **wanted: Any) -> bool:
        return (
            pending_changes(observe(home.catalog, "sales.daily"), PendingCriteria(quiet=five, **wanted), now=at)
            is not None
        )

    assert not announced(now)
    assert announced(now + timedelta(minutes=6))
    assert announced(now, wait_at_most=timedelta(0))
    assert not announced(now, wait_at_most=timedelta(minutes=1))


def test_a_missing_base_table_is_an_error(home: Lake) -> None:
    """It is not a pending change, because a refresh would fail."""
    home.iceberg.drop_table("sales.regions")
    with pytest.raises(BaseTableNotFoundError, match=r"base table lake\.sales\.regions does not exist"):
        pending(home, "sales.joined")


def test_a_base_table_is_read_once_for_all_views(home: Lake) -> None:
    """A commit during a poll does not give views different states of it."""
    pins = SnapshotSet()
    first = home.append()
    assert pending_changes(observe(home.catalog, "sales.daily", reads=pins)) is not None
    home.append()
    found = pending_changes(observe(home.catalog, "sales.joined", reads=pins))
    assert found is not None
    assert found.to_dict()["tables"][0]["to"] == str(first)


def test_a_poll_reads_the_pointer_of_a_base_table_once(home: Lake) -> None:
    """The number of views that read it does not matter."""
    statements: list[str] = []

    def note(connection: Any, cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        statements.append(f"{statement} {parameters}")

    event.listen(home.iceberg.engine, "before_cursor_execute", note)  # type: ignore[attr-defined]
    pins = SnapshotSet()
    for view in ("sales.daily", "sales.joined"):
        assert pending_changes(observe(home.catalog, view, reads=pins)) is None
    event.remove(home.iceberg.engine, "before_cursor_execute", note)  # type: ignore[attr-defined]

    assert len(statements) == 4, statements  # each view's own pointer, and that of each base table


def test_a_pending_change_is_announced_once_and_again_after_a_partial_refresh(home: Lake) -> None:
    """A refresh as of an earlier time leaves the rest to the next one."""
    home.append()
    middle = datetime.now(UTC)
    home.append()
    first = mark(home)
    home.refresh(options=_as_of(middle))
    assert mark(home) != first


def _as_of(moment: datetime) -> Any:
    from airflow_mv.core.refresh import RefreshOptions

    return RefreshOptions(as_of=moment)


def test_announcements_survive_a_restart_and_are_repeated_after_a_long_time(home: Lake) -> None:
    """A reported change is not reported again, unless no refresh follows for long."""
    announced = Announcements(remind_every=timedelta(hours=1))
    assert announced.due({"v": "a"}, 1000.0) == ["v"]
    announced.announced({"v": "a"}, 1000.0)
    after_restart = Announcements(remind_every=timedelta(hours=1))
    after_restart.recall(announced.state(), ["v"])

    for known in (announced, after_restart):
        assert known.due({"v": "a"}, 1060.0) == []
        assert known.due({"v": "b", "w": "c"}, 1060.0) == ["v", "w"]
        assert known.due({"v": "a"}, 1000.0 + 3600) == ["v"]
    never_again = Announcements()
    never_again.recall(announced.state(), ["v"])
    assert never_again.due({"v": "a"}, 1e9) == []


def test_at_most_every_applies_to_all_views_together() -> None:
    """It limits the number of triggered DAG runs."""
    announced = Announcements(at_most_every=timedelta(minutes=10))
    announced.announced({"v": "a"}, 1000.0)
    assert announced.due({"w": "x"}, 1500.0) == []
    assert announced.due({"w": "x"}, 1600.0) == ["w"]


def test_changes_that_are_pending_again_are_announced_again() -> None:
    """After a rollback of the view they are the same ones. The minimum time between two events holds."""
    announced = Announcements(at_most_every=timedelta(minutes=10))
    announced.announced({"v": "a", "w": "b"}, 1000.0)
    assert announced.forget({"v", "x"})
    assert not announced.forget({"v", "x"})
    announced.recall(announced.state(), ["v", "w"])
    assert announced.due({"v": "a", "w": "b"}, 1500.0) == []
    assert announced.due({"v": "a", "w": "b"}, 1600.0) == ["v"]


@pytest.mark.parametrize("kept", [None, "x", [], {"v": "a"}, {"v": ["a"]}, {"v": [1, 2]}, {"other": ["a", 1.0]}])
def test_invalid_stored_state_means_that_nothing_was_announced(kept: object) -> None:
    """A repeated event is harmless; a watcher that fails because of its stored state is not."""
    announced = Announcements()
    announced.recall(kept, ["v"])
    assert announced.due({"v": "a"}, 0.0) == ["v"]
