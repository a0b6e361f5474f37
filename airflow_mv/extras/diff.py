# SPDX-License-Identifier: Apache-2.0
"""Compare the rows of a view with those of another definition, computed from the same snapshots of the base tables."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from sqlglot import exp

from airflow_mv.core.catalog import LoadedView, MaterializedViewCatalog
from airflow_mv.core.freshness.state import ObservedTable, SnapshotSet
from airflow_mv.core.refresh.checks import stored_checks
from airflow_mv.core.refresh.inputs import ResolvedQuery, resolve_query
from airflow_mv.core.refresh.statements import place_names, renamed
from airflow_mv.core.script import MAX_VALUE_LENGTH, SESSION_CONFS, STAGING
from airflow_mv.core.spec.identifiers import Identifier, quote
from airflow_mv.core.spec.materialized_view import METADATA_LOCATION, NO_SNAPSHOT, RefreshRecord
from airflow_mv.core.spec.properties import DiffPolicy
from airflow_mv.core.sql.query import ParsedQuery, parse_query, spark_sql
from airflow_mv.errors import (
    ConfigurationError,
    InvalidQueryError,
    MaterializedViewError,
    SnapshotNotFoundError,
    StaleViewError,
    UnsupportedError,
)
from airflow_mv.foundation.redaction import shortened

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: How many differing values, and keys of one side, are shown.
SAMPLES = 3
#: Numbers whose relative difference is not larger are equal: a sum of them depends on the order of the rows.
_CLOSE = {"double": "1e-9D", "float": "1e-6D"}
_WHOLE = ("tinyint", "smallint", "int", "bigint")
#: Types whose values Spark cannot compare, or cannot group by.
_NO_EQUALITY = re.compile(r"\b(map|variant|interval|geometry|geography)\b|(?<=<)map")


@dataclass(frozen=True, slots=True)
class Sample:
    """A key, or a value that differs. All values are text; ``None`` is NULL.

    Args:
        key: The columns of the key, or of the row, with their values.
        before: The value of the view.
        after: The value of the other definition.
    """

    key: Mapping[str, str | None]
    before: str | None = None
    after: str | None = None


@dataclass(frozen=True, slots=True)
class ColumnDiff:
    """The differences of one column that both sides have.

    Args:
        differing: How many values differ, among the keys that both sides have once.
        share: The share of these keys, from 0 to 1.
        sums: The sums of both sides, of all rows, for a column of numbers. ``None``: they are too large.
        types: The types of both sides.
    """

    name: str
    differing: int
    share: float
    sums: tuple[str | None, str | None] | None
    types: tuple[str, str]
    samples: tuple[Sample, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        found: dict[str, Any] = {"name": self.name, "differing": self.differing, "share": round(self.share, 6)}
        if self.sums is not None:
            found["sums"] = {"before": self.sums[0], "after": self.sums[1]}
        if self.types[0] != self.types[1]:
            found["types"] = {"before": self.types[0], "after": self.types[1]}
        samples = [{"key": dict(item.key), "before": item.before, "after": item.after} for item in self.samples]
        return {**found, "samples": samples}


@dataclass(frozen=True, slots=True)
class Diff:
    """The difference between the rows of a view and those of another definition.

    Args:
        keys: The columns that identify a row; without any whole rows are compared.
        rows: The numbers of rows, before and after.
        only_before: Keys, or rows, that only the view has.
        only_after: Keys, or rows, that only the other definition gives.
        both: Keys that both sides have once, whose values are compared; without a key, equal rows.
        repeated: Keys that one side has more than once: their values are not compared.
        samples: Some keys, or rows, of one side only: before, after.
        dropped: Columns that only the view has.
        added: Columns that only the other definition has.
        same_bases: Whether both sides read the same snapshots of the base tables.
    """

    view: Identifier
    keys: tuple[str, ...]
    rows: tuple[int, int]
    only_before: int
    only_after: int
    both: int
    repeated: int
    columns: tuple[ColumnDiff, ...]
    samples: tuple[tuple[Sample, ...], tuple[Sample, ...]] = ((), ())
    dropped: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    same_bases: bool = True

    @property
    def equal(self) -> bool:
        """Whether nothing differs."""
        changed = any(item.differing or item.types[0] != item.types[1] for item in self.columns)
        counts = self.rows[0] != self.rows[1] or self.only_before or self.only_after or self.repeated
        return not (changed or counts or self.dropped or self.added)

    def beyond(self, policy: DiffPolicy) -> list[str]:
        """Return the differences that are above a policy's limits, as sentences."""
        before = self.both + self.only_before if self.keys else self.rows[0]
        shares = [
            ("the number of rows changes by", abs(self.rows[1] - self.rows[0]), self.rows[0], policy.rows),
            ("added are", self.only_after, before, policy.added),
            ("gone are", self.only_before, before, policy.removed),
        ]
        found = [
            f"{what} {_share(number, total):.2%} ({number:,} of {total:,}); allowed are {limit:.2%}"
            for what, number, total, limit in shares
            if number > limit * total
        ]
        if self.repeated:
            found.append(f"{self.repeated:,} keys occur more than once, so their values cannot be compared")
        for item in self.columns:
            limit = policy.columns.get(item.name, policy.changed)
            if item.differing > limit * self.both:
                found.append(f"{item.share:.2%} of {item.name} differ; allowed are {limit:.2%}")
        return found

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "view": str(self.view),
            "equal": self.equal,
            "keys": list(self.keys),
            "same_bases": self.same_bases,
            "rows": {"before": self.rows[0], "after": self.rows[1]},
            "only_before": {"count": self.only_before, "samples": [dict(item.key) for item in self.samples[0]]},
            "only_after": {"count": self.only_after, "samples": [dict(item.key) for item in self.samples[1]]},
            "both": self.both,
            "repeated": self.repeated,
            "columns": [item.to_dict() for item in self.columns],
            "dropped": list(self.dropped),
            "added": list(self.added),
        }

    def lines(self) -> list[str]:
        """Return the difference as text."""
        what = f"by {', '.join(self.keys)}" if self.keys else "as whole rows: no key is known"
        unit = "keys" if self.keys else "rows"
        found = [f"{self.view}: {self.rows[0]:,} rows before, {self.rows[1]:,} after, compared {what}"]
        if not self.same_bases:
            found.append("  the base tables have changed since: snapshots that the view was computed from are gone")
        found.append(
            f"  {unit}: {self.both:,} in both, {self.only_before:,} before only, {self.only_after:,} after only"
        )
        for name, samples in zip(("before only", "after only"), self.samples, strict=True):
            found += [f"    {name}: {_key_text(item.key)}" for item in samples]
        if self.repeated and self.keys:
            found.append(f"  {self.repeated:,} keys occur more than once, so their values are not compared")
        for item in self.columns:
            found += _column_lines(item, self.both)
        found += [f"  column {name}: before only" for name in self.dropped]
        found += [f"  column {name}: after only" for name in self.added]
        return [*found, "  no difference"] if self.equal else found


