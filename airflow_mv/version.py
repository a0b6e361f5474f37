# SPDX-License-Identifier: Apache-2.0
"""The version of this package, and the versions of what the Spark job runs on. Standard library only."""

from __future__ import annotations

import re
from collections.abc import Mapping

__version__ = "0.1.0"

#: Supported minor versions of Spark, newest first, each with the newest Iceberg that has a runtime for it.
ICEBERG_FOR_SPARK: Mapping[str, str] = {"4.1": "1.12.0", "4.0": "1.11.0"}
#: The oldest Iceberg that is tested.
OLDEST_ICEBERG = "1.10"
SCALA = "2.13"
#: The version of Delta Lake for these versions of Spark.
DELTA = "4.4.0"
OLDEST_PYTHON = (3, 11)
#: Over Spark Connect only a plan's text is available, and Spark 4.0's has no snapshots.
SPARK_OVER_CONNECT = "4.1"


def minor(version: str) -> str:
    """Return ``4.1`` for ``4.1.3`` or a vendor's ``4.1.3-amzn-0``; the text itself if it is not a version."""
    found = re.match(r"\d+\.\d+", version)
    return found[0] if found else version


def unsupported(spark: str, scala: str | None, iceberg: str | None) -> str | None:
    """Return one line that says why the job does not run on these versions; ``None`` if it does.

    Args:
        spark: Spark's version.
        scala: The version of the Scala library that Spark runs with; ``None`` if it is not known.
        iceberg: Iceberg's version; ``None`` if it is not known.
    """
    release = minor(spark)
    fits = (
        release in ICEBERG_FOR_SPARK
        and (scala is None or minor(scala) == SCALA)
        and (iceberg is None or _numbers(iceberg) >= _numbers(OLDEST_ICEBERG))
    )
    if fits:
        return None
    found = f"Spark {spark}" + (f" (Scala {scala})" if scala and minor(scala) != SCALA else "")
    found += f" with Iceberg {iceberg}" if iceberg else ""
    return f"{found} is not supported; supported are {supported()}"


def supported() -> str:
    """Return the supported versions in words."""
    return f"Spark {' and '.join(ICEBERG_FOR_SPARK)} with Iceberg {OLDEST_ICEBERG} or newer, for Scala {SCALA}"


def _numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", minor(version))]
