# SPDX-License-Identifier: Apache-2.0
"""Java, pyiceberg and this package read the same content from every metadata file that this package writes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from airflow_mv.actions import create_view as create
from airflow_mv.core.catalog import LoadedView
from airflow_mv.core.define.definition import Definition
from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.core.spec.materialized_view import DEFINITION_PROPERTY
from airflow_mv.core.spec.stored import decode
from airflow_mv.core.spec.view import replace_version, roll_back, with_view_properties
from airflow_mv.extras.describe import history
from airflow_mv.extras.history.rollback import rollback
from airflow_mv.extras.maintenance.orphans import expire
from tests.builders import QUERY, Lake, lake, without_properties
from tests.rest.reference import (
    Document,
    Reference,
    our_table,
    our_view,
    seen_table,
    their_data_files,
    their_table,
    their_view,
)

DATA = Path(__file__).parents[1] / "core" / "spec" / "data"
TOTAL = "SELECT sum(amount) AS amount FROM lake.sales.orders"


@pytest.fixture
def home(sqlite_uri: str, warehouse: Path) -> Iterator[Lake]:
    with lake(sqlite_uri, warehouse) as found:
        found.table()
        yield found


def files(warehouse: Path) -> tuple[list[Path], list[Path]]:
    """The view files and storage table files of this package; base tables have other writers."""
    found = sorted(path for path in warehouse.rglob("*.metadata.json"))
    documents = {path: decode(path.read_bytes(), source=str(path)) for path in found}
    views = [path for path, document in documents.items() if "view-uuid" in document]
    return views, [path for path in found if path not in views and not documents[path]["location"].endswith("/orders")]


def change(home: Lake, name: str, *changes: Any) -> LoadedView:
    """Publish changes of a view's metadata, with one file each."""
    for item in changes:
        view = home.catalog.load(name)
        assert home.catalog.replace(view, item(view.metadata))
    return home.catalog.load(name)


def redefined(number: int, **changes: Any) -> Any:
    """A change of the definition."""
    definition: dict[str, Any] = {
        "schema": {"type": "struct", "fields": [{"id": 1, "name": "n", "required": False, "type": "long"}]},
        "sql": f"SELECT {number} AS n",
        "default_catalog": "lake",
        "default_namespace": ("sales",),
        "summary": {"engine-name": "tests"},
        "now_ms": number,
    }
    return lambda metadata: replace_version(metadata, **definition | changes)


def check(reference: Reference, warehouse: Path, *, at_least: tuple[int, int]) -> tuple[int, int]:
    """Compare all files, and return the number of views' and tables' files."""
    views, tables = files(warehouse)
    for path in views:
        assert reference.view(path.as_uri()) == our_view(path) == their_view(path), path
    for path in tables:
        java, ours = reference.table(path.as_uri()), our_table(path)
        assert java == their_table(path), path
        assert {key: java[key] for key in ours} == ours, path
    assert len(views) >= at_least[0]
    assert len(tables) >= at_least[1]
    return len(views), len(tables)


def test_all_metadata_files_of_a_view_s_lifetime_are_read_alike(
    home: Lake, reference: Reference, warehouse: Path
) -> None:
    """Created, refreshed, fast-forwarded, replaced, refreshed again, commented; plain and compressed."""
    home.view(properties={"comment": 'été ☃ "quoted"\n'})
    home.view("packed", TOTAL, properties={"write.metadata.compression-codec": "gzip"})
    for name in ("sales.daily", "sales.packed"):
        home.refresh(name)
        home.append()
        home.refresh(name)
        home.compact()
        assert home.refresh(name).mode == "fast-forward"
        change(home, name, lambda metadata: with_view_properties(metadata, {"a": "1"}))
        change(home, name, lambda metadata: without_properties(with_view_properties(metadata, {"b": "☃"}), "a"))
        create(home.catalog, name, Definition(f"{QUERY} HAVING sum(amount) > 1"), stager=home.stager, replace=True)
        home.refresh(name)
    views, tables = check(reference, warehouse, at_least=(14, 12))
    packed = [path for path in warehouse.rglob("*.gz.metadata.json") if "packed" in str(path)]
    assert packed
    print(f"{views} view files ({len(packed)} of them gzip), {tables} storage table files")


def test_the_definition_in_a_table_is_the_document_of_a_view(home: Lake, reference: Reference, warehouse: Path) -> None:
    """Layout ``table``: any parser of view metadata reads the property, through all changes of the definition."""
    home.view(layout="table", properties={"comment": 'été ☃ "quoted"\n'})
    create(home.catalog, "sales.daily", Definition(TOTAL), stager=home.stager, replace=True)
    home.refresh()
    change(home, "sales.daily", lambda metadata: with_view_properties(metadata, {"b": "☃"}))
    text = home.iceberg.load_table("sales.daily").properties[DEFINITION_PROPERTY]
    path = warehouse / "definition.metadata.json"
    path.write_text(text)
    assert reference.view(path.as_uri()) == our_view(path) == their_view(path)
    assert json.loads(text)["versions"][1]["representations"] == [{"type": "sql", "sql": TOTAL, "dialect": "spark"}]


