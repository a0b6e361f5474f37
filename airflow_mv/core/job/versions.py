# SPDX-License-Identifier: Apache-2.0
"""Refuse a Spark that the job cannot run on, before anything else is imported or read."""

from __future__ import annotations

import sys
from typing import Any

from airflow_mv.errors import UnsupportedError
from airflow_mv.version import OLDEST_PYTHON, SPARK_OVER_CONNECT, minor, unsupported


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
