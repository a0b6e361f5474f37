# SPDX-License-Identifier: Apache-2.0
"""Plan a refresh: look at the metadata, choose, and compile what Spark is asked."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cache, partial
from typing import Any

from airflow_mv.catalog import MaterializedViewCatalog
from airflow_mv.catalog.files import join
from airflow_mv.checks import Check
from airflow_mv.errors import ConfigurationError, UnsupportedError
from airflow_mv.freshness.lag import lag
from airflow_mv.freshness.observe import Observation, observe, require_readable
from airflow_mv.freshness.state import ObservedTable, State
from airflow_mv.refresh.catch_up import Bound, up_to
from airflow_mv.refresh.checks import all_checks, checks_to_run, reads_staged_views
from airflow_mv.refresh.choose import Alternatives, Choice, FallbackPolicy, Policy, choose
from airflow_mv.refresh.cost import Estimate
from airflow_mv.refresh.incremental import alternatives, full_estimate
from airflow_mv.refresh.intervals import ANY_SIZE, Kept, choose_interval, interval_work, kept_rows
from airflow_mv.refresh.plan import RefreshPlan, refresh_id
from airflow_mv.refresh.statements import PartialRefresh, refresh_script
from airflow_mv.refresh.unaffected_intervals import is_unaffected
from airflow_mv.refresh.view_sql import pinned_query, renamed_columns, with_newest, with_own_columns
from airflow_mv.script import Script
from airflow_mv.spec.identifiers import Identifier
from airflow_mv.spec.interval import Interval, Span
from airflow_mv.spec.interval_parts import IntervalPart, parts_in, parts_of
from airflow_mv.spec.materialized_view import NO_SNAPSHOT
from airflow_mv.spec.reasons import Code, Mode, Reason
from airflow_mv.spec.refresh_state import (
    DEFAULT_DIALECT,
    REFRESH_STATE_KEY,
    REFRESH_STATE_PROPERTY,
    refresh_state,
    write,
)
from airflow_mv.spec.table import TableMetadata, is_ancestor, snapshots_between
from airflow_mv.sql.types import columns_of

#: Base tables that a run has pinned.
Pins = dict[Identifier, ObservedTable]
#: What :func:`pinned_query` returns.
_Pinned = tuple[str, dict[str, str]]


@dataclass(frozen=True, slots=True)
class RefreshOptions:
    """How to refresh.

    Args:
        as_of: Read the base tables as they were then (an aware time), instead of as they are now.
        full: Recompute although nothing may have changed.
        on_fallback: What to do where an incremental view would have to be recomputed in full; by default what the
            view's property ``airflow-mv.on-fallback`` says, else ``full``.
        max_full_bytes: Bytes of base table files that such a recompute may read, more is refused; by default the
            view's property ``airflow-mv.max-full-bytes``, else any number.
        interval: Refresh only the rows of this stretch of time.
        max_snapshots: New commits of the base tables that an incremental refresh reads at most; the rest is for the
            next one.
        max_bytes: Bytes of files that these commits added and removed, at most, but for a first one that is larger; see
            :class:`airflow_mv.refresh.catch_up.Bound`.
        checks: What must hold of the new rows before they are published, beside the view's own checks.
    """

    as_of: datetime | None = None
    full: bool = False
    on_fallback: FallbackPolicy | None = None
    max_full_bytes: int | None = None
    interval: Span | None = None
    checks: tuple[Check, ...] = ()
    max_snapshots: int | None = None
    max_bytes: int | None = None

    @property
    def bounds(self) -> dict[str, int]:
        """What bounds an incremental refresh, by the option's name."""
        given = {"max_snapshots": self.max_snapshots, "max_bytes": self.max_bytes}
        return {name: value for name, value in given.items() if value is not None}


