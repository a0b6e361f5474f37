# SPDX-License-Identifier: Apache-2.0
"""maintain, rollback and drop --purge as a user calls them. None of them starts Spark."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_mv.actions import create_view as create
from airflow_mv.core.define.definition import Definition
from airflow_mv.core.refresh import plan_refresh
from airflow_mv.core.refresh.run import stage
from airflow_mv.core.spec.view import ViewMetadata
from tests.builders import Lake, lake
from tests.cli.support import call
from tests.engine.support import reload_configuration
from tests.extras.maintenance.support import files, folder_of, local, make_older, orphans

VIEW = "lake.sales.daily"
KEYS = {
    "view",
    "dry_run",
    "expired_snapshots",
    "kept_snapshots",
    "dropped_branches",
    "dropped_tables",
    "deleted_files",
    "deleted_bytes",
    "kept_files",
    "files",
    "proofs",
    "waiting",
    "unproven",
}


@pytest.fixture
def home(tmp_path: Path, sqlite_uri: str, warehouse: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lake]:
    """A lake that the command line can open: a view with three refreshes, and a refresh that is only staged."""
    settings = {"TYPE": "sql", "URI": sqlite_uri, "WAREHOUSE": f"file://{warehouse}"}
    with monkeypatch.context() as patch:
        for key, value in settings.items():
            patch.setenv(f"PYICEBERG_CATALOG__LAKE__{key}", value)
        reload_configuration()
        with lake(sqlite_uri, warehouse) as found:
            found.table()
            found.view()
            for number in range(3):
                found.append((10 + number, "east", number))
                found.refresh()
            found.append()
            stage(found.catalog, plan_refresh(found.catalog, VIEW), found.stager)
            yield found
    reload_configuration()


def test_maintenance_expires_and_collects_what_is_old(home: Lake) -> None:
    left = orphans(home)
    (document,) = call("maintain", VIEW, "--json").json
    assert document["deleted_files"] == 0
    make_older(folder_of(home))
    before = files(folder_of(home))
    (document,) = call("maintain", VIEW, "--json").json
    assert set(document) == KEYS
    assert document["view"] == VIEW
    assert not document["dry_run"]
    assert document["expired_snapshots"] == []  # created today
    assert document["kept_snapshots"]["current"] == 1
    assert document["kept_snapshots"]["young"] > 0
    assert {str(local(item)) for item in document["files"]} == left
    assert document["proofs"].keys() == set(document["files"])
    assert any(proof.startswith("reached by snapshot") for proof in document["proofs"].values())
    assert document["deleted_files"] == len(left)
    assert document["deleted_bytes"] > 0
    assert orphans(home) == set()
    (document,) = call("maintain", VIEW, "--older-than", "0s", "--json").json
    assert document["kept_snapshots"] == {"current": 1, "named": 0, "young": 0, "adopted": 0}
    assert document["kept_files"]["young"] == 0
    assert len(files(folder_of(home))) < len(before - left)
    assert len(home.read()) == 3


def test_a_dry_run_lists_what_would_be_deleted_and_why_the_rest_is_kept(home: Lake) -> None:
    before, location = files(folder_of(home)), home.storage().location
    done = call("maintain", VIEW, "--older-than", "0s", "--dry-run")
    assert done.code == 0
    lines = done.stdout.splitlines()
    assert lines[0] == VIEW
    assert lines[1].startswith("  snapshots would be expired: ")
    assert lines[1].endswith("kept: 1 current")
    assert lines[2].startswith("  would be deleted: ")
    assert lines[2].endswith(" needed, 0 too young, 0 waiting for the grace")
    assert all(line.endswith(")") and "  (" in line for line in lines[3:])
    named = {str(local(line.strip().partition("  (")[0])) for line in lines[3:]}
    assert orphans(home) <= named <= before
    assert files(folder_of(home)) == before
    assert home.storage().location == location


def test_recent_files_are_kept_by_default(home: Lake) -> None:
    before = files(folder_of(home))
    (document,) = call("maintain", VIEW, "--json").json
    assert document["deleted_files"] == 0
    assert document["kept_files"]["young"] == len(orphans(home)) > 0
    assert {file for file in files(folder_of(home)) if not file.endswith("/deletion-log.json")} == before


@pytest.mark.parametrize("scope", [(VIEW, "lake.sales.other"), ("--namespace", "lake.sales")])
def test_several_views_are_maintained_and_a_failure_of_one_does_not_stop_the_others(
    home: Lake, scope: tuple[str, ...]
) -> None:
    home.view("other")
    documents = call("maintain", *scope, "--json").json
    assert [document["view"] for document in documents] == [VIEW, "lake.sales.other"]

    Path(home.storage().location.removeprefix("file://")).unlink()
    done = call("maintain", *scope, "--json")
    error = json.loads(done.stderr.strip().splitlines()[-1])["error"]
    assert done.code == 1
    assert [document["view"] for document in json.loads(done.stdout)] == ["lake.sales.other"]
    assert (error["code"], error["retryable"]) == ("MetadataFileNotFoundError", False)
    assert VIEW in error["message"]


def test_an_invalid_age_is_wrong_usage(home: Lake) -> None:
    """A guessed age could delete files that a running refresh needs."""
    before = files(folder_of(home))
    for age in ("", "3", "d", "-3d", "3.5d", "3 d", "3days", "1h30m", "٣d", "9999999d", "3D"):
        done = call("maintain", VIEW, "--older-than", age)
        assert (age, done.code) == (age, 2)
        told = " ".join(done.stderr.split())
        assert "write a whole number and a unit, such as 3d, 12h, 30m or 0s" in told, age
        assert files(folder_of(home)) == before, age


def test_every_valid_age_is_accepted(home: Lake) -> None:
    for age in ("0s", "90s", "30m", "12h", "3d", "999999d"):
        assert (age, call("maintain", VIEW, "--older-than", age, "--dry-run", "--json").code) == (age, 0)


def test_a_view_with_a_missing_file_is_a_one_line_error_and_nothing_is_deleted(home: Lake) -> None:
    make_older(folder_of(home))
    next(iter(local(home.storage().table.location).glob("data/*.parquet"))).unlink()
    before = files(folder_of(home))
    for path in local(home.storage().table.location).glob("data/*.parquet"):
        path.unlink()
        before.discard(str(path))
    done = call("maintain", VIEW, "--json")
    assert done.code == 1
    assert VIEW in done.error
    assert "does not exist. Nothing was deleted" in done.error
    assert files(folder_of(home)) == before


def test_a_rollback_requires_a_recorded_refresh(home: Lake) -> None:
    done = call("rollback", VIEW, "--to", "nothing")
    assert done.code == 1
    assert "has no refresh with id nothing" in done.error
    assert call("rollback", VIEW).code == 2


def test_a_rollback_makes_an_earlier_refresh_current(home: Lake) -> None:
    home.view("travelling", time_travel=True)
    first = home.refresh("sales.travelling").refresh_id
    home.append()
    home.refresh("sales.travelling")
    name = "lake.sales.travelling"
    document = call("rollback", name, "--to", str(first), "--json").json
    assert set(document) == {"view", "refresh_id", "snapshot_id", "outcome"}
    assert document["outcome"] == "rolled-back"
    assert call("rollback", name, "--to", str(first), "--json").json["outcome"] == "already-current"
    records = call("history", name, "--json").json
    assert [record["refresh_id"] for record in records if record["current"]] == [first]
    assert call("status", name, "--check").code == 3
    assert call("rollback", name, "--to", str(first)).stdout == f"{name}  already-current  {first}\n"


def test_definitions_are_listed_and_rolled_back_to(home: Lake) -> None:
    create(home.catalog, VIEW, Definition("SELECT 1 AS one"), stager=home.stager, replace=True)
    found = call("versions", VIEW, "--json").json
    assert [(item["version_id"], item["current"]) for item in found] == [(1, False), (2, True)]
    assert call("versions", VIEW, "--at", found[0]["created_at"], "--json").json == found[:1]
    shown = call("versions", VIEW).stdout
    assert "  columns  one" in shown
    assert "  spark  SELECT region, count(*) AS orders" in shown
    assert call("rollback", VIEW, "--to-version", "1").stdout == f"{VIEW}  rolled-back  version 1\n"
    assert call("status", VIEW, "--json").json[0]["version_id"] == 1
    assert call("rollback", VIEW, "--to-version", "1", "--to", "x").code == 2
    assert "its version log begins at 20" in call("versions", VIEW, "--at", "2001-01-01").error


def test_a_version_without_an_operation_is_listed(home: Lake) -> None:
    """Iceberg requires none in a version's summary, and other engines leave it out."""
    loaded = home.plain_view("plain", "SELECT id, region, amount FROM lake.sales.orders")
    document = loaded.metadata.document()
    document["versions"][0]["summary"].pop("operation")
    assert home.catalog.replace(loaded, ViewMetadata.read(document, source="of another engine"))
    (found,) = call("versions", "lake.sales.plain", "--json").json
    assert (found["operation"], found["engine"]) == (None, "other")
    assert call("versions", "lake.sales.plain").stdout.splitlines()[0].endswith("Z  other  current")


