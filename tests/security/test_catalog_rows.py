# SPDX-License-Identifier: Apache-2.0
"""I17: a swap changes one row of one view. Each hostile row ends in one clear error, or is accepted."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from sqlalchemy import create_engine, text

from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.errors import AlreadyExistsError, ViewNotFoundError
from tests.builders import Lake, lake
from tests.cli.support import call
from tests.security.conftest import VIEW, Shop, error_of, refused_or_works

DATABASES = [
    pytest.param("sqlite_uri", id="sqlite"),
    pytest.param("postgres_uri", id="postgres", marks=pytest.mark.postgres),
]


@pytest.fixture(params=DATABASES)
def twins(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Lake, Lake]]:
    """Two catalogs in one database, each with the same table and views, and names that differ only in case."""
    uri = str(request.getfixturevalue(request.param))
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    with lake(uri, tmp_path / "one") as ours, lake(uri, tmp_path / "two", name="other") as theirs:
        for found in (ours, theirs):
            for namespace in ("Sales", "sales_"):
                found.iceberg.create_namespace(namespace)
            found.table()
        for name in ("sales.daily", "sales.Daily", "sales.dail_", "Sales.daily", "sales_.daily"):
            ours.view(name.partition(".")[2]) if name.startswith("sales.") else _view(ours, name)
        theirs.iceberg.create_table("sales.daily", schema=theirs.load().schema())
        yield ours, theirs


def _view(found: Lake, name: str) -> None:
    from airflow_mv.actions import create_view as create
    from airflow_mv.core.define.definition import Definition
    from tests.builders import QUERY

    create(found.catalog, name, Definition(QUERY), stager=found.stager)


def rows(found: Lake) -> dict[tuple[Any, ...], tuple[Any, ...]]:
    """Every row of the table with all columns, by catalog, namespace and name."""
    with found.iceberg.engine.connect() as connection:
        query = text("SELECT catalog_name, table_namespace, table_name, * FROM iceberg_tables")
        return {tuple(row[:3]): tuple(row) for row in connection.execute(query)}


def test_i17_a_refresh_changes_one_row_and_only_its_two_pointers(twins: tuple[Lake, Lake]) -> None:
    """Other catalogs, tables, names that differ in case and names with SQL's wildcards are not changed."""
    ours, _ = twins
    before = rows(ours)
    assert len(before) == 8
    for _ in range(2):
        ours.refresh()
        ours.append()
    changed = {key: row for key, row in rows(ours).items() if row != before[key] and key[2] != "orders"}
    assert list(changed) == [("lake", "sales", "daily")]
    (row,) = changed.values()
    old = before["lake", "sales", "daily"]
    assert [index for index in range(len(row)) if row[index] != old[index]] == [6, 7]
    assert rows(ours).keys() == before.keys()


def test_i17_a_swap_never_matches_a_table_or_another_catalog_s_row(twins: tuple[Lake, Lake]) -> None:
    """A name that is a table here, or a view in the other catalog only, is not changed for any base."""
    ours, theirs = twins
    before = rows(ours)
    table = theirs.iceberg.load_table("sales.daily").metadata_location
    assert not theirs.catalog.swap(Identifier("other", ("sales",), "daily"), table, "file:///x/metadata/1.json")
    view = ours.catalog.load(VIEW).metadata_location
    assert not theirs.catalog.swap(Identifier("other", ("Sales",), "daily"), view, "file:///x/metadata/1.json")
    assert not ours.catalog.swap(Identifier("lake", ("sales",), "DAILY"), view, "file:///x/metadata/1.json")
    assert rows(ours) == before


def test_i17_dropping_and_creating_change_one_row(twins: tuple[Lake, Lake]) -> None:
    """These are the other two statements of this package."""
    ours, theirs = twins
    before = rows(ours)
    with pytest.raises(ViewNotFoundError):
        theirs.catalog.drop("other.sales.daily")
    with pytest.raises(AlreadyExistsError):
        theirs.catalog.create("other.sales.daily", ours.catalog.load(VIEW).metadata)
    assert rows(ours) == before
    loaded = ours.catalog.load(VIEW)
    ours.catalog.drop(VIEW)
    assert before.keys() - rows(ours).keys() == {("lake", "sales", "daily")}
    ours.catalog.create(VIEW, loaded.metadata)
    after = rows(ours)
    assert [key for key in after if after[key] != before[key]] == [("lake", "sales", "daily")]


