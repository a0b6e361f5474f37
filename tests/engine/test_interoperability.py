# SPDX-License-Identifier: Apache-2.0
"""Files of this package read and changed by Java, and files of Java read and changed by this package."""

from __future__ import annotations

import json
from pathlib import Path

import duckdb
import pyarrow
import pytest
from pyiceberg.table import StaticTable

import airflow_mv
from airflow_mv.core.catalog import Layout
from airflow_mv.core.catalog.files import MetadataFiles
from airflow_mv.core.catalog.layouts import how_to_read
from airflow_mv.core.define.definition import Definition
from airflow_mv.core.spec.materialized_view import PROPERTY
from airflow_mv.core.spec.stored import decode
from airflow_mv.errors import AlreadyExistsError
from airflow_mv.extras.define import define
from airflow_mv.extras.read import read_rows, readable
from airflow_mv.extras.registry.registry import Registry
from airflow_mv.extras.registry.settings import PLACE, registry_settings
from tests.builders import LAYOUTS
from tests.engine.fixtures import new_lake
from tests.engine.support import Lake, multiset, texts
from tests.extras.registry.support import refresh_row

DAILY = "SELECT day, sum(amount) AS amount FROM {ns}.orders GROUP BY day"


def _with_daily(lake: Lake) -> Lake:
    lake.table("orders", "day int, amount int", "(1, 10), (1, 20), (2, 30)")
    lake.create("daily", DAILY)
    lake.refresh("daily")
    return lake


@pytest.fixture
def daily(lake: Lake) -> Lake:
    """A lake with a base table and a refreshed view of it."""
    return _with_daily(lake)


@pytest.fixture(scope="module")
def resting(lake_folder: Path) -> Lake:
    """The same for tests that only read."""
    return _with_daily(new_lake(lake_folder))


def test_spark_reads_a_view_of_this_package(resting: Lake) -> None:
    """For Spark it is a plain view: an engine without materialized views returns fresh rows."""
    assert sorted(map(tuple, resting.sql("SELECT * FROM {ns}.daily").collect())) == [(1, 30), (2, 30)]
    names = [row["viewName"] for row in resting.sql("SHOW VIEWS IN {ns}").collect()]
    statement = texts(resting.sql("SHOW CREATE TABLE {ns}.daily"))[0]
    described = {row[0]: row[1] for row in resting.sql("DESCRIBE EXTENDED {ns}.daily").collect()}

    assert names == ["daily"]
    assert "SELECT day, sum(amount) AS amount FROM" in statement
    assert PROPERTY in statement
    assert described["day"] == "int"
    assert described["amount"] == "bigint"
    assert PROPERTY in described["View Properties"]


def test_the_storage_table_has_the_same_rows_in_pyiceberg_and_in_spark(resting: Lake) -> None:
    """The view names a metadata file, which both open without a catalog."""
    location = resting.settings("daily")["storage-table-location"]
    in_python = StaticTable.from_metadata(location).scan().to_arrow()
    in_spark = resting.spark.read.format("iceberg").load(location).toArrow()

    assert multiset(in_python) == multiset(in_spark)
    assert in_python.num_rows == 2


def test_spark_reads_the_registry_by_the_names_of_its_tables(lake: Lake) -> None:
    """Its rows have the same cells as in Python, the overwritten ones once."""
    registry = Registry(lake.catalog, registry_settings({PLACE: lake.namespace}))
    rows = [refresh_row(hour, reasons=("A", "B"), base_snapshots={"lake.s.t": hour + 1}) for hour in range(3)]
    registry.refreshes.upsert(rows)
    registry.refreshes.upsert([refresh_row(1, rows_written=7)])
    found = lake.sql("SELECT * FROM {ns}.refreshes WHERE month = '2025-01'").toArrow()
    assert multiset(found) == multiset(registry.refreshes.read())
    assert found.num_rows == len(rows)


