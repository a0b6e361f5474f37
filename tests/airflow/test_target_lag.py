# SPDX-License-Identifier: Apache-2.0
"""A DAG that refreshes what must be refreshed now to keep the target lags of a namespace."""

from __future__ import annotations

import uuid

from tests.airflow.conftest import Airflow, Run
from tests.builders import Lake

_HEAD = "from airflow_mv.dags import target_lag_dag\n"


def run(airflow: Airflow) -> Run:
    file = airflow.folder / f"lag_{uuid.uuid4().hex[:8]}.py"
    file.write_text(f'{_HEAD}target_lag_dag("{file.stem}", namespace="lake.sales", depth=2)\n')
    return airflow.run_file(file)


def test_a_run_refreshes_what_is_due_after_what_it_reads_and_leaves_what_can_wait(
    airflow: Airflow, sales: Lake
) -> None:
    """Views without rows are due at once. Of the stale views later only that with a target of no time is."""
    now = {"airflow-mv.target-lag": "1"}
    daily = sales.view("daily", properties={"airflow-mv.target-lag": "downstream"})
    total = sales.view("total", "SELECT sum(d.orders) AS n FROM lake.sales.daily d", properties=now)
    hours = sales.view(
        "hours", "SELECT count(*) AS n FROM lake.sales.orders", properties={"airflow-mv.target-lag": "5 h"}
    )
    first = run(airflow)
    assert first.state == "success", first.log
    assert sorted(first.labels.values()) == [str(daily), str(hours), str(total)]
    nothing = run(airflow)
    assert nothing.states["refresh_1"] == "skipped"
    assert nothing.values["pin"]["views"] == {}
    sales.append()
    again = run(airflow)

    assert again.state == "success", again.log
    assert again.labels == {"refresh_1[0]": str(daily), "refresh_2[0]": str(total)}
    assert f"{hours} waits; it is due at" in again.task_log("pin")
    assert "TARGET_LAG_AT_RISK" in again.task_log("pin")
