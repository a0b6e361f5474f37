# SPDX-License-Identifier: Apache-2.0
"""A complete Airflow and changing base tables: events that start DAGs, waiting sensors, a dying triggerer, alerts.

The test itself writes to the base tables and refreshes the views.
"""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import psutil
import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from airflow_mv.core.catalog import MaterializedViewCatalog
from examples.demo.home import DemoHome
from examples.demo.local_airflow import local_airflow
from tests.airflow.deployment import Deployment, processes, until
from tests.builders import Lake, lake
from tests.services import http_server

pytestmark = [pytest.mark.airflow, pytest.mark.slow, pytest.mark.timeout(1200)]

VIEW = "lake.sales.daily"
HEALTH = "/api/v2/monitor/health"
EXAMPLE = Path(__file__).parents[2] / "dags_examples" / "refresh_on_base_commit.py"
DAGS = f"""
import os
from datetime import timedelta
from pathlib import Path

from airflow.sdk import DAG, Asset, AssetWatcher, BaseNotifier, task
from airflow_mv.dags import freshness_alerts_dag
from airflow_mv.sensors import BaseTablesChangedSensor
from airflow_mv.sensors import MaterializedViewFreshSensor
from airflow_mv.triggers import BaseTablesChangedTrigger

commits = BaseTablesChangedTrigger(views="{VIEW}", poke_interval=1)
behind = Asset("daily_is_behind", watchers=[AssetWatcher(name="commits", trigger=commits)])

@task
def notifications(triggering_asset_events=None):
    return [event.extra["payload"] for events in triggering_asset_events.values() for event in events]

AGAIN = {{"retries": 3, "retry_delay": timedelta(0)}}

with DAG("on_commit", schedule=[behind], default_args=AGAIN):
    notifications()

with DAG("gate", schedule=None, default_args=AGAIN):
    MaterializedViewFreshSensor(task_id="fresh", view="{VIEW}", poke_interval=1)
    BaseTablesChangedSensor(task_id="changed", views=["{VIEW}"], poke_interval=1)
    MaterializedViewFreshSensor(task_id="gives_up", view="lake.sales.new", poke_interval=1, timeout=2, soft_fail=True)

def write(text):
    with Path(os.environ["NOTIFICATIONS"]).open("a") as file:
        file.write(text + "\\n")

class Mail(BaseNotifier):
    template_fields = ("text",)

    def __init__(self, text):
        super().__init__()
        self.text = text

    def notify(self, context):
        write(self.text)

freshness_alerts_dag(
    "alerts", "{VIEW}", max_staleness=0, schedule=None, default_args=AGAIN,
    on_breach=[
        Mail("{{{{ dag.dag_id }}}}: {{{{ freshness_alert.view }}}} is late"), lambda alert: write(alert.message)
    ],
    on_recovery=lambda alert: write(alert.message),
)
"""


@dataclass
class Collector:
    """Receives metrics as OpenTelemetry's collector does."""

    gauges: list[tuple[str, dict[str, str], float]] = field(default_factory=list)

    @contextlib.contextmanager
    def listening(self) -> Iterator[int]:
        """Listen on a port."""
        gauges = self.gauges

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                gauges.extend(_gauges(ExportMetricsServiceRequest.FromString(body)))
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *args: object) -> None:
                pass

        with http_server(Handler) as port:
            yield port


def _gauges(request: ExportMetricsServiceRequest) -> Iterator[tuple[str, dict[str, str], float]]:
    for resource in request.resource_metrics:
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                for point in metric.gauge.data_points:
                    tags = {item.key: item.value.string_value for item in point.attributes}
                    yield metric.name, tags, point.as_double or float(point.as_int)


