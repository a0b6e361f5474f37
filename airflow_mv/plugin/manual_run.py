# SPDX-License-Identifier: Apache-2.0
"""The input that a manual run of a DAG needs before it can refresh. Read from the serialized DAG."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from airflow.models.serialized_dag import SerializedDagModel
from sqlalchemy.orm import Session

from airflow_mv.tasks.scope import END_PARAM, START_PARAM

Asks = Literal["nothing", "interval", "form"]

#: Templated fields of every operator that plans a refresh, and together of no other.
_FIELDS = frozenset({"scope", "interval_column", "max_snapshots"})


def asking(dag_id: str, session: Session) -> dict[str, Any]:
    """Return the input that the user has to give for a manual run of a DAG.

    A run that is started by hand has no data interval, so a task that refreshes the run's interval refuses it, unless
    the run's conf names one. The conf applies to all tasks of the run.

    Args:
        session: Of Airflow's database.

    Returns:
        ``asks``: ``nothing``; ``interval``, under the names in ``params``, of the time zone ``zone``; or ``form``,
        if tasks differ or have a templated scope: then only the DAG's own form fits.
    """
    stored = SerializedDagModel.get(dag_id, session=session)
    dag = (stored.data or {}).get("dag", {}) if stored else {}
    return {"asks": _asks(dag), "params": [START_PARAM, END_PARAM], "zone": _zone(dag)}


def scopes_in(data: Mapping[str, Any] | None) -> dict[str, tuple[Any, str | None]]:
    """Return the scope and the length of the interval of each task of a serialized DAG that refreshes a view.

    Args:
        data: The serialized DAG.

    Returns:
        By task id. A scope that is known only in a run is ``None`` or a template.
    """
    found = {}
    for task in map(_inside, (data or {}).get("dag", {}).get("tasks", ())):
        if set(task.get("template_fields", ())) >= _FIELDS:
            length = task.get("partial_kwargs", task).get("interval_length")
            found[str(task.get("task_id"))] = _scope(task), length if isinstance(length, str) else None
    return found


def _asks(dag: Mapping[str, Any]) -> Asks:
    scopes = {scope for scope, _ in scopes_in({"dag": dag}).values()}
    if scopes <= {"whole", "as_of"}:
        return "nothing"
    return "interval" if scopes == {"interval"} else "form"


def _scope(task: Mapping[str, Any]) -> Any:
    """Return the scope as written; ``None`` if it is known only in a run."""
    if not task.get("_is_mapped"):
        return task.get("scope") or "whole"
    mapped = task.get("expand_input", {})
    values = _inside(mapped.get("value"))
    if mapped.get("type") != "dict-of-lists" or "scope" in values:
        return None
    return task.get("partial_kwargs", {}).get("scope") or "whole"


def _zone(dag: Mapping[str, Any]) -> str:
    """Return the schedule's time zone, else the DAG's: a day of a date column is a day of that zone."""
    zone = _inside(dag.get("timetable")).get("timezone") or dag.get("timezone")
    return zone if isinstance(zone, str) else "UTC"


def _inside(value: Any) -> Mapping[str, Any]:
    found = value.get("__var", value) if isinstance(value, Mapping) else {}
    return found if isinstance(found, Mapping) else {}
