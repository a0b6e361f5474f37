# SPDX-License-Identifier: Apache-2.0
"""A look at ten thousand views: the whole process of ``airflow-mv status --all``, with an empty and a full cache."""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pyiceberg.catalog import load_catalog
from sqlalchemy import create_engine, text

from benchmarks import report
from benchmarks.freshness import Lake, summary_of_append

#: Runs a command, and writes what it has cost beside its standard output.
_COUNTED = """
import json, sys
from sqlalchemy import Engine, event
from airflow_mv.catalog.files import MetadataFiles
from airflow_mv.cli.main import main
counts = {"queries": 0, "files": 0}
def query(*_): counts["queries"] += 1
def read(self, location, *, what, inner=MetadataFiles.read):
    counts["files"] += 1
    return inner(self, location, what=what)
event.listen(Engine, "before_cursor_execute", query)
MetadataFiles.read = read
main(sys.argv[2:], standalone_mode=False)
open(sys.argv[1], "w").write(json.dumps(counts))
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--views", type=int, default=10_000, metavar="N", help="views")
    parser.add_argument("--tables", type=int, default=2_000, metavar="M", help="base tables; a view reads three")
    parser.add_argument("--snapshots", type=int, default=10, help="of each base table")
    parser.add_argument("--repeat", type=int, default=3, metavar="R", help="runs of each measurement")
    parser.add_argument("--uri", help="the catalog's database; by default a new SQLite file")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure, print the table, return every run."""
    facts = report.machine()
    folder = options.cache.resolve() / f"many-{uuid.uuid4().hex[:8]}"
    try:
        started = time.perf_counter()
        many = Many.make(folder, options)
        print(f"{options.views} views over {options.tables} tables: made in {time.perf_counter() - started:.0f} s")
        runs = _measure(many, options)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(
        f"\nairflow-mv status --all lake --json, {options.views:,} views over {options.tables:,} base tables (3 each, "
        f"{options.snapshots} snapshots), {many.kind}, {options.repeat} runs\n{report.about(facts)}\n\n{_table(runs)}"
    )
    return {"benchmark": "many-views", "machine": facts, "runs": runs}


@dataclass
class Many:
    """Views and tables in a catalog. The first is made as users make it, and the others are copies of its files."""

    folder: Path
    uri: str
    tables: int
    moved: int = 0
    locations: dict[str, str] = field(default_factory=dict)

    @classmethod
    def make(cls, folder: Path, options: argparse.Namespace) -> Many:
        """Write the files and rows."""
        first = argparse.Namespace(tables=3, number=1)
        lake = Lake.make(folder, first, options.snapshots)
        pointers = lake.open()
        view = pointers.load(lake.views[0])
        storage = pointers.load_storage(view)
        many = cls(folder, options.uri or f"sqlite:///{folder / 'many.db'}", options.tables)
        patterns = [_Copy.of(lake.pyiceberg().load_table(("bench", name))) for name in lake.tables]
        table_rows = [("TABLE", f"t{number}", many._table(patterns[0], number)) for number in range(options.tables)]
        copy = _Copy.of_view(view, storage, [item.uuid for item in patterns])
        view_rows = [("VIEW", f"v{number}", many._view(copy, number)) for number in range(options.views)]
        many._insert([*table_rows, *view_rows])
        return many

    @property
    def kind(self) -> str:
        """The catalog's database, without its address."""
        return {"sqlite": "SQLite"}.get(urlsplit(self.uri).scheme.partition("+")[0], "PostgreSQL")

    def _table(self, pattern: _Copy, number: int) -> str:
        location = pattern.write({"t0": f"t{number}", pattern.uuid: _uuid("t", number)})
        self.locations[f"t{number}"] = location
        return location

    def _view(self, pattern: _Copy, number: int) -> str:
        words = {"v0": f"v{number}", pattern.uuid: _uuid("v", number), pattern.storage_uuid: _uuid("s", number)}
        for step, own in enumerate(pattern.table_uuids):
            table = (3 * number + step) % self.tables
            words |= {f"t{step}": f"t{table}", own: _uuid("t", table)}
        return pattern.write(words)

    def _insert(self, rows: list[tuple[str, str, str]]) -> None:
        catalog = load_catalog("lake", type="sql", uri=self.uri, warehouse=str(self.folder))
        catalog.create_namespace_if_not_exists("bench")
        statement = text(
            "INSERT INTO iceberg_tables (catalog_name, table_namespace, table_name, metadata_location, iceberg_type) "
            "VALUES ('lake', 'bench', :name, :location, :kind)"
        )
        engine = create_engine(self.uri)
        with engine.begin() as connection:
            connection.execute(text("DELETE FROM iceberg_tables WHERE catalog_name = 'lake'"))
            connection.execute(statement, [{"kind": kind, "name": name, "location": at} for kind, name, at in rows])
        engine.dispose()

    def move(self, count: int) -> None:
        """Commit an append to so many tables, others than before."""
        changes = []
        for number in range(self.moved, self.moved + count):
            name = f"t{number % self.tables}"
            changes.append({"name": name, "location": _appended(self.locations[name], self.moved)})
            self.locations[name] = changes[-1]["location"]
        self.moved += count
        engine = create_engine(self.uri)
        with engine.begin() as connection:
            statement = "UPDATE iceberg_tables SET metadata_location = :location WHERE table_name = :name"
            connection.execute(text(statement), changes)
        engine.dispose()

    @property
    def environment(self) -> dict[str, str]:
        """The environment of a command on this catalog."""
        catalog = {"TYPE": "sql", "URI": self.uri, "WAREHOUSE": str(self.folder)}
        own = {f"PYICEBERG_CATALOG__LAKE__{key}": value for key, value in catalog.items()}
        return {**os.environ, **own, "AIRFLOW_MV_CACHE": str(self.folder / "cache")}


