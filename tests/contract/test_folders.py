# SPDX-License-Identifier: Apache-2.0
"""Where a view and its storage table may lie, and which folders are theirs alone to be cleaned up, in every catalog."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest
from pyiceberg.table.update import SetLocationUpdate

from airflow_mv.create import Definition, create, drop
from airflow_mv.errors import InvalidMetadataError, UnsupportedError
from airflow_mv.spec.materialized_view import PROPERTY
from airflow_mv.spec.view import ViewMetadata, with_view_properties
from airflow_mv.upkeep.maintenance import collect_orphans, maintain
from airflow_mv.upkeep.purge import purge
from tests.builders import QUERY, Lake, lake
from tests.contract.support import NORTH, SOUTH, VIEW

NOW = timedelta(0)
Removal = Callable[[Lake], object]


def maintained(home: Lake) -> object:
    return maintain(home.catalog, VIEW, older_than=NOW)


def purged(home: Lake) -> object:
    return purge(home.catalog, VIEW)


REMOVALS = pytest.mark.parametrize("remove", [maintained, purged])


def local(location: str) -> Path:
    return Path(re.sub("^file:/+", "/", location))


def files(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if path.is_file() and not path.name.startswith(".")}


def move_storage(home: Lake, folder: Path, *, settings: bool) -> Path:
    """Someone moves the storage table; where he may, he has the view say that it was always there.

    Returns:
        A file of others in the folder.
    """
    storage, view = home.storage(), home.catalog.load(VIEW)
    assert storage.name is not None
    precious = folder / "precious.parquet"
    precious.parent.mkdir(exist_ok=True)
    precious.write_bytes(b"rows")
    table = home.catalog.tables.open(storage.name)
    home.iceberg.commit_table(table, (), (SetLocationUpdate(location=folder.as_uri()),))
    if settings:
        first = f"{folder.as_uri()}/metadata/00000-first.metadata.json"
        record = {**json.loads(view.metadata.properties[PROPERTY]), "storage-table-location": first}
        assert home.catalog.replace(view, with_view_properties(view.metadata, {PROPERTY: json.dumps(record)}))
    return precious


@REMOVALS
def test_i19_a_storage_table_that_was_moved_out_is_refused_before_anything_is_deleted(
    registered_home: Lake, tmp_path: Path, remove: Removal
) -> None:
    """Who may commit to a table may say that it lies anywhere."""
    home = registered_home
    home.table()
    home.view()
    precious = move_storage(home, tmp_path / "outside", settings=False)
    with pytest.raises(InvalidMetadataError, match=r"sales\.daily.*daily__storage_.*lies outside"):
        remove(home)
    assert precious.exists()
    assert home.catalog.exists(VIEW)


@REMOVALS
@pytest.mark.parametrize("place", ["", "sales", "sales/orders"])
def test_i11_a_storage_table_that_was_moved_over_others_is_not_cleaned_up(
    registered_home: Lake, warehouse: Path, place: str, remove: Removal
) -> None:
    """The warehouse, the namespace's folder, another table's."""
    home = registered_home
    home.table()
    home.view()
    folder = local(home.load().location()) if place == "sales/orders" else warehouse / place
    precious = move_storage(home, folder, settings=True)
    before = files(warehouse) - files(local(home.catalog.load(VIEW).metadata.location) / "metadata")
    with pytest.raises(UnsupportedError, match=r"sales\.daily.*also holds"):
        remove(home)
    assert precious.exists()
    assert home.catalog.exists(VIEW)
    assert before <= files(warehouse)


def test_i11_the_folder_of_a_namespace_is_no_view_s_own(sqlite_uri: str, warehouse: Path) -> None:
    """A view's metadata may say that it lies there; files that are no table's would go."""
    with lake(sqlite_uri, warehouse) as home:
        home.table()
        home.iceberg.create_namespace("alone")
        created = create(home.catalog, "alone.daily", Definition(QUERY), stager=home.stager)
        notes = warehouse / "alone" / "notes.txt"
        notes.write_text("mine")
        document = {**created.metadata.document(), "location": f"file://{warehouse}/alone"}
        new = home.catalog.write_metadata(ViewMetadata.read(document, source="moved"), number=1)
        assert home.catalog.swap(created.identifier, created.metadata_location, new)
        for remove in (partial(collect_orphans, older_than=NOW), purge):
            with pytest.raises(UnsupportedError, match="also holds"):
                remove(home.catalog, created.identifier)
        assert notes.exists()


@REMOVALS
def test_i11_a_folder_that_holds_another_table_is_not_cleaned_up(every_home: Lake, remove: Removal) -> None:
    """A REST catalog does not say where all its tables lie, and may hide some."""
    home = every_home
    home.table()
    home.view()
    home.refresh()
    for folder in {home.catalog.load(VIEW).metadata.location, home.storage().table.location}:
        inside = home.iceberg.create_table("sales.inside", schema=home.load().schema(), location=f"{folder}/inside")
        inside.append(home.load().scan().to_arrow())
        with pytest.raises(UnsupportedError, match=r"sales\.daily.*also holds"):
            remove(home)
        assert len(inside.scan().to_arrow()) == 3
        assert home.read() == [NORTH, SOUTH]
        home.iceberg.drop_table("sales.inside")
        for file in files(local(folder) / "inside"):
            file.unlink()
    remove(home)


@REMOVALS
def test_a_view_that_was_dropped_and_created_again_is_cleaned_up(every_home: Lake, remove: Removal) -> None:
    """A REST catalog gives both one folder: the metadata of the earlier view stays there."""
    home = every_home
    home.table()
    home.view()
    home.refresh()
    earlier = local(home.catalog.load(VIEW).metadata_location)
    content = earlier.read_bytes()
    drop(home.catalog, VIEW)
    home.view()
    earlier.write_bytes(content)  # some servers delete it, others do not
    home.refresh()
    home.append()
    home.refresh()
    remove(home)
    assert earlier.exists()
    if remove is maintained:
        assert len(home.read()) == 3


def test_what_an_earlier_storage_table_left_is_collected(registered_home: Lake) -> None:
    """A definition with other columns gets a new one; the old one says whose it was."""
    home = registered_home
    home.table()
    home.view()
    home.refresh()
    wider = Definition("SELECT region, amount FROM lake.sales.orders", layout="registered")
    create(home.catalog, VIEW, wider, stager=home.stager, replace=True)
    home.refresh()
    maintain(home.catalog, VIEW, older_than=NOW)
    assert len(home.read()) == 3
    assert maintain(home.catalog, VIEW, older_than=NOW).collected.files == ()
