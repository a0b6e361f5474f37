# SPDX-License-Identifier: Apache-2.0
"""The catalog of views in each database: create, load, list, swap, replace, drop, and hostile rows."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from sqlalchemy import create_engine, text

from airflow_mv.core.catalog import MaterializedViewCatalog
from airflow_mv.core.publish import PublishOutcome, publish
from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.core.spec.view import ViewMetadata, new_view, with_view_properties
from airflow_mv.errors import (
    AlreadyExistsError,
    CatalogUnavailableError,
    ConfigurationError,
    InvalidIdentifierError,
    InvalidMetadataError,
    MetadataFileNotFoundError,
    NotFoundError,
    NotMaterializedError,
    ViewNotFoundError,
)
from tests.builders import Lake, exists, lake
from tests.faults import Clock

CATALOGS = {"sqlite": "sqlite_uri", "postgres": "postgres_uri"}


@pytest.fixture(params=[pytest.param(name, marks=[pytest.mark.postgres] * (name == "postgres")) for name in CATALOGS])
def uri(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue(CATALOGS[request.param]))


@pytest.fixture
def home(uri: str, warehouse: Path) -> Iterator[Lake]:
    with lake(uri, warehouse) as found:
        yield found


def metadata(home: Lake, name: str = "v", namespace: tuple[str, ...] = ("sales",), **properties: str) -> ViewMetadata:
    view = Identifier("lake", namespace, name)
    return new_view(
        view_uuid=f"uuid-of-{name}",
        location=home.catalog.folders.new(view),
        schema={"type": "struct", "fields": [{"id": 1, "name": "n", "required": False, "type": "long"}]},
        sql="SELECT 1 AS n",
        default_catalog="lake",
        default_namespace=namespace,
        properties=properties,
        summary={},
        now_ms=1,
    )


def point(home: Lake, location: object, name: str = "v") -> None:
    """Set a row's pointer directly in the database."""
    with home.iceberg.engine.begin() as connection:
        connection.execute(
            text("UPDATE iceberg_tables SET metadata_location = :location WHERE table_name = :name"),
            {"location": location, "name": name},
        )


# -- create, load, list, exists ----------------------------------------------------------------


def test_a_created_view_is_loaded_as_it_was_written(home: Lake) -> None:
    created = home.catalog.create("sales.v", metadata(home, comment="été ☃"))
    loaded = home.catalog.load("lake.sales.v")
    assert loaded == created
    assert loaded.metadata.properties == {"comment": "été ☃"}
    assert home.catalog.exists("sales.v")
    assert not home.catalog.exists("sales.w")


def test_views_are_listed_by_namespace_and_tables_are_not(home: Lake) -> None:
    home.iceberg.create_namespace("sales.eu")
    home.table("orders")
    for name, namespace in (("b", ("sales",)), ("a", ("sales",)), ("c", ("sales", "eu"))):
        home.catalog.create(Identifier("lake", namespace, name), metadata(home, name, namespace))
    assert [str(view) for view in home.catalog.list()] == ["lake.sales.a", "lake.sales.b", "lake.sales.eu.c"]
    assert [view.name for view in home.catalog.list("sales")] == ["a", "b"]
    assert [view.name for view in home.catalog.list("sales.eu")] == ["c"]
    assert [view.name for view in home.catalog.list(("sales", "eu"))] == ["c"]
    home.iceberg.create_namespace("empty")
    assert home.catalog.list("empty") == []
    with pytest.raises(NotFoundError, match="nowhere"):
        home.catalog.list("nowhere")


def test_pyiceberg_does_not_take_our_views_for_tables(home: Lake) -> None:
    home.table("orders")
    home.catalog.create("sales.v", metadata(home))
    assert home.iceberg.list_tables("sales") == [("sales", "orders")]
    assert not home.iceberg.table_exists("sales.v")


def test_a_second_view_with_the_same_name_is_refused_and_leaves_no_file(home: Lake, warehouse: Path) -> None:
    first = home.catalog.create("sales.v", metadata(home))
    before = sorted(warehouse.rglob("*.json"))
    with pytest.raises(AlreadyExistsError, match=r"a view lake\.sales\.v exists"):
        home.catalog.create("sales.v", metadata(home))
    assert home.catalog.load("sales.v") == first
    assert sorted(warehouse.rglob("*.json")) == before