def test_the_staging_catalog_is_not_visible_in_the_lake(resting: Lake) -> None:
    """Staging has a separate catalog, so readers of the lake never see an incomplete refresh."""
    assert [row["tableName"] for row in resting.sql("SHOW TABLES IN {ns}").collect()] == ["orders"]
    assert resting.files.list_tables(resting.namespace) == [(resting.namespace, "orders")]
    assert "staged" not in texts(resting.sql(f"SHOW NAMESPACES IN {resting.catalog.name}"))


def test_setting_a_property_in_spark_keeps_the_view_materialized_and_fresh(daily: Lake) -> None:
    """Java rewrites the whole file: the property and the version must be preserved."""
    before = daily.view("daily")
    daily.run("ALTER VIEW {ns}.daily SET TBLPROPERTIES ('team' = 'finance')")
    after = daily.view("daily")

    assert after.metadata_location != before.metadata_location
    assert after.metadata.properties["team"] == "finance"
    assert after.metadata.properties[PROPERTY] == before.metadata.properties[PROPERTY]
    assert daily.status("daily").state == "fresh"

    daily.insert("orders", "(3, 5)")
    assert daily.refresh("daily").outcome == "refreshed"
    assert daily.view("daily").metadata.properties["team"] == "finance"
    assert daily.rows("daily") == [(1, 30), (2, 30), (3, 5)]


def test_replacing_the_view_in_spark_keeps_it_materialized_and_makes_it_stale(daily: Lake) -> None:
    """With a new version the stored rows are those of another query, even if the columns are the same."""
    daily.run("CREATE OR REPLACE VIEW {ns}.daily AS SELECT day, max(amount) AS amount FROM {ns}.orders GROUP BY day")

    assert daily.status("daily").state == "definition-changed"
    assert daily.codes("daily") == ["DEFINITION_CHANGED"]

    location = daily.settings("daily")["storage-table-location"]
    result = daily.refresh("daily")

    assert result.mode == "full"
    assert daily.status("daily").state == "fresh"
    assert daily.settings("daily")["storage-table-location"] != location


def test_a_refresh_follows_new_columns_of_a_view_that_spark_replaced(daily: Lake) -> None:
    """The staged storage table gets the view's columns; its uuid and its earlier snapshots are kept."""
    before = daily.catalog.load_storage(daily.view("daily")).table
    daily.run(
        "CREATE OR REPLACE VIEW {ns}.daily (tag COMMENT 'day', anzahl, mittel) AS "
        "SELECT cast(day AS string), count(*), avg(amount) FROM {ns}.orders GROUP BY day"
    )
    result = daily.refresh("daily")
    after = daily.catalog.load_storage(daily.view("daily")).table

    assert any("CREATE OR REPLACE TABLE" in statement for statement in daily.scripts[-1].statements)
    assert result.rows_written == 2
    assert daily.stored("daily").schema.names == ["tag", "anzahl", "mittel"]
    assert daily.rows("daily") == [("1", 2, 15.0), ("2", 1, 30.0)]
    assert after.table_uuid == before.table_uuid
    assert {item.snapshot_id for item in before.snapshots} <= {item.snapshot_id for item in after.snapshots}
    assert daily.refresh("daily").outcome == "fresh"


def test_spark_reads_a_view_whose_definition_this_package_replaced(daily: Lake) -> None:
    """Java accepts the version that Python adds, and Python the version that Java adds after it."""
    daily.create("daily", "SELECT day, count(*) AS orders FROM {ns}.orders GROUP BY day", replace=True)
    assert sorted(map(tuple, daily.sql("SELECT * FROM {ns}.daily").collect())) == [(1, 2), (2, 1)]

    daily.run("CREATE OR REPLACE VIEW {ns}.daily AS SELECT 1 AS one")
    versions = [version.version_id for version in daily.view("daily").metadata.versions]
    assert versions == [1, 2, 3]
    daily.refresh("daily")
    assert daily.rows("daily") == [(1,)]


