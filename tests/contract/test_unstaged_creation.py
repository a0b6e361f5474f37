# SPDX-License-Identifier: Apache-2.0
"""Behind a REST server a view's table is created by a plain request, and one commit adds the definition.

No request has the flag ``stage-create``, so a server that refuses it, ignores it or honours it is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from threading import Barrier
from typing import Any
from urllib.parse import urlsplit

import pytest

from airflow_mv.actions import create_view as create
from airflow_mv.core.catalog import LoadedView, MaterializedViewCatalog
from airflow_mv.core.define.definition import Definition
from airflow_mv.core.publish.protocol import Effects
from airflow_mv.core.spec.materialized_view import DEFINITION_ID_PROPERTY, STORAGE_OF_PROPERTY
from airflow_mv.errors import (
    AlreadyExistsError,
    CommitStateUnknownError,
    ConfigurationError,
    MaterializedViewError,
    ViewNotFoundError,
)
from airflow_mv.extras.maintenance.drop import drop
from tests.builders import QUERY, DuckStager, Lake, lake
from tests.contract.support import EAST, NORTH, SOUTH, VIEW
from tests.faults import StoppedError
from tests.rest.proxy import Forwarding
from tests.services import http_server

Answer = tuple[int, Any, bytes]
Forward = Callable[[], Answer]
QUICK = Effects(sleep=lambda _: None)
DAILY = ("sales", "daily")
BY_ID = "SELECT amount, id FROM lake.sales.orders"
#: The two requests that make the view's table a view.
CREATE, COMMIT = "POST /v1/namespaces/sales/tables", "POST /v1/namespaces/sales/tables/daily"


@dataclass
class Seen:
    """What a proxy before Iceberg's server has seen, and what it does."""

    staged: int = 0
    #: Called for a request of the view's table, with a function that forwards it.
    acts: dict[str, Callable[[Forward], Answer]] = field(default_factory=dict)


@dataclass
class Server:
    """A lake behind the proxy."""

    lake: Lake
    seen: Seen

    @property
    def acts(self) -> dict[str, Callable[[Forward], Answer]]:
        return self.seen.acts

    def define(self, sql: str = QUERY, **more: Any) -> LoadedView:
        catalog = MaterializedViewCatalog(self.lake.iceberg)
        stager = DuckStager(catalog, self.lake.iceberg)
        return create(catalog, VIEW, Definition(sql, layout="table", **more), stager=stager, effects=QUICK)

    @property
    def names(self) -> list[tuple[str, ...]]:
        return sorted(self.lake.iceberg.list_tables("sales"))

    def is_right(self, sql: str = QUERY) -> None:
        """The view is there once, and works."""
        assert self.lake.catalog.load(VIEW).metadata.sql(view=VIEW) == sql
        assert self.lake.refresh().outcome == "refreshed"
        assert len(self.lake.read()) == (2 if sql == QUERY else 3)
        self.lake.append()
        assert self.lake.refresh().outcome == "refreshed"
        assert self.names == [DAILY, ("sales", "orders")]
        if sql == QUERY:
            assert self.lake.read() == [EAST, NORTH, SOUTH]


@pytest.fixture
def server(request: pytest.FixtureRequest, rest_uri: str, warehouse: Path) -> Iterator[Server]:
    """A server with a way of its own with staged creations."""
    how = getattr(request, "param", "refused")

    seen = Seen()

    class Handler(Forwarding):
        other = urlsplit(rest_uri).netloc

        def answer(self, body: bytes) -> None:
            flagged = b'"stage-create":true'
            if flagged in body:
                seen.staged += 1
                if how == "refused":
                    text = b'{"error": {"message": "Stage create is not supported", "type": "BadRequest", "code": 400}}'
                    self.write(HTTPStatus.BAD_REQUEST, {"Content-Type": "application/json"}, text)
                    return
                body = body.replace(flagged, b'"stage-create":false') if how == "ignored" else body
            act = seen.acts.get(f"{self.command} {self.path}") if b"__columns_" not in body else None
            sent = self.forwarded if act is None else lambda body: act(lambda: Forwarding.forwarded(self, body))
            self.write(*sent(body))

    with ExitStack() as stack:
        port = stack.enter_context(http_server(Handler))
        home = stack.enter_context(lake(f"http://127.0.0.1:{port}", warehouse, layout="table"))
        home.table()
        yield Server(home, seen)


