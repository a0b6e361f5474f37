# SPDX-License-Identifier: Apache-2.0
"""The costs of refreshes, from the registries of the page's catalogs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from sqlalchemy.orm import Session

from airflow_mv.core.catalog import MaterializedViewCatalog
from airflow_mv.errors import MaterializedViewError
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

Line = dict[str, Any]


def costs_of(catalog: MaterializedViewCatalog, days: int) -> dict[str, Any]:
    """Return the answers of a catalog's registry, for :func:`shown`.

    Args:
        days: How many days they are about, up to now.

    Returns:
        ``registry``: where it is, ``None`` if there is none; ``checked_at``: when a sync has last checked the views;
        ``answers``: the lines of each question; ``problem``: why there are none.
    """
    found: dict[str, Any] = {"registry": None, "setting": PLACE, "checked_at": None, "answers": {}, "problem": None}
    try:
        registry = registry_of(catalog)
        if registry is None:
            return found
        found["registry"] = registry.place
        answers = ask_each(registry, SHOWN, days=days, most_rows=_MAX_ROWS)
        looked = [moment for moment in registry.views.read(columns=["checked_at"])["checked_at"].to_pylist() if moment]
        found["checked_at"] = max(looked).isoformat() if looked else None
        found["answers"] = {name: _lines(answer) for name, answer in answers.items()}
    except MaterializedViewError as error:
        found["problem"] = problem(error)
    return found


def shown(found: Mapping[str, Any], reader: Reader, session: Session) -> dict[str, Any]:
    """Return the answers that a user may see. DAGs that they may not read are added up, without names.

    Args:
        found: What :func:`costs_of` has returned.
        session: Of Airflow's database.

    Returns:
        The same document. If there are answers, it has their ``totals``, and of each question at most
        :data:`MAX_LINES` ``lines`` and their ``total`` number.
    """
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
