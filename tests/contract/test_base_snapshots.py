# SPDX-License-Identifier: Apache-2.0
"""Tags that keep the base snapshots of a view: in all catalogs, moved by a refresh, removed with the view."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest

from airflow_mv.cli import show
from airflow_mv.common.status import status
from airflow_mv.core.refresh import plan_refresh
from airflow_mv.core.refresh.plan import RefreshPlan
from airflow_mv.core.spec.properties import KEEP_PROPERTY
from airflow_mv.errors import CommitStateUnknownError
from airflow_mv.extras.fleet.alerts import WatchedViews, freshness_slos
from airflow_mv.extras.maintenance import expire as base_snapshots
from airflow_mv.extras.maintenance.drop import drop
from airflow_mv.extras.maintenance.expire import keep_base_snapshots
from airflow_mv.extras.maintenance.run import maintain_after_refresh
from tests.builders import Lake, informed
from tests.contract.support import VIEW

DAY_MS = 86_400_000


def tags(home: Lake, name: str = "orders") -> dict[str, tuple[int, int]]:
    """The tags of a base table with their snapshots, and the days from now on for which they stay."""
    table = home.load(name)
    now = datetime.now(UTC).timestamp() * 1000
    return {
        tag: (ref.snapshot_id, round((_time(home, ref.snapshot_id, name) + (ref.max_ref_age_ms or 0) - now) / DAY_MS))
        for tag, ref in table.refs().items()
        if tag != "main"
    }


def _time(home: Lake, snapshot_id: int, name: str) -> int:
    snapshot = home.load(name).snapshot_by_id(snapshot_id)
    assert snapshot is not None
    return snapshot.timestamp_ms


def expire_all(home: Lake) -> None:
    """The base table's own maintenance: it removes what no branch or tag names."""
    home.load().maintenance.expire_snapshots().older_than(datetime.now(UTC) + timedelta(days=1)).commit()


def planned(home: Lake) -> tuple[str, RefreshPlan]:
    (change,) = status(home.catalog, VIEW).to_dict()["base_tables"]
    return change["change"], plan_refresh(home.catalog, VIEW, informed())


@pytest.fixture
def home(every_home: Lake) -> Lake:
    every_home.table()
    every_home.view(
        properties={KEEP_PROPERTY: "7 days", "airflow-mv.incremental-up-to": "1000000"}, refresh_strategy="incremental"
    )
    every_home.refresh()
    return every_home


def test_the_base_snapshot_of_the_last_refresh_stays_until_the_next(home: Lake) -> None:
    """An expiry removes only the snapshot in between. The tag follows the refreshes, and is removed with the view."""
    first = home.head()
    keep_base_snapshots(home.catalog, VIEW)
    ((tag, kept),) = tags(home).items()
    assert kept == (first, 7)
    assert tag.startswith("airflow_mv_keep_")
    before = home.load().metadata_location
    keep_base_snapshots(home.catalog, VIEW)
    assert home.load().metadata_location == before, "a tag that lasts is not written again"
    home.append((5, "west", 1))
    home.append((6, "west", 1))
    expire_all(home)
    assert {item.snapshot_id for item in home.load().snapshots()} == {first, home.head()}
    change, plan = planned(home)
    assert change == "rolled-back", "both snapshots are there, and their difference can be read"
    assert plan.mode == "merge"
    assert plan.reasons[0].message.endswith("the snapshots in between have expired")
    home.refresh()
    maintain_after_refresh(home.catalog, VIEW, published=False)
    assert list(tags(home).values()) == [(home.head(), 7)]
    drop(home.catalog, VIEW)
    assert tags(home) == {}


def test_without_the_property_nothing_is_kept(home: Lake) -> None:
    """The independent case: the same history without a tag cannot be followed."""
    home.append((5, "west", 1))
    home.append((6, "west", 1))
    expire_all(home)
    change, plan = planned(home)
    assert (change, plan.mode) == ("expired", "full")


