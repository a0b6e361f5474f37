# SPDX-License-Identifier: Apache-2.0
"""Cases of the layout ``table`` only: the view is a table, which holds its own definition."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.catalog.sql import SqlCatalog

from airflow_mv.actions import create_view as create
from airflow_mv.common.status import status
from airflow_mv.core.catalog import MaterializedViewCatalog, stored_layout
from airflow_mv.core.catalog.configured import LAYOUT_PROPERTY
from airflow_mv.core.catalog.layouts import how_to_read
from airflow_mv.core.catalog.pyiceberg_compat import LOAD_VIEW, endpoints_of
from airflow_mv.core.catalog.sql import SqlPointers
from airflow_mv.core.define.definition import Definition
from airflow_mv.core.freshness.state import State
from airflow_mv.core.publish import PublishOutcome, publish
from airflow_mv.core.refresh import plan_refresh
from airflow_mv.core.spec.definition_text import MAX_DEFINITION_TEXT, MAX_VERSION_LOG
from airflow_mv.core.spec.materialized_view import DEFINITION_PROPERTY
from airflow_mv.core.spec.view import with_view_properties
from airflow_mv.errors import (
    AlreadyExistsError,
    ConfigurationError,
    InvalidMetadataError,
    NotFoundError,
    UnsupportedError,
    ViewNotFoundError,
)
from airflow_mv.extras.fleet.all_views import statuses_of_catalogs
from airflow_mv.extras.maintenance.drop import drop, purge
from airflow_mv.extras.maintenance.orphans import maintain
from airflow_mv.extras.maintenance.repair import repair
from airflow_mv.extras.read import readable
from tests.builders import QUERY, Lake, lake
from tests.contract.support import EAST, NORTH, SOUTH, VIEW, staged, where
from tests.extras.maintenance.support import files, local
from tests.faults import Clock, FaultyCatalog, after, arrive_late, lose_answer_before
from tests.homes import HOMES, home_parameter
from tests.rest.proxy import changed

DAILY = ("sales", "daily")
WIDER = "SELECT id, upper(region) AS amount, amount AS region FROM lake.sales.orders"


@pytest.fixture(params=[home_parameter(name) for name in HOMES if name.endswith("-table")])
def bare(request: pytest.FixtureRequest, warehouse: Path) -> Iterator[Lake]:
    """An empty lake in each catalog; behind a server one that has no views."""
    with lake(str(request.getfixturevalue(HOMES[request.param][0])), warehouse, layout="table") as found:
        if isinstance(found.iceberg, RestCatalog):
            endpoints = endpoints_of(found.iceberg)
            endpoints -= {item for item in endpoints if "/views" in item.path}
            assert LOAD_VIEW not in endpoints_of(found.iceberg)
        yield found


@pytest.fixture
def home(bare: Lake) -> Lake:
    bare.table()
    bare.view()
    return bare


def names(home: Lake) -> list[str]:
    """The columns that everyone sees who loads the view by its name. Only Spark keeps their order."""
    return sorted(home.iceberg.load_table(DAILY).schema().column_names)


# -- the name is a table ---------------------------------------------------------------------------


def test_the_name_of_the_view_is_the_table_with_the_stored_rows(home: Lake) -> None:
    assert home.iceberg.load_table(DAILY).scan().to_arrow().num_rows == 0
    results = [home.refresh(), home.refresh()]
    rows = home.iceberg.load_table(DAILY).scan().to_arrow().to_pylist()
    assert sorted(rows, key=str) == [NORTH, SOUTH]
    assert sorted(home.iceberg.list_tables("sales")) == [DAILY, ("sales", "orders")]
    view = home.catalog.load(VIEW)
    found = how_to_read(view, home.storage())
    assert f"the table {view.identifier}," in found
    assert "runs the view's SQL" not in found
    assert [result.to_dict()["storage_table"] for result in results] == [str(view.identifier)] * 2


def test_a_catalog_without_views_holds_materialized_views_as_tables(home: Lake) -> None:
    """Each command works there, also where no layout is given."""
    if home.catalog.is_sql:
        pytest.skip("a SQL catalog has views")
    assert (home.catalog.holds_views, home.catalog.layouts) == (True, ("table",))
    other = create(home.catalog, "sales.other", Definition(QUERY), stager=home.stager)
    assert stored_layout(other).layout == "table"
    assert [str(item) for item in home.catalog.list()] == ["lake.sales.daily", "lake.sales.other"]
    with pytest.raises(UnsupportedError, match=r"has no support for views.*'registered' needs: use the layout 'table'"):
        create(home.catalog, "sales.third", Definition(QUERY, layout="registered"), stager=home.stager)
    home.refresh()
    maintain(home.catalog, VIEW)
    assert home.read() == [NORTH, SOUTH]
    assert drop(home.catalog, VIEW).left is None
    assert not home.catalog.exists(VIEW)


def test_views_of_all_layouts_are_in_one_catalog(home: Lake) -> None:
    for layout in home.catalog.layouts:
        home.view(f"v_{layout}", layout=layout)
    found = [stored_layout(home.catalog.load(item)).layout for item in home.catalog.list("sales")]
    assert found == ["table", *sorted(home.catalog.layouts)]


def test_a_property_of_the_catalog_chooses_the_layout(sqlite_uri: str, warehouse: Path) -> None:
    """A catalog that does not support it uses its default; a layout that does not exist is an error."""
    with lake(sqlite_uri, warehouse, **{LAYOUT_PROPERTY: "table"}) as found:
        found.table()
        view = create(found.catalog, VIEW, Definition(QUERY), stager=found.stager)
        assert stored_layout(view).layout == "table"
        found.catalog.properties[LAYOUT_PROPERTY] = "tables"
        with pytest.raises(ConfigurationError, match=r"airflow-mv\.layout: there is no layout 'tables'; .*registered"):
            create(found.catalog, "sales.other", Definition(QUERY), stager=found.stager)


# -- tables of others --------------------------------------------------------------------------------


def test_a_table_that_is_not_a_view_is_never_replaced_or_dropped(home: Lake) -> None:
    before = home.load().metadata
    for act in (lambda: drop(home.catalog, "sales.orders", force=True), lambda: purge(home.catalog, "sales.orders")):
        with pytest.raises(ViewNotFoundError):
            act()
    for replace in (False, True):
        with pytest.raises(AlreadyExistsError, match=r"a table lake\.sales\.orders exists already"):
            create(
                home.catalog,
                "sales.orders",
                Definition("SELECT 1 AS one", layout="table"),
                stager=home.stager,
                replace=replace,
            )
    assert home.load().metadata == before


def test_a_renamed_view_is_an_ordinary_table_until_it_is_renamed_back(home: Lake) -> None:
    home.refresh()
    home.iceberg.rename_table(DAILY, ("sales", "moved"))
    for name in (VIEW, "sales.moved"):
        assert not home.catalog.exists(name)
        with pytest.raises(ViewNotFoundError):
            drop(home.catalog, name)
    assert home.iceberg.load_table("sales.moved").scan().to_arrow().num_rows == 2
    home.iceberg.rename_table("sales.moved", DAILY)
    assert status(home.catalog, VIEW).state == State.FRESH


def test_a_view_whose_metadata_file_is_lost_is_listed_and_unknown(home: Lake) -> None:
    """Where the catalog names the files, another process knows it by an earlier one. An ordinary table is left out."""
    home.refresh()
    home.view("other")
    assert len(home.catalog.list()) == 2
    for lost in (home.catalog.load(VIEW).metadata_location, home.load().metadata_location):
        local(lost).unlink()
    catalog = MaterializedViewCatalog(home.iceberg) if not home.catalog.is_rest else home.catalog
    documents = statuses_of_catalogs({"lake": lambda: catalog}, ("sales",)).documents
    assert [(document["view"], document["state"]) for document in documents] == [
        (f"lake.{VIEW}", "unknown"),
        ("lake.sales.other", "unknown"),
    ]


def test_a_copy_with_all_properties_is_an_ordinary_table(home: Lake) -> None:
    table = home.iceberg.load_table(DAILY)
    home.iceberg.drop_table(DAILY)
    copy = home.iceberg.create_table(DAILY, table.schema(), properties=dict(table.properties))
    assert DEFINITION_PROPERTY in copy.properties
    assert not home.catalog.exists(VIEW)
    with pytest.raises(ViewNotFoundError):
        home.refresh()
    assert home.iceberg.table_exists(DAILY)


def test_a_table_that_was_created_under_the_name_since_is_not_dropped(
    home: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes the name between the look and the removal."""
    if not home.catalog.is_sql:
        pytest.skip("a server takes no condition for a drop")
    original = SqlPointers.delete

    def late(pointers: SqlPointers, *arguments: Any, **options: Any) -> bool:
        home.iceberg.drop_table(DAILY)
        home.table("daily")
        return original(pointers, *arguments, **options)

    monkeypatch.setattr(SqlPointers, "delete", late)
    drop(home.catalog, VIEW)
    assert home.load("daily").scan().to_arrow().num_rows == 3


