# SPDX-License-Identifier: Apache-2.0
"""The registered layout: a storage table in the catalog, commits with requirements, and Spark's branches."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import greenlet

from airflow_mv.core.catalog.tables import NewTable, TableChange, TableViews, definition_of
from airflow_mv.core.script import COMPLETE_KEY, REFRESH_ID_KEY, Outcome, Script
from airflow_mv.core.spec.definition_text import definition_text
from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.core.spec.materialized_view import (
    DEFINITION_ID_PROPERTY,
    DEFINITION_PROPERTY,
    STORAGE_OF_PROPERTY,
    definition_tag,
)
from airflow_mv.core.spec.new_columns import NewColumns
from airflow_mv.core.spec.view import ViewMetadata
from airflow_mv.errors import AlreadyExistsError, CatalogUnavailableError, CommitStateUnknownError, NotFoundError
from tests.protocol.simulation.queries import columns
from tests.protocol.simulation.world import STORAGE, VIEW, Row, World

Document = dict[str, Any]
_KEPT_FILES = 100


@dataclass
class SimulatedTables:
    """Commits to a table: requirements are checked, and all updates are applied at once, or none.

    Args:
        world: The world that has the tables.
        checks: Whether requirements are checked; a planted fault disables it.
    """

    world: World
    checks: bool = True

    def commit(self, name: Identifier, uuid: str, change: TableChange) -> str | None:
        def apply(document: Document) -> Document | None:
            refs, before = document["refs"], document
            required = {
                ref: item and item["snapshot-id"] for ref, item in ((ref, refs.get(ref)) for ref in change.requires)
            }
            if change.columns is not None:
                document = with_columns(document, change.columns)
            there = {item["snapshot-id"] for item in document["snapshots"]}
            # Java and pyiceberg refuse to set a branch or tag to a snapshot that the table does not have.
            unknown = not there.issuperset((*change.branches.values(), *change.tags.values()))
            if change.columns is not None and self.checks:
                unknown |= any(before.get(key) != value for key, value in change.columns.required.items())
                unknown |= not change.columns.fits(before["last-sequence-number"])
            if document["table-uuid"] != uuid or unknown or (self.checks and required != dict(change.requires)):
                self.world.events["commit refused"] += 1
                return None
            self.world.events["columns changed in place"] += change.columns is not None
            for kind, wanted in (("branch", change.branches), ("tag", change.tags)):
                refs = {**refs, **{ref: {"snapshot-id": item, "type": kind} for ref, item in wanted.items()}}
            refs = {ref: item for ref, item in refs.items() if ref not in change.removes}
            return {
                **document,
                "refs": refs,
                "snapshots": [item for item in document["snapshots"] if item["snapshot-id"] not in change.drops],
                "properties": {**document["properties"], **change.properties},
            }

        try:
            return self.change(name, apply, "late", "late", "re-sent")
        except NotFoundError:
            return None  # as the real one, which loads the table first

    def change(self, name: Identifier, make: Callable[[Document], Document | None], *fates: str) -> str | None:
        """Change a table in one step; return ``None`` if that was refused."""
        sender = greenlet.getcurrent()
        role, version = self.world.roles.get(sender, "other"), self.world.ledger.versions.get(sender)

        def apply() -> str | None:
            row = self.world.rows.get(name)
            if row is None or row.kind != "TABLE":
                raise NotFoundError(f"there is no table {name}")
            changed = make(with_main(json.loads(self.world.files[row.location].data)))
            if changed is None:
                return None
            before = self.world.ledger.view(), self.world.ledger.state()
            row.previous, row.location = row.location, self._write(row.location, changed)
            if VIEW in self.world.rows:
                self.world.ledger.after_swap(before, role, version)
            else:
                self.world.ledger.left_table_changed(row.location)
            return row.location

        found = self.world.call("commit", apply, CommitStateUnknownError, *fates)
        return str(found) if found else None

    def _write(self, location: str, document: Document) -> str:
        logged = {"metadata-file": location, "timestamp-ms": document["last-updated-ms"]}
        main = document["refs"].get("main")
        changed = {
            **document,
            "last-updated-ms": max(self.world.now, document["last-updated-ms"]),
            "current-snapshot-id": main["snapshot-id"] if main else None,
            "metadata-log": [*document["metadata-log"], logged][-_KEPT_FILES:],
        }
        new = f"{document['location']}/metadata/{self.world.next_snapshot():05d}-table.metadata.json"
        self.world.put(new, json.dumps(changed).encode())
        return new

    def has_file(self, name: Identifier, location: str) -> bool:
        return bool(self.world.call("read", lambda: location in self.world.files, CatalogUnavailableError))

    def create(self, name: Identifier, new: NewTable) -> None:
        """Add the row of an empty table like another one, as a database does."""
        like = self._document(new.like)
        document = {**like, "table-uuid": str(new.token), "location": new.location, "last-updated-ms": self.world.now}
        first = f"{new.location}/metadata/00000-{self.world.next_snapshot()}.metadata.json"
        self.world.put(first, json.dumps(document).encode())

        def apply() -> bool:
            if name in self.world.rows:
                raise AlreadyExistsError(f"a table or view {name} exists already")
            self.world.rows[name] = Row(first, "TABLE")
            self.world.ledger.storage_created()
            return True

        self.world.call("insert", apply, CommitStateUnknownError, "late", "late", "re-sent")

    def register(self, name: Identifier, location: str) -> None:
        """Add the row of a table that was removed."""

        def apply() -> bool:
            if name not in self.world.rows:
                self.world.rows[name] = Row(location, "TABLE")
                self.world.ledger.storage_created()
                self.world.events["removed table put back"] += 1
            return True

        self.world.call("insert", apply, CatalogUnavailableError, "late")

    def drop(self, name: Identifier, *, uuid: str | None, owner: Identifier) -> bool:
        """Remove a table's row, if it still is this table of this view."""

        def apply() -> bool:
            row = self.world.rows.get(name)
            document = json.loads(self.world.files[row.location].data) if row is not None else {}
            own = document.get("properties", {}).get(STORAGE_OF_PROPERTY) == owner.within_catalog
            if not own or document["table-uuid"] != uuid:
                return False
            del self.world.rows[name]
            return True

        return bool(self.world.call("drop", apply, CatalogUnavailableError))

    def require_refs(self, name: Identifier) -> None:
        """Branches and tags are kept."""

    def _document(self, name: Identifier) -> Document:
        def load() -> Document:
            row = self.world.rows.get(name)
            if row is None:
                raise NotFoundError(f"there is no table {name}")
            return cast("Document", json.loads(self.world.files[row.location].data))

        return cast("Document", self.world.call("get", load, CatalogUnavailableError))