@dataclass
class World:
    """A running Airflow, its lake, and its notifications."""

    deployment: Deployment
    lake: Lake
    collector: Collector
    environment: dict[str, str]
    triggerers: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def notifications(self) -> list[str]:
        """The notifications that were sent."""
        file = Path(self.environment["NOTIFICATIONS"])
        return file.read_text().splitlines() if file.exists() else []

    def payloads(self) -> list[dict[str, Any]]:
        """The payloads of the watcher's events, oldest first."""
        found = self.deployment.airflow.call("GET", "/api/v2/assets/events?order_by=timestamp")["asset_events"]
        return [event["extra"]["payload"] for event in found if event["name"] == "daily_is_behind"]

    def runs(self, dag_id: str = "on_commit") -> list[str]:
        """The successful runs that were started by events."""
        runs = self.deployment.airflow.call("GET", f"/api/v2/dags/{dag_id}/dagRuns")["dag_runs"]
        return [_quoted(run["dag_run_id"]) for run in runs if run["state"] == "success"]

    def state(self, run_id: str, task_id: str) -> str | None:
        """The state of a task of the DAG `gate`."""
        path = f"/api/v2/dags/gate/dagRuns/{run_id}/taskInstances/{task_id}"
        return self.deployment.airflow.call("GET", path)["state"]

    def kill_triggerer(self) -> None:
        """Kill the triggerer, as the loss of a host does."""
        found = [item for item in processes(self.deployment.home) if "triggerer" in " ".join(item.cmdline())]
        assert found
        for item in found:
            with contextlib.suppress(psutil.NoSuchProcess):
                item.kill()
        psutil.wait_procs(found, 30)
        for process in self.triggerers:
            process.wait()

    def start_triggerer(self) -> None:
        """Start another triggerer."""
        self.triggerers.append(
            subprocess.Popen([sys.executable, "-m", "airflow", "triggerer"], env=self.environment,
                             stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT)
        )  # fmt: skip


def _quoted(run_id: str) -> str:
    return run_id.replace("+", "%2B").replace(":", "%3A")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Airflow over a lake with a refreshed view, and one that was never refreshed."""
    home = DemoHome(tmp_path_factory.mktemp("events"))
    dags = home.folder / "dags"
    dags.mkdir()
    (home.folder / "warehouse").mkdir()
    (dags / "events.py").write_text(DAGS)
    # The example, with a separate view, because it refreshes it.
    (dags / EXAMPLE.name).write_text(EXAMPLE.read_text().replace(VIEW, "lake.sales.example"))
    collector = Collector()
    with (
        lake(home.catalog_properties["uri"], home.folder / "warehouse") as found,
        collector.listening() as otel_port,
        contextlib.ExitStack() as stack,
    ):
        found.table()
        found.view()
        found.view("new")
        found.view("example")
        found.refresh()
        settings = {
            "NOTIFICATIONS": str(home.folder / "notifications"),
            "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "False",
            "AIRFLOW__WORKERS__EXECUTION_API_TIMEOUT": "60",
            "AIRFLOW__TRIGGERER__JOB_HEARTBEAT_SEC": "1",
            "AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "10",
            "AIRFLOW__METRICS__OTEL_ON": "True",
            "AIRFLOW__METRICS__OTEL_HOST": "127.0.0.1",
            "AIRFLOW__METRICS__OTEL_PORT": str(otel_port),
        }
        # Not a port that the system assigns to clients, because Airflow starts to listen only after a while.
        port = random.randint(20_000, 29_999)
        airflow = stack.enter_context(local_airflow(home, dags=dags, port=port, settings=settings))
        until(lambda: airflow.call("GET", "/api/v2/dags")["total_entries"] == 4)
        deployment = Deployment(airflow, home, found.iceberg, MaterializedViewCatalog(found.iceberg))
        (standalone,) = [item for item in processes(home) if item.pid == airflow.process.pid]
        world = World(deployment, found, collector, {**os.environ, **standalone.environ()})
        stack.callback(lambda: [(item.kill(), item.wait()) for item in world.triggerers])
        yield world
    assert processes(home) == []


@pytest.fixture(scope="module")
def first(world: World) -> list[dict[str, Any]]:
    """The first commit, and the payload of the run that it started."""
    world.lake.append((8, "west", 1), (9, "west", 2))
    (run,) = until(world.runs)
    assert world.deployment.value("on_commit", run, "notifications") == world.payloads()
    return world.payloads()


def test_a_commit_to_a_base_table_starts_a_run_with_its_payload(world: World, first: list[dict[str, Any]]) -> None:
    """Through Airflow's asset watcher: event, asset, run."""
    (view,) = first[0]["views"]
    assert (view["view"], view["state"]) == (VIEW, "stale")
    (table,) = view["tables"]
    assert (table["identifier"], table["rows_added"]) == ("lake.sales.orders", 2)
    assert table["to"] == str(world.lake.head())


def test_compaction_starts_no_run(world: World, first: list[dict[str, Any]]) -> None:
    """Before and after the refresh; time without a commit starts no run either."""
    world.lake.compact()
    time.sleep(4)
    world.lake.refresh()
    world.lake.compact()
    time.sleep(4)
    assert world.payloads() == first


