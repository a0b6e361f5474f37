# SPDX-License-Identifier: Apache-2.0
"""Run scripts in a session of this process: an active one, a local one, one of a cluster, or one over Connect."""

from __future__ import annotations

import functools
import logging
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from airflow_mv.core.catalog import MaterializedViewCatalog
from airflow_mv.core.script import Outcome, Script, Stager
from airflow_mv.core.spec.identifiers import DELTA_BY_PATH
from airflow_mv.errors import ConfigurationError, JobError, MaterializedViewError
from airflow_mv.extras.spark.settings import SparkSettings, spark_settings
from airflow_mv.extras.spark.submit import (
    JARS_VARIABLE,
    OLDEST_JAVA,
    collector,
    jar_confs,
    log4j_properties,
    scratch_folder,
    spark_defaults,
    spark_versions,
    write_properties,
)
from airflow_mv.foundation.redaction import shortened

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

_NAME = "airflow-mv"
#: The prefix of catalog settings.
_CATALOG = "spark.sql.catalog."


def settings_of(catalog: MaterializedViewCatalog) -> SparkSettings:
    """Return the Spark configuration of a catalog and of all catalogs that were opened through it.

    It has what Delta tables need if a view that was looked at reads one.
    """
    opened = catalog.opened().items()
    settings = [spark_settings(name, home.properties, stores=home.files.vended_stores) for name, home in opened]
    merged = functools.reduce(SparkSettings.merge, settings)
    return merged.with_delta(catalog.properties) if DELTA_BY_PATH.data_source in catalog.formats else merged


def knowing_catalogs(catalog: MaterializedViewCatalog, spark: SparkSession) -> SparkSession:
    """Return a session after adding to it the catalogs that were opened and that it lacks.

    Args:
        catalog: The catalog through which they were opened.
    """
    settings = settings_of(catalog)
    return with_catalogs(spark, {**settings.confs, **settings.secrets})


def session_stager(
    catalog: MaterializedViewCatalog, spark: SparkSession, *, report: Callable[[str], None] = log.info
) -> Stager:
    """Return a stager that runs scripts in an existing session."""

    def stage(script: Script) -> Outcome:
        return _staged(catalog, knowing_catalogs(catalog, spark), script, report)

    return stage


def _staged(
    catalog: MaterializedViewCatalog, spark: SparkSession, script: Script, report: Callable[[str], None]
) -> Outcome:
    """Run a script in a session that knows its catalogs."""
    from airflow_mv.core.job.driver import run

    access = catalog.files.vended_properties(script.outcome_location) if script.outcome_location else {}
    return run(spark, script, report=report, store_ms=_store_clock(catalog, script), access=access)


def _store_clock(catalog: MaterializedViewCatalog, script: Script) -> Callable[[], int] | None:
    """Return a function that reads the clock of the store of a script's outcome; ``None`` if the script stores none."""
    if script.outcome_location is None:
        return None
    folder = script.outcome_location.rpartition("/")[0]

    def store_ms() -> int:
        try:
            return catalog.files.now_ms(folder)
        except MaterializedViewError as error:
            log.warning("Could not read the clock of the object store of %s: %s", folder, error)
            return sys.maxsize

    return store_ms


