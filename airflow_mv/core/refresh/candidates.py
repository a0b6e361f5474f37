# SPDX-License-Identifier: Apache-2.0
"""Find the refresh modes that are possible for a view's changes: append, merge, replace-keys, or none.

Each mode is correct wherever the algebra (:mod:`airflow_mv.core.ivm`) allows it; the cost decides which one
runs. A mode that is not taken is reported with its reason.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from airflow_mv.core.freshness.changes import DIFFERABLE, Kind, Range
from airflow_mv.core.ivm import Appended, BaseRelation, Comparison, IncrementalQuery, Merged, Replaced, regenerated_sql
from airflow_mv.core.refresh.plan import SMALL_STORAGE, BaseCost, Estimate, StoredCost, incremental_cost
from airflow_mv.core.script import (
    STAGING,
    DeltaStep,
    DeterminismStep,
    MergeAdditiveStep,
    ReplaceKeysStep,
    SqlStep,
    Step,
    temporary,
)
from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.core.spec.reasons import Code, Mode, Reason
from airflow_mv.core.spec.table_metadata import known_sum
from airflow_mv.core.sql.query import UNFILTERED, NestedView, ParsedQuery, selected

#: A change that is broadcast to all tasks.
_SMALL_ROWS, _SMALL_BYTES = 200_000, 32 * 1024 * 1024
#: Reading tables of so many bytes takes longer than a query for the bounds of a change.
_LARGE_BYTES = 64 * 1024 * 1024
_KEEPS_ROWS = frozenset({Kind.UNCHANGED, Kind.REPLACED})


@dataclass(frozen=True, slots=True)
class AppendedFiles:
    """Commits that appended rows to a table, and whose files have statistics of its current columns.

    Args:
        metadata_location: A metadata file of the table that contains the snapshots.
        snapshots: The appending snapshots.
    """

    table: Identifier
    metadata_location: str
    snapshots: frozenset[int]

    def may_match(self, statistics: Statistics, filters: Sequence[tuple[Comparison, ...]]) -> bool:
        """Whether one of their rows may pass one of several filters."""
        if not self.snapshots:
            return False
        return statistics.added_rows_may_match(self.table, self.metadata_location, self.snapshots, filters)


@dataclass(frozen=True, slots=True)
class SnapshotFiles:
    """The data files of a table's recorded and target snapshots, which have statistics of each column.

    Args:
        metadata_location: A metadata file of the table that contains the snapshots.
        snapshots: Both snapshots.
        ids: The field id of each column that is the same column in both.
    """

    table: Identifier
    metadata_location: str
    snapshots: frozenset[int]
    ids: Mapping[str, int]

    def without_nulls(self, statistics: Statistics, columns: Collection[str]) -> frozenset[str]:
        """Return those of some columns that are proven to have a value in every row of both snapshots."""
        asked = {name: self.ids[name] for name in columns if name in self.ids}
        if not asked:
            return frozenset()
        found = statistics.fields_without_nulls(
            self.table, self.metadata_location, self.snapshots, frozenset(asked.values())
        )
        return frozenset(name for name, number in asked.items() if number in found)


class Statistics:
    """The statistics of base tables' data files. Here none are known, so a file may have any rows.

    They are the only input that a decision reads itself, and only on demand.
    """

    def fields_without_nulls(
        self, table: Identifier, metadata_location: str, snapshots: Collection[int], fields: Collection[int]
    ) -> frozenset[int]:
        """Return those of some fields, by id, that have no NULL in any data file of some snapshots of a table.

        Args:
            metadata_location: A metadata file of the table that knows the snapshots.
            fields: Ids of top-level columns.
        """
        return frozenset()

    def added_rows_may_match(
        self,
        table: Identifier,
        metadata_location: str,
        snapshots: Collection[int],
        filters: Sequence[Sequence[Comparison]],
    ) -> bool:
        """Whether a row that was appended to a table may match one of several filters.

        Args:
            metadata_location: A metadata file of the table that knows the snapshots.
            snapshots: The appending snapshots.
            filters: Filters; a row that passes one of them matters.
        """
        return True

    def rows_copied(self, table: Identifier, metadata_location: str, snapshots: Collection[int]) -> int | None:
        """Return how many rows some commits copied unchanged into new data files; ``None`` if unknown.

        Args:
            table: The table, whose rows have ids.
            metadata_location: A metadata file of the table that knows the snapshots.
        """
        return None


@dataclass(frozen=True, slots=True)
class BaseTableInput:
    """A base table between the recorded refresh and the next one.

    Args:
        sql: Its quoted name in Spark.
        columns: Name and Spark type of each column now.
        recorded: The snapshot that the stored rows were computed from; ``None`` for no rows.
        target: The snapshot to refresh to; ``None`` for no rows.
        range: The change between the two snapshots.
        total_bytes: Bytes of its files now; ``None``: unknown.
        kept: Columns that the recorded snapshot also has, with the same id and type, as far as the queries read them.
        partial: Those of them whose types differ, in nested fields that no query reads.
        before: Name and Spark type of each column at the recorded snapshot; empty: as now.
        not_null: Columns that are NOT NULL now and at the recorded snapshot.
        schema_is_current: Whether the target has the table's current columns: a scan of appends returns these.
        appended: The commits since the recorded snapshot; ``None`` if not all of them are appends, or columns
            changed since.
        files: The files of both snapshots; ``None``: their statistics cannot be read.
        has_row_ids: Whether its rows have ids.
        rows_copied: How many of the added rows, and of the removed ones, are unchanged copies; ``None`` if unknown.
        merge_on_read_files: How many data and delete files both snapshots have, if one has delete files; else, or if
            that is not known, ``None``.
        floats: Its floating-point columns by which the queries may filter, and their Spark types.
    """

    identifier: Identifier
    sql: str
    columns: tuple[tuple[str, str], ...]
    recorded: int | None
    target: int | None
    range: Range
    total_bytes: int | None
    kept: frozenset[str]
    before: tuple[tuple[str, str], ...] = ()
    not_null: frozenset[str] = frozenset()
    schema_is_current: bool = True
    appended: AppendedFiles | None = None
    files: SnapshotFiles | None = None
    has_row_ids: bool = False
    rows_copied: int | None = None
    merge_on_read_files: int | None = None
    partial: frozenset[str] = frozenset()
    floats: Mapping[str, str] = field(default_factory=dict)

    @property
    def changed(self) -> bool:
        """Whether rows may have changed."""
        return self.range.kind not in _KEEPS_ROWS


@dataclass(frozen=True, slots=True)
class StorageInput:
    """The storage table of an incremental refresh.

    Args:
        table: Quoted name that the script writes to.
        columns: Its columns, in order.
        cost: Its size.
    """

    table: str
    columns: tuple[str, ...]
    cost: StoredCost


@dataclass(frozen=True, slots=True)
class Candidate:
    """A possible incremental refresh.

    Args:
        steps: What Spark does, after the storage table is registered.
        reasons: Why this mode, and why not a cheaper one.
        estimate: Its estimated cost.
    """

    mode: Mode
    steps: tuple[Step, ...]
    reasons: tuple[Reason, ...]
    estimate: Estimate


@dataclass(frozen=True, slots=True)
class IncrementalInput:
    """The input of an incremental refresh of a view.

    Args:
        output: Name and Spark type of each of the view's columns.
        pinned: The query with every base table at its target snapshot, columns named as the view's.
    """

    view: str
    query: ParsedQuery
    views: Mapping[Identifier, NestedView]
    output: tuple[tuple[str, str], ...]
    pinned: str
    bases: tuple[BaseTableInput, ...]
    stored: StorageInput


def candidate(given: IncrementalInput, statistics: Statistics) -> Candidate | tuple[Reason, ...]:
    """Return the cheapest incremental refresh of a view, or the reasons why there is none.

    Args:
        statistics: Of its base tables.
    """
    broken = tuple(reason for base in given.bases if (reason := _broken(base)) is not None)
    if broken:
        return broken
    gathering = _gathering(given.bases)
    relations = {
        base.identifier: _relation(number, base, gathers=base is gathering) for number, base in enumerate(given.bases)
    }
    query = IncrementalQuery.analyse(given.query, tuple(relations.values()), output=given.output, views=given.views)
    if isinstance(query, Reason):
        return (query,)
    changed_columns = _changed_columns(given.bases, query) or _changed_names(given, query, relations)
    if changed_columns:
        return changed_columns
    unseen = _unseen(given.bases, query, statistics)
    if unseen is not None:
        return unseen
    again = regenerated_sql(given.pinned)
    if isinstance(again, Reason):
        return (again,)
    return _Candidates(given, query, relations, again, statistics).cheapest()


@dataclass(frozen=True, slots=True)
class _Candidates:
    """The incremental refreshes that one view allows."""

    given: IncrementalInput
    query: IncrementalQuery
    relations: Mapping[Identifier, BaseRelation]
    #: The pinned query, regenerated.
    again: str
    statistics: Statistics

    def cheapest(self) -> Candidate | tuple[Reason, ...]:
        refused: dict[Reason, list[Mode]] = {}
        merge = self._merge if self.query.is_grouped else self._merge_rows
        builders = {Mode.APPEND: self._append, Mode.MERGE: merge, Mode.REPLACE_KEYS: self._replace_keys}
        for mode, build in builders.items():
            found = build()
            if isinstance(found, Candidate):
                return Candidate(found.mode, found.steps, (*found.reasons, *_reasons(refused)), found.estimate)
            refused.setdefault(found, []).append(mode)
        return _reasons(refused)

    def _append(self) -> Candidate | Reason:
        one_by_one = all(_row_by_row(base) for base in self.given.bases if base.changed)
        found = self.query.append(consolidated=not one_by_one, broadcast=self._small)
        if not isinstance(found, Appended):
            return found
        statement = "\nUNION ALL\n".join(found.terms)
        insert = SqlStep(f"INSERT INTO {self.given.stored.table}\n{statement}")
        text = "append-only changes: each added row contributes only its own rows to the view"
        return self._candidate(Mode.APPEND, (*self._relations(found, only_added=True), insert), text)

    def _merge(self) -> Candidate | Reason:
        text = "new aggregates are computed from the stored aggregates and the changed rows"
        found = self.query.merge(broadcast=self._small)
        if isinstance(found, Reason) and found.code == Code.NO_VISIBLE_COUNT:
            counted = self.query.merge(broadcast=self._small, without_nulls=self._without_nulls())
            if isinstance(counted, Merged):
                found = counted
                text += "; count(*) counts the summed values: by the file statistics no summed column has a NULL"
        return self._merged(found, text, weighted=False)

    def _without_nulls(self) -> Mapping[Identifier, frozenset[str]]:
        """Return the columns of each base table that are not NULL in any row before and after the change."""
        return {
            base.identifier: base.files.without_nulls(self.statistics, self.query.used_columns.get(base.identifier, ()))
            for base in self.given.bases
            if base.files is not None
        }

    def _merge_rows(self) -> Candidate | Reason:
        text = "the new number of copies of each changed row follows from the stored copies and the change"
        return self._merged(self.query.merge_rows(broadcast=self._small), text, weighted=True)

    def _merged(self, found: Merged | Reason, text: str, *, weighted: bool) -> Candidate | Reason:
        if not isinstance(found, Merged):
            return found
        step = MergeAdditiveStep(
            table=self.given.stored.table,
            columns=self.given.stored.columns,
            keys=found.keys,
            changes=found.signed,
            combine=found.template,
            not_null=_never_null(found),
            how=self._how,
            weighted=weighted,
        )
        only_added = all(relation.appended_only for relation in self.relations.values() if relation.changed)
        relations = self._relations(found, only_added=only_added)
        return self._candidate(Mode.MERGE, (*relations, step), f"{text}; {self._rewritten}")

    def _replace_keys(self) -> Candidate | Reason:
        found = self.query.replace_keys(broadcast=self._small)
        if not isinstance(found, Replaced):
            return found
        unless = found.affected_unless_constants or ""
        step = ReplaceKeysStep(
            table=self.given.stored.table,
            query=self.given.pinned,
            columns=self.given.stored.columns,
            affected=found.affected,
            keys=found.keys,
            not_null=_never_null(found),
            how=self._how,
            constants=found.constants,
            affected_unless=unless,
        )
        text = f"the rows of the affected keys ({', '.join(found.keys)}) are recomputed and replaced; {self._rewritten}"
        if self.query.is_one_row:
            text = "the only row is recomputed if the change affects it"
        elif found.constants:
            text += "; all rows are recomputed if the value of a subquery has changed"
        relations = self._relations(found)
        return self._candidate(Mode.REPLACE_KEYS, (*relations, step), text)

    @property
    def _how(self) -> str:
        return "overwrite" if self.given.stored.cost.bytes <= SMALL_STORAGE else "positions"

    @property
    def _rewritten(self) -> str:
        if self._how == "overwrite":
            return "the stored rows are few, so all of them are rewritten"
        return "no other stored rows are rewritten"

    @property
    def _small(self) -> bool:
        """Whether the whole change can be broadcast to every task."""
        changed = [cost for cost in base_costs(self.given.bases) if cost.range is not None]
        rows = known_sum([cost.changed_rows for cost in changed])
        size = known_sum([cost.changed_bytes for cost in changed])
        return rows is not None and rows <= _SMALL_ROWS and size is not None and size <= _SMALL_BYTES

    def _candidate(self, mode: Mode, steps: Sequence[Step], text: str) -> Candidate:
        costs = base_costs(self.given.bases)
        estimate = incremental_cost(str(mode), costs, self.given.stored.cost)
        probe = DeterminismStep(self.given.pinned, self.again)
        return Candidate(mode, (probe, *steps), (Reason(Code.INCREMENTAL, text),), estimate)

    def _relations(self, found: Appended | Merged | Replaced, *, only_added: bool = False) -> tuple[Step, ...]:
        """Return the steps that create the relations that the statements read, and no others."""
        steps: list[Step] = []
        # Rows are gathered that match the other changes, so these come first.
        for base in sorted(self.given.bases, key=lambda item: self.relations[item.identifier].gathers):
            relation = self.relations[base.identifier]
            columns = self.query.used_columns.get(base.identifier, ())
            for version, snapshot in (("new", base.target), ("old", base.recorded)):
                if found.reads.get(f"{relation.name}__{version}"):
                    steps.append(_pinned(relation, version, base, columns, snapshot))
            uses, near_views = found.reads.get(f"{relation.name}__delta", 0), _near_views(relation, found)
            uses += sum(match.other == relation.name for _, match in found.near)
            if uses or near_views:
                where = self.query.conditions.get(base.identifier, "")
                delta = _delta(relation, base, columns, where, uses)
                joined = self.query.joined_columns.get(base.identifier, ())
                delta = replace(delta, only_added=only_added, near=_near(relation, found), near_views=near_views)
                steps.append(replace(delta, joined=joined, bounded=bool(joined) and self._joins_large_tables(base)))
        return tuple(steps)

    def _joins_large_tables(self, base: BaseTableInput) -> bool:
        """Whether a base table's change may be joined with the whole of large tables.

        Of a table that gathers, only the rows that match changes are read.
        """
        others = (item for item in self.given.bases if item is not base)
        read = [item.total_bytes for item in others if not self.relations[item.identifier].gathers]
        return (known_sum(read) or 0) >= _LARGE_BYTES


def _reasons(refused: Mapping[Reason, Sequence[Mode]]) -> tuple[Reason, ...]:
    return tuple(Reason(why.code, f"no {' or '.join(modes)}: {why.message}") for why, modes in refused.items())


def base_costs(bases: Sequence[BaseTableInput]) -> tuple[BaseCost, ...]:
    """Return the base tables in the form of the estimates."""
    return tuple(
        BaseCost(base.range if base.changed else None, base.total_bytes, base.has_row_ids, base.rows_copied)
        for base in bases
    )


def _gathering(bases: Sequence[BaseTableInput]) -> BaseTableInput | None:
    """Return the table of which one scan finds both its change and the rows that match changes of other tables.

    It is the largest one of several changed tables, if its files are read because rows were deleted or rewritten.
    """
    changed = [(base, cost) for base, cost in zip(bases, base_costs(bases), strict=True) if base.changed]
    if len(changed) < 2:
        return None
    largest, cost = max(changed, key=lambda pair: pair[0].total_bytes or 0)
    return largest if cost.is_read_once else None


def _relation(number: int, base: BaseTableInput, *, gathers: bool) -> BaseRelation:
    return BaseRelation(
        identifier=base.identifier,
        name=f"{STAGING}-t{number}",
        columns=base.columns,
        changed=base.changed,
        appended_only=base.range.kind == Kind.APPENDED,
        not_null=base.not_null,
        gathers=gathers,
    )


def _pinned(
    relation: BaseRelation, version: str, base: BaseTableInput, columns: Sequence[str], snapshot: int | None
) -> SqlStep:
    items, unfiltered = selected(columns, base.floats) if columns else ("1 AS `__none`", False)
    reference = snapshot if snapshot is not None else base.target if base.target is not None else base.recorded
    pinned = base.sql if reference is None else f"{base.sql} VERSION AS OF {reference}"
    where = " WHERE FALSE" if snapshot is None else f" WHERE {UNFILTERED}" if unfiltered else ""
    view = _view(relation.name, version)
    return SqlStep(f"CREATE OR REPLACE TEMPORARY VIEW {view} AS\nSELECT {items} FROM {pinned}{where}", view=view)


def _view(name: str, version: str) -> str:
    """Return the quoted name of the temporary view of a relation's version."""
    return temporary(f"{name.removeprefix(STAGING + '-')}__{version}")


