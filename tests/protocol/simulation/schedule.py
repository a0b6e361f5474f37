# SPDX-License-Identifier: Apache-2.0
"""One seed is one schedule: which process continues, which calls fail, and what others do in between."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from airflow_mv.core.catalog import Layout
from airflow_mv.core.refresh import plan_refresh
from airflow_mv.core.spec.reasons import Mode
from tests.protocol.simulation.actors import (
    ACTORS,
    VIEW_CHANGES,
    Actor,
    collecting,
    create_view,
    drop_view,
    replacing,
)
from tests.protocol.simulation.bases import BaseTable
from tests.protocol.simulation.workers import Process, Task, refresher
from tests.protocol.simulation.world import BASES, GRACE, LATE, SECOND, TRY_LIMIT, VIEW, Violation, World

STEPS = 300
#: The relative frequency of faults for each kind of call.
_FAULTY = {"swap": 15.0, "commit": 8.0, "insert": 20.0, "delete": 4.0}


@dataclass(frozen=True, slots=True)
class Conditions:
    """The conditions of one schedule: each seed has its own mixture, so that rare events also become frequent.

    Args:
        tasks: How many tasks refresh the view.
        faults: Percentage of calls that have a fault.
        actors: The actions of others, with their frequency in a thousand steps.
        skewed: Whether the hosts' clocks differ.
        pace: The maximum duration of a call, in milliseconds.
    """

    tasks: int
    faults: float
    actors: tuple[tuple[Actor, int], ...]
    skewed: bool
    pace: int = 10 * SECOND

    @classmethod
    def of(cls, chance: Random, favoured: tuple[Actor, ...] = ()) -> Conditions:
        """Choose the conditions; favoured actions happen more often."""
        often = {actor: 5 if actor in favoured else chance.choice((0, 1, 1, 3)) for actor in ACTORS}
        changes = tuple((actor, 3 * VIEW_CHANGES[actor]) for actor in favoured if actor in VIEW_CHANGES)
        return cls(
            tasks=chance.randint(1, 4),
            faults=chance.choice((0.0, 0.3, 1.0, 4.0)),
            actors=tuple((actor, weight * often[actor]) for actor, weight in ACTORS.items()) + changes,
            skewed=chance.random() < 0.3,
            pace=chance.choice((2, 10, 10, 60)) * SECOND,
        )


def new_world(seed: int, fate: Callable[[World, str, tuple[str, ...]], str], *, layout: Layout = "pointed") -> World:
    """A lake with two base tables and a view over them that was never refreshed."""
    world = World(seed, fate, layout=layout)
    for identifier in BASES:
        world.bases[identifier] = BaseTable(identifier)
        world.bases[identifier].commit(world, "append")
    create_view(world)
    return world


def simulate(
    seed: int,
    *,
    prepare: Callable[[World], object] | None = None,
    conditions: Conditions | None = None,
    layout: Layout = "pointed",
) -> World:
    """Run one schedule to its end; afterwards, without faults, the view must become fresh.

    Raises:
        Violation: An invariant does not hold.
    """
    conditions = conditions or Conditions.of(Random(seed))
    rate = conditions.faults / 100

    def fate(world: World, kind: str, fates: tuple[str, ...]) -> str:
        strays = rate and world.random.random() < rate * _FAULTY.get(kind, 1.0)
        return world.pick(fates) if strays else "done"

    world = new_world(seed, fate, layout=layout)
    world.skewed = conditions.skewed
    world.events["clocks differ"] += conditions.skewed
    if prepare:
        prepare(world)
    tasks = [Task(world) for _ in range(conditions.tasks)]
    others, weights = zip(*conditions.actors, strict=True)
    often = sum(weights) / 1000
    for _ in range(STEPS):
        world.pass_time(int(world.random.random() * conditions.pace))
        if VIEW not in world.rows and world.random.random() < 0.1 and not _is_created(world):
            act(world, create_view)
        elif world.random.random() < often:
            act(world, world.random.choices(others, weights)[0])
        else:
            _go_on(world, tasks)
    settle(world, [process for task in tasks for process in task.running])
    return world


def _is_created(world: World) -> bool:
    """Whether a process is about to create the view."""
    return any(process.role == "create" for process in world.processes)


def act(world: World, actor: Actor) -> None:
    """Run an action of another user, and note whether it had an effect."""
    if actor(world) is not False:
        world.events[actor.__name__] += 1


def _go_on(world: World, tasks: list[Task]) -> None:
    if world.processes and world.random.random() < 0.4:
        process = world.pick(world.processes)
        process.step()
        world.processes = [item for item in world.processes if not item.over]
        return
    task = world.pick(tasks)
    if task.running and task.tries < task.limit and world.random.random() < 0.01:
        # Its heartbeat was lost: the scheduler starts the next try while this one is running.
        task.start()
    task.step()


def settle(world: World, running: list[Process]) -> None:
    """Apply late calls, kill the running processes, end all faults: then one refresh makes the view fresh."""
    for process in (*running, *world.processes):
        process.kill()
    world.pass_time(LATE + TRY_LIMIT)
    world.fate, world.down_until = (lambda *_: "done"), 0
    if not world.has_view:
        drop_view(world)  # an ordinary table: nobody has adopted it
    create_view(world)
    if world.ledger.state() is None:
        _replace_view(world)
    last = Process(world, "refresh", refresher)
    while not last.over:
        last.step()
    if last.failed:
        raise Violation(f"I13: without faults and contenders a refresh fails: {last.failed}")
    if plan_refresh(world.catalog, VIEW).mode != Mode.NOOP:
        raise Violation("I4: after a refresh without contenders the view is stale")
    _check_garbage(world)


def _replace_view(world: World) -> None:
    """Give the view a storage table, as the error says: a creation that was cut off has removed its own."""
    cut_off = ("create failed: killed", "drop: late", "insert: late")
    if not any(world.events[event] for event in cut_off):
        raise Violation("I13: of two creations one has left the view without its storage table")
    replace = Process(world, "replace", replacing)
    while not replace.over:
        replace.step()


def _check_garbage(world: World) -> None:
    """After the grace a collection leaves only what readers need, the current metadata and what its history names."""
    for _ in range(2):  # the first one records unreachable files, the second one deletes them
        world.pass_time(2 * GRACE)
        collect = Process(world, "collect", collecting)
        while not collect.over:
            collect.step()
    state = world.ledger.state()
    assert state is not None
    kept = {*world.ledger.live(), *(entry.metadata_file for entry in state.storage.table.metadata_log)}
    kept.add(world.rows[VIEW].previous or "")
    own = (f"{state.view.metadata.location}/", f"{state.storage.table.location}/")
    left = {name for name in world.files if name.startswith(own) and not name.endswith("/deletion-log.json")} - kept
    if collect.failed or left - world.unproven:
        raise Violation(f"I12: a collection left {sorted(left - world.unproven)[:3]} ({collect.failed})")
    # A driver that died before it wrote its metadata file has left rows and their manifest list. A creation that was
    # slower than another one, or was cut off, has left an empty table.
    usual = (".parquet", "/metadata/snap-", "/metadata/00000-")
    strange = [name for name in left if not any(part in name for part in usual)]
    if strange:
        raise Violation(f"I12: a collection could not prove {strange[:3]}")
