# SPDX-License-Identifier: Apache-2.0
"""Maintenance, verification, conversion, rollback and drop as tasks, and the maintenance DAG."""

from __future__ import annotations

from pathlib import Path

from airflow_mv.extras.describe import history
from tests.airflow.conftest import VIEW, Airflow
from tests.airflow.test_examples import EXAMPLES
from tests.builders import Lake


def test_a_view_is_maintained_verified_converted_rolled_back_dropped_by_tasks(airflow: Airflow, sales: Lake) -> None:
    """One DAG; a task that is repeated on a converted or dropped view succeeds."""
    sales.view(time_travel=True)
    sales.refresh()
    sales.append()
    sales.refresh()
    first = str(history(sales.catalog, VIEW)[0]["refresh_id"])
    run = airflow.run(f"""
        chain(
            MaintainMaterializedViewOperator(task_id="maintain", view="{VIEW}", older_than="0 s", compact=True),
            VerifyMaterializedViewOperator(task_id="files", view="{VIEW}", files=True),
            ConvertMaterializedViewOperator(task_id="convert", view="{VIEW}", layout="{{{{ 'table' }}}}"),
            ConvertMaterializedViewOperator(task_id="converted", view="{VIEW}", layout="table"),
            RollbackMaterializedViewOperator(task_id="back", view="{VIEW}", refresh_id="{first}"),
            RollbackMaterializedViewOperator(task_id="definition", view="{VIEW}", version_id="{{{{ 1 }}}}"),
            DropMaterializedViewOperator(task_id="drop", view="{VIEW}", purge=True),
            DropMaterializedViewOperator(task_id="again", view="{VIEW}"),
            RollbackMaterializedViewOperator(task_id="too_late", view="{VIEW}", refresh_id="{first}", retries=3),
        )
    """)
    states = dict.fromkeys(
        ("maintain", "files", "convert", "converted", "back", "definition", "drop", "again"), "success"
    )
    assert run.states == {**states, "too_late": "failed"}, run.log
    assert run.values["maintain"]["view"] == VIEW
    assert run.values["maintain"]["compaction"]["outcome"] == "not-needed"
    assert run.values["files"]["intact"]
    assert run.values["convert"] == {"view": VIEW, "layout": "table", "before": "pointed"}
    assert run.values["converted"] == {"view": VIEW, "layout": "table", "before": "table"}
    assert run.values["back"]["outcome"] == "rolled-back"
    assert run.values["definition"] == {
        "view": VIEW,
        "version_id": 1,
        "before": 1,
        "outcome": "already-current",
    }
    assert run.values["drop"]["dropped"]
    assert run.values["drop"]["deleted_files"] > 0
    assert run.values["again"] == {"view": VIEW, "dropped": False}
    assert "another try would fail in the same way" in run.log


def test_a_broken_file_fails_the_task_that_verifies_the_files(airflow: Airflow, daily: Lake) -> None:
    storage = daily.storage().table.location.removeprefix("file://")
    data = next(Path(storage).rglob("*.parquet"))
    data.write_bytes(data.read_bytes()[:-1])
    run = airflow.run(f'VerifyMaterializedViewOperator(task_id="files", view="{VIEW}", files=True, retries=2)')
    assert run.states == {"files": "failed"}
    assert f"VerificationError: view {VIEW}: 1 files are missing or broken" in run.log
    assert f"`airflow-mv repair {VIEW}` shows what can be restored" in run.log


def test_the_maintenance_dag_maintains_each_view_of_a_namespace(airflow: Airflow, daily: Lake) -> None:
    """The views are listed when the DAG runs."""
    run = airflow.run_file(EXAMPLES / "maintenance.py")
    assert run.state == "success", run.log
    assert f"{VIEW}: 0 snapshots expired" in run.log
