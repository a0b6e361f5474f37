# SPDX-License-Identifier: Apache-2.0
"""Publish a staged refresh exactly once, or not at all.

The protocol. A refresh was planned from one view metadata file (the *base*) and staged: new storage
metadata exists, nobody sees it. To publish is to move the view's pointer from the base to a new view
metadata file that names the new storage metadata, in one conditional UPDATE. Three rules make it safe:

1. *Look before you judge.* An error, or an UPDATE that matched no row, proves nothing: the answer to an
   earlier try may have been lost. A refresh has landed if its staged file is the current storage
   metadata or in its metadata log, or if its refresh id is recorded.
2. *Only a moved pointer proves a conflict.* While the pointer is at the base, the same swap is sent
   again: two copies of one swap share a base, so at most one can match. Metadata file names are never
   reused, so a swap whose base is gone can never land later; only then its own files are deleted.
3. *A conflict is judged by what changed*, see :func:`judge`.
"""

from __future__ import annotations

import logging
import random
import time
import uuid
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from airflow_mv.catalog import LoadedStorage, LoadedView, MaterializedViewCatalog
from airflow_mv.catalog.catalog import next_number
from airflow_mv.catalog.files import join
from airflow_mv.errors import (
    CatalogUnavailableError,
    CommitConflictError,
    CommitStateUnknownError,
    InvalidMetadataError,
    ViewNotFoundError,
)
from airflow_mv.plan.freshness import NO_SNAPSHOT, Code
from airflow_mv.plan.planner import Mode, RefreshPlan
from airflow_mv.spec.identifiers import Identifier
from airflow_mv.spec.materialized_view import (
    PROPERTY,
    TIME_TRAVEL_PROPERTY,
    NestedViewVersion,
    RefreshRecord,
    StorageState,
    property_text,
)
from airflow_mv.spec.stored import decode, encode
from airflow_mv.spec.table import TableMetadata, ancestors, parse_table, with_properties
from airflow_mv.spec.view import with_view_properties

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


@dataclass(frozen=True, slots=True)
class _Staged:
    """What is about to be recorded."""

    plan: RefreshPlan
    location: str | None
    rows_written: int | None
    now_ms: int


@dataclass(slots=True)
class _Try:
    """What this publication has written so far; nothing of it counts until the swap."""

    storage_location: str | None = None
    base: str | None = None
    view_location: str | None = None
    sent: bool = False
    unanswered: list[str] = field(default_factory=list)


def publish(
    catalog: MaterializedViewCatalog,
    plan: RefreshPlan,
    staged_location: str | None,
    *,
    rows_written: int | None = None,
    effects: Effects | None = None,
    tries: int = 8,
) -> Published:
    """Publish a refresh: write its metadata, swap the pointer, settle doubts.

    Args:
        catalog: Where the view is.
        plan: What was planned, and from which state.
        staged_location: The staged storage metadata file; ``None`` for a fast-forward.
        rows_written: For the record.
        effects: Clock, sleep and jitter.
        tries: Looks at the catalog before giving up; the waits between them grow to about 3 s each.

    Returns:
        ``REPLAN`` where the refresh must be planned again; nothing of it was published then.

    Raises:
        CommitConflictError: Others kept winning. Nothing was published.
        CommitStateUnknownError: The catalog's answers stayed lost. Nothing is deleted; try again.
        ViewNotFoundError: The view was dropped, or dropped and created again.
    """
    effects = effects or Effects()
    attempt = _Try()
    for number in range(1, tries + 1):
        try:
            ours = tuple(item for item in (staged_location, attempt.storage_location) if item is not None)
            verdict, view, storage = _look(catalog, plan, ours)
            if verdict != Verdict.READY:
                return _settled(catalog, attempt, verdict, storage, number)
            if attempt.storage_location is None:
                record_of = _Staged(plan, staged_location, rows_written, effects.now_ms())
                attempt.storage_location = _write_storage(catalog, view, storage, record_of)
            if _swap(catalog, attempt, view, attempt.storage_location):
                return Published(PublishOutcome.COMMITTED, attempt.storage_location, number)
        except (CatalogUnavailableError, CommitStateUnknownError) as error:
            attempt.unanswered.append(str(error))
            log.warning("Try %d of %d to publish %s: %s", number, tries, plan.refresh_id, error)
        if number < tries:
            effects.sleep(min(0.05 * 2**number, 3.0) * (0.5 + effects.jitter()))
    raise _given_up(catalog, plan, attempt, tries)


