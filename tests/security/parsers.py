# SPDX-License-Identifier: Apache-2.0
"""A process of its own that feeds parsers, with limits on memory, time, network, files and imports.

``python -m tests.security.parsers SEED COUNT NAME...`` prints a JSON document: for each parser what went wrong, and the
extremes.
"""

from __future__ import annotations

import gzip
import json
import resource
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

from airflow_mv.core.freshness.state import BaseTableChange
from airflow_mv.core.refresh.plan import Estimate, RefreshPlan
from airflow_mv.core.script import (
    STAGING,
    CheckResult,
    CreateStorageStep,
    Outcome,
    Script,
    SqlStep,
    StagedCheck,
    StagedChecks,
    TableRead,
)
from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.core.spec.materialized_view import PROPERTY, parse_settings, parse_storage_state, property_text
from airflow_mv.core.spec.stored import (
    MAX_BYTES,
    MAX_DOCUMENT_BYTES,
    MAX_DOCUMENT_MARKS,
    MAX_VIEW_BYTES,
    MAX_VIEW_MARKS,
)
from airflow_mv.core.spec.table_metadata import ancestors, parse_table, snapshots_between
from airflow_mv.core.spec.view import parse_view, with_view_properties
from airflow_mv.errors import MaterializedViewError
from airflow_mv.extras.delta.log import MAX_ACTIONS, parse_commit
from airflow_mv.foundation.documents import MAX_MARKS, MAX_TEXT_BYTES
from tests.security.mutations import ODD_TEXTS, Mutator

MEMORY_BYTES = 256 * 1024 * 1024
DATA = Path(__file__).parent.parent / "core" / "spec" / "data"
MAX_MESSAGE_LENGTH = 2500
#: For larger inputs only reading is timed, not writing and reading again.
LARGE = 1024 * 1024
#: CPU time for one input: the documented second, on a host whose cores are shared with other processes.
MAX_SECONDS = 2.5
#: Events that a parser never causes. ``open`` is among them, because a parser is given bytes.
FORBIDDEN = ("socket.", "subprocess.", "os.system", "os.exec", "os.posix_spawn", "import", "open", "urllib.")

SCRIPT = Script(
    "lake.sales.daily",
    "6f1c",
    f"`{STAGING}`.`staged`.`storage`",
    (
        CreateStorageStep("`a`.`b`", "SELECT 1", "file:///w/s", ("days(`d`)",), (("format-version", "2"),)),
        SqlStep("INSERT OVERWRITE t\nSELECT '{{ 7*7 }}'"),
    ),
    "file:///w/s/staged/6f1c.json",
    (("spark.sql.session.timeZone", "UTC"),),
    1,
    checks=StagedChecks("SELECT * FROM `s`", (StagedCheck("a", "warn", "b", "count(*)", "true", "", "m:f"),), "d1"),
    reads=(TableRead("`a`.`b`.`c`", 7), TableRead(f"`{STAGING}`.`staged`.`base_0`", None)),
)
OUTCOME = Outcome(
    "6f1c",
    "file:///w/s/metadata/1.json",
    7,
    (0.5, 1.25),
    application_id="app-1",
    checks=(CheckResult("a", "error", False, "b", "c", None, ("x",), (("1",), (None,))),),
    checks_digest="d1",
)
PLAN = {
    "view": "lake.sales.daily",
    "mode": "full",
    "state": "stale",
    "reasons": [{"code": "BASE_CHANGED", "message": "moved"}],
    "refresh_id": "6f1c",
    "view_uuid": "u-1",
    "version_id": 1,
    "metadata_location": "file:///w/v/metadata/1.json",
    "storage_table_location": "file:///w/s/metadata/1.json",
    "layout": "pointed",
    "storage_base": "file:///w/s/metadata/1.json",
    "storage_table": "lake.sales.daily_storage",
    "base_tables": [
        BaseTableChange("lake.sales.orders", "iceberg-metastore", 7, 8, moved=True, changed=True).to_dict()
    ],
    "estimates": [asdict(Estimate("full", 1.5, 1000, 3))],
    "skips": False,
    "records": [{"type": "iceberg-metastore", "identifier": "lake.sales.orders", "snapshot-reference": 7}],
    "nested_views": [{"identifier": "lake.sales.v", "uuid": "u-2", "version-id": 2}],
    "statements": [],
    "script": json.loads(SCRIPT.to_json()),
}
DELTA_FIELD = {"name": "n", "type": "long", "nullable": True, "metadata": {"delta.columnMapping.physicalName": "c"}}
DELTA_LIST = {"name": "l", "type": {"type": "array", "elementType": "integer"}, "metadata": {"__COLLATIONS": {}}}
SETTINGS = {"storage-table-location": "file:///w/s/metadata/1.json", "allow-stale-data": True, "x-other": [1, {}]}
TABLE = {
    "format-version": 2,
    "table-uuid": "t-1",
    "location": "file:///w/s",
    "last-sequence-number": 3,
    "last-updated-ms": 500,
    "current-schema-id": 1,
    "schemas": [{"type": "struct", "schema-id": 1, "fields": [{"id": 1, "name": "n", "type": "long"}]}],
    "default-spec-id": 0,
    "partition-specs": [{"spec-id": 0, "fields": [{"source-id": 1, "transform": "identity", "name": "n"}]}],
    "properties": {"owner": "x", "write.metadata.previous-versions-max": "3"},
    "current-snapshot-id": 4,
    "snapshots": [
        {"snapshot-id": 2, "timestamp-ms": 200, "summary": {"operation": "append"}, "manifest-list": "file:///w/m"},
        {"snapshot-id": 4, "parent-snapshot-id": 2, "timestamp-ms": 400, "summary": {"operation": "overwrite"}},
    ],
    "snapshot-log": [{"snapshot-id": 2, "timestamp-ms": 200}, {"snapshot-id": 4, "timestamp-ms": 400}],
    "metadata-log": [{"metadata-file": "file:///w/s/0.json", "timestamp-ms": 100}],
    "refs": {"main": {"snapshot-id": 4, "type": "branch"}, "month": {"snapshot-id": 2, "type": "tag"}},
}


