# SPDX-License-Identifier: Apache-2.0
"""Seeded schedules of racing, failing and dying refreshers: none breaks an invariant, and each planted fault does."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from airflow_mv.core.catalog import Layout
from airflow_mv.core.publish.new_storage import CreateStorage
from airflow_mv.core.spec.choices import TIME_TRAVEL_PROPERTY
from tests.protocol.simulation import mutants
from tests.protocol.simulation.actors import (
    ACTORS,
    VIEW_CHANGES,
    Actor,
    append,
    catalog_down,
    comment,
    compact,
    rolling_back,
    start_adopting,
    start_compacting,
    start_converting,
    start_creating,
    turn_time_travel,
)
from tests.protocol.simulation.change_mutants import (
    CHANGE_MUTANTS,
    CONVERSION_MUTANTS,
    compaction_is_published_on_any_base,
)
from tests.protocol.simulation.mutants import MUTANTS, Patch, metadata_named_by_version_number
from tests.protocol.simulation.product import simulating
from tests.protocol.simulation.registered_mutants import (
    REGISTERED_MUTANTS,
    TABLE_MUTANTS,
    an_adoption_ignores_the_writes_of_others,
    rollback_is_repeated,
)
from tests.protocol.simulation.schedule import Conditions, new_world, settle, simulate
from tests.protocol.simulation.workers import Process, refresher
from tests.protocol.simulation.world import BASES, SECOND, VIEW, Violation, World

#: The minimum number of schedules; more are run until all required events have occurred, so they start at seeds where
#: all occur soon. The long run has other seeds.
SCHEDULES: dict[Layout, range] = {"pointed": range(355, 385), "registered": range(98, 118), "table": range(15, 35)}
#: An event that has not occurred in so many schedules is missing for a reason.
MAX_COUNT = 1_000
#: A planted fault must be detected within so many schedules.
SEARCH = 2_500
#: The seed at which the search for a rare fault starts: one that has detected it before.
MET: dict[tuple[Layout, str], int] = {
    ("pointed", "giving_up_deletes_files_that_may_land"): 60,
    ("pointed", "collection_without_grace"): 113,
    ("pointed", "collection_trusts_its_first_read"): 91,
    ("pointed", "expiry_drops_the_current_snapshot"): 32,
    ("pointed", "no_matched_row_is_a_proof"): 174,
    ("pointed", "times_from_the_local_clock"): 87,
    ("pointed", "landed_refresh_is_not_detected"): 19,
    ("pointed", "unknown_is_conflict"): 8,
    ("pointed", "superseded_by_rows_that_were_rolled_back"): 13,
    ("pointed", "blind_retry_with_a_new_identity"): 6,
    ("registered", "landed_refresh_is_not_detected"): 266,
    ("registered", "new_columns_are_added_after_any_snapshot"): 63,
    ("registered", "commit_without_requirements"): 10,
    ("table", "commit_without_requirements"): 4,
    ("table", "the_definition_is_not_required"): 6,
    ("table", "landed_refresh_is_not_detected"): 149,
    ("table", "main_and_tag_are_not_required"): 28,
    ("table", "an_adoption_ignores_the_writes_of_others"): 101,
    ("registered", "refused_commit_is_a_success"): 17,
}
#: Of the planted faults, one in so many and some others are searched for in the normal run, and all in the long one.
ONE_IN = 3
ALWAYS = (mutants.blind_retry_with_a_new_identity, mutants.rowcount_ignored)
#: The long run: the number of schedules, and the first seed.
TORTURE_SCHEDULES = int(os.environ.get("TORTURE_SCHEDULES") or 20_000)
TORTURE_SEED = int(os.environ.get("TORTURE_SEED") or 1_000_000)

#: Events that must occur in some schedule: schedules without an event prove nothing about it.
EVENTS = (
    *(actor.__name__ for actor in ACTORS),
    *(f"swap: {fate}" for fate in ("lost before", "lost after", "killed before", "killed after", "late", "re-sent")),
    *(f"write: {fate}" for fate in ("lost before", "lost after", "killed before", "killed after")),
    *(f"{kind}: lost before" for kind in ("get", "locate", "read", "list", "delete")),
    *(f"ended: {outcome}" for outcome in ("refreshed", "already-committed", "superseded", "fresh")),
    *(f"refresh failed: {error}" for error in ("killed", "JobError", "CommitConflictError", "CommitStateUnknownError")),
    *(
        f"reason: {code}"
        for code in ("BASE_CHANGED", "ONLY_REPLACED", "ROLLED_BACK", "SNAPSHOT_EXPIRED", "BASE_RECREATED")
    ),
    "reason: DEFINITION_CHANGED",
    "refreshed: full",
    "refreshed: fast-forward",
    "swap refused",
    "late swap landed",
    "late swap was refused",
    "overlapping tries",
    "planned again",
    "staged rows of an earlier try published",
    "pinned snapshot had expired",
    "clocks differ",
    "catalog down",
    "refresh: timed out",
    "storage table expired",
    "view rolled back",
    "files collected",
)
REGISTERED_EVENTS = (
    *(f"commit: {fate}" for fate in ("lost before", "lost after", "killed before", "killed after", "late", "re-sent")),
    *(f"ended: {outcome}" for outcome in ("refreshed", "already-committed", "superseded", "fresh")),
    "commit refused",
    "columns changed in place",
    "refreshed: full",
    "refreshed: fast-forward",
    "late swap landed",
    "late swap was refused",
    "overlapping tries",
    "planned again",
    "staged rows of an earlier try published",
    "pinned snapshot had expired",
    "storage table expired",
    "view rolled back",
    "files collected",
)


VIEW_EVENTS = (
    *(f"view change: {end}" for end in ("done", "CommitStateUnknownError", "ViewNotFoundError")),
    *(f"{role} failed: CommitStateUnknownError" for role in ("redefine", "set", "repair")),
    "repair failed: CommitConflictError",
    "view repaired",
    "late swap landed",
    "late swap was refused",
)
#: A view that is a table has no metadata file of its own to repair.
TABLE_VIEW_EVENTS = tuple(event for event in VIEW_EVENTS if "repair" not in event)
VIEW_SCHEDULES: dict[Layout, range] = {"pointed": range(15, 35), "registered": range(15), "table": range(11, 26)}


@pytest.fixture(autouse=True, scope="module")
def _simulating() -> Iterator[None]:
    with simulating():
        yield


def _require_events(schedules: range, wanted: tuple[str, ...], run: Callable[[int], Counter[str]]) -> None:
    """Run the schedules, and more until each event has occurred: nothing is proven about an event that never does."""
    missing = set(wanted)
    for seed in range(schedules.start, schedules.start + MAX_COUNT):
        if seed >= schedules.stop and not missing:
            return
        missing -= {event for event, count in run(seed).items() if count}
    pytest.fail(f"never occurred in {MAX_COUNT} schedules: {sorted(missing)}")


def planted(faults: Collection[Callable[[World, Patch], None]]) -> list[Any]:
    """One case for each planted fault."""
    soon = {*list(faults)[::ONE_IN], *ALWAYS}
    return [pytest.param(fault, id=fault.__name__, marks=() if fault in soon else pytest.mark.slow) for fault in faults]


@pytest.mark.parametrize(("layout", "schedules"), SCHEDULES.items())
def test_no_schedule_loses_duplicates_or_mixes_refreshes(layout: Layout, schedules: range) -> None:
    """Invariants I1 to I12, I15, I16 and I25 after every change, and I13 at the end of each schedule."""
    wanted = EVENTS if layout == "pointed" else REGISTERED_EVENTS
    _require_events(schedules, wanted, lambda seed: simulate(seed, layout=layout).events)


@pytest.mark.parametrize(("layout", "schedules"), VIEW_SCHEDULES.items())
def test_no_schedule_loses_or_duplicates_a_change_of_the_view(layout: Layout, schedules: range) -> None:
    """Definitions, properties, creations and repairs race with refreshes, and the same invariants hold."""

    def events(seed: int) -> Counter[str]:
        return simulate(seed, layout=layout, conditions=Conditions.of(Random(seed), tuple(VIEW_CHANGES))).events

    _require_events(schedules, TABLE_VIEW_EVENTS if layout == "table" else VIEW_EVENTS, events)


@pytest.mark.parametrize("layout", SCHEDULES)
def test_no_schedule_loses_or_duplicates_a_creation(layout: Layout) -> None:
    """Two processes drop and create views repeatedly, and most answers are lost; a longer creation gets more time."""
    often, down, faults = (10, 5, 1.0) if layout == "registered" else (30, 20, 4.0)

    def events(seed: int) -> Counter[str]:
        conditions = Conditions.of(Random(seed), tuple(VIEW_CHANGES))
        actors = (*conditions.actors, (start_creating, often), (catalog_down, down))
        return simulate(seed, layout=layout, conditions=replace(conditions, faults=faults, actors=actors)).events

    ends = [f"view change: {end}" for end in ("done", "CommitStateUnknownError", "AlreadyExistsError")]
    first = 28 if layout == "registered" else 0
    _require_events(range(first, first + 10), (*ends, "create failed: CommitStateUnknownError"), events)


def simulate_conversions(seed: int, layout: Layout, prepare: Callable[[World], object] | None = None) -> World:
    """A schedule in which the view often moves between layouts."""
    conditions = Conditions.of(Random(seed))
    actors = (*conditions.actors, (start_converting, 25))
    return simulate(seed, layout=layout, prepare=prepare, conditions=replace(conditions, actors=actors))


@pytest.mark.parametrize("layout", SCHEDULES)
def test_no_schedule_loses_or_mixes_refreshes_while_the_view_is_converted(layout: Layout) -> None:
    """What was staged for one layout is never published in another, and a refresh that landed first stays."""
    wanted = ("view converted", "ended: refreshed", "planned again", "storage table expired")
    first = 4 if layout == "pointed" else 0
    _require_events(range(first, first + 8), wanted, lambda seed: simulate_conversions(seed, layout).events)


def simulate_compactions(seed: int, layout: Layout, prepare: Callable[[World], object] | None = None) -> World:
    """A schedule in which the stored rows are often compacted."""
    conditions = Conditions.of(Random(seed))
    actors = (*conditions.actors, (start_compacting, 25))
    conditions = replace(conditions, actors=actors, pace=2 * SECOND)  # so that most compactions end
    return simulate(seed, layout=layout, prepare=prepare, conditions=conditions)


#: What has to occur while rows are compacted.
COMPACTIONS = ("rows compacted", "compaction: superseded")


@pytest.mark.parametrize("layout", SCHEDULES)
def test_no_schedule_loses_or_changes_rows_that_are_compacted(layout: Layout) -> None:
    """A compaction replaces the rows that it has read, of the refresh that is recorded, or is not published."""
    _require_events(range(8), COMPACTIONS, lambda seed: simulate_compactions(seed, layout).events)


@pytest.mark.slow
@pytest.mark.timeout(0)
@pytest.mark.parametrize("layout", SCHEDULES)
def test_many_schedules_lose_or_change_no_rows_that_are_compacted(layout: Layout) -> None:
    """The same with other seeds."""
    violations: dict[int, str] = {}
    for seed in range(TORTURE_SEED, TORTURE_SEED + TORTURE_SCHEDULES):
        try:
            simulate_compactions(seed, layout)
        except Violation as violation:
            violations[seed] = str(violation)
    assert violations == {}


@pytest.mark.parametrize("layout", SCHEDULES)
def test_a_compaction_that_is_published_on_any_base_is_detected(layout: Layout) -> None:
    _require_violation(
        compaction_is_published_on_any_base,
        lambda seed, prepare: simulate_compactions(seed, layout, prepare),
        layout=layout,
    )


def simulate_adoptions(seed: int, prepare: Callable[[World], object] | None = None) -> World:
    """A schedule in which tables of others often become the view, while others write to them."""
    conditions = Conditions.of(Random(seed))
    actors = (*conditions.actors, (start_adopting, 10))
    conditions = replace(conditions, actors=actors, pace=2 * SECOND)  # so that most adoptions end
    return simulate(seed, layout="table", prepare=prepare, conditions=conditions)


def test_no_schedule_adopts_a_table_twice_or_takes_rows_of_others_for_the_view_s() -> None:
    """Two adoptions, a creation and a writer race; files from before the adoption are never deleted."""
    ends = ("AlreadyExistsError", "CommitStateUnknownError", "killed")
    wanted = ("view adopted", "commit refused", "ended: refreshed", "files collected")
    _require_events(
        range(19, 27),
        (*wanted, *(f"adopt failed: {end}" for end in ends)),
        lambda seed: simulate_adoptions(seed).events,
    )


def test_a_planted_fault_of_an_adoption_is_detected() -> None:
    _require_violation(an_adoption_ignores_the_writes_of_others, simulate_adoptions, layout="table")


@pytest.mark.parametrize("mutant", planted(CONVERSION_MUTANTS))
def test_a_planted_fault_of_a_conversion_is_detected(mutant: Callable[[World, Patch], None]) -> None:
    _require_violation(mutant, lambda seed, prepare: simulate_conversions(seed, "registered", prepare))


def create_twice(seed: int, prepare: Callable[[World], object] = lambda _: None) -> World:
    """Two creations of one view in a catalog that has a storage table already; then the view must become fresh."""
    world = new_world(seed, _done, layout="registered")
    prepare(world)
    start_creating(world)
    processes, world.processes = world.processes, []
    while running := [process for process in processes if not process.over]:
        world.pick(running).step()
    assert [process.failed for process in processes].count(None) == 1
    settle(world, [])
    return world


def test_of_two_creations_one_succeeds_and_its_view_has_a_storage_table() -> None:
    """Each may take the other's storage table for one that was left, until a view names it."""
    _require_events(range(40), ("removed table put back",), lambda seed: create_twice(seed).events)


