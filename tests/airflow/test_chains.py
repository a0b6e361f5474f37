# SPDX-License-Identifier: Apache-2.0
"""Views that read each other as one DAG, in a real Airflow. No test needs Spark: base tables are only compacted."""

from __future__ import annotations

import textwrap
import uuid
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.airflow.conftest import Airflow, Run
from tests.airflow.test_examples import BARE, EXAMPLES
from tests.builders import Lake

HEADER = """\
from airflow_mv.dags import *
from airflow_mv.operators import *
from airflow.sdk import DAG, task
"""
TOTAL = "SELECT sum(d.orders) AS n FROM lake.sales.daily d"
COUNT = "SELECT count(*) AS n FROM lake.sales.orders"
OTHER = "SELECT count(*) AS n FROM lake.sales.others"
DAILY, TOTALS, COUNTS = "lake.sales.daily", "lake.sales.total", "lake.sales.counts"


@pytest.fixture
def chain(sales: Lake) -> Lake:
    """Two views of a base table, one of them read by a third; the base table has been compacted since."""
    sales.view()
    sales.view("total", TOTAL)
    sales.view("counts", COUNT)
    for view in ("daily", "total", "counts"):
        sales.refresh(f"sales.{view}")
    sales.compact()
    return sales


def run(airflow: Airflow, text: str, **arguments: Any) -> Run:
    """Run the DAG of a file."""
    file = airflow.folder / f"chain_{uuid.uuid4().hex[:8]}.py"
    file.write_text(f"{HEADER}\n{textwrap.dedent(text).replace('DAG_ID', file.stem)}\n")
    return airflow.run_file(file, **arguments)


def test_a_chain_is_refreshed_in_order_from_one_consistent_snapshot_set(airflow: Airflow, chain: Lake) -> None:
    """The base table changes before each refresh; all views use the snapshots that were pinned first."""
    pinned = str(chain.head())
    found = run(
        airflow,
        f"""
        def meanwhile(context):
            from airflow_mv.hooks import MaterializedViewHook
            from tests.builders import Lake, MaterializedViewCatalog
            iceberg = MaterializedViewHook().iceberg_catalog("lake")
            Lake(iceberg, MaterializedViewCatalog(iceberg), None).compact()

        views = {{"{TOTALS}": ["{DAILY}"], "{DAILY}": [], "{COUNTS}": []}}
        materialized_views_dag("DAG_ID", views, refresh={{"pre_execute": meanwhile}})
        """,
    )

    tasks = ["pin", "spark_application", "refresh_daily", "refresh_total", "refresh_counts"]
    assert found.states == dict.fromkeys(tasks, "success"), found.log
    assert str(chain.head()) != pinned
    for task_id in ("refresh_daily", "refresh_counts"):
        assert found.values[task_id]["outcome"] == "refreshed"
        assert found.values[task_id]["base_tables"] == {"lake.sales.orders": pinned}
    assert found.log.index("end task task_id=refresh_daily ") < found.log.index("starting task_id=refresh_total ")
    assert [*found.values["pin"]["views"]] == [DAILY, TOTALS, COUNTS]
    assert f"lake.sales.orders at snapshot {pinned}" in found.task_log("pin")


def test_one_task_refreshes_the_views_that_its_view_reads(airflow: Airflow, chain: Lake) -> None:
    """With ``with_inputs``. The rows of the inputs did not change, so the view stays fresh, and there is no event."""
    found = run(
        airflow,
        f"""
        with DAG("DAG_ID"):
            RefreshMaterializedViewOperator(task_id="refresh", view="{TOTALS}", with_inputs=True)
        """,
    )

    assert found.states == {"refresh": "success"}, found.log
    assert (found.values["refresh"]["view"], found.values["refresh"]["outcome"]) == (TOTALS, "fresh")
    assert found.events == []
    read = {view: chain.storage(f"sales.{view}").record.snapshots["lake.sales.orders"] for view in ("daily", "counts")}
    assert read["daily"] == chain.head()
    assert read["counts"] != chain.head()


def test_a_published_refresh_emits_an_asset_event_for_its_consumers(airflow: Airflow, chain: Lake) -> None:
    """It has the refresh id, the mode, the base snapshots, the number of rows, and the lag of the view."""
    found = run(airflow, f'materialized_views_dag("DAG_ID", ["{COUNTS}"])')

    ((task_id, asset, extra),) = found.events
    assert (task_id, asset) == ("refresh_counts", COUNTS)
    assert extra["refresh_id"] == found.values["refresh_counts"]["refresh_id"]
    assert (extra["mode"], extra["rows_written"], extra["lag_seconds"]) == ("fast-forward", 0, None)
    assert extra["base_tables"] == {"lake.sales.orders": str(chain.head())}


