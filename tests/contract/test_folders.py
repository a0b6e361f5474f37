# SPDX-License-Identifier: Apache-2.0
"""The allowed locations of a view and its storage table, and the folders that maintenance may delete in."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table.update import SetLocationUpdate

from airflow_mv.actions import create_view as create
from airflow_mv.core.catalog import LoadedView, MaterializedViewCatalog
from airflow_mv.core.catalog.locations import join
from airflow_mv.core.define.definition import Definition
from airflow_mv.core.spec.materialized_view import STORAGE_FOLDER_PROPERTY
from airflow_mv.core.spec.view import ViewMetadata, with_view_properties
from airflow_mv.errors import ConfigurationError, InvalidMetadataError, UnsupportedError, ViewNotFoundError
from airflow_mv.extras.maintenance import drop as drops
from airflow_mv.extras.maintenance import folders
from airflow_mv.extras.maintenance.drop import drop, purge
from airflow_mv.extras.maintenance.entries import CatalogEntry, other_entries
from airflow_mv.extras.maintenance.orphans import collect_orphans, maintain
from tests.builders import QUERY, Lake, lake
from tests.contract.support import VIEW

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
    """Move the storage table's location; if ``settings``, change the view's metadata, too.

    Returns:
        A foreign file in the folder.
    """
    storage, view = home.storage(), home.catalog.load(VIEW)
    assert storage.name is not None
    precious = folder / "precious.parquet"
    precious.parent.mkdir(exist_ok=True)
    precious.write_bytes(b"rows")
    table = home.catalog.tables.open(storage.name)
    home.iceberg.commit_table(table, (), (SetLocationUpdate(location=folder.as_uri()),))
    if settings:
        moved = {STORAGE_FOLDER_PROPERTY: f"{folder.as_uri()}/metadata"}
        assert home.catalog.replace(view, with_view_properties(view.metadata, moved))
    return precious


@REMOVALS
def test_i19_a_storage_table_outside_of_the_allowed_folders_is_refused_and_nothing_is_deleted(
    registered_home: Lake, tmp_path: Path, remove: Removal
) -> None:
    """Anyone who may commit to a table may set its location to any folder."""
    home = registered_home
    home.table()
    home.view()
    precious = move_storage(home, tmp_path / "outside", settings=False)
    with pytest.raises(InvalidMetadataError, match=r"sales\.daily.*daily__storage,.*lies outside"):
        remove(home)
    assert precious.exists()
    assert home.catalog.exists(VIEW)


@REMOVALS
@pytest.mark.parametrize("place", ["", "sales", "sales/orders"])
def test_i11_a_storage_table_whose_folder_has_foreign_files_is_not_cleaned_up(
    registered_home: Lake, warehouse: Path, place: str, remove: Removal
) -> None:
    """The folder is the warehouse, the namespace's folder, or another table's."""
    home = registered_home
    home.table()
    home.view()
    folder = local(home.load().location()) if place == "sales/orders" else warehouse / place
    precious = move_storage(home, folder, settings=True)
    before = files(warehouse) - files(local(home.catalog.load(VIEW).metadata.location) / "metadata")
    with ExitStack() as stack:
        if remove is maintained and place == "sales/orders":
            # Foreign tables are searched only after a file to delete was found, and none of that table's is one.
            stack.enter_context(suppress(UnsupportedError))
        else:
            stack.enter_context(pytest.raises(UnsupportedError, match=r"sales\.daily.*also holds"))
        remove(home)
    assert precious.exists()
    assert home.catalog.exists(VIEW)
    assert before <= files(warehouse)


def test_i11_the_folder_of_a_namespace_is_not_a_view_s_own(sqlite_uri: str, warehouse: Path) -> None:
    """A view's metadata may have this location; files that belong to no table would be deleted."""
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
def test_i11_another_table_in_the_view_s_folder_is_kept(every_home: Lake, remove: Removal) -> None:
    """A SQL catalog has the locations of all its tables, a REST catalog of those that it lists."""
    home = every_home
    home.table()
    home.view()
    home.refresh()
    theirs = []
    for number, folder in enumerate({home.catalog.load(VIEW).metadata.location, home.storage().table.location}):
        inside = home.iceberg.create_table(
            f"sales.inside{number}", schema=home.load().schema(), location=f"{folder}/inside{number}"
        )
        inside.append(home.load().scan().to_arrow())
        theirs.append(inside)
    rows = home.read()
    remove(home)
    assert [len(inside.scan().to_arrow()) for inside in theirs] == [3] * len(theirs)
    if remove is maintained:
        assert home.read() == rows


@REMOVALS
@pytest.mark.parametrize("place", ["", "/sales"])
def test_i11_a_write_path_above_all_views_does_not_stop_maintenance(
    every_home: Lake, warehouse: Path, remove: Removal, place: str
) -> None:
    """A table writes to the bucket's root: its files below a view's folder are kept, the view's garbage is deleted."""
    home = every_home
    home.table()
    home.view()
    home.refresh()
    folder = local(home.catalog.load(VIEW).metadata.location).relative_to(warehouse)
    root = f"file://{warehouse}{place}"
    wide = home.iceberg.create_table(
        "sales.wide",
        home.load().schema(),
        location=f"file://{warehouse}/elsewhere/wide",
        properties={"write.data.path": root},
    )
    wide.append(home.load().scan().to_arrow())
    # Its own file below the view's folder, as a partition could be.
    theirs = local(next(iter(wide.scan().plan_files())).file.file_path)
    assert theirs.exists()
    stray = warehouse / folder / "data" / "theirs.parquet"
    stray.parent.mkdir(exist_ok=True)
    stray.write_bytes(theirs.read_bytes())
    home.append((9, "east", 7))
    home.refresh()
    before = files(warehouse)
    remove(home)
    assert len(before - files(warehouse)) > 0
    assert len(wide.scan().to_arrow()) == 3
    assert stray.exists()
    if remove is maintained:
        assert len(home.read()) == 3


