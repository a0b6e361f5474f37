# SPDX-License-Identifier: Apache-2.0
"""Incremental refreshes over Spark Connect, without Java: changes come from appends and from comparing files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import StaticTable

from airflow_mv.core.catalog import MaterializedViewCatalog
from tests.core.job.conftest import Lake, make_lake
from tests.core.job.processes import command_line


def _rows(lake: Lake, view: str) -> list[tuple[Any, ...]]:
    catalog = SqlCatalog(lake.name, **lake.properties)
    try:
        opened = MaterializedViewCatalog(catalog)
        storage = opened.load_storage(opened.load(f"sales.{view}"))
        rows = StaticTable.from_metadata(storage.location).scan().to_arrow().to_pylist()
    finally:
        catalog.engine.dispose()
    return sorted(tuple(row.values()) for row in rows)


@pytest.mark.slow
@pytest.mark.cluster
def test_views_are_refreshed_from_changes_over_spark_connect(tmp_path: Path, connect: str) -> None:
    """Appended rows are appended, and deleted ones are found by comparing the changed files of both snapshots."""
    lake = make_lake(tmp_path)
    (tmp_path / ".pyiceberg.yaml").write_text(yaml.safe_dump({"catalog": {lake.name: lake.properties}}))
    queries = {
        "rows": f"SELECT day, amount FROM {lake.name}.sales.orders WHERE amount > 1",
        "most": f"SELECT day, max(amount) AS most FROM {lake.name}.sales.orders GROUP BY day",
    }
    names = [f"{lake.name}.sales.{view}" for view in queries]
    tables = SqlCatalog(lake.name, **lake.properties)

    def insert(day: str, amount: int) -> None:
        tables.load_table("sales.orders").append(pa.table({"day": [day], "amount": pa.array([amount], pa.int32())}))

    with command_line(PYICEBERG_HOME=str(tmp_path)) as call:

        def run(*command: str) -> Any:
            done = call(*command, "--remote", connect, "--json")
            assert done.code == 0, done.stderr[-3000:]
            return done.json

        def modes(policy: str) -> tuple[str, ...]:
            documents = run("refresh", *names, "--on-fallback", policy)
            assert all(item["reasons"][-1]["code"] == reason for item in documents), documents
            return tuple(item["mode"] for item in documents)

        for name, sql in zip(names, queries.values(), strict=True):
            always = ("--property", "airflow-mv.incremental-up-to=1000000")
            run("create", name, "--sql", sql, "--refresh-strategy", "incremental", "--refresh", *always)
        insert("c", 7)
        fresh = [run("read", name, "--fresh") for name in names]
        assert [item["mode"] for item in fresh] == ["append", "merge"]
        assert [sorted(map(tuple, item["rows"])) for item in fresh] == [
            [("a", 10), ("b", 5), ("b", 20), ("c", 7)],
            [("a", 10), ("b", 20), ("c", 7)],
        ]
        reason = "COST"
        assert modes("fail") == ("append", "merge")
        assert _rows(lake, "rows") == [("a", 10), ("b", 5), ("b", 20), ("c", 7)]
        assert _rows(lake, "most") == [("a", 10), ("b", 20), ("c", 7)]

        tables.load_table("sales.orders").delete("amount = 20 or day = 'a'")
        assert "full" not in modes("fail")
        assert _rows(lake, "rows") == [("b", 5), ("c", 7)]
        assert _rows(lake, "most") == [("b", 5), ("c", 7)]

        schema = tables.load_table("sales.orders").schema()
        tables.drop_table("sales.orders")
        tables.create_table("sales.orders", schema=schema)
        insert("z", 3)
        documents = run("refresh", *names, "--on-fallback", "full")
        assert [(item["mode"], item["reasons"][-1]["code"]) for item in documents] == [("full", "BASE_RECREATED")] * 2
        assert _rows(lake, "rows") == _rows(lake, "most") == [("z", 3)]
    tables.engine.dispose()
