# SPDX-License-Identifier: Apache-2.0
"""Refresh a view in three steps: plan (metadata only), stage (Spark), publish (one swap).

The data passed between the steps can be stored as JSON, so a task may stop between two steps.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from airflow_mv.core.catalog import LoadedStorage, LoadedView, MaterializedViewCatalog
from airflow_mv.core.catalog.layouts import readable_refreshes
from airflow_mv.core.freshness.observe import load_dependencies, observe, query_of
from airflow_mv.core.publish import Effects, PublishOutcome, RefreshMetrics, Requester
from airflow_mv.core.publish import publish as publish_staged
from airflow_mv.core.publish.publications import layout_of
from airflow_mv.core.publish.storage_change import put_back
from airflow_mv.core.refresh import RefreshOptions, SnapshotSet, plan_refresh
from airflow_mv.core.refresh.checks import has_passed, judge, require_passed
from airflow_mv.core.refresh.choose import Annotate
from airflow_mv.core.refresh.inputs import renamed_by_now
from airflow_mv.core.refresh.intervals import EarlierRound
from airflow_mv.core.refresh.plan import RefreshPlan, RefreshResult
from airflow_mv.core.script import Delta, Outcome, Script, Stager, job_error
from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.core.spec.interval import Interval
from airflow_mv.core.spec.interval_parts import IntervalPart, parts_in, parts_of
from airflow_mv.core.spec.properties import on_schema_change
from airflow_mv.core.spec.reasons import FOUND_BY_JOB, Code, Mode, Reason
from airflow_mv.core.sql.order import in_order
from airflow_mv.errors import (
    CommitConflictError,
    InvalidQueryError,
    MaterializedViewError,
    QueryValueError,
    RefreshRefusedError,
)

log = logging.getLogger(__name__)

#: Analyses the query of a view again, whose base columns have changed, and returns the view.
Redefine = Callable[[LoadedView], LoadedView]
#: Called with the outcome of a plan's job that failed; raises if it finds a cause that the job's error does not name.
Diagnose = Callable[[MaterializedViewCatalog, RefreshPlan, Outcome], None]
#: The class of SQLSTATEs of data errors, such as a division by zero, an invalid cast or an overflow.
_OF_VALUES = "22"
#: The most plans of one refresh, of a view that keeps changing.
MAX_PLANS = 6
#: Each refresh of another interval changes the storage table once, and a backfill runs many of them at a time.
MAX_INTERVAL_PLANS = 40


@dataclass(frozen=True, slots=True)
class Callbacks:
    """Functions that a caller adds to a refresh.

    Args:
        redefine: Called for a view with ``on-schema-change`` ``rebuild`` whose base columns have changed. Without it
            such a view is refreshed as it is defined.
        annotate: See :func:`airflow_mv.core.refresh.choose.plan_refresh`.
        diagnose: Called if a job fails.
        after: Called after each refresh with its plan, the outcome of its job, and its result.
        requester: Who requested the refresh, for its record.
    """

    redefine: Redefine | None = None
    annotate: Annotate | None = None
    diagnose: Diagnose | None = None
    after: Callable[[RefreshPlan, Outcome | None, RefreshResult], None] | None = None
    requester: Requester | None = None


def stage(
    catalog: MaterializedViewCatalog, plan: RefreshPlan, stager: Stager, diagnose: Diagnose | None = None
) -> Outcome | None:
    """Run a plan's script. Its rows are staged where no reader sees them.

    If an earlier try of the same refresh left its outcome, that outcome is used and Spark does not run again.

    Args:
        catalog: Where the outcome is stored.
        diagnose: Called if the job fails.

    Returns:
        ``None`` if the plan needs no Spark job.

    Raises:
        InvalidQueryError: The view's SQL is the cause.
        RefreshRefusedError: The job cannot continue incrementally, and may not recompute.
        CheckFailedError: The staged rows have not passed the checks.
        QueryValueError: A value of the base tables makes the query fail.
        AccessDeniedError: A store refuses Spark's account.
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
    if outcome.fallback is not None and outcome.metadata_location is None:
        return _refused(plan, outcome)
    if outcome.error is not None or outcome.metadata_location is None:
        _keep_failed(catalog, plan.script, outcome)
        raise _failure(catalog, plan, outcome, diagnose)
    location = plan.script.outcome_location
    # A submitted driver has stored it already. A branch shows that rows were staged, but not that checks passed.
    telling = outcome.branch is not None and plan.script.checks is None
    if location is not None and not telling and catalog.files.read_text(location) != outcome.to_json():
        catalog.files.replace_text(location, outcome.to_json())
    judge(plan, outcome)
    return outcome


