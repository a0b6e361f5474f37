# SPDX-License-Identifier: Apache-2.0
"""A commit whose Spark task has only submitted the job waits for the outcome in the triggerer. Without Spark."""

from __future__ import annotations

import asyncio
import json
import threading
from datetime import timedelta
from typing import Any

import pytest

from airflow_mv.common.status import status
from airflow_mv.core.refresh.plan import RefreshPlan
from airflow_mv.core.refresh.run import stage
from airflow_mv.errors import ConfigurationError
from airflow_mv.operators import CommitRefreshOperator, PlanRefreshOperator
from airflow_mv.tasks.older_airflow import BEFORE_3_3
from airflow_mv.triggers import JobOutcomeTrigger
from airflow_mv.triggers import outcome as module
from tests.airflow.conftest import VIEW
from tests.airflow.test_sharing import Instance, context
from tests.builders import Lake
from tests.older import AirflowFailException, TaskDeferred


def planned(sales: Lake) -> dict[str, Any]:
    """The plan as its task has left it."""
    sales.view()
    pushed: dict[str, Any] = {}
    instance = Instance(None)
    instance.xcom_push = lambda *, key, value, **_: pushed.update({key: value})  # type: ignore[method-assign]
    document = PlanRefreshOperator(task_id="plan", view=VIEW).execute(context(instance))
    assert pushed["application"]
    return json.loads(json.dumps(document))  # type: ignore[no-any-return]


def test_a_commit_waits_in_the_triggerer_until_the_driver_has_left_its_outcome(
    sales: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing but the file connects the two: worker and triggerer may be others by then."""
    monkeypatch.setattr(module, "POLL_SECONDS", 0.05)
    plan = planned(sales)
    task = CommitRefreshOperator(task_id="commit", plan=plan, wait_for_outcome="2 h")
    with pytest.raises(TaskDeferred) as deferred:
        task.execute(context(Instance(None)))
    assert deferred.value.timeout == timedelta(hours=2)
    kind, arguments = deferred.value.trigger.serialize()
    assert kind == "airflow_mv.triggers.JobOutcomeTrigger"
    driver = threading.Timer(0.3, stage, (sales.catalog, RefreshPlan.from_dict(plan), sales.stager))

    async def waited() -> Any:
        driver.start()
        return await anext(JobOutcomeTrigger(**arguments).run())

    event = asyncio.run(waited())
    driver.join()
    assert event.payload == {"location": arguments["location"]}
    again = CommitRefreshOperator(task_id="commit", plan=plan, wait_for_outcome="2 h")
    assert again.execute_complete(context(Instance(None)), event.payload)["outcome"] == "refreshed"
    assert str(status(sales.catalog, VIEW).state) == "fresh"


def test_a_commit_that_need_not_or_must_not_wait_does_not(sales: Lake) -> None:
    """Without the argument a missing outcome is an error, and so is an outcome that cannot be read."""
    plan = planned(sales)
    with pytest.raises(AirflowFailException, match="left no outcome"):
        CommitRefreshOperator(task_id="commit", plan=plan).execute(context(Instance(None)))
    waiting = CommitRefreshOperator(task_id="commit", plan=plan, wait_for_outcome=60)
    with pytest.raises(AirflowFailException if BEFORE_3_3 else ConfigurationError, match="no access"):
        waiting.execute_complete(
            context(Instance(None)), {"location": "x", "error": ["ConfigurationError", "no access"]}
        )
    stage(sales.catalog, RefreshPlan.from_dict(plan), sales.stager)
    assert waiting.execute(context(Instance(None)))["outcome"] == "refreshed"
    fresh = PlanRefreshOperator(task_id="plan", view=VIEW).execute(context(Instance(None)))
    assert waiting.view == VIEW
    noop = CommitRefreshOperator(task_id="commit", plan=fresh, wait_for_outcome=60)
    assert noop.execute(context(Instance(None)))["outcome"] == "fresh"