class InProcessStager:
    """Runs scripts in a session that is opened for the first script. If no script runs, Spark does not start.

    Args:
        catalog: Its configuration becomes the session's.
        master: A Spark master; by default a local one.
        remote: A Spark Connect URL (``sc://…``) instead.
        report: Receives progress messages.
    """

    def __init__(
        self,
        catalog: MaterializedViewCatalog,
        *,
        master: str | None = None,
        remote: str | None = None,
        report: Callable[[str], None] = log.info,
    ) -> None:
        self._catalog = catalog
        self._master = master
        self._remote = remote
        self._report = report
        self._session: SparkSession | None = None
        self._ours = False

    def __call__(self, script: Script) -> Outcome:
        """Run a script."""
        session = knowing_catalogs(self._catalog, self._session) if self._session else self.session
        return _staged(self._catalog, session, script, self._report)

    @property
    def session(self) -> SparkSession:
        """The session. It is opened on first use."""
        if self._session is None:
            import pyspark

            self._ours = active_session() is None
            if self._ours and not self._remote and not _has_spark():
                raise ConfigurationError(
                    f"this environment has no Spark, only the client of Spark Connect, {pyspark.__version__}. Install "
                    "the extra airflow-mv[spark], use a Spark Connect server, or refresh from Airflow with another "
                    "environment's spark-submit (spark_binary). `airflow-mv doctor` shows what works here"
                )
            # The packages of a session that runs already stay as they are.
            starts = self._ours and not self._remote
            scala = spark_versions(Path(pyspark.__file__).parent)[1] if starts else None
            settings = settings_of(self._catalog).on(None if self._remote else pyspark.__version__, scala)
            self._session = open_session(
                settings.session_confs(), master=self._master, remote=self._remote, report=self._report
            )
        return self._session

    def close(self) -> None:
        """Stop the session if it was opened here. A session that existed before keeps running."""
        if self._session is not None and self._ours:
            self._session.stop()
        self._session = None


# ------------------------------------------------------------------------- open a session


def open_session(
    confs: Mapping[str, str],
    *,
    master: str | None = None,
    remote: str | None = None,
    report: Callable[[str], None] = print,
) -> SparkSession:
    """Return a session that knows the catalogs in ``confs``.

    An active session of this process is reused, and missing catalogs are added to it. No setting becomes a process
    argument: a new session reads them from a file that only this user can read.

    Args:
        confs: Spark settings, secret ones too.
        master: A Spark master; by default ``local[*]``.
        remote: A Spark Connect URL (``sc://…``) instead.
        report: Called with messages about slow steps.

    Raises:
        ConfigurationError: If Java is missing or too old, or the session lacks Iceberg.
        JobError: If the Spark Connect server or the master does not respond.
    """
    if remote is not None:
        return with_catalogs(_connect(remote), confs)
    active = active_session()
    if active is not None:
        return with_catalogs(active, confs)
    check_java()
    local = (master or "local[*]").startswith("local")
    settings = {**_defaults(local=local), **confs, "spark.master": master or "local[*]", "spark.app.name": _NAME}
    settings |= jar_confs(settings)
    if settings.get("spark.jars.packages"):
        report(f"fetching {settings['spark.jars.packages']} (once; {JARS_VARIABLE} names a folder of jars instead)")
    return _start(settings)


def active_session() -> SparkSession | None:
    """Return the process's session, if it has one, even in a thread that did not open it."""
    _import_client()
    from pyspark.sql import SparkSession

    session = SparkSession.getActiveSession()
    if session is not None:
        return session
    try:
        from pyspark import SparkContext
    except ImportError:  # only the Connect client is installed
        return None
    return SparkSession.builder.getOrCreate() if SparkContext._active_spark_context is not None else None


def _connect(remote: str) -> SparkSession:
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    address = urlsplit(remote.partition(";")[0])  # a token may follow
    host, port = address.hostname or "", address.port or 15002
    if address.scheme != "sc" or not host:
        raise ConfigurationError("a Spark Connect URL looks like sc://host:15002/;token=…")
    try:
        socket.create_connection((host, port), timeout=10).close()  # gRPC itself retries for minutes
    except OSError as error:
        raise JobError(f"the Spark Connect server {host}:{port} does not respond: {error}") from error
    try:
        _import_client()
        return SparkSession.builder.remote(remote).appName(_NAME).getOrCreate()
    except PySparkException as error:
        if error.getCondition() != "SESSION_ALREADY_EXIST":
            raise
        raise ConfigurationError(
            f"this process has a classic Spark session: it cannot open one to {host}:{port} beside it"
        ) from error


