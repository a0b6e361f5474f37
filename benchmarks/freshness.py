# SPDX-License-Identifier: Apache-2.0
"""Freshness of many views, and of base tables with a long history; our reader against pyiceberg's. No Spark."""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyiceberg.catalog import load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata, new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.types import LongType, NestedField, StringType

from airflow_mv.actions import create_view as create
from airflow_mv.actions import plan_view
from airflow_mv.common.status import status, statuses
from airflow_mv.core.catalog import MaterializedViewCatalog
from airflow_mv.core.define.definition import Definition
from airflow_mv.core.freshness.state import State
from airflow_mv.core.refresh.plan import RefreshPlan
from airflow_mv.core.refresh.run import publish
from airflow_mv.core.script import REFRESH_ID_KEY, CreateStorageStep, Outcome, Script
from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.core.spec.stored import decode, encode
from airflow_mv.core.spec.table_metadata import with_properties
from benchmarks import report

_NAMESPACE = "bench"
SCHEMA = Schema(NestedField(1, "id", LongType()), NestedField(2, "name", StringType()))
_HOUR_MS = 3_600_000
_START_MS = 1_600_000_000_000
#: Base tables that one view reads.
_READS = 3

_CHILD = """
import json, sys, time
started = time.perf_counter()
from pyiceberg.catalog import load_catalog
from airflow_mv.core.catalog import MaterializedViewCatalog
from airflow_mv.common.status import status
from airflow_mv.common.status import statuses
imported = time.perf_counter()
catalog = MaterializedViewCatalog(load_catalog("lake", **json.loads(sys.argv[1])))
views = catalog.list()
opened = time.perf_counter()
status(catalog, views[0])
first = time.perf_counter()
statuses(catalog, views)
done = time.perf_counter()
print(json.dumps([imported - started, opened - imported, first - opened, done - first]))
"""

