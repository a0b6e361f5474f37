# SPDX-License-Identifier: Apache-2.0
"""The connection to PostgreSQL breaks in each statement, at each moment: no wrong outcome is reported.

iceberg #2317, #4686, #13867, polaris #5459, duckdb-iceberg #1120: a commit that landed was reported as failed, and its
files were deleted.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet
from pyiceberg.catalog.sql import SqlCatalog
from sqlalchemy import create_engine, make_url, text

from airflow_mv.actions import create_view as create
from airflow_mv.core.catalog import Layout, MaterializedViewCatalog
from airflow_mv.core.define.definition import Definition
from airflow_mv.core.spec.view import with_view_properties
from airflow_mv.errors import (
    AlreadyExistsError,
    CatalogUnavailableError,
    CommitStateUnknownError,
    MaterializedViewError,
    ViewNotFoundError,
)
from airflow_mv.extras.maintenance.drop import drop
from tests.builders import QUERY, Lake, exists, lake
from tests.duck import DuckStager
from tests.torture.history import checked, moves, published, states_of, watch
from tests.torture.interrupted import HASTY
from tests.torture.points import AFTER, BEFORE, Point, Points
from tests.torture.proxy import Fault, Moment, Proxy, proxy

VIEW = "sales.daily"
POINTER, LOOK_UP = b"SELECT iceberg_tables.metadata_location", b"SELECT iceberg_tables.table_namespace"
SWAP, INSERT, DELETE = b"UPDATE iceberg_tables", b"INSERT INTO iceberg_tables", b"DELETE FROM iceberg_tables"
#: A read has no COMMIT.
READS = [Moment.BEFORE, Moment.APPLIED]
LANDED = {Moment.COMMITTED, Moment.LATE}
PSYCOPG2, PSYCOPG = "postgresql+psycopg2", "postgresql+psycopg"
MOMENTS = [
    *(pytest.param("pointed", moment) for moment in Moment),
    pytest.param("table", Moment.COMMITTED),
    *(pytest.param("table", moment, marks=pytest.mark.slow) for moment in Moment if moment != Moment.COMMITTED),
    *(pytest.param("registered", moment, marks=pytest.mark.slow) for moment in Moment),
]
#: The rows that we insert in a creation, and delete in a drop, by their number: those of the view and of its storage
#: table. Before that Spark inserts the row of a table that shows the columns.
CHANGES = {
    "INSERT": {"pointed": (1,), "registered": (2, 3), "table": (2,)},
    "DELETE": {"pointed": (1,), "registered": (1, 2), "table": (1,)},
}


def broken(kind: str) -> list[ParameterSet]:
    """Each moment of each change of a row, in every layout."""
    return [
        pytest.param(layout, number, moment, marks=() if layout == "pointed" else pytest.mark.slow)
        for layout, numbers in CHANGES[kind].items()
        for number, moment in product(numbers, Moment)
    ]


@dataclass(frozen=True)
class Both:
    """A lake with a direct connection, and the same lake through the proxy."""

    good: Lake
    bad: Lake
    proxy: Proxy

    @property
    def publication(self) -> int:
        """Which UPDATE of a first refresh publishes: for a table of the catalog two others are for the branch."""
        return 1 if self.good.layout == "pointed" else 3

    def break_at(self, statement: bytes, moment: Moment, number: int = 1) -> Fault:
        """Set the proxy's fault."""
        self.proxy.fault = Fault(statement, moment, number)
        return self.proxy.fault


@pytest.fixture
def both(request: pytest.FixtureRequest, postgres_uri: str, warehouse: Path, layout: Layout) -> Iterator[Both]:
    url = make_url(postgres_uri)
    driver = getattr(request, "param", PSYCOPG2)
    with lake(postgres_uri, warehouse, layout=layout) as good, proxy(str(url.host), url.port or 5432) as running:
        good.table()
        through = url.set(drivername=driver, host="127.0.0.1", port=running.port)
        iceberg = SqlCatalog(
            "lake", uri=through.render_as_string(hide_password=False), warehouse=good.iceberg.properties["warehouse"]
        )
        catalog = MaterializedViewCatalog(iceberg)
        watch(good.iceberg.engine)
        yield Both(good, Lake(iceberg, catalog, DuckStager(catalog, iceberg), layout), running)
        iceberg.engine.dispose()


