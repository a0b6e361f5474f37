# SPDX-License-Identifier: Apache-2.0
"""The pointed layout: the view names the storage table's metadata file, and a refresh swaps the view's pointer.

Files that are written before the swap have no effect. A swap whose base is no longer current can never land later,
because names of metadata files are never used twice. Only then are its files deleted.
"""

from __future__ import annotations

import logging
import socket
import uuid
from abc import abstractmethod
from collections.abc import Collection, Iterator
from typing import Any

from airflow_mv.core.catalog import LoadedStorage, LoadedView, MaterializedViewCatalog, stored_table
from airflow_mv.core.catalog.catalog import next_number
from airflow_mv.core.catalog.files import discard
from airflow_mv.core.catalog.locations import check_confined, check_location, join, lies_in
from airflow_mv.core.publish.layout import (
    StorageEdit,
    StorageLayout,
    good_outcome,
)
from airflow_mv.core.publish.protocol import Effects
from airflow_mv.core.publish.refresh import (
    Attempt,
    PlannedRefresh,
    Staged,
    dropped_tags,
    history_properties,
    keeps_history,
    next_state,
    oldest_lasting_ms,
)
from airflow_mv.core.script import MAX_AHEAD_MS, REFRESH_ID_KEY, Outcome, Script
from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.core.spec.materialized_view import (
    PROPERTY,
    corrected,
    goes_back,
    is_ahead,
    latest_ms,
    property_text,
    refresh_tag,
)
from airflow_mv.core.spec.stored import decode, encode
from airflow_mv.core.spec.table_metadata import Snapshot, TableMetadata, parse_table, with_properties
from airflow_mv.core.spec.view import with_view_properties
from airflow_mv.errors import InvalidMetadataError, MetadataFileNotFoundError

log = logging.getLogger(__name__)


class PointedAttempt(Attempt):
    """One publication by the view's pointer.

    Args:
        staged: The staged refresh.
    """

    def __init__(self, catalog: MaterializedViewCatalog, staged: Staged) -> None:
        self._catalog = catalog
        self._staged = staged
        self.storage_location: str | None = None
        self.base: str | None = None
        self.view_location: str | None = None

    def send(self, view: LoadedView, storage: LoadedStorage) -> str | None:
        """Write the missing files, and swap the pointer."""
        if self.storage_location is None:
            self.storage_location = _write_storage(self._catalog, view, storage, self._staged)
        return self.storage_location if swap(self._catalog, self, view) else None

    def may_land(self, view: LoadedView, storage: LoadedStorage) -> bool:
        """Whether the view's pointer still names the base."""
        return self.base == view.metadata_location

    def has_landed(self, storage: LoadedStorage) -> bool:
        """Whether the staged file, or the one that records the refresh, was published."""
        ours = (self._staged.where, self.storage_location)
        return not storage.published_files.isdisjoint(item for item in ours if item is not None)

    def is_publisher(self, storage: LoadedStorage) -> bool:
        """Whether the file that only this publication wrote was published. All files are kept: they may be."""
        return self.storage_location in storage.published_files

    def clean_up(self) -> None:
        """Delete what this publication wrote."""
        for location in (self.view_location, self.storage_location):
            if location is not None:
                discard(self._catalog.files, location)


def swap(catalog: MaterializedViewCatalog, attempt: PointedAttempt, view: LoadedView) -> bool:
    """Swap the view's pointer from its base to metadata that names the new storage file. Return whether it matched."""
    if attempt.base != view.metadata_location:
        # The base is new, so the old swap can never match again and its file can be deleted.
        if attempt.view_location is not None:
            discard(catalog.files, attempt.view_location)
        settings = view.materialized.repointed(attempt.storage_location or "")
        metadata = with_view_properties(view.metadata, {PROPERTY: property_text(settings)})
        attempt.view_location = catalog.write_metadata(metadata, number=next_number(view.metadata_location))
        attempt.base = view.metadata_location
    new = attempt.view_location or ""
    matched = catalog.swap(view.identifier, attempt.base, new)
    names = [location.rsplit("/", 1)[-1] for location in (attempt.base, new)]
    log.info("Swap of %s: %s -> %s: %s", view.identifier, *names, "done" if matched else "the pointer had changed")
    return matched


def _write_storage(catalog: MaterializedViewCatalog, view: LoadedView, storage: LoadedStorage, staged: Staged) -> str:
    """Write the storage table's next metadata file: the staged metadata with the refresh's record."""
    plan, now_ms = staged.plan, staged.effects.now_ms()
    source = staged.where or plan.storage_table_location
    what = f"view {plan.view}, staged storage table file"
    if staged.where is not None:
        require_inside(staged.where, storage, what=what)
    data = catalog.files.read(source, what=what)
    table = parse_table(data, source=f"{what} {source}")
    check_staged(plan.view, plan.storage_table_location, storage, table, source)
    catalog.folders.flush(view, [item for item in table.snapshots if item.snapshot_id not in storage.table.by_id])
    snapshot = table.find(table.head) if table.head is not None else None
    if staged.where is not None:
        snapshot = staged_snapshot(plan, table, source)
    state = next_state(staged, view, storage, snapshot, now_ms=now_ms)
    keep = keeps_history(view)
    return write_next(
        catalog,
        table.location,
        decode(data, source=f"{what} {source}"),
        previous_location=source,
        updates=history_properties(view, storage, state),
        tags={refresh_tag(plan.refresh_id): table.head} if keep and table.head is not None else {},
        dropped=dropped_tags(view, storage.state, state),
        now_ms=now_ms,
    )