def _has_spark() -> bool:
    """Whether PySpark can start a driver: the client of Spark Connect has neither module, and Spark 3.5 the second."""
    return any(find_spec(name) is not None for name in ("pyspark.core", "pyspark.context"))


def _import_client() -> None:
    """Import the client of Spark Connect, if there is no Spark but it, in a program without a file.

    Such programs are ``python -c``, and Airflow's tasks with ``run_as_user`` or on macOS. pyspark-client 4.2.0 takes
    them for its own doctests, and ends them when it is imported.
    """
    program = sys.modules["__main__"]
    if hasattr(program, "__file__") or _has_spark():
        return
    program.__file__ = "<string>"
    try:
        import pyspark.sql.connect  # noqa: F401
    finally:
        del program.__file__


def check_java() -> None:
    """Check that there is a Java that Spark runs on.

    Raises:
        ConfigurationError: If there is none, or it is too old.
    """
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java")
    advice = f"Install Java {OLDEST_JAVA} or newer (a full one) and let JAVA_HOME name its folder."
    if java is None:
        raise ConfigurationError(f"Spark needs Java, and there is none on the PATH. {advice}")
    try:
        answer = subprocess.run([java, "-version"], capture_output=True, text=True, check=True, timeout=60)
    except (OSError, subprocess.SubprocessError) as error:
        raise ConfigurationError(f"Spark needs Java, and {java} does not run: {error}. {advice}") from error
    version = re.search(r'version "(\d+)', answer.stderr + answer.stdout)
    if version and int(version[1]) < OLDEST_JAVA:
        raise ConfigurationError(f"{java} is Java {version[1]}: too old for Spark. {advice}")


def _defaults(*, local: bool) -> dict[str, str]:
    quiet = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        # Spark keeps 1,000 queries and 100,000 tasks in memory for its UI, even if the UI is off.
        # A step's jobs and stages have to be there when it ends: see ExecutorTime in job/context.py.
        "spark.ui.retainedJobs": "100",
        "spark.ui.retainedStages": "100",
        "spark.ui.retainedTasks": "200",
        "spark.sql.ui.retainedExecutions": "20",
    }
    if not local:
        return quiet
    return {
        **quiet,
        "spark.driver.memory": "2g",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
    }


def _start(settings: Mapping[str, str]) -> SparkSession:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    kept: dict[str, Any] = {key: value for key, value in settings.items() if value != ""}
    try:
        if SparkContext._gateway is not None:  # a JVM that is running already takes no more arguments
            return SparkSession.builder.config(map=kept).getOrCreate()
        with scratch_folder() as folder, _submit_arguments(folder, kept), _quiet_stdout():
            return SparkSession.builder.getOrCreate()
    except Exception as error:
        lines = [line for line in str(error).splitlines() if line.strip() and not line.lstrip().startswith("at ")]
        raise JobError(f"Spark did not start: {shortened(' '.join(lines), 500)}") from error


@contextmanager
def _quiet_stdout() -> Iterator[None]:
    """Let Java, which is started meanwhile, write to stderr: that of Spark 3.5 prints what Ivy resolves to stdout."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


@contextmanager
def _submit_arguments(folder: Path, settings: dict[str, str]) -> Iterator[None]:
    """Pass the settings in a file: PySpark would make each one an argument of Java, visible in the process list."""
    users = _users_settings()
    if "spark.driver.extraJavaOptions" not in settings:
        log4j = folder / "log4j2.properties"
        log4j.write_text(log4j_properties("%d{HH:mm:ss} %p %c{1}: %m%n%ex{0}"))
        options = [f"-Dlog4j2.configurationFile={log4j}", "-Dderby.stream.error.file=/dev/null"]
        if settings["spark.master"].startswith("local"):
            options += collector(os.environ, *settings.values(), users)
        settings = {**settings, "spark.driver.extraJavaOptions": " ".join(options)}
    before = os.environ.get("PYSPARK_SUBMIT_ARGS")
    file = write_properties(folder, settings)  # of two lines for one setting the last one counts
    file.write_text("\n".join((users, file.read_text(encoding="ascii"))), encoding="latin-1")
    os.environ["PYSPARK_SUBMIT_ARGS"] = f"--properties-file {file} {before or 'pyspark-shell'}"
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYSPARK_SUBMIT_ARGS"]
        else:
            os.environ["PYSPARK_SUBMIT_ARGS"] = before


def _users_settings() -> str:
    """Return the text of the user's ``spark-defaults.conf``. Spark reads only one file, which begins with it."""
    import pyspark

    path = spark_defaults(os.environ, Path(pyspark.__file__).parent)
    return path.read_text(encoding="latin-1") if path.is_file() else ""


