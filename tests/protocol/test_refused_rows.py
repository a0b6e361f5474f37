# SPDX-License-Identifier: Apache-2.0
"""Rows that failed a check of severity ``error`` are never published, whatever refreshes come after.

Refreshes with and without checks, refreshes that die between the job and the publication, and late publications, in any
order. The checks are computed from the staged rows.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from airflow_mv.checks import Check, condition, row_count
from airflow_mv.core.refresh import RefreshOptions, plan_refresh
from airflow_mv.core.refresh.plan import RefreshPlan
from airflow_mv.core.refresh.run import publish, stage
from airflow_mv.core.script import Outcome, Script
from airflow_mv.core.spec.table_metadata import ancestors, parse_table
from airflow_mv.errors import CheckFailedError
from tests.builders import LAYOUTS, Lake, lake

QUERY = "SELECT region, amount FROM lake.sales.orders"
PASSES, FAILS = row_count(at_least=1), condition("amount >= 0")
#: Checks of a refresh. The rows always violate :data:`FAILS`.
CHECKS: dict[str, tuple[Check, ...]] = {
    "none": (),
    "passes": (PASSES,),
    "warns": (condition("amount >= 0", severity="warn"),),
    "fails": (FAILS,),
    "fails beside others": (PASSES, FAILS),
}
ACTIONS = [(kind, name) for name in CHECKS for kind in ("refresh", "die")] + [("publish late", ""), ("append", "")]


@dataclass
class History:
    """One view, the jobs that ran, and the snapshots whose rows failed a check."""

    home: Lake
    refused: set[int] = field(default_factory=set)
    checked_by: dict[int, str] = field(default_factory=dict)
    waiting: list[tuple[RefreshPlan, Outcome]] = field(default_factory=list)

    def run(self, script: Script) -> Outcome:
        """Run the job, and note which snapshot it staged and under which checks."""
        outcome = self.home.stager(script)
        data = self.home.catalog.files.read(str(outcome.metadata_location), what="staged rows")
        table = parse_table(data, source="staged rows")
        head = table.refs[outcome.branch].snapshot_id if outcome.branch else table.head
        assert head is not None
        self.checked_by[head] = outcome.checks_digest
        if any(result.stops for result in outcome.checks):
            self.refused.add(head)
        return outcome

    def act(self, kind: str, name: str) -> None:
        """Do one thing, which must end as its checks say."""
        options = RefreshOptions(checks=CHECKS.get(name, ()))
        if kind == "append":
            self.home.append((9, "east", -1))
        elif kind == "publish late":
            for plan, outcome in self.waiting:
                publish(self.home.catalog, plan, outcome)
            self.waiting.clear()
        elif "fails" not in name:
            if kind == "die":
                plan = plan_refresh(self.home.catalog, "sales.daily", options)
                outcome = stage(self.home.catalog, plan, self.run)
                self.waiting += [(plan, outcome)] if outcome else []
            else:
                result = self.home_refresh(options)
                assert name != "warns" or result != "refreshed" or self.last_results() == ["warned"]
        elif plan_refresh(self.home.catalog, "sales.daily", options).script is not None:
            before = self.home.read()
            with pytest.raises(CheckFailedError):
                self.home_refresh(options)
            assert self.home.read() == before

    def home_refresh(self, options: RefreshOptions) -> str:
        """Refresh from plan to publication; the published rows were tested with exactly these checks."""
        from airflow_mv.core.refresh.run import refresh

        plan = plan_refresh(self.home.catalog, "sales.daily", options)
        (result,) = refresh(self.home.catalog, ["sales.daily"], stager=self.run, options=options)
        if result.outcome == "refreshed":
            digest = plan.script.checks.digest if plan.script and plan.script.checks else ""
            assert self.checked_by[self.published()] == digest
        return result.outcome

    def last_results(self) -> list[str]:
        """The results in the current refresh's record."""
        record = self.home.storage().record
        return [check["result"] for check in record.checks] if record else []

    def published(self) -> int:
        """The snapshot that readers get."""
        found = self.home.storage().rows_snapshot
        assert found is not None
        return found

    def check(self) -> None:
        """No refused snapshot is published, and none is below the published one."""
        storage = self.home.storage()
        line = {item.snapshot_id for item in ancestors(storage.table, storage.rows_snapshot)}
        assert not line & self.refused
        assert "failed" not in self.last_results()


@pytest.fixture(params=LAYOUTS)
def history(request: pytest.FixtureRequest, warehouse: Path) -> Iterator[History]:
    with lake(f"sqlite:///{warehouse}/lake.db", warehouse, layout=request.param) as home:
        home.table(rows=((1, "north", -10), (2, "south", 20)))
        home.view(sql=QUERY)
        yield History(home)


def _run(history: History, actions: list[tuple[str, str]]) -> None:
    for action in actions:
        history.act(*action)
        history.check()


@pytest.mark.parametrize("seed", range(3))
def test_i27_rows_that_failed_a_check_are_never_published(history: History, seed: int) -> None:
    choice = random.Random(seed)
    _run(history, [choice.choice(ACTIONS) for _ in range(12)])


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3, 40))
def test_i27_holds_in_many_orders(history: History, seed: int) -> None:
    choice = random.Random(seed)
    _run(history, [choice.choice(ACTIONS) for _ in range(25)])


def test_a_refresh_without_the_check_runs_its_own_job(history: History) -> None:
    """The rows of the refused refresh are of the same snapshots, and would otherwise be taken."""
    history.act("refresh", "fails")
    jobs = len(history.home.stager.refreshes)
    history.act("refresh", "none")
    history.check()
    assert len(history.home.stager.refreshes) == jobs + 1
    assert history.home.storage().record is not None
    assert history.last_results() == []


def test_rows_that_passed_are_resumed_by_the_next_try_with_the_same_checks(history: History) -> None:
    """A worker died between Spark and the publication."""
    history.act("die", "passes")
    jobs = len(history.home.stager.refreshes)
    history.act("refresh", "passes")
    assert len(history.home.stager.refreshes) == jobs
    assert history.last_results() == ["passed"]
