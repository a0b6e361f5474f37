# SPDX-License-Identifier: Apache-2.0
"""Filter, sort and page rows, and build their graph. Pure: no I/O."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from airflow_mv.plugin.rows import STATES, ViewRow
from airflow_mv.spec.identifiers import Identifier

SORTS = ("attention", "view", "lag", "refreshed", "rows", "mode")
_SEVERITY = {state: place for place, state in enumerate(STATES)}
_NODES = 150


@dataclass(frozen=True, slots=True)
class Query:
    """The filter, sorting and page of a list request.

    Args:
        text: Part of a view's or a base table's name; case is ignored.
        states: Only these states. Empty: all.
        views: Only views of these names, if given.
        sort: One of :data:`SORTS`.
        descending: Whether to sort in descending order.
        offset: Rows to skip.
        limit: Most rows to return.
    """

    text: str = ""
    states: tuple[str, ...] = ()
    views: frozenset[str] | None = None
    sort: str = "attention"
    descending: bool = False
    offset: int = 0
    limit: int = 100


def matching(rows: Iterable[ViewRow], query: Query) -> list[ViewRow]:
    """Return the rows that match, in any state."""
    text = query.text.strip().lower()
    return [
        row
        for row in rows
        if (query.views is None or str(row.view) in query.views)
        and (not text or text in str(row.view).lower() or any(text in name.lower() for name, _ in row.tables))
    ]


def cut(rows: Sequence[ViewRow], query: Query) -> tuple[list[ViewRow], int]:
    """Return the requested page of the rows in the requested states, sorted, and their total number."""
    wanted = [row for row in rows if not query.states or row.state in query.states]
    now = datetime.now(UTC)
    wanted.sort(key=lambda row: str(row.view))
    wanted.sort(key=lambda row: _key(row, query.sort, now), reverse=query.descending)
    if query.sort != "attention":
        wanted.sort(key=lambda row: _is_missing(row, query.sort, now))  # unknown values come last in both directions
    return wanted[query.offset : query.offset + query.limit], len(wanted)


def counts(rows: Iterable[ViewRow]) -> dict[str, int]:
    """Count rows by state, the states in order of attention."""
    found = Counter(row.state for row in rows)
    return {state: found[state] for state in STATES if found[state]}


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


def graph(rows: Sequence[ViewRow], around: Collection[str]) -> dict[str, Any]:
    """Return the graph of views and tables.

    Args:
        rows: All views.
        around: Views to show, with all their direct and indirect inputs and dependents.

    Returns:
        ``nodes``, ``edges`` (from the table that is read to its reader), and how many nodes were ``left_out``.
    """
    by_name = {str(row.view): row for row in rows}
    readers: dict[str, list[str]] = {}
    for row in rows:
        for name, _ in row.tables:
            readers.setdefault(name, []).append(str(row.view))
    down = {name: [table for table, _ in row.tables] for name, row in by_name.items()}
    chosen = _reach(around, down) | _reach(around, readers)
    kept = sorted(chosen, key=lambda name: (name not in around, name))[:_NODES]
    edges = [[table, name] for name in kept for table in down.get(name, ()) if table in set(kept)]
    nodes = [
        {
            "id": name,
            "name": Identifier.parse(name).name,
            "kind": "view" if name in by_name else "table",
            "state": by_name[name].state if name in by_name else None,
        }
        for name in kept
    ]
    return {"nodes": nodes, "edges": edges, "left_out": len(chosen) - len(kept)}


def _reach(start: Collection[str], onward: Mapping[str, Sequence[str]]) -> set[str]:
    seen = set(start)
    waiting = deque(start)
    while waiting:
        for name in onward.get(waiting.popleft(), ()):
            if name not in seen:
                seen.add(name)
                waiting.append(name)
    return seen
