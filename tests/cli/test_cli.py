# SPDX-License-Identifier: Apache-2.0
"""The command line: commands, documents, exit codes."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyiceberg.catalog import load_catalog

from airflow_mv.cli.context import LAYOUTS
from airflow_mv.core.catalog import STORED_LAYOUTS
from airflow_mv.core.spec.materialized_view import PROPERTY
from tests.cli.support import call, execute
from tests.engine.fixtures import new_lake
from tests.engine.support import LAKE, Lake, as_arrow, configure, reload_configuration

DAILY = "SELECT day, sum(amount) AS amount FROM {ns}.orders GROUP BY day"
STATUS_KEYS = {"view", "state", "refresh_id", "refreshed_at", "version_id", "base_tables", "reasons"}
RESULT_KEYS = {"view", "outcome", "mode", "reasons", "refresh_id", "storage_table_location", "rows_written", "seconds"}
HISTORY_KEYS = {
    "refresh_id",
    "version_id",
    "sequence_number",
    "mode",
    "reasons",
    "base_tables",
    "refreshed_at",
    "current",
}


@pytest.fixture(scope="module")
def shop(lake_folder: Path) -> Lake:
    """A fresh view, a stale one, a plain one and a table."""
    lake = new_lake(lake_folder)
    lake.table("orders", "day integer, amount bigint", "(1, 10), (1, 20), (2, 30)")
    lake.table("changing", "day integer, amount bigint", "(1, 10)")
    lake.create("daily", DAILY)
    lake.create("behind", DAILY.replace("orders", "changing"), allow_stale_data=True, time_travel=True)
    lake.refresh("daily", "behind")
    lake.run("CREATE VIEW {ns}.plain AS SELECT 1 AS one")
    lake.insert("changing", "(2, 5)")
    return lake


@pytest.fixture
def variables(tmp_path: Path) -> Iterator[dict[str, str]]:
    """The environment variables of a catalog ``startup`` that only this test has."""
    given = configure(tmp_path, "startup")
    yield given
    for name in given:
        del os.environ[name]
    reload_configuration()


def test_the_first_example_of_the_documentation_works_in_an_empty_folder(
    tmp_path: Path, variables: dict[str, str]
) -> None:
    """In real processes with three environment variables; stdout is one JSON document without Spark's output."""
    orders = as_arrow("day integer, amount bigint", "(1, 10), (1, 20), (2, 30)")
    catalog = load_catalog("startup")
    catalog.create_namespace("sales")
    catalog.create_table("sales.orders", schema=orders.schema).append(orders)
    sql = tmp_path / "daily.sql"
    sql.write_text("SELECT day, sum(amount) AS amount\nFROM startup.sales.orders -- all of them\nGROUP BY day;\n")

    made = execute(
        *("create", "startup.sales.daily", "--sql-file", str(sql), "--refresh", "--json"),
        folder=tmp_path,
        variables=variables,
    )
    assert (made.code, made.json["outcome"], made.json["rows_written"]) == (0, "refreshed", 2), made.stderr
    assert made.stdout.count("\n") == 1
    assert not re.search(r"Traceback|at org\.apache", made.stderr)

    read = execute("read", "startup.sales.daily", "--json", folder=tmp_path, variables=variables)
    assert sorted(read.json["rows"]) == [[1, 30], [2, 30]]
    assert read.stderr == ""
    again = execute("refresh", "startup.sales.daily", "--json", folder=tmp_path, variables=variables)
    assert [item["outcome"] for item in again.json] == ["fresh"]
    assert again.stderr == ""
    assert not list(tmp_path.glob("derby.log")) + list(tmp_path.glob("metastore_db"))


@pytest.mark.slow
def test_a_spark_error_in_a_real_process_is_one_line(tmp_path: Path, variables: dict[str, str]) -> None:
    """No Java stack, no Python traceback, nothing on stdout."""
    orders = as_arrow("day integer, amount bigint")
    catalog = load_catalog("startup")
    catalog.create_namespace("sales")
    catalog.create_table("sales.orders", schema=orders.schema)
    ended = execute(
        *("create", "startup.sales.daily", "--json", "--sql", "SELECT explode(day) AS x FROM startup.sales.orders"),
        folder=tmp_path,
        variables=variables,
    )
    assert ended.code == 1
    assert ended.error.startswith("view startup.sales.daily: [DATATYPE_MISMATCH.")
    assert "explode(day)" in ended.error
    assert len(ended.stderr.splitlines()) < 8, ended.stderr
    assert "at org.apache" not in ended.stderr


