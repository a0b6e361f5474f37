# SPDX-License-Identifier: Apache-2.0
"""A definition is compared as a whole with the existing view: a difference is applied, refused, or kept and said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from airflow_mv.actions import create_view as create
from airflow_mv.checks import read_checks
from airflow_mv.common.status import status
from airflow_mv.core.define.definition import Definition
from airflow_mv.core.freshness.state import State
from airflow_mv.core.spec.properties import SORT_PROPERTY
from airflow_mv.errors import AlreadyExistsError, ConfigurationError, NotMaterializedError, UnsupportedError
from airflow_mv.extras.define import DefinitionResult, Effect, OnChange, define
from airflow_mv.extras.history.versions import versions
from tests.builders import ORDERS, QUERY, Lake, lake, orders
from tests.contract.support import VIEW, defined_at_once
from tests.homes import in_homes

CHECKS = read_checks(["orders > 0"], source="test")
#: Changes of metadata, one after the other, each with what is said.
METADATA: dict[str, dict[str, Any]] = {
    "time travel: false → true": {"properties": {"airflow-mv.time-travel": "True"}},
    "time travel: true → false": {"time_travel": False},
    "refresh strategy: full → incremental": {"refresh_strategy": "incremental"},
    "allow stale data: false → true": {"allow_stale_data": True},
    "allow stale data: true → false": {"allow_stale_data": False},
    "property team: not set → 'sales'": {"properties": {"team": "sales"}},
    "property team: 'sales' → 'north'": {"properties": {"team": "north"}},
    "comment: none → 'of each day'": {"comment": "of each day"},
    "comment: 'of each day' → ''": {"comment": ""},
    "checks: none → orders > 0": {"checks": CHECKS},
    "checks: orders > 0 → none": {"checks": ()},
}
SHORTER = "SELECT region, count(*) AS orders FROM lake.sales.orders GROUP BY region"
REBUILDS: dict[str, dict[str, Any]] = {
    "query: …, count(*) AS orders, sum(amount) AS amount FROM lake.sales.orders GROUP BY region → "
    "…, count(*) AS orders FROM lake.sales.orders GROUP BY region": {"sql": SHORTER},
    "dialects: none → duckdb": {"sql": SHORTER, "properties": {"airflow-mv.dialects": "DuckDB"}},
    "dialects: duckdb → duckdb,trino": {"sql": SHORTER, "dialects": ["duckdb", "trino"]},
    "columns: region, orders → Area, n": {"sql": SHORTER, "columns": ["Area", "n"]},
    "comment of column Area: '' → 'of the order'": {
        "sql": SHORTER,
        "columns": ["Area", "n"],
        "column_comments": {"Area": "of the order"},
    },
}


@pytest.fixture
def home(every_home: Lake) -> Lake:
    every_home.table()
    every_home.view()
    every_home.refresh()
    return every_home


def defined(home: Lake, on_change: OnChange, *, sql: str = QUERY, **definition: Any) -> DefinitionResult:
    return define(home.catalog, VIEW, Definition(sql, **definition), stager=home.stager, on_change=on_change)


def refused(home: Lake, on_change: OnChange, **change: Any) -> str:
    """The message that refuses a change, which leaves the view as it was."""
    before = home.catalog.load(VIEW)
    with pytest.raises(AlreadyExistsError) as error:
        defined(home, on_change, **change)
    assert home.catalog.load(VIEW) == before
    return str(error.value)


def test_metadata_is_changed_without_spark_unless_the_policy_refuses_it(home: Lake) -> None:
    calls = len(home.stager.calls)
    for said, change in METADATA.items():
        assert f"on_change is 'fail': {said}. Nothing was changed: set on_change to 'apply'" in refused(
            home, "fail", **change
        )
        done = defined(home, "apply", **change)
        found = [str(item) for item in done.differences if item.effect != Effect.KEPT]
        assert (done.action, found) == ("changed", [said])
        assert f"changed: {said}" in done.lines
        assert defined(home, "fail", **change).action == "unchanged"
    view = home.catalog.load(VIEW)
    assert (view.metadata.current_version_id, len(home.stager.calls)) == (1, calls)
    assert status(home.catalog, VIEW).state == State.FRESH
    with pytest.raises(ConfigurationError, match="the view has no column 'nothing'"):
        defined(home, "apply", checks=read_checks(["nothing > 0"], source="test"))


def test_a_change_that_needs_a_recompute_must_be_asked_for(home: Lake) -> None:
    for said, change in REBUILDS.items():
        for policy in ("apply", "fail"):
            message = refused(home, policy, **change)
            assert f"on_change is {policy!r}: {said}. Nothing was changed: set on_change to 'rebuild'" in message
        done = defined(home, "rebuild", **change)
        assert (done.action, status(home.catalog, VIEW).state) == ("replaced", State.DEFINITION_CHANGED)
        head = "the next refresh recomputes all rows"
        head = "a new version with the same rows" if said.startswith(("dialects", "comment")) else head
        assert f"{head}, because of: {said}" in done.lines
        assert defined(home, "fail", **change).action == "unchanged"
    home.refresh()
    assert home.read() == [{"Area": "north", "n": 2}, {"Area": "south", "n": 1}]
    shown = versions(home.catalog, VIEW)[-1]["columns"]
    assert [(item["name"], item["comment"]) for item in shown] == [("Area", "of the order"), ("n", None)]
    with pytest.raises(ConfigurationError, match="there is no column 'area'; there are: Area, n"):
        defined(home, "rebuild", sql=SHORTER, columns=["Area", "n"], column_comments={"area": "x"})
    with pytest.raises(ConfigurationError, match="two names are equal: 'a', 'A'"):
        defined(home, "rebuild", sql=SHORTER, columns=["a", "A"])


def test_a_query_that_stays_keeps_the_comments_of_its_columns(every_home: Lake) -> None:
    every_home.table()
    every_home.view(column_comments={"region": "where", "orders": "how many"})
    for on_change in (
        {"dialects": ["trino"]},
        {"column_comments": {"amount": "in cents"}},
        {"column_comments": {"orders": ""}},
        {"columns": ["region", "n", "amount"]},
    ):
        defined(every_home, "rebuild", **on_change)
    columns = versions(every_home.catalog, VIEW)[-1]["columns"]
    assert {item["name"]: item["comment"] for item in columns} == {"region": "where", "n": None, "amount": "in cents"}
    middle = versions(every_home.catalog, VIEW)[-2]["columns"]
    assert [item["comment"] or None for item in middle] == ["where", None, "in cents"]


def test_what_a_definition_does_not_name_is_kept_and_said(every_home: Lake) -> None:
    """A view from when ``full`` was the default of new views stays so."""
    every_home.table()
    named = {"refresh_strategy": "full", "allow_stale_data": True, "time_travel": True, "dialects": ["trino"]}
    every_home.view(**named, checks=CHECKS, properties={"airflow-mv.max-staleness": "1 hour", "owner": "spark"})
    before = every_home.catalog.load(VIEW)
    done = define(every_home.catalog, VIEW, Definition(QUERY + ";\n"), stager=every_home.stager, on_change="fail")
    assert (done.action, done.view, {item.effect for item in done.differences}) == ("unchanged", before, {Effect.KEPT})
    assert done.lines == [
        "lake.sales.daily has this definition already",
        "kept, because the definition does not name it: dialects (trino); refresh strategy (full); allow stale "
        "data (true); time travel (true); checks (orders > 0); property airflow-mv.max-staleness ('1 hour')",
    ]


def test_several_runs_may_define_a_view_at_the_same_time(every_home: Lake) -> None:
    """As the first runs of a DAG do in a backfill: one creates the view, and the others find it."""
    every_home.table()
    assert sorted(defined_at_once(every_home)) == ["created", "unchanged", "unchanged", "unchanged"]
    assert every_home.refresh().outcome == "refreshed"
    assert len(every_home.read()) == 2


def test_a_new_view_is_incremental_in_writing(every_home: Lake) -> None:
    """A stored view without the field is full, for every reader."""
    every_home.table()
    wanted = Definition(QUERY, layout=every_home.layout)
    define(every_home.catalog, VIEW, wanted, stager=every_home.stager)
    assert every_home.catalog.load(VIEW).materialized.document()["refresh-strategy"] == "incremental"
    again = define(every_home.catalog, VIEW, wanted, stager=every_home.stager, on_change="fail")
    assert (again.action, again.differences) == ("unchanged", ())


def test_a_query_without_a_column_that_the_view_s_properties_name_is_refused(home: Lake) -> None:
    """Each refresh would be refused otherwise. Columns of the partitioning are left out instead."""
    without = "SELECT region, sum(amount) AS amount FROM lake.sales.orders GROUP BY region"
    defined(home, "apply", checks=CHECKS, properties={SORT_PROPERTY: "orders"})
    before = home.catalog.load(VIEW)
    for change, message in (
        ({}, "the view has no column 'orders'"),
        ({"properties": {SORT_PROPERTY: ""}}, "the view has no column 'orders'"),
        ({"checks": ()}, "sort-by: there is no column 'orders'; there are: region, amount"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            defined(home, "rebuild", sql=without, **change)
    assert home.catalog.load(VIEW) == before
    defined(home, "rebuild", sql=without, checks=(), properties={SORT_PROPERTY: "amount"})
    assert home.refresh().outcome == "refreshed"


def test_what_cannot_be_changed_in_place_is_refused(home: Lake) -> None:
    """A layout is converted, a sort order has columns of the view, and a plain view's name is not taken silently."""
    other = next(name for name in ("table", "pointed", "registered") if name != home.layout)
    with pytest.raises(UnsupportedError, match=r"convert|cannot compare and swap|has no support for views"):
        defined(home, "rebuild", layout=other)
    with pytest.raises(ConfigurationError, match="sort-by: there is no column 'day'; there are: region, orders"):
        defined(home, "apply", properties={SORT_PROPERTY: "day DESC"})
    home.plain_view("plain", "SELECT 1 AS id, 'a' AS region, 2 AS amount")
    with pytest.raises(AlreadyExistsError, match="plain is a plain view"):
        define(home.catalog, "sales.plain", Definition("SELECT 1 AS one"), stager=home.stager)


