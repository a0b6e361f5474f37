# SPDX-License-Identifier: Apache-2.0
"""A script has the same result in a local session, under spark-submit, on a cluster and over Spark Connect."""

from __future__ import annotations

import gc
import re
import stat
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from pyiceberg.table import StaticTable
from pyspark.sql import SparkSession

from airflow_mv.core.job.driver import reason, run, run_submitted
from airflow_mv.core.script import STAGING_CATALOG, Outcome, Script, script_beside, submitted_script
from airflow_mv.errors import ConfigurationError, JobError
from airflow_mv.extras.spark.session import _submit_arguments, check_java, open_session
from airflow_mv.extras.spark.settings import spark_settings
from airflow_mv.extras.spark.submit import build_package, jar_confs, main_file, write_properties
from tests.core.job.conftest import CANARY, Lake, make_lake, rows_of
from tests.core.job.processes import ROOT, SPARK_HOME, OverConnect, environment, serving
from tests.services import free_port

PINNED = [("a", 10), ("b", 20)]
CURRENT = [("a", 10), ("b", 25)]
#: PySpark does not close the socket of each collect(), but leaves it to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
#: A condition whose evaluation takes some milliseconds of a task.
WAITS = "reflect('java.lang.Thread', 'sleep', {}L)"
STACK = re.compile(r"\bat [\w.$]+\(|JVM stacktrace|Traceback")


@pytest.fixture(autouse=True, scope="module")
def _no_socket_is_left_to_other_tests() -> Iterator[None]:
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


def silent(line: str) -> None:
    """Ignore progress messages."""


def staging_confs(spark: SparkSession) -> set[str]:
    return {key for key in spark.conf.getAll if STAGING_CATALOG in key or "refresh-id" in key}


# ------------------------------------------------------------------------------------ a local session


def test_a_refresh_reads_the_pinned_snapshot_and_writes_a_file_that_other_engines_open(
    spark: SparkSession, lake: Lake
) -> None:
    """The staged table is on disk and complete, and it is not in the lake's catalog."""
    created = run(spark, lake.creation(properties=(("format-version", "2"),)), report=silent)
    assert rows_of(created) == []
    before = lake.pointers()

    outcome = run(spark, lake.refresh(created.metadata_location or "", lake.query(lake.first_snapshot)), report=silent)

    assert rows_of(outcome) == PINNED
    assert (outcome.rows_written, len(outcome.step_seconds)) == (2, 2)
    assert lake.pointers() == before == [("sales", "orders")]


def test_each_of_two_runs_in_one_session_has_its_own_staging_catalog(spark: SparkSession, lake: Lake) -> None:
    """Both register the same name, and Spark reads a catalog's settings only once."""
    created = run(spark, lake.creation(), report=silent)
    pinned = run(spark, lake.refresh(created.metadata_location or "", lake.query(lake.first_snapshot)), report=silent)
    current = run(spark, lake.refresh(created.metadata_location or "", lake.query()), report=silent)
    assert (rows_of(pinned), rows_of(current)) == (PINNED, CURRENT)


def test_executor_seconds_are_those_of_the_run_s_own_tasks(spark: SparkSession, lake: Lake) -> None:
    """Not those of another thread in the same application: a driver may run the scripts of many tasks."""

    def beside(line: str) -> None:
        if line.startswith("statement 1/2: CREATE"):
            with ThreadPoolExecutor(1) as other:
                waiting = f"SELECT {WAITS.format(4000)} FROM range(0, 2, 1, 2)"
                other.submit(lambda: spark.sql(waiting).collect()).result()

    brief = run(spark, lake.whole(), report=beside).executor_seconds
    slow = lake.whole(f"SELECT * FROM ({lake.query()}) WHERE {WAITS.format(600)} IS NOT NULL")
    longer = run(spark, slow, report=silent).executor_seconds
    assert brief is not None
    assert longer is not None
    assert 0 < brief < 8
    assert longer > 1.2
    assert not spark.sparkContext.getJobTags()


