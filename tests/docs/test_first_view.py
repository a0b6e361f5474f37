# SPDX-License-Identifier: Apache-2.0
"""A reader who copies the commands of docs/first-view.md sees what it shows."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "first-view.md").read_text(encoding="utf-8")
#: The programs of another environment, into which a build was installed.
BIN_VARIABLE = "AIRFLOW_MV_TEST_BIN"
#: Ids and times, which differ from run to run.
_VARYING = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|\d{15,19}|\d{4}-\d{2}-\d{2}T[\d:]+Z")


def blocks(kind: str) -> list[str]:
    return re.findall(rf"<!-- {kind} -->\n```\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.slow
def test_the_commands_of_the_first_view_print_what_the_page_shows(tmp_path: Path) -> None:
    commands = "\n".join(["set -euo pipefail", *blocks("run"), 'test ! -e "$HOME/first-view"'])
    path = f"{os.environ.get(BIN_VARIABLE, Path(sys.executable).parent)}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", commands],
        cwd=tmp_path,
        env={**os.environ, "HOME": str(tmp_path), "PATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    printed = _VARYING.sub("…", done.stdout)
    shown = [_VARYING.sub("…", block) for block in blocks("output")]
    assert shown
    # A read has no order. The plan chooses between two modes that take about as long, by the speed of the machine.
    assert [line for block in shown for line in block.splitlines() if line not in printed.splitlines()] == [], printed
    assert re.search(r"(?m)^\* .* (merge|full) ", done.stdout), printed
