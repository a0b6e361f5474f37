# SPDX-License-Identifier: Apache-2.0
"""One view after two years of hourly refreshes, with and without time travel: its metadata, and a refresh's time."""

from __future__ import annotations

import argparse
import json
import shutil
import time
import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import write_manifest_list

from airflow_mv.catalog import MaterializedViewCatalog
from airflow_mv.freshness.status import history, status
from airflow_mv.maintenance.expire import expire
from airflow_mv.refresh import plan_refresh
from airflow_mv.refresh.create import Definition, create
from airflow_mv.refresh.plan import RefreshPlan
from airflow_mv.refresh.run import publish
from airflow_mv.script import REFRESH_ID_KEY, Outcome
from airflow_mv.spec.stored import decode, encode
from airflow_mv.spec.table import with_properties
from benchmarks import freshness, report

_VIEW = "lake.bench.hourly"
_QUERY = "SELECT id, name FROM lake.bench.t0"
#: The latest refreshes whose median is shown.
_LATEST = 20
#: Snapshots of the base table that its own maintenance keeps: two days.
_KEPT = 48


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    sizes = [100, 1_000, 10_000, 17_520]
    parser.add_argument("--refreshes", type=int, nargs="+", default=sizes, metavar="N", help="look after so many")
    parser.add_argument(
        "--maintain-each", type=int, default=168, metavar="M", help="refreshes between expiries; 0: none"
    )


@dataclass(frozen=True)
class Look:
    """A view after so many refreshes.

    Args:
        refreshes: How many it had.
        view_bytes: Bytes of its metadata file.
        storage_bytes: Bytes of the metadata file of its storage table.
        snapshots: Snapshots of the storage table, at most one period after an expiry.
        records: Refreshes that ``history`` lists.
        status_ms: Milliseconds of ``status``, the median of five.
        history_ms: Milliseconds of ``history``, the median of five.
        plan_ms: Milliseconds of a plan, the median of the latest ones.
        publish_ms: Milliseconds of a publication, the median of the latest ones.
    """

    refreshes: int
    view_bytes: int
    storage_bytes: int
    snapshots: int
    records: int
    status_ms: float
    history_ms: float
    plan_ms: float
    publish_ms: float


