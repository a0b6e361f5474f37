# SPDX-License-Identifier: Apache-2.0
"""Choose the mode of a refresh, give the reasons, and compile the plan."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from airflow_mv.core.catalog import LoadedView, MaterializedViewCatalog, stored_layout
from airflow_mv.core.catalog.locations import join
from airflow_mv.core.freshness.observe import Observation
from airflow_mv.core.freshness.state import (
    Freshness,
    ObservedTable,
    SnapshotSet,
    State,
)
from airflow_mv.core.refresh.candidates import Candidate
from airflow_mv.core.refresh.checks import all_checks, checks_to_run, reads_staged_views
from airflow_mv.core.refresh.incremental import OTHER_STORAGE, Alternatives, alternatives
from airflow_mv.core.refresh.inputs import (
    RefreshInputs,
    RefreshOptions,
    load_inputs,
    recorded_snapshots,
)
from airflow_mv.core.refresh.intervals import (
    ANY_SIZE,
    EarlierRound,
    conditions_within,
    interval_work,
    is_unaffected,
    rows_of_earlier_round,
)
from airflow_mv.core.refresh.plan import Estimate, RefreshPlan, refresh_id
from airflow_mv.core.refresh.statements import PartialRefresh, PinnedQuery, refresh_script, wanted_partitioning
from airflow_mv.core.script import Script, StagedChecks
from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.core.spec.interval import Interval
from airflow_mv.core.spec.materialized_view import SQL_IDENTIFIER, BaseTable, RefreshRecord
from airflow_mv.core.spec.properties import (
    ON_SCHEMA_CHANGE_PROPERTY,
    UP_TO_PROPERTY,
    Policy,
    on_schema_change,
    sort_order,
    storage_properties,
)
from airflow_mv.core.spec.reasons import NOT_INCREMENTAL, Code, Mode, Reason, fallback
from airflow_mv.core.spec.table_metadata import is_ancestor, snapshots_between
from airflow_mv.core.spec.units import human
from airflow_mv.core.sql.interval_columns import MAX_INTERVALS
from airflow_mv.core.sql.types import columns_of
from airflow_mv.errors import ConfigurationError, RefreshRefusedError

_SKIPPED = Reason(Code.SKIPPED, "on_fallback is 'skip': the refresh was skipped")


@dataclass(frozen=True, slots=True)
class Choice:
    """The chosen mode of a refresh.

    Args:
        mode: What to do.
        reasons: Why, in order of weight.
        candidate: The incremental refresh, if the mode is incremental.
        estimates: The estimated costs of the compared modes, the chosen one first.
    """

    mode: Mode
    reasons: tuple[Reason, ...]
    candidate: Candidate | None = None
    estimates: tuple[Estimate, ...] = ()


def choose(inputs: RefreshInputs, policy: Policy) -> tuple[Choice, RefreshInputs]:
    """Choose the cheapest mode that makes the view fresh. Pure.

    Args:
        inputs: The inputs; all base tables are readable.
        policy: The fallback policy of an incremental view.

    Returns:
        The choice, and its inputs: the given ones, or those with a bounded part of the new base commits.

    Raises:
        ConfigurationError: The options exclude each other.
        RefreshRefusedError: The policy forbids what would be needed, or the view is invalid and has nothing to compute.
    """
    _require_columns(inputs)
    choice, chosen = _bounded(inputs, policy) or (_unbounded(inputs, policy), inputs)
    in_the_past = inputs.options.as_of is not None or inputs.pinned
    if in_the_past and (why := _older_than_recorded(chosen)) is not None:
        return Choice(Mode.NOOP, (why,)), chosen
    if choice.mode in (Mode.NOOP, Mode.FAST_FORWARD):
        _require_valid(inputs)
    return choice, chosen


def _require_valid(inputs: RefreshInputs) -> None:
    """Refuse to leave the rows of an invalid view as they are: that would be reported as a success.

    Raises:
        RefreshRefusedError: Names the changed columns. The tables have no commit with them yet.
    """
    view, freshness = inputs.observation.view.identifier, inputs.observation.freshness
    if not freshness.drift or freshness.of_rows != State.FRESH:
        return
    raise RefreshRefusedError(
        f"view {view} is invalid: {'; '.join(reason.message for reason in freshness.drift)}. No commit was made since, "
        "so there are no new rows to compute. Adapt the query and replace the view (airflow-mv create "
        f"{view} --replace), or refresh it after the next commit to the table"
    )


def _require_columns(inputs: RefreshInputs) -> None:
    """Refuse a refresh if a column of a base table was changed and the view's policy is ``fail``.

    Raises:
        RefreshRefusedError: Names the columns.
    """
    view, found = inputs.observation.view, inputs.observation.freshness.drift
    name = str(view.identifier)
    if not found or inputs.options.full or on_schema_change(view.metadata.properties, view=name) != "fail":
        return
    raise RefreshRefusedError(
        f"view {name}: {'; '.join(reason.message for reason in found)}, and {ON_SCHEMA_CHANGE_PROPERTY} is 'fail'. "
        "Check that the query still means what it should. If it does, refresh the view once with --full; if not, "
        f"replace it (airflow-mv create {name} --replace)"
    )


def _bounded(inputs: RefreshInputs, policy: Policy) -> tuple[Choice, RefreshInputs] | None:
    """Choose how to catch up by a part of the new base commits; ``None`` if the refresh is unbounded."""
    options, observation = inputs.options, inputs.observation
    if options.bound is None:
        return None
    if inputs.pinned:
        raise ConfigurationError(
            f"view {observation.view.identifier}: {options.bound} may be used for one view without pins only: several "
            "views that are refreshed together read the base tables at pinned snapshots"
        )
    if options.full or options.interval is not None or observation.view.materialized.refresh_strategy == "full":
        return None
    bounded = options.bound.up_to(observation)
    if bounded is None:
        return None
    part = replace(inputs, observation=bounded[0])
    choice = _of_all_rows(part, policy)
    if choice.mode == Mode.FULL:
        return None
    return replace(choice, reasons=(*choice.reasons, bounded[1])), part


def _unbounded(inputs: RefreshInputs, policy: Policy) -> Choice:
    options = inputs.options
    if inputs.observation.interval is not None:
        return _of_interval(inputs, inputs.observation.interval)
    choice = _of_all_rows(inputs, policy)
    if options.bound is not None and choice.mode == Mode.FULL and not options.full:
        # A full recompute that leaves the view stale would have the full cost for part of the use.
        text = f"a full refresh ignores {options.bound} and reads the current snapshots of the base tables"
        why = Reason(Code.BOUNDED, text)
        return replace(choice, reasons=(*choice.reasons, why))
    return choice


def _of_all_rows(inputs: RefreshInputs, policy: Policy) -> Choice:
    view = inputs.observation.view
    return by_policy(
        inputs.observation.freshness,
        policy,
        strategy=view.materialized.refresh_strategy,
        forced=inputs.options.full,
        same_schema=inputs.same_schema,
        found=lambda: alternatives(inputs),
        full=lambda: inputs.full_estimate,
        view=str(view.identifier),
    )


def by_policy(
    freshness: Freshness,
    policy: Policy,
    *,
    strategy: Literal["full", "incremental"],
    forced: bool,
    same_schema: bool,
    found: Callable[[], Alternatives],
    full: Callable[[], Estimate],
    view: str,
) -> Choice:
    """Choose the mode for all rows of a view.

    Args:
        freshness: The verdict; not ``unknown``.
        policy: What is allowed.
        strategy: The view's ``refresh-strategy``.
        forced: Recompute even if nothing has changed, whatever the policy.
        same_schema: See :func:`by_state`.
        found: Returns the alternatives for an incremental view.
        full: Returns the estimate of a full refresh.

    Raises:
        RefreshRefusedError: The policy forbids what would be needed.
    """
    choice = by_state(freshness, strategy=strategy, forced=forced, same_schema=same_schema)
    if choice is None:
        return by_cost(freshness, found(), policy, view=view)
    if choice.mode != Mode.FULL or forced or freshness.state == State.NEVER_REFRESHED:
        return choice
    return _within_policy(choice, full(), policy, strategy=strategy, view=view)


def by_state(
    freshness: Freshness, *, strategy: Literal["full", "incremental"], forced: bool, same_schema: bool
) -> Choice | None:
    """Choose the mode if the view's state alone decides.

    Args:
        freshness: The verdict; not ``unknown``.
        strategy: The view's ``refresh-strategy``.
        forced: Recompute even if nothing has changed.
        same_schema: Whether the storage table has the view's columns and the requested partitioning.

    Returns:
        ``None`` if an incremental refresh may be possible.
    """
    if forced:
        return Choice(Mode.FULL, (Reason(Code.FORCED, "a full refresh was requested"), *_pending(freshness)))
    if freshness.of_rows == State.FRESH:
        if not same_schema:
            return Choice(Mode.FULL, (*_pending(freshness), OTHER_STORAGE))
        return Choice(Mode.FAST_FORWARD if freshness.moved else Mode.NOOP, freshness.reasons)
    if strategy == "full":
        why = Reason(Code.STRATEGY_FULL, "the view's refresh strategy is full")
        return Choice(Mode.FULL, (*freshness.reasons, why))
    if freshness.state in (State.NEVER_REFRESHED, State.DEFINITION_CHANGED):
        return Choice(Mode.FULL, freshness.reasons)
    return None


def _within_policy(
    choice: Choice, full: Estimate, policy: Policy, *, strategy: Literal["full", "incremental"], view: str
) -> Choice:
    """Return a full refresh of a view that has rows, if the policy allows it, else what the policy wants instead.

    For the strategy ``full`` a recompute is no fallback: ``on_fallback`` matters only if ``max_full_bytes`` forbids it.
    """
    never = strategy == "incremental" and policy.on_fallback != "full"
    if policy.allows(full.bytes_read) and not never:
        return choice
    if policy.on_fallback == "skip":
        return Choice(Mode.NOOP, (*choice.reasons, _SKIPPED), None, (full,))
    causes = "; ".join(reason.message for reason in choice.reasons)
    raise _refused(view, causes, None if never else full, policy)


def by_cost(freshness: Freshness, found: Alternatives, policy: Policy, *, view: str) -> Choice:
    """Choose between an incremental and a full refresh of a stale view.

    Args:
        freshness: The verdict.
        found: The two alternatives.
        policy: What an incremental view may fall back to.

    Raises:
        RefreshRefusedError: The policy forbids what would be needed.
    """
    if isinstance(found.incremental, Candidate):
        return _cheaper(freshness, found.incremental, found.full, policy)
    return _fallback(freshness, found.incremental, found.full, policy, view)


def _cheaper(freshness: Freshness, candidate: Candidate, full: Estimate, policy: Policy) -> Choice:
    within = policy.allows(full.bytes_read)
    # A fast-forward is never more expensive, whatever the property says.
    is_longer = bool(candidate.steps) and _is_longer(candidate.estimate, full, policy.up_to)
    if policy.on_fallback == "full" and within and is_longer:
        text = "full is expected to be cheaper"
        if not _is_longer(candidate.estimate, full):
            text = f"{candidate.mode} may take {policy.up_to:,.10g} times as long as full at most ({UP_TO_PROPERTY})"
        why = Reason(Code.COST, f"{text}: {full}, {candidate.estimate}")
        dropped = tuple(reason for reason in candidate.reasons if reason.code != Code.INCREMENTAL)
        return Choice(Mode.FULL, (*freshness.reasons, why, *dropped), None, (full, candidate.estimate))
    against = "" if not is_longer else "; full is not allowed" if within else "; full reads more than is allowed"
    if not is_longer and _is_longer(candidate.estimate, full):
        against = f"; it may take {policy.up_to:,.10g} times as long as full ({UP_TO_PROPERTY})"
    why = Reason(Code.COST, f"expected: {candidate.estimate}, {full}{against}")
    reasons = (*freshness.reasons, *candidate.reasons, why)
    return Choice(candidate.mode, reasons, candidate, (candidate.estimate, full))


def _is_longer(one: Estimate, other: Estimate, times: float = 1.0) -> bool:
    """Whether one mode takes longer than a multiple of another; ``False`` if one of the costs is unknown."""
    return one.seconds is not None and other.seconds is not None and one.seconds > other.seconds * times


def _fallback(freshness: Freshness, refused: tuple[Reason, ...], full: Estimate, policy: Policy, view: str) -> Choice:
    head = Reason(Code.INCREMENTAL_UNAVAILABLE, NOT_INCREMENTAL)
    why = (*freshness.reasons, head, *(reason for reason in refused if reason not in freshness.reasons))
    causes = "; ".join(reason.message for reason in refused)
    if policy.on_fallback == "skip":
        return Choice(Mode.NOOP, (*why, _SKIPPED), None, (full,))
    if policy.on_fallback == "fail":
        raise _refused(view, causes, None, policy)
    if not policy.allows(full.bytes_read):
        raise _refused(view, causes, full, policy)
    return Choice(Mode.FULL, why, None, (full,))


def _refused(view: str, causes: str, full: Estimate | None, policy: Policy) -> RefreshRefusedError:
    """Return the error for a full refresh that is too large, or that is not allowed at any size."""
    if full is None:
        return RefreshRefusedError(
            f"view {view} would have to be recomputed in full, and on_fallback is 'fail': {causes}. "
            "Allow it with on_fallback='full', or force it once with --full"
        )
    return RefreshRefusedError(
        f"view {view} would have to be recomputed in full, which reads {human(full.bytes_read)}, and "
        f"max_full_bytes allows {human(policy.max_full_bytes or 0)}: {causes}. Raise it, or force it once with --full"
    )


def _pending(freshness: Freshness) -> tuple[Reason, ...]:
    return tuple(reason for reason in freshness.reasons if reason.code != Code.FRESH)


# --------------------------------------------------------------------------------- an interval
def _of_interval(inputs: RefreshInputs, interval: Interval) -> Choice:
    """Choose what a refresh of an interval does."""
    observation = inputs.observation
    freshness = observation.freshness
    _require_possible(observation, interval, same_schema=inputs.same_schema)
    what = Reason(Code.INTERVAL, f"only the rows with {interval} are recomputed and replaced")
    if inputs.options.full:
        return Choice(Mode.REPLACE_INTERVAL, (Reason(Code.FORCED, "a recompute was requested"), what))
    if freshness.of_rows == State.FRESH:
        return Choice(Mode.NOOP, freshness.reasons)
    if (proof := is_unaffected(inputs, interval)) is not None:
        return Choice(Mode.FAST_FORWARD, (*freshness.reasons, *proof))
    return Choice(Mode.REPLACE_INTERVAL, (*freshness.reasons, what))


def _require_possible(observation: Observation, interval: Interval, *, same_schema: bool) -> None:
    """Refuse to refresh an interval that does not fit the stored rows."""
    record, view = observation.record, observation.view.identifier
    why = ""
    if observation.freshness.state == State.DEFINITION_CHANGED:
        why = "its stored rows belong to another definition: " + "; ".join(
            reason.message for reason in observation.freshness.reasons
        )
    elif record is None and observation.storage.table.rows_at(observation.storage.table.head) != 0:
        why = "its storage table has rows that no refresh has written"
    elif not same_schema:
        why = "its storage table has other columns or another partitioning"
    elif record is not None and any(item.column != interval.column for item in record.intervals):
        why = f"intervals of another column, {record.intervals[0].column}, have been refreshed on their own"
    elif record is not None and len(record.intervals) >= MAX_INTERVALS:
        why = f"{len(record.intervals)} intervals have their own base snapshots, and no more are recorded"
    if why:
        raise RefreshRefusedError(
            f"view {view} cannot be refreshed for {interval} alone: {why}. Refresh the whole view first: airflow-mv "
            f"refresh {view}"
        )


# ------------------------------------------------------------------------------ older snapshots
def _older_than_recorded(inputs: RefreshInputs) -> Reason | None:
    """Return a reason if some of the stored rows are of later snapshots than the requested ones."""
    for observed in inputs.observation.tables:
        recorded = recorded_snapshots(inputs.observation, observed)
        later = [snapshot for snapshot in recorded if _is_later(inputs, observed, snapshot)]
        if later:
            text = f"the stored rows were computed from {observed.identifier} at {later[0]}, later than {observed.head}"
            never = any(not item.part.computed for item in inputs.observation.freshness.parts)
            if never or len(later) < len(recorded):
                text += "; older rows keep their contents until a refresh reads later snapshots"
            return Reason(Code.ALREADY_NEWER, text)
    return None


def _is_later(inputs: RefreshInputs, observed: ObservedTable, recorded: int) -> bool:
    table = observed.table
    if table is not None and table.find(recorded) is None:
        table = inputs.current.get(observed.name)
    # A table that was rolled back has left the recorded snapshot, which is then not a later state.
    if table is None or not is_ancestor(table, recorded, table.head):
        return False
    return bool(snapshots_between(table, observed.head, recorded))


# ------------------------------ Plan a refresh: read the inputs, choose a mode, and compile the script that Spark runs


#: Modes that stage no rows.
_WITHOUT_ROWS = (Mode.NOOP, Mode.FAST_FORWARD)
#: Adds to a plan what is only reported.
Annotate = Callable[[MaterializedViewCatalog, RefreshInputs, RefreshPlan, SnapshotSet | None], RefreshPlan]


def plan_refresh(
    catalog: MaterializedViewCatalog,
    view: str | Identifier | LoadedView,
    options: RefreshOptions | None = None,
    *,
    pins: SnapshotSet | None = None,
    earlier: EarlierRound | None = None,
    annotate: Annotate | None = None,
) -> RefreshPlan:
    """Return what a refresh would do, and why. Reads metadata only.

    Args:
        view: Its name, or the view as it was loaded.
        options: How to refresh.
        pins: See :func:`airflow_mv.core.freshness.observe.observe`.
        earlier: Rows that an earlier round of the same refresh staged. They are reused if only the storage table has
            changed since.
        annotate: See :func:`airflow_mv.common.status.annotated`.

    Raises:
        BaseTableNotFoundError: A base table cannot be read.
        RefreshRefusedError: The fallback policy forbids what would be needed.
        ConfigurationError, InvalidQueryError: A check is invalid.
    """
    inputs = load_inputs(catalog, view, options or RefreshOptions(), pins=pins)
    plan = compile_plan(inputs, earlier)
    seen = inputs.observation
    # Only stale rows have a lag, and only a view that reads views has stale inputs.
    has_more = seen.freshness.of_rows == State.STALE or any(table.view for table in seen.tables)
    return annotate(catalog, inputs, plan, pins) if annotate and has_more else plan


def compile_plan(inputs: RefreshInputs, earlier: EarlierRound | None = None) -> RefreshPlan:
    """Choose what a refresh does, and compile its script. A function of its arguments; see :func:`plan_refresh`.

    Args:
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
        return _interval_plan(inputs, plan.interval, plan, earlier).with_checks(staged_checks)
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


