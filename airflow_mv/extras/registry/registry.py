# SPDX-License-Identifier: Apache-2.0
"""A catalog's registry: its two components, and the spool in which refreshes leave their rows.

A refresh writes one small file with a new name and commits to no table of the registry. So a hundred refreshes at once
do not wait for each other: see ``docs/decisions/0009-refreshes-leave-files-for-the-registry.md``.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from airflow_mv.core.catalog import MaterializedViewCatalog
from airflow_mv.core.catalog.files import StoredFile, discard
from airflow_mv.core.catalog.locations import join
from airflow_mv.errors import (
    CommitConflictError,
    ConfigurationError,
    InvalidMetadataError,
    MaterializedViewError,
    MetadataFileNotFoundError,
)
from airflow_mv.extras.registry.filters import before_month, both, equal, one_of
from airflow_mv.extras.registry.homes import home_of
from airflow_mv.extras.registry.model import REFRESHES, VIEWS, RefreshRow, ViewRow, month_of
from airflow_mv.extras.registry.settings import PLACE, RegistrySettings, registry_settings
from airflow_mv.extras.registry.tables import Component

log = logging.getLogger(__name__)

#: The folder of the spool, below that of the table ``refreshes``. Iceberg's removal of orphan files skips such names.
SPOOL = "_spool"
#: The folder beside it for files of the spool that are no rows. No sync reads them again.
REFUSED = "_refused"
#: The most rows that one sync brings in.
MAX_FILES = 10_000
#: The most bytes of a file with a row. A longer one is not read.
MAX_BYTES = 4 * 2**20
#: How long a file that is no row stays in the spool: it may be one that is being written.
REFUSED_AFTER_MS = 3_600_000
#: Files that are named in the log.
_NAMED = 20


@dataclass(frozen=True, slots=True)
class Spooled:
    """The files in the spool.

    Args:
        rows: The row of each file, by location.
        faults: Why a file cannot be read, by location.
    """

    rows: dict[str, RefreshRow]
    faults: dict[str, str]


@dataclass(frozen=True, slots=True)
class _Refused:
    """A file of the spool that is no row."""

    file: StoredFile
    content: bytes


class Registry:
    """A catalog's registry.

    Args:
        catalog: The catalog.
        settings: The settings.
    """

    def __init__(self, catalog: MaterializedViewCatalog, settings: RegistrySettings) -> None:
        self.catalog, self.settings = catalog, settings
        self._home = home_of(catalog, settings)
        self.views: Component[ViewRow] = Component(VIEWS, self._home, settings.components["views"])
        self.refreshes: Component[RefreshRow] = Component(REFRESHES, self._home, settings.components["refreshes"])

    @property
    def place(self) -> str:
        """Where it is, for messages."""
        return self._home.name

    def _spool(self, *, create: bool) -> str | None:
        table = self._home.create(REFRESHES) if create else self._home.open(REFRESHES)
        return None if table is None else join(table.location(), SPOOL)

    def leave(self, row: RefreshRow) -> None:
        """Leave the row of a refresh in the spool. It is in the table after the next sync."""
        folder = self._spool(create=True) or ""
        self.catalog.files.write(join(folder, f"{uuid.uuid4()}.json"), row.model_dump_json().encode())

    def spooled(self) -> Spooled:
        """Read at most :data:`MAX_FILES` rows of the spool, the oldest ones. Files that are no rows do not count.

        What has been no row for an hour is moved aside, with its name.
        """
        found, folder = Spooled({}, {}), self._spool(create=False)
        if folder is None:
            return found
        refused: list[_Refused] = []
        for file in sorted(self.catalog.files.list(folder), key=lambda item: item.modified_ms):
            if len(found.rows) == MAX_FILES:
                break
            self._read(file, found, refused)
        if refused:
            self._move_aside(folder, refused)
        return found

    def _read(self, file: StoredFile, found: Spooled, refused: list[_Refused]) -> None:
        """Read one file of the spool."""
        what, data = f"registry, file {file.location}", b""
        try:
            if file.size_bytes > MAX_BYTES:
                raise InvalidMetadataError(f"{what} has {file.size_bytes} bytes: it is no row")
            data = self.catalog.files.read(file.location, what=what)
            found.rows[file.location] = RefreshRow.parse(data, source=what)
        except MetadataFileNotFoundError:
            return  # another sync has brought it in
        except (InvalidMetadataError, ConfigurationError) as error:
            found.faults[file.location] = str(error)
            if isinstance(error, InvalidMetadataError) and file.size_bytes <= MAX_BYTES:
                refused.append(_Refused(file, data))

    def _move_aside(self, folder: str, refused: Iterable[_Refused]) -> None:
        """Move files that are no rows out of the spool, so that the next sync does not read them."""
        files = self.catalog.files
        old_ms, aside = files.now_ms(folder) - REFUSED_AFTER_MS, join(folder.rpartition("/")[0], REFUSED)
        for item in refused:
            if item.file.modified_ms > old_ms:
                continue
            with suppress(FileExistsError):  # another sync moves it
                files.write(join(aside, item.file.location.rpartition("/")[2]), item.content)
            discard(files, item.file.location)

    def count_spooled(self) -> int:
        """Return how many files are in the spool."""
        folder = self._spool(create=False)
        return 0 if folder is None else sum(1 for _ in self.catalog.files.list(folder))

    def forget(self, locations: Iterable[str]) -> None:
        """Delete files of the spool, after their rows were committed."""
        for location in locations:
            discard(self.catalog.files, location)


def registry_of(catalog: MaterializedViewCatalog) -> Registry | None:
    """Return a catalog's registry; ``None`` if it has none.

    Raises:
        ConfigurationError: A setting of the registry is invalid.
    """
    settings = registry_settings(catalog.properties)
    return Registry(catalog, settings) if settings.place else None


def require_registry(catalog: MaterializedViewCatalog) -> Registry:
    """Return a catalog's registry.

    Raises:
        ConfigurationError: It has none.
    """
    found = registry_of(catalog)
    if found is None:
        raise ConfigurationError(
            f"catalog {catalog.name!r} has no registry. Set its property {PLACE} to a namespace, such as airflow_mv"
        )
    return found


def bring_in(registry: Registry) -> tuple[int, dict[str, str]]:
    """Bring the refreshes in the spool into the table by one commit, then delete their files.

    Returns:
        How many refreshes were written, and why files of the spool could not be read, by location.

    Raises:
        CommitConflictError: Others changed the table each time.
    """
    found = registry.spooled()
    written = registry.refreshes.overwrite(_of_best_tries(registry, [*found.rows.values()]))
    registry.forget(found.rows)
    for why in [*found.faults.values()][:_NAMED]:
        log.warning("The registry did not bring in a file: %s", why)
    if len(found.faults) > _NAMED:
        log.warning("The registry did not bring in %d files", len(found.faults))
    return written, found.faults


def _of_best_tries(registry: Registry, rows: Sequence[RefreshRow]) -> list[RefreshRow]:
    """Return the rows to write, later ones first: of two tries of one refresh that of the one that has run it."""
    ran, found_published = ([row for row in rows if (row.outcome == "refreshed") is done] for done in (True, False))
    if found_published:
        ids = one_of("refresh_id", {row.refresh_id for row in found_published})
        known = registry.refreshes.rows(both(equal(catalog=registry.catalog.name), ids))
        ran_before = {key_of(row) for row in known if row.outcome == "refreshed"}
        found_published = [row for row in found_published if key_of(row) not in ran_before]
    return [*found_published, *ran]


def key_of(row: RefreshRow) -> tuple[Any, ...]:
    """Return the key of a row among all refreshes."""
    return tuple(getattr(row, name) for name in REFRESHES.keys)


def compact_finished_months(registry: Registry, now: datetime) -> int:
    """Rewrite the refreshes of each earlier month as one file. Return how many partitions were rewritten."""
    return registry.refreshes.compact(before_month(month_of(now)))


def leave(registry: Registry, row: RefreshRow) -> None:
    """Leave the row of a refresh, and bring in what has been left if there is enough of it.

    Args:
        registry: The registry.
        row: The row.

    Raises:
        MaterializedViewError: The row could not be left.
    """
    registry.leave(row)
    after = registry.settings.sync_after
    if after and registry.count_spooled() >= after:
        try:
            bring_in(registry)
        except CommitConflictError as error:
            log.info("Another process changes the registry; the refreshes stay in the spool: %s", error)
        except MaterializedViewError as error:
            log.warning("The refreshes stay in the registry's spool: %s", error)
