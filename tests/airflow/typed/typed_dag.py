# SPDX-License-Identifier: Apache-2.0
"""A DAG file as a user writes it. ``test_signatures.py`` runs type checkers on it: they find nothing."""

from datetime import timedelta

from airflow.sdk import DAG, Asset, AssetWatcher

from airflow_mv.assets import materialized_view_asset
from airflow_mv.checks import not_null, row_count
from airflow_mv.dags import ChainedView, materialized_views_dag, materialized_views_dags
from airflow_mv.operators import (
    CreateMaterializedViewOperator,
    MaintainMaterializedViewOperator,
    PinBaseTablesOperator,
    RefreshMaterializedViewOperator,
    share_spark_application,
)
from airflow_mv.sensors import MaterializedViewFreshSensor
from airflow_mv.triggers import BaseTablesChangedTrigger

VIEW = "lake.sales.daily"

commits = Asset("commits", watchers=[AssetWatcher(name="commits", trigger=BaseTablesChangedTrigger(views=VIEW))])

with DAG("daily", schedule=[commits, materialized_view_asset("lake.sales.hourly")]):
    create = CreateMaterializedViewOperator(
        task_id="create",
        view=VIEW,
        sql="SELECT day, count(*) AS orders FROM lake.sales.orders GROUP BY day",
        refresh_strategy="incremental",
        on_change="rebuild",
        properties={"airflow-mv.max-staleness": "2 h"},
        packages="",
        retries=2,
    )
    pin = PinBaseTablesOperator(task_id="pin", views=[VIEW], scope="as_of")
    refresh = RefreshMaterializedViewOperator(
        task_id="refresh",
        view=VIEW,
        iceberg_conn_id="lake",
        pins=pin.output,
        checks=[not_null("day"), row_count(at_least=1), "orders >= 0"],
        scope="interval",
        interval_length=timedelta(days=1),
        on_fallback="skip",
        max_bytes="{{ params.max_bytes }}",
        conf={"spark.sql.shuffle.partitions": "8"},
        executor_memory="4g",
        pool="spark",
    )
    fresh = MaterializedViewFreshSensor(task_id="fresh", view=VIEW, freshness="direct", timeout=3600.0)
    maintain = MaintainMaterializedViewOperator(task_id="maintain", view=VIEW, older_than="3 d", retries=1)
    share_spark_application(create, refresh, idle_seconds=60.0)
    create >> pin >> refresh >> fresh >> maintain
    RefreshMaterializedViewOperator.partial(task_id="mapped", scope="whole").expand(view=[VIEW])

materialized_views_dag(
    "chain",
    [ChainedView("lake.sales.total", after=[VIEW], refresh={"max_snapshots": 10}), VIEW],
    connections={"iceberg_conn_id": "lake"},
    spark={"driver_memory": "2g"},
    refresh={"on_fallback": "fail"},
    spark_application="shared",
    tags=["sales"],
)
materialized_views_dags("both", {VIEW: "SELECT 1 AS one"}, on=[commits], every="@daily", periodic={"scope": "interval"})