def test_snapshots_have_the_refresh_id_and_the_session_is_restored(spark: SparkSession, lake: Lake) -> None:
    """A remaining property would mark the user's next writes; a remaining setting would change their queries."""
    spark.conf.set("spark.sql.shuffle.partitions", "7")
    script = lake.whole(confs=(("spark.sql.shuffle.partitions", "1"), ("spark.sql.ansi.enabled", "false")))
    outcome = run(spark, script, report=silent)
    snapshot = StaticTable.from_metadata(outcome.metadata_location or "").current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    assert snapshot.summary["airflow-mv.refresh-id"] == script.refresh_id
    assert spark.conf.get("spark.sql.shuffle.partitions") == "7"
    assert staging_confs(spark) == set()


def test_a_snapshot_without_the_refresh_id_is_an_error(spark: SparkSession, lake: Lake) -> None:
    """An engine that ignores the setting reports 0 rows, and nobody could tell its rows from another writer's."""
    ignored = (("spark.sql.iceberg.snapshot-property.airflow-mv.refresh-id", "another"),)
    outcome = run(spark, lake.whole(confs=ignored), report=silent)
    assert outcome.metadata_location is None
    assert "has not written the refresh id" in (outcome.error or "")


def test_a_full_overwrite_replaces_all_partitions_in_a_session_with_dynamic_overwrite(
    spark: SparkSession, lake: Lake
) -> None:
    """In dynamic mode a day that the query does not return any more would stay in the view."""
    spark.conf.set("spark.sql.sources.partitionOverwriteMode", "dynamic")
    try:
        created = run(spark, lake.creation(partition_by=("`day`",)), report=silent)
        full = run(spark, lake.refresh(created.metadata_location or "", lake.query()), report=silent)
        less = f"SELECT * FROM ({lake.query()}) WHERE day = 'a'"
        outcome = run(spark, lake.refresh(full.metadata_location or "", less), report=silent)
        assert rows_of(outcome) == [("a", 10)]
        assert spark.conf.get("spark.sql.sources.partitionOverwriteMode") == "dynamic"
    finally:
        spark.conf.unset("spark.sql.sources.partitionOverwriteMode")


def test_columns_are_the_query_s_with_odd_names_and_nested_types(spark: SparkSession, lake: Lake) -> None:
    """Names are quoted; no column is NOT NULL, as in a view; old metadata files are kept."""
    query = (
        "SELECT 1 AS `a ``b`, named_struct('x y', 1, 'z', array(named_struct('é', 2.5D))) AS s, "
        "map('k', DATE'2024-01-01') AS m, CAST(1 AS DECIMAL(20, 3)) AS d"
    )
    outcome = run(spark, lake.creation(query), report=silent)
    assert outcome.error is None
    table = StaticTable.from_metadata(outcome.metadata_location or "")
    assert [field.name for field in table.schema().fields] == ["a `b", "s", "m", "d"]
    assert not any(field.required for field in table.schema().fields)
    assert [field.name for field in table.schema().find_field("s").field_type.fields] == ["x y", "z"]
    assert table.properties["write.metadata.delete-after-commit.enabled"] == "false"


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("SELECT 1 AS x, 2 AS X", "two columns named 'x'"),
        ("SELECT NULL AS x", "has no type"),
        ("SELECT nope FROM range(1)", "nope"),
        ("SELEC 1", "Syntax error at or near 'SELEC'"),
    ],
)
def test_a_query_that_cannot_be_stored_is_reported_as_a_query_error(
    spark: SparkSession, lake: Lake, query: str, message: str
) -> None:
    """A retry cannot help, so a scheduler must be able to distinguish it."""
    outcome = run(spark, lake.creation(query), report=silent)
    assert outcome.query_error
    assert message in (outcome.error or "")
    assert outcome.metadata_location is None
    assert staging_confs(spark) == set()


def test_a_failing_statement_gives_one_paragraph_with_its_position_and_no_stack_trace(
    spark: SparkSession, lake: Lake, capfd: pytest.CaptureFixture[str]
) -> None:
    """An operator reads one line in a log, not a Java stack trace."""
    query = f"SELECT day, CAST(1 / (amount - 20) AS BIGINT) FROM {lake.name}.sales.orders"
    outcome = run(spark, lake.whole(query), report=silent)
    assert outcome.error_class == "DIVIDE_BY_ZERO"
    assert "Division by zero" in (outcome.error or "")
    assert "1 / (amount - 20)" in (outcome.error or "")
    assert not outcome.query_error
    assert "\n" not in (outcome.error or "")
    printed = "".join(capfd.readouterr())
    assert not STACK.search(printed + (outcome.error or ""))
    assert lake.pointers() == [("sales", "orders")]


