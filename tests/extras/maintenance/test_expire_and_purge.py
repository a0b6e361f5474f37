# SPDX-License-Identifier: Apache-2.0
"""Expiry and purge are changes of metadata that go through the same swap as a refresh."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from airflow_mv.common.status import status
from airflow_mv.core.publish import publish
from airflow_mv.core.spec.view import with_view_properties
from airflow_mv.errors import CommitConflictError, CommitStateUnknownError, ViewNotFoundError
from airflow_mv.extras.maintenance.drop import purge
from airflow_mv.extras.maintenance.orphans import collect_orphans, expire, maintain
from tests.builders import Lake, exists, lake, metadata_files
from tests.extras.maintenance.support import (
    NOW,
    VIEW,
    files,
    folder_of,
    local,
    make_older,
    orphans,
    read_all,
    refreshed,
    rewrite,
    snapshot_ids,
)
from tests.faults import Clock, FaultyCatalog, after, lose_answer_before

DAY = 86_400_000


@pytest.fixture
def home(sqlite_uri: str, warehouse: Path) -> Iterator[Lake]:
    with lake(sqlite_uri, warehouse) as found:
        found.table()
        yield found


# -- expire ------------------------------------------------------------------------------------


def test_expiry_keeps_the_current_snapshot_and_drops_the_others(home: Lake) -> None:
    refreshed(home, 3)
    rows, before = home.read(), home.storage()
    done = expire(home.catalog, VIEW, older_than=NOW)
    assert snapshot_ids(home) == {before.table.head}
    assert set(done.snapshot_ids) == {item.snapshot_id for item in before.table.snapshots} - {before.table.head}
    assert home.read() == rows
    assert home.storage().state == before.state
    assert status(home.catalog, VIEW).to_dict()["state"] == "fresh"
    assert expire(home.catalog, VIEW, older_than=NOW).snapshot_ids == ()


def test_expiry_keeps_snapshots_with_tags_and_branches(home: Lake) -> None:
    """A recorded refresh has a tag, so it stays readable by time travel."""
    ids = refreshed(home, 3, time_travel=True)
    expire(home.catalog, VIEW, older_than=NOW)
    tags = {name: ref.snapshot_id for name, ref in home.storage().table.refs.items() if ref.type == "tag"}
    assert set(tags) == {f"refresh-{item}" for item in ids}
    assert set(tags.values()) == snapshot_ids(home)
    assert [len(rows) for rows in read_all(home).values()] == [2, 3, 3]


def test_the_age_of_a_snapshot_counts_from_its_replacement(home: Lake) -> None:
    """A monthly view's last state is a month old when it is replaced, and readers may still use it."""
    refreshed(home, 2)
    document = json.loads(home.catalog.files.read(home.storage().location, what="file"))
    first, *_, last = document["snapshots"]
    first["timestamp-ms"] -= 30 * DAY
    document["snapshot-log"][0]["timestamp-ms"] -= 30 * DAY
    rewrite(home, document)
    assert expire(home.catalog, VIEW, older_than=timedelta(days=1)).snapshot_ids == ()
    document = json.loads(home.catalog.files.read(home.storage().location, what="file"))
    for entry in document["snapshot-log"][1:]:
        entry["timestamp-ms"] -= 2 * DAY
    rewrite(home, document)
    assert first["snapshot-id"] in expire(home.catalog, VIEW, older_than=timedelta(days=1)).snapshot_ids
    assert last["snapshot-id"] in snapshot_ids(home)


def test_expiry_preserves_unknown_fields(home: Lake) -> None:
    """Unknown fields, properties and refs are preserved; only entries of expired snapshots are removed."""
    refreshed(home, 2)
    document = json.loads(home.catalog.files.read(home.storage().location, what="file"))
    expired, kept = document["snapshots"][0]["snapshot-id"], document["snapshots"][-1]["snapshot-id"]
    statistics = [
        {"snapshot-id": item, "statistics-path": f"{home.storage().table.location}/metadata/{item}.stats"}
        for item in (expired, kept)
    ]
    rewrite(home, {**document, "from-the-future": {"a": [1]}, "partition-statistics": statistics})
    expire(home.catalog, VIEW, older_than=NOW)
    after_it = json.loads(home.catalog.files.read(home.storage().location, what="file"))
    assert after_it["from-the-future"] == {"a": [1]}
    assert after_it["partition-statistics"] == statistics[1:]
    assert after_it["snapshot-log"] == document["snapshot-log"][-1:]
    changed = {"snapshots", "snapshot-log", "partition-statistics", "metadata-log", "last-updated-ms"}
    assert {key: value for key, value in after_it.items() if key not in {*changed, "from-the-future"}} == {
        key: value for key, value in document.items() if key not in changed
    }