def _near_views(relation: BaseRelation, found: Appended | Merged | Replaced) -> tuple[tuple[str, str], ...]:
    """Return the views with gathered rows that the statements read, by version."""
    return tuple(
        (version, _view(relation.name, f"near_{version}"))
        for version in ("new", "old")
        if found.reads.get(f"{relation.name}__near_{version}")
    )


def _near(relation: BaseRelation, found: Appended | Merged | Replaced) -> tuple[tuple[str, str, str], ...]:
    """Return the matches that the gathered rows of a relation have."""
    matches = sorted((item.column, item.other, item.other_column) for name, item in found.near if name == relation.name)
    return tuple((column, _view(other, "delta"), theirs) for column, other, theirs in matches)


def _delta(relation: BaseRelation, base: BaseTableInput, columns: Sequence[str], where: str, uses: int) -> DeltaStep:
    return DeltaStep(
        view=_view(relation.name, "delta"),
        table=base.sql,
        start=base.recorded,
        end=base.target,
        columns=tuple(columns),
        kind="append" if base.range.only_appends and base.schema_is_current else "diff",
        where=where,
        uses=uses,
        merge_on_read_files=base.merge_on_read_files,
        partial=tuple(column for column in columns if column in base.partial),
    )


def _broken(base: BaseTableInput) -> Reason | None:
    """Return why the change of a table cannot be determined."""
    kind = base.range.kind
    if not base.changed or kind in DIFFERABLE:
        return None
    if kind == Kind.EXPIRED:
        text = f"{base.identifier}: the recorded snapshot has expired; keep it with a tag, or keep snapshots longer"
        return Reason(Code.SNAPSHOT_EXPIRED, text)
    if kind == Kind.RECREATED:
        return Reason(Code.BASE_RECREATED, f"{base.identifier} was dropped and recreated since the recorded refresh")
    return Reason(Code.BASE_CHANGED, f"the change of {base.identifier} cannot be determined from its metadata")


