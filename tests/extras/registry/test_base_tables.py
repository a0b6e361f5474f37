# SPDX-License-Identifier: Apache-2.0
"""The component ``tables``: base tables, their partitions, files and row groups, and what makes refreshes slow."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pytest
from pyarrow import parquet
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.table import Table
from pyiceberg.typedef import Record

from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.extras.registry.advice import findings
from airflow_mv.extras.registry.base_tables import BaseTable, TableFile, _counts, read_base_table
from airflow_mv.extras.registry.filters import equal
from airflow_mv.extras.registry.model import TableRow
from airflow_mv.extras.registry.registry import Registry, require_registry
from airflow_mv.extras.registry.settings import DETAIL
from airflow_mv.extras.registry.sync import sync
from tests.builders import ORDERS, Lake, orders

pytestmark = pytest.mark.parametrize("home", ["folder"], indirect=True)
NAME = "lake.sales.parts"
VIEW = "SELECT region, count(*) AS n FROM lake.sales.parts WHERE id > 0 GROUP BY region"


@pytest.fixture
def parts(home: Lake) -> Table:
    """A table that is partitioned by region, and a view that reads it."""
    table = home.iceberg.create_table("sales.parts", schema=ORDERS)
    with table.update_spec() as spec:
        spec.add_identity("region")
    table.append(orders([(1, "north", 10), (2, "south", 20)]))
    home.view("by_region", VIEW)
    return home.load("parts")


def units(registry: Registry, unit: str) -> list[TableRow]:
    return [row for row in registry.tables.rows(equal(table_name=NAME)) if row.unit == unit]


def data_files(registry: Registry) -> dict[str, set[str]]:
    """The registry's own files of each segment of the table."""
    table = registry._home.open(registry.tables.kind)
    assert table is not None
    found: dict[str, set[str]] = {}
    for task in table.scan(row_filter=equal(table_name=NAME)).plan_files():
        found.setdefault(task.file.partition[3], set()).add(task.file.file_path)
    return found


def test_the_rows_are_what_the_metadata_and_the_footers_say(home: Lake, parts: Table) -> None:
    """Compared with pyiceberg's own inspection of the files, and with Arrow's reading of the footers."""
    home.catalog.properties[DETAIL] = "row-groups"
    assert sync(home.catalog).tables == 1
    registry = require_registry(home.catalog)
    (general,) = units(registry, "table")
    assert (general.snapshot_id, general.data_files, general.rows) == (home.head("parts"), 2, 2)
    wanted = parts.inspect.files().to_pylist()
    assert {
        row.location: (row.segment, row.rows, row.bytes, row.null_counts["amount"], row.lower_bounds["id"])
        for row in units(registry, "file")
    } == {
        file["file_path"]: (
            f"region={file['partition']['region']}",
            file["record_count"],
            file["file_size_in_bytes"],
            file["readable_metrics"]["amount"]["null_value_count"],
            str(file["readable_metrics"]["id"]["lower_bound"]),
        )
        for file in wanted
    }
    assert {row.segment: (row.data_files, row.bytes) for row in units(registry, "segment")} == {
        f"region={file['partition']['region']}": (1, file["file_size_in_bytes"]) for file in wanted
    }
    for row in units(registry, "row-group"):
        group = parquet.read_metadata(urlsplit(str(row.location)).path).row_group(int(row.row_id.rpartition("#")[2]))
        assert (row.rows, row.bytes) == (group.num_rows, group.total_byte_size)
        assert row.upper_bounds["region"] == group.column(1).statistics.max


def test_only_what_has_changed_is_read_and_rewritten(home: Lake, parts: Table) -> None:
    """The registry's file of the other partition stays; the data file whose footer is known may be gone."""
    home.catalog.properties[DETAIL] = "row-groups"
    sync(home.catalog)
    registry = require_registry(home.catalog)
    before = data_files(registry)
    assert sync(home.catalog).tables == 0
    assert data_files(registry) == before
    for row in units(registry, "file"):
        Path(urlsplit(str(row.location)).path).unlink()
    parts.append(orders([(3, "south", 30)]))
    assert sync(home.catalog).tables == 1
    after = data_files(registry)
    assert after["region=north"] == before["region=north"]
    assert after["region=south"] != before["region=south"]
    assert sorted(row.segment for row in units(registry, "row-group")) == ["region=north"] + 2 * ["region=south"]
    home.catalog.drop(Identifier.parse("lake.sales.by_region"))
    sync(home.catalog)
    assert registry.tables.rows() == []


