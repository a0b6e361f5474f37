# SPDX-License-Identifier: Apache-2.0
"""Delta tables as base tables: the history of a log, written by delta-rs, decides what a view's refresh does."""

from __future__ import annotations

import json
import random
import re
import shutil
import sys
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from airflow_mv.common.status import status
from airflow_mv.core.catalog import MaterializedViewCatalog
from airflow_mv.core.freshness.changes import Kind, between
from airflow_mv.core.freshness.observe import observe
from airflow_mv.core.freshness.state import State
from airflow_mv.core.refresh import RefreshOptions
from airflow_mv.core.refresh.run import refresh
from airflow_mv.core.script import Outcome, Script
from airflow_mv.core.spec.table_metadata import TableMetadata
from airflow_mv.errors import (
    BaseTableNotFoundError,
    ConfigurationError,
    InvalidMetadataError,
)
from airflow_mv.extras.delta.log import parse_commit
from airflow_mv.extras.delta.tables import storage_options
from airflow_mv.extras.pins import pin_base_tables, restore
from airflow_mv.extras.spark.session import settings_of
from tests.builders import Lake, lake, orders
from tests.protocol.foreign import BucketStore

VIEW = "sales.daily"


@pytest.fixture
def home(sqlite_uri: str, warehouse: Path) -> Iterator[Lake]:
    with lake(sqlite_uri, warehouse) as found:
        yield found


@pytest.fixture
def events(warehouse: Path) -> str:
    """A Delta table with two rows, at version 0."""
    path = f"{warehouse}/events"
    write_deltalake(path, orders([(1, "north", 10), (2, "south", 20)]))
    return path


def change(path: str, chance: random.Random, number: int) -> None:
    """Make a random commit."""
    table, some = DeltaTable(path), chance.randrange(9)
    older = chance.randrange(table.version()) if table.version() else None
    match chance.choice(["append", "append", "delete", "update", "compact", "restore"]):
        case "append":
            write_deltalake(path, orders([(number, "a", some), (number, "b", some)]), mode="append")
        case "delete":
            table.delete(f"id = {some}")
        case "update":
            table.update(updates={"amount": "amount + 1"}, predicate=f"id > {some}")
        case "compact":
            table.optimize.compact()
        case "restore" if older is not None:
            table.restore(older)


def committed_at(path: str, version: int, moment: datetime) -> None:
    """Set the time of a commit."""
    file = Path(path, "_delta_log", f"{version:020}.json")
    file.write_text(re.sub(r'"timestamp":\d+', f'"timestamp":{int(moment.timestamp() * 1000)}', file.read_text()))


def ids(home: Lake) -> list[int]:
    return sorted(row["id"] for row in home.read(VIEW))


def state(home: Lake) -> State:
    return status(home.catalog, VIEW).state


def of(home: Lake, path: str) -> TableMetadata:
    """The history of a view's only base table, as the planner sees it."""
    home.view("seen", f"SELECT id FROM delta.`{path}`")
    table = observe(home.catalog, "sales.seen").tables[0].table
    assert table is not None
    return table


def test_a_view_of_a_delta_table_is_kept_fresh(home: Lake, events: str) -> None:
    """Its record has its own type, its folder and its version; compaction changes no row."""
    home.view(sql=f"SELECT id FROM DELTA.`{events}` WHERE amount > 0")
    home.refresh()
    (table,) = home.storage(VIEW).record.base_tables  # type: ignore[union-attr]
    assert (table.type, table.location, table.snapshot_reference) == ("deltalake-filesystem", events, 0)
    assert table.identifier == f"delta.`{events}`"
    assert state(home) == State.FRESH
    write_deltalake(events, orders([(3, "east", 1)]), mode="append")
    assert state(home) == State.STALE
    home.refresh()
    assert (ids(home), state(home)) == ([1, 2, 3], State.FRESH)
    DeltaTable(events).optimize.compact()
    assert state(home) == State.FRESH
    assert home.refresh().mode == "fast-forward"