#: The actions of a commit of a Delta table: one document in each line.
COMMIT = [
    {"commitInfo": {"timestamp": 1700000000000, "inCommitTimestamp": 1700000000001, "operation": "WRITE"}},
    {"metaData": {"id": "t-1", "schemaString": json.dumps({"type": "struct", "fields": [DELTA_FIELD, DELTA_LIST]})}},
    {"remove": {"path": "a=1/0.parquet", "dataChange": True, "size": 9, "partitionValues": {"a": "1"}}},
    {"add": {"path": "a=1/1.parquet", "dataChange": True, "size": 9, "stats": '{"numRecords": 3}'}},
    {"add": {"path": "a=1/0.parquet", "deletionVector": {"storageType": "u", "cardinality": 2}}},
]


def _view(data: bytes) -> None:
    view = parse_view(data, view="lake.sales.daily", location="file:///w/v/1.json")
    if len(data) < LARGE:
        again = parse_view(with_view_properties(view, {}).to_bytes(), view="v", location="again")
        assert again == view, "it differs after writing and reading"
    view.sql(view="lake.sales.daily")
    parse_settings(view.properties, view="v", location="file:///w/v/1.json")


def _table(data: bytes) -> None:
    table = parse_table(data, source="view lake.sales.daily, storage table file file:///w/s/1.json")
    snapshots_between(table, 2, table.head)
    assert len(list(ancestors(table, table.head))) <= len(table.snapshots)
    assert all(isinstance(name, str) for name in table.column_names)
    parse_storage_state(table.properties, view="v", location="file:///w/s/1.json")


def _storage(data: bytes) -> None:
    """A storage table's file, in which no key may occur twice."""
    parse_table(data, source="view lake.sales.daily, storage table file file:///w/s/1.json", unique=True)


def _text(data: bytes) -> str:
    try:
        return data.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return data.decode("latin-1")


def _settings(data: bytes) -> None:
    text = _text(data)
    read = parse_settings({PROPERTY: text}, view="lake.sales.daily", location="file:///w/v/1.json")
    if read is not None and len(data) < LARGE:
        assert parse_settings({PROPERTY: property_text(read)}, view="v", location="again") == read


def _state(data: bytes) -> None:
    text = _text(data)
    read = parse_storage_state({PROPERTY: text}, view="lake.sales.daily", location="file:///w/s/1.json")
    if read is not None and len(data) < LARGE:
        assert parse_storage_state({PROPERTY: property_text(read)}, view="v", location="again") == read


