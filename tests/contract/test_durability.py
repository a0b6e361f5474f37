# SPDX-License-Identifier: Apache-2.0
"""I2: on a local store, all files that a pointer leads to are on disk before the pointer moves."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from sqlalchemy import event

from airflow_mv.core.catalog import MaterializedViewCatalog
from airflow_mv.core.catalog.files import static_table
from airflow_mv.extras.history.rollback import rollback
from tests.builders import Lake
from tests.contract.support import VIEW, ids

SWAP = "swap"


@pytest.fixture
def recorded(every_home: Lake, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Paths in the order in which they are flushed, and :data:`SWAP` where the database commits a pointer."""
    if not isinstance(every_home.iceberg, SqlCatalog):
        pytest.skip("the server writes its own files")
    seen: list[str] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        real(descriptor)
        seen.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))

    def moved(_: Any, __: Any, statement: str, *___: Any) -> None:
        if statement.startswith(("UPDATE iceberg_tables", "INSERT INTO iceberg_tables")):
            seen.append(SWAP)

    monkeypatch.setattr(os, "fsync", fsync)
    event.listen(every_home.iceberg.engine, "before_cursor_execute", moved)
    yield seen
    event.remove(every_home.iceberg.engine, "before_cursor_execute", moved)


def needed(catalog: MaterializedViewCatalog) -> set[str]:
    """Every file that a reader of the view needs: metadata, manifests, data; and all folders of the view above them."""
    view = catalog.load(VIEW)
    storage = catalog.load_storage(view)
    table = static_table(catalog.files, storage.location, what="storage table")
    places = [view.metadata_location, storage.location]
    for snapshot in table.snapshots():
        places += [snapshot.manifest_list, *(item.manifest_path for item in snapshot.manifests(table.io))]
    places += [task.file.file_path for task in table.scan().plan_files()]
    paths = [Path(urlsplit(place).path) for place in places]
    tops = {Path(urlsplit(item).path) for item in (view.metadata.location, storage.table.location)}
    above = {folder for path in paths for folder in path.parents if not tops.isdisjoint((folder, *folder.parents))}
    return {str(path) for path in (*paths, *above)}


def before_the_last_swap(seen: list[str], act: Callable[[], object]) -> set[str]:
    """The paths that were flushed before the last pointer moved, and not after."""
    seen.clear()
    act()
    last = len(seen) - seen[::-1].index(SWAP)
    return set(seen[:last])


def test_i02_every_file_is_flushed_before_the_pointer_to_it_moves(every_home: Lake, recorded: list[str]) -> None:
    every_home.table()
    created = before_the_last_swap(recorded, lambda: every_home.view(time_travel=True))
    view = every_home.catalog.load(VIEW)
    path = Path(urlsplit(view.metadata_location).path)
    # The folders above are new, too: without their directory entries the file is lost.
    assert {str(path), *(str(folder) for folder in list(path.parents)[:3])} <= created
    assert needed(every_home.catalog) - created == set()

    flushed = set(created)
    for _ in range(2):
        flushed |= before_the_last_swap(recorded, every_home.refresh)
        assert needed(every_home.catalog) - flushed == set()
        every_home.append()
    first = ids(every_home)[0]
    flushed |= before_the_last_swap(recorded, lambda: rollback(every_home.catalog, VIEW, first))
    assert needed(every_home.catalog) - flushed == set()


def test_a_manifest_that_cannot_be_read_does_not_stop_the_flush(
    every_home: Lake, recorded: list[str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    every_home.table()
    every_home.view()
    called: list[str] = []
    monkeypatch.setattr(os, "sync", lambda: called.append("sync"))
    monkeypatch.setattr("airflow_mv.core.catalog.avro.read_manifests", lambda _: 1 / 0)
    assert every_home.refresh().outcome == "refreshed"
    assert called == ["sync"]
    assert "flushing all" in caplog.text