def test_a_purge_deletes_every_file_of_the_view_and_no_other(home: Lake, warehouse: Path) -> None:
    folder = folder_of(home)
    own, everything = files(folder), files(warehouse)
    document = call("drop", VIEW, "--purge", "--yes", "--json").json
    assert document["dropped"]
    assert document["deleted_files"] == len(own)
    assert document["unproven"] == {}
    assert not folder.exists()
    assert files(warehouse) == everything - own
    assert call("drop", VIEW, "--purge", "--yes").code == 1


def test_a_purge_lists_the_files_it_keeps(home: Lake) -> None:
    notes = folder_of(home) / "notes.txt"
    notes.write_text("mine")
    lines = call("drop", VIEW, "--purge", "--yes").stdout.splitlines()
    assert lines[1:] == [
        "  not proven the view's, and left: 1",
        f"    file://{notes}  (no metadata file of the view names it)",
    ]
    assert notes.read_text() == "mine"


def test_a_drop_without_purge_leaves_the_files(home: Lake) -> None:
    folder = folder_of(home)
    own = files(folder)
    assert call("drop", VIEW, "--yes").stdout == f"dropped {VIEW}\n"
    assert files(folder) == own


def test_a_compaction_that_is_not_worth_a_job_says_why(home: Lake) -> None:
    """Spark is not started. --json has the same."""
    text = call("maintain", VIEW, "--compact").stdout
    assert "not compacted: data files: 1, the most small ones in a partition: 1, delete files: 0" in text
    (document,) = call("maintain", VIEW, "--compact", "--json").json
    assert set(document) == {*KEYS, "compaction"}
    assert (document["compaction"]["outcome"], document["compaction"]["after"]) == ("not-needed", None)
