# SPDX-License-Identifier: Apache-2.0
"""A component as a table of rows with keys: read, upsert, delete, compact, expire."""

from __future__ import annotations

import json
import random
import threading
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table

from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.errors import CatalogUnavailableError, InvalidMetadataError, InvalidQueryError
from airflow_mv.extras.registry.expiry import expire_later, wait_for_expiry
from airflow_mv.extras.registry.filters import all_rows, before_month, equal, of_view, one_of, refreshed_since
from airflow_mv.extras.registry.model import REFRESHES, RefreshRow
from airflow_mv.extras.registry.registry import Registry, add_refresh, require_registry
from airflow_mv.extras.registry.settings import EXPIRE_AFTER, MAX_FILES
from tests.builders import Lake
from tests.extras.registry.support import START, files_of, refresh_row

VIEWS = ("lake.sales.daily", "lake.sales.weekly", "lake.web.clicks")
pytestmark = pytest.mark.parametrize("home", ["folder"], indirect=True)
#: About two months: rows of several partitions.
HOURS = 1400


def table_of(registry: Registry) -> Table:
    found = registry._home.open(REFRESHES)
    assert found is not None
    return found


def data_files(registry: Registry) -> list[str]:
    return [task.file.file_path for task in table_of(registry).scan().plan_files()]


@pytest.mark.parametrize("steps", [8, pytest.param(60, marks=pytest.mark.slow)])
def test_it_keeps_the_rows_that_a_dictionary_would_keep(home: Lake, steps: int) -> None:
    """Any order of changes, in small partitions that are rewritten all the time."""
    home.catalog.properties[MAX_FILES] = "2"
    registry, dice = require_registry(home.catalog), random.Random(steps)
    kept: dict[tuple[str, str], RefreshRow] = {}
    for step in range(steps):
        rows = [
            refresh_row(dice.randrange(HOURS), dice.choice(VIEWS), rows_written=step) for _ in range(dice.randint(1, 6))
        ]
        new = {(row.view_uuid, row.refresh_id): row for row in rows}
        # The first change makes the table, which a deletion does not.
        action = dice.choice(["upsert", "add", "upsert", "delete", "delete a key"]) if step else "upsert"
        if action == "add" and new.keys().isdisjoint(kept):
            assert registry.refreshes.add([*new.values()]) == len(new)
            kept = {**kept, **new}
        elif action == "add":
            with pytest.raises(InvalidQueryError, match="would have two rows with the refresh_id"):
                registry.refreshes.add([*new.values()])
        elif action == "upsert":
            assert registry.refreshes.upsert(rows) == len(new)
            kept = {**kept, **new}
        else:
            ids = [row.refresh_id for row in dice.sample(sorted(kept.values(), key=str), min(len(kept), 2))]
            where = equal(namespace="web") if action == "delete" else one_of("refresh_id", [*ids, "none"])
            left = {
                key: row
                for key, row in kept.items()
                if (row.namespace != "web" if action == "delete" else row.refresh_id not in ids)
            }
            assert registry.refreshes.delete(where) == len(kept) - len(left)
            kept = left
        found = registry.refreshes.rows()
        assert sorted(found, key=str) == sorted(kept.values(), key=str), (step, action)
        registry.refreshes.compact()
    partitions = {(row.namespace, row.month) for row in kept.values()}
    assert len(data_files(registry)) <= 2 * len(partitions)
    registry.refreshes.compact(before_month("2025-02"), max_files=1)
    january = [location for location in data_files(registry) if "month=2025-01" in location]
    assert len(january) == len({place for place in partitions if place[1] == "2025-01"})
    assert sorted(registry.refreshes.rows(), key=str) == sorted(kept.values(), key=str)
    assert registry.refreshes.delete(all_rows()) == len(kept)
    assert registry.refreshes.rows() == []


def test_a_read_opens_only_the_partitions_of_its_filter_and_reads_only_its_columns(
    home: Lake, registry: Registry
) -> None:
    """The files of all other partitions are deleted, and the read does not miss them."""
    rows = [refresh_row(number, view) for number in range(0, HOURS, 100) for view in VIEWS]
    registry.refreshes.upsert(rows)
    february = START.replace(month=2)
    for location in data_files(registry):
        if "namespace=sales" not in location or "month=2025-02" not in location:
            Path(urlsplit(location).path).unlink()
    where = of_view(Identifier.parse(VIEWS[0]))
    found = registry.refreshes.read(where & refreshed_since(february), ["refresh_id", "mode"])
    assert found.column_names == ["refresh_id", "mode"]
    turned = registry.refreshes.read(where & refreshed_since(february), ["mode", "refresh_id"])
    assert turned.column_names == ["mode", "refresh_id"]
    assert turned.select(found.column_names).sort_by("refresh_id") == found.sort_by("refresh_id")
    wanted = [row.refresh_id for row in rows if row.view == VIEWS[0] and row.refreshed_at >= february]
    assert sorted(found["refresh_id"].to_pylist()) == sorted(wanted)


