# SPDX-License-Identifier: Apache-2.0
"""The freshness sensor: what it waits for and logs; it holds no worker slot."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG

from airflow_mv.errors import CatalogUnavailableError, ConfigurationError, ViewNotFoundError
from airflow_mv.hooks import MaterializedViewHook
from airflow_mv.sensors import BaseTablesChangedSensor, MaterializedViewFreshSensor
from airflow_mv.triggers.freshness import FreshnessPoll, MaterializedViewFreshTrigger
from tests.airflow.conftest import VIEW, Airflow, seen_by
from tests.builders import Lake
from tests.core.refresh.intervals.support import days_lake
from tests.older import AirflowFailException, AirflowRescheduleException, AirflowSkipException, TaskDeferred
from tests.services import http_server


def test_a_sensor_waits_and_logs_the_reason_once(airflow: Airflow, daily: Lake) -> None:
    """The log of a waiting task shows what it waits for, once and not for each poke."""
    old, new = daily.head(), daily.append((7, "west", 1), (8, "west", 2))
    run = airflow.run(f"""
        MaterializedViewFreshSensor(
            task_id="wait", view="{VIEW}", poke_interval=0.2, timeout=2, soft_fail=True, deferrable=False, mode="poke"
        )
    """)

    assert run.states == {"wait": "skipped"}
    assert run.log.count("lake.sales.daily is stale, behind for ") == 1
    assert run.log.count(f"lake.sales.orders advanced {old} → {new}: 1 snapshot (1 append), +2") == 1


def test_a_fresh_view_ends_the_wait_with_its_status(airflow: Airflow, daily: Lake) -> None:
    """Downstream tasks can see which refresh they read."""
    run = airflow.run(f"""
        MaterializedViewFreshSensor(task_id="wait", view="{VIEW}", deferrable=False)
        MaterializedViewFreshSensor(task_id="wait_deferrable", view="{VIEW}", deferrable=True)
    """)

    assert run.state == "success"
    assert "lake.sales.daily is fresh: every base table is at the snapshot that the last refresh read" in run.log
    assert run.values["wait"]["refresh_id"] == daily.storage().state.current_refresh_id
    assert run.values["wait"]["lag_seconds"] == 0
    assert run.values["wait_deferrable"] == run.values["wait"]
    (table,) = run.values["wait"]["base_tables"]
    assert (table["recorded"], table["current"]) == (str(daily.head()), str(daily.head()))


def test_a_deferrable_sensor_waits_without_a_worker_slot_until_another_run_has_refreshed(
    airflow: Airflow, daily: Lake
) -> None:
    """The trigger checks the view, and the task resumes with its event."""
    daily.append()
    deferred = "If no triggerer runs, nothing polls: start one (`airflow triggerer`), or set deferrable=False"
    run = airflow.run(
        f"""
        MaterializedViewFreshSensor(task_id="wait", view="{VIEW}", deferrable=True, poke_interval=0.3, timeout=300)
        """,
        meanwhile=(deferred, daily.refresh),
    )

    assert run.state == "success"
    assert run.values["wait"]["state"] == "fresh"
    assert "lake.sales.daily is fresh" in run.log
    assert deferred in run.log


def test_the_trigger_survives_a_restart_with_all_its_arguments() -> None:
    """A restarted triggerer creates it again from the serialized arguments."""
    trigger = MaterializedViewFreshTrigger(view=VIEW, states=("fresh", "stale"), max_staleness_seconds=5)
    path, arguments = trigger.serialize()

    assert path == "airflow_mv.triggers.MaterializedViewFreshTrigger"
    assert MaterializedViewFreshTrigger(**arguments).serialize() == trigger.serialize()


def test_a_sensor_waits_for_the_views_that_a_view_reads(airflow: Airflow, daily: Lake) -> None:
    """Unless it is told to be content with the rows that they have."""
    top = str(daily.refresh(daily.view("top", f"SELECT region FROM {VIEW}")).view)
    daily.append()
    direct = MaterializedViewFreshSensor(task_id="direct", view=top, freshness="direct", deferrable=False)
    assert direct.poke({}).is_done
    seen = seen_by(MaterializedViewFreshTrigger(view=top))
    assert (seen.ready, seen.document()["readiness"]) == (False, "STALE")
    assert seen.describe().startswith(f"{top} is stale, behind for ")
    assert f"{VIEW}, which it reads, is stale (lake.sales.orders advanced " in seen.describe()
    trigger = direct.trigger()
    assert trigger.serialize()[1]["freshness"] == "direct"
    assert seen_by(trigger).ready
    daily.refresh()
    daily.refresh(top)
    assert MaterializedViewFreshSensor(task_id="chain", view=top, deferrable=False).poke({}).is_done
    with pytest.raises(ConfigurationError, match="freshness is 'deep'; it must be chain or direct"):
        MaterializedViewFreshSensor(task_id="wrong", view=top, freshness="deep")  # type: ignore[arg-type]


def test_the_trigger_waits_through_an_outage_and_ends_if_waiting_cannot_help(airflow: Airflow, daily: Lake) -> None:
    """A database that restarts must not fail a sensor; a missing view must."""

    async def first(trigger: MaterializedViewFreshTrigger) -> FreshnessPoll:
        async for event in trigger.run():
            return FreshnessPoll.from_dict(event.payload)
        raise AssertionError

    assert asyncio.run(first(MaterializedViewFreshTrigger(view=VIEW))).document()["state"] == "fresh"
    missing = asyncio.run(first(MaterializedViewFreshTrigger(view="lake.sales.nowhere")))
    with pytest.raises(ViewNotFoundError, match=r"lake\.sales\.nowhere"):
        missing.document()
    sensor = MaterializedViewFreshSensor(task_id="wait", view=VIEW, deferrable=True)
    with pytest.raises(AirflowFailException, match="ViewNotFoundError: there is no view"):
        sensor.execute_complete({}, missing.to_dict())

    url = "postgresql://nobody@127.0.0.1:1/nothing"
    airflow.connect("down", conn_type="iceberg", extra={"type": "sql", "uri": url, "warehouse": "file:///nowhere"})
    seen = seen_by(MaterializedViewFreshTrigger(view=VIEW, iceberg_conn_id="down"))
    assert (seen.ready, seen.error_class) == (False, "CatalogUnavailableError")


def test_the_first_check_waits_through_a_locked_catalog(airflow: Airflow, daily: Lake, tmp_path: Path) -> None:
    """Another process has locked the SQLite file: sensor and trigger check again, an operator's task may be retried."""
    extra = {**daily.iceberg.properties, "uri": f"sqlite:///{tmp_path}/catalog.db?timeout=0.1"}
    airflow.connect("locked", conn_type="iceberg", extra=extra)
    fresh = MaterializedViewFreshSensor(task_id="fresh", view=VIEW, iceberg_conn_id="locked")
    changed = BaseTablesChangedSensor(task_id="changed", views=VIEW, iceberg_conn_id="locked")
    trigger = MaterializedViewFreshTrigger(view=VIEW, iceberg_conn_id="locked")
    with closing(sqlite3.connect(tmp_path / "catalog.db", isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        assert not fresh.poke({}).is_done
        assert not changed.poke({}).is_done
        seen = seen_by(trigger)
        assert (seen.ready, seen.error_class) == (False, "CatalogUnavailableError")
        with pytest.raises(CatalogUnavailableError, match="database is locked"):
            MaterializedViewHook("locked").status(VIEW)
    assert fresh.poke({}).is_done
    assert seen_by(trigger).ready


def test_a_stale_view_passes_while_it_lacks_only_recent_commits(airflow: Airflow, daily: Lake) -> None:
    """The lag counts from the first missing base commit, not from the last refresh."""

    def poke(**options: object) -> bool:
        return bool(MaterializedViewFreshSensor(task_id="wait", view=VIEW, **options).poke({}))

    time.sleep(1.1)
    daily.append()
    assert not poke()
    assert poke(max_staleness=timedelta(minutes=1))
    assert poke(max_staleness=60)
    time.sleep(1.1)
    daily.append()
    assert not poke(max_staleness=1)
    assert poke(states=["fresh", "stale"])
    assert not poke(states=["never-refreshed"])


def test_each_readiness_can_be_waited_for(airflow: Airflow, daily: Lake) -> None:
    """By its name, or by the state in `airflow-mv status`."""

    def poke(view: str = VIEW, **options: object) -> tuple[bool, str]:
        done = MaterializedViewFreshSensor(task_id="wait", view=view, **options).poke({})
        return done.is_done, done.xcom_value["readiness"]

    daily.view("new")
    assert poke() == (True, "FRESH")
    assert poke("lake.sales.new", states=["NEVER"]) == (True, "NEVER")
    assert poke("lake.sales.new", states=["never-refreshed"]) == (True, "NEVER")
    daily.append()
    assert poke(max_staleness="1 h") == (True, "WITHIN_GRACE")
    assert poke(max_staleness="0 s") == (False, "STALE")
    assert poke(states=["stale"]) == (True, "STALE")
    daily.iceberg.drop_table("sales.orders")
    assert poke() == (False, "UNKNOWN")


def test_a_sensor_may_wait_for_an_interval_of_the_view(airflow: Airflow, tmp_path: Path) -> None:
    """A report about one day starts when that day is fresh."""
    (tmp_path / "warehouse").mkdir()
    uri = f"sqlite:///{tmp_path}/catalog.db"
    airflow.connect("iceberg_default", conn_type="iceberg", extra={"type": "sql", "uri": uri, "warehouse": "file:///x"})
    with days_lake(uri, tmp_path / "warehouse", "pointed") as found:
        found.sell((1, 10), (2, 20))
        found.refresh_days(2, 3)

        def sensor(first: int, after: int | None, **options: Any) -> MaterializedViewFreshSensor:
            end = f"2024-06-0{after}T00:00:00+00:00" if after else None
            return MaterializedViewFreshSensor(
                task_id="wait", view=VIEW, interval_start=f"2024-06-0{first}", interval_end=end, **options
            )

        assert sensor(2, 3).poke({}).is_done
        assert not sensor(1, 3).poke({}).is_done
        with pytest.raises(TaskDeferred) as deferred:
            sensor(1, 2).execute({})
        trigger = MaterializedViewFreshTrigger(**deferred.value.trigger.serialize()[1])
        assert not seen_by(trigger).ready
        found.refresh_days(1, 2)
        seen = seen_by(trigger)
        assert seen.ready
        assert seen.describe().startswith(f"{VIEW}, day in [2024-06-01, 2024-06-02), is fresh: ")
    with pytest.raises(AirflowFailException, match="interval_start is '', which is not a point in time"):
        MaterializedViewFreshSensor(task_id="wait", view=VIEW, interval_start="").poke({})


def test_a_sensor_may_wait_for_the_rows_of_its_run(airflow: Airflow, tmp_path: Path) -> None:
    """As a refresh with this scope does: for ``@daily``, whose data interval is empty, the day before the run."""
    (tmp_path / "warehouse").mkdir()
    uri = f"sqlite:///{tmp_path}/catalog.db"
    airflow.connect("iceberg_default", conn_type="iceberg", extra={"type": "sql", "uri": uri, "warehouse": "file:///x"})
    with days_lake(uri, tmp_path / "warehouse", "pointed") as found:
        found.sell((1, 10), (2, 20))
        found.refresh_days(2, 3)

        def sensor(**options: Any) -> MaterializedViewFreshSensor:
            return MaterializedViewFreshSensor(task_id="wait", view=VIEW, scope="interval", **options)

        assert sensor().poke(run_of("2024-06-03")).is_done
        assert not sensor(interval_length="2 d", interval_column="day").poke(run_of("2024-06-03")).is_done
        with pytest.raises(TaskDeferred) as deferred:
            sensor().execute(run_of("2024-06-02"))
        seen = seen_by(MaterializedViewFreshTrigger(**deferred.value.trigger.serialize()[1]))
        assert not seen.ready
        assert seen.describe().startswith(f"{VIEW}, day in [2024-06-01, 2024-06-02), is ")
        conf = {"refresh_interval_start": "2024-06-02", "refresh_interval_end": "2024-06-03"}
        assert sensor().poke(run_of(None, **conf)).is_done
        with pytest.raises(AirflowFailException, match="has no data interval and no partition"):
            sensor().poke(run_of(None))


def run_of(day: str | None, **conf: str) -> Any:
    """The context of a run of a ``@daily`` DAG."""
    moment = datetime.fromisoformat(day).replace(tzinfo=UTC) if day else None
    facts = {"run_after": datetime(2024, 7, 1, tzinfo=UTC), "conf": conf}
    run = SimpleNamespace(data_interval_start=moment, data_interval_end=moment, **facts)
    return {"dag_run": run, "dag": DAG("daily", schedule="@daily", start_date=datetime(2024, 1, 1, tzinfo=UTC))}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scope": "as_of"}, "scope is 'as_of'; it must be whole or interval"),
        ({"scope": "interval", "interval_start": "2024-06-01"}, "either scope='interval' or an interval_start"),
        ({"interval_length": "1 d"}, "interval_length needs scope='interval'"),
        ({"interval_column": "day"}, "need an interval_start, or scope='interval'"),
    ],
)
def test_an_interval_that_is_given_twice_or_incompletely_is_refused_when_the_dag_is_parsed(
    options: dict[str, Any], message: str
) -> None:
    """Otherwise the sensor would wait for the whole view without notice."""
    with pytest.raises(ConfigurationError, match=message):
        MaterializedViewFreshSensor(task_id="wait", view=VIEW, **options)


