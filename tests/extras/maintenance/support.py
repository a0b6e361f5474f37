# SPDX-License-Identifier: Apache-2.0
"""Helpers for tests of maintenance: an independent walk over folders and metadata, and backdated files."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest
from pyiceberg.table import StaticTable

from airflow_mv.actions import create_view as create
from airflow_mv.core.define.definition import Definition
from airflow_mv.core.publish import publish
from airflow_mv.core.refresh.run import refresh
from airflow_mv.extras.maintenance.orphans import DEFAULT_GRACE, collect_orphans
from tests.builders import QUERY, Lake
from tests.faults import FaultyCatalog, StoppedError, after, lose_answer_after, stop_after, stop_before

VIEW = "sales.daily"
#: Longer than the grace.
LONG = DEFAULT_GRACE.total_seconds() + 3600
#: The file name of maintenance's ledger.
LEDGER = "deletion-log.json"
#: No grace at all.
NOW = timedelta(0)


def make_older(*paths: Path, seconds: float = LONG) -> None:
    """Backdate files, and the entries of deletion logs, as if time had passed."""
    for path in paths:
        for file in path.rglob("*") if path.is_dir() else [path]:
            if file.is_file() and not file.is_symlink():
                moment = file.stat().st_mtime - seconds
                if file.name == LEDGER:
                    document = json.loads(file.read_text())
                    marks = document["unreachable-since-ms"]
                    earlier = {key: since - int(seconds * 1000) for key, since in marks.items()}
                    file.write_text(json.dumps({**document, "unreachable-since-ms": earlier}))
                os.utime(file, (moment, moment))


def marked_and_old(home: Lake, view: str = VIEW) -> None:
    """Let a collection record what is unreachable, and let the grace pass."""
    collect_orphans(home.catalog, view)
    make_older(folder_of(home, view))


def files(folder: Path) -> set[str]:
    """Every file below a folder."""
    return {str(path) for path in folder.rglob("*") if path.is_file()}


def folder_of(home: Lake, view: str = VIEW) -> Path:
    """The folder of a view."""
    return local(home.catalog.load(view).metadata.location)


def folders_of(home: Lake, view: str = VIEW) -> set[Path]:
    """The folders of a view and its storage table."""
    return {folder_of(home, view), local(home.storage(view).table.location)}


def local(location: str) -> Path:
    """The path of a location. Java writes one slash after ``file:``."""
    return Path(re.sub(r"^file:/+", "/", location))


def needed(home: Lake, view: str = VIEW) -> set[str]:
    """All files that the view's metadata reaches, as read by pyiceberg."""
    loaded = home.catalog.load(view)
    table = StaticTable.from_metadata(home.catalog.load_storage(loaded).location)
    found = {loaded.metadata_location, table.metadata_location}
    found |= {entry.metadata_file for entry in table.metadata.metadata_log}
    for snapshot in table.snapshots():
        found.add(snapshot.manifest_list)
        for manifest in snapshot.manifests(table.io):
            found.add(manifest.manifest_path)
            found |= {entry.data_file.file_path for entry in manifest.fetch_manifest_entry(table.io)}
    row = home.catalog.row(loaded.identifier)
    previous = row.previous if row else None
    return {str(local(location)) for location in (*found, *([previous] if previous else []))}


def orphans(home: Lake, view: str = VIEW) -> set[str]:
    """The unneeded files in the folders of a view. The deletion log is needed, and a checksum if its file is."""
    found = {file for folder in folders_of(home, view) for file in files(folder) if Path(file).name != LEDGER}
    kept = needed(home, view)
    return {file for file in found if owner(file) not in kept}


def owner(file: str) -> str:
    """The file that a checksum of Hadoop belongs to; any other file itself."""
    folder, _, name = file.rpartition("/")
    return f"{folder}/{name[1:-4]}" if name.startswith(".") and name.endswith(".crc") else file


def read_all(home: Lake, view: str = VIEW) -> dict[int, list[dict[str, object]]]:
    """The rows of every retained snapshot; all files are opened."""
    table = StaticTable.from_metadata(home.storage(view).location)
    return {
        snapshot.snapshot_id: sorted(table.scan(snapshot_id=snapshot.snapshot_id).to_arrow().to_pylist(), key=str)
        for snapshot in table.snapshots()
    }


def refreshed(home: Lake, times: int, **definition: object) -> list[str]:
    """Refresh a view several times, and return the refresh ids."""
    home.view(**definition)
    ids = []
    for number in range(times):
        if number:
            home.append((10 + number, "east", number))
        ids.append(str(home.refresh().refresh_id))
    return ids


def snapshot_ids(home: Lake) -> set[int]:
    """The snapshots of the storage table."""
    return {snapshot.snapshot_id for snapshot in home.storage().table.snapshots}


def rewrite(home: Lake, document: dict[str, object]) -> None:
    """Edit the storage table's metadata file in place, as another writer might."""
    home.catalog.files.replace_text(home.storage().location, json.dumps(document))


# -- garbage of refreshes ----------------------------------------------------------------------


def staged(home: Lake) -> tuple[str, Callable[[], object]]:
    """A staged refresh whose worker died before it was published, and a function that resumes it."""
    plan, outcome = home.stage()
    assert outcome.metadata_location is not None
    return outcome.metadata_location, partial(publish, home.catalog, plan, outcome.metadata_location)


def kill(home: Lake) -> None:
    """Two workers die: one before the swap, one after it."""
    with pytest.raises(StoppedError):
        refresh(FaultyCatalog(home.iceberg, stop_before), [VIEW], stager=home.stager)
    home.append()
    with pytest.raises(StoppedError):
        refresh(FaultyCatalog(home.iceberg, stop_after), [VIEW], stager=home.stager)


def lose_race(home: Lake) -> None:
    """The winner's refresh covers the loser's, which is superseded."""

    def win() -> None:
        home.append()
        home.refresh()

    winner = after(win)
    assert refresh(FaultyCatalog(home.iceberg, winner), [VIEW], stager=home.stager)[0].outcome == "superseded"


def plan_again(home: Lake) -> None:
    """The definition changes during a refresh."""

    def redefine() -> None:
        create(home.catalog, VIEW, Definition(QUERY.replace("sum", "max")), stager=home.stager, replace=True)

    assert refresh(FaultyCatalog(home.iceberg, after(redefine)), [VIEW], stager=home.stager)[0].outcome == "refreshed"


def lose_answer(home: Lake) -> None:
    """The answer to the swap is lost."""
    refresh(FaultyCatalog(home.iceberg, lose_answer_after()), [VIEW], stager=home.stager)


def leave_staged(home: Lake) -> None:
    """A worker dies before it publishes."""
    staged(home)