def _share(number: int, total: int) -> float:
    return number / total if total else 1.0


def _column_lines(item: ColumnDiff, both: int) -> Iterator[str]:
    parts = []
    if item.types[0] != item.types[1]:
        parts.append(f"its type is {item.types[1]}, it was {item.types[0]}")
    if item.differing:
        parts.append(f"{item.share:.2%} differ ({item.differing:,} of {both:,})")
    if item.sums is not None and item.sums[0] != item.sums[1]:
        parts.append(f"sum {item.sums[0]} → {item.sums[1]}")
    if parts:
        yield f"  {item.name}: {'; '.join(parts)}"
    for sample in item.samples:
        yield f"    {_key_text(sample.key)}: {_shown(sample.before)} → {_shown(sample.after)}"


def _key_text(key: Mapping[str, str | None]) -> str:
    return ", ".join(f"{name}={_shown(value)}" for name, value in key.items())


def _shown(value: str | None) -> str:
    return "NULL" if value is None else shortened(value, MAX_VALUE_LENGTH)


# ----------------------------------------------------------------------------------- what is compared


def diff(
    catalog: MaterializedViewCatalog,
    view: str | Identifier,
    *,
    session: Callable[[], SparkSession],
    sql: str | None = None,
    key: Sequence[str] = (),
) -> Diff:
    """Compare a view's stored rows with those that a query gives, at the snapshots that its rows were computed from.

    Base tables that the view has not read are read as they are now. A signal that stops the program ends the statement
    first (:func:`airflow_mv.core.job.session.interruptible`).

    Args:
        session: Opens a session with the base tables' catalogs.
        sql: The query; ``None``: that of the view, whose rows may be of an earlier definition.
        key: The columns that identify a row; by default see :func:`key_of`.

    Raises:
        StaleViewError: The view has no rows.
        SnapshotNotFoundError: A snapshot has expired.
        UnsupportedError: Intervals of the view were refreshed on their own.
        InvalidQueryError: The query is not one, or a column of the key is not one of both sides.
        JobError: Spark failed.
    """
    loaded = catalog.load(catalog.identify(view))
    storage, name = catalog.load_storage(loaded), loaded.identifier
    record = storage.record
    if record is None:
        raise StaleViewError(f"view {name} has no rows to compare with: refresh it first")
    resolved = resolved_query(catalog, loaded, sql)
    tables = at_recorded(name, resolved.tables, record)
    query = replace(resolved, tables=tables)
    names = loaded.metadata.schema_.names if sql is None else None
    keys = key or key_of(loaded, query.query)
    from airflow_mv.common.stored_rows import stored_rows
    from airflow_mv.core.job.session import interruptible

    spark = session()

    def compared() -> Diff:
        before = stored_rows(spark, name, storage, storage.rows_snapshot)
        return _with_query(spark, name, before, query, names, keys)

    return interruptible(spark, compared)


