# SPDX-License-Identifier: Apache-2.0
"""A view in each layout is created and refreshed by tasks and ``spark-submit``, with each Airflow and its packages."""

from __future__ import annotations

import pytest

from airflow_mv.core.catalog import STORED_LAYOUTS
from tests.airflow.conftest import SMALL, VIEW, Airflow
from tests.builders import QUERY, Lake


@pytest.mark.slow
@pytest.mark.leg
@pytest.mark.parametrize("layout", sorted(STORED_LAYOUTS))
def test_a_full_and_an_incremental_refresh(airflow: Airflow, sales: Lake, layout: str) -> None:
    run = airflow.run(f"""
        create = CreateMaterializedViewOperator(task_id="create", view="{VIEW}", conf={SMALL}, layout="{layout}",
            sql={QUERY!r}, refresh_strategy="incremental", properties={{"airflow-mv.incremental-up-to": "1000000"}})
        create >> RefreshMaterializedViewOperator(task_id="refresh", view="{VIEW}", conf={SMALL})
    """)
    assert run.state == "success", run.log
    assert run.values["refresh"]["mode"] == "full"
    sales.append()
    run = airflow.run(f'RefreshMaterializedViewOperator(task_id="refresh", view="{VIEW}", conf={SMALL})')
    assert run.state == "success", run.log
    assert run.values["refresh"]["mode"] == "merge"
    assert sum(row["orders"] for row in sales.read()) == sales.load().scan().to_arrow().num_rows
