# SPDX-License-Identifier: Apache-2.0
"""Plan a refresh: look at the metadata, choose, and compile what Spark is asked."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from airflow_mv.catalog import MaterializedViewCatalog
from airflow_mv.catalog.files import join
from airflow_mv.errors import UnsupportedError
from airflow_mv.incremental import full_estimate, ways
from airflow_mv.observe import Observation, observe, require_readable
from airflow_mv.plan.choice import Choice, FallbackPolicy, Policy, Ways, choose
from airflow_mv.plan.cost import Estimate
from airflow_mv.plan.freshness import NO_SNAPSHOT, Code, ObservedTable, Reason
from airflow_mv.plan.planner import Mode, RefreshPlan, refresh_id
from airflow_mv.plan.statements import Work, full_refresh, pinned, registered_refresh
from airflow_mv.script import Script
from airflow_mv.spec.identifiers import Identifier
from airflow_mv.spec.refresh_state import (
    DEFAULT_DIALECT,
    REFRESH_STATE_KEY,
    REFRESH_STATE_PROPERTY,
    refresh_state,
    write,
)
from airflow_mv.spec.table import TableMetadata, ancestors, snapshots_between

#: Base tables that a run has pinned.
Pins = dict[Identifier, ObservedTable]


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
    """

    as_of: datetime | None = None
    full: bool = False
    on_fallback: FallbackPolicy | None = None
    max_full_bytes: int | None = None


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
    loaded = observation.view
    require_readable(loaded.identifier, observation.tables)
    policy = Policy.of(
        loaded.metadata.properties,
        view=str(loaded.identifier),
        on_fallback=options.on_fallback,
        max_full_bytes=options.max_full_bytes,
    )
    choice = choose(
        observation.freshness,
        strategy=loaded.materialized.refresh_strategy,
        forced=options.full,
        policy=policy,
        view=str(loaded.identifier),
        ways=lambda: _ways(catalog, observation),
    )
    chosen_in_the_past = options.as_of is not None or (pins is not None and not options.full)
    if chosen_in_the_past and (why := _older_than_recorded(catalog, observation)) is not None:
        choice = Choice(Mode.NOOP, (why,))
    plan = replace(_plan(observation, choice), skips=policy.on_fallback == "skip")
    if plan.mode in (Mode.NOOP, Mode.FAST_FORWARD):
        return plan
    return plan.with_script(_script(observation, plan.refresh_id, _work(choice, policy)))


def _work(choice: Choice, policy: Policy) -> Work | None:
    if choice.candidate is None or not choice.candidate.steps:
        return None
    full = next(item for item in choice.estimates if item.mode == Mode.FULL)
    may_recompute = policy.on_fallback == "full" and policy.allows(full)
    return Work(choice.candidate.steps, may_recompute, max(choice.candidate.estimate.bytes_read, full.bytes_read))


def _ways(catalog: MaterializedViewCatalog, observation: Observation) -> Ways:
    query, _ = _pinned(observation)
    ids = {mode: _identity(observation, mode) for mode in Mode}
    return ways(catalog, observation, pinned_query=query, same_schema=_same_schema(observation), refresh_ids=ids)


def _identity(observation: Observation, mode: Mode) -> str:
    return refresh_id(
        view_uuid=observation.view.metadata.view_uuid,
        version_id=observation.view.metadata.current_version_id,
        records=tuple(table.record() for table in observation.tables),
        nested_views=observation.nested_views,
        scope=str(mode),
        storage_base=observation.storage.base,
    )


def _plan(observation: Observation, choice: Choice) -> RefreshPlan:
    loaded = observation.view
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
        refresh_id=_identity(observation, choice.mode),
        records=tuple(table.record() for table in observation.tables),
        nested_views=observation.nested_views,
        changes=observation.freshness.base_tables,
        state=observation.freshness.state,
        estimates=_estimates(observation, choice),
    )


def _estimates(observation: Observation, choice: Choice) -> tuple[Estimate, ...]:
    if choice.estimates or choice.mode != Mode.FULL:
        return choice.estimates
    full = full_estimate(observation)
    return () if full is None else (full,)


def _pinned(observation: Observation) -> tuple[str, dict[str, str]]:
    loaded = observation.view
    return pinned(
        observation.sql,
        default_catalog=loaded.default_catalog,
        default_namespace=loaded.metadata.current_version.default_namespace,
        dependencies=observation.dependencies,
        heads={Identifier.parse(table.identifier): table.head for table in observation.tables},
        storages=observation.nested_storages,
        view=str(loaded.identifier),
    )


def _script(observation: Observation, identity: str, work: Work | None) -> Script:
    loaded, storage = observation.view, observation.storage
    query, nested = _pinned(observation)
    outcome_location = join(storage.table.location, "staged", f"{identity}.json")
    if storage.name is not None:
        _require_same_schema(observation)
        return registered_refresh(
            view=str(loaded.identifier),
            refresh_id=identity,
            query=query,
            table=storage.name,
            base_snapshot=storage.rows_snapshot,
            summary=_refresh_state(observation),
            nested=nested,
            outcome_location=outcome_location,
            work=work,
        )
    return full_refresh(
        view=str(loaded.identifier),
        refresh_id=identity,
        query=query,
        columns=loaded.metadata.schema_.names,
        storage=storage.table,
        storage_location=storage.location,
        same_schema=_same_schema(observation),
        nested=nested,
        outcome_location=outcome_location,
        work=work,
    )


def _refresh_state(observation: Observation) -> dict[str, str]:
    """Return what the draft specification puts into the summary of a storage table's snapshot."""
    loaded = observation.view
    dialect = loaded.metadata.properties.get(REFRESH_STATE_PROPERTY, DEFAULT_DIALECT)
    state = refresh_state(
        version_id=loaded.metadata.current_version_id,
        started_ms=time.time_ns() // 1_000_000,
        tables=[table.record() for table in observation.tables],
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
    for observed in observation.tables:
        recorded = record.snapshots.get(observed.identifier)
        if recorded is None or recorded in (NO_SNAPSHOT, observed.head):
            continue
        table = _knowing(catalog, observed, recorded)
        # A table that was rolled back has left the recorded snapshot: that is no later state, but another.
        if table is None or all(item.snapshot_id != recorded for item in ancestors(table, table.head)):
            continue
        if snapshots_between(table, observed.head, recorded):
            text = f"the stored rows hold {observed.identifier} at {recorded} already, later than {observed.head}"
            return Reason(Code.ALREADY_NEWER, text)
    return None


def _knowing(catalog: MaterializedViewCatalog, observed: ObservedTable, recorded: int) -> TableMetadata | None:
    """Return metadata that knows the recorded snapshot: a table that the run pinned may be from before it."""
    if observed.table is None or observed.table.find(recorded) is not None:
        return observed.table
    identifier = Identifier.parse(observed.identifier)
    located = catalog.locate([identifier]).get(identifier)
    return catalog.table_metadata(identifier, located) if located and located.kind == "table" else None