def test_a_creation_that_does_not_put_back_what_it_removed_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CreateStorage, "_put_back", lambda *_: False)
    with pytest.raises(Violation, match="without its storage table"):
        _require_events(range(130, SEARCH), (), lambda seed: create_twice(seed).events)


@pytest.mark.slow
@pytest.mark.timeout(0)
@pytest.mark.parametrize("layout", SCHEDULES)
def test_many_schedules_lose_duplicate_or_mix_no_refresh(layout: Layout, capsys: pytest.CaptureFixture[str]) -> None:
    """The same with other seeds, a tenth with more changes of the view; continues after a violation, to count them."""
    events: Counter[str] = Counter()
    violations: dict[int, str] = {}
    started = time.perf_counter()
    for seed in range(TORTURE_SEED, TORTURE_SEED + TORTURE_SCHEDULES):
        try:
            favoured = Conditions.of(Random(seed), tuple(VIEW_CHANGES)) if seed % 10 == 0 else None
            events += simulate(seed, layout=layout, conditions=favoured).events
        except Violation as violation:
            violations[seed] = str(violation)
    rate = TORTURE_SCHEDULES / (time.perf_counter() - started)
    with capsys.disabled():
        print(f"\n{layout}: {TORTURE_SCHEDULES} schedules from seed {TORTURE_SEED}: {rate:.0f} a second, of")
        print("\n".join(f"{count:10,d}  {event}" for event, count in sorted(events.items())))
        print(f"{len(violations):10,d}  violations")
    assert violations == {}


