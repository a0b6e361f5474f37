# SPDX-License-Identifier: Apache-2.0
"""Run a script in a Spark session, classic or Connect, and return its outcome."""

from __future__ import annotations

import logging
import re
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from airflow_mv.core.job.check_results import run_checks
from airflow_mv.core.job.context import JobContext, measured, translated
from airflow_mv.core.job.driver_files import file_access, only_access, open_files
from airflow_mv.core.job.foreign import formats_of
from airflow_mv.core.job.session import CATALOG, hide_secrets, interruptible, made_active, temporary_settings
from airflow_mv.core.job.steps import COMPLETE, brief, run_steps, written
from airflow_mv.core.job.versions import require_supported
from airflow_mv.core.script import (
    CLOCK,
    MAX_AHEAD_MS,
    REFRESH_ID_KEY,
    SNAPSHOT_PROPERTY,
    STAGING_CATALOG,
    STAGING_NAMESPACE,
    STORAGE,
    CheckResult,
    Outcome,
    Script,
    location_of,
    script_beside,
    submitted_script,
)
from airflow_mv.core.spec.identifiers import quote, string_literal
from airflow_mv.errors import ClockError, InvalidQueryError, StoppedError
from airflow_mv.foundation.documents import json_object
from airflow_mv.foundation.redaction import shortened
from airflow_mv.version import __version__

_MAX_REASON_LENGTH = 2000
_LATER_COLUMN = (
    ". A base table is read with the schema of its snapshot. A column that was added or renamed since then becomes "
    "readable with the table's next commit (an INSERT of no rows is enough)."
)
#: An error with its SQLSTATE, which Spark 3.5 does not write, and perhaps its place in the SQL.
_CODED = re.compile(r"(?s)(.*?SQLSTATE: \w{5})(?:[;(\s]+line (\d+),? pos(?:ition)? (\d+))?")
_CODED_IN_3_5 = re.compile(r"(?s)(\[[\w.]+\] .*?)(?:;\s+|\(|\s+== SQL ?\()line (\d+),? pos(?:ition)? (\d+)")
_NO_EXPRESSION = (
    ". Spark does not name the expression: corr, regr_r2, regr_slope and regr_intercept divide too, for a group in "
    "which all values are equal."
)
#: The database in memory that all staging catalogs of a JVM share. Each has rows of its own in it.
_DATABASE = f"jdbc:derby:memory:{STAGING_CATALOG};create=true"
#: Names of unused staging catalogs, by the session over Connect (empty for a classic one) and the access to files.
_idle: dict[tuple[str, frozenset[tuple[str, str]]], list[str]] = {}


def run(
    spark: SparkSession,
    script: Script,
    *,
    report: Callable[[str], None] = print,
    store_ms: Callable[[], int] | None = None,
    access: Mapping[str, str] | None = None,
) -> Outcome:
    """Run the steps of a script in order; the first failure ends it. Nothing is published here.

    Each run uses a staging catalog that no other run uses at the time. In the session it has a unique name instead of
    ``airflow_mv_staging``, because Spark never reads a catalog's settings twice. The next run reuses it, because a
    session keeps each catalog that it has opened.

    Args:
        spark: A session that knows the base tables' catalogs, classic or Connect. Its settings are as
            before when this returns.
        report: Called with a line before and after each step.
        store_ms: Returns the store's clock. With it, a run that commits to a table of the catalog checks the driver's
            clock first.
        access: The properties with which the server of a REST catalog gives access to the storage table's files. The
            staging catalog uses them instead of the catalog's own.

    Returns:
        What was staged, or the reason why nothing was. A failing statement does not raise. What a signal handler
        raises in the main thread is raised here, after the statement that ran then was cancelled and has ended.
    """
    stopped = threading.Event()

    def say(line: str) -> None:
        if stopped.is_set():
            raise StoppedError("stopped from outside before the next statement")
        report(line)

    work = partial(_run, spark, script, report=say, store_ms=store_ms, access=access)
    return interruptible(spark, work, stopped)


