# SPDX-License-Identifier: Apache-2.0
"""Read the table-metadata fields that freshness, time travel and publishing need.

Source: Iceberg ``format/spec.md``, "Table Metadata Fields" and "Snapshots". A file with ten thousand
snapshots is read in milliseconds because everything else is skipped, and so are the snapshots that are not requested.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Annotated, Any, NamedTuple

import msgspec

from airflow_mv.core.spec.identifiers import Selector
from airflow_mv.core.spec.stored import (
    MARK,
    MAX_DOCUMENT_BYTES,
    MAX_DOCUMENT_MARKS,
    Budget,
    LazyItems,
    cut_out,
    decode_text,
    newer,
    shown,
    unpacked,
    whole_number,
)
from airflow_mv.core.spec.times import from_ms
from airflow_mv.errors import InvalidMetadataError, MaterializedViewError, SnapshotNotFoundError

#: The newest supported table format version.
MAX_FORMAT_VERSION = 3
_FORMAT_VERSIONS = range(1, MAX_FORMAT_VERSION + 1)
_WITH_ROW_IDS = 3
_NUMBER = re.compile(r"[0-9]{1,30}")
_LARGEST = 2**63 - 1
_MAIN = "main"
#: The most branches and tags that a message lists.
_MAX_REFS = 20
_PREVIOUS_VERSIONS_MAX = "write.metadata.previous-versions-max"

Long = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


def sequence_number(text: str) -> int | None:
    """Read a sequence number; ``None`` for any other text."""
    return int(text) if _NUMBER.fullmatch(text) and int(text) <= _LARGEST else None


class Snapshot(msgspec.Struct, frozen=True, rename="kebab", gc=False):
    """One snapshot; ``summary`` values are text, as stored."""

    snapshot_id: Long
    timestamp_ms: Long = 0
    parent_snapshot_id: Long | None = None
    sequence_number: Long = 0
    schema_id: int | None = None
    manifest_list: str | None = None
    summary: dict[str, str] = msgspec.field(default_factory=dict)

    @property
    def operation(self) -> str:
        """``append``, ``replace``, ``overwrite`` or ``delete``; v1 snapshots without one count as overwrite."""
        return self.summary.get("operation", "overwrite")

    def number(self, key: str) -> int | None:
        """Return a number of the summary; ``None`` if it is absent, negative or not a number.

        All numbers of a summary are optional: an absent one is unknown, not 0.
        """
        text = self.summary.get(key, "")
        return min(int(text), _LARGEST) if _NUMBER.fullmatch(text) else None

    def numbers(self, prefixes: tuple[str, ...]) -> dict[str, int | None]:
        """Return the numbers of the summary whose keys begin with one of the prefixes, as :meth:`number` reads them."""
        return {key: self.number(key) for key in self.summary if key.startswith(prefixes)}

    @property
    def is_compaction(self) -> bool:
        """Whether its operation is ``replace``, and no number shows more rows or deletes than were replaced."""
        pairs = ("added-records", "deleted-records"), ("added-position-deletes", "removed-position-deletes")
        return self.operation == "replace" and all(self.count(new) <= self.count(old) for new, old in pairs)

    def count(self, key: str) -> int:
        """Return a number of a summary that a refresh wrote; 0 if it is absent, because Spark omits zeros."""
        return self.number(key) or 0


class FileChange(msgspec.Struct, frozen=True):
    """The files by which a snapshot differs from an earlier one, as the manifests of both list them.

    ``added`` and ``removed`` are numbers by the keys of a summary without ``added-`` and ``removed-``; those that are 0
    are left out. ``had_deletes``: whether the earlier one has delete files.
    """

    added: Mapping[str, int]
    removed: Mapping[str, int]
    had_deletes: bool = False


class LogEntry(msgspec.Struct, frozen=True, rename="kebab", gc=False):
    """When a snapshot became current."""

    timestamp_ms: Long
    snapshot_id: Long


class MetadataLogEntry(msgspec.Struct, frozen=True, rename="kebab", gc=False):
    """A metadata file that was current before."""

    metadata_file: str
    timestamp_ms: Long


class Ref(msgspec.Struct, frozen=True, rename="kebab", gc=False):
    """A branch or a tag, with the ages after which an expiry removes it, and the snapshots before a branch's last."""

    snapshot_id: Long
    type: str
    max_ref_age_ms: Long | None = None
    max_snapshot_age_ms: Long | None = None
    min_snapshots_to_keep: int | None = None


