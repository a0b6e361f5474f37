# SPDX-License-Identifier: Apache-2.0
"""The questions that most people ask the registry, as SQL."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class NamedQuery:
    """A question that the registry answers.

    Args:
        about: What it answers, in one line.
        sql: The query. ``$since`` is the beginning of the time that it is about.
    """

    about: str
    sql: str

    @property
    def has_time(self) -> bool:
        """Whether it is about past refreshes, and not only about the views as they are."""
        return "$since" in self.sql


_COST = "round(sum(coalesce(executor_seconds, job_seconds, seconds)), 1)"
_COSTS = f"count(*) AS refreshes, {_COST} AS cost_seconds, round(sum(seconds), 1) AS seconds, \
sum(bytes_read) AS bytes_read, sum(rows_written) AS rows_written"
_RECENT = "FROM refreshes WHERE refreshed_at >= $since"

#: The questions, by the name of their command.
QUESTIONS: Mapping[str, NamedQuery] = MappingProxyType(
    {
        "lagging": NamedQuery(
            "Views that are not fresh, those with the longest lag first.",
            "SELECT view, state, lag_seconds, refreshed_at, explanation FROM views WHERE state <> 'fresh' "
            "ORDER BY lag_seconds DESC NULLS FIRST, view",
        ),
        "late": NamedQuery(
            "Views whose lag exceeds their freshness SLO.",
            "SELECT view, lag_seconds, max_staleness_seconds, owner FROM views "
            "WHERE lag_seconds > max_staleness_seconds ORDER BY lag_seconds - max_staleness_seconds DESC, view",
        ),
        "fallbacks": NamedQuery(
            "Incremental views that were recomputed in full, how often, and why the last time.",
            "SELECT view, count(*) AS fallbacks, max(refreshed_at) AS last_at, arg_max(fallback, refreshed_at) AS why "
            f"{_RECENT} AND fallback IS NOT NULL GROUP BY view ORDER BY fallbacks DESC, view",
        ),
        "costs": NamedQuery(
            "Refresh costs by view.",
            f"SELECT view, {_COSTS} {_RECENT} GROUP BY view ORDER BY cost_seconds DESC NULLS LAST, view",
        ),
        "costs-by-dag": NamedQuery(
            "Refresh costs by requesting DAG.",
            f"SELECT dag_id, {_COSTS} {_RECENT} GROUP BY dag_id ORDER BY cost_seconds DESC NULLS LAST, dag_id",
        ),
        "costs-by-owner": NamedQuery(
            "Refresh costs by view owner.",
            f"SELECT owner, {_COSTS} FROM refreshes LEFT JOIN (SELECT view, owner FROM views) USING (view) "
            "WHERE refreshes.refreshed_at >= $since GROUP BY owner ORDER BY cost_seconds DESC NULLS LAST, owner",
        ),
        "saved": NamedQuery(
            "Job time saved by incremental refreshes, by the estimates of full ones.",
            "SELECT view, count(*) AS refreshes, round(sum(job_seconds), 1) AS job_seconds, "
            "round(sum(full_seconds), 1) AS full_seconds, "
            f"round(sum(full_seconds) - sum(job_seconds), 1) AS saved_seconds {_RECENT} AND mode <> 'full' "
            "AND full_seconds IS NOT NULL AND job_seconds IS NOT NULL GROUP BY view ORDER BY saved_seconds DESC, view",
        ),
        "modes": NamedQuery(
            "Number of refreshes of each view by mode.",
            f"SELECT view, mode, count(*) AS refreshes, round(avg(seconds), 1) AS seconds {_RECENT} "
            "GROUP BY view, mode ORDER BY view, mode",
        ),
        "slowest": NamedQuery(
            "The slowest refreshes.",
            f"SELECT view, refreshed_at, mode, round(seconds, 1) AS seconds, rows_written, dag_id, run_id {_RECENT} "
            "AND seconds IS NOT NULL ORDER BY seconds DESC, view LIMIT 20",
        ),
        "idle": NamedQuery(
            "Views without a refresh in that time.",
            f"SELECT view, state, refreshed_at, owner FROM views WHERE view NOT IN (SELECT view {_RECENT}) "
            "ORDER BY refreshed_at NULLS FIRST, view",
        ),
    }
)
