# SPDX-License-Identifier: Apache-2.0
"""The demo: create and refresh four views, append June, show why they are stale, refresh again, report.

All tasks that need Spark share one application.
"""

from __future__ import annotations

from airflow.sdk import DAG, chain, task

from airflow_mv.operators import (
    CreateMaterializedViewOperator,
    RefreshMaterializedViewOperator,
    share_spark_application,
)
from airflow_mv.sensors import MaterializedViewFreshSensor
from examples.demo.views import AS_TABLE, VIEWS

#: The tables are so small that a recompute is often as fast. Here an incremental refresh may take longer.
INCREMENTAL = {"airflow-mv.incremental-up-to": "10"}


def full(name: str) -> str:
    """The full name of one of the views."""
    return f"lake.nyc.{name}"


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

    return [MaterializedViewHook().status(full(name)).to_dict() for name in VIEWS]


@task
def report() -> dict[str, list[object]]:
    """Read a view as Arrow data, without Spark, like any downstream task."""
    from airflow_mv.hooks import MaterializedViewHook

    delays = MaterializedViewHook().read(full("daily_carrier_delay")).to_arrow()
    airlines = delays.group_by("airline").aggregate([("flights", "sum"), ("cancelled", "sum")])
    return {"busiest": airlines.sort_by([("flights_sum", "descending")]).slice(0, 5).to_pylist()}


with DAG("nyc_flights", schedule=None, tags=["airflow-mv"], doc_md=__doc__) as dag:
    create = [
        CreateMaterializedViewOperator(
            task_id=f"create_{name}",
            view=full(name),
            sql=sql,
            layout="table" if name == AS_TABLE else None,
            properties=INCREMENTAL,
        )
        for name, sql in VIEWS.items()
    ]
    first = [RefreshMaterializedViewOperator(task_id=f"refresh_{name}", view=full(name)) for name in VIEWS]
    again = [RefreshMaterializedViewOperator(task_id=f"refresh_{name}_again", view=full(name)) for name in VIEWS]
    fresh = [MaterializedViewFreshSensor(task_id=f"{name}_is_fresh", view=full(name)) for name in VIEWS]
    chain(create, first, append_june(), why_stale(), again, fresh, report())
    share_spark_application(*create, *first, *again, conf={"spark.sql.shuffle.partitions": "2"})
