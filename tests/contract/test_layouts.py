# SPDX-License-Identifier: Apache-2.0
"""Views and refreshes behave alike in every catalog and layout: one contract, tested on all of them."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from airflow_mv.actions import create_view as create
from airflow_mv.common.status import status
from airflow_mv.core.catalog import stored_layout
from airflow_mv.core.define.definition import Definition
from airflow_mv.core.freshness.state import State
from airflow_mv.core.publish import PublishOutcome, publish
from airflow_mv.core.refresh.run import refresh
from airflow_mv.core.spec.identifiers import quote
from airflow_mv.core.spec.reasons import Code, Mode
from airflow_mv.core.spec.view import with_view_properties
from airflow_mv.errors import (
    AlreadyExistsError,
    InvalidMetadataError,
    NotFoundError,
    StaleViewError,
    UnsupportedError,
    ViewNotFoundError,
)
from airflow_mv.extras.describe import history, stored_metadata
from airflow_mv.extras.history.time_travel import TimeTravel
from airflow_mv.extras.maintenance.drop import drop
from airflow_mv.extras.read import read_rows, readable
from tests.builders import QUERY, Lake, without_properties
from tests.contract.support import EAST, NORTH, SOUTH, VIEW, ids, left_over, staged, where
from tests.homes import in_homes


@pytest.fixture
def home(every_home: Lake) -> Lake:
    every_home.table()
    every_home.view()
    return every_home


# -- views -------------------------------------------------------------------------------------


def test_a_view_is_created_found_listed_and_dropped(every_home: Lake) -> None:
    every_home.table()
    assert not every_home.catalog.exists(VIEW)
    view = every_home.view()
    assert every_home.catalog.exists(VIEW)
    loaded = every_home.catalog.load(VIEW)
    assert (stored_layout(loaded).layout, loaded.metadata.sql(view=VIEW)) == (every_home.layout, QUERY)
    assert loaded.metadata.schema_.names == ("region", "orders", "amount")
    assert every_home.catalog.list("sales") == every_home.catalog.list() == [view]
    drop(every_home.catalog, VIEW)
    assert not every_home.catalog.exists(VIEW)
    assert every_home.iceberg.list_tables("sales") == [("sales", "orders")]
    with pytest.raises(ViewNotFoundError, match="daily"):
        drop(every_home.catalog, VIEW)


def test_the_query_is_stored_in_further_dialects_which_every_replace_writes_anew(every_home: Lake) -> None:
    """A dialect that cannot express the new query stops the change; nothing is lost without a word."""
    every_home.table()
    every_home.view(sql="SELECT region FROM orders WHERE cast(id AS string) = 'a'", dialects=["trino", "duckdb"])

    def replaced(sql: str | None) -> tuple[int, dict[str, str]]:
        create(every_home.catalog, VIEW, Definition(sql), stager=every_home.stager, replace=True)
        document = stored_metadata(every_home.catalog, VIEW)
        return document["metadata"]["current-version-id"], document["texts"]

    first = {
        "spark": "SELECT region FROM orders WHERE cast(id AS string) = 'a'",
        "trino": "SELECT region FROM orders WHERE CAST(id AS VARCHAR) = 'a'",
        "duckdb": "SELECT region FROM orders WHERE CAST(id AS TEXT) = 'a'",
    }
    assert replaced(None) == replaced(first["spark"]) == (1, first)
    version, texts = replaced("SELECT region, amount FROM orders WHERE region RLIKE 'n.*'")
    assert version == 2
    assert texts["trino"] == "SELECT region, amount FROM orders WHERE REGEXP_LIKE(region, 'n.*')"
    assert texts["duckdb"] == "SELECT region, amount FROM orders WHERE REGEXP_MATCHES(region, 'n.*')"
    with pytest.raises(UnsupportedError, match=r"dialect 'trino': .* would become"):
        replaced("SELECT region, amount / 2 AS amount FROM orders")
    assert replaced(None) == (version, texts)
    every_home.refresh()
    assert every_home.read() == [{"region": "north", "amount": 10}, {"region": "north", "amount": 5}]


@in_homes(lambda name: not name.endswith("-table"))  # a plain view cannot become a view of that layout
def test_a_view_of_another_engine_is_translated_only_if_that_is_requested(every_home: Lake) -> None:
    """Its text stays the definition: if the other engine replaces it, the translation follows."""
    every_home.table()
    text = "SELECT id, region, amount FROM orders WHERE REGEXP_LIKE(region, 'n.*')"
    every_home.plain_view("daily", {"trino": text})
    catalog, stager = every_home.catalog, every_home.stager
    with pytest.raises(InvalidMetadataError, match=r"no SQL in the dialect 'spark' \(it has: trino\).* --transpile"):
        create(catalog, VIEW, Definition(None, layout=every_home.layout), stager=stager)
    create(catalog, VIEW, Definition(None, layout=every_home.layout, transpile=True), stager=stager)
    translated = "SELECT id, region, amount FROM orders WHERE region RLIKE 'n.*'"
    assert stored_metadata(catalog, VIEW)["texts"] == {"spark": translated, "trino": text}
    every_home.refresh()
    first = [{"id": 1, "region": "north", "amount": 10}, {"id": 3, "region": "north", "amount": 5}]
    assert every_home.read() == first
    every_home.plain_view("daily", {"trino": 'SELECT id, region, amount FROM "orders" WHERE id = 1'})
    assert status(catalog, VIEW).state == State.DEFINITION_CHANGED
    every_home.refresh()
    assert every_home.read() == first[:1]
    every_home.plain_view("other", {"trino": "SELECT id, region, CAST(amount AS VARCHAR) AS amount FROM orders"})
    with pytest.raises(UnsupportedError, match=r"its columns are .*amount long, and .* gives .*amount string"):
        create(catalog, "sales.other", Definition(None, transpile=True), stager=stager)


@in_homes(lambda name: not name.startswith(("glue", "hive")))  # which have names of one kind only
def test_names_that_need_quoting_work_throughout(every_home: Lake) -> None:
    every_home.table()
    view = every_home.view(quote("a b-c ☃ `q`"))
    assert every_home.catalog.list("sales") == [view]
    assert every_home.refresh(view).outcome == "refreshed"
    assert every_home.read(view) == [NORTH, SOUTH]


def test_a_name_that_exists_is_refused_and_no_table_is_left(home: Lake) -> None:
    home.table("other")
    tables = home.iceberg.list_tables("sales")
    with pytest.raises(AlreadyExistsError, match="daily"):
        home.view()
    with pytest.raises(AlreadyExistsError, match=r"a table .*other"):
        home.view("other")
    assert home.iceberg.list_tables("sales") == tables


def test_a_missing_namespace_or_view_is_named(home: Lake) -> None:
    with pytest.raises(NotFoundError, match="nowhere"):
        home.catalog.list("nowhere")
    with pytest.raises(ViewNotFoundError, match="nothing"):
        home.catalog.load("sales.nothing")


def test_a_property_changes_without_a_new_version(home: Lake) -> None:
    view = home.catalog.load(VIEW)
    assert home.catalog.replace(view, with_view_properties(view.metadata, {"comment": "été ☃"}))
    now = home.catalog.load(VIEW)
    assert now.metadata.properties == {**view.metadata.properties, "comment": "été ☃"}
    assert now.metadata.current_version == view.metadata.current_version
    assert home.catalog.replace(now, without_properties(now.metadata, "comment"))
    assert home.catalog.load(VIEW).metadata.properties == view.metadata.properties


@pytest.mark.parametrize(
    ("sql", "rows"),
    [
        ("SELECT region, count(*) AS orders, max(amount) AS amount FROM lake.sales.orders GROUP BY region", 2),
        ("SELECT id, region FROM lake.sales.orders", 3),
    ],
    ids=["same columns", "other columns"],
)
def test_a_replaced_view_has_a_new_version_and_its_old_rows_are_not_returned(home: Lake, sql: str, rows: int) -> None:
    home.refresh()
    before = home.catalog.load(VIEW).metadata
    create(home.catalog, VIEW, Definition(sql), stager=home.stager, replace=True)
    replaced = home.catalog.load(VIEW)
    assert replaced.metadata.current_version_id == 2
    assert replaced.metadata.view_uuid == before.view_uuid
    with pytest.raises(StaleViewError):
        readable(home.catalog, VIEW)
    home.refresh()
    assert len(home.read()) == rows
    assert len([name for name in home.iceberg.list_tables("sales") if "storage" in name[-1]]) <= 1


def test_the_same_definition_again_keeps_version_and_rows(home: Lake) -> None:
    home.refresh()
    before = home.storage()
    create(home.catalog, VIEW, Definition(QUERY, allow_stale_data=True), stager=home.stager, replace=True)
    view = home.catalog.load(VIEW)
    assert (view.metadata.current_version_id, view.materialized.allow_stale_data) == (1, True)
    assert home.storage().state == before.state
    assert status(home.catalog, VIEW).state == State.FRESH


def test_a_plain_view_can_be_made_a_materialized_view(every_home: Lake) -> None:
    every_home.table()
    every_home.plain_view("plain", "SELECT id, region AS r FROM lake.sales.orders", ["number", "region"])
    wanted = Definition(None, layout=every_home.layout)
    if every_home.layout == "table":
        with pytest.raises(UnsupportedError, match=r"plain is a view, .* is a table of its name"):
            create(every_home.catalog, "sales.plain", wanted, stager=every_home.stager)
        return
    create(every_home.catalog, "sales.plain", wanted, stager=every_home.stager)
    every_home.refresh("sales.plain")
    assert every_home.read("sales.plain")[0] == {"number": 1, "region": "north"}


# -- a refresh ---------------------------------------------------------------------------------


def test_rows_are_visible_only_after_the_publication(home: Lake) -> None:
    plan, outcome = staged(home)
    assert home.read() == []
    assert status(home.catalog, VIEW).state == State.NEVER_REFRESHED
    assert publish(home.catalog, plan, where(outcome)).outcome == PublishOutcome.COMMITTED
    assert home.read() == [NORTH, SOUTH]
    assert status(home.catalog, VIEW).state == State.FRESH
    assert left_over(home) == []


def test_this_package_s_readers_return_the_rows_that_other_engines_read(home: Lake) -> None:
    home.refresh()
    found = readable(home.catalog, VIEW)
    assert sorted(read_rows(home.catalog, found).rows()) == [list(row.values()) for row in home.read()]


def test_a_fresh_view_is_not_refreshed(home: Lake) -> None:
    home.refresh()
    before = home.storage().location
    assert home.refresh().outcome == "fresh"
    assert home.storage().location == before


def test_repeated_refreshes_leave_one_record_and_no_garbage(home: Lake) -> None:
    for _ in range(3):
        home.append()
        home.refresh()
    assert len(ids(home)) == 1
    assert left_over(home) == []
    assert home.read() == [{**EAST, "orders": 3, "amount": 21}, NORTH, SOUTH]


def test_an_empty_result_is_published(every_home: Lake) -> None:
    every_home.table(rows=None)
    every_home.view(sql="SELECT id, region FROM lake.sales.orders WHERE id > 5")
    assert every_home.refresh().outcome == "refreshed"
    assert every_home.read() == []
    assert status(every_home.catalog, VIEW).state == State.FRESH


def test_compaction_of_a_base_table_is_a_fast_forward(home: Lake) -> None:
    home.refresh()
    head = home.compact()
    done = home.refresh()
    assert (done.mode, len(home.stager.refreshes)) == (Mode.FAST_FORWARD, 1)
    assert home.storage().state.current.snapshots == {"lake.sales.orders": head}  # type: ignore[union-attr]
    assert home.read() == [NORTH, SOUTH]


def test_a_view_on_a_view_reads_the_rows_of_its_refresh(home: Lake) -> None:
    home.view("top", "SELECT sum(amount) AS total FROM lake.sales.daily")
    done = refresh(home.catalog, ["sales.top", VIEW], stager=home.stager)
    assert [result.outcome for result in done] == ["refreshed", "refreshed"]
    assert home.read("sales.top") == [{"total": 35}]
    home.append()
    assert [reason.code for reason in status(home.catalog, "sales.top").reasons] == [Code.INPUT_STALE]
    home.refresh()
    assert status(home.catalog, "sales.top").state == State.STALE
    home.refresh("sales.top")
    assert home.read("sales.top") == [{"total": 42}]


def test_the_stored_documents_can_be_shown(home: Lake) -> None:
    home.refresh()
    shown = stored_metadata(home.catalog, VIEW)
    assert shown["layout"] == home.layout
    assert shown["metadata"]["view-uuid"] == home.catalog.load(VIEW).metadata.view_uuid
    assert shown["storage_table_metadata"]["current-snapshot-id"] == home.storage().table.head


# -- time travel -------------------------------------------------------------------------------


def test_every_refresh_stays_readable_with_time_travel(every_home: Lake) -> None:
    every_home.table()
    every_home.view(time_travel=True)
    first = every_home.refresh()
    snapshot = every_home.storage().rows_snapshot
    between = datetime.now(UTC)
    every_home.append()
    every_home.refresh()
    every_home.compact()
    every_home.refresh()
    assert [item["mode"] for item in history(every_home.catalog, VIEW)] == ["full", "full", "fast-forward"]
    for past in (
        TimeTravel(refresh_id=first.refresh_id),
        TimeTravel(as_of=between),
        TimeTravel(bases_as_of=between),
        TimeTravel(snapshot_id=snapshot),
        TimeTravel(sequence_number=history(every_home.catalog, VIEW)[0]["sequence_number"]),
    ):
        found = readable(every_home.catalog, VIEW, past)
        assert sorted(read_rows(every_home.catalog, found).rows()) == [["north", 2, 15], ["south", 1, 20]]
    tags = {name for name in every_home.storage().table.refs if name.startswith("refresh-")}
    assert tags == {f"refresh-{name}" for name in ids(every_home)}
