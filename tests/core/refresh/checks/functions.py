# SPDX-License-Identifier: Apache-2.0
"""Functions that check staged rows; the Spark driver imports them by name."""

from __future__ import annotations

from pyspark.sql import DataFrame


def no_negatives(rows: DataFrame) -> DataFrame:
    return rows.where("amount < 0")


def enough(rows: DataFrame) -> bool:
    return rows.count() > 1


def broken(rows: DataFrame) -> None:
    raise AssertionError("north is missing")