def test_a_tag_is_renewed_when_half_of_its_time_is_over(home: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a base table that does not change; and a tag that someone has made without an age stays as it is."""
    keep_base_snapshots(home.catalog, VIEW)

    def after(days: int) -> SimpleNamespace:
        return SimpleNamespace(time_ns=lambda: time.time_ns() + days * DAY_MS * 10**6)

    for days, left in ((3, 7), (4, 11)):
        monkeypatch.setattr(base_snapshots, "time", after(days))
        keep_base_snapshots(home.catalog, VIEW)
        assert [days for _, days in tags(home).values()] == [left]
    (tag,) = tags(home)
    home.load().manage_snapshots().create_tag(home.head(), tag).commit()
    monkeypatch.setattr(base_snapshots, "time", after(900))
    keep_base_snapshots(home.catalog, VIEW)
    assert home.load().refs()[tag].max_ref_age_ms is None


@pytest.mark.usefixtures("unchecked_properties")
def test_a_failure_is_a_warning(home: Lake, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Of the catalog, of the property's value, of a table that others keep changing: the view is refreshed."""

    def unanswered(*_: object) -> None:
        raise CommitStateUnknownError("no answer to a commit")

    with monkeypatch.context() as patched:
        patched.setattr(type(home.catalog.tables), "commit", unanswered)
        keep_base_snapshots(home.catalog, VIEW)
        patched.setattr(type(home.catalog.tables), "commit", lambda *_: None)
        keep_base_snapshots(home.catalog, VIEW)
    home.view("wrong", properties={KEEP_PROPERTY: "long"})
    keep_base_snapshots(home.catalog, "sales.wrong")
    assert [record.levelname for record in caplog.records if "snapshots" in record.getMessage()] == ["WARNING"] * 3
    assert "no answer to a commit" in caplog.text
    assert "table lake.sales.orders: 3 commits in a row conflicted with others" in caplog.text
    assert f"property {KEEP_PROPERTY} is 'long', which is not a length of time" in caplog.text
    assert tags(home) == {}


def test_the_status_and_alerts_say_when_a_base_snapshot_may_expire(
    home: Lake, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the base table's own settings; not for a snapshot that is current, or that a tag keeps."""
    (change,) = status(home.catalog, VIEW).to_dict()["base_tables"]
    assert change["expires_at"] is None
    written = _time(home, home.head(), "orders")
    with home.load().transaction() as change_table:
        change_table.set_properties({"history.expire.max-snapshot-age-ms": str(5 * 3_600_000 + 60_000)})
    home.append()
    (change,) = status(home.catalog, VIEW).to_dict()["base_tables"]
    expected = datetime.fromtimestamp(written / 1000, UTC) + timedelta(hours=5, minutes=1)
    assert datetime.fromisoformat(change["expires_at"]) == expected
    watched = WatchedViews("lake", lambda: home.catalog, (home.catalog.identify(VIEW),))
    (slo,) = freshness_slos(watched, timedelta(0))
    assert slo.reasons[-1] == (
        "the recorded snapshot of lake.sales.orders may expire in about 5 h; then the next refresh is a full one"
    )
    show.statuses([status(home.catalog, VIEW).to_dict()])
    assert slo.reasons[-1] in capsys.readouterr().out
    later = datetime.now(UTC) + timedelta(days=2)
    (slo,) = freshness_slos(watched, timedelta(0), now=later)
    assert "may expire at any time" in slo.reasons[-1]
    keep_base_snapshots(home.catalog, VIEW)
    (change,) = status(home.catalog, VIEW).to_dict()["base_tables"]
    assert datetime.fromisoformat(change["expires_at"]) > expected + timedelta(days=6)
    (slo,) = freshness_slos(watched, timedelta(0))
    assert "may expire" not in slo.reasons[-1]


def test_the_snapshots_of_separate_intervals_are_kept_the_newest_of_them(
    home: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base_snapshots, "MAX_TAGS", 2)
    first, second, third = home.head(), home.append(), home.append()
    table = home.catalog.load_table(home.catalog.identify("sales.orders"), what="test")[1]
    change = base_snapshots.tags_to_change(table, "keep_", {first, second, third, 77}, timedelta(days=1), 0)
    assert change is not None
    assert set(change.tags.values()) == {second, third}
