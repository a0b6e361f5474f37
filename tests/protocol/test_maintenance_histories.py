# SPDX-License-Identifier: Apache-2.0
"""Random histories of refreshes, kills, expiries, rollbacks and collections leave a readable view without orphans."""

from __future__ import annotations

import shutil
import tempfile
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from airflow_mv.actions import create_view as create
from airflow_mv.core.define.definition import Definition
from airflow_mv.core.refresh.run import refresh
from airflow_mv.errors import RefreshNotFoundError
from airflow_mv.extras.describe import history
from airflow_mv.extras.history.rollback import rollback
from airflow_mv.extras.maintenance.orphans import collect_orphans, expire
from tests.builders import QUERY, Lake, lake
from tests.extras.maintenance.support import LONG, VIEW, folder_of, make_older, orphans, read_all, staged
from tests.faults import FaultyCatalog, StoppedError, lose_answer_after, stop_after, stop_before


class Histories(RuleBasedStateMachine):
    """Actions of users, workers and schedulers on one view, in any order; time passes only by a rule."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="airflow-mv-histories-"))
        (self.folder / "warehouse").mkdir()
        self.lake = lake(f"sqlite:///{self.folder}/catalog.db", self.folder / "warehouse")
        self.home: Lake = self.lake.__enter__()
        self.number = 0
        self.rows: dict[str, list[dict[str, object]]] = {}

    def teardown(self) -> None:
        """After the grace no garbage is left, and all retained snapshots are readable."""
        try:
            collect_orphans(self.home.catalog, VIEW)
            make_older(folder_of(self.home))
            before = read_all(self.home)
            collect_orphans(self.home.catalog, VIEW)
            assert orphans(self.home) == set()
            assert read_all(self.home) == before
        finally:
            self.lake.__exit__(None, None, None)
            shutil.rmtree(self.folder)

    @initialize(time_travel=st.booleans())
    def make(self, time_travel: bool) -> None:
        self.home.table()
        self.home.view(time_travel=time_travel)

    @rule()
    def change(self) -> None:
        """Commit to the base table."""
        self.number += 1
        self.home.append((100 + self.number, "east", self.number))

    @rule()
    def refresh(self) -> None:
        """Refresh, possibly by resuming a staged refresh."""
        result = self.home.refresh()
        if result.outcome == "refreshed" and result.refresh_id:
            self.rows[result.refresh_id] = self.home.read()

    @rule(fault=st.sampled_from([stop_before, stop_after]))
    def die(self, fault: object) -> None:
        """Let a worker die around the swap."""
        self.change()
        with pytest.raises(StoppedError):
            refresh(FaultyCatalog(self.home.iceberg, fault), [VIEW], stager=self.home.stager)  # type: ignore[arg-type]

    @rule()
    def lose_answer(self) -> None:
        """Lose the answer to a swap."""
        self.change()
        refresh(FaultyCatalog(self.home.iceberg, lose_answer_after()), [VIEW], stager=self.home.stager)

    @rule()
    def leave_staged(self) -> None:
        """Stage a refresh without publishing it."""
        self.change()
        staged(self.home)

    @rule()
    def redefine(self) -> None:
        """Give the view another query with the same columns."""
        self.number += 1
        travel = self.home.catalog.load(VIEW).metadata.properties["airflow-mv.time-travel"] == "true"
        definition = Definition(f"{QUERY} /* {self.number} */", time_travel=travel)
        create(self.home.catalog, VIEW, definition, stager=self.home.stager, replace=True)

    @rule(seconds=st.sampled_from([3600, LONG / 2, LONG]))
    def wait(self, seconds: float) -> None:
        """Let time pass."""
        make_older(folder_of(self.home), seconds=seconds)

    @rule(days=st.sampled_from([0, 3]))
    def expire(self, days: int) -> None:
        """Expire old snapshots; the rows stay."""
        rows = self.home.read()
        expire(self.home.catalog, VIEW, older_than=timedelta(days=days))
        assert self.home.read() == rows

    @rule()
    def collect(self) -> None:
        """Collect orphans."""
        before = read_all(self.home)
        collect_orphans(self.home.catalog, VIEW)
        assert read_all(self.home) == before

    @precondition(lambda self: self.rows)
    @rule(data=st.data())
    def roll_back(self, data: st.DataObject) -> None:
        """Roll back to a refresh, if it is still available: the log also lists refreshes whose rows have expired."""
        wanted = data.draw(st.sampled_from(sorted(self.rows)))
        known = {item["refresh_id"] for item in history(self.home.catalog, VIEW) if item["snapshot_id"]}
        try:
            rollback(self.home.catalog, VIEW, wanted)
        except RefreshNotFoundError:
            version = self.home.catalog.load(VIEW).metadata.current_version_id
            records = {item["refresh_id"]: item for item in history(self.home.catalog, VIEW)}
            assert wanted not in known or records[wanted]["version_id"] != version
        else:
            assert self.home.read() == self.rows[wanted]

    @invariant()
    def everything_reads(self) -> None:
        """I2: all files that the pointer leads to exist."""
        if self.home.catalog.exists(VIEW):
            self.home.read()


def explore(examples: int, steps: int) -> None:
    """Run random histories."""
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        Histories,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            print_blob=True,
            database=None,
        ),
    )


def test_any_history_stays_readable_and_leaves_no_garbage() -> None:
    explore(4, 12)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_many_histories_stay_readable_and_leave_no_garbage() -> None:
    explore(300, 30)
