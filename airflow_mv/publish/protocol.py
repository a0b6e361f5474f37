# SPDX-License-Identifier: Apache-2.0
"""Publish a staged refresh exactly once, or not at all.

The protocol. A refresh was planned from one state of the view and its storage table (the *base*) and staged:
its rows exist, nobody sees them. To publish is to change one thing that everyone looks at, if it still is at
the base: in the pointed layout the view's pointer, by one conditional UPDATE; in the registered layout the
storage table, by one commit that requires its ``main`` branch and its current tag. Three rules make it safe:

1. *Look before you judge.* An error, or a change that was refused, proves nothing: the answer to an earlier
   try may have been lost. A refresh has landed if its refresh id is recorded, if its staged file is the current
   storage metadata or in its metadata log, or if ``main`` has come from its snapshot.
2. *Only a moved base proves a conflict.* While it has not moved, the same change is sent again: two copies
   share a base, so at most one can be done. A base that is left is never come back to; only then what was
   written is taken away.
3. *A conflict is judged by what changed*, see :func:`judge`.

One round of :func:`publish`; there are several, with growing waits between them::

    look, judge ─┬─ LANDED, SUPERSEDED or REPLAN: the end
                 └─ READY: send ─┬─ done: the end
                                 ├─ refused: the next round finds out what moved
                                 └─ no answer, a *doubt*: the next round finds out, or sends the same again

After the last round a single doubt is enough to say "unknown" (:class:`CommitStateUnknownError`) and to leave every
file where it is: the task's retry comes with the same refresh id and settles it. Without any doubt nothing of ours
can land any more, and what was written goes. What is sent is the layout's part, see :mod:`airflow_mv.publish`; what
changes a storage table without a refresh follows the same rules in :mod:`airflow_mv.publish.amend`.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from enum import StrEnum

from airflow_mv.catalog import LoadedStorage, LoadedView, MaterializedViewCatalog
from airflow_mv.errors import (
    CatalogUnavailableError,
    CommitConflictError,
    CommitStateUnknownError,
    MaterializedViewError,
    ViewNotFoundError,
)
from airflow_mv.publish import Attempt, PointedAttempt, RefreshMetrics, RegisteredAttempt, Staged
from airflow_mv.publish.attempt import PlannedRefresh
from airflow_mv.spec.identifiers import Identifier
from airflow_mv.spec.interval_parts import IntervalPart, parts_in, parts_of
from airflow_mv.spec.materialized_view import (
    NO_SNAPSHOT,
    REFRESH_ID_KEY,
    TABLE_UUID,
    BaseTable,
    NestedViewVersion,
    RefreshRecord,
)
from airflow_mv.spec.reasons import Code
from airflow_mv.spec.table import ancestors

log = logging.getLogger(__name__)


class PublishOutcome(StrEnum):
    """How publishing ended. A failure that proves nothing landed, or one that proves nothing, raises."""

    COMMITTED = "committed"
    ALREADY_COMMITTED = "already-committed"
    SUPERSEDED = "superseded"
    REPLAN = "replan"


class Verdict(StrEnum):
    """What the catalog's present state means for a staged refresh."""

    LANDED = "landed"
    READY = "ready"
    SUPERSEDED = "superseded"
    REPLAN = "replan"


@dataclass(frozen=True, slots=True)
class Published:
    """The end of a publication.

    Args:
        outcome: How it ended.
        storage_table_location: The storage metadata file that the view names now.
        tries: How many times the catalog was looked at.
    """

    outcome: PublishOutcome
    storage_table_location: str
    tries: int


@dataclass(frozen=True, slots=True)
class Effects:
    """The world outside, as arguments: tests drive the same protocol with their own."""

    now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000
    sleep: Callable[[float], None] = time.sleep
    jitter: Callable[[], float] = random.random

    def wait(self, number: int) -> None:
        """Back off after the try of this number, the first being 1: longer each time, up to about 3 s."""
        self.sleep(min(0.05 * 2**number, 3.0) * (0.5 + self.jitter()))


