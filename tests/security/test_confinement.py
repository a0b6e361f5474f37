# SPDX-License-Identifier: Apache-2.0
"""I19: locations in a view's metadata are read, written and deleted only below folders that the owner allows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyiceberg.catalog
import pytest
from pyiceberg.table.update import SetLocationUpdate
from pyiceberg.utils.config import Config

from airflow_mv.core.catalog.locations import ALLOWED, allowed_folders, check_confined
from airflow_mv.errors import InvalidMetadataError, UnsupportedError
from tests.builders import LAYOUTS
from tests.cli.support import call
from tests.security.conftest import VIEW, Shop, error_of, refused_or_works

POINTER = "s3://bucket/wh/sales/daily/metadata/00001-x.metadata.json"
S3 = {"warehouse": "s3://bucket/wh"}


@pytest.mark.parametrize(
    "location",
    [
        "s3://bucket/wh/sales/daily/storage/metadata/1.json",
        "s3a://bucket/wh/x",
        "s3n://bucket/wh/x",
        "s3://bucket/wh",
        "s3://other/storage/x",
    ],
)
def test_i19_locations_in_the_warehouse_beside_the_view_or_in_the_list_are_allowed(location: str) -> None:
    """With any alias of the store's scheme."""
    folders = allowed_folders({**S3, ALLOWED: "gs://x/y, s3://other/storage"}, POINTER)
    check_confined(location, folders, what="view v")


@pytest.mark.parametrize(
    "location",
    [
        "s3://bucket/other/x",
        "s3://bucket/wh2/x",
        "s3://bucket/wh-old/x",
        "s3://BUCKET/wh/x",
        "s3://bucket2/wh/x",
        "s3://user@bucket/wh/x",
        "s3://bucket//wh/x",
        "s3://bucket/wh/../other/x",
        "s3://bucket/wh/%2e%2e/x",
        "s3://bucket/wh/%2E%2e%2fx",
        "gs://bucket/wh/x",
        "hdfs://bucket/wh/x",
        "file:///wh/x",
        "/wh/x",
        "http://bucket/wh/x",
        "https://169.254.169.254/wh",
        "s3://bucket/wh/x ",
        "wh/x",
        "",
    ],
)
def test_i19_a_foreign_location_is_refused(location: str) -> None:
    """Other buckets, other stores, look-alike folders, and every form of a parent path."""
    with pytest.raises(InvalidMetadataError, match="view v"):
        check_confined(location, allowed_folders(S3, POINTER), what="view v")


def test_i19_the_root_of_a_disk_or_a_plain_name_is_not_an_allowed_folder() -> None:
    """A REST catalog's warehouse may be a name, and every path is below ``/``."""
    assert allowed_folders({"warehouse": "prod"}, POINTER) == ("s3://bucket/wh/sales/daily",)
    assert allowed_folders({"warehouse": "file:///"}, "/metadata/x.json") == ()
    assert allowed_folders({ALLOWED: "file:///, /, ../x, http://h/x"}, "/metadata/x.json") == ()
    assert allowed_folders({"warehouse": "s3://bucket"}, POINTER)[0] == "s3://bucket"


@contextmanager
def a_link(at: Path, to: Path) -> Iterator[None]:
    at.symlink_to(to)
    yield
    at.unlink()


def test_i19_a_symbolic_link_is_judged_by_its_target(tmp_path: Path) -> None:
    """The place of the link itself does not matter."""
    inside, outside = tmp_path / "wh", tmp_path / "outside"
    for folder in (inside, outside):
        folder.mkdir()
    folders = allowed_folders({"warehouse": inside.as_uri()}, f"{inside}/v/metadata/1.json")
    with a_link(inside / "link", outside), pytest.raises(InvalidMetadataError, match="lies outside"):
        check_confined(f"{inside}/link/x.json", folders, what="view v")
    with a_link(tmp_path / "way-in", inside):
        check_confined(f"file://{tmp_path}/way-in/x.json", folders, what="view v")


# ------------------------------------------------------------------------- through the entry points


def outside(shop: Shop) -> Path:
    """A folder outside of the warehouse, with a copy of the storage table's files."""
    folder = shop.folder / "outside"
    (folder / "metadata").mkdir(parents=True)
    document = {**shop.storage_document, "location": folder.as_uri()}
    (folder / "metadata" / "00001-x.metadata.json").write_text(json.dumps(document))
    return folder


STORAGE_LOCATIONS = {
    "a password file": ("file:///etc/passwd", "lies outside of this catalog's folders"),
    "a password file, no scheme": ("/etc/passwd", "lies outside"),
    "the cloud's credentials": ("http://169.254.169.254/latest/meta-data/iam", "scheme 'http' is not supported"),
    "a local service": ("http://127.0.0.1:8080/", "scheme 'http' is not supported"),
    "another bucket": ("s3://salaries/metadata/1.json", "lies outside"),
    "another store": ("hdfs://namenode:8020/x", "lies outside"),
    "up": ("file:///w/../etc/passwd", "leads out of its folder"),
    "up, escaped": ("file:///w/%2e%2e/etc/passwd", "leads out of its folder"),
    "a process's own files": ("file:///proc/self/environ", "lies outside"),
    "relative": ("metadata/1.json", "not an absolute location"),
}


@pytest.mark.parametrize("way", STORAGE_LOCATIONS)
def test_i19_a_storage_table_outside_is_refused_before_it_is_read(shop: Shop, way: str) -> None:
    """The location is a view property: a user who may write the view must not choose what is read."""
    location, message = STORAGE_LOCATIONS[way]
    shop.with_settings({"storage-table-location": location})
    errors = refused_or_works("status", "refresh", "read")
    assert len(errors) == 3
    for error in errors:
        assert VIEW in error
        assert message in error
        assert "root:" not in error


