# SPDX-License-Identifier: Apache-2.0
"""Actions of other users and processes between two steps of a refresh. Each is a function of the world."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta

from airflow_mv.core.catalog import STORED_LAYOUTS
from airflow_mv.core.catalog.catalog import next_number
from airflow_mv.core.catalog.layouts import PointedStorage
from airflow_mv.core.define.create import create
from airflow_mv.core.define.definition import Definition, NewDefinition, NewProperties
from airflow_mv.core.publish.new_storage import NewStorage
from airflow_mv.core.publish.view_change import CreateView, ViewChange
from airflow_mv.core.spec.choices import TIME_TRAVEL_PROPERTY
from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.core.spec.materialized_view import PROPERTY, STORAGE_TABLE_PROPERTY, STORAGE_TABLE_UUID_PROPERTY
from airflow_mv.core.spec.table_metadata import parse_table
from airflow_mv.core.spec.view import ViewMetadata, new_view, replace_version, with_view_properties
from airflow_mv.errors import MaterializedViewError
from airflow_mv.extras.adopt import adopt
from airflow_mv.extras.maintenance.repair import _RowRepair as RowRepair
from tests.protocol.simulation.bases import BaseTable
from tests.protocol.simulation.checks import creation_of, files_of, past_files
from tests.protocol.simulation.queries import columns, query
from tests.protocol.simulation.tables import empty_table, put_table_of_others, with_rows_of_others
from tests.protocol.simulation.workers import Analyser, Process, Rewriter
from tests.protocol.simulation.world import BASES, GRACE, MINUTE, OWNER, STORAGE, VIEW, Row, World

Actor = Callable[[World], object]


# -- base tables --------------------------------------------------------------------------------------


def _some_base(world: World) -> BaseTable:
    return world.bases[world.pick(BASES)]


def append(world: World) -> None:
    """Append to a base table."""
    _some_base(world).commit(world, "append")


def overwrite(world: World) -> None:
    """Change rows of a base table."""
    _some_base(world).commit(world, "overwrite")


def compact(world: World) -> bool:
    """Compact a base table: another snapshot, the same rows."""
    base = _some_base(world)
    if base.snapshots:
        base.commit(world, "replace")
    return bool(base.snapshots)


def expire_base(world: World) -> bool:
    """Expire all snapshots of a base table but the current one."""
    return _some_base(world).expire(world)


def roll_back_base(world: World) -> bool:
    """Roll a base table back."""
    return _some_base(world).roll_back(world)


def recreate_base(world: World) -> None:
    """Drop a base table and create another one with its name."""
    _some_base(world).recreate(world)


def forget_base_files(world: World) -> bool:
    """Delete a base table's old metadata files, as its own maintenance does."""
    return _some_base(world).forget_files(world)


# -- the view -----------------------------------------------------------------------------------------


def replace_view(world: World) -> bool:
    """Give the view another definition, with other columns."""
    if not world.has_view:
        return False
    loaded = world.catalog.load(VIEW)
    number = max(version.version_id for version in loaded.metadata.versions) + 1
    wider = number % 2 == 0
    replaced = replace_version(
        loaded.metadata, schema=columns(wider=wider), sql=query(number, wider=wider),
        default_catalog="lake", default_namespace=("s",), summary={}, now_ms=world.now,
    )  # fmt: skip
    return world.catalog.replace(loaded, replaced)


def comment(world: World) -> bool:
    """Set a comment on the view."""
    return _set(world, "comment", str(world.now))


def turn_time_travel(world: World) -> bool:
    """Turn time travel on or off."""
    if not world.has_view:
        return False
    on = world.catalog.load(VIEW).metadata.properties.get(TIME_TRAVEL_PROPERTY) == "true"
    return _set(world, TIME_TRAVEL_PROPERTY, "false" if on else "true")


def _set(world: World, key: str, value: str) -> bool:
    if not world.has_view:
        return False
    loaded = world.catalog.load(VIEW)
    return world.catalog.replace(loaded, with_view_properties(loaded.metadata, {key: value}))


def create_view(world: World) -> bool:
    """Create the view with an empty storage table; each view has its own uuid and folder."""
    if VIEW in world.rows:
        return False
    world.catalog.create(VIEW, _new_view(world), template=_template(world))
    return True


def _template(world: World) -> Identifier | None:
    return STORAGE if world.is_table else None


def _new_view(world: World) -> ViewMetadata:
    """Create an empty storage table, and return the first metadata of a view that names it."""
    world.views += 1
    folder = f"s3://w/v-{world.views}"
    storage = f"{folder}-storage" if world.registered else f"{folder}/storage"
    start = f"{storage}/metadata/00000-start.metadata.json"
    if not world.is_table:
        world.put(start, json.dumps(empty_table(storage, world.now, named=world.registered)).encode())
    if world.registered:
        world.rows[STORAGE] = Row(start, "TABLE")
    return new_view(
        view_uuid=f"view-{world.views}", location=folder, schema=columns(wider=False), sql=query(1, wider=False),
        default_catalog="lake", default_namespace=("s",), properties=_properties(world, storage, start), summary={},
        now_ms=world.now,
    )  # fmt: skip