SHORT = "SELECT region, count(*) AS orders FROM orders GROUP BY region"


@in_homes(lambda name: not name.endswith("-table"))
def test_a_query_that_stays_keeps_the_namespace_of_its_short_names(every_home: Lake) -> None:
    """Another engine may have created the view in another namespace, which has a table of this name, too."""
    every_home.table()
    every_home.iceberg.create_namespace_if_not_exists("raw")
    raw = every_home.iceberg.create_table("raw.orders", schema=ORDERS)
    raw.append(orders([(1, "west", 1)]))
    every_home.plain_view("daily", SHORT, ["region", "orders"], namespace="raw")
    changes: tuple[dict[str, Any], ...] = (
        {},
        {"allow_stale_data": True},
        {"dialects": ["trino"]},
        {"column_comments": {"region": "where"}},
        {"sql": SHORT.replace("orders FROM orders", "orders FROM raw.orders")},
    )
    for number, change in enumerate(changes):
        wanted = Definition(**{"sql": None, "layout": every_home.layout, **change})
        create(every_home.catalog, VIEW, wanted, stager=every_home.stager, replace=number > 0)
        every_home.refresh()
        assert every_home.read() == [{"region": "west", "orders": 1}], change
    create(every_home.catalog, VIEW, Definition(SHORT), stager=every_home.stager, replace=True)
    every_home.refresh()
    assert {row["region"] for row in every_home.read()} == {"north", "south"}


