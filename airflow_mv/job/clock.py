# SPDX-License-Identifier: Apache-2.0
"""Compare the clock of Spark's driver with the store's, before the driver commits to a table of the catalog.

A snapshot has the driver's time. In a table of the catalog this matters as soon as it is written, on a branch too: a
snapshot in the future prevents hosts with a correct clock from changing the table until that time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyspark.sql import SparkSession

from airflow_mv.errors import ClockError
from airflow_mv.script import MAX_AHEAD_MS


def require_clock(spark: SparkSession, store_ms: Callable[[], int], view: str) -> None:
    """Check that the driver's clock is not ahead of the store's.

    Args:
        spark: A session, classic or Connect.
        store_ms: Returns the store's clock. It is read after the driver's clock, so that a delay cannot cause a false
            alarm.
        view: For the message.

    Raises:
        ClockError: It is ahead by more than :data:`MAX_AHEAD_MS`.
    """
    driver_ms = _driver_ms(spark)
    ahead_ms = driver_ms - store_ms()
    if ahead_ms > MAX_AHEAD_MS:
        raise ClockError(
            f"view {view}: the clock of Spark's driver ({_host(spark)}) is {ahead_ms / 1000:.0f} s ahead of the "
            f"store's clock; up to {MAX_AHEAD_MS / 1000:.0f} s are allowed. Nothing was written. Set that clock right, "
            "then run the refresh again"
        )


def _driver_ms(spark: SparkSession) -> int:
    jvm: Any = getattr(spark, "_jvm", None)
    if jvm is not None:
        return int(jvm.java.lang.System.currentTimeMillis())
    row = spark.sql("SELECT unix_millis(current_timestamp())").first()
    return int(row[0]) if row else 0


def _host(spark: SparkSession) -> str:
    return str(spark.conf.get("spark.driver.host", None) or "host unknown")