def published_once(lake: Lake) -> None:
    """The view is fresh after exactly one publication, and its history is complete."""
    states = checked(lake)
    assert len(published(states)) == 1
    if lake.layout != "table":  # the staging branch is in the same row
        assert len(moves(lake.iceberg.engine)) == (0 if lake.layout == "registered" else 1)
    assert lake.refresh().outcome == "fresh"


@pytest.mark.parametrize("both", [PSYCOPG2, PSYCOPG], indirect=True)
@pytest.mark.parametrize(("layout", "moment"), MOMENTS)
def test_a_swap_whose_connection_breaks_is_settled_by_the_same_refresh(both: Both, moment: Moment) -> None:
    """Whether the swap landed or not, the outcome is correct, and this refresh publishes."""
    both.good.view()
    fault = both.break_at(SWAP, moment, both.publication)
    assert both.bad.refresh(effects=HASTY).outcome == "refreshed"
    assert fault.happened
    published_once(both.good)


@pytest.mark.parametrize(("layout", "moment"), MOMENTS)
def test_i05_a_swap_whose_catalog_stays_unavailable_is_unknown_and_the_retry_settles_it(
    both: Both, moment: Moment
) -> None:
    """An unknown outcome deletes nothing."""
    both.good.view()
    fault = both.break_at(SWAP, moment, both.publication)
    seen = both.bad.catalog.load

    def load(view: object) -> object:
        if fault.happened:
            raise CatalogUnavailableError("the catalog stays unavailable (injected fault)")
        return seen(view)  # type: ignore[arg-type]

    both.bad.catalog.load = load  # type: ignore[method-assign, assignment]
    with pytest.raises(CommitStateUnknownError):
        both.bad.refresh(effects=HASTY)
    fault.settle()
    landed = published(states_of(both.good)) != []
    assert landed == (moment in LANDED)
    assert both.good.refresh().outcome == ("fresh" if landed else "refreshed")
    assert len(both.good.stager.refreshes) == 0  # the staged rows are used
    published_once(both.good)


@pytest.mark.parametrize(
    ("statement", "number", "moment"),
    [*product([POINTER], [1, 2], READS), *product([LOOK_UP], [1], READS)],
)
def test_a_read_without_an_answer_is_a_typed_error_or_is_repeated(
    both: Both, statement: bytes, number: int, moment: Moment
) -> None:
    """While planning, it ends the try; while publishing, it is repeated, because rows are already staged."""
    both.good.view()
    fault = both.break_at(statement, moment, number)
    if number == 1:
        with pytest.raises(CatalogUnavailableError) as caught:
            both.bad.refresh(effects=HASTY)
        assert caught.value.retryable
        assert moves(both.good.iceberg.engine) == []
    assert both.bad.refresh(effects=HASTY).outcome == "refreshed"
    assert fault.happened
    published_once(both.good)


@pytest.mark.parametrize(("layout", "number", "moment"), broken("INSERT"))
def test_each_row_of_a_new_view_is_inserted_once_although_the_connection_breaks(
    both: Both, number: int, moment: Moment
) -> None:
    """The creation reads whether its row exists, and inserts it again if not. No file is deleted."""
    fault = both.break_at(INSERT, moment, number)
    definition = Definition(QUERY, layout=both.good.layout)
    created = create(both.bad.catalog, VIEW, definition, stager=both.bad.stager, effects=HASTY)
    assert fault.happened
    fault.settle()
    assert both.good.catalog.load(VIEW).metadata.view_uuid == created.metadata.view_uuid
    with pytest.raises(AlreadyExistsError):
        create(both.good.catalog, VIEW, definition, stager=both.good.stager)
    assert both.good.refresh().outcome == "refreshed"
    published_once(both.good)