def test_a_view_of_spark_can_be_made_materialized(lake: Lake) -> None:
    """Spark writes gzip, column aliases beside the query, and the session's catalog as the default one."""
    lake.table("orders", "day int, amount int", "(1, 10), (1, 20), (2, 30)")
    lake.run(
        "CREATE VIEW {ns}.daily (tag COMMENT 'der Tag', summe) COMMENT 'made by Spark' TBLPROPERTIES ('k' = 'v') AS "
        "SELECT day, sum(amount) FROM {ns}.orders GROUP BY day"
    )
    plain = lake.view("daily")
    assert plain.metadata_location.endswith(".gz.metadata.json")
    assert plain.settings is None

    made = lake.create("daily", None, allow_stale_data=True)

    assert made.materialized.allow_stale_data is True
    assert made.metadata.current_version == plain.metadata.current_version
    assert made.metadata.properties["comment"] == "made by Spark"
    assert made.metadata.properties["k"] == "v"
    assert lake.status("daily").state == "never-refreshed"

    lake.refresh("daily")
    assert lake.stored("daily").schema.names == ["tag", "summe"]
    assert lake.rows("daily") == [(1, 30), (2, 30)]
    assert sorted(map(tuple, lake.sql("SELECT tag, summe FROM {ns}.daily").collect())) == [(1, 30), (2, 30)]


def test_names_in_a_view_of_spark_are_resolved_as_in_spark(lake: Lake) -> None:
    """Spark stores its current catalog and namespace with the view, by which short names are resolved."""
    lake.table("orders", "day int, amount int", "(1, 10)")
    lake.run("USE {ns}", "CREATE VIEW short AS SELECT day, amount FROM orders")
    lake.spark.catalog.setCurrentCatalog("spark_catalog")

    lake.create("short", None)
    lake.refresh("short")
    assert lake.rows("short") == [(1, 10)]
    assert [table.identifier for table in lake.status("short").observation.tables] == [lake("orders")]


def test_java_continues_from_the_storage_file_that_python_wrote(daily: Lake) -> None:
    """Each refresh starts Java on the last published metadata: parent, sequence number and log must be consistent."""
    for day in (3, 4):
        daily.insert("orders", f"({day}, {day})")
        daily.refresh("daily")
    document = _storage_document(daily)
    files = [entry["metadata-file"] for entry in document["metadata-log"]]

    assert daily.rows("daily") == [(1, 30), (2, 30), (3, 3), (4, 4)]
    assert [item["sequence-number"] for item in document["snapshots"]] == [1, 2, 3]
    assert all(Path(file.removeprefix("file:").replace("//", "/")).exists() for file in files)
    assert json.loads(document["properties"][PROPERTY])["current-refresh-id"]


def test_java_writes_to_and_compacts_a_registered_copy_of_the_storage_table(daily: Lake) -> None:
    """Maintenance by other tools works as for any table."""
    location = daily.settings("daily")["storage-table-location"]
    lake, copy = daily.catalog.name, f"{daily.namespace}.copy"
    daily.run(
        f"CALL {lake}.system.register_table(table => '{copy}', metadata_file => '{location}')",
        "INSERT INTO {ns}.copy VALUES (7, 70)",
        "INSERT INTO {ns}.copy VALUES (8, 80)",
    )
    call = f"CALL {lake}.system.rewrite_data_files(table => '{copy}', options => map('rewrite-all', 'true'))"
    rewritten = daily.sql(call).collect()[0][0]

    assert rewritten >= 2
    assert sorted(map(tuple, daily.sql("SELECT * FROM {ns}.copy").collect())) == [(1, 30), (2, 30), (7, 70), (8, 80)]
    assert daily.rows("daily") == [(1, 30), (2, 30)]


def test_dropping_a_view_in_spark_removes_it_here(daily: Lake) -> None:
    """Both use the same row of the catalog's table."""
    assert daily.catalog.exists(daily("daily"))
    daily.run("DROP VIEW {ns}.daily")
    assert not daily.catalog.exists(daily("daily"))
    assert daily.catalog.list(daily.namespace) == []


