# SPDX-License-Identifier: Apache-2.0
"""Spark's jars: those that are on this machine already cost no resolution at each start."""

from __future__ import annotations

import os
import re
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

#: A folder of jars, so that nothing is downloaded.
JARS_VARIABLE = "AIRFLOW_MV_JARS"
#: Packages whose one jar is enough: their names alone tell whether all is there.
_SELF_CONTAINED = re.compile(
    r"org\.apache\.iceberg:iceberg-(spark-runtime-[\w.]+|(aws|gcp|azure)-bundle)|org\.xerial:sqlite-jdbc"
    r"|org\.postgresql:postgresql"
)


def jar_confs(settings: Mapping[str, str], packages: Sequence[str] = ()) -> dict[str, str]:
    """Return the settings by which Spark finds its packages; those on this machine cost no resolution.

    Args:
        settings: Spark settings, of which ``spark.jars``, ``spark.jars.packages`` and ``spark.jars.ivy`` count.
        packages: Maven coordinates, beside those in ``spark.jars.packages``.
    """
    listed = settings.get("spark.jars.packages", "").split(",")
    wanted = [item for item in dict.fromkeys([*(part.strip() for part in listed), *packages]) if item]
    folders = [Path(os.environ[JARS_VARIABLE])] if os.environ.get(JARS_VARIABLE) else []
    ivy = settings.get("spark.jars.ivy")
    folders.append(Path(ivy, "jars") if ivy else Path.home() / ".ivy2.5.2" / "jars")
    found = [path for item in wanted if (path := _jar(item, folders)) is not None]
    if len(found) < len(wanted):
        return {"spark.jars.packages": ",".join(wanted)}
    given = [settings["spark.jars"]] if settings.get("spark.jars") else []
    return {"spark.jars.packages": "", "spark.jars": ",".join([*given, *map(str, found)])}


def _jar(coordinates: str, folders: Sequence[Path]) -> Path | None:
    group, _, rest = coordinates.partition(":")
    artifact, _, version = rest.partition(":")
    if not _SELF_CONTAINED.fullmatch(f"{group}:{artifact}"):
        return None
    for folder in folders:
        for name in (f"{group}_{artifact}-{version}.jar", f"{artifact}-{version}.jar"):
            if zipfile.is_zipfile(folder / name):  # Ivy may be writing it just now
                return folder / name
    return None