def test_progress_names_each_statement_and_its_seconds(spark: SparkSession, lake: Lake) -> None:
    """It shows a user what is running."""
    lines: list[str] = []
    run(spark, lake.whole(), report=lines.append)
    assert len(lines) == 4
    assert lines[2].startswith("statement 2/2: INSERT OVERWRITE")
    assert re.fullmatch(r"statement 2/2: \d+\.\d s", lines[3])


def test_no_setting_of_a_session_is_a_process_argument(session: SparkSession) -> None:
    """PySpark itself passes every setting to Java as ``--conf``, which all users of the host can read."""
    assert CANARY in session.conf.get("spark.sql.catalog.unused.token")
    assert not [line for line in command_lines() if CANARY in line]


@pytest.mark.slow
def test_a_session_without_iceberg_is_refused_with_the_name_of_the_setting(lake: Lake) -> None:
    """Its first statement would fail with a syntax error that points at the view."""
    code = (
        "from pyspark.sql import SparkSession\nfrom airflow_mv.extras.spark.session import open_session\n"
        "SparkSession.builder.master('local[1]').config('spark.ui.enabled', 'false').getOrCreate()\n"
        "open_session({})\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment(), capture_output=True, text=True)
    assert done.returncode == 1
    assert "ConfigurationError: the Spark session was started without Iceberg" in done.stderr


def test_a_session_without_a_catalog_s_package_is_refused_with_its_name(session: SparkSession) -> None:
    """Spark itself reports an internal error, or that no driver is suitable."""
    settings = spark_settings(
        "azure", {"type": "rest", "uri": "http://h", "warehouse": "abfss://c@a.dfs.core.windows.net"}
    )
    with pytest.raises(
        ConfigurationError, match=r"catalog 'azure' needs .*iceberg-azure-bundle.*spark\.jars\.packages"
    ):
        open_session(settings.session_confs())
    assert session.conf.get("spark.sql.catalog.azure", None) is None


def test_the_cause_of_an_internal_error_is_shown_and_not_its_wrapper() -> None:
    wrapper = RuntimeError("[INTERNAL_ERROR] The Spark SQL phase analysis failed. You hit a bug. SQLSTATE: XX000")
    wrapper._cause = RuntimeError("java.lang.ExceptionInInitializerError")  # type: ignore[attr-defined]
    wrapper._cause._cause = RuntimeError("java.sql.SQLException: no driver\n\tat x.y")  # type: ignore[attr-defined]
    assert reason(wrapper) == "java.sql.SQLException: no driver"


def test_a_garbage_collector_that_the_environment_chooses_is_the_only_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Java does not start with two."""
    monkeypatch.delenv("SPARK_SUBMIT_OPTS")  # chooses one for the sessions of these tests
    monkeypatch.setenv("JDK_JAVA_OPTIONS", "-XX:+UseSerialGC")
    with _submit_arguments(tmp_path, {"spark.master": "local[1]"}):
        written = (tmp_path / "spark.properties").read_text()
    (options,) = re.findall(r"^spark.driver.extraJavaOptions=(.*)$", written, re.MULTILINE)
    command = ["java", *options.split(), "-XX:+PrintFlagsFinal", "-version"]
    java = subprocess.run(command, capture_output=True, text=True)
    assert java.returncode == 0, java.stderr
    assert re.findall(r"(Use[A-Z][a-z0-9]*GC) += true", java.stdout) == ["UseSerialGC"]


def test_missing_or_old_java_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Spark itself only reports that its gateway exited."""
    (tmp_path / "bin").mkdir()
    java = tmp_path / "bin" / "java"
    java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(ConfigurationError, match="is Java 11: too old"):
        check_java()
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigurationError, match="Spark needs Java"):
        check_java()


