# SPDX-License-Identifier: Apache-2.0
"""Merge the spark-submit options that a view needs with those that the user set."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_mv.errors import ConfigurationError

if TYPE_CHECKING:
    from airflow_mv.extras.spark.settings import SparkSettings
    from airflow_mv.hooks import SparkTarget

#: Defaults that keep a task's log readable. ``conf`` overrides them.
_QUIET = {"spark.log.level": "ERROR", "spark.ui.showConsoleProgress": "false"}
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_EXTENSIONS = "spark.sql.extensions"
_PACKAGES = "spark.jars.packages"
_OWN_JARS = "spark.jars"
#: By a part of the master.
_DRIVER_ENVIRONMENT = {"yarn": "spark.yarn.appMasterEnv.", "k8s": "spark.kubernetes.driverEnv."}

#: Settings that are environment variables.
_VARIABLES = (*_DRIVER_ENVIRONMENT.values(), "spark.executorEnv.")


@dataclass(frozen=True, slots=True)
class SubmitOptions:
    """The user's options, rendered.

    Args:
        conf: ``conf``.
        packages: ``packages``; the empty text means none at all.
        jars: ``jars``.
        py_files: ``py_files``.
        properties_file: ``properties_file``.
        environment: The environment of spark-submit.
        spark_binary: ``spark_binary``.
        cluster: Whether the driver runs elsewhere.
    """

    conf: Mapping[str, str]
    packages: str | None
    jars: str | None
    py_files: str | None
    properties_file: str | None
    environment: Mapping[str, str]
    spark_binary: str | None
    cluster: bool


def submit_options(given: SubmitOptions, settings: SparkSettings, target: SparkTarget, folder: Path) -> dict[str, Any]:
    """Return the arguments of a ``SparkSubmitHook`` for one submission: the view's, merged with the user's.

    Args:
        given: The user's options.
        settings: The settings of the view's catalogs.
        target: The Spark connection.
        folder: Where the files for this submission are written; only this user may enter it.

    Raises:
        ConfigurationError: There is no spark-submit, it is of an unsupported version, or the user's properties file is
            missing.
    """
    from airflow_mv.extras.spark.submit import build_package, collector, spark_versions, write_properties
    from airflow_mv.foundation.redaction import is_secret

    binary = spark_submit(given, target)
    settings = settings.on(*spark_versions(_spark_home(given, binary)))
    # A variable's name often does not show that its value is a secret.
    secret = {key: value for key, value in given.conf.items() if key.startswith(_VARIABLES) or is_secret(key, value)}
    plain = {key: value for key, value in given.conf.items() if key not in (*secret, _PACKAGES, _OWN_JARS)}
    users = _users_settings(given, binary)
    local = (target.master or "").startswith("local") and not given.cluster
    chosen = collector(given.environment, *given.conf.values(), users) if local else []
    ours = {**_QUIET, **settings.confs, **_python(given), **_java(given, folder, binary, chosen)}
    if _EXTENSIONS in plain:
        plain[_EXTENSIONS] = _joined([settings.confs.get(_EXTENSIONS, ""), plain[_EXTENSIONS]])
    file = write_properties(folder, ours, {**settings.secrets, **secret})
    _add_users_settings(file, given, users)
    return {
        "conf": plain,
        **_jars(given, settings.packages),
        "py_files": _joined([str(build_package(folder)), given.py_files or ""]),
        "properties_file": str(file),
        "spark_binary": binary,
    }


def environment_settings(master: str | None, variables: Mapping[str, str]) -> dict[str, str]:
    """Return the Spark settings by which a driver in YARN or Kubernetes gets environment variables.

    The provider would add the same settings as arguments of ``spark-submit``, which all users of the host can read.

    Args:
        master: The Spark master.
    """
    for kind, prefix in _DRIVER_ENVIRONMENT.items():
        if kind in (master or ""):
            return {f"{prefix}{name}": value for name, value in variables.items()}
    return {}


def _jars(given: SubmitOptions, needed: Iterable[str]) -> dict[str, str | None]:
    """Let Spark resolve the packages, unless all of them and the driver are on this machine."""
    from airflow_mv.extras.spark.submit import jar_confs

    asked = packages(given, needed)
    jars = _joined([given.jars or "", given.conf.get(_OWN_JARS, "")])
    if asked is None or given.cluster:
        return {"packages": asked, "jars": jars or None}
    found = jar_confs({**given.conf, _PACKAGES: asked, _OWN_JARS: jars})
    return {"packages": found[_PACKAGES] or None, "jars": found.get(_OWN_JARS) or jars or None}


def packages(given: SubmitOptions, needed: Iterable[str]) -> str | None:
    """Return the Maven packages to request: the needed ones, unless the user gives others or none."""
    if given.packages == "":
        return None
    own = _joined([given.packages or "", given.conf.get(_PACKAGES, "")]).split(",")
    own = [package.strip() for package in own if package.strip()]
    artifacts = {package.rpartition(":")[0] for package in own}
    jars = [jar.rsplit("/", 1)[-1] for jar in f"{given.jars or ''},{given.conf.get(_OWN_JARS, '')}".split(",")]
    missing = [
        package
        for package in needed
        if package.rpartition(":")[0] not in artifacts
        and not any(jar.startswith(f"{package.split(':')[1]}-") for jar in jars)
    ]
    return ",".join([*missing, *own]) or None


def spark_submit(given: SubmitOptions, target: SparkTarget) -> str:
    """Find the program: as given, as the connection names it, on the PATH, or pip's beside this Python.

    Raises:
        ConfigurationError: There is none.
    """
    from airflow_mv.extras.spark.submit import packaged

    path = given.environment.get("PATH")
    if given.spark_binary:
        return packaged(shutil.which(given.spark_binary, path=path) or given.spark_binary)
    if on_path := shutil.which(target.binary or "spark-submit", path=path):
        return packaged(on_path)
    spec = importlib.util.find_spec("pyspark")
    for folder in (spec.submodule_search_locations if spec else None) or ():
        program = Path(folder, "bin", "spark-submit")
        if program.exists():
            return str(program)
    raise ConfigurationError(
        f"connection {target.conn_id!r} has the master {target.master}, but this worker has no "
        f"{target.binary or 'spark-submit'}. Install the extra airflow-mv[spark], put Spark's bin folder on the PATH, "
        "or set spark_binary; a connection of type spark_connect needs none"
    )


def _python(given: SubmitOptions) -> dict[str, str]:
    """Make a driver on this machine use this Python, unless the user set another one."""
    chosen = {"PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"} & given.environment.keys()
    if given.cluster or chosen or "spark.pyspark.python" in given.conf:
        return {}
    return {"spark.pyspark.driver.python": sys.executable}


def _java(given: SubmitOptions, folder: Path, binary: str, more: Iterable[str]) -> dict[str, str]:
    """Keep Derby's log file out of the working folder, and Spark's startup lines out of the task's log.

    Args:
        given: The user's options.
        folder: Where a file may be written.
        binary: The spark-submit.
        more: Further options for Java.
    """
    from airflow_mv.extras.spark.submit import log4j_properties

    if _JAVA_OPTIONS in given.conf:
        return {}
    options = ["-Dderby.stream.error.file=/dev/null", *more]
    theirs = any(path.suffix != ".template" for path in _spark_defaults(given, binary).parent.glob("log4j2.*"))
    if not given.cluster and not theirs and not set(str(folder)) & set(" \t\"'\\"):
        file = folder / "log4j2.properties"
        # Until `spark.log.level` takes effect, Spark uses its own logging file, in the same format as here.
        file.write_text(log4j_properties("%d{yy/MM/dd HH:mm:ss} %p %c{1}: %m%n%ex"), encoding="ascii")
        options.append(f"-Dlog4j2.configurationFile={file.as_uri()}")
    return {_JAVA_OPTIONS: " ".join(options)}


def _spark_defaults(given: SubmitOptions, binary: str) -> Path:
    from airflow_mv.extras.spark.submit import spark_defaults

    return spark_defaults(given.environment, _spark_home(given, binary))


def _spark_home(given: SubmitOptions, binary: str) -> Path:
    return Path(given.environment.get("SPARK_HOME") or Path(binary).resolve().parent.parent)


def _users_settings(given: SubmitOptions, binary: str) -> str:
    """Return the text of the user's properties file, or of spark-defaults.conf: spark-submit reads only one file."""
    if given.properties_file:
        path = Path(given.properties_file)
        if not path.is_file():
            raise ConfigurationError(f"properties_file {given.properties_file!r} does not exist on this worker")
    else:
        path = _spark_defaults(given, binary)
    return path.read_text(encoding="latin-1") if path.is_file() else ""


def _add_users_settings(file: Path, given: SubmitOptions, users: str) -> None:
    """Merge the user's settings into our file.

    In a properties file the last line of a setting counts: ours overrides spark-defaults.conf, but not a file that
    the user gave.
    """
    ours = file.read_text(encoding="ascii")
    if users:
        parts = (ours, users) if given.properties_file else (users, ours)
        file.write_text("\n".join(parts), encoding="latin-1")


def _joined(lists: Iterable[str]) -> str:
    return ",".join(dict.fromkeys(item.strip() for text in lists for item in text.split(",") if item.strip()))