def test_one_seed_is_one_schedule() -> None:
    """A violation that a seed has found is found again."""
    assert [simulate(seed).events for seed in range(5)] == [simulate(seed).events for seed in range(5)]


def _require_found(
    mutant: Callable[[World, Patch], None], favoured: tuple[Actor, ...], *, layout: Layout = "pointed"
) -> None:
    """Run schedules with a planted fault until one violates an invariant."""

    def run(seed: int, prepare: Callable[[World], object]) -> World:
        return simulate(seed, prepare=prepare, conditions=Conditions.of(Random(seed), favoured), layout=layout)

    _require_violation(mutant, run, layout=layout)


def _require_violation(
    mutant: Callable[[World, Patch], None],
    run: Callable[[int, Callable[[World], object]], World],
    *,
    layout: Layout = "registered",
) -> None:
    """The same with schedules of a kind."""
    first = MET.get((layout, mutant.__name__), 0)
    for seed in range(first, first + SEARCH):
        with pytest.MonkeyPatch.context() as patch:
            try:
                run(seed, lambda world, patch=patch: mutant(world, patch))  # type: ignore[misc]
            except Violation:
                return
    pytest.fail(f"not found within {SEARCH} schedules")


@pytest.mark.parametrize("mutant", planted(CHANGE_MUTANTS))
def test_a_planted_fault_of_the_loop_or_its_changes_is_detected(mutant: Callable[[World, Patch], None]) -> None:
    _require_found(mutant, (*VIEW_CHANGES, *CHANGE_MUTANTS[mutant]))


