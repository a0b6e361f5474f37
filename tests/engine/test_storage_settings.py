# SPDX-License-Identifier: Apache-2.0
"""Properties of the storage table that a view's owner chooses, in each layout, with real Spark."""

from __future__ import annotations

import pyarrow.parquet as pq
import pytest

from airflow_mv.errors import UnsupportedError
from airflow_mv.refresh.create import Definition
from airflow_mv.refresh.define import define
from tests.builders import LAYOUTS
from tests.engine.support import Lake

DAILY = "SELECT day, sum(amount) AS amount, count(*) AS rows FROM {ns}.orders GROUP BY day"
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


def test_format_version_3_is_refused_for_tables_of_a_catalog(lake: Lake) -> None:
    """pyiceberg commits to them, and cannot write that version. Nothing is created."""
    lake.table("orders", "day integer, amount bigint", "(1, 10)")
    chosen = {"airflow-mv.storage.format-version": "3"}
    with pytest.raises(UnsupportedError, match="layout 'table' has format version 2, because pyiceberg commits to it"):
        lake.create("daily", DAILY, layout="table", properties=chosen)
    assert not lake.catalog.exists(lake.catalog.identify(lake("daily")))


def _state(lake: Lake) -> tuple[int, str, set[str]]:
    storage = lake.catalog.load_storage(lake.view("daily"))
    codecs = {pq.ParquetFile(file).metadata.row_group(0).column(0).compression for file in lake.stored_files("daily")}
    return storage.table.format_version, storage.table.properties["write.parquet.compression-codec"], codecs
