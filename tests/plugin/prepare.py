# SPDX-License-Identifier: Apache-2.0
"""A process that fills a new Airflow: its database, past runs, the DAGs of a folder.

Arguments: the DAG folder, and a JSON file with runs: ``{"dag_id", "hours", "kind", "published"}``. ``published`` has
the extra of the asset event by view; ``null`` means that the task failed. Without ``published`` the real DAG runs.
"""

from __future__ import annotations

import json
import os
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

#: What the log of a failed task says.
FAILURE = "the Spark job failed: Job aborted due to stage failure: ExecutorLostFailure (executor 3 exited, code 137)"
#: DAGs with the names of the real ones, whose tasks publish what the run's conf contains, without Spark.
PUBLISHING = """
from airflow.sdk import DAG, task
from tests.older import AirflowSkipException
from airflow_mv.assets import materialized_view_asset

for dag_id, views in {dags!r}.items():
    with DAG(dag_id, schedule=None, is_paused_upon_creation=False):
        for view in views:
            @task(task_id=view.rpartition(".")[2], outlets=[materialized_view_asset(view)])
            def refresh(*, outlets, outlet_events, dag_run):
                if outlets[0].name not in dag_run.conf:
                    raise AirflowSkipException
                if dag_run.conf[outlets[0].name] is None:
                    raise ValueError("the Spark job failed")
                outlet_events[outlets[0]].extra = dag_run.conf[outlets[0].name]
            refresh()
"""


def main(folder: Path, file: Path) -> None:
    """Create the database, execute past runs, and parse the DAGs."""
    from airflow.models.dagbundle import DagBundleModel
    from airflow.utils.db import initdb
    from airflow.utils.session import create_session

    initdb()
    with create_session() as session:
        session.merge(DagBundleModel(name="shop"))
    runs: list[dict[str, Any]] = json.loads(file.read_text())
    views: dict[str, list[str]] = {}
    before = [item for item in runs if "published" in item]
    for item in before:
        known = views.setdefault(item["dag_id"], [])
        known += [view for view in item["published"] if view not in known]
    publishing = file.parent / "publishing"
    publishing.mkdir()
    (publishing / "published.py").write_text(PUBLISHING.format(dags=views))
    dags = _read(publishing)
    for item in before:
        _date_back(dags[item["dag_id"]].test(run_conf=item["published"]), item)
    dags = _read(folder)
    for item in runs:
        if "published" not in item:
            dags[item["dag_id"]].test()


def _read(folder: Path) -> dict[str, Any]:
    from tests.older import dag_bag, store_dags

    bag = dag_bag(str(folder), "shop")
    assert not bag.import_errors, bag.import_errors
    store_dags(bag, "shop")
    return bag.dags


def _date_back(run: Any, item: dict[str, Any]) -> None:
    """Backdate a run, as if a schedule or a user had started it hours ago."""
    from airflow.models.asset import AssetEvent
    from airflow.models.dagrun import DagRun
    from airflow.models.taskinstance import TaskInstance
    from airflow.utils.session import create_session
    from sqlalchemy import select, update

    moment = datetime.now(UTC) - timedelta(hours=item["hours"])
    kind, _, user = item["kind"].partition(" ")
    of_event = (AssetEvent.source_dag_id == run.dag_id, AssetEvent.source_run_id == run.run_id)
    of_task = (TaskInstance.dag_id == run.dag_id, TaskInstance.run_id == run.run_id)
    of_run = (DagRun.dag_id == run.dag_id, DagRun.run_id == run.run_id)
    with create_session() as session:
        for task in session.scalars(select(TaskInstance).where(*of_task, TaskInstance.state == "failed")):
            _log(task)
        session.execute(update(AssetEvent).where(*of_event).values(timestamp=moment))
        started = {"start_date": moment - timedelta(seconds=40), "end_date": moment, "duration": 40.0}
        session.execute(update(TaskInstance).where(*of_task).values(**started))
        session.execute(update(DagRun).where(*of_run).values(run_type=kind, triggering_user_name=user or None))


def _log(task: Any) -> None:
    """Write the log that a worker would have written of a failed task."""
    error = {"exc_type": "SparkJobError", "exc_value": FAILURE, "exc_notes": [], "syntax_error": None, "frames": []}
    line = {"level": "error", "event": "Task failed with exception", "logger": "task", "error_detail": [error]}
    names = {"dag_id": task.dag_id, "run_id": task.run_id, "task_id": task.task_id}
    folder = Path(os.environ["AIRFLOW_HOME"], "logs", *(f"{key}={value}" for key, value in names.items()))
    folder.mkdir(parents=True)
    (folder / f"attempt={task.try_number}.log").write_text(json.dumps(line) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
