# SPDX-License-Identifier: Apache-2.0
"""What users start: actions as the command line, the hook and the operators run them.

The refresh itself (:mod:`airflow_mv.core.refresh.run`) neither changes a view's definition nor knows the registry. Both
are added here, and what is said about a new definition.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from airflow_mv.common.each import for_each, materialized_views
from airflow_mv.common.status import annotated
from airflow_mv.core.catalog import LoadedView, MaterializedViewCatalog
from airflow_mv.core.catalog.layouts import readable_refreshes
from airflow_mv.core.publish import Effects, Requester
from airflow_mv.core.publish.refresh import DEFAULT_GRACE
from airflow_mv.core.refresh import RefreshOptions, SnapshotSet, plan_refresh
from airflow_mv.core.refresh.plan import RefreshPlan, RefreshResult
from airflow_mv.core.refresh.run import Callbacks, refresh
from airflow_mv.core.script import Outcome, Stager
from airflow_mv.core.spec.identifiers import Identifier, quote, split_namespace
from airflow_mv.core.spec.interval_parts import bounds
from airflow_mv.core.spec.materialized_view import RefreshRecord
from airflow_mv.core.spec.properties import DiffPolicy
from airflow_mv.core.spec.reasons import Mode
from airflow_mv.core.spec.table_metadata import known_sum
from airflow_mv.core.spec.units import counted
from airflow_mv.errors import (
    CheckFailedError,
    ConfigurationError,
    InvalidMetadataError,
    MaterializedViewError,
    NotFoundError,
    StaleViewError,
)
from airflow_mv.extras.history.time_travel import TimeTravel
from airflow_mv.extras.pins import pinned_chain
from airflow_mv.extras.read import Rows, is_path, log_what_is_read, read_rows, readable, table_rows
from airflow_mv.extras.registry.model import RefreshRow
from airflow_mv.extras.registry.settings import PLACE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from airflow_mv.core.define.definition import Definition
    from airflow_mv.core.spec.choices import OnChange
    from airflow_mv.extras.define import DefinitionResult, Difference
    from airflow_mv.extras.diff import Diff
    from airflow_mv.extras.folder.files import ViewFile
    from airflow_mv.extras.folder.plan import Applied, FolderPlan
    from airflow_mv.extras.fresh.plan import FreshPlan
    from airflow_mv.extras.fresh.result import FreshResult
    from airflow_mv.extras.fresh.rows import FreshRows

log = logging.getLogger(__name__)


def refresh_views(
    catalog: MaterializedViewCatalog,
    views: Iterable[str | Identifier],
    *,
    stager: Stager,
    options: RefreshOptions | None = None,
    pins: SnapshotSet | None = None,
    plan: RefreshPlan | None = None,
    on_plan: Callable[[RefreshPlan], None] | None = None,
    effects: Effects | None = None,
    requester: Requester | None = None,
) -> list[RefreshResult]:
    """Refresh views as :func:`airflow_mv.core.refresh.run.refresh` does, and add each refresh to the registry.

    A view with ``on-schema-change`` ``rebuild`` whose base columns have changed is redefined first: Spark analyses its
    query again.

    Args:
        catalog: See :func:`airflow_mv.core.refresh.run.refresh`, as for the arguments below.
        views: Their names.
        options: How to refresh.
        pins: Base tables that were pinned before.
        plan: The plan of an earlier call.
        on_plan: Called with each plan before it is carried out.
        effects: Clock, sleep and jitter.
        requester: Who requested it, for the refresh record and the registry.

    Raises:
        CommitConflictError: A view kept changing while it was refreshed.
        InvalidQueryError: The query no longer fits the base tables.
    """

    def redefined(view: LoadedView) -> LoadedView:
        from airflow_mv.core.define.definition import Definition

        return create_view(catalog, view.identifier, Definition(None), stager=stager, replace=True)

    def after(plan: RefreshPlan, outcome: Outcome | None, result: RefreshResult) -> None:
        add_to_registry(catalog, plan, outcome, result, requester=requester or Requester())

    return refresh(
        catalog,
        views,
        stager=stager,
        options=informed(options),
        pins=pins,
        plan=plan,
        on_plan=on_plan,
        effects=effects,
        callbacks=Callbacks(redefined, annotated, diagnose, after, requester),
    )


def informed(options: RefreshOptions | None) -> RefreshOptions:
    """Return the options of a refresh that reads the statistics of data files, and records its state for other engines.

    Args:
        options: How to refresh.
    """
    from airflow_mv.common.file_statistics import FileStatistics
    from airflow_mv.common.refresh_state import summary_fields

    return replace(options or RefreshOptions(), statistics=FileStatistics, summary=summary_fields)


def plan_view(
    catalog: MaterializedViewCatalog,
    view: str | Identifier,
    options: RefreshOptions | None = None,
    *,
    pins: SnapshotSet | None = None,
) -> RefreshPlan:
    """Plan a refresh as :func:`airflow_mv.core.refresh.plan_refresh` does. The reasons name inputs that are not fresh.

    See there for the arguments and errors.
    """
    return plan_refresh(catalog, view, informed(options), pins=pins, annotate=annotated)


def create_view(
    catalog: MaterializedViewCatalog,
    view: str | Identifier,
    definition: Definition,
    *,
    stager: Stager,
    replace: bool = False,
    effects: Effects | None = None,
    before: Callable[[LoadedView], None] | None = None,
) -> LoadedView:
    """Create a view as :func:`airflow_mv.core.define.create.create` does, without Spark where its columns are certain.

    See there for the arguments and errors.
    """
    from airflow_mv.core.define.create import create
    from airflow_mv.extras.columns.empty_table import make_without_spark

    return create(
        catalog,
        view,
        definition,
        stager=stager,
        replace=replace,
        effects=effects,
        without_spark=make_without_spark,
        before=before,
    )


def adopt_table(
    catalog: MaterializedViewCatalog, view: str | Identifier, definition: Definition, *, stager: Stager
) -> LoadedView:
    """Make a table a view as :func:`airflow_mv.extras.adopt.adopt` does, without Spark where its columns are certain.

    See there for the arguments and errors.
    """
    from airflow_mv.extras.adopt import adopt
    from airflow_mv.extras.columns.empty_table import make_without_spark

    return adopt(catalog, view, definition, stager=stager, without_spark=make_without_spark)


def diagnose(catalog: MaterializedViewCatalog, plan: RefreshPlan, outcome: Outcome) -> None:
    """Raise the error of a failed job if its cause is found, see :func:`airflow_mv.extras.diagnosis.diagnose`."""
    from airflow_mv.extras import diagnosis

    diagnosis.diagnose(catalog, plan, outcome)


def define_view(
    catalog: MaterializedViewCatalog,
    view: str | Identifier,
    definition: Definition,
    *,
    stager: Stager,
    on_change: OnChange = "apply",
    adopt: bool = False,
    create: Callable[..., LoadedView] = create_view,
) -> DefinitionResult:
    """Define a view as :func:`airflow_mv.extras.define.define` does, for its readers; say why refreshes would be full.

    See there for the arguments and errors.
    """
    from airflow_mv.extras.define import define
    from airflow_mv.extras.explain.explain import why_recomputed
    from airflow_mv.extras.readers import for_readers

    adopting = adopt_table if adopt else None
    definition = for_readers(definition, catalog, view)
    done = define(catalog, view, definition, stager=stager, on_change=on_change, adopt=adopting, create=create)
    if done.action not in ("created", "adopted", "replaced"):
        return done
    if done.action == "replaced" and any(item.keeps_rows for item in done.differences):
        from airflow_mv.extras.keep_rows import keep_rows

        if keep_rows(catalog, done.view.identifier):
            return replace(done, notes=("the rows are kept: the new version gives the same",))
    return replace(done, notes=tuple(why_recomputed(catalog, done.view)))


def plan_views(catalog: MaterializedViewCatalog, files: Sequence[ViewFile], *, prune: bool = False) -> FolderPlan:
    """Compare files with a catalog, see :func:`airflow_mv.extras.folder.plan.plan_folder`.

    Args:
        files: The definitions.
        prune: Whether views that no file defines are dropped.
    """
    from airflow_mv.extras.convert import require_renamable
    from airflow_mv.extras.folder.plan import Callbacks as PlanCallbacks
    from airflow_mv.extras.folder.plan import plan_folder

    namespaces = sorted({file.view.namespace for file in files})
    existing = [view for name in namespaces for view in _existing_views(catalog, name)]
    callbacks = PlanCallbacks(_compared, cost_of_rebuild, require_renamable)
    return plan_folder(catalog, files, callbacks=callbacks, materialized=existing, prune=prune)


def _compared(catalog: MaterializedViewCatalog, view: LoadedView, definition: Definition) -> Sequence[Difference]:
    """Return the differences of a view from a definition; and its rows, if an apply has not finished their rebuild."""
    from airflow_mv.extras.define import Difference, Effect, differences
    from airflow_mv.extras.keep_rows import are_kept

    found = differences(catalog, view, definition)
    if DiffPolicy.of({**view.metadata.properties, **definition.properties}, view=str(view.identifier)) is None:
        return found
    storage, version = catalog.load_storage(view), view.metadata.current_version_id
    record = storage.record
    if record is None or record.version_id == version or any(item.effect == Effect.REBUILD for item in found):
        return found
    versions = f"of version {record.version_id}", f"of version {version}"
    return (*found, Difference("rows", *versions, Effect.REBUILD, are_kept(view, storage)))


def _existing_views(catalog: MaterializedViewCatalog, namespace: tuple[str, ...]) -> list[Identifier]:
    """Return the materialized views of a namespace, which need not exist yet."""
    try:
        return list(materialized_views(catalog, namespace))
    except NotFoundError:
        return []


def cost_of_rebuild(
    catalog: MaterializedViewCatalog, view: LoadedView, definition: Definition
) -> Mapping[str, Any] | None:
    """Return what a recompute of all rows by another definition is expected to cost; ``None`` if unknown.

    Args:
        view: The view as it is. The durations of its refreshes correct the estimate.
    """
    from airflow_mv.core.refresh.plan import full_cost
    from airflow_mv.extras.costs import with_expected
    from airflow_mv.extras.describe import durations
    from airflow_mv.extras.diff import resolved_query

    name = view.identifier
    try:
        resolved = resolved_query(catalog, view, definition.sql)
        total = known_sum([resolved.metadata[table.name].bytes_at(table.head) for table in resolved.tables])
        record = catalog.load_storage(view).record
        estimate = full_cost(total).corrected(record.factors if record else {})
        return with_expected([asdict(estimate)], durations(catalog, name))[0]
    except MaterializedViewError as error:
        log.info("%s: the cost of a rebuild is not known: %s", name, error)
        return None


@dataclass(frozen=True, slots=True)
class Rebuilds:
    """How changed definitions get their rows, if a view has the property ``airflow-mv.on-diff``.

    Args:
        stager: Runs the jobs.
        session: Opens the session in which rows are compared.
        on_diff: A policy for all views, instead of their properties.
        ask: Decides on a difference above the limits, for the policy ``ask``; by default it is refused.
        report: Receives the difference, line by line.
        requester: Who requested it, for the refresh record.
    """

    stager: Stager
    session: Callable[[], SparkSession] | None = None
    on_diff: DiffPolicy | None = None
    ask: Callable[[Diff], bool] = lambda _: False
    report: Callable[[str], None] = log.info
    requester: Requester | None = None


def apply_views(catalog: MaterializedViewCatalog, plan: FolderPlan, how: Rebuilds) -> Iterator[Applied]:
    """Do what a plan of a folder says, see :func:`airflow_mv.extras.folder.plan.apply_plan`.

    The rows of a definition that changes are computed beside those on show, compared with them and published, if a
    policy is given, by the view's property or for all; otherwise the next refresh computes them.

    Args:
        plan: From :func:`plan_views`.
        how: How rows are computed, and which differences are accepted.
    """
    from airflow_mv.extras.convert import rename
    from airflow_mv.extras.folder.plan import apply_plan
    from airflow_mv.extras.keep_rows import keep_rows
    from airflow_mv.extras.maintenance.drop import drop

    rebuilt = {change.view for change in plan.changes if change.rebuilds}

    def define(view: Identifier, wanted: Definition) -> list[str]:
        policy = _policy(catalog, view, wanted, how.on_diff) if view in rebuilt else None
        if policy is not None:
            return rebuild_view(catalog, view, wanted, policy, how)
        lines = define_view(catalog, view, wanted, stager=how.stager, on_change="rebuild").lines
        if view not in rebuilt:
            keep_rows(catalog, view)  # an earlier try may have ended before
        return lines

    return apply_plan(
        plan,
        define=define,
        drop=lambda view: drop(catalog, view),
        rename=lambda view, name: rename(catalog, view, name),
    )


def _policy(
    catalog: MaterializedViewCatalog, view: Identifier, wanted: Definition, given: DiffPolicy | None
) -> DiffPolicy | None:
    """Return the policy for a changed definition; ``None`` without one, or without rows to compare with."""
    loaded = catalog.load(view)
    try:
        if catalog.load_storage(loaded).record is None:
            return None
    except (NotFoundError, InvalidMetadataError):
        return None
    return given or DiffPolicy.of({**loaded.metadata.properties, **wanted.properties}, view=str(view))


def rebuild_view(
    catalog: MaterializedViewCatalog, view: Identifier, wanted: Definition, policy: DiffPolicy, how: Rebuilds
) -> list[str]:
    """Compute the rows of a changed definition beside those on show, compare them, and publish both if accepted.

    See :func:`airflow_mv.extras.rebuild.rebuild`, also for the errors.

    Args:
        wanted: The definition.
        policy: Which differences are accepted.

    Returns:
        What was done, in sentences.

    Raises:
        CheckFailedError: The difference is above a limit. Nothing was published.
    """
    from airflow_mv.extras.diff import recorded_bases
    from airflow_mv.extras.rebuild import rebuild

    if how.session is None:
        raise ConfigurationError(
            f"view {view}: airflow-mv.on-diff compares rows in a Spark session, and there is none here: apply it with "
            "`airflow-mv apply`, or with a connection to Spark Connect"
        )
    done, spark = list[str](), how.session

    def define(before: Callable[[LoadedView], None]) -> None:
        from airflow_mv.extras.define import differences

        changed = any(item.effect == "rebuild" for item in differences(catalog, catalog.load(view), wanted))
        made = partial(create_view, before=before)
        lines = define_view(catalog, view, wanted, stager=how.stager, on_change="rebuild", create=made).lines
        done.extend(line for line in lines if not line.startswith("the next refresh"))
        if not changed:  # an earlier try has published the definition, and not the rows
            before(catalog.load(view))

    def accept(will_be: LoadedView, plan: RefreshPlan, outcome: Outcome, pins: SnapshotSet | None) -> None:
        found = _difference(catalog, will_be, plan, outcome, spark())
        found = replace(found, same_bases=pins is not None)
        for line in found.lines():
            how.report(line)
        _require_accepted(found, policy, how)

    made = rebuild(
        catalog,
        define=define,
        stager=how.stager,
        bases=partial(recorded_bases, catalog),
        accept=accept,
        options=informed(None),
        diagnose=diagnose,
        requester=how.requester,
    )
    if made.result is None:
        return [*done, f"{view} has changed meanwhile: the next refresh computes its rows"]
    add_to_registry(catalog, made.plan, made.outcome, made.result, requester=how.requester or Requester())
    return [*done, f"published {counted(made.result.rows_written, 'row')} as refresh {made.result.refresh_id}"]


def _difference(
    catalog: MaterializedViewCatalog, view: LoadedView, plan: RefreshPlan, outcome: Outcome, spark: SparkSession
) -> Diff:
    from airflow_mv.common.stored_rows import spark_errors, staged_rows, stored_rows
    from airflow_mv.core.job.session import interruptible
    from airflow_mv.extras.diff import compare, key_of

    existing = catalog.load(view.identifier)
    storage, names = catalog.load_storage(existing), view.metadata.schema_.names
    had = storage.table.current_schema.get("fields", ())
    common = {str(field["name"]) for field in had} & set(names)
    keys = next((found for found in (key_of(view), key_of(existing)) if found and common.issuperset(found)), ())

    def compared() -> Diff:
        with spark_errors(f"comparing view {view.identifier}"):
            before = stored_rows(spark, view.identifier, storage, storage.rows_snapshot)
            after = staged_rows(spark, view.identifier, plan.storage_table, outcome)
            return compare(spark, view.identifier, before, after, keys)

    return interruptible(spark, compared)


def _require_accepted(found: Diff, policy: DiffPolicy, how: Rebuilds) -> None:
    """Raise if a difference is above the limits of a policy that does not publish it.

    Raises:
        CheckFailedError: Names the limits, and has the difference.
    """
    beyond = found.beyond(policy)
    if not beyond or policy.action == "publish" or (policy.action == "ask" and how.ask(found)):
        return
    raise CheckFailedError(
        "\n".join(
            [
                f"view {found.view}: nothing was published, because the rows of the changed definition differ: "
                f"{'; '.join(beyond)}. To publish them, raise the limits or give --on-diff publish",
                *found.lines(),
            ]
        )
    )


def refresh_with_inputs(
    catalog: MaterializedViewCatalog,
    views: Sequence[Identifier],
    *,
    stager: Stager,
    options: RefreshOptions | None = None,
    on_plan: Callable[[RefreshPlan], None] | None = None,
    requester: Requester | None = None,
) -> list[RefreshResult]:
    """Refresh views after the materialized views that they read, all from one set of base snapshots.

    Args:
        catalog: Where the views are.
        views: Their names.
        options: How to refresh these views. The views that they read are refreshed as a whole, without it, but from
            the same time (``as_of``).
        on_plan: Called with each plan before it is carried out.
        requester: Who requested it, for the refresh record and the registry.

    Returns:
        The results of all of them, in their order.
    """
    given = options or RefreshOptions()
    ordered, pins = pinned_chain(catalog, views, as_of=given.as_of)
    own, results = replace(given, as_of=None), list[RefreshResult]()
    for view in ordered:
        results += refresh_views(
            catalog,
            [view],
            stager=stager,
            options=own if view in views else None,
            pins=pins,
            on_plan=on_plan,
            requester=requester,
        )
    return results


def maintain_view(
    catalog: MaterializedViewCatalog,
    view: str | Identifier,
    *,
    older_than: timedelta = DEFAULT_GRACE,
    dry_run: bool = False,
    stager: Stager | None = None,
    report: Callable[[str], None] = log.info,
) -> dict[str, Any]:
    """Compact a view's files if asked for, then expire old snapshots and delete orphan files.

    Args:
        older_than: See :func:`airflow_mv.extras.maintenance.orphans.maintain`.
        dry_run: Only report what would be done.
        stager: Runs the job of a compaction; ``None`` for none.
        report: Receives progress messages.

    Returns:
        What the command line prints: the document of the maintenance, with ``compaction`` if it was asked for.

    Raises:
        MaterializedViewError: See :func:`airflow_mv.extras.compact.compact` and
            :func:`airflow_mv.extras.maintenance.orphans.maintain`.
    """
    from airflow_mv.extras.compact import compact
    from airflow_mv.extras.maintenance.orphans import maintain
    from airflow_mv.extras.maintenance.temporary_tables import drop_temporary_tables

    compacted = None if stager is None else compact(catalog, view, stager=stager, dry_run=dry_run)
    done = maintain(catalog, view, older_than=older_than, dry_run=dry_run, report=report).to_dict()
    done["dropped_tables"] = drop_temporary_tables(catalog, view, older_than=older_than, dry_run=dry_run)
    return done if compacted is None else {**done, "compaction": compacted.to_dict()}


def maintain_after_refresh(
    catalog: MaterializedViewCatalog,
    view: str | Identifier,
    *,
    published: bool,
    stager: Stager | None,
    report: Callable[[str], None] = log.info,
) -> None:
    """Do what a view's properties ask for after a refresh. It never fails the refresh.

    Args:
        published: Whether the refresh has published something.
        stager: Runs the job of a compaction; ``None``: there is no compaction.
        report: Receives a line for what was done.
    """
    from airflow_mv.extras.maintenance import run

    def compact(name: Identifier) -> None:
        from airflow_mv.extras.compact import compact

        if stager is not None:
            done = compact(catalog, name, stager=stager)
            report(f"{name}: compaction after the refresh: {done.outcome} ({done.why})")

    given = None if stager is None else compact
    run.maintain_after_refresh(catalog, view, published=published, compact=given, report=report)


def add_to_registry(
    catalog: MaterializedViewCatalog,
    plan: RefreshPlan,
    outcome: Outcome | None,
    result: RefreshResult,
    *,
    requester: Requester,
) -> None:
    """Stage the row of a refresh for the registry. A failure is logged as a warning.

    Args:
        outcome: What the job did, if there was one.
        result: The result. Nothing is added if it published nothing.
        requester: Who requested the refresh.
    """
    if not catalog.properties.get(PLACE) or not result.published:
        return
    try:
        from airflow_mv.extras.registry.registry import add_refresh, registry_of

        registry = registry_of(catalog)
        if registry is not None:
            add_refresh(registry, _measured(_recorded(catalog, plan, result), plan, outcome, result, requester))
    except Exception as error:  # noqa: BLE001 (the rows are published; what follows must not fail the task)
        log.warning(
            "%s was refreshed, but its refresh %s could not be added to the registry (%s: %s). `airflow-mv registry "
            "rebuild --catalog %s` adds what the view records of it",
            plan.view,
            result.refresh_id,
            type(error).__name__,
            error,
            catalog.name,
        )


def _recorded(catalog: MaterializedViewCatalog, plan: RefreshPlan, result: RefreshResult) -> RefreshRow:
    """Return the row of the refresh record, or of the result if later refreshes have replaced the record already."""
    from airflow_mv.extras.registry.rows import refresh_row

    view = catalog.load(plan.view)
    records = readable_refreshes(view, catalog.load_storage(view))
    found = [item for item in records if item.refresh_id == result.refresh_id]
    if found:
        return refresh_row(plan.view, plan.view_uuid, found[0])
    document = {
        "refresh-id": result.refresh_id,
        "version-id": plan.version_id,
        "base-tables": [item.document() for item in plan.records],
        "mode": str(result.mode),
        "reasons": [reason.to_dict() for reason in result.reasons],
        "refreshed-at-ms": time.time_ns() // 1_000_000,
        "rows-written": result.rows_written,
        **({"interval": bounds(plan.interval)} if plan.interval else {}),
    }
    return refresh_row(plan.view, plan.view_uuid, RefreshRecord.read(document, source=f"refresh of {plan.view}"))


def _measured(
    row: RefreshRow, plan: RefreshPlan, outcome: Outcome | None, result: RefreshResult, requester: Requester
) -> RefreshRow:
    """Return a row with what only this process knows."""
    full = next((item for item in plan.estimates if item.mode == Mode.FULL), None)
    return row.model_copy(
        update={
            "outcome": result.outcome,
            "base_snapshots": {item.identifier: item.snapshot_reference for item in plan.records},
            "seconds": round(result.seconds, 3),
            "job_seconds": round(sum(outcome.step_seconds), 3) if outcome else 0.0,
            "executor_seconds": outcome.executor_seconds if outcome else 0.0,
            "full_seconds": full.seconds if full else None,
            "full_bytes": full.bytes_read if full else None,
            "lag_seconds": result.lag_seconds,
            "application_id": outcome.application_id if outcome else None,
            "dag_id": requester.dag_id,
            "run_id": requester.run_id,
            "task_id": requester.task_id,
            "requested_by": requester.user,
        }
    )


def plan_fresh(catalog: MaterializedViewCatalog, view: str | Identifier) -> FreshPlan:
    """Plan how the fresh rows of a view are read, with those of the views that it reads. Reads metadata only.

    Raises:
        BaseTableNotFoundError: A base table cannot be read.
    """
    from airflow_mv.common.file_statistics import FileStatistics
    from airflow_mv.extras.fresh.plan import plan_fresh_read

    chain, pins = pinned_chain(catalog, [catalog.identify(view)])
    return plan_fresh_read(catalog, chain, pins, FileStatistics)


def read_fresh(
    catalog: MaterializedViewCatalog, session: Callable[[], SparkSession], view: str | Identifier
) -> FreshRows:
    """Compute the fresh rows of a view in a session; see :func:`airflow_mv.extras.fresh.rows.fresh_rows`.

    Args:
        session: Returns the session. It is called after the catalogs of all tables that are read were opened.
        view: Its name.
    """
    from airflow_mv.extras.fresh.rows import fresh_rows
    from airflow_mv.extras.spark.session import knowing_catalogs

    plan = plan_fresh(catalog, view)
    return fresh_rows(catalog, knowing_catalogs(catalog, session()), plan)


def fetch_fresh(
    catalog: MaterializedViewCatalog,
    view: str | Identifier,
    session: Callable[[], SparkSession],
    limit: int | None = None,
) -> FreshResult:
    """Compute the fresh rows of a view in Spark, and fetch them.

    Args:
        view: Its name.
        session: Opens a session that knows the catalogs.
        limit: At most this many rows.
    """
    from airflow_mv.extras.fresh.result import fetched

    return fetched(catalog.identify(view), read_fresh(catalog, session, view), limit)


def read(
    spark: SparkSession,
    view: str,
    *,
    fresh: bool = False,
    as_of: datetime | None = None,
    refresh_id: str | None = None,
    sequence_number: int | None = None,
    snapshot_id: int | None = None,
    bases_as_of: datetime | None = None,
    options: Mapping[str, int | str] = MappingProxyType({}),
    catalog: MaterializedViewCatalog | None = None,
) -> DataFrame:
    """Return a view's stored rows as a DataFrame. If needed, the view is refreshed in this session first.

    Works in classic and in Spark Connect sessions. No refresh runs for a time or a refresh in the past.

    Args:
        spark: The session; it must have Iceberg's jars.
        view: ``catalog.namespace.name``.
        fresh: Return the rows that the view's query has now, whether or not stale rows are allowed: the stored rows
            with what changed since. Nothing is refreshed, committed or written.
        as_of: The rows as the view had them at this time; a time without a zone is UTC.
        refresh_id: The rows of this recorded refresh.
        sequence_number: The rows of the recorded refresh with this sequence number.
        snapshot_id: The rows in this snapshot of the storage table.
        bases_as_of: The rows that were computed from the base tables as they were at this time, or before it. See
            :class:`airflow_mv.extras.history.time_travel.TimeTravel`.
        options: ``snapshot-id``, or ``as-of-timestamp`` in milliseconds, as for Spark's reader.
        catalog: Where the view is; by default the configured catalog of that name.

    Raises:
        ConfigurationError: ``fresh`` and a time or a refresh in the past exclude each other.
        JobError: The refresh failed.
        RefreshNotFoundError: The history holds no such refresh.
    """
    from airflow_mv.common.stored_rows import stored_rows
    from airflow_mv.extras.spark.session import session_stager

    home = catalog or MaterializedViewCatalog(Identifier.parse(view).catalog)
    wanted = TimeTravel(as_of, refresh_id, sequence_number, snapshot_id, bases_as_of).with_options(options).given
    if fresh:
        refuse_past(wanted)
        return read_fresh(home, lambda: spark, view).frame
    stager = session_stager(home, spark)
    found = readable(home, view, wanted, refresh=lambda view: refresh_with_inputs(home, [view], stager=stager))
    log_what_is_read(found)
    return stored_rows(spark, found.view.identifier, found.storage, found.snapshot_id)


def register(
    spark: SparkSession, namespace: str, *, catalog: MaterializedViewCatalog | None = None
) -> dict[str, str | None]:
    """Make each materialized view of a namespace a temporary view of its name: its rows as they are now.

    A view that allows stale data has its stored rows, another one its fresh rows; see :func:`read`. Call it again for
    the rows of later.

    Args:
        spark: The session; it must have Iceberg's jars.
        namespace: ``catalog.namespace``.
        catalog: Where the namespace is; by default the configured catalog of that name.

    Returns:
        How the rows of each view are computed, by its name, such as ``stored`` or ``merge``; ``None`` for a view that
        cannot be read, which is logged as a warning and has no temporary view.
    """
    name, inner = split_namespace(namespace)
    home = catalog or MaterializedViewCatalog(name)

    def rows_of(view: Identifier) -> tuple[DataFrame, str]:
        allowed = home.load(view).materialized.allow_stale_data
        found = stale_rows(home, spark, view) if allowed else None
        if found is not None:
            return found, "stored"
        fresh = read_fresh(home, lambda: spark, view)
        return fresh.frame, str(fresh.mode)

    done: dict[str, str | None] = {}
    for result in for_each(materialized_views(home, inner), rows_of):
        done[result.item.name] = None
        if result.error is not None:
            log.warning("%s", result.error)
        elif result.value is not None:
            frame, done[result.item.name] = result.value
            frame.createOrReplaceTempView(quote(result.item.name))
    return done


def stale_rows(catalog: MaterializedViewCatalog, spark: SparkSession, view: Identifier) -> DataFrame | None:
    """Return a view's stored rows; ``None`` if it has none that may be read without a refresh."""
    from airflow_mv.common.stored_rows import stored_rows
    from airflow_mv.extras.spark.session import knowing_catalogs

    try:
        found = readable(catalog, view)
    except StaleViewError:
        return None
    return stored_rows(knowing_catalogs(catalog, spark), view, found.storage, found.snapshot_id)


