# SPDX-License-Identifier: Apache-2.0
"""DAG files with chains of views are parsed often, on hosts without access to a catalog."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from airflow_mv.dags import ChainedView, materialized_views_dag, materialized_views_dags
from airflow_mv.dags.chain import Views, read_chain
from airflow_mv.errors import ConfigurationError, InvalidIdentifierError, InvalidQueryError
from airflow_mv.operators import refresh_params

DAILY, TOTAL, TOP = "lake.sales.daily", "lake.sales.total", "lake.sales.top"

#: The DAGs of a file, each with a hash that changes with its version.
SERIALIZE = """
import json, socket, sys
from airflow.sdk import BaseHook
from airflow.models.serialized_dag import SerializedDagModel
from tests.older import DagSerialization, dag_bag

def versions(file):
    bag = dag_bag(file, None)
    assert not bag.import_errors, bag.import_errors
    return {name: SerializedDagModel.hash(DagSerialization.to_dict(dag)) for name, dag in bag.dags.items()}
"""
#: A process that fails on every use of a connection, and has no network.
ALONE = """
def refuse(*arguments, **options):
    raise AssertionError("a DAG file asks nobody")

BaseHook.get_connection = refuse
socket.socket.connect = refuse
print(json.dumps(versions(sys.argv[1])))
"""
FILE = """
from airflow_mv.assets import materialized_view_asset
from airflow_mv.dags import ChainedView
from airflow_mv.dags import materialized_views_dag
from airflow_mv.dags import materialized_views_dags

views = {f"lake.sales.v{n}": f"SELECT a.n FROM v{n // 2} a CROSS JOIN orders o" for n in range(1, 9)}
materialized_views_dag("named", views, schedule="@daily", tags=["sales", "night"])
materialized_views_dag("listed", namespace="lake.sales")
materialized_views_dags("events", views, on=[materialized_view_asset("lake.raw.orders")], every="@daily")
"""


def order(views: Views) -> list[str]:
    return [str(view) for view in read_chain(views).views]


def test_the_order_follows_from_the_sql(tmp_path: Path) -> None:
    """Names without a namespace are in the view's own namespace; tables that are not views of the chain are ignored."""
    views = {
        TOP: "SELECT * FROM lake.sales.total JOIN other.daily USING (n)",
        TOTAL: "WITH daily AS (SELECT 1) SELECT * FROM sales.daily",
        DAILY: "SELECT * FROM orders",
    }
    assert order(views) == [DAILY, TOTAL, TOP]
    assert {str(view): [*map(str, names)] for view, names in read_chain(views).reads.items()} == {
        TOP: [TOTAL],
        TOTAL: [DAILY],
        DAILY: [],
    }


def test_the_order_can_be_given_if_it_does_not_follow_from_sql() -> None:
    """For existing views, SQL in templates, and views that are read through plain ones."""
    assert order({TOP: [TOTAL], TOTAL: [DAILY], DAILY: []}) == [DAILY, TOTAL, TOP]
    template = ChainedView(TOTAL, sql="SELECT * FROM {{ params.table }}", after=[DAILY])
    assert order([template, DAILY, ChainedView(TOP, sql="SELECT * FROM plain", after=[TOTAL])]) == [DAILY, TOTAL, TOP]
    assert order([TOP, DAILY]) == [TOP, DAILY]


@pytest.mark.parametrize(
    ("views", "error", "message"),
    [
        ({TOTAL: "SELECT FROM WHERE"}, InvalidQueryError, r"lake\.sales\.total"),
        ({TOTAL: "SELECT * FROM daily", DAILY: "SELECT * FROM total"}, InvalidQueryError, "cycle"),
        ({"daily": []}, InvalidIdentifierError, "too few parts"),
        ({TOTAL: [DAILY]}, ConfigurationError, r"after names lake\.sales\.daily, which is not a view of the chain"),
        ([DAILY, "lake.sales.`daily`"], ConfigurationError, "named twice"),
        ([], ConfigurationError, "at least one"),
        (["lake.a.`x y`", "lake.a.`x/y`"], ConfigurationError, "both have the task 'x_y'"),
    ],
)
def test_an_error_in_the_file_is_an_import_error_that_names_it(
    views: Views, error: type[Exception], message: str
) -> None:
    """It is shown in the UI's list of import errors, not by a failed run."""
    with pytest.raises(error, match=message):
        materialized_views_dag("wrong", views)