def test_a_view_reads_a_delta_table_beside_an_iceberg_table(home: Lake, events: str) -> None:
    home.table()
    home.view(sql=f"SELECT o.id, e.amount FROM lake.sales.orders o JOIN delta.`{events}` AS e ON e.id = o.id")
    home.refresh()
    kinds = {table.type for table in home.storage(VIEW).record.base_tables}  # type: ignore[union-attr]
    assert (ids(home), kinds) == ([1, 2], {"iceberg-metastore", "deltalake-filesystem"})
    home.append((2, "south", 1))
    home.refresh()
    assert ids(home) == [1, 2, 2]
    DeltaTable(events).delete("id = 1")
    home.refresh()
    assert ids(home) == [2, 2]


def test_a_table_that_was_created_again_is_another_one(home: Lake, events: str) -> None:
    """Although its version and the name of its last commit are the recorded ones."""
    home.view(sql=f"SELECT id FROM delta.`{events}`")
    home.refresh()
    shutil.rmtree(events)
    assert state(home) == State.UNKNOWN
    with pytest.raises(BaseTableNotFoundError, match="it has no commit"):
        home.refresh()
    write_deltalake(events, orders([(7, "east", 1)]))
    assert [str(reason.code) for reason in status(home.catalog, VIEW).reasons] == ["BASE_RECREATED"]
    home.refresh()
    assert ids(home) == [7]


def test_a_version_and_a_time_in_the_query_stay(home: Lake, events: str) -> None:
    for number, day in enumerate((1, 3), 3):
        write_deltalake(events, orders([(number, "east", 1)]), mode="append")
        committed_at(events, number - 2, datetime(2026, 1, day, tzinfo=UTC))
    committed_at(events, 0, datetime(2025, 12, 31, tzinfo=UTC))
    home.view(sql=f"SELECT id FROM delta.`{events}` VERSION AS OF 1")
    home.refresh()
    assert (ids(home), state(home)) == ([1, 2, 3], State.FRESH)
    write_deltalake(events, orders([(5, "east", 1)]), mode="append")
    assert state(home) == State.FRESH
    home.view("then", f"SELECT id FROM delta.`{events}` TIMESTAMP AS OF '2026-01-02'")
    home.refresh("sales.then")
    assert len(home.read("sales.then")) == 3
    home.view("late", f"SELECT id FROM delta.`{events}`")
    home.refresh("sales.late", options=RefreshOptions(as_of=datetime(2026, 1, 2, tzinfo=UTC)))
    assert home.storage("sales.late").record.snapshots == {f"delta.`{events}`": 1}  # type: ignore[union-attr]


def test_a_run_reads_the_version_that_it_pinned(home: Lake, events: str) -> None:
    home.view(sql=f"SELECT id FROM delta.`{events}`")
    home.refresh()
    write_deltalake(events, orders([(3, "east", 1)]), mode="append")
    run = pin_base_tables(home.catalog, [home.catalog.identify(VIEW)])
    write_deltalake(events, orders([(4, "east", 1)]), mode="append")
    home.refresh(pins=restore(home.catalog, VIEW, run))
    assert ids(home) == [1, 2, 3]
    home.refresh()
    assert ids(home) == [1, 2, 3, 4]


def test_a_table_outside_of_the_allowed_folders_is_not_read(home: Lake, tmp_path: Path) -> None:
    path = f"{tmp_path}/outside"
    write_deltalake(path, orders([(1, "north", 1)]))
    with pytest.raises(InvalidMetadataError, match=r"path: .*lies outside of this catalog's folders"):
        home.view(sql=f"SELECT id FROM delta.`{path}`")


def test_without_the_extra_the_error_names_it(home: Lake, events: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "deltalake", None)
    with pytest.raises(ConfigurationError, match=r"install airflow-mv\[delta\]"):
        home.view(sql=f"SELECT id FROM delta.`{events}`")