def refuse_past(wanted: TimeTravel | None) -> None:
    """Refuse to read fresh rows of the past.

    Raises:
        ConfigurationError: A time or a refresh in the past is wanted.
    """
    if wanted is not None:
        raise ConfigurationError(
            "fresh rows are those of now: fresh and a time or refresh in the past exclude each other"
        )


def scan(
    view: str,
    *,
    as_of: datetime | None = None,
    refresh_id: str | None = None,
    sequence_number: int | None = None,
    snapshot_id: int | None = None,
    bases_as_of: datetime | None = None,
    options: Mapping[str, int | str] = MappingProxyType({}),
    limit: int | None = None,
    catalog: MaterializedViewCatalog | None = None,
) -> Rows:
    """Find a view's stored rows, without Spark and without Airflow. They are read when they are asked for.

    Args:
        view: ``catalog.namespace.name``; or the path of any Iceberg table: its folder, ``iceberg.`folder```, or a
            metadata file.
        as_of: The rows as the view had them at this time; a time without a zone is UTC.
        refresh_id: The rows of this recorded refresh.
        sequence_number: The rows of the recorded refresh with this sequence number.
        snapshot_id: The rows in this snapshot of the storage table.
        bases_as_of: The rows that were computed from the base tables as they were at this time, or before it.
        options: ``snapshot-id``, or ``as-of-timestamp`` in milliseconds, as for Spark's reader.
        limit: At most this many rows.
        catalog: Where the view is; by default the configured catalog of that name. Of a path only its access to the
            store is used.

    Returns:
        Rows with the methods ``to_pandas()``, ``to_arrow()``, ``to_polars()``, ``to_duckdb()`` and
        ``to_arrow_batch_reader()``, a stream for rows that do not fit into memory.

    Raises:
        StaleViewError: The view has to be refreshed first.
        RefreshNotFoundError: The history holds no such refresh.
    """
    wanted = TimeTravel(as_of, refresh_id, sequence_number, snapshot_id, bases_as_of).with_options(options)
    if is_path(view):
        return table_rows(view, wanted.chosen, limit=limit, properties=catalog.properties if catalog else {})
    home = catalog or MaterializedViewCatalog(Identifier.parse(view).catalog)
    return read_rows(home, readable(home, view, wanted.given), limit=limit)