@pytest.mark.parametrize("mutant", planted(MUTANTS))
def test_a_planted_fault_is_detected(mutant: Callable[[World, Patch], None]) -> None:
    _require_found(mutant, MUTANTS[mutant])


def test_i10_two_writers_of_one_file_name_are_detected() -> None:
    """This store refuses to overwrite a file, as the real one does; otherwise only a later loss shows the fault."""

    def prepare(world: World, patch: Patch) -> None:
        metadata_named_by_version_number(world, patch)
        patch.setattr(world.catalog.files, "write_once", True)

    found = ""
    for seed in range(SEARCH):
        with pytest.MonkeyPatch.context() as patch:
            try:
                simulate(seed, prepare=lambda world: prepare(world, patch))
            except Violation as violation:
                found = str(violation)
                break
    assert found.startswith("I10")


@pytest.mark.parametrize("mutant", planted(REGISTERED_MUTANTS))
@pytest.mark.parametrize("layout", ["registered", "table"])
def test_a_planted_fault_of_the_registered_layout_is_detected(
    layout: Layout, mutant: Callable[[World, Patch], None]
) -> None:
    _require_found(mutant, REGISTERED_MUTANTS[mutant], layout=layout)


@pytest.mark.parametrize("mutant", planted(TABLE_MUTANTS))
def test_a_planted_fault_of_the_layout_table_is_detected(mutant: Callable[[World, Patch], None]) -> None:
    _require_found(mutant, TABLE_MUTANTS[mutant], layout="table")


