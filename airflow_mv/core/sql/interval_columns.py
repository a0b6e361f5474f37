# SPDX-License-Identifier: Apache-2.0
"""An interval of a view: its column, and the SQL condition for its rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from airflow_mv.core.spec.choices import COLUMN_PROPERTY
from airflow_mv.core.spec.identifiers import quote
from airflow_mv.core.spec.interval import Interval, Span
from airflow_mv.core.spec.table_metadata import TableMetadata
from airflow_mv.core.spec.times import is_start_of_day, next_unit
from airflow_mv.errors import ConfigurationError, InvalidMetadataError

#: The most intervals in a record; more would make each of the view's metadata files large.
MAX_INTERVALS = 1000

#: Partition transforms, the finest first.
_UNITS = ("hour", "day", "month", "year")
#: The keyword of a Spark literal, by Iceberg type.
_LITERALS = {"date": "DATE", "timestamp": "TIMESTAMP_NTZ", "timestamptz": "TIMESTAMP_LTZ"}


def resolve(
    span: Span,
    fields: Sequence[Mapping[str, Any]],
    properties: Mapping[str, str],
    storage: TableMetadata,
    *,
    view: str,
) -> Interval:
    """Return the interval of a view for a requested interval of time.

    A date column needs whole days, in the zone of the given times: ``2024-06-01T00:00+02:00`` is the first of June.
    A day begins at midnight, or later where the clocks are put forward at midnight.
    A part of a day is refused, not widened to the day: each of the 24 runs of an hourly DAG would recompute that day.

    Args:
        span: The requested interval of time.
        fields: The view's columns, as its schema holds them.
        properties: The view's properties, which may name the column.
        storage: Its storage table. If only the start is given, its partitioning determines the end.

    Raises:
        ConfigurationError: There is no suitable column, or the interval is empty or contains a part of a day.
    """
    kind, column = interval_column(fields, properties, column=span.column, view=view)
    last = span.end or _partition_end(span, column, storage, view=view)
    if span.start.tzinfo is None or last.tzinfo is None:
        raise ConfigurationError(f"view {view}, interval {span}: its times need a zone")
    if span.start >= last:
        raise ConfigurationError(f"view {view}, interval {span}: it is empty; the end must come after the start")
    start, end = (_day(item, span, view) if kind == "date" else item.astimezone(UTC) for item in (span.start, last))
    return Interval(column, start, end)


def condition(interval: Interval, fields: Sequence[Mapping[str, Any]]) -> str:
    """Return the SQL condition that exactly the rows of an interval pass, with literals of the column's type.

    Args:
        fields: The view's columns, as its schema holds them.

    Raises:
        InvalidMetadataError: The view has no such date or time column: another program wrote the record.
    """
    kind, name = kind_of(interval.column, fields), quote(interval.column)
    if kind not in _LITERALS:
        raise InvalidMetadataError(f"a recorded interval is of {interval.column!r}, not a date or time of the view")
    return f"{name} >= {_literal(interval.start, kind)} AND {name} < {_literal(interval.end, kind)}"


def kind_of(column: str, fields: Sequence[Mapping[str, Any]]) -> str:
    """Return the type of a column as named in the schema; empty for a missing or nested column."""
    found = next((field["type"] for field in fields if field["name"] == column), "")
    return found if isinstance(found, str) else ""


def literal_text(moment: datetime, kind: str) -> str:
    """Return a time as the text of a literal of a column type."""
    if kind == "date":
        return moment.date().isoformat()
    text = moment.astimezone(UTC).replace(tzinfo=None).isoformat(" ", "microseconds").removesuffix(".000000")
    return text if kind == "timestamp" else f"{text}+00:00"


def unit_of(column: str, storage: TableMetadata) -> str | None:
    """Return the finest unit (``hour`` … ``year``) by which the storage table is partitioned on a column.

    Args:
        column: The interval column.

    Returns:
        ``None`` if no partition field is a time of the column.
    """
    of_column = [transform for transform, source in storage.partition_fields if source == column]
    units = {"identity": "day"} if kind_of(column, storage.current_schema.get("fields", [])) == "date" else {}
    found = [units.get(transform, transform) for transform in of_column]
    return next((unit for unit in _UNITS if unit in found), None)


def interval_column(
    fields: Sequence[Mapping[str, Any]], properties: Mapping[str, str], *, column: str | None = None, view: str
) -> tuple[str, str]:
    """Return the type and the name of the interval column of a view.

    Args:
        fields: The view's columns, as its schema holds them.
        properties: The view's properties, which may name the column.
        column: Another column.

    Raises:
        ConfigurationError: There is no suitable column.
    """
    fit = [str(field["name"]) for field in fields if kind_of(field["name"], fields) in _LITERALS]
    would = f"these columns are suitable: {', '.join(fit)}" if fit else "no column of it is suitable"
    column = column or properties.get(COLUMN_PROPERTY)
    if column is None:
        raise ConfigurationError(
            f"view {view} has no interval column: name one (--interval-column, interval_column=), or set the "
            f"view's property {COLUMN_PROPERTY}; {would}"
        )
    if column not in fit:
        known = kind_of(column, fields)
        what = f"is of type {known}" if known else "is not a column of it"
        raise ConfigurationError(
            f"view {view}: {column!r} {what}; an interval needs a date, timestamp or timestamptz: {would}"
        )
    return kind_of(column, fields), column


def _partition_end(span: Span, column: str, storage: TableMetadata, *, view: str) -> datetime:
    """Return the end of the storage table's partition that begins at the start of an interval."""
    unit = unit_of(column, storage)
    if unit is None:
        raise ConfigurationError(
            f"view {view}, interval {span}: only its start is known, and the storage table has no partitions by year, "
            f"month, day or hour of {column!r} to find the end: set interval_length"
        )
    return next_unit(span.start, unit)


def _literal(moment: datetime, kind: str) -> str:
    return f"{_LITERALS[kind]} '{literal_text(moment, kind)}'"


def _day(moment: datetime, span: Span, view: str) -> datetime:
    if not is_start_of_day(moment):
        raise ConfigurationError(
            f"view {view}, interval {span}: a date column takes whole days, and {moment.isoformat()} is within one. "
            "Give days, or partition the view by a timestamp"
        )
    return datetime(moment.year, moment.month, moment.day, tzinfo=UTC)