def test_a_sensor_in_the_worker_waits_through_an_outage_too(airflow: Airflow) -> None:
    """A database that restarts must not fail a task."""
    url = "postgresql://nobody@127.0.0.1:1/nothing"
    airflow.connect("down", conn_type="iceberg", extra={"type": "sql", "uri": url, "warehouse": "file:///nowhere"})
    assert not MaterializedViewFreshSensor(task_id="wait", view=VIEW, iceberg_conn_id="down").poke({})


def test_soft_fail_skips_in_both_modes(airflow: Airflow, sales: Lake) -> None:
    """If waiting cannot help, before the sensor is deferred or after."""
    sensor = MaterializedViewFreshSensor(task_id="wait", view="lake.sales.nowhere", soft_fail=True)
    with pytest.raises(AirflowSkipException):
        sensor.execute({})
    failed = seen_by(MaterializedViewFreshTrigger(view="lake.sales.nowhere")).to_dict()
    with pytest.raises(AirflowSkipException):
        sensor.resume_execution("execute_complete", {"event": failed}, {})


def test_a_deferred_sensor_keeps_its_time_limit(airflow: Airflow, daily: Lake) -> None:
    """The timeout covers the complete wait."""
    daily.append()
    sensor = MaterializedViewFreshSensor(task_id="wait", view=VIEW, deferrable=True, timeout=90, poke_interval=7)
    with pytest.raises(TaskDeferred) as deferred:
        sensor.execute({})

    assert deferred.value.timeout == timedelta(seconds=90)
    assert deferred.value.trigger.serialize()[1]["poke_interval"] == 7


