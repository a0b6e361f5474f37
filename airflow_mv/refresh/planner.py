# SPDX-License-Identifier: Apache-2.0
"""Plan a refresh: read the inputs, choose a mode, and compile the script that Spark runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from airflow_mv.catalog import LoadedView, MaterializedViewCatalog, stored_layout
from airflow_mv.catalog.files import join
from airflow_mv.freshness.chains import stale_inputs
from airflow_mv.freshness.lag import lag
from airflow_mv.freshness.observe import Observation
from airflow_mv.freshness.state import Pins
from airflow_mv.refresh.checks import all_checks, checks_to_run, reads_staged_views
from airflow_mv.refresh.choose import Choice, Policy, choose
from airflow_mv.refresh.inputs import RefreshInputs, RefreshOptions, load_inputs
from airflow_mv.refresh.intervals import ANY_SIZE, EarlierRound, conditions_within, interval_work, rows_of_earlier_round
from airflow_mv.refresh.plan import RefreshPlan, refresh_id
from airflow_mv.refresh.statements import PartialRefresh, PinnedQuery, refresh_script, wanted_partitioning
from airflow_mv.script import Script, StagedChecks
from airflow_mv.spec.identifiers import Identifier
from airflow_mv.spec.interval import Interval
from airflow_mv.spec.materialized_view import RefreshRecord
from airflow_mv.spec.reasons import Code, Mode, Reason, fallback
from airflow_mv.spec.refresh_state import (
    DEFAULT_DIALECT,
    REFRESH_STATE_KEY,
    REFRESH_STATE_PROPERTY,
    refresh_state,
    write,
)
from airflow_mv.spec.storage_settings import sort_order, storage_properties
from airflow_mv.spec.times import to_ms
from airflow_mv.sql.types import columns_of

#: Modes that stage no rows.
_WITHOUT_ROWS = (Mode.NOOP, Mode.FAST_FORWARD)


def plan_refresh(
    catalog: MaterializedViewCatalog,
    view: str | Identifier | LoadedView,
    options: RefreshOptions | None = None,
    *,
    pins: Pins | None = None,
    earlier: EarlierRound | None = None,
) -> RefreshPlan:
    """Return what a refresh would do, and why. Reads metadata only.

    Args:
        catalog: Where the view is.
        view: Its name, or the view as it was loaded.
        options: How to refresh.
        pins: See :func:`airflow_mv.freshness.observe.observe`.
        earlier: Rows that an earlier round of the same refresh staged. They are reused if only the storage table has
            changed since.

    Raises:
        BaseTableNotFoundError: A base table cannot be read.
        RefreshRefusedError: The fallback policy forbids what would be needed.
        ConfigurationError, InvalidQueryError: A check is invalid.
    """
    inputs = load_inputs(catalog, view, options or RefreshOptions(), pins=pins)
    plan = compile_plan(inputs, earlier)
    if inputs.options.as_of is not None or not any(table.view for table in inputs.observation.tables):
        return plan
    return replace(plan, reasons=(*plan.reasons, *stale_inputs(catalog, inputs.observation, pins)))


def compile_plan(inputs: RefreshInputs, earlier: EarlierRound | None = None) -> RefreshPlan:
    """Choose what a refresh does, and compile its script. A function of its arguments; see :func:`plan_refresh`.

    Args:
        inputs: The inputs of the refresh.
        earlier: Rows that an earlier round of the same refresh staged.
    """
    policy = _policy(inputs)
    choice, inputs = choose(inputs, policy)
    checks = all_checks(inputs.observation, inputs.options.checks)
    staged_checks = checks_to_run(inputs, checks)
    plan = _plan(inputs, choice, policy, staged_checks)
    if plan.mode in _WITHOUT_ROWS:
        return plan
    if plan.interval is not None:
        earlier = None if reads_staged_views(inputs.observation, checks) else earlier
        return _of_interval(inputs, plan.interval, plan, earlier).with_checks(staged_checks)
    script = build_script(inputs, inputs.pinned_query(), plan.refresh_id, _work(choice, policy))
    return replace(plan, script=script).with_checks(staged_checks)


def _policy(inputs: RefreshInputs) -> Policy:
    loaded, options = inputs.observation.view, inputs.options
    return Policy.of(
        loaded.metadata.properties,
        view=str(loaded.identifier),
        on_fallback=options.on_fallback,
        max_full_bytes=options.max_full_bytes,
    )


def _of_interval(
    inputs: RefreshInputs, interval: Interval, plan: RefreshPlan, earlier: EarlierRound | None
) -> RefreshPlan:
    """Add the script to the plan of an interval."""
    observation = inputs.observation
    found = rows_of_earlier_round(observation, plan, earlier)
    if found is not None:
        why = Reason(Code.REBASED, "its rows are staged already: only the storage table has changed since")
        plan = replace(plan, reasons=(*plan.reasons, why))
    query = found or inputs.pinned_query(where=conditions_within(inputs, interval))
    work = interval_work(observation, interval, query.sql, inputs.full_estimate.bytes_read)
    return replace(plan, script=build_script(inputs, query, plan.refresh_id, work))


def _work(choice: Choice, policy: Policy) -> PartialRefresh | None:
    if choice.candidate is None or not choice.candidate.steps:
        return None
    full = next(item for item in choice.estimates if item.mode == Mode.FULL)
    may_recompute = policy.on_fallback == "full" and policy.allows(full)
    sizes = [ANY_SIZE if size is None else size for size in (choice.candidate.estimate.bytes_read, full.bytes_read)]
    return PartialRefresh(choice.candidate.steps, may_recompute, max(sizes))


def _scope(
    observation: Observation, mode: Mode, renamed: Mapping[str, tuple[str, ...]], checks: StagedChecks | None
) -> str:
    """Return what a refresh covers. Rows that were staged for another scope are never reused."""
    scope = f"{mode} {observation.interval}" if observation.interval else str(mode)
    if renamed:
        scope += f" renamed {sorted(renamed.items())}"
    # Rows that failed a check must not be found by a refresh that does not have this check.
    return f"{scope} checks {checks.digest}" if checks is not None and mode not in _WITHOUT_ROWS else scope


def _identity(observation: Observation, scope: str) -> str:
    return refresh_id(
        view_uuid=observation.view.metadata.view_uuid,
        version_id=observation.view.metadata.current_version_id,
        records=tuple(table.record() for table in observation.tables),
        nested_views=observation.nested_views,
        scope=scope,
        storage_base=observation.storage.base,
    )


def _plan(inputs: RefreshInputs, choice: Choice, policy: Policy, checks: StagedChecks | None) -> RefreshPlan:
    observation = inputs.observation
    loaded, since = observation.view, lag(observation).since
    renamed = {} if choice.mode in _WITHOUT_ROWS else inputs.renamed_columns
    return RefreshPlan(
        view=loaded.identifier,
        view_uuid=loaded.metadata.view_uuid,
        version_id=loaded.metadata.current_version_id,
        metadata_location=loaded.metadata_location,
        storage_table_location=observation.storage.location,
        storage_base=observation.storage.base,
        storage_table=observation.storage.name,
        layout=stored_layout(loaded).name,
        mode=choice.mode,
        reasons=(*(item for item in _altered(observation) if item not in choice.reasons), *choice.reasons),
        refresh_id=_identity(observation, _scope(observation, choice.mode, renamed, checks)),
        records=tuple(table.record() for table in observation.tables),
        nested_views=observation.nested_views,
        changes=observation.freshness.base_tables,
        state=observation.freshness.state,
        estimates=choice.estimates or ((inputs.full_estimate,) if choice.mode == Mode.FULL else ()),
        skips=policy.on_fallback == "skip",
        interval=observation.interval,
        behind_since_ms=None if since is None else to_ms(since),
        renamed=tuple(renamed.items()),
        repeats=_repeats(choice.reasons, observation.storage.record, loaded.metadata.current_version_id),
    )


def _altered(observation: Observation) -> Iterator[Reason]:
    return (reason for reason in observation.freshness.reasons if reason.code == Code.STORAGE_ALTERED)


def _repeats(reasons: Sequence[Reason], last: RefreshRecord | None, version_id: int) -> bool:
    """Whether the last refresh of a definition was a fallback for the same reasons."""
    why = fallback(reasons)
    if why is None or last is None or last.version_id != version_id:
        return False
    return why == fallback([Reason(Code(item["code"]), item["message"]) for item in last.reasons if _is_reason(item)])


def _is_reason(item: Mapping[str, str]) -> bool:
    return item.get("code") in Code.__members__ and "message" in item


def build_script(inputs: RefreshInputs, pinned: PinnedQuery, identity: str, work: PartialRefresh | None) -> Script:
    """Compile the script that recomputes the rows, or does less.

    Args:
        inputs: The inputs of the refresh.
        pinned: The query for the rows.
        identity: The refresh.
        work: The steps that replace the recompute of all rows.
    """
    observation = inputs.observation
    loaded, storage = observation.view, observation.storage
    partitioning = wanted_partitioning(loaded.identifier, loaded.metadata, storage.table)
    outcome_location = join(storage.table.location, "staged", f"{identity}.json")
    script = refresh_script(
        view=str(loaded.identifier),
        refresh_id=identity,
        pinned=pinned,
        columns=columns_of({"fields": loaded.metadata.schema_.fields}),
        storage=storage.table,
        target=storage.target if inputs.same_schema else storage.replacing_target,
        replaces=None if inputs.same_schema else partitioning,
        properties=storage_properties(loaded.metadata.properties, view=str(loaded.identifier)),
        order=sort_order(loaded.metadata.properties, loaded.metadata.schema_.names, view=str(loaded.identifier)),
        # Only engines that load the table by name read it.
        summary=_refresh_state(inputs) if storage.pointers else {},
        outcome_location=outcome_location,
        work=work,
    )
    return script if storage.target.registers else replace(script, stored=storage.target.table)


def _refresh_state(inputs: RefreshInputs) -> dict[str, str]:
    """Return the summary fields that the draft specification defines for a storage table's snapshot."""
    observation = inputs.observation
    loaded, record = observation.view, observation.record
    tables = tuple(table.record() for table in observation.tables)
    if observation.interval is not None:
        # The draft knows refreshes of whole views only. For its readers the last one of these is the newest.
        if record is None or record.only_intervals:
            return {}
        tables = record.base_tables
    dialect = loaded.metadata.properties.get(REFRESH_STATE_PROPERTY, DEFAULT_DIALECT)
    state = refresh_state(
        version_id=loaded.metadata.current_version_id,
        started_ms=inputs.started_ms,
        tables=tables,
        nested_views=observation.nested_views,
        catalog=loaded.identifier.catalog,
    )
    text = write(state, dialect, view=str(loaded.identifier))
    return {} if text is None else {REFRESH_STATE_KEY: text}
