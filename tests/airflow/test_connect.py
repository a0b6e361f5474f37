# SPDX-License-Identifier: Apache-2.0
"""A connection of type spark_connect: the task itself is the client, without spark-submit."""

from __future__ import annotations

import pytest

from tests.airflow.conftest import VIEW, Airflow
from tests.builders import QUERY, Lake


@pytest.mark.cluster
def test_a_view_is_created_and_refreshed_over_spark_connect(airflow: Airflow, sales: Lake, connect: str) -> None:
    """The same operators with another connection; the client configures the catalog in the server's session."""
    host, _, port = connect.removeprefix("sc://").partition(":")
    airflow.connect("connect", conn_type="spark_connect", host=host, port=int(port))
    run = airflow.run(f"""
        options = dict(view="{VIEW}", spark_conn_id="connect")
        create = CreateMaterializedViewOperator(task_id="create", sql='''{QUERY}''', **options)
        refresh = RefreshMaterializedViewOperator(task_id="refresh", **options)
        again = RefreshMaterializedViewOperator(task_id="again", **options)
        chain(create, refresh, again)
    """)

    assert run.states == dict.fromkeys(["create", "refresh", "again"], "success"), run.log
    assert [run.values[task]["outcome"] for task in ("refresh", "again")] == ["refreshed", "fresh"]
    assert f"Spark Connect: {connect}" in run.task_log("refresh")
    assert "Spark Connect" not in run.task_log("again")
    assert "Spark-Submit cmd" not in run.log
    assert len(sales.read()) == 2