def write_next(
    catalog: MaterializedViewCatalog,
    folder: str,
    document: dict[str, Any],
    *,
    previous_location: str,
    updates: dict[str, str],
    tags: dict[str, int],
    now_ms: int,
    number: int | None = None,
    dropped: Collection[str] = (),
) -> str:
    """Write a storage table's next metadata file, which has no effect until a view names it.

    Args:
        folder: The table's location.
        document: Its decoded metadata; see :func:`airflow_mv.core.spec.table_metadata.with_properties`.
        previous_location: The metadata file before this one.
        updates: Properties to set.
        tags: Snapshot id by tag name to add.
        now_ms: The current time.
        number: The number in the file's name; by default the one after ``previous_location``'s.
        dropped: Tags to remove.

    No time in the file is further ahead of the store's clock than :data:`MAX_AHEAD_MS`. The store's time
    is the modification time of the file that was just written. If the clock of this host, or of the driver that staged
    the rows, is ahead, the times are reduced to the store's time and the file is written again.

    Returns:
        Its location.
    """
    number = number or next_number(previous_location)
    written = with_properties(
        document,
        previous_location=previous_location,
        updates=updates,
        tags=tags,
        now_ms=now_ms,
        dropped_tags=dropped,
    )
    location = _write(catalog, folder, written, number)
    store_ms = catalog.files.modified_ms(location)
    ahead = is_ahead(written, store_ms + MAX_AHEAD_MS)
    if not ahead and not goes_back(document):
        return location
    _warn_of_times(folder, ahead_ms=latest_ms(written) - store_ms if ahead else None)
    discard(catalog.files, location)
    return _write(catalog, folder, corrected(written, store_ms), number)


def _warn_of_times(folder: str, ahead_ms: int | None) -> None:
    if ahead_ms is not None:
        found = f"up to {ahead_ms / 1000:.0f} s ahead of the store's clock"
        cause = f"the clock of {socket.gethostname()} or of Spark's driver is wrong"
    else:
        found = "which go back by more than a minute"
        cause = "the clock of Spark's driver or of an earlier writer was wrong"
    log.warning(
        "The storage table at %s has wrong timestamps, %s: %s. Lowering them to the store's time and to the timestamps "
        "after them. Set that clock right",
        folder,
        found,
        cause,
    )


def _write(catalog: MaterializedViewCatalog, folder: str, document: dict[str, Any], number: int) -> str:
    name = f"{number:05d}-{uuid.uuid4()}.metadata.json"
    location = join(folder, "metadata", name)
    catalog.files.write(location, encode(document))
    return location


def check_staged(view: Identifier, base: str, storage: LoadedStorage, staged: TableMetadata, source: str) -> None:
    """Refuse staged metadata that was not computed on a storage state.

    Args:
        base: The storage metadata file that the job started from.

    Raises:
        InvalidMetadataError: It belongs to another table, does not follow from ``base``, or is outside of the folder.
    """
    if staged.table_uuid != storage.table.table_uuid:
        raise InvalidMetadataError(
            f"view {view}: the staged file {source} belongs to another table than the storage table"
        )
    if base not in {entry.metadata_file for entry in staged.metadata_log} | {source}:
        raise InvalidMetadataError(f"view {view}: the staged file {source} does not follow from {base}: run it again")
    require_inside(staged.location, storage, what=f"view {view}, staged file {source}, field 'location'")


def staged_snapshot(plan: PlannedRefresh, staged: TableMetadata, source: str) -> Snapshot:
    """Return the staged snapshot. Refuse one that has another refresh id in its summary, or none."""
    head = staged.find(staged.head) if staged.head is not None else None
    if head is None or head.summary.get(REFRESH_ID_KEY) != plan.refresh_id:
        raise InvalidMetadataError(
            f"view {plan.view}, staged storage table file {source}: it was not written by refresh {plan.refresh_id}, "
            f"since its snapshot's summary does not have this value of {REFRESH_ID_KEY}: run it again"
        )
    return head


def require_inside(location: str, storage: LoadedStorage, *, what: str) -> None:
    """Refuse a location outside the storage table, because a job's report is untrusted."""
    check_location(location, what=what)
    if not lies_in(location, (storage.table.location,)):
        raise InvalidMetadataError(
            f"{what}: {location!r} is not in the storage table's folder {storage.table.location}"
        )