def test_i17_a_database_with_the_old_schema_is_refused_and_not_changed(
    shop: Shop, tmp_path: Path, monkeypatch: Any
) -> None:
    """V0 has no ``iceberg_type``, so a view cannot be distinguished from a table."""
    engine = create_engine(f"sqlite:///{tmp_path}/old.db")
    ddl = (
        "CREATE TABLE iceberg_tables (catalog_name VARCHAR(255), table_namespace VARCHAR(255), "
        "table_name VARCHAR(255), metadata_location VARCHAR(1000), previous_metadata_location VARCHAR(1000))"
    )
    with engine.begin() as connection:
        connection.execute(text(ddl))
        connection.execute(text("INSERT INTO iceberg_tables VALUES ('lake', 'sales', 'daily', 'file:///x', NULL)"))
    old = SqlCatalog(
        "lake", uri=f"sqlite:///{tmp_path}/old.db", warehouse=f"file://{tmp_path}", init_catalog_tables="false"
    )
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__URI", f"sqlite:///{tmp_path}/old.db")
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__INIT_CATALOG_TABLES", "false")
    import pyiceberg.catalog
    from pyiceberg.utils.config import Config

    monkeypatch.setattr(pyiceberg.catalog, "_ENV_CONFIG", Config())
    for command in ("status", "refresh", "read"):
        assert "old schema version V0, which has no views" in error_of(call(command, VIEW, "--json"))
    with engine.connect() as connection:
        assert connection.execute(text("SELECT * FROM iceberg_tables")).fetchall() == [
            ("lake", "sales", "daily", "file:///x", None)
        ]
    engine.dispose()
    old.engine.dispose()


# ------------------------------------------------------------------------------------ hostile rows

LOCATIONS: dict[str, tuple[object, str]] = {
    "NULL": (None, "no view|is not a location"),
    "empty": ("", "is not a location"),
    "over 1,000 characters": ("file:///" + "x" * 2000, "has 2008 characters"),
    "a name that is too long": ("file:///" + "x" * 1000, "did not respond|does not exist"),
    "non-existent": ("file:///nowhere/metadata/1.metadata.json", "does not exist"),
    "a folder": ("file:///tmp", "does not exist"),
    "a device": ("file:///dev/zero", "does not exist|not valid"),
    "http": ("http://169.254.169.254/latest/meta-data", "scheme 'http' is not supported"),
    "https": ("https://127.0.0.1:1/x", "scheme 'https' is not supported"),
    "ftp": ("ftp://127.0.0.1/x", "scheme 'ftp' is not supported"),
    "a scheme of pyiceberg's own": ("hf://datasets/x", "scheme 'hf' is not supported"),
    "a password file": ("file:///etc/passwd", "not valid JSON"),
    "a file of another host": ("file://etc/passwd", "names a host"),
    "parent folders": ("s3://b/../c", "leads out of its folder"),
    "parent folders, escaped": ("s3://b/%2e%2E/c", "leads out of its folder"),
    "relative": ("etc/passwd", "not an absolute location"),
    "trailing spaces": ("file:///x  ", "is not a location"),
    "a line break": ("file:///x\ny", "is not a location"),
    "another catalog's database": ("jdbc:sqlite:/x", "scheme 'jdbc' is not supported"),
    "half a URL": ("http://[", "is not a location"),
}


@pytest.mark.parametrize("way", LOCATIONS)
def test_i19_a_row_with_a_foreign_location_is_refused_with_its_name(shop: Shop, way: str) -> None:
    """Nothing is fetched, and no content of a file is shown."""
    location, message = LOCATIONS[way]
    shop.point(location)
    errors = refused_or_works("status", "refresh", "show")
    assert len(errors) == 3
    for error in errors:
        assert VIEW in error
        assert re.search(message, error), error
        assert "root:" not in error
    shop.repair()
    assert refused_or_works("status") == []