def test_spark_gets_delta_only_for_views_that_read_it(home: Lake, events: str) -> None:
    home.table()
    home.view()
    plain = settings_of(home.catalog)
    assert "delta" not in f"{plain.packages} {plain.confs['spark.sql.extensions']}"
    home.view("other", f"SELECT id FROM delta.`{events}`")
    catalog = home.catalog = home.stager.catalog = MaterializedViewCatalog(home.iceberg)
    first: list[str] = []

    def stage(script: Script) -> Outcome:
        first.append(settings_of(catalog).confs["spark.sql.extensions"])
        return home.stager(script)

    refresh(catalog, ["sales.daily", "sales.other"], stager=stage)
    assert "Delta" in first[0], "the session of the first view serves the second one, too"
    for spark in ("4.1", "4.0"):
        settings = settings_of(home.catalog).on(spark)
        assert [item for item in settings.packages if "delta" in item] == [f"io.delta:delta-spark_{spark}_2.13:4.4.0"]
    assert settings.confs["spark.sql.extensions"].endswith(",io.delta.sql.DeltaSparkSessionExtension")
    assert settings.confs["spark.jars.excludes"].count("org.apache.hadoop:hadoop-client-") == 2, "Spark has them"


def test_a_schema_that_changed_with_its_data_makes_the_view_stale(home: Lake, events: str) -> None:
    write_deltalake(events, orders([(1, "a", 1)]).drop_columns("region"), mode="overwrite", schema_mode="overwrite")
    table = of(home, events)
    assert [len(table.schema_at(version)["fields"]) for version in (0, 1)] == [3, 2]
    assert between(table, 0, 1).schema_changed


def with_columns(path: str, version: int, **names: str) -> None:
    """Commit what Spark does to name columns of a table with column mapping: the files keep the names of version 0."""
    log = Path(path, "_delta_log")
    first = [json.loads(line) for line in (log / f"{0:020}.json").read_text().splitlines()]
    metadata = next(action["metaData"] for action in first if "metaData" in action)
    schema = json.loads(metadata["schemaString"])
    for number, field in enumerate(schema["fields"], 1):
        field["metadata"] = {"delta.columnMapping.id": number, "delta.columnMapping.physicalName": field["name"]}
        field["name"] = names.get(field["name"], field["name"])
    metadata["schemaString"] = json.dumps(schema)
    metadata["configuration"] = {"delta.columnMapping.mode": "name", "delta.columnMapping.maxColumnId": "3"}
    actions = [{"protocol": {"minReaderVersion": 2, "minWriterVersion": 5}}, {"metaData": metadata}]
    (log / f"{version:020}.json").write_text("\n".join(map(json.dumps, actions)))


def test_with_column_mapping_a_column_is_its_name_in_the_files(home: Lake, events: str) -> None:
    """Column mapping that is switched on changes no column; a rename changes the one that it renames."""
    home.view(sql=f"SELECT id, amount FROM delta.`{events}`")
    home.refresh()
    with_columns(events, 1)
    assert (state(home), home.refresh().mode, ids(home)) == (State.FRESH, "fast-forward", [1, 2])
    with_columns(events, 2, region="place")
    assert (state(home), home.refresh().outcome) == (State.STALE, "refreshed")
    with_columns(events, 3, region="place", amount="total")
    found = status(home.catalog, VIEW)
    assert found.state == State.INVALID
    assert "the column amount was renamed to total" in str(found.reasons)


def test_a_new_column_leaves_the_view_valid(home: Lake, events: str) -> None:
    home.view(sql=f"SELECT id, amount FROM delta.`{events}`")
    home.refresh()
    more = orders([(3, "east", 1)]).append_column("extra", pa.array([1]))
    write_deltalake(events, more, mode="append", schema_mode="merge")
    assert (state(home), home.refresh().outcome, ids(home)) == (State.STALE, "refreshed", [1, 2, 3])