def plan_refresh(
    catalog: MaterializedViewCatalog,
    view: str | Identifier,
    options: RefreshOptions | None = None,
    *,
    pins: Pins | None = None,
    kept: Kept | None = None,
) -> RefreshPlan:
    """Plan a refresh: what would run, and why. Reads metadata only.

    Args:
        catalog: Where the view is.
        view: The view.
        options: How to refresh.
        pins: See :func:`airflow_mv.freshness.observe.observe`.
        kept: What an earlier round of the same refresh has staged; taken where only the storage table moved since.

    Raises:
        BaseTableNotFoundError: A base table cannot be read.
        RefreshRefusedError: The fallback policy forbids what would be needed.
        ConfigurationError, InvalidQueryError: A check is not what it must be.
    """
    options = options or RefreshOptions()
    observation = observe(catalog, view, as_of=options.as_of, pins=pins, span=options.interval)
    loaded = observation.view
    require_readable(loaded.identifier, observation.tables)
    if options.full or options.interval is not None or observation.freshness.state != State.FRESH:
        observation = with_own_columns(catalog, observation if pins is None else with_newest(catalog, observation))
    policy = Policy.of(
        loaded.metadata.properties,
        view=str(loaded.identifier),
        on_fallback=options.on_fallback,
        max_full_bytes=options.max_full_bytes,
    )
    observation, choice, queries = _chosen(catalog, observation, options, policy, pins=pins)
    chosen_in_the_past = options.as_of is not None or pins is not None
    if chosen_in_the_past and (why := _older_than_recorded(catalog, observation)) is not None:
        choice = Choice(Mode.NOOP, (why,))
    plan = replace(_plan(catalog, observation, choice), skips=policy.on_fallback == "skip")
    checks = all_checks(observation, options.checks)
    asked = checks_to_run(catalog, observation, checks)
    if plan.mode in (Mode.NOOP, Mode.FAST_FORWARD):
        return plan
    if plan.interval is not None:
        kept = None if reads_staged_views(observation, checks) else kept
        return _of_interval(observation, plan.interval, plan, queries, kept).with_checks(asked)
    script = _script(observation, queries(), plan.refresh_id, _work(choice, policy))
    return plan.with_script(script).with_checks(asked)


def _chosen(
    catalog: MaterializedViewCatalog,
    observation: Observation,
    options: RefreshOptions,
    policy: Policy,
    *,
    pins: Pins | None,
) -> tuple[Observation, Choice, Callable[[], _Pinned]]:
    """Choose, from the look at the view or from what a bounded part of the new base commits leaves of it."""
    bounded = _bounded(observation, options, pins=pins)
    if bounded is not None:
        cut, why = bounded
        of_cut = cache(partial(_pinned, catalog, cut))
        choice = _choice(cut, options, policy, lambda: _ways(catalog, cut))
        if choice.mode != Mode.FULL:
            return cut, replace(choice, reasons=(*choice.reasons, why)), of_cut
    queries = cache(partial(_pinned, catalog, observation))
    if observation.interval is not None:
        return observation, _interval_choice(catalog, observation, observation.interval, options), queries
    choice = _choice(observation, options, policy, lambda: _ways(catalog, observation))
    if options.bounds and choice.mode == Mode.FULL and not options.full:
        # To recompute everything, and then be stale, would be the whole cost for half of the use.
        names = " and no ".join(options.bounds)
        why = Reason(Code.BOUNDED, f"a full refresh knows no {names}: it reads the base tables as they are")
        choice = replace(choice, reasons=(*choice.reasons, why))
    return observation, choice, queries


def _bounded(
    observation: Observation, options: RefreshOptions, *, pins: Pins | None
) -> tuple[Observation, Reason] | None:
    if not options.bounds:
        return None
    for name, value in options.bounds.items():
        if value < 1:
            raise ConfigurationError(f"{name} is {value}; it must be at least 1")
    if pins is not None:
        raise ConfigurationError(
            f"view {observation.view.identifier}: {' and '.join(options.bounds)} can bound a refresh of one view at a "
            "time: base tables that several views are pinned to are read at these snapshots"
        )
    incremental = observation.view.materialized.refresh_strategy == "incremental"
    if options.full or options.interval is not None or not incremental:
        return None
    return up_to(observation, Bound(options.max_snapshots, options.max_bytes))


def _choice(
    observation: Observation, options: RefreshOptions, policy: Policy, alternatives: Callable[[], Alternatives]
) -> Choice:
    return choose(
        observation.freshness,
        strategy=observation.view.materialized.refresh_strategy,
        forced=options.full,
        policy=policy,
        view=str(observation.view.identifier),
        ways=alternatives,
    )