def test_a_failed_view_blocks_only_the_views_that_read_it(airflow: Airflow, chain: Lake) -> None:
    """Other views are refreshed, and the run fails."""
    chain.table("others")
    chain.view("other", OTHER)
    chain.view("above", "SELECT n FROM lake.sales.other")
    chain.iceberg.drop_table("sales.others")
    found = run(
        airflow,
        f"""
        views = ["{COUNTS}", "lake.sales.other", ChainedView("lake.sales.above", after=["lake.sales.other"])]
        materialized_views_dag("DAG_ID", views)
        """,
    )

    assert found.state == "failed"
    assert found.states == {
        "pin": "success",
        "spark_application": "success",
        "refresh_counts": "success",
        "refresh_other": "failed",
        "refresh_above": "upstream_failed",
    }
    log = found.task_log("refresh_other")
    assert "lake.sales.other reads lake.sales.others, which the run has not pinned" in log
    assert "Pin again: clear the task that pins" in log
    assert "another try would fail in the same way" in log


def test_views_in_a_wrong_order_are_reported_before_anything_is_refreshed(airflow: Airflow, chain: Lake) -> None:
    """The DAG file does not have the views' SQL, so the first task checks the order."""
    found = run(airflow, f'materialized_views_dag("DAG_ID", ["{TOTALS}", "{DAILY}"])')
    states = {"pin": "success", "spark_application": "success", "refresh_total": "failed", "refresh_daily": "success"}
    assert found.states == states
    assert "it reads lake.sales.daily, which the DAG refreshes without an order to it" in found.task_log("pin")
    assert "name it in after= of this view" in found.task_log("refresh_total")


def test_a_task_can_be_mapped_over_views(airflow: Airflow, chain: Lake) -> None:
    """Each instance shows its view, and emits the event of that view's asset, which the DAG does not name."""
    found = run(
        airflow,
        f"""
        @task
        def views():
            return ["{DAILY}", "{COUNTS}"]

        with DAG("DAG_ID", schedule=None):
            pin = PinBaseTablesOperator(task_id="pin", views=["{DAILY}", "{COUNTS}"])
            RefreshMaterializedViewOperator.partial(task_id="refresh", pins=pin.output).expand(view=views())
        """,
    )

    assert found.states == dict.fromkeys(["views", "pin", "refresh[0]", "refresh[1]"], "success"), found.log
    assert found.labels == {"refresh[0]": DAILY, "refresh[1]": COUNTS}
    assert sorted((asset, extra["view"], extra["outcome"]) for _, asset, extra in found.events) == [
        (COUNTS, COUNTS, "refreshed"),
        (DAILY, DAILY, "refreshed"),
    ]


def test_a_mapped_refresh_of_a_fresh_view_makes_no_event(airflow: Airflow, sales: Lake) -> None:
    """Like an unmapped refresh."""
    sales.view()
    sales.refresh()
    found = run(
        airflow,
        f"""
        with DAG("DAG_ID", schedule=None):
            RefreshMaterializedViewOperator.partial(task_id="refresh").expand(view=["{DAILY}"])
            RefreshMaterializedViewOperator(task_id="by_template", view="{{{{ 'lake.sales.daily' }}}}")
        """,
    )
    assert found.states == {"refresh[0]": "success", "by_template": "success"}, found.log
    assert found.events == []


def test_the_views_of_a_namespace_are_listed_and_ordered_at_run_time(airflow: Airflow, chain: Lake) -> None:
    """The DAG file names no view: a view that was just created is included."""
    found = run(airflow, 'materialized_views_dag("DAG_ID", namespace="lake.sales", depth=2)')

    assert found.state == "success", found.log
    assert found.labels == {"refresh_1[0]": COUNTS, "refresh_1[1]": DAILY, "refresh_2[0]": TOTALS}
    assert found.values["views_2"] == [TOTALS]
    assert found.states["refreshed"] == "success"
    assert {asset for _, asset, _ in found.events} == {COUNTS, DAILY}  # the third is fresh: no row has changed


