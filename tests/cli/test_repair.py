# SPDX-License-Identifier: Apache-2.0
"""repair, doctor VIEW, verify --files and drop for views with lost or truncated files. None of them starts Spark."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.builders import LAYOUTS, Lake, lake
from tests.cli.support import call
from tests.contract.test_repair import parts, set_comment
from tests.engine.support import reload_configuration
from tests.protocol.maintenance import files, local

VIEW = "lake.sales.daily"
FINDING = {"what", "file", "known", "repair", "lost", "repairable"}


@pytest.fixture(params=LAYOUTS)
def home(
    request: pytest.FixtureRequest, sqlite_uri: str, warehouse: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Lake]:
    """A lake that the command line can open: a view with two refreshes."""
    settings = {"TYPE": "sql", "URI": sqlite_uri, "WAREHOUSE": f"file://{warehouse}"}
    with monkeypatch.context() as patch:
        for key, value in settings.items():
            patch.setenv(f"PYICEBERG_CATALOG__LAKE__{key}", value)
        reload_configuration()
        with lake(sqlite_uri, warehouse, layout=request.param) as found:
            found.table()
            found.view(allow_stale_data=True)
            found.refresh()
            found.append()
            found.refresh()
            yield found
    reload_configuration()


def test_a_repair_is_shown_first_and_run_with_yes(home: Lake) -> None:
    """The finding, its file, its evidence, the action and the loss; the exit code is 4 until it is run."""
    assert "nothing to repair" in call("repair", VIEW).stdout
    lost = parts(home)["data"]
    lost.unlink()
    before = home.rows_of_catalog()

    shown = call("repair", VIEW)
    assert shown.code == 4
    for word in ("file:", "known:", "repair:", "lost:", lost.name, f"airflow-mv repair {VIEW} --yes"):
        assert word in shown.stdout
    document = call("repair", VIEW, "--json").json
    assert (document["view"], document["healthy"], document["repaired"]) == (VIEW, False, False)
    assert all(item.keys() == FINDING for item in document["findings"])
    assert home.rows_of_catalog() == before

    done = call("repair", VIEW, "--yes", "--json")
    assert (done.code, done.json["repaired"]) == (0, True)
    assert call("repair", VIEW, "--yes", "--json").json == {
        "view": VIEW, "healthy": True, "repaired": False, "findings": []
    }  # fmt: skip
    assert call("read", VIEW, "--no-refresh", "--json").code == 0


def test_verify_files_reads_all_files_that_it_reports_as_intact(home: Lake) -> None:
    """It reports the number of files and bytes, each that differs, and whether current rows need it; it ends with 4."""
    whole = call("verify", VIEW, "--files", "--json")
    assert whole.code == 0
    document = whole.json
    assert document["intact"]
    assert document["files"] >= 6
    assert document["bytes"] == sum(path.stat().st_size for path in map(Path, counted(home)))
    data = parts(home)["data"]
    data.write_bytes(data.read_bytes()[:-1])
    ended = call("verify", VIEW, "--files", "--json")
    assert ended.code == 4
    (damaged,) = ended.json["damaged"]
    assert (damaged["role"], damaged["current"]) == ("data file", True)
    assert "bytes" in damaged["why"]
    assert data.name in call("verify", VIEW, "--files").stdout


def counted(home: Lake) -> set[str]:
    """The files that the retained snapshots name: all files of a view but its metadata files."""
    folder = local(home.storage().table.location)
    return {str(path) for suffix in ("parquet", "avro") for path in folder.rglob(f"*.{suffix}")}


def test_doctor_checks_a_view_down_to_its_manifests(home: Lake) -> None:
    """Each item is intact or names the command to run."""
    healthy = call("doctor", VIEW, "--json")
    assert healthy.code == 0
    assert {item["check"].removeprefix(f"{VIEW}: ") for item in healthy.json} == {
        "view metadata", "storage metadata", "snapshots", "base table lake.sales.orders", "freshness"
    }  # fmt: skip
    parts(home)["manifest"].write_bytes(b"")
    ended = call("doctor", VIEW, "--json")
    assert ended.code == 1
    (found,) = [item for item in ended.json if not item["ok"]]
    assert found["fix"] == f"airflow-mv repair {VIEW}"
    assert call("doctor", "lake.sales.nothing").code == 1


@pytest.mark.parametrize("kind", ["view", "storage"])
@pytest.mark.parametrize("damage", ["deleted", "cut"])
def test_a_broken_view_can_be_dropped(home: Lake, kind: str, damage: str) -> None:
    """An earlier file proves that it is a materialized view; its catalog entries are removed, the files are kept."""
    set_comment(home, "two view files")
    path = parts(home)[kind]
    if damage == "deleted":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:100])
    kept = files(path.parent)
    refused = call("drop", VIEW, "--yes", "--purge")
    assert refused.code == 1
    assert "nothing was dropped" in refused.error
    assert str(parts_folder(path)) in refused.error
    ended = call("drop", VIEW, "--yes", "--json")
    assert ended.code == 0, ended.stderr
    assert ended.json == {"view": VIEW, "dropped": True}
    assert [row[2] for row in home.rows_of_catalog()] == ["orders"]
    assert files(path.parent) >= kept
    home.view()
    assert home.refresh().outcome == "refreshed"


def parts_folder(path: Path) -> Path:
    """The view's folder: its storage table's folder is inside or beside it."""
    return next(parent for parent in path.parents if parent.name.startswith("daily"))


def test_a_view_without_any_readable_file_is_dropped_only_with_force(home: Lake) -> None:
    """The unreadable file is reported; a plain view is never dropped."""
    folder = local(home.catalog.load(VIEW).metadata.location)
    shutil.rmtree(folder)
    refused = call("drop", VIEW, "--yes")
    assert refused.code == 1
    if home.layout == "table":  # it may be a table of others
        assert "nothing was dropped" in refused.error
        assert call("drop", VIEW, "--yes", "--force").code == 1
        assert "daily" in [row[2] for row in home.rows_of_catalog()]
        return
    assert "--force" in refused.error
    assert "metadata file" in refused.error
    purged = call("drop", VIEW, "--yes", "--purge", "--force", "--json")
    assert purged.code == 0
    assert str(folder) in purged.json["left"]
    assert "daily" not in [row[2] for row in home.rows_of_catalog()]
    home.plain_view("plain", "SELECT * FROM lake.sales.orders")
    assert call("drop", "lake.sales.plain", "--yes", "--force").code == 1
    assert home.catalog.exists("sales.plain")


def test_a_view_with_a_foreign_location_can_be_dropped(home: Lake, tmp_path: Path) -> None:
    """Confinement refuses to read its files, but the catalog entry can be removed."""
    loaded = home.catalog.load(VIEW)
    path = local(loaded.metadata_location)
    path.write_text(path.read_text().replace(loaded.metadata.location, f"file://{tmp_path}/elsewhere"))
    assert call("status", VIEW).code == 1
    assert call("drop", VIEW, "--yes", "--force", "--purge").code == 0
    assert "daily" not in [row[2] for row in home.rows_of_catalog()]