@in_homes(lambda name: not name.endswith("-table"))
def test_a_query_for_a_plain_view_is_refused_before_anything_is_made(every_home: Lake) -> None:
    every_home.plain_view("daily", QUERY, ["region", "orders", "amount"])
    every_home.table()
    tables = every_home.iceberg.list_tables("sales")
    for replace in (False, True):
        with pytest.raises((AlreadyExistsError, NotMaterializedError)):
            create(every_home.catalog, VIEW, Definition(SHORT), stager=every_home.stager, replace=replace)
    assert every_home.iceberg.list_tables("sales") == tables


@in_homes(lambda name: not name.endswith("-table"))
def test_a_definition_names_the_tables_of_the_view_s_namespace(every_home: Lake) -> None:
    """The same text in another namespace is another query, unless it has full names."""
    every_home.iceberg.create_namespace_if_not_exists("raw")
    for namespace in ("raw", "sales"):
        every_home.iceberg.create_table(f"{namespace}.orders", schema=ORDERS)
    every_home.plain_view("daily", SHORT, ["region", "orders"], namespace="raw")
    every_home.view(sql=None)
    said = "namespace of short names: lake.raw → lake.sales"
    assert f"on_change is 'apply': {said}. Nothing was changed" in refused(every_home, "apply", sql=SHORT)
    assert f"recomputes all rows, because of: {said}" in "\n".join(defined(every_home, "rebuild", sql=SHORT).lines)
    assert defined(every_home, "fail", sql=SHORT).action == "unchanged"
    every_home.plain_view("full", QUERY, ["region", "orders", "amount"], namespace="raw")
    every_home.view("full", sql=None)
    wanted = Definition(QUERY)
    assert define(every_home.catalog, "sales.full", wanted, stager=every_home.stager).action == "unchanged"


