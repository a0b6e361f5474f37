# SPDX-License-Identifier: Apache-2.0
"""Catch up in bounded steps: plan a refresh up to a base commit, as if later commits did not exist yet."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from operator import itemgetter

from airflow_mv.freshness.changes import bytes_changed
from airflow_mv.freshness.observe import Observation, freshness_of
from airflow_mv.freshness.state import BaseTableChange, ObservedTable, State
from airflow_mv.refresh.cost import human
from airflow_mv.spec.reasons import Code, Reason
from airflow_mv.spec.table import Snapshot, TableMetadata, snapshots_between

#: Of each new commit: when it was made, by a clock that never runs back; the table; the commit; its bytes, perhaps
#: infinite.
_Commit = tuple[int, str, Snapshot, float]


@dataclass(frozen=True, slots=True)
class Bound:
    """How much of what is new is read at once: whichever is reached first, and at least one commit.

    Args:
        commits: New commits, over all base tables; ``None``: any number.
        size: Bytes of data and delete files that these commits added and removed, by their summaries; ``None``: any
            number. A commit whose writer did not say is taken for larger than any bound, and so is read alone.
    """

    commits: int | None = None
    size: int | None = None

    def end(self, commits: Sequence[_Commit]) -> int:
        """Return the moment of the last commit that is within the bound.

        Args:
            commits: The new ones, at least one, in order.
        """
        most = math.inf if self.commits is None else self.commits
        largest = math.inf if self.size is None else self.size
        end = commits[0][0]
        for number, size in enumerate(accumulate(map(itemgetter(3), commits)), 1):
            if number > 1 and (number > most or size > largest):
                break
            end = commits[number - 1][0]
        return end


def up_to(observation: Observation, bound: Bound) -> tuple[Observation, Reason] | None:
    """Return a stale view as it was when its base tables had only so much of what the view has not seen.

    All base tables are cut at one moment, that of the last of these commits; commits of that very moment come along.

    Args:
        observation: A look at the view.
        bound: How much.

    Returns:
        ``None`` where there is no more than that, or where base tables have been rolled back, expired or recreated:
        then nothing but a whole refresh makes the view fresh.
    """
    if observation.freshness.state != State.STALE or observation.freshness.parts or not observation.storage.intact:
        return None
    changes = {change.identifier: change for change in observation.freshness.base_tables}
    lines = [_line(table, changes[table.identifier]) for table in observation.tables]
    commits = sorted((commit for line in lines if line is not None for commit in line), key=itemgetter(0))
    if None in lines or not commits:
        return None
    end = bound.end(commits)
    seen = [commit for commit in commits if commit[0] <= end]
    if len(seen) == len(commits):
        return None
    heads = {name: snapshot.snapshot_id for _, name, snapshot, _ in seen}
    tables = tuple(_at(table, heads, changes[table.identifier]) for table in observation.tables)
    cut = replace(observation, tables=tables)
    return replace(cut, freshness=freshness_of(cut)), _why(seen, commits, bound)


def _why(seen: Sequence[_Commit], commits: Sequence[_Commit], bound: Bound) -> Reason:
    read = f"the first {len(seen)} of {len(commits)} new base commits"
    if bound.size is not None:
        size = sum(map(itemgetter(3), seen))
        read += " (files of unknown size)" if math.isinf(size) else f" ({human(int(size))} of files)"
    return Reason(Code.BOUNDED, f"{read}; left for the next runs: {len(commits) - len(seen)}")


def _line(table: ObservedTable, change: BaseTableChange) -> list[_Commit] | None:
    """Return the commits between the recorded snapshot and the head; ``None`` where they are not on one line."""
    if not change.moved:
        return []
    if table.table is None:
        return None
    between = snapshots_between(table.table, change.recorded, table.head)
    return None if between is None else list(_in_order(table, table.table, between))


def _in_order(observed: ObservedTable, table: TableMetadata, line: tuple[Snapshot, ...]) -> Iterator[_Commit]:
    moment = 0
    for snapshot in line:
        moment = max(moment, snapshot.timestamp_ms)
        size = bytes_changed(table, snapshot, observed.same_rows)
        yield moment, observed.identifier, snapshot, math.inf if size is None else size


def _at(table: ObservedTable, heads: dict[str, int], change: BaseTableChange) -> ObservedTable:
    head = heads.get(table.identifier, change.recorded)
    # A location stands for the snapshot that is current there, and for no older one.
    return table if head == table.head else replace(table, head=head, metadata_location=None)