def test_a_connect_server_that_does_not_answer_is_reported_at_once_without_its_token() -> None:
    """gRPC itself would take minutes, and the URL contains a token."""
    with pytest.raises(JobError, match=r"127\.0\.0\.1:\d+ does not respond") as caught:
        open_session({}, remote=f"sc://127.0.0.1:{free_port()}/;token={CANARY}")
    assert CANARY not in str(caught.value)


def test_spark_reads_a_postgresql_catalog_that_python_filled_with_its_password(
    session: SparkSession, postgres_uri: str, tmp_path: Path
) -> None:
    """User and password are passed outside of the URL."""
    lake = make_lake(tmp_path, uri=postgres_uri)
    assert "password" not in lake.settings.confs[f"spark.sql.catalog.{lake.name}.uri"]
    outcome = run(open_session(lake.settings.session_confs()), lake.whole(), report=silent)
    assert rows_of(outcome) == PINNED


# --------------------------------------------------------------------------------------- what is sent


def test_settings_are_unchanged_in_a_properties_file_that_only_the_owner_can_read(
    session: SparkSession, tmp_path: Path
) -> None:
    """Java reads the file: a password with a backslash or an umlaut must not be changed."""
    odd = "a=b:c#d!e\\f\\u0041 \"'é😀\n\tend"
    confs = {"spark.x.y": odd, "spark.with space=colon:": "v", "spark.empty": ""}
    path = write_properties(tmp_path, confs, {"spark.sql.catalog.l.jdbc.password": "#pä\\ss"})
    jvm = session._jvm
    assert jvm is not None
    loaded = jvm.java.util.Properties()
    stream = jvm.java.io.FileInputStream(str(path))
    loaded.load(stream)
    stream.close()
    assert dict(loaded) == {**confs, "spark.sql.catalog.l.jdbc.password": "#pä\\ss"}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_setting_that_spark_would_change_is_refused_without_its_value(tmp_path: Path) -> None:
    """spark-submit drops settings with other prefixes and trims values."""
    with pytest.raises(ConfigurationError, match="is not a Spark setting"):
        write_properties(tmp_path, {"jdbc.password": CANARY})
    with pytest.raises(ConfigurationError, match="blank") as caught:
        write_properties(tmp_path, {}, {"spark.sql.catalog.l.token": f"{CANARY} "})
    assert CANARY not in str(caught.value)


def test_the_package_has_the_same_bytes_whenever_it_is_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its name is derived from its content, so that one file can be reused."""
    (tmp_path / "other").mkdir()
    first = build_package(tmp_path).read_bytes()
    with monkeypatch.context() as later:
        later.setattr(time, "time", lambda: 2_000_000_000.0)
        assert build_package(tmp_path / "other").read_bytes() == first


# --------------------------------------------------------------------------------------- spark-submit


@dataclass(frozen=True, slots=True)
class Submitted:
    """The result of a submitted job."""

    lake: Lake
    script: Script
    outcome: Outcome
    code: int
    stdout: str
    stderr: str
    arguments: frozenset[str]
    folder: Path


def command_lines() -> set[str]:
    found = set()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.add(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        except OSError:  # the process has just ended
            continue
    return found


def submit(folder: Path, lake: Lake, script: Script, *, confs: dict[str, str], master: str, **env: str) -> Submitted:
    left = Path((script.outcome_location or "").removeprefix("file://"))
    location = script_beside(str(script.outcome_location))
    Path(location.removeprefix("file://")).write_text(script.to_json())
    submitted = submitted_script(location, script.to_json())
    left.write_text("half of an older outc")
    settings = lake.settings
    plain = {
        **settings.confs,
        **jar_confs({"spark.jars.packages": ",".join(settings.packages)}),
        "spark.ui.enabled": "false",
    }
    properties = write_properties(folder, {**plain, **confs}, settings.secrets)
    options = ["--master", master, "--properties-file", str(properties), "--load-spark-defaults"]
    files = ["--py-files", str(build_package(folder)), str(main_file()), submitted]
    command = [str(SPARK_HOME / "bin" / "spark-submit"), *options, *files]
    seen: set[str] = set()
    with (folder / "out").open("w") as out, (folder / "err").open("w") as err:
        process = subprocess.Popen(command, cwd=folder, env=environment(**env), stdout=out, stderr=err)
        try:
            while process.poll() is None:
                seen |= command_lines()
                time.sleep(0.1)
        finally:
            process.kill()
            process.wait()
    outcome = Outcome.from_json(left.read_text())
    output = ((folder / name).read_text() for name in ("out", "err"))
    return Submitted(lake, script, outcome, process.returncode, *output, frozenset(seen), folder)


@pytest.fixture(scope="module")
def submitted(tmp_path_factory: pytest.TempPathFactory) -> Submitted:
    """One job with a Python that has only PySpark, and with secrets in the catalog's properties."""
    folder = tmp_path_factory.mktemp("submitted")
    lake = make_lake(folder, token=CANARY, **{"jdbc.password": CANARY, "header.Authorization": CANARY})
    (folder / "events").mkdir()
    packages = folder / "packages"
    packages.mkdir()
    for name in ("pyspark", "py4j"):
        (packages / name).symlink_to(SPARK_HOME.parent / name)
    python = folder / "python"
    python.write_text(f'#!/bin/sh\ntouch {folder}/used\nexec {sys.executable} -S "$@"\n')
    python.chmod(0o755)
    events = (folder / "events").as_uri()
    # A compressed log would hide a secret from this test only.
    confs = {"spark.eventLog.enabled": "true", "spark.eventLog.dir": events, "spark.eventLog.compress": "false"}
    script = lake.whole(outcome_location=str(folder / "outcome.json"))
    bare = {"PYSPARK_DRIVER_PYTHON": str(python), "PYSPARK_PYTHON": str(python), "PYTHONPATH": str(packages)}
    return submit(folder, lake, script, confs=confs, master="local[2]", **bare)