def test_a_dry_run_of_maintenance_changes_nothing_and_reports_the_same_numbers(home: Lake) -> None:
    refreshed(home, 3)
    make_older(folder_of(home))
    before = files(folder_of(home))
    dry = maintain(home.catalog, VIEW, older_than=NOW, dry_run=True).to_dict()
    assert files(folder_of(home)) == before
    real = maintain(home.catalog, VIEW, older_than=NOW).to_dict()
    assert real["expired_snapshots"] == dry["expired_snapshots"] != []
    # A real run moves the pointer, which makes the view's previous metadata file unreachable.
    assert set(dry["files"]) <= set(real["files"])
    assert len(real["files"]) - len(dry["files"]) <= 1
    assert orphans(home) == set()
    assert read_all(home)


def test_maintenance_leaves_one_snapshot_and_no_orphan(home: Lake) -> None:
    """Disk use depends on the rows, not on the number of refreshes."""
    refreshed(home, 3)
    rows = home.read()
    maintain(home.catalog, VIEW, older_than=NOW)
    assert orphans(home) == set()
    assert len(snapshot_ids(home)) == 1
    assert home.read() == rows
    home.append()
    assert home.refresh().outcome == "refreshed"


# -- concurrent expiry and refresh -------------------------------------------------------------


def test_a_refresh_that_was_staged_before_an_expiry_is_planned_again(home: Lake, clock: Clock) -> None:
    """Its metadata still names the expired snapshots, whose files may be deleted."""
    refreshed(home, 2)
    home.append()
    plan, outcome = home.stage()
    expire(home.catalog, VIEW, older_than=NOW)
    collect_orphans(home.catalog, VIEW, older_than=NOW)
    published = publish(home.catalog, plan, outcome.metadata_location, effects=clock.effects)
    assert published.outcome == "replan"
    assert home.refresh().outcome == "refreshed"
    assert len(home.read()) == 3
    assert read_all(home)


def test_an_expiry_with_an_unknown_outcome_deletes_nothing(home: Lake, clock: Clock) -> None:
    refreshed(home, 2)
    before = files(folder_of(home))
    catalog = FaultyCatalog(home.iceberg, *[lose_answer_before()] * 9)
    with pytest.raises(CommitStateUnknownError, match=r"sales\.daily"):
        expire(catalog, VIEW, older_than=NOW, effects=clock.effects)
    assert before < files(folder_of(home))
    assert len(snapshot_ids(home)) > 1
    assert expire(home.catalog, VIEW, older_than=NOW).snapshot_ids


def test_an_expiry_that_always_loses_the_race_reports_it_and_leaves_no_file(home: Lake, clock: Clock) -> None:
    refreshed(home, 2)
    before = metadata_files(home.storage().table.location)

    def comment() -> None:
        loaded = home.catalog.load(VIEW)
        assert home.catalog.replace(loaded, with_view_properties(loaded.metadata, {"comment": str(clock.effects)}))

    catalog = FaultyCatalog(home.iceberg, *[after(comment)] * 8)
    with pytest.raises(CommitConflictError, match="nothing was published"):
        expire(catalog, VIEW, older_than=NOW, effects=clock.effects)
    assert metadata_files(home.storage().table.location) == before


# -- purge -------------------------------------------------------------------------------------


def test_a_purge_deletes_all_files_of_the_view_and_no_others(home: Lake, warehouse: Path) -> None:
    refreshed(home, 2)
    home.view("other")
    folder, base = folder_of(home), home.load().metadata_location
    others = files(warehouse) - files(folder)
    done = purge(home.catalog, VIEW)
    assert not home.catalog.exists(VIEW)
    assert not folder.exists()
    assert files(warehouse) == others
    assert exists(base)
    assert len(done.files) > 5


def test_a_purge_keeps_another_table_in_the_folder_and_lists_the_files_it_keeps(home: Lake) -> None:
    refreshed(home, 1)
    folder = folder_of(home)
    inside = home.iceberg.create_table("sales.inside", schema=home.load().schema(), location=f"file://{folder}/inside")
    inside.append(home.load().scan().to_arrow())
    (folder / "notes.txt").write_text("mine")
    done = purge(home.catalog, VIEW)
    assert not home.catalog.exists(VIEW)
    assert files(folder) == {*files(folder / "inside"), str(folder / "notes.txt")}
    assert {str(local(location)) for location in done.unproven} == files(folder)
    assert len(inside.scan().to_arrow()) == 3


def test_a_refresh_of_a_view_that_is_purged_meanwhile_publishes_nothing(home: Lake, clock: Clock) -> None:
    refreshed(home, 1)
    home.append()
    plan, outcome = home.stage()
    purge(home.catalog, VIEW)
    with pytest.raises(ViewNotFoundError):
        publish(home.catalog, plan, outcome.metadata_location, effects=clock.effects)


# -- the other layout --------------------------------------------------------------------------


def test_a_purge_also_drops_a_storage_table_in_the_catalog(home: Lake) -> None:
    refreshed(home, 2, layout="registered")
    own = files(folder_of(home))
    assert len(purge(home.catalog, VIEW).files) == len(own)