def _identifier(data: bytes) -> None:
    name = Identifier.parse(_text(data), default_catalog="lake", default_namespace=("sales",))
    assert Identifier.parse(str(name)) == Identifier.parse(name.sql()) == name


def _script(data: bytes) -> None:
    read = Script.from_json(_text(data))
    assert Script.from_json(read.to_json()) == read
    assert all(isinstance(text, str) for text in read.statements)


def _outcome(data: bytes) -> None:
    read = Outcome.from_json(_text(data))
    assert Outcome.from_json(read.to_json()) == read


def _plan(data: bytes) -> None:
    try:
        document = json.loads(_text(data))
    except (ValueError, RecursionError):
        return  # Airflow decodes an XCom itself
    read = RefreshPlan.from_dict(document)
    assert RefreshPlan.from_dict(json.loads(json.dumps(read.to_dict()))).refresh_id == read.refresh_id


def _delta(data: bytes) -> None:
    read = parse_commit(data, 7, source="base table delta.`/t`, commit file:///t/_delta_log/7.json")
    assert read.summary["operation"] in ("append", "delete", "overwrite", "replace")


def _documents(name: str) -> list[Any]:
    file = {"view": ("view_java", "view_draft_1", "view_draft_2"), "state": ("storage_state",)}
    files = [json.loads((DATA / f"{item}.json").read_text()) for item in file.get(name, ())]
    state = json.loads((DATA / "storage_state.json").read_text())
    return {
        "view": [*files, {**files[0], "properties": {PROPERTY: json.dumps(SETTINGS)}} if files else None],
        "table": [TABLE, {**TABLE, "properties": {PROPERTY: json.dumps(state)}}, {**TABLE, "format-version": 1}],
        "storage": [TABLE],
        "settings": [SETTINGS],
        "state": files,
        "script": [json.loads(SCRIPT.to_json())],
        "outcome": [json.loads(OUTCOME.to_json())],
        "plan": [PLAN],
        "delta": COMMIT,
    }[name]


PARSERS: dict[str, Callable[[bytes], None]] = {
    "view": _view,
    "table": _table,
    "storage": _storage,
    "settings": _settings,
    "state": _state,
    "identifier": _identifier,
    "script": _script,
    "outcome": _outcome,
    "plan": _plan,
    "delta": _delta,
}


def _names(mutator: Mutator, count: int) -> Iterator[bytes]:
    pieces = (
        *ODD_TEXTS,
        "lake",
        "sales",
        ".",
        ".",
        "`",
        "``",
        "-",
        "%2e",
        "\x1f",
        "..",
        "/",
        "\\",
        "x" * 256,
        "SELECT",
    )
    for _ in range(count):
        text = "".join(mutator.random.choices(pieces, k=mutator.random.randint(1, 9)))
        yield text.encode("utf-8", "surrogatepass")


