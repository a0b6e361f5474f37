# SPDX-License-Identifier: Apache-2.0
"""What a view's owner chooses for its storage table: table properties, and the sort order.

Both are properties of the view. A refresh writes what differs into the storage table, so it also holds for
storage tables that are made later. Source of the sort order: Iceberg ``format/spec.md``, "Sort Orders". The order of
nulls is by default what Spark's ``ORDER BY`` does.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import NamedTuple

from airflow_mv.core.spec.identifiers import quote
from airflow_mv.core.spec.stored import whole_number
from airflow_mv.core.spec.table import TableMetadata
from airflow_mv.core.spec.times import duration
from airflow_mv.errors import ConfigurationError, InvalidQueryError

#: View properties ``airflow-mv.storage.<table property>``.
STORAGE_PREFIX = "airflow-mv.storage."
#: Table property: the version of Iceberg's format.
FORMAT_VERSION = "format-version"
#: What concerns how rows are written and read. Paths, classes and the retention of metadata files are not the owner's.
_ALLOWED = re.compile(
    r"format-version"
    r"|write\.format\.default|write\.delete\.format\.default"
    r"|write\.(delete\.)?target-file-size-bytes"
    r"|write\.(parquet|avro|orc)\.[a-z0-9._-]{1,200}"
    r"|write\.delete\.(parquet|avro|orc)\.[a-z0-9._-]{1,200}"
    r"|write\.(delete\.|update\.|merge\.)?distribution-mode"
    r"|write\.(delete|update|merge)\.(mode|isolation-level)"
    r"|write\.metadata\.(compression-codec|metrics\.[^\x00-\x1f]{1,200})"
    r"|write\.spark\.[a-z0-9._-]{1,200}"
    r"|read\.[a-z0-9._-]{1,200}"
    r"|commit\.(retry|manifest|manifest-merge)[a-z0-9._-]{0,200}",
    re.ASCII,
)
#: View property: the columns by which the rows in the storage table's files are sorted, such as ``day, region DESC``.
SORT_PROPERTY = "airflow-mv.sort-by"
_COLUMN = re.compile(
    r"\s*(?:`(?P<quoted>(?:[^`]|``)+)`|(?P<name>[^\s`,]+))"
    r"(?:\s+(?P<direction>ASC|DESC))?(?:\s+NULLS\s+(?P<nulls>FIRST|LAST))?\s*(?P<end>,|\Z)",
    re.ASCII | re.IGNORECASE,
)


def storage_properties(properties: Mapping[str, str], *, view: str) -> dict[str, str]:
    """Return the table properties that a view's properties choose for its storage table.

    Raises:
        ConfigurationError: A property is not one that an owner may choose, or its value is not possible.
    """
    chosen = {
        key.removeprefix(STORAGE_PREFIX): value for key, value in properties.items() if key.startswith(STORAGE_PREFIX)
    }
    for key, value in chosen.items():
        if _ALLOWED.fullmatch(key) is None:
            raise ConfigurationError(
                f"view {view}, property {STORAGE_PREFIX}{key}: a storage table does not take {key!r}. Possible are "
                "format-version and what begins with write.parquet, write.avro, write.orc, write.format, "
                "write.distribution-mode, write.target-file-size-bytes, write.metadata.metrics, read. and commit."
            )
        if key == FORMAT_VERSION and value not in ("2", "3"):
            raise ConfigurationError(f"view {view}, property {STORAGE_PREFIX}{key} is {value!r}; possible are 2 and 3")
    return chosen


def possible_properties(chosen: Mapping[str, str], table: TableMetadata) -> dict[str, str]:
    """Return the chosen properties without a format version below the table's: it never goes back.

    Args:
        chosen: From :func:`storage_properties`.
    """
    return {key: value for key, value in chosen.items() if key != FORMAT_VERSION or int(value) >= table.format_version}


def missing_properties(chosen: Mapping[str, str], table: TableMetadata) -> dict[str, str]:
    """Return the chosen properties that a storage table does not have yet.

    Args:
        chosen: From :func:`storage_properties`.
    """
    has = {**table.properties, FORMAT_VERSION: str(table.format_version)}
    return {key: value for key, value in possible_properties(chosen, table).items() if has.get(key) != value}


@dataclass(frozen=True, slots=True)
class SortColumn:
    """A column by which rows are sorted.

    Args:
        descending: Whether the largest value is first.
        nulls_first: Whether nulls are before all values.
    """

    name: str
    descending: bool = False
    nulls_first: bool = True

    def sql(self) -> str:
        """Return it as Spark writes it."""
        nulls = "FIRST" if self.nulls_first else "LAST"
        return f"{quote(self.name)} {'DESC' if self.descending else 'ASC'} NULLS {nulls}"


def sort_order(properties: Mapping[str, str], columns: Sequence[str], *, view: str) -> tuple[SortColumn, ...] | None:
    """Return the sort order that a view's properties choose; ``None`` if they choose none.

    Raises:
        ConfigurationError: It is not a list of columns of the view.
    """
    text = properties.get(SORT_PROPERTY)
    if text is None:
        return None
    by_name = {name.lower(): name for name in columns}
    found: list[SortColumn] = []
    place = 0
    while place < len(text.rstrip()):
        match = _COLUMN.match(text, place)
        if match is None or (match["end"] and not text[match.end() :].strip()):
            raise ConfigurationError(
                f"view {view}, property {SORT_PROPERTY}: {text!r} is not a list of columns; write it like "
                "'day, region DESC NULLS LAST'"
            )
        written = match["name"] or match["quoted"].replace("``", "`")
        name = by_name.get(written.lower())
        if name is None or name in [item.name for item in found]:
            problem = f"there is no column {written!r}" if name is None else f"{written!r} occurs twice"
            raise ConfigurationError(
                f"view {view}, property {SORT_PROPERTY}: {problem}; there are: {', '.join(columns)}"
            )
        descending = (match["direction"] or "").upper() == "DESC"
        nulls_first = match["nulls"].upper() == "FIRST" if match["nulls"] else not descending
        found.append(SortColumn(name, descending, nulls_first))
        place = match.end()
    return tuple(found)


def sort_order_of(table: TableMetadata) -> tuple[SortColumn | None, ...]:
    """Return a table's sort order; ``None`` stands for a field that is no top-level column as it is."""
    names = {str(field["id"]): str(field["name"]) for field in table.current_schema.get("fields", []) if "id" in field}
    order = next((item for item in table.sort_orders if item.get("order-id") == table.default_sort_order_id), {})
    return tuple(
        SortColumn(
            names[str(field["source-id"])], field.get("direction") == "desc", field.get("null-order") == "nulls-first"
        )
        if field.get("transform") == "identity" and str(field.get("source-id")) in names
        else None
        for field in order.get("fields", ())
    )