def _with_query(
    spark: SparkSession,
    view: Identifier,
    before: DataFrame,
    query: ResolvedQuery,
    names: Sequence[str] | None,
    keys: Sequence[str],
) -> Diff:
    from airflow_mv.common.stored_rows import spark_errors
    from airflow_mv.core.job.driver import registered
    from airflow_mv.core.job.session import temporary_settings

    text = query.pinned.sql if names is None else renamed(query.pinned.sql, names)
    with (
        spark_errors(f"comparing view {view}"),
        temporary_settings(spark, dict(SESSION_CONFS)),
        registered(spark, view.catalog, place_names(query.places).files) as staging,
    ):
        return compare(spark, view, before, spark.sql(text.replace(STAGING, staging)), keys)


def resolved_query(catalog: MaterializedViewCatalog, view: LoadedView, sql: str | None = None) -> ResolvedQuery:
    """Resolve the query of a view, or another one as if it were that of the view. Reads metadata only.

    Args:
        sql: The other query.

    Raises:
        InvalidQueryError: The query is not one.
    """
    name = view.identifier
    text, context = (spark_sql(view.metadata, view=str(name)), view.context) if sql is None else (sql, name)
    return resolve_query(catalog, text, None, context, view=str(name))


def at_recorded(view: Identifier, tables: Sequence[ObservedTable], record: RefreshRecord) -> tuple[ObservedTable, ...]:
    """Return base tables at the snapshots that a refresh has read. One that it has not read stays as it is.

    Raises:
        SnapshotNotFoundError: A snapshot has expired.
        UnsupportedError: Parts of the rows are of other snapshots.
    """
    if record.intervals or record.only_intervals:
        raise UnsupportedError(
            f"view {view}: intervals of it were refreshed on their own, from several snapshots of the base tables: "
            "refresh the whole view first"
        )
    recorded = {item.identifier: item for item in record.base_tables}
    found = []
    for table in tables:
        item = recorded.get(table.identifier)
        head = table.head if item is None else item.snapshot_reference
        head = None if head == NO_SNAPSHOT else head
        if item is None or head == table.head:
            found.append(table)
            continue
        if head is not None and (table.table is None or table.table.find(head) is None):
            raise SnapshotNotFoundError(
                f"view {view}: the snapshot {head} of {table.identifier}, from which its rows were computed, has "
                "expired: refresh the view first"
            )
        # The file that the refresh has read: in the present one nothing would have changed since.
        found.append(replace(table, head=head, metadata_location=item.properties.get(METADATA_LOCATION)))
    return tuple(found)


