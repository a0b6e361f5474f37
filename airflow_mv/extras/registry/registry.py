# SPDX-License-Identifier: Apache-2.0
"""A catalog's registry: its components, and the staging folder in which refreshes leave their rows.

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
from itertools import islice
from typing import Any

from airflow_mv.core.catalog import MaterializedViewCatalog
from airflow_mv.core.catalog.files import StoredFile, discard
from airflow_mv.core.catalog.locations import join
from airflow_mv.errors import (
    AccessDeniedError,
    CommitConflictError,
    ConfigurationError,
    InvalidMetadataError,
    MaterializedViewError,
    MetadataFileNotFoundError,
)
from airflow_mv.extras.registry.expiry import expire_later
from airflow_mv.extras.registry.filters import before_month, both, equal, one_of
from airflow_mv.extras.registry.homes import home_of
from airflow_mv.extras.registry.model import REFRESHES, TABLES, VIEWS, RefreshRow, TableRow, ViewRow, month_of
from airflow_mv.extras.registry.settings import PLACE, RegistrySettings, registry_settings
from airflow_mv.extras.registry.tables import Component
from airflow_mv.foundation.words import one_of as one_of_words

log = logging.getLogger(__name__)

#: The staging folder, below that of the table ``refreshes``. Iceberg's removal of orphan files skips such names.
STAGING = "_staging"
#: The folder beside it for staged files that are no rows. No sync reads them again.
REFUSED = "_refused"
#: The most rows that one sync commits.
MAX_FILES = 10_000
#: The most bytes of a file with a row. A longer one is not read.
MAX_BYTES = 4 * 2**20
#: How long a staged file that is no row stays: it may be one that is being written.
REFUSED_AFTER_MS = 3_600_000
#: The most files that a sync names because they are no rows.
MAX_NAMED = 20


@dataclass(frozen=True, slots=True)
class Staged:
    """The staged files.

    Args:
        rows: The row of each file, by location.
        faults: Why a file cannot be read, by location.
    """

    rows: dict[str, RefreshRow]
    faults: dict[str, str]


@dataclass(frozen=True, slots=True)
class _Refused:
    """A staged file that is no row."""

    file: StoredFile
    content: bytes


class Registry:
    """A catalog's registry."""

    def __init__(self, catalog: MaterializedViewCatalog, settings: RegistrySettings) -> None:
        self.catalog, self.settings = catalog, settings
        self._home = home_of(catalog, settings)
        self.views: Component[ViewRow] = Component(VIEWS, self._home, settings.components["views"])
        self.refreshes: Component[RefreshRow] = Component(REFRESHES, self._home, settings.components["refreshes"])
        self.tables: Component[TableRow] = Component(TABLES, self._home, settings.components["tables"])

    @property
    def components(self) -> dict[str, Component[Any]]:
        """The components by name."""
        return {item.kind.name: item for item in (self.views, self.refreshes, self.tables)}

    def component(self, name: str) -> Component[Any]:
        """Return the component of this name.

        Raises:
            ConfigurationError: There is none.
        """
        return self.components[one_of_words(name, self.components, field="component")]

    def purge(self, name: str | None = None) -> int:
        """Delete all rows of the catalog, and the staged ones. Their files stay until they expire.

        Args:
            name: A component; ``None``: all.

        Returns:
            How many rows were deleted.

        Raises:
            CommitConflictError: Others changed the table each time.
        """
        components = self.components.values() if name is None else (self.component(name),)
        if self.refreshes in components:
            # Staged ones first: a sync between the two steps would bring them back.
            rows = self.staged().rows
            self.forget(file for file, row in rows.items() if row.catalog == self.catalog.name)
        return sum(item.delete(equal(catalog=self.catalog.name)) for item in components)

    @property
    def place(self) -> str:
        """Where it is, for messages."""
        return self._home.name

    def _staging(self, *, create: bool) -> str | None:
        table = self._home.create(REFRESHES) if create else self._home.open(REFRESHES)
        return None if table is None else join(table.location(), STAGING)

    def stage(self, row: RefreshRow) -> None:
        """Write the row of a refresh into the staging folder. It is in the table after the next sync."""
        folder = self._staging(create=True) or ""
        self.catalog.files.write(join(folder, f"{uuid.uuid4()}.json"), row.model_dump_json().encode())

    def staged(self) -> Staged:
        """Read at most :data:`MAX_FILES` staged rows, the oldest ones. Files that are no rows do not count.

        What has been no row for an hour is moved aside, with its name.
        """
        found, folder = Staged({}, {}), self._staging(create=False)
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

    def _read(self, file: StoredFile, found: Staged, refused: list[_Refused]) -> None:
        """Read one staged file."""
        what, data = f"registry, file {file.location}", b""
        try:
            if file.size_bytes > MAX_BYTES:
                raise InvalidMetadataError(f"{what} has {file.size_bytes} bytes: it is not a row")
            data = self.catalog.files.read(file.location, what=what)
            found.rows[file.location] = RefreshRow.parse(data, source=what)
        except MetadataFileNotFoundError:
            return  # another sync has committed it
        except (InvalidMetadataError, ConfigurationError, AccessDeniedError) as error:
            found.faults[file.location] = str(error)
            if isinstance(error, InvalidMetadataError) and file.size_bytes <= MAX_BYTES:
                refused.append(_Refused(file, data))

    def _move_aside(self, folder: str, refused: Iterable[_Refused]) -> None:
        """Move files that are no rows out of the staging folder, so that the next sync does not read them."""
        files = self.catalog.files
        old_ms, aside = files.now_ms(folder) - REFUSED_AFTER_MS, join(folder.rpartition("/")[0], REFUSED)
        for item in refused:
            if item.file.modified_ms > old_ms:
                continue
            with suppress(FileExistsError):  # another sync moves it
                files.write(join(aside, item.file.location.rpartition("/")[2]), item.content)
            discard(files, item.file.location)

    def count_staged(self) -> int:
        """Return how many files are staged."""
        folder = self._staging(create=False)
        return 0 if folder is None else sum(1 for _ in self.catalog.files.list(folder))

    def forget(self, locations: Iterable[str]) -> None:
        """Delete staged files, after their rows were committed."""
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


