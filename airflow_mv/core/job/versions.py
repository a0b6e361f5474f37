# SPDX-License-Identifier: Apache-2.0
"""The features of a driver's Spark and Iceberg.

Versions that the job cannot run on are refused before anything else is imported or read. What the others lack is asked
of their classes: vendors port single features back, and Iceberg's runtimes of one version differ by that of Spark.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

from airflow_mv.errors import UnsupportedError
from airflow_mv.version import OLDEST_PYTHON, SPARK_OVER_CONNECT, minor, unsupported

#: By what may be missing: what happens then. An answer may also be the name of a Java class that does not compile.
_SLOWER = {
    "reads_tasks": "changes are read by metadata tables. Iceberg 1.10 to 1.12 read sets of scan tasks",
    "PositionDeletes": "stored rows are deleted by a DELETE, which reads them again. Iceberg 1.10 to 1.12 need not",
    "RowLineage": "rewritten rows are compared by their values. Spark 4.0 and 4.1 use row ids",
}
#: The answers, by the driver's Java and the question.
_answers: WeakKeyDictionary[Any, dict[str, bool]] = WeakKeyDictionary()


def require_python() -> None:
    """Refuse a Python that cannot import the job's modules.

    Raises:
        UnsupportedError: It is too old.
    """
    if sys.version_info < OLDEST_PYTHON:
        found, oldest = (".".join(map(str, version[:2])) for version in (sys.version_info, OLDEST_PYTHON))
        raise UnsupportedError(
            f"Python {found} ({sys.executable}) is not supported; the driver needs {oldest} or newer: "
            "spark.pyspark.driver.python names another one"
        )


def require_supported(spark: Any) -> None:
    """Refuse a session of unsupported versions of Spark, Scala or Iceberg.

    Args:
        spark: The session, classic or Connect. Over Connect only the server's version of Spark is known.

    Raises:
        UnsupportedError: The versions are not supported, or Iceberg is missing.
    """
    jvm = getattr(spark, "_jvm", None)
    if jvm is None:
        refusal = unsupported(spark.version, None, None)
        if refusal is None and minor(spark.version) != SPARK_OVER_CONNECT:
            refusal = f"Spark Connect on Spark {spark.version} is not supported, only on Spark {SPARK_OVER_CONNECT}"
    else:
        scala = str(getattr(jvm, "scala.util.Properties").versionNumberString())
        refusal = unsupported(spark.version, scala, iceberg_version(jvm))
    if refusal is not None:
        raise UnsupportedError(refusal)


def iceberg_version(jvm: Any) -> str:
    """Return Iceberg's version in a driver.

    Raises:
        UnsupportedError: Spark has no Iceberg.
    """
    try:
        return str(getattr(jvm, "org.apache.iceberg.IcebergBuild").version())
    except TypeError:  # for py4j an unknown class is a package, which cannot be called
        raise UnsupportedError(
            "Spark was started without Iceberg: give it the plan's packages, or the jar of Iceberg's Spark runtime"
        ) from None


class Capabilities:
    """The features of a classic session's Spark and Iceberg. Each is looked up once in a process.

    Args:
        jvm: The driver's Java, by py4j.
    """

    def __init__(self, jvm: Any) -> None:
        self._jvm = jvm

    def stamps_by_setting(self) -> bool:
        """Whether Iceberg adds the settings ``spark.sql.iceberg.snapshot-property.*`` to the summary of a snapshot."""
        return self.has("org.apache.iceberg.spark.SparkSQLProperties", "SNAPSHOT_PROPERTY_PREFIX")

    def reads_tasks_by_option(self) -> bool:
        """Whether the name of a set of scan tasks is an option of the reader. Else a table of that name is the set."""
        return self.has("org.apache.iceberg.spark.SparkReadOptions", "SCAN_TASK_SET_ID")

    def slower(self) -> list[str]:
        """Return what was found to be missing, in a line for each with the versions that have it."""
        known = _answers.setdefault(self._jvm, {})
        return [f"slower here: {line}" for question, line in _SLOWER.items() if known.get(question) is False]

    def answer(self, question: str, asked: Callable[[], bool]) -> bool:
        """Return the answer to a question, which is asked once in a process."""
        known = _answers.setdefault(self._jvm, {})
        if question not in known:
            known[question] = asked()
        return known[question]

    def has(self, name: str, member: str = "") -> bool:
        """Whether there is a Java class, and whether it has a static field or method."""
        if not member:
            return self.answer(
                name, lambda: bool(getattr(self._jvm, "org.apache.spark.util.Utils").classIsLoadable(name))
            )
        return self.answer(member, lambda: member in dir(getattr(self._jvm, name)))