def _properties(world: World, storage: str, start: str) -> dict[str, str]:
    named = {STORAGE_TABLE_PROPERTY: STORAGE.within_catalog, STORAGE_TABLE_UUID_PROPERTY: storage}
    return {
        PROPERTY: json.dumps({"storage-table-location": start}),
        TIME_TRAVEL_PROPERTY: world.pick(("true", "false")),
        **(named if world.registered else {}),
    }


def drop_view(world: World) -> bool:
    """Drop the view, and its storage table if the catalog has it; the files stay."""
    if VIEW in world.rows:
        world.rows.pop(STORAGE, None)
    return world.rows.pop(VIEW, None) is not None


def recreate_view(world: World) -> None:
    """Drop the view and create another one with its name."""
    drop_view(world)
    create_view(world)


# -- maintenance, step by step --------------------------------------------------------------------------


def collecting(process: Process) -> None:
    """Collect the unreachable files."""
    from airflow_mv.extras.maintenance.orphans import collect_orphans

    world = process.world
    found = collect_orphans(
        world.catalog, VIEW, older_than=timedelta(milliseconds=world.grace), files_of=files_of, past_files_of=past_files
    )
    world.events["files collected"] += len(found.files)
    world.unproven = set(found.unproven)


def expiring(process: Process) -> None:
    """Expire the storage table's old snapshots."""
    from airflow_mv.extras.maintenance.orphans import expire

    expire(process.world.catalog, VIEW, older_than=timedelta(minutes=1), effects=process.effects)


def rolling_back(process: Process) -> None:
    """Roll the view back to a refresh of its history."""
    from airflow_mv.extras.history.rollback import rollback

    state = process.world.catalog.load_storage(process.world.catalog.load(VIEW)).state
    older = [record for record in state.refreshes if record != state.current] if state else []
    if older:
        rollback(process.world.catalog, VIEW, older[-1].refresh_id, effects=process.effects)


def converting(process: Process) -> None:
    """Move the view to another layout."""
    from airflow_mv.extras.convert import convert

    world = process.world
    wanted = world.pick([name for name in STORED_LAYOUTS if name != world.layout])
    convert(world.catalog, VIEW, wanted, effects=process.effects)
    world.events["view converted"] += 1


def start_converting(world: World) -> None:
    """Start to move the view to another layout."""
    world.processes.append(Process(world, "convert", converting, world.some_skew()))


def compacting(process: Process) -> None:
    """Compact the stored rows."""
    from airflow_mv.extras.compact import compact

    done = compact(process.world.catalog, VIEW, stager=Rewriter(process.world, process), effects=process.effects)
    process.world.events[f"compaction: {done.outcome}"] += 1


def start_compacting(world: World) -> None:
    """Start to compact the stored rows."""
    world.processes.append(Process(world, "compact", compacting, world.some_skew()))


def start_collecting(world: World) -> None:
    """Start to collect orphans."""
    world.processes.append(Process(world, "collect", collecting, world.some_skew()))


def start_expiring(world: World) -> None:
    """Start to expire the storage table's snapshots."""
    world.processes.append(Process(world, "expire", expiring, world.some_skew()))


def start_rolling_back(world: World) -> None:
    """Start to roll the view back."""
    world.processes.append(Process(world, "roll back", rolling_back, world.some_skew()))


# -- changes of the view itself, step by step -----------------------------------------------------------


def redefining(process: Process) -> None:
    """Give the view another definition that no other process uses."""
    world = process.world
    existing = world.catalog.load(VIEW)
    sql = query(10_000 + world.next_snapshot(), wider=False)
    table = parse_table(json.dumps(empty_table("s3://w/new", world.now)).encode(), source="new storage table")
    storage = NewStorage(PointedStorage("s3://w/new", table, None), VIEW)
    new = Definition(sql)
    change = NewDefinition(
        world.catalog, existing, {"spark": sql}, existing.context, storage, new, storage=None, effects=process.effects
    )
    _publish(process, change, f"{existing.metadata.view_uuid}: {sql}")


def setting(process: Process) -> None:
    """Set a property of the view to a value that no other process uses."""
    world = process.world
    existing = world.catalog.load(VIEW)
    travel = existing.metadata.properties.get(TIME_TRAVEL_PROPERTY) == "true"
    owner = f"owner {world.next_snapshot()}"
    definition = Definition(None, time_travel=travel, properties={OWNER: owner})
    _publish(process, NewProperties(world.catalog, existing, definition, process.effects), owner)


def creating(process: Process) -> None:
    """Create the view; in the layout ``registered`` with its storage table, from the start."""
    world = process.world
    if world.registered:
        _creating_both(process)
        return
    with world.at_once():
        metadata = _new_view(world)
    _publish(process, CreateView(world.catalog, VIEW, metadata, process.effects, _template(world)), metadata.view_uuid)


