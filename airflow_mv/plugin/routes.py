# SPDX-License-Identifier: Apache-2.0
"""The page's HTTP routes. Catalogs and databases are queried off the event loop, with a time limit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from typing import Annotated, Any, Literal, TypeVar

from airflow.api_fastapi.core_api.security import GetUserDep
from airflow.utils.session import create_session
from fastapi import APIRouter, Depends, HTTPException, Request
from fastapi import Query as Parameter
from fastapi.concurrency import run_in_threadpool
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field
from sqlalchemy.orm import Session

from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.core.spec.interval import Interval
from airflow_mv.errors import CatalogUnavailableError, MaterializedViewError
from airflow_mv.plugin import listing, runs
from airflow_mv.plugin.costs import MAX_DAYS, shown
from airflow_mv.plugin.graph import GraphQuery as AskedGraph
from airflow_mv.plugin.graph import graph as graph_of
from airflow_mv.plugin.intervals import Runs
from airflow_mv.plugin.listing import MAX_GROUPS
from airflow_mv.plugin.messages import problem
from airflow_mv.plugin.page import AirflowFacts, Page, not_created, with_expiry, with_history
from airflow_mv.plugin.rows import STATES
from airflow_mv.plugin.runs import Reader
from airflow_mv.plugin.sources import CatalogSource

_SECONDS = 20.0
_MAX_NAME_LENGTH = 2_000

Answer = TypeVar("Answer")
ViewName = Annotated[str, Parameter(min_length=1, max_length=_MAX_NAME_LENGTH)]
Days = Annotated[int, Parameter(ge=1, le=MAX_DAYS)]


class ListQuery(BaseModel):
    """The query parameters of a list request."""

    model_config = ConfigDict(extra="forbid")

    q: str = Field("", max_length=200)
    state: list[str] = Field(default_factory=list, max_length=len(STATES) + len(listing.MARKS))
    dag_id: str | None = Field(None, max_length=250)
    view: str | None = Field(None, max_length=_MAX_NAME_LENGTH)
    namespace: str | None = Field(None, max_length=_MAX_NAME_LENGTH)
    group: Literal["namespace", "dag"] | None = None
    open: list[str] = Field(default_factory=list, max_length=MAX_GROUPS)
    sort: listing.Sort = "attention"
    desc: bool = False
    offset: int = Field(0, ge=0, le=1_000_000)
    limit: int = Field(100, ge=1, le=500)

    def query(self, views: frozenset[str] | None) -> listing.Query:
        """Return the list's filter."""
        return listing.Query(
            self.q, tuple(self.state), views, self.namespace, self.sort, self.desc, self.offset, self.limit,
            frozenset(self.open),
        )  # fmt: skip


class BackfillQuery(BaseModel):
    """The query parameters of a backfill: a DAG, and the rows of the interval column that it is for."""

    model_config = ConfigDict(extra="forbid")

    dag_id: str = Field(max_length=250)
    start: AwareDatetime
    end: AwareDatetime
    type: Literal["date", "timestamp", "timestamptz"]


def _page(request: Request) -> Page:
    """Return the application's page content."""
    page: Page = request.app.state.page
    return page


GraphQuery = Annotated[ListQuery, Parameter()]
PageDep = Annotated[Page, Depends(_page)]
router = APIRouter(prefix="/api")


@router.get("/views")
async def views(asked: GraphQuery, page: PageDep, user: GetUserDep) -> dict[str, Any]:
    """Return one page of the list."""

    def answer(session: Session) -> dict[str, Any]:
        airflow = _facts_of(asked, Reader(user), session)
        query = asked.query(_views_of(asked.dag_id, airflow.reader, session))
        catalogs = runs.catalog_names(session)
        rows, sources = page.rows(catalogs)
        rows += not_created(rows, sources, airflow.failed)
        return {"sources": sources, **page.listed(rows, query, catalogs, airflow, session)}

    return await _from_database(answer)


@router.get("/graph")
async def graph(asked: GraphQuery, page: PageDep, user: GetUserDep) -> dict[str, Any]:
    """Return the graph around one view, or of all views of the list."""

    def answer(session: Session) -> dict[str, Any]:
        airflow = _facts_of(asked, Reader(user), session)
        query = asked.query(_views_of(asked.dag_id, airflow.reader, session))
        rows, sources = page.rows(runs.catalog_names(session))
        rows += not_created(rows, sources, airflow.failed)
        fitting = listing.matching(rows, query)
        wanted = listing.in_states(fitting, query, airflow.marks(fitting))
        around = [asked.view] if asked.view else [str(row.view) for row in wanted]
        return graph_of(rows, AskedGraph(around, airflow.running, airflow.groups_of, query.opened))

    return await _from_database(answer)


