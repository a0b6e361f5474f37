# SPDX-License-Identifier: Apache-2.0
"""Plan a refresh: look at the metadata, choose, and compile what Spark is asked."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from airflow_mv.catalog import MaterializedViewCatalog
from airflow_mv.catalog.files import join
from airflow_mv.observe import Observation, observe, require_readable
from airflow_mv.plan.freshness import NO_SNAPSHOT, Code, ObservedTable, Reason
from airflow_mv.plan.planner import Choice, FallbackPolicy, Mode, RefreshPlan, choose, refresh_id
from airflow_mv.plan.statements import full_refresh, pinned
from airflow_mv.script import Script
from airflow_mv.spec.identifiers import Identifier
from airflow_mv.spec.table import TableMetadata, ancestors, snapshots_between

#: Base tables that a run has pinned.
Pins = dict[Identifier, ObservedTable]


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
    choice = choose(
        observation.freshness,
        strategy=loaded.materialized.refresh_strategy,
        forced=options.full,
        on_fallback=options.on_fallback,
        view=str(loaded.identifier),
    )
    chosen_in_the_past = options.as_of is not None or (pins is not None and not options.full)
    if chosen_in_the_past and (why := _older_than_recorded(catalog, observation)) is not None:
        choice = Choice(Mode.NOOP, (why,))
    plan = _plan(observation, choice)
    return plan if plan.mode != Mode.FULL else plan.with_script(_full_script(observation, plan.refresh_id))


def _plan(observation: Observation, choice: Choice) -> RefreshPlan:
    loaded = observation.view
    records = tuple(table.record() for table in observation.tables)
    identity = refresh_id(
        view_uuid=loaded.metadata.view_uuid,
        version_id=loaded.metadata.current_version_id,
        records=records,
        nested_views=observation.nested_views,
        scope=str(choice.mode),
        storage_table_location=observation.storage.location,
    )
    return RefreshPlan(
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


def _full_script(observation: Observation, identity: str) -> Script:
    loaded, storage = observation.view, observation.storage
    query, nested = pinned(
        observation.sql,
        default_catalog=loaded.default_catalog,
        default_namespace=loaded.metadata.current_version.default_namespace,
        dependencies=observation.dependencies,
        heads={Identifier.parse(table.identifier): table.head for table in observation.tables},
        storages=observation.nested_storages,
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
        nested=nested,
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
