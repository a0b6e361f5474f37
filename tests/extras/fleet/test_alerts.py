# SPDX-License-Identifier: Apache-2.0
"""Late views: one alert for a breach and one for the recovery, despite failures in between."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from airflow_mv.actions import create_view as create
from airflow_mv.core.define.definition import Definition
from airflow_mv.errors import CatalogUnavailableError
from airflow_mv.extras.fleet.alerts import FreshnessAlert, FreshnessSlo, WatchedViews, freshness_slos, settle
from tests.builders import QUERY, Lake, lake

HOUR = timedelta(hours=1)


class Notes(dict[str, Any]):
    """In-memory storage with the three methods of an asset's state store."""

    def set(self, key: str, value: Any) -> None:
        self[key] = value

    def delete(self, key: str) -> None:
        self.pop(key, None)


@pytest.fixture
def home(sqlite_uri: str, warehouse: Path) -> Iterator[Lake]:
    """A fresh view with a permitted lag of two hours."""
    with lake(sqlite_uri, warehouse) as found:
        found.table()
        found.view(properties={"airflow-mv.max-staleness": "2 h"})
        found.refresh()
        yield found


def watched(home: Lake, *names: str, **options: Any) -> WatchedViews:
    views = tuple(home.catalog.identify(f"sales.{name}") for name in names or ("daily",))
    return WatchedViews("lake", lambda: home.catalog, views, **options)


def load_slos(
    home: Lake, *names: str, after: timedelta = timedelta(0), max_staleness: timedelta | None = None
) -> list[FreshnessSlo]:
    return list(freshness_slos(watched(home, *names), max_staleness, now=datetime.now(UTC) + after))


def listed_slos(home: Lake, after: timedelta) -> dict[str, FreshnessSlo]:
    whole = WatchedViews("lake", lambda: home.catalog, namespace=("sales",))
    return {slo.view.name: slo for slo in freshness_slos(whole, now=datetime.now(UTC) + after)}


def reported(home: Lake, notes: Notes, **options: Any) -> list[FreshnessAlert]:
    found: list[FreshnessAlert] = []
    for slo in load_slos(home, **options):
        settle(slo, notes, lambda _: {"mail": found.append})
    return found


def test_a_breach_is_reported_once_and_its_recovery_once(home: Lake) -> None:
    """Each check computes the state again, but an unchanged state is not reported again."""
    notes = Notes()
    home.append()
    assert reported(home, notes) == []
    (breach,) = reported(home, notes, after=3 * HOUR)
    assert reported(home, notes, after=4 * HOUR) == []
    home.refresh()
    (recovery,) = reported(home, notes, after=5 * HOUR)
    assert reported(home, notes, after=9 * HOUR) == []

    assert (breach.event, recovery.event) == ("breach", "recovery")
    assert breach.message.startswith("lake.sales.daily is STALE, behind for 3:00:00 since ")
    assert "2:00:00 is allowed: lake.sales.orders advanced" in breach.message
    assert recovery.message == "lake.sales.daily is on time again (FRESH)"
    home.append()
    assert [alert.event for alert in reported(home, notes, after=9 * HOUR)] == ["breach"]


def test_an_alert_has_the_lag_its_start_and_the_base_tables(home: Lake) -> None:
    before = datetime.now(UTC) - timedelta(seconds=1)
    home.append()
    (alert,) = reported(home, Notes(), after=3 * HOUR)

    assert alert.view == "lake.sales.daily"
    assert alert.base_tables == ("lake.sales.orders",)
    assert alert.since is not None
    assert before <= alert.since <= datetime.now(UTC)
    assert alert.lag is not None
    assert abs(alert.lag - 3 * HOUR) < timedelta(minutes=1)
    document = alert.to_dict()
    assert (document["event"], document["readiness"], document["max_staleness_seconds"]) == ("breach", "STALE", 7200.0)


class Receivers:
    """A chat that works, and a mail server that may be down."""

    def __init__(self) -> None:
        self.down = False
        self.got: list[tuple[str, str]] = []

    def __call__(self, event: str) -> dict[str, Callable[[FreshnessAlert], object]]:
        return {name: partial(self.deliver, name) for name in ("mail", "chat")}

    def deliver(self, name: str, alert: FreshnessAlert) -> None:
        if name == "mail" and self.down:
            raise ConnectionError("the mail server is down")
        self.got.append((name, alert.event))


def test_an_alert_whose_delivery_fails_is_sent_again_to_those_who_have_not_got_it(home: Lake) -> None:
    """A repeated alert is acceptable, a lost one is not; but one broken receiver must not wake all others each time."""
    notes, receivers = Notes(), Receivers()
    on_time = load_slos(home)[0]
    home.append()
    late = load_slos(home, after=3 * HOUR)[0]

    def check(slo: FreshnessSlo, *, down: bool) -> list[tuple[str, str]]:
        receivers.down, receivers.got = down, []
        if down:
            with pytest.raises(ConnectionError):
                settle(slo, notes, receivers)
        else:
            settle(slo, notes, receivers)
        return receivers.got

    assert check(late, down=True) == [("chat", "breach")]
    assert check(late, down=True) == []
    assert check(late, down=False) == [("mail", "breach")]
    assert check(late, down=False) == []
    assert check(on_time, down=True) == [("chat", "recovery")]
    # Late again before all have got the recovery: those who have must hear of it.
    assert check(late, down=False) == [("mail", "breach"), ("chat", "breach")]
    assert check(on_time, down=False) == [("mail", "recovery"), ("chat", "recovery")]
    assert not notes