def test_i19_the_error_names_the_setting_that_allows_it_and_then_it_works(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another engine may keep its storage tables in a separate folder."""
    folder = outside(shop)
    shop.with_settings({"storage-table-location": f"{folder.as_uri()}/metadata/00001-x.metadata.json"})
    assert "list its folder in the catalog property 'airflow-mv.allowed-locations'" in refused_or_works("status")[0]
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__AIRFLOW_MV__ALLOWED_LOCATIONS", folder.as_uri())
    monkeypatch.setattr(pyiceberg.catalog, "_ENV_CONFIG", Config())
    assert refused_or_works("status", "plan", "history") == []


def test_i19_a_storage_table_whose_location_is_outside_is_refused(shop: Shop) -> None:
    """The file is in the warehouse, but new files would be written to its ``location``."""
    folder = outside(shop)
    shop.with_storage({**shop.storage_document, "location": folder.as_uri()})
    before = sorted(folder.rglob("*"))
    for error in refused_or_works("status", "refresh"):
        assert "lies outside of this catalog's folders" in error
    assert sorted(folder.rglob("*")) == before


#: Properties by which Iceberg's writers choose the folders of new files, independent of a table's location.
PLACES = ("write.data.path", "write.metadata.path", "write.folder-storage.path", "write.object-storage.path")


@pytest.mark.parametrize("key", PLACES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_i19_a_storage_table_whose_properties_place_new_files_outside_is_refused(
    request: pytest.FixtureRequest, layout: str, key: str
) -> None:
    """Spark would write there with the rights of the refreshing user. A folder in the warehouse is permitted."""
    shop: Shop = request.getfixturevalue("shop" if layout == "pointed" else "registered_shop")
    folder = outside(shop)
    before = sorted(folder.rglob("*"))
    for place, refused in ((folder.as_uri(), True), ("s3://salaries/x", True), (f"{_warehouse(shop)}/beside", False)):
        shop.with_storage_properties({key: place})
        errors = refused_or_works("status", "plan", "history", "read", *(["refresh"] if refused else []))
        assert len(errors) == (5 if refused else 0)
        assert all("lies outside of this catalog's folders" in error and key in error for error in errors)
    assert sorted(folder.rglob("*")) == before


def _warehouse(shop: Shop) -> str:
    return (shop.folder / "warehouse").as_uri()


def test_i19_a_link_in_the_warehouse_to_an_outside_folder_is_refused(shop: Shop) -> None:
    """Others may be able to write to a local warehouse."""
    folder = outside(shop)
    with a_link(shop.folder / "warehouse" / "link", folder):
        shop.with_settings(
            {"storage-table-location": f"file://{shop.folder}/warehouse/link/metadata/00001-x.metadata.json"}
        )
        for error in refused_or_works("status", "refresh", "read"):
            assert "lies outside" in error


def test_i19_making_a_plain_view_outside_materialized_writes_nothing_there(shop: Shop) -> None:
    """Its ``location`` was chosen by the writer of the view."""
    plain = shop.lake.plain_view("plain", "SELECT * FROM lake.sales.orders")
    folder = outside(shop)
    moved = {**plain.metadata.document(), "location": folder.as_uri()}
    shop.point(shop.put(moved, "plain.metadata.json"), "plain")
    before = sorted(folder.rglob("*"))
    from airflow_mv.actions import create_view as create
    from airflow_mv.core.define.definition import Definition

    with pytest.raises((InvalidMetadataError, UnsupportedError), match="outside of this catalog's folders"):
        create(shop.lake.catalog, "lake.sales.plain", Definition(None), stager=shop.lake.stager)
    assert sorted(folder.rglob("*")) == before


REMOVALS = (
    ("drop", VIEW, "--yes"),
    ("drop", VIEW, "--yes", "--purge"),
    ("maintain", VIEW, "--older-than", "0s"),
)


@pytest.mark.parametrize("command", REMOVALS, ids=" ".join)
@pytest.mark.parametrize("whose", ["the view", "its storage table", "its storage table in the catalog"])
def test_i19_no_removal_deletes_files_outside(shop: Shop, whose: str, command: tuple[str, ...]) -> None:
    """Whatever locations the metadata of the view and its storage table have."""
    if whose == "the view":
        folder = outside(shop)
        shop.with_view({**shop.document, "location": folder.as_uri()})
    elif whose == "its storage table":
        folder = outside(shop)
        shop.with_storage({**shop.storage_document, "location": folder.as_uri()})
    else:
        folder = a_registered_one_outside(shop)
    (folder / "precious.parquet").write_bytes(b"rows")
    before = sorted(folder.rglob("*"))
    ended = call(*command, "--json")
    assert (ended.code == 0 and command == REMOVALS[0]) or "lies outside of this catalog's folders" in error_of(ended)
    assert sorted(folder.rglob("*")) == before


def a_registered_one_outside(shop: Shop) -> Path:
    """The view's storage table is in the catalog; its location was changed."""
    shop.lake.catalog.drop(VIEW)
    shop.lake.view(layout="registered")
    storage = shop.lake.storage(VIEW).name
    assert storage is not None
    folder = shop.folder / "outside"
    table = shop.lake.iceberg.load_table((*storage.namespace, storage.name))
    shop.lake.iceberg.commit_table(table, (), (SetLocationUpdate(location=folder.as_uri()),))
    return folder
