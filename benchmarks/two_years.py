# SPDX-License-Identifier: Apache-2.0
"""One view after two years of hourly refreshes, with and without time travel: its files, and a refresh's time."""

from __future__ import annotations

import argparse
import json
import shutil
import sqlite3
import time
import uuid
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    write_manifest,
    write_manifest_list,
)
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.typedef import Record

from airflow_mv.actions import create_view as create
from airflow_mv.actions import plan_view
from airflow_mv.common.status import status
from airflow_mv.core.catalog import MaterializedViewCatalog
from airflow_mv.core.define.definition import Definition
from airflow_mv.core.refresh.plan import RefreshPlan
from airflow_mv.core.refresh.run import publish
from airflow_mv.core.script import REFRESH_ID_KEY, Outcome
from airflow_mv.core.spec.properties import EXPIRE_PROPERTY, NEVER
from airflow_mv.core.spec.stored import decode, encode
from airflow_mv.core.spec.table_metadata import with_properties
from airflow_mv.extras.describe import history
from airflow_mv.extras.maintenance.run import maintain_after_refresh
from benchmarks import freshness, report

_VIEW = "lake.bench.hourly"
_QUERY = "SELECT id, name FROM lake.bench.t0"
#: The latest refreshes whose median is shown.
_LATEST = 20
#: Snapshots of the base table that its own maintenance keeps: two days.
_KEPT = 48
#: Hours after which a replaced snapshot is old, and an unreachable file is deleted: three days.
_GRACE = 72
#: The content of a data file. No reader opens it.
_DATA = bytes(1024)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    sizes = [100, 1_000, 5_000, 10_000, 17_520]
    parser.add_argument("--refreshes", type=int, nargs="+", default=sizes, metavar="N", help="look after so many")
    parser.add_argument("--time-travel", choices=("off", "on"), nargs="+", default=["off", "on"], help="of the views")
    parser.add_argument("--never", action="store_true", help="without maintenance after a refresh")


@dataclass(frozen=True)
class Look:
    """A view after so many refreshes.

    Args:
        refreshes: How many it had.
        view_bytes: Bytes of its metadata file.
        storage_bytes: Bytes of the metadata file of its storage table.
        snapshots: Snapshots of the storage table.
        files: Files in the view's folder.
        folder_bytes: Bytes of these files.
        records: Refreshes that ``history`` lists.
        status_ms: Milliseconds of ``status``, the median of five.
        history_ms: Milliseconds of ``history``, the median of five.
        plan_ms: Milliseconds of a plan, the median of the latest ones.
        publish_ms: Milliseconds of a publication, the median of the latest ones.
        maintain_ms: Milliseconds of the maintenance after a refresh, the median of the runs that deleted something.
        runs: How many these were since the last look.
    """

    refreshes: int
    view_bytes: int
    storage_bytes: int
    snapshots: int
    files: int
    folder_bytes: int
    records: int
    status_ms: float
    history_ms: float
    plan_ms: float
    publish_ms: float
    maintain_ms: float
    runs: int


