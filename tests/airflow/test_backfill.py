# SPDX-License-Identifier: Apache-2.0
"""Airflow's backfill through REST, on its real scheduler: every day is correct, in any order and in parallel."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.error import HTTPError, URLError

import pendulum
import pytest
from airflow.sdk import (
    DAG,
    Asset,
    AssetOrTimeSchedule,
    CronPartitionTimetable,
    CronTriggerTimetable,
    MultipleCronTriggerTimetable,
)
from airflow.timetables.assets import AssetOrTimeSchedule as AssetOrTime
from airflow.timetables.trigger import CronTriggerTimetable as OfAirflowItself

from airflow_mv.hooks.dag_run import run_facts
from airflow_mv.tasks.scope import RunFacts, scope_of
from examples.demo.home import CATALOG
from tests.airflow.conftest import Airflow
from tests.airflow.deployment import Deployment, Shared, until
from tests.builders import Lake
from tests.core.refresh.intervals.support import BY_DAY, SALES, Days, IntervalStager, days_lake, sold

EXAMPLE = Path(__file__).parents[2] / "dags_examples" / "interval_backfill.py"
FIRST = date(2024, 6, 1)
#: Among so many parallel days there is always a conflict.
MANY = 30
DAGS = """
from datetime import UTC, datetime, timedelta

from airflow.sdk import DAG, CronPartitionTimetable
from airflow_mv.operators import RefreshMaterializedViewOperator
from airflow_mv.operators import refresh_params

with DAG("by_partition", schedule=CronPartitionTimetable("0 0 * * *", timezone="Europe/Berlin"),
         start_date=datetime(2024, 1, 1, tzinfo=UTC), end_date=datetime(2024, 12, 31, tzinfo=UTC), catchup=False):
    RefreshMaterializedViewOperator(
        task_id="refresh", view="lake.sales.daily", spark_conn_id="connect", scope="interval"
    )

# The end keeps the scheduler from adding runs of its own.
with DAG(
    "by_day", schedule="@daily", start_date=datetime(2024, 1, 1, tzinfo=UTC), catchup=False,
    end_date=datetime(2024, 12, 31, tzinfo=UTC), params=refresh_params(),
):
    RefreshMaterializedViewOperator(
        task_id="refresh", view="lake.sales.daily", spark_conn_id="connect", scope="interval", retries=2,
        max_active_tis_per_dag=None, retry_delay=timedelta(seconds=5),
    )