class FileEdit(Attempt):
    """An edit that is sent as the storage table's next metadata file, by the swap of a pointer.

    Args:
        effects: Clock, sleep and jitter.
    """

    def __init__(self, catalog: MaterializedViewCatalog, change: StorageEdit, effects: Effects) -> None:
        self._catalog, self._change, self._effects = catalog, change, effects
        self._base: str | None = None
        self._location: str | None = None

    @abstractmethod
    def base_of(self, view: LoadedView, storage: LoadedStorage) -> str:
        """Return the file that the pointer names."""

    @abstractmethod
    def swap(self, view: LoadedView, storage: LoadedStorage, location: str) -> bool:
        """Swap the pointer so that the file at a location is published; whether it matched.

        Two swaps of one base publish one file, and at most one of them matches: to send it again is safe.
        """

    def send(self, view: LoadedView, storage: LoadedStorage) -> str | None:
        """Write the file, once for each base, and swap the pointer."""
        base = self.base_of(view, storage)
        if self._location is None or self._base != base:
            # The old base has changed: a swap from it can never be applied, so its file can be deleted.
            self.clean_up()
            self._location, self._base = self._write(view, storage), base
        return self._location if self.swap(view, storage, self._location) else None

    def _write(self, view: LoadedView, storage: LoadedStorage) -> str:
        now_ms = self._effects.now_ms()
        changed = self._change.changed_metadata(storage, stored_table(self._catalog, view, storage), now_ms)
        return write_next(
            self._catalog,
            storage.table.location,
            changed.document,
            previous_location=storage.location,
            updates=changed.properties,
            tags={},
            now_ms=now_ms,
        )

    def may_land(self, view: LoadedView, storage: LoadedStorage) -> bool:
        """Whether the pointer still names the base."""
        return self.base_of(view, storage) == self._base

    def has_landed(self, storage: LoadedStorage) -> bool:
        """Whether the file is, or was, the storage table's metadata file."""
        return self._location in storage.published_files

    def clean_up(self) -> None:
        """Delete the file."""
        location, self._location = self._location, None
        if location is not None:
            discard(self._catalog.files, location)


class PointedEdit(FileEdit):
    """An edit that swaps the view's pointer."""

    def base_of(self, view: LoadedView, storage: LoadedStorage) -> str:
        """Return the view's metadata file."""
        return view.metadata_location

    def swap(self, view: LoadedView, storage: LoadedStorage, location: str) -> bool:
        """Replace the view by one that names the file."""
        settings = view.materialized.repointed(location)
        return self._catalog.replace(view, with_view_properties(view.metadata, {PROPERTY: property_text(settings)}))


class PointedPublication(StorageLayout):
    """A refresh is staged in a metadata file, and published by the view's pointer."""

    name = "pointed"

    def attempt(self, catalog: MaterializedViewCatalog, staged: Staged) -> Attempt:
        """Return the attempt that swaps the pointer."""
        return PointedAttempt(catalog, staged)

    def staged_before(
        self, catalog: MaterializedViewCatalog, plan: PlannedRefresh, script: Script
    ) -> Iterator[Outcome]:
        """Yield the stored outcome, if the metadata file that it names exists and will be kept long enough."""
        location = script.outcome_location
        # The age is read before the content, so that a file replaced in between does not make old content look young.
        written_ms = _written_ms(catalog, location) if location else None
        outcome = good_outcome(catalog, script) if written_ms is not None else None
        if location is None or written_ms is None or outcome is None or outcome.metadata_location is None:
            return
        what = f"view {plan.view}, staged storage table file"
        try:
            check_confined(outcome.metadata_location, (location.rpartition("/staged/")[0],), what=what)
            catalog.files.read(outcome.metadata_location, what=what)
        except (InvalidMetadataError, MetadataFileNotFoundError):
            return
        # Half of the grace is left for the rest of the refresh: files of the job are older than its outcome.
        if written_ms <= oldest_lasting_ms(catalog, location.rpartition("/")[0]):
            log.info("The rows that an earlier try of refresh %s staged are too old: staging again", plan.refresh_id)
            return
        yield outcome

    def edit(
        self,
        catalog: MaterializedViewCatalog,
        change: StorageEdit,
        effects: Effects,
        *,
        as_file: bool = False,
    ) -> Attempt:
        """Return the attempt that swaps the view's pointer, which always names a file."""
        return PointedEdit(catalog, change, effects)

    def drop_storage(self, catalog: MaterializedViewCatalog, view: LoadedView, *, force: bool) -> str | None:
        """Do nothing: it is in no catalog."""
        return None


def _written_ms(catalog: MaterializedViewCatalog, location: str) -> int | None:
    """Return when a file was written, by the store's clock; ``None`` if it does not exist."""
    try:
        return catalog.files.modified_ms(location)
    except MetadataFileNotFoundError:
        return None
