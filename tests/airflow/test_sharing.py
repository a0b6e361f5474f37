# SPDX-License-Identifier: Apache-2.0
"""A task of a shared Spark application: its part of the exchange, and when it goes on alone. Without Spark."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, Asset
from airflow.triggers.base import BaseTrigger

from airflow_mv.core.script import Outcome, Script, location_of
from airflow_mv.core.spec.properties import COMPACT_PROPERTY
from airflow_mv.dags import ChainedView, materialized_views_dag
from airflow_mv.errors import CatalogUnavailableError, ConfigurationError, JobError, StoppedError
from airflow_mv.extras.shared_application.folder import ApplicationFolder
from airflow_mv.extras.shared_application.job.requests import FolderContent, JobAnswer, Pulse, answer_file, is_answered
from airflow_mv.operators import (
    CreateMaterializedViewOperator,
    RefreshMaterializedViewOperator,
    SharedSparkApplicationOperator,
    share_spark_application,
)
from airflow_mv.operators.application import RunEnds, _alive
from airflow_mv.operators.sharing import FOLDER_KEY
from airflow_mv.triggers import SharedApplicationTrigger
from tests.airflow.conftest import VIEW, Airflow
from tests.builders import Lake
from tests.older import TaskDeferred

APPLICATION = "spark_application"
ALONE = "No shared Spark application"


class Instance(SimpleNamespace):
    """A task instance of a run whose application's task has a state, and has pushed a folder."""

    def __init__(self, folder: str | None, state: str | None = "running") -> None:
        super().__init__(dag_id="dag", run_id="run", task_id="refresh", folder=folder, state=state)

    def get_task_states(self, **_: Any) -> dict[str, dict[str, str | None]]:
        return {"run": {APPLICATION: self.state}}

    def xcom_pull(self, *, task_ids: str, key: str, map_indexes: int) -> str | None:
        assert (task_ids, key, map_indexes) == (APPLICATION, FOLDER_KEY, -1)
        return self.folder

    def xcom_push(self, **_: Any) -> None:
        """Take a link."""