def _changed_columns(bases: Sequence[BaseTableInput], query: IncrementalQuery) -> tuple[Reason, ...]:
    """Return the tables in which a column that the query reads was a different column at the recorded snapshot."""
    reasons = []
    for base in bases:
        changed = [column for column in query.used_columns.get(base.identifier, ()) if column not in base.kept]
        if changed:
            text = f"{base.identifier}: columns changed since the recorded snapshot: {', '.join(changed)}"
            reasons.append(Reason(Code.SCHEMA_CHANGED, text))
    return tuple(reasons)


def _changed_names(
    given: IncrementalInput, query: IncrementalQuery, relations: Mapping[Identifier, BaseRelation]
) -> tuple[Reason, ...]:
    """Return whether a name in the query meant another column when the recorded rows were computed.

    If a column is dropped or renamed, its name may be found in another table, and a NATURAL JOIN has a key less.
    """
    gone = {base.identifier: base.before for base in given.bases if {name for name, _ in base.before} - base.kept}
    if not gone:
        return ()
    before = [replace(item, columns=gone.get(name, item.columns)) for name, item in relations.items()]
    then = IncrementalQuery.analyse(given.query, before, output=given.output, views=given.views)
    if not isinstance(then, Reason) and _as_sets(then.used_columns) == _as_sets(query.used_columns):
        return ()
    tables = ", ".join(map(str, gone))
    text = (
        f"{tables}: columns were dropped or renamed since the recorded snapshot, so a name in the query may have had "
        "another meaning"
    )
    return (Reason(Code.SCHEMA_CHANGED, text),)