#: Reads one base table and its last 20 commits, and prints the CPU seconds and the peak of the memory that was added to
#: that of the imports, MiB.
_READER = """
import json, sys, time
from pathlib import Path
import pyiceberg.io.pyarrow
from pyiceberg.catalog import load_catalog
from airflow_mv.core.catalog import MaterializedViewCatalog
from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.core.spec.table_metadata import snapshots_between
def peak():
    return int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]) / 1024
catalog = load_catalog("lake", **json.loads(sys.argv[1]))
ours = MaterializedViewCatalog(catalog)
catalog.list_tables("bench")
before, started = peak(), time.process_time()
if sys.argv[2] == "ours":
    name = Identifier("lake", ("bench",), "t0")
    table = ours.table_metadata(name, ours.locate([name])[name])
    assert len(snapshots_between(table, table.head - 20, table.head)) == 20
else:
    catalog.load_table(("bench", "t0"))
print(json.dumps([time.process_time() - started, peak() - before]))
"""
_READERS = ("ours", "pyiceberg's load_table")
#: How many times less CPU than pyiceberg a first look at the longest history should take.
_TARGET = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--number", type=int, default=100, metavar="N", help="views")
    parser.add_argument("--tables", type=int, default=10, metavar="M", help="base tables; a view reads three of them")
    parser.add_argument("--snapshots", type=int, nargs="+", default=[10, 1_000, 10_000], help="of each base table")
    parser.add_argument("--longest", type=int, default=100_000, metavar="N", help="snapshots of one more base table")
    parser.add_argument("--repeat", type=int, default=5, metavar="R", help="runs of each measurement")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure, print the tables, return every run."""
    facts = report.machine()
    folder = options.cache.resolve() / f"freshness-{uuid.uuid4().hex[:8]}"
    results: dict[int, dict[str, list[float]]] = {}
    sizes: dict[int, int] = {}
    try:
        for snapshots in options.snapshots:
            lake = Lake.make(folder / str(snapshots), options, snapshots)
            sizes[snapshots] = lake.metadata_bytes()
            results[snapshots] = _measure(lake, options.repeat)
            print(f"{snapshots} snapshots: done", flush=True)
        longest = _longest(folder / "longest", options)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    tables = report.shown(
        f"Freshness of views of {_READS} base tables each, SQLite catalog",
        facts,
        f"{options.number} views over {options.tables} base tables, {options.repeat} runs:",
        _table(results, sizes),
        f"One base table of {options.longest:,} snapshots, read by a new process:",
        _longest_table(longest),
    )
    figures = {"bytes": sizes, "seconds": results, "longest": longest}
    return {"benchmark": "freshness", "machine": facts, **figures, "tables": tables}


@dataclass(frozen=True, slots=True)
class Lake:
    """Views over base tables that have metadata and no data: freshness reads nothing else."""

    properties: dict[str, str]
    tables: tuple[str, ...]
    views: tuple[str, ...]
    snapshots: int

    @classmethod
    def make(cls, folder: Path, options: argparse.Namespace, snapshots: int, *, depth: int = 1) -> Lake:
        """Make base tables of so many snapshots, and views that are fresh, in chains of this depth."""
        folder.mkdir(parents=True)
        properties = {"type": "sql", "uri": f"sqlite:///{folder / 'catalog.db'}", "warehouse": str(folder)}
        tables = tuple(f"t{number}" for number in range(options.tables))
        views = tuple(f"lake.{_NAMESPACE}.v{number}" for number in range(options.number))
        lake = cls(properties, tables, views, snapshots)
        pointers = lake.pyiceberg()
        pointers.create_namespace(_NAMESPACE)
        for table in tables:
            pointers.create_table((_NAMESPACE, table), SCHEMA)
            lake.commit(pointers, table, snapshots)
        catalog = lake.open()
        for number, view in enumerate(views):
            names = [tables[(number + step) % len(tables)] for step in range(_READS)]
            names[0] = f"v{number - 1}" if number % depth else names[0]
            sql = " UNION ALL ".join(f"SELECT id, name FROM lake.{_NAMESPACE}.{name}" for name in names)
            create(catalog, view, Definition(sql), stager=empty_storage(catalog))
            plan = plan_view(catalog, view)
            publish(catalog, plan, _staged(catalog, plan))
        return lake

    def pyiceberg(self) -> SqlCatalog:
        """Open the catalog as pyiceberg does."""
        catalog = load_catalog("lake", **self.properties)
        assert isinstance(catalog, SqlCatalog)
        return catalog

    def open(self) -> MaterializedViewCatalog:
        """Open the catalog; nothing is remembered of an earlier one."""
        return MaterializedViewCatalog(self.pyiceberg())

    def commit(self, catalog: SqlCatalog, table: str, snapshots: int, *, first: int = 0) -> None:
        """Give a base table a metadata file with so many snapshots, those before the first of which have expired."""
        loaded = catalog.load_table((_NAMESPACE, table))
        document = base_metadata(loaded.metadata, snapshots, first)
        file = Path(loaded.location()) / "metadata" / f"{snapshots:05d}-{uuid.uuid4()}.metadata.json"
        file.write_text(json.dumps(document))
        catalog.drop_table((_NAMESPACE, table))
        catalog.register_table((_NAMESPACE, table), str(file))

    def metadata_bytes(self) -> int:
        """Size of a base table's metadata file."""
        table = self.pyiceberg().load_table((_NAMESPACE, self.tables[0]))
        return Path(table.metadata_location).stat().st_size


def base_metadata(metadata: TableMetadata, snapshots: int, first: int = 0) -> dict[str, Any]:
    """Return a base table's metadata with so many snapshots, those before the first of which have expired."""
    document: dict[str, Any] = json.loads(metadata.model_dump_json())
    return document | _history(metadata.location, snapshots, first)


