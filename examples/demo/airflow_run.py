# SPDX-License-Identifier: Apache-2.0
"""One run of the demo's DAG in a real Airflow without a scheduler; :mod:`examples.demo.run` starts it as a process.

Airflow reads its settings when it is imported, so the environment must be set before.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

DAG_ID = "nyc_flights"


def main(results: Path, run_id_file: Path) -> int:
    """Run the DAG once and leave what its tasks returned.

    Args:
        results: JSON file: return value by task id.
        run_id_file: Told that the run begins.

    Returns:
        The process's exit code: 0 if the run succeeded.
    """
    from airflow.dag_processing.dagbag import DagBag, sync_bag_to_db
    from airflow.models.dagbundle import DagBundleModel
    from airflow.utils.db import initdb
    from airflow.utils.session import create_session

    from examples.demo.home import dags_folder

    initdb()
    with create_session() as session:
        session.merge(DagBundleModel(name="demo"))
    bag = DagBag(str(dags_folder() / "nyc_flights.py"), bundle_name="demo")
    if bag.import_errors:
        sys.stderr.write("\n".join(bag.import_errors.values()))
        return 1
    sync_bag_to_db(bag, "demo", "1")
    run_id_file.write_text("started", encoding="utf-8")
    run = bag.dags[DAG_ID].test(logical_date=None)
    values = {item.task_id: item.xcom_pull(task_ids=item.task_id) for item in run.get_task_instances()}
    results.write_text(json.dumps(values, default=str), encoding="utf-8")
    return 0 if run.state == "success" else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
