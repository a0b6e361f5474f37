# SPDX-License-Identifier: Apache-2.0
"""Iceberg's Java implementation as reference, and how Java, pyiceberg and this package read a metadata file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import StaticTable
from pyiceberg.view.metadata import ViewMetadata as TheirViewMetadata

from airflow_mv.core.spec.stored import decode
from airflow_mv.core.spec.table_metadata import parse_table
from airflow_mv.core.spec.view import parse_view
from tests.rest.java import JavaProcess

Document = dict[str, Any]

#: The compared fields of a table: all that this package reads, and all that a writer must preserve.
_TABLE = ("format-version", "location", "last-updated-ms", "table-uuid", "last-sequence-number", "current-schema-id")
_TABLE += ("default-spec-id", "properties")
_WRITER = ("last-column-id", "last-partition-id", "default-sort-order-id", "sort-orders")
_SNAPSHOT = ("snapshot-id", "timestamp-ms", "sequence-number", "schema-id", "manifest-list", "summary")


class ReferenceError(Exception):
    """Java refused an order."""


class Reference:
    """Iceberg's Java classes in one JVM.

    Args:
        jvm: Executes the orders of ``Reference.java``.
    """

    def __init__(self, jvm: JavaProcess) -> None:
        self._jvm = jvm

    def ask(self, order: str, **arguments: Any) -> Any:
        """Send an order.

        Raises:
            ReferenceError: Java's own exception.
        """
        answer = json.loads(self._jvm.ask(json.dumps({"order": order, **arguments})))
        if "error" in answer:
            raise ReferenceError(answer["error"])
        return answer["answer"]

    def view(self, location: str) -> Document:
        """Read a view's metadata file."""
        return seen_view(self.ask("read-view", location=location))

    def table(self, location: str) -> Document:
        """Read a table's metadata file."""
        return seen_table(self.ask("read-table", location=location))

    def data_files(self, location: str) -> dict[int, dict[str, int]]:
        """Read the manifests of every snapshot: ``{snapshot id: {data file: rows}}``."""
        answer = self.ask("read-data-files", location=location)
        return {int(snapshot): {path: int(rows) for path, rows in files} for snapshot, files in answer.items()}


def our_view(path: Path) -> Document:
    """A view's metadata file as this package reads it."""
    return seen_view(parse_view(path.read_bytes(), view="v", location=str(path)).document())


def our_table(path: Path) -> Document:
    """A table's metadata file as this package reads it; fields that it ignores are missing."""
    return seen_table(msgspec.to_builtins(parse_table(path.read_bytes(), source=str(path))))


def their_view(path: Path) -> Document:
    """A view's metadata file as pyiceberg reads it."""
    document = decode(path.read_bytes(), source=str(path))
    return seen_view(TheirViewMetadata.model_validate(document).model_dump(mode="json", by_alias=True))


def their_table(path: Path) -> Document:
    """A table's metadata file as pyiceberg reads it."""
    table = StaticTable.from_metadata(path.as_uri())
    metadata = FromInputFile.table_metadata(table.io.new_input(path.as_uri()))
    return seen_table(json.loads(metadata.model_dump_json(by_alias=True)))


def their_data_files(path: Path) -> dict[int, dict[str, int]]:
    """The data files of every snapshot as pyiceberg plans them."""
    table = StaticTable.from_metadata(path.as_uri())
    return {
        snapshot.snapshot_id: {
            task.file.file_path: task.file.record_count
            for task in table.scan(snapshot_id=snapshot.snapshot_id).plan_files()
        }
        for snapshot in table.metadata.snapshots
    }


def seen_view(document: Document) -> Document:
    """The content of a view's metadata, independent of the form of its optional fields."""
    plain = {key: document[key] for key in ("view-uuid", "format-version", "location", "current-version-id")}
    return {
        **plain,
        "properties": document.get("properties") or {},
        "schemas": {item.get("schema-id", 0): _columns(item) for item in document["schemas"]},
        "versions": {item["version-id"]: _version(item) for item in document["versions"]},
        "version-log": [(item["timestamp-ms"], item["version-id"]) for item in document["version-log"]],
    }


def _version(version: Document) -> Document:
    plain = {key: version[key] for key in ("schema-id", "timestamp-ms", "summary", "default-namespace")}
    texts = [(item["type"], item["sql"], item["dialect"]) for item in version["representations"]]
    return {**plain, "default-catalog": version.get("default-catalog"), "texts": texts}


def seen_table(document: Document) -> Document:
    """The content of a table's metadata, independent of the form of its optional fields."""
    current = document.get("current-snapshot-id")
    return {
        **{key: document[key] for key in _TABLE},
        **{key: document[key] for key in _WRITER if key in document},
        "current-snapshot-id": None if current == -1 else current,
        "schemas": {item["schema-id"]: _columns(item) for item in document["schemas"]},
        "partition-specs": {item["spec-id"]: item["fields"] for item in document["partition-specs"]},
        "snapshots": [_snapshot(item) for item in document["snapshots"]],
        "snapshot-log": [(item["timestamp-ms"], item["snapshot-id"]) for item in document["snapshot-log"]],
        "metadata-log": [(item["timestamp-ms"], item["metadata-file"]) for item in document["metadata-log"]],
        "refs": {name: (item["snapshot-id"], item["type"]) for name, item in document["refs"].items()},
    }


def _snapshot(snapshot: Document) -> Document:
    plain = {key: snapshot.get(key) for key in _SNAPSHOT}
    return {**plain, "parent-snapshot-id": snapshot.get("parent-snapshot-id")}


def _columns(schema: Document) -> list[tuple[Any, ...]]:
    return [(item["id"], item["name"], item["required"], item["type"], item.get("doc")) for item in schema["fields"]]
