# SPDX-License-Identifier: Apache-2.0
"""A wrong literal is an import error of the DAG file, which names the task, the value and the nearest legal one."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import pytest
from airflow.sdk import DAG

from airflow_mv.checks import row_count
from airflow_mv.core.catalog import STORED_LAYOUTS
from airflow_mv.core.spec.choices import LayoutName
from airflow_mv.dags import freshness_alerts_dag, maintenance_dag, materialized_views_dag
from airflow_mv.errors import MaterializedViewError
from airflow_mv.operators import (
    CommitRefreshOperator,
    ConvertMaterializedViewOperator,
    CreateMaterializedViewOperator,
    FreshnessAlertOperator,
    MaintainMaterializedViewOperator,
    PinBaseTablesOperator,
    PlanRefreshOperator,
    RefreshMaterializedViewOperator,
    RollbackMaterializedViewOperator,
    SharedSparkApplicationOperator,
    VerifyMaterializedViewOperator,
)
from airflow_mv.sensors import BaseTablesChangedSensor, MaterializedViewFreshSensor
from airflow_mv.tasks.literals import check_literals
from airflow_mv.triggers import BaseTablesChangedOnceTrigger, BaseTablesChangedTrigger, MaterializedViewFreshTrigger

VIEW = "lake.sales.daily"
REFRESH, CREATE = RefreshMaterializedViewOperator, CreateMaterializedViewOperator
WRONG: list[tuple[Any, dict[str, Any], str]] = [
    (
        REFRESH,
        {"scope": "intervall"},
        "scope is 'intervall'; it must be whole, as_of or interval; did you mean 'interval'?",
    ),
    (REFRESH, {"on_fallback": "ful"}, "did you mean 'full'?"),
    (REFRESH, {"interval_length": "3 dyas"}, "interval_length is '3 dyas', .*did you mean 'days'?"),
    (REFRESH, {"checks": [{"not_nul": "a"}]}, "checks: {'not_nul': 'a'} is not a check.*did you mean 'not_null'?"),
    (REFRESH, {"checks": [{"not_null": "a", "severity": "wran"}]}, "did you mean 'warn'?"),
    (REFRESH, {"checks": lambda rows: rows}, "a function is named module:function"),
    (REFRESH, {"full": "yess"}, "full is 'yess'; it must be true or false"),
    (REFRESH, {"max_bytes": "1GB"}, "max_bytes is '1GB'; it must be a number of bytes"),
    (REFRESH, {"as_of": "yesterday"}, "as_of is 'yesterday', which is not a point in time"),
    (REFRESH, {"view": "a..b"}, "view: 'a..b' is not a name: part at character 3 is empty"),
    (PlanRefreshOperator, {"scope": "hole"}, "did you mean 'whole'?"),
    (CommitRefreshOperator, {"view": None, "plan": {}, "wait_for_outcome": "2 hurs"}, "did you mean 'hours'?"),
    (CREATE, {"sql": "SELECT a FORM t b c"}, "line 1, column .*SELECT a FORM t b c\n"),
    (CREATE, {"refresh_strategy": "incremetal"}, "refresh_strategy is 'incremetal'; .*did you mean 'incremental'?"),
    (CREATE, {"layout": "tabel"}, "layout is 'tabel'; .*did you mean 'table'?"),
    (CREATE, {"layout": "{{ params.layout }}"}, "layout is '{{ params.layout }}'; it must be"),  # not templated
    (CREATE, {"properties": {"airflow-mv.max-stalness": "2 h"}}, "did you mean 'airflow-mv.max-staleness'?"),
    (CREATE, {"properties": {"airflow-mv.max-staleness": "2 huors"}}, "did you mean 'hours'?"),
    (CREATE, {"properties": {"airflow-mv.on-fallback": "ful"}}, "did you mean 'full'?"),
    (CREATE, {"properties": {"airflow-mv.readers": "duckbd"}}, "did you mean 'duckdb'?"),
    (CREATE, {"properties": {"airflow-mv.dialects": "trinoo"}}, "did you mean 'trino'?"),
    (CREATE, {"properties": {"airflow-mv.time-travel": True}}, "airflow-mv.time-travel is True; it must be a text"),
    (CREATE, {"partition_by": ["dayz(ts)"]}, "partition_by: .*did you mean 'day'?"),
    (CREATE, {"sort_by": "a,"}, "sort_by: .*'a,' is not a list of columns"),
    (CREATE, {"dialects": ["trinoo"]}, "did you mean 'trino'?"),
    (CREATE, {"require": ["merg"]}, "did you mean 'merge'?"),
    (CREATE, {"on_change": "aply"}, "did you mean 'apply'?"),
    (PinBaseTablesOperator, {"view": None, "views": [VIEW, "b"]}, "views: `b` has too few parts"),
    (PinBaseTablesOperator, {"view": None, "views": [VIEW], "scope": "interval"}, "it must be whole or as_of"),
    (MaintainMaterializedViewOperator, {"older_than": "3 dayz"}, "did you mean 'day'?"),
    (VerifyMaterializedViewOperator, {"sample": "200"}, "sample is '200'; it must be a percentage"),
    (RollbackMaterializedViewOperator, {"version_id": "two"}, "version_id is 'two'; it must be a number of versions"),
    (ConvertMaterializedViewOperator, {"layout": "pointd"}, "did you mean 'pointed'?"),
    (SharedSparkApplicationOperator, {"view": None, "namespace": "lake", "tasks": []}, "namespace 'lake' is not full"),
    (FreshnessAlertOperator, {"view": None, "namespace": "lake", "max_staleness": "2 ours"}, "did you mean 'hours'?"),
    (MaterializedViewFreshSensor, {"states": ["FERSH"]}, "states: .*did you mean 'FRESH'?"),
    (MaterializedViewFreshSensor, {"states": "FRESH"}, "it must be a list of states"),
    (MaterializedViewFreshSensor, {"freshness": "chian"}, "did you mean 'chain'?"),
    (MaterializedViewFreshSensor, {"scope": "as_of"}, "it must be whole or interval"),
    (BaseTablesChangedSensor, {"view": None, "views": VIEW, "require": "al"}, "did you mean 'all'?"),
    (BaseTablesChangedSensor, {"view": None, "views": VIEW, "wait_at_most": "soon"}, "wait_at_most is 'soon'"),
]


@pytest.mark.parametrize(("operator", "given", "message"), WRONG)
def test_a_wrong_literal_is_refused_when_the_file_is_parsed(operator: Any, given: dict[str, Any], message: str) -> None:
    arguments = {key: value for key, value in {"view": VIEW, **given}.items() if value is not None}
    with DAG("wrong", schedule=None), pytest.raises(MaterializedViewError) as refused:
        operator(task_id="the_task", **arguments)
    text = str(refused.value)
    assert text.startswith("task the_task: ")
    assert re.search(message.replace("?", r"\?").replace("{{", r"\{\{"), text, re.DOTALL), text


@pytest.mark.parametrize("template", ["{{ params.given }}", "{% if params.all %}whole{% endif %}"])
def test_a_template_is_left_to_run_time(template: str) -> None:
    with DAG("templates", schedule=None):
        pin = PinBaseTablesOperator(task_id="pin", namespace=template, scope=template)  # type: ignore[arg-type]
        RefreshMaterializedViewOperator(
            **dict.fromkeys(
                ("view", "scope", "full", "as_of", "max_bytes", "interval_length", "on_fallback"), template
            ),
            task_id="refresh",
            checks=[template, pin.output],
            pins=pin.output,
        )
        CreateMaterializedViewOperator(
            task_id="create",
            view=VIEW,
            sql=f"SELECT a FROM {template}",
            properties={"airflow-mv.max-staleness": template},
        )
        MaterializedViewFreshSensor(task_id="fresh", view=template, max_staleness=template)
        mapped = RefreshMaterializedViewOperator.partial(task_id="mapped", scope="whole").expand(view=pin.output)
    assert mapped.task_id == "mapped"


def test_the_other_literals_beside_a_template_are_checked() -> None:
    wrong = {"airflow-mv.max-staleness": "{{ params.late }}", "airflow-mv.on-fallback": "ful"}
    with DAG("both", schedule=None), pytest.raises(MaterializedViewError, match="did you mean 'full'"):
        CreateMaterializedViewOperator(task_id="create", view=VIEW, properties=wrong)


def test_a_mapped_task_and_factories_are_checked() -> None:
    with (
        pytest.raises(MaterializedViewError, match=r"^task refresh: scope is 'intervall'"),
        DAG("mapped", schedule=None),
    ):
        RefreshMaterializedViewOperator.partial(task_id="refresh", scope="intervall")  # type: ignore[arg-type]
    for expand, message in (
        (lambda task: task.expand(view=[VIEW, "daily"]), "view: `daily` has too few parts"),
        (lambda task: task.expand(view=[VIEW], scope=["whole", "intervall"]), "scope is 'intervall'"),
        (lambda task: task.expand_kwargs([{"view": VIEW}, {"view": VIEW, "full": "maybe"}]), "full is 'maybe'"),
    ):
        with DAG("mapped", schedule=None), pytest.raises(MaterializedViewError, match=f"^task refresh: {message}"):
            expand(RefreshMaterializedViewOperator.partial(task_id="refresh"))
    with DAG("mapped", schedule=None):
        RefreshMaterializedViewOperator.partial(task_id="one").expand(view=[VIEW, "{{ params.view }}"])
    with pytest.raises(MaterializedViewError, match=r"^task refresh_daily: scope is 'intervall'"):
        materialized_views_dag("chain", [VIEW], scope="intervall")  # type: ignore[arg-type]
    with pytest.raises(MaterializedViewError, match="did you mean 'iceberg_conn_id'"):
        materialized_views_dag("chain", [VIEW], connections={"iceberg_con_id": "x"})  # type: ignore[typeddict-unknown-key]
    with pytest.raises(MaterializedViewError, match="did you mean 'shared'"):
        materialized_views_dag("chain", [VIEW], spark_application="share")  # type: ignore[arg-type]
    with pytest.raises(MaterializedViewError, match=r"^DAG care: views: `daily` has too few parts"):
        maintenance_dag("care", ["daily"])
    with pytest.raises(MaterializedViewError, match=r"^task freshness: max_staleness is 'soon'"):
        freshness_alerts_dag("late", [VIEW], max_staleness="soon")


def test_public_triggers_are_checked() -> None:
    for kind in (BaseTablesChangedTrigger, BaseTablesChangedOnceTrigger):
        with pytest.raises(MaterializedViewError, match=f"^{kind.__name__}: views: 'a..b' is not a name"):
            kind(views=["a..b"])
        with pytest.raises(MaterializedViewError, match="did you mean 'minutes'"):
            kind(views=[VIEW], quiet_period="5 minits")
    with pytest.raises(MaterializedViewError, match="did you mean 'FRESH'"):
        MaterializedViewFreshTrigger(view=VIEW, states=["frehs"])


def test_values_that_are_no_literals_are_left_alone() -> None:
    check_literals("task x", {"view": object(), "views": [object()], "checks": [row_count(at_least=1), object()]})


def test_the_names_of_layouts_are_those_of_the_layouts() -> None:
    assert set(get_args(LayoutName)) == set(STORED_LAYOUTS)


def test_a_dag_file_without_sql_imports_no_parser(tmp_path: Path) -> None:
    """It is parsed every few seconds."""
    code = (
        "import sys\n"
        "from airflow_mv.operators import CreateMaterializedViewOperator as C, RefreshMaterializedViewOperator as R\n"
        "C(task_id='a', view='lake.a.b', refresh_strategy='full', properties={'airflow-mv.max-staleness': '2 h'},\n"
        "  partition_by=['days(t)'], layout='table', on_change='rebuild')\n"
        "R(task_id='b', view='lake.a.b', scope='interval', checks=['n > 0'], on_fallback='skip')\n"
        "print([name for name in ('sqlglot', 'pyiceberg', 'airflow_mv.core.spec.view') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300, cwd=tmp_path
    )
    assert done.stdout.splitlines()[-1] == "[]"