def _run(
    spark: SparkSession,
    script: Script,
    *,
    report: Callable[[str], None],
    store_ms: Callable[[], int] | None,
    access: Mapping[str, str] | None,
) -> Outcome:
    seconds: list[float] = []
    script = replace(script, branch=_own_branch(script))
    name = f"{STAGING_CATALOG}_{uuid.uuid4().hex[:12]}"
    context = JobContext(spark, name)
    try:
        require_supported(spark)
        foreign = formats_of(script.reads)
        for tables, table in foreign.items():
            tables.require(context, table)
        if script.branch is not None and store_ms is not None:
            _require_clock(spark, store_ms, script.view)
        settings = {**_file_access(spark, script.view), **only_access(access or {})}
        staged = _staged_tables(script)
        idle = _take_idle(spark, settings) if staged else None
        name = context.staging = idle or name
        catalog = staging_catalog(name)
        bound = script.bound(name, script.branch)
        context.reads, context.branch = bound.reads, bound.branch
        with (
            quiet(),
            made_active(spark),
            temporary_settings(spark, {**catalog, **_run_settings(script), **dict(script.confs)}),
            _tables(context, staged, None if access else settings),
            closing(context),
            ExitStack() as blocks,
            measured(spark) as context.executors,
        ):
            for tables in foreign:
                blocks.enter_context(tables.reading(context))
            # An idle one of classic sessions may be open in others of them only.
            if staged and (idle is None or context.jvm is not None):
                open_staging(spark, name, settings)
            refused = run_steps(context, bound, seconds, report)
            checks = _check(context, bound, report)
            return Outcome(
                refresh_id=script.refresh_id,
                step_seconds=tuple(seconds),
                executor_seconds=context.executors.seconds(),
                application_id=_application_id(spark),
                branch=script.branch,
                mode="full" if refused or not script.incremental else "incremental",
                checks=checks,
                checks_digest=script.checks.digest if script.checks else "",
                **written(context, bound),
                **context.found(refused),
            )
    except Exception as error:  # noqa: BLE001 (Spark's, py4j's and gRPC's errors have no common base)
        _drop_branch(spark, script)
        return _failed(context, script, translated(error), seconds)


def _failed(context: JobContext, script: Script, error: Exception, seconds: list[float]) -> Outcome:
    return Outcome(
        refresh_id=script.refresh_id,
        metadata_location=None,
        step_seconds=tuple(seconds),
        error=context.public(reason(error, context.sql)),
        error_class=_condition(error),
        sql_state=_sql_state(error),
        query_error=isinstance(error, AnalysisException | InvalidQueryError),
        application_id=_application_id(context.spark),
        mode="none",
        **context.found(error),
    )


# ------------------------------------------------------------------------------------ the session


def _staged_tables(script: Script) -> list[str]:
    """Return the tables of a run in its staging catalog. A storage table in a catalog of the user is none of them."""
    return [*([STORAGE] if script.is_staged else ()), *(f"base_{number}" for number in range(script.nested))]


def staging_catalog(name: str) -> dict[str, str]:
    """Return the settings of a staging catalog, without those for file access.

    Args:
        name: Its name in Spark.
    """
    catalog = f"{CATALOG}{name}"
    return {
        catalog: "org.apache.iceberg.spark.SparkCatalog",
        f"{catalog}.catalog-impl": "org.apache.iceberg.jdbc.JdbcCatalog",
        f"{catalog}.uri": _DATABASE,
        # Iceberg does not see that a Derby database has the schema V1 already, and would fail to migrate it again.
        f"{catalog}.jdbc.schema-version": "V0",
        f"{catalog}.cache-enabled": "false",
        f"{catalog}.warehouse": "file:///nowhere",  # JdbcCatalog requires it; every table has its own location
    }


def _run_settings(script: Script) -> dict[str, str]:
    """Return the settings of a run."""
    return {
        # INSERT OVERWRITE must replace the whole table, whatever the session's setting is.
        "spark.sql.sources.partitionOverwriteMode": "static",
        f"{SNAPSHOT_PROPERTY}{REFRESH_ID_KEY}": script.refresh_id,
        # Another run that finds this branch must know whether all statements have run.
        **({COMPLETE: "false"} if script.branch is not None else {}),
    }


