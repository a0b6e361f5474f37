# SPDX-License-Identifier: Apache-2.0
"""The operators that run Spark: the arguments of spark-submit, failures, and retries."""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG

from airflow_mv.core.catalog import MaterializedViewCatalog
from airflow_mv.core.sql.query import spark_sql
from airflow_mv.errors import AlreadyExistsError, CatalogUnavailableError, ConfigurationError, InvalidMetadataError
from airflow_mv.extras.catch_up import CatchUp
from airflow_mv.extras.fleet.alerts import FreshnessAlert
from airflow_mv.hooks import MaterializedViewHook
from airflow_mv.operators import (
    CreateMaterializedViewOperator,
    FreshnessAlertOperator,
    RefreshMaterializedViewOperator,
)
from airflow_mv.operators.options import RefreshArguments
from airflow_mv.operators.refresh import INTERVALS_AT_ONCE
from airflow_mv.tasks.older_airflow import BEFORE_3_3
from tests.airflow.conftest import SMALL, VIEW, Airflow, Run, lake_behind
from tests.builders import QUERY, Lake
from tests.older import AirflowFailException

REFRESH = f'RefreshMaterializedViewOperator(task_id="refresh", view="{VIEW}"'


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """A spark-submit that records its arguments, and fails."""
    path = tmp_path / "fake-spark-submit"
    path.write_text(f"""#!/usr/bin/env python3
import json, os, shutil, stat, sys
arguments = sys.argv[1:]
file = arguments[arguments.index("--properties-file") + 1]
submitted = {{"arguments": arguments, "mode": stat.S_IMODE(os.stat(file).st_mode), "file": open(file).read()}}
json.dump(submitted, open("{tmp_path}/submitted.json", "w"))
print('Exception in thread "main" java.lang.OutOfMemoryError: too small')
print("\\tat org.apache.spark.Deep(Stack.scala:1)")
sys.exit(1)
""")
    path.chmod(0o755)
    return path


def _submitted(program: Path) -> dict[str, Any]:
    return json.loads((program.parent / "submitted.json").read_text())


def _after(arguments: list[str], option: str) -> str:
    return arguments[arguments.index(option) + 1]


def test_users_options_are_preserved_and_merged_with_the_view_s(
    airflow: Airflow, sales: Lake, program: Path, tmp_path: Path
) -> None:
    """An option of SparkSubmitOperator has the same effect here."""
    sales.view()
    own = tmp_path / "own.properties"
    own.write_text("spark.executor.memory 3g\n")
    airflow.settings["SPARK_SUBMIT_OPTS"] = ""  # that of the tests chooses a garbage collector
    run = airflow.run(f"""
        {REFRESH}, spark_binary="{program}", properties_file="{own}", packages="com.acme:udfs:1.0",
            py_files="/opt/udfs.zip", executor_memory="2g", conf={{
                "spark.sql.extensions": "com.acme.Extensions", "spark.acme.password": "hidden-9931"}})
    """)
    submitted = _submitted(program)
    arguments, properties = submitted["arguments"], submitted["file"]

    assert run.states == {"refresh": "failed"}
    assert _after(arguments, "--packages").endswith(",com.acme:udfs:1.0")
    assert "iceberg-spark-runtime" in _after(arguments, "--packages")
    assert _after(arguments, "--py-files").endswith("airflow_mv.zip,/opt/udfs.zip")
    assert _after(arguments, "--executor-memory") == "2g"
    assert _after(arguments, "--master") == "local[2]"
    extensions = next(item for item in arguments if item.startswith("spark.sql.extensions="))
    assert extensions.endswith("IcebergSparkSessionExtensions,com.acme.Extensions")
    assert properties.endswith("spark.executor.memory 3g\n")
    assert "UseParallelGC" in properties
    assert submitted["mode"] == 0o600
    assert "hidden-9931" in properties
    assert not [item for item in arguments if "hidden-9931" in item]
    assert not Path(_after(arguments, "--properties-file")).exists()
    main_file, script, catalog = arguments[-3:]
    assert main_file.endswith("airflow_mv/core/job/__main__.py")
    assert re.fullmatch(r".*\.script\.json#sha256=[0-9a-f]{64}", script)
    assert catalog == "lake"