@pytest.mark.parametrize("way", [name for name in LOCATIONS if name != "NULL"])
def test_i19_a_base_table_s_row_with_a_foreign_location_is_refused_with_its_name(shop: Shop, way: str) -> None:
    """Base tables have many writers, so their rows may be hostile, too."""
    location, message = LOCATIONS[way]
    shop.point(location, "orders")
    errors = refused_or_works("plan", "refresh")
    assert len(errors) == 2
    for error in errors:
        assert "sales.orders" in error
        assert re.search(f"{message}|not valid table metadata|does not exist", error), error
        assert "root:" not in error


@pytest.mark.parametrize("kind", [None, "TABLE", "view", "", "MATERIALIZED VIEW"])
def test_i17_a_row_without_the_type_view_is_not_a_view(shop: Shop, kind: str | None) -> None:
    """Also if the type is missing, as older writers leave it for tables."""
    shop.point(shop.view_file, iceberg_type=kind)
    before = rows(shop.lake)
    for error in refused_or_works("status", "refresh", "read"):
        assert "sales.daily" in error
        assert "this is a view's metadata file, not a table's" in error
    assert rows(shop.lake) == before
    assert shop.lake.catalog.list() == []


# ------------------------------------------------------------------------------------------- names

NAMES = [
    '"', "`", "'", "a;--b", "a.b", "%2e", "..", ".", "/", "\\", "a/../b", "\u202edaily", "e\u0301", "é", "DAILY",
    "select", "$snapshots", "daily$snapshots", "__airflow__", "x" * 128, "x" * 255, "{{ 7*7 }}", "${env:HOME}", "%s",
    "名前😀", " ",
]  # fmt: skip
REFUSED_NAMES = ["", "x" * 256, "\x1f", "\0", "a\nb", "\x1b[31m", "\ud800"]


def test_every_odd_name_of_a_view_stays_below_the_warehouse_and_is_a_separate_view(shop: Shop) -> None:
    """Created, refreshed, listed and read; no two of them are the same view, whatever their case or Unicode form."""
    views = [Identifier("lake", ("sales",), name) for name in NAMES]
    for view in views:
        _view(shop.lake, str(view))
        shop.lake.refresh(view)
    assert {view.name for view in shop.lake.catalog.list("sales")} == {*NAMES, "daily"}
    locations = {shop.lake.catalog.load(view).metadata.location for view in views}
    assert len(locations) == len(NAMES)
    base = f"file://{shop.folder}/warehouse/sales/"
    assert all(location.startswith(base) and "/" not in location.removeprefix(base) for location in locations)
    for view in views:
        (document,) = call("status", str(view), "--json").json
        assert (document["view"], document["state"]) == (str(view), "fresh")
        assert len(call("read", str(view), "--json").json["rows"]) == 2


@pytest.mark.parametrize("name", [item for item in NAMES if "." not in item and item.strip()])
def test_every_odd_namespace_keeps_a_view_below_the_warehouse(shop: Shop, name: str) -> None:
    """pyiceberg itself would write a table of the namespace ``..`` outside of it."""
    shop.lake.iceberg.create_namespace((name,))
    view = Identifier("lake", (name,), "v")
    _view(shop.lake, str(view))
    shop.lake.refresh(view)
    location = Path(shop.lake.catalog.load(view).metadata_location.removeprefix("file://"))
    assert (shop.folder / "warehouse").resolve() in location.resolve().parents
    assert error_of(call("status", f"lake.`{name.replace('`', '``')}`.w", "--json"))


@pytest.mark.parametrize("name", REFUSED_NAMES)
@pytest.mark.parametrize("command", ["status", "refresh", "drop"])
def test_invalid_names_are_refused_with_the_exit_code_for_wrong_usage(shop: Shop, command: str, name: str) -> None:
    """Empty, too long, control characters, half a surrogate pair."""
    before = rows(shop.lake)
    ended = call(command, f"lake.sales.`{name}`", "--json", *(["--yes"] if command == "drop" else []))
    assert ended.code == 2
    error_of(ended)
    assert rows(shop.lake) == before


def test_a_namespace_with_a_dot_is_refused_if_it_would_mean_another_one(shop: Shop) -> None:
    """A SQL catalog joins the parts with dots."""
    error = error_of(call("status", "lake.`a.b`.v", "--json"))
    assert "contains a dot" in error