def _creating_both(process: Process) -> None:
    """Create a storage table and a view that names it. Another creation may have other columns."""
    world = process.world
    sql = query(20_000 + world.next_snapshot(), wider=world.pick((True, False)))
    _noted(process, lambda: create_by_command(process, sql), creation_of(sql))


def create_by_command(process: Process, sql: str, *, replace: bool = False) -> None:
    """Create or replace the view as a user does."""
    world = process.world
    definition = Definition(sql, layout=world.layout, time_travel=world.pick((True, False)))
    create(world.catalog, VIEW, definition, stager=Analyser(world), replace=replace, effects=process.effects)


def replacing(process: Process) -> None:
    """Replace the view by itself, which gives it a storage table if it has none."""
    view = process.world.catalog.load(VIEW)
    create_by_command(process, view.metadata.current_version.texts["spark"], replace=True)


def repairing(process: Process) -> None:
    """Publish the view's metadata again, under another name, as a repair does."""
    world = process.world
    loaded = world.catalog.load(VIEW)
    again = world.catalog.write_metadata(loaded.metadata, number=next_number(loaded.metadata_location))
    RowRepair(world.catalog, VIEW, loaded.metadata_location, again, process.effects).publish()
    world.events["view repaired"] += 1


def adopting(process: Process) -> None:
    """Make the table of the view's name the view."""
    world = process.world
    sql = query(30_000 + world.next_snapshot(), wider=False)
    definition = Definition(sql, time_travel=world.pick((True, False)))
    _noted(
        process,
        lambda: adopt(world.catalog, VIEW, definition, stager=Analyser(world), effects=process.effects),
        creation_of(sql),
    )


def writing(process: Process) -> None:
    """Append to the table of the view's name, as long as it is not a view."""
    world = process.world
    for _ in range(world.random.randint(1, 4)):
        if world.catalog.tables.change(VIEW, lambda table: with_rows_of_others(world, table)) is None:
            return


def _publish(process: Process, change: ViewChange | CreateView, mark: str) -> None:
    _noted(process, change.publish, mark)


def _noted(process: Process, make: Callable[[], object], mark: str) -> None:
    """Make a change of the view, and note its reported outcome."""
    try:
        make()
    except MaterializedViewError as error:
        process.world.ledger.change_ended(mark, error)
        raise
    process.world.ledger.change_ended(mark, None)


def start_redefining(world: World) -> None:
    """Start to give the view another definition."""
    world.processes.append(Process(world, "redefine", redefining, world.some_skew()))


def start_setting(world: World) -> None:
    """Start to set a property of the view."""
    world.processes.append(Process(world, "set", setting, world.some_skew()))


def start_repairing(world: World) -> bool:
    """Start to repair the view's own metadata file, if it has one."""
    if world.is_table:
        return False
    world.processes.append(Process(world, "repair", repairing, world.some_skew()))
    return True


def start_creating(world: World) -> bool:
    """Drop the view and start two processes that create it. Its storage table may stay, as after a ``DROP VIEW``."""
    left = world.rows.get(STORAGE)
    if drop_view(world) and left is not None and world.random.random() < 0.5:
        world.rows[STORAGE] = left
    world.processes += [Process(world, "create", creating, world.some_skew()) for _ in range(2)]
    return True


def start_adopting(world: World) -> bool:
    """Put a table of others in the view's place, and start processes that write to it, adopt it and create a view."""
    if not world.is_table:
        return False
    drop_view(world)
    put_table_of_others(world, VIEW)
    roles: dict[str, Callable[[Process], None]] = {"write": writing, "adopt": adopting, "create": creating}
    for role in ("write", "adopt", "adopt", *(("create",) if world.random.random() < 0.5 else ())):
        world.processes.append(Process(world, role, roles[role], world.some_skew()))
    return True


# -- the environment ------------------------------------------------------------------------------------


def catalog_down(world: World) -> None:
    """Make the catalog's database unavailable for a while."""
    world.down_until = world.now + world.random.randint(0, MINUTE)


def night(world: World) -> None:
    """Let hours pass, so that running processes time out."""
    world.pass_time(2 * GRACE)


#: How often each action happens in a thousand steps.
ACTORS: dict[Actor, int] = {
    append: 25, overwrite: 5, compact: 20, expire_base: 8, roll_back_base: 8, recreate_base: 2, forget_base_files: 8,
    replace_view: 5, comment: 10, turn_time_travel: 4, recreate_view: 1, drop_view: 1,
    catalog_down: 2, night: 2, start_collecting: 8, start_expiring: 5, start_rolling_back: 5,
}  # fmt: skip
#: Changes of the view itself, which have schedules of their own.
VIEW_CHANGES: dict[Actor, int] = {start_redefining: 6, start_setting: 6, start_creating: 1, start_repairing: 3}
