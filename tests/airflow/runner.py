# SPDX-License-Identifier: Apache-2.0
"""A separate process that runs DAG files in a real Airflow: its output is the log as a user reads it.

It reads a JSON line for each run from stdin. The answer is in the file that the line names, because child processes
of Airflow write to the same stdout at any time; a line that begins with :data:`ANSWER` says that it is complete.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import time
from pathlib import Path
from typing import Any

ANSWER = "<<<answer>>>"


def main() -> None:
    """Execute runs until stdin ends."""
    from airflow.models.dagbundle import DagBundleModel
    from airflow.utils.db import initdb
    from airflow.utils.session import create_session

    from airflow_mv.triggers.connected import forget

    initdb()
    with create_session() as session:
        session.merge(DagBundleModel(name="tests"))
    for line in sys.stdin:
        request = json.loads(line)
        before = dict(os.environ)
        os.environ.update(request["environment"])
        answer = _run(Path(request["file"]), request["arguments"])
        # In Airflow each task has its own process, and so has the triggerer: the next run inherits neither this run's
        # environment nor the catalogs that its triggers have opened.
        forget()
        os.environ.clear()
        os.environ.update(before)
        Path(request["answer"]).write_text(json.dumps(answer, default=str))
        print(f"\n{ANSWER}", flush=True)


def _run(file: Path, arguments: dict[str, Any]) -> dict[str, Any]:
    from pendulum import parse

    from tests.older import dag_bag, store_dags

    bag = dag_bag(str(file), "tests")
    if bag.import_errors:
        return {"import_error": "\n".join(bag.import_errors.values())}
    store_dags(bag, "tests")
    wanted = arguments.pop("dag_id", None)
    (dag,) = (found for found in bag.dags.values() if wanted in (None, found.dag_id))
    moment = arguments.pop("logical_date", None)
    started = time.monotonic()
    with dag:  # as in a file that calls it within the block of its DAG
        run = dag.test(logical_date=parse(moment) if moment else None, **arguments)
    return {"state": str(run.state), "seconds": time.monotonic() - started, **_left_by(run)}


def _left_by(run: Any) -> dict[str, Any]:
    from airflow.models.asset import AssetEvent, AssetModel
    from airflow.models.renderedtifields import RenderedTaskInstanceFields
    from airflow.models.xcom import XComModel
    from airflow.utils.session import create_session
    from sqlalchemy import select

    key = {"dag_id": run.dag_id, "run_id": run.run_id}
    with create_session() as session:
        xcoms = session.scalars(select(XComModel).filter_by(**key)).all()
        fields = session.scalars(select(RenderedTaskInstanceFields).filter_by(**key)).all()
        events = session.execute(
            select(AssetEvent.source_task_id, AssetModel.name, AssetEvent.extra)
            .join(AssetModel, AssetModel.id == AssetEvent.asset_id)
            .where(AssetEvent.source_dag_id == run.dag_id, AssetEvent.source_run_id == run.run_id)
        ).all()
        return {
            "states": {_name(item): str(item.state) for item in run.get_task_instances()},
            "labels": {
                _name(item): item.rendered_map_index for item in run.get_task_instances() if item.rendered_map_index
            },
            "values": {_name(item): XComModel.deserialize_value(item) for item in xcoms if item.key == "return_value"},
            "xcoms": [[item.task_id, item.key, item.value] for item in xcoms],
            "rendered": {item.task_id: item.rendered_fields for item in fields},
            "events": [list(event) for event in events],
        }


def _name(item: Any) -> str:
    """Return a task's id, with the map index of a mapped task."""
    return str(item.task_id) if item.map_index < 0 else f"{item.task_id}[{item.map_index}]"


if __name__ == "__main__":
    main()
    # As Airflow ends its tasks: threads of libraries do not keep the process running, and no pool remains.
    for child in multiprocessing.active_children():
        child.kill()
    sys.stdout.flush()
    os._exit(0)
