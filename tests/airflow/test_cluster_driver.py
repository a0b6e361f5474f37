# SPDX-License-Identifier: Apache-2.0
"""A refresh whose driver runs in a cluster waits in the triggerer. Without Spark."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from airflow_mv.common.status import status
from airflow_mv.errors import ConfigurationError, JobError, StoppedError
from airflow_mv.extras.describe import history
from airflow_mv.operators import RefreshMaterializedViewOperator
from airflow_mv.triggers import JobOutcomeTrigger
from airflow_mv.triggers import outcome as module
from tests.airflow.cluster import FakeYarn, KeptState, fake_yarn
from tests.airflow.conftest import VIEW, Airflow
from tests.airflow.test_sharing import Instance, context
from tests.builders import Lake
from tests.older import TaskDeferred

FIRST = "application_17_1"
#: Notes what it gets, and fails.
_NOTES = """\
#!/bin/sh
cd {folder}
echo "$*" > arguments
env > environment
while [ "$1" != --properties-file ]; do shift; done
cp "$2" properties
exit 1
"""


@pytest.fixture
def yarn(airflow: Airflow, sales: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeYarn]:
    """A cluster behind the default connection, and a view that needs a refresh."""
    monkeypatch.setattr(module, "POLL_SECONDS", 0.05)
    sales.view()
    with fake_yarn(tmp_path) as found:
        airflow.connect("spark_default", **found.connection)
        yield found


class Worker:
    """Airflow's part: each step may be on another worker; only the state of the task and what is deferred are kept."""

    def __init__(self, yarn: FakeYarn, **options: Any) -> None:
        self.options = {"yarn_track_via_rm_api": True, "spark_binary": str(yarn.program), "deferrable": True, **options}
        self.state = KeptState()
        self.deferred: TaskDeferred | None = None

    def task(self) -> RefreshMaterializedViewOperator:
        return RefreshMaterializedViewOperator(task_id="refresh", view=VIEW, **self.options)

    def context(self) -> Any:
        instance = Instance(None)
        instance.stats_tags = {}
        return {**context(instance), "task_state_store": self.state}

    def execute(self) -> dict[str, Any]:
        """Begin a try, and wait where it is."""
        return self.step("execute", self.context())

    def step(self, method: str, *arguments: Any, **named: Any) -> dict[str, Any]:
        """Call a method of the task on another worker."""
        task = self.task()
        try:
            result: dict[str, Any] = getattr(task, method)(*arguments, **named)
            return result
        finally:
            hook = None if task.stager is None else task.stager.job.hook
            if hook is not None and hook._submit_sp is not None:
                hook._submit_sp.stdout.close()  # the provider does not close it

    def defer(self) -> TaskDeferred:
        """Begin a try, which is deferred."""
        with pytest.raises(TaskDeferred) as deferred:
            self.execute()
        self.deferred = deferred.value
        return self.deferred

    def trigger(self, **arguments: Any) -> JobOutcomeTrigger:
        """The trigger as a triggerer makes it."""
        assert self.deferred is not None
        path, stored = self.deferred.trigger.serialize()
        assert path == "airflow_mv.triggers.JobOutcomeTrigger"
        return JobOutcomeTrigger(**{**json.loads(json.dumps(stored)), **arguments})

    def resume(self, **arguments: Any) -> dict[str, Any]:
        """Wait for the trigger's event, and go on with it."""
        assert self.deferred is not None

        async def event() -> Any:
            return await anext(self.trigger(**arguments).run())

        payload = asyncio.run(event()).payload
        kwargs = json.loads(json.dumps(self.deferred.kwargs))
        return self.step(self.deferred.method_name, self.context(), payload, **kwargs)

    def ask(self) -> TaskDeferred:
        """Resume without an outcome; the task is deferred again."""
        with pytest.raises(TaskDeferred) as deferred:
            self.resume(seconds=0.0)
        self.deferred = deferred.value
        return self.deferred