@pytest.mark.parametrize(("layout", "number", "moment"), broken("DELETE"))
def test_a_view_is_dropped_although_the_connection_breaks(both: Both, number: int, moment: Moment) -> None:
    """The drop reads whether the row exists, and removes it again if it does."""
    both.good.view()
    fault = both.break_at(DELETE, moment, number)
    drop(both.bad.catalog, VIEW, effects=HASTY)
    assert fault.happened
    fault.settle()
    assert not both.good.catalog.exists(VIEW)
    assert both.good.iceberg.list_tables("sales") == [("sales", "orders")]
    with pytest.raises(ViewNotFoundError):
        drop(both.good.catalog, VIEW)
    assert both.good.load().scan().count() == 3  # the base table's row stays


@pytest.mark.parametrize(("layout", "moment"), MOMENTS)
def test_a_change_of_properties_whose_connection_breaks_is_unknown_and_its_file_is_kept(
    both: Both, moment: Moment
) -> None:
    """It sends only one swap; the caller repeats it."""
    both.good.view()
    view = both.bad.catalog.load(VIEW)
    fault = both.break_at(SWAP, moment)
    with pytest.raises(CommitStateUnknownError):
        both.bad.catalog.replace(view, with_view_properties(view.metadata, {"comment": "changed"}))
    fault.settle()
    now = both.good.catalog.load(VIEW)
    assert (now.metadata.properties.get("comment") == "changed") == (moment in LANDED)
    assert exists(now.metadata_location)


# -- the server --------------------------------------------------------------------------------


def end_backends(uri: str) -> None:
    """Terminate every connection of the database, as an administrator or a failover does."""
    engine = create_engine(uri)
    query = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = :name AND pid <> pg_backend_pid()"
    with engine.connect() as connection:
        connection.execute(text(query), {"name": make_url(uri).database})
    engine.dispose()


@pytest.mark.parametrize("phase", [BEFORE, AFTER])
@pytest.mark.parametrize("call", ["pointer read", "look-up of base tables", "swap", "commit of the swap"])
def test_a_refresh_survives_the_termination_of_its_backend(
    postgres_uri: str, warehouse: Path, call: str, phase: str
) -> None:
    """pg_terminate_backend just before or after each statement (iceberg #17829: a closed connection is reused)."""
    with lake(postgres_uri, warehouse) as home:
        home.table()
        home.view()
        watch(home.iceberg.engine)
        points = Points({Point(call, 1, phase): lambda: end_backends(postgres_uri)})
        points.catalog(home.catalog, home.iceberg.engine)
        outcomes = [tried(home) for _ in range(3)]
        assert outcomes[-1] == "fresh"
        assert "refreshed" in outcomes
        assert set(outcomes) <= {"fresh", "refreshed", "CatalogUnavailableError"}
        published_once(home)


def tried(lake: Lake) -> str:
    """The outcome of one try to refresh."""
    try:
        return lake.refresh(effects=HASTY).outcome
    except MaterializedViewError as error:
        return type(error).__name__


def test_a_locked_row_delays_a_swap_until_it_is_unlocked(postgres_uri: str, warehouse: Path) -> None:
    """Another session has an open transaction on the row: the swap waits for it and lands once."""
    with lake(postgres_uri, warehouse) as home:
        home.table()
        home.view()
        watch(home.iceberg.engine)
        results: list[str] = []
        refreshing = threading.Thread(target=lambda: results.append(home.refresh(effects=HASTY).outcome))
        holder = create_engine(postgres_uri)
        with holder.begin() as connection:
            connection.execute(text("SELECT * FROM iceberg_tables WHERE table_name = 'daily' FOR UPDATE"))
            refreshing.start()
            _until(lambda: _waiting(home) > 0)
            assert results == []
        refreshing.join(30)
        holder.dispose()
        assert results == ["refreshed"]
        published_once(home)


def _waiting(lake: Lake) -> int:
    with lake.iceberg.engine.connect() as connection:
        found = connection.execute(text("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"))
        return int(found.scalar_one())


def _until(look: Callable[[], bool], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not look():
        assert time.monotonic() < deadline, "not within the time limit"
        time.sleep(0.01)
