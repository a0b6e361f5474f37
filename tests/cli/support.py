# SPDX-License-Identifier: Apache-2.0
"""Run the command line as a user does, or in this process to avoid the start of a second Java process."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from airflow_mv.cli import main

PROGRAM = Path(sys.executable).parent / "airflow-mv"


@dataclass(frozen=True)
class Ended:
    """The result of a call."""

    code: int
    stdout: str
    stderr: str

    @property
    def json(self) -> Any:
        """The one JSON document on stdout."""
        assert self.stdout, self.stderr
        return json.loads(self.stdout)

    @property
    def error(self) -> str:
        """The one error: the last line, but for two that quote a place in SQL."""
        assert self.stdout == ""
        assert "Traceback" not in self.stderr
        lines = self.stderr.strip().splitlines()
        if lines[-1].strip() == "^":
            lines = lines[:-2]
        assert not any(line.startswith(("error: ", '{"error": ')) for line in lines[:-1])
        if lines[-1].startswith('{"error": '):
            return str(json.loads(lines[-1])["error"]["message"])
        assert lines[-1].startswith("error: "), self.stderr
        return lines[-1].removeprefix("error: ")


def call(*arguments: str, stdin: str | None = None) -> Ended:
    """Call the command line in this process, which may have an open Spark session."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    try:
        result = CliRunner().invoke(main, list(arguments), input=stdin)
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Ended(result.exit_code, result.stdout, result.stderr)


def execute(*arguments: str, folder: Path, variables: Mapping[str, str] | None = None) -> Ended:
    """Execute the installed program in an empty folder."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYICEBERG_CATALOG")}
    environment |= {**(variables or {}), "PYICEBERG_HOME": str(folder)}
    done = subprocess.run(
        [str(PROGRAM), *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    return Ended(done.returncode, done.stdout, done.stderr)
