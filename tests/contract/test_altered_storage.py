# SPDX-License-Identifier: Apache-2.0
"""Other programs change the columns, the partitioning or the sort order of a storage table in the catalog."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pyiceberg.table import Table
from pyiceberg.table.sorting import SortField, SortOrder
from pyiceberg.table.update import AddSortOrderUpdate, SetDefaultSortOrderUpdate
from pyiceberg.transforms import BucketTransform, IdentityTransform
from pyiceberg.types import IntegerType, LongType, StringType

from airflow_mv.actions import create_view as create
from airflow_mv.common.status import status
from airflow_mv.core.define.definition import Definition
from airflow_mv.core.freshness.state import State
from airflow_mv.core.spec.reasons import Code
from airflow_mv.extras.compact import compact
from airflow_mv.extras.history.rollback import rollback, rollback_version
from airflow_mv.extras.maintenance.repair import repair
from airflow_mv.extras.maintenance.verify import verify_files
from tests.branches import replace_files
from tests.builders import QUERY, Lake
from tests.contract.support import EAST, NORTH, SOUTH, VIEW
from tests.homes import in_homes

ROWS = [NORTH, SOUTH]
WITH_ROW_IN_CATALOG = in_homes(lambda name: not name.endswith("-pointed"))


def stored(home: Lake) -> Table:
    name = home.storage().name
    assert name is not None
    return home.iceberg.load_table((*name.namespace, name.name))


def dropped(table: Table) -> None:
    with table.update_schema(allow_incompatible_changes=True) as update:
        update.delete_column("amount")


def dropped_and_added(table: Table) -> None:
    dropped(table)
    with table.update_schema() as update:
        update.add_column("amount", LongType())


def added(table: Table) -> None:
    with table.update_schema() as update:
        update.add_column("note", StringType())


def renamed(table: Table) -> None:
    with table.update_schema() as update:
        update.rename_column("amount", "total")


def swapped(table: Table) -> None:
    for old, new in (("amount", "x"), ("orders", "amount"), ("x", "orders")):
        with table.update_schema() as update:
            update.rename_column(old, new)


def reordered(table: Table) -> None:
    with table.update_schema() as update:
        update.move_first("amount")


def required(table: Table) -> None:
    with table.update_schema(allow_incompatible_changes=True) as update:
        update.update_column("amount", required=True)


COLUMNS: dict[Callable[[Table], None], str] = {
    dropped: "the column amount was dropped",
    dropped_and_added: "the column amount was dropped, and another one of that name was added",
    added: "the column note was added",
    renamed: "the column amount was renamed to total",
    swapped: "the column orders was renamed to amount",
    reordered: "the order of the columns was changed",
    required: "the column amount was made NOT NULL",
}


def partitioned(table: Table) -> None:
    with table.update_spec() as update:
        update.add_field("region", BucketTransform(4), "region_bucket")


def sorted_by_region(table: Table) -> None:
    field = table.schema().find_field("region").field_id
    order = SortOrder(SortField(field, IdentityTransform()), order_id=1)
    table.catalog.commit_table(
        table, (), (AddSortOrderUpdate(sort_order=order), SetDefaultSortOrderUpdate(sort_order_id=-1))
    )


SETTINGS: dict[Callable[[Table], None], str] = {
    partitioned: "the partitioning was changed",
    sorted_by_region: "the sort order was changed",
}


def altered(home: Lake) -> list[str]:
    """What status says of the storage table."""
    return [reason.message for reason in status(home.catalog, VIEW).reasons if reason.code == Code.STORAGE_ALTERED]


@pytest.fixture
def home(every_home: Lake) -> Lake:
    every_home.table()
    every_home.view()
    every_home.refresh()
    return every_home


@WITH_ROW_IN_CATALOG
@pytest.mark.parametrize("change", COLUMNS)
def test_i31_changed_columns_of_the_stored_table_are_found_and_put_back_without_a_recompute(
    home: Lake, change: Callable[[Table], None], caplog: pytest.LogCaptureFixture
) -> None:
    before = stored(home)
    change(stored(home))
    assert status(home.catalog, VIEW).state == State.STALE
    assert COLUMNS[change] in altered(home)[0]
    assert not verify_files(home.catalog, VIEW).intact
    assert not repair(home.catalog, VIEW).ok
    jobs = len(home.stager.refreshes)
    result = home.refresh()
    assert (result.mode, len(home.stager.refreshes)) == ("noop", jobs)
    assert "had changed its storage table; restored: " in caplog.text
    assert stored(home).schema() == before.schema()
    assert home.read() == ROWS
    assert status(home.catalog, VIEW).state == State.FRESH
    assert verify_files(home.catalog, VIEW).intact
    assert repair(home.catalog, VIEW).ok


@WITH_ROW_IN_CATALOG
def test_i31_a_column_of_another_type_is_found_and_put_back(every_home: Lake) -> None:
    """Of the base table's types here only an integer can be widened."""
    home = every_home
    with home.table().update_schema() as update:
        update.add_column("small", IntegerType())
    home.append()
    home.view(sql="SELECT id, small FROM lake.sales.orders")
    home.refresh()
    before = stored(home).schema()
    with stored(home).update_schema() as update:
        update.update_column("small", LongType())
    assert status(home.catalog, VIEW).state == State.STALE
    assert "the type of the column small was changed" in altered(home)[0]
    assert not verify_files(home.catalog, VIEW).intact
    assert home.refresh().mode == "noop"
    assert stored(home).schema() == before
    assert status(home.catalog, VIEW).state == State.FRESH