def test_in_a_namespace_a_failed_view_blocks_only_the_views_that_read_it(airflow: Airflow, chain: Lake) -> None:
    """The run fails, although its last tasks succeed."""
    chain.table("others")
    chain.view("other", OTHER)
    chain.view("above", "SELECT n FROM lake.sales.other")
    chain.iceberg.drop_table("sales.others")
    found = run(airflow, 'materialized_views_dag("DAG_ID", namespace="lake.sales", depth=3)')

    assert found.state == "failed"
    labelled = {found.labels.get(task_id, task_id): state for task_id, state in found.states.items()}
    assert {view: labelled[view] for view in (COUNTS, DAILY, TOTALS, "lake.sales.other")} == {
        COUNTS: "success",
        DAILY: "success",
        TOTALS: "success",
        "lake.sales.other": "failed",
    }
    assert found.values["views_2"] == [TOTALS]
    assert "lake.sales.above is blocked: lake.sales.other was not refreshed in this run" in found.task_log("views_2")
    assert (found.states["refresh_3"], found.states["refreshed"]) == ("skipped", "upstream_failed")


def test_a_namespace_with_more_levels_than_the_dag_fails_before_anything_is_refreshed(
    airflow: Airflow, chain: Lake
) -> None:
    """Otherwise views of the last levels would be skipped without notice."""
    found = run(airflow, 'materialized_views_dag("DAG_ID", namespace="lake.sales", depth=1)')
    assert found.states["pin"] == "failed"
    assert {found.states[task_id] for task_id in ("views_1", "refresh_1", "refreshed")} == {"upstream_failed"}
    assert "on 2 levels, and the DAG has tasks for 1: give it depth=2" in found.task_log("pin")


def test_an_empty_namespace_has_nothing_to_do(airflow: Airflow, sales: Lake) -> None:
    found = run(airflow, 'materialized_views_dag("DAG_ID", namespace="lake.sales", depth=1)')
    done = ("pin", "spark_application", "views_1", "refreshed")
    assert found.states == {**dict.fromkeys(done, "success"), "refresh_1": "skipped"}


def test_a_manual_run_reads_the_base_tables_as_of_its_parameter(airflow: Airflow, chain: Lake) -> None:
    """The UI's trigger form has the parameter; the pin task uses it."""
    first = chain.load().metadata.snapshots[0]
    at = datetime.fromtimestamp(first.timestamp_ms / 1000, UTC).isoformat()
    found = run(airflow, f'materialized_views_dag("DAG_ID", ["{COUNTS}"])', run_conf={"refresh_as_of": at})

    assert found.values["pin"]["as_of"] == at
    assert found.values["pin"]["base_tables"]["lake.sales.orders"]["snapshot_id"] == str(first.snapshot_id)
    assert found.values["refresh_counts"]["base_tables"] == {"lake.sales.orders": str(first.snapshot_id)}, found.log
    assert f"This run pins the run's parameters: as of {at.replace('T', ' ')}" in found.task_log("pin")


def test_a_chain_can_be_pinned_as_of_the_end_of_the_run_s_data_interval(airflow: Airflow, chain: Lake) -> None:
    """It is the same for all views, whenever they are refreshed."""
    first = chain.load().metadata.snapshots[0]
    at = datetime.fromtimestamp(first.timestamp_ms / 1000, UTC).isoformat()
    text = f'materialized_views_dag("DAG_ID", ["{COUNTS}"], scope="as_of", schedule="@daily")'
    found = run(airflow, text, logical_date=at)
    assert found.values["pin"]["as_of"] == at, found.log
    assert found.values["refresh_counts"]["outcome"] == "fresh"


def test_as_of_together_with_pins_is_refused(airflow: Airflow, chain: Lake) -> None:
    """It would have no effect."""
    found = run(
        airflow,
        f"""
        with DAG("DAG_ID", schedule=None):
            pin = PinBaseTablesOperator(task_id="pin", views=["{COUNTS}"])
            options = dict(view="{COUNTS}", pins=pin.output)
            RefreshMaterializedViewOperator(task_id="timed", as_of="{{{{ dag_run.run_after }}}}", **options)
            RefreshMaterializedViewOperator(task_id="scoped", scope="as_of", **options)
        """,
    )
    assert found.states == {"pin": "success", "timed": "failed", "scoped": "failed"}
    assert "has no effect with pins; set as_of on the PinBaseTablesOperator" in found.task_log("timed")
    assert "choose the time in the task that pins" in found.task_log("scoped")


def test_missing_pins_are_an_error_and_the_current_snapshots_are_not_read(airflow: Airflow, chain: Lake) -> None:
    """A skipped or cleared task has no XCom."""
    found = run(
        airflow,
        f"""
        with DAG("DAG_ID", schedule=None):
            RefreshMaterializedViewOperator(
                task_id="refresh", view="{COUNTS}", pins="{{{{ ti.xcom_pull(task_ids='pin') }}}}"
            )
        """,
    )
    assert found.states["refresh"] == "failed"
    assert "clear that task if its XCom was deleted" in found.task_log("refresh")