def judge(
    plan: RefreshPlan,
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
    another refresh, at or after our base snapshots      ``SUPERSEDED``
    another refresh, older; the view's definition        ``REPLAN``
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
    if storage.location == plan.storage_table_location:
        return Verdict.READY
    if storage.state is not None and covers(storage.state.current):
        return Verdict.SUPERSEDED
    return Verdict.REPLAN


def has_landed(storage: LoadedStorage, refresh_id: str, ours: Collection[str]) -> bool:
    """Whether a refresh is part of the storage table's published history."""
    if storage.state is not None and any(item.refresh_id == refresh_id for item in storage.state.refreshes):
        return True
    published = {storage.location, *(entry.metadata_file for entry in storage.table.metadata_log)}
    return not published.isdisjoint(ours)


def _look(
    catalog: MaterializedViewCatalog, plan: RefreshPlan, ours: Collection[str]
) -> tuple[Verdict, LoadedView, LoadedStorage]:
    view = catalog.load(plan.view)
    if view.metadata.view_uuid != plan.view_uuid:
        raise ViewNotFoundError(f"view {plan.view} was dropped and created again while it was refreshed; plan again")
    storage = catalog.load_storage(view)
    verdict = judge(plan, view, storage, ours, covers=lambda record: _covers(catalog, plan, record))
    return verdict, view, storage


def _covers(catalog: MaterializedViewCatalog, plan: RefreshPlan, record: RefreshRecord) -> bool:
    """Whether another refresh read every base table at our snapshot or at a later one."""
    if record.version_id != plan.version_id or any(reason.code == Code.FORCED for reason in plan.reasons):
        return False
    if _versions(record.nested_views) != _versions(plan.nested_views):
        return False
    theirs = record.snapshots
    for ours in plan.records:
        other = theirs.get(ours.identifier)
        if other == ours.snapshot_reference or ours.snapshot_reference == NO_SNAPSHOT:
            continue
        identifier = Identifier.parse(ours.identifier)
        located = catalog.locate([identifier]).get(identifier)
        if other is None or located is None or located.kind != "table":
            return False
        history = ancestors(catalog.table_metadata(identifier, located), other)
        if all(snapshot.snapshot_id != ours.snapshot_reference for snapshot in history):
            return False
    return True


def _versions(views: Iterable[NestedViewVersion]) -> set[tuple[str, str, int]]:
    return {(view.identifier, view.uuid, view.version_id) for view in views}


def _settled(
    catalog: MaterializedViewCatalog, attempt: _Try, verdict: Verdict, storage: LoadedStorage, number: int
) -> Published:
    if verdict == Verdict.LANDED:
        outcome = PublishOutcome.COMMITTED if attempt.sent else PublishOutcome.ALREADY_COMMITTED
        return Published(outcome, storage.location, number)
    # The pointer has left our base and does not hold our refresh: none of our swaps can land any more.
    _clean_up(catalog, attempt)
    outcome = PublishOutcome.SUPERSEDED if verdict == Verdict.SUPERSEDED else PublishOutcome.REPLAN
    return Published(outcome, storage.location, number)


def _write_storage(catalog: MaterializedViewCatalog, view: LoadedView, storage: LoadedStorage, staged: _Staged) -> str:
    """Write the storage table's next metadata file: what was staged, and the refresh's record."""
    plan = staged.plan
    source = staged.location or plan.storage_table_location
    what = f"view {plan.view}, staged storage table file"
    data = catalog.files.read(source, what=what)
    table = parse_table(data, source=f"{what} {source}")
    _check_staged(plan, storage, table, source)
    keep = view.metadata.properties.get(TIME_TRAVEL_PROPERTY, "false").lower() == "true"
    record = _record(staged, storage, table)
    state = StorageState.after(storage.state, record, keep_history=keep)
    document = with_properties(
        decode(data, source=f"{what} {source}"),
        previous_location=source,
        updates={PROPERTY: property_text(state)},
        tags={f"refresh-{plan.refresh_id}": table.head} if keep and table.head is not None else {},
        now_ms=staged.now_ms,
    )
    name = f"{next_number(source):05d}-{uuid.uuid4()}.metadata.json"
    location = join(table.location, "metadata", name)
    catalog.files.write(location, encode(document))
    return location


def _check_staged(plan: RefreshPlan, storage: LoadedStorage, staged: TableMetadata, source: str) -> None:
    """Refuse staged metadata that was not computed on the storage state that the plan names."""
    if staged.table_uuid != storage.table.table_uuid:
        raise InvalidMetadataError(
            f"view {plan.view}: the staged file {source} is of another table than the storage table"
        )
    earlier = {entry.metadata_file for entry in staged.metadata_log} | {source}
    if plan.storage_table_location not in earlier:
        raise InvalidMetadataError(
            f"view {plan.view}: the staged file {source} does not follow from {plan.storage_table_location}: "
            "stage again"
        )


def _record(staged: _Staged, storage: LoadedStorage, table: TableMetadata) -> RefreshRecord:
    plan = staged.plan
    snapshot = table.find(table.head) if table.head is not None else None
    document = {
        "refresh-id": plan.refresh_id,
        "version-id": plan.version_id,
        "base-tables": [record.document() for record in plan.records],
        **({"sequence-number": snapshot.sequence_number} if snapshot else {}),
        **({"nested-views": [view.document() for view in plan.nested_views]} if plan.nested_views else {}),
        "mode": str(plan.mode),
        "reasons": [reason.to_dict() for reason in plan.reasons],
        "refreshed-at-ms": max(staged.now_ms, storage.table.last_updated_ms),
        "rows-written": 0 if plan.mode == Mode.FAST_FORWARD else (staged.rows_written or 0),
    }
    return RefreshRecord.read(document, source=f"view {plan.view}, refresh record")


def _swap(catalog: MaterializedViewCatalog, attempt: _Try, view: LoadedView, storage_location: str) -> bool:
    if attempt.base != view.metadata_location:
        # A new base: the old swap can never match again, its file is ours to delete.
        if attempt.view_location is not None:
            catalog.files.delete(attempt.view_location)
        settings = view.materialized.repointed(storage_location)
        metadata = with_view_properties(view.metadata, {PROPERTY: property_text(settings)})
        attempt.view_location = catalog.write_metadata(metadata, number=next_number(view.metadata_location))
        attempt.base = view.metadata_location
    attempt.sent = True
    new = attempt.view_location or ""
    matched = catalog.swap(view.identifier, attempt.base, new)
    names = [location.rsplit("/", 1)[-1] for location in (attempt.base, new)]
    log.info("Swap of %s: %s -> %s: %s", view.identifier, *names, "done" if matched else "its base has moved")
    return matched


def _clean_up(catalog: MaterializedViewCatalog, attempt: _Try) -> None:
    """Delete what this publication wrote; a file that stays is only waste."""
    for location in (attempt.view_location, attempt.storage_location):
        if location is None:
            continue
        try:
            catalog.files.delete(location)
        except OSError as error:
            log.warning("The needless file %s could not be deleted: %s", location, error)


def _given_up(
    catalog: MaterializedViewCatalog, plan: RefreshPlan, attempt: _Try, tries: int
) -> CommitConflictError | CommitStateUnknownError:
    if attempt.unanswered:
        return CommitStateUnknownError(
            f"view {plan.view}: after {tries} tries the catalog still gave no answer ({attempt.unanswered[-1]}). The "
            f"refresh {plan.refresh_id} may or may not be published; nothing was deleted, run it again to settle it"
        )
    # Every swap was answered, and by no.
    _clean_up(catalog, attempt)
    return CommitConflictError(
        f"view {plan.view}: other commits won {tries} times in a row; nothing was published. Run it again, or let "
        "fewer refreshes of this view run at once"
    )
