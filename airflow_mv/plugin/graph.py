# SPDX-License-Identifier: Apache-2.0
"""The graph of views and the tables that they read. Pure: no I/O.

A graph of more than 150 nodes is drawn by groups, so that it leaves nothing out: a view or table is a node of its own,
or it is counted in the node of its group.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.plugin.listing import MAX_GROUPS, NO_DAG, RUNNING, GroupsOf, counts, namespace_of
from airflow_mv.plugin.rows import STATES, ViewRow

#: The most nodes that are not groups.
_MAX_NODES = 150
_URGENCY = {state: place for place, state in enumerate(STATES)}


@dataclass(frozen=True, slots=True)
class GraphQuery:
    """The selection of a graph.

    Args:
        around: Views to show, with all their direct and indirect inputs and dependents. Of one view, the nearest ones
            are nodes of their own; of several, those in opened groups, the most urgent first.
        running: The views that are refreshed now.
        groups_of: Returns the groups of a view, of which the first counts; by default its namespace, if there are too
            many nodes. Tables are grouped by namespace.
        opened: The groups that are opened. If there is one group only, it is.
    """

    around: Collection[str]
    running: Collection[str] = ()
    groups_of: GroupsOf | None = None
    opened: Collection[str] = ()


def graph(rows: Sequence[ViewRow], asked: GraphQuery) -> dict[str, Any]:
    """Return the graph of views and tables.

    Args:
        asked: What it is asked for.

    Returns:
        ``nodes``, and ``edges`` from what is read to its reader. A node of the kind ``group`` has the number of its
        ``views`` and ``tables``, the ``counts`` of their states, and whether it is the ``rest`` of a group of which
        other views and tables are nodes. ``opened``: the opened groups, which can be closed. ``left_out``: how many
        groups there was no room for.
    """
    by_name = {str(row.view): row for row in rows}
    down = {name: [table for table, _ in row.tables] for name, row in by_name.items()}
    distance = {**_reach(asked.around, _turned(down)), **_reach(asked.around, down)}
    group: dict[str, str] = {}
    if asked.groups_of or len(distance) > _MAX_NODES:
        group = {name: _group_of(name, by_name.get(name), asked.groups_of) for name in distance}
    opened = set(asked.opened) & set(group.values())
    is_alone = len(set(group.values())) < 2  # the only group has nothing beside it
    apart = [name for name in distance if is_alone or len(asked.around) == 1 or group[name] in opened]
    apart = sorted(apart, key=lambda name: (distance[name], *_urgency(name, by_name)))[:_MAX_NODES]
    place = {name: name for name in apart}
    inside: dict[str, list[str]] = {}
    for name in distance.keys() - place.keys():
        place[name] = f"group {group[name]}"
        inside.setdefault(group[name], []).append(name)
    begun = {group[name] for name in apart if group}
    groups = [{**_group(name, inside[name], by_name, asked.running), "rest": name in begun} for name in sorted(inside)]
    nodes = [_node(name, by_name.get(name), asked.running) for name in apart] + groups[:MAX_GROUPS]
    known = {node["id"] for node in nodes}
    pairs = {(place[table], place[name]) for name in distance for table in down.get(name, ()) if table in place}
    return {
        "nodes": nodes,
        "edges": sorted([one, other] for one, other in pairs if one != other and {one, other} <= known),
        "opened": [] if is_alone else sorted(opened),
        "left_out": len(groups[MAX_GROUPS:]),
    }


def _turned(down: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    readers: dict[str, list[str]] = {}
    for name, tables in down.items():
        for table in tables:
            readers.setdefault(table, []).append(name)
    return readers


def _reach(start: Collection[str], onward: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """Return what can be reached, each with the number of steps to it."""
    steps = dict.fromkeys(start, 0)
    waiting = deque(start)
    while waiting:
        name = waiting.popleft()
        for other in onward.get(name, ()):
            if other not in steps:
                steps[other] = steps[name] + 1
                waiting.append(other)
    return steps


def _group_of(name: str, row: ViewRow | None, groups_of: GroupsOf | None) -> str:
    if row is None:
        return namespace_of(Identifier.parse(name))
    return min(groups_of(row), default=NO_DAG) if groups_of else namespace_of(row.view)


def _urgency(name: str, by_name: Mapping[str, ViewRow]) -> tuple[int, str]:
    return _URGENCY.get(by_name[name].state, 0) if name in by_name else len(STATES), name


def _node(name: str, row: ViewRow | None, running: Collection[str]) -> dict[str, Any]:
    return {
        "id": name,
        "name": Identifier.parse(name).name,
        "kind": "table" if row is None else "view",
        "state": row.state if row else None,
        "running": name in running,
    }


def _group(
    name: str, members: Sequence[str], by_name: Mapping[str, ViewRow], running: Collection[str]
) -> dict[str, Any]:
    views = [by_name[member] for member in members if member in by_name]
    return {
        "id": f"group {name}",
        "name": name,
        "kind": "group",
        "views": len(views),
        "tables": len(members) - len(views),
        "counts": counts(views, {RUNNING: running}),
        "running": any(str(row.view) in running for row in views),
    }