def test_a_plan_can_be_pinned_too(airflow: Airflow, chain: Lake) -> None:
    """For a Spark job that another operator submits."""
    pinned = str(chain.head())
    found = run(
        airflow,
        f"""
        with DAG("DAG_ID", schedule=None):
            pin = PinBaseTablesOperator(task_id="pin", views=["{COUNTS}"])
            plan = PlanRefreshOperator(task_id="plan", view="{COUNTS}", pins=pin.output)
            CommitRefreshOperator(task_id="commit", plan=plan.output)
        """,
    )
    assert found.values["commit"]["base_tables"] == {"lake.sales.orders": pinned}, found.log


def test_a_chain_can_be_a_task_group_in_another_dag(airflow: Airflow, chain: Lake) -> None:
    """Between a gate and a report; creating existing views does nothing."""
    found = run(
        airflow,
        f"""
        @task
        def gate(): ...

        @task
        def report(): ...

        with DAG("DAG_ID", schedule=None):
            views = materialized_views_group("views", {{"{COUNTS}": '''{COUNT}'''}})
            gate() >> views >> report()
        """,
    )
    tasks = ["gate", "views.pin", "views.create_counts", "views.refresh_counts", "report"]
    assert found.states == dict.fromkeys(tasks, "success"), found.log
    assert "has this definition already" in found.task_log("views.create_counts")


# -- examples ------------------------------------------------------------------------------------

SHARE = "SELECT d.region, d.amount / t.amount AS share FROM daily d CROSS JOIN total t"
SUM = "SELECT sum(amount) AS amount FROM daily"


def test_the_example_of_a_chain_finds_existing_views_fresh(airflow: Airflow, sales: Lake) -> None:
    """The order follows from the SQL, not from the file."""
    for name, sql in (("daily", BARE), ("total", SUM), ("share", SHARE)):
        sales.view(name, sql)
        sales.refresh(f"sales.{name}")
    sales.compact()
    found = airflow.run_file(EXAMPLES / "chain.py")

    names = ("daily", "total", "share")
    tasks = ["pin", "spark_application", *(f"{kind}_{name}" for kind in ("create", "refresh") for name in names)]
    assert found.states == dict.fromkeys(tasks, "success"), found.log
    assert [found.values[f"refresh_{name}"]["outcome"] for name in names] == ["refreshed", "fresh", "fresh"]
    starts = [found.log.index(f"starting task_id=refresh_{name} ") for name in names]
    assert starts == sorted(starts)


@pytest.mark.slow
def test_the_example_of_a_namespace_refreshes_its_views(airflow: Airflow, chain: Lake) -> None:
    found = airflow.run_file(EXAMPLES / "namespace.py")
    assert found.state == "success", found.log
    assert set(found.labels.values()) == {DAILY, TOTALS, COUNTS}


@pytest.mark.slow
def test_the_example_with_two_dags_does_the_same_in_both(airflow: Airflow, chain: Lake) -> None:
    first = airflow.run_file(EXAMPLES / "events_and_backfill.py", dag_id="on_orders")
    second = airflow.run_file(EXAMPLES / "events_and_backfill.py", dag_id="on_orders_periodic")
    tasks = ["pin", "spark_application", "refresh_daily", "refresh_total"]
    assert first.states == second.states == dict.fromkeys(tasks, "success")
    assert first.values["refresh_daily"]["outcome"] == "refreshed"
    assert second.values["refresh_daily"]["outcome"] == "fresh"


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_chain_can_be_created_and_forced(airflow: Airflow, sales: Lake) -> None:
    """With Spark, one application a run: views are created in order and refreshed, then recomputed by a parameter."""
    found = airflow.run_file(EXAMPLES / "chain.py")
    assert found.state == "success", found.log
    assert found.log.count("Spark-Submit cmd") == 1
    assert [found.values[f"refresh_{name}"]["rows_written"] for name in ("daily", "total", "share")] == [2, 1, 2]
    assert [round(row["share"], 2) for row in sales.read("sales.share")] == [0.43, 0.57]

    forced = airflow.run_file(EXAMPLES / "chain.py", run_conf={"refresh_full": True})
    assert forced.log.count("Spark-Submit cmd") == 1
    assert {value["mode"] for task_id, value in forced.values.items() if task_id.startswith("refresh")} == {"full"}
    assert {value["outcome"] for task_id, value in forced.values.items() if task_id.startswith("refresh")} == {
        "refreshed"
    }
