# SPDX-License-Identifier: Apache-2.0
"""Read the commits of a Delta table's log, and express its history as the snapshots of a table.

Source: Delta ``PROTOCOL.md``, "Delta Log Entries", "Actions", "Schema Serialization Format". A version of a Delta table
becomes a snapshot with the version as its id. What a commit did to rows becomes the snapshot's operation and summary,
by the files that it added and removed:

- ``append``: it added files and removed none,
- ``delete``: it removed files and added none,
- ``overwrite``: it did both, or changed the deletion vector of a file,
- ``replace``: it changed no row. ``OPTIMIZE`` marks its files with ``dataChange = false``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from io import BytesIO
from typing import Any, NamedTuple

import msgspec

from airflow_mv.core.spec.stored import MAX_BYTES, check_size, shown
from airflow_mv.core.spec.table_metadata import LogEntry, Long, Snapshot, TableMetadata
from airflow_mv.errors import InvalidMetadataError
from airflow_mv.foundation.documents import MAX_TEXT_BYTES, check_marks

#: The most actions of one commit, one for each added or removed file.
MAX_ACTIONS = 250_000
#: The most marks in one action and in a schema, see :data:`airflow_mv.foundation.documents.MAX_MARKS`.
_MAX_MARKS = 250_000
_MAX_DEPTH = 64
_MILLISECONDS = re.compile(rb"[0-9]{1,15}")
_PHYSICAL_NAME = "delta.columnMapping.physicalName"
_COLLATIONS = "__COLLATIONS"
_COLLATED = "string with a collation"
_FORMAT_VERSION = 3  # the newest one of Iceberg: it has all types
#: Delta's names of types that Iceberg's schemas name differently. Iceberg has no types for the two shortest integers.
_TYPES = {
    "integer": "int",
    "short": "smallint",
    "byte": "tinyint",
    "timestamp": "timestamptz",
    "timestamp_ntz": "timestamp",
}


class _Vector(msgspec.Struct, rename="camel"):
    storage_type: str = ""
    path_or_inline_dv: str = ""
    offset: int | None = None
    cardinality: Long = 0


class _File(msgspec.Struct, rename="camel"):
    """An ``add`` or ``remove``."""

    path: str
    data_change: bool = True
    size: Long | None = None
    partition_values: dict[str, str | None] | None = None
    stats: str | None = None
    deletion_vector: _Vector | None = None


class _Table(msgspec.Struct, rename="camel"):
    """A ``metaData``."""

    schema_string: str


class _Info(msgspec.Struct, rename="camel"):
    """A ``commitInfo``, whose fields are not required."""

    timestamp: msgspec.Raw = msgspec.Raw(b"")
    in_commit_timestamp: msgspec.Raw = msgspec.Raw(b"")


class _Line(msgspec.Struct, rename="camel"):
    add: _File | None = None
    remove: _File | None = None
    meta_data: _Table | None = None
    commit_info: _Info | None = None


class _Changed(NamedTuple):
    """The kept fields of an ``add`` or ``remove``: most of a commit's text is paths and statistics.

    Args:
        path: A digest of the file's path.
        partition: A digest of its partition's values.
        size: Its bytes; ``None`` if not recorded.
        rows: Its rows without the deleted ones; ``None`` if unknown.
        deleted: The rows that its deletion vector marks.
    """

    path: bytes
    partition: bytes
    size: int | None
    rows: int | None
    deleted: int


class _Stats(msgspec.Struct, rename="camel"):
    num_records: Long | None = None


_LINE = msgspec.json.Decoder(_Line)
_STATS = msgspec.json.Decoder(_Stats)


@dataclass(frozen=True, slots=True)
class Commit:
    """One version of a Delta table.

    Args:
        version: Its number.
        timestamp_ms: When it was committed, by its writer, milliseconds since the epoch; ``None`` if not recorded.
        summary: What it changed, with the keys of an Iceberg snapshot's summary.
        schema: The schema that it set, if it set one, see :func:`read_schema`.
    """

    version: int
    timestamp_ms: int | None
    summary: Mapping[str, str]
    schema: Mapping[str, Any] | None = None


def parse_commit(data: bytes, version: int, *, source: str) -> Commit:
    """Read a commit file.

    Args:
        data: The file: one JSON object in each line.
        version: The version of the table that it makes.

    Raises:
        InvalidMetadataError: Names ``source``.
    """
    info: _Info | None = None
    table: _Table | None = None
    added: list[_Changed] = []
    removed: list[_Changed] = []
    for line in _lines(data, source):
        for file, known in ((line.add, added), (line.remove, removed)):
            if file is not None and file.data_change:
                known.append(_changed(file))
        info, table = info or line.commit_info, table or line.meta_data
    info = info or _Info()
    times = (int(bytes(raw)) for raw in (info.in_commit_timestamp, info.timestamp) if _MILLISECONDS.fullmatch(raw))
    schema = None if table is None else read_schema(table.schema_string, source=source)
    return Commit(version, next(times, None), _summary(added, removed), schema)


def _lines(data: bytes, source: str) -> Iterator[_Line]:
    """Decode the actions one at a time: little is kept of each.

    Raises:
        InvalidMetadataError: One is broken, or there are too many, or too large ones.
    """
    if len(data) > MAX_BYTES:
        raise InvalidMetadataError(f"{source}: larger than {MAX_BYTES} bytes")
    texts = (text for text in BytesIO(data) if text.strip())
    for number, text in enumerate(texts, start=1):
        if number > MAX_ACTIONS:
            raise InvalidMetadataError(f"{source}: more than {MAX_ACTIONS} actions in one commit of a Delta table")
        check_size(text, source, MAX_TEXT_BYTES)
        try:
            check_marks(text, _MAX_MARKS)
            yield _LINE.decode(text)
        except (ValueError, RecursionError) as error:
            raise InvalidMetadataError(f"{source}: not a commit of a Delta table: {shown(str(error))}") from None


def history(
    commits: Sequence[Commit],
    *,
    location: str,
    table_id: str,
    schema: Mapping[str, Any],
    totals: Mapping[str, int | None],
    first_schema: Mapping[str, Any] | None = None,
) -> TableMetadata:
    """Return a Delta table as table metadata: its versions are snapshots, and the last one is the current one.

    Args:
        commits: The known commits, oldest first and without a gap; the last one is the table's version.
        location: The table's folder.
        schema: The schema of the last version.
        totals: Rows, bytes and files of the last version, by the summary key without ``total-``.
        first_schema: The schema before the first commit that sets one; ``None`` if unknown: the versions with
            it are left out.
    """
    setting = [at for at, commit in enumerate(commits) if commit.schema is not None]
    if setting and first_schema is None:
        commits = commits[setting[0] :]
    schemas = [dict(first_schema if setting and first_schema is not None else schema)]
    snapshots: list[Snapshot] = []
    for commit in commits:
        if commit.schema is not None and commit.schema != schemas[-1]:
            schemas.append(dict(commit.schema))
        before = snapshots[-1].timestamp_ms if snapshots else 0
        snapshots.append(_snapshot(commit, before, len(schemas) - 1))
    known = {f"total-{key}": str(value) for key, value in totals.items() if value is not None}
    last = snapshots[-1]
    snapshots[-1] = msgspec.structs.replace(last, summary={**last.summary, **known})
    return TableMetadata(
        format_version=_FORMAT_VERSION,
        location=location,
        last_updated_ms=last.timestamp_ms,
        table_uuid=table_id,
        last_sequence_number=last.sequence_number,
        current_schema_id=len(schemas) - 1,
        current_snapshot_id=last.snapshot_id,
        schemas=[{**item, "schema-id": number} for number, item in enumerate(schemas)],
        snapshots=snapshots,
        snapshot_log=[LogEntry(item.timestamp_ms, item.snapshot_id) for item in snapshots],
    )


def _snapshot(commit: Commit, before_ms: int, schema_id: int) -> Snapshot:
    """Return a version as a snapshot. Times never go back, as in the time travel of Delta."""
    return Snapshot(
        snapshot_id=commit.version,
        timestamp_ms=max(commit.timestamp_ms or 0, before_ms),
        parent_snapshot_id=commit.version - 1 if commit.version else None,
        sequence_number=commit.version + 1,
        schema_id=schema_id,
        summary=dict(commit.summary),
    )


# ------------------------------------------------------------------------------------------ summary
def _changed(file: _File) -> _Changed:
    partition = repr(sorted((file.partition_values or {}).items()))
    deleted = file.deletion_vector.cardinality if file.deletion_vector else 0
    return _Changed(_digest(file.path), _digest(partition), file.size, _rows(file, deleted), deleted)


def _digest(text: str) -> bytes:
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _summary(added: Sequence[_Changed], removed: Sequence[_Changed]) -> dict[str, str]:
    """Return the operation and the sizes of a commit that changes rows by these files."""
    before = {file.path: file for file in removed}
    # A commit that only marks more rows of a file as deleted. ``RESTORE`` may mark fewer.
    vectors = [(old, new) for new in added if (old := before.get(new.path)) is not None and new.deleted > old.deleted]
    deleting = {new.path for _, new in vectors}
    come = [file for file in added if file.path not in deleting]
    gone = [file for file in removed if file.path not in deleting]
    found: dict[str, int | None] = {
        "added-data-files": len(come),
        "deleted-data-files": len(gone),
        "added-files-size": _total(file.size for file in come),
        "removed-files-size": _total(file.size for file in gone),
        "added-records": _total(file.rows for file in come),
        "deleted-records": _total(file.rows for file in gone),
        "changed-partition-count": len({file.partition for file in (*added, *removed)}),
    }
    if vectors:
        found["added-dvs"] = found["added-delete-files"] = len(vectors)
        found["added-position-deletes"] = sum(new.deleted - old.deleted for old, new in vectors)
    operation = _operation(bool(come), bool(gone), bool(vectors))
    return {"operation": operation, **{key: str(value) for key, value in found.items() if value is not None}}


def _operation(adds: bool, removes: bool, marks: bool) -> str:  # noqa: FBT001 - what a commit has
    if not (adds or removes or marks):
        return "replace"
    if adds and not removes and not marks:
        return "append"
    return "delete" if not adds else "overwrite"


def _rows(file: _File, deleted: int) -> int | None:
    """Return the rows of a file without the deleted ones; ``None`` if its statistics do not have it."""
    try:
        stored = _STATS.decode(file.stats).num_records if file.stats else None
    except (ValueError, RecursionError):
        return None
    return None if stored is None or stored < deleted else stored - deleted


def _total(numbers: Iterable[int | None]) -> int | None:
    found = list(numbers)
    return None if any(number is None for number in found) else sum(number or 0 for number in found)


# ------------------------------------------------------------------------------------------- schema
def read_schema(text: str, *, source: str) -> dict[str, Any]:
    """Read a Delta schema, as a schema of Iceberg.

    A field's id is its name in the files. With column mapping that stays when the column is renamed, and when the
    mapping is switched on it is the name that the column had. Without the mapping it is the column's name.

    Args:
        text: The JSON text.

    Raises:
        InvalidMetadataError: Names ``source``.
    """
    try:
        check_marks(text, _MAX_MARKS)
        return {"type": "struct", "fields": _fields(msgspec.json.decode(text), 0)}
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        reason = f"{type(error).__name__}: {shown(str(error))}"
        raise InvalidMetadataError(f"{source}: field 'schemaString': not a schema: {reason}") from None


def _fields(struct: Any, depth: int) -> list[dict[str, Any]]:
    return [_field(field, depth) for field in struct["fields"]]


def _field(field: Any, depth: int) -> dict[str, Any]:
    metadata = field.get("metadata") or {}
    identity = metadata.get(_PHYSICAL_NAME, field["name"])
    if not (isinstance(field["name"], str) and isinstance(identity, str)):
        raise TypeError("a field's name is not a text")
    collated = _COLLATIONS in metadata
    return {
        "id": identity,
        "name": field["name"],
        "required": field.get("nullable") is False,
        "type": _COLLATED if collated else _type(field["type"], depth + 1),
    }


def _type(stored: Any, depth: int) -> str | dict[str, Any]:
    if depth > _MAX_DEPTH:
        raise ValueError(f"types are nested more than {_MAX_DEPTH} deep")
    if isinstance(stored, str):
        return _TYPES.get(stored, stored)
    kind = stored["type"]
    if kind == "struct":
        return {"type": "struct", "fields": _fields(stored, depth)}
    if kind == "array":
        return {"type": "list", "element": _type(stored["elementType"], depth + 1)}
    if kind == "map":
        key, value = (_type(stored[part], depth + 1) for part in ("keyType", "valueType"))
        return {"type": "map", "key": key, "value": value}
    raise ValueError(f"unknown type {str(kind)[:40]!r}")