@dataclass
class Hourly:
    """A view whose base table gets a commit before each refresh. Nothing has rows: there is metadata only."""

    folder: Path
    lake: freshness.Lake
    catalog: MaterializedViewCatalog
    taken: dict[str, list[float]] = field(default_factory=lambda: {"plan": [], "publish": []})

    @classmethod
    def make(cls, folder: Path, *, time_travel: bool) -> Hourly:
        """Make the base table and the view, which has no refresh yet."""
        lake = freshness.Lake.make(folder, argparse.Namespace(tables=1, number=0), _KEPT)
        catalog = lake.open()
        create(catalog, _VIEW, Definition(_QUERY, time_travel=time_travel), stager=freshness.empty_storage(catalog))
        return cls(folder, lake, catalog)

    def refresh(self, number: int) -> None:
        """Commit to the base table, and refresh the view."""
        self.lake.commit(self.catalog.iceberg, "t0", _KEPT, first=number)  # type: ignore[arg-type]
        started = time.perf_counter()
        plan = plan_refresh(self.catalog, _VIEW)
        planned = time.perf_counter()
        outcome = self._staged(plan)
        staged = time.perf_counter()
        result = publish(self.catalog, plan, outcome)
        if result is None or result.outcome != "refreshed":
            raise SystemExit(f"refresh {number} was not published: {result}")
        self.taken["plan"].append(planned - started)
        self.taken["publish"].append(time.perf_counter() - staged)

    def _staged(self, plan: RefreshPlan) -> Outcome:
        """What Spark would have staged: the metadata file that the plan names, with one more snapshot."""
        before = plan.storage_table_location
        document = decode(self.catalog.files.read(before, what="storage table"), source=before)
        number, now_ms = int(document["last-sequence-number"]) + 1, time.time_ns() // 1_000_000
        snapshot: dict[str, Any] = {
            "snapshot-id": uuid.uuid4().int % 2**62,
            "sequence-number": number,
            "timestamp-ms": now_ms,
            "manifest-list": f"{document['location']}/metadata/snap-{uuid.uuid4()}.avro",
            "schema-id": 0,
            "summary": {
                **freshness.summary_of_append(number),
                "operation": "overwrite",
                REFRESH_ID_KEY: plan.refresh_id,
            },
        }
        self._write_list(snapshot["manifest-list"])
        parent = document.get("current-snapshot-id")
        if parent not in (None, -1):
            snapshot["parent-snapshot-id"] = parent
        document["snapshots"] = [*document.get("snapshots", ()), snapshot]
        named = {"snapshot-id": snapshot["snapshot-id"], "type": "branch"}
        document["refs"] = {**document.get("refs", {}), "main": named}
        logged = {"timestamp-ms": now_ms, "snapshot-id": snapshot["snapshot-id"]}
        document["snapshot-log"] = [*document.get("snapshot-log", ()), logged]
        document |= {"current-snapshot-id": snapshot["snapshot-id"], "last-sequence-number": number}
        after = with_properties(document, previous_location=before, updates={}, tags={}, now_ms=now_ms)
        location = f"{document['location']}/metadata/00001-{uuid.uuid4()}.metadata.json"
        self.catalog.files.write(location, encode(after))
        return Outcome(plan.refresh_id, location)

    def _write_list(self, location: str) -> None:
        """Write a manifest list without a manifest, which a publication flushes to the disk."""
        pattern = self.folder / "empty.avro"
        if not pattern.exists():
            output = PyArrowFileIO().new_output(str(pattern))
            with write_manifest_list(2, output, 1, None, 1, "deflate") as lists:
                lists.add_manifests([])
        shutil.copyfile(pattern, _path(location))

    def maintain(self) -> None:
        """Expire all snapshots but the current one and those of recorded refreshes."""
        expire(self.catalog, _VIEW, older_than=timedelta(0))

    def look(self, refreshes: int) -> Look:
        """Measure the view as it is now."""
        view = self.catalog.load(self.catalog.identify(_VIEW))
        storage = self.catalog.load_storage(view)
        return Look(
            refreshes,
            view_bytes=_path(view.metadata_location).stat().st_size,
            storage_bytes=_path(storage.location).stat().st_size,
            snapshots=len(storage.table.snapshots),
            records=len(history(self.catalog, view.identifier)),
            status_ms=_ms([_clocked(lambda: status(self.catalog, _VIEW)) for _ in range(5)]),
            history_ms=_ms([_clocked(lambda: history(self.catalog, view.identifier)) for _ in range(5)]),
            plan_ms=_ms(self.taken["plan"][-_LATEST:]),
            publish_ms=_ms(self.taken["publish"][-_LATEST:]),
        )


def _path(location: str) -> Path:
    return Path(urlsplit(location).path)


def _clocked(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def _ms(seconds: list[float]) -> float:
    return round(report.median(seconds) * 1000, 1)


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure, print the table, return every look."""
    facts = report.machine()
    looks: dict[str, list[Look]] = {}
    folder = options.cache.resolve() / f"two-years-{uuid.uuid4().hex[:8]}"
    wanted = sorted(options.refreshes)
    try:
        for title, time_travel in (("off", False), ("on", True)):
            hourly = Hourly.make(folder / title, time_travel=time_travel)
            looks[title] = []
            for number in range(1, wanted[-1] + 1):
                hourly.refresh(number)
                if options.maintain_each and number % options.maintain_each == 0:
                    hourly.maintain()
                if number in wanted:
                    looks[title].append(hourly.look(number))
                    print(f"time travel {title}: {json.dumps(asdict(looks[title][-1]))}", flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(f"\n{report.about(facts)}\n\n{_table(looks)}")
    return {
        "benchmark": "two-years",
        "machine": facts,
        "looks": {key: [asdict(x) for x in looks[key]] for key in looks},
    }


def _table(looks: dict[str, list[Look]]) -> str:
    head = ("time travel", "refreshes", "view, KiB", "storage table, KiB", "snapshots", "records",
            "`status`, ms", "`history`, ms", "plan, ms", "publish, ms")  # fmt: skip
    rows = [(title, *_cells(look)) for title, found in looks.items() for look in found]
    return report.table(head, rows)


def _cells(look: Look) -> list[str]:
    kib = [f"{size / 1024:.1f}" for size in (look.view_bytes, look.storage_bytes)]
    times = [f"{value:.1f}" for value in (look.status_ms, look.history_ms, look.plan_ms, look.publish_ms)]
    return [f"{look.refreshes:,}", *kib, str(look.snapshots), str(look.records), *times]
