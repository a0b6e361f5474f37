# SPDX-License-Identifier: Apache-2.0
"""Views of Java's ``JdbcCatalog`` are read, replaced and refreshed by this package, and Java can still load them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_mv.actions import create_view as create
from airflow_mv.common.status import status
from airflow_mv.core.catalog import LoadedView
from airflow_mv.core.define.definition import Definition
from airflow_mv.core.freshness.state import State
from airflow_mv.core.spec.reasons import Code
from airflow_mv.core.spec.view import replace_version, with_view_properties
from airflow_mv.errors import UnsupportedError
from tests.builders import QUERY, Lake, lake
from tests.rest.reference import Document, Reference, ReferenceError, seen_view
from tests.services import jdbc_properties

DAILY: Document = {
    "type": "struct",
    "fields": [
        {"id": 1, "name": "region", "required": False, "type": "string"},
        {"id": 2, "name": "orders", "required": False, "type": "long"},
        {"id": 3, "name": "amount", "required": False, "type": "long"},
    ],
}


class JavaViews:
    """The views of Java's catalog over the tables of a lake."""

    def __init__(self, reference: Reference, home: Lake) -> None:
        self._reference = reference
        self._home = home

    def create(self, name: str, sql: str | dict[str, str], **properties: str) -> LoadedView:
        return self._write("create-view", name, sql, properties)

    def replace(self, name: str, sql: str | dict[str, str], **properties: str) -> LoadedView:
        return self._write("replace-view", name, sql, properties)

    def set(self, name: str, **properties: str) -> LoadedView:
        self._reference.ask("set-view-properties", namespace="sales", name=name, properties=properties)
        return self.same(name)

    def same(self, name: str) -> LoadedView:
        """Load a view with both implementations, which must agree."""
        java = self._reference.ask("load-view", namespace="sales", name=name)
        ours = self._home.catalog.load(f"sales.{name}")
        assert java["metadata-location"] == ours.metadata_location
        assert seen_view(java["metadata"]) == seen_view(ours.metadata.document())
        return ours

    def _write(self, order: str, name: str, sql: str | dict[str, str], properties: dict[str, str]) -> LoadedView:
        texts = {"spark": sql} if isinstance(sql, str) else sql
        self._reference.ask(order, namespace="sales", name=name, schema=DAILY, sql=texts, properties=properties)
        return self.same(name)


@pytest.fixture(params=["sqlite_uri", pytest.param("postgres_uri", marks=pytest.mark.postgres)])
def home(request: pytest.FixtureRequest, warehouse: Path) -> Iterator[Lake]:
    with lake(str(request.getfixturevalue(request.param)), warehouse) as found:
        found.table()
        yield found


@pytest.fixture
def java(reference: Reference, home: Lake, warehouse: Path) -> JavaViews:
    reference.ask("open", properties=jdbc_properties(home.catalog.properties["uri"], warehouse))
    return JavaViews(reference, home)


def replaced(home: Lake, name: str, sql: str | dict[str, str], **changes: Any) -> bool:
    """Replace a view with this package's writer and swap."""
    view = home.catalog.load(f"sales.{name}")
    definition: dict[str, Any] = {
        "schema": DAILY,
        "sql": sql,
        "default_catalog": None,
        "default_namespace": ("sales",),
        "summary": {"engine-name": "tests"},
        "now_ms": time.time_ns() // 1_000_000,
    }
    return home.catalog.replace(view, replace_version(view.metadata, **definition | changes))


def test_java_and_this_package_change_one_view_in_turn(java: JavaViews, home: Lake) -> None:
    """Each replaces what the other wrote, and no version, property or uuid is lost."""
    first = java.create("v", "SELECT 0", comment="été ☃")
    for number in range(1, 7, 2):
        assert replaced(home, "v", f"SELECT {number}")
        java.same("v")
        java.set("v", a=str(number))
        last = java.replace("v", f"SELECT {number + 1}", b=str(number))
    assert last.metadata.view_uuid == first.metadata.view_uuid
    assert [item.version_id for item in last.metadata.versions] == list(range(1, 8))
    assert len(last.metadata.schemas) == 1
    assert last.metadata.properties == {"comment": "été ☃", "a": "5", "b": "5"}
    assert last.metadata.sql(view="v") == "SELECT 6"


def test_the_newest_versions_are_kept_by_both_implementations(java: JavaViews, home: Lake) -> None:
    """Java lists the retained versions in another order."""
    java.create("v", "SELECT 0", **{"version.history.num-entries": "3"})
    for number in range(1, 9):
        if number % 4 < 2:
            java.replace("v", f"SELECT {number}")
        else:
            assert replaced(home, "v", f"SELECT {number}")
        kept = sorted(item.version_id for item in java.same("v").metadata.versions)
        assert kept == list(range(max(1, number - 1), number + 2))


def test_a_stale_base_is_refused_in_both_implementations(java: JavaViews, home: Lake) -> None:
    """The swap is the same statement: one of two writers on one base wins, and the loser's file is deleted."""
    java.create("v", "SELECT 0")
    stale = home.catalog.load("sales.v")
    java.replace("v", "SELECT 1")
    assert not home.catalog.replace(stale, with_view_properties(stale.metadata, {"a": "1"}))
    assert java.same("v").metadata.sql(view="v") == "SELECT 1"


def test_a_text_in_another_dialect_is_dropped_only_if_the_view_allows_it(java: JavaViews, home: Lake) -> None:
    """Java refuses the same replacement for the same reason."""
    java.create("v", {"spark": "SELECT 1", "trino": "SELECT 2"})
    with pytest.raises(ReferenceError, match="loss of view dialects"):
        java.replace("v", "SELECT 3")
    with pytest.raises(UnsupportedError, match="trino"):
        replaced(home, "v", "SELECT 3")
    assert replaced(home, "v", {"spark": "SELECT 3", "trino": "SELECT 4"})
    java.set("v", **{"replace.drop-dialect.allowed": "true"})
    assert replaced(home, "v", "SELECT 5")
    assert java.same("v").metadata.current_version.texts == {"spark": "SELECT 5"}


def test_a_plain_view_of_java_can_become_materialized_and_is_still_a_view_in_java(java: JavaViews, home: Lake) -> None:
    """Java's commits preserve the property, so the rows stay fresh, and a new query makes them stale."""
    java.create("daily", QUERY)
    create(home.catalog, "sales.daily", Definition(None), stager=home.stager)
    assert home.refresh().outcome == "refreshed"
    assert java.same("daily").metadata.sql(view="v") == QUERY
    java.set("daily", comment="by Java")
    assert status(home.catalog, "sales.daily").state == State.FRESH
    java.replace("daily", f"{QUERY} HAVING sum(amount) > 16")
    assert home.refresh().reasons[0].code == Code.DEFINITION_CHANGED
    assert java.same("daily").materialized.storage_table_location == home.storage().location
    assert [row["region"] for row in home.read()] == ["south"]
