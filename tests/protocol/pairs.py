# SPDX-License-Identifier: Apache-2.0
"""Two commands on one view at the same time: in both orders, with one preemption at each call, and mixed at random."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import combinations_with_replacement
from random import Random

from airflow_mv.common.snapshots import snapshot_of
from airflow_mv.core.catalog import Layout
from airflow_mv.core.catalog.layouts import all_refreshes
from airflow_mv.errors import MetadataFileNotFoundError
from airflow_mv.extras.history.rollback import rollback
from airflow_mv.extras.maintenance.drop import purge
from tests.protocol.simulation.actors import (
    collecting,
    compacting,
    converting,
    expiring,
    redefining,
    repairing,
    turn_time_travel,
)
from tests.protocol.simulation.checks import files_of
from tests.protocol.simulation.schedule import new_world, settle
from tests.protocol.simulation.workers import Process, refresher
from tests.protocol.simulation.world import BASES, GRACE, MINUTE, SECOND, VIEW, Violation, World

#: The random schedules of each pair, beside the two orders and the preemptions.
MIXED = 10


def rolling_back(process: Process) -> None:
    """Roll back to the oldest refresh whose rows are still stored, also one that only the log has."""
    world = process.world
    view = world.catalog.load(VIEW)
    storage = world.catalog.load_storage(view)
    older = [record for record in all_refreshes(view, storage) if record != storage.record]
    older = [record for record in older if snapshot_of(storage, record) is not None]
    if older:
        rollback(world.catalog, VIEW, older[0].refresh_id, effects=process.effects)


def dropping(process: Process) -> None:
    """Drop the view with its files."""
    purge(process.world.catalog, VIEW)
    process.world.events["dropped"] += 1


def reading(process: Process) -> None:
    """Read the rows as an engine does: the pointer once, then every file of its snapshots."""
    world = process.world
    storage = world.catalog.load_storage(world.catalog.load(VIEW))
    dropped = world.events["dropped"]
    try:
        for location in files_of(world.catalog, storage):
            world.catalog.files.read(location, what="file of a snapshot")
    except MetadataFileNotFoundError as error:
        if world.events["dropped"] == dropped and VIEW in world.rows:
            raise Violation(f"a reader misses a file: {error}") from error
        raise


COMMANDS: dict[str, Callable[[Process], None]] = {
    "refresh": refresher,
    "replace": redefining,
    "rollback": rolling_back,
    "expire": expiring,
    "collect": collecting,
    "compact": compacting,
    "convert": converting,
    "repair": repairing,
    "drop": dropping,
    "read": reading,
}
PAIRS = list(combinations_with_replacement(COMMANDS, 2))
#: The roles that the simulation's checks know.
_ROLES = {"rollback": "roll back"}


@dataclass
class Tried:
    """What has happened in all schedules of a pair.

    Args:
        schedules: How many were tried.
        ends: How often each command ended in which way: ``done`` or the class of its error.
    """

    schedules: int = 0
    ends: dict[str, Counter[str]] = field(default_factory=dict)

    def note(self, process: Process, name: str) -> None:
        """Note how a command has ended."""
        self.ends.setdefault(name, Counter())[process.failed or "done"] += 1


def try_pair(first: str, second: str, layout: Layout, *, every: int = 1, mixed: int = MIXED) -> Tried:
    """Run all schedules of a pair; each begins with a world of its own.

    Args:
        first: A command.
        second: Another command, or the same.
        layout: The view's layout.
        every: One in so many preemptions is tried.
        mixed: How many random schedules.

    Raises:
        Violation: An invariant does not hold.
    """
    tried = Tried()
    for one, two in dict.fromkeys(((first, second), (second, first))):
        number = 0
        while _preempted(tried, one, two, layout, number):
            number += every
    for seed in range(mixed):
        _mixed(tried, first, second, layout, seed)
    return tried


def _preempted(tried: Tried, one: str, two: str, layout: Layout, calls: int) -> bool:
    """Let one command make some calls, run the other to its end, and continue. Return whether it had calls left."""
    world = aged_world(layout, calls)
    before, inner = _started(world, one), _started(world, two)
    for _ in range(calls):
        _step(world, before)
    paused = not before.over
    for process in (inner, before):
        while not process.over:
            _step(world, process)
    _end(tried, world, {one: before}, {two: inner}, f"{two} in {one} after {calls} calls")
    return paused


def _mixed(tried: Tried, one: str, two: str, layout: Layout, seed: int) -> None:
    world, chance = aged_world(layout, seed), Random(seed)
    left, right = _started(world, one), _started(world, two)
    while running := [process for process in (left, right) if not process.over]:
        _step(world, chance.choice(running))
    _end(tried, world, {one: left}, {two: right}, f"{one} and {two} mixed by seed {seed}")


def _end(tried: Tried, world: World, one: dict[str, Process], two: dict[str, Process], schedule: str) -> None:
    tried.schedules += 1
    for name, process in (*one.items(), *two.items()):
        tried.note(process, name)
    try:
        settle(world, [])
    except Violation as violation:
        raise Violation(f"{world.layout}, {schedule}: {violation}") from violation


def _started(world: World, name: str) -> Process:
    return Process(world, _ROLES.get(name, name), COMMANDS[name])


def _step(world: World, process: Process) -> None:
    world.pass_time(SECOND)
    process.step()


def aged_world(layout: Layout, seed: int) -> World:
    """A view with expired, expiring, recorded and staged rows, files that are due, and a newer base table."""
    world = new_world(seed, lambda *_: "done", layout=layout)
    world.attention = {}
    _travel(world, on=False)
    for _ in range(2):
        _refreshed(world)
    world.pass_time(2 * GRACE)
    for role, body in (("expire", expiring), ("collect", collecting)):  # files that are marked
        _run(Process(world, role, body))
    _refreshed(world)
    _travel(world, on=True)
    for _ in range(2):
        _refreshed(world)
    world.bases[BASES[1]].commit(world, "append")
    killed = Process(world, "refresh", refresher)
    while killed.calls_next not in ("swap", "commit"):
        killed.step()
    killed.kill()
    world.pass_time(2 * GRACE + MINUTE)
    world.bases[BASES[0]].commit(world, "append")
    return world


def _travel(world: World, *, on: bool) -> None:
    with world.at_once():
        if (world.catalog.load(VIEW).metadata.properties.get("airflow-mv.time-travel") == "true") != on:
            turn_time_travel(world)


def _refreshed(world: World) -> None:
    world.bases[BASES[0]].commit(world, "append")
    _run(Process(world, "refresh", refresher))
    world.pass_time(2 * MINUTE)


def _run(process: Process) -> None:
    while not process.over:
        process.step()
    assert process.failed is None, (process.role, process.failed)


def pairs(layout: Layout) -> Iterator[tuple[str, str]]:
    """The pairs that a layout has."""
    for one, two in PAIRS:
        if layout != "table" or "repair" not in (one, two):
            yield one, two
