# SPDX-License-Identifier: Apache-2.0
"""Hosts with clocks of their own: each is a process that executes one command after the other, as it is told.

The clocks are those of ``faketime``. File times stay the kernel's: a store has its own clock.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from sqlalchemy.exc import OperationalError

from airflow_mv.actions import create_view as create
from airflow_mv.core.catalog import STORED_LAYOUTS, stored_layout
from airflow_mv.core.catalog.layouts import all_refreshes
from airflow_mv.core.define.definition import Definition
from airflow_mv.core.publish import refresh as publish_refresh
from airflow_mv.core.publish.protocol import Effects
from airflow_mv.core.refresh import RefreshOptions
from airflow_mv.core.refresh.run import refresh
from airflow_mv.core.script import CLOCK, MAX_AHEAD_MS, Outcome, Script
from airflow_mv.errors import MaterializedViewError
from airflow_mv.extras import compact as compaction
from airflow_mv.extras.compact import compact
from airflow_mv.extras.convert import convert
from airflow_mv.extras.history.rollback import rollback
from airflow_mv.extras.history.time_travel import TimeTravel
from airflow_mv.extras.maintenance.drop import purge
from airflow_mv.extras.maintenance.orphans import collect_orphans, expire
from airflow_mv.extras.maintenance.repair import repair
from airflow_mv.extras.maintenance.verify import verify_files
from airflow_mv.extras.read import read_rows, readable
from airflow_mv.extras.registry.settings import PLACE
from airflow_mv.extras.registry.sync import sync
from tests.builders import QUERY, Lake
from tests.torture.history import expected
from tests.torture.victims import Place

#: Longer than twice the longest refresh, also while the database restarts. Staged rows are resumed for half as long.
GRACE_SECONDS = 150.0


@dataclass(frozen=True, slots=True)
class Order:
    """An order to a host.

    Args:
        command: The command.
        view: The view's last name.
        seed: For its choices.
        age_seconds: ``--older-than`` of maintenance.
    """

    command: str
    view: str = "daily"
    seed: int = 0
    age_seconds: float = GRACE_SECONDS

    @property
    def name(self) -> str:
        """The view's name."""
        return f"sales.{self.view}"

    @property
    def age(self) -> timedelta:
        """The grace of maintenance."""
        return timedelta(seconds=self.age_seconds)


def _refresh(lake: Lake, order: Order, *, full: bool = False) -> str:
    options = RefreshOptions(full=full)
    return refresh(lake.catalog, [order.name], stager=lambda script: _staged(lake, script), options=options)[0].outcome


def _staged(lake: Lake, script: Script) -> Outcome:
    """Run a script. As the real job, it commits nothing to a table of the catalog if the host's clock is ahead."""
    if script.branch is not None and Effects().now_ms() - _store_ms(lake) > MAX_AHEAD_MS:
        return Outcome(script.refresh_id, None, error="the clock is ahead of the store's", error_class=CLOCK)
    try:
        return lake.stager(script)
    except Exception as error:  # noqa: BLE001 (as in Spark, the job fails with its own error only)
        return Outcome(script.refresh_id, None, error=f"{type(error).__name__}: {error}")


def _store_ms(lake: Lake) -> int:
    return lake.catalog.files.now_ms(str(lake.iceberg.properties["warehouse"]))


def _compact(lake: Lake, order: Order) -> str:
    return compact(lake.catalog, order.name, stager=lambda script: _staged(lake, script)).outcome


def _read(lake: Lake, order: Order) -> str:
    """Read the current rows or those of an earlier refresh, and compare them with the query's at its snapshots."""
    view = lake.catalog.load(order.name)
    storage = lake.catalog.load_storage(view)
    records = storage.state.refreshes if storage.state else ()
    if not records:
        return "no rows"
    record = random.Random(order.seed).choice(records)
    found = readable(lake.catalog, order.name, TimeTravel(refresh_id=record.refresh_id))
    rows = Counter(tuple(row) for row in read_rows(lake.catalog, found).rows())
    if record.version_id != found.view.metadata.current_version_id:
        return "another definition"
    wanted = _expected(lake, "orders", next(iter(record.snapshots.values())))
    return "right" if rows == wanted else f"WRONG ROWS of refresh {record.refresh_id}: {rows} instead of {wanted}"


def _expected(lake: Lake, base: str, snapshot_id: int) -> Counter[tuple[Any, ...]]:
    """The independent answer. pyiceberg alone reads it, so it is read again while the database restarts."""
    while True:
        try:
            return expected(lake, base, snapshot_id)
        except OperationalError:
            time.sleep(0.5)


def _roll_back(lake: Lake, order: Order) -> str:
    view = lake.catalog.load(order.name)
    storage = lake.catalog.load_storage(view)
    records = all_refreshes(view, storage)
    if not records:
        return "no refresh"
    return str(rollback(lake.catalog, order.name, records[order.seed % len(records)].refresh_id).changed)