def recorded_bases(catalog: MaterializedViewCatalog, view: LoadedView, record: RefreshRecord) -> SnapshotSet | None:
    """Return the base tables of a view's query at the snapshots of a refresh, for a refresh of the same rows.

    ``None``: a snapshot has expired, or parts of the rows are of other snapshots. Then the present ones are read.

    Args:
        view: The view with its new definition.
        record: The refresh of its earlier definition.
    """
    try:
        tables = at_recorded(view.identifier, resolved_query(catalog, view).tables, record)
    except (SnapshotNotFoundError, UnsupportedError):
        return None
    return SnapshotSet(tables={table.name: table for table in tables})


def key_of(view: LoadedView, query: ParsedQuery | None = None) -> tuple[str, ...]:
    """Return the columns that identify a row of a view, as far as its definition tells; empty if it does not.

    They are those of its check ``unique`` on all rows, or else the columns that the query is grouped by.

    Args:
        query: Another query whose GROUP BY also counts, before that of the view.
    """
    name = str(view.identifier)
    for check in stored_checks(view.metadata.properties, view=name):
        if check.kind == "unique" and not check.where and check.severity == "error":
            return check.columns
    columns = view.metadata.schema_.names
    try:
        own = parse_query(
            spark_sql(view.metadata, view=name),
            view=name,
            default_catalog=view.context.catalog,
            default_namespace=view.context.namespace,
        )
    except MaterializedViewError:
        return ()
    found = _grouped_by(own, columns)
    given = _grouped_by(query, getattr(query.tree, "named_selects", ())) if query is not None else ()
    return given if given and set(given) <= set(columns) else found


def _grouped_by(query: ParsedQuery, columns: Sequence[str]) -> tuple[str, ...]:
    """Return the columns of a query that are its groups; empty if one of the groups is not a column of it."""
    tree = query.tree
    group = tree.args.get("group") if isinstance(tree, exp.Select) else None
    shown = tree.expressions if isinstance(tree, exp.Select) else []
    if group is None or set(filter(group.args.get, group.args)) != {"expressions"} or len(shown) != len(columns):
        return ()
    found = []
    for item in group.expressions:
        text = item.sql().lower()
        same = [
            column
            for number, (one, column) in enumerate(zip(shown, columns, strict=True), 1)
            if text in (one.unalias().sql().lower(), one.alias_or_name.lower(), str(number))
        ]
        if not same:
            return ()
        found.append(same[0])
    return tuple(dict.fromkeys(found))


# ----------------------------------------------------------------------------------- the comparison


def compare(spark: SparkSession, view: Identifier, before: DataFrame, after: DataFrame, keys: Sequence[str]) -> Diff:
    """Compare two sets of rows, in one statement that reads each once.

    Columns are compared by name. Floating point numbers are equal up to a relative difference of 1e-9 (``float``:
    1e-6). NULL equals NULL.

    Args:
        keys: The columns that identify a row; empty to compare whole rows, with their number.

    Raises:
        InvalidQueryError: A column of the key is missing on a side, or cannot be compared.
    """
    return _Comparison(view, before, after, keys).run(spark)


