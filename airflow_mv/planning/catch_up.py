# SPDX-License-Identifier: Apache-2.0
"""Catch up by a bounded number of base commits: a look at a view as if the later ones had not been made yet."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from airflow_mv.observe import Observation, freshness_of
from airflow_mv.plan.freshness import BaseTableChange, ObservedTable, State
from airflow_mv.plan.reasons import Code, Reason
from airflow_mv.spec.table import Snapshot, snapshots_between

#: Of each new commit: when it was made, by a clock that never runs back; the table; the commit.
_Commit = tuple[int, str, Snapshot]


def up_to(observation: Observation, most: int) -> tuple[Observation, Reason] | None:
    """Return a stale view as it was when its base tables had so many commits that the view has not seen.

    All base tables are cut at one moment, that of the last of these commits; commits of that very moment come along.

    Args:
        observation: A look at the view.
        most: The number, over all base tables.

    Returns:
        ``None`` where there are no more than that, or where base tables have been rolled back, expired or recreated:
        then nothing but a whole refresh makes the view fresh.
    """
    if observation.freshness.state != State.STALE or observation.freshness.parts or not observation.storage.intact:
        return None
    changes = {change.identifier: change for change in observation.freshness.base_tables}
    lines = [_line(table, changes[table.identifier]) for table in observation.tables]
    commits = [commit for line in lines if line is not None for commit in line]
    if None in lines or len(commits) <= most:
        return None
    end = sorted(moment for moment, _, _ in commits)[most - 1]
    seen = [commit for commit in commits if commit[0] <= end]
    left = len(commits) - len(seen)
    if not left:
        return None
    heads = {name: snapshot.snapshot_id for _, name, snapshot in seen}
    tables = tuple(_at(table, heads, changes[table.identifier]) for table in observation.tables)
    cut = replace(observation, tables=tables)
    why = Reason(
        Code.BOUNDED, f"the first {len(seen)} of {len(commits)} new base commits; {left} are left for the next runs"
    )
    return replace(cut, freshness=freshness_of(cut)), why


def _line(table: ObservedTable, change: BaseTableChange) -> list[_Commit] | None:
    """Return the commits between the recorded snapshot and the head; ``None`` where they are not on one line."""
    if not change.moved:
        return []
    between = None if table.table is None else snapshots_between(table.table, change.recorded, table.head)
    return None if between is None else list(_in_order(table.identifier, between))


def _in_order(name: str, line: tuple[Snapshot, ...]) -> Iterator[_Commit]:
    moment = 0
    for snapshot in line:
        moment = max(moment, snapshot.timestamp_ms)
        yield moment, name, snapshot


def _at(table: ObservedTable, heads: dict[str, int], change: BaseTableChange) -> ObservedTable:
    head = heads.get(table.identifier, change.recorded)
    # A location stands for the snapshot that is current there, and for no older one.
    return table if head == table.head else replace(table, head=head, metadata_location=None)
