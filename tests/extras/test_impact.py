# SPDX-License-Identifier: Apache-2.0
"""What `impact` says before a change of a table is what `status` says after it."""

from __future__ import annotations

import pytest
from pyiceberg.types import LongType

from airflow_mv.common.status import status
from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.errors import NotFoundError, UnsupportedError
from airflow_mv.extras.impact import ColumnChange, impact
from tests.builders import QUERY, Lake
from tests.cli.support import call
from tests.engine.support import as_arrow

ORDERS = "lake.sales.orders"
VIEWS = {
    "daily": QUERY,
    "ids": "SELECT id FROM lake.sales.orders",
    "filtered": "SELECT id FROM lake.sales.orders WHERE amount > 3",
    "everything": "SELECT * FROM lake.sales.orders",
    "aliased": "SELECT o.id, o.amount AS region FROM lake.sales.orders o",
}
CHANGES = (
    ColumnChange("drop", "amount"),
    ColumnChange("drop", "region"),
    ColumnChange("rename", "amount", "total"),
    ColumnChange("rename", "ID", "key"),
    ColumnChange("retype", "small", "bigint"),
)


@pytest.fixture
def home(configured: Lake) -> Lake:
    configured.table()
    for name, query in VIEWS.items():
        configured.view(name, query)
        configured.refresh(f"lake.sales.{name}")
    return configured


def make(home: Lake, change: ColumnChange) -> None:
    """Change the table."""
    with home.load().update_schema(allow_incompatible_changes=True, case_sensitive=False) as update:
        if change.kind == "drop":
            update.delete_column(change.column)
        elif change.kind == "rename":
            update.rename_column(change.column, change.to)
        else:
            update.update_column(change.column, LongType())


@pytest.mark.parametrize("policy", ["ignore-unused", "fail"])
@pytest.mark.parametrize("change", CHANGES[:4], ids=str)
def test_views_become_invalid_as_foretold(home: Lake, change: ColumnChange, policy: str) -> None:
    home.view("strict", VIEWS["ids"], properties={"airflow-mv.on-schema-change": policy})
    home.refresh("lake.sales.strict")
    foretold = {item.view.name: item.effect for item in impact(home.catalog, ORDERS, change)}
    assert foretold.keys() == {*VIEWS, "strict"}
    make(home, change)
    found = {name: status(home.catalog, f"lake.sales.{name}").state for name in foretold}
    assert {name for name, effect in foretold.items() if effect == "invalid"} == {
        name for name, state in found.items() if state == "invalid"
    }


def test_a_wider_type_concerns_the_views_that_read_the_column(home: Lake) -> None:
    home.iceberg.create_table("sales.few", schema=as_arrow("id int, small int").schema).append(
        as_arrow("id int, small int", "(1, 2)")
    )
    for name, query in (("narrow", "SELECT small FROM lake.sales.few"), ("beside", "SELECT id FROM lake.sales.few")):
        home.view(name, query)
        home.refresh(f"lake.sales.{name}")
    foretold = {item.view.name: item.effect for item in impact(home.catalog, "lake.sales.few", CHANGES[4])}
    with home.load("few").update_schema() as update:
        update.update_column("small", LongType())
    assert foretold == {"narrow": "invalid", "beside": "unaffected"}
    assert {name: status(home.catalog, f"lake.sales.{name}").state == "invalid" for name in foretold} == {
        "narrow": True,
        "beside": False,
    }


def test_a_view_that_reads_one_of_them_is_named_and_a_rebuild_is_none(home: Lake) -> None:
    home.view("top", "SELECT region FROM lake.sales.daily", properties={"owner": "sales"})
    home.view("tip", "SELECT region FROM lake.sales.top")
    home.view("both", "SELECT t.region, o.id FROM lake.sales.top t JOIN lake.sales.orders o ON t.region = o.region")
    home.view("free", VIEWS["daily"], properties={"airflow-mv.on-schema-change": "rebuild", "owner": "ann"})
    found = {item.view.name: item for item in impact(home.catalog, ORDERS, CHANGES[0])}
    assert (found["top"].effect, found["top"].why) == ("reads-invalid", "it reads lake.sales.daily")
    assert (found["both"].effect, found["both"].why) == ("reads-invalid", "it reads lake.sales.top")
    assert found["top"].owner == "sales"
    assert (found["tip"].effect, found["tip"].why) == ("reads-invalid", "it reads lake.sales.top")
    assert (found["free"].effect, found["free"].owner) == ("rebuilt", "ann")


def test_what_cannot_be_changed_is_refused(home: Lake) -> None:
    with pytest.raises(UnsupportedError, match="does not change the type of amount from bigint to int in place"):
        impact(home.catalog, ORDERS, ColumnChange("retype", "amount", "int"))
    with pytest.raises(NotFoundError, match=r"has no column 'amont'; did you mean 'amount'\?"):
        impact(home.catalog, ORDERS, ColumnChange("drop", "amont"))
    with pytest.raises(NotFoundError, match="there is no table"):
        impact(home.catalog, Identifier.parse("lake.sales.nope"), CHANGES[0])


def test_the_command_ends_with_three_if_a_view_becomes_invalid(home: Lake) -> None:
    shown = call("impact", ORDERS, "--drop", "amount")
    assert shown.code == 3
    assert "  invalid       lake.sales.daily: it reads amount\n" in shown.stdout
    assert "  unaffected    lake.sales.ids: it does not read amount\n" in shown.stdout
    assert call("impact", ORDERS, "--rename", "amount", "x", "--drop", "id").code == 2
    home.table("alone")
    assert call("impact", "lake.sales.alone", "--drop", "id").stdout.endswith("no view of the catalog reads it\n")