# -- the definition ----------------------------------------------------------------------------------


def test_of_two_changes_of_one_definition_one_is_refused(home: Lake) -> None:
    view = home.catalog.load(VIEW)
    assert home.catalog.replace(view, with_view_properties(view.metadata, {"comment": "one"}))
    assert not home.catalog.replace(view, with_view_properties(view.metadata, {"owner": "two"}))
    properties = home.catalog.load(VIEW).metadata.properties
    assert (properties["comment"], "owner" in properties) == ("one", False)


def test_i09_rows_of_a_definition_that_was_replaced_are_not_published(home: Lake) -> None:
    """The commit is refused itself: no reader sees rows of the earlier definition, not for a moment."""
    plan, outcome = staged(home)

    def redefine() -> None:
        sql = QUERY.replace("sum", "max")
        create(home.catalog, VIEW, Definition(sql, layout="table"), stager=home.stager, replace=True)

    catalog = FaultyCatalog(home.iceberg, after(redefine))
    assert publish(catalog, plan, where(outcome)).outcome == PublishOutcome.REPLAN
    assert home.storage().state is None
    assert home.read() == []


def test_a_definition_s_text_is_bounded(home: Lake) -> None:
    """The version log keeps its newest entries, and the oldest versions go where the text is too long."""
    if home.iceberg.properties.get("type") == "hive":
        pytest.skip("the metastore's own database, Derby, holds no value of more than 32,672 characters")
    home.refresh()
    for number in range(12):
        noise = Random(number).randbytes(20_000).hex()
        sql = (
            f"SELECT region, count(*) AS orders, sum(amount) AS amount FROM lake.sales.orders GROUP BY 1 /* {noise} */"
        )
        create(home.catalog, VIEW, Definition(sql, layout="table"), stager=home.stager, replace=True)
    properties = home.iceberg.load_table(DAILY).properties
    metadata = home.catalog.load(VIEW).metadata
    assert len(properties[DEFINITION_PROPERTY]) <= MAX_DEFINITION_TEXT
    assert metadata.current_version_id == 13
    assert len(metadata.versions) <= 10
    assert len(metadata.version_log) <= MAX_VERSION_LOG


