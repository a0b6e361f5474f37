# SPDX-License-Identifier: Apache-2.0
"""The registry after two years of hourly refreshes: its files, a sync, and the seconds of each question."""

from __future__ import annotations

import argparse
import tempfile
import time
import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from pyiceberg.catalog.sql import SqlCatalog

from airflow_mv.core.catalog import MaterializedViewCatalog
from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.extras.registry.filters import of_view
from airflow_mv.extras.registry.model import RefreshRow, ViewRow, month_of
from airflow_mv.extras.registry.query import QUESTIONS, ask, query
from airflow_mv.extras.registry.registry import Registry, commit_staged, compact_finished_months, require_registry
from airflow_mv.extras.registry.settings import EXPIRE_AFTER, PLACE
from benchmarks import report

#: Two years of hours.
TWO_YEARS = 17_520
_MODES = ("append", "merge", "replace-keys", "full", "fast-forward")
_BASES = {f"lake.sales.base_{number}": 10**18 + number for number in range(4)}


@dataclass(frozen=True)
class Size:
    """The registry's table of refreshes at one time.

    Args:
        rows: Its rows.
        data_files: Its current data files.
        files: All files below its folder.
        size_bytes: Their bytes.
        metadata_bytes: Bytes of the current metadata file.
        snapshots: Retained snapshots.
        leave_ms: Median of the ms that a refresh needs to leave its row.
        sync_seconds: Median of the seconds of a sync since the size before.
        longest_sync_seconds: The longest.
    """

    rows: int
    data_files: int
    files: int
    size_bytes: int
    metadata_bytes: int
    snapshots: int
    leave_ms: float
    sync_seconds: float
    longest_sync_seconds: float


@dataclass(frozen=True)
class Measured:
    """What was measured.

    Args:
        sizes: After each eighth of the time.
        questions: Seconds of each question and query, the slowest of three runs.
        processor: Seconds of the processor for each of them, the most of three: other load does not change these.
    """

    sizes: list[Size]
    questions: dict[str, float]
    processor: dict[str, float]


def refresh_row(number: int, of: int, view: str) -> RefreshRow:
    """Return the row of one of the hourly refreshes up to now."""
    moment = datetime.now(UTC) - timedelta(hours=of - number)
    mode = _MODES[number % len(_MODES)]
    return RefreshRow(
        catalog="lake",
        namespace="sales",
        month=month_of(moment),
        view=view,
        view_uuid=str(uuid.uuid5(uuid.NAMESPACE_URL, view)),
        refresh_id=str(uuid.uuid4()),
        refreshed_at=moment,
        version_id=1,
        mode=mode,
        reasons=("BASE_CHANGED", "INCREMENTAL"),
        messages=tuple(f"{name} advanced to {number}: 1 snapshot (1 append), +{number} rows" for name in _BASES),
        fallback="a left join needs a key" if mode == "full" else None,
        base_snapshots={name: snapshot + number for name, snapshot in _BASES.items()},
        rows_written=number % 1000,
        bytes_read=number * 1000,
        outcome="refreshed",
        seconds=float(number % 60),
        job_seconds=float(number % 50),
        full_seconds=100.0,
        dag_id=f"dag_{number % 7}",
        run_id=f"scheduled__{moment.isoformat()}",
        task_id="refresh",
    )


def simulate(folder: Path, *, hours: int, each: int, direct: bool = False) -> Measured:
    """Leave a row for each hour, and bring them in by a sync after every few.

    Args:
        folder: A new folder for the catalog and its files.
        hours: How many.
        each: Rows of a sync.
        direct: Add the rows without staging them.
    """
    (folder / "warehouse").mkdir()
    iceberg = SqlCatalog(
        "lake",
        uri=f"sqlite:///{folder}/catalog.db",
        warehouse=f"file://{folder}/warehouse",
        # What takes weeks in two years takes seconds here.
        **{PLACE: "airflow_mv", EXPIRE_AFTER: "5 s"},
    )
    registry = require_registry(MaterializedViewCatalog(iceberg))
    view, now = "lake.sales.hourly", datetime.now(UTC)
    registry.views.upsert(
        [
            ViewRow(catalog="lake", namespace="sales", view=name, checked_at=now, state="stale", lag_seconds=float(lag))
            for lag, name in enumerate([view, *(f"lake.sales.view_{number}" for number in range(200))])
        ]
    )
    sizes: list[Size] = []
    leaves: list[float] = []
    syncs: list[float] = []
    for start in range(0, hours, each):
        rows: list[RefreshRow] = []
        for number in range(start, min(start + each, hours)):
            row = refresh_row(number, hours, view)
            if direct:
                rows.append(row)
            else:
                leaves.append(_seconds(lambda row=row: registry.stage(row)))  # type: ignore[misc]
        moment = now - timedelta(hours=hours - start)
        syncs.append(_seconds(lambda rows=rows, moment=moment: _sync(registry, rows, moment)))  # type: ignore[misc]
        if len(sizes) < 8 * min(start + each, hours) // hours:
            sizes.append(_size(registry, leaves, syncs))
            leaves.clear()
            syncs.clear()
    return Measured(sizes, *_questions(registry, view))