@pytest.mark.parametrize("states", [(), "fresh", ["freshly"]])
def test_unknown_states_are_refused_when_the_dag_is_parsed(states: object) -> None:
    """The sensor would never end because of a typing mistake."""
    with pytest.raises(ConfigurationError, match=r"states.* FRESH, WITHIN_GRACE"):
        MaterializedViewFreshSensor(task_id="wait", view=VIEW, states=states)


def test_a_missing_view_fails_at_once(airflow: Airflow, sales: Lake) -> None:
    """Retries would only hide a misspelled name."""
    run = airflow.run(
        'MaterializedViewFreshSensor(task_id="wait", view="lake.sales.dayly", retries=1, retry_delay=timedelta(0))'
    )

    assert run.states == {"wait": "failed"}
    assert run.log.count("ViewNotFoundError: there is no view lake.sales.dayly in catalog 'lake'") == 1


def test_a_sensor_waits_in_the_triggerer_unless_the_configuration_disables_it() -> None:
    """Airflow's default is false, too, so only an explicit setting counts. Without a triggerer it is rescheduled."""
    script = (
        "import json; from airflow_mv.sensors import *; s = MaterializedViewFreshSensor(task_id='s', view='a.b.c');"
        "t = BaseTablesChangedSensor(task_id='t', views='a.b.c', deferrable=False, mode='poke');"
        "print(json.dumps([[s.deferrable, s.mode], [t.deferrable, t.mode]]))"
    )
    found = []
    for setting in ({}, {"AIRFLOW__OPERATORS__DEFAULT_DEFERRABLE": "False"}):
        done = subprocess.run([sys.executable, "-c", script], env={**os.environ, **setting}, capture_output=True,
                              text=True, check=True)  # fmt: skip
        found.append(json.loads(done.stdout.splitlines()[-1]))
    assert found == [[[True, "reschedule"], [False, "poke"]], [[False, "reschedule"], [False, "poke"]]]


