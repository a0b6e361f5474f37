# SPDX-License-Identifier: Apache-2.0
"""The deletion log of a view: since when files are known to be unreachable, and what was deleted.

It is one small JSON file in the view's own folder. It never proves that a file is the view's, or unreachable: it only
says since when. A file without a mark waits for its age. A forged mark can end this wait early, but no mark counts from
before the time when the file was written, or was last reachable: see :meth:`DeletionLog.since_ms`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from airflow_mv.core.catalog import LoadedView, MaterializedViewCatalog
from airflow_mv.core.catalog.locations import join
from airflow_mv.errors import CatalogUnavailableError, ConfigurationError, InvalidMetadataError

log = logging.getLogger(__name__)

_VERSION = 1
_MAX_RUNS = 20
_MAX_NAMES = 1000
_MAX_BYTES = 64 * 2**20


class Deleted(msgspec.Struct, frozen=True, rename="kebab"):
    """The files that one run deleted.

    Args:
        at_ms: When, by the store's clock.
        files: How many files.
        names: The first of them, each with its proof of ownership.
    """

    at_ms: int
    files: int
    names: dict[str, str] = msgspec.field(default_factory=dict)


class _Stored(msgspec.Struct, frozen=True, rename="kebab"):
    version: int
    view_uuid: str
    unreachable_since_ms: dict[str, int] = msgspec.field(default_factory=dict)
    deleted: list[Deleted] = msgspec.field(default_factory=list)


@dataclass(frozen=True, slots=True)
class DeletionLog:
    """One state of the deletion log.

    Args:
        marks: Since when a file is known to be unreachable, by its location.
        deleted: The last runs that deleted something.
    """

    view_uuid: str
    marks: Mapping[str, int] = field(default_factory=dict)
    deleted: Sequence[Deleted] = ()

    def __bool__(self) -> bool:
        """Whether there is anything to be kept."""
        return bool(self.marks or self.deleted)

    def since_ms(self, location: str, *, now_ms: int, not_before_ms: int) -> int:
        """Return since when a file is known to be unreachable.

        Args:
            now_ms: The store's time.
            not_before_ms: Before this time the file was reachable, or not written yet: an older mark is ignored.
        """
        marked = self.marks.get(location, now_ms)
        return marked if not_before_ms <= marked <= now_ms else max(not_before_ms, now_ms)

    def with_run(self, at_ms: int, proofs: Mapping[str, str]) -> DeletionLog:
        """Return the deletion log after a run that deleted files.

        Args:
            at_ms: When.
            proofs: The proof of each file by its location.
        """
        if not proofs:
            return self
        names = dict(list(proofs.items())[:_MAX_NAMES])
        return replace(self, deleted=[*self.deleted, Deleted(at_ms, len(proofs), names)][-_MAX_RUNS:])


def log_location(folder: str) -> str:
    """Return where a view's deletion log is, in the first of its folders that are accessible."""
    return join(folder, "maintenance", "deletion-log.json")


def read_log(catalog: MaterializedViewCatalog, view: LoadedView, folder: str) -> DeletionLog:
    """Read a view's deletion log from a folder. Return an empty one if there is no readable log."""
    uuid, location = view.metadata.view_uuid, log_location(folder)
    try:
        text = catalog.files.read_text(location)
        if text is None or len(text) > _MAX_BYTES:
            return DeletionLog(uuid)
        found = msgspec.json.decode(text, type=_Stored)
    except (msgspec.DecodeError, RecursionError, InvalidMetadataError) as error:
        log.warning("Could not read the deletion log %s, starting a new one: %s", location, error)
        return DeletionLog(uuid)
    if (found.version, found.view_uuid) != (_VERSION, uuid):
        return DeletionLog(uuid)
    return DeletionLog(uuid, found.unreachable_since_ms, found.deleted)


def write_log(
    catalog: MaterializedViewCatalog, view: LoadedView, folder: str, deletions: DeletionLog, before: DeletionLog
) -> None:
    """Write a view's deletion log to a folder if it has changed."""
    if deletions == before:
        return
    stored = _Stored(_VERSION, deletions.view_uuid, dict(deletions.marks), list(deletions.deleted))
    try:
        catalog.files.replace_text(log_location(folder), msgspec.json.encode(stored).decode())
    except (OSError, CatalogUnavailableError, ConfigurationError) as error:
        log.warning("Could not write the deletion log of %s: %s", view.identifier, error)