def with_main(document: Document) -> Document:
    """Return a table whose branch ``main`` is named: a file without it means the current snapshot."""
    head = document["current-snapshot-id"]
    if head is None or "main" in document["refs"]:
        return document
    return {**document, "refs": {**document["refs"], "main": {"snapshot-id": head, "type": "branch"}}}


def with_columns(document: Document, columns: NewColumns) -> Document:
    """Return a table with other columns and their rows, as a catalog does it."""
    return {
        **document,
        "schemas": [*document["schemas"], *columns.schemas],
        "current-schema-id": columns.schema_id,
        "snapshots": [*document["snapshots"], *columns.snapshots],
        # As Java and pyiceberg do, for a snapshot without a parent.
        "last-sequence-number": columns.snapshots[-1]["sequence-number"],
    }


class SimulatedTableViews(TableViews):
    """The views that are tables: their creation is one row, as in a database.

    Args:
        world: Where the tables are.
        more: As for the real ones.
    """

    def __init__(self, world: World, *more: Any) -> None:
        super().__init__(cast("Any", None), *more)
        self.world = world

    def create(self, view: Identifier, metadata: ViewMetadata, template: Identifier) -> None:
        """Add the row of a table with a definition, a tag and an empty snapshot."""
        first = write_table(self.world, view, metadata)

        def apply() -> bool:
            if view in self.world.rows:
                raise AlreadyExistsError(f"a table or view {view} exists already")
            self.world.rows[view] = Row(first, "TABLE")
            self.world.ledger.view_created()
            return True

        self.world.call("insert", apply, CommitStateUnknownError, "late", "late", "re-sent")


def write_table(world: World, view: Identifier, metadata: ViewMetadata) -> str:
    """Write the first metadata file of a view's table."""
    folder, definition_id = metadata.location, f"{world.random.getrandbits(128):032x}"
    listing = f"{folder}/metadata/snap-{definition_id}.avro"
    world.put(listing, b"[]")
    snapshot = world.next_snapshot()
    definition = definition_of(view, metadata, location=folder, table_uuid=folder)
    tag = {"snapshot-id": snapshot, "type": "tag"}
    document = {
        **empty_table(folder, world.now),
        "last-sequence-number": 1,
        "current-snapshot-id": snapshot,
        "snapshots": [
            {
                "snapshot-id": snapshot,
                "sequence-number": 1,
                "timestamp-ms": world.now,
                "summary": {"operation": "append", "files": listing},
            }
        ],
        "refs": {"main": {"snapshot-id": snapshot, "type": "branch"}, definition_tag(definition_id): tag},
        "properties": {
            STORAGE_OF_PROPERTY: view.within_catalog,
            DEFINITION_PROPERTY: definition_text(definition, view=str(view)),
            DEFINITION_ID_PROPERTY: definition_id,
        },
    }
    first = f"{folder}/metadata/00000-{definition_id}.metadata.json"
    world.put(first, json.dumps(document).encode())
    return first


