# SPDX-License-Identifier: Apache-2.0
"""The cost of the recorded refreshes of a view, and their requesters. A registry only has more refreshes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from statistics import median
from typing import Any

from airflow_mv.core.spec.times import parse_time

#: The recorded refreshes that an expectation is from, the newest ones.
_LAST = 5


def costs(view: str, refreshes: Iterable[Mapping[str, Any]], since: datetime) -> dict[str, Any]:
    """Return the costs of a view's refreshes.

    Args:
        refreshes: The documents of its refreshes, see :func:`airflow_mv.extras.describe.history`.
        since: Only refreshes from this time on.

    Returns:
        ``refreshes``: how many; ``modes`` and ``requested_by``: how many of each; ``seconds``: wall-clock time;
        ``job_seconds``: that of the jobs' statements; ``cost_seconds``: the time that Spark's executors worked, or else
        one of the other two; ``unmeasured``: refreshes without a recorded duration; ``last_at``: the last refresh.
    """
    kept = [item for item in refreshes if item["refreshed_at"] and parse_time(item["refreshed_at"]) >= since]
    costly = [[item[name] for name in ("executor_seconds", "job_seconds", "seconds")] for item in kept]
    return {
        "view": view,
        "refreshes": len(kept),
        "modes": dict(Counter(item["mode"] or "unknown" for item in kept).most_common()),
        "rows_written": _sum(item["rows_written"] for item in kept),
        "seconds": _sum(item["seconds"] for item in kept),
        "job_seconds": _sum(item["job_seconds"] for item in kept),
        "cost_seconds": _sum(next((value for value in found if value is not None), None) for found in costly),
        "unmeasured": sum(item["seconds"] is None for item in kept),
        "requested_by": dict(Counter(requested_by(item["requested_by"]) for item in kept).most_common()),
        "last_at": max((item["refreshed_at"] for item in kept), default=None),
    }


def requested_by(who: Mapping[str, str]) -> str:
    """Return who requested a refresh: the DAG, and a user who triggered it; or the user and host of a command."""
    user = who.get("user", "")
    if "dag-id" in who:
        return f"{who['dag-id']} ({user})" if user else who["dag-id"]
    return "@".join(part for part in (user, who.get("host", "")) if part) or "unknown"


def _sum(numbers: Iterable[float | None]) -> float | None:
    """Return the sum of the known numbers; ``None`` without one."""
    known: Sequence[float] = [number for number in numbers if number is not None]
    return round(sum(known), 3) if known else None


def with_expected(
    estimates: Iterable[Mapping[str, Any]], refreshes: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return the estimates of a plan with the wall-clock time that a person would wait, by the view's own refreshes.

    An estimate's ``seconds`` are those of Spark's statements in a warm session. What a refresh takes besides, such as
    the start of Spark, differs by where it runs, so only recorded refreshes show it.

    Args:
        estimates: See :class:`airflow_mv.core.refresh.plan.Estimate`, as JSON.
        refreshes: See :func:`airflow_mv.extras.describe.durations`.

    Returns:
        The estimates, each with ``expected_seconds`` and ``measured``, the number of refreshes that it is from;
        ``None`` and 0 if no duration is recorded.
    """
    timed = [item for item in refreshes if item["seconds"] is not None]
    besides = _median(item["seconds"] - (item["job_seconds"] or 0.0) for item in timed[-_LAST:])
    found = []
    for estimate in estimates:
        own = [item["seconds"] for item in timed if item["mode"] == estimate["mode"]][-_LAST:]
        known = [_median(own)] if own else []
        if besides is not None and estimate["seconds"] is not None:
            known.append(besides + estimate["seconds"])  # this change may be larger than those before
        expected = max((value for value in known if value is not None), default=None)
        measured = len(own) or min(len(timed), _LAST)
        found.append({**estimate, "expected_seconds": expected and round(expected, 1), "measured": measured})
    return found


def _median(numbers: Iterable[float]) -> float | None:
    known = list(numbers)
    return median(known) if known else None