def test_a_view_with_a_table_s_name_is_refused_and_the_table_is_kept(home: Lake) -> None:
    home.table("orders")
    before = home.rows_of_catalog()
    with pytest.raises(AlreadyExistsError, match=r"a table lake\.sales\.orders exists"):
        home.catalog.create("sales.orders", metadata(home, "orders"))
    assert home.rows_of_catalog() == before


@pytest.mark.parametrize("call", ["load", "drop"])
def test_a_missing_view_or_a_table_is_not_found(home: Lake, call: str) -> None:
    home.table("orders")
    for name in ("sales.nothing", "nowhere.v", "sales.orders"):
        with pytest.raises(ViewNotFoundError, match=name.replace(".", r"\.")):
            getattr(home.catalog, call)(name)
    assert home.load().current_snapshot() is not None


def test_a_view_in_a_namespace_that_does_not_exist_is_refused(home: Lake) -> None:
    with pytest.raises(NotFoundError, match="namespace 'nowhere'"):
        metadata(home, "v", ("nowhere",))


def test_a_plain_view_is_loaded_and_reported_as_not_materialized(home: Lake) -> None:
    loaded = home.catalog.create("sales.v", metadata(home))
    assert loaded.settings is None
    with pytest.raises(NotMaterializedError, match=r"lake\.sales\.v"):
        home.catalog.load_storage(loaded)


# -- swap, replace, drop -----------------------------------------------------------------------


def surroundings(home: Lake) -> None:
    """Rows that no swap of ``lake.sales.v`` may touch: other views, tables, namespaces and catalogs."""
    home.iceberg.create_namespace("other")
    home.table("orders")
    home.catalog.create("sales.w", metadata(home, "w"))
    home.catalog.create(Identifier("lake", ("other",), "v"), metadata(home, "v", ("other",)))
    twin = SqlCatalog("twin", uri=str(home.iceberg.properties["uri"]), warehouse=home.iceberg.properties["warehouse"])
    twin.create_namespace("sales")
    MaterializedViewCatalog(twin).create(Identifier("twin", ("sales",), "v"), metadata(home))
    twin.engine.dispose()


def test_a_swap_changes_exactly_one_row(home: Lake) -> None:
    surroundings(home)
    view = home.catalog.create("sales.v", metadata(home))
    before = home.rows_of_catalog()
    new = home.catalog.write_metadata(with_view_properties(view.metadata, {"a": "1"}), number=1)
    assert home.catalog.swap(view.identifier, view.metadata_location, new)
    (removed,) = set(before) - set(home.rows_of_catalog())
    (added,) = set(home.rows_of_catalog()) - set(before)
    assert removed[:3] == added[:3] == ("lake", "sales", "v")
    assert added[3:] == (new, view.metadata_location, "VIEW")
    assert home.catalog.load("sales.v").metadata.properties == {"a": "1"}


def test_a_swap_with_a_stale_base_changes_nothing(home: Lake) -> None:
    surroundings(home)
    view = home.catalog.create("sales.v", metadata(home))
    assert home.catalog.replace(view, with_view_properties(view.metadata, {"a": "1"}))
    before = home.rows_of_catalog()
    assert not home.catalog.swap(view.identifier, view.metadata_location, "file:///elsewhere")
    assert not home.catalog.swap(view.identifier, "file:///never", "file:///elsewhere")
    assert not home.catalog.swap(Identifier("lake", ("sales",), "none"), view.metadata_location, "file:///elsewhere")
    assert home.rows_of_catalog() == before


def test_a_table_s_pointer_is_never_swapped_or_dropped(home: Lake) -> None:
    table = home.table("orders")
    before = home.rows_of_catalog()
    assert not home.catalog.swap(Identifier("lake", ("sales",), "orders"), table.metadata_location, "file:///x")
    with pytest.raises(ViewNotFoundError):
        home.catalog.drop("sales.orders")
    assert home.rows_of_catalog() == before


def test_of_many_swaps_from_one_base_one_wins(home: Lake, uri: str) -> None:
    view = home.catalog.create("sales.v", metadata(home))
    new = [home.catalog.write_metadata(view.metadata, number=1) for _ in range(8)]
    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(lambda to: home.catalog.swap(view.identifier, view.metadata_location, to), new))
    assert won.count(True) == 1
    assert home.catalog.load("sales.v").metadata_location == new[won.index(True)]


