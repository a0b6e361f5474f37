# SPDX-License-Identifier: Apache-2.0
"""Count the files that a command enters: a process of its own for each kind of walk, so that nothing is cached yet.

``python -m tests.structure.walks core|cli|operator FOLDER`` prints a JSON object for each walk.
"""

from __future__ import annotations

import inspect
import json
import os
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

VIEW = "lake.sales.daily"
PACKAGE = "/airflow_mv/"
#: On small tables a full refresh is estimated to be faster.
INCREMENTAL = "airflow-mv.incremental-up-to=1e9"


class Walk:
    """The files of the package in which a function was called, and the number of moves from one file to another."""

    def __init__(self) -> None:
        self.files: set[str] = set()
        self.moves = 0
        self._last: str | None = None

    def note(self, frame: FrameType, event: str, _: Any) -> None:
        """Take an event of the interpreter's profiler."""
        name = frame.f_code.co_filename
        # Code without fast locals is that of modules and classes: it runs when a file is imported.
        if event != "call" or PACKAGE not in name or not frame.f_code.co_flags & inspect.CO_OPTIMIZED:
            return
        file = f"airflow_mv/{name.rpartition(PACKAGE)[2]}"
        self.files.add(file)
        self.moves += self._last not in (None, file)
        self._last = file


@contextmanager
def recorded(name: str) -> Iterator[None]:
    """Print what was entered."""
    walk = Walk()
    threading.setprofile(walk.note)
    sys.setprofile(walk.note)
    try:
        yield
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    print(json.dumps({"walk": name, "files": sorted(walk.files), "moves": walk.moves}), flush=True)


def core(folder: Path) -> None:
    """The functions that Python programs call; the driver's work is done by DuckDB, so its files are left out."""
    from airflow_mv.common.status import statuses
    from airflow_mv.core.refresh.choose import plan_refresh
    from tests.builders import lake

    with lake(f"sqlite:///{folder}/catalog.db", folder) as home:
        home.table()
        with recorded("create"):
            home.view(refresh_strategy="incremental", properties=dict([INCREMENTAL.split("=")]))
        with recorded("status"):
            (document,) = statuses(home.catalog, [home.catalog.identify(VIEW)])
        assert document["state"] == "never-refreshed"
        with recorded("refresh"):
            assert home.refresh().mode == "full"
        home.append()
        with recorded("incremental plan"):
            assert plan_refresh(home.catalog, VIEW).mode in ("merge", "replace-keys")


def cli(folder: Path) -> None:
    """The command line, with a real Spark session in this process."""
    from tests.builders import QUERY, lake
    from tests.cli.support import call
    from tests.engine.support import configure

    configure(folder, "lake")
    with lake(f"sqlite:///{folder}/lake.db", folder / "lake") as home:
        home.table()
        steps = {"create": ("--sql", QUERY, "--property", INCREMENTAL), "status": (), "refresh": ()}
        for command, options in steps.items():
            with recorded(f"airflow-mv {command}"):
                ended = call(command, VIEW, *options)
            assert ended.code == 0, ended.stderr
        home.append()
        with recorded("airflow-mv refresh, incremental"):
            ended = call("refresh", VIEW)
        assert "  merge  " in ended.stdout, ended.stdout


def operator(folder: Path) -> None:
    """The operator's task, whose driver is a process of spark-submit."""
    from airflow.sdk import DAG

    from airflow_mv.operators import RefreshMaterializedViewOperator
    from tests.builders import lake

    extra = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}"}
    os.environ["AIRFLOW_CONN_ICEBERG_DEFAULT"] = json.dumps({"conn_type": "iceberg", "extra": extra})
    os.environ["AIRFLOW_CONN_SPARK_DEFAULT"] = json.dumps({"conn_type": "spark", "host": "local[2]"})
    with lake(extra["uri"], folder) as home:
        home.table()
        home.view()
        now = datetime.now(UTC)
        run = SimpleNamespace(clear_number=0, conf={}, run_after=now, data_interval_start=None, data_interval_end=None)
        context: Any = {"dag_run": run, "outlet_events": defaultdict(SimpleNamespace)}
        with DAG("walk", schedule=None) as dag:
            task = RefreshMaterializedViewOperator(task_id="refresh", view=VIEW, spark_binary=spark_submit())
        with recorded("operator"):
            assert task.execute({**context, "dag": dag})["outcome"] == "refreshed"


def spark_submit() -> str:
    """The program of the installed PySpark."""
    return str(Path(sys.executable).parent / "spark-submit")


WALKS: dict[str, Callable[[Path], None]] = {"core": core, "cli": cli, "operator": operator}

if __name__ == "__main__":
    WALKS[sys.argv[1]](Path(sys.argv[2]))