def publish(
    catalog: MaterializedViewCatalog,
    plan: PlannedRefresh,
    staged: str | None,
    *,
    figures: RefreshMetrics | None = None,
    effects: Effects | None = None,
    tries: int = 8,
) -> Published:
    """Publish a refresh: send the change, settle doubts.

    Args:
        catalog: Where the view is.
        plan: What was planned, and from which state.
        staged: The staged storage metadata file, or in the registered layout the branch with the staged rows;
            ``None`` for a fast-forward.
        figures: What the refresh did, for its record.
        effects: Clock, sleep and jitter.
        tries: Looks at the catalog before giving up; the waits between them grow to about 3 s each.

    Returns:
        ``REPLAN`` where the refresh must be planned again; nothing of it was published then.

    Raises:
        CommitConflictError: Others kept winning. Nothing was published.
        CommitStateUnknownError: The catalog's answers stayed lost, or prove nothing. Nothing is deleted; try again.
        ConfigurationError, UnsupportedError: The catalog refused the change, and a look shows that it did not land.
        ViewNotFoundError: The view was dropped, or dropped and created again. What was written is taken away, if
            no answer was lost.
    """
    effects = effects or Effects()
    change = Staged(plan, staged, figures or RefreshMetrics(), effects.now_ms)
    attempt: Attempt = (PointedAttempt if plan.storage_table is None else RegisteredAttempt)(catalog, change)
    doubts: list[str] = []
    refusal: MaterializedViewError | None = None
    for number in range(1, tries + 1):
        try:
            verdict, view, storage = _look(catalog, plan, attempt, doubts)
            if verdict != Verdict.READY:
                return _settled(attempt, verdict, storage, number)
            if refusal is not None:
                raise refusal  # the answer to the last try, and this look shows that it did not land
            if (location := attempt.send(view, storage)) is not None:
                return Published(PublishOutcome.COMMITTED, location, number)
        except (CatalogUnavailableError, CommitStateUnknownError) as error:
            doubts.append(str(error))
            refusal = getattr(error, "refusal", refusal)
            log.warning("Try %d of %d to publish %s: %s", number, tries, plan.refresh_id, error)
        if number < tries:
            effects.wait(number)
    # Only refusals so far, and the last of them is no proof either.
    if not doubts and (settled := _last_look(catalog, plan, attempt, doubts, tries)) is not None:
        return settled
    raise _given_up(plan, attempt, doubts, tries)


def _last_look(
    catalog: MaterializedViewCatalog, plan: PlannedRefresh, attempt: Attempt, doubts: list[str], tries: int
) -> Published | None:
    """Look once more after a no to every change; ``None`` where the end is a conflict, or a new doubt."""
    try:
        verdict, view, storage = _look(catalog, plan, attempt, doubts)
    except CatalogUnavailableError as error:
        doubts.append(str(error))
        return None
    if verdict != Verdict.READY:
        return _settled(attempt, verdict, storage, tries)
    # The storage table is where it was. If the view is, too, or does not matter, then what was sent may land yet.
    if attempt.base in (None, view.metadata_location):
        doubts.append("it refused the change, although nothing has changed meanwhile")
    return None


def judge(
    plan: PlannedRefresh,
    view: LoadedView,
    storage: LoadedStorage,
    ours: Collection[str],
    *,
    covers: Callable[[RefreshRecord], bool],
) -> Verdict:
    """Decide what the present state means for a staged refresh.

    ===================================================  ==========================
    what changed since the plan                          then
    ===================================================  ==========================
    nothing                                              ``READY``
    only the view's other properties or comment          ``READY``: rebase, no recompute
    this very refresh is there                           ``LANDED``
    another refresh: our rows at or after our snapshots  ``SUPERSEDED``
    another one, older or of other rows; the definition  ``REPLAN``
    ===================================================  ==========================

    Args:
        plan: What was planned.
        view: The view now.
        storage: Its storage table now.
        ours: The storage metadata files that only this refresh writes.
        covers: Whether another refresh's record makes ours needless.
    """
    if has_landed(storage, plan.refresh_id, ours):
        return Verdict.LANDED
    if view.metadata.current_version_id != plan.version_id:
        return Verdict.REPLAN
    if storage.base == plan.storage_base:
        return Verdict.READY
    if storage.state is not None and covers(storage.state.current):
        return Verdict.SUPERSEDED
    return Verdict.REPLAN


def has_landed(storage: LoadedStorage, refresh_id: str, ours: Collection[str]) -> bool:
    """Whether a refresh is part of the storage table's published history."""
    if storage.state is not None and any(item.refresh_id == refresh_id for item in storage.state.refreshes):
        return True
    if storage.name is not None:
        history = ancestors(storage.table, storage.table.head)
        return any(snapshot.summary.get(REFRESH_ID_KEY) == refresh_id for snapshot in history)
    return not storage.published_files.isdisjoint(ours)


