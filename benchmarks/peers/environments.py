# SPDX-License-Identifier: Apache-2.0
"""Python environments of the tools, apart from the project's own."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

#: dbt-core 1.12 needs a parser that its installation downloads from elsewhere.
DBT = ("dbt-core==1.11.16", "dbt-spark==1.11.0", "pyspark==4.1.3")
PIPELINES = ("pyspark[pipelines]==4.1.3",)


def environment(cache: Path, name: str, packages: tuple[str, ...]) -> Path:
    """Return the folder of an environment's programs. It is made once for these packages, by ``uv``."""
    folder = cache.resolve() / "peers" / name
    stamp, wanted = folder / "packages", "\n".join(packages)
    if not (stamp.is_file() and stamp.read_text() == wanted):
        shutil.rmtree(folder, ignore_errors=True)
        uv = str(Path(sys.executable).with_name("uv"))
        subprocess.run([uv, "venv", "-q", "--python", sys.executable, str(folder)], check=True)
        subprocess.run([uv, "pip", "install", "-q", "--python", str(folder / "bin" / "python"), *packages], check=True)
        stamp.write_text(wanted)
    return folder / "bin"