def _history(location: str, snapshots: int, first: int = 0) -> dict[str, Any]:
    numbers = range(first, first + snapshots)
    times = [_START_MS + _HOUR_MS * number for number in numbers]
    ids = [7_000_000_000_000_000_000 + number for number in numbers]
    return {
        "last-updated-ms": times[-1],
        "last-sequence-number": first + snapshots,
        "current-snapshot-id": ids[-1],
        "refs": {"main": {"snapshot-id": ids[-1], "type": "branch"}},
        "snapshot-log": [{"timestamp-ms": at, "snapshot-id": name} for at, name in zip(times, ids, strict=True)],
        "snapshots": [
            {
                "snapshot-id": name,
                **({"parent-snapshot-id": name - 1} if number else {}),
                "sequence-number": number + 1,
                "timestamp-ms": at,
                "manifest-list": f"{location}/metadata/snap-{name}-1-{uuid.UUID(int=number)}.avro",
                "schema-id": 0,
                "summary": summary_of_append(number),
            }
            for number, name, at in zip(numbers, ids, times, strict=True)
        ],
    }


def summary_of_append(number: int) -> dict[str, str]:
    """What Spark writes with an append."""
    return {
        "operation": "append",
        "spark.app.id": "local-1700000000000",
        "added-data-files": "4",
        "added-records": "25000",
        "added-files-size": "1048576",
        "changed-partition-count": "1",
        "total-records": str(25_000 * (number + 1)),
        "total-files-size": str(1_048_576 * (number + 1)),
        "total-data-files": str(4 * (number + 1)),
        "total-delete-files": "0",
        "total-position-deletes": "0",
        "total-equality-deletes": "0",
        "engine-version": "4.1.3",
        "app-id": "local-1700000000000",
        "engine-name": "spark",
        "iceberg-version": "Apache Iceberg 1.12.0 (commit 0000000000000000000000000000000000000000)",
    }


def empty_storage(catalog: MaterializedViewCatalog) -> Callable[[Script], Outcome]:
    """Return a stager that makes empty storage tables of our one schema, without Spark."""

    def stage(script: Script) -> Outcome:
        step = script.steps[-1]
        assert isinstance(step, CreateStorageStep)
        assert step.location is not None
        metadata = new_table_metadata(SCHEMA, UNPARTITIONED_PARTITION_SPEC, UNSORTED_SORT_ORDER, step.location)
        location = f"{step.location}/metadata/00000-{uuid.uuid4()}.metadata.json"
        catalog.files.write(location, metadata.model_dump_json().encode())
        return Outcome(script.refresh_id, location)

    return stage


def _staged(catalog: MaterializedViewCatalog, plan: RefreshPlan) -> Outcome:
    """What Spark would have staged: a metadata file that follows on the plan's, with a snapshot of the refresh."""
    before = plan.storage_table_location
    document = decode(catalog.files.read(before, what="storage table"), source=before)
    document |= _history(document["location"], 1)
    document["snapshots"][0]["summary"][REFRESH_ID_KEY] = plan.refresh_id
    after = with_properties(document, previous_location=before, updates={}, tags={}, now_ms=_START_MS)
    location = f"{document['location']}/metadata/00001-{uuid.uuid4()}.metadata.json"
    catalog.files.write(location, encode(after))
    return Outcome(plan.refresh_id, location)


def _measure(lake: Lake, repeat: int) -> dict[str, list[float]]:
    """Return seconds for each view (or file, or process) by what was measured."""
    runs: dict[str, list[float]] = {}
    for _ in range(repeat):
        for name, seconds in zip(("import", "open", "first status", "all statuses"), _child(lake), strict=True):
            runs.setdefault(f"new process: {name}", []).append(seconds)
    _statuses(lake, repeat, "pointers unmoved", State.FRESH, runs)
    pointers = lake.pyiceberg()
    for table in lake.tables:
        lake.commit(pointers, table, lake.snapshots + 1)
    _statuses(lake, repeat, "each table has a new snapshot", State.STALE, runs)
    _readers(lake, repeat, runs)
    return runs