def _interval_choice(
    catalog: MaterializedViewCatalog, observation: Observation, interval: Interval, options: RefreshOptions
) -> Choice:
    return choose_interval(
        observation,
        interval,
        forced=options.full,
        same_schema=_same_schema(observation),
        untouched=lambda: is_unaffected(catalog, observation, interval),
    )


def _of_interval(
    observation: Observation, interval: Interval, plan: RefreshPlan, queries: Callable[[], _Pinned], kept: Kept | None
) -> RefreshPlan:
    """Give the plan of an interval its script."""
    found = kept_rows(observation, plan, kept)
    if found is not None:
        why = Reason(Code.REBASED, "its rows are staged already: only the storage table has moved meanwhile")
        plan = replace(plan, reasons=(*plan.reasons, why))
    query = found or queries()
    full = full_estimate(observation)
    work = interval_work(observation, interval, query[0], full.bytes_read if full else None)
    return plan.with_script(_script(observation, query, plan.refresh_id, work))


def _work(choice: Choice, policy: Policy) -> PartialRefresh | None:
    if choice.candidate is None or not choice.candidate.steps:
        return None
    full = next(item for item in choice.estimates if item.mode == Mode.FULL)
    may_recompute = policy.on_fallback == "full" and policy.allows(full)
    sizes = [ANY_SIZE if size is None else size for size in (choice.candidate.estimate.bytes_read, full.bytes_read)]
    return PartialRefresh(choice.candidate.steps, may_recompute, max(sizes))


def _ways(catalog: MaterializedViewCatalog, observation: Observation) -> Alternatives:
    same = _same_schema(observation)
    # There is no incremental way where the query reads a column whose name has another meaning by now.
    query, _ = _pinned(catalog, observation, filtered=True)
    return alternatives(catalog, observation, pinned_query=query, same_schema=same)


def _identity(observation: Observation, mode: Mode, renamed: Mapping[str, tuple[str, ...]]) -> str:
    scope = f"{mode} {observation.interval}" if observation.interval else str(mode)
    return refresh_id(
        view_uuid=observation.view.metadata.view_uuid,
        version_id=observation.view.metadata.current_version_id,
        records=tuple(table.record() for table in observation.tables),
        nested_views=observation.nested_views,
        # What was staged before a column was renamed is another refresh's.
        scope=f"{scope} renamed {sorted(renamed.items())}" if renamed else scope,
        storage_base=observation.storage.base,
    )


def _plan(catalog: MaterializedViewCatalog, observation: Observation, choice: Choice) -> RefreshPlan:
    loaded, since = observation.view, lag(observation).since
    renamed = {} if choice.mode in (Mode.NOOP, Mode.FAST_FORWARD) else renamed_columns(catalog, observation)
    return RefreshPlan(
        view=loaded.identifier,
        view_uuid=loaded.metadata.view_uuid,
        version_id=loaded.metadata.current_version_id,
        metadata_location=loaded.metadata_location,
        storage_table_location=observation.storage.location,
        storage_base=observation.storage.base,
        storage_table=observation.storage.name,
        mode=choice.mode,
        reasons=choice.reasons,
        refresh_id=_identity(observation, choice.mode, renamed),
        records=tuple(table.record() for table in observation.tables),
        nested_views=observation.nested_views,
        changes=observation.freshness.base_tables,
        state=observation.freshness.state,
        estimates=_estimates(observation, choice),
        interval=observation.interval,
        behind_since_ms=None if since is None else int(since.timestamp() * 1000),
        renamed=tuple(renamed.items()),
    )


def _estimates(observation: Observation, choice: Choice) -> tuple[Estimate, ...]:
    if choice.estimates or choice.mode != Mode.FULL:
        return choice.estimates
    full = full_estimate(observation)
    return () if full is None else (full,)


def _pinned(catalog: MaterializedViewCatalog, observation: Observation, *, filtered: bool = False) -> _Pinned:
    return pinned_query(catalog, observation, observation.query, filtered=filtered)


def _script(observation: Observation, queries: _Pinned, identity: str, work: PartialRefresh | None) -> Script:
    loaded, storage = observation.view, observation.storage
    outcome_location = join(storage.table.location, "staged", f"{identity}.json")
    if storage.keeps_columns:
        _require_same_schema(observation)
    return refresh_script(
        view=str(loaded.identifier),
        refresh_id=identity,
        pinned=queries,
        columns=columns_of({"fields": loaded.metadata.schema_.fields}),
        storage=storage.table,
        target=storage.target,
        same_schema=_same_schema(observation),
        # Only engines that find the table by its name look for it.
        summary=_refresh_state(observation) if storage.pointers else {},
        outcome_location=outcome_location,
        work=work,
    )


