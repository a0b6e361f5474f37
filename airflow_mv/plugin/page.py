# SPDX-License-Identifier: Apache-2.0
"""The content of the page, from catalogs and from Airflow's database. Independent of HTTP."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

from sqlalchemy.orm import Session

from airflow_mv.common.expiry import warnings
from airflow_mv.common.status import Chains, expiries
from airflow_mv.core.catalog import MaterializedViewCatalog, stored_layout
from airflow_mv.core.catalog.layouts import how_to_read
from airflow_mv.core.freshness.observe import Observation
from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.core.spec.times import parse_time
from airflow_mv.core.sql.interval_columns import kind_of
from airflow_mv.errors import InvalidIdentifierError, NotMaterializedError, ViewNotFoundError
from airflow_mv.extras.costs import requested_by, with_expected
from airflow_mv.extras.describe import durations, history
from airflow_mv.extras.fleet.coverage import coverage
from airflow_mv.extras.fleet.summaries import column_of, summary_of
from airflow_mv.plugin import listing, runs
from airflow_mv.plugin.costs import costs_of
from airflow_mv.plugin.counts import Counts
from airflow_mv.plugin.listing import GroupsOf, Query
from airflow_mv.plugin.messages import harmless, said
from airflow_mv.plugin.rows import NOT_CREATED, ViewRow, row_of
from airflow_mv.plugin.runs import Reader
from airflow_mv.plugin.sources import SECTION, CatalogSource, Sources
from airflow_mv.plugin.survey import SurveyedRows

if TYPE_CHECKING:
    from airflow_mv.extras.registry.advice import Finding

#: Seconds that the first request for a list waits, so that a small catalog is shown at once.
_FIRST_WAIT = 1.5
#: Seconds that a question about the costs of all views waits for them.
_SURVEY_WAIT = 10.0


@dataclass(frozen=True, slots=True)
class AirflowFacts:
    """Runs, DAGs and failures of all views in Airflow, as far as a user may see them.

    Args:
        running: The views that are refreshed now.
        failed: The views whose last refresh has failed, each with its task instance.
        has_refreshed: Whether any task of this Airflow has refreshed a view.
        groups_of: Returns the groups of a view; ``None``: the user wants no groups.
    """

    reader: Reader
    running: frozenset[str]
    failed: Mapping[str, UUID]
    has_refreshed: bool = True
    groups_of: GroupsOf | None = None

    def marks(self, rows: Sequence[ViewRow]) -> listing.Marks:
        """Return the views that are running, failed or late, as the list filters by it."""
        now = datetime.now(UTC)
        late = {str(row.view) for row in rows if row.is_late(now)}
        return {listing.LATE: late, listing.RUNNING: self.running, listing.FAILED: self.failed}


@dataclass
class Page:
    """The content of the page."""

    sources: Sources
    _counts: Counts = field(default_factory=Counts)

    # -- all views -----------------------------------------------------------------------------

    def rows(self, catalogs: Collection[str]) -> tuple[list[ViewRow], list[dict[str, Any]]]:
        """Return the rows of all views, and the state of each catalog.

        Args:
            catalogs: Names of catalogs that DAGs use.
        """
        sources, wrong = self.sources.all(catalogs)
        states = [_state(conn_id, None, SurveyedRows(problem=trouble)) for conn_id, trouble in wrong]
        rows: list[ViewRow] = []
        for source in sources:
            found = source.survey.found(wait=_FIRST_WAIT)
            rows += found.rows
            states.append(_state(source.address.conn_id, source.address.catalog, found))
        return rows, states

    def listed(
        self,
        rows: list[ViewRow],
        query: Query,
        catalogs: Collection[str],
        airflow: AirflowFacts,
        session: Session,
    ) -> dict[str, Any]:
        """Return one page of the list, or its groups. While fresh intervals are counted, ``counting`` is true.

        Args:
            rows: The rows of all views, from :meth:`rows` and :func:`not_created`.
            query: The filter, sorting and page.
            catalogs: Names of catalogs that DAGs use.
            airflow: What Airflow knows of the views.
            session: Of Airflow's database.
        """
        fitting = listing.matching(rows, query)
        marks = airflow.marks(fitting)
        wanted = listing.in_states(fitting, query, marks)
        shown, groups = wanted[query.offset : query.offset + query.limit], None
        if airflow.groups_of is not None:
            shown, groups = listing.grouped(wanted, query, airflow.groups_of, marks)
        names = [str(row.view) for row in shown]
        last = runs.last_refreshes(names, airflow.reader, session)
        failed = runs.failures({name: airflow.failed[name] for name in names if name in airflow.failed}, session)
        sources, _ = self.sources.all(catalogs)
        counted = self._counts.of(shown, {source.address.catalog: source for source in sources})
        now = datetime.now(UTC)
        return {
            "views": [
                {
                    **_line(row, last.get(str(row.view)), now),
                    "running": str(row.view) in airflow.running,
                    "failed": failed.get(str(row.view)),
                    "coverage": counted.get(row.view),
                }
                for row in shown
            ],
            "groups": groups,
            "counting": None in counted.values(),
            "total": len(wanted),
            "counts": listing.counts(fitting, marks),
            "has_refreshed": airflow.has_refreshed,
            "missing": sorted((query.views or frozenset()) - {str(row.view) for row in rows}),
        }

    # -- one view ------------------------------------------------------------------------------

    def find(self, view: str, catalogs: Collection[str]) -> tuple[CatalogSource, Identifier]:
        """Find the catalog that a view is in. The name may leave it out where the page has one only.

        Args:
            catalogs: Names of catalogs that DAGs use.

        Raises:
            InvalidIdentifierError: It is not a name.
            ViewNotFoundError: No connection of the page has a catalog of this name.
        """
        found, _ = self.sources.all(catalogs)
        names = {source.address.catalog for source in found}
        name = Identifier.parse(view, default_catalog=next(iter(names)) if len(names) == 1 else None)
        for source in found:
            if source.address.catalog == name.catalog:
                return source, name
        raise ViewNotFoundError(
            f"view {name}: no catalog {name.catalog!r} is behind the connections of this page "
            f"({', '.join(self.sources.entries)}); see [{SECTION}] page_conn_ids"
        )

    def facts(self, source: CatalogSource, view: Identifier) -> Future[dict[str, Any]]:
        """Return a view's state, lag, reasons, base tables, definition and recorded refreshes."""
        return source.ask(lambda: _facts(source, view), "facts", str(view))

    def plan(self, source: CatalogSource, view: Identifier) -> Future[dict[str, Any]]:
        """Return what a refresh would do now, and why."""
        return source.ask(lambda: _plan(source.open(), view), "plan", str(view))

    def tables(self, source: CatalogSource, view: Identifier) -> Future[dict[str, Any]]:
        """Return what of the base tables' files makes the refreshes of a view slow, by table."""
        return source.ask(lambda: _tables(source.open(), view), "tables", str(view))

    def coverage(
        self, source: CatalogSource, view: Identifier, start: datetime | None, end: datetime | None
    ) -> Future[dict[str, Any]]:
        """Return which intervals of a view are fresh, see :func:`airflow_mv.extras.fleet.coverage.coverage`."""
        key = ("coverage", str(start), str(end), str(view))
        return source.ask(lambda: coverage(source.open(), view, start=start, end=end).to_dict(), *key)

    # -- costs ---------------------------------------------------------------------------------

    def costs(self, source: CatalogSource, days: int) -> Future[dict[str, Any]]:
        """Return what the refreshes of some days cost, by the catalog's registry or by what its views have recorded."""
        return source.ask(lambda: costs_of(source.open(), _refreshed(source, days), days), "costs", str(days))