@pytest.mark.parametrize("arguments", [{}, {"views": [DAILY], "namespace": "lake.sales"}, {"namespace": "sales"}])
def test_a_chain_has_either_views_or_a_namespace(arguments: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="namespace"):
        materialized_views_dag("wrong", **arguments)


def test_tasks_are_named_like_their_views(tmp_path: Path) -> None:
    """By the view's name; with the namespace if there are several."""
    assert {"refresh_daily", "refresh_total"} <= {*materialized_views_dag("one", [DAILY, TOTAL]).task_ids}
    two = materialized_views_dag("two", [DAILY, "lake.ops.daily", "lake.ops.`2024 Q1`"])
    assert {"refresh_sales_daily", "refresh_ops_daily", "refresh_ops_2024_Q1"} <= {*two.task_ids}


def test_a_dag_of_views_has_useful_defaults_that_arguments_override() -> None:
    """The defaults are meant for a chain that runs daily."""
    dag = materialized_views_dag("quiet", {TOTAL: [DAILY], DAILY: []}, tags=["sales"])
    assert (dag.catchup, dag.max_active_runs, dag.default_args["retries"]) == (False, 1, 2)
    assert (dag.tags, {*dag.params}) == ({"airflow-mv", "sales"}, {*refresh_params()})
    assert dag.doc_md is not None
    assert "| 1 | `lake.sales.daily` |  |\n| 2 | `lake.sales.total` | `lake.sales.daily` |" in dag.doc_md

    options = {"retries": 5, "executor_memory": "2g"}
    given: dict[str, Any] = {"default_args": {"retries": 1}, "params": {"region": "eu"}, "tags": None}
    own = materialized_views_dag("own", [DAILY], spark=options, **given)
    assert {*own.tags} == {"airflow-mv"}
    assert {*own.params} == {*refresh_params(), "region"}
    assert own.get_task("refresh_daily").retries == 5
    assert own.get_task("pin").retries == 1


def test_a_view_of_a_chain_may_have_its_own_arguments() -> None:
    """They override those of the chain."""
    views = [ChainedView(DAILY, refresh={"on_fallback": "fail"}), TOTAL]
    dag = materialized_views_dag("own", views, refresh={"on_fallback": "skip"}, connections={"iceberg_conn_id": "ice"})
    daily, total, pin = (dag.get_task(name) for name in ("refresh_daily", "refresh_total", "pin"))
    assert (daily.on_fallback, total.on_fallback) == ("fail", "skip")
    assert (daily.iceberg_conn_id, pin.iceberg_conn_id) == ("ice", "ice")


def test_the_two_dags_of_a_chain_have_the_same_tasks_and_link_to_each_other() -> None:
    """Each DAG's page in the UI links to the other."""
    first, second = materialized_views_dags("sales", [DAILY], on=None, every="@daily", periodic={"scope": "as_of"})
    assert (first.dag_id, second.dag_id) == ("sales", "sales_periodic")
    assert first.task_ids == second.task_ids
    assert [dag.get_task("pin").scope for dag in (first, second)] == ["whole", "as_of"]
    rows = materialized_views_dag("rows", [DAILY], scope="interval")
    assert (rows.get_task("pin").scope, rows.get_task("refresh_daily").scope) == ("whole", "interval")
    assert "`sales_periodic`" in str(first.doc_md)
    assert "`sales`" in str(second.doc_md)


def test_an_unchanged_file_makes_no_new_dag_version(tmp_path: Path) -> None:
    """It is parsed every few seconds by processes with different hash seeds, without access to any service."""
    file = tmp_path / "dags" / "chains.py"
    file.parent.mkdir()
    file.write_text(FILE)
    here: dict[str, Any] = {}
    exec(SERIALIZE, here)
    versions = here["versions"](str(file))
    assert {*versions} == {"named", "listed", "events", "events_periodic"}

    environment = {key: value for key, value in os.environ.items() if not key.startswith("AIRFLOW_CONN_")}
    environment |= {"PYTHONHASHSEED": "1", "AIRFLOW__LOGGING__LOGGING_LEVEL": "ERROR"}
    command = [sys.executable, "-c", SERIALIZE + ALONE, str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == versions
