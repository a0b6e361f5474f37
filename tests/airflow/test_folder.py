# SPDX-License-Identifier: Apache-2.0
"""A folder of SQL files as a DAG, and as a task that makes the views what it says."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_mv.dags import materialized_views_dag
from airflow_mv.errors import ConfigurationError
from tests.airflow.conftest import Airflow
from tests.builders import QUERY, Lake

DAILY = f"""---
description: orders by region
owner: sales
tags: [money, daily]
max_staleness: 1 hour
checks:
- not_null: [region]
---
{QUERY}
"""
TOP = "SELECT region FROM daily WHERE orders > 1"


@pytest.fixture
def views(tmp_path: Path) -> Path:
    folder = tmp_path / "views" / "lake" / "sales"
    folder.mkdir(parents=True)
    (folder / "daily.sql").write_text(DAILY)
    (folder / "a_top.sql").write_text(TOP)
    return tmp_path / "views"


def test_a_folder_is_a_dag_in_order_with_all_that_its_files_say(views: Path) -> None:
    (views / "dag.yaml").write_text("schedule: '@daily'\ndescription: sales views\ntags: [team-a]\n")
    dag = materialized_views_dag("folder", views, tags=["mine"])
    assert dag.tags == {"airflow-mv", "daily", "mine", "money", "team-a"}
    assert (dag.description, dag.schedule) == ("sales views", "@daily")
    assert dag.task_dict["refresh_a_top"].upstream_task_ids >= {"refresh_daily", "create_a_top"}
    created = dag.task_dict["create_daily"]
    assert (created.sql, created.comment, created.on_change) == (QUERY, "orders by region", "apply")
    assert created.properties == {"airflow-mv.max-staleness": "1 hour", "owner": "sales", "tags": "money, daily"}
    assert [check["not_null"] for check in created.checks] == [["region"]]
    assert materialized_views_dag("other", str(views), schedule="@hourly").schedule == "@hourly"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("schedul: x", "there is no key 'schedul'; did you mean 'schedule'"),
        ("tags: x", "tags must be a list of texts"),
        ("- a", "must be a list of `key: value`"),
        ("a: [", "cannot be read"),
    ],
)
def test_a_wrong_file_is_an_import_error(views: Path, text: str, message: str) -> None:
    (views / "dag.yaml").write_text(text)
    with pytest.raises(ConfigurationError, match=f"dag.yaml.*{message}"):
        materialized_views_dag("folder", views)


def test_a_task_applies_a_folder(airflow: Airflow, sales: Lake, views: Path) -> None:
    """A second run changes nothing. A file that is refused fails the task, after the others were applied."""
    (views / "lake/sales/broken.sql").write_text("---\nstrategy: sometimes\n---\nSELECT id FROM orders")
    run = airflow.run(f"""
        ApplyMaterializedViewsOperator(task_id="apply", folder="{views}", retries=0)
    """)
    assert run.states == {"apply": "failed"}
    assert "lake.sales.broken" in run.log
    assert [view.name for view in sales.catalog.list()] == ["a_top", "daily"]
    (views / "lake/sales/broken.sql").unlink()
    run = airflow.run(f"""
        ApplyMaterializedViewsOperator(task_id="again", folder="{{{{ '{views}' }}}}", prune=True)
    """)
    assert run.states == {"again": "success"}, run.log
    assert (run.values["again"]["counts"]["unchanged"], run.values["again"]["applied"]) == (2, [])