def _convert(lake: Lake, order: Order) -> str:
    now = stored_layout(lake.catalog.load(order.name)).layout
    others = sorted(set(STORED_LAYOUTS) - {now})
    return convert(lake.catalog, order.name, others[order.seed % len(others)]).layout


def _replace(lake: Lake, order: Order) -> str:
    """Another text of the same query."""
    sql = QUERY.replace("sum(amount)", f"sum(amount + {order.seed} - {order.seed})")
    layout = stored_layout(lake.catalog.load(order.name)).layout
    wanted = Definition(sql, layout=layout, refresh_strategy="full")
    create(lake.catalog, order.name, wanted, stager=lambda script: _staged(lake, script), replace=True)
    return "replaced"


def _drop(lake: Lake, order: Order) -> str:
    """Drop the view with its files, and create it again."""
    purge(lake.catalog, order.name)
    return _create(lake, order)


def _create(lake: Lake, order: Order) -> str:
    """Create the view, if a killed host has dropped it."""
    layout = sorted(STORED_LAYOUTS)[order.seed % len(STORED_LAYOUTS)]
    wanted = Definition(QUERY, layout=layout, refresh_strategy="full", time_travel=order.seed % 2 == 0)
    create(lake.catalog, order.name, wanted, stager=lambda script: _staged(lake, script))
    return "created"


COMMANDS: dict[str, Callable[[Lake, Order], object]] = {
    "refresh": _refresh,
    "refresh --full": lambda lake, order: _refresh(lake, order, full=True),
    "read": _read,
    "rollback": _roll_back,
    "expire": lambda lake, order: len(expire(lake.catalog, order.name, older_than=order.age).snapshot_ids),
    "collect": lambda lake, order: len(collect_orphans(lake.catalog, order.name, older_than=order.age).files),
    "compact": lambda lake, order: (
        compact(lake.catalog, order.name, stager=lambda script: _staged(lake, script)).outcome
    ),
    "convert": _convert,
    "replace": _replace,
    "repair": lambda lake, order: len(repair(lake.catalog, order.name, act=True).findings),
    "verify --files": lambda lake, order: verify_files(lake.catalog, order.name).require_intact() or "intact",
    "drop": _drop,
    "create": _create,
    "sync": lambda lake, order: sync(lake.catalog).views,
}


def serve(place: Place) -> None:
    """Execute the orders on the standard input until it ends; answer each on the standard output."""
    compaction.MIN_FILES = 2
    publish_refresh.DEFAULT_GRACE = timedelta(seconds=GRACE_SECONDS)
    with place.lake() as lake:
        lake.catalog.properties[PLACE] = f"{place.warehouse}/registry"
        for line in sys.stdin:
            print(json.dumps(_executed(lake, Order(**json.loads(line)))), flush=True)


def _executed(lake: Lake, order: Order) -> dict[str, str]:
    try:
        return {"end": "done", "found": str(COMMANDS[order.command](lake, order))}
    except MaterializedViewError as error:
        return {"end": type(error).__name__, "found": str(error)}
    except Exception as error:  # noqa: BLE001 (the test fails for it)
        places = [f"{Path(frame.filename).name}:{frame.lineno}" for frame in traceback.extract_tb(error.__traceback__)]
        return {"end": "UNTYPED", "found": f"{type(error).__name__}: {error} ({' > '.join(places)})"}


class Host:
    """A process of its own that executes orders.

    Args:
        place: The lake.
        clock: How far its clock is wrong, as ``faketime`` writes it: ``+2h``; ``None`` for a right one.
    """

    def __init__(self, place: Place, clock: str | None = None) -> None:
        faked = ["faketime", "-f", clock] if clock else []
        self._command = [*faked, sys.executable, "-m", "tests.torture.hosts", json.dumps(asdict(place))]
        self.clock, self.kills = clock, 0
        self._start()

    def _start(self) -> None:
        environment = {**os.environ, "NO_FAKE_STAT": "1"}
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        self._process = subprocess.Popen(self._command, env=environment, text=True, **pipes)

    def order(self, order: Order) -> dict[str, str]:
        """Let it execute an order, and return the answer; a host that is killed meanwhile is started again."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(asdict(order)) + "\n")
            self._process.stdin.flush()
            if answer := self._process.stdout.readline():
                found: dict[str, Any] = json.loads(answer)
                return found
        self.close()
        self._start()
        return {"end": "killed", "found": ""}

    def kill(self) -> None:
        """``kill -9``."""
        self.kills += 1
        self._process.kill()

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.communicate()


if __name__ == "__main__":
    serve(Place(**json.loads(sys.argv[1])))
