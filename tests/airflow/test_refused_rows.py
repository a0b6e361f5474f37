# SPDX-License-Identifier: Apache-2.0
"""Rows that failed a check stay unpublished, whichever way the next refresh comes: task, command, other process.

What a managed cluster, a shared application and a resumed task have in common is that plan, script and outcome pass
through their JSON documents.
"""

from __future__ import annotations

import random
import sys
from collections import defaultdict
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest

from airflow_mv.core.refresh import RefreshOptions, plan_refresh
from airflow_mv.core.refresh.plan import RefreshPlan
from airflow_mv.core.refresh.run import publish
from airflow_mv.core.script import Outcome, Script
from airflow_mv.errors import CheckFailedError
from airflow_mv.operators import RefreshMaterializedViewOperator
from tests.builders import Lake
from tests.cli.support import call
from tests.older import AirflowFailException
from tests.protocol.test_refused_rows import ACTIONS, QUERY, History

VIEW = "lake.sales.daily"
RUN = SimpleNamespace(
    run_id="one", run_after=None, data_interval_start=None, data_interval_end=None, conf=None, clear_number=0
)


class Ways(History):
    """A history whose refreshes come by all ways, in turn."""

    taken = 0

    def home_refresh(self, options: RefreshOptions) -> str:
        """Refresh by the next way; the command line has no checks of its own."""
        ways = [self.by_task, self.by_documents, super().home_refresh] + ([] if options.checks else [self.by_command])
        self.taken += 1
        return ways[self.taken % len(ways)](options)

    def by_task(self, options: RefreshOptions) -> str:
        """Refresh in an operator."""
        task = RefreshMaterializedViewOperator(task_id="refresh", view=VIEW, checks=list(options.checks) or None)
        try:
            events = defaultdict(MagicMock)  # Airflow's accessor of asset events
            return str(task.execute({"dag_run": RUN, "outlet_events": events})["outcome"])  # type: ignore[typeddict-item]
        except AirflowFailException as error:  # so Airflow 3.2 is told not to retry
            raise CheckFailedError(str(error)) from error

    def by_command(self, _: RefreshOptions) -> str:
        """Refresh by ``airflow-mv refresh``."""
        (document,) = call("refresh", VIEW, "--conn-id", "iceberg_default", "--json").json
        return str(document["outcome"])

    def by_documents(self, options: RefreshOptions) -> str:
        """Plan, run and publish as three processes do."""
        plan = RefreshPlan.from_json(plan_refresh(self.home.catalog, VIEW, options).to_json())
        if plan.script is None:
            return super().home_refresh(options)
        outcome = self.run(Script.from_json(plan.script.to_json()))
        return publish(self.home.catalog, plan, Outcome.from_json(outcome.to_json())).outcome


@pytest.mark.parametrize("seed", range(3))
def test_i27_rows_that_failed_a_check_are_published_by_no_other_way(
    sales: Lake, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    sales.append((1, "north", -10))
    sales.view(sql=QUERY)
    history = Ways(sales)
    monkeypatch.setattr("airflow_mv.operators.spark.TaskStager.__call__", lambda _, script: history.run(script))
    monkeypatch.setattr(sys.modules["airflow_mv.cli.main"], "stager_for", lambda *_, **__: history.run)
    choice = random.Random(seed)
    others = [action for action in ACTIONS if action[0] != "die"]
    for action in [("refresh", "fails"), *(choice.choice(others) for _ in range(14))]:
        history.act(*action)
        history.check()
    assert history.refused
    assert history.checked_by.keys() - history.refused