def test_a_replace_on_a_stale_base_publishes_nothing_and_leaves_no_file(home: Lake, warehouse: Path) -> None:
    view = home.catalog.create("sales.v", metadata(home))
    assert home.catalog.replace(view, with_view_properties(view.metadata, {"a": "1"}))
    before = sorted(warehouse.rglob("*.json"))
    assert not home.catalog.replace(view, with_view_properties(view.metadata, {"a": "2"}))
    assert home.catalog.load("sales.v").metadata.properties == {"a": "1"}
    assert sorted(warehouse.rglob("*.json")) == before


def test_dropping_removes_one_row_and_no_file(home: Lake) -> None:
    surroundings(home)
    view = home.catalog.create("sales.v", metadata(home))
    before = home.rows_of_catalog()
    home.catalog.drop("sales.v")
    (removed,) = set(before) - set(home.rows_of_catalog())
    assert removed[:3] == ("lake", "sales", "v")
    assert len(home.rows_of_catalog()) == len(before) - 1
    assert exists(view.metadata_location)
    home.catalog.create("sales.v", metadata(home))


def test_many_names_are_located_at_once(home: Lake) -> None:
    table = home.table("orders")
    view = home.catalog.create("sales.v", metadata(home))
    names = [Identifier("lake", ("sales",), name) for name in ("orders", "v", *(f"none{n}" for n in range(900)))]
    found = home.catalog.locate(names)
    assert found == home.catalog.locate([*names, *(Identifier("lake", ("sales",), f"no{n}") for n in range(2_000))])
    assert {item.name: (place.kind, place.metadata_location) for item, place in found.items()} == {
        "orders": ("table", table.metadata_location),
        "v": ("view", view.metadata_location),
    }


# -- names -------------------------------------------------------------------------------------

ODD = ['quo"te', "it's", "a b", "x; DROP TABLE iceberg_tables; --", "naïve ☃ 名前", "..", "../..", "a/b", "%_", "a.b"]
ODD += ["back`tick", "-rf", "a" * 255, "?", ":name", "\\", "~", "C:\\x", "s3:"]


def test_odd_names_are_distinguished_and_stay_in_the_warehouse(home: Lake, warehouse: Path) -> None:
    plain = home.catalog.create("sales.v", metadata(home)).identifier
    for name in ODD:
        view = Identifier("lake", ("sales",), name)
        created = home.catalog.create(view, metadata(home, name))
        assert home.catalog.load(str(view)) == created
        assert home.catalog.list("sales") == sorted([view, plain], key=lambda item: item.name), name
        path = Path(created.metadata_location.removeprefix("file://"))
        assert path.resolve().is_relative_to((warehouse / "sales").resolve()), name
        assert path.is_file(), name
        assert home.catalog.replace(created, with_view_properties(created.metadata, {"a": "1"})), name
        home.catalog.drop(view)
        assert [item.name for item in home.catalog.list()] == ["v"], name


def test_odd_namespaces_stay_in_the_warehouse(home: Lake, warehouse: Path) -> None:
    for part in ("a b", "x;y", "☃", "/etc"):
        home.iceberg.create_namespace((part,))
        created = home.catalog.create(Identifier("lake", (part,), "v"), metadata(home, "v", (part,)))
        place = Path(created.metadata_location.removeprefix("file://")).resolve()
        assert place.is_relative_to(warehouse.resolve()), part
        assert home.catalog.list((part,)) == [created.identifier]
    for part in ("..", "..\\.."):
        with pytest.raises(InvalidIdentifierError, match="dot"):
            home.catalog.exists(Identifier("lake", (part,), "v"))


def test_a_dot_in_a_namespace_part_is_refused_everywhere(home: Lake) -> None:
    """SQL catalogs store `a`.`b` and `a.b` alike: a view of one must never be returned for the other."""
    home.iceberg.create_namespace("sales.eu")
    home.catalog.create(Identifier("lake", ("sales", "eu"), "v"), metadata(home, "v", ("sales", "eu")))
    dotted = Identifier("lake", ("sales.eu",), "v")
    for call in (home.catalog.load, home.catalog.exists, home.catalog.drop, lambda view: home.catalog.locate([view])):
        with pytest.raises(InvalidIdentifierError, match=r"'sales\.eu'.*dot"):
            call(dotted)
    assert len(home.catalog.list()) == 1


def test_a_namespace_that_is_too_long_is_refused(home: Lake) -> None:
    with pytest.raises(InvalidIdentifierError, match="characters"):
        home.catalog.exists(Identifier("lake", ("a" * 200, "b" * 200), "v"))


