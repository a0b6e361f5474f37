# SPDX-License-Identifier: Apache-2.0
"""Pending changes of base tables: which of them count, and which were announced."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal

Require = Literal["any", "all"]


@dataclass(frozen=True, slots=True)
class PendingCriteria:
    """Which pending changes of a view count.

    Args:
        tables: Names of the base tables that count. Empty: all base tables.
        require: ``any``: one changed table is enough; ``all``: each of them must have changed.
        quiet: Wait until the newest change is this old, because a writer may be making several commits. Times
            are those of the base tables' writers.
        wait_at_most: Do not wait for ``quiet`` once the oldest change is this old. ``None``: no limit.
    """

    tables: tuple[str, ...] = ()
    require: Require = "any"
    quiet: timedelta = timedelta(0)
    wait_at_most: timedelta | None = None

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of triggers, in JSON types; times in seconds."""
        return {
            "tables": list(self.tables),
            "require": self.require,
            "quiet_period": self.quiet.total_seconds(),
            "wait_at_most": None if self.wait_at_most is None else self.wait_at_most.total_seconds(),
        }


@dataclass(slots=True)
class Announcements:
    """The announced changes, so that each pending change is announced once. :meth:`state` keeps them across restarts.

    Args:
        at_most_every: Minimum time between two announcements.
        remind_every: Announce a change again if it is not refreshed after this time: the first event may be lost.
            ``None``: never.
        marks: Mark and time (seconds since the epoch) of the last announcement, by view. The mark is empty after the
            view had no pending changes.
    """

    at_most_every: timedelta = timedelta(0)
    remind_every: timedelta | None = None
    marks: dict[str, tuple[str, float]] = field(default_factory=dict, init=False)

    def due(self, marks: Mapping[str, str], now: float) -> list[str]:
        """Return the views whose pending changes are to be announced now.

        Args:
            marks: The mark of the pending changes, by view. Views without pending changes are left out.
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
        """Record an announcement."""
        self.marks |= {view: (mark, now) for view, mark in marks.items()}

    def forget(self, views: Iterable[str]) -> bool:
        """Forget what was announced for views that have no pending changes now; the same ones may be pending again.

        Args:
            views: Their names.

        Returns:
            Whether something was forgotten.
        """
        known = {view: self.marks[view][1] for view in views if self.marks.get(view, ("", 0.0))[0]}
        self.marks |= {view: ("", when) for view, when in known.items()}  # the time counts for at_most_every
        return bool(known)

    def state(self) -> dict[str, Any]:
        """Return the JSON form of what must be kept across restarts."""
        return {view: [mark, when] for view, (mark, when) in self.marks.items()}

    def recall(self, state: object, views: Sequence[str]) -> None:
        """Read what :meth:`state` returned. Anything else is read as: nothing was announced."""
        if isinstance(state, Mapping):
            for view, item in state.items():
                match item:
                    case [str(mark), int() | float() as when] if view in views:
                        self.marks[view] = (mark, float(when))
