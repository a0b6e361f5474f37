# SPDX-License-Identifier: Apache-2.0
"""Looks at ten thousand views, each by a new process: ``status --all``, alerts, waiting sensors, the page."""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pyiceberg.catalog import load_catalog
from sqlalchemy import create_engine, text

from benchmarks import report
from benchmarks.freshness import Lake, summary_of_append
from examples.demo.postgres import postgres


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--views", type=int, default=10_000, metavar="N", help="views")
    parser.add_argument("--tables", type=int, default=2_000, metavar="M", help="base tables; a view reads three")
    parser.add_argument("--snapshots", type=int, default=10, help="of each base table")
    parser.add_argument(
        "--depth", type=int, default=1, metavar="D", help="views in a chain, each of which reads the last"
    )
    parser.add_argument("--repeat", type=int, default=3, metavar="R", help="runs of each measurement")
    parser.add_argument("--uri", help="the catalog's database; by default a new SQLite file")
    parser.add_argument("--postgres", action="store_true", help="in a PostgreSQL server that is started for the run")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure, print the table, return every run."""
    facts = report.machine()
    folder = options.cache.resolve() / f"many-{uuid.uuid4().hex[:8]}"
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        if options.postgres:
            options.uri = stack.enter_context(_postgres())
        started = time.perf_counter()
        many = Many.make(folder, options)
        print(f"{options.views} views over {options.tables} tables: made in {time.perf_counter() - started:.0f} s")
        runs = _measure(many, options)
    size = f"{options.views:,} views over {options.tables:,} base tables (3 each, {options.snapshots} snapshots)"
    size += f", in chains of {options.depth}" if options.depth > 1 else ""
    tables = report.shown(f"Looks at {size}, {many.kind}, {options.repeat} runs", facts, _table(runs))
    return {"benchmark": "many-views", "machine": facts, "runs": runs, "tables": tables}


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
        first = argparse.Namespace(tables=3, number=options.depth)
        lake = Lake.make(folder, first, options.snapshots, depth=options.depth)
        pointers = lake.open()
        many = cls(folder, options.uri or f"sqlite:///{folder / 'many.db'}", options.tables)
        patterns = [_Copy.of(lake.pyiceberg().load_table(("bench", name))) for name in lake.tables]
        table_rows = [("TABLE", f"t{number}", many._table(patterns[0], number)) for number in range(options.tables)]
        uuids = [item.uuid for item in patterns]
        copies = [_Copy.of_view(view, pointers.load_storage(view), uuids) for view in map(pointers.load, lake.views)]
        view_rows = [("VIEW", f"v{number}", many._view(copies, number)) for number in range(options.views)]
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

    def _view(self, chain: list[_Copy], number: int) -> str:
        """Write a view of a chain: all chains are copies of one."""
        first, pattern, words = number - number % len(chain), chain[number % len(chain)], dict[str, str]()
        for place, view in enumerate(chain):
            own = first + place
            words |= {f"v{place}": f"v{own}", view.uuid: _uuid("v", own), view.storage_uuid: _uuid("s", own)}
        for step, own_uuid in enumerate(pattern.table_uuids):
            table = (3 * first + step) % self.tables
            words |= {f"t{step}": f"t{table}", own_uuid: _uuid("t", table)}
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
        extra = {**{key.lower(): value for key, value in catalog.items()}, "catalog_name": "lake"}
        return {
            **os.environ,
            **own,
            "AIRFLOW_MV_CACHE": str(self.folder / "cache"),
            "AIRFLOW_HOME": str(self.folder / "airflow"),
            "AIRFLOW_CONN_ICEBERG_DEFAULT": json.dumps({"conn_type": "iceberg", "extra": extra}),
        }


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


@contextmanager
def _postgres() -> Iterator[str]:
    """Start a server whose folder its own user may read, and yield the URI of a database."""
    folder = Path(tempfile.mkdtemp(prefix="airflow-mv-postgres-"))
    try:
        with postgres(folder, user="bench") as server:
            yield server.render_as_string(hide_password=False)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


#: What each look is, as the table has it.
_TITLES = {
    "status": "`status --all`",
    "alerts": "alerts",
    "sensors": "sensors, first period",
    "page": "page, first look",
}
Runs = dict[str, list[dict[str, float]]]


def _measure(many: Many, options: argparse.Namespace) -> Runs:
    moved = max(1, options.tables // 100)
    cases: list[tuple[str, Callable[[], None]]] = [
        ("nothing has moved", lambda: None),
        (f"{moved} tables have moved", lambda: many.move(moved)),
    ]
    runs = {"`status --all`, empty cache": [_looked(many, "status", options.views, "--count")]}
    for look, name in _TITLES.items():
        _looked(many, look, options.views)  # tables have moved for the look before
        for case, before in cases:
            found = runs.setdefault(f"{name}, {case}", [])
            for _ in range(options.repeat):
                before()
                found.append(_clocked(many, *_STATUS) if look == "status" else _looked(many, look, options.views))
            before()
            counts = _looked(many, look, options.views, "--count")
            found.append({key: counts[key] for key in ("queries", "files")})
    for title, command in (
        ("`status --all`, nothing has moved, as text", ("status", "--all", "lake")),
        ("`status VIEW`, nothing has moved", ("status", "lake.bench.v1")),
        ("`airflow-mv --help`", ("--help",)),
    ):
        runs[title] = [_clocked(many, *command) for _ in range(options.repeat)]
    return runs


_STATUS = ("status", "--all", "lake", "--json")


def _clocked(many: Many, *words: str) -> dict[str, float]:
    return _ended(many, [str(Path(sys.executable).with_name("airflow-mv")), *words])


def _looked(many: Many, look: str, views: int, *options: str) -> dict[str, float]:
    file = many.folder / "look.json"
    command = [sys.executable, "-m", "benchmarks.looks", look, str(file), str(views), *options]
    return {**_ended(many, command), **json.loads(file.read_text())}


def _ended(many: Many, command: list[str]) -> dict[str, float]:
    started = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, env=many.environment) as child:
        _, code, used = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(code)
    seconds = time.perf_counter() - started
    if child.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {child.returncode}")
    return {"seconds": seconds, "cpu": used.ru_utime + used.ru_stime}


def _table(runs: Runs) -> str:
    def column(found: list[dict[str, float]], name: str, digits: int) -> str:
        numbers = [item[name] for item in found if name in item]
        if not numbers:
            return "-"
        return report.spread(numbers, digits=digits) if len(numbers) > 1 else f"{numbers[0]:,.{digits}f}"

    for found in runs.values():
        for item in found:
            if "cpu" in item:
                item["own"] = item["cpu"] - item.get("airflow", 0.0)
    names = (("seconds", 2), ("cpu", 2), ("own", 2), ("queries", 0), ("files", 0))
    rows = [(title, *(column(found, name, digits) for name, digits in names)) for title, found in runs.items()]
    head = ["", "whole process, s", "CPU, s", "CPU without Airflow's import, s", "catalog queries", "metadata files"]
    return report.table(head, rows)