def open_staging(spark: SparkSession, name: str, access: Mapping[str, str]) -> None:
    """Open a staging catalog. The settings for file access are set in the session for this moment only.

    Spark writes the settings of each job, credentials included, to its event log and its UI.
    """
    with temporary_settings(spark, {f"{CATALOG}{name}.{key}": value for key, value in access.items()}):
        if getattr(spark, "_jvm", None) is not None:
            spark._jsparkSession.sessionState().catalogManager().catalog(name)
        else:
            spark.sql(f"SHOW NAMESPACES IN `{name}`")  # runs at once, as each statement that is no query


@contextmanager
def registered(spark: SparkSession, catalog: str, files: Mapping[str, str]) -> Iterator[str]:
    """Register metadata files in a staging catalog of their own, for reads, and yield the staging catalog's name.

    Args:
        spark: A session, classic or Connect.
        catalog: The catalog whose access to files is used.
        files: The metadata files, by the tables' names in the namespace :data:`STAGING_NAMESPACE`.
    """
    name = f"{STAGING_CATALOG}_{uuid.uuid4().hex[:12]}"
    if not files:
        yield name
        return
    with temporary_settings(spark, staging_catalog(name)):
        open_staging(spark, name, file_access(spark, catalog))
        try:
            for table, location in files.items():
                target, file = string_literal(f"{STAGING_NAMESPACE}.{table}"), string_literal(location)
                spark.sql(f"CALL `{name}`.system.register_table(table => {target}, metadata_file => {file})")
            yield name
        finally:
            with suppress(Exception):  # a dead session
                for table in files:
                    _unregister(spark, name, table)


def _drop_branch(spark: SparkSession, script: Script) -> None:
    """Remove the branch of a failed run."""
    if script.branch is not None:
        with suppress(Exception):  # the session itself may have failed; the outcome has the first error
            spark.sql(f"ALTER TABLE {script.table} DROP BRANCH IF EXISTS {quote(script.branch)}")


def _own_branch(script: Script) -> str | None:
    """Return a branch name for this run only: two runs of one refresh must not write to the same branch."""
    return None if script.branch is None else f"{script.branch}_{uuid.uuid4().hex[:8]}"


def _file_access(spark: SparkSession, view: str) -> dict[str, str]:
    """Return the settings with which the view's catalog accesses files."""
    quoted = re.match(r"`((?:[^`]|``)+)`", view)
    return file_access(spark, quoted[1].replace("``", "`") if quoted else view.partition(".")[0])


def _take_idle(spark: SparkSession, access: Mapping[str, str]) -> str | None:
    with suppress(KeyError, IndexError):  # pop() is atomic: two threads never get one name
        return _idle[_users(spark, access)].pop()
    return None


def _users(spark: SparkSession, access: Mapping[str, str]) -> tuple[str, frozenset[tuple[str, str]]]:
    """Return what the users of a staging catalog have in common."""
    session = "" if getattr(spark, "_jvm", None) is not None else spark.session_id  # type: ignore[attr-defined]
    return session, frozenset(access.items())


@contextmanager
def _tables(context: JobContext, staged: Sequence[str], access: Mapping[str, str] | None) -> Iterator[None]:
    """Unregister a run's tables, without PURGE, since the files belong to the published table or the refresh.

    A staging catalog with vended credentials is not used again, because they end: ``access`` is ``None``.
    """
    if context.jvm is not None:
        context.java.find("java.lang.System").setProperty("derby.stream.error.file", "/dev/null")  # else ./derby.log
    try:
        yield
    finally:
        clean = False
        with suppress(Exception):  # a failure here must not hide the run's outcome
            for table in staged:
                _remove(context, table)
            clean = True
        if clean and staged and access is not None:
            _idle.setdefault(_users(context.spark, access), []).append(context.staging)