@WITH_ROW_IN_CATALOG
@pytest.mark.parametrize("change", COLUMNS)
def test_a_refresh_after_a_change_of_columns_stores_the_view_s_rows(
    home: Lake, change: Callable[[Table], None]
) -> None:
    home.append()
    change(stored(home))
    home.refresh()
    assert home.read() == [EAST, *ROWS]
    assert status(home.catalog, VIEW).state == State.FRESH


@WITH_ROW_IN_CATALOG
@pytest.mark.parametrize("change", SETTINGS)
def test_i31_a_changed_partitioning_or_sort_order_is_found_and_put_back(
    home: Lake, change: Callable[[Table], None]
) -> None:
    before = stored(home).metadata
    change(stored(home))
    assert status(home.catalog, VIEW).state == State.FRESH, "the rows are the view's"
    assert SETTINGS[change] in altered(home)[0]
    home.refresh()
    after = stored(home).metadata
    assert (after.default_spec_id, after.default_sort_order_id) == (
        before.default_spec_id,
        before.default_sort_order_id,
    )
    assert not altered(home)


@WITH_ROW_IN_CATALOG
def test_repair_puts_changed_columns_back_too(home: Lake) -> None:
    dropped_and_added(stored(home))
    assert repair(home.catalog, VIEW, act=True).done
    assert home.read() == ROWS


@WITH_ROW_IN_CATALOG
def test_a_foreign_compaction_with_other_columns_loses_values_and_the_view_is_recomputed(home: Lake) -> None:
    dropped_and_added(stored(home))
    replace_files(stored(home), "main")
    assert [row["amount"] for row in home.read()] == [None, None]
    assert "another writer has changed" in compact(home.catalog, VIEW, stager=home.stager).why
    assert Code.STORAGE_CHANGED in {reason.code for reason in status(home.catalog, VIEW).reasons}
    home.refresh()
    assert home.read() == ROWS
    assert status(home.catalog, VIEW).state == State.FRESH


def test_a_rollback_to_rows_with_other_columns_makes_their_columns_current(every_home: Lake) -> None:
    """Engines read by the table's current schema, which may be that of another definition."""
    home = every_home
    home.table()
    home.view(time_travel=True)
    first = home.refresh().refresh_id
    assert first is not None
    wanted = Definition(QUERY.replace(", sum(amount) AS amount", ""), layout=home.layout)
    create(home.catalog, VIEW, wanted, stager=home.stager, replace=True)
    home.refresh()
    rollback_version(home.catalog, VIEW, 1)
    rollback(home.catalog, VIEW, first)
    assert home.read() == ROWS
    assert status(home.catalog, VIEW).state == State.FRESH
