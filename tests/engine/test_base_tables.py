# SPDX-License-Identifier: Apache-2.0
"""Real Spark reads a table by path, a branch and a fixed snapshot as a refresh does: full, incremental, by interval."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from airflow_mv.core.spec.interval import Span
from airflow_mv.extras.maintenance.verify import verify
from tests.engine.support import Lake, multiset

MERGE_ON_READ = ", ".join(f"'write.{verb}.mode' = 'merge-on-read'" for verb in ("delete", "update", "merge"))
QUERY = (
    "SELECT o.day, c.country, count(*) AS n, count(o.amount) AS m, sum(o.amount) AS s FROM {orders} o "
    "JOIN {audit} c ON o.customer = c.name JOIN {fixed} r ON r.code = c.country GROUP BY o.day, c.country"
)


@pytest.fixture
def path(lake: Lake, lake_folder: Path) -> Path:
    """A table in no catalog, as Spark writes it: ``v<n>.metadata.json`` and ``version-hint.text``."""
    folder = lake_folder / "lake" / lake.namespace
    catalog = f"hadoop_{lake.namespace}"
    for key, value in {
        "": "org.apache.iceberg.spark.SparkCatalog",
        ".type": "hadoop",
        ".warehouse": str(folder),
    }.items():
        lake.spark.conf.set(f"spark.sql.catalog.{catalog}{key}", value)
    lake.spark.conf.set(f"spark.sql.catalog.{catalog}.cache-enabled", "false")
    lake.run(
        f"CREATE TABLE {catalog}.files.orders (id bigint, customer string, amount bigint, day timestamp) USING iceberg "
        f"TBLPROPERTIES ('format-version' = '2', {MERGE_ON_READ})",
        f"INSERT INTO {catalog}.files.orders VALUES (1, 'ann', 10, TIMESTAMP '2024-01-01 00:00:00'), "
        "(2, 'bob', 20, TIMESTAMP '2024-01-02 00:00:00'), (3, 'ann', 5, TIMESTAMP '2024-01-02 00:00:00')",
    )
    return folder / "files" / "orders"


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_view_of_a_path_a_branch_and_a_fixed_snapshot_equals_a_recompute(
    lake: Lake, path: Path, *, every: bool
) -> None:
    """After each kind of change. Incremental refreshes read the change of each table alone."""
    orders = f"hadoop_{lake.namespace}.files.orders"
    lake.table("customers", "name varchar, country varchar", "('ann', 'DE'), ('bob', 'FR')")
    lake.table("regions", "code varchar", "('DE'), ('FR')")
    fixed = lake.snapshot("regions")
    lake.run(
        "ALTER TABLE {ns}.customers CREATE BRANCH audit", "INSERT INTO {ns}.customers.branch_audit VALUES ('cid', 'FR')"
    )
    names = {
        "orders": f"iceberg.`{path}`",
        "audit": "{ns}.customers VERSION AS OF 'audit'",
        "fixed": f"{{ns}}.regions VERSION AS OF {fixed}",
    }
    lake.create(
        "v", QUERY.format(**names), refresh_strategy="incremental", properties={"airflow-mv.interval-column": "day"}
    )

    def expected() -> object:
        lake.spark.read.format("iceberg").load(str(path)).createOrReplaceTempView("orders_now")
        fixed_rows = "(SELECT * FROM VALUES ('DE'), ('FR') AS t(code))"
        sql = QUERY.format(orders="orders_now", audit="{ns}.customers.branch_audit", fixed=fixed_rows)
        rows = multiset(lake.sql(sql).toArrow())
        lake.spark.catalog.dropTempView("orders_now")  # SHOW VIEWS lists it in every namespace
        return rows

    assert lake.refresh("v").mode == "full"
    assert multiset(lake.stored("v")) == expected()
    changes = {
        f"DELETE FROM {orders} WHERE id = 2": True,
        f"INSERT INTO {orders} VALUES (4, 'cid', 7, TIMESTAMP '2024-01-03 00:00:00')": True,
        f"UPDATE {orders} SET amount = 6 WHERE id = 3": True,
        "INSERT INTO {ns}.customers.branch_audit VALUES ('ann', 'FR')": True,
        "DELETE FROM {ns}.customers.branch_audit WHERE name = 'cid'": True,
        "INSERT INTO {ns}.customers VALUES ('cid', 'XX')": False,
        "INSERT INTO {ns}.regions VALUES ('DE')": False,
    }
    for change, matters in list(changes.items())[:: 1 if every else 3]:
        lake.run(change)
        result = lake.refresh("v", on_fallback="fail")
        assert (result.outcome == "refreshed") is matters, change
        assert not matters or result.mode in ("merge", "replace-keys"), (change, result.reasons)
        assert multiset(lake.stored("v")) == expected(), change

    assert verify(lake.catalog, lake("v"), session=lambda: lake.spark).equal
    lake.run(f"UPDATE {orders} SET amount = amount + 1")
    day = Span(datetime(2024, 1, 1, tzinfo=UTC), datetime(2024, 1, 2, tzinfo=UTC))
    assert lake.refresh("v", interval=day).outcome == "refreshed"
    assert lake.refresh("v", interval=Span(day.end, datetime(2025, 1, 1, tzinfo=UTC))).outcome == "refreshed"
    assert multiset(lake.stored("v")) == expected()