_DELTA = "DeltaSparkSessionExtension"


#: The package and a class of it that a catalog needs, by how the value of a setting begins.
_PACKAGES = {
    "jdbc:sqlite:": ("org.xerial:sqlite-jdbc", "org.sqlite.JDBC"),
    "jdbc:postgresql:": ("org.postgresql:postgresql", "org.postgresql.Driver"),
    "org.apache.iceberg.aws.": ("org.apache.iceberg:iceberg-aws-bundle", "software.amazon.awssdk.services.s3.S3Client"),
    "org.apache.iceberg.gcp.": ("org.apache.iceberg:iceberg-gcp-bundle", "com.google.cloud.storage.Storage"),
    "org.apache.iceberg.azure.": (
        "org.apache.iceberg:iceberg-azure-bundle",
        "com.azure.storage.file.datalake.DataLakeServiceClient",
    ),
}


def with_catalogs(spark: SparkSession, confs: Mapping[str, str]) -> SparkSession:
    """Add the catalogs in ``confs`` that a session lacks; those that it has stay as they are.

    Raises:
        ConfigurationError: The session was started without Iceberg.
    """
    if "IcebergSparkSessionExtensions" not in str(spark.conf.get("spark.sql.extensions", "")):
        raise ConfigurationError(
            "the Spark session was started without Iceberg: start it with the setting spark.sql.extensions="
            "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions and the Iceberg runtime's jar"
        )
    names = {key: key.removeprefix(_CATALOG).partition(".")[0] for key in confs if key.startswith(_CATALOG)}
    if _DELTA not in str(spark.conf.get("spark.sql.extensions", "")):
        names.pop(f"{_CATALOG}spark_catalog", None)  # its class is missing; a job that needs it says so
    # A catalog that the session's owner has configured is kept: two partial configurations must not be mixed.
    known = {name for name in set(names.values()) if spark.conf.get(f"{_CATALOG}{name}", None) is not None}
    added = {key: confs[key] for key, name in names.items() if name not in known}
    _require_classes(spark, added)
    for key, value in added.items():
        spark.conf.set(key, value)
    return spark


def _require_classes(spark: SparkSession, added: Mapping[str, str]) -> None:
    """Check that a session has the packages that catalogs need. Over Spark Connect that cannot be seen.

    Raises:
        ConfigurationError: It lacks one. No setting of a session that runs adds it.
    """
    jvm = getattr(spark, "_jvm", None)
    if jvm is None:
        return
    loadable = getattr(jvm, "org.apache.spark.util.Utils").classIsLoadable
    for begin, (package, needed) in _PACKAGES.items():
        key = next((key for key, value in added.items() if value.startswith(begin)), None)
        if key is not None and not loadable(needed):
            name = key.removeprefix(_CATALOG).partition(".")[0]
            raise ConfigurationError(
                f"catalog {name!r} needs the package {package} (class {needed}), and the Spark session of this process "
                "was started without it: name the package in the session's setting spark.jars.packages when you start "
                "it, or use a process of its own for this catalog"
            )