def _storage_document(lake: Lake) -> dict:
    location = lake.settings("daily")["storage-table-location"]
    return decode(MetadataFiles({}).read(location, what="storage"), source="storage")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_stored_rows_are_read_where_create_says(lake: Lake, layout: Layout) -> None:
    """One row per way of ``docs/reading.md``: after the refresh the base table gets a row that is not stored.

    A view's name recomputes the query, a table's name has the stored rows.
    """
    lake.table("orders", "day int, amount int", "(1, 10), (1, 20), (2, 30)")
    view = lake.create("daily", DAILY, layout=layout, allow_stale_data=True)
    lake.refresh("daily")
    lake.insert("orders", "(3, 5)")
    stored, now = {(1, 30), (2, 30)}, {(1, 30), (2, 30), (3, 5)}
    storage = lake.catalog.load_storage(lake.view("daily"))
    described = how_to_read(view, storage)

    assert rows_of(lake.sql("SELECT * FROM {ns}.daily").toArrow()) == (stored if layout == "table" else now)
    assert rows_of(airflow_mv.read(lake.spark, lake("daily"), catalog=lake.catalog).toArrow()) == stored
    arrow = read_rows(lake.catalog, readable(lake.catalog, lake("daily"))).to_arrow()
    assert set(duckdb.from_arrow(arrow).fetchall()) == stored
    if storage.name is None:
        assert rows_of(StaticTable.from_metadata(storage.location).scan().to_arrow()) == stored
        assert f"airflow-mv read {lake('daily')}" in described
    else:
        assert rows_of(lake.sql(f"SELECT * FROM {storage.name}").toArrow()) == stored
        assert rows_of(lake.files.load_table((*storage.name.namespace, storage.name.name)).scan().to_arrow()) == stored
        assert f"the table {storage.name}," in described


def rows_of(table: pyarrow.Table) -> set[tuple[object, ...]]:
    """Return a table's rows as tuples."""
    return {tuple(row.values()) for row in table.to_pylist()}


def readers(lake: Lake) -> list[tuple[list[str], set[tuple[object, ...]]]]:
    """What plain Spark, pyiceberg and DuckDB read by the view's name: the columns and the rows."""
    in_spark = lake.sql("SELECT * FROM {ns}.daily").toArrow()
    in_python = lake.files.load_table((lake.namespace, "daily")).scan().to_arrow()
    in_duckdb = duckdb.from_arrow(in_python).to_arrow_table()
    return [(table.schema.names, rows_of(table)) for table in (in_spark, in_python, in_duckdb)]


def test_engines_read_a_view_that_is_a_table_by_its_name_before_and_after_a_change_of_columns(lake: Lake) -> None:
    """Renamed, retyped, reordered, dropped and added columns are seen together with their rows, and not before."""
    lake.table("orders", "day int, amount int", "(1, 10), (1, 20), (2, 30)")
    lake.create("daily", DAILY, layout="table", partition_by=["day"])
    assert readers(lake) == [(["day", "amount"], set())] * 3
    lake.refresh("daily")
    first = [(["day", "amount"], {(1, 30), (2, 30)})] * 3
    assert readers(lake) == first
    before = lake.files.load_table((lake.namespace, "daily")).metadata

    lake.insert("orders", "(3, 5)")
    wider = (
        "SELECT count(*) AS orders, cast(max(amount) AS string) AS amount, day AS date FROM {ns}.orders GROUP BY day"
    )
    lake.create("daily", wider, layout="table", replace=True)
    assert readers(lake) == first
    assert lake.status("daily").state == "definition-changed"
    assert lake.refresh("daily").mode == "full"
    second = [(["orders", "amount", "date"], {(2, "20", 1), (1, "30", 2), (1, "5", 3)})] * 3
    assert readers(lake) == second
    after = lake.files.load_table((lake.namespace, "daily")).metadata
    assert (after.table_uuid, after.location) == (before.table_uuid, before.location)
    assert lake.refresh("daily").outcome == "fresh"
    assert lake.rows("daily") == sorted(second[0][1])