@pytest.fixture(scope="module")
def restarted(world: World, first: list[dict[str, Any]]) -> list[str]:
    """Two tasks wait; the triggerer is killed, and a commit is made before another triggerer starts."""
    world.lake.refresh()
    world.lake.append()
    until(lambda: len(world.payloads()) == 2)
    time.sleep(8)  # until the announcement is in the state store
    world.deployment.start("gate", "waiting")
    until(lambda: world.state("waiting", "fresh") == "deferred")
    until(lambda: world.state("waiting", "changed") == "success")
    world.kill_triggerer()
    committed = world.lake.append()
    world.start_triggerer()
    until(lambda: len(world.payloads()) >= 3)
    return [str(committed)]


def test_a_commit_while_no_triggerer_ran_is_found_and_nothing_is_announced_twice(
    world: World, restarted: list[str]
) -> None:
    """A restart neither loses nor floods events."""
    time.sleep(4)
    payloads = world.payloads()
    assert len(payloads) == 3
    assert payloads[2]["views"][0]["tables"][0]["to"] == restarted[0]


def test_a_waiting_sensor_holds_no_slot_and_survives_its_triggerer(world: World, restarted: list[str]) -> None:
    """It continues in the next triggerer, and ends when the view is fresh."""
    assert world.state("waiting", "fresh") == "deferred"
    world.lake.refresh()
    assert world.deployment.ended("gate", "waiting") == {
        "fresh": "success",
        "changed": "success",
        "gives_up": "skipped",
    }
    last_output = " ".join(world.deployment.log("gate", "waiting", "fresh"))
    assert "Waiting in the triggerer, for at most 7 days" in last_output
    value = world.deployment.value("gate", "waiting", "fresh")
    assert (value["readiness"], value["lag_seconds"]) == ("FRESH", 0)
    changed = world.deployment.value("gate", "waiting", "changed")
    assert changed["views"][0]["view"] == VIEW


def test_a_breach_and_its_recovery_are_reported_once_and_the_lag_is_measured(
    world: World, restarted: list[str]
) -> None:
    """Over three runs of the alert DAG, without any refresh DAG."""
    world.lake.refresh()
    world.lake.append()
    time.sleep(1.1)
    for run_id in ("late", "still_late"):
        assert world.deployment.run("alerts", run_id) == {"freshness": "success"}, world.deployment.last_output()
    assert world.notifications()[0] == f"alerts: {VIEW} is late"
    assert world.notifications()[1].startswith(f"{VIEW} is STALE, behind for ")
    assert len(world.notifications()) == 2

    world.lake.refresh()
    assert world.deployment.run("alerts", "recovered") == {"freshness": "success"}
    assert world.notifications()[2:] == [f"{VIEW} is on time again (FRESH)"]
    lags = [(tags, value) for name, tags, value in world.collector.gauges if name.endswith("airflow_mv.lag_seconds")]
    assert {tags["view"] for tags, _ in lags} == {VIEW}
    assert max(value for _, value in lags) > 1
    assert min(value for _, value in lags) == 0


def test_the_example_refreshes_a_view_after_commits(world: World) -> None:
    """As it is written, with its quiet period, and real Spark."""
    run = until(lambda: world.runs("refresh_on_base_commit"))[0]

    result = world.deployment.value("refresh_on_base_commit", run, "refresh")
    assert (result["view"], result["outcome"]) == ("lake.sales.example", "refreshed")
    assert world.lake.read("sales.example")


def test_without_a_triggerer_sensors_are_rescheduled_and_hold_no_slot(world: World, restarted: list[str]) -> None:
    """They detect it themselves. No triggerer is started afterwards, so this test is the last."""
    world.kill_triggerer()
    until(lambda: world.deployment.airflow.call("GET", HEALTH)["triggerer"]["status"] == "unhealthy")
    world.lake.append()

    world.deployment.start("gate", "alone")
    until(lambda: world.state("alone", "fresh") == "up_for_reschedule")
    until(lambda: world.state("alone", "changed") == "success")
    world.lake.refresh()

    ended = world.deployment.ended("gate", "alone")
    assert ended == {"fresh": "success", "changed": "success", "gives_up": "skipped"}, world.deployment.last_output()
    last_output = " ".join(world.deployment.log("gate", "alone", "fresh"))
    assert "No triggerer runs: this task is rescheduled between polls" in last_output
    assert "Waiting in the triggerer" not in last_output
