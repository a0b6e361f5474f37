# SPDX-License-Identifier: Apache-2.0
"""The registry in Airflow: who asked for a refresh, and the task that brings all in. No Spark job is needed."""

from __future__ import annotations

from pathlib import Path

from airflow_mv.extras.registry.registry import Registry
from airflow_mv.extras.registry.settings import PLACE, registry_settings
from tests.airflow.conftest import VIEW, Airflow, lake_behind


def test_a_row_names_the_task_that_asked_for_the_refresh(airflow: Airflow, tmp_path: Path) -> None:
    with lake_behind(airflow, tmp_path, **{PLACE: "airflow_mv"}) as home:
        for name in ("daily", "other"):
            home.refresh(home.view(name))
        home.compact()
        run = airflow.run(f"""
            plan = PlanRefreshOperator(task_id="plan", view="lake.sales.other")
            commit = CommitRefreshOperator(task_id="commit", plan=plan.output)
            refresh = RefreshMaterializedViewOperator(task_id="refresh", view="{VIEW}")
            [commit, refresh] >> SyncRegistryOperator(task_id="sync", catalog="lake")
        """)
        rows = Registry(home.catalog, registry_settings({PLACE: "airflow_mv"})).refreshes.rows()
    assert run.state == "success"
    wanted = {"registry": "lake.airflow_mv", "refreshes": 2, "views": 2, "removed_views": 0, "tables": 0, "faults": {}}
    assert run.values["sync"] == wanted
    assert {(row.view, row.task_id, row.mode) for row in rows} == {
        (VIEW, "refresh", "fast-forward"),
        ("lake.sales.other", "commit", "fast-forward"),
    }
    assert {row.requested_by for row in rows} == {"dag_test"}
    assert len({(row.dag_id, row.run_id) for row in rows}) == 1
    assert all(row.dag_id and row.run_id for row in rows)