def test_a_garbage_collector_that_the_user_chose_is_the_only_one(airflow: Airflow, sales: Lake, program: Path) -> None:
    """Java does not start with two."""
    sales.view()
    airflow.settings["SPARK_SUBMIT_OPTS"] = ""
    conf = {"spark.driver.defaultJavaOptions": "-XX:+UseG1GC"}
    airflow.run(f'{REFRESH}, spark_binary="{program}", conf={conf})')
    assert "UseParallelGC" not in _submitted(program)["file"]


def test_a_secret_that_openlineage_adds_is_not_a_process_argument(airflow: Airflow, sales: Lake, program: Path) -> None:
    """The Spark provider adds it to the task's settings at run time."""
    sales.view()
    auth = {"type": "api_key", "apiKey": "hidden-5517"}
    transport = json.dumps({"type": "http", "url": "http://127.0.0.1:1", "retry": {"total": 0}, "auth": auth})
    airflow.settings["AIRFLOW__OPENLINEAGE__TRANSPORT"] = transport
    airflow.run(f'{REFRESH}, spark_binary="{program}", openlineage_inject_transport_info=True)')
    submitted = _submitted(program)
    assert "hidden-5517" in submitted["file"]
    assert "spark.openlineage.transport.type=http" in submitted["arguments"]
    assert not [item for item in submitted["arguments"] if "hidden-5517" in item]


def test_a_cluster_that_has_the_jars_is_not_given_packages(airflow: Airflow, sales: Lake, program: Path) -> None:
    """For clusters without access to Maven: `packages=""`, or own jars, of which no second copy is downloaded."""
    sales.view()
    own = "/x/iceberg-spark-runtime-4.1_2.13-1.12.0.jar"
    airflow.run(f'{REFRESH}, spark_binary="{program}", packages="", jars="{own}")')
    arguments = _submitted(program)["arguments"]
    assert "--packages" not in arguments
    assert _after(arguments, "--jars") == own

    airflow.run(f'{REFRESH}, spark_binary="{program}", packages="com.acme:udfs:1.0", conf={{"spark.jars": "{own}"}})')
    arguments = _submitted(program)["arguments"]
    assert _after(arguments, "--packages") == "org.xerial:sqlite-jdbc:3.50.3.0,com.acme:udfs:1.0"
    assert _after(arguments, "--jars") == own


def test_without_the_default_spark_connection_it_runs_locally_and_logs_it(
    airflow: Airflow, sales: Lake, program: Path
) -> None:
    """The Spark provider would use YARN without notice."""
    sales.view()
    del airflow.connections["spark_default"]
    run = airflow.run(f'{REFRESH}, spark_binary="{program}")')

    assert "There is no connection 'spark_default': Spark runs on this worker, with master local[*]" in run.log
    assert "defaulting to yarn" not in run.log
    assert _after(_submitted(program)["arguments"], "--master") == "local[*]"


def test_a_spark_submit_failure_is_reported_in_one_paragraph_and_is_retryable(
    airflow: Airflow, sales: Lake, program: Path
) -> None:
    """Spark's own lines are in the log above it; the error is a summary."""
    sales.view()
    before = sales.rows_of_catalog()
    run = airflow.run(f'{REFRESH}, spark_binary="{program}", retries=1, retry_delay=timedelta(0))')
    reason = 'JobError: view lake.sales.daily: spark-submit failed: Exception in thread "main" java.lang.OutOfMemory'

    assert run.states == {"refresh": "failed"}
    assert run.log.count("Spark-Submit cmd") == 2
    assert reason in run.log
    assert sales.rows_of_catalog() == before