class Fails:
    """Stands for a function whose store cannot be reached."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def __call__(self, *_: Any) -> Any:
        raise self.error


class Alone(Exception):
    """The task submits a job of its own."""


@pytest.fixture
def folder(sales: Lake) -> ApplicationFolder:
    """The folder of an application that runs."""
    sales.view()
    found = ApplicationFolder(sales.catalog, str(sales.catalog.folders.of_application(("sales",))))
    found.beat()
    return found


def refreshing(monkeypatch: pytest.MonkeyPatch, **options: Any) -> RefreshMaterializedViewOperator:
    """A refresh that uses the application."""

    def submit(*_: Any) -> Outcome:
        raise Alone

    task = RefreshMaterializedViewOperator(
        task_id="refresh", spark_application=APPLICATION, **{"view": VIEW, "deferrable": False, **options}
    )
    monkeypatch.setattr("airflow_mv.operators.spark.TaskStager._submitted", submit)
    return task


def context(instance: Instance) -> Any:
    run = SimpleNamespace(clear_number=0, run_id="run", conf={}, triggering_user_name=None)
    run.run_after = run.data_interval_start = run.data_interval_end = None
    return {"ti": instance, "dag_run": run, "params": {}, "outlet_events": defaultdict(SimpleNamespace)}


@contextmanager
def driver(
    lake: Lake, folder: ApplicationFolder, *, fails: bool = False, ran: bool = True, empty_first: bool = False
) -> Iterator[None]:
    """Answer requests, as a driver does; the statements run in DuckDB."""
    ended = threading.Event()

    def serve() -> None:
        while not ended.wait(0.05):
            for key in folder.content().waiting:
                if (request := folder.request(key)) is None:
                    continue
                script = Script.from_json(Path(location_of(request.submitted).removeprefix("file://")).read_text())
                outcome = lake.stager(script)
                if fails:
                    outcome = Outcome(script.refresh_id, None, error="Division by zero", mode="none")
                if ran:
                    lake.catalog.files.replace_text(str(script.outcome_location), outcome.to_json())
                answer = JobAnswer(ran, outcome.error if ran else "no such catalog", ("statement 1/1",), "app-1")
                location = f"{folder.folder}/{answer_file(key)}"
                if empty_first:
                    lake.catalog.files.replace_text(location, "")
                    time.sleep(0.5)
                lake.catalog.files.replace_text(location, answer.to_json())

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def event(trigger: BaseTrigger) -> Any:
    """Return the event of a trigger, as the triggerer makes it."""
    _, arguments = trigger.serialize()

    async def first() -> Any:
        return await anext(SharedApplicationTrigger(**arguments).run())

    return asyncio.run(first()).payload


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("airflow_mv.operators.sharing.START_SECONDS", 1.0)
    monkeypatch.setattr("airflow_mv.operators.sharing.PATIENCE_SECONDS", 0.0)
    monkeypatch.setattr("airflow_mv.triggers.application.POLL_SECONDS", 0.1)


def test_a_script_runs_in_the_application_and_the_task_logs_and_publishes_it(
    sales: Lake, folder: ApplicationFolder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    task = refreshing(monkeypatch)
    with driver(sales, folder):
        result = task.execute(context(Instance(folder.folder)))
    assert result["outcome"] == "refreshed"
    assert sales.read()
    assert "statement 1/1" in capsys.readouterr().out


def test_a_failed_script_fails_its_task_with_spark_s_reason(
    sales: Lake, folder: ApplicationFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    with driver(sales, folder, fails=True), pytest.raises(JobError, match="Division by zero"):
        refreshing(monkeypatch).execute(context(Instance(folder.folder)))


@pytest.mark.parametrize("state", ["success", "failed", "up_for_retry", "queued", None, "removed"])
def test_a_task_goes_on_alone_if_the_application_does_not_run(
    sales: Lake, folder: ApplicationFolder, monkeypatch: pytest.MonkeyPatch, state: str | None
) -> None:
    """A cleared task, a queue that is full, a failed application."""
    with pytest.raises(Alone):
        refreshing(monkeypatch).execute(context(Instance(folder.folder, state)))
    assert not folder.content().requested


def test_a_task_goes_on_alone_if_the_application_ends_or_cannot_run_its_script(
    sales: Lake, folder: ApplicationFolder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with driver(sales, folder, ran=False), pytest.raises(Alone):
        refreshing(monkeypatch).execute(context(Instance(folder.folder)))
    assert f"{ALONE}: no such catalog. This task starts one of its own" in capsys.readouterr().out
    folder.end()
    with pytest.raises(Alone):
        refreshing(monkeypatch).execute(context(Instance(folder.folder)))
    assert f"{ALONE}: it has ended before it had run the script" in capsys.readouterr().out


def test_without_beats_an_application_is_dead_whatever_its_files_say(folder: ApplicationFolder) -> None:
    """Only a change of the beat counts, because the clocks of hosts differ."""
    now = [0.0]
    pulse = Pulse(60, lambda: now[0])
    seen = [is_answered(folder.content(), "key", pulse)]
    for now[0] in (50.0, 61.0):
        seen.append(is_answered(folder.content(), "key", pulse))
    assert seen == [None, None, False]


def test_a_task_that_waits_goes_on_when_its_store_responds_again(
    sales: Lake, folder: ApplicationFolder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its script runs meanwhile: a failed task would run it once more."""
    content, failures = ApplicationFolder.content, iter(range(2))

    def failing(self: ApplicationFolder) -> FolderContent:
        if self is not folder and next(failures, None) is not None:
            raise CatalogUnavailableError("folder: the store did not respond")
        return content(self)

    monkeypatch.setattr(ApplicationFolder, "content", failing)
    monkeypatch.setattr("airflow_mv.extras.shared_application.folder.BEAT_SECONDS", 0.1)
    with driver(sales, folder):
        assert refreshing(monkeypatch).execute(context(Instance(folder.folder)))["outcome"] == "refreshed"
    assert next(failures, None) is None
    assert caplog.messages.count("folder: the store did not respond") == 2


