# SPDX-License-Identifier: Apache-2.0
"""Refresh a view in three steps: plan (metadata only), stage (Spark), publish (one swap).

What passes between the steps is data that survives as JSON, so a task may stop between two of them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from airflow_mv.catalog import MaterializedViewCatalog
from airflow_mv.catalog.files import join
from airflow_mv.commit import Effects, PublishOutcome
from airflow_mv.commit import publish as publish_staged
from airflow_mv.errors import (
    CommitConflictError,
    InvalidQueryError,
    JobError,
    MetadataFileNotFoundError,
)
from airflow_mv.observe import Observation, dependencies_of, observe, require_readable
from airflow_mv.plan.freshness import Code, ObservedTable, Reason, State
from airflow_mv.plan.planner import Choice, FallbackPolicy, Mode, RefreshPlan, choose, refresh_id
from airflow_mv.plan.query import PinnedTable, pin_query
from airflow_mv.plan.statements import full_refresh, staged
from airflow_mv.script import Outcome, Script
from airflow_mv.spec.identifiers import Identifier
from airflow_mv.spec.table import snapshots_between

log = logging.getLogger(__name__)

#: Runs a script somewhere and says what it did.
Stager = Callable[[Script], Outcome]
#: Base tables that a run has pinned.
Pins = dict[Identifier, ObservedTable]

_MAX_PLANS = 6


@dataclass(frozen=True, slots=True)
class RefreshOptions:
    """How to refresh.

    Args:
        as_of: Read the base tables as they were then (an aware time), instead of as they are now.
        full: Recompute although nothing may have changed.
        on_fallback: What to do where an incremental view would have to be recomputed in full.
    """

    as_of: datetime | None = None
    full: bool = False
    on_fallback: FallbackPolicy = "full"


@dataclass(frozen=True, slots=True)
class RefreshResult:
    """What a refresh came to; :meth:`to_dict` is the document of command line and XCom.

    Args:
        view: The view.
        outcome: ``refreshed``, ``fresh``, ``already-committed``, ``superseded`` or ``skipped``.
        mode: The mode that ran.
        reasons: Why that mode.
        refresh_id: The refresh that the stored rows are of; ``None`` where there is none.
        storage_table_location: The storage metadata file that the view names now.
        rows_written: Rows that this refresh wrote.
        seconds: Wall-clock time of all steps.
        snapshots: Snapshot by base table that the refresh read; ``-1`` for an empty table.
    """

    view: Identifier
    outcome: str
    mode: Mode
    reasons: tuple[Reason, ...]
    refresh_id: str | None
    storage_table_location: str
    rows_written: int
    seconds: float
    snapshots: tuple[tuple[str, int], ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON document."""
        return {
            "view": str(self.view),
            "outcome": self.outcome,
            "mode": str(self.mode),
            "reasons": [reason.to_dict() for reason in self.reasons],
            "refresh_id": self.refresh_id,
            "storage_table_location": self.storage_table_location,
            "rows_written": self.rows_written,
            "seconds": round(self.seconds, 3),
            "base_tables": dict(self.snapshots),
        }