@REMOVALS
def test_i11_files_of_a_table_that_no_catalog_lists_are_kept(every_home: Lake, remove: Removal, tmp_path: Path) -> None:
    """Its metadata files in the folder show that it exists; its other files are not proven the view's."""
    home = every_home
    home.table()
    home.view()
    home.refresh()
    folder = home.catalog.load(VIEW).metadata.location
    theirs = SqlCatalog("theirs", uri=f"sqlite:///{tmp_path}/theirs.db", warehouse=f"file://{tmp_path}")
    theirs.create_namespace("a")
    for name, location, properties in (
        ("inside", f"{folder}/inside", {}),
        ("beside", f"file://{tmp_path}/beside", {"write.data.path": f"{folder}/data"}),
    ):
        table = theirs.create_table(f"a.{name}", home.load().schema(), location=location, properties=properties)
        table.append(home.load().scan().to_arrow())
    remove(home)
    assert [len(theirs.load_table(f"a.{name}").scan().to_arrow()) for name in ("inside", "beside")] == [3, 3]
    theirs.engine.dispose()


@pytest.mark.parametrize("spelling", ["{}//sales", "{}/./sales", "{}/x/../sales", "{}/%2E/sales"])
@REMOVALS
def test_i19_a_view_whose_location_stores_read_differently_is_refused(
    sqlite_uri: str, warehouse: Path, remove: Removal, spelling: str
) -> None:
    """`wh//sales` is not equal to `wh/sales` as text, but is the same folder on a disk."""
    with lake(sqlite_uri, warehouse) as home:
        home.table()
        home.view()
        home.refresh()
        view = home.catalog.load(VIEW)
        document = {**view.metadata.document(), "location": spelling.format(f"file://{warehouse}")}
        new = join(view.metadata.metadata_folder, "00099-moved.metadata.json")
        home.catalog.files.write(new, ViewMetadata.read(document, source="moved").to_bytes())
        assert home.catalog.swap(view.identifier, view.metadata_location, new)
        before = files(warehouse)
        with pytest.raises(InvalidMetadataError, match=r"sales\.daily.*(path segment|leads out|of another view)"):
            remove(home)
        assert files(warehouse) == before
        assert home.catalog.exists(VIEW)
        drop(home.catalog, VIEW)


def test_i19_a_warehouse_that_stores_read_differently_is_refused_and_named(sqlite_uri: str, warehouse: Path) -> None:
    (warehouse / "inner").mkdir()
    with lake(sqlite_uri, Path("/")) as home:
        home.catalog.properties["warehouse"] = f"file://{warehouse}//inner"
        with pytest.raises(ConfigurationError, match=r"catalog 'lake', property 'warehouse'.*path segment"):
            home.catalog.folders.new(home.catalog.identify(VIEW))
        home.catalog.properties["warehouse"] = f"file://{warehouse}/inner/"
        assert home.catalog.folders.new(home.catalog.identify(VIEW)).startswith(
            f"file://{warehouse}/inner/sales/daily-"
        )


@REMOVALS
def test_a_view_that_was_dropped_and_recreated_is_cleaned_up(every_home: Lake, remove: Removal) -> None:
    """A REST catalog gives both views one folder, which still has the metadata of the earlier view."""
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


def test_a_purge_keeps_a_view_that_was_created_meanwhile(every_home: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """It reads all metadata first, which takes minutes for a large view."""
    home = every_home
    home.table()
    home.view()
    home.refresh()
    loaded = home.catalog.load(VIEW)

    def created_again(
        catalog: MaterializedViewCatalog, own: frozenset[str], bases: Sequence[str]
    ) -> tuple[CatalogEntry, ...]:
        drop(home.catalog, VIEW)
        home.view()
        home.refresh()
        return other_entries(catalog, own, bases)

    with monkeypatch.context() as patched:
        patched.setattr(folders, "other_entries", created_again)
        with pytest.raises(ViewNotFoundError, match="created again"):
            purge(home.catalog, VIEW)
    with suppress(ViewNotFoundError):
        drop(home.catalog, loaded, force=True)
    assert len(home.read()) == 2


def test_a_purge_keeps_the_files_of_a_storage_table_that_is_renamed_meanwhile(
    registered_home: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it has read may be minutes old when the view is dropped."""
    home = registered_home
    home.table()
    home.view()
    home.refresh()
    name, release = home.storage().name, drops.release_base_snapshots
    assert name is not None
    rows = home.read()

    def renamed(catalog: MaterializedViewCatalog, view: LoadedView) -> None:
        home.iceberg.rename_table((*name.namespace, name.name), "sales.copy")
        release(catalog, view)

    monkeypatch.setattr(drops, "release_base_snapshots", renamed)
    with pytest.raises(UnsupportedError, match=r"sales\.copy.*\. The view was dropped; none of its files was deleted"):
        purge(home.catalog, VIEW)
    kept = home.iceberg.load_table("sales.copy").scan().to_arrow().to_pylist()
    assert sorted(map(str, kept)) == sorted(map(str, rows))


def test_garbage_of_an_earlier_storage_table_is_collected(registered_home: Lake) -> None:
    """A definition with other columns gets a new storage table; the old one names its view."""
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
