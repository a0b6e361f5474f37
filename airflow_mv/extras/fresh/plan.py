# SPDX-License-Identifier: Apache-2.0
"""Plan a fresh read: the steps of an incremental refresh, whose last one is read instead of written."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from airflow_mv.core.catalog import LoadedStorage, LoadedView, MaterializedViewCatalog
from airflow_mv.core.freshness.state import SnapshotSet, State
from airflow_mv.core.refresh.candidates import Statistics
from airflow_mv.core.refresh.choose import Choice, by_policy
from airflow_mv.core.refresh.incremental import alternatives
from airflow_mv.core.refresh.inputs import (
    RefreshInputs,
    RefreshOptions,
    load_inputs,
    load_tables,
    with_own_columns,
)
from airflow_mv.core.refresh.plan import Estimate, full_cost
from airflow_mv.core.refresh.statements import PartialRefresh, PinnedQuery, pin
from airflow_mv.core.script import (
    SESSION_CONFS,
    STORAGE,
    MergeAdditiveStep,
    ReplaceKeysStep,
    Script,
    SqlStep,
    Step,
    register,
    staged,
    temporary,
)
from airflow_mv.core.spec.identifiers import Identifier, quote
from airflow_mv.core.spec.properties import Policy
from airflow_mv.core.spec.reasons import Code, Mode, Reason
from airflow_mv.core.spec.table_metadata import known_sum
from airflow_mv.core.sql.types import columns_of

#: Stands for the refresh id in the script of a fresh read, which writes nothing.
_NO_REFRESH = "fresh-read"


class ReadMode(StrEnum):
    """How fresh rows are computed, cheapest first.

    ``stored``: nothing changed. ``append``, ``merge``, ``replace-keys``: as an incremental refresh computes them, with
    the stored rows. ``query``: the view's query at the current snapshots.
    """

    STORED = "stored"
    APPEND = "append"
    MERGE = "merge"
    REPLACE_KEYS = "replace-keys"
    QUERY = "query"


_MODES = {
    Mode.NOOP: ReadMode.STORED,
    Mode.FAST_FORWARD: ReadMode.STORED,
    Mode.APPEND: ReadMode.APPEND,
    Mode.MERGE: ReadMode.MERGE,
    Mode.REPLACE_KEYS: ReadMode.REPLACE_KEYS,
    Mode.FULL: ReadMode.QUERY,
}


@dataclass(frozen=True, slots=True)
class FreshPlan:
    """How the fresh rows of a view are read, and what that is expected to cost.

    Args:
        storage: The stored rows at the time of the plan. They are read at :attr:`snapshot_id`, whatever is refreshed
            since.
        reasons: Why this mode, in order of weight.
        estimates: The estimated costs of the compared modes, as of a refresh, the chosen one first.
        script: What Spark runs; ``None`` if only stored rows are read. Its last step inserts into, or overwrites, the
            stored rows: a reader interprets it as a query.
        inputs: The materialized views that it reads and that are not fresh, by the temporary view that the script has
            in their place.
    """

    view: LoadedView
    storage: LoadedStorage
    mode: ReadMode
    reasons: tuple[Reason, ...]
    estimates: tuple[Estimate, ...] = ()
    script: Script | None = None
    inputs: Mapping[str, FreshPlan] = field(default_factory=dict)

    @property
    def snapshot_id(self) -> int | None:
        """The snapshot of the stored rows."""
        return self.storage.rows_snapshot

    @property
    def bytes_read(self) -> int | None:
        """The bytes of files that are read: of the stored rows, and for what changed; ``None``: not known.

        A merge reads the stored rows of the changed groups, and then all others.
        """
        stored = None if self.mode == ReadMode.QUERY else self.storage.table.bytes_at(self.snapshot_id)
        computed = self.estimates[0].bytes_read if self.script is not None and self.estimates else 0
        own = [computed] if self.mode == ReadMode.QUERY else [stored, computed]
        return known_sum([*own, *(plan.bytes_read for plan in self.inputs.values())])

    def to_dict(self) -> dict[str, Any]:
        """Return the document of ``airflow-mv explain --fresh --json``."""
        table = self.storage.table
        return {
            "view": str(self.view.identifier),
            "mode": str(self.mode),
            "reasons": [reason.to_dict() for reason in self.reasons],
            "bytes_read": self.bytes_read,
            "rows_changed": self.estimates[0].rows_changed if self.estimates else 0,
            "stored_rows": table.rows_at(self.snapshot_id),
            "stored_bytes": table.bytes_at(self.snapshot_id),
            "estimates": [
                {
                    "mode": str(_MODES[Mode(item.mode)]),
                    "seconds": item.seconds,
                    "bytes_read": item.bytes_read,
                    "rows_changed": item.rows_changed,
                }
                for item in (self.estimates if self.script is not None else ())
            ],
            "inputs": [plan.to_dict() for plan in self.inputs.values()],
        }


def plan_fresh_read(
    catalog: MaterializedViewCatalog,
    chain: Sequence[Identifier],
    pins: SnapshotSet,
    statistics: Callable[[MaterializedViewCatalog], Statistics],
) -> FreshPlan:
    """Plan how the fresh rows of a view are read. Reads metadata only.

    Args:
        chain: The view, after the materialized views that it reads.
        pins: The current snapshots of the base tables of all of them.
        statistics: Gives the statistics of base tables' files.

    Raises:
        BaseTableNotFoundError: A base table cannot be read.
    """
    plans: dict[Identifier, FreshPlan] = {}
    for view in chain:
        inputs = load_inputs(catalog, view, RefreshOptions(statistics=statistics), pins=pins)
        plans[view] = _plan(catalog, inputs, plans)
    return plans[chain[-1]]


def _plan(catalog: MaterializedViewCatalog, inputs: RefreshInputs, plans: Mapping[Identifier, FreshPlan]) -> FreshPlan:
    seen = inputs.observation
    read = {table.name: plans[table.view] for table in seen.tables if table.view is not None and table.view in plans}
    computed = {name: plan for name, plan in read.items() if plan.mode != ReadMode.STORED}
    if computed:
        return _over_fresh_inputs(_with_metadata(catalog, inputs), computed)
    choice = _choose(inputs)
    found = FreshPlan(seen.view, seen.storage, _MODES[choice.mode], choice.reasons, choice.estimates)
    if found.mode == ReadMode.STORED:
        return found
    return replace(found, script=_script(inputs, inputs.pinned_query(), choice))


def _choose(inputs: RefreshInputs) -> Choice:
    """Choose as a refresh does. What a view's policy forbids is to write: a recompute may always be read."""
    view, freshness = inputs.observation.view, inputs.observation.freshness
    if freshness.of_rows == State.FRESH:
        return Choice(Mode.NOOP, freshness.reasons)
    name = str(view.identifier)
    policy = replace(Policy.of(view.metadata.properties, view=name), on_fallback="full", max_full_bytes=None)
    return by_policy(
        freshness,
        policy,
        strategy=view.materialized.refresh_strategy,
        forced=False,
        same_schema=inputs.same_schema,
        found=lambda: alternatives(inputs),
        full=lambda: inputs.full_estimate,
        view=name,
    )