def test_create_prints_the_query_in_each_dialect_or_what_would_change(lake: Lake) -> None:
    """A refused dialect leaves no view."""
    lake.table("orders", "day integer, region varchar")
    query = f"SELECT day FROM {lake('orders')} WHERE region RLIKE 'n.*'"
    made = call("create", lake("daily"), "--sql", query, "--dialect", "trino", "--dialect", "duckdb")
    assert made.code == 0, made.stderr
    for text in (
        f"SQL for spark:\n{query}",
        f"SQL for trino:\nSELECT day FROM {lake('orders')} WHERE REGEXP_LIKE(region, 'n.*')",
        f"SQL for duckdb:\nSELECT day FROM {lake('orders')} WHERE REGEXP_MATCHES(region, 'n.*')",
    ):
        assert text in made.stdout
    assert call("show", lake("daily"), "--json").json["texts"].keys() == {"spark", "trino", "duckdb"}
    half = call("create", lake("half"), "--sql", f"SELECT day / 2 AS half FROM {lake('orders')}", "--dialect", "trino")
    assert "its query cannot be written in the dialect 'trino': day would become CAST(day AS DOUBLE)" in half.error
    assert not lake.catalog.exists(lake("half"))


def test_status_has_the_documented_fields(shop: Lake) -> None:
    """A list of documents, sorted by name."""
    ended = call("status", shop("behind"), shop("daily"), "--json")
    behind, daily = ended.json

    assert ended.code == 0
    assert behind.keys() >= STATUS_KEYS
    assert (behind["view"], behind["state"], behind["version_id"]) == (shop("behind"), "stale", 1)
    assert (daily["view"], daily["state"]) == (shop("daily"), "fresh")
    assert [reason["code"] for reason in behind["reasons"]] == ["BASE_CHANGED"]
    (table,) = behind["base_tables"]
    assert {"identifier", "type", "recorded", "current", "changed"} <= table.keys()
    assert (table["identifier"], table["changed"], table["current"]) == (
        shop("changing"),
        True,
        str(shop.snapshot("changing")),
    )


def test_status_check_ends_with_three_if_a_view_is_not_fresh(shop: Lake) -> None:
    """It is meant for shell scripts; without --check a stale view is not a failure."""
    assert call("status", shop("daily"), "--check").code == 0
    assert call("status", shop("behind")).code == 0
    ended = call("status", shop("daily"), shop("behind"), "--check", "--json")
    assert (ended.code, len(ended.json)) == (3, 2)


@pytest.mark.parametrize("scope", ["--namespace", "--all", "--all=lake"])
def test_status_of_a_namespace_or_a_catalog_omits_plain_views(shop: Lake, scope: str) -> None:
    """They are shown only if they are named."""
    arguments = [scope, f"{LAKE}.{shop.namespace}"] if scope == "--namespace" else [scope]
    views = [item["view"] for item in call("status", *arguments, "--json").json]
    assert [view for view in views if shop.namespace in view] == [shop("behind"), shop("daily")]


def test_a_broken_view_does_not_hide_the_others(shop: Lake) -> None:
    """Users run the status of all views when something is broken."""
    shop.run("CREATE VIEW {ns}.broken TBLPROPERTIES ('materialized_view_metadata' = '{') AS SELECT 1 AS one")
    try:
        documents = {
            item["view"]: item for item in call("status", "--namespace", f"{LAKE}.{shop.namespace}", "--json").json
        }
        assert documents[shop("broken")]["state"] == "unknown"
        assert documents[shop("broken")]["reasons"][0]["code"] == "VIEW_UNREADABLE"
        assert documents[shop("daily")]["state"] == "fresh"
        assert call("status", "--namespace", f"{LAKE}.{shop.namespace}", "--check").code == 3
        assert "unknown" in call("status", "--namespace", f"{LAKE}.{shop.namespace}").stdout
    finally:
        shop.run("DROP VIEW {ns}.broken")