@dataclass(frozen=True, slots=True)
class ViewStatus:
    """The freshness of a view; :meth:`to_dict` is the document of ``airflow-mv status``."""

    observation: Observation

    @property
    def state(self) -> State:
        """The verdict."""
        return self.observation.freshness.state

    @property
    def reasons(self) -> tuple[Reason, ...]:
        """Why."""
        return self.observation.freshness.reasons

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON document."""
        record = self.observation.record
        return {
            "view": str(self.observation.view.identifier),
            "state": str(self.state),
            "refresh_id": record.refresh_id if record else None,
            "refreshed_at": timestamp(record.refreshed_at_ms) if record else None,
            "version_id": self.observation.view.metadata.current_version_id,
            "base_tables": [change.to_dict() for change in self.observation.freshness.base_tables],
            "reasons": [reason.to_dict() for reason in self.reasons],
        }


def timestamp(milliseconds: int | None) -> str | None:
    """Return ms since the epoch as ISO 8601 in UTC."""
    return None if milliseconds is None else datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat()


def status(catalog: MaterializedViewCatalog, view: str | Identifier) -> ViewStatus:
    """Say how a view stands to its base tables. Reads metadata only.

    Raises:
        ViewNotFoundError, NotMaterializedError, InvalidMetadataError, MetadataFileNotFoundError: See there.
    """
    return ViewStatus(observe(catalog, view))


def plan_refresh(
    catalog: MaterializedViewCatalog,
    view: str | Identifier,
    options: RefreshOptions | None = None,
    *,
    pins: Pins | None = None,
) -> RefreshPlan:
    """Plan a refresh: what would run, and why. Reads metadata only.

    Args:
        catalog: Where the view is.
        view: The view.
        options: How to refresh.
        pins: See :func:`airflow_mv.observe.observe`.

    Raises:
        BaseTableNotFoundError: A base table cannot be read.
        RefreshRefusedError: The fallback policy forbids what would be needed.
    """
    options = options or RefreshOptions()
    observation = observe(catalog, view, as_of=options.as_of, pins=pins)
    require_readable(observation)
    loaded = observation.view
    choice = choose(
        observation.freshness,
        strategy=loaded.materialized.refresh_strategy,
        forced=options.full,
        on_fallback=options.on_fallback,
        view=str(loaded.identifier),
    )
    if options.as_of is not None and (why := _older_than_recorded(observation)) is not None:
        choice = Choice(Mode.NOOP, (why,))
    records = tuple(table.record() for table in observation.tables)
    identity = refresh_id(
        view_uuid=loaded.metadata.view_uuid,
        version_id=loaded.metadata.current_version_id,
        records=records,
        nested_views=observation.nested_views,
        scope=str(choice.mode),
        storage_table_location=observation.storage.location,
    )
    plan = RefreshPlan(
        view=loaded.identifier,
        view_uuid=loaded.metadata.view_uuid,
        version_id=loaded.metadata.current_version_id,
        metadata_location=loaded.metadata_location,
        storage_table_location=observation.storage.location,
        mode=choice.mode,
        reasons=choice.reasons,
        refresh_id=identity,
        records=records,
        nested_views=observation.nested_views,
        changes=observation.freshness.base_tables,
        state=observation.freshness.state,
    )
    return plan if plan.mode != Mode.FULL else plan.with_script(_full_script(catalog, observation, identity))


def stage(catalog: MaterializedViewCatalog, plan: RefreshPlan, stager: Stager) -> Outcome | None:
    """Run a plan's script, so that its rows exist and nobody sees them.

    An outcome that an earlier try of the same refresh left is taken up instead of running Spark again.

    Args:
        catalog: Where the outcome is left.
        plan: The plan.
        stager: Runs the script.

    Returns:
        ``None`` where the plan needs no Spark job.

    Raises:
        InvalidQueryError: The fault lies in the view's SQL.
        JobError: Spark failed; a retry may succeed.
    """
    if plan.script is None:
        return None
    left = find_staged(catalog, plan)
    if left is not None:
        log.info(
            "Refresh %s of %s was staged by an earlier try: publishing it, no Spark job", plan.refresh_id, plan.view
        )
        return left
    outcome = stager(plan.script)
    if outcome.error is not None or outcome.metadata_location is None:
        reason = outcome.error or "the job ended without a staged table"
        kind = InvalidQueryError if outcome.query_error else JobError
        raise kind(f"view {plan.view}: the Spark job failed, nothing was published: {reason}")
    location = plan.script.outcome_location
    if location is not None and find_staged(catalog, plan) != outcome:
        catalog.files.replace_text(location, outcome.to_json())
    return outcome


def find_staged(catalog: MaterializedViewCatalog, plan: RefreshPlan) -> Outcome | None:
    """Return the outcome that an earlier try of this refresh left, if its staged file is there."""
    location = plan.script.outcome_location if plan.script else None
    text = catalog.files.read_text(location) if location else None
    if text is None:
        return None
    try:
        outcome = Outcome.from_json(text)
        if outcome.refresh_id != plan.refresh_id or outcome.error or outcome.metadata_location is None:
            return None
        catalog.files.read(outcome.metadata_location, what=f"view {plan.view}, staged storage table file")
    except (ValueError, MetadataFileNotFoundError):
        return None
    return outcome


def publish(
    catalog: MaterializedViewCatalog, plan: RefreshPlan, outcome: Outcome | None, *, effects: Effects | None = None
) -> RefreshResult | None:
    """Publish a staged plan.

    Returns:
        ``None`` where the refresh has to be planned again; nothing of it was published then.

    Raises:
        CommitConflictError, CommitStateUnknownError: See :func:`airflow_mv.commit.publish`.
    """
    if plan.mode == Mode.NOOP:
        return _unchanged(catalog, plan)
    published = publish_staged(
        catalog,
        plan,
        outcome.metadata_location if outcome else None,
        rows_written=outcome.rows_written if outcome else 0,
        effects=effects,
    )
    if published.outcome == PublishOutcome.REPLAN:
        log.info("%s changed while it was refreshed: planning again", plan.view)
        return None
    committed = published.outcome == PublishOutcome.COMMITTED
    return RefreshResult(
        view=plan.view,
        outcome="refreshed" if committed else str(published.outcome),
        mode=plan.mode,
        reasons=plan.reasons,
        refresh_id=plan.refresh_id,
        storage_table_location=published.storage_table_location,
        rows_written=outcome.rows_written if committed and outcome else 0,
        seconds=0.0,
        snapshots=tuple((item.identifier, item.snapshot_reference) for item in plan.records),
    )


def refresh(
    catalog: MaterializedViewCatalog,
    views: Iterable[str | Identifier],
    *,
    stager: Stager,
    options: RefreshOptions | None = None,
    on_plan: Callable[[RefreshPlan], None] | None = None,
    effects: Effects | None = None,
) -> list[RefreshResult]:
    """Refresh views from one set of pinned base snapshots, a view after the views that it reads.

    Args:
        catalog: Where the views are.
        views: Their names.
        stager: Runs the scripts; an in-process session serves all views with one Spark application.
        options: How to refresh.
        on_plan: Told each plan before it is carried out.
        effects: Clock, sleep and jitter.

    Raises:
        CommitConflictError: A view kept changing while it was refreshed.
    """
    identifiers = [catalog.identify(view) for view in views]
    ordered = in_dependency_order(catalog, identifiers) if len(identifiers) > 1 else identifiers
    pins: Pins | None = {} if len(identifiers) > 1 else None
    return [
        _refresh_one(catalog, view, stager, options or RefreshOptions(), pins, on_plan, effects) for view in ordered
    ]


def in_dependency_order(catalog: MaterializedViewCatalog, views: Sequence[Identifier]) -> list[Identifier]:
    """Sort views so that each comes after those of them that it reads; else the given order stays."""
    reads: dict[Identifier, set[Identifier]] = {}
    for view in dict.fromkeys(views):
        loaded = catalog.load(view)
        tables = dependencies_of(catalog, loaded, loaded.metadata.sql(view=str(view))).tables
        reads[view] = set(tables) & set(views) - {view}
    ordered: list[Identifier] = []
    while waiting := [view for view in reads if view not in ordered]:
        ready = [view for view in waiting if reads[view] <= set(ordered)]
        if not ready:
            names = ", ".join(str(view) for view in waiting)
            raise InvalidQueryError(f"these materialized views read each other in a circle: {names}")
        ordered.append(ready[0])
    return ordered


def _refresh_one(
    catalog: MaterializedViewCatalog,
    view: Identifier,
    stager: Stager,
    options: RefreshOptions,
    pins: Pins | None,
    on_plan: Callable[[RefreshPlan], None] | None,
    effects: Effects | None,
) -> RefreshResult:
    started = time.monotonic()
    for _ in range(_MAX_PLANS):
        plan = plan_refresh(catalog, view, options, pins=pins)
        if on_plan:
            on_plan(plan)
        result = publish(catalog, plan, stage(catalog, plan, stager), effects=effects)
        if result is not None:
            return _timed(result, time.monotonic() - started)
    raise CommitConflictError(f"view {view} changed {_MAX_PLANS} times while it was refreshed; nothing was published")


def _full_script(catalog: MaterializedViewCatalog, observation: Observation, identity: str) -> Script:
    loaded, storage = observation.view, observation.storage
    version = loaded.metadata.current_version
    nested = {name: f"base_{number}" for number, name in enumerate(sorted(observation.nested_storages))}
    heads = {table.identifier: table.head for table in observation.tables}
    pins = {
        identifier: PinnedTable(identifier, heads[str(identifier)], sql=staged(nested[identifier]))
        if identifier in nested
        else PinnedTable(identifier, heads[str(identifier)])
        for identifier in observation.dependencies.tables
    }
    query = pin_query(
        observation.sql,
        default_catalog=version.default_catalog or loaded.identifier.catalog,
        default_namespace=version.default_namespace,
        tables=pins,
        views={view.identifier: view for view in observation.dependencies.views},
        view=str(loaded.identifier),
    )
    return full_refresh(
        view=str(loaded.identifier),
        refresh_id=identity,
        query=query,
        columns=loaded.metadata.schema_.names,
        storage=storage.table,
        storage_location=storage.location,
        same_schema=_same_schema(observation),
        nested={nested[name]: location for name, location in observation.nested_storages.items()},
        outcome_location=join(storage.table.location, "staged", f"{identity}.json"),
    )


def _same_schema(observation: Observation) -> bool:
    """Whether the storage table's columns are the view's, by name and type."""
    view = [(field["name"], _shape(field["type"])) for field in observation.view.metadata.schema_.fields]
    fields = observation.storage.table.current_schema.get("fields", [])
    return view == [(field["name"], _shape(field["type"])) for field in fields]


def _shape(value: Any) -> Any:
    """A column type without field ids, nullability and comments."""
    dropped = ("id", "element-id", "key-id", "value-id", "doc", "required", "element-required", "value-required")
    if isinstance(value, dict):
        return {key: _shape(item) for key, item in value.items() if key not in dropped}
    return [_shape(item) for item in value] if isinstance(value, list) else value


def _older_than_recorded(observation: Observation) -> Reason | None:
    """Say so where the stored rows already hold later snapshots than the asked ones: never go back unasked."""
    record = observation.record
    if record is None or record.version_id != observation.view.metadata.current_version_id:
        return None
    for table in observation.tables:
        recorded = record.snapshots.get(table.identifier)
        if recorded is None or table.table is None or recorded == table.head:
            continue
        if snapshots_between(table.table, table.head, recorded):
            text = f"the stored rows already hold {table.identifier} at {recorded}, which is later than {table.head}"
            return Reason(Code.ALREADY_NEWER, text)
    return None


def _unchanged(catalog: MaterializedViewCatalog, plan: RefreshPlan) -> RefreshResult:
    skipped = any(reason.code == Code.SKIPPED for reason in plan.reasons)
    storage = catalog.load_storage(catalog.load(plan.view))
    record = storage.state.current if storage.state else None
    return RefreshResult(
        view=plan.view,
        outcome="skipped" if skipped else "fresh",
        mode=plan.mode,
        reasons=plan.reasons,
        refresh_id=record.refresh_id if record else None,
        storage_table_location=storage.location,
        rows_written=0,
        seconds=0.0,
        snapshots=tuple(record.snapshots.items()) if record else (),
    )


def _timed(result: RefreshResult, seconds: float) -> RefreshResult:
    return replace(result, seconds=seconds)