def test_a_refresh_holds_no_slot_while_its_driver_runs_and_publishes_what_it_staged(
    sales: Lake, yarn: FakeYarn
) -> None:
    """spark-submit does not wait. A commit meanwhile belongs to the next refresh: it starts no further driver."""
    worker = Worker(yarn)
    worker.defer()
    (arguments,) = yarn.submitted
    assert "--conf spark.yarn.submit.waitAppCompletion=false" in arguments
    before = sales.head()
    sales.append((9, "west", 9))

    yarn.run_driver(sales)
    result = worker.resume()

    assert (result["outcome"], len(yarn.submitted)) == ("refreshed", 1)
    assert str(before) in json.dumps(result)
    assert str(status(sales.catalog, VIEW).state) != "fresh"


def test_a_killed_triggerer_or_worker_loses_nothing(sales: Lake, yarn: FakeYarn) -> None:
    """The driver goes on, and its outcome is found by whoever looks next."""
    worker = Worker(yarn)
    worker.defer()
    # The worker died before Airflow knew that the task is deferred: the next try finds the driver.
    worker.defer()

    async def triggerer_dies() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(worker.trigger().run()), 0.3)

    asyncio.run(triggerer_dies())
    assert (len(yarn.submitted), yarn.killed) == (1, [])
    yarn.run_driver(sales)
    # The worker dies in the resumed task: the next try begins at the beginning.
    assert worker.execute()["outcome"] == "refreshed"
    assert len(yarn.submitted) == 1
    assert worker.resume()["outcome"] == "already-committed"


def test_a_driver_that_still_runs_is_waited_for_again_and_seldom_asked_for(yarn: FakeYarn) -> None:
    worker = Worker(yarn)
    pauses = [worker.defer().trigger.seconds, *(worker.ask().trigger.seconds for _ in range(5))]
    assert pauses == [60, 120, 240, 480, 600, 600]
    assert (len(yarn.submitted), yarn.killed) == (1, [])


def test_a_dead_driver_fails_the_task_and_the_next_try_submits_another(sales: Lake, yarn: FakeYarn) -> None:
    """It has left no outcome; the cluster says that it has ended."""
    worker = Worker(yarn)
    worker.defer()
    yarn.state = "KILLED"
    with pytest.raises(JobError, match=rf"its driver {FIRST} has ended \(FAILED\), and there is no outcome"):
        worker.resume(seconds=0.0)
    worker.defer()
    yarn.run_driver(sales)
    assert worker.resume()["outcome"] == "refreshed"
    assert len(yarn.submitted) == 2


def test_a_cluster_that_does_not_answer_is_asked_three_times(yarn: FakeYarn) -> None:
    """A ResourceManager that has lost its applications would never say that this one has ended."""
    worker = Worker(yarn)
    worker.defer()
    yarn.state = "UNKNOWN"
    worker.ask()
    worker.ask()
    yarn.state = "RUNNING"
    worker.ask()  # an answer ends the count
    yarn.state = "UNKNOWN"
    worker.ask()
    worker.ask()
    with pytest.raises(JobError, match=r"the cluster did not report its state: .* HTTP 404"):
        worker.resume(seconds=0.0)
    worker.defer()
    assert len(yarn.submitted) == 2


def test_execution_timeout_counts_the_time_in_the_triggerer_and_kills_the_driver(yarn: FakeYarn) -> None:
    """Airflow itself would begin anew with each resumption."""
    worker = Worker(yarn, execution_timeout=timedelta(seconds=2))
    deferred = worker.defer()
    assert deferred.trigger.seconds <= 2
    with pytest.raises(StoppedError, match=f"its driver {FIRST} was killed: .* execution_timeout"):
        worker.resume(seconds=2.0)
    assert yarn.killed == [FIRST]


def test_a_user_who_marks_the_deferred_task_ends_its_driver(yarn: FakeYarn) -> None:
    """Airflow calls this in the triggerer."""
    worker = Worker(yarn)
    worker.defer()
    asyncio.run(worker.trigger().on_kill())
    assert yarn.killed == [FIRST]
    assert len(yarn.submitted) == 1


def test_a_cleared_task_submits_another_driver_and_publishes_once(sales: Lake, yarn: FakeYarn) -> None:
    """Also if the earlier one was not killed: it cannot publish."""
    worker = Worker(yarn)
    worker.defer()
    plain = worker.context
    worker.context = lambda: _cleared(plain())  # type: ignore[method-assign]
    worker.defer()
    assert len(yarn.submitted) == 2
    yarn.run_driver(sales)
    assert worker.resume()["outcome"] == "refreshed"
    yarn.run_driver(sales)
    assert len(history(sales.catalog, VIEW)) == 1