class TableMetadata(msgspec.Struct, frozen=True, rename="kebab", dict=True):
    """Table metadata, versions 1 to 3, reduced to the used fields. Its lists must not be changed."""

    format_version: int
    location: str
    last_updated_ms: Long = 0
    table_uuid: str | None = None
    view_uuid: Any = None
    last_sequence_number: Long = 0
    current_schema_id: int | None = None
    current_snapshot_id: Long | None = None
    default_spec_id: int = 0
    schemas: list[dict[str, Any]] = msgspec.field(default_factory=list)
    schema: dict[str, Any] | None = None
    partition_specs: list[dict[str, Any]] = msgspec.field(default_factory=list)
    sort_orders: list[dict[str, Any]] = msgspec.field(default_factory=list)
    default_sort_order_id: int = 0
    properties: dict[str, str] = msgspec.field(default_factory=dict)
    #: In a large file each is decoded when it is used, and one with a fault raises :class:`InvalidMetadataError` then.
    snapshots: Sequence[Snapshot] = msgspec.field(default_factory=list)
    snapshot_log: list[LogEntry] = msgspec.field(default_factory=list)
    metadata_log: list[MetadataLogEntry] = msgspec.field(default_factory=list)
    refs: dict[str, Ref] = msgspec.field(default_factory=dict)

    @property
    def partition_fields(self) -> list[tuple[str, str | None]]:
        """The transforms of the current partitioning, each with its column; ``None`` for one that no longer exists."""
        names = {field["id"]: str(field["name"]) for field in self.current_schema.get("fields", []) if "id" in field}
        spec = next((item for item in self.partition_specs if item.get("spec-id") == self.default_spec_id), {})
        return [(str(field["transform"]), names.get(field.get("source-id"))) for field in spec.get("fields", [])]

    @cached_property
    def head(self) -> int | None:
        """The current snapshot's id, or ``None`` for a table that was never written."""
        return None if self.current_snapshot_id in (None, -1) else self.current_snapshot_id

    @cached_property
    def by_id(self) -> dict[int, int]:
        """The positions of the retained snapshots, by id."""
        if isinstance(self.snapshots, LazyItems):
            return self.snapshots.by_key
        return {item.snapshot_id: number for number, item in enumerate(self.snapshots)}

    def find(self, snapshot_id: int) -> Snapshot | None:
        """Return a retained snapshot, or ``None``."""
        number = self.by_id.get(snapshot_id)
        return None if number is None else self.snapshots[number]

    @property
    def has_row_ids(self) -> bool:
        """Whether its rows have ids, which copies keep (spec: Row Lineage)."""
        return self.format_version >= _WITH_ROW_IDS

    @property
    def column_names(self) -> tuple[str, ...]:
        """Names of the current schema's top-level columns, in order."""
        return tuple(str(field["name"]) for field in self.current_schema.get("fields", []))

    @property
    def current_schema(self) -> dict[str, Any]:
        """The current schema as stored."""
        return self._schema(self.current_schema_id) or self.schema or {"type": "struct", "fields": []}

    def schema_at(self, snapshot_id: int | None) -> dict[str, Any]:
        """Return the schema with which a snapshot is read: its own, or the current one for a table without rows."""
        snapshot = None if snapshot_id is None else self.find(snapshot_id)
        if snapshot is None or snapshot.schema_id is None:
            return self.current_schema
        return self._schema(snapshot.schema_id) or self.current_schema

    def schema_id_at(self, snapshot_id: int | None) -> int | None:
        """Return the id of a snapshot's schema; ``None`` if it has none, or has expired."""
        snapshot = None if snapshot_id is None else self.find(snapshot_id)
        return None if snapshot is None else snapshot.schema_id

    def _schema(self, schema_id: int | None) -> dict[str, Any] | None:
        return next((schema for schema in self.schemas if schema.get("schema-id") == schema_id), None)

    def rows_at(self, snapshot_id: int | None) -> int | None:
        """Return the number of rows in a snapshot's files, including deleted rows in them; ``None``: unknown."""
        return self._total("total-records", snapshot_id)

    def bytes_at(self, snapshot_id: int | None) -> int | None:
        """Return the total bytes of a snapshot's files; ``None``: unknown."""
        return self._total("total-files-size", snapshot_id)

    def files_at(self, snapshot_id: int | None) -> tuple[int | None, int | None]:
        """Return the numbers of a snapshot's data files and delete files; ``None``: unknown."""
        return self._total("total-data-files", snapshot_id), self._total("total-delete-files", snapshot_id)

    def _total(self, key: str, snapshot_id: int | None) -> int | None:
        if snapshot_id is None:
            return 0  # a table without snapshots has no files
        snapshot = self.find(snapshot_id)
        return None if snapshot is None else snapshot.number(key)