def _refresh_state(observation: Observation) -> dict[str, str]:
    """Return what the draft specification puts into the summary of a storage table's snapshot."""
    loaded, record = observation.view, observation.record
    tables = tuple(table.record() for table in observation.tables)
    if observation.interval is not None:
        # Its readers know of whole refreshes only: for them nothing is newer than the last one.
        if record is None or record.only_intervals:
            return {}
        tables = record.base_tables
    dialect = loaded.metadata.properties.get(REFRESH_STATE_PROPERTY, DEFAULT_DIALECT)
    state = refresh_state(
        version_id=loaded.metadata.current_version_id,
        started_ms=time.time_ns() // 1_000_000,
        tables=tables,
        nested_views=observation.nested_views,
        catalog=loaded.identifier.catalog,
    )
    text = write(state, dialect, view=str(loaded.identifier))
    return {} if text is None else {REFRESH_STATE_KEY: text}


def _require_same_schema(observation: Observation) -> None:
    """A table in the catalog gets no other columns while others read it: that takes a new storage table."""
    if not _same_schema(observation):
        name = observation.view.identifier
        raise UnsupportedError(
            f"view {name} has other columns than its storage table {observation.storage.name}: another program has "
            f"replaced the view. Give it a storage table that fits: airflow-mv create {name} --replace"
        )


def _same_schema(observation: Observation) -> bool:
    """Whether the storage table's columns are the view's, by name and type."""
    return same_columns(observation.view.metadata.schema_.fields, observation.storage.table)


def same_columns(fields: Sequence[Mapping[str, Any]], table: TableMetadata) -> bool:
    """Whether a table has these columns, by name and type."""
    wanted = [(field["name"], _shape(field["type"])) for field in fields]
    return wanted == [(field["name"], _shape(field["type"])) for field in table.current_schema.get("fields", [])]


def _shape(value: Any) -> Any:
    """A column type without field ids, nullability and comments."""
    dropped = ("id", "element-id", "key-id", "value-id", "doc", "required", "element-required", "value-required")
    if isinstance(value, dict):
        return {key: _shape(item) for key, item in value.items() if key not in dropped}
    return [_shape(item) for item in value] if isinstance(value, list) else value


def _older_than_recorded(catalog: MaterializedViewCatalog, observation: Observation) -> Reason | None:
    """Say so where the stored rows already hold later snapshots than the asked ones: never go back unasked."""
    record = observation.record
    if record is None or record.version_id != observation.view.metadata.current_version_id:
        return None
    parts = parts_of(record) if observation.interval is None else parts_in(record, observation.interval)
    for observed, recorded in [(item, snapshot) for item in observation.tables for snapshot in _held(item, parts)]:
        if recorded in (NO_SNAPSHOT, observed.head):
            continue
        table = _knowing(catalog, observed, recorded)
        # A table that was rolled back has left the recorded snapshot: that is no later state, but another.
        if table is None or not is_ancestor(table, recorded, table.head):
            continue
        if snapshots_between(table, observed.head, recorded):
            text = f"the stored rows hold {observed.identifier} at {recorded} already, later than {observed.head}"
            return Reason(Code.ALREADY_NEWER, text)
    return None


def _held(observed: ObservedTable, parts: Sequence[IntervalPart]) -> list[int]:
    """Return the snapshots of a base table that parts of the stored rows are of."""
    tables = [table for part in parts for table in part.base_tables]
    return list(dict.fromkeys(item.snapshot_reference for item in tables if item.identifier == observed.identifier))


def _knowing(catalog: MaterializedViewCatalog, observed: ObservedTable, recorded: int) -> TableMetadata | None:
    """Return metadata that knows the recorded snapshot: a table that the run pinned may be from before it."""
    if observed.table is None or observed.table.find(recorded) is not None:
        return observed.table
    identifier = Identifier.parse(observed.identifier)
    located = catalog.locate([identifier]).get(identifier)
    return catalog.table_metadata(identifier, located) if located and located.kind == "table" else None