def _look(
    catalog: MaterializedViewCatalog, plan: PlannedRefresh, attempt: Attempt, doubts: Collection[str]
) -> tuple[Verdict, LoadedView, LoadedStorage]:
    """Load what is published now, and judge it; a view that is gone, or another one by now, ends the publication."""
    try:
        view = catalog.load(plan.view)
        if view.metadata.view_uuid != plan.view_uuid:
            raise ViewNotFoundError(
                f"view {plan.view} was dropped and created again while it was refreshed; plan again"
            )
    except ViewNotFoundError:
        # Where an answer was lost the refresh may have been published before: to a view that has another name now.
        if not doubts:
            attempt.clean_up()
        raise
    storage = catalog.load_storage(view)
    verdict = judge(plan, view, storage, attempt.ours, covers=lambda record: _covers(catalog, plan, record))
    return verdict, view, storage


def _covers(catalog: MaterializedViewCatalog, plan: PlannedRefresh, record: RefreshRecord) -> bool:
    """Whether all rows that our refresh is for are of our base snapshots or of later ones."""
    if record.version_id != plan.version_id or any(reason.code == Code.FORCED for reason in plan.reasons):
        return False
    if _versions(record.nested_views) != _versions(plan.nested_views):
        return False
    parts = parts_of(record) if plan.interval is None else parts_in(record, plan.interval)
    return all(part.computed and _part_covers(catalog, plan, part) for part in parts)


def _part_covers(catalog: MaterializedViewCatalog, plan: PlannedRefresh, part: IntervalPart) -> bool:
    theirs = {table.identifier: table for table in part.base_tables}
    return all(
        ours.identifier in theirs and _at_or_after(catalog, theirs[ours.identifier], ours) for ours in plan.records
    )


def _at_or_after(catalog: MaterializedViewCatalog, theirs: BaseTable, ours: BaseTable) -> bool:
    """Whether another refresh read a base table at our snapshot, or at a later one that still counts."""
    uuids = (theirs.properties.get(TABLE_UUID), ours.properties.get(TABLE_UUID))
    if all(uuids) and uuids[0] != uuids[1]:
        return False
    if theirs.snapshot_reference == ours.snapshot_reference:
        return True
    identifier = Identifier.parse(ours.identifier)
    located = catalog.locate([identifier]).get(identifier)
    if located is None or located.kind != "table":
        return False
    table = catalog.table_metadata(identifier, located)
    # A snapshot that the table was rolled back from is not on this line: rows of it are no later ones.
    line = [snapshot.snapshot_id for snapshot in ancestors(table, table.head)]
    if theirs.snapshot_reference not in line:
        return False
    older = line[line.index(theirs.snapshot_reference) :]
    return ours.snapshot_reference == NO_SNAPSHOT or ours.snapshot_reference in older


def _versions(views: Iterable[NestedViewVersion]) -> set[tuple[str, str, int]]:
    return {(view.identifier, view.uuid, view.version_id) for view in views}


def _settled(attempt: Attempt, verdict: Verdict, storage: LoadedStorage, tries: int) -> Published:
    """End a publication by what was found; only what cannot land any more is taken away."""
    if verdict == Verdict.LANDED:
        attempt.landed()
        # To have sent something proves nothing: another process may have published the same refresh.
        outcome = PublishOutcome.COMMITTED if attempt.is_ours(storage) else PublishOutcome.ALREADY_COMMITTED
        return Published(outcome, storage.location, tries)
    # The base has moved and does not hold our refresh: none of our changes can land any more.
    attempt.clean_up()
    outcome = PublishOutcome.SUPERSEDED if verdict == Verdict.SUPERSEDED else PublishOutcome.REPLAN
    return Published(outcome, storage.location, tries)


def _given_up(
    plan: PlannedRefresh, attempt: Attempt, doubts: list[str], tries: int
) -> CommitConflictError | CommitStateUnknownError:
    """Return the error after the last round: unknown with a doubt, else a conflict."""
    if doubts:
        return CommitStateUnknownError(
            f"view {plan.view}: after {tries} tries the catalog still gave no answer to go by ({doubts[-1]}). The "
            f"refresh {plan.refresh_id} may or may not be published; nothing was deleted, run it again to settle it"
        )
    # Every change was answered by no, and none can be done any more.
    attempt.clean_up()
    return CommitConflictError(
        f"view {plan.view}: other commits won {tries} times in a row; nothing was published. Run it again, or let "
        "fewer refreshes of this view run at once"
    )