def test_the_plan_lists_the_statements_that_the_refresh_runs(shop: Lake) -> None:
    """They are compared one by one."""
    planned = call("plan", shop("daily"), "--full", "--json").json
    shop.scripts.clear()
    ran = shop.refresh("daily", full=True)

    assert {"view", "mode", "reasons", "refresh_id", "base_tables", "statements"} <= planned.keys()
    assert planned["statements"] == list(shop.scripts[-1].statements)
    assert (planned["mode"], planned["refresh_id"]) == ("full", ran.refresh_id)
    idle = call("plan", shop("daily"), "--json").json
    assert (idle["mode"], idle["statements"]) == ("noop", [])
    assert "no Spark job" in call("plan", shop("daily")).stdout


def test_the_plan_of_a_first_refresh_knows_no_change(lake: Lake) -> None:
    """Also no unknown one."""
    lake.table("orders", "day integer, amount bigint", "(1, 10)")
    lake.create("daily", DAILY)
    assert f"{lake('orders')}  not read before" in call("plan", lake("daily")).stdout


def test_refresh_prints_a_document_for_each_view(lake: Lake) -> None:
    """In the order in which they ran; the text form has the same content."""
    lake.table("orders", "day integer, amount bigint", "(1, 10), (1, 20), (2, 30)")
    assert call("create", lake("daily"), "--sql", DAILY.replace("{ns}", f"{LAKE}.{lake.namespace}")).code == 0
    first = call("refresh", lake("daily"), "--json")
    (document,) = first.json

    assert first.code == 0
    assert document.keys() >= RESULT_KEYS
    assert (document["outcome"], document["mode"], document["rows_written"]) == ("refreshed", "full", 2)
    assert document["storage_table_location"] == lake.settings("daily")["storage-table-location"]
    again = call("refresh", lake("daily"))
    assert again.code == 0
    assert f"{lake('daily')}  fresh  noop" in again.stdout
    assert "at the snapshot that the last refresh read" in again.stderr


def test_create_accepts_every_documented_option(lake: Lake) -> None:
    """The stored options are the given ones; replacing keeps the storage table."""
    lake.table("orders", "day date, amount bigint", "('2024-01-01', 10)")
    sql = DAILY.replace("{ns}", f"{LAKE}.{lake.namespace}")
    options = [
        "--allow-stale-data",
        "--time-travel",
        "--partition-by",
        "days(day)",
        "--partition-by",
        "bucket(4, amount)",
    ]
    created = call(
        *("create", lake("daily"), "--sql", sql, "--refresh-strategy", "incremental", *options),
        *("--property", "team=finance", "--property", "note=a=b", "--json"),
    )
    assert (created.code, created.json["state"]) == (0, "never-refreshed")
    view = lake.view("daily")
    assert (view.materialized.refresh_strategy, view.materialized.allow_stale_data) == ("incremental", True)
    assert (view.metadata.properties["team"], view.metadata.properties["note"]) == ("finance", "a=b")
    storage = lake.catalog.load_storage(view).table
    assert [field["transform"] for field in storage.partition_specs[0]["fields"]] == ["day", "bucket[4]"]

    assert "exists already" in call("create", lake("daily"), "--sql", sql).error
    replaced = call("create", lake("daily"), "--sql", sql.replace("sum", "max"), "--replace", "--json")
    assert (replaced.code, replaced.json["version_id"]) == (0, 2)
    same = call("create", lake("daily"), "--sql", sql.replace("sum", "max"), "--replace")
    assert lake.view("daily").metadata.current_version_id == 2
    assert same.stdout.startswith(f"replaced {lake('daily')}\n")
    assert f"stored rows of {lake('daily')}: `airflow-mv read {lake('daily')}`" in " ".join(same.stdout.split())
    assert lake.view("daily").materialized.allow_stale_data  # what is not named stays

    compared = ("create", lake("daily"), "--sql", sql.replace("sum", "max"), "--no-stale-data", "--on-change")
    assert "allow stale data: true → false. Nothing was changed" in call(*compared, "fail").error
    assert "changed: allow stale data: true → false" in call(*compared, "apply").stdout
    assert lake.view("daily").materialized.allow_stale_data is False
    assert call(*compared, "apply", "--replace").code == 2