def _with_metadata(catalog: MaterializedViewCatalog, inputs: RefreshInputs) -> RefreshInputs:
    """Return inputs with the metadata of the base tables, which those of a fresh view lack."""
    if inputs.tables:
        return inputs
    tables = load_tables(catalog, inputs.observation.tables)
    return replace(inputs, tables=tables, observation=with_own_columns(inputs.observation, tables))


def _over_fresh_inputs(inputs: RefreshInputs, below: Mapping[Identifier, FreshPlan]) -> FreshPlan:
    """Plan the query over the fresh rows of the materialized views that it reads.

    How these rows change is not known without computing them, so the stored rows of the view are not used.
    """
    seen = inputs.observation
    names = {name: temporary(f"input_{number}") for number, name in enumerate(below)}
    tables = {
        name: replace(table, sql=names[name], is_temporary=True) if name in names else table
        for name, table in inputs.pinned_tables().items()
    }
    places = {name: place for name, place in seen.places.items() if name not in names}
    pinned = replace(pin(seen.query, seen.dependencies, tables, places), reads=())
    reasons = tuple(
        Reason(Code.INPUT_STALE, f"{plan.view.identifier} is not fresh: the query is run over its fresh rows")
        for plan in below.values()
    )
    others = [inputs.metadata(item).bytes_at(item.head) for item in seen.tables if item.name not in names]
    estimate = full_cost(known_sum(others))
    choice = Choice(Mode.FULL, (*seen.freshness.reasons, *reasons), None, (estimate,))
    script = _script(inputs, pinned, choice)
    found = {names[name]: plan for name, plan in below.items()}
    return FreshPlan(seen.view, seen.storage, ReadMode.QUERY, choice.reasons, (estimate,), script, found)


def _script(inputs: RefreshInputs, pinned: PinnedQuery, choice: Choice) -> Script:
    """Return the script of a refresh without what only a refresh needs: a branch, the settings of the table."""
    seen = inputs.observation
    view, storage = seen.view, seen.storage
    columns = columns_of({"fields": view.metadata.schema_.fields})
    place = storage.place
    stored = _at(place, storage.rows_snapshot) if isinstance(place, Identifier) else staged(STORAGE)
    opening = [] if isinstance(place, Identifier) else [register(STORAGE, place)]
    opening += [register(table, location) for table, location in sorted(pinned.nested.items())]
    query = SqlStep(f"INSERT OVERWRITE {stored}\n{pinned.sql}", pinned.sql if pinned.reads else "")
    script = Script(
        str(view.identifier),
        _NO_REFRESH,
        stored,
        (*opening, query),
        None,
        SESSION_CONFS,
        len(pinned.nested),
        query=pinned.sql,
        types=tuple(columns),
        reads=pinned.reads,
    )
    if choice.candidate is None:
        return script
    *steps, last = choice.candidate.steps
    work = PartialRefresh((), may_recompute=True, bytes_read=choice.estimates[0].bytes_read or 0)
    reading = (*opening, *steps, _reading(last, storage.target.written, stored))
    return replace(script, steps=reading, confs=(*script.confs, *work.confs), incremental=True, fallback=(query,))


def _at(table: Identifier, snapshot: int | None) -> str:
    """Return the quoted name of a table at a snapshot, as a name that may be followed by options."""
    return table.sql() if snapshot is None else f"{table.sql()}.{quote(f'snapshot_id_{snapshot}')}"


def _reading(step: Step, written: str, stored: str) -> Step:
    """Return the last step of an incremental refresh so that it computes all rows from those that are stored.

    Args:
        step: The step.
        written: The quoted name by which it writes to the storage table.
        stored: That by which the stored rows are read.
    """
    if isinstance(step, SqlStep):
        return replace(step, sql=step.sql.replace(f"INSERT INTO {written}\n", f"INSERT INTO {stored}\n", 1))
    if isinstance(step, ReplaceKeysStep | MergeAdditiveStep):
        return replace(step, table=stored, how="overwrite")
    raise TypeError(step)