def _interval_plan(
    inputs: RefreshInputs, interval: Interval, plan: RefreshPlan, earlier: EarlierRound | None
) -> RefreshPlan:
    """Add the script to the plan of an interval."""
    observation = inputs.observation
    found = rows_of_earlier_round(observation, plan, earlier)
    if found is not None:
        why = Reason(Code.REBASED, "the rows are already staged; only the storage table changed since then")
        plan = replace(plan, reasons=(*plan.reasons, why))
    query = found or inputs.pinned_query(where=conditions_within(inputs, interval))
    work = interval_work(observation, interval, query.sql, inputs.full_estimate.bytes_read)
    return replace(plan, script=build_script(inputs, query, plan.refresh_id, work))


def _work(choice: Choice, policy: Policy) -> PartialRefresh | None:
    if choice.candidate is None or not choice.candidate.steps:
        return None
    full = next(item for item in choice.estimates if item.mode == Mode.FULL)
    may_recompute = policy.on_fallback == "full" and policy.allows(full.bytes_read)
    sizes = [ANY_SIZE if size is None else size for size in (choice.candidate.estimate.bytes_read, full.bytes_read)]
    return PartialRefresh(choice.candidate.steps, may_recompute, max(sizes))


def _scope(
    inputs: RefreshInputs, mode: Mode, renamed: Mapping[str, tuple[str, ...]], checks: StagedChecks | None
) -> str:
    """Return what a refresh covers. Rows that were staged for another scope are never reused."""
    interval = inputs.observation.interval
    scope = f"{mode} {interval}" if interval else str(mode)
    if renamed:
        scope += f" renamed {sorted(renamed.items())}"
    if inputs.options.definition:
        scope += f" definition {inputs.options.definition}"
    # Rows that failed a check must not be found by a refresh that does not have this check.
    return f"{scope} checks {checks.digest}" if checks is not None and mode not in _WITHOUT_ROWS else scope


