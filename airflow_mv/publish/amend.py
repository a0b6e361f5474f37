# SPDX-License-Identifier: Apache-2.0
"""Publish a change of a storage table's metadata that no Spark job computed: an expiry, a rollback.

It follows the rules of :mod:`airflow_mv.publish.protocol`: look before you judge, and only a moved pointer proves a
conflict. After a proven conflict the change is made anew on what is there now; a refresh that was planned
before the change finds another storage state than it was planned on, and plans again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from airflow_mv.catalog import LoadedStorage, LoadedView, MaterializedViewCatalog, TableChange
from airflow_mv.catalog.files import discard
from airflow_mv.errors import (
    CatalogUnavailableError,
    CommitConflictError,
    CommitError,
    CommitStateUnknownError,
    MaterializedViewError,
    ViewNotFoundError,
)
from airflow_mv.publish.pointed import write_next
from airflow_mv.publish.protocol import Effects
from airflow_mv.publish.refresh import has_landed
from airflow_mv.spec.identifiers import Identifier
from airflow_mv.spec.materialized_view import PROPERTY, property_text
from airflow_mv.spec.stored import decode
from airflow_mv.spec.view import with_view_properties

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ChangedMetadata:
    """A changed storage table.

    Args:
        document: Its metadata, as the next metadata file.
        properties: Table properties to set besides.
    """

    document: dict[str, Any]
    properties: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StorageChange:
    """A change, as each layout makes it on a state of the view; ``None`` where there is nothing to change.

    Args:
        pointed: Gets the view, its storage table, that table's decoded metadata file and the time.
        registered: Gets the view and its storage table.
    """

    pointed: Callable[[LoadedView, LoadedStorage, dict[str, Any], int], ChangedMetadata | None]
    registered: Callable[[LoadedView, LoadedStorage], TableChange | None]


@dataclass(slots=True)
class _Try:
    """What was written for one state of the view; nothing of it counts until the swap.

    Args:
        base: The view's metadata file that the swap is from.
        storage_location: The file that was written for it.
        sent: The last commit to a storage table in the catalog.
        wanted: What such a commit would ask for on the state that was looked at last.
        doubts: What was said instead of an answer; with a single one, to give up is to know nothing.
        uuid: The view's.
    """

    base: str | None = None
    storage_location: str | None = None
    sent: TableChange | None = None
    wanted: TableChange | None = None
    doubts: list[str] = field(default_factory=list)
    uuid: str | None = None


def commit_change(
    catalog: MaterializedViewCatalog,
    view: str | Identifier,
    change: StorageChange,
    *,
    effects: Effects | None = None,
    tries: int = 8,
) -> bool:
    """Publish a change of a view's storage table.

    Args:
        catalog: Where the view is.
        view: The view.
        change: Makes the change; called again for each new state of the view.
        effects: Clock, sleep and jitter.
        tries: Looks at the catalog before giving up; the waits between them grow to about 3 s each.

    Returns:
        Whether something was published; ``False`` where there was nothing to change.

    Raises:
        CommitConflictError: Others kept winning. Nothing was published.
        CommitStateUnknownError: The catalog's answers stayed lost, or prove nothing. Nothing is deleted; try again.
        ViewNotFoundError: The view was dropped, or dropped and created again.
    """
    effects = effects or Effects()
    refusal: MaterializedViewError | None = None
    identifier, attempt = catalog.identify(view), _Try()
    for number in range(1, tries + 1):
        try:
            loaded, storage = _look(catalog, identifier, attempt)
            published = _settled(loaded, storage, change, attempt)
            if published is None and refusal is not None:
                raise refusal  # the answer to the last try, and this look shows that it did not land
            if published is None:
                published = _send(catalog, loaded, storage, change, attempt, effects)
            if published is not None:
                return published
        except (CatalogUnavailableError, CommitStateUnknownError) as error:
            attempt.doubts.append(str(error))
            refusal = getattr(error, "refusal", refusal)
            log.warning("Try %d of %d to change %s: %s", number, tries, identifier, error)
        if number < tries:
            effects.wait(number)
    if not attempt.doubts and _last_look(catalog, identifier, change, attempt):
        return True
    raise _given_up(catalog, identifier, attempt, tries)


def _look(catalog: MaterializedViewCatalog, view: Identifier, attempt: _Try) -> tuple[LoadedView, LoadedStorage]:
    try:
        loaded = catalog.load(view)
        attempt.uuid = attempt.uuid or loaded.metadata.view_uuid
        if loaded.metadata.view_uuid != attempt.uuid:
            raise ViewNotFoundError(f"view {view} was dropped and created again in the meantime")
    except ViewNotFoundError:
        if not attempt.doubts:
            _discard(catalog, attempt)
        raise
    return loaded, catalog.load_storage(loaded)


def _settled(loaded: LoadedView, storage: LoadedStorage, change: StorageChange, attempt: _Try) -> bool | None:
    """Say what became of what was sent, or that there is nothing to change; ``None`` where it is to be sent."""
    if storage.name is None:
        ours = [attempt.storage_location] if attempt.storage_location is not None else []
        return True if has_landed(storage, "", ours) else None
    attempt.wanted = change.registered(loaded, storage)
    # Where something was sent, an earlier copy of it has landed.
    return attempt.sent is not None if attempt.wanted is None else None


def _send(
    catalog: MaterializedViewCatalog,
    loaded: LoadedView,
    storage: LoadedStorage,
    change: StorageChange,
    attempt: _Try,
    effects: Effects,
) -> bool | None:
    """Send the change; ``None`` where that settled nothing."""
    if storage.name is not None and attempt.wanted is not None:
        attempt.sent = attempt.wanted
        return True if catalog.commit_table(storage.name, storage.table.table_uuid or "", attempt.sent) else None
    if attempt.base != loaded.metadata_location:
        # The old base is gone: a swap from it can never land any more, its file is ours to delete.
        _discard(catalog, attempt)
        now_ms = effects.now_ms()
        document = decode(catalog.files.read(storage.location, what="storage table file"), source=storage.location)
        changed = change.pointed(loaded, storage, document, now_ms)
        if changed is None:
            return False
        attempt.storage_location = write_next(
            catalog,
            storage.table.location,
            changed.document,
            previous_location=storage.location,
            updates=changed.properties,
            tags={},
            now_ms=now_ms,
        )
        attempt.base = loaded.metadata_location
    settings = loaded.materialized.repointed(attempt.storage_location or "")
    metadata = with_view_properties(loaded.metadata, {PROPERTY: property_text(settings)})
    # Two swaps of one base name one storage file, and at most one of them matches: to send it again is safe.
    return True if catalog.replace(loaded, metadata) else None


def _last_look(catalog: MaterializedViewCatalog, view: Identifier, change: StorageChange, attempt: _Try) -> bool:
    """Look once more after a no to every try: the last no is no proof either. Whether the change is published."""
    try:
        loaded, storage = _look(catalog, view, attempt)
    except CatalogUnavailableError as error:
        attempt.doubts.append(str(error))
        return False
    if _settled(loaded, storage, change, attempt):
        return True
    if storage.name is None:
        moved = loaded.metadata_location != attempt.base
    else:
        moved = attempt.wanted is None or attempt.sent is None or attempt.wanted.requires != attempt.sent.requires
    if not moved:
        attempt.doubts.append("it refused the change, although nothing has changed meanwhile")
    return False


def _discard(catalog: MaterializedViewCatalog, attempt: _Try) -> None:
    """Delete what was written for a base that is gone; a file that stays is only waste."""
    location, attempt.storage_location = attempt.storage_location, None
    if location is not None:
        discard(catalog.files, location)


def _given_up(catalog: MaterializedViewCatalog, view: Identifier, attempt: _Try, tries: int) -> CommitError:
    if attempt.doubts:
        return CommitStateUnknownError(
            f"view {view}: after {tries} tries the catalog still gave no answer to go by ({attempt.doubts[-1]}). "
            "The change may or may not be published; nothing was deleted, run it again to settle it"
        )
    # Every change was answered by no, and none can be done any more.
    _discard(catalog, attempt)
    return CommitConflictError(
        f"view {view}: other commits won {tries} times in a row; nothing was published. Run it again later"
    )