@router.get("/view")
async def one_view(view: ViewName, page: PageDep, user: GetUserDep) -> dict[str, Any]:
    """Return everything about one view except its plan."""
    source, name = await _found(view, page)
    facts = await _in_time(page.facts(source, name))

    def answer(session: Session) -> dict[str, Any]:
        reader = Reader(user)
        events = runs.timeline(str(name), reader, session, facts["interval_type"])
        refreshers = runs.refreshers(str(name), reader, session)
        return {**with_expiry(with_history(facts, events), refreshers["dags"]), "refreshers": refreshers}

    return await _from_database(answer)


@router.get("/plan")
async def plan(view: ViewName, page: PageDep) -> dict[str, Any]:
    """Return what a refresh would do now, and why."""
    return await _in_time(page.plan(*await _found(view, page)))


@router.get("/tables")
async def tables(view: ViewName, page: PageDep) -> dict[str, Any]:
    """Return what of the base tables' files makes the refreshes of a view slow."""
    return await _in_time(page.tables(*await _found(view, page)))


@router.get("/costs")
async def costs(page: PageDep, user: GetUserDep, days: Days = 30) -> dict[str, Any]:
    """Return what refreshes cost, see :func:`airflow_mv.plugin.costs.costs_of`.

    A catalog that does not respond hides no other.
    """
    sources, wrong = await _from_database(lambda session: page.sources.all(runs.catalog_names(session)))
    found = await asyncio.gather(*(_costs(source, page.costs(source, days)) for source in sources))
    broken = [{"conn_id": conn_id, "catalog": None, "problem": trouble} for conn_id, trouble in wrong]

    def answer(session: Session) -> list[dict[str, Any]]:
        reader = Reader(user)
        return [shown(item, days, reader, session) for item in found]

    return {"days": days, "catalogs": [*broken, *await _from_database(answer)]}


async def _costs(source: CatalogSource, answer: Future[dict[str, Any]]) -> dict[str, Any]:
    where = {"conn_id": source.address.conn_id, "catalog": source.address.catalog}
    try:
        return {**where, **await _in_time(answer)}
    except MaterializedViewError as error:
        return {**where, "answers": {}, "problem": problem(error)}


@router.get("/coverage")
async def coverage(
    view: ViewName, page: PageDep, start: AwareDatetime | None = None, end: AwareDatetime | None = None
) -> dict[str, Any]:
    """Return which intervals of a view are fresh."""
    return await _in_time(page.coverage(*await _found(view, page), start, end))


@router.get("/backfill")
async def backfill(asked: Annotated[BackfillQuery, Parameter()], user: GetUserDep) -> dict[str, Any]:
    """Return the dates of the backfill that refreshes an interval. It is created by Airflow's own API."""

    def answer(session: Session) -> dict[str, Any]:
        _require_readable(asked.dag_id, Reader(user), session)
        return Runs(session).backfill(asked.dag_id, Interval("", asked.start, asked.end), asked.type)

    return await _from_database(answer)


async def _found(view: str, page: Page) -> tuple[CatalogSource, Identifier]:
    """Return the catalog that a view is in, and its full name."""
    return await _from_database(lambda session: page.find(view, runs.catalog_names(session)))


def _facts_of(asked: ListQuery, reader: Reader, session: Session) -> AirflowFacts:
    running, failed = runs.at_work(reader, session), runs.failed(reader, session)
    return AirflowFacts(
        reader, frozenset(running), failed, runs.has_refreshed(session), _groups_of(asked, reader, session)
    )


def _groups_of(asked: ListQuery, reader: Reader, session: Session) -> listing.GroupsOf | None:
    if asked.group == "namespace":
        return lambda row: [listing.namespace_of(row.view)]
    if asked.group == "dag":
        dags = runs.dags_of_views(reader, session)
        return lambda row: dags.get(str(row.view), {listing.NO_DAG})
    return None


def _views_of(dag_id: str | None, reader: Reader, session: Session) -> frozenset[str] | None:
    if dag_id is None:
        return None
    _require_readable(dag_id, reader, session)
    return frozenset(runs.views_of(dag_id, session))


def _require_readable(dag_id: str, reader: Reader, session: Session) -> None:
    if dag_id not in reader.readable([dag_id], session):
        raise HTTPException(403, "You may not read this DAG.")


async def _from_database(answer: Callable[[Session], Answer]) -> Answer:
    """Read Airflow's database in a thread, with its own session."""

    def run() -> Answer:
        with create_session(scoped=False) as session:
            return answer(session)

    return await run_in_threadpool(run)


async def _in_time(answer: Future[dict[str, Any]]) -> dict[str, Any]:
    """Wait for a catalog, up to a limit. A later result is cached for the next request."""
    try:
        return await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(answer)), _SECONDS)
    except TimeoutError:
        raise CatalogUnavailableError(f"the catalog has not answered within {_SECONDS:.0f} s") from None