def same_columns(fields: Sequence[Mapping[str, Any]], table: TableMetadata) -> bool:
    """Whether a table has exactly these columns, by name and type."""
    wanted = [(field["name"], _shape(field["type"])) for field in fields]
    return wanted == [(field["name"], _shape(field["type"])) for field in table.current_schema.get("fields", [])]


def _shape(value: Any) -> Any:
    """A column type without field ids, nullability and comments."""
    dropped = ("id", "element-id", "key-id", "value-id", "doc", "required", "element-required", "value-required")
    if isinstance(value, dict):
        return {key: _shape(item) for key, item in value.items() if key not in dropped}
    return [_shape(item) for item in value] if isinstance(value, list) else value


class TableShape(NamedTuple):
    """The ids of a table's current schema, partition spec and sort order; ``None`` for one that is unknown or stays."""

    schema_id: int | None = None
    spec_id: int | None = None
    order_id: int | None = None


class Alterations(NamedTuple):
    """How a table differs from what it was when its rows were published.

    Args:
        columns: The differences of its columns, as phrases. Readers of the table get other rows.
        settings: Those of its partitioning and sort order, which readers do not notice.
        shape: What restores the table, by one commit to its metadata.
    """

    columns: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()
    shape: TableShape = TableShape()


def alterations(table: TableMetadata, snapshot_id: int, spec_id: int | None, order_id: int | None) -> Alterations:
    """Compare a table with what it was when its rows were published.

    A name proves nothing: a column that was dropped and added again has another id, and NULL in all rows.

    Args:
        snapshot_id: The snapshot with the rows. Its schema is the published one.
        spec_id: The published partition spec; ``None`` if unknown.
        order_id: The published sort order; ``None`` if unknown.
    """
    columns = tuple(_altered_columns(table.schema_at(snapshot_id), table.current_schema))
    settings: list[str] = []
    specs = {item.get("spec-id") for item in table.partition_specs}
    if spec_id == table.default_spec_id or spec_id not in specs:
        spec_id = None
    else:
        settings.append(f"the partitioning was changed (spec {spec_id} to {table.default_spec_id})")
    orders = {item.get("order-id") for item in table.sort_orders}
    if order_id == table.default_sort_order_id or order_id not in orders:
        order_id = None
    else:
        settings.append(f"the sort order was changed (order {order_id} to {table.default_sort_order_id})")
    schema_id = table.schema_id_at(snapshot_id) if columns else None
    return Alterations(columns, tuple(settings), TableShape(schema_id, spec_id, order_id))


