# SPDX-License-Identifier: Apache-2.0
"""No wait for a catalog's database is without end, and none ends in an error that is not ours."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from sqlalchemy import create_engine, make_url, text
from sqlalchemy.orm import Session

from airflow_mv.catalog import Layout, MaterializedViewCatalog, TableChange
from airflow_mv.catalog.waits import CLIENT_LIMITS, SERVER_LIMITS
from airflow_mv.commit import publish
from airflow_mv.errors import CommitStateUnknownError
from airflow_mv.planning import plan_refresh
from airflow_mv.refresh import stage
from tests.builders import Lake, lake
from tests.faults import Clock

DRIVERS = ["postgresql+psycopg2", "postgresql+psycopg"]


@pytest.fixture(params=DRIVERS)
def uri(request: pytest.FixtureRequest, postgres_uri: str) -> str:
    return make_url(postgres_uri).set(drivername=request.param).render_as_string(hide_password=False)


@pytest.fixture
def home(uri: str, warehouse: Path) -> Iterator[Lake]:
    with lake(uri, warehouse) as found:
        found.table()
        found.view()
        yield found


def settings(catalog: SqlCatalog) -> dict[str, str]:
    """What holds in a transaction of a catalog's engine."""
    with Session(catalog.engine) as session:
        return {name: session.execute(text(f"SHOW {name}")).scalar_one() for name in SERVER_LIMITS}


def test_every_transaction_and_connection_is_bounded(home: Lake) -> None:
    assert isinstance(home.iceberg, SqlCatalog)
    assert settings(home.iceberg) == {
        "lock_timeout": "10s",
        "statement_timeout": "1min",
        "idle_in_transaction_session_timeout": "1min",
    }
    with home.iceberg.engine.connect() as connection:
        driver = connection.connection.dbapi_connection
        info = driver.info  # type: ignore[union-attr]
        told = info.dsn_parameters if hasattr(info, "dsn_parameters") else info.get_parameters()
    assert {name: int(told[name]) for name in CLIENT_LIMITS} == CLIENT_LIMITS


def test_what_the_uri_says_stands(home: Lake, uri: str) -> None:
    query = {"options": "-c lock_timeout=3s -c statement_timeout=5min", "tcp_user_timeout": "7000"}
    own = make_url(uri).update_query_dict(query).render_as_string(hide_password=False)
    iceberg = SqlCatalog("lake", uri=own, warehouse=home.iceberg.properties["warehouse"])
    MaterializedViewCatalog(iceberg)
    found = settings(iceberg)
    assert (found["lock_timeout"], found["statement_timeout"]) == ("3s", "5min")
    assert found["idle_in_transaction_session_timeout"] == "1min"
    iceberg.engine.dispose()


def test_a_row_that_somebody_holds_ends_in_a_typed_unknown_and_not_in_a_wait(
    home: Lake, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pyiceberg's own commit to a table is bounded, too: it publishes in the registered layout."""
    monkeypatch.setitem(SERVER_LIMITS, "lock_timeout", "300ms")
    view, table = home.catalog.load("sales.daily"), home.load()
    name = home.catalog.identify("sales.orders")
    holder, started = create_engine(uri), time.monotonic()
    with holder.begin() as connection:
        connection.execute(text("SELECT * FROM iceberg_tables FOR UPDATE"))
        with pytest.raises(CommitStateUnknownError, match=r"sales\.daily: no answer to the swap"):
            home.catalog.swap(view.identifier, view.metadata_location, "file:///new.metadata.json")
        with pytest.raises(CommitStateUnknownError, match=r"sales\.orders: no answer to a commit"):
            home.catalog.commit_table(name, str(table.metadata.table_uuid), TableChange(properties={"a": "b"}))
        with pytest.raises(CommitStateUnknownError, match="drop it again"):
            home.catalog.drop(view.identifier)
    holder.dispose()
    assert time.monotonic() - started < 10
    assert home.catalog.load("sales.daily") == view


def test_a_process_that_stops_in_a_transaction_does_not_hold_up_the_others(
    home: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has sent its statement and is stopped before the COMMIT: the server ends its transaction."""
    monkeypatch.setitem(SERVER_LIMITS, "idle_in_transaction_session_timeout", "300ms")
    view = home.catalog.load("sales.daily")
    assert isinstance(home.iceberg, SqlCatalog)
    stopped = home.iceberg.engine.connect()
    stopped.execute(text("UPDATE iceberg_tables SET previous_metadata_location = 'x' WHERE table_name = 'daily'"))
    assert home.refresh().outcome == "refreshed"
    assert home.catalog.previous_location(view.identifier) == view.metadata_location
    stopped.invalidate()
    stopped.close()


def test_a_locked_sqlite_file_ends_in_a_typed_unknown(sqlite_uri: str, warehouse: Path) -> None:
    """SQLite's driver waits 5 s by itself; the URI's ``timeout`` says how long."""
    with lake(f"{sqlite_uri}?timeout=0.2", warehouse) as home:
        home.table()
        home.view()
        view = home.catalog.load("sales.daily")
        other = sqlite3.connect(sqlite_uri.removeprefix("sqlite:///"), isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        started = time.monotonic()
        with pytest.raises(CommitStateUnknownError, match="no answer to the swap"):
            home.catalog.swap(view.identifier, view.metadata_location, "file:///new.metadata.json")
        assert time.monotonic() - started < 4
        other.close()
        assert home.refresh().outcome == "refreshed"


@pytest.mark.parametrize("layout", ["pointed", "registered"])
def test_a_commit_that_fails_is_not_seen_as_done(sqlite_uri: str, warehouse: Path, layout: Layout) -> None:
    """Somebody reads: SQLite takes the UPDATE, refuses the COMMIT and leaves the transaction open."""
    with lake(f"{sqlite_uri}?timeout=0.1", warehouse, layout=layout) as home:
        home.table()
        home.view()
        plan = plan_refresh(home.catalog, "sales.daily")
        outcome = stage(home.catalog, plan, home.stager)
        assert outcome is not None
        reader = sqlite3.connect(sqlite_uri.removeprefix("sqlite:///"))
        before = reader.execute("SELECT * FROM iceberg_tables ORDER BY 3").fetchall()
        reading = reader.execute("SELECT * FROM iceberg_tables")
        reading.fetchone()
        with pytest.raises(CommitStateUnknownError):
            publish(home.catalog, plan, outcome.staged, effects=Clock().effects)
        reading.close()
        assert reader.execute("SELECT * FROM iceberg_tables ORDER BY 3").fetchall() == before
        reader.close()
        assert home.refresh().outcome == "refreshed"


def test_a_new_view_s_commit_that_fails_is_not_seen_as_done(sqlite_uri: str, warehouse: Path) -> None:
    with lake(f"{sqlite_uri}?timeout=0.1", warehouse) as home:
        home.table()
        reader = sqlite3.connect(sqlite_uri.removeprefix("sqlite:///"))
        reading = reader.execute("SELECT * FROM iceberg_tables UNION ALL SELECT * FROM iceberg_tables")
        reading.fetchone()
        with pytest.raises(CommitStateUnknownError, match="may or may not have been created"):
            home.view()
        reading.close()
        assert reader.execute("SELECT count(*) FROM iceberg_tables").fetchone() == (1,)
        reader.close()
        home.view()