def test_a_submitted_job_replaces_an_incomplete_outcome(submitted: Submitted) -> None:
    """The waiting task reads either nothing or the complete outcome."""
    assert submitted.code == 0, submitted.stderr[-2000:]
    assert submitted.outcome.refresh_id == submitted.script.refresh_id
    assert rows_of(submitted.outcome) == PINNED
    assert submitted.lake.pointers() == [("sales", "orders")]
    assert not list(submitted.folder.glob("*.tmp"))


def test_a_driver_needs_nothing_but_pyspark(submitted: Submitted) -> None:
    """A cluster does not have Airflow's packages."""
    python = submitted.folder / "python"
    pyiceberg = subprocess.run([python, "-c", "import pyiceberg"], env={}, capture_output=True, text=True)
    assert "No module named 'pyiceberg'" in pyiceberg.stderr
    assert (submitted.folder / "used").exists()
    assert submitted.outcome.error is None


def test_no_credential_of_a_submitted_job_is_visible(submitted: Submitted) -> None:
    """Neither in the process list, its output, Spark's event log nor the job's own files."""
    assert any("org.apache.spark.deploy.SparkSubmit" in line for line in submitted.arguments)
    assert not [line for line in submitted.arguments if CANARY in line]
    events = [path for path in (submitted.folder / "events").rglob("*") if path.is_file()]
    assert any(f"spark.sql.catalog.{submitted.lake.name}.token" in read(path) for path in events), "the log is empty"
    assert any("*********(redacted)" in read(path) for path in events)
    holders = {path.name for path in submitted.folder.rglob("*") if path.is_file() and CANARY in read(path)}
    assert holders == {"spark.properties"}


def read(path: Path) -> str:
    return path.read_bytes().decode(errors="replace")


def test_a_submitted_job_that_fails_reports_the_reason_in_the_last_line(tmp_path: Path) -> None:
    """A scheduler shows only spark-submit's exit code and its last line."""
    lake = make_lake(tmp_path)
    query = f"SELECT day, CAST(1 / (amount - 20) AS BIGINT) FROM {lake.name}.sales.orders"
    script = lake.whole(query, outcome_location=(tmp_path / "outcome.json").as_uri())
    job = submit(tmp_path, lake, script, confs={}, master="local[2]")
    assert job.code == 1
    assert job.outcome.error_class == "DIVIDE_BY_ZERO"
    assert not STACK.search(job.outcome.error or "")
    # spark-submit merges a Python driver's stderr into its stdout; Java's log is written to stderr.
    assert job.stdout.rstrip().splitlines()[-1] == job.outcome.error


