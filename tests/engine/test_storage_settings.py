# SPDX-License-Identifier: Apache-2.0
"""Properties of the storage table that a view's owner chooses, in each layout, with real Spark."""

from __future__ import annotations

import pyarrow.parquet as pq
import pytest

from airflow_mv.core.define.definition import Definition
from airflow_mv.core.refresh import candidates
from airflow_mv.core.script import Outcome, Script
from airflow_mv.core.spec.properties import SORT_PROPERTY, sort_order_of
from airflow_mv.errors import ConfigurationError, UnsupportedError
from airflow_mv.extras import compact as compaction
from airflow_mv.extras.compact import compact
from airflow_mv.extras.define import define
from tests.builders import LAYOUTS
from tests.engine.support import Lake, multiset, recomputed

DAILY = "SELECT day, sum(amount) AS amount, count(*) AS rows FROM {ns}.orders GROUP BY day"
ROW_GROUP = "write.parquet.row-group-size-bytes"
CODEC = "airflow-mv.storage.write.parquet.compression-codec"


@pytest.mark.parametrize(
    "layout", [name if name == "pointed" else pytest.param(name, marks=pytest.mark.slow) for name in LAYOUTS]
)
def test_a_refresh_gives_the_storage_table_the_properties_of_the_view(lake: Lake, layout: str) -> None:
    """At the first refresh, after a change of the definition, and with other columns; rows stay right on version 3."""
    lake.table("orders", "day integer, amount bigint", "(1, 10), (1, 20), (2, 30)")
    version = 3 if layout == "pointed" else 2
    chosen = {"airflow-mv.storage.format-version": str(version), CODEC: "gzip"}
    sql = DAILY.format(ns=f"{lake.catalog.name}.{lake.namespace}")
    lake.create("daily", DAILY, layout=layout, refresh_strategy="incremental", properties=chosen)
    lake.refresh("daily")
    assert _state(lake) == (version, "gzip", {"GZIP"})
    assert lake.rows("daily") == [(1, 30, 2), (2, 30, 1)]

    definition = Definition(sql, properties={CODEC: "snappy"})
    assert define(lake.catalog, lake("daily"), definition, stager=lake.stager).action == "changed"
    lake.insert("orders", "(3, 5)")
    lake.refresh("daily")
    assert _state(lake)[:2] == (version, "snappy")
    assert lake.rows("daily") == [(1, 30, 2), (2, 30, 1), (3, 5, 1)]

    lake.create("daily", "SELECT day, count(*) AS rows FROM {ns}.orders GROUP BY day", replace=True)
    lake.refresh("daily")
    assert _state(lake) == (version, "snappy", {"SNAPPY"})
    assert lake.rows("daily") == [(1, 2), (2, 1), (3, 1)]


