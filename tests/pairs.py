# SPDX-License-Identifier: Apache-2.0
"""Run the tests with another Spark or another Iceberg: see ``.ci/pairs.sh``.

``AIRFLOW_MV_TEST_ICEBERG`` names the version of Iceberg. Spark is the one whose PySpark is imported.
"""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from airflow_mv import version


def _to_arrow(frame: Any) -> Any:
    """Return the rows of a frame as Spark 4 does."""
    import pyarrow as pa
    from pyspark.sql.pandas.types import to_arrow_schema

    batches = frame._collect_as_arrow()
    return pa.Table.from_batches(batches) if batches else to_arrow_schema(frame.schema).empty_table()


def _take_pair() -> None:
    """Let all sessions of this process have the pair: importing this module sets the versions that others import."""
    iceberg = os.environ.get("AIRFLOW_MV_TEST_ICEBERG")
    spec = find_spec("pyspark")
    if iceberg is None or spec is None or spec.origin is None:
        return
    jar = next(Path(spec.origin).parent.glob("jars/spark-core_*.jar"))
    from pyspark.sql import DataFrame  # other environments have no Spark

    if not hasattr(DataFrame, "toArrow"):
        DataFrame.toArrow = _to_arrow
    scala, _, spark = jar.stem.removeprefix("spark-core_").partition("-")
    version.RUNTIMES = {f"{version.minor(spark)}_{scala}": iceberg}


_take_pair()