def changes(
    spark: SparkSession,
    table: str,
    *,
    start: int | str,
    end: int | str | None = None,
    columns: Sequence[str] = (),
    catalog: MaterializedViewCatalog | None = None,
) -> DataFrame:
    """Return the rows that were added to a table, and removed from it, between two snapshots.

    A row that occurs more than once is listed once for each copy; a changed row is removed and added. Rows that were
    removed and added again, by a compaction or an update to the same values, are not there. The rows are computed once,
    by this call.

    Args:
        spark: The session; it must have Iceberg's jars.
        table: ``catalog.namespace.name``, or another name of a base table that a view's SQL may have, such as
            ``delta.`/path```.
        start: The id of the snapshot before the change, the version of a Delta table, or the id of a recorded refresh
            of a materialized view.
        end: Likewise after it; by default what is current.
        columns: Only these columns; by default all that are the same in both snapshots.
        catalog: Where the table is; by default the configured catalog of that name.

    Returns:
        The columns, and first ``_change_type``: ``INSERT`` or ``DELETE``.

    Raises:
        SnapshotNotFoundError: A snapshot has expired. The message says which is the oldest.
        RefreshNotFoundError: A refresh is not recorded, or its rows have expired.
        UnsupportedError: A column is another one in the two snapshots, or its values cannot be compared.
        JobError: Spark failed.
    """
    from airflow_mv.extras.history.changes import changed_rows, question
    from airflow_mv.extras.spark.session import knowing_catalogs

    name = Identifier.parse(table)
    home = catalog or MaterializedViewCatalog(name.catalog)
    wanted = question(home, name, start, end, columns)
    return changed_rows(home, knowing_catalogs(home, spark), wanted)