def test_a_row_with_an_invalid_name_does_not_hide_the_others(home: Lake, caplog: pytest.LogCaptureFixture) -> None:
    home.catalog.create("sales.v", metadata(home))
    with home.iceberg.engine.begin() as connection:
        for namespace, name in (("", "top"), ("a..b", "v"), ("sales", "line\nbreak")):
            connection.execute(
                text("INSERT INTO iceberg_tables VALUES ('lake', :namespace, :name, 'file:///x', NULL, 'VIEW')"),
                {"namespace": namespace, "name": name},
            )
    with caplog.at_level(logging.WARNING):
        assert [str(view) for view in home.catalog.list()] == ["lake.sales.v"]
    assert len(caplog.records) == 3


# -- hostile rows and layouts ------------------------------------------------------------------


#: Locations that a row may have, and the resulting error.
_LOCATIONS = (
    (None, InvalidMetadataError),
    ("", InvalidMetadataError),
    (" ", InvalidMetadataError),
    ("relative/00001.metadata.json", InvalidMetadataError),
    ("http://169.254.169.254/latest", InvalidMetadataError),
    ("https://example.org/x.json", InvalidMetadataError),
    ("ftp://example.org/x.json", InvalidMetadataError),
    ("file:///warehouse/../etc/passwd", InvalidMetadataError),
    ("file:///warehouse/%2e%2e/etc/passwd", InvalidMetadataError),
    ("file://[", InvalidMetadataError),
    ("file:///x\ny", InvalidMetadataError),
    ("file:///nowhere/00001.metadata.json", MetadataFileNotFoundError),
    ("file:///", MetadataFileNotFoundError),
    ("file:///dev/null", MetadataFileNotFoundError),
    ("file:///dev/null/x", MetadataFileNotFoundError),
    ("wasb://c@a/x", ConfigurationError),
)


def test_an_invalid_pointer_is_a_typed_error_that_names_the_view(home: Lake) -> None:
    home.catalog.create("sales.v", metadata(home))
    for location, error in _LOCATIONS:
        point(home, location)
        with pytest.raises(error, match=r"lake\.sales\.v"):
            home.catalog.load("sales.v")


def test_a_location_that_is_too_long_is_refused_before_it_is_truncated(home: Lake) -> None:
    view = home.catalog.create("sales.v", metadata(home))
    with pytest.raises(InvalidMetadataError, match="1000"):
        home.catalog.swap(view.identifier, view.metadata_location, "file:///" + "x" * 1000)


def test_the_old_schema_of_a_catalog_is_refused_with_the_setting_that_upgrades_it(uri: str, warehouse: Path) -> None:
    engine = create_engine(uri)
    with engine.begin() as connection:
        connection.execute(
            text(
                "CREATE TABLE iceberg_tables (catalog_name VARCHAR(255) NOT NULL,"
                " table_namespace VARCHAR(255) NOT NULL, table_name VARCHAR(255) NOT NULL,"
                " metadata_location VARCHAR(1000), previous_metadata_location VARCHAR(1000),"
                " PRIMARY KEY (catalog_name, table_namespace, table_name))"
            )
        )
    engine.dispose()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # pyiceberg warns of the old schema, too
        old = SqlCatalog("lake", uri=uri, warehouse=f"file://{warehouse}")
    with pytest.raises(ConfigurationError, match="schema_version=v1"):
        MaterializedViewCatalog(old)
    old.engine.dispose()
    with lake(uri, warehouse, schema_version="v1") as migrated:
        migrated.catalog.create("sales.v", metadata(migrated))


@pytest.mark.postgres
def test_a_connection_that_the_server_closed_is_unavailable_once_and_nothing_is_half_applied(
    postgres_uri: str, warehouse: Path
) -> None:
    """A restarted server leaves closed connections in the pool."""
    with lake(postgres_uri, warehouse) as home:
        home.table()
        view = home.view()
        plan, outcome = home.stage(view)
        hang_up(postgres_uri)
        with pytest.raises(CatalogUnavailableError):
            home.catalog.load(view)
        hang_up(postgres_uri)
        effects = Clock().effects
        assert outcome is not None
        published = publish(home.catalog, plan, outcome.metadata_location, effects=effects)
        assert published.outcome == PublishOutcome.COMMITTED
        assert len(home.read(view)) == 2


def hang_up(uri: str) -> None:
    engine = create_engine(uri)
    with engine.begin() as connection:
        connection.execute(
            text(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
        )
    engine.dispose()