def test_a_view_without_its_storage_table_gets_another_one_if_that_is_allowed(every_home: Lake) -> None:
    if every_home.layout != "registered":
        pytest.skip("only in this layout the storage table can be lost while the view stays")
    every_home.table()
    every_home.view()
    every_home.iceberg.drop_table("sales.daily__storage")
    with pytest.raises(AlreadyExistsError, match=r"storage table: .* → a new one\. Nothing was changed"):
        defined(every_home, "apply")
    defined(every_home, "rebuild")
    every_home.refresh()
    assert len(every_home.read()) == 2


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("on-fallback", "fial", r"'fial' is not full, fail or skip"),
        ("max-full-bytes", "10GB", r"'10GB' is not a number of bytes"),
        ("incremental-up-to", "x", r"'x' is not a number"),
        ("max-staleness", "soon", r"'soon', which is not a length of time"),
        ("keep-base-snapshots", "x", r"'x', which is not a length of time"),
        ("maintenance.compact-files", "0", r"'0' is not a whole number of at least 1"),
        ("maintenance.expire-snapshots", "x", r"'x' is not a whole number of at least 1"),
        ("time-travel", "yes", r"'yes' is not true or false"),
        ("refresh-state", "2026", r"'2026' is not 2026-06, 2024-10 or none"),
        ("transpile", "klingon", r"there is no SQL dialect 'klingon'"),
        (
            "max-stalenes",
            "2 h",
            r"there is no property airflow-mv\.max-stalenes; did you mean 'airflow-mv\.max-staleness",
        ),
        ("interval-column", "nope", r"'nope' is not a column of it"),
    ],
)
def test_a_wrong_property_is_refused_and_nothing_is_left(
    sqlite_uri: str, warehouse: Path, key: str, value: str, message: str
) -> None:
    """Otherwise the first refresh would fail, or the setting would have no effect."""
    wrong = Definition(QUERY, properties={f"airflow-mv.{key}": value})
    with lake(sqlite_uri, warehouse) as home:
        home.table()
        home.view()
        before = home.rows_of_catalog()
        with pytest.raises(ConfigurationError, match=message):
            define(home.catalog, VIEW, wrong, stager=home.stager)
        with pytest.raises(ConfigurationError, match=message):
            create(home.catalog, "sales.other", wrong, stager=home.stager)
        assert home.rows_of_catalog() == before


def test_a_word_that_is_no_choice_is_refused(sqlite_uri: str, warehouse: Path) -> None:
    with lake(sqlite_uri, warehouse) as home:
        home.table()
        with pytest.raises(ConfigurationError, match=r"on_change is 'aply'; it must be apply, rebuild or fail"):
            define(home.catalog, VIEW, Definition(QUERY), stager=home.stager, on_change="aply")  # type: ignore[arg-type]
        wrong = Definition(QUERY, refresh_strategy="incr")  # type: ignore[arg-type]
        with pytest.raises(ConfigurationError, match=r"refresh_strategy is 'incr'; it must be full or incremental"):
            create(home.catalog, VIEW, wrong, stager=home.stager)
