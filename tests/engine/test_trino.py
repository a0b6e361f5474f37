# SPDX-License-Identifier: Apache-2.0
"""Trino and Spark read views by their names, without this package; the rows of ``docs/reading.md`` for Trino.

Trino knows the lake as a REST catalog, and views are refreshed through the same catalog's database; or both use the
database.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import make_url

from airflow_mv.core.job import positions
from airflow_mv.core.refresh import candidates
from airflow_mv.core.script import Outcome, Script
from airflow_mv.errors import InvalidMetadataError
from tests.builders import lake as lake_in
from tests.conftest import or_skip
from tests.engine.support import LAKE, Lake
from tests.engine.trino import Answer, Trino, trino_server
from tests.services import RestServers

pytestmark = [pytest.mark.slow, pytest.mark.rest, pytest.mark.timeout(1200)]

DAILY = "SELECT day, sum(amount) AS amount FROM {ns}.orders GROUP BY day"
WIDER = "SELECT count(*) AS orders, cast(max(amount) AS string) AS amount, day AS date FROM {ns}.orders GROUP BY day"
PRICED = "SELECT id, amount FROM {ns}.lines WHERE amount > 0"
FIRST = Answer(("day", "amount"), ((1, 30), (2, 30)))
NOW = Answer(("day", "amount"), ((1, 30), (2, 30), (3, 5)))
SECOND = Answer(("orders", "amount", "date"), ((1, "30", 2), (1, "5", 3), (2, "20", 1)))


@pytest.fixture(scope="module")
def trino(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trino]:
    """Trino without catalogs."""
    with or_skip(trino_server(tmp_path_factory.mktemp("trino"))) as server:
        yield server


@pytest.fixture
def shop(lake: Lake, lake_folder: Path, rest_jvm: RestServers, trino: Trino) -> Iterator[Lake]:
    """A lake with orders, which is Trino's catalog ``lake``, too."""
    lake.table("orders", "day int, amount int", "(1, 10), (1, 20), (2, 30)")
    uri = f"sqlite:///{lake_folder}/{LAKE}.db"
    with rest_jvm.serve(uri, lake_folder / LAKE, LAKE) as address:
        properties = {"iceberg.catalog.type": "rest", "iceberg.rest-catalog.uri": address}
        with trino.catalog(LAKE, properties):
            yield lake


def in_trino(trino: Trino, name: str) -> Answer:
    return trino.query(f"SELECT * FROM {name}")


def in_spark(lake: Lake, name: str) -> Answer:
    found = lake.sql(f"SELECT * FROM {name}").toArrow()
    return Answer(tuple(found.schema.names), tuple(sorted(tuple(row.values()) for row in found.to_pylist())))


@contextmanager
def watched(trino: Trino, name: str) -> Iterator[list[Answer]]:
    """Yield what a reader gets who queries all the time, until the block ends."""
    answers: list[Answer] = []
    ended = threading.Event()

    def watch() -> None:
        while not ended.is_set():
            answers.append(in_trino(trino, name))

    reader = threading.Thread(target=watch)
    reader.start()
    try:
        yield answers
    finally:
        ended.set()
        reader.join()


def test_engines_read_a_view_that_is_a_table_by_its_name_while_it_is_refreshed(shop: Lake, trino: Trino) -> None:
    """Before and after a change of columns everyone gets the stored rows of the last refresh, and nothing between."""
    name = shop("daily")
    shop.create("daily", DAILY, layout="table")
    shop.refresh("daily")
    assert in_trino(trino, name) == in_spark(shop, name) == FIRST
    shop.insert("orders", "(3, 5)")
    shop.create("daily", WIDER, layout="table", replace=True)
    assert in_trino(trino, name) == in_spark(shop, name) == FIRST
    staged: list[Answer] = []

    def stager(script: Script) -> Outcome:
        outcome = shop.stager(script)
        staged.extend((in_trino(trino, name), in_spark(shop, name)))
        return outcome

    with watched(trino, name) as answers:
        assert shop.refresh("daily", stager=stager).outcome == "refreshed"
    assert staged == [FIRST, FIRST]
    assert in_trino(trino, name) == in_spark(shop, name) == SECOND
    assert FIRST in answers
    assert set(answers) <= {FIRST, SECOND}