def test_spark_shows_the_names_and_the_comments_of_a_view_s_columns(lake: Lake) -> None:
    """Names are by position, also in an incremental refresh and in the storage table. Base columns have comments."""
    lake.run("CREATE TABLE {ns}.orders (day int COMMENT 'of the order', amount int) USING iceberg")
    lake.insert("orders", "(1, 10), (1, 20), (2, 30)")
    grouped = "SELECT day, count(*), sum(amount) FROM {ns}.orders GROUP BY day"
    names = ["date", "orders", "Total €"]
    cheap = {"refresh_strategy": "incremental", "properties": {"airflow-mv.incremental-up-to": "1000"}}
    for layout in ("registered", "table"):
        comments = {"Total €": "it's in €"}
        lake.create(
            layout, grouped, layout=layout, columns=names, comment="each day", column_comments=comments, **cheap
        )
        lake.refresh(layout)
        shown = ("date", "of the order"), ("orders", None), ("Total €", "it's in €")
        described = [(row[0], row[2] or None) for row in lake.sql(f"DESCRIBE {{ns}}.{layout}").collect()[:3]]
        assert described == list(shown)
        table = lake.catalog.load_storage(lake.view(layout)).table
        assert [(item["name"], item.get("doc")) for item in table.current_schema["fields"]] == list(shown)
        assert lake.view(layout).metadata.properties["comment"] == "each day"
    lake.insert("orders", "(2, 5)")
    for layout in ("registered", "table"):
        assert lake.refresh(layout).mode == "merge"
        assert lake.sql(f"SELECT `Total €`, date FROM {{ns}}.{layout} ORDER BY 2").collect() == [(30, 1), (35, 2)]
        stored = lake.catalog.load_storage(lake.view(layout)).table
        assert list(stored.column_names) == names


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_replaced_view_gets_its_partitioning_with_the_next_refresh(lake: Lake, layout: str) -> None:
    """Its rows are fresh. Without a partitioning it keeps what it has; a comparison knows it."""
    lake.table("orders", "day int, amount int", "(1, 10), (1, 20), (2, 30)")
    lake.create("daily", DAILY, layout=layout, partition_by=["day"])
    lake.refresh("daily")
    for given, mode in ((["bucket(2, day)"], "full"), ([], "noop")):
        lake.create("daily", DAILY, partition_by=given, replace=True)
        assert lake.refresh("daily").mode == mode
        stored = StaticTable.from_metadata(lake.catalog.load_storage(lake.view("daily")).location)
        assert [str(field.transform) for field in stored.spec().fields] == ["bucket[2]"]
        assert lake.rows("daily") == [(1, 30), (2, 30)]
    wanted = Definition(None, partition_by=["BUCKET(02, day)"])
    assert define(lake.catalog, lake("daily"), wanted, stager=lake.stager, on_change="fail").action == "unchanged"
    with pytest.raises(AlreadyExistsError, match=r"partitioning: bucket\(2, `day`\) → `day`\. Nothing was changed"):
        define(lake.catalog, lake("daily"), Definition(None, partition_by=["day"]), stager=lake.stager)


def test_a_view_that_is_a_table_is_refreshed_incrementally(lake: Lake) -> None:
    lake.table("orders", "day int, amount int", "(1, 10), (1, 20), (2, 30)")
    properties = {"airflow-mv.incremental-up-to": "1000"}
    lake.create("daily", DAILY, layout="table", refresh_strategy="incremental", properties=properties)
    lake.refresh("daily")
    lake.insert("orders", "(2, 5), (3, 5)")
    assert lake.refresh("daily").mode in {"merge", "replace-keys"}
    assert readers(lake) == [(["day", "amount"], {(1, 30), (2, 35), (3, 5)})] * 3
    lake.run("DELETE FROM {ns}.orders WHERE day = 1")
    lake.refresh("daily")
    assert readers(lake) == [(["day", "amount"], {(2, 35), (3, 5)})] * 3