"""


@pytest.fixture(scope="module")
def deployment(shared_airflow: Shared, connect: str) -> Iterator[Deployment]:
    """Airflow with three workers, a view by days that was never refreshed, and a Spark Connect server."""
    home = shared_airflow.home
    warehouse = home.folder / "warehouse"
    with days_lake(home.catalog_properties["uri"], warehouse, "pointed", name=CATALOG) as lake:
        found = shared_airflow.with_dags("by_day.py", DAGS, "by_day", "by_partition")
        lake.sell(*((number, number) for number in range(1, 32)))
        found.connect(connect)
        yield found


def backfill(deployment: Deployment, first: int, last: int, **more: Any) -> dict[int, dict[str, Any]]:
    """Backfill the runs of some days, wait for their ends, and return the result of each refresh by its day.

    A daily run is for the day before its tick, so the run of the second is for the first.
    """
    start, end = (f"{FIRST + timedelta(days=number)}T00:00:00Z" for number in (first, last))
    body = {
        "dag_id": "by_day",
        "from_date": start,
        "to_date": end,
        "max_active_runs": 10,
        **more,
    }
    made = deployment.airflow.call("POST", "/api/v2/backfills", body)
    until(lambda: all_ended(deployment, start, end), seconds=1800)
    # Airflow looks for completed backfills twice a minute, and until then allows no other one of the DAG.
    with suppress(HTTPError):  # it has just looked
        deployment.airflow.call("PUT", f"/api/v2/backfills/{made['id']}/cancel")
    found = {}
    for number in range(first, last + 1):
        run_id = run_of(deployment, number)
        found[number] = deployment.value("by_day", run_id, "refresh")
    return found


def run_of(deployment: Deployment, number: int) -> str:
    """The run for a day."""
    moment = f"{FIRST + timedelta(days=number)}T00:00:00Z"
    path = f"/api/v2/dags/by_day/dagRuns?logical_date_gte={moment}&logical_date_lte={moment}"
    (run,) = deployment.airflow.call("GET", path)["dag_runs"]
    assert run["state"] == "success", deployment.last_output()
    return str(run["dag_run_id"])


@pytest.mark.airflow
@pytest.mark.cluster
@pytest.mark.postgres
@pytest.mark.timeout(2400)
@pytest.mark.parametrize("last", [3, pytest.param(MANY, marks=pytest.mark.slow)])
def test_a_parallel_backfill_computes_each_day_and_repeating_it_does_nothing(deployment: Deployment, last: int) -> None:
    """The tasks settle conflicts among themselves, nothing is lost, and the second time no task starts Spark."""
    lake = lake_of(deployment)
    lake.sell(*((number, 100) for number in range(1, last + 1)))

    first = backfill(deployment, 1, last, reprocess_behavior="completed")

    assert {result["outcome"] for result in first.values()} == {"refreshed"}
    for number, result in first.items():
        assert result["interval"]["start"][:10] == str(FIRST + timedelta(days=number - 1))
        assert result["mode"] == "replace-interval"
    assert lake.stored() == {key: row for key, row in lake.recomputed().items() if key <= last}
    state = lake.storage("sales.daily").state
    assert state is not None
    assert [str(item.interval) for item in state.current.intervals] == [
        f"day in [2024-06-01, {FIRST + timedelta(days=last)})"
    ]
    files = lake.catalog.load("sales.daily").metadata_location
    if last >= MANY:
        logs = [last_log(deployment, run_of(deployment, number)) for number in range(1, last + 1)]
        assert any("changed while it was refreshed: planning again" in log for log in logs)
        assert any("the rows are already staged; only the storage table changed since then" in log for log in logs)

    again = backfill(deployment, 1, last, reprocess_behavior="completed")

    assert {result["outcome"] for result in again.values()} == {"fresh"}
    assert lake.catalog.load("sales.daily").metadata_location == files
    log = last_log(deployment, run_of(deployment, 2))
    assert "This run refreshes the rows of [2024-06-02, 2024-06-03)" in log
    assert "No Spark job is needed" in log
    assert "Spark Connect" not in log


@pytest.mark.slow
@pytest.mark.airflow
@pytest.mark.cluster
@pytest.mark.postgres
@pytest.mark.timeout(1200)
def test_a_run_without_a_data_interval_uses_its_conf_or_its_partition(deployment: Deployment) -> None:
    """Without a data interval and without a conf it is refused at once, with the parameters to set.

    The run of a partition has no data interval either; its day is in the schedule's time zone.
    """
    lake = lake_of(deployment)
    lake.sell((9, 1000))
    conf = {"refresh_interval_start": "2024-06-09", "refresh_interval_end": "2024-06-10"}
    for run_id, body in (("with_conf", conf), ("without_conf", {})):
        wanted = {"logical_date": None, "dag_run_id": run_id, "conf": body}
        deployment.airflow.call("POST", "/api/v2/dags/by_day/dagRuns", wanted)

    partition = {"logical_date": None, "dag_run_id": "eleventh", "partition_key": "2024-06-11T00:00:00"}
    deployment.airflow.call("POST", "/api/v2/dags/by_partition/dagRuns", partition)

    assert deployment.ended("by_day", "with_conf") == {"refresh": "success"}
    assert lake.stored()[9] == lake.recomputed()[9]
    assert deployment.ended("by_partition", "eleventh") == {"refresh": "success"}
    assert deployment.value("by_partition", "eleventh", "refresh")["interval"] == {
        "column": "day",
        "start": "2024-06-11T00:00:00+00:00",
        "end": "2024-06-12T00:00:00+00:00",
    }
    assert deployment.ended("by_day", "without_conf") == {"refresh": "failed"}
    assert "refresh_interval_start and refresh_interval_end in its conf" in last_log(deployment, "without_conf")


@pytest.mark.airflow
@pytest.mark.cluster
@pytest.mark.postgres
@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_a_backfill_of_a_partitioned_dag_computes_the_requested_days(deployment: Deployment) -> None:
    """Both ends are included, and days are in the schedule's time zone: its runs have only the partition's date."""
    lake = lake_of(deployment)
    lake.sell(*((number, 7) for number in range(19, 25)))
    before = lake.stored()
    body = {"dag_id": "by_partition", "from_date": "2024-06-20T00:00:00Z", "to_date": "2024-06-22T00:00:00Z"}
    made = deployment.airflow.call("POST", "/api/v2/backfills", {**body, "max_active_runs": 10})

    until(lambda: completed(deployment, made["id"]), seconds=1800)

    found = deployment.airflow.call("GET", "/api/v2/dags/by_partition/dagRuns?run_type=backfill")["dag_runs"]
    runs = {run["partition_key"]: run for run in found}
    assert sorted(runs) == [f"2024-06-{day}T00:00:00" for day in (20, 21, 22)]
    for key, run in runs.items():
        assert (run["state"], run["logical_date"]) == ("success", None), deployment.last_output()
        result = deployment.value("by_partition", run["dag_run_id"], "refresh")
        assert (result["outcome"], result["interval"]["start"][:10]) == ("refreshed", key[:10])
    now = lake.recomputed()
    assert {number: lake.stored()[number] for number in (20, 21, 22)} == {
        number: now[number] for number in (20, 21, 22)
    }
    assert [lake.stored().get(number) for number in (19, 23, 24)] == [before.get(number) for number in (19, 23, 24)]


@pytest.mark.slow
@pytest.mark.airflow
@pytest.mark.cluster
@pytest.mark.postgres
@pytest.mark.timeout(1200)
def test_a_cleared_run_refreshes_its_day_only_if_needed(deployment: Deployment) -> None:
    """Nothing if the day's rows are current; the day again if its base rows have changed."""
    lake = lake_of(deployment)
    other = MANY + 2
    day, moment = MANY + 1, f"{FIRST + timedelta(days=MANY + 1)}T00:00:00Z"  # not in any backfill
    body = {"logical_date": moment, "dag_run_id": "cleared"}
    deployment.airflow.call("POST", "/api/v2/dags/by_day/dagRuns", body)
    assert deployment.ended("by_day", "cleared") == {"refresh": "success"}, deployment.last_output()
    assert deployment.value("by_day", "cleared", "refresh")["outcome"] == "refreshed"

    assert cleared(deployment, "cleared") == "fresh"
    lake.sell((day, 70), (other, 70))
    assert cleared(deployment, "cleared") == "refreshed"

    assert lake.stored()[day] == lake.recomputed()[day]
    assert other not in lake.stored()


