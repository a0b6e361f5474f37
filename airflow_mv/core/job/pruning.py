# SPDX-License-Identifier: Apache-2.0
"""Write keys as plain predicates, so that Iceberg skips partitions and files. A join with the keys cannot do that."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import types as T

from airflow_mv.core.spec.identifiers import quote, string_literal

#: Iceberg compares a file's bounds with each value of a list up to this length.
_MAX_LIST = 200
#: With more keys than this, no predicates are written.
_MAX_KEYS = 20_000
_MAX_STRING_LENGTH = 200
#: If more than this share of a table's range passes a predicate, the predicate skips hardly anything.
_WORTH_SKIPPING = 0.9
#: Replaces bytes that are not valid UTF-8, so that such a value can be recognized.
_UNREADABLE = "\ufffd"
_WHOLE = (T.ByteType, T.ShortType, T.IntegerType, T.LongType)
#: Types that Spark compares without an object for each row.
_QUICK = (*_WHOLE, T.DateType, T.TimestampType)


@dataclass(frozen=True, slots=True)
class KeyFilters:
    """Filters for the rows that have one of the keys.

    Args:
        predicates: For some of the keys a predicate that all their values pass, with ``?`` for the column.
        first: The key of whole numbers with the most values, none of them NULL. Spark joins by one whole number faster
            than by several columns, and few rows are left. ``None`` without such a key.
        passing: By key of whole numbers, dates or times, as numbers: the least value, the greatest one, and how many
            values pass its predicate.
    """

    predicates: Mapping[str, str]
    first: str | None
    passing: Mapping[str, tuple[int, int, int]]


def skipping_keys(keys: Iterable[str], types: Mapping[str, T.DataType], clustered: Collection[str] | None) -> list[str]:
    """Return the keys whose predicates are worth their time where a whole table is read.

    Each one is also applied to each row. Strings and decimals are slow to compare, and skip files only if the table's
    rows are stored in their order.

    Args:
        types: Their types.
        clustered: The columns that the table is partitioned or sorted by; ``None`` if unknown.
    """
    return [key for key in keys if clustered is None or key in clustered or isinstance(types[key], _QUICK)]


def key_filters(
    spark: SparkSession, view: str, keys: Sequence[str], types: Mapping[str, T.DataType], count: int
) -> KeyFilters:
    """Return the filters that follow from the values of the keys.

    Args:
        view: A local relation with the keys.
        types: Their types.
        count: How many rows it has.
    """
    wanted = [key for key in keys if _text(types[key]) is not None]
    if count > _MAX_KEYS or not wanted:
        return KeyFilters({}, None, {})
    texts = ", ".join((_text(types[key]) or "").replace("?", quote(key)) for key in wanted)
    rows = spark.sql(f"SELECT {texts} FROM {view}").collect()
    found, passing, most, first = {}, {}, 0, None
    for number, key in enumerate(wanted):
        values = {row[number] for row in rows}
        predicate = _predicate(values, types[key])
        if predicate is not None:
            found[key] = predicate
        if isinstance(types[key], _QUICK) and (known := values - {None}):
            least, greatest = min(known), max(known)
            passing[key] = least, greatest, len(known) if len(known) <= _MAX_LIST else greatest - least + 1
        if isinstance(types[key], _WHOLE) and None not in values and len(values) > most:
            most, first = len(values), key
    return KeyFilters(found, first, passing)


def skips(passing: tuple[int, int, int] | None, stored: Sequence[int] | None) -> bool:
    """Whether a key's predicate may skip so much of a table that it is worth its time.

    Iceberg compares it with the statistics and the dictionaries of each row group, and Spark with each row.

    Args:
        passing: See :class:`KeyFilters`; ``None`` if unknown.
        stored: The least and the greatest value in the table; ``None`` if unknown.
    """
    if passing is None or stored is None:
        return True
    (least, greatest, count), (low, high) = passing, stored
    in_both = min(count, min(greatest, high) - max(least, low) + 1)
    return in_both < _WORTH_SKIPPING * (high - low + 1)


def aggregates_of(schema: T.StructType, columns: Sequence[str]) -> list[str]:
    """Return the aggregates of rows from which :func:`bounds_of` makes their bounds.

    Args:
        schema: Of the rows.
        columns: Columns of it. Those of types that Spark compares slowly are left out.
    """
    found = []
    for name in _quick(schema, columns):
        column, text = quote(name), _text(schema[name].dataType) or "?"
        found += [text.replace("?", f"{end}({column})") for end in ("min", "max")] + [f"bool_or({column} IS NULL)"]
    return found


def bounds_of(schema: T.StructType, columns: Sequence[str], values: Sequence[Any]) -> dict[str, Sequence[Any]]:
    """Return the bounds of some columns, for :func:`within`.

    Args:
        schema: Of the rows.
        values: Those of :func:`aggregates_of` for them.
    """
    bounds = {name: values[3 * place : 3 * place + 3] for place, name in enumerate(_quick(schema, columns))}
    return {name: bound for name, bound in bounds.items() if bound[0] is not None}


def _quick(schema: T.StructType, columns: Sequence[str]) -> list[str]:
    return [name for name in columns if isinstance(schema[name].dataType, _QUICK)]


def within(bounds: Mapping[str, Sequence[Any]], schema: T.StructType) -> str:
    """Return a predicate that all rows pass, from the bounds of their columns; empty if none can be written.

    Spark applies such a predicate to the other side of a join too, and skips files and row groups there.

    Args:
        bounds: The least value, the greatest value and whether there may be NULLs, by column. Empty if unknown.
        schema: The columns and their types.
    """
    found = []
    for name, bound in bounds.items():
        kind = schema[name].dataType
        if bound and _text(kind) is not None:
            *ends, null = bound
            if not any(isinstance(value, str) and _is_unwritable(value) for value in ends):
                least, greatest = map(_written(kind), ends)
                or_null = f" OR {quote(name)} IS NULL" if null else ""
                found.append(f"({quote(name)} BETWEEN {least} AND {greatest}{or_null})")
    return " AND ".join(found)


def _is_unwritable(text: str) -> bool:
    return len(text) > _MAX_STRING_LENGTH or _UNREADABLE in text


def _text(kind: T.DataType) -> str | None:
    """Return an expression by which a value reaches Python unchanged."""
    if isinstance(kind, _WHOLE):
        return "?"
    if isinstance(kind, T.DecimalType) or (isinstance(kind, T.StringType) and kind.simpleString() == "string"):
        return "CAST(? AS STRING)"
    if isinstance(kind, T.DateType):
        return "unix_date(?)"
    return "unix_micros(?)" if isinstance(kind, T.TimestampType) else None


def _written(kind: T.DataType) -> Callable[[Any], str]:
    if isinstance(kind, T.DecimalType):
        return lambda value: f"CAST('{value}' AS {kind.simpleString()})"
    if isinstance(kind, T.DateType):
        return lambda value: f"date_from_unix_date({value})"
    if isinstance(kind, T.TimestampType):
        return lambda value: f"timestamp_micros({value})"
    return string_literal if isinstance(kind, T.StringType) else str


def _predicate(values: set[Any], kind: T.DataType) -> str | None:
    null = " OR ? IS NULL" if None in values else ""
    values = values - {None}
    write = _written(kind)
    if any(isinstance(value, str) and ("?" in value or _is_unwritable(value)) for value in values):
        return None
    if not values:
        return "? IS NULL"
    order = Decimal if isinstance(kind, T.DecimalType) else None
    if len(values) <= _MAX_LIST:
        return f"(? IN ({', '.join(write(value) for value in sorted(values, key=order))}){null})"
    return f"(? BETWEEN {write(min(values, key=order))} AND {write(max(values, key=order))}{null})"