def _remove(context: JobContext, table: str) -> None:
    """Remove a table from the run's staging catalog. In Java, where possible: a statement of Spark takes longer."""
    purge = False
    if context.jvm is None:
        _unregister(context.spark, context.staging, table)
    else:
        context.java.staging_catalog(context.staging).dropTable(context.java.staged_identifier(table), purge)


def _unregister(spark: SparkSession, catalog: str, table: str) -> None:
    spark.sql(f"DROP TABLE IF EXISTS `{catalog}`.`{STAGING_NAMESPACE}`.`{table}`")


@contextmanager
def quiet() -> Iterator[None]:
    """Keep PySpark from printing a Java stack trace for an error that the outcome reports."""
    try:
        from pyspark.logger import PySparkLogger
    except ImportError:  # Spark 3.5 prints none
        yield
        return
    # This must be PySpark's own logger class: a plain logger of this name would break PySpark in the whole process.
    loggers = [PySparkLogger.getLogger(name) for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _application_id(spark: SparkSession) -> str | None:
    try:
        return spark.conf.get("spark.app.id", None)
    except Exception:  # noqa: BLE001 (the session itself may have failed)
        return None


# -------------------------------------------------------------------------------------- the clock


def _require_clock(spark: SparkSession, store_ms: Callable[[], int], view: str) -> None:
    """Refuse a driver whose clock is ahead of the store's, before it commits to a table of the catalog.

    A snapshot has the driver's time. In a table of the catalog this matters as soon as it is written, on a branch too:
    a snapshot in the future prevents hosts with a correct clock from changing the table until that time.

    Raises:
        ClockError: It is ahead by more than :data:`MAX_AHEAD_MS`.
    """
    driver_ms = _driver_ms(spark)
    ahead_ms = driver_ms - store_ms()  # read after the driver's clock, so that a delay cannot cause a false alarm
    if ahead_ms > MAX_AHEAD_MS:
        raise ClockError(
            f"view {view}: the clock of Spark's driver ({_host(spark)}) is {ahead_ms / 1000:.0f} s ahead of the "
            f"store's clock; up to {MAX_AHEAD_MS / 1000:.0f} s are allowed. Nothing was written. Set that clock right, "
            "refresh again"
        )


def _driver_ms(spark: SparkSession) -> int:
    jvm: Any = getattr(spark, "_jvm", None)
    if jvm is not None:
        return int(getattr(jvm, "java.lang.System").currentTimeMillis())
    row = spark.sql("SELECT unix_millis(current_timestamp())").first()
    return int(row[0]) if row else 0


def _host(spark: SparkSession) -> str:
    return str(spark.conf.get("spark.driver.host", None) or "host unknown")


# -------------------------------------------------------------------------------------- the steps


def _check(context: JobContext, script: Script, report: Callable[[str], None]) -> tuple[CheckResult, ...]:
    """Run the checks on the staged rows, if there are any. Unchanged rows are published already."""
    if script.checks is None or context.written_by == "none":
        return ()
    return run_checks(context, script.checks, report)


# ------------------------------------------------------------------------------------- the reason


def reason(error: BaseException, sql: str = "") -> str:
    """Return an error of Spark as one paragraph: the error, the place in the SQL, the root cause. No stack, no plan.

    Args:
        error: The error that a statement raised.
    """
    text, _, stack = str(error).partition("JVM stacktrace:")
    head = re.sub(r"^An error occurred while calling \S+\s*:?\s*", "", text.strip())
    coded = _CODED.match(head) or _CODED_IN_3_5.match(head)
    message = coded[1] if coded else re.split(r"\n\s+at |\nDriver stacktrace|\nCaused by", head)[0]
    place = _place(error, sql, coded)
    causes = [*re.findall(r"(?m)^Caused by: (.+)$", text + stack), *_causes(error)]
    if causes and message.startswith("[INTERNAL_ERROR"):  # Spark's wrapper around an error that it doesn't know
        message = causes[-1]
    cause = f" Caused by: {causes[-1]}" if causes and not coded and causes[-1] not in message else ""
    paragraph = " ".join(f"{message}{place}{cause}{_hint(_condition(error) or '', sql, place)}".split())
    if not paragraph:
        return type(error).__name__
    return shortened(paragraph, _MAX_REASON_LENGTH)


def _causes(error: BaseException) -> Iterator[str]:
    """Yield the first lines of the causes of an error that PySpark has translated, the root cause last."""
    found = getattr(error, "_cause", None)
    while found is not None:
        yield str(found).strip().partition("\n")[0] or type(found).__name__
        found = getattr(found, "_cause", None)


def _hint(condition: str, sql: str, place: str) -> str:
    """Return what Spark does not say of an error."""
    if "VERSION AS OF" in sql and condition.startswith("UNRESOLVED_COLUMN"):
        return _LATER_COLUMN
    return _NO_EXPRESSION if condition == "DIVIDE_BY_ZERO" and not place else ""


def _place(error: BaseException, sql: str, coded: re.Match[str] | None) -> str:
    contexts: list[Any] = []
    with suppress(Exception):  # not every error has a context, and reading it may need the JVM
        contexts = list(error.getQueryContext() or [])  # type: ignore[attr-defined]
    for context in contexts:
        with suppress(Exception):
            return f" In the SQL: {brief(context.fragment())}"
    lines = sql.splitlines()
    if coded and coded[2] and int(coded[2]) <= len(lines):
        line = lines[int(coded[2]) - 1]
        start = max(0, int(coded[3]) - 60)
        return f" In the SQL, line {coded[2]}: {brief(line[start : int(coded[3]) + 60])}"
    return ""


def _sql_state(error: BaseException) -> str | None:
    if found := re.search(r"SQLSTATE: (\w{5})", str(error)):
        return found[1]
    with suppress(Exception):  # Spark 3.5 does not write it into the message
        return error.getSqlState()  # type: ignore[attr-defined, no-any-return]
    return None


def _condition(error: BaseException) -> str | None:
    if isinstance(error, ClockError):
        return CLOCK
    with suppress(Exception):
        named: Any = error
        condition = named.getCondition() if hasattr(error, "getCondition") else named.getErrorClass()  # in Spark 3.5
        return str(condition) if condition else None
    return None


# ------------------------------------------------------------------------------- a submitted script


def run_submitted(
    spark: SparkSession, submitted: str, catalog: str | None, table: str | None, *, report: Callable[[str], None]
) -> str | None:
    """Run the script that was submitted, and no other one at its location. Write its outcome beside it.

    Args:
        spark: A classic session.
        submitted: The script's location with its digest.
        catalog: The name of the view's catalog in Spark; ``None`` for access through Hadoop.
        table: The quoted Spark name of the view's storage table, if a catalog holds it.
        report: Called with progress messages.

    Returns:
        Why nothing was staged, in one line; ``None`` for a success.
    """
    location = location_of(submitted)
    if not location:
        return f"{submitted}: the digest of the script is missing: pass the plan's application_args unchanged"
    try:
        hide_secrets(spark)
        files = open_files(spark, catalog, table)
        text = files.read_text(location)
        if submitted_script(location, text) != submitted:
            return f"{location}: another process has changed the script after it was submitted: run the task again"
        package = json_object(text, "script").get("package")
        if package != __version__:  # its script may have other fields
            found = f"airflow-mv {package} wrote the script, and this job is of version {__version__}"
            return f"{location}: {found}: install airflow-mv-job=={package} in the driver"
        script = Script.from_json(text)
        place = script.outcome_location or ""
        if script_beside(place) != location:
            return f"{location}: the outcome {place} of the script is not beside it: nothing was run"
        clock, access = partial(files.store_ms, place), files.vended(location)
        outcome = run(spark, script, report=report, store_ms=clock, access=access)
        files.write_text(place, outcome.to_json())
    except Exception as error:  # noqa: BLE001 (the last line on stderr is what an operator shows)
        return f"{location}: {reason(error)}"
    if outcome.error is None:
        report(f"{outcome.rows_written} rows written, staged at {outcome.metadata_location}")
    return outcome.error