# -- liveness ------------------------------------------------------------------------------------------


def test_without_faults_no_refresh_fails() -> None:
    """I13: with contenders and changing base tables each try ends with a success."""
    conditions = Conditions(tasks=4, faults=0.0, actors=((append, 30), (compact, 20), (comment, 5)), skewed=False)
    events: Counter[str] = Counter()
    for seed in range(20):
        events += simulate(seed, conditions=conditions).events
    failed = {event for event in events if event.startswith("refresh failed")}
    assert failed <= {"refresh failed: killed"}, "the end of a schedule kills running processes"
    assert events["ended: refreshed"] > 20


def test_i13_of_64_contenders_one_publishes_in_every_round() -> None:
    """I13: all start from the same stale view; one lands, the others detect it and succeed."""
    world = new_world(64, _done)
    for round_ in range(1, 6):
        world.bases[BASES[0]].commit(world, "append")
        contenders = [Process(world, "refresh", refresher) for _ in range(64)]
        while running := [process for process in contenders if not process.over]:
            world.pick(running).step()
        assert [process.failed for process in contenders] == [None] * 64
        assert len(world.ledger.landed) == round_
    settle(world, [])


def test_a_swap_that_is_sent_twice_in_the_last_try_is_not_a_conflict() -> None:
    """The second answer reports that no row matched, because the first copy has landed."""
    sent = 0

    def fate(world: World, kind: str, fates: tuple[str, ...]) -> str:
        nonlocal sent
        sent += kind == "swap"
        if kind == "swap" and sent < 3:
            with world.at_once():
                comment(world)
        return "re-sent" if kind == "swap" and sent == 3 else "done"

    world = new_world(0, fate)
    process = Process(world, "refresh", refresher)
    while not process.over:
        process.step()
    assert (sent, process.failed, len(world.ledger.landed)) == (3, None, 1)
    settle(world, [])


@pytest.mark.parametrize("layout", SCHEDULES)
def test_a_rollback_with_a_lost_answer_is_not_repeated_over_a_newer_refresh(layout: Layout) -> None:
    """I3: it has landed, whatever was published after it."""
    world = roll_back_without_an_answer(layout)
    assert len(world.ledger.rollbacks) == 1
    state = world.ledger.state()
    assert state is not None
    assert state.record == world.ledger.records[-1]
    assert state.record is not None
    assert state.record.refresh_id == world.ledger.landed[2]
    settle(world, [])


def test_a_rollback_without_a_mark_is_detected() -> None:
    """This planted fault would need about a thousand random schedules."""
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Violation, match="a rollback landed twice"):
        roll_back_without_an_answer("registered", lambda world: rollback_is_repeated(world, patch))


def roll_back_without_an_answer(layout: Layout, prepare: Callable[[World], object] = lambda _: None) -> World:
    """Two refreshes, a rollback to the first whose answer is lost, and a third refresh before the retry."""
    world = new_world(0, _done, layout=layout)
    prepare(world)
    while world.catalog.load(VIEW).metadata.properties[TIME_TRAVEL_PROPERTY] != "true":
        turn_time_travel(world)
    for _ in range(2):
        world.bases[BASES[0]].commit(world, "append")
        _run(Process(world, "refresh", refresher))
    back = Process(world, "roll back", rolling_back)
    back.step()
    while back.calls_next not in ("swap", "commit"):
        back.step()
    world.fate = lambda *_: "lost after"
    back.step()
    world.fate = _done
    world.bases[BASES[0]].commit(world, "append")
    _run(Process(world, "refresh", refresher))
    _run(back)
    return world


def _run(process: Process) -> None:
    while not process.over:
        process.step()
    assert process.failed is None


def _done(world: World, kind: str, fates: tuple[str, ...]) -> str:
    return "done"
