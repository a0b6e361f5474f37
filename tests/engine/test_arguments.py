# SPDX-License-Identifier: Apache-2.0
"""The numbers of arguments that `explain` knows are those of Spark."""

from __future__ import annotations

import pytest
from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import SparkSession

from airflow_mv.extras.explain.mistakes import ARGUMENTS

#: The first of three arguments is a unit.
WITH_UNIT = {"date_add", "dateadd", "date_diff", "datediff"}


def takes(spark: SparkSession, name: str, count: int) -> bool:
    """Whether Spark finds nothing wrong with the number of arguments; their types may be wrong."""
    first = ["DAY"] if name in WITH_UNIT and count > 2 else []
    arguments = ", ".join([*first, *["NULL"] * (count - len(first))])
    try:
        spark.sql(f"SELECT {name}({arguments})").schema  # noqa: B018 (analysed here)
    except AnalysisException as error:
        return "WRONG_NUM_ARGS" not in str(error) and not isinstance(error, ParseException)
    return True


@pytest.mark.parametrize("name", sorted(ARGUMENTS))
def test_spark_takes_as_many_arguments(spark: SparkSession, name: str) -> None:
    least, most = ARGUMENTS[name]
    assert takes(spark, name, least)
    assert takes(spark, name, least + 5 if most is None else most)
    assert least == 0 or not takes(spark, name, least - 1)
    # With a unit and one argument too many Spark reads the unit as a column, and names that first.
    assert most is None or name in WITH_UNIT or not takes(spark, name, most + 1)