def _sync(registry: Registry, rows: list[RefreshRow], now: datetime) -> None:
    """Do what a sync does, but for the look at the views."""
    if rows:
        registry.refreshes.upsert(rows)
    else:
        commit_staged(registry)
    compact_finished_months(registry, now)


def _seconds(act: Callable[[], object]) -> float:
    started = time.perf_counter()
    act()
    return time.perf_counter() - started


def _size(registry: Registry, leaves: list[float], syncs: list[float]) -> Size:
    table = registry.catalog.iceberg.load_table("airflow_mv.refreshes")
    folder = Path(table.location().removeprefix("file://"))
    files = [path for path in folder.rglob("*") if path.is_file()]
    current = list(table.scan().plan_files())
    return Size(
        rows=sum(task.file.record_count for task in current),
        data_files=len(current),
        files=len(files),
        size_bytes=sum(path.stat().st_size for path in files),
        metadata_bytes=Path(table.metadata_location.removeprefix("file://")).stat().st_size,
        snapshots=len(table.metadata.snapshots),
        leave_ms=round(report.median(leaves) * 1000, 1) if leaves else 0.0,
        sync_seconds=round(report.median(syncs), 3),
        longest_sync_seconds=round(max(syncs), 3),
    )


def _questions(registry: Registry, view: str) -> tuple[dict[str, float], dict[str, float]]:
    """Return the seconds of each question, and those of the processor."""
    acts: dict[str, Callable[[], object]] = {
        f"`{name}`, two years": lambda name=name: ask(registry, name, days=731)
        for name in QUESTIONS  # type: ignore[misc]
    }
    acts["`costs`, 30 days"] = lambda: ask(registry, "costs", days=30)
    acts["`SELECT *`"] = lambda: query(registry, "SELECT * FROM refreshes")
    acts["all refreshes of one view"] = lambda: registry.refreshes.read(of_view(Identifier.parse(view)))
    taken: dict[str, float] = {}
    worked: dict[str, float] = {}
    for name, act in acts.items():
        before = time.process_time()
        runs = []
        for _ in range(3):
            seconds, now = _seconds(act), time.process_time()
            runs.append((seconds, now - before))
            before = now
        taken[name], worked[name] = (round(max(column), 2) for column in zip(*runs, strict=True))
    return taken, worked


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("--hours", type=int, default=TWO_YEARS, help="refreshes, one each hour up to now")
    parser.add_argument("--each", type=int, default=24, help="refreshes that a sync brings in")
    parser.add_argument("--direct", action="store_true", help="add the rows without staging them, which is faster")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure, and print Markdown tables."""
    facts = report.machine()
    with tempfile.TemporaryDirectory() as folder:
        found = simulate(Path(folder), hours=options.hours, each=options.each, direct=options.direct)
    head = (
        "rows",
        "data files",
        "all files",
        "KiB",
        "metadata file, KiB",
        "snapshots",
        "leave, ms",
        "sync, s",
        "longest sync, s",
    )
    rows = [
        (
            *(f"{value:,}" for value in (item.rows, item.data_files, item.files, item.size_bytes // 1024)),
            *(str(value) for value in (item.metadata_bytes // 1024, item.snapshots, item.leave_ms)),
            *(report.number(value) for value in (item.sync_seconds, item.longest_sync_seconds)),
        )
        for item in found.sizes
    ]
    print(report.table(head, rows))
    print()
    asked = [
        (name, report.number(found.questions[name]), report.number(found.processor[name])) for name in found.questions
    ]
    print(report.table(("question", "slowest of 3, s", "processor, s"), asked))
    print(f"\n{report.about(facts)}")
    return {"machine": facts, **asdict(found)}
