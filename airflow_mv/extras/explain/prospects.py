# SPDX-License-Identifier: Apache-2.0
"""Predict the mode and the cost of a refresh after each kind of change of each base table. Pure.

The modes come from the same functions as those of a plan: :mod:`airflow_mv.core.refresh.candidates` and
:mod:`airflow_mv.core.refresh.choose`. Only the change is assumed: it is like the table's last change of the kind, or
one hundredth of its rows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from typing import Any

from airflow_mv.common.queries import use_of
from airflow_mv.core.freshness.changes import UNCHANGED, Kind, Range, Size, between
from airflow_mv.core.freshness.state import Freshness, State
from airflow_mv.core.ivm import BaseRelation, IncrementalQuery, ir
from airflow_mv.core.ivm.column_types import column_types
from airflow_mv.core.refresh.candidates import (
    BaseTableInput,
    Candidate,
    IncrementalInput,
    Statistics,
    StorageInput,
    base_costs,
    candidate,
)
from airflow_mv.core.refresh.choose import Choice, by_cost
from airflow_mv.core.refresh.incremental import Alternatives
from airflow_mv.core.refresh.plan import Estimate, StoredCost, full_cost, incremental_cost
from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.core.spec.properties import Policy
from airflow_mv.core.spec.reasons import Code, Mode, Reason
from airflow_mv.core.spec.table_metadata import Snapshot, TableMetadata, ancestors, known_sum
from airflow_mv.core.spec.units import human
from airflow_mv.core.sql.query import NestedView, ParsedQuery
from airflow_mv.extras.explain.requirement import Change

#: The newest commits among which a change of each kind is looked for.
_MAX_COMMITS = 100
#: The assumed part of the rows that change, if no commit shows it; and the part of the base tables' bytes that a view
#: with groups is assumed to hold before it is stored.
_CHANGED_PART, _GROUPED_PART = 100, 10
#: If only Spark knows a column's type, the worst mode for these types is the answer.
_ASSUMED_TYPES = ("string", "bigint", "double", "map<string, string>")
_Output = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Expected:
    """An expected change of a base table.

    Args:
        range: The change.
        like: Where its size comes from.
    """

    range: Range
    like: str


@dataclass(frozen=True, slots=True)
class Forecast:
    """The mode and the cost of a refresh after one change of one base table.

    Args:
        table: The base table.
        change: The kind of its change.
        mode: The mode that would be chosen.
        possible: The cheapest mode that the algebra allows; the costs may still prefer ``full``.
        reasons: Why this mode, and why not a cheaper one.
        estimates: The estimated costs, of the chosen mode first.
        like: Where the assumed size of the change comes from.
    """

    table: Identifier
    change: Change
    mode: Mode
    possible: Mode
    reasons: tuple[Reason, ...]
    estimates: tuple[Estimate, ...]
    like: str

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "base_table": str(self.table),
            "change": str(self.change),
            "mode": str(self.mode),
            "possible": str(self.possible),
            "like": self.like,
            "reasons": [reason.to_dict() for reason in self.reasons],
            "estimates": [asdict(estimate) for estimate in self.estimates],
        }


@dataclass(frozen=True, slots=True)
class QueryInputs:
    """The metadata of a query and its base tables before a refresh.

    Args:
        bases: Its base tables, unchanged.
        tables: Their metadata.
        pinned: Returns a query of these base tables with every table at its snapshot.
        stored: The size of the stored rows; ``None`` if unknown.
        factors: The view's measured factors, by mode.
    """

    view: str
    bases: tuple[BaseTableInput, ...]
    tables: Mapping[Identifier, TableMetadata]
    views: Mapping[Identifier, NestedView]
    pinned: Callable[[ParsedQuery], str]
    policy: Policy = field(default_factory=Policy)
    stored: StoredCost | None = None
    factors: Mapping[str, float] = field(default_factory=dict)

    @property
    def relations(self) -> tuple[BaseRelation, ...]:
        """The base tables as the algebra takes them, all of them changed."""
        return tuple(
            BaseRelation(base.identifier, f"t{number}", base.columns, changed=True, not_null=base.not_null)
            for number, base in enumerate(self.bases)
        )


def output_types(setting: QueryInputs, query: ParsedQuery) -> tuple[tuple[str, str | None], ...] | Reason:
    """Return name and type of each column of a query; a type that Spark alone knows is ``None``."""

    def types(_: object, tree: ir.Tree, __: object) -> tuple[tuple[str, str | None], ...]:
        return tuple(zip(ir.names(tree), column_types(tree), strict=True))

    return use_of(query, setting.relations, setting.views, types)


def prospects(
    setting: QueryInputs,
    query: ParsedQuery,
    output: Sequence[tuple[str, str | None]],
    kinds: Collection[Change] = tuple(Change),
) -> tuple[Forecast, ...]:
    """Return what a refresh would do after each kind of change of each base table.

    Args:
        setting: What is known.
        output: Its columns. For a column of an unknown type, the worst of all cases is returned.
    """
    outputs = {tuple((name, kind or assumed) for name, kind in output): assumed for assumed in _ASSUMED_TYPES}
    unknown = [name for name, kind in output if kind is None]
    found = [
        [_without_assumption(item, assumed, unknown) for item in _each(setting, query, each, kinds)]
        for each, assumed in outputs.items()
    ]
    return tuple(max(cases, key=_rank) for cases in zip(*found, strict=True))


def _without_assumption(item: Forecast, assumed: str, unknown: Sequence[str]) -> Forecast:
    """Say of a column whose type was assumed that the type is unknown."""
    if not unknown:
        return item
    named = re.compile(rf"column ({'|'.join(map(re.escape, unknown))}) of type {re.escape(assumed)}(?!\w)")
    reasons = [
        replace(reason, message=named.sub(r"column \1 of unknown type", reason.message)) for reason in item.reasons
    ]
    return replace(item, reasons=tuple(reasons))


def _rank(item: Forecast) -> tuple[int, int]:
    modes = list(Mode)
    return modes.index(item.possible), modes.index(item.mode)


def _each(setting: QueryInputs, query: ParsedQuery, output: _Output, kinds: Collection[Change]) -> list[Forecast]:
    stored = setting.stored or _assumed_storage(setting, query, output)
    given = IncrementalInput(
        view=setting.view,
        query=query,
        views=setting.views,
        output=output,
        pinned=setting.pinned(query),
        bases=setting.bases,
        stored=StorageInput("`stored`", tuple(name for name, _ in output), stored),
    )
    result = []
    for base in setting.bases:
        algebra: dict[Kind, Candidate | tuple[Reason, ...]] = {}
        for change in kinds:
            expected = expect(setting.tables[base.identifier], base.target, change)
            result.append(_prospect(setting, given, base.identifier, change, expected, algebra))
    return result


def _prospect(
    setting: QueryInputs,
    given: IncrementalInput,
    table: Identifier,
    change: Change,
    expected: Expected,
    algebra: dict[Kind, Candidate | tuple[Reason, ...]],
) -> Forecast:
    """Return one prospect. ``algebra`` holds what is known for changes that differ in nothing but their size."""
    if change == Change.COMPACT:
        why = Reason(Code.ONLY_REPLACED, f"{table}: a compaction changes no row")
        return Forecast(table, change, Mode.FAST_FORWARD, Mode.FAST_FORWARD, (why,), (), expected.like)
    bases = tuple(
        replace(base, range=expected.range if base.identifier == table else UNCHANGED) for base in given.bases
    )
    # The algebra knows whether rows were only added, and nothing else of a change.
    kind = Kind.APPENDED if expected.range.kind == Kind.APPENDED else Kind.REWRITTEN
    if kind not in algebra:
        algebra[kind] = candidate(replace(given, bases=bases), Statistics())
    found = algebra[kind]
    if isinstance(found, Candidate):
        estimate = incremental_cost(str(found.mode), base_costs(bases), given.stored.cost)
        found = replace(found, estimate=estimate)
    choice = _choice(setting, found, expected.range)
    possible = found.mode if isinstance(found, Candidate) else Mode.FULL
    return Forecast(table, change, choice.mode, possible, choice.reasons, choice.estimates, expected.like)


def _choice(setting: QueryInputs, found: Candidate | tuple[Reason, ...], change: Range) -> Choice:
    total = known_sum([base.total_bytes for base in setting.bases])
    rows = known_sum((change.size.rows_added, change.size.rows_deleted))
    full = full_cost(total, rows_changed=rows).corrected(setting.factors)
    policy = setting.policy
    if isinstance(found, Candidate):
        found = replace(found, estimate=found.estimate.corrected(setting.factors))
    else:
        policy = replace(policy, on_fallback="full", max_full_bytes=None)
    return by_cost(Freshness(State.STALE, (), ()), Alternatives(found, full), policy, view=setting.view)


def _assumed_storage(setting: QueryInputs, query: ParsedQuery, output: _Output) -> StoredCost:
    """Return an assumed size of the stored rows."""
    analysed = IncrementalQuery.analyse(query, setting.relations, output=output, views=setting.views)
    size = known_sum([base.total_bytes for base in setting.bases]) or 0
    rows = known_sum([setting.tables[base.identifier].rows_at(base.target) for base in setting.bases]) or 0
    part = 1
    if isinstance(analysed, IncrementalQuery) and analysed.is_grouped:
        part = max(rows, 1) if analysed.is_one_row else _GROUPED_PART
    return StoredCost(size // part, rows // part)


# ------------------------------------------------------------------------------- expected changes
def expect(table: TableMetadata, head: int | None, change: Change) -> Expected:
    """Return a change like the table's last one of a kind, or of one hundredth of its rows.

    Args:
        head: Its snapshot.
        change: The kind.
    """
    for snapshot in islice(ancestors(table, head), _MAX_COMMITS):
        parent = snapshot.parent_snapshot_id
        if parent is None or table.find(parent) is None:
            break  # the first commit loads the table
        found = between(table, parent, snapshot.snapshot_id)
        if _kind(snapshot, found) == change:
            like = f"as in snapshot {snapshot.snapshot_id}: {_size(found.size)}"
            return Expected(replace(found, schema_changed=False), like)
    found = _assumed(table, head, change)
    return Expected(found, f"assumed: {_size(found.size)}")


def _kind(snapshot: Snapshot, found: Range) -> Change | None:
    if found.kind == Kind.REPLACED:
        return Change.COMPACT
    if found.kind == Kind.APPENDED:
        return Change.APPEND if found.only_appends else None
    if snapshot.summary.get("replace-partitions") == "true":
        return Change.OVERWRITE
    return Change.DELETE if found.size.rows_added == 0 else Change.UPDATE


def _assumed(table: TableMetadata, head: int | None, change: Change) -> Range:
    total_rows, total_bytes = table.rows_at(head), table.bytes_at(head)
    rows, size = (None if total is None else max(total // _CHANGED_PART, 1) for total in (total_rows, total_bytes))
    whole = Size(total_rows=total_rows, total_bytes=total_bytes)
    if change == Change.COMPACT:
        return Range(Kind.REPLACED, (("replace", 1),), whole)
    if change == Change.APPEND:
        size_of = replace(whole, rows_added=rows, bytes_added=size)
        return Range(Kind.APPENDED, (("append", 1),), size_of, only_appends=True)
    added = 0 if change == Change.DELETE else rows
    moved = replace(whole, rows_added=added, rows_deleted=rows, bytes_added=size if added else 0)
    on_read = table.properties.get(f"write.{change}.mode") == "merge-on-read"
    if on_read and change != Change.OVERWRITE:
        moved = replace(
            whole, rows_added=added, rows_deleted=rows, bytes_added=size if added else 0, bytes_touched=size
        )
        return Range(Kind.POSITION_DELETES, (("delete" if added == 0 else "overwrite", 1),), moved)
    moved = replace(whole, rows_added=added, rows_deleted=rows, bytes_added=size if added else 0, bytes_removed=size)
    return Range(Kind.REWRITTEN, (("overwrite", 1),), moved)


def _size(size: Size) -> str:
    rows = known_sum((size.rows_added, size.rows_deleted))
    moved = known_sum((size.bytes_added, size.bytes_removed, size.bytes_touched))
    counted = "an unknown number of rows" if rows is None else f"{rows:,} row{'s' if rows != 1 else ''}"
    return f"{counted}, {human(moved)}"