def _as_sets(columns: Mapping[Identifier, Sequence[str]]) -> dict[Identifier, frozenset[str]]:
    return {name: frozenset(used) for name, used in columns.items()}


def _row_by_row(base: BaseTableInput) -> bool:
    """Whether equal added rows stay separate. Where rows must be compared, equal rows may be combined."""
    change = base.range
    return change.only_appends and base.schema_is_current and "replace" not in dict(change.operations)


def _never_null(found: Merged | Replaced) -> tuple[str, ...]:
    return tuple(key for key, never in zip(found.keys, found.not_null, strict=True) if never)


def _unseen(bases: Sequence[BaseTableInput], query: IncrementalQuery, statistics: Statistics) -> Candidate | None:
    """If no changed row can pass the query's filters, the stored rows stay as they are, and no Spark is needed."""
    filters = query.filters
    reasons = []
    for base in (item for item in bases if item.changed):
        wanted = filters.get(base.identifier, [()])
        if base.appended is None or base.appended.may_match(statistics, wanted):
            return None
        conditions = " or ".join(" and ".join(map(str, comparisons)) for comparisons in wanted)
        text = f"{base.identifier}: according to the file statistics, no added row matches {conditions}"
        reasons.append(Reason(Code.FILTERED_OUT, text))
    return Candidate(Mode.FAST_FORWARD, (), tuple(reasons), Estimate("fast-forward", 0.1, 0, 0))