def _refreshed(source: CatalogSource, days: int) -> list[Identifier]:
    """Return the views that were refreshed in the last days, the last one first."""
    since = (datetime.now(UTC) - timedelta(days=days)).isoformat()
    rows = [row for row in source.survey.found(wait=_SURVEY_WAIT).rows if (row.refreshed_at or "") >= since]
    return [row.view for row in sorted(rows, key=lambda row: row.refreshed_at or "", reverse=True)]


def not_created(rows: Sequence[ViewRow], states: Sequence[Mapping[str, Any]], failed: Collection[str]) -> list[ViewRow]:
    """Return rows for the views whose last run has failed and that a completely read catalog does not have.

    Args:
        rows: The rows of all views, from :meth:`Page.rows`.
        states: The states of the catalogs, from the same call.
        failed: The views whose last refresh has failed.
    """
    complete = {state["catalog"] for state in states if state["checked_at"] and not state["problem"]}
    known = {str(row.view) for row in rows}
    names = filter(None, map(_identifier, set(failed) - known))
    return [ViewRow(name, NOT_CREATED) for name in sorted(names, key=str) if name.catalog in complete]


def _identifier(name: str) -> Identifier | None:
    try:
        return Identifier.parse(name)
    except InvalidIdentifierError:  # an asset whose URI is like that of a view, and whose name is not
        return None


def _state(conn_id: str, catalog: str | None, found: SurveyedRows) -> dict[str, Any]:
    return {
        "conn_id": conn_id,
        "catalog": catalog,
        "views": len(found.rows),
        "looking": None if found.looking is None else round(found.looking, 1),
        "checked_at": found.checked_at.isoformat() if found.checked_at else None,
        "pause": math.ceil(found.pause),
        "problem": found.problem,
    }