def _longest(folder: Path, options: argparse.Namespace) -> dict[str, list[tuple[float, float]]]:
    """Return CPU seconds, and MiB of added memory, of new processes that read a base table, by reader in turn."""
    lake = Lake.make(folder, argparse.Namespace(tables=1, number=0), options.longest)
    runs: dict[str, list[tuple[float, float]]] = {reader: [] for reader in _READERS}
    for _ in range(options.repeat):
        for reader, found in runs.items():
            command = [sys.executable, "-c", _READER, json.dumps(lake.properties), reader]
            cpu, added = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
            found.append((cpu, added))
    return runs


def _longest_table(runs: dict[str, list[tuple[float, float]]]) -> str:
    rows = [
        (reader, report.spread([cpu for cpu, _ in found]), report.spread([mib for _, mib in found], digits=0), "-")
        for reader, found in runs.items()
    ]
    ours, theirs = (runs[reader] for reader in _READERS)
    pairs = list(zip(ours, theirs, strict=True))
    ratios = [report.spread([slow[at] / fast[at] for fast, slow in pairs], digits=1) for at in (0, 1)]
    rows.append(("ratio of the two", *ratios, f"{_TARGET} times less CPU"))
    return report.table(["", "CPU, s", "memory, MiB", "target"], rows)


def _statuses(lake: Lake, repeat: int, title: str, expected: State, runs: dict[str, list[float]]) -> None:
    catalog = lake.open()
    views = [catalog.identify(view) for view in lake.views]
    # Warm-up, and a check that it is the wanted case that is measured.
    found = {document["state"] for document in statuses(catalog, views)}
    if found != {str(expected)}:
        raise SystemExit(f"{title}: the views are {', '.join(sorted(found))}, not {expected}")
    for _ in range(repeat):
        together = _clocked(lambda: statuses(catalog, views))
        single = _clocked(lambda: [status(catalog, view) for view in views])
        runs.setdefault(f"{title}: a view, all together", []).append(together / len(views))
        runs.setdefault(f"{title}: a view, one by one", []).append(single / len(views))


def _readers(lake: Lake, repeat: int, runs: dict[str, list[float]]) -> None:
    """Read the same metadata files in turn, ours first."""
    catalog, pointers = lake.open(), lake.pyiceberg()
    identifiers = [Identifier("lake", (_NAMESPACE,), table) for table in lake.tables]

    def ours() -> None:
        for identifier in identifiers:
            catalog.table_metadata(identifier, catalog.locate([identifier])[identifier])

    def theirs() -> None:
        for table in lake.tables:
            pointers.load_table((_NAMESPACE, table))

    for reader in (ours, theirs):
        reader()
    for _ in range(repeat):
        runs.setdefault("a base table: ours", []).append(_clocked(ours) / len(identifiers))
        runs.setdefault("a base table: pyiceberg's load_table", []).append(_clocked(theirs) / len(identifiers))


def _child(lake: Lake) -> list[float]:
    command = [sys.executable, "-c", _CHILD, json.dumps(lake.properties)]
    answer: list[float] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return answer


def _clocked(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def _table(results: dict[int, dict[str, list[float]]], sizes: dict[int, int]) -> str:
    def row(title: str, cells: Iterable[str]) -> tuple[str, ...]:
        return (title, *cells)

    names = list(next(iter(results.values())))
    rows = [row("metadata file of a base table", (f"{size / 1e6:.2f} MB" for size in sizes.values()))]
    rows += [row(f"{name}, ms", (_ms(runs[name]) for runs in results.values())) for name in names]
    rows.append(row("ratio of the two", (_ratio(runs) for runs in results.values())))
    return report.table(["", *(f"{snapshots:,} snapshots" for snapshots in results)], rows)


def _ms(seconds: list[float]) -> str:
    return report.spread(seconds, digits=1, scale=1000)


def _ratio(runs: dict[str, list[float]]) -> str:
    ours, theirs = runs["a base table: ours"], runs["a base table: pyiceberg's load_table"]
    return report.spread([slow / fast for slow, fast in zip(theirs, ours, strict=True)], digits=1)