@dataclass
class Hourly:
    """A view whose base table gets a commit before each refresh. One refresh takes the place of an hour.

    Each refresh writes a data file, a manifest and a manifest list, as a full one does.
    """

    folder: Path
    catalog: MaterializedViewCatalog
    pointers: sqlite3.Connection
    base: TableMetadata
    last: Path | None = None
    taken: dict[str, list[float]] = field(default_factory=lambda: {"plan": [], "publish": [], "maintain": []})
    #: When the last refreshes began: as many as there are hours in the grace.
    began: deque[float] = field(default_factory=lambda: deque(maxlen=_GRACE))

    @classmethod
    def make(cls, folder: Path, *, time_travel: bool, maintained: bool) -> Hourly:
        """Make the base table and the view, which has no refresh yet."""
        lake = freshness.Lake.make(folder, argparse.Namespace(tables=1, number=0), _KEPT)
        catalog = lake.open()
        properties = {} if maintained else {EXPIRE_PROPERTY: NEVER}
        definition = Definition(_QUERY, refresh_strategy="full", time_travel=time_travel, properties=properties)
        create(catalog, _VIEW, definition, stager=freshness.empty_storage(catalog))
        base = lake.pyiceberg().load_table("bench.t0").metadata
        return cls(folder, catalog, sqlite3.connect(folder / "catalog.db"), base)

    def refresh(self, number: int) -> None:
        """Commit to the base table, and refresh the view."""
        self._commit_to_base(number)
        self.began.append(time.time())
        started = time.perf_counter()
        plan = plan_view(self.catalog, _VIEW)
        planned = time.perf_counter()
        outcome = self._staged(plan)
        staged = time.perf_counter()
        result = publish(self.catalog, plan, outcome)
        if result is None or result.outcome != "refreshed":
            raise SystemExit(f"refresh {number} was not published: {result}")
        self.taken["plan"].append(planned - started)
        self.taken["publish"].append(time.perf_counter() - staged)
        self._maintain()

    def _commit_to_base(self, number: int) -> None:
        """Replace the base table's metadata file: a new one has one snapshot more, and one less at the other end."""
        file = self.folder / "bench" / "t0" / "metadata" / f"{number:05d}-{uuid.uuid4()}.metadata.json"
        file.write_text(json.dumps(freshness.base_metadata(self.base, _KEPT, number)))
        with self.pointers:
            self.pointers.execute(
                "UPDATE iceberg_tables SET metadata_location = ? WHERE table_name = 't0'", (str(file),)
            )
        if self.last is not None:
            self.last.unlink()
        self.last = file

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
        self._write_files(document["location"], snapshot)
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

    def _write_files(self, location: str, snapshot: dict[str, Any]) -> None:
        """Write the files of a full refresh: data, a manifest, and the list with that manifest only."""
        io, name = PyArrowFileIO(), uuid.uuid4()
        data = f"{location}/data/00000-0-{name}-00001.parquet"
        _path(data).parent.mkdir(exist_ok=True)
        _path(data).write_bytes(_DATA)
        manifest = io.new_output(f"{location}/metadata/{name}-m0.avro")
        number, snapshot_id = snapshot["sequence-number"], snapshot["snapshot-id"]
        with write_manifest(
            2, UNPARTITIONED_PARTITION_SPEC, freshness.SCHEMA, manifest, snapshot_id, "deflate"
        ) as entries:
            entries.add_entry(
                ManifestEntry.from_args(
                    status=ManifestEntryStatus.ADDED, snapshot_id=snapshot_id, data_file=_data_file(data)
                )
            )
        written: ManifestFile = entries.to_manifest_file()
        listed = io.new_output(snapshot["manifest-list"])
        parent = snapshot.get("parent-snapshot-id")
        with write_manifest_list(2, listed, snapshot_id, parent, number, "deflate") as lists:
            lists.add_manifests([written])

    def _maintain(self) -> None:
        """Do what a refresh does afterwards. The grace is the time that the last refreshes of three days took."""
        lines: list[str] = []
        grace = timedelta(seconds=time.time() - self.began[0])
        started = time.perf_counter()
        maintain_after_refresh(self.catalog, _VIEW, published=True, older_than=grace, report=lines.append)
        if lines:
            self.taken["maintain"].append(time.perf_counter() - started)

    def look(self, refreshes: int) -> Look:
        """Measure the view as it is now."""
        view = self.catalog.load(self.catalog.identify(_VIEW))
        storage = self.catalog.load_storage(view)
        sizes = [path.stat().st_size for path in _path(view.metadata.location).rglob("*") if path.is_file()]
        maintained, self.taken["maintain"] = self.taken["maintain"], []
        return Look(
            refreshes,
            view_bytes=_path(view.metadata_location).stat().st_size,
            storage_bytes=_path(storage.location).stat().st_size,
            snapshots=len(storage.table.snapshots),
            files=len(sizes),
            folder_bytes=sum(sizes),
            records=len(history(self.catalog, view.identifier)),
            status_ms=_ms([_clocked(lambda: status(self.catalog, _VIEW)) for _ in range(5)]),
            history_ms=_ms([_clocked(lambda: history(self.catalog, view.identifier)) for _ in range(5)]),
            plan_ms=_ms(self.taken["plan"][-_LATEST:]),
            publish_ms=_ms(self.taken["publish"][-_LATEST:]),
            maintain_ms=_ms(maintained) if maintained else 0.0,
            runs=len(maintained),
        )


def _data_file(location: str) -> DataFile:
    return DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=location,
        file_format=FileFormat.PARQUET,
        partition=Record(),
        record_count=25_000,
        file_size_in_bytes=len(_DATA),
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
        for title in options.time_travel:
            hourly = Hourly.make(folder / title, time_travel=title == "on", maintained=not options.never)
            looks[title] = []
            for number in range(1, wanted[-1] + 1):
                hourly.refresh(number)
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
    head = (
        *(
            "time travel",
            "refreshes",
            "view, KiB",
            "storage table, KiB",
            "snapshots",
            "files",
            "all files, MiB",
            "records",
        ),
        *("`status`, ms", "`history`, ms", "plan, ms", "publish, ms", "maintenance: runs", "each, ms"),
    )
    rows = [(title, *_cells(look)) for title, found in looks.items() for look in found]
    return report.table(head, rows)


def _cells(look: Look) -> list[str]:
    sizes = [f"{size:.1f}" for size in (look.view_bytes / 1024, look.storage_bytes / 1024)]
    counts = [str(look.snapshots), f"{look.files:,}", f"{look.folder_bytes / 2**20:.1f}", str(look.records)]
    times = [f"{value:.1f}" for value in (look.status_ms, look.history_ms, look.plan_ms, look.publish_ms)]
    return [f"{look.refreshes:,}", *sizes, *counts, *times, str(look.runs), f"{look.maintain_ms:.0f}"]
