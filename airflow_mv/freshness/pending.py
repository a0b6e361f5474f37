# SPDX-License-Identifier: Apache-2.0
"""News of base tables: which of it is wanted, and what of it was announced."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal

Require = Literal["any", "all"]


@dataclass(frozen=True, slots=True)
class PendingCriteria:
    """Which news of a view count.

    Args:
        tables: Names of the base tables that count; all of them where it is empty.
        require: Whether ``any`` of them must have changed, or ``all``.
        quiet: Wait until the last of the changes is this old: a writer may be in the midst of several commits. Times
            are those of the base tables' writers.
        wait_at_most: But no longer than until the first of them is this old; ``None``: however long.
    """

    tables: tuple[str, ...] = ()
    require: Require = "any"
    quiet: timedelta = timedelta(0)
    wait_at_most: timedelta | None = None

    def arguments(self) -> dict[str, Any]:
        """Return it as triggers take it, in JSON's types: times in seconds."""
        return {
            "tables": list(self.tables),
            "require": self.require,
            "quiet_period": self.quiet.total_seconds(),
            "wait_at_most": None if self.wait_at_most is None else self.wait_at_most.total_seconds(),
        }


@dataclass(slots=True)
class Announcements:
    """What was announced, so that each news is announced once; it outlives a restart by :meth:`state`.

    Args:
        at_most_every: No two announcements within this time.
        remind_every: Announce again what nobody has refreshed for so long, in case the first word of it was lost;
            ``None``: never.
        marks: Mark and time (seconds since the epoch) of the last announcement, by view.
    """

    at_most_every: timedelta = timedelta(0)
    remind_every: timedelta | None = None
    marks: dict[str, tuple[str, float]] = field(default_factory=dict)

    def due(self, marks: Mapping[str, str], now: float) -> list[str]:
        """Return the views whose news is to be announced now.

        Args:
            marks: The mark of the news, by view that has some.
            now: Seconds since the epoch.
        """
        last = max((when for _, when in self.marks.values()), default=None)
        if last is not None and 0 <= now - last < self.at_most_every.total_seconds():
            return []
        return [view for view, mark in marks.items() if self._is_due(view, mark, now)]

    def _is_due(self, view: str, mark: str, now: float) -> bool:
        announced, when = self.marks.get(view, ("", 0.0))
        if announced != mark:
            return True
        return self.remind_every is not None and not 0 <= now - when < self.remind_every.total_seconds()

    def announced(self, marks: Mapping[str, str], now: float) -> None:
        """Take note of an announcement."""
        self.marks |= {view: (mark, now) for view, mark in marks.items()}

    def state(self) -> dict[str, Any]:
        """Return the JSON form of what must outlive a restart."""
        return {view: [mark, when] for view, (mark, when) in self.marks.items()}

    def recall(self, state: object, views: Sequence[str]) -> None:
        """Read what :meth:`state` returned; anything else means that nothing was announced."""
        if isinstance(state, Mapping):
            for view, item in state.items():
                match item:
                    case [str(mark), int() | float() as when] if view in views:
                        self.marks[view] = (mark, float(when))