def left_behind(server: Server, sql: str = QUERY, **more: Any) -> None:
    """Let a creation die between its two requests."""

    def stopped(*_: object) -> None:
        raise StoppedError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("airflow_mv.core.catalog.tables.first_content", stopped)
        with pytest.raises(StoppedError):
            server.define(sql, **more)
    assert DAILY in server.names
    for name in server.names:
        if "__columns_" in name[1]:  # the process has not removed its template either
            server.lake.iceberg.drop_table(name)


@pytest.mark.parametrize("server", ["refused", "ignored", "honoured"], indirect=True)
@pytest.mark.parametrize("layout", ["table", "registered"])
def test_a_view_is_created_whatever_the_server_does_with_staged_creations(server: Server, layout: str) -> None:
    server.lake.layout = layout
    server.lake.view()
    assert server.seen.staged == 0
    assert server.lake.refresh().outcome == "refreshed"
    assert server.lake.read() == [NORTH, SOUTH]
    assert len(server.names) == 2, "no template is left"
    drop(server.lake.catalog, VIEW)
    server.lake.view()
    assert server.lake.refresh().outcome == "refreshed"


def test_between_the_two_requests_there_is_an_empty_table_and_no_view(server: Server) -> None:
    left_behind(server)
    assert server.lake.iceberg.load_table(DAILY).scan().to_arrow().num_rows == 0
    assert not server.lake.catalog.exists(VIEW)
    assert server.lake.catalog.list() == []
    for act in (server.lake.refresh, lambda: drop(server.lake.catalog, VIEW)):
        with pytest.raises(ViewNotFoundError, match="the creation of the view did not finish"):
            act()


@pytest.mark.parametrize("partition_by", [(), ("id",)])
@pytest.mark.parametrize("sql", [QUERY, BY_ID])
def test_a_creation_that_died_blocks_no_later_one(server: Server, sql: str, partition_by: tuple[str, ...]) -> None:
    """Also one with other columns or another partitioning: they get new ids."""
    left_behind(server, "SELECT id, region FROM lake.sales.orders", partition_by=partition_by)
    before = server.lake.iceberg.load_table(DAILY).metadata.table_uuid
    server.lake.catalog.list()  # it has seen the table as an ordinary one
    server.define(sql, **({"partition_by": ("amount",)} if sql == BY_ID else {}))
    assert [str(item) for item in server.lake.catalog.list()] == ["lake.sales.daily"]
    table = server.lake.iceberg.load_table(DAILY)
    assert table.metadata.table_uuid == before, "a server's drop takes no condition, so nothing was dropped"
    assert [item.name for item in table.spec().fields] == (["amount"] if sql == BY_ID else [])
    server.is_right(sql)


def test_a_creation_that_was_only_slow_is_refused_after_another_has_finished_its_table(server: Server) -> None:
    others: list[LoadedView] = []

    def late(forward: Forward) -> Answer:
        server.acts.clear()
        others.append(server.define(BY_ID))
        return forward()

    server.acts[COMMIT] = late
    with pytest.raises(AlreadyExistsError, match=r"a view lake\.sales\.daily exists"):
        server.define()
    assert server.lake.catalog.load(VIEW).metadata == others[0].metadata
    server.is_right(BY_ID)


def test_of_creations_at_the_same_time_one_succeeds(server: Server) -> None:
    queries = [QUERY, BY_ID, QUERY.replace("sum", "max"), f"{BY_ID} WHERE id > 0"]
    together = Barrier(len(queries))

    def one(sql: str) -> str | MaterializedViewError:
        together.wait(60)
        try:
            return server.define(sql).metadata.sql(view=VIEW)
        except AlreadyExistsError as error:
            return error

    with ThreadPoolExecutor(len(queries)) as pool:
        ended = list(pool.map(one, queries))
    (created,) = (item for item in ended if isinstance(item, str))
    assert server.lake.catalog.load(VIEW).metadata.sql(view=VIEW) == created
    assert server.lake.refresh().outcome == "refreshed"


