# SPDX-License-Identifier: Apache-2.0
"""Pending changes, on real commits: which commits count, and when a pending change is announced again."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event

from airflow_mv.errors import BaseTableNotFoundError, ConfigurationError
from airflow_mv.freshness.pending import Announcements, PendingCriteria
from airflow_mv.freshness.pending_changes import PendingChanges, find_pending_changes
from airflow_mv.refresh.create import Definition, create
from airflow_mv.spec.identifiers import Identifier
from tests.builders import Lake, lake

JOINED = (
    "SELECT o.region, count(*) AS n FROM lake.sales.orders o JOIN lake.sales.regions r ON o.region = r.region "
    "GROUP BY o.region"
)


@pytest.fixture
def home(sqlite_uri: str, warehouse: Path) -> Iterator[Lake]:
    """A refreshed view of one table, and one of two."""
    with lake(sqlite_uri, warehouse) as found:
        found.table()
        found.table("regions")
        found.view()
        found.view("joined", sql=JOINED)
        found.refresh()
        found.refresh("sales.joined")
        yield found


def news(home: Lake, view: str = "sales.daily", **wanted: Any) -> PendingChanges | None:
    return find_pending_changes(home.catalog, view, PendingCriteria(**wanted))


def mark(home: Lake) -> str:
    found = news(home)
    assert found is not None
    return found.mark


def test_a_commit_is_news_with_its_snapshots_and_rows(home: Lake) -> None:
    """A refresh that starts on it can say what for. Ids are text: JavaScript would round them."""
    assert news(home) is None
    old, new = home.head(), home.append((8, "west", 1), (9, "west", 2))
    found = news(home)

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
    assert news(home) is None


def test_compaction_is_no_news_neither_alone_nor_after_news(home: Lake) -> None:
    """Whoever compacts each hour must not start a refresh each hour, and not a second one of those that are due."""
    home.compact()
    assert news(home) is None
    home.append()
    before = mark(home)
    home.compact()
    assert mark(home) == before
    home.append()
    assert mark(home) != before


def test_a_view_that_has_seen_nothing_is_news(home: Lake) -> None:
    """Never refreshed, or of a new definition: someone has to refresh it."""
    home.view("new")
    found = news(home, "sales.new", require="all")
    assert found is not None
    assert found.to_dict()["refresh_id"] is None
    definition = Definition("SELECT region FROM lake.sales.orders")
    create(home.catalog, "sales.daily", definition, stager=home.stager, replace=True)
    changed = news(home)
    assert changed is not None
    assert [reason["code"] for reason in changed.to_dict()["reasons"]] == ["DEFINITION_CHANGED"]


def test_a_rollback_is_news(home: Lake) -> None:
    """Rows went away."""
    old = home.head()
    home.append()
    home.refresh()
    home.roll_back(old)
    assert news(home) is not None


def test_all_base_tables_or_any_or_some_of_them(home: Lake) -> None:
    """A view of facts and dimensions need not follow each dimension."""
    home.append()
    assert news(home, "sales.joined") is not None
    assert news(home, "sales.joined", require="all") is None
    assert news(home, "sales.joined", tables=("sales.regions",)) is None
    assert news(home, "sales.joined", tables=("sales.orders",), require="all") is not None
    home.append(name="regions")
    assert news(home, "sales.joined", require="all") is not None
    with pytest.raises(ConfigurationError, match=r"does not read lake\.sales\.order \(named in 'tables'\)"):
        news(home, "sales.joined", tables=("sales.order",))


def test_a_quiet_period_waits_for_the_last_commit_but_not_for_ever(home: Lake) -> None:
    """A writer in the midst of ten commits; and one that never rests."""
    home.append()
    now = datetime.now(UTC)
    five = timedelta(minutes=5)

    def told(at: datetime, **wanted: Any) -> bool:
        return (
            find_pending_changes(home.catalog, "sales.daily", PendingCriteria(quiet=five, **wanted), now=at) is not None
        )

    assert not told(now)
    assert told(now + timedelta(minutes=6))
    assert told(now, wait_at_most=timedelta(0))
    assert not told(now, wait_at_most=timedelta(minutes=1))


def test_a_base_table_that_is_gone_is_said(home: Lake) -> None:
    """It is no news: a refresh would fail."""
    home.iceberg.drop_table("sales.regions")
    with pytest.raises(BaseTableNotFoundError, match=r"base table lake\.sales\.regions does not exist"):
        news(home, "sales.joined")


def test_one_look_at_a_base_table_serves_all_views(home: Lake) -> None:
    """A commit between two looks of one poll does not split it."""
    pins: dict[Identifier, Any] = {}
    first = home.append()
    assert find_pending_changes(home.catalog, "sales.daily", pins=pins) is not None
    home.append()
    found = find_pending_changes(home.catalog, "sales.joined", pins=pins)
    assert found is not None
    assert found.to_dict()["tables"][0]["to"] == str(first)


def test_a_poll_asks_for_the_pointer_of_a_base_table_once(home: Lake) -> None:
    """However many views read it: the catalog's database has other things to do."""
    asked: list[str] = []

    def note(connection: Any, cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        asked.append(f"{statement} {parameters}")

    event.listen(home.iceberg.engine, "before_cursor_execute", note)  # type: ignore[attr-defined]
    pins: dict[Identifier, Any] = {}
    for view in ("sales.daily", "sales.joined"):
        assert find_pending_changes(home.catalog, view, pins=pins) is None
    event.remove(home.iceberg.engine, "before_cursor_execute", note)  # type: ignore[attr-defined]

    assert len(asked) == 4, asked  # each view's own pointer, and that of each base table


def test_the_same_news_is_announced_once_and_again_after_a_refresh_that_left_some(home: Lake) -> None:
    """A refresh that was made as of an earlier time leaves the rest to the next one."""
    home.append()
    middle = datetime.now(UTC)
    home.append()
    first = mark(home)
    home.refresh(options=_as_of(middle))
    assert mark(home) != first


def _as_of(moment: datetime) -> Any:
    from airflow_mv.refresh import RefreshOptions

    return RefreshOptions(as_of=moment)


def test_announcements_outlive_a_restart_and_are_reminded_of(home: Lake) -> None:
    """Neither a storm nor a loss: what was told is not told again, until nobody has done anything for long."""
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


def test_at_most_every_counts_over_all_views() -> None:
    """It is for the sake of whoever runs the refreshes."""
    announced = Announcements(at_most_every=timedelta(minutes=10))
    announced.announced({"v": "a"}, 1000.0)
    assert announced.due({"w": "x"}, 1500.0) == []
    assert announced.due({"w": "x"}, 1600.0) == ["w"]


@pytest.mark.parametrize("kept", [None, "x", [], {"v": "a"}, {"v": ["a"]}, {"v": [1, 2]}, {"other": ["a", 1.0]}])
def test_a_memory_that_is_none_means_that_nothing_was_announced(kept: object) -> None:
    """An event twice is harmless; a watcher that dies of its memory is not."""
    announced = Announcements()
    announced.recall(kept, ["v"])
    assert announced.due({"v": "a"}, 0.0) == ["v"]