@pytest.mark.slow
def test_the_reason_of_a_spark_error_is_shown_and_nothing_is_published(airflow: Airflow, sales: Lake) -> None:
    """Real Spark, a real error during a job."""
    sales.view(sql="SELECT region, sum(amount) / (count(*) - 2) AS share FROM orders GROUP BY region")
    before = sales.rows_of_catalog()
    run = airflow.run(f"{REFRESH}, conf={SMALL})")
    error = run.log.partition("QueryValueError: ")[2].partition("\n")[0]

    assert run.states == {"refresh": "failed"}
    assert error.startswith("view lake.sales.daily: the Spark job failed, nothing was published: [DIVIDE_BY_ZERO]")
    assert "org.apache" not in error
    assert sales.rows_of_catalog() == before


def test_rows_that_a_dead_try_staged_are_published_without_spark(airflow: Airflow, sales: Lake, program: Path) -> None:
    """The worker died after the Spark job, which is not repeated."""
    sales.view()
    plan = MaterializedViewHook().plan(VIEW)
    outcome = sales.stager(plan.script)
    sales.catalog.files.replace_text(plan.script.outcome_location, outcome.to_json())
    run = airflow.run(f'{REFRESH}, spark_binary="{program}")')

    assert run.state == "success"
    assert f"Refresh {plan.refresh_id} of lake.sales.daily was staged by an earlier try" in run.log
    assert "Spark-Submit cmd" not in run.log
    assert len(sales.read()) == 2


@pytest.mark.skipif(BEFORE_3_3, reason="Airflow 3.2 keeps no state of a task for its next try")
def test_the_event_of_a_refresh_whose_worker_died_after_publishing_is_emitted_by_the_next_try(
    airflow: Airflow, daily: Lake
) -> None:
    """The second try finds the view fresh, although no consumer has been notified."""
    daily.compact()
    run = airflow.run(f"""
        class Dies(RefreshMaterializedViewOperator):
            def execute(self, context):
                document = super().execute(context)
                if context["ti"].try_number == 1:
                    raise RuntimeError("the worker dies")
                return document
        Dies(task_id="refresh", view="{VIEW}", retries=1, retry_delay=timedelta(0))
    """)

    assert run.state == "success"
    assert run.values["refresh"]["outcome"] == "already-committed"
    assert [event[2]["refresh_id"] for event in run.events] == [daily.storage().state.current_refresh_id]


def test_a_compaction_is_recorded_without_spark_and_emits_an_event(airflow: Airflow, daily: Lake) -> None:
    """A fast-forward publishes: consumers that compare snapshots need the new one."""
    daily.compact()
    run = airflow.run(f"{REFRESH})")

    assert "Plan for lake.sales.daily: fast-forward" in run.log
    assert "by compaction only" in run.log
    assert "Spark-Submit cmd" not in run.log
    assert [event[2]["mode"] for event in run.events] == ["fast-forward"]


MISTAKES = [
    ('view="lake.sales.nowhere"', "ViewNotFoundError: there is no view lake.sales.nowhere in catalog 'lake'"),
    ("view=\"{{ 'daily' }}\"", "InvalidIdentifierError: `daily` has too few parts: write catalog.namespace.name"),
    (f'view="{VIEW}", as_of="{{{{ logical_date }}}}"', "'logical_date' is undefined"),
    (
        f'view="{VIEW}", as_of="{{{{ \'yesterday\' }}}}"',
        "ConfigurationError: as_of is 'yesterday', which is not a point in time",
    ),
    (f'view="{VIEW}", full="{{{{ \'perhaps\' }}}}"', "ConfigurationError: full is 'perhaps'; it must be true or false"),
    (f'view="{VIEW}", on_fallback="{{{{ \'panic\' }}}}"', "on_fallback is 'panic'; it must be full, fail or skip"),
    (
        f'view="{VIEW}", iceberg_conn_id="lost"',
        "ConfigurationError: there is no connection 'lost' (iceberg_conn_id)",
    ),
    (f'view="{VIEW}", spark_conn_id="lost"', "ConfigurationError: there is no connection 'lost' (spark_conn_id)"),
    (f'view="{VIEW}", spark_conn_id="iceberg_default"', "is of type 'iceberg'; it must be spark or spark_connect"),
    (f'view="{VIEW}", properties_file="/nowhere.conf"', "properties_file '/nowhere.conf' does not exist"),
]