def cleared(deployment: Deployment, run_id: str) -> str:
    """Clear a run and wait for its end; return the result of its refresh."""
    deployment.airflow.call("POST", f"/api/v2/dags/by_day/dagRuns/{run_id}/clear", {"dry_run": False})
    assert deployment.ended("by_day", run_id) == {"refresh": "success"}, deployment.last_output()
    return str(deployment.value("by_day", run_id, "refresh")["outcome"])


def completed(deployment: Deployment, backfill_id: int) -> Any:
    """When a backfill ended, or ``None``."""
    with suppress(URLError, TimeoutError):  # on a small host the API may be slow while ten workers start
        return deployment.airflow.call("GET", f"/api/v2/backfills/{backfill_id}")["completed_at"]
    return None


def all_ended(deployment: Deployment, start: str, end: str) -> bool:
    """Whether all runs between two moments have ended; the backfill's answer comes after it has made them."""
    path = f"/api/v2/dags/by_day/dagRuns?logical_date_gte={start}&logical_date_lte={end}&limit=100"
    with suppress(URLError, TimeoutError):
        runs = deployment.airflow.call("GET", path)["dag_runs"]
        return bool(runs) and {run["state"] for run in runs} <= {"success", "failed"}
    return False


def last_log(deployment: Deployment, run_id: str) -> str:
    """The log of a task's last try, with its error; an overloaded host adds tries that never started."""
    path = f"/api/v2/dags/by_day/dagRuns/{run_id}/taskInstances/refresh"
    number = deployment.airflow.call("GET", path)["try_number"]
    return json.dumps(deployment.airflow.call("GET", f"{path}/logs/{number}?full_content=true")["content"])


def lake_of(deployment: Deployment) -> Days:
    """The deployment's tables."""
    return Days(deployment.iceberg, deployment.catalog, IntervalStager(deployment.catalog, deployment.iceberg))


