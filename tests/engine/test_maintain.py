# SPDX-License-Identifier: Apache-2.0
"""Spark reads what maintenance leaves: Java's reader validates the metadata, and all its files are counted."""

from __future__ import annotations

import time
from datetime import timedelta

import pytest

from airflow_mv.common.expiry import expires_ms
from airflow_mv.core.catalog.locations import exact_form, lies_in
from airflow_mv.core.refresh import candidates
from airflow_mv.core.spec.properties import KEEP_PROPERTY
from airflow_mv.extras import compact as compaction
from airflow_mv.extras.compact import compact
from airflow_mv.extras.history.rollback import rollback
from airflow_mv.extras.maintenance.drop import purge
from airflow_mv.extras.maintenance.expire import keep_base_snapshots
from airflow_mv.extras.maintenance.orphans import maintain
from airflow_mv.extras.maintenance.reachable_files import snapshot_files
from tests.engine.support import Lake, multiset, no_spark, recomputed

TOTALS = "SELECT region, sum(amount) AS amount FROM {ns}.orders GROUP BY region"
NOW = timedelta(0)


def stored(lake: Lake, name: str) -> list[tuple[object, ...]]:
    """The view's current rows, read by Spark from the metadata file that the view names."""
    location = lake.catalog.load_storage(lake.catalog.load(lake(name))).location
    return sorted(tuple(row) for row in lake.spark.read.format("iceberg").load(location).collect())


def test_spark_reads_what_expiry_and_rollback_wrote(lake: Lake) -> None:
    """Java validates more of a metadata file than pyiceberg: refs, snapshot log and times must be consistent."""
    lake.table("orders", "region varchar, amount bigint", "('north', 1)")
    lake.create("totals", TOTALS, time_travel=True)
    first = lake.refresh("totals").refresh_id
    lake.insert("orders", "('south', 2)")
    second = lake.refresh("totals").refresh_id
    rollback(lake.catalog, lake("totals"), str(first))
    maintain(lake.catalog, lake("totals"), older_than=NOW)
    assert stored(lake, "totals") == [("north", 1)]
    rollback(lake.catalog, lake("totals"), str(second))
    assert stored(lake, "totals") == [("north", 1), ("south", 2)]
    rollback(lake.catalog, lake("totals"), str(first))
    assert lake.refresh("totals").outcome == "refreshed"
    assert stored(lake, "totals") == [("north", 1), ("south", 2)]


def test_a_view_keeps_the_base_snapshot_that_its_next_refresh_needs_when_spark_expires_the_others(lake: Lake) -> None:
    """``expire_snapshots`` removes exactly what was predicted, and the refresh after it is incremental."""
    lake.table("orders", "region varchar, amount bigint", "('north', 1)")
    lake.run(
        "ALTER TABLE {ns}.orders SET TBLPROPERTIES ('history.expire.max-snapshot-age-ms'='1')",
        "ALTER TABLE {ns}.orders CREATE TAG aged RETAIN 1 DAYS",
    )
    properties = {KEEP_PROPERTY: "2 days", "airflow-mv.incremental-up-to": "1000000"}
    lake.insert("orders", "('south', 2)")
    lake.create("totals", TOTALS, refresh_strategy="incremental", properties=properties)
    lake.refresh("totals")
    keep_base_snapshots(lake.catalog, lake("totals"))
    for number, refs in enumerate(("BRANCH b RETAIN 1 DAYS WITH SNAPSHOT RETENTION 2 SNAPSHOTS", "TAG kept", "", "")):
        lake.insert("orders", f"('west', {number})")
        if refs:
            lake.run(f"ALTER TABLE {{ns}}.orders CREATE {refs}")
    table = lake.files.load_table((lake.namespace, "orders"))
    (unnamed,) = [item.snapshot_id for item in table.snapshots()][-2:-1]
    table.manage_snapshots().create_tag(unnamed, "outdated", max_ref_age_ms=1).commit()
    before = lake.catalog.load_table(lake.catalog.identify(lake("orders")), what="test")[1]
    until = {item.snapshot_id: expires_ms(before, item.snapshot_id) for item in before.snapshots}
    now_ms = time.time() * 1000
    lake.run(f"CALL {lake.catalog.name}.system.expire_snapshots('{lake.namespace}.orders')")
    after = lake.files.load_table((lake.namespace, "orders"))
    assert {item.snapshot_id for item in after.snapshots()} == {
        snapshot for snapshot, moment in until.items() if moment is None or moment > now_ms
    }
    assert set(until) - {item.snapshot_id for item in after.snapshots()} == {unnamed}
    assert lake.refresh("totals").mode != "full"
    assert multiset(lake.stored("totals")) == recomputed(lake, "totals", TOTALS.replace("{ns}.", ""))