def _keep_failed(catalog: MaterializedViewCatalog, script: Script, outcome: Outcome) -> None:
    """Leave the outcome of a failed job for the history, where a submitted driver also leaves it."""
    location = script.outcome_location
    try:
        if location is not None and catalog.files.read_text(location) is None:
            catalog.files.replace_text(location, outcome.to_json())
    except MaterializedViewError as error:
        log.info("Could not record the failure of refresh %s: %s", script.refresh_id, error)


def _failure(
    catalog: MaterializedViewCatalog, plan: RefreshPlan, outcome: Outcome, diagnose: Diagnose | None
) -> MaterializedViewError:
    """Return the error of a job that has staged nothing."""
    reason = outcome.error or "the job ended without a staged table"
    if diagnose is not None:
        diagnose(catalog, plan, outcome)
    text = f"view {plan.view}: the Spark job failed, nothing was published: {reason}"
    if outcome.query_error:
        return InvalidQueryError(text)
    if (outcome.sql_state or "").startswith(_OF_VALUES):
        return QueryValueError(
            f"{text} A retry fails too, until the rows of the base tables or the query change. `try_divide`, "
            "`try_cast` and the like return NULL instead"
        )
    return job_error(text, plan.storage_table_location.rpartition("/metadata/")[0])


def _refused(plan: RefreshPlan, outcome: Outcome) -> Outcome:
    """Raise for a job that could not refresh incrementally and was not allowed to recompute all rows."""
    if plan.skips:
        return outcome
    raise RefreshRefusedError(
        f"view {plan.view} would have to be recomputed in full, as the job found, and that is not allowed: "
        f"{outcome.fallback_reason}. Allow it with on_fallback='full', or force it once with --full"
    )


def find_staged(catalog: MaterializedViewCatalog, plan: RefreshPlan) -> Outcome | None:
    """Return the outcome that an earlier try of this refresh left, if its staged file or branch exists."""
    if plan.script is None:
        return None
    found = layout_of(plan).staged_before(catalog, plan, plan.script)
    return next((outcome for outcome in found if has_passed(plan.script, outcome)), None)


def publish(
    catalog: MaterializedViewCatalog,
    plan: RefreshPlan,
    outcome: Outcome | None,
    *,
    effects: Effects | None = None,
    requester: Requester | None = None,
    started: float | None = None,
) -> RefreshResult | None:
    """Publish a staged plan.

    Args:
        effects: Clock, sleep and jitter.
        requester: Who requested the refresh, for its record.
        started: When it started, by ``time.monotonic()``; ``None`` if unknown.

    Returns:
        ``None`` if the refresh has to be planned again; nothing was published then. This includes a column of a base
            table that was renamed after the plan: the job's filters may have been applied to another column.

    Raises:
        CheckFailedError: The staged rows have not passed the plan's checks.
        CommitConflictError, CommitStateUnknownError: See :func:`airflow_mv.core.publish.protocol.commit`.
    """
    if outcome is not None:
        plan = _as_it_ran(plan, outcome)
    if plan.mode == Mode.NOOP:
        return _unchanged(catalog, plan)
    if outcome is not None:
        require_passed(plan, outcome)
        planned = dict(plan.renamed)
        if (renamed := renamed_by_now(catalog, plan.records, planned)) != planned:
            log.info("Columns of base tables of %s were renamed (%s): planning again", plan.view, renamed)
            return None
    published = publish_staged(
        catalog,
        plan,
        outcome.staged if outcome else None,
        figures=replace(
            _figures(plan, outcome) if outcome else RefreshMetrics(),
            seconds=None if started is None else round(time.monotonic() - started, 3),
            requested_by=requester.document() if requester else None,
        ),
        effects=effects,
    )
    if published.outcome == PublishOutcome.REPLAN:
        log.info("%s changed while it was refreshed: planning again", plan.view)
        return None
    if published.outcome == PublishOutcome.SUPERSEDED:
        # Another refresh published the rows: report that one.
        return replace(_unchanged(catalog, plan), outcome=str(published.outcome))
    committed = published.outcome == PublishOutcome.COMMITTED
    return RefreshResult(
        view=plan.view,
        outcome="refreshed" if committed else str(published.outcome),
        mode=plan.mode,
        reasons=plan.reasons,
        refresh_id=plan.refresh_id,
        storage_table_location=published.storage_table_location,
        storage_table=plan.storage_table,
        rows_written=outcome.rows_written if committed and outcome else 0,
        seconds=0.0,
        snapshots=tuple((item.identifier, item.snapshot_reference) for item in plan.records),
        lag_seconds=_lag_seconds(plan) if committed else None,
        interval=plan.interval,
        checks=outcome.checks if outcome else (),
    )