def test_a_definition_that_is_too_long_is_refused_and_nothing_is_left(bare: Lake) -> None:
    bare.table()
    noise = Random(0).randbytes(MAX_DEFINITION_TEXT).hex()
    with pytest.raises(UnsupportedError, match=r"lake\.sales\.daily: its definition takes \d+ characters"):
        bare.view(properties={"comment": noise})
    assert bare.iceberg.list_tables("sales") == [("sales", "orders")]


def _not_json(text: str) -> str:
    return f"!{text}"


def _cut(text: str) -> str:
    return text[: len(text) // 8 * 4]


@pytest.mark.parametrize("damage", [_not_json, _cut])
def test_a_damaged_definition_is_named(home: Lake, damage: Callable[[str], str]) -> None:
    table = home.iceberg.load_table(DAILY)
    with table.transaction() as change:
        change.set_properties({DEFINITION_PROPERTY: damage(table.properties[DEFINITION_PROPERTY])})
    with pytest.raises(InvalidMetadataError, match=rf"view lake\.sales\.daily.*{DEFINITION_PROPERTY}"):
        home.catalog.load(VIEW)
    assert [str(item) for item in home.catalog.list("sales")] == ["lake.sales.daily"]


def test_a_lost_metadata_file_is_an_error_that_names_it_and_nothing_is_changed(
    sqlite_uri: str, warehouse: Path
) -> None:
    """Without another file of the table nothing proves that it is a view, and ``repair`` says what to do."""
    with lake(sqlite_uri, warehouse, layout="table") as home:
        home.table()
        home.view()
        home.refresh()
        lost = local(home.catalog.load(VIEW).metadata_location)
        for path in lost.parent.glob("*.metadata.json"):
            path.unlink()
        before = files(warehouse), home.rows_of_catalog()
        for call in (status, plan_refresh, purge):
            with pytest.raises(NotFoundError, match=re.escape(lost.name)):
                call(home.catalog, VIEW)
        (finding,) = repair(home.catalog, VIEW, act=True).findings
        assert (finding.repairable, local(finding.file)) == (False, lost)
        assert "restore the file; or remove the table" in finding.repair
        assert (files(warehouse), home.rows_of_catalog()) == before
        assert home.catalog.exists(VIEW)


@pytest.mark.parametrize("layout", ["table", "registered"])
@pytest.mark.parametrize("kind", ["branch", "tag"])
def test_a_server_that_drops_branches_or_tags_is_refused_at_create(
    rest_uri: str, warehouse: Path, layout: str, kind: str
) -> None:
    """Nessie's server accepts them, answers with success, and keeps none: no refresh could ever be staged."""

    def drop(_request: object, document: dict[str, Any]) -> None:
        updates = document.get("updates", [])
        document["updates"] = [item for item in updates if item.get("ref-name") == "main" or item.get("type") != kind]

    with changed(rest_uri, request=drop) as address, lake(address, warehouse, layout=layout) as home:
        home.table()
        with pytest.raises(UnsupportedError, match=r"accepted a branch and a tag of table .* did not keep them"):
            home.view()
        assert home.iceberg.list_tables("sales") == [("sales", "orders")]
        assert not home.catalog.list()


# -- maintenance ---------------------------------------------------------------------------------------


def test_maintenance_keeps_what_readers_need_and_a_purge_leaves_nothing(home: Lake, warehouse: Path) -> None:
    for _ in range(3):
        home.append()
        home.refresh()
    create(home.catalog, VIEW, Definition(WIDER, layout="table"), stager=home.stager, replace=True)
    home.refresh()
    for _ in range(2):  # the first run finds what nothing reaches, the second one deletes it
        maintain(home.catalog, VIEW, older_than=timedelta(0))
    assert len(home.read()) == 6
    assert readable(home.catalog, VIEW).snapshot_id == home.storage().table.head
    assert len(home.storage().table.snapshots) == 1, "the definition's tag keeps no snapshot of its own"
    if isinstance(home.iceberg, SqlCatalog):
        folder = Path(home.storage().table.location.removeprefix("file://"))
        purge(home.catalog, VIEW)
        assert [str(path) for path in folder.rglob("*") if path.is_file()] == []


def test_a_refresh_after_the_rows_of_others_takes_them_away(home: Lake) -> None:
    home.refresh()
    table = home.iceberg.load_table(DAILY)
    table.append(table.scan().to_arrow())
    assert status(home.catalog, VIEW).state == State.STALE
    home.append()
    home.refresh()
    assert home.read() == [EAST, NORTH, SOUTH]


def test_a_creation_that_was_sent_twice_leaves_a_folder_that_can_be_maintained(bare: Lake, clock: Clock) -> None:
    """The files of the copy that was not applied are in it."""
    bare.table()
    catalog = FaultyCatalog(bare.iceberg, lose_answer_before(), arrive_late)
    create(catalog, VIEW, Definition(QUERY, layout="table"), stager=bare.stager, effects=clock.effects)
    bare.refresh()
    bare.append()
    bare.refresh()
    maintain(bare.catalog, VIEW, older_than=timedelta(0))
    assert bare.read() == [EAST, NORTH, SOUTH]


def test_a_view_that_was_dropped_and_created_again_can_be_maintained(home: Lake) -> None:
    """The files of the earlier one stay where they are."""
    home.refresh()
    drop(home.catalog, VIEW)
    home.view()
    home.refresh()
    maintain(home.catalog, VIEW, older_than=timedelta(0))
    assert home.read() == [NORTH, SOUTH]
