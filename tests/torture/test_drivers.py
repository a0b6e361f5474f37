# SPDX-License-Identifier: Apache-2.0
"""A real spark-submit driver is killed at different moments; Airflow's own retry completes the refresh."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pyarrow as pa
import pytest

from tests.airflow.conftest import SMALL, VIEW, Airflow
from tests.builders import Lake, orders
from tests.torture.history import moves, watch

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(900)]

#: Enough rows for the job to write for a while.
ROWS = 1200
SQUARE = "SELECT a.id * 100000 + b.id AS pair, a.region FROM lake.sales.orders a CROSS JOIN lake.sales.orders b"


@dataclass
class Killer:
    """Waits for a moment of the job, and kills one of the driver's processes.

    Args:
        folder: The view's folder, whose name is in the driver's arguments.
        program: ``java`` or ``python``: which of the driver's two processes is killed.
        due: Whether the moment has come.
    """

    folder: Path
    program: str
    due: Callable[[Path], bool]
    killed: list[int] = field(default_factory=list)
    _end: threading.Event = field(default_factory=threading.Event)

    def watch(self) -> None:
        """Poll without pause, and kill once."""
        while not self._end.wait(0.002) and not self.killed:
            if self.due(self.folder):
                for process in self._drivers():
                    with suppress(psutil.NoSuchProcess):
                        process.kill()
                        self.killed.append(process.pid)

    def _drivers(self) -> Iterator[psutil.Process]:
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if self.folder.name in " ".join(process.cmdline()) and process.name().startswith(self.program):
                    yield process

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Run in a thread."""
        thread = threading.Thread(target=self.watch)
        thread.start()
        try:
            yield
        finally:
            self._end.set()
            thread.join()


def any_time(folder: Path) -> bool:
    """As soon as the process exists."""
    return True


def data_is_written(folder: Path) -> bool:
    """When the first data file exists, which is not complete."""
    return any(folder.rglob("*.parquet"))


def table_is_written(folder: Path) -> bool:
    """When the job has committed to its staged table; the outcome does not exist yet, or only just."""
    return len(list(folder.rglob("storage-*/metadata/*.metadata.json"))) > 1


def outcome_is_there(folder: Path) -> bool:
    """When all is written and the driver has not ended yet."""
    return any(not path.name.endswith(".script.json") for path in folder.rglob("staged/*.json"))


@pytest.mark.parametrize(
    ("program", "due", "jobs"),
    [
        pytest.param("java", any_time, 2, id="java-at-start", marks=pytest.mark.slow),
        pytest.param("python", any_time, 2, id="python-at-start", marks=pytest.mark.slow),
        pytest.param("java", data_is_written, 2, id="java-during-the-data", marks=pytest.mark.slow),
        pytest.param("python", data_is_written, 2, id="python-during-the-data", marks=pytest.mark.slow),
        pytest.param("java", table_is_written, None, id="java-after-the-data", marks=pytest.mark.slow),
        pytest.param("java", outcome_is_there, 1, id="java-after-the-outcome", marks=pytest.mark.slow),
    ],
)
def test_a_killed_driver_costs_a_retry_and_the_refresh_is_published_once(
    airflow: Airflow,
    sales: Lake,
    figures: Callable[..., None],
    program: str,
    due: Callable[[Path], bool],
    jobs: int | None,
) -> None:
    """One swap, one asset event, correct rows; a completed job is not run again (airflow #17479)."""
    sales.load().append(_numbers(ROWS))
    sales.view(sql=SQUARE)
    watch(sales.iceberg.engine)
    folder = Path(sales.catalog.load(VIEW).metadata.location.removeprefix("file://"))
    killer = Killer(folder, program, due)
    started = time.monotonic()
    with killer.at_work():
        run = airflow.run(f"""
            RefreshMaterializedViewOperator(
                task_id="refresh", view="{VIEW}", conf={SMALL}, retries=1, retry_delay=timedelta(0)
            )
        """)
    assert killer.killed
    assert run.state == "success", run.log
    assert jobs in (None, run.log.count("Spark-Submit cmd")), run.log
    assert run.values["refresh"]["outcome"] == "refreshed"
    assert len(moves(sales.iceberg.engine)) == 1
    assert len(run.events) == 1
    pairs = [row["pair"] for row in sales.read()]
    assert len(set(pairs)) == len(pairs) == (ROWS + 3) ** 2
    figures(killed=len(killer.killed), jobs=run.log.count("Spark-Submit cmd"), seconds=time.monotonic() - started)


def _numbers(count: int) -> pa.Table:
    return orders((number, "north", number) for number in range(10, count + 10))