def test_a_breach_that_no_one_has_got_has_no_recovery(home: Lake) -> None:
    notes = Notes()
    on_time = load_slos(home)[0]
    home.append()
    late = load_slos(home, after=3 * HOUR)[0]
    receivers = Receivers()
    receivers.down = True
    with pytest.raises(ConnectionError):
        settle(late, notes, lambda event: {"mail": receivers(event)["mail"]})
    settle(on_time, notes, receivers)
    assert receivers.got == []


def test_a_view_that_was_never_refreshed_is_late_after_its_grace(home: Lake) -> None:
    """If its DAG was never enabled, there is no late DAG run that would show it."""
    home.view("new", properties={"airflow-mv.max-staleness": "2 h"})
    (young,) = load_slos(home, "new")
    (old,) = load_slos(home, "new", after=3 * HOUR)
    assert (young.readiness, young.breached, old.breached) == ("NEVER", False, True)
    assert old.lag_seconds is None
    assert old.since is not None


def test_a_view_over_a_changed_plain_view_has_its_grace_from_that_change_on(home: Lake) -> None:
    """Its own definition may be years old, but its rows are wrong only since the other view was replaced."""
    sql = "SELECT * FROM lake.sales.orders"
    home.plain_view("recent", sql)
    home.view("over", QUERY.replace("lake.sales.orders", "recent"), properties={"airflow-mv.max-staleness": "2 h"})
    home.refresh("sales.over")
    own = home.catalog.load("sales.over").metadata.current_version.timestamp_ms
    time.sleep(0.05)
    home.plain_view("recent", f"{sql} WHERE amount > 0")
    changed = home.catalog.load("sales.recent").metadata.current_version.timestamp_ms

    (slo,) = load_slos(home, "over")
    assert (slo.readiness, slo.breached) == ("INVALID", False)
    assert slo.since == datetime.fromtimestamp(changed / 1000, UTC)
    assert changed > own
    almost = datetime.fromtimestamp(own / 1000, UTC) + 2 * HOUR + timedelta(milliseconds=20)
    (still,) = freshness_slos(watched(home, "over"), now=almost)
    assert not still.breached
    assert load_slos(home, "over", after=3 * HOUR)[0].breached

    time.sleep(0.05)
    another = Definition(QUERY.replace("lake.sales.orders", "recent").replace("sum", "max"))
    create(home.catalog, "sales.over", another, stager=home.stager, replace=True)
    home.plain_view("recent", sql)
    own = home.catalog.load("sales.over").metadata.current_version.timestamp_ms
    assert load_slos(home, "over")[0].since == datetime.fromtimestamp(own / 1000, UTC)


def test_a_view_that_cannot_be_read_is_late_at_once_and_hides_no_other(home: Lake) -> None:
    """It was dropped, is broken, or a base table is missing."""
    home.table("gone")
    home.view("orphan", sql=QUERY.replace("orders GROUP", "gone GROUP").replace("sales.orders", "sales.gone"))
    home.refresh("sales.orphan")
    home.iceberg.drop_table("sales.gone")
    missing, orphan, daily = load_slos(home, "nowhere", "orphan", "daily", max_staleness=HOUR)

    assert [item.readiness for item in (missing, orphan, daily)] == ["UNKNOWN", "UNKNOWN", "FRESH"]
    assert [item.breached for item in (missing, orphan, daily)] == [True, True, False]
    assert "ViewNotFoundError: there is no view lake.sales.nowhere" in missing.reasons[0]
    assert "lake.sales.gone cannot be read" in orphan.reasons[0]


@pytest.mark.usefixtures("unchecked_properties")
def test_a_named_view_without_a_freshness_slo_is_reported(home: Lake) -> None:
    """It may have a wrong property. A view that is only found by listing is skipped."""
    home.view("free")
    home.view("odd", properties={"airflow-mv.max-staleness": "soon"})
    free, odd = load_slos(home, "free", "odd")
    assert (free.breached, odd.breached) == (True, True)
    assert "set its property airflow-mv.max-staleness, e.g. to '2 h'" in free.reasons[0]
    assert "property airflow-mv.max-staleness is 'soon'" in odd.reasons[0]

    home.plain_view("plain", "SELECT * FROM lake.sales.orders")
    listed = listed_slos(home, 99 * HOUR)
    assert (listed["free"].breached, listed["free"].max_staleness) == (False, None)
    assert listed.keys() == {"daily", "free", "odd"}


def test_a_view_that_was_dropped_and_recreated_is_reported_again(home: Lake) -> None:
    """The earlier report was about another view."""
    notes = Notes()
    home.append()
    assert len(reported(home, notes, after=3 * HOUR)) == 1
    home.catalog.drop("sales.daily")
    home.view(properties={"airflow-mv.max-staleness": "2 h"})
    assert [alert.event for alert in reported(home, notes, after=3 * HOUR)] == ["breach"]


def test_an_outage_is_neither_a_recovery_nor_a_breach(home: Lake) -> None:
    """It is reported after all views that can be read."""
    home.append()
    found = freshness_slos(watched(home, "daily", "daily"), now=datetime.now(UTC) + 3 * HOUR)
    assert next(found).breached
    home.iceberg.engine.dispose()  # type: ignore[attr-defined]
    database = Path(str(home.iceberg.engine.url.database))  # type: ignore[attr-defined]
    database.rename(database.with_suffix(".away"))
    database.mkdir()
    with pytest.raises(CatalogUnavailableError):
        next(found)
