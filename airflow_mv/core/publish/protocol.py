# SPDX-License-Identifier: Apache-2.0
"""The publication protocol: apply a change to a catalog exactly once, or not at all.

Everything that changes a view, its storage table or a row of the catalog is a :class:`Change` that is given to one
loop, :func:`commit`: a refresh, an expiry, a rollback, a new definition, a creation, new properties, the removal of a
branch, a repair. Files that are written before the change is sent have new names, and no reader sees them. The change
itself is one atomic conditional operation of the catalog: it requires a state, its *base*. Three rules make it safe:

1. *Load before judging.* An error or a refusal proves nothing, because the answer to an earlier copy of the change
   may have been lost. Only the state of the catalog shows whether a change has landed. Each change has a mark by
   which it is recognized there: a refresh id, a rollback id, a file that no other writer names, or the absence of
   what it removes.
2. *Only a changed base proves a conflict.* As long as the base has not changed, the same change is sent again. All
   copies require the same base, so at most one of them can be applied. Only after the base has changed can no copy be
   applied, and only then are files that were written for it deleted.
3. *A conflict is judged by what changed*: :meth:`Change.judge` decides whether to send the change again, adapted to
   the new state, or to end.

The loop has several rounds, with growing waits between them::

    load, judge ─┬─ LANDED, SUPERSEDED or REPLAN: the end
                 └─ READY: send ─┬─ confirmed: the end
                                 ├─ refused: the next round finds out what changed
                                 └─ no answer, an *unknown outcome*: the next round finds out, or sends it again

After the last round a single unknown outcome is enough to raise :class:`CommitStateUnknownError`. All files are kept,
and a later call settles it. Without any unknown outcome nothing can land: the files that were written are
deleted, and :class:`CommitConflictError` is raised.
"""

from __future__ import annotations

import logging
import random
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar

from airflow_mv.errors import (
    AccessDeniedError,
    CatalogUnavailableError,
    CommitConflictError,
    CommitError,
    CommitStateUnknownError,
    MaterializedViewError,
    ViewNotFoundError,
)

log = logging.getLogger(__name__)

LoadedState = TypeVar("LoadedState")

#: How often the loop loads the state before it gives up. The waits in between grow to about 3 s each.
TRIES = 8


class Verdict(StrEnum):
    """What to do with a change in the present state of the catalog.

    ``LANDED``: it is applied, or there is nothing to change. ``READY``: it can be sent. ``SUPERSEDED`` and
    ``REPLAN``: it is not applied and must not be sent, because another change replaces it, or because it has to be
    computed again.
    """

    LANDED = "landed"
    READY = "ready"
    SUPERSEDED = "superseded"
    REPLAN = "replan"


@dataclass(frozen=True, slots=True)
class Effects:
    """Clock, sleep and jitter as arguments, so that tests can replace them."""

    now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000
    sleep: Callable[[float], None] = time.sleep
    jitter: Callable[[], float] = random.random

    def wait(self, number: int) -> None:
        """Wait after a try, the first being number 1: longer each time, up to about 3 s."""
        self.sleep(min(0.05 * 2**number, 3.0) * (0.5 + self.jitter()))


class Change(ABC, Generic[LoadedState]):
    """A change of a catalog, and how to recognize it there.

    Args:
        target: The changed object, for messages: ``view lake.sales.daily``.
        name: The change, for messages: ``the rollback to refresh 4f…``.
        effects: Clock, sleep and jitter.

    Attributes:
        unknown: The reasons of unknown outcomes so far; :func:`commit` appends to it. If it is not empty, a copy of the
            change may be applied without our knowledge.
    """

    def __init__(self, target: str, name: str, effects: Effects | None = None) -> None:
        self.target = target
        self.name = name
        self.effects = effects or Effects()
        self.unknown: list[str] = []

    @abstractmethod
    def load(self) -> LoadedState:
        """Load the present state.

        Raises:
            ViewNotFoundError: The view no longer exists. This ends the change.
            CatalogUnavailableError: The catalog did not respond.
        """

    @abstractmethod
    def judge(self, state: LoadedState) -> Verdict:
        """Decide what a state means for the change. ``LANDED`` must be recognized also in all later states."""

    @abstractmethod
    def send(self, state: LoadedState) -> bool:
        """Write missing files and send the change. As long as its base is the same, the same change is sent.

        Returns:
            Whether the catalog applied it. ``False`` does not prove that an earlier copy was not applied.

        Raises:
            CommitStateUnknownError: No answer; the change may be applied, even later.
        """

    @abstractmethod
    def may_land(self, state: LoadedState) -> bool:
        """Whether the base of the change that was sent last has not moved, so that a copy may still be applied."""

    def clean_up(self) -> None:
        """Delete the written files. Called when no copy can be applied; a file that is left does no harm."""


