# SPDX-License-Identifier: Apache-2.0
"""Hypothesis searches for a short sequence of events that breaks an invariant of the commit protocol."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from airflow_mv.core.catalog import Layout
from airflow_mv.core.spec.identifiers import Identifier
from tests.protocol.simulation import actors, mutants
from tests.protocol.simulation.product import simulating
from tests.protocol.simulation.schedule import new_world, settle
from tests.protocol.simulation.workers import Process, refresher
from tests.protocol.simulation.world import BASES, MINUTE, SECOND, SKEW, Violation, World

FATES = ("done", "lost before", "lost after", "killed before", "killed after", "late", "re-sent")
MAINTENANCE = {"collect": actors.collecting, "expire": actors.expiring, "roll back": actors.rolling_back}
CHANGES = (
    actors.comment,
    actors.replace_view,
    actors.turn_time_travel,
    actors.recreate_view,
    actors.drop_view,
    actors.create_view,
)
#: Planted faults that a short search detects. The simulation finds the slow ones sooner.
FOUND = [
    pytest.param(mutants.blind_write, id="blind_write"),
    pytest.param(mutants.rowcount_ignored, id="rowcount_ignored", marks=pytest.mark.slow),
    pytest.param(mutants.blind_retry_with_a_new_identity, id="blind_retry_with_a_new_identity", marks=pytest.mark.slow),
]
bases = st.sampled_from(BASES)
skews = st.sampled_from((0, SKEW, -SKEW))


@pytest.fixture(autouse=True, scope="module")
def _simulating() -> Iterator[None]:
    with simulating():
        yield


class Lake(RuleBasedStateMachine):
    """A lake whose refreshers continue call by call; the fate of each call is part of the sequence."""

    processes: Bundle[Process] = Bundle("processes")
    layout: Layout = "pointed"

    def __init__(self) -> None:
        super().__init__()
        self.fate = "done"
        self.world = new_world(0, self._fate, layout=self.layout)
        # Reading a file is not a step of its own, which keeps a sequence short.
        self.world.attention = {"read": 0.0}
        self.started: list[Process] = []

    def _fate(self, world: World, kind: str, fates: tuple[str, ...]) -> str:
        return self.fate if self.fate in fates else "done"

    # -- processes ---------------------------------------------------------------------------------

    @rule(target=processes, skew=skews, calls=st.integers(0, 25))
    def start_refresh(self, skew: int, calls: int) -> Process:
        """Start a try of a task and run its first calls; two at once are overlapping tries."""
        return self._start(Process(self.world, "refresh", refresher, skew), calls)

    @rule(target=processes, skew=skews)
    def start_refresh_up_to_the_swap(self, skew: int) -> Process:
        """Start a try and run it up to the swap, the most critical call."""
        process = self._start(Process(self.world, "refresh", refresher, skew), 1)
        self.go_on_to_the_swap(process)
        return process

    @rule(target=processes, role=st.sampled_from(tuple(MAINTENANCE)), skew=skews, calls=st.integers(0, 10))
    def start_maintenance(self, role: str, skew: int, calls: int) -> Process:
        return self._start(Process(self.world, role, MAINTENANCE[role], skew), calls)

    def _start(self, process: Process, calls: int) -> Process:
        self.started.append(process)
        self.go_on(process, calls)
        return process

    @rule(process=processes, calls=st.integers(1, 25))
    def go_on(self, process: Process, calls: int) -> None:
        for _ in range(calls):
            self._step(process)

    @rule(process=processes)
    def go_on_to_the_swap(self, process: Process) -> None:
        self._step(process)
        while not process.over and process.calls_next not in ("swap", "commit"):
            self._step(process)

    @rule(process=processes, fate=st.sampled_from(FATES))
    def stray(self, process: Process, fate: str) -> None:
        """The next call has a fault."""
        self._step(process, fate)

    def _step(self, process: Process, fate: str = "done") -> None:
        if not process.over:
            self.world.pass_time(5 * SECOND)
            self.fate = fate
            process.step()
            self.fate = "done"

    @rule(process=processes)
    def finish(self, process: Process) -> None:
        while not process.over:
            self._step(process)

    @rule(process=processes, fate=st.sampled_from(FATES))
    def stray_and_finish(self, process: Process, fate: str) -> None:
        """The next call has a fault, and then all calls succeed."""
        self._step(process, fate)
        self.finish(process)

    # -- base tables -------------------------------------------------------------------------------

    @rule(base=bases, operation=st.sampled_from(("append", "append", "overwrite", "replace")))
    def commit_to_base(self, base: Identifier, operation: str) -> None:
        if operation != "replace" or self.world.bases[base].snapshots:
            self.world.bases[base].commit(self.world, operation)

    @rule(base=bases, change=st.sampled_from(("expire", "roll_back", "recreate", "forget_files")))
    def change_base(self, base: Identifier, change: str) -> None:
        getattr(self.world.bases[base], change)(self.world)

    # -- the view ----------------------------------------------------------------------------------

    @rule(change=st.sampled_from(CHANGES))
    def change_view(self, change: actors.Actor) -> None:
        """Change a property, the query with other columns, or create another view with this name."""
        change(self.world)

    # -- the environment ---------------------------------------------------------------------------

    @rule(minutes=st.integers(1, 200))
    def pass_time(self, minutes: int) -> None:
        """Late swaps arrive, the catalog becomes available, and processes that run for too long are killed."""
        self.world.pass_time(minutes * MINUTE)
        for process in self.started:
            if process.too_old:
                process.kill()

    @rule()
    def catalog_down(self) -> None:
        """Make the catalog unavailable for a time."""
        self.world.down_until = self.world.now + MINUTE

    @invariant()
    def all_that_readers_need_is_there(self) -> None:
        """Check I2; the other invariants are checked at each change."""
        assert all(name in self.world.files for name in self.world.ledger.live())

    def teardown(self) -> None:
        """I12, I13: after all faults have ended, a refresh makes the view fresh, and a collection leaves no orphan."""
        self.fate = "done"
        settle(self.world, self.started)


class RegisteredLake(Lake):
    """The same with the storage table in the catalog."""

    layout = "registered"


class TableLake(Lake):
    """The same with a view that is a table."""

    layout = "table"


class FaultyLake(Lake):
    """The same with a planted fault."""

    mutant: Callable[[World, pytest.MonkeyPatch], None]

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        type(self).mutant(self.world, self.patch)

    def teardown(self) -> None:
        try:
            super().teardown()
        finally:
            self.patch.undo()


def _run(machine: type[Lake], examples: int, **how: Any) -> None:
    chosen = settings(
        max_examples=examples,
        stateful_step_count=60,
        deadline=None,
        database=None,
        print_blob=True,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
        **how,
    )
    run_state_machine_as_test(machine, settings=chosen)


@pytest.mark.parametrize(("machine", "examples"), [(Lake, 60), (RegisteredLake, 30), (TableLake, 30)])
def test_no_sequence_of_events_breaks_an_invariant(machine: type[Lake], examples: int) -> None:
    """The search is the same in each run: its result does not depend on chance."""
    _run(machine, examples, derandomize=True)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("machine", [Lake, RegisteredLake, TableLake])
def test_a_longer_search_finds_no_sequence_that_breaks_an_invariant(machine: type[Lake]) -> None:
    """Each run searches differently; a failure prints the sequence."""
    _run(machine, 1_000)


@pytest.mark.parametrize("mutant", FOUND)
def test_a_planted_fault_is_detected(mutant: Callable[[World, pytest.MonkeyPatch], None]) -> None:
    """The sequence need not be shortened here."""
    machine = type("Lake", (FaultyLake,), {"mutant": staticmethod(mutant)})
    with pytest.raises(Violation):
        _run(machine, 300, derandomize=True, phases=(Phase.generate,))