@contextlib.contextmanager
def api_server(**health: str | None) -> Iterator[str]:
    """The health endpoint of an API server, which reports the state of Airflow's components."""
    body = json.dumps({part: {"status": status} for part, status in health.items()}).encode()

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/api/v2/monitor/health" else 404)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with http_server(Answers) as port:
        yield f"http://127.0.0.1:{port}/execution/"


@pytest.mark.parametrize(
    ("database", "triggerer", "wanted", "decided"),
    [
        ("healthy", "healthy", TaskDeferred, None),
        ("healthy", "unhealthy", AirflowRescheduleException, None),
        ("healthy", None, AirflowRescheduleException, None),
        ("unhealthy", "unhealthy", TaskDeferred, None),
        ("healthy", None, TaskDeferred, True),
        ("healthy", "healthy", AirflowRescheduleException, False),
    ],
    ids=["healthy", "unhealthy", "never started", "database down", "enabled", "disabled"],
)
def test_a_sensor_is_deferred_if_a_triggerer_runs_and_is_otherwise_rescheduled(
    airflow: Airflow, sales: Lake, monkeypatch: pytest.MonkeyPatch, database: str, triggerer: str | None,
    wanted: type[BaseException], decided: bool | None,
) -> None:  # fmt: skip
    """A task that is deferred without a triggerer would wait until its timeout, a week by default, without a check."""
    sales.view()
    never_rescheduled = SimpleNamespace(get_first_reschedule_date=lambda _: None)
    with api_server(metadatabase=database, triggerer=triggerer) as address:
        monkeypatch.setenv("AIRFLOW__CORE__EXECUTION_API_SERVER_URL", address)
        with pytest.raises(wanted):
            MaterializedViewFreshSensor(task_id="wait", view=VIEW, deferrable=decided).execute(
                {"ti": never_rescheduled}
            )


def test_the_time_before_a_triggerer_was_started_counts(airflow: Airflow, sales: Lake) -> None:
    """The timeout covers the complete wait, in whichever mode the task waited first."""
    sales.view()
    began = datetime.now(UTC) - timedelta(seconds=30)
    context: Any = {"task_reschedule_count": 3, "ti": SimpleNamespace(get_first_reschedule_date=lambda _: began)}
    sensor = MaterializedViewFreshSensor(task_id="wait", view=VIEW, deferrable=True, timeout=90)
    with pytest.raises(TaskDeferred) as deferred:
        sensor.execute(context)

    assert timedelta(seconds=30) < deferred.value.timeout <= timedelta(seconds=60)