class _Comparison:
    """The statement of a comparison, and its result."""

    def __init__(self, view: Identifier, before: DataFrame, after: DataFrame, keys: Sequence[str]) -> None:
        self._view, self._frames = view, (before, after)
        types = [{name.lower(): (name, kind) for name, kind in frame.dtypes} for frame in self._frames]
        self._types = types
        self._common = [name for name in types[0] if name in types[1]]
        self._dropped = tuple(types[0][name][0] for name in types[0] if name not in types[1])
        self._added = tuple(types[1][name][0] for name in types[1] if name not in types[0])
        lacking = [name for name in keys if name.lower() not in self._common]
        if lacking:
            known = ", ".join(types[0][name][0] for name in self._common)
            raise InvalidQueryError(
                f"view {view}: the column {lacking[0]} of the key is not one of both sides, which have: {known}"
            )
        self._has_key = bool(keys)
        self._keys = [name.lower() for name in keys] or self._common
        if self._has_key and (wrong := [name for name in self._keys if _NO_EQUALITY.search(types[0][name][1])]):
            raise InvalidQueryError(f"view {view}: the column {wrong[0]} cannot be part of a key")
        if not self._keys:
            raise ConfigurationError(f"view {view}: both sides have no column in common")
        self._values = [name for name in self._common if name not in self._keys] if self._has_key else []

    def run(self, spark: SparkSession) -> Diff:
        """Compute it."""
        names = [f"airflow_mv_{side}_{uuid.uuid4().hex[:12]}" for side in ("before", "after")]
        for name, frame in zip(names, self._frames, strict=True):
            frame.createOrReplaceTempView(name)
        try:
            (row,) = spark.sql(self._statement(*names)).collect()
        finally:
            for name in names:
                spark.catalog.dropTempView(name)
        return self._result(row.asDict())

    # -- the statement

    def _statement(self, before: str, after: str) -> str:
        sides = f"{self._side(0, before)}\nUNION ALL\n{self._side(1, after)}"
        sums = [f", sum(o.s{n}) AS so{n}, sum(n.s{n}) AS sn{n}" for n in self._numbers]
        groups = ", ".join(f"k{n}" for n in range(len(self._keys)))
        pairs = (
            f"SELECT {groups}, count(o) AS no, count(n) AS nn, first(o, true) AS o, first(n, true) AS n"
            f"{''.join(sums)}\nFROM (\n{sides}\n) GROUP BY {groups}"
        )
        return f"SELECT {', '.join(self._figures())}\nFROM (\n{pairs}\n)"

    def _side(self, side: int, table: str) -> str:
        keys = [f"{self._key(side, name)} AS k{n}" for n, name in enumerate(self._keys)]
        fields = [f"{quote(self._name(side, name))} AS c{n}" for n, name in enumerate(self._values)]
        fields += [f"{self._summed(side, name)} AS s{n}" for n, name in self._numbers.items()]
        row = f"struct({', '.join(fields) or '1 AS one'})"
        pair = (row, "NULL") if side == 0 else ("NULL", row)
        return f"SELECT {', '.join(keys)}, {pair[0]} AS o, {pair[1]} AS n FROM {quote(table)}"  # noqa: S608 (quoted)

    def _figures(self) -> Iterator[str]:
        once = "no = 1 AND nn = 1"
        yield "coalesce(sum(no), 0) AS rows_before, coalesce(sum(nn), 0) AS rows_after"
        one_side = ("nn = 0", "no = 0")
        if self._has_key:
            yield from (f"count_if({text}) AS only_{side}" for side, text in enumerate(one_side))
            yield f"count_if({once}) AS both, count_if(no > 1 OR nn > 1) AS repeated"
        else:
            one_side = ("no > nn", "nn > no")
            yield "coalesce(sum(greatest(no - nn, 0)), 0) AS only_0, coalesce(sum(greatest(nn - no, 0)), 0) AS only_1"
            yield "coalesce(sum(least(no, nn)), 0) AS both, 0 AS repeated"
        for side, text in enumerate(one_side):
            yield from self._sampled(f"only_{side}", text, [])
        for number, name in enumerate(self._values):
            differs = f"{once} AND {self._differs(number, name)}"
            yield f"count_if({differs}) AS differing_{number}"
            values = [self._text(side, name, f"{'on'[side]}.c{number}") for side in (0, 1)]
            yield from self._sampled(f"value_{number}", differs, values)
        for number in self._numbers:
            yield f"CAST(try_sum(so{number}) AS STRING) AS sum_{number}_0"
            yield f"CAST(try_sum(sn{number}) AS STRING) AS sum_{number}_1"

    def _sampled(self, name: str, where: str, values: Sequence[str]) -> Iterator[str]:
        """Yield aggregates for some rows, the same in each run: the least one of each of some shares of the keys."""
        texts = [*(self._text(0, key, f"k{n}") for n, key in enumerate(self._keys)), *values]
        row = f"array({', '.join(texts)})"
        groups = ", ".join(texts[: len(self._keys)])
        for share in range(SAMPLES):
            chosen = f"{where} AND pmod(xxhash64({groups}), {SAMPLES}) = {share}"
            yield f"min({row}) FILTER (WHERE {chosen}) AS {name}_{share}"

    @property
    def _numbers(self) -> dict[int, str]:
        """The columns of numbers, by their number among the compared ones."""
        kinds = {n: [types[name][1] for types in self._types] for n, name in enumerate(self._values)}
        return {n: self._values[n] for n, both in kinds.items() if all(map(_is_number, both))}

    def _summed(self, side: int, name: str) -> str:
        text, kind = quote(self._name(side, name)), self._types[side][name][1]
        if kind in _WHOLE:
            return f"CAST({text} AS DECIMAL(38, 0))"
        return f"CAST({text} AS DOUBLE)" if kind in _CLOSE else f"CAST({text} AS DECIMAL(38, {_scale(kind)}))"

    def _key(self, side: int, name: str) -> str:
        text, kind = quote(self._name(side, name)), self._types[side][name][1]
        if self._types[0][name][1] != self._types[1][name][1] and not self._comparable(name):
            return self._text(side, name, text)
        if self._has_key:
            return text
        if kind in _CLOSE:
            return f"CASE WHEN {text} IS NOT NULL THEN CAST(printf('%.8e', CAST({text} AS DOUBLE)) AS DOUBLE) END"
        return self._text(side, name, text) if _NO_EQUALITY.search(kind) else text

    def _comparable(self, name: str) -> bool:
        """Whether the values of both sides can be compared as they are."""
        first, second = (types[name][1] for types in self._types)
        return first == second or (_is_number(first) and _is_number(second))

    def _differs(self, number: int, name: str) -> str:
        old, new = f"o.c{number}", f"n.c{number}"
        kinds = [types[name][1] for types in self._types]
        if not self._comparable(name) or any(map(_NO_EQUALITY.search, kinds)):
            return f"NOT ({self._text(0, name, old)} <=> {self._text(1, name, new)})"
        close = _CLOSE.get("float" if "float" in kinds else "double") if _CLOSE.keys() & set(kinds) else None
        if close is None:
            return f"NOT ({old} <=> {new})"
        old, new = f"CAST({old} AS DOUBLE)", f"CAST({new} AS DOUBLE)"
        largest = f"greatest(abs({old}), abs({new}))"
        is_close = f"{largest} < double('infinity') AND abs({old} - {new}) <= {close} * {largest}"
        return f"NOT ({old} <=> {new} OR coalesce({is_close}, false))"

    def _text(self, side: int, name: str, value: str) -> str:
        """Return a value as text."""
        kind = self._types[side][name][1]
        if kind == "binary":
            return f"hex({value})"
        if "variant" in kind or "map<" in kind:
            return f"to_json(named_struct('v', {value}))"
        return f"CAST({value} AS STRING)"

    def _name(self, side: int, name: str) -> str:
        return self._types[side][name][0]

    # -- the result

    def _result(self, row: Mapping[str, Any]) -> Diff:
        both = int(row["both"])
        columns = [self._column(row, number, name, both) for number, name in enumerate(self._values)]
        return Diff(
            view=self._view,
            keys=tuple(self._name(0, name) for name in self._keys) if self._has_key else (),
            rows=(int(row["rows_before"]), int(row["rows_after"])),
            only_before=int(row["only_0"]),
            only_after=int(row["only_1"]),
            both=both,
            repeated=int(row["repeated"]),
            columns=tuple(columns),
            samples=(tuple(self._samples(row, "only_0")), tuple(self._samples(row, "only_1"))),
            dropped=self._dropped,
            added=self._added,
        )

    def _column(self, row: Mapping[str, Any], number: int, name: str, both: int) -> ColumnDiff:
        differing = int(row[f"differing_{number}"])
        sums = (row[f"sum_{number}_0"], row[f"sum_{number}_1"]) if number in self._numbers else None
        return ColumnDiff(
            name=self._name(0, name),
            differing=differing,
            share=differing / both if both else 0.0,
            sums=sums,
            types=(self._types[0][name][1], self._types[1][name][1]),
            samples=tuple(self._samples(row, f"value_{number}")),
        )

    def _samples(self, row: Mapping[str, Any], name: str) -> Iterator[Sample]:
        for share in range(SAMPLES):
            found = row[f"{name}_{share}"]
            if found is not None:
                keys = [self._name(0, key) for key in self._keys]
                yield Sample(dict(zip(keys, found, strict=False)), *found[len(keys) :])


def _is_number(kind: str) -> bool:
    return kind in _WHOLE or kind in _CLOSE or kind.startswith("decimal")


def _scale(kind: str) -> int:
    found = re.search(r",\s*(\d+)\)", kind)
    return int(found[1]) if found else 0
