# SPDX-License-Identifier: Apache-2.0
"""One run of the demo's DAG in a real Airflow without a scheduler; :mod:`examples.demo.run` starts it as a process.

Airflow reads its settings when it is imported, so the environment must be set before.
"""

from __future__ import annotations

import gc
import json
import sys
from importlib import import_module
from pathlib import Path

DAG_ID = "nyc_flights"


def dag_file() -> Path:
    """Return the DAG's file."""
    from examples.demo.home import dags_folder

    return dags_folder() / f"{DAG_ID}.py"


def settings() -> dict[str, str]:
    """Return Airflow's settings for such a process: it knows this DAG only, and needs no more."""
    path = "airflow.dag_processing.bundles.local.LocalDagBundle"
    bundle = {"name": "demo", "classpath": path, "kwargs": {"path": str(dag_file())}}
    return {
        "AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST": json.dumps([bundle]),
        "AIRFLOW__LOGGING__LOGGING_LEVEL": "INFO",
    }


def main(results: Path) -> int:
    """Prepare Airflow's database, wait for a line on stdin, and run the DAG once.

    Args:
        results: JSON file for what the tasks returned: value by task id.

    Returns:
        The process's exit code: 0 if the run succeeded.
    """
    # Nearly all objects live until the end of the process. To look for garbage among them takes a fifth of its time.
    gc.disable()
    from airflow.dag_processing.dagbag import DagBag

    _prepare_database()
    bag = DagBag(str(dag_file()), bundle_name="demo")
    if bag.import_errors:
        sys.stderr.write("\n".join(bag.import_errors.values()))
        return 1
    # What the first task would import. Meanwhile another process loads the tables.
    for name in (
        "airflow.api_fastapi.execution_api.app",
        "airflow_mv.core.refresh.run",
        "airflow_mv.extras.define",
    ):
        import_module(name)
    if not sys.stdin.readline():
        return 1
    run = bag.dags[DAG_ID].test(logical_date=None)
    values = {item.task_id: item.xcom_pull(task_ids=item.task_id) for item in run.get_task_instances()}
    results.write_text(json.dumps(values, default=str), encoding="utf-8")
    return 0 if run.state == "success" else 1


def _prepare_database() -> None:
    """Create the tables, unless this version of Airflow has: to compare them takes a second."""
    from airflow import __version__
    from airflow.configuration import AIRFLOW_HOME
    from airflow.utils.db import initdb

    done = Path(AIRFLOW_HOME, "prepared-by")
    if not done.exists() or done.read_text(encoding="utf-8") != __version__:
        initdb()
        done.write_text(__version__, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