def _identity(observation: Observation, records: tuple[BaseTable, ...], base: str, scope: str) -> str:
    return refresh_id(
        view_uuid=observation.view.metadata.view_uuid,
        version_id=observation.view.metadata.current_version_id,
        records=records,
        nested_views=observation.nested_views,
        scope=scope,
        storage_base=base,
    )


def _plan(inputs: RefreshInputs, choice: Choice, policy: Policy, checks: StagedChecks | None) -> RefreshPlan:
    observation = inputs.observation
    loaded = observation.view
    renamed = {} if choice.mode in _WITHOUT_ROWS else inputs.renamed_columns
    records, base = _recorded(inputs), observation.storage.base
    return RefreshPlan(
        view=loaded.identifier,
        view_uuid=loaded.metadata.view_uuid,
        version_id=loaded.metadata.current_version_id,
        metadata_location=loaded.metadata_location,
        storage_table_location=observation.storage.location,
        storage_base=base,
        storage_table=observation.storage.name,
        layout=stored_layout(loaded).layout,
        mode=choice.mode,
        reasons=(*(item for item in _altered(observation) if item not in choice.reasons), *choice.reasons),
        refresh_id=_identity(observation, records, base, _scope(inputs, choice.mode, renamed, checks)),
        records=records,
        nested_views=observation.nested_views,
        changes=observation.freshness.base_tables,
        state=observation.freshness.state,
        estimates=choice.estimates or ((inputs.full_estimate,) if choice.mode == Mode.FULL else ()),
        skips=policy.on_fallback == "skip",
        interval=observation.interval,
        renamed=tuple(renamed.items()),
        repeats=_repeats(choice.reasons, observation.record, loaded.metadata.current_version_id),
    )