def test_a_vacuum_is_no_change_and_the_recorded_version_may_lose_its_files(home: Lake, events: str) -> None:
    """Freshness and plans read the log only. The rows that were read stay in the view."""
    home.view(sql=f"SELECT id, amount FROM delta.`{events}`")
    home.refresh()
    table = DeltaTable(events)
    table.delete("id = 1")
    assert table.vacuum(0, enforce_retention_duration=False, dry_run=False)
    assert state(home) == State.STALE
    home.refresh()
    DeltaTable(events).vacuum(0, enforce_retention_duration=False, dry_run=False)
    assert (ids(home), state(home)) == ([2], State.FRESH)


_SCHEMA = '{"metaData":{"schemaString":"%s"}}'


@pytest.mark.parametrize(
    "broken",
    [
        "not json",
        "[1]",
        '{"add":{"size":1}}',
        '{"add":{"path":"x","size":"many"}}',
        '{"add":{"path":"x","deletionVector":3}}',
        '{"commitInfo":5}',
        "[" * 100_000,
        _SCHEMA % "[]",
        _SCHEMA % '{\\"fields\\":[{\\"name\\":7,\\"type\\":\\"long\\"}]}',
        _SCHEMA % ('{\\"fields\\":[{\\"name\\":\\"a\\",\\"type\\":' * 1000),
    ],
)
def test_a_broken_commit_is_one_error_that_names_the_file(broken: str) -> None:
    with pytest.raises(InvalidMetadataError, match=r"^file 1: ") as caught:
        parse_commit(f'{{"commitInfo":{{"timestamp":"odd"}}}}\n\n{broken}\n'.encode(), 1, source="file 1")
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("seed", range(3))
def test_what_a_log_says_of_a_change_is_true(home: Lake, events: str, seed: int) -> None:
    """Between any two versions: the kind and the numbers of rows, against the rows that delta-rs reads."""
    chance = random.Random(seed)
    for number in range(8):
        change(events, chance, number)
    seen = of(home, events)
    rows = [_rows(events, version) for version in range((seen.head or 0) + 1)]
    for old in range(len(rows)):
        for new in range(old + 1, len(rows)):
            _check(seen, old, new, rows[old], rows[new])


def _rows(path: str, version: int) -> Counter[str]:
    return Counter(map(str, DeltaTable(path, version).to_pyarrow_table().to_pylist()))


def _check(seen: TableMetadata, old: int, new: int, before: Counter[str], after: Counter[str]) -> None:
    change = between(seen, old, new)
    if change.kind == Kind.REPLACED:
        assert before == after
    if change.only_appends:
        assert before <= after
        assert change.size.rows_added == (after - before).total()
    if None not in (change.size.rows_added, change.size.rows_deleted):
        assert (change.size.rows_added or 0) - (change.size.rows_deleted or 0) == after.total() - before.total()
    if new == seen.head:
        assert change.size.total_rows == after.total()


def test_a_table_in_s3_is_read_with_the_catalog_s_access(sqlite_uri: str, warehouse: Path, s3_server: str) -> None:
    """By delta-rs, with the catalog's `s3.*` properties and no others."""
    bucket = BucketStore(s3_server, "delta")
    path, allowed = "s3://delta/events", {"airflow-mv.allowed-locations": "s3://delta"}
    options = storage_options(bucket.access)
    write_deltalake(path, orders([(1, "north", 10), (2, "south", 20)]), storage_options=options)
    with lake(sqlite_uri, warehouse, **allowed, **bucket.access) as home:
        home.view(sql=f"SELECT id FROM delta.`{path}`")
        home.refresh()
        assert (ids(home), state(home)) == ([1, 2], State.FRESH)
        write_deltalake(path, orders([(3, "east", 1)]), mode="append", storage_options=options)
        assert state(home) == State.STALE
        home.refresh()
        assert (ids(home), state(home)) == ([1, 2, 3], State.FRESH)
        with pytest.raises(BaseTableNotFoundError, match="s3://delta/nothing"):
            home.view("other", "SELECT id FROM delta.`s3://delta/nothing`")