def _cleared(found: Any) -> Any:
    found["dag_run"].clear_number = 1
    return found


def test_an_outcome_whose_staged_rows_are_gone_does_not_end_the_wait(sales: Lake, yarn: FakeYarn) -> None:
    """The driver that was submitted replaces it."""
    worker = Worker(yarn)
    worker.defer()
    yarn.run_driver(sales)
    outcome = Path(worker.trigger().location.removeprefix("file://"))
    Path(json.loads(outcome.read_text())["metadata_location"].removeprefix("file://")).unlink()
    yarn.state = "KILLED"
    worker.defer()
    assert not outcome.exists()
    yarn.run_driver(sales)
    assert worker.resume()["outcome"] == "refreshed"


def test_a_failed_job_fails_the_task_with_its_error(sales: Lake, yarn: FakeYarn) -> None:
    """The driver has left it as its outcome."""
    worker = Worker(yarn)
    worker.defer()
    refresh_id = Path(worker.trigger().location).stem
    failed = {"refresh_id": refresh_id, "metadata_location": None, "error": "Division by zero"}
    sales.catalog.files.replace_text(worker.trigger().location, json.dumps(failed))
    with pytest.raises(JobError, match="Division by zero"):
        worker.resume()


def test_a_store_without_access_fails_the_task(yarn: FakeYarn) -> None:
    worker = Worker(yarn)
    deferred = worker.defer()
    event = {"location": "x", "error": ["ConfigurationError", "no access"]}
    with pytest.raises(ConfigurationError, match="no access"):
        worker.task().execute_complete(worker.context(), event, **deferred.kwargs)


@pytest.mark.parametrize(
    "options",
    [{"deferrable": False}, {"deferrable": None}, {"post_submit_commands": ["true"]}],
    ids=["not wanted", "no triggerer", "commands after the job"],
)
def test_a_task_that_cannot_be_deferred_waits_in_its_slot(
    sales: Lake, yarn: FakeYarn, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if there were no triggerer."""
    worker = Worker(yarn, **options)
    poll = "airflow.providers.apache.spark.operators.spark_submit.SparkSubmitOperator.poll_until_complete"
    monkeypatch.setattr(poll, lambda *_: yarn.run_driver(sales))
    assert worker.execute()["outcome"] == "refreshed"


@pytest.mark.parametrize(
    ("master", "prefix"),
    [("yarn", "spark.yarn.appMasterEnv"), ("k8s://https://host", "spark.kubernetes.driverEnv"), ("local[1]", None)],
)
def test_variables_in_env_vars_are_no_arguments_of_spark_submit(
    airflow: Airflow, sales: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, master: str, prefix: str | None
) -> None:
    """The provider makes settings of them, as arguments, which all users of the host see. No name shows a secret."""
    monkeypatch.setattr("airflow.providers.apache.spark.hooks.spark_submit.kube_client", object(), raising=False)
    program = tmp_path / "noting-spark-submit"
    program.write_text(_NOTES.format(folder=tmp_path))
    program.chmod(0o755)
    sales.view()
    airflow.connect("spark_default", conn_type="spark", host=master)
    variables = {"AWS_SECRET_ACCESS_KEY": "s3cret", "WAREHOUSE_LOGIN": "h1dden", "YARN_CONF_DIR": "/etc/yarn"}
    options = {"yarn_track_via_rm_api": False, "deferrable": False, "durable": False}
    with pytest.raises(JobError):
        Worker(FakeYarn(tmp_path), **options, spark_binary=str(program), env_vars=variables).execute()
    given, settings, environment = (
        (tmp_path / name).read_text() for name in ("arguments", "properties", "environment")
    )
    for name, value in variables.items():
        assert value not in given
        assert f"{prefix}.{name}={value}" in settings.splitlines() or prefix is None
    given_to_process = [f"{name}={value}" in environment.splitlines() for name, value in variables.items()]
    assert given_to_process == [not master.startswith("k8s")] * 3