def test_history_read_and_show_return_what_is_stored(shop: Lake) -> None:
    """Stale rows are read if the view allows it; earlier rows by refresh id."""
    (record,) = call("history", shop("behind"), "--json").json
    assert record.keys() >= HISTORY_KEYS
    assert record["current"] is True
    assert record["refresh_id"] in call("history", shop("behind"), "--limit", "1").stdout

    read = call("read", shop("behind"), "--json").json
    assert read == {
        "view": shop("behind"),
        "refresh_id": record["refresh_id"],
        "state": "stale",
        "columns": ["day", "amount"],
        "rows": [[1, 10]],
    }
    by_id = call("read", shop("behind"), "--refresh-id", record["refresh_id"], "--limit", "0", "--json").json
    assert by_id["rows"] == []
    for option, field in (("--snapshot-id", "snapshot_id"), ("--sequence-number", "sequence_number")):
        assert call("read", shop("behind"), option, str(record[field]), "--json").json["rows"] == read["rows"]
    both = call("read", shop("behind"), "--as-of", "2020-01-01", "--snapshot-id", "1")
    assert (both.code, "give one of --as-of, --bases-as-of" in both.stderr) == (2, True)
    plain = call("read", shop("behind"))
    assert plain.stdout == "day  amount\n  1      10\n"
    assert f"1 row of refresh {record['refresh_id']} (stale)" in plain.stderr

    shown = call("show", shop("behind"), "--json").json
    assert shown["metadata_location"] == shop.view("behind").metadata_location
    assert json.loads(shown["metadata"]["properties"][PROPERTY])["storage-table-location"]
    assert shown["storage_table_metadata"]["table-uuid"]


def test_reading_a_stale_view_without_a_refresh_is_refused(lake: Lake) -> None:
    """With --no-refresh the error has the reason; without it, the rows are fresh."""
    lake.table("orders", "day integer, amount bigint", "(1, 10)")
    lake.create("daily", DAILY)
    refused = call("read", lake("daily"), "--no-refresh", "--json")
    assert refused.code == 1
    assert "never-refreshed" in refused.error
    assert f"Run `airflow-mv refresh {lake('daily')}`" in refused.error
    assert call("read", lake("daily"), "--json").json["rows"] == [[1, 10]]
    assert call("read", lake("daily"), "--no-refresh", "--json").json["state"] == "fresh"
    lake.insert("orders", "(NULL, 5), (2, NULL)")
    read = call("read", lake("daily"))
    assert "are not fresh, so it is refreshed first" in read.stderr
    shown = read.stdout.splitlines()
    assert sorted(shown[1:]) == ["   1      10", "   2    NULL", "NULL       5"]
    assert [None, 5] in call("read", lake("daily"), "--json").json["rows"]


def test_changes_prints_what_was_added_and_removed(lake: Lake) -> None:
    """Ids are text in JSON; an expired or unknown snapshot is an error with the oldest one."""
    lake.table("orders", "day integer, amount bigint", "(1, 10)")
    first = lake.snapshot("orders")
    lake.insert("orders", "(2, 5), (2, 5)")
    found = call("changes", lake("orders"), "--from", str(first), "--limit", "1", "--json").json
    assert found == {
        "table": lake("orders"),
        "from": str(first),
        "to": str(lake.snapshot("orders")),
        "on_one_line": True,
        "added": 2,
        "removed": 0,
        "left_out": [],
        "columns": ["_change_type", "day", "amount"],
        "rows": [["INSERT", 2, 5]],
    }
    back = call("changes", lake("orders"), "--from", found["to"], "--to", found["from"], "--column", "day")
    assert back.stdout == "_change_type  day\nDELETE          2\nDELETE          2\n"
    assert "the second does not follow from the first" in back.stderr
    gone = call("changes", lake("orders"), "--from", "7", "--json")
    assert (gone.code, f"no snapshot 7, or it has expired: the oldest that can be read is {first}" in gone.error) == (
        1,
        True,
    )
    other = call("changes", lake("orders"), "--from", "abc")
    assert (other.code, "no snapshot 'abc': a snapshot's id is a number" in other.stderr) == (1, True)


def test_json_and_text_output_are_valid_whatever_the_rows_contain(lake: Lake) -> None:
    """NaN is not a JSON number; an escape sequence in a row must not reach the terminal; nothing is truncated."""
    long = "x" * 500
    lake.table("odd", "a double, b varchar, c timestamp, d blob, e decimal(4, 2)", f"('NaN', '{long}', NULL, 'a', 1.5)")
    lake.table("escape", "b varchar", "(chr(27) || '[31m:smile: [red]' || chr(10) || '山')")
    lake.create("odd_rows", "SELECT * FROM {ns}.odd")
    lake.create("escaped", "SELECT * FROM {ns}.escape")
    (row,) = json.loads(call("read", lake("odd_rows"), "--json").stdout, parse_constant=lambda name: pytest.fail(name))[
        "rows"
    ]
    assert row == ["nan", long, None, "61", "1.50"]
    assert math.isnan(float(row[0]))
    assert long in call("read", lake("odd_rows")).stdout
    assert call("read", lake("escaped")).stdout.splitlines()[1] == "\\x1b[31m:smile: [red]\\n山"