@pytest.mark.parametrize("request_", [CREATE, COMMIT])
@pytest.mark.parametrize("landed", [True, False])
@pytest.mark.parametrize("times", [1, 2])
def test_a_lost_answer_to_either_request_is_settled(server: Server, request_: str, landed: bool, times: int) -> None:
    left = [times]

    def lost(forward: Forward) -> Answer:
        if left[0] == 0:
            return forward()
        left[0] -= 1
        if landed:
            forward()
        return HTTPStatus.GATEWAY_TIMEOUT, {}, b"<html>timeout</html>"

    server.acts[request_] = lost
    server.define()
    assert left[0] == 0 or (landed and request_ == COMMIT), "after one copy has landed no other is sent"
    server.is_right()


@pytest.mark.parametrize("request_", [CREATE, COMMIT])
def test_a_proxy_that_sends_a_request_twice_does_no_harm(server: Server, request_: str) -> None:
    def twice(forward: Forward) -> Answer:
        forward()
        return forward()

    server.acts[request_] = twice
    server.define()
    server.acts.clear()  # the rest of the test's own writer takes a refusal for a conflict
    server.is_right()


@pytest.mark.parametrize("request_", [CREATE, COMMIT])
def test_without_any_answer_the_outcome_is_unknown_and_a_later_creation_settles_it(
    server: Server, request_: str
) -> None:
    server.acts[request_] = lambda _: (HTTPStatus.BAD_GATEWAY, {}, b"")
    with pytest.raises(CommitStateUnknownError, match=r"sales\.daily.*nothing was deleted"):
        server.define()
    server.acts.clear()
    for name in server.names:  # after an unknown outcome a template stays
        if "__columns_" in name[1]:
            server.lake.iceberg.drop_table(name)
    server.define()
    server.is_right()


@pytest.mark.parametrize("request_", [CREATE, COMMIT])
def test_a_refusal_is_raised_with_the_server_s_reason(server: Server, request_: str) -> None:
    text = b'{"error": {"message": "not here", "type": "ForbiddenException", "code": 403}}'
    server.acts[request_] = lambda _: (HTTPStatus.FORBIDDEN, {"Content-Type": "application/json"}, text)
    with pytest.raises(ConfigurationError, match="not here"):
        server.define()
    server.acts.clear()
    server.define()
    server.is_right()


def _foreign(**properties: str) -> Callable[[Lake], None]:
    def made(home: Lake) -> None:
        home.iceberg.create_table(DAILY, home.load().schema(), properties=properties)

    return made


def _foreign_view(home: Lake) -> None:
    home.plain_view("daily", QUERY, ["region", "orders", "amount"])


def _with_rows(home: Lake) -> None:
    _foreign(**{STORAGE_OF_PROPERTY: "`sales`.`daily`", DEFINITION_ID_PROPERTY: "1"})(home)
    home.append(name="daily")


@pytest.mark.parametrize(
    "made",
    [
        _foreign(),
        _foreign(**{STORAGE_OF_PROPERTY: "`sales`.`daily`"}),
        _foreign(**{STORAGE_OF_PROPERTY: "`sales`.`other`", DEFINITION_ID_PROPERTY: "1"}),
        _with_rows,
        _foreign_view,
    ],
)
def test_a_table_or_view_of_others_is_never_touched(server: Server, made: Callable[[Lake], None]) -> None:
    """Also one that takes the name while the creation is under way."""
    home = server.lake

    def content() -> Any:
        return home.catalog.load(VIEW) if made is _foreign_view else home.iceberg.load_table(DAILY).metadata

    def meanwhile(forward: Forward) -> Answer:
        server.acts.clear()
        made(home)
        return forward()

    server.acts[CREATE] = meanwhile
    with pytest.raises(AlreadyExistsError, match=r"sales\.daily exists already"):
        server.define()
    before = content()
    with pytest.raises(AlreadyExistsError, match=r"sales\.daily exists already"):
        server.define()
    assert content() == before


def test_a_table_that_was_replaced_between_the_two_requests_is_not_touched(server: Server) -> None:
    def replaced(forward: Forward) -> Answer:
        server.acts.clear()
        server.lake.iceberg.drop_table(DAILY)
        server.lake.table("daily")
        return forward()

    server.acts[COMMIT] = replaced
    with pytest.raises(AlreadyExistsError, match=r"a table lake\.sales\.daily exists"):
        server.define()
    assert server.lake.load("daily").scan().to_arrow().num_rows == 3