def commit_staged(registry: Registry) -> tuple[int, dict[str, str]]:
    """Add the staged refreshes to the table by one commit, then delete their files, and compact the table.

    Returns:
        How many refreshes were written, and why staged files could not be read, by location: of the first
        :data:`MAX_NAMED`.

    Raises:
        CommitConflictError: Others changed the table each time.
    """
    found = registry.staged()
    written = registry.refreshes.upsert(_of_best_tries(registry, [*found.rows.values()]))
    registry.forget(found.rows)
    registry.refreshes.compact()
    faults = dict(islice(found.faults.items(), MAX_NAMED))
    for why in faults.values():
        log.warning("The registry skipped a staged file: %s", why)
    if len(found.faults) > MAX_NAMED:
        log.warning("The registry skipped %d staged files", len(found.faults))
    return written, faults


def _of_best_tries(registry: Registry, rows: Sequence[RefreshRow]) -> list[RefreshRow]:
    """Return the rows to write, later ones first: of two tries of one refresh that of the one that has run it."""
    ran, found_published = ([row for row in rows if (row.outcome == "refreshed") is done] for done in (True, False))
    if found_published:
        ids = one_of("refresh_id", {row.refresh_id for row in found_published})
        known = registry.refreshes.rows(both(equal(catalog=registry.catalog.name), ids))
        ran_before = {row.refresh_id for row in known if row.outcome == "refreshed"}
        found_published = [row for row in found_published if row.refresh_id not in ran_before]
    return [*found_published, *ran]


def compact_finished_months(registry: Registry, now: datetime) -> int:
    """Rewrite the refreshes of each earlier month as one file. Return how many partitions were rewritten."""
    return registry.refreshes.compact(before_month(month_of(now)), max_files=1)


def add_refresh(registry: Registry, row: RefreshRow) -> None:
    """Stage the row of a refresh, and commit all staged rows if there are enough.

    Raises:
        MaterializedViewError: The row could not be staged.
    """
    registry.stage(row)
    after = registry.settings.sync_after
    if after and registry.count_staged() >= after:
        try:
            commit_staged(registry)
            expire_later([registry.refreshes])
        except CommitConflictError as error:
            log.info("Another process is writing the registry; the refreshes wait for the next sync: %s", error)
        except MaterializedViewError as error:
            log.warning("Could not write the registry; the refreshes wait for the next sync: %s", error)
