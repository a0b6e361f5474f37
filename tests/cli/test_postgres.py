# SPDX-License-Identifier: Apache-2.0
"""The whole path on a PostgreSQL catalog: what differs from SQLite is the driver, the password and the locking."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog
from sqlalchemy import make_url

AIRFLOW_MV = Path(sys.executable).parent / "airflow-mv"


@pytest.fixture
def lake(postgres_uri: str, warehouse: Path) -> dict[str, str]:
    """Environment of a command in which the catalog ``lake`` is on PostgreSQL, with one base table."""
    properties = {"type": "sql", "uri": postgres_uri, "warehouse": warehouse.as_uri()}
    catalog = load_catalog("lake", **properties)
    catalog.create_namespace("sales")
    rows = pa.table({"day": ["mon", "mon", "tue"], "amount": [1, 2, 4]})
    catalog.create_table(("sales", "orders"), rows.schema).append(rows)
    named = {f"PYICEBERG_CATALOG__LAKE__{key.upper()}": value for key, value in properties.items()}
    return {**os.environ, **named}


def airflow_mv(lake: dict[str, str], *arguments: str) -> Any:
    """Run a command; returns its JSON document."""
    done = subprocess.run([AIRFLOW_MV, *arguments, "--json"], env=lake, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def command_lines() -> str:
    """The arguments of every process on this machine."""
    texts = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            texts.append(file.read_bytes().decode(errors="replace"))
        except OSError:
            continue  # it has ended meanwhile
    return "\n".join(texts)


def test_a_view_on_postgresql_is_created_refreshed_and_read_and_its_password_is_in_no_process_argument(
    lake: dict[str, str], postgres_uri: str
) -> None:
    """Spark's JdbcCatalog reads the base table from the same database that the swap then moves the view in."""
    password = make_url(postgres_uri).password
    assert password
    seen: list[str] = []
    stop = threading.Event()

    def watch() -> None:
        while not stop.wait(0.05):
            seen.append(command_lines())

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        sql = "SELECT day, sum(amount) AS amount FROM lake.sales.orders GROUP BY day"
        created = airflow_mv(lake, "create", "lake.sales.daily", "--sql", sql, "--refresh")
    finally:
        stop.set()
        watcher.join()
    assert (created["outcome"], created["mode"], created["rows_written"]) == ("refreshed", "full", 2)
    assert any("org.apache.spark" in text for text in seen), "the Spark process was never looked at"
    assert not any(password in text for text in seen)

    (status,) = airflow_mv(lake, "status", "lake.sales.daily")
    assert (status["state"], status["refresh_id"]) == ("fresh", created["refresh_id"])
    read = airflow_mv(lake, "read", "lake.sales.daily", "--no-refresh")
    assert sorted(read["rows"]) == [["mon", 3], ["tue", 4]]
    (again,) = airflow_mv(lake, "refresh", "lake.sales.daily")
    assert (again["outcome"], again["mode"]) == ("fresh", "noop")
