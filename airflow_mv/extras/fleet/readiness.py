# SPDX-License-Identifier: Apache-2.0
"""A view's state for those who wait for it or monitor it, given a tolerated lag."""

from __future__ import annotations

from datetime import datetime, timedelta
from enum import StrEnum

from airflow_mv.core.freshness.state import Lag, State
from airflow_mv.errors import ConfigurationError
from airflow_mv.foundation.words import did_you_mean


class Readiness(StrEnum):
    """A view's state for those who wait for it or monitor it."""

    FRESH = "FRESH"
    #: Stale, but within the tolerated lag.
    WITHIN_GRACE = "WITHIN_GRACE"
    STALE = "STALE"
    #: Never refreshed: it has no rows.
    NEVER = "NEVER"
    #: Its rows are those of another definition, or columns that the query names were changed in base tables.
    INVALID = "INVALID"
    #: A base table cannot be read.
    UNKNOWN = "UNKNOWN"

    @classmethod
    def named(cls, word: str) -> Readiness:
        """Return the member of a name (case is ignored) or of a state such as ``never-refreshed``.

        Raises:
            ConfigurationError: There is no such member.
        """
        found = _WORDS.get(word.lower().replace("_", "-"))
        if found is None:
            raise ConfigurationError(f"{word!r} is not one of: {', '.join(cls)}{did_you_mean(word, [*map(str, cls)])}")
        return found


_READINESS = {
    State.FRESH: Readiness.FRESH,
    State.STALE: Readiness.STALE,
    State.NEVER_REFRESHED: Readiness.NEVER,
    State.DEFINITION_CHANGED: Readiness.INVALID,
    State.INVALID: Readiness.INVALID,
    State.UNKNOWN: Readiness.UNKNOWN,
}
_WORDS = {str(state): member for state, member in _READINESS.items()} | {
    str(member).lower().replace("_", "-"): member for member in Readiness
}


def readiness(
    state: State,
    behind: Lag,
    max_staleness: timedelta | None = None,
    *,
    foreign: bool = False,
    now: datetime | None = None,
) -> Readiness:
    """Return a view's state, given a tolerated lag.

    Args:
        state: The view's freshness.
        behind: The view's lag.
        max_staleness: The tolerated lag; ``None``: no lag. A lag with only a known lower bound is not
            tolerated.
        foreign: Whether another writer has written to the storage table: its rows are not of an earlier refresh.
        now: The time to count to.
    """
    found = _READINESS[state]
    if found != Readiness.STALE or max_staleness is None or foreign:
        return found
    seconds = behind.seconds(now)
    within = behind.exact and seconds is not None and seconds <= max_staleness.total_seconds()
    return Readiness.WITHIN_GRACE if within else Readiness.STALE