def test_a_view_is_converted_and_spark_reads_and_refreshes_it_in_each_layout(lake: Lake) -> None:
    lake.table("orders", "day integer, amount bigint", "(1, 10), (1, 20), (2, 30)")
    lake.create("daily", DAILY, layout="pointed", properties={"airflow-mv.incremental-up-to": "1000"})
    lake.refresh("daily")
    rows = [(1, 30), (2, 30)]
    for number, layout in enumerate(("table", "registered", "table", "pointed"), 3):
        done = call("convert", lake("daily"), "--layout", layout)
        assert f" to {layout}\nstored rows of {lake('daily')}: " in done.stdout
        if layout == "table":
            assert sorted(tuple(row) for row in lake.sql("SELECT * FROM {ns}.daily").collect()) == rows
        lake.insert("orders", f"({number}, 1)")
        assert lake.refresh("daily").outcome == "refreshed"
        rows.append((number, 1))
        assert lake.rows("daily") == rows
    assert call("convert", lake("daily"), "--layout", "pointed", "--json").json["before"] == "pointed"
    assert call("convert", lake("daily"), "--layout", "tables").code == 2
    assert set(LAYOUTS) == set(STORED_LAYOUTS)


def test_a_table_that_spark_made_is_adopted_refreshed_and_left(lake: Lake) -> None:
    """Spark reads it by its name throughout, and its partitioning stays."""
    lake.table("orders", "day integer, amount bigint", "(1, 10), (1, 20), (2, 30)")
    lake.run("CREATE TABLE {ns}.daily USING iceberg PARTITIONED BY (day) AS SELECT 7 AS day, 7L AS amount")
    name = ("create", lake("daily"), "--adopt", "--sql")
    query = DAILY.replace("{ns}", f"{LAKE}.{lake.namespace}")
    refused = call(*name, query.replace("SELECT day", "SELECT day AS date"))
    assert "date (int) is not in the table; day (int) is not in the query" in refused.error
    assert call(*name, query, "--replace").code == 2
    assert call(*name, query).stdout.startswith(f"adopted {lake('daily')}")
    assert [tuple(row) for row in lake.sql("SELECT * FROM {ns}.daily").collect()] == [(7, 7)]
    lake.refresh("daily")
    rows = [(1, 30), (2, 30)]
    assert sorted(tuple(row) for row in lake.sql("SELECT * FROM {ns}.daily").collect()) == rows
    assert "it was adopted" in call("drop", lake("daily"), "--yes").stdout
    assert sorted(tuple(row) for row in lake.sql("SELECT * FROM {ns}.daily").collect()) == rows
    assert [field.name for field in lake.files.load_table((lake.namespace, "daily")).spec().fields] == ["day"]


def test_drop_removes_the_view_and_keeps_the_files(lake: Lake) -> None:
    """It drops only materialized views, and only after confirmation."""
    lake.table("orders", "day integer, amount bigint", "(1, 10)")
    lake.run("CREATE VIEW {ns}.plain AS SELECT 1 AS one")
    lake.create("daily", DAILY)
    storage = Path(lake.settings("daily")["storage-table-location"].removeprefix("file:"))

    assert call("drop", lake("daily"), stdin="n\n").code == 1
    assert lake.catalog.exists(lake("daily"))
    assert call("drop", lake("daily"), "--yes", "--json").json == {"view": lake("daily"), "dropped": True}
    assert not lake.catalog.exists(lake("daily"))
    assert storage.exists()
    assert "plain view" in call("drop", lake("plain"), "--yes").error


def test_verify_recomputes_and_finds_no_difference(shop: Lake) -> None:
    """A stale view is compared at its recorded snapshots."""
    for name in ("daily", "behind"):
        ended = call("verify", shop(name), "--json")
        assert (ended.code, ended.json["equal"]) == (0, True)
