# SPDX-License-Identifier: Apache-2.0
"""The process in which Airflow runs the demo's DAG, and what its database tells about the tasks meanwhile."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing, nullcontext, suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from airflow_mv.errors import JobError
from examples.demo.airflow_run import DAG_ID, settings
from examples.demo.bar import console
from examples.demo.home import DemoHome

_POLL_SECONDS = 0.2
_LOG_TAIL = 40


@dataclass(frozen=True, slots=True)
class TaskRow:
    """A finished task of the demo's run."""

    task_id: str
    state: str
    seconds: float


class AirflowProcess:
    """A process that prepares Airflow at once, and runs the DAG after :meth:`start`.

    Args:
        home: The demo's folder.
    """

    def __init__(self, home: DemoHome) -> None:
        home.airflow_home.mkdir(parents=True, exist_ok=True)
        self._log_file, self._results = home.log_file, home.folder / "results.json"
        self._results.unlink(missing_ok=True)
        self._database = home.airflow_home / "airflow.db"
        self._before = [run_id for (run_id,) in _query(self._database, "SELECT run_id FROM dag_run")]
        #: The tasks that have finished, and what they returned.
        self.tasks: list[TaskRow] = []
        self.values: dict[str, Any] = {}
        with home.log_file.open("w", encoding="utf-8") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "examples.demo.airflow_run", str(self._results)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **settings()},
            )

    def start(self) -> None:
        """Let Airflow run the DAG."""
        with suppress(BrokenPipeError), self._process.stdin or nullcontext() as told:
            # Without a reader the process has ended; the log says why.
            if told is not None:
                told.write(b"run\n")

    def wait(self, report: Callable[[TaskRow, float], None]) -> None:
        """Wait until the DAG's run has ended.

        Args:
            report: Called with each task that has finished, and with the share of the tasks that have.

        Raises:
            JobError: The run failed; the message names the log.
        """
        while self._process.poll() is None:
            time.sleep(_POLL_SECONDS)
            self._tell_new(report)
        self._tell_new(report)
        if self._process.returncode != 0 or not self._results.exists():
            tail = self._log_file.read_text(encoding="utf-8", errors="replace").splitlines()[-_LOG_TAIL:]
            console.print("\n".join(tail), markup=False, style="dim")
            raise JobError(f"the DAG {DAG_ID} failed; the whole log is {self._log_file}")
        self.values = json.loads(self._results.read_text(encoding="utf-8"))

    @property
    def has_refreshed(self) -> bool:
        """Whether a view got new rows."""
        return any(isinstance(value, dict) and value.get("rows_written") for value in self.values.values())

    def close(self) -> None:
        """End the process, if it still runs."""
        if self._process.poll() is None:
            self._process.terminate()
            self._process.wait()

    def _tell_new(self, report: Callable[[TaskRow, float], None]) -> None:
        known = {row.task_id for row in self.tasks}
        found = [row for run_id, *row in _query(self._database, _TASKS, DAG_ID) if run_id not in self._before]
        for name, state, start, end in found:
            if end is not None and state in _FINISHED and name not in known:
                self.tasks.append(TaskRow(name, state, _seconds(start, end)))
                report(self.tasks[-1], len(self.tasks) / len(found))


_FINISHED = ("success", "failed", "upstream_failed", "skipped")
_TASKS = "SELECT run_id, task_id, state, start_date, end_date FROM task_instance WHERE dag_id = ? ORDER BY end_date"


def _query(database: os.PathLike[str], sql: str, *values: Any) -> list[tuple[Any, ...]]:
    try:
        with closing(sqlite3.connect(f"file:{os.fspath(database)}?mode=ro", uri=True, timeout=5)) as connection:
            return connection.execute(sql, values).fetchall()
    except sqlite3.OperationalError:
        return []  # the tables are not there yet, or Airflow is writing: look again later


def _seconds(start: str | None, end: str | None) -> float:
    if not start or not end:
        return 0.0
    return (datetime.fromisoformat(end) - datetime.fromisoformat(start)).total_seconds()
