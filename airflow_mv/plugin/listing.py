# SPDX-License-Identifier: Apache-2.0
"""Filter, sort, group and page rows. Pure: no I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.plugin.rows import STATES, ViewRow

Sort = Literal["attention", "view", "lag", "refreshed", "rows", "mode"]
#: Not states of a view's rows, but shown and filtered like them: a refresh runs or waits, the last one has failed, or
#: the view breaches its freshness SLO.
RUNNING, FAILED, LATE = "running", "failed", "late"
MARKS = (LATE, RUNNING, FAILED)
#: The group of views that no DAG refreshes, as far as the user may know.
NO_DAG = "no DAG"
_SEVERITY = {state: place for place, state in enumerate(STATES)}
#: The most groups.
MAX_GROUPS = 200

#: Returns the groups that a view is in.
GroupsOf = Callable[[ViewRow], Collection[str]]
#: The views that have each of :data:`MARKS`.
Marks = Mapping[str, Collection[str]]


@dataclass(frozen=True, slots=True)
class Query:
    """The filter, sorting and page of a list request.

    Args:
        text: Part of a view's or a base table's name; case is ignored.
        states: Only these states and :data:`MARKS`. Empty: all.
        views: Only views of these names, if given.
        namespace: Only views of this namespace, written with its catalog, if given.
        sort: The column; ``attention`` is how much a view needs it.
        descending: Whether to sort in descending order.
        offset: Rows to skip.
        limit: Most rows to return.
        opened: The groups whose views are returned.
    """

    text: str = ""
    states: tuple[str, ...] = ()
    views: frozenset[str] | None = None
    namespace: str | None = None
    sort: str = "attention"
    descending: bool = False
    offset: int = 0
    limit: int = 100
    opened: frozenset[str] = frozenset()


def matching(rows: Iterable[ViewRow], query: Query) -> list[ViewRow]:
    """Return the rows that match, in any state."""
    text = query.text.strip().lower()
    return [
        row
        for row in rows
        if (query.views is None or str(row.view) in query.views)
        and (query.namespace is None or namespace_of(row.view) == query.namespace)
        and (not text or text in str(row.view).lower() or any(text in name.lower() for name, _ in row.tables))
    ]


def in_states(rows: Sequence[ViewRow], query: Query, marks: Marks) -> list[ViewRow]:
    """Return the rows in the requested states, sorted.

    Args:
        marks: The views that have each mark.
    """
    wanted = [row for row in rows if _is_in(row, query.states, marks)]
    now = datetime.now(UTC)
    wanted.sort(key=lambda row: str(row.view))
    wanted.sort(key=lambda row: _key(row, query.sort, now), reverse=query.descending)
    if query.sort != "attention":
        wanted.sort(key=lambda row: _is_missing(row, query.sort, now))  # unknown values come last in both directions
    return wanted


def counts(rows: Iterable[ViewRow], marks: Marks) -> dict[str, int]:
    """Count rows by state, the states in order of attention, and at last by mark."""
    rows = list(rows)
    found = Counter(row.state for row in rows)
    for mark, views in marks.items():
        found[mark] = sum(str(row.view) in views for row in rows)
    return {state: found[state] for state in (*STATES, *MARKS) if found[state]}


def namespace_of(name: Identifier) -> str:
    """Return the namespace of a view or table, with its catalog."""
    return ".".join((name.catalog, *name.namespace))


def grouped(
    rows: Sequence[ViewRow], query: Query, groups_of: GroupsOf, marks: Marks
) -> tuple[list[ViewRow], list[dict[str, Any]]]:
    """Divide rows into groups.

    Args:
        rows: The rows, sorted.
        groups_of: Returns the groups of a row.
        marks: The views that have each mark.

    Returns:
        The rows to show: all if they fit, else the first ones of each opened group. And the groups by name, each with
        its ``total``, ``counts``, whether it is ``open``, and the names of its shown ``views``.
    """
    by_group: dict[str, list[ViewRow]] = {}
    for row in rows:
        for name in groups_of(row):
            by_group.setdefault(name, []).append(row)
    all_fit = len(rows) <= query.limit
    found, shown = [], dict[Identifier, ViewRow]()
    for name in sorted(by_group, key=lambda name: (name == NO_DAG, name))[:MAX_GROUPS]:
        inside = by_group[name][: query.limit] if all_fit or name in query.opened else []
        shown |= {row.view: row for row in inside}
        group = {"name": name, "total": len(by_group[name]), "counts": counts(by_group[name], marks)}
        found.append({**group, "open": bool(inside), "views": [str(row.view) for row in inside]})
    return list(shown.values()), found


def _is_in(row: ViewRow, states: Collection[str], marks: Marks) -> bool:
    return not states or row.state in states or any(str(row.view) in marks[mark] for mark in marks.keys() & states)


def _key(row: ViewRow, sort: str, now: datetime) -> Any:
    lag = row.lag(now)["seconds"]
    if sort == "attention":
        return _SEVERITY.get(row.state, 0), -(lag or 0.0)
    return {
        "view": str(row.view),
        "lag": lag or 0.0,
        "refreshed": row.refreshed_at or "",
        "rows": row.rows or 0,
        "mode": row.mode or "",
    }[sort]


def _is_missing(row: ViewRow, sort: str, now: datetime) -> bool:
    values = {"lag": row.lag(now)["seconds"], "refreshed": row.refreshed_at, "rows": row.rows, "mode": row.mode}
    return sort in values and values[sort] is None
