# SPDX-License-Identifier: Apache-2.0
"""The demo: refresh three views, append June, show why they are stale, refresh again, report."""

from __future__ import annotations

from airflow.sdk import DAG, chain, task

from airflow_mv.operators import RefreshMaterializedViewOperator
from airflow_mv.sensors import MaterializedViewFreshSensor

VIEWS = ["lake.nyc.daily_carrier_delay", "lake.nyc.route_month", "lake.nyc.weather_impact"]


def short(view: str) -> str:
    """The last part of a view's name, for task ids."""
    return view.rsplit(".", 1)[-1]


@task
def append_june() -> dict[str, int]:
    """Append the data of June: one commit to flights and one to weather."""
    from airflow_mv.hooks import MaterializedViewHook
    from examples.demo.data import append_month

    return append_month(MaterializedViewHook().iceberg_catalog("lake"), 6)


@task
def why_stale() -> list[dict[str, object]]:
    """Return which base table moved, from which snapshot to which, and by how many rows. Reads no data."""
    from airflow_mv.hooks import MaterializedViewHook

    return [MaterializedViewHook().status(view).to_dict() for view in VIEWS]


@task
def report() -> dict[str, list[object]]:
    """Read the views as Arrow data, without Spark, like any downstream task."""
    from airflow_mv.hooks import MaterializedViewHook

    tables = {short(view): MaterializedViewHook().read(view).batches.read_all() for view in VIEWS}
    delays = tables["daily_carrier_delay"].group_by("airline").aggregate([("flights", "sum"), ("cancelled", "sum")])
    busiest = delays.sort_by([("flights_sum", "descending")]).slice(0, 5).to_pylist()
    return {"rows": [{name: table.num_rows} for name, table in tables.items()], "busiest": busiest}


with DAG("nyc_flights", schedule=None, tags=["airflow-mv"], doc_md=__doc__):
    first = [RefreshMaterializedViewOperator(task_id=f"refresh_{short(view)}", view=view) for view in VIEWS]
    again = [RefreshMaterializedViewOperator(task_id=f"refresh_{short(view)}_again", view=view) for view in VIEWS]
    fresh = [MaterializedViewFreshSensor(task_id=f"{short(view)}_is_fresh", view=view) for view in VIEWS]
    chain(first, append_june(), why_stale(), again, fresh, report())
