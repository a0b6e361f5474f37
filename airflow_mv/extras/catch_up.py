# SPDX-License-Identifier: Apache-2.0
"""Catch up in bounded steps: plan a refresh up to a base commit, as if later commits did not exist yet.

:class:`CatchUp` is the :attr:`~airflow_mv.core.refresh.RefreshOptions.bound` of a refresh.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from operator import itemgetter

from airflow_mv.core.freshness.changes import between, ends_of_commits
from airflow_mv.core.freshness.observe import Observation, freshness_of
from airflow_mv.core.freshness.state import BaseTableChange, ObservedTable, State
from airflow_mv.core.spec.reasons import Code, Reason
from airflow_mv.core.spec.table_metadata import Snapshot, TableMetadata, known_sum, snapshots_between
from airflow_mv.core.spec.units import human
from airflow_mv.errors import ConfigurationError

#: For each new commit: its time, by a monotonic clock; the table; the commit; its bytes, perhaps infinite. The commits
#: of one refresh of a materialized view are one, its last.
_NewCommit = tuple[int, str, Snapshot, float]


@dataclass(frozen=True, slots=True)
class CatchUp:
    """The number of new commits that are read at once: up to the first limit, and at least one commit.

    Args:
        commits: Maximum of new commits of all base tables; ``None``: no limit.
        size: Maximum of bytes of data and delete files that these commits added and removed, by their summaries;
            ``None``: no limit. A commit of unknown size counts as larger than any limit, so it is read alone.

    Raises:
        ConfigurationError: A limit is below 1.
    """

    commits: int | None = None
    size: int | None = None

    def __post_init__(self) -> None:
        for name, value in self.limits.items():
            if value < 1:
                raise ConfigurationError(f"{name} is {value}; it must be at least 1")

    @property
    def limits(self) -> dict[str, int]:
        """The limits, by the names that users know."""
        given = {"max_snapshots": self.commits, "max_bytes": self.size}
        return {name: value for name, value in given.items() if value is not None}

    def __str__(self) -> str:
        return " and ".join(self.limits)

    def up_to(self, observation: Observation) -> tuple[Observation, Reason] | None:
        """Return the observation of a stale view with only a bounded part of its pending changes.

        All base tables are read as of one time, that of the last of these commits, including commits of the same time.

        Returns:
            ``None`` if there are no more changes than that, or if base tables were rolled back, expired or recreated:
            then only a full refresh makes the view fresh.
        """
        freshness = observation.freshness
        if freshness.of_rows != State.STALE or freshness.parts or not observation.storage.intact:
            return None
        changes = {change.identifier: change for change in freshness.base_tables}
        lines = [_line(table, changes[table.identifier]) for table in observation.tables]
        commits = sorted((commit for line in lines if line is not None for commit in line), key=itemgetter(0))
        if None in lines or not commits:
            return None
        end = self.end(commits)
        seen = [commit for commit in commits if commit[0] <= end]
        if len(seen) == len(commits):
            return None
        heads = {name: snapshot.snapshot_id for _, name, snapshot, _ in seen}
        tables = tuple(_at(table, heads, changes[table.identifier]) for table in observation.tables)
        cut = replace(observation, tables=tables)
        return replace(cut, freshness=freshness_of(cut)), _why(seen, commits, self)

    def end(self, commits: Sequence[_NewCommit]) -> int:
        """Return the time of the last commit within the bound.

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


def _why(seen: Sequence[_NewCommit], commits: Sequence[_NewCommit], bound: CatchUp) -> Reason:
    read = f"this refresh reads the first {len(seen)} of {len(commits)} new base commits"
    if bound.size is not None:
        size = sum(map(itemgetter(3), seen))
        read += " (files of unknown size)" if math.isinf(size) else f" ({human(int(size))} of files)"
    return Reason(Code.BOUNDED, f"{read}; {len(commits) - len(seen)} remain for the next runs")


def _line(table: ObservedTable, change: BaseTableChange) -> list[_NewCommit] | None:
    """Return the commits between the recorded snapshot and the head; ``None`` if they are not on one line."""
    if not change.moved:
        return []
    if table.table is None:
        return None
    between = snapshots_between(table.table, change.recorded, table.head)
    return None if between is None else list(_in_order(table, table.table, between))


def _in_order(observed: ObservedTable, table: TableMetadata, line: tuple[Snapshot, ...]) -> Iterator[_NewCommit]:
    ends = ends_of_commits(line)
    moment, size = 0, 0.0
    for snapshot in line:
        moment = max(moment, snapshot.timestamp_ms)
        commit = between(table, snapshot.parent_snapshot_id, snapshot.snapshot_id, same_rows=observed.same_rows).size
        changed = known_sum([commit.bytes_added, commit.bytes_removed])
        size += math.inf if changed is None else changed
        if snapshot.snapshot_id in ends:
            yield moment, observed.identifier, snapshot, size
            size = 0.0


def _at(table: ObservedTable, heads: dict[str, int], change: BaseTableChange) -> ObservedTable:
    head = heads.get(table.identifier, change.recorded)
    if head == table.head or table.table is None:
        return table
    # A location stands for the snapshot that is current in it, not for an older one.
    cut = ObservedTable.at(table.name, table.table, head, None, table.storage)
    return replace(cut, same_rows=table.same_rows, corrected=table.corrected)