@pytest.mark.parametrize(
    "layout", [name if name == "pointed" else pytest.param(name, marks=pytest.mark.slow) for name in LAYOUTS]
)
def test_the_files_of_a_view_are_sorted_as_its_owner_chooses(
    lake: Lake, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a full and an incremental refresh, and by a compaction: all of one file then. An empty order ends it."""
    lake.table("orders", "day integer, amount bigint", *(f"({number}, {number * 37 % 101})" for number in range(60)))
    properties = {SORT_PROPERTY: "AMOUNT desc, `day`", "airflow-mv.incremental-up-to": "1000000"}
    query = "SELECT day, amount FROM {ns}.orders"
    lake.create("daily", query, layout=layout, refresh_strategy="incremental", properties=properties)
    lake.refresh("daily")
    first = _amounts(lake)
    lake.insert("orders", "(70, 3), (71, 200), (72, 50)")
    assert lake.refresh("daily").mode == "append"
    appended = _amounts(lake)
    assert len(appended) > len(first)
    for file in appended:
        assert file == sorted(file, reverse=True)
    monkeypatch.setattr(compaction, "MIN_FILES", 1)
    ran: list[Script] = []

    def noted(script: Script) -> Outcome:
        ran.append(script)
        return lake.stager(script)

    assert compact(lake.catalog, lake("daily"), stager=noted).outcome == "compacted"
    assert _amounts(lake) == [sorted((number for file in appended for number in file), reverse=True)]
    assert "strategy => 'sort'" in ran[0].steps[-1].describe(), "over all files, not within each"
    none = Definition(query.format(ns=f"{lake.catalog.name}.{lake.namespace}"), properties={SORT_PROPERTY: ""})
    assert define(lake.catalog, lake("daily"), none, stager=lake.stager).action == "changed"
    lake.insert("orders", "(73, 5)")
    lake.refresh("daily")
    assert sort_order_of(lake.catalog.load_storage(lake.view("daily")).table) == ()
    wrong = {SORT_PROPERTY: "day, price"}
    with pytest.raises(ConfigurationError, match=r"there is no column 'price'; there are: day, amount"):
        lake.create("other", query, layout=layout, properties=wrong)


def test_stored_rows_are_found_in_small_row_groups(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new table has them by default, and a property of the view takes precedence. Few rows are deleted."""
    monkeypatch.setattr(candidates, "SMALL_STORAGE", -1)  # else so few rows are written anew by each refresh
    rows = ", ".join(f"({number}, {number % 7}, 'row {number}')" for number in range(900))
    lake.table("orders", "id integer, amount bigint, note varchar", rows)
    query, ways = "SELECT id, amount, note FROM {ns}.orders", list[str]()
    lake.create("daily", query, refresh_strategy="incremental")
    assert lake.catalog.load_storage(lake.view("daily")).table.properties[ROW_GROUP] == str(3 * 160 * 1024)

    chosen = {ROW_GROUP: "1", "write.parquet.row-group-check-min-record-count": "50"}
    own = {f"airflow-mv.storage.{key}": value for key, value in chosen.items()}
    lake.create("daily", query, refresh_strategy="incremental", properties=own, replace=True)
    lake.refresh("daily")

    def noted(script: Script) -> Outcome:
        outcome = lake.stager(script)
        ways.append(outcome.written_by)
        return outcome

    assert max(pq.ParquetFile(file).metadata.num_row_groups for file in lake.stored_files("daily")) > 3
    for change in (
        "DELETE FROM {} WHERE id BETWEEN 120 AND 133",
        "UPDATE {} SET amount = -1 WHERE id IN (0, 450, 899)",
    ):
        lake.run(change.format(lake("orders")))
        assert lake.refresh("daily", stager=noted, on_fallback="fail").mode == "merge"
        assert multiset(lake.stored("daily")) == recomputed(lake, "daily", query.replace("{ns}.", ""))
    assert ways == ["positions", "positions"]


def _amounts(lake: Lake) -> list[list[int]]:
    """The amounts of each file, in the order in which they are stored."""
    return [pq.ParquetFile(file).read()["amount"].to_pylist() for file in lake.stored_files("daily")]


def test_format_version_3_is_refused_for_tables_of_a_catalog(lake: Lake) -> None:
    """pyiceberg commits to them, and cannot write that version. Nothing is created."""
    lake.table("orders", "day integer, amount bigint", "(1, 10)")
    chosen = {"airflow-mv.storage.format-version": "3"}
    with pytest.raises(UnsupportedError, match="its format version is 3, and pyiceberg commits to no newer"):
        lake.create("daily", DAILY, layout="table", properties=chosen)
    assert not lake.catalog.exists(lake.catalog.identify(lake("daily")))


def _state(lake: Lake) -> tuple[int, str, set[str]]:
    storage = lake.catalog.load_storage(lake.view("daily"))
    codecs = {pq.ParquetFile(file).metadata.row_group(0).column(0).compression for file in lake.stored_files("daily")}
    return storage.table.format_version, storage.table.properties["write.parquet.compression-codec"], codecs