@pytest.fixture(scope="module")
def mistaken(module_airflow: Airflow, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """One run with a task for each wrong argument."""
    options = "retries=1, retry_delay=timedelta(0)"
    tasks = [
        f'RefreshMaterializedViewOperator(task_id="mistake_{number}", {arguments}, {options})'
        for number, (arguments, _) in enumerate(MISTAKES)
    ]
    with lake_behind(module_airflow, tmp_path_factory.mktemp("mistakes")) as sales:
        sales.view()
        return module_airflow.run("\n".join(tasks))


@pytest.mark.parametrize("number", range(len(MISTAKES)), ids=[message for _, message in MISTAKES])
def test_an_error_that_no_retry_can_fix_fails_at_once_and_says_what_to_do(mistaken: Run, number: int) -> None:
    """Retries would hide a wrong setting for hours."""
    task_id, message = f"mistake_{number}", MISTAKES[number][1]
    assert mistaken.states[task_id] == "failed"
    assert message in mistaken.log
    assert ("undefined" in message) or mistaken.log.count(message) == 1


def test_a_definition_that_changed_in_a_dag_file_is_compared_as_a_whole(airflow: Airflow, sales: Lake) -> None:
    """A recompute must be asked for, settings are applied, and the log says what is kept."""
    sales.view()
    sales.view("kept", QUERY, layout="registered", storage_name="rows")
    run = airflow.run(f"""
        CreateMaterializedViewOperator(task_id="create", view="{VIEW}", sql="SELECT 1 AS one", retries=2)
        options = dict(view="lake.sales.kept", sql='''{QUERY}''', retries=2)
        same = CreateMaterializedViewOperator(task_id="same", storage_name="rows", on_change="fail", **options)
        other = CreateMaterializedViewOperator(task_id="other", storage_name="others", **options)
        changed = CreateMaterializedViewOperator(task_id="changed", checks=["orders > 0"], **options)
        kept = CreateMaterializedViewOperator(
            task_id="kept", properties={{"airflow-mv.keep-base-snapshots": "2 days"}}, **options
        )
        sorted_ = CreateMaterializedViewOperator(task_id="sorted", sort_by="amount DESC", **options)
        same >> changed >> kept >> sorted_
    """)

    succeeded = dict.fromkeys(("same", "changed", "kept", "sorted"), "success")
    assert run.states == {"create": "failed", "other": "failed", **succeeded}
    assert (
        "AlreadyExistsError: view lake.sales.daily exists with another definition, and on_change is 'apply'" in run.log
    )
    assert "kept, because the definition does not name it: refresh strategy (full)" in run.log
    assert "UnsupportedError: view lake.sales.kept: its storage table is lake.sales.rows and keeps its name" in run.log
    assert "changed: checks: none → orders > 0" in run.log
    properties = sales.catalog.load("sales.kept").metadata.properties
    assert "orders > 0" in properties["airflow-mv.checks"]
    assert (properties["airflow-mv.keep-base-snapshots"], properties["airflow-mv.sort-by"]) == ("2 days", "amount DESC")


@pytest.mark.parametrize("application", [None, "spark"])
def test_a_creation_that_needs_spark_says_why_and_how_spark_is_started_once(
    sales: Lake,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    application: str | None,
) -> None:
    """The advice is for tasks that share no application."""
    monkeypatch.setattr("airflow_mv.operators.spark.TaskStager.__call__", lambda _, script: sales.stager(script))
    query = "SELECT region, max_by(id, amount) AS best FROM orders GROUP BY region"
    task = CreateMaterializedViewOperator(task_id="create", view=VIEW, sql=query, spark_application=application)
    with caplog.at_level("INFO"):
        assert task.execute({})["state"] == "never-refreshed"
    log = caplog.text + capsys.readouterr().out
    assert "Starting Spark to find the columns of lake.sales.daily: MAX_BY(" in log
    assert ("With share_spark_application(create, refresh)" in log) == (application is None)


def test_a_plain_view_of_another_engine_is_made_materialized_by_operator_and_hook(
    sales: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a query; its text is translated only on request. Again, nothing happens."""
    stager = type("Stager", (), {"__call__": lambda _, script: sales.stager(script), "close": lambda _: None})()
    monkeypatch.setattr("airflow_mv.operators.spark.TaskStager.__call__", lambda _, script: sales.stager(script))
    monkeypatch.setattr("airflow_mv.hooks.views.in_process_stager", lambda *_: stager)
    for name in ("daily", "weekly"):
        sales.plain_view(name, {"trino": "SELECT id, region, amount FROM orders WHERE REGEXP_LIKE(region, 'n.*')"})

    def created(**how: Any) -> dict[str, Any]:
        return CreateMaterializedViewOperator(task_id="create", view=VIEW, layout="registered", **how).execute({})

    def refused(error: type[Exception]) -> type[Exception]:
        return AirflowFailException if BEFORE_3_3 else error

    with pytest.raises(refused(InvalidMetadataError), match="no SQL in the dialect 'spark'"):
        created()
    with pytest.raises(refused(AlreadyExistsError), match="is a plain view: leave out the query"):
        created(sql="SELECT 1 AS one")
    assert created(transpile=True)["state"] == created(transpile=True)["state"] == "never-refreshed"
    view = MaterializedViewHook().define("lake.sales.weekly", None, transpile=True, layout="registered").view
    assert spark_sql(view.metadata, view="weekly") == "SELECT id, region, amount FROM orders WHERE region RLIKE 'n.*'"
    assert sales.stager.calls == []  # the types follow from the base table


def test_views_may_come_from_task_mapping_and_templates(airflow: Airflow, daily: Lake) -> None:
    """A list of views is one mapped task; a name that is known only at run time has an alias as its outlet."""
    daily.view("hourly", QUERY)
    daily.refresh("sales.hourly")
    run = airflow.run(
        f"""
        RefreshMaterializedViewOperator.partial(task_id="mapped").expand(view=["{VIEW}", "lake.sales.hourly"])
        RefreshMaterializedViewOperator(task_id="named", view="{{{{ dag_run.conf['view'] }}}}")
    """,
        run_conf={"view": VIEW},
    )

    assert run.state == "success", run.log
    assert run.values["named"]["outcome"] == "fresh"
    assert run.events == []


def test_a_view_that_is_named_without_its_catalog_emits_the_event_of_its_asset(airflow: Airflow, daily: Lake) -> None:
    """Only the connection has the catalog's name; the DAG file does not."""
    extra = {key: daily.iceberg.properties[key] for key in ("uri", "warehouse")}
    airflow.connect("bound", conn_type="iceberg", extra={"type": "sql", **extra, "catalog_name": "lake"})
    daily.compact()
    run = airflow.run('RefreshMaterializedViewOperator(task_id="refresh", view="sales.daily", iceberg_conn_id="bound")')

    assert run.state == "success", run.log
    assert run.values["refresh"]["outcome"] == "refreshed"
    assert [event[:2] for event in run.events] == [["refresh", VIEW]]


def test_a_secret_setting_of_a_task_is_masked_in_rendered_fields(airflow: Airflow, daily: Lake) -> None:
    """Airflow masks by a list of key names, without `credential`. Mapped tasks are rendered elsewhere."""
    secrets = {
        "spark.sql.catalog.other.credential": "id:l1teral-of-the-file",
        "spark.sql.catalog.other.token": "{{ dag_run.conf['key'] }}",
        "spark.sql.catalog.other.uri": "postgresql://me:l1teral-in-address@host/db",
    }
    plain = {"spark.security.credentials.hive.enabled": "false", "spark.sql.shuffle.partitions": "2"}
    run = airflow.run(
        f"""
        options = dict(conf={secrets | plain}, env_vars={{"OTHER_TOKEN": "l1teral-of-the-environment"}})
        RefreshMaterializedViewOperator(task_id="named", view="{VIEW}", **options)
        RefreshMaterializedViewOperator.partial(task_id="mapped", **options).expand(view=["{VIEW}"])
    """,
        run_conf={"key": "t3mplated-key"},
    )

    assert run.state == "success", run.log
    for task_id in ("named", "mapped"):
        shown = repr(run.rendered[task_id])
        assert "l1teral" not in shown
        assert "t3mplated" not in shown
        assert all(f"{key}': '{value}'" in shown for key, value in plain.items())


def test_killing_the_task_ends_spark_submit_and_removes_its_settings(
    airflow: Airflow, sales: Lake, tmp_path: Path
) -> None:
    """No driver remains, and no credentials in a temporary folder."""
    program = tmp_path / "slow-spark-submit"
    program.write_text(f"#!/bin/sh\necho $$ > {tmp_path}/pid\nexec sleep 300\n")
    program.chmod(0o755)
    sales.view()
    operator = RefreshMaterializedViewOperator(task_id="refresh", view=VIEW, spark_binary=str(program))
    failures: list[str] = []

    def work() -> None:
        try:
            facts = {"clear_number": 0, "run_after": None, "data_interval_start": None, "data_interval_end": None}
            operator.execute({"dag_run": type("Run", (), {**facts, "conf": {}})()})
        except Exception as error:  # noqa: BLE001 (whatever the killed task says)
            failures.append(str(error))

    worker = threading.Thread(target=work)
    worker.start()
    deadline = time.monotonic() + 240
    while not (tmp_path / "pid").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    time.sleep(0.5)  # the hook knows its process a moment after that has begun
    scratch = operator.stager.job.scratch
    assert scratch
    assert stat.S_IMODE(scratch.stat().st_mode) == 0o700
    operator.on_kill()
    worker.join(120)

    assert not worker.is_alive()
    assert "stopped from outside" in failures[0]
    assert not scratch.exists()
    process = int((tmp_path / "pid").read_text())
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)
    operator.stager.job.hook._submit_sp.stdout.close()  # the provider does not close it


def test_an_argument_that_the_operator_sets_itself_is_refused_when_the_dag_is_parsed() -> None:
    """Otherwise it would be ignored without notice."""
    with pytest.raises(ConfigurationError, match="has no argument 'application': the operator sets it itself"):
        RefreshMaterializedViewOperator(task_id="refresh", view=VIEW, application="my.py")
    with pytest.raises(ConfigurationError, match="has no argument 'conn_id': use spark_conn_id"):
        CreateMaterializedViewOperator(task_id="create", view=VIEW, sql=QUERY, conn_id="mine")


def test_the_bounds_of_a_catch_up_may_be_templates_and_must_be_numbers() -> None:
    """They are parsed after rendering; a size with a unit is refused, not misread."""
    facts = {"run_after": None, "data_interval_start": None, "data_interval_end": None, "conf": {}}
    context: Any = {"dag_run": type("Run", (), facts)()}

    def bounds(**given: Any) -> dict[str, int]:
        operator = RefreshMaterializedViewOperator(task_id="refresh", view=VIEW, **given)
        assert set(given) <= set(operator.template_fields)
        bound = RefreshArguments.of(operator, takes_pins=False).options(context, operator.log).bound
        return bound.limits if isinstance(bound, CatchUp) else {}

    assert bounds() == bounds(max_snapshots="None", max_bytes="") == {}
    assert bounds(max_snapshots="7", max_bytes=10 * 2**30) == {"max_snapshots": 7, "max_bytes": 10 * 2**30}
    with pytest.raises(ConfigurationError, match="max_bytes is '1 GB'; it must be a number of bytes"):
        bounds(max_bytes="1 GB")


def test_runs_of_one_view_do_not_overlap_but_intervals_and_a_name_that_ends_in_sql_is_not_read_as_a_file() -> None:
    """Airflow's backfill ignores `max_active_runs`, and its operators read `*.sql` from a file."""
    operator = RefreshMaterializedViewOperator(task_id="refresh", view="lake.reports.sql")

    assert operator.max_active_tis_per_dag == 1
    assert RefreshMaterializedViewOperator(task_id="r", view=VIEW, max_active_tis_per_dag=5).max_active_tis_per_dag == 5
    by_day = RefreshMaterializedViewOperator(task_id="d", view=VIEW, scope="interval")
    assert by_day.max_active_tis_per_dag == INTERVALS_AT_ONCE > 1  # a backfill is parallel
    with DAG("defaults", default_args={"scope": "interval", "max_active_tis_per_dag": None}):
        assert RefreshMaterializedViewOperator(task_id="n", view=VIEW).max_active_tis_per_dag is None
    assert list(operator.template_ext) == []
    assert {"view", "as_of", "full", "iceberg_conn_id", "spark_conn_id", "conf"} <= set(operator.template_fields)
    assert [asset.uri for asset in operator.outlets] == ["iceberg-mv://lake/reports/sql"]


def test_spark_submit_of_another_environment_needs_no_python_on_the_path(tmp_path: Path) -> None:
    """pip's script looks for Spark with the first ``python3`` there: often Airflow's, with another Spark or none."""
    from airflow_mv.hooks import SparkTarget
    from airflow_mv.operators.submission import SubmitOptions, spark_submit

    outside, inside = tmp_path / "bin", tmp_path / "lib" / "python3.12" / "site-packages" / "pyspark" / "bin"
    for file in (outside / "find_spark_home.py", outside / "spark-submit", inside / "spark-submit"):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch(mode=0o755)

    for binary, path in ((str(outside / "spark-submit"), "/usr/bin"), (None, str(outside))):
        given = SubmitOptions({}, None, None, None, None, {"PATH": path}, binary, False)
        assert spark_submit(given, SparkTarget("spark_default", master="local[*]")) == str(inside / "spark-submit")


def test_spark_submit_of_pip_is_found_if_the_environment_is_not_on_the_path(
    airflow: Airflow, sales: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scheduler is often started by the full path of its program, without activating the environment."""
    from airflow_mv.hooks import SparkTarget
    from airflow_mv.operators.submission import SubmitOptions, spark_submit

    given = SubmitOptions({}, None, None, None, None, {"PATH": "/usr/bin:/bin"}, None, False)
    program = spark_submit(given, SparkTarget("spark_default", master="local[*]"))

    done = subprocess.run(
        [program, "--version"], env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True, check=True
    )
    assert "version 4.1" in done.stderr


def test_an_unavailable_catalog_hides_no_late_view_of_another_one(
    airflow: Airflow, daily: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its error is raised after their alerts."""
    opened = MaterializedViewHook.catalog_named

    def without_east(hook: MaterializedViewHook, name: str) -> MaterializedViewCatalog:
        if name == "east":
            raise CatalogUnavailableError("catalog 'east' does not respond")
        return opened(hook, name)

    monkeypatch.setattr(MaterializedViewHook, "catalog_named", without_east)
    daily.append()
    sent: list[FreshnessAlert] = []
    views = ["east.sales.daily", VIEW]
    task = FreshnessAlertOperator(task_id="late", views=views, max_staleness=0, on_breach=sent.append)
    with pytest.raises(CatalogUnavailableError, match="catalog 'east' does not respond"):
        task.execute({})
    assert [alert.view for alert in sent] == [VIEW]


@pytest.mark.skipif(BEFORE_3_3, reason="Airflow 3.2 has no state stores of assets")
def test_a_mapped_task_that_could_not_remember_its_alerts_fails(airflow: Airflow, daily: Lake) -> None:
    """Otherwise each run would send them again."""
    daily.append()
    run = airflow.run(f"""
        def send(alert):
            print("sent", alert.message)
        FreshnessAlertOperator.partial(task_id="late", max_staleness=0, on_breach=send).expand(views=["{VIEW}"])
    """)
    assert set(run.states.values()) == {"failed"}, run.log
    assert "instead of expand(views=...) give all views to one task, as a list" in run.log
    assert "sent lake.sales.daily" not in run.log