def test_rows_that_refreshes_delete_by_position_are_gone_in_every_engine(
    shop: Lake, trino: Trino, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each change adds a delete file; once there are several of a data file, they are merged into one."""
    monkeypatch.setattr(candidates, "SMALL_STORAGE", -1)  # else so few rows are written anew by each refresh
    monkeypatch.setattr(positions, "_MERGED", 2)
    shop.table("lines", "id int, amount int", ", ".join(f"({number}, {number % 7})" for number in range(300)))
    shop.create("priced", PRICED, layout="table", refresh_strategy="incremental")
    shop.refresh("priced")
    ways, deletes = list[str](), list[int]()

    def stager(script: Script) -> Outcome:
        outcome = shop.stager(script)
        ways.append(outcome.written_by)
        return outcome

    for change in (
        "DELETE FROM {} WHERE id BETWEEN 20 AND 25",
        "UPDATE {} SET amount = 9 WHERE id IN (1, 150, 299)",
        "DELETE FROM {} WHERE id IN (1, 2, 298)",
        "UPDATE {} SET amount = 8 WHERE id BETWEEN 100 AND 104",
    ):
        shop.run(change.format(shop("lines")))
        assert shop.refresh("priced", stager=stager, on_fallback="fail").mode == "merge"
        expected = in_spark(shop, f"({PRICED.format(ns=shop('lines').rpartition('.')[0])})")
        found = in_trino(trino, shop("priced"))
        assert found == in_spark(shop, shop("priced")) == expected
        assert sorted(shop.rows("priced")) == list(found.rows)
        snapshot = shop.files.load_table((shop.namespace, "priced")).current_snapshot()
        deletes.append(int(snapshot.summary["total-delete-files"] or 0) if snapshot and snapshot.summary else 0)
    assert ways == ["positions"] * 4
    assert max(deletes) >= 2, "several delete files were read"
    assert deletes != sorted(deletes), "and merged ones"


def test_a_view_beside_its_table_is_read_in_the_dialects_that_it_has(shop: Lake, trino: Trino) -> None:
    """The table has the stored rows. The view recomputes its query: in Spark always, in Trino if it has that text."""
    shop.create("daily", DAILY, layout="registered")
    shop.refresh("daily")
    shop.insert("orders", "(3, 5)")
    table = str(shop.catalog.load_storage(shop.view("daily")).name)
    assert in_trino(trino, table) == in_spark(shop, table) == FIRST
    assert in_spark(shop, shop("daily")) == NOW
    with pytest.raises(RuntimeError, match="Cannot read unsupported dialect 'spark'"):
        in_trino(trino, shop("daily"))
    shop.create("daily", DAILY, layout="registered", replace=True, dialects=["trino"])
    assert in_trino(trino, shop("daily")) == NOW


def test_a_view_of_trino_is_materialized_if_its_translation_is_requested(shop: Lake, trino: Trino) -> None:
    name = shop("daily")
    query = f"SELECT day, sum(amount) AS amount FROM {shop('orders')} GROUP BY day"
    trino.query(f"CREATE VIEW {name} AS {query}")
    with pytest.raises(InvalidMetadataError, match="--transpile"):
        shop.create("daily", None)
    shop.create("daily", None, transpile=True, layout="registered")
    shop.refresh("daily")
    table = str(shop.catalog.load_storage(shop.view("daily")).name)
    assert in_trino(trino, table) == in_trino(trino, name) == FIRST
    trino.query(f"CREATE OR REPLACE VIEW {name} AS {query.replace('sum(amount)', 'max(CAST(amount AS bigint))')}")
    assert shop.refresh("daily").outcome == "refreshed"
    assert in_trino(trino, table) == in_trino(trino, name) == Answer(("day", "amount"), ((1, 20), (2, 30)))


@pytest.mark.postgres
def test_trino_reads_a_sql_catalog_from_its_database(postgres_uri: str, warehouse: Path, trino: Trino) -> None:
    """No server is between Trino and the catalog's tables."""
    url = make_url(postgres_uri)
    properties = {
        "iceberg.catalog.type": "jdbc",
        "iceberg.jdbc-catalog.catalog-name": "lake",
        "iceberg.jdbc-catalog.driver-class": "org.postgresql.Driver",
        "iceberg.jdbc-catalog.connection-url": f"jdbc:postgresql://{url.host}:{url.port}/{url.database}",
        "iceberg.jdbc-catalog.connection-user": str(url.username),
        "iceberg.jdbc-catalog.connection-password": str(url.password),
        "iceberg.jdbc-catalog.default-warehouse-dir": warehouse.as_uri(),
    }
    with lake_in(postgres_uri, warehouse, layout="table") as home, trino.catalog("lake", properties):
        home.table()
        home.view()
        home.refresh()
        found = trino.query("SELECT region, orders, amount FROM lake.sales.daily")
        assert found.rows == (("north", 2, 15), ("south", 1, 20))