def has_columns_of(table: TableMetadata, snapshot_id: int, other_id: int) -> bool:
    """Whether two snapshots of a table were written with the same columns, by id."""
    if table.schema_id_at(snapshot_id) == table.schema_id_at(other_id):
        return True
    return not any(_altered_columns(table.schema_at(snapshot_id), table.schema_at(other_id)))


def _altered_columns(then: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """Yield the differences of two schemas, comments aside."""
    if then == now:
        return
    before, after = ({field.get("id"): field for field in schema.get("fields", ())} for schema in (then, now))
    kept = [number for number in before if number in after]
    new = {field["name"] for number, field in after.items() if number not in before}
    for number, field in before.items():
        if number in after:
            yield from _altered_column(field, after[number])
        else:
            again = ", and another one of that name was added" if field["name"] in new else ""
            yield f"the column {field['name']} was dropped{again}"
    for name in sorted(new - {field["name"] for field in before.values()}):
        yield f"the column {name} was added"
    if kept != [number for number in after if number in before]:
        yield "the order of the columns was changed"


def _altered_column(then: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    name, required = then["name"], bool(now.get("required"))
    if now["name"] != name:
        yield f"the column {name} was renamed to {now['name']}"
    if _without_comments(now["type"]) != _without_comments(then["type"]):
        yield f"the type of the column {name} was changed"
    if required != bool(then.get("required")):
        yield f"the column {name} was made {'NOT NULL' if required else 'nullable'}"


def _without_comments(kind: Any) -> Any:
    """A column type without the comments of its fields."""
    if isinstance(kind, dict):
        return {key: _without_comments(item) for key, item in kind.items() if key != "doc"}
    return [_without_comments(item) for item in kind] if isinstance(kind, list) else kind


def same_partitioning(one: TableMetadata, other: TableMetadata) -> bool:
    """Whether two tables are partitioned alike, by transforms and names of columns."""
    return one.partition_fields == other.partition_fields


_ABSENT = msgspec.Raw(b"")


class _Parts(msgspec.Struct, frozen=True, rename="kebab"):
    """Table metadata whose large parts are not decoded yet."""

    format_version: int
    location: msgspec.Raw
    last_updated_ms: Long = 0
    table_uuid: msgspec.Raw = _ABSENT
    view_uuid: msgspec.Raw = _ABSENT
    last_sequence_number: Long = 0
    current_schema_id: int | None = None
    current_snapshot_id: Long | None = None
    default_spec_id: int = 0
    schemas: msgspec.Raw = _ABSENT
    schema: msgspec.Raw = _ABSENT
    partition_specs: msgspec.Raw = _ABSENT
    sort_orders: msgspec.Raw = _ABSENT
    default_sort_order_id: int = 0
    properties: msgspec.Raw = _ABSENT
    snapshots: msgspec.Raw = _ABSENT
    snapshot_log: msgspec.Raw = _ABSENT
    metadata_log: msgspec.Raw = _ABSENT
    refs: msgspec.Raw = _ABSENT


class _SnapshotKey(msgspec.Struct, gc=False):
    """A snapshot's id; everything else is skipped."""

    key: Long = msgspec.field(name="snapshot-id")


#: In files of more bytes snapshots are decoded when they are used.
_LARGE = 512 * 1024
_DECODER = msgspec.json.Decoder(_Parts)
_SNAPSHOT = msgspec.json.Decoder(Snapshot)
_SNAPSHOT_KEYS = msgspec.json.Decoder(list[_SnapshotKey])
#: The decoded parts: their types, and whether all of their content is kept.
_PARTS: dict[str, tuple[Any, bool]] = {
    "location": (msgspec.json.Decoder(str), False),
    "table_uuid": (msgspec.json.Decoder(str | None), False),
    "view_uuid": (msgspec.json.Decoder(Any), True),
    "schemas": (msgspec.json.Decoder(list[dict[str, Any]]), True),
    "schema": (msgspec.json.Decoder(dict[str, Any] | None), True),
    "partition_specs": (msgspec.json.Decoder(list[dict[str, Any]]), True),
    "sort_orders": (msgspec.json.Decoder(list[dict[str, Any]]), True),
    "properties": (msgspec.json.Decoder(dict[str, str]), False),
    "snapshots": (msgspec.json.Decoder(list[Snapshot]), False),
    "snapshot_log": (msgspec.json.Decoder(list[LogEntry]), False),
    "metadata_log": (msgspec.json.Decoder(list[MetadataLogEntry]), False),
    "refs": (msgspec.json.Decoder(dict[str, Ref]), False),
}


def _decoded(text: bytes | bytearray, budget: Budget, source: str) -> TableMetadata:
    """Decode table metadata within a budget of memory.

    Raises:
        ValueError, RecursionError: It is not valid, or would take too much memory.
    """
    parts, snapshots = _parts(text, budget, source)
    found: dict[str, Any] = {name: getattr(parts, name) for name in parts.__struct_fields__ if name not in _PARTS}
    for name, (decoder, generic) in _PARTS.items():
        raw = getattr(parts, name)
        if raw is not _ABSENT and not (name == "snapshots" and snapshots is not None):
            try:
                found[name] = budget.decode(raw, decoder, generic=generic)
            except ValueError as error:
                raise ValueError(f"field {name.replace('_', '-')!r}: {error}") from None
    if snapshots is not None:
        found["snapshots"] = snapshots
    return TableMetadata(**found)


def _parts(text: bytes | bytearray, budget: Budget, source: str) -> tuple[_Parts, Sequence[Snapshot] | None]:
    """Return the parts of a document, and the snapshots of a large one, which are not decoded."""
    what = f"{source}: field 'snapshots'"
    cut = None
    if len(text) > _LARGE:
        cut = cut_out(text, "snapshots", _SNAPSHOT_KEYS, _SNAPSHOT, budget=budget, source=what)
    if cut is not None:
        parts = _DECODER.decode(cut.rest)
        if bytes(parts.snapshots) == MARK:
            return parts, cut.items
    return _DECODER.decode(text), None


def parse_table(data: bytes, *, source: str, unique: bool = False) -> TableMetadata:
    """Read a table metadata file, gzip or plain.

    Args:
        unique: Refuse a key that occurs twice, as in a view's file. Used for storage tables, whose metadata is written
            again. In other tables the last one counts, as for every reader; the check would take four times as long.

    Raises:
        InvalidMetadataError: Names ``source`` and the field.
        NewerFormatError: The file is complete, and of a later version.
    """
    text, budget = unpacked(data, source), Budget()
    try:
        table = _decoded(text, budget, source)
    except (ValueError, RecursionError) as error:
        if (version := _format_version(text)) not in _FORMAT_VERSIONS:
            raise _unknown(version, source) from None
        raise InvalidMetadataError(f"{source}: not valid table metadata: {shown(str(error))}") from None
    if unique:
        decode_text(text, source=source, limit=MAX_DOCUMENT_BYTES, marks=MAX_DOCUMENT_MARKS)
    if table.view_uuid is not None:
        raise InvalidMetadataError(f"{source}: this is a view's metadata file, not a table's")
    if table.format_version not in _FORMAT_VERSIONS:
        raise _unknown(table.format_version, source)
    for name, stored, wanted in (
        ("schemas", [*table.schemas, table.schema or {}], {"name": str, "type": object}),
        ("partition-specs", table.partition_specs, {"transform": str}),
        ("sort-orders", table.sort_orders, {"transform": str}),
    ):
        if not all(_has_fields(item, wanted) for item in stored):
            raise InvalidMetadataError(f"{source}: field {name!r}: each of the 'fields' needs {' and '.join(wanted)}")
    return table


class _Version(msgspec.Struct, rename="kebab"):
    format_version: int


def _format_version(text: bytes | bytearray) -> int:
    """Return the version of a document whose other fields may be of any form; 1 for one that is not complete."""
    try:
        return msgspec.json.decode(text, type=_Version).format_version
    except (ValueError, RecursionError):
        return 1


def _unknown(version: int, source: str) -> MaterializedViewError:
    found = f"{source}: field 'format-version': {version} is not supported (1 to {MAX_FORMAT_VERSION})"
    return newer(found) if version > MAX_FORMAT_VERSION else InvalidMetadataError(found)


def _has_fields(stored: dict[str, Any], wanted: Mapping[str, type]) -> bool:
    """Whether the fields of a schema or partition spec have the keys that are read."""
    fields = stored.get("fields", [])
    return isinstance(fields, list) and all(
        isinstance(field, dict)
        and all(isinstance(field.get(key, 0), int) for key in ("id", "source-id"))
        and all(key in field and isinstance(field[key], kind) for key, kind in wanted.items())
        for field in fields
    )


def snapshot_as_of(table: TableMetadata, timestamp_ms: int, *, name: str) -> Snapshot:
    """Return the snapshot that was current at a time, by the table's own log.

    Args:
        timestamp_ms: Milliseconds since the epoch.

    Raises:
        SnapshotNotFoundError: The time is before the first log entry (the message names the oldest possible time), or
            the snapshot has expired since.
    """
    entries = [entry for entry in table.snapshot_log if entry.timestamp_ms <= timestamp_ms]
    when = from_ms(timestamp_ms).isoformat()
    if not entries:
        raise SnapshotNotFoundError(f"table {name} has no snapshot as of {when}: {_oldest(table)}")
    # The last entry counts, not the latest time: a rollback adds an entry, and clocks may step back.
    found = table.find(entries[-1].snapshot_id)
    if found is None:
        gone = f"it was at {entries[-1].snapshot_id}, which has expired"
        raise SnapshotNotFoundError(f"table {name} as of {when}: {gone}; {_oldest(table)}")
    return found


def _oldest(table: TableMetadata) -> str:
    times = [entry.timestamp_ms for entry in table.snapshot_log if entry.snapshot_id in table.by_id]
    return (
        f"the oldest possible time is {from_ms(times[0]).isoformat()}"
        if times
        else "no earlier state is retained, or none was written"
    )


def selected(table: TableMetadata, selector: Selector, *, name: str, now_ms: int) -> TableMetadata:
    """Return a table as a selector shows it: with the selected snapshot as the current one, and with its history.

    Args:
        selector: The branch, tag, snapshot or time.
        now_ms: The present time, milliseconds since the epoch.

    Raises:
        SnapshotNotFoundError: There is no such branch or tag, the snapshot has expired, or the time is in the future.
    """
    snapshot = _selected(table, selector, name, now_ms)
    if is_branch(table, selector):
        line = [LogEntry(item.timestamp_ms, item.snapshot_id) for item in ancestors(table, snapshot)]
        log = line[::-1]
    else:
        log = [LogEntry(-(2**63), snapshot)]  # it has no other state at any time
    return msgspec.structs.replace(table, current_snapshot_id=snapshot, snapshot_log=log)


def is_branch(table: TableMetadata, selector: Selector) -> bool:
    """Whether a selector follows a branch. Otherwise the selected rows have their snapshot's columns, for good."""
    ref = None if selector.pins else table.refs.get(selector.value)
    return ref.type == "branch" if ref is not None else selector.value == _MAIN


def _selected(table: TableMetadata, selector: Selector, name: str, now_ms: int) -> int:
    if selector.kind == "at_timestamp":
        moment_ms = int(selector.value)
        if moment_ms > now_ms:
            raise SnapshotNotFoundError(f"table {name} at {from_ms(moment_ms).isoformat()}: the time is in the future")
        return snapshot_as_of(table, moment_ms, name=name).snapshot_id
    if selector.kind == "snapshot_id":
        found = table.find(int(selector.value))
        if found is None:
            raise SnapshotNotFoundError(
                f"table {name} has no snapshot {selector.value}: it has expired, or the id is wrong. The query names "
                f"it; {_oldest(table)}"
            )
        return found.snapshot_id
    ref = table.refs.get(selector.value)
    if ref is None and selector.value == _MAIN and table.head is not None:
        return table.head  # earlier versions of the format do not list it
    if ref is None or table.find(ref.snapshot_id) is None:
        known = ", ".join(sorted(table.refs)[:_MAX_REFS]) or "none"
        raise SnapshotNotFoundError(f"table {name} has no branch or tag {selector.value!r}; it has: {known}")
    return ref.snapshot_id


def ancestors(table: TableMetadata, snapshot_id: int | None) -> Iterator[Snapshot]:
    """Yield a snapshot and its retained ancestors, newest first."""
    seen: set[int] = set()
    while snapshot_id is not None and snapshot_id not in seen and (snapshot := table.find(snapshot_id)) is not None:
        seen.add(snapshot_id)
        yield snapshot
        snapshot_id = snapshot.parent_snapshot_id


def is_ancestor(table: TableMetadata, older: int, newer: int | None) -> bool:
    """Whether a snapshot is the same as another one, or a retained ancestor of it."""
    return any(item.snapshot_id == older for item in ancestors(table, newer))


def snapshots_between(table: TableMetadata, old: int | None, new: int | None) -> tuple[Snapshot, ...] | None:
    """Return the snapshots after ``old`` up to ``new``, oldest first.

    Args:
        old: Exclusive start, or ``None`` for the beginning.
        new: Inclusive end.

    Returns:
        ``None`` if ``old`` is not an ancestor of ``new``: rolled back, replaced, or expired in between.
    """
    chain: list[Snapshot] = []
    for snapshot in ancestors(table, new):
        if snapshot.snapshot_id == old:
            return tuple(reversed(chain))
        chain.append(snapshot)
    reached = chain[-1].parent_snapshot_id if chain else new
    return tuple(reversed(chain)) if reached == old else None


def with_properties(
    document: dict[str, Any],
    *,
    previous_location: str,
    updates: dict[str, str],
    tags: dict[str, int],
    now_ms: int,
    dropped_tags: Collection[str] = (),
) -> dict[str, Any]:
    """Return table metadata with properties and tags set, as its next metadata file.

    Args:
        document: The decoded metadata file at ``previous_location``; not changed.
        previous_location: Is added to the metadata log.
        updates: Properties to set.
        tags: Snapshot id by tag name to add.
        now_ms: The current time. Times never go back: if the file's last update is later, that time is used.
        dropped_tags: Tags to remove. Branches of these names are kept.
    """
    last = int(document.get("last-updated-ms", 0))
    properties = {**document.get("properties", {}), **updates}
    log = [*document.get("metadata-log", []), {"metadata-file": previous_location, "timestamp-ms": last}]
    limit = max(whole_number(properties.get(_PREVIOUS_VERSIONS_MAX, ""), 100), 1)
    old = document.get("refs", {})
    kept = {name: ref for name, ref in old.items() if name not in dropped_tags or ref.get("type") != "tag"}
    refs = {name: {"snapshot-id": snapshot_id, "type": "tag"} for name, snapshot_id in tags.items()}
    return {
        **document,
        "last-updated-ms": max(now_ms, last),
        "properties": properties,
        "metadata-log": log[-limit:],
        **({"refs": {**kept, **refs}} if refs or len(kept) < len(old) else {}),
    }


def known_sums(pairs: Sequence[tuple[int | None, int | None]]) -> tuple[int | None, int | None]:
    """Return the sums of the first and of the second numbers, as :func:`known_sum`."""
    return known_sum([first for first, _ in pairs]), known_sum([second for _, second in pairs])


def known_sum(numbers: Iterable[int | None]) -> int | None:
    """Return the sum of some numbers, or ``None`` if one of them is unknown."""
    total = 0
    for number in numbers:
        if number is None:
            return None
        total += number
    return total