def test_a_job_of_another_version_is_refused(session: SparkSession, lake: Lake, tmp_path: Path) -> None:
    """A driver that has installed the job's wheel keeps it when Airflow's package is upgraded."""
    text = replace(lake.whole(), package="0.0.9").to_json()
    script = tmp_path / "x.script.json"
    script.write_text(text)
    refused = run_submitted(session, submitted_script(str(script), text), None, None, report=silent)
    assert refused is not None
    assert "airflow-mv 0.0.9 wrote the script" in refused


def test_a_job_runs_only_the_script_that_was_submitted_and_writes_beside_it(
    session: SparkSession, lake: Lake, tmp_path: Path
) -> None:
    """Who can write to the store cannot make the driver run other SQL, or write its outcome over another file."""
    script = lake.whole(outcome_location=str(tmp_path / "outcome.json"))
    location = tmp_path / "outcome.script.json"
    submitted = submitted_script(str(location), script.to_json())
    location.write_text(replace(script, confs=(("spark.sql.ansi.enabled", "false"),)).to_json())
    changed = run_submitted(session, submitted, None, None, report=silent)
    assert changed == f"{location}: another process has changed the script after it was submitted: run the task again"

    for elsewhere in (str(tmp_path / "victim.json"), (tmp_path / "outcome.json").as_uri(), None):
        text = replace(script, outcome_location=elsewhere).to_json()
        location.write_text(text)
        refused = run_submitted(session, submitted_script(str(location), text), None, None, report=silent)
        assert refused is not None
        assert "not beside it" in refused
    bare = run_submitted(session, str(location), None, None, report=silent)
    assert bare is not None
    assert "digest of the script is missing" in bare
    assert [path.name for path in tmp_path.glob("*.json")] == [location.name]


# ------------------------------------------------------------------------------- clusters and Connect


@pytest.mark.slow
@pytest.mark.cluster
def test_a_job_runs_on_a_standalone_cluster_where_executors_are_other_processes(tmp_path: Path) -> None:
    """State in the driver's memory alone would pass every local test."""
    lake = make_lake(tmp_path)
    script = lake.whole(outcome_location=str(tmp_path / "outcome.json"))
    spark_class = str(SPARK_HOME / "bin" / "spark-class")
    bound = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
    master = [spark_class, "org.apache.spark.deploy.master.Master", *bound]
    with serving(master, tmp_path / "master.log", r"Starting Spark master at (spark://127\.0\.0\.1:\d+)") as found:
        worker = [spark_class, "org.apache.spark.deploy.worker.Worker", *bound, "--cores", "2", "--memory", "1g"]
        worker += ["--work-dir", str(tmp_path / "work"), found[1]]
        with serving(worker, tmp_path / "worker.log", "Successfully registered with master"):
            local = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
            job = submit(tmp_path, lake, script, confs=local, master=found[1])
    assert job.code == 0, job.stderr[-2000:]
    assert rows_of(job.outcome) == PINNED
    assert (job.outcome.application_id or "").startswith("app-")
    assert lake.pointers() == [("sales", "orders")]


@pytest.mark.cluster
def test_a_job_runs_over_spark_connect_with_a_catalog_the_server_was_not_started_with(
    tmp_path: Path, over_connect: OverConnect
) -> None:
    """Without access to Java everything is a statement or a setting. A failure has no stack trace either."""
    lake = make_lake(tmp_path, token=CANARY)
    confs = lake.settings.session_confs()
    bad = lake.whole(f"SELECT day, CAST(1 / (amount - 20) AS BIGINT) FROM {lake.name}.sales.orders")
    worse = lake.whole("SELECT nope FROM range(1)")
    (good, failed, wrong), message = over_connect(confs, lake.whole(), bad, worse)
    assert rows_of(good) == PINNED
    assert good.rows_written == 2
    assert (failed.error_class, failed.sql_state, failed.query_error) == ("DIVIDE_BY_ZERO", "22012", False)
    assert "1 / (amount - 20)" in (failed.error or "")
    assert wrong.query_error
    assert good.executor_seconds is None
    assert not STACK.search(message)
    assert lake.pointers() == [("sales", "orders")]
