# SPDX-License-Identifier: Apache-2.0
"""Base tables in another catalog, with its own connection."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.errors import ConfigurationError
from airflow_mv.hooks import MaterializedViewHook
from tests.airflow.conftest import SMALL, VIEW, Airflow
from tests.builders import Lake, lake

QUERY = "SELECT o.region, sum(o.amount) AS amount FROM raw.sales.orders o JOIN orders own ON o.id = own.id GROUP BY 1"


@pytest.fixture
def raw(airflow: Airflow, sales: Lake, tmp_path: Path) -> Iterator[Lake]:
    """A second catalog with a base table, named by the connection of the first one."""
    folder = tmp_path / "raw"
    folder.mkdir()
    uri = f"sqlite:///{folder}/catalog.db"
    extra = {"type": "sql", "uri": uri, "warehouse": f"file://{folder}"}
    airflow.connect("iceberg_raw", conn_type="iceberg", extra=extra)
    home = airflow.connections["iceberg_default"]["extra"]
    airflow.connect("iceberg_default", conn_type="iceberg", extra={**home, "catalogs": {"raw": "iceberg_raw"}})
    with lake(uri, folder, "raw") as found:
        found.table()
        yield found


@pytest.mark.slow
def test_a_view_reads_base_tables_behind_two_connections(airflow: Airflow, sales: Lake, raw: Lake) -> None:
    """Real Spark has both catalogs, under the names in the query; nothing has to be configured twice."""
    run = airflow.run(f"""
        options = dict(view="{VIEW}", conf={SMALL})
        create = CreateMaterializedViewOperator(task_id="create", sql="{QUERY}", **options)
        refresh = RefreshMaterializedViewOperator(task_id="refresh", **options)
        fresh = MaterializedViewFreshSensor(task_id="fresh", view="{VIEW}")
        chain(create, refresh, fresh)
    """)

    assert set(run.states.values()) == {"success"}, run.log
    assert run.values["refresh"]["base_tables"] == {
        "raw.sales.orders": str(raw.head()),
        "lake.sales.orders": str(sales.head()),
    }
    assert sorted((row["region"], row["amount"]) for row in sales.read()) == [("north", 15), ("south", 20)]
    raw.append((2, "south", 1))
    assert str(MaterializedViewHook().status(VIEW).state) == "stale"


def test_spark_gets_every_catalog_that_a_query_uses(airflow: Airflow, sales: Lake, raw: Lake) -> None:
    """It gets no other one: a session with an unneeded catalog would fail if that one is unavailable."""
    hook = MaterializedViewHook()
    catalog = hook.catalog_for(VIEW)
    assert "spark.sql.catalog.raw" not in hook.spark_settings(VIEW).confs
    located = catalog.locate([Identifier.parse("raw.sales.orders"), Identifier.parse("lake.sales.orders")])
    confs = hook.spark_settings(VIEW).confs

    assert len(located) == 2
    assert confs["spark.sql.catalog.raw"] == confs["spark.sql.catalog.lake"]
    assert confs["spark.sql.catalog.raw.warehouse"] == raw.iceberg.properties["warehouse"]


def test_a_hook_may_be_given_other_connections_than_the_connection_names(
    airflow: Airflow, sales: Lake, raw: Lake, tmp_path: Path
) -> None:
    """Another environment may have other ones."""
    catalog = MaterializedViewHook(catalogs={"raw": "nowhere"}).catalog_named("lake")
    with pytest.raises(ConfigurationError, match="there is no connection 'nowhere'"):
        catalog.other("raw")
    assert MaterializedViewHook(catalogs={"more": "iceberg_raw"}).catalog_named("lake").other("more").name == "more"


def test_an_extra_that_is_not_a_mapping_is_reported_without_its_content(airflow: Airflow, sales: Lake) -> None:
    """It may contain the other catalog's password."""
    home = airflow.connections["iceberg_default"]["extra"]
    airflow.connect("iceberg_default", conn_type="iceberg", extra={**home, "catalogs": {"raw": {"password": "x-9931"}}})
    with pytest.raises(ConfigurationError, match="extra 'catalogs': it must map names") as caught:
        MaterializedViewHook().catalog_named("lake")
    assert "x-9931" not in str(caught.value)