def test_time_travel_tags_rollback_and_expiry_are_read_alike(home: Lake, reference: Reference, warehouse: Path) -> None:
    """The record of each refresh, its tag, and the data files that each tag retains."""
    home.view(time_travel=True)
    home.view("short")
    for _ in range(3):
        home.append()
        home.refresh()
        home.refresh("sales.short")
    oldest, *_ = history(home.catalog, "sales.daily")
    assert rollback(home.catalog, "sales.daily", oldest["refresh_id"]).changed
    assert expire(home.catalog, "sales.short", older_than=timedelta(0)).snapshot_ids
    check(reference, warehouse, at_least=(9, 12))
    for name, snapshots in (("sales.daily", 3), ("sales.short", 1)):
        location = home.storage(name).location
        kept = reference.data_files(location)
        assert sum(map(bool, kept.values())) >= snapshots
        assert kept == their_data_files(Path(location.removeprefix("file://")))


def test_many_versions_schemas_and_rollbacks_of_a_view_are_read_alike(
    home: Lake, reference: Reference, warehouse: Path
) -> None:
    """More versions than are retained, columns of every type, other dialects, other codecs, another folder."""
    home.plain_view("v", "SELECT 0 AS n", ["n"])
    kinds = ["boolean", "int", "float", "double", "date", "time", "timestamp", "timestamptz", "string", "uuid"]
    kinds += ["binary", "fixed[7]", "decimal(9, 2)"]
    fields: list[Document] = [
        {"id": number, "name": f"☃ {kind}", "required": number % 2 == 0, "type": kind, "doc": "d"}
        for number, kind in enumerate(kinds, start=1)
    ]
    nested: Document = {
        "type": "list", "element-id": 101, "element-required": False, "element": {
            "type": "map", "key-id": 102, "key": "string", "value-id": 103, "value-required": True, "value": {
                "type": "struct", "fields": [{"id": 104, "name": "x", "required": False, "type": "long"}]
            }
        }
    }  # fmt: skip
    fields.append({"id": 100, "name": "nested", "required": False, "type": nested})
    texts = {"spark": "SELECT 1", "trino": 'SELECT 1 AS "n"'}
    change(
        home,
        "sales.v",
        *(redefined(number) for number in range(1, 13)),
        redefined(20, schema={"type": "struct", "fields": fields}),
        redefined(21, sql=texts, default_catalog=None, default_namespace=()),
        lambda metadata: with_view_properties(metadata, {"replace.drop-dialect.allowed": "true"}),
        lambda metadata: roll_back(metadata, metadata.current_version_id - 1, now_ms=1),
        lambda metadata: with_view_properties(metadata, {"version.history.num-entries": "2"}),
        redefined(30),
        lambda metadata: with_view_properties(metadata, {"write.metadata.compression-codec": "gzip"}),
        lambda metadata: with_view_properties(metadata, {"write.metadata.path": f"{warehouse.as_uri()}/elsewhere"}),
        redefined(31),
    )
    check(reference, warehouse, at_least=(22, 0))
    assert list((warehouse / "elsewhere").glob("*.gz.metadata.json"))


@pytest.mark.parametrize("name", ["view_draft_1.json", "view_draft_2.json", "view_java.json"])
def test_a_changed_file_of_a_draft_or_of_java_is_read_alike(
    home: Lake, reference: Reference, warehouse: Path, name: str
) -> None:
    """The first change by this package writes version 1 of the format."""
    document = json.loads((DATA / name).read_text())
    folder = warehouse / "sales" / "old"
    home.iceberg.create_namespace_if_not_exists("sales")
    old = warehouse.parent / "old.metadata.json"
    old.write_text(json.dumps({**document, "location": folder.as_uri()}))
    identifier = Identifier("lake", ("sales",), "old")
    home.catalog.create(identifier, home.catalog.load_at(identifier, old.as_uri()).metadata)
    allowed = {"replace.drop-dialect.allowed": "true"}  # one of them has another dialect only
    change(home, "sales.old", lambda metadata: with_view_properties(metadata, allowed), redefined(9))
    check(reference, warehouse, at_least=(3, 0))


@pytest.mark.parametrize("way", ["sqlite_uri", "rest_uri"])
def test_storage_tables_in_the_registered_layout_are_read_alike(
    request: pytest.FixtureRequest, way: str, reference: Reference, warehouse: Path
) -> None:
    """In the registered layout the catalog writes the files, with the committed snapshots, properties and tags."""
    with lake(str(request.getfixturevalue(way)), warehouse, layout="registered") as home:
        home.table()
        home.view(time_travel=True)
        home.refresh()
        home.append()
        home.refresh()
        home.compact()
        assert home.refresh().mode == "fast-forward"
        check(reference, warehouse, at_least=(1, 6))
        location = home.storage().location
        kept = reference.data_files(location)
        assert sum(map(bool, kept.values())) >= 2
        assert kept == their_data_files(Path(location.removeprefix("file:")))


def test_the_comparison_detects_a_difference(home: Lake, reference: Reference, warehouse: Path) -> None:
    """One changed value in a storage table's file is a difference."""
    home.view()
    home.refresh()
    _, (*_, path) = files(warehouse)
    document = json.loads(path.read_bytes())
    document["snapshots"][0]["timestamp-ms"] += 1
    assert seen_table(document) != reference.table(path.as_uri())