def write_order(order: Sequence[SortColumn], *, partitioned: bool, distributed: bool) -> str:
    """Return the clause of ``ALTER TABLE`` that makes Spark write sorted rows.

    Args:
        order: The sort order; empty for none.
        partitioned: Whether the table is partitioned. Then all rows of a partition are written together; otherwise
            each file gets its own range of values, for which Spark may compute the rows twice.
        distributed: Whether the owner has chosen how rows are distributed: that stays.
    """
    columns = ", ".join(item.sql() for item in order)
    if not columns:
        return "WRITE UNORDERED"
    if distributed:
        return f"WRITE LOCALLY ORDERED BY {columns}"
    return f"WRITE {'DISTRIBUTED BY PARTITION LOCALLY ' if partitioned else ''}ORDERED BY {columns}"


# ---------------------------------------------------------- Partition fields as users write them, such as ``days(ts)``


_TRANSFORM = re.compile(
    r"\s*(?:(?P<name>\w+)\s*\(\s*(?:(?P<width>[0-9]{1,10})\s*,\s*)?(?P<argument>\w+|`(?:[^`]|``)+`)\s*\)"
    r"|(?P<column>\w+|`(?:[^`]|``)+`))\s*"
)
_TIME_TRANSFORMS = {word: f"{unit}s" for unit in ("year", "month", "day", "hour") for word in (unit, f"{unit}s")}
_WIDTH_TRANSFORMS = ("bucket", "truncate")
_MAX_WIDTH = 2**31 - 1