def _lag_seconds(plan: RefreshPlan) -> float | None:
    since = plan.behind_since_ms
    return None if since is None else round(max(0.0, time.time() - since / 1000), 3)


def _as_it_ran(plan: RefreshPlan, outcome: Outcome) -> RefreshPlan:
    """Return the mode that ran, which may differ from the planned one."""
    if outcome.fallback is None:
        return replace(plan, reasons=(*plan.reasons, *_compared(outcome)))
    code = Code.SKIPPED if outcome.metadata_location is None else Code.INCREMENTAL_UNAVAILABLE
    why = Reason(code, f"{FOUND_BY_JOB}: {outcome.fallback_reason}")
    mode = Mode.NOOP if outcome.metadata_location is None else Mode.FULL
    return replace(plan, mode=mode, reasons=(*plan.reasons, why))


def _compared(outcome: Outcome) -> Iterator[Reason]:
    """Return a reason for each table that was read in full to find its change. The estimates do not expect that."""
    for delta in outcome.deltas:
        if "values" in delta.read_by:
            text = "all of its rows at both snapshots were compared: the metadata tables do not record the changed rows"
            yield Reason(Code.ROWS_COMPARED, f"{delta.table}: {text}")


def _rows_read(deltas: Sequence[Delta]) -> int | None:
    known = [delta.rows_read for delta in deltas if delta.rows_read is not None]
    return sum(known) if deltas and len(known) == len(deltas) else None


def _figures(plan: RefreshPlan, outcome: Outcome) -> RefreshMetrics:
    deltas = outcome.deltas
    taught = None
    if plan.estimates and outcome.fallback is None and outcome.step_seconds:
        factor = plan.estimates[0].factor_of(sum(outcome.step_seconds))
        taught = None if factor is None else {str(plan.mode): factor}
    return RefreshMetrics(
        rows_written=outcome.rows_written,
        rows_changed=sum(delta.rows or 0 for delta in deltas) if deltas else None,
        rows_deleted=None if plan.mode == Mode.FULL else outcome.rows_deleted,
        bytes_read=sum(delta.old_bytes + delta.new_bytes for delta in deltas) if deltas else None,
        rows_read=_rows_read(deltas),
        job_seconds=round(sum(outcome.step_seconds), 3),
        executor_seconds=outcome.executor_seconds,
        checks=tuple(result.record() for result in outcome.checks) or None,
        factors=taught,
    )


def refresh(
    catalog: MaterializedViewCatalog,
    views: Iterable[str | Identifier],
    *,
    stager: Stager,
    options: RefreshOptions | None = None,
    pins: SnapshotSet | None = None,
    plan: RefreshPlan | None = None,
    on_plan: Callable[[RefreshPlan], None] | None = None,
    effects: Effects | None = None,
    callbacks: Callbacks | None = None,
) -> list[RefreshResult]:
    """Refresh views from one set of pinned base snapshots, a view after the views that it reads.

    Args:
        catalog: Where the views are.
        views: Their names.
        stager: Runs the scripts; an in-process session serves all views with one Spark application.
        options: How to refresh.
        pins: Base tables that were pinned before (:mod:`airflow_mv.extras.pins`). By default a refresh of several
            views pins them itself.
        plan: The plan of an earlier call for the only view, which was not carried out to its end. If the view has
            changed since, it is planned again.
        on_plan: Called with each plan before it is carried out.
        effects: Clock, sleep and jitter.
        callbacks: What the caller adds.

    Raises:
        CommitConflictError: A view kept changing while it was refreshed.
    """
    identifiers = [catalog.identify(view) for view in views]
    if len(identifiers) > 1:
        pins = SnapshotSet() if pins is None else pins
        identifiers = _in_dependency_order(catalog, identifiers, pins)
    wanted, added, results = options or RefreshOptions(), callbacks or Callbacks(), []
    for view in identifiers:
        loaded: Identifier | LoadedView = view
        if plan is None and added.redefine is not None:
            loaded = _with_present_columns(catalog, view, pins, added.redefine)
        results.append(_refresh_one(catalog, loaded, stager, wanted, pins, plan, on_plan, effects, added))
    return results


def _in_dependency_order(
    catalog: MaterializedViewCatalog, views: Sequence[Identifier], pins: SnapshotSet
) -> list[Identifier]:
    """Sort views so that each comes after the views that it reads. Otherwise the given order is kept."""
    queries = {view: query_of(catalog.load(view), pins) for view in views}
    reads = {view: set(load_dependencies(catalog, query, reads=pins).tables) for view, query in queries.items()}
    return in_order({view: tables & queries.keys() - {view} for view, tables in reads.items()})


