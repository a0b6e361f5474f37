# SPDX-License-Identifier: Apache-2.0
"""The version of this package, and the versions of what the Spark job runs on. Standard library only."""

from __future__ import annotations

import re
from collections.abc import Mapping

__version__ = "0.1.0"

#: The newest Iceberg that has a runtime for a supported Spark and Scala, as the runtime's name has them. The newest
#: Spark is first, and of each the Scala that its PyPI package has.
RUNTIMES: Mapping[str, str] = {"4.1_2.13": "1.12.0", "4.0_2.13": "1.11.0", "3.5_2.12": "1.12.0", "3.5_2.13": "1.11.0"}
#: The oldest Iceberg that is tested.
OLDEST_ICEBERG = "1.10"
#: The version of Delta Lake, which has packages for these versions of Spark.
DELTA = "4.4.0"
SPARK_WITH_DELTA = ("4.1", "4.0")
OLDEST_PYTHON = (3, 11)
#: Over Spark Connect only a plan's text is available, and Spark 4.0's has no snapshots.
SPARK_OVER_CONNECT = "4.1"


def minor(version: str) -> str:
    """Return ``4.1`` for ``4.1.3`` or a vendor's ``4.1.3-amzn-0``; the text itself if it is not a version."""
    found = re.match(r"\d+\.\d+", version)
    return found[0] if found else version


def runtime(spark: str, scala: str | None = None) -> str | None:
    """Return the key in :data:`RUNTIMES` of these versions; ``None`` if they are not supported.

    Args:
        spark: Spark's version.
        scala: The version of its Scala library; ``None`` if unknown.
    """
    wanted = f"{minor(spark)}_{minor(scala) if scala else ''}"
    return next((name for name in RUNTIMES if name == wanted or (scala is None and name.startswith(wanted))), None)


def unsupported(spark: str, scala: str | None, iceberg: str | None) -> str | None:
    """Return one line that says why the job does not run on these versions; ``None`` if it does.

    Args:
        spark: Spark's version.
        scala: The version of the Scala library that Spark runs with; ``None`` if unknown.
        iceberg: Iceberg's version; ``None`` if unknown.
    """
    fits = iceberg is None or _numbers(iceberg) >= _numbers(OLDEST_ICEBERG)
    if fits and runtime(spark, scala) is not None:
        return None
    found = f"Spark {spark}" + (f" (Scala {scala})" if scala and runtime(spark, scala) is None else "")
    found += f" with Iceberg {iceberg}" if iceberg else ""
    return f"{found} is not supported; supported are {supported()}"


def supported() -> str:
    """Return the supported versions in words."""
    scalas: dict[str, list[str]] = {}
    for name in RUNTIMES:
        spark, _, scala = name.partition("_")
        scalas.setdefault(spark, []).append(scala)
    each = [f"{spark} (Scala {' or '.join(versions)})" for spark, versions in scalas.items()]
    return f"Spark {', '.join(each)} with Iceberg {OLDEST_ICEBERG} or newer"


def _numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", minor(version))]