#: A name in a query, up to a clause behind it.
_NAME = re.compile(r"(?:`(?:[^`]|``)*`|[^\s`])+")


def _recorded(inputs: RefreshInputs) -> tuple[BaseTable, ...]:
    """Return the base tables as the refresh records them: with their names in the SQL, and what other catalogs are.

    A table that only nested views name has no other name than its full one.
    """
    query, tables = inputs.observation.query, inputs.observation.tables
    places = {item.identifier.parts: item.start for item in reversed(query.references)}
    texts = {parts: name[0] for parts, start in places.items() if (name := _NAME.match(query.text, start))}
    names = {table.identifier: texts.get(table.name.parts) for table in tables if table.name.path is None}
    return tuple(
        table.record(
            {
                SQL_IDENTIFIER: None if (text := names.get(table.identifier)) == table.identifier else text,
                **inputs.catalogs.get(table.name.parts[0], {}),
            }
        )
        for table in tables
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
        pinned: The query for the rows.
        identity: The refresh.
        work: The steps that replace the recompute of all rows.
    """
    observation = inputs.observation
    loaded, storage = observation.view, observation.storage
    name, columns, properties = str(loaded.identifier), loaded.metadata.schema_, loaded.metadata.properties
    replaces = None
    if not inputs.same_schema:
        replaces = wanted_partitioning(loaded.identifier, loaded.metadata, storage.table)
    target = storage.target
    outcome_location = join(storage.table.location, "staged", f"{identity}.json")
    script = refresh_script(
        view=name,
        refresh_id=identity,
        pinned=pinned,
        columns=columns_of({"fields": columns.fields}),
        storage=storage.table,
        target=target if inputs.same_schema else storage.replacing_target,
        replaces=replaces,
        properties=storage_properties(properties, view=name),
        order=sort_order(properties, columns.names, view=name),
        # Only engines that load the table by name read it.
        summary=inputs.options.summary(inputs) if storage.pointers else {},
        outcome_location=outcome_location,
        work=work,
    )
    return script if target.registers else replace(script, stored=target.table)