@pytest.mark.parametrize("version", [2, 3])
def test_delete_files_and_statistics_of_spark_are_needed(lake: Lake, version: int) -> None:
    """Position deletes (v2), deletion vectors in Puffin files (v3) and statistics are among a table's files."""
    lake.table("orders", "region varchar, amount bigint", "('north', 1), ('south', 2), ('east', 3)")
    lake.create("totals", TOTALS)
    lake.refresh("totals")
    storage = lake.catalog.load_storage(lake.catalog.load(lake("totals")))
    name = f"{lake.catalog.name}.{lake.namespace}.aside"
    modes = "'write.delete.mode'='merge-on-read', 'write.distribution-mode'='none'"
    location = f"{storage.table.location}/aside{version}"
    lake.run(
        f"CREATE TABLE {name} USING iceberg LOCATION '{location}' TBLPROPERTIES "
        f"('format-version'='{version}', {modes}) AS SELECT /*+ COALESCE(1) */ * FROM {{ns}}.orders",
        f"DELETE FROM {name} WHERE region = 'south'",
        f"CALL {lake.catalog.name}.system.compute_table_stats(table => '{lake.namespace}.aside')",
    )
    table = lake.files.load_table((lake.namespace, "aside"))
    state = type(storage)(table.metadata_location, storage.table, None)
    found = {exact_form(file) for file in snapshot_files(lake.catalog, state)}
    listed = [file.location for file in lake.catalog.files.list(location)]
    on_disk = {exact_form(file) for file in listed if not file.endswith(".crc")}
    assert on_disk - found == {file for file in on_disk if file.endswith(".metadata.json")}
    assert {file for file in found if not lies_in(file, [location])} == set()
    deletes = [file for file in found if file.endswith("-deletes.puffin" if version == 3 else "-deletes.parquet")]
    assert deletes
    assert any(file.endswith(".stats") for file in found)


def test_i11_spark_s_files_of_other_tables_are_kept_and_those_of_the_view_are_proven(lake: Lake) -> None:
    """Tables inside the view's folder, and with a write path into it; checksum files are deleted with their files."""
    lake.table("orders", "region varchar, amount bigint", "('north', 1), ('south', 2)")
    lake.create("totals", TOTALS)
    lake.refresh("totals")
    lake.insert("orders", "('north', 3)")
    lake.refresh("totals")
    folder = lake.catalog.load(lake("totals")).metadata.location
    storage = lake.catalog.load_storage(lake.catalog.load(lake("totals"))).table.location
    for name, place in (
        ("inside", f"LOCATION '{folder}/./inside'"),
        ("writes", f"TBLPROPERTIES ('write.data.path'='{storage}/data/theirs')"),
    ):
        lake.run(f"CREATE TABLE {{ns}}.{name} USING iceberg {place} AS SELECT * FROM {{ns}}.orders")
    done = maintain(lake.catalog, lake("totals"), older_than=NOW).collected
    assert done.files
    assert {file.location.rpartition(".")[2] for file in done.files} >= {"crc", "parquet", "avro", "json"}
    theirs = ("/inside/", "/data/theirs/")
    assert all(any(place in location for place in theirs) for location in done.unproven)
    assert sorted(stored(lake, "totals")) == [("north", 4), ("south", 2)]
    purged = purge(lake.catalog, lake("totals"))
    left = {file.location for file in lake.catalog.files.list(folder)}
    assert left == set(purged.unproven)
    assert all(any(place in location for place in theirs) for location in left)
    for name in ("inside", "writes"):
        assert len(lake.files.load_table((lake.namespace, name)).scan().to_arrow()) == 3


@pytest.mark.parametrize("layout", ["pointed", "registered", pytest.param("table", marks=pytest.mark.slow)])
def test_a_view_with_many_small_and_delete_files_is_compacted_and_stays_incremental(
    lake: Lake, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows, time travel and the next incremental refresh are as before. A second compaction starts no job."""
    monkeypatch.setattr(candidates, "SMALL_STORAGE", -1)  # else so few rows are written anew by each refresh
    monkeypatch.setattr(compaction, "MIN_FILES", 3)
    lake.table("orders", "region varchar, amount bigint", "('north', 1), ('south', 2), ('east', 3), ('west', 4)")
    modes = {f"airflow-mv.storage.write.{item}.mode": "merge-on-read" for item in ("merge", "delete", "update")}
    properties = {"airflow-mv.incremental-up-to": "1000", **modes}
    lake.create(
        "totals", TOTALS, layout=layout, refresh_strategy="incremental", time_travel=True, properties=properties
    )
    for region in ("north", "south", "east"):
        lake.insert("orders", f"('{region}', 1), ('new {region}', 1)")
        last = lake.refresh("totals")
    rows = lake.rows("totals")
    done = compact(lake.catalog, lake("totals"), stager=lake.stager).to_dict()
    assert done["outcome"] == "compacted", done
    assert (done["after"]["data_files"], done["after"]["delete_files"]) == (1, 0)
    assert done["before"]["data_files"] >= 3
    assert done["before"]["delete_files"] >= 2
    assert lake.rows("totals") == rows
    assert multiset(lake.stored("totals")) == recomputed(lake, "totals", TOTALS.replace("{ns}.", ""))
    assert lake.status("totals").to_dict()["state"] == "fresh"
    assert compact(lake.catalog, lake("totals"), stager=no_spark).outcome == "not-needed"
    maintain(lake.catalog, lake("totals"), older_than=NOW)
    lake.insert("orders", "('south', 5)")
    assert str(lake.refresh("totals").mode) == "merge"
    assert multiset(lake.stored("totals")) == recomputed(lake, "totals", TOTALS.replace("{ns}.", ""))
    assert lake.rows("totals", refresh_id=last.refresh_id) == rows
