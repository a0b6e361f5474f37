# SPDX-License-Identifier: Apache-2.0
"""Which versions of Spark the job accepts, and what it says about others."""

from __future__ import annotations

import pytest

from airflow_mv.version import unsupported

SUPPORTED = (
    "supported are Spark 4.1 with Iceberg 1.11 or newer, Spark 4.0 with Iceberg 1.10 or newer, each for Scala 2.13"
)


@pytest.mark.parametrize(
    ("spark", "scala", "iceberg"),
    [
        ("4.1.3", "2.13.17", "1.12.0"),
        ("4.1.3", "2.13.17", "1.13.1"),
        ("4.0.2-amzn-0", "2.13.16", "1.10.1-amzn-0"),
        ("4.0.2", None, None),  # a Connect server
    ],
)
def test_supported_versions_are_accepted(spark: str, scala: str | None, iceberg: str | None) -> None:
    assert unsupported(spark, scala, iceberg) is None


@pytest.mark.parametrize(
    ("spark", "scala", "iceberg", "found"),
    [
        ("3.5.8", "2.13.8", "1.10.2", "Spark 3.5.8 with Iceberg 1.10.2"),
        ("3.5.6-amzn-1", "2.12.18", "1.12.0", "Spark 3.5.6-amzn-1 (Scala 2.12.18) with Iceberg 1.12.0"),
        ("4.0.2", "2.13.16", "1.9.2", "Spark 4.0.2 with Iceberg 1.9.2"),
        ("4.2.0", None, None, "Spark 4.2.0"),
    ],
)
def test_others_are_refused_with_what_is_supported(
    spark: str, scala: str | None, iceberg: str | None, found: str
) -> None:
    assert unsupported(spark, scala, iceberg) == f"{found} is not supported; {SUPPORTED}"