def test_less_detail_has_fewer_rows_and_none_has_no_table(home: Lake, parts: Table) -> None:
    assert sync(home.catalog).tables == 0
    registry = require_registry(home.catalog)
    assert registry._home.open(registry.tables.kind) is None
    counts = {}
    for detail in ("files", "segments"):
        home.catalog.properties[DETAIL] = detail
        sync(home.catalog)
        counts[detail] = len(registry.tables.rows(equal(table_name=NAME)))
    assert counts == {"files": 5, "segments": 3}


def file_of(number: int, **fields: Any) -> DataFile:
    """A data file of 1 MiB with a thousand rows, whose ids are its own."""
    bounds = {key: {1: value.to_bytes(8, "little")} for key, value in fields.pop("ids", {}).items()}
    given = {"content": DataFileContent.DATA, "record_count": 1000, "file_size_in_bytes": 2**20, **bounds, **fields}
    return DataFile.from_args(
        _table_format_version=2,
        file_path=f"file:///{number}.parquet",
        file_format=FileFormat.PARQUET,
        partition=Record("north"),
        **given,
    )


def with_files(table: BaseTable, files: list[DataFile], segments: int = 1) -> BaseTable:
    """The same table with other files."""
    found = tuple(TableFile(f"region={number % segments}", 1, file) for number, file in enumerate(files))
    data, deletes = ([item.file for item in found if item.is_data is wanted] for wanted in (True, False))
    return replace(table, files=found, general=table.general.model_copy(update=_counts(data, deletes)))


def ids(low: int, high: int) -> dict[str, dict[str, int]]:
    return {"ids": {"lower_bounds": low, "upper_bounds": high}}


BIG = {"file_size_in_bytes": 200 * 2**20}
DELETES = {"content": DataFileContent.POSITION_DELETES, "record_count": 50}


@pytest.mark.parametrize(
    ("files", "segments", "codes"),
    [
        ([file_of(n, **BIG, **ids(n, n)) for n in range(20)], 1, []),
        ([file_of(n, **ids(n, n)) for n in range(20)], 1, ["SMALL_FILES"]),
        ([file_of(n, **ids(n, n)) for n in range(20)], 10, []),  # two of each partition
        ([*(file_of(n, **BIG, **ids(n, n)) for n in range(4)), file_of(9, **DELETES)], 1, ["DELETE_FILES"]),
        ([*(file_of(n, **BIG, **ids(n, n)) for n in range(7)), file_of(9, **{**DELETES, "record_count": 5})], 1, []),
        ([file_of(n, **BIG, **ids(0, 20)) for n in range(20)], 1, ["NOT_CLUSTERED"]),
        ([file_of(n, **BIG) for n in range(20)], 1, ["NO_STATISTICS"]),
        ([file_of(n, file_size_in_bytes=(2**31 if n == 0 else 2**26), **ids(n, n)) for n in range(9)], 9, ["SKEW"]),
    ],
)
def test_what_makes_refreshes_slow_is_found(
    home: Lake, parts: Table, files: list[DataFile], segments: int, codes: list[str]
) -> None:
    table = with_files(read_base_table(home.catalog, Identifier.parse(NAME)), files, segments)
    found = findings(table, {"id"})
    assert [item.code for item in found] == codes
    assert all(item.remedy for item in found)
    assert [item.code for item in findings(table)] == [code for code in codes if code not in _OF_COLUMNS]


_OF_COLUMNS = ("NOT_CLUSTERED", "NO_STATISTICS")


def test_a_name_is_quoted_in_the_remedy(home: Lake) -> None:
    """A statement that is pasted does what it says, whatever a table is called."""
    table = home.iceberg.create_table("sales.it's", schema=ORDERS)
    for number in range(9):
        table.append(pa.Table.from_pylist([{"id": number, "region": "n", "amount": 1}], schema=ORDERS))
    (found,) = findings(read_base_table(home.catalog, Identifier("lake", ("sales",), "it's")))
    assert found.remedy == r"CALL lake.system.rewrite_data_files(table => 'sales.it\'s')"