@pytest.mark.parametrize("answered", [True, False], ids=["answered", "dead"])
def test_a_deferred_refresh_is_published_when_the_application_has_answered(
    sales: Lake, folder: ApplicationFolder, monkeypatch: pytest.MonkeyPatch, answered: bool
) -> None:
    """The task is executed again from its beginning, perhaps on another worker; the script is not."""
    with pytest.raises(TaskDeferred) as deferred:
        refreshing(monkeypatch, deferrable=True).execute(context(Instance(folder.folder)))
    assert deferred.value.trigger.serialize()[0] == "airflow_mv.triggers.SharedApplicationTrigger"
    assert deferred.value.method_name == "execute_complete"
    again = refreshing(monkeypatch, deferrable=True)
    if not answered:
        folder.end()
        with pytest.raises(Alone):
            again.execute_complete(context(Instance(folder.folder)), event(deferred.value.trigger))
        return
    with driver(sales, folder):
        payload = event(deferred.value.trigger)
    result = again.execute_complete(context(Instance(folder.folder)), payload)
    assert result["outcome"] == "refreshed"
    assert len(folder.content().requested) == 1
    assert again.application_id == "app-1"


def test_a_deferred_refresh_publishes_what_it_has_planned(
    sales: Lake, folder: ApplicationFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A base table may get a commit during each wait: a new plan would never be carried out to its end."""
    with pytest.raises(TaskDeferred) as deferred:
        refreshing(monkeypatch, deferrable=True).execute(context(Instance(folder.folder)))
    planned = sales.head()
    with driver(sales, folder):
        payload = event(deferred.value.trigger)
    sales.append((9, "west", 9))

    kwargs = json.loads(json.dumps(deferred.value.kwargs))
    again = refreshing(monkeypatch, deferrable=True)
    result = again.execute_complete(context(Instance(folder.folder)), payload, **kwargs)
    assert result["outcome"] == "refreshed"
    assert str(planned) in json.dumps(result)
    assert len(folder.content().requested) == 1


def test_the_execution_timeout_of_a_deferred_refresh_cancels_its_script(
    sales: Lake, folder: ApplicationFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It counts from the first wait. Else another try would run beside the script."""
    limit = timedelta(seconds=0.5)
    task = refreshing(monkeypatch, deferrable=True, execution_timeout=limit)
    with pytest.raises(TaskDeferred) as deferred:
        task.execute(context(Instance(folder.folder)))
    assert deferred.value.timeout is not None
    assert deferred.value.timeout > limit, "the trigger ends before Airflow would fail the task"
    payload = event(deferred.value.trigger)
    again = refreshing(monkeypatch, deferrable=True, execution_timeout=limit)
    with pytest.raises(StoppedError, match="cancelled: it ran for longer than the task's execution_timeout"):
        again.execute_complete(context(Instance(folder.folder)), payload, **deferred.value.kwargs)
    assert folder.content().cancelled == folder.content().requested


def test_a_user_who_marks_a_deferred_refresh_cancels_its_script(
    sales: Lake, folder: ApplicationFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(TaskDeferred) as deferred:
        refreshing(monkeypatch, deferrable=True).execute(context(Instance(folder.folder)))
    trigger: Any = deferred.value.trigger
    asyncio.run(trigger.on_kill())
    assert folder.content().cancelled == folder.content().requested != frozenset()


@pytest.mark.parametrize("lacks", ["access to the store", "the connection"])
def test_a_task_waits_in_its_worker_if_the_triggerer_cannot_read_the_folder(
    sales: Lake, folder: ApplicationFolder, monkeypatch: pytest.MonkeyPatch, lacks: str
) -> None:
    """The application runs the script meanwhile. The triggerer may be in another network."""
    with pytest.raises(TaskDeferred) as deferred:
        refreshing(monkeypatch, deferrable=True).execute(context(Instance(folder.folder)))
    trigger = deferred.value.trigger
    with monkeypatch.context() as patch:
        if lacks == "the connection":
            trigger.iceberg_conn_id = "elsewhere"
        else:
            refused = CatalogUnavailableError(f"the store of {folder.folder} did not respond: ACCESS_DENIED")
            patch.setattr(ApplicationFolder, "content", Fails(refused))
        patch.setattr("airflow_mv.triggers.application.Pulse", partial(Pulse, 0.2))
        payload = event(trigger)
    again = refreshing(monkeypatch, deferrable=True)
    with driver(sales, folder):
        assert again.execute_complete(context(Instance(folder.folder)), payload)["outcome"] == "refreshed"
    assert len(folder.content().requested) == 1
    assert again.application_id == "app-1"


def test_an_answer_that_is_not_complete_is_waited_for(
    sales: Lake, folder: ApplicationFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A local store shows a file before it has its content."""
    with driver(sales, folder, empty_first=True):
        assert refreshing(monkeypatch).execute(context(Instance(folder.folder)))["outcome"] == "refreshed"


def test_a_creation_leaves_neither_script_nor_outcome(sales: Lake, folder: ApplicationFolder, tmp_path: Path) -> None:
    """Nobody reads them afterwards, and they are where the view's files are."""
    sql = "SELECT region, max_by(id, amount) AS best FROM orders GROUP BY region"
    task = CreateMaterializedViewOperator(
        task_id="create", view="lake.sales.best", sql=sql, spark_application=APPLICATION
    )
    with driver(sales, folder):
        assert task.execute(context(Instance(folder.folder)))["state"] == "never-refreshed"
    assert len(folder.content().answered) == 1
    assert not [*tmp_path.rglob("staged/*.json")]


def test_a_compaction_after_a_refresh_is_waited_for_in_the_worker(
    sales: Lake, folder: ApplicationFolder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A task that is executed again would find the view fresh: no compaction, and no event of the refresh."""
    monkeypatch.setattr("airflow_mv.extras.compact.MIN_FILES", 1)
    sales.view("parts", partition_by=["region"], properties={COMPACT_PROPERTY: "1"})
    task = refreshing(monkeypatch, deferrable=True, view="lake.sales.parts")
    with pytest.raises(TaskDeferred) as deferred:
        task.execute(context(Instance(folder.folder)))
    with driver(sales, folder):
        payload = event(deferred.value.trigger)
        again = refreshing(monkeypatch, deferrable=True, view="lake.sales.parts")
        assert again.execute_complete(context(Instance(folder.folder)), payload)["outcome"] == "refreshed"
    assert "compaction after the refresh: compacted" in capsys.readouterr().out
    assert len(folder.content().answered) == 2


def test_a_killed_task_cancels_its_script(
    sales: Lake, folder: ApplicationFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = refreshing(monkeypatch)
    waiting = threading.Thread(target=lambda: _ignoring(task, folder))
    waiting.start()
    while not folder.content().requested:
        pass
    task.on_kill()
    assert folder.content().cancelled == folder.content().requested
    folder.end()
    waiting.join()


def _ignoring(task: RefreshMaterializedViewOperator, folder: ApplicationFolder) -> None:
    with pytest.raises(StoppedError):
        task.execute(context(Instance(folder.folder)))


def test_views_with_spark_arguments_of_their_own_do_not_share() -> None:
    """One driver has one master, one memory and one set of packages."""
    views = ["lake.sales.a", ChainedView("lake.sales.b", refresh={"driver_memory": "8g"}), ChainedView("lake.sales.c")]
    dag: DAG = materialized_views_dag(
        "dag", views, spark={"conf": {"spark.x": "1"}}, refresh={"pool": "views"}, spark_application="shared"
    )
    application = dag.get_task("spark_application")
    assert isinstance(application, SharedSparkApplicationOperator)
    assert (application.namespace, application.conf, application.pool) == (
        "lake.sales",
        {"spark.x": "1"},
        "default_pool",
    )
    assert application.tasks == ["refresh_a", "refresh_b", "refresh_c"]
    assert [dag.get_task(f"refresh_{name}").spark_application for name in "abc"] == [APPLICATION, None, APPLICATION]
    assert not application.upstream_task_ids | application.downstream_task_ids

    for alone in (
        materialized_views_dag("dag", views, spark_application="per-task"),
        materialized_views_dag("dag", views[:1]),
    ):
        assert "spark_application" not in alone.task_ids
    several = materialized_views_dag("dag", ["lake.sales.a", "lake.sales.b", "other.sales.c"])
    shared = [several.get_task(f"refresh_{name}").spark_application for name in ("sales_a", "sales_b", "sales_c")]
    assert shared == [APPLICATION, APPLICATION, None]
    with pytest.raises(ConfigurationError, match="must be auto, per-task or shared"):
        materialized_views_dag("dag", views, spark_application="one")  # type: ignore[arg-type]


def test_tasks_of_any_dag_can_share_an_application() -> None:
    """Such as those that create a view and refresh it."""
    with DAG("dag", schedule=None) as dag:
        create = CreateMaterializedViewOperator(task_id="create", view=VIEW, sql="SELECT 1 AS a", spark_conn_id="big")
        refresh = RefreshMaterializedViewOperator(task_id="refresh", view=VIEW, spark_conn_id="big")
        create >> refresh
        application = share_spark_application(create, refresh, conf={"spark.x": "1"})
    assert (application.namespace, application.tasks) == ("lake.sales", ["create", "refresh"])
    assert (application.spark_conn_id, application.conf, application.is_teardown) == ("big", {"spark.x": "1"}, True)
    assert {dag.get_task(name).spark_application for name in ("create", "refresh")} == {APPLICATION}
    with pytest.raises(ConfigurationError, match="needs a task that has a view, or a namespace"):
        share_spark_application()


def test_default_args_that_limit_the_other_tasks_do_not_apply_to_the_application() -> None:
    """It would wait for the tasks that wait for it, or end before them. Who owns and where it runs is as for them."""
    limits = {"pool": "one", "pool_slots": 2, "execution_timeout": timedelta(hours=1), "outlets": [Asset("lake://a")]}
    limits |= {"depends_on_past": True, "wait_for_downstream": True, "weight_rule": "upstream", "priority_weight": 0}
    limits |= {"max_active_tis_per_dag": 1, "max_active_tis_per_dagrun": 1}
    alike = {"owner": "reports", "retries": 7, "queue": "big", "executor_memory": "2g"}
    with DAG("dag", schedule=None, default_args={**limits, **alike}):
        refresh = RefreshMaterializedViewOperator(task_id="refresh", view=VIEW)
        application = share_spark_application(refresh)
        chosen = share_spark_application(refresh, task_id="chosen", pool="drivers", execution_timeout=timedelta(days=1))
    with DAG("plain", schedule=None):
        plain = share_spark_application(RefreshMaterializedViewOperator(task_id="refresh", view=VIEW))
    assert {name: getattr(application, name) for name in limits} == {name: getattr(plain, name) for name in limits}
    assert {name: getattr(application, name) for name in alike} == alike
    assert {name: getattr(refresh, name) for name in alike} == alike
    assert (refresh.pool, refresh.execution_timeout) == ("one", timedelta(hours=1))
    assert (chosen.pool, chosen.execution_timeout) == ("drivers", timedelta(days=1))


def run_ends(others: Mapping[str, str | None], *, active_elsewhere: int = 0, **dag: Any) -> RunEnds:
    """Watch a run with these states of its tasks, of which the application serves ``refresh``."""

    def states(*, dag_id: str, run_ids: list[str]) -> dict[str, dict[str, str | None]]:
        """Return the states, without a long list of ids, which would be in the URL of the request."""
        return {run_id: {**others, APPLICATION: "running"} for run_id in run_ids if dag_id == "dag"}

    def count(*, dag_id: str, task_ids: list[str], states: list[str]) -> int:
        assert (dag_id, task_ids, "running" in states) == ("dag", [name for name in others if others[name]], True)
        return active_elsewhere

    instance = SimpleNamespace(dag_id="dag", run_id="run", get_task_states=states, get_ti_count=count)
    with DAG("dag", schedule=None, **dag):
        EmptyOperator(task_id="pin")
        EmptyOperator(task_id="refresh")
        operator = SharedSparkApplicationOperator(
            task_id=APPLICATION, namespace="lake.sales", tasks=["refresh"], starved_seconds=0.05
        )
    return RunEnds(operator, {"ti": instance})  # type: ignore[typeddict-item]


@pytest.mark.parametrize(
    ("others", "ends"),
    [
        ({"pin": "running", "refresh": None}, False),
        ({"pin": "success", "refresh": "deferred"}, False),
        ({"pin": "success", "refresh": None}, False),
        ({"pin": "failed", "refresh": "upstream_failed"}, True),
        ({"pin": "running", "refresh_0": "success", "refresh_1": "failed"}, True),
        ({"pin": "success", "refresh_0": "success", "refresh_1": "running"}, False),
    ],
)
def test_an_application_ends_if_none_of_its_tasks_is_left(others: dict[str, str | None], *, ends: bool) -> None:
    assert run_ends(others)() is ends


@pytest.mark.parametrize("state", ["scheduled", "queued"])
def test_an_application_ends_if_it_may_have_the_slot_that_its_tasks_wait_for(
    state: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """But not while they wait for another run, nor at once: a pod or a worker may start, a pool may be full."""
    found, elsewhere = run_ends({"refresh": state}), run_ends({"refresh": state}, active_elsewhere=1)
    assert (found(), elsewhere()) == (False, False)
    time.sleep(0.1)
    assert (found(), elsewhere()) == (True, False)
    assert "and refresh is waiting. Ending the application" in capsys.readouterr().out

    monkeypatch.setattr("airflow_mv.operators.application.STARVED_SECONDS", 0.0)
    assert not run_ends({"refresh": state})()
    only = run_ends({"refresh": state}, max_active_tasks=1, active_elsewhere=1)
    only()
    assert only()
    monkeypatch.setenv("AIRFLOW__CORE__PARALLELISM", "1")
    only = run_ends({"refresh": state})
    only()
    assert only()


def test_a_run_that_cannot_be_watched_is_reported_once(
    folder: ApplicationFolder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its end is not noticed meanwhile, and the application holds its slot."""
    monkeypatch.setattr("airflow_mv.operators.application._STATES_SECONDS", 0.01)
    answers = iter([*[OSError("414 Request-URI Too Large")] * 3, True])

    def ended() -> bool:
        if isinstance(answer := next(answers), OSError):
            raise answer
        return answer

    with _alive(folder, ended):
        while not folder.content().ended:
            time.sleep(0.01)
    assert sum("414 Request-URI Too Large" in message for message in caplog.messages) == 1


def test_a_run_with_one_task_at_a_time_starts_the_application_beside_it(airflow: Airflow, sales: Lake) -> None:
    """In `dag.test()` the application's task would wait for tasks that wait for it. Here none needs Spark."""
    sales.view()
    sales.refresh()
    sales.compact()
    found = airflow.run(f"""
        from airflow_mv.dags import materialized_views_group
        materialized_views_group("views", ["{VIEW}"], spark_application="shared")
    """)
    assert set(found.states.values()) == {"success"}, found.log
    assert "the first script starts the application here" in found.task_log("views.spark_application")
    assert not [*airflow.folder.rglob("beat")]
