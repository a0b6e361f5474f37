# SPDX-License-Identifier: Apache-2.0
"""Kill point K18: a worker dies between a trigger's event and the end of the resumed task; the event is lost.

The next try starts from the beginning. By the commit protocol there is one refresh, published once.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_mv.common.status import status
from airflow_mv.core.catalog import Layout
from airflow_mv.core.catalog.catalog import next_number
from airflow_mv.core.freshness.state import State
from airflow_mv.hooks import MaterializedViewHook
from tests.airflow.conftest import VIEW, Airflow
from tests.builders import LAYOUTS, Lake


def test_k18_a_lost_event_of_changed_base_tables_costs_one_read_and_no_second_refresh(
    airflow: Airflow, daily: Lake, tmp_path: Path
) -> None:
    """The sensor reads the view again; Spark's rows are already staged by another dead worker."""
    daily.append()
    plan = MaterializedViewHook().plan(VIEW)
    daily.catalog.files.replace_text(plan.script.outcome_location, daily.stager(plan.script).to_json())
    before = daily.catalog.load(VIEW)
    run = airflow.run(f"""
        from airflow.sdk import PokeReturnValue

        class Dies(BaseTablesChangedSensor):
            def look(self):
                if open("{tmp_path}/looks", "a").tell() == 0:
                    open("{tmp_path}/looks", "a").write("looked")
                    return PokeReturnValue(False)
                return super().look()

            def execute_complete(self, context, event):
                super().execute_complete(context, event)
                raise RuntimeError("the worker dies")

        wait = Dies(task_id="wait", views="{VIEW}", deferrable=True, poke_interval=0.2, timeout=600, retries=1,
                    retry_delay=timedelta(0))
        chain(wait, RefreshMaterializedViewOperator(task_id="refresh", view="{VIEW}", spark_binary="/nowhere"))
    """)

    assert run.states == {"wait": "success", "refresh": "success"}, run.log
    assert run.log.count("RuntimeError: the worker dies") == 1
    assert run.values["refresh"]["outcome"] == "refreshed"
    after = daily.catalog.load(VIEW)
    assert next_number(after.metadata_location) == next_number(before.metadata_location) + 1
    assert status(daily.catalog, VIEW).state == State.FRESH
    assert [event[2]["refresh_id"] for event in run.events] == [plan.refresh_id]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_k18_a_lost_event_of_a_finished_spark_job_costs_a_second_job_and_no_second_refresh(
    airflow: Airflow, sales: Lake, tmp_path: Path, layout: Layout
) -> None:
    """Another provider's deferrable submitter runs between plan and commit; its next try runs the script again."""
    sales.view(layout=layout, time_travel=True)
    (tmp_path / "submitted").touch()
    run = airflow.run(f"""
        from airflow.providers.standard.triggers.temporal import TimeDeltaTrigger
        from airflow.sdk import BaseOperator

        class Submits(BaseOperator):
            template_fields = ("script",)

            def __init__(self, *, script, **kwargs):
                super().__init__(**kwargs)
                self.script = script

            def execute(self, context):
                from airflow_mv.hooks import MaterializedViewHook
                from airflow_mv.core.script import Script, location_of
                from tests.builders import DuckStager

                catalog = MaterializedViewHook().catalog_for("{VIEW}")
                script = Script.from_json(catalog.files.read_text(location_of(self.script[0])))
                outcome = DuckStager(catalog, catalog._catalog)(script)
                catalog.files.replace_text(script.outcome_location, outcome.to_json())
                open("{tmp_path}/submitted", "a").write("x")
                self.defer(trigger=TimeDeltaTrigger(timedelta(0)), method_name="resume")

            def resume(self, context, event=None):
                if context["ti"].try_number == 1:
                    raise RuntimeError("the worker dies")

        plan = PlanRefreshOperator(task_id="plan", view="{VIEW}")
        submit = Submits(task_id="submit", script=plan.output["application_args"], retries=1, retry_delay=timedelta(0))
        chain(plan, submit, CommitRefreshOperator(task_id="commit", plan=plan.output))
    """)

    assert run.state == "success", run.log
    assert (tmp_path / "submitted").read_text() == "xx"
    assert run.values["commit"]["outcome"] == "refreshed"
    state = sales.storage().state
    assert [record.refresh_id for record in state.refreshes] == [run.values["plan"]["refresh_id"]]
    assert len(sales.read()) == 2
    if layout == "pointed":
        assert next_number(sales.catalog.load(VIEW).metadata_location) == 2
    sales.append()
    sales.refresh()
    refs = sales.storage().table.refs
    assert [name for name, ref in refs.items() if ref.type == "branch" and name != "main"] == []
