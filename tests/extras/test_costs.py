# SPDX-License-Identifier: Apache-2.0
"""What refreshes cost, and who requested them, from the views alone."""

from __future__ import annotations

import getpass
import os
import socket
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from airflow_mv.actions import refresh_views
from airflow_mv.cli import main as commands
from airflow_mv.core.publish import Requester
from airflow_mv.extras.costs import costs, with_expected
from airflow_mv.extras.describe import history
from tests.builders import LAYOUTS, Lake, lake
from tests.cli.support import call
from tests.engine.support import configure, reload_configuration

VIEW = "lake.sales.daily"
NIGHTLY = Requester(dag_id="nightly", run_id="scheduled__1", task_id="refresh")


@pytest.fixture(params=LAYOUTS)
def home(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lake]:
    variables = configure(tmp_path, "lake")
    with lake(variables["PYICEBERG_CATALOG__LAKE__URI"], tmp_path / "lake", layout=request.param) as found:
        found.action = refresh_views
        found.table()
        found.view()
        module = __import__(commands.callback.__module__, fromlist=["stager_for"])
        monkeypatch.setattr(module, "stager_for", lambda *_, **__: found.stager)
        yield found
    for name in variables:
        del os.environ[name]
    reload_configuration()


def test_a_view_records_what_its_refreshes_took_and_who_requested_them(home: Lake) -> None:
    """Without a registry: a task's DAG, and a command's user and host; also of refreshes that only the log has."""
    home.refresh(requester=NIGHTLY)
    home.append()
    assert call("refresh", VIEW).code == 0
    user = f"{getpass.getuser()}@{socket.gethostname()}"

    records = call("history", VIEW, "--json").json
    assert [item["requested_by"] for item in records] == [
        {"dag-id": "nightly", "run-id": "scheduled__1", "task-id": "refresh"},
        {"user": getpass.getuser(), "host": socket.gethostname()},
    ]
    assert all(item["seconds"] >= item["job_seconds"] >= 0 for item in records)
    shown = call("history", VIEW).stdout.splitlines()
    assert [name in line for name, line in zip(("requested by", "nightly", user), shown, strict=True)] == [True] * 3

    (found,) = call("costs", "--all", "lake", "--json").json
    assert (found["view"], found["refreshes"], found["modes"]) == (VIEW, 2, {"full": 2})
    assert found["requested_by"] == {"nightly": 1, user: 1}
    assert (found["unmeasured"], found["rows_written"]) == (0, sum(item["rows_written"] for item in records))
    assert found["seconds"] == pytest.approx(sum(item["seconds"] for item in records), abs=0.002)
    table = call("costs", VIEW)
    assert (table.code, len(table.stdout.splitlines())) == (0, 2)
    assert f"1 nightly, 1 {user}" in table.stdout
    assert call("costs").code == 2


def test_only_refreshes_of_the_asked_time_count(home: Lake) -> None:
    home.refresh()
    found = history(home.catalog, VIEW)
    later = costs(VIEW, found, datetime.now(UTC) + timedelta(days=1))
    assert (later["refreshes"], later["seconds"], later["last_at"]) == (0, None, None)
    assert costs(VIEW, found, datetime.now(UTC) - timedelta(days=1))["requested_by"] == {"unknown": 1}


def test_a_plan_tells_how_long_the_last_refreshes_took(home: Lake) -> None:
    """The estimate is of Spark's statements alone; a person also waits for the start of Spark."""
    assert "and the start of Spark" in call("plan", VIEW).stdout
    home.refresh()
    home.append()
    shown = call("plan", VIEW).stdout
    assert "by its last refresh, of which" in shown


@pytest.mark.parametrize(
    ("mode", "seconds", "expected"),
    [("full", 0.5, 90.0), ("full", 100.0, 180.0), ("merge", 0.5, 80.5), ("full", None, 90.0), ("merge", None, None)],
)
def test_the_expected_time_is_that_of_the_view_s_own_refreshes(
    mode: str, seconds: float | None, expected: float | None
) -> None:
    """Or more, if the change is larger than usual; of a mode that never ran, Spark's start and the estimate."""
    refreshes = [{"mode": "full", "seconds": 90.0, "job_seconds": 10.0}, {"mode": "full", "seconds": None}]
    (found,) = with_expected([{"mode": mode, "seconds": seconds}], refreshes)
    assert found["expected_seconds"] == expected
