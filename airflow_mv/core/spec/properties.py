# SPDX-License-Identifier: Apache-2.0
"""The properties of a view by which its owner chooses how it is stored and refreshed.

A refresh writes the chosen table properties and sort order into the storage table, also into one that is made later.
Source of the sort order: Iceberg ``format/spec.md``, "Sort Orders". By default nulls are where Spark sorts them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeVar, get_args

from airflow_mv.checks import CHECKS_PROPERTY
from airflow_mv.core.spec.choices import (
    COLUMN_PROPERTY,
    DIALECTS_PROPERTY,
    TIME_TRAVEL_PROPERTY,
    TRANSPILE_PROPERTY,
    FallbackPolicy,
    OnSchemaChange,
)
from airflow_mv.core.spec.identifiers import quote
from airflow_mv.core.spec.stored import whole_number
from airflow_mv.core.spec.times import duration
from airflow_mv.errors import ConfigurationError, InvalidQueryError
from airflow_mv.foundation.words import did_you_mean, listed

if TYPE_CHECKING:
    from airflow_mv.core.spec.table_metadata import TableMetadata

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
                f"view {view}, property {STORAGE_PREFIX}{key}: it cannot be set on a storage table. Allowed are "
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
    for column in sort_columns(text, view=view):
        name = by_name.get(column.name.lower())
        if name is None or name in [item.name for item in found]:
            meant = did_you_mean(column.name, columns)
            problem = f"there is no column {column.name!r}{meant}" if name is None else f"{column.name!r} occurs twice"
            raise ConfigurationError(
                f"view {view}, property {SORT_PROPERTY}: {problem}; there are: {', '.join(columns)}"
            )
        found.append(replace(column, name=name))
    return tuple(found)


def sort_columns(text: str, *, view: str) -> tuple[SortColumn, ...]:
    """Read a list of columns such as ``day, region DESC NULLS LAST``.

    Raises:
        ConfigurationError: It is not such a list.
    """
    found: list[SortColumn] = []
    place = 0
    while place < len(text.rstrip()):
        match = _COLUMN.match(text, place)
        if match is None or (match["end"] and not text[match.end() :].strip()):
            raise ConfigurationError(
                f"view {view}, property {SORT_PROPERTY}: {text!r} is not a list of columns; write it like "
                "'day, region DESC NULLS LAST'"
            )
        name = match["name"] or match["quoted"].replace("``", "`")
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
    meant = did_you_mean(text.partition("(")[0].strip(), (*_TIME_TRANSFORMS, *_WIDTH_TRANSFORMS)) if "(" in text else ""
    return InvalidQueryError(
        f"partition field {text!r}: write a column, years(c), months(c), days(c), hours(c), "
        f"bucket(number, c) or truncate(number, c){meant}"
    )


# ------------------------------------------------------------- How views are refreshed, and what follows a refresh


#: What a changed column of a base table leads to.
ON_SCHEMA_CHANGE_PROPERTY = "airflow-mv.on-schema-change"
#: The policy of a view, unless a call overrides it.
ON_FALLBACK_PROPERTY = "airflow-mv.on-fallback"
MAX_FULL_BYTES_PROPERTY = "airflow-mv.max-full-bytes"
UP_TO_PROPERTY = "airflow-mv.incremental-up-to"
#: How far the view may be behind, like ``2 h``.
MAX_STALENESS_PROPERTY = "airflow-mv.max-staleness"
#: How many refresh records are kept, and how old they may be, like ``30 days``.
TARGET_LAG_PROPERTY = "airflow-mv.target-lag"
#: The target lag of a view that is refreshed as the views that read it need it.
DOWNSTREAM = "downstream"
MAX_COUNT_PROPERTY = "airflow-mv.history.max-count"
MAX_AGE_PROPERTY = "airflow-mv.history.max-age"
DEFAULT_MAX_COUNT = 100
#: The same without time travel. The records of past refreshes keep no rows.
DEFAULT_LOGGED = 50
#: With how many files, or old snapshots, of its storage table a refresh is followed by maintenance.
COMPACT_PROPERTY = "airflow-mv.maintenance.compact-files"
EXPIRE_PROPERTY = "airflow-mv.maintenance.expire-snapshots"
#: The value of :data:`EXPIRE_PROPERTY` of a view that only commands and tasks maintain.
NEVER = "never"
#: For how long after a refresh the base tables keep the snapshots that the rows were computed from.
KEEP_PROPERTY = "airflow-mv.keep-base-snapshots"
#: The version of the draft specification in which the storage table has the refresh state, or ``none``.
REFRESH_STATE_PROPERTY = "airflow-mv.refresh-state"
REFRESH_STATES = ("2026-06", "2024-10", "none")
#: The engines that read the stored rows, separated by commas.
READERS_PROPERTY = "airflow-mv.readers"

#: What happens if the rows of a changed definition differ from the present ones, and from which difference on.
ON_DIFF_PROPERTY = "airflow-mv.on-diff"

_FALLBACKS: tuple[FallbackPolicy, ...] = get_args(FallbackPolicy)
_ON_SCHEMA_CHANGE: tuple[OnSchemaChange, ...] = get_args(OnSchemaChange)
_AT_LEAST_ONE = "a whole number of at least 1"
_Value = TypeVar("_Value")
_Number = TypeVar("_Number", int, float)


@dataclass(frozen=True, slots=True)
class Policy:
    """The allowed ways to make a view fresh. The first refresh of a view is always allowed.

    Args:
        on_fallback: What to do if an incremental view would have to be recomputed in full, also after a change of its
            definition. With ``full`` the estimates decide; with ``fail`` and ``skip`` an incremental mode is taken
            wherever one is possible.
        max_full_bytes: Bytes of base table files that a recompute may read, whatever the strategy; more is refused, or
            with ``skip`` the view stays as it is. ``None``: no limit.
        up_to: An incremental mode is taken up to this many times the estimated seconds of a full refresh.
    """

    on_fallback: FallbackPolicy = "full"
    max_full_bytes: int | None = None
    up_to: float = 1.0

    @classmethod
    def of(
        cls,
        properties: Mapping[str, str],
        *,
        view: str,
        on_fallback: FallbackPolicy | None = None,
        max_full_bytes: int | None = None,
    ) -> Policy:
        """Return the policy of a view's properties. The call's options override it.

        Raises:
            ConfigurationError: A property has an invalid value.
        """
        stored = _one_of(properties, ON_FALLBACK_PROPERTY, _FALLBACKS, view)
        budget = _read(properties, MAX_FULL_BYTES_PROPERTY, _at_least(0, int), "a number of bytes", view)
        up_to = _read(properties, UP_TO_PROPERTY, _at_least(0, float), "a number, such as 1.0", view)
        return cls(
            on_fallback=on_fallback or stored,
            max_full_bytes=budget if max_full_bytes is None else max_full_bytes,
            up_to=1.0 if up_to is None else up_to,
        )

    def allows(self, full_bytes: int | None) -> bool:
        """Whether a full refresh that reads so many bytes is within the budget. One of unknown size is not."""
        return self.max_full_bytes is None or (full_bytes is not None and full_bytes <= self.max_full_bytes)


def on_schema_change(properties: Mapping[str, str], *, view: str) -> OnSchemaChange:
    """Return a view's policy for changed columns of base tables.

    Raises:
        ConfigurationError: The property has another value.
    """
    return _one_of(properties, ON_SCHEMA_CHANGE_PROPERTY, _ON_SCHEMA_CHANGE, view)


def max_staleness_of(text: str | None, *, view: str) -> timedelta | None:
    """Return a view's freshness SLO from the text of its property, or ``None`` without one.

    Raises:
        ConfigurationError: The text is not a length of time.
    """
    return duration(text, what=f"view {view}, property {MAX_STALENESS_PROPERTY}")


def target_lag_of(text: str | None, *, view: str) -> timedelta | Literal["downstream"] | None:
    """Return a view's target lag from the text of its property, or ``None`` without one.

    Raises:
        ConfigurationError: The text is neither a length of time, more than none, nor ``downstream``.
    """
    if text is not None and text.strip().lower() == DOWNSTREAM:
        return "downstream"
    what = f"view {view}, property {TARGET_LAG_PROPERTY}"
    found = duration(text, what=what)
    if found == timedelta(0):
        raise ConfigurationError(f"{what} is {text!r}; it must be more than none, such as 15 minutes, or {DOWNSTREAM}")
    return found


def refresh_state_of(properties: Mapping[str, str], *, view: str) -> str | None:
    """Return the version of the draft specification in which a view's refresh state is written; ``None`` for none.

    Raises:
        ConfigurationError: There is no such version.
    """
    found = _one_of(properties, REFRESH_STATE_PROPERTY, REFRESH_STATES, view)
    return None if found == "none" else found


def has_time_travel(properties: Mapping[str, str], *, view: str) -> bool:
    """Whether each refresh stays in the history, with its own tagged snapshot.

    Raises:
        ConfigurationError: The property has another value.
    """
    values = {"true": True, "false": False}
    found = _read(properties, TIME_TRAVEL_PROPERTY, lambda text: values[text.lower()], "true or false", view)
    return found is True


@dataclass(frozen=True, slots=True)
class HistoryLimits:
    """The number of refresh records that a view keeps.

    Args:
        max_count: The most records, including the current one.
        max_age: The maximum age of records other than the current one; ``None``: no limit.
        with_rows: The most records whose rows are kept, including the current one.
    """

    max_count: int
    max_age: timedelta | None
    with_rows: int

    def oldest_ms(self, now_ms: int) -> int | None:
        """Return the time before which no other refresh than the current one is kept; ``None``: no limit."""
        return None if self.max_age is None else now_ms - self.max_age // timedelta(milliseconds=1)


def history_limits(properties: Mapping[str, str], *, view: str) -> HistoryLimits:
    """Return how many refresh records a view keeps, by its properties.

    Raises:
        ConfigurationError: A limit is invalid.
    """
    travels = properties.get(TIME_TRAVEL_PROPERTY, "false").lower() == "true"
    given = _read(properties, MAX_COUNT_PROPERTY, _whole, _AT_LEAST_ONE, view)
    count = given or (DEFAULT_MAX_COUNT if travels else DEFAULT_LOGGED)
    age = _length(properties, MAX_AGE_PROPERTY, view)
    return HistoryLimits(count, age, count if travels else 1)


def most_files(properties: Mapping[str, str], *, view: str) -> int | None:
    """Return how many files may stay without a compaction; ``None``: any number.

    Raises:
        ConfigurationError: It is not a whole number of at least 1.
    """
    return _read(properties, COMPACT_PROPERTY, _whole, _AT_LEAST_ONE, view)


def most_old_snapshots(properties: Mapping[str, str], *, view: str, default: int | None) -> int | None:
    """Return how many old snapshots may stay; ``None``: any number.

    Raises:
        ConfigurationError: It is neither ``never`` nor a whole number of at least 1.
    """
    if properties.get(EXPIRE_PROPERTY, "").strip() == NEVER:
        return None
    return _read(properties, EXPIRE_PROPERTY, _whole, _AT_LEAST_ONE, view) or default


def kept_for(properties: Mapping[str, str], *, view: str) -> timedelta | None:
    """Return for how long base snapshots are kept; ``None``: they are not.

    Raises:
        ConfigurationError: It is not a length of time.
    """
    return _length(properties, KEEP_PROPERTY, view)


OnDiff = Literal["publish", "fail", "ask"]


@dataclass(frozen=True, slots=True)
class DiffPolicy:
    """What happens if the rows of a changed definition differ from the present ones. All limits are shares.

    Args:
        action: What happens above a limit.
        rows: How much the number of rows may change.
        added: How many keys may be added, of the present ones.
        removed: How many of the present keys may be gone.
        changed: How many values of a column may differ.
        columns: The same for single columns, by name.
    """

    action: OnDiff
    rows: float = 0.0
    added: float = 0.0
    removed: float = 0.0
    changed: float = 0.0
    columns: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def read(cls, text: str, *, source: str) -> DiffPolicy:
        """Read a policy, such as ``fail, rows=1%, removed=0, changed=5%, changed.amount=100%``.

        Raises:
            ConfigurationError: It is none.
        """
        action, *limits = (part.strip() for part in text.split(","))
        shares: dict[str, float] = {}
        for limit in limits:
            key, _, share = (part.strip() for part in limit.partition("="))
            names = ("rows", "added", "removed", "changed")
            found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)(%?)", share)
            if (key not in names and not key.startswith("changed.")) or found is None:
                raise ConfigurationError(
                    f"{source}: {limit!r} is not a limit: write one of {', '.join(names)} or changed.COLUMN, and a "
                    f"share, such as removed=0.5%{did_you_mean(key, names)}"
                )
            shares[key] = float(found[1]) / (100 if found[2] else 1)
        actions = get_args(OnDiff)
        if action not in actions:
            raise ConfigurationError(f"{source}: {action!r} is not {listed(actions)}{did_you_mean(action, actions)}")
        columns = {key.removeprefix("changed."): shares.pop(key) for key in [*shares] if "." in key}
        return cls(action, columns=columns, **shares)  # type: ignore[arg-type]

    @classmethod
    def of(cls, properties: Mapping[str, str], *, view: str) -> DiffPolicy | None:
        """Return the policy of a view; ``None`` if it has none.

        Raises:
            ConfigurationError: The property is not one.
        """
        text = properties.get(ON_DIFF_PROPERTY)
        return None if text is None else cls.read(text, source=f"view {view}, property {ON_DIFF_PROPERTY}")


def _max_staleness(properties: Mapping[str, str], *, view: str) -> timedelta | None:
    return max_staleness_of(properties.get(MAX_STALENESS_PROPERTY), view=view)


def _target_lag(properties: Mapping[str, str], *, view: str) -> object:
    return target_lag_of(properties.get(TARGET_LAG_PROPERTY), view=view)


def _most_old_snapshots(properties: Mapping[str, str], *, view: str) -> int | None:
    return most_old_snapshots(properties, view=view, default=None)


#: What reads each property, and refuses a wrong value, by the property's name. The values of further properties are
#: names: of columns, dialects or engines.
PROPERTY_READERS: Mapping[str, Callable[..., object]] = {
    TIME_TRAVEL_PROPERTY: has_time_travel,
    ON_SCHEMA_CHANGE_PROPERTY: on_schema_change,
    **dict.fromkeys((ON_FALLBACK_PROPERTY, MAX_FULL_BYTES_PROPERTY, UP_TO_PROPERTY), Policy.of),
    MAX_STALENESS_PROPERTY: _max_staleness,
    TARGET_LAG_PROPERTY: _target_lag,
    **dict.fromkeys((MAX_COUNT_PROPERTY, MAX_AGE_PROPERTY), history_limits),
    COMPACT_PROPERTY: most_files,
    EXPIRE_PROPERTY: _most_old_snapshots,
    KEEP_PROPERTY: kept_for,
    ON_DIFF_PROPERTY: DiffPolicy.of,
    REFRESH_STATE_PROPERTY: refresh_state_of,
}


_PREFIX = "airflow-mv."
#: All that a user may set, besides those that begin with :data:`STORAGE_PREFIX`.
SETTABLE = frozenset(
    {
        *PROPERTY_READERS,
        CHECKS_PROPERTY,
        COLUMN_PROPERTY,
        DIALECTS_PROPERTY,
        READERS_PROPERTY,
        SORT_PROPERTY,
        TRANSPILE_PROPERTY,
    }
)


def check_given(properties: Mapping[str, str], *, view: str, own: Collection[str] = ()) -> None:
    """Refuse a property that has a wrong value, or whose name begins with ``airflow-mv.`` and that nothing reads.

    Args:
        own: Further names: those of a view that exists.

    Raises:
        ConfigurationError: Names the property, its value and what it may be.
    """
    for key in properties:
        known = key in SETTABLE or key in own or key.startswith(STORAGE_PREFIX)
        if key.startswith(_PREFIX) and not known:
            raise ConfigurationError(f"view {view}: there is no property {key}{did_you_mean(key, SETTABLE)}")
    check_values(properties, view=view)


def check_values(properties: Mapping[str, str], *, view: str) -> None:
    """Refuse a property that has a wrong value.

    Raises:
        ConfigurationError: Names the property, its value and what it may be.
    """
    for key, read in PROPERTY_READERS.items():
        if key in properties:
            read(properties, view=view)


def _read(
    properties: Mapping[str, str], key: str, convert: Callable[[str], _Value], wanted: str, view: str
) -> _Value | None:
    text = properties.get(key)
    try:
        return None if text is None else convert(text)
    except (ValueError, KeyError):
        raise ConfigurationError(f"view {view}, property {key}: {text!r} is not {wanted}") from None


def _length(properties: Mapping[str, str], key: str, view: str) -> timedelta | None:
    """Return the length of time that a property has."""
    text = properties.get(key)
    return None if text is None else duration(text, what=f"view {view}, property {key}")


def _one_of(properties: Mapping[str, str], key: str, values: tuple[_Value, ...], view: str) -> _Value:
    """Return the value of a property that is one of some words. The first one is the default."""
    words = {str(value): value for value in values}
    text = properties.get(key, str(values[0]))
    if text in words:
        return words[text]
    raise ConfigurationError(f"view {view}, property {key}: {text!r} is not {listed(words)}{did_you_mean(text, words)}")


def _at_least(least: int, kind: Callable[[str], _Number]) -> Callable[[str], _Number]:
    def convert(text: str) -> _Number:
        if (number := kind(text)) >= least:
            return number
        raise ValueError(text)

    return convert


_whole = _at_least(1, lambda text: whole_number(text.strip(), 0))