def _refresh_one(
    catalog: MaterializedViewCatalog,
    loaded: Identifier | LoadedView,
    stager: Stager,
    options: RefreshOptions,
    pins: SnapshotSet | None,
    first: RefreshPlan | None,
    on_plan: Callable[[RefreshPlan], None] | None,
    effects: Effects | None,
    callbacks: Callbacks,
) -> RefreshResult:
    started, earlier = time.monotonic(), None
    view = loaded.identifier if isinstance(loaded, LoadedView) else loaded
    most = MAX_PLANS if options.interval is None else MAX_INTERVAL_PLANS
    for number in range(1, most + 1):
        plan = first or planned(
            catalog,
            loaded,
            options,
            pins=pins,
            earlier=earlier,
            effects=effects,
            annotate=callbacks.annotate,
        )
        first, loaded = None, view
        if on_plan:
            on_plan(plan)
        outcome = stage(catalog, plan, stager, callbacks.diagnose)
        result = publish(catalog, plan, outcome, effects=effects, requester=callbacks.requester, started=started)
        if result is not None:
            result = replace(result, seconds=time.monotonic() - started)
            if pins is not None and result.outcome != "skipped":
                pins.refreshed.add(view)
            if callbacks.after is not None:
                callbacks.after(plan, outcome, result)
            return result
        log.info("Round %d of at most %d for %s ended without a publication", number, most, view)
        if options.interval is not None:
            earlier = EarlierRound(plan, outcome) if outcome is not None else earlier
            (effects or Effects()).wait(number)
    raise CommitConflictError(f"view {view} changed {most} times while it was refreshed; nothing was published")


def planned(
    catalog: MaterializedViewCatalog,
    view: Identifier | LoadedView,
    options: RefreshOptions,
    *,
    pins: SnapshotSet | None = None,
    earlier: EarlierRound | None = None,
    effects: Effects | None = None,
    annotate: Annotate | None = None,
) -> RefreshPlan:
    """Return a plan that can be carried out; see :func:`plan_refresh`, which only reads.

    What another program has changed of the storage table's columns, partitioning, sort order or properties is restored.
    """
    plan = plan_refresh(catalog, view, options, pins=pins, earlier=earlier, annotate=annotate)
    if any(reason.code == Code.STORAGE_ALTERED for reason in plan.reasons):
        put_back(catalog, plan.view, effects)
        plan = plan_refresh(catalog, plan.view, options, pins=pins, earlier=earlier, annotate=annotate)
    return plan


def _with_present_columns(
    catalog: MaterializedViewCatalog, view: Identifier, pins: SnapshotSet | None, redefine: Redefine
) -> LoadedView:
    """Load a view. If a column of a base table has changed, and the view wants a rebuild, it is redefined."""
    loaded = catalog.load(view)
    if on_schema_change(loaded.metadata.properties, view=str(view)) != "rebuild":
        return loaded
    changed = observe(catalog, loaded, reads=pins).freshness.drift
    if not changed:
        return loaded
    log.info("%s: analysing the query again: %s", view, "; ".join(reason.message for reason in changed))
    return redefine(loaded)


def _unchanged(catalog: MaterializedViewCatalog, plan: RefreshPlan) -> RefreshResult:
    skipped = any(reason.code == Code.SKIPPED for reason in plan.reasons)
    view = catalog.load(plan.view)
    storage = catalog.load_storage(view)
    rows = _stored_rows(view, storage, plan.interval)
    return RefreshResult(
        view=plan.view,
        outcome="skipped" if skipped else "fresh",
        mode=plan.mode,
        reasons=plan.reasons,
        refresh_id=rows.refresh_id if rows else None,
        storage_table_location=storage.location,
        storage_table=storage.name,
        rows_written=0,
        seconds=0.0,
        snapshots=tuple((item.identifier, item.snapshot_reference) for item in rows.base_tables) if rows else (),
        interval=plan.interval,
    )


def _stored_rows(view: LoadedView, storage: LoadedStorage, interval: Interval | None) -> IntervalPart | None:
    """Return the stored rows of an interval, or those in no interval; of several parts the last refreshed one."""
    record = storage.record
    if record is None:
        return None
    rest, *_ = parts_of(record)
    if interval is None:
        return rest
    if record.interval is not None:  # the record is that of another interval, and has kept the rest
        whole = next((item for item in reversed(readable_refreshes(view, storage)) if item.interval is None), record)
        rest = replace(rest, refresh_id=whole.refresh_id, refreshed_at_ms=whole.refreshed_at_ms)
    parts = (rest if part.interval is None else part for part in parts_in(record, interval))
    return max(parts, key=lambda part: part.refreshed_at_ms or 0)