@dataclass(frozen=True)
class _Copy:
    """Metadata files that are copied with other names and uuids."""

    files: dict[str, str]
    uuid: str
    storage_uuid: str = ""
    table_uuids: tuple[str, ...] = ()

    @classmethod
    def of(cls, table: Any) -> _Copy:
        return cls({table.metadata_location: _content(table.metadata_location)}, str(table.metadata.table_uuid))

    @classmethod
    def of_view(cls, view: Any, storage: Any, table_uuids: list[str]) -> _Copy:
        files = {place: _content(place) for place in (storage.location, view.metadata_location)}
        return cls(files, view.metadata.view_uuid, storage.table.table_uuid or "", tuple(table_uuids))

    def write(self, words: dict[str, str]) -> str:
        """Write the files with these words replaced, and return the last one's location."""
        pattern = re.compile(r"\b(" + "|".join(map(re.escape, words)) + r")\b")

        def changed(found: str) -> str:
            return pattern.sub(lambda match: words[match[1]], found)

        for location, content in self.files.items():
            path = _path(changed(location))
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(changed(content))
        return changed(location)


def _uuid(kind: str, number: int) -> str:
    return str(uuid.uuid5(uuid.NAMESPACE_OID, f"{kind}{number}"))


def _path(location: str) -> Path:
    return Path(urlsplit(location).path)


def _content(location: str) -> str:
    return _path(location).read_text()


def _appended(location: str, number: int) -> str:
    """Write a metadata file with one more snapshot, and return its location."""
    document = json.loads(_content(location))
    last = document["snapshots"][-1]
    new = {
        **last,
        "snapshot-id": last["snapshot-id"] + 1_000,
        "parent-snapshot-id": last["snapshot-id"],
        "sequence-number": last["sequence-number"] + 1,
        "timestamp-ms": last["timestamp-ms"] + 1_000,
        "summary": summary_of_append(last["sequence-number"]),
    }
    document["snapshots"].append(new)
    document |= {"current-snapshot-id": new["snapshot-id"], "last-sequence-number": new["sequence-number"]}
    document["refs"] = {"main": {"snapshot-id": new["snapshot-id"], "type": "branch"}}
    after = f"{location.rpartition('/')[0]}/{number:05d}-{uuid.uuid4()}.metadata.json"
    _path(after).write_text(json.dumps(document))
    return after


def _measure(many: Many, options: argparse.Namespace) -> dict[str, list[dict[str, float]]]:
    moved = max(1, options.tables // 100)
    cases: list[tuple[str, Callable[[], None]]] = [
        ("nothing has moved", lambda: None),
        (f"{moved} tables have moved", lambda: many.move(moved)),
    ]
    runs = {"empty cache": [_counted(many)]}
    for title, before in cases:
        for _ in range(options.repeat):
            before()
            runs.setdefault(title, []).append(_clocked(many, "status", "--all", "lake", "--json"))
    for title, before in cases:
        before()
        counts = _counted(many)
        runs[title].append({name: counts[name] for name in ("queries", "files")})
    for title, command in (
        ("nothing has moved, as text", ("status", "--all", "lake")),
        ("nothing has moved, one view", ("status", "lake.bench.v1")),
        ("`airflow-mv --help`", ("--help",)),
    ):
        runs[title] = [_clocked(many, *command) for _ in range(options.repeat)]
    return runs


def _clocked(many: Many, *words: str) -> dict[str, float]:
    return _ended(many, [str(Path(sys.executable).with_name("airflow-mv")), *words])


def _counted(many: Many) -> dict[str, float]:
    counts = many.folder / "counts.json"
    used = _ended(many, [sys.executable, "-c", _COUNTED, str(counts), "status", "--all", "lake", "--json"])
    return {**used, **json.loads(counts.read_text())}


def _ended(many: Many, command: list[str]) -> dict[str, float]:
    started = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, env=many.environment) as child:
        _, code, used = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(code)
    seconds = time.perf_counter() - started
    if child.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {child.returncode}")
    return {"seconds": seconds, "cpu": used.ru_utime + used.ru_stime}


def _table(runs: dict[str, list[dict[str, float]]]) -> str:
    def column(found: list[dict[str, float]], name: str, digits: int) -> str:
        numbers = [item[name] for item in found if name in item]
        if not numbers:
            return "-"
        return report.spread(numbers, digits=digits) if len(numbers) > 1 else f"{numbers[0]:,.{digits}f}"

    names = (("seconds", 2), ("cpu", 2), ("queries", 0), ("files", 0))
    rows = [(title, *(column(found, name, digits) for name, digits in names)) for title, found in runs.items()]
    head = ["", "whole process, s", "of it CPU, s", "catalog queries", "metadata files read"]
    return report.table(head, rows)