@dataclass(frozen=True, slots=True)
class Committed(Generic[LoadedState]):
    """The end of a change.

    Args:
        verdict: How it ended; never ``READY``.
        state: The state that was loaded last.
        tries: How often the state was loaded.
        confirmed: Whether the catalog confirmed the last copy that was sent. If not, the last loaded state decided.
    """

    verdict: Verdict
    state: LoadedState
    tries: int
    confirmed: bool = False


def commit(change: Change[LoadedState]) -> Committed[LoadedState]:
    """Send a change, and settle unknown outcomes by loading the catalog's state.

    Raises:
        CommitConflictError: Other changes came first each time. Nothing was published.
        CommitStateUnknownError: Answers of the catalog were lost, or prove nothing. Nothing is deleted; try again.
        ConfigurationError, UnsupportedError: The catalog refused the change, its state shows that it did not land, and
            no answer to an earlier copy was lost.
        ViewNotFoundError: The view was dropped, or dropped and created again.
    """
    refusal: MaterializedViewError | None = None
    lost = False
    for number in range(1, TRIES + 1):
        try:
            state = _load(change)
            verdict = change.judge(state)
            if verdict != Verdict.READY:
                return _ended(change, verdict, state, number)
            if refusal is not None:
                raise refusal  # the answer to the only copy; this state shows that it did not land
            if change.send(state):
                return Committed(Verdict.LANDED, state, number, confirmed=True)
        except (CatalogUnavailableError, CommitStateUnknownError) as error:
            _note(change, error)
            lost |= isinstance(error, CommitStateUnknownError) and error.refusal is None
            # If the answer to an earlier copy was lost, that copy may still land, whatever the answer to this one is.
            refusal = None if lost else getattr(error, "refusal", refusal)
            log.warning("Try %d of %d: %s of %s: %s", number, TRIES, change.name, change.target, error)
        if number < TRIES:
            change.effects.wait(number)
    # Only refusals so far. The last one proves nothing either.
    if not change.unknown and (ended := _last_load(change)) is not None:
        return ended
    raise _given_up(change)


def _note(change: Change[LoadedState], error: MaterializedViewError) -> None:
    """Note an unknown outcome. That of a store's refusal is known: files are written before the catalog is asked."""
    if isinstance(error, AccessDeniedError) and not change.unknown:
        raise error
    change.unknown.append(str(error))


def _load(change: Change[LoadedState]) -> LoadedState:
    try:
        return change.load()
    except ViewNotFoundError:
        # If an answer was lost, the change may have been applied to a view that has another name now.
        if not change.unknown:
            change.clean_up()
        raise


def _last_load(change: Change[LoadedState]) -> Committed[LoadedState] | None:
    """Load the state once more after the last refusal; ``None`` if it ends in a conflict or another unknown outcome."""
    try:
        state = _load(change)
        verdict = change.judge(state)
    except CatalogUnavailableError as error:
        change.unknown.append(str(error))
        return None
    if verdict != Verdict.READY:
        return _ended(change, verdict, state, TRIES)
    if change.may_land(state):
        change.unknown.append("it rejected the commit, although nothing else was committed")
    return None


def _ended(change: Change[LoadedState], verdict: Verdict, state: LoadedState, tries: int) -> Committed[LoadedState]:
    if verdict != Verdict.LANDED:
        change.clean_up()
    return Committed(verdict, state, tries)


def _given_up(change: Change[LoadedState]) -> CommitError:
    """Return the error after the last round."""
    if change.unknown:
        return CommitStateUnknownError(
            f"{change.target}: after {TRIES} tries the catalog still gave no conclusive answer ({change.unknown[-1]}). "
            f"The commit of {change.name} may have succeeded; nothing was deleted, run it again to settle it"
        )
    # Every copy was refused, and none can be applied.
    change.clean_up()
    return CommitConflictError(
        f"{change.target}: {TRIES} commits in a row conflicted with others; nothing was published. Run {change.name} "
        "again, or run fewer tasks that change this view at once"
    )