def empty_table(location: str, now_ms: int, *, named: bool = True) -> Document:
    """The metadata of a storage table without rows, which a catalog may hold under a name."""
    return {
        "format-version": 2, "table-uuid": location, "location": location, "last-sequence-number": 0,
        "last-updated-ms": now_ms, "current-schema-id": 0, "schemas": [columns(wider=False)], "default-spec-id": 0,
        "current-snapshot-id": None, "snapshots": [], "snapshot-log": [], "metadata-log": [], "refs": {},
        "properties": {STORAGE_OF_PROPERTY: VIEW.within_catalog} if named else {},
    }  # fmt: skip


def put_table_of_others(world: World, name: Identifier) -> None:
    """Add a table that somebody else has made and written, with the view's columns."""
    world.views += 1
    folder = f"s3://w/v-{world.views}"
    table = with_rows_of_others(world, {**empty_table(folder, world.now), "properties": {}})
    first = f"{folder}/metadata/00000-others.metadata.json"
    world.put(first, json.dumps({**table, "current-snapshot-id": table["refs"]["main"]["snapshot-id"]}).encode())
    world.rows[name] = Row(first, "TABLE")


def with_rows_of_others(world: World, table: Document) -> Document | None:
    """Return a table with one more snapshot on ``main``; ``None`` if it is a view by now."""
    if DEFINITION_PROPERTY in table["properties"]:
        return None
    snapshot, number = world.next_snapshot(), table["last-sequence-number"] + 1
    data, listing = (
        f"{table['location']}/{name}" for name in (f"data/{snapshot}.parquet", f"metadata/snap-{snapshot}")
    )
    world.put(data, b"rows of others")
    world.put(listing, json.dumps([data]).encode())
    added = {
        "snapshot-id": snapshot,
        "sequence-number": number,
        "timestamp-ms": world.now,
        **({"parent-snapshot-id": table["current-snapshot-id"]} if table["snapshots"] else {}),
        "summary": {"operation": "append", "files": listing},
    }
    return {
        **table,
        "last-sequence-number": number,
        "snapshots": [*table["snapshots"], added],
        "refs": {**table["refs"], "main": {"snapshot-id": snapshot, "type": "branch"}},
    }


def stage_on_branch(
    world: World,
    script: Script,
    content: str,
    base: int | None,
    write: Callable[[str], str],
    operation: str = "overwrite",
) -> Outcome:
    """Do what Spark does: create a branch for this run, write the rows, and mark the branch as complete.

    Args:
        world: The simulated world.
        script: The script to execute.
        content: The rows.
        base: The snapshot that the branch starts from.
        write: Writes the files of a table and returns the file that lists them.
        operation: The snapshot's operation.
    """
    branch = f"{script.branch}_{world.random.getrandbits(32):08x}"
    tables: Any = world.catalog.tables

    opened: Document = {}

    def create(document: Document) -> Document | None:
        if base is not None and all(item["snapshot-id"] != base for item in document["snapshots"]):
            return None
        opened.update(document)
        ref = {branch: {"snapshot-id": base, "type": "branch"}} if base is not None else {}
        return {**document, "refs": {**document["refs"], **ref}}

    def insert(document: Document) -> Document | None:
        if document["table-uuid"] != opened["table-uuid"]:
            return None
        number = document["last-sequence-number"] + 1
        summary = {"operation": operation, "content": content, "files": listing}
        snapshot = {
            "snapshot-id": world.next_snapshot(),
            "sequence-number": number,
            "timestamp-ms": world.now,
            **({"parent-snapshot-id": base} if base is not None else {}),
            "summary": {**summary, REFRESH_ID_KEY: script.refresh_id, COMPLETE_KEY: "true"},
        }
        ref = {branch: {"snapshot-id": snapshot["snapshot-id"], "type": "branch"}}
        return {
            **document,
            "last-sequence-number": number,
            "snapshots": [*document["snapshots"], snapshot],
            "refs": {**document["refs"], **ref},
        }

    name = next(item for item in (VIEW, STORAGE) if item.sql() == script.table)
    if tables.change(name, create) is None:
        return Outcome(script.refresh_id, None, error="Cannot find snapshot")
    listing = write(opened["location"])
    location = tables.change(name, insert)
    if location is None:
        return Outcome(script.refresh_id, None, error="Table UUID does not match")
    return Outcome(script.refresh_id, location, rows_written=1, branch=branch)