@pytest.mark.parametrize("period", ["1 h", ""])
def test_what_is_no_longer_current_expires_after_the_period_or_never(
    home: Lake, period: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    home.catalog.properties[EXPIRE_AFTER] = period
    registry = require_registry(home.catalog)
    for number in range(3):
        registry.refreshes.upsert([refresh_row(1, rows_written=number)])
    snapshots = len(table_of(registry).metadata.snapshots)
    lost = {file.name for file in files_of(registry) if file.suffix in (".parquet", ".avro")}
    now_ms = time.time_ns() // 1_000_000
    monkeypatch.setattr(home.catalog.files, "now_ms", lambda _: now_ms + 2 * 3_600_000)
    registry.refreshes.upsert([refresh_row(1, rows_written=5)])
    expire_later(registry.components.values())
    assert wait_for_expiry()
    left = lost & {file.name for file in files_of(registry)}
    assert len(table_of(registry).metadata.snapshots) == (1 if period else snapshots + 2)
    assert left == (set() if period else lost)
    assert [row.rows_written for row in registry.refreshes.rows()] == [5]


def test_a_commit_whose_answer_was_lost_is_not_sent_again(
    home: Lake, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client or a proxy has sent it twice. The copy conflicts with the original."""
    commit = Table._do_commit

    def committed_twice(table: Table, **request: Any) -> None:
        monkeypatch.setattr(Table, "_do_commit", commit)
        commit(table, **request)
        raise CommitFailedException("a requirement was not met")

    for number in range(3):
        monkeypatch.setattr(Table, "_do_commit", committed_twice)
        assert registry.refreshes.upsert([refresh_row(0, rows_written=number)]) == 1
        assert [row.rows_written for row in registry.refreshes.rows()] == [number]


def test_a_change_that_another_one_overtakes_is_made_again(
    home: Lake, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of other rows, and of the same row: then the later commit counts. No row is there twice."""
    registry.refreshes.upsert([refresh_row(0)])
    commit = Table._do_commit

    def late(table: Table, **request: Any) -> None:
        monkeypatch.setattr(Table, "_do_commit", commit)
        require_registry(home.catalog).refreshes.upsert([refresh_row(1, rows_written=1), refresh_row(number)])
        commit(table, **request)

    for number in (2, 3, 1):
        monkeypatch.setattr(Table, "_do_commit", late)
        assert registry.refreshes.upsert([refresh_row(number, rows_written=number + 10)]) == 1
    found = {row.refresh_id: row.rows_written for row in registry.refreshes.rows()}
    assert len(registry.refreshes.rows()) == len(found) == 4
    assert [found[refresh_row(number).refresh_id] for number in range(4)] == [None, 11, 12, 13]


def test_a_table_of_an_older_version_gets_the_new_columns(home: Lake, registry: Registry) -> None:
    registry.refreshes.upsert([refresh_row(1)])
    with table_of(registry).update_schema() as update:
        update.delete_column("executor_seconds")
        update.delete_column("base_snapshots")
    assert registry.refreshes.rows() == [refresh_row(1)]
    row = refresh_row(2, executor_seconds=1.5, base_snapshots={"lake.sales.orders": 7})
    registry.refreshes.upsert([row])
    assert sorted(registry.refreshes.rows(), key=lambda item: item.refreshed_at) == [refresh_row(1), row]


def test_a_table_whose_metadata_names_files_elsewhere_is_refused(
    home: Lake, registry: Registry, warehouse: Path
) -> None:
    """pyiceberg would delete what the metadata log names."""
    victim = warehouse.parent / "victim.metadata.json"
    victim.write_text("{}")
    registry.refreshes.upsert([refresh_row(1)])
    (path,) = (file for file in files_of(registry) if str(file) == urlsplit(table_of(registry).metadata_location).path)
    document = json.loads(path.read_text())
    for change in (
        {"metadata-log": [{"timestamp-ms": 1, "metadata-file": f"file://{victim}"}]},
        {"location": f"file://{warehouse.parent}"},
        {"properties": {**document["properties"], "write.data.path": f"file://{warehouse.parent}"}},
    ):
        path.write_text(json.dumps({**document, **change}))
        with pytest.raises(InvalidMetadataError, match="registry table refreshes"):
            registry.refreshes.upsert([refresh_row(2)])
    assert victim.exists()


def test_the_columns_are_those_of_the_model_with_its_comments(home: Lake, registry: Registry) -> None:
    registry.refreshes.upsert([refresh_row(1)])
    table = table_of(registry)
    fields = RefreshRow.model_fields
    assert {field.name: field.doc for field in table.schema().fields} == {
        name: field.description for name, field in fields.items()
    }
    names = [table.schema().find_column_name(field.source_id) for field in table.spec().fields]
    assert names == ["catalog", "namespace", "month"]


def test_a_change_does_not_wait_for_an_expiry_and_the_process_does(home: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store is slow, or refuses: the change has been answered by then, and the failure is only logged."""
    home.catalog.properties[EXPIRE_AFTER] = "1 h"
    registry, begun, may_end = require_registry(home.catalog), threading.Event(), threading.Event()

    def slow(_component: object) -> int:
        begun.set()
        may_end.wait(60)
        raise CatalogUnavailableError("the store is busy")

    monkeypatch.setattr(type(registry.refreshes), "expire", slow)
    registry.stage(refresh_row(1))
    home.catalog.properties["airflow-mv.registry.sync-after"] = "1"
    add_refresh(require_registry(home.catalog), refresh_row(2))
    assert begun.wait(60)
    assert len(registry.refreshes.rows()) == 2
    assert not wait_for_expiry(0.01)
    may_end.set()
    assert wait_for_expiry()
