# SPDX-License-Identifier: Apache-2.0
"""The costs of refreshes: from the registry of a catalog, or else from what its views have recorded."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy.orm import Session

from airflow_mv.common.each import for_each
from airflow_mv.core.catalog import MaterializedViewCatalog
from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.errors import MaterializedViewError
from airflow_mv.extras.costs import costs
from airflow_mv.extras.describe import history
from airflow_mv.extras.registry.query import Answer, ask_each
from airflow_mv.extras.registry.registry import registry_of
from airflow_mv.extras.registry.settings import PLACE
from airflow_mv.plugin.messages import harmless, problem
from airflow_mv.plugin.runs import Reader

#: The questions that the page shows.
SHOWN = ("costs", "costs-by-dag", "costs-by-owner", "saved", "fallbacks", "lagging", "late")
#: The most days that it is asked about.
MAX_DAYS = 366
#: The most lines of a question.
MAX_LINES = 25
#: The most rows of a registry's table that the api-server reads at once.
_MAX_ROWS = 2_000_000
_BY_DAG = "costs-by-dag"
#: The most views whose records are read for a catalog without a registry, those that were refreshed last.
MAX_VIEWS = 200
_RECORDED = ("refreshed_at", "mode", "rows_written", "seconds", "job_seconds", "executor_seconds", "requested_by")
_HIDDEN = {"user": "a DAG that you may not read"}

Line = dict[str, Any]


def costs_of(catalog: MaterializedViewCatalog, refreshed: Sequence[Identifier], days: int) -> dict[str, Any]:
    """Return the answers of a catalog's registry, or else what its views have recorded, for :func:`shown`.

    Args:
        refreshed: The views that were refreshed in this time, the last one first.
        days: How many days they are about, up to now.

    Returns:
        ``registry``: where it is, ``None`` if there is none; ``checked_at``: when a sync has last checked the views;
        ``answers``: the lines of each question; ``recorded``: without a registry, the refreshes that each view has
        recorded, and how many views were ``left_out``; ``problem``: why there are none.
    """
    found: dict[str, Any] = {"registry": None, "setting": PLACE, "checked_at": None, "answers": {}, "problem": None}
    try:
        registry = registry_of(catalog)
        if registry is None:
            return {**found, "recorded": _recorded(catalog, refreshed)}
        found["registry"] = registry.place
        answers = ask_each(registry, SHOWN, days=days, most_rows=_MAX_ROWS)
        looked = [moment for moment in registry.views.read(columns=["checked_at"])["checked_at"].to_pylist() if moment]
        found["checked_at"] = max(looked).isoformat() if looked else None
        found["answers"] = {name: _lines(answer) for name, answer in answers.items()}
    except MaterializedViewError as error:
        found["problem"] = problem(error)
    return found


def shown(found: Mapping[str, Any], days: int, reader: Reader, session: Session) -> dict[str, Any]:
    """Return the answers that a user may see. DAGs that they may not read are added up, without names.

    Args:
        found: What :func:`costs_of` has returned.
        days: As it was given.
        session: Of Airflow's database.

    Returns:
        The same document. If there are answers, it has their ``totals``, and of each question at most
        :data:`MAX_LINES` ``lines`` and their ``total`` number. Of recorded refreshes there is one question.
    """
    if found.get("recorded"):
        return {**found, "recorded": _shown_records(found["recorded"], days, reader, session)}
    answers: dict[str, list[Line]] = dict(found["answers"])
    if not answers:
        return dict(found)
    dags = [line["dag_id"] for line in answers[_BY_DAG] if line["dag_id"] is not None]
    answers[_BY_DAG] = _without_hidden(answers[_BY_DAG], reader.readable(dags, session) | {None})
    totals = {
        "refreshes": _sum(answers["costs"], "refreshes"),
        "cost_seconds": _sum(answers["costs"], "cost_seconds"),
        "saved_seconds": _sum(answers["saved"], "saved_seconds"),
        "fallbacks": _sum(answers["fallbacks"], "fallbacks"),
        "lagging": len(answers["lagging"]),
        "late": len(answers["late"]),
    }
    cut = {name: {"lines": lines[:MAX_LINES], "total": len(lines)} for name, lines in answers.items()}
    return {**found, "answers": cut, "totals": totals}


def _recorded(catalog: MaterializedViewCatalog, refreshed: Sequence[Identifier]) -> dict[str, Any]:
    found = list(for_each(refreshed[:MAX_VIEWS], lambda view: history(catalog, view)))
    views = {
        str(item.item): [{key: refresh[key] for key in _RECORDED} for refresh in item.value]
        for item in found
        if item.value is not None
    }
    return {"views": views, "left_out": len(refreshed) - len(views)}


def _shown_records(recorded: Mapping[str, Any], days: int, reader: Reader, session: Session) -> dict[str, Any]:
    """Return what the recorded refreshes cost by view, the most expensive first."""
    views: Mapping[str, Sequence[Mapping[str, Any]]] = recorded["views"]
    dags = {refresh["requested_by"].get("dag-id") for refreshes in views.values() for refresh in refreshes} - {None}
    readable = reader.readable(dags, session)
    since = datetime.now(UTC) - timedelta(days=days)
    found = (
        costs(view, [_without_dag(item, readable) for item in refreshes], since) for view, refreshes in views.items()
    )
    lines = sorted((line for line in found if line["refreshes"]), key=lambda line: -(line["cost_seconds"] or 0.0))
    keys = ("refreshes", "cost_seconds", "rows_written", "unmeasured")
    totals = {key: _sum(lines, key) for key in keys} | {"full": sum(line["modes"].get("full", 0) for line in lines)}
    return {"lines": lines[:MAX_LINES], "total": len(lines), "totals": totals, "left_out": recorded["left_out"]}


def _without_dag(refresh: Mapping[str, Any], readable: Collection[str]) -> Mapping[str, Any]:
    dag_id = refresh["requested_by"].get("dag-id")
    return refresh if dag_id is None or dag_id in readable else {**refresh, "requested_by": _HIDDEN}


def _lines(answer: Answer) -> list[Line]:
    return [{key: _value(value) for key, value in line.items()} for line in answer.documents()]


def _value(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    return harmless(value) if isinstance(value, str) else value


def _without_hidden(lines: list[Line], readable: set[str | None]) -> list[Line]:
    kept = [line for line in lines if line["dag_id"] in readable]
    hidden = [line for line in lines if line["dag_id"] not in readable]
    if not hidden:
        return kept
    numbers = {key: _sum(hidden, key) for key in hidden[0] if key != "dag_id"}
    return [*kept, {"dag_id": None, "hidden": len(hidden), **numbers}]


def _sum(lines: Iterable[Line], key: str) -> float:
    return sum(line[key] or 0 for line in lines)