def _commits(mutator: Mutator, count: int, *, all_: bool) -> Iterator[bytes]:
    """Commits of a Delta table: a real one, large ones, and variants of one action, which is broken more often."""
    lines = [json.dumps(action).encode() for action in COMMIT]
    yield b"\n".join(lines)
    add, size = COMMIT[3]["add"], MAX_TEXT_BYTES - LARGE
    fillings = _fillings(size, 500_000)
    for filling in fillings if all_ else islice(fillings, *_FEW):
        yield b'{"comment": ' + filling + b"}"
        yield b'{"add": {"path": "p", "partitionValues": ' + filling + b"}}"
        yield b'{"add": {"path": "p", "stats": ' + json.dumps(filling.decode()).encode() + b"}}"
        yield b'{"metaData": {"schemaString": ' + json.dumps(filling.decode()).encode() + b"}}"
    fields = json.dumps({"fields": [{"name": str(number), "type": "long"} for number in range(60_000)]})
    yield json.dumps({"metaData": {"schemaString": fields}}).encode()
    yield b"\n".join(b'{"add":{"path":"%d"}}' % number for number in range(MAX_ACTIONS))
    yield b'{"add":{"path":""}}\n' * (MAX_BYTES // 20)
    wide = json.dumps({"add": {**add, "path": "x" * LARGE + "\N{PILE OF POO}"}}, ensure_ascii=False).encode()
    yield b"\n".join([wide] * 100)
    for number in range(count):
        place = number % len(lines)
        changed = [*lines[:place], mutator.variant(COMMIT[place]), *lines[place + 1 :]]
        yield b"\n".join(changed)


@cache
def _bomb() -> bytes:
    """A small file of 256 MiB."""
    return gzip.compress(b" " * (1 << 28), compresslevel=1)


def _heavy(name: str) -> Iterator[bytes]:
    """The few large inputs, which must be read within the limits, too."""
    if name == "identifier":
        yield from (b"a." * 5_000_000, b"`" * 10_000_000, b"a" * 10_000_000)
        return
    document = _documents(name)[0]
    ten = "x" * (10 * 1024 * 1024)
    yield _bomb()
    yield b"[" * 1_000_000
    yield b'{"a":' * 200_000
    yield json.dumps({**document, "comment": ten}).encode()
    yield json.dumps({**document, ten: 1}).encode()
    yield json.dumps({**document, "format-version": ten}).encode()
    if name == "view":
        versions = [{**document["versions"][0], "version-id": number} for number in range(1, 10_001)]
        yield json.dumps({**document, "versions": versions}).encode()
        representation = [{"type": "sql", "sql": ten, "dialect": "spark"}]
        yield json.dumps(
            {**document, "versions": [{**document["versions"][0], "representations": representation}]}
        ).encode()
    if name in ("table", "storage"):
        snapshots = [{"snapshot-id": n, "parent-snapshot-id": n - 1, "timestamp-ms": n} for n in range(1, 50_001)]
        yield json.dumps({**document, "snapshots": snapshots, "current-snapshot-id": 50_000}).encode()
    if name == "state":
        record = document["refreshes"][0]
        records = [{**record, "refresh-id": f"r{number}"} for number in range(10_000)]
        yield json.dumps({"refreshes": records, "current-refresh-id": "r7"}).encode()


#: Of the following values the most expensive one within the limits, and one beyond them.
_FEW = (2, 4)


def _fillings(size: int, most: int) -> Iterator[bytes]:
    """Values of a number of bytes, or with a number of keys and values, that are expensive to decode."""
    for count in (most // 2 - 500, 1 << 40):
        yield b"[" + b",".join([b"{}"] * min(count, size // 3)) + b"]"
        yield b"{" + b",".join(b'"%x":1' % number for number in range(min(count, size // 11))) + b"}"
        yield b"{" + b",".join(b'"%07x":"%07x"' % (number, number) for number in range(min(count, size // 21))) + b"}"
    yield b'"' + b"x" * (size - 10) + "\N{PILE OF POO}".encode() + b'"'
    yield b'"' + b"\\u00e4" * (size // 6) + b'"'
    yield b'"' + b"\\ud83d" + b"x" * (size - 10) + b'"'
    yield b"[" + b"1," * (size // 2 - 1) + b"1]"
    yield b"[[" + b"],[" * (most // 2 - 500) + b"]]"
    yield b'"' + b'\\"' * (size // 2 - 1)
    yield b'"x"' * (size // 3)


_PLACES = {
    "table": ("schemas", "properties", "snapshots", "snapshot-log", "metadata-log", "refs", "location"),
    "view": ("properties", "versions", "schemas"),
    "state": ("refreshes",),
    "script": ("steps", "confs"),
    "outcome": ("checks", "seconds"),
}
_ITEMS = (
    ("snapshots", b'{"snapshot-id":1}'),
    ("snapshots", b'{"snapshot-id":1,"summary":{"a":"b"}}'),
    ("snapshots", b'{"snapshot-id":1,"summary":{%s}}' % b",".join(b'"a%d":"b"' % n for n in range(1000))),
    ("snapshots", b'{"snapshot-id":1,"manifest-list":"%s"}' % (b"x" * 800)),
    ("snapshot-log", b'{"snapshot-id":1,"timestamp-ms":1}'),
    ("metadata-log", b'{"metadata-file":"x","timestamp-ms":1}'),
)


def _largest(name: str, *, all_: bool) -> Iterator[bytes]:
    """Inputs of the maximum size."""
    if name in ("identifier", "plan"):
        return  # a plan is already decoded by Airflow
    document = _documents(name)[0]
    most = {"table": 1_500_000, "storage": MAX_DOCUMENT_MARKS, "view": MAX_VIEW_MARKS}.get(name, MAX_MARKS)
    limits = {"table": MAX_BYTES, "storage": MAX_DOCUMENT_BYTES, "view": MAX_VIEW_BYTES}
    size = limits.get(name, MAX_TEXT_BYTES) - LARGE
    for place, filling in _hostile(name, size, most, all_=all_):
        rest = json.dumps({key: value for key, value in document.items() if key != place}).encode()
        yield rest[:-1] + b', "' + place.encode() + b'": ' + filling + b"}"


def _hostile(name: str, size: int, most: int, *, all_: bool) -> Iterator[tuple[str, bytes]]:
    """Fields of a document with their hostile content."""
    places = ("comment", *_PLACES.get(name, ())) if all_ else ("comment",) * (name != "table")
    for place in places:
        fillings = _fillings(size, most)
        # Documents share their decoder and its limits: the view is filled in every way.
        few = not all_ and name != "view"
        yield from ((place, filling) for filling in (islice(fillings, *_FEW) if few else fillings))
    if name == "state":
        filling = next(islice(_fillings(size, most), 1, None))
        table = b'{"type":"iceberg-metastore","identifier":"a.b","snapshot-reference":1,"properties":%s}' % filling
        record = b'{"refresh-id":"a","version-id":1,"sequence-number":1,"base-tables":[%s]}' % table
        yield "refreshes", b"[" + record + b"]"
    items = {"table": _ITEMS, "storage": _ITEMS if all_ else _ITEMS[:1]}
    for place, item in items.get(name, ()):
        for count in (400_000, 1 << 40) if all_ else (400_000,):
            yield place, b"[" + b",".join([item] * min(count, size // (len(item) + 1))) + b"]"


def inputs(name: str, seed: int, count: int) -> Iterator[bytes]:
    """All inputs of one run: the real documents, the large ones, and variants."""
    mutator = Mutator(seed)
    if name == "identifier":
        yield from (b"lake.sales.daily", *_heavy(name), *_names(mutator, count))
        return
    if name == "delta":
        yield from _commits(mutator, count, all_=count > 1000)
        return
    documents = _documents(name)
    yield from (json.dumps(document).encode() for document in documents)
    yield from _heavy(name)
    yield from _largest(name, all_=count > 1000)
    for number in range(count):
        yield mutator.variant(documents[number % len(documents)])


def feed(name: str, seed: int, count: int) -> dict[str, Any]:
    """Run a parser on all inputs, and return the faults."""
    parser, wrong, slowest, read, refused = PARSERS[name], [], 0.0, 0, 0
    watching = _watch()
    for number, data in enumerate(inputs(name, seed, count)):
        started = time.process_time()
        try:
            with limited(watching):
                parser(data)
            read += 1
        except MaterializedViewError as error:
            refused += 1
            if len(str(error)) > MAX_MESSAGE_LENGTH:
                wrong.append(f"input {number}: a message of {len(str(error))} characters: {str(error)[:200]}")
        except BaseException as error:  # noqa: BLE001 (every error is reported)
            wrong.append(f"input {number}: {type(error).__name__}: {str(error)[:200]}: {data[:120]!r}")
        seconds = time.process_time() - started
        wrong += [f"input {number}: {event}" for event in watching[1:]]
        watching.clear()
        slowest = max(slowest, seconds)
        if seconds > MAX_SECONDS:
            wrong.append(f"input {number}: took {seconds:.2f} s: {data[:60]!r}, {len(data)} bytes")
    return {"seed": seed, "read": read, "refused": refused, "slowest": round(slowest, 3), "wrong": wrong[:20]}


def _watch() -> list[str]:
    """Record forbidden events in the returned list, while its first item is ``on``."""
    noted: list[str] = []

    def hook(event: str, arguments: Any) -> None:
        if noted[:1] == ["on"] and event.startswith(FORBIDDEN):
            noted.append(f"{event} {str(arguments)[:100]}")

    sys.addaudithook(hook)
    return noted


@contextmanager
def limited(watching: list[str]) -> Iterator[None]:
    """Allow the block to take :data:`MEMORY_BYTES` more than is in use now, and watch it."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
    watching[:] = ["on"]
    try:
        yield
    finally:
        watching[:1] = ["off"]
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def main() -> None:
    seed, count, names = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    for name in names:
        PARSERS[name](next(inputs(name, seed, 0)))  # what is imported lazily is imported now
    print(json.dumps({name: feed(name, seed, count) for name in names}))


if __name__ == "__main__":
    main()