def facts_of(schedule: Any, **run: Any) -> RunFacts:
    """The facts that a task reads from a run of a DAG with this schedule."""
    dag = DAG("zones", schedule=schedule, start_date=datetime(2024, 1, 1, tzinfo=UTC))
    known = {"run_after": datetime(2024, 7, 1, tzinfo=UTC), "conf": {}, "data_interval_start": None}
    known |= {"data_interval_end": None, **run}
    return run_facts({"dag_run": SimpleNamespace(**known), "dag": dag, "partition_key": known.get("partition_key")})  # type: ignore[typeddict-item,typeddict-unknown-key]


@pytest.mark.parametrize("zone", ["Europe/Berlin", pendulum.timezone("Europe/Berlin")])
@pytest.mark.parametrize("timetable", [CronPartitionTimetable, CronTriggerTimetable, OfAirflowItself])
@pytest.mark.parametrize("with_assets", [False, True])
def test_the_zone_and_ticks_of_a_schedule_are_read_in_all_forms(
    timetable: Any, zone: Any, *, with_assets: bool
) -> None:
    """A timetable stores the zone as a name or an object; one combined with assets contains another timetable."""
    schedule = timetable("0 0 * * *", timezone=zone)
    if with_assets:
        schedule = (AssetOrTime if timetable is OfAirflowItself else AssetOrTimeSchedule)(
            timetable=schedule, assets=[Asset("orders")]
        )

    found = scope_of(facts_of(schedule, partition_key="2024-06-11T00:00:00"), "interval").interval

    assert found is not None
    assert found.end is not None
    assert (found.start.isoformat(), found.end.isoformat()) == (
        "2024-06-11T00:00:00+02:00",
        "2024-06-12T00:00:00+02:00",
    )


def test_of_a_schedule_with_several_crons_the_nearest_tick_counts() -> None:
    """The interval between two runs is never longer than the time since the other cron's tick."""
    schedule = MultipleCronTriggerTimetable("0 6 * * *", "30 18 * * *", timezone="Europe/Berlin")
    by_hand = datetime(2024, 6, 11, 10, tzinfo=UTC)
    for moment, start, end in (
        (datetime(2024, 6, 11, 4, tzinfo=UTC), "2024-06-10T18:30:00+02:00", "2024-06-11T06:00:00+02:00"),
        (by_hand, "2024-06-10T18:30:00+02:00", "2024-06-11T06:00:00+02:00"),
    ):
        facts = facts_of(schedule, data_interval_start=moment, data_interval_end=moment)
        found = scope_of(facts, "interval").interval
        assert found is not None
        assert found.end is not None
        assert (found.start.isoformat(), found.end.isoformat()) == (start, end)


def test_the_example_refreshes_the_day_of_its_run(airflow: Airflow, sales: Lake) -> None:
    """A fresh day starts no Spark; the log names the rows of the run and the reason."""
    sales.iceberg.create_table("sales.sold", schema=SALES).append(sold([(1, 10), (2, 20)]))
    sql = BY_DAY.replace("lake.sales.sold", "sold")
    sales.view("by_day", sql, partition_by=["day"], properties={"airflow-mv.interval-column": "day"})
    sales.refresh("sales.by_day")

    run = airflow.run_file(EXAMPLE, logical_date="2024-06-03T00:00:00Z")
    clicked = airflow.run_file(EXAMPLE, logical_date="2024-06-03T13:37:00Z")
    conf = {"refresh_interval_start": "2024-06-01", "refresh_interval_end": "2024-06-02"}
    with_conf = airflow.run_file(EXAMPLE, run_conf=conf)

    assert run.states == with_conf.states == {"create": "success", "refresh": "success"}, run.log + with_conf.log
    assert (
        run.values["refresh"]["interval"]
        == clicked.values["refresh"]["interval"]
        == {
            "column": "day",
            "start": "2024-06-02T00:00:00+00:00",
            "end": "2024-06-03T00:00:00+00:00",
        }
    )
    assert run.values["refresh"]["outcome"] == "fresh"
    assert "from the schedule's previous time to the run's" in run.task_log("refresh")
    assert "the schedule's last whole interval before 2024-06-03T13:37:00+00:00" in clicked.task_log("refresh")
    assert with_conf.values["refresh"]["interval"]["start"] == "2024-06-01T00:00:00+00:00"