class PartitionField(NamedTuple):
    """One partition field.

    Args:
        transform: ``years``, ``months``, ``days``, ``hours``, ``bucket`` or ``truncate``; empty for the value itself.
        width: The number of buckets, or the width that values are cut to; else 0.
    """

    column: str
    transform: str = ""
    width: int = 0


def partition_field(text: str) -> PartitionField:
    """Read one partition field, such as ``days(ts)``.

    Args:
        text: A column, or ``years``, ``months``, ``days``, ``hours`` of a column, or ``bucket`` or
            ``truncate`` of a width and a column. Spark finds the column when the table is created.

    Raises:
        InvalidQueryError: It is not one of these.
    """
    match = _TRANSFORM.fullmatch(text)
    if match is None:
        raise _no_transform(text)
    column = _column(match["argument"] or match["column"])
    if match["name"] is None:
        return PartitionField(column)
    name, width = match["name"].lower(), match["width"]
    if name in _TIME_TRANSFORMS and width is None:
        return PartitionField(column, _TIME_TRANSFORMS[name])
    if name in _WIDTH_TRANSFORMS and width is not None and 0 < int(width) <= _MAX_WIDTH:
        return PartitionField(column, name, int(width))
    raise _no_transform(text)


def partition_transform(text: str) -> str:
    """Check one partition field, such as ``days(ts)``, and return it with its column quoted.

    Args:
        text: As for :func:`partition_field`.

    Raises:
        InvalidQueryError: It is not one of these.
    """
    column, transform, width = partition_field(text)
    argument = f"{width}, {quote(column)}" if width else quote(column)
    return f"{transform}({argument})" if transform else argument


def _column(written: str) -> str:
    return written[1:-1].replace("``", "`") if written.startswith("`") else written


def _no_transform(text: str) -> InvalidQueryError:
    return InvalidQueryError(
        f"partition field {text!r}: write a column, years(c), months(c), days(c), hours(c), "
        f"bucket(number, c) or truncate(number, c)"
    )


# ----------------- The view properties that say what follows a refresh: maintenance, and tags that keep base snapshots


#: With how many files, or old snapshots, of its storage table a refresh is followed by maintenance.
COMPACT_PROPERTY = "airflow-mv.maintenance.compact-files"
EXPIRE_PROPERTY = "airflow-mv.maintenance.expire-snapshots"
#: The value of :data:`EXPIRE_PROPERTY` of a view that only commands and tasks maintain.
NEVER = "never"
#: For how long after a refresh the base tables keep the snapshots that the rows were computed from.
KEEP_PROPERTY = "airflow-mv.keep-base-snapshots"


def most_files(properties: Mapping[str, str], *, view: str) -> int | None:
    """Return how many files may stay without a compaction; ``None``: any number.

    Raises:
        ConfigurationError: It is not a whole number of at least 1.
    """
    return _bound(properties, COMPACT_PROPERTY, view)


def most_old_snapshots(properties: Mapping[str, str], *, view: str, default: int | None) -> int | None:
    """Return how many old snapshots may stay; ``None``: any number.

    Raises:
        ConfigurationError: It is neither ``never`` nor a whole number of at least 1.
    """
    if properties.get(EXPIRE_PROPERTY, "").strip() == NEVER:
        return None
    return _bound(properties, EXPIRE_PROPERTY, view) or default


def kept_for(properties: Mapping[str, str], *, view: str) -> timedelta | None:
    """Return for how long base snapshots are kept; ``None``: they are not.

    Raises:
        ConfigurationError: It is not a length of time.
    """
    return duration(properties.get(KEEP_PROPERTY), what=f"view {view}, property {KEEP_PROPERTY}")


def _bound(properties: Mapping[str, str], key: str, view: str) -> int | None:
    text = properties.get(key)
    if text is None:
        return None
    if (number := whole_number(text.strip(), 0)) < 1:
        raise ConfigurationError(f"view {view}, property {key}: {text!r} is not a whole number of at least 1")
    return number