def with_history(facts: Mapping[str, Any], events: list[dict[str, Any]]) -> dict[str, Any]:
    """Join the view's recorded refreshes with Airflow's records of them, newest first."""
    recorded = {item["refresh_id"]: item for item in facts["history"]}
    known = {event["refresh_id"] for event in events}
    joined = [{**event, **_recorded(recorded.get(event["refresh_id"]))} for event in events]
    unknown = {"kind": "refreshed", "lag": None, "dag_id": None}
    joined += [
        {
            **unknown,
            "at": item["refreshed_at"],
            "seconds": item["seconds"],
            "by": _commanded_by(item["requested_by"]),
            **_recorded(item),
        }
        for identity, item in recorded.items()
        if identity not in known
    ]
    joined.sort(key=lambda item: item["at"] or "", reverse=True)
    return {**facts, "history": joined}


def with_expiry(facts: Mapping[str, Any], dags: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Add ``expiring``: sentences on base snapshots that may expire soon, or before the next scheduled refresh.

    Args:
        dags: The DAGs that refresh it, from :func:`airflow_mv.plugin.runs.refreshers`.
    """
    expiring = {
        item["identifier"]: parse_time(item["expires_at"]) for item in facts["base_tables"] if item["expires_at"]
    }
    runs_at = [parse_time(dag["next_run"]) for dag in dags if dag["next_run"]]
    return {**facts, "expiring": list(warnings(expiring, next_refresh=min(runs_at, default=None)))}


def _own(recorded: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a view has recorded of a refresh that is none of this Airflow."""
    return {"seconds": recorded.get("seconds"), "by": _commanded_by(recorded.get("requested_by"))}


def _commanded_by(who: Mapping[str, str] | None) -> str | None:
    """Return who ran the command that refreshed. Who may see a DAG and its user is known for events of this Airflow."""
    return harmless(requested_by(who)) if who and "dag-id" not in who else None


def _recorded(item: Mapping[str, Any] | None) -> dict[str, Any]:
    if item is None:
        return {}
    keys = ("refresh_id", "mode", "rows_written", "base_tables", "version_id", "current", "rows", "bytes")
    recorded = {key: item[key] for key in keys if key in item}
    return recorded | {key: value for key, value in said(item).items() if value}


def _line(row: ViewRow, last: Mapping[str, Any] | None, now: datetime) -> dict[str, Any]:
    """Return a row of the list. Airflow's data on a refresh other than the recorded one is left out."""
    mine = last if last and last["refresh_id"] == row.refresh_id else _own(row.recorded or {})
    return {**row.to_dict(now), **{key: mine.get(key) for key in ("seconds", "by", "dag_id", "run_id", "task_id")}}


def _facts(source: CatalogSource, view: Identifier) -> dict[str, Any]:
    catalog = source.open()
    loaded = catalog.load(view)
    if loaded.settings is None:
        raise NotMaterializedError(f"{view} is a plain view: there is nothing to refresh")
    observation = Chains().observe(catalog, loaded)
    column = column_of(observation)
    row = row_of(summary_of(observation))
    return {
        **row.to_dict(),
        "conn_id": source.address.conn_id,
        "checked_at": datetime.now(UTC).isoformat(),
        "sql": observation.query.text,
        "version_id": loaded.metadata.current_version_id,
        "layout": stored_layout(loaded).layout,
        "allow_stale_data": loaded.settings.allow_stale_data,
        "max_staleness_seconds": row.late_after.total_seconds() if row.late_after else None,
        "how_to_read": how_to_read(loaded, observation.storage),
        "base_tables": _base_tables(observation),
        "interval_column": column,
        "interval_type": kind_of(column, loaded.metadata.schema_.fields) if column else None,
        "history": history(catalog, view),
    }


def _base_tables(observation: Observation) -> list[dict[str, Any]]:
    errors = {table.identifier: table.error for table in observation.tables if table.error}
    expiring = expiries(observation)
    return [
        {
            **change.to_dict(),
            "reason": harmless(change.reason.message) if change.reason else None,
            "error": harmless(errors[change.identifier]) if change.identifier in errors else None,
            "expires_at": expiring[change.identifier].isoformat() if change.identifier in expiring else None,
        }
        for change in observation.freshness.base_tables
    ]


def _tables(catalog: MaterializedViewCatalog, view: Identifier) -> dict[str, Any]:
    from airflow_mv.extras.registry.advice import findings_of

    observation = Chains().observe(catalog, view)
    tables = findings_of(catalog, observation.queries, [table.name for table in observation.tables])
    return {"tables": {name: [_shown(item) for item in items] for name, items in tables.items()}}


def _shown(finding: Finding) -> dict[str, str]:
    return {"code": finding.code, "message": harmless(finding.message), "remedy": harmless(finding.remedy)}


def _plan(catalog: MaterializedViewCatalog, view: Identifier) -> dict[str, Any]:
    from airflow_mv.actions import plan_view

    plan = plan_view(catalog, view)
    document = plan.to_dict()
    document["estimates"] = with_expected(document["estimates"], durations(catalog, view))
    kept = {key: document[key] for key in ("view", "mode", "state", "estimates", "refresh_id", "statements")}
    reasons = [{"code": item["code"], "message": harmless(item["message"])} for item in document["reasons"]]
    return {**kept, "reasons": reasons, "base_tables": document["base_tables"]}
