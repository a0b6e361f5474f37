# SPDX-License-Identifier: Apache-2.0
"""Check the files that snapshots name: manifest lists, manifests, data files and delete files.

Iceberg's metadata has no checksums. Each file is compared with its metadata: its existence, its size and its counts.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from pyiceberg.io import FileIO
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
)

from airflow_mv.core.catalog.avro import read_entries, read_manifests
from airflow_mv.core.catalog.catalog import MaterializedViewCatalog
from airflow_mv.core.catalog.files import named
from airflow_mv.core.catalog.layouts import LoadedStorage
from airflow_mv.core.catalog.loaded import LoadedView
from airflow_mv.core.catalog.locations import allowed_folders, check_confined
from airflow_mv.core.refresh.plan import RefreshPlan
from airflow_mv.core.spec.table_metadata import Snapshot, TableMetadata
from airflow_mv.errors import (
    InvalidMetadataError,
    MaterializedViewError,
    MetadataFileNotFoundError,
    RefusedLocationError,
)
from airflow_mv.foundation.redaction import shortened

log = logging.getLogger(__name__)

#: Files that are checked in parallel.
_WORKERS = 16
_REPORT_EACH = 1000
#: Error messages of Spark and Iceberg for lost or truncated files.
_ABOUT_FILES = re.compile(
    r"NotFoundException|File does not exist: |FAILED_READ_FILE|not a Parquet file|Not an Avro data file|"
    r"Failed to (open|read)"
)


@dataclass(frozen=True, slots=True)
class Damage:
    """A file that does not match its metadata.

    Args:
        role: What it is: ``manifest list``, ``manifest``, ``data file`` or ``delete file``.
        why: What is wrong with it.
    """

    location: str
    role: str
    why: str


@dataclass(frozen=True, slots=True)
class Checked:
    """The result of a check of snapshots.

    Args:
        damaged: The damaged files of each snapshot that has any.
        files: The number of checked files.
        size_bytes: Their recorded size.
        sizes: The recorded size of each data file and delete file.
    """

    damaged: Mapping[int, tuple[Damage, ...]]
    files: int
    size_bytes: int
    sizes: Mapping[str, int] = field(default_factory=dict)

    @property
    def all(self) -> tuple[Damage, ...]:
        """Every damaged file once."""
        return tuple(dict.fromkeys(item for items in self.damaged.values() for item in items))


@dataclass(frozen=True, slots=True)
class CheckedFile:
    """A data file or delete file, as its manifest records it."""

    location: str
    role: str
    size_bytes: int
    records: int
    file_format: FileFormat


@dataclass(slots=True)
class Store:
    """A store of files.

    Args:
        io: Opens the files.
        folders: Only files in these folders are opened.
    """

    io: FileIO
    folders: tuple[str, ...]

    def size(self, location: str, role: str) -> int:
        """Return a file's size."""
        self._check(location, role)
        with named(location, role):
            try:
                return len(self.io.new_input(location))
            except TypeError:
                raise FileNotFoundError(f"{location} is not a file") from None

    def _check(self, location: str, role: str) -> None:
        check_confined(location, self.folders, what=role)

    def manifests(self, location: str) -> tuple[dict[str, str], list[ManifestFile]]:
        """Read a manifest list: the properties of the file, and its manifests."""
        self._check(location, "manifest list")
        return read_manifests(self.io.new_input(location))

    def entries(self, manifest: ManifestFile) -> list[ManifestEntry]:
        """Read a manifest."""
        self._check(manifest.manifest_path, "manifest")
        return read_entries(manifest, self.io)


#: Checks the content of a file that has the recorded size; returns what is wrong with it.
ContentCheck = Callable[[Store, CheckedFile], str | None]


def store_of(catalog: MaterializedViewCatalog, view: LoadedView, storage: LoadedStorage) -> Store:
    """Return the store of a view's storage table."""
    folders = (*allowed_folders(catalog.properties, view.metadata_location), storage.table.location)
    return Store(catalog.files.io(storage.table.location, what="storage table"), folders)


@dataclass(slots=True)
class _CheckRun:
    """One check of several snapshots. Each file is checked once."""

    store: Store
    table: TableMetadata
    content: ContentCheck | None
    report: Callable[[str], None]
    files: dict[str, CheckedFile] = field(default_factory=dict)
    contents: dict[str, tuple[Damage | None, tuple[str, ...]]] = field(default_factory=dict)
    faults: dict[str, Damage] = field(default_factory=dict)
    metadata_files: int = 0
    size_bytes: int = 0

    def manifests_of(self, snapshot: Snapshot) -> tuple[Damage | None, list[ManifestFile]]:
        location = snapshot.manifest_list or ""
        self.metadata_files += 1
        try:
            self.size_bytes += self.store.size(location, "manifest list")
            stored, manifests = self.store.manifests(location)
        except (MetadataFileNotFoundError, InvalidMetadataError) as error:
            return Damage(location, "manifest list", _why(error)), []
        found = stored.get("snapshot-id", str(snapshot.snapshot_id))
        if found != str(snapshot.snapshot_id):
            return Damage(location, "manifest list", f"it is of snapshot {found}, not {snapshot.snapshot_id}"), []
        wanted, listed = snapshot.summary.get("total-data-files", ""), _listed(manifests)
        if wanted.isdigit() and listed is not None and listed < int(wanted):
            return Damage(location, "manifest list", f"it lists {listed} data files, {wanted} are recorded"), []
        return None, manifests

    def files_of(self, manifest: ManifestFile) -> tuple[Damage | None, tuple[str, ...]]:
        location = manifest.manifest_path
        if location not in self.contents:
            self.metadata_files += 1
            self.size_bytes += manifest.manifest_length
            self.contents[location] = self._files_of(manifest)
        return self.contents[location]

    def _files_of(self, manifest: ManifestFile) -> tuple[Damage | None, tuple[str, ...]]:
        location = manifest.manifest_path
        try:
            size = self.store.size(location, "manifest")
            if size != manifest.manifest_length:
                return Damage(location, "manifest", different_size(size, manifest.manifest_length)), ()
            entries = self.store.entries(manifest)
        except (MetadataFileNotFoundError, InvalidMetadataError) as error:
            return Damage(location, "manifest", _why(error)), ()
        counts = (manifest.added_files_count, manifest.existing_files_count)
        if None not in counts and sum(filter(None, counts)) != len(entries):
            wanted = sum(filter(None, counts))
            return Damage(location, "manifest", f"it lists {len(entries)} files, {wanted} are recorded"), ()
        added = {item.snapshot_id for item in entries if item.status == ManifestEntryStatus.ADDED}
        if not added <= {manifest.added_snapshot_id, None}:
            return Damage(location, "manifest", "it is another table's or another snapshot's manifest"), ()
        for item in entries:
            self.files.setdefault(item.data_file.file_path, _data_file(item.data_file))
        return None, tuple(item.data_file.file_path for item in entries)

    def check_files(self) -> None:
        self.size_bytes += sum(file.size_bytes for file in self.files.values())
        done, lock = 0, threading.Lock()

        def check(file: CheckedFile) -> Damage | None:
            nonlocal done
            found = self._damage(file)
            with lock:
                done += 1
                if done % _REPORT_EACH == 0:
                    self.report(f"{done:,} of {len(self.files):,} files checked")
            return found

        with ThreadPoolExecutor(_WORKERS) as pool:
            found = pool.map(check, self.files.values())
            self.faults = {item.location: item for item in found if item is not None}

    def _damage(self, file: CheckedFile) -> Damage | None:
        try:
            size = self.store.size(file.location, file.role)
            if size != file.size_bytes:
                return Damage(file.location, file.role, different_size(size, file.size_bytes))
            why = self.content(self.store, file) if self.content is not None else None
        except (MetadataFileNotFoundError, InvalidMetadataError) as error:
            why = _why(error)
        return Damage(file.location, file.role, why) if why else None


def check_snapshots(
    store: Store,
    table: TableMetadata,
    *,
    only: Collection[int] | None = None,
    data: bool = True,
    content: ContentCheck | None = None,
    report: Callable[[str], None] = log.info,
) -> Checked:
    """Check the files that the snapshots of a table name.

    Args:
        only: Ids of the snapshots to check; by default all that are retained.
        data: Whether data files and delete files are checked too.
        content: Checks the content of a file that has the recorded size; returns what is wrong with it.
        report: Called with the progress.

    Raises:
        CatalogUnavailableError: The store did not respond. This does not mean damage.
        AccessDeniedError: It refuses this account.
        RefusedLocationError: A file is in no folder that is allowed. This does not mean damage either.
    """
    run = _CheckRun(store, table, content, report)
    found: dict[int, tuple[list[Damage], list[str]]] = {}
    for snapshot in table.snapshots:
        if only is None or snapshot.snapshot_id in only:
            found[snapshot.snapshot_id] = _of_snapshot(run, snapshot)
    if data:
        run.check_files()
    damaged = {
        number: tuple(dict.fromkeys((*damages, *(run.faults[item] for item in files if item in run.faults))))
        for number, (damages, files) in found.items()
    }
    count = run.metadata_files + (len(run.files) if data else 0)
    sizes = {file.location: file.size_bytes for file in run.files.values()}
    return Checked({number: items for number, items in damaged.items() if items}, count, run.size_bytes, sizes)


def _of_snapshot(run: _CheckRun, snapshot: Snapshot) -> tuple[list[Damage], list[str]]:
    damage, manifests = run.manifests_of(snapshot)
    damages: list[Damage] = [damage] if damage else []
    files: list[str] = []
    for manifest in manifests:
        damage, named_files = run.files_of(manifest)
        damages += [damage] if damage else []
        files += named_files
    return damages, files


def _data_file(file: DataFile) -> CheckedFile:
    role = "data file" if file.content == DataFileContent.DATA else "delete file"
    return CheckedFile(file.file_path, role, file.file_size_in_bytes, file.record_count, file.file_format)


def _listed(manifests: Iterable[ManifestFile]) -> int | None:
    """Return the number of data files in manifests; ``None`` if one of them does not record it."""
    data = [item for item in manifests if item.content == ManifestContent.DATA]
    counts = [count for item in data for count in (item.added_files_count, item.existing_files_count)]
    return None if None in counts else sum(filter(None, counts))


def different_size(size: int, wanted: int) -> str:
    """Return the message for a file that has not its recorded size, in bytes."""
    return f"it has {size:,} bytes, {wanted:,} are recorded"


def _why(error: MaterializedViewError) -> str:
    """Return what is wrong with a file.

    Raises:
        RefusedLocationError: This is the error. The file may be intact.
    """
    if isinstance(error, RefusedLocationError):
        raise error
    return "it does not exist" if isinstance(error, MetadataFileNotFoundError) else str(error)


def require_whole_files(catalog: MaterializedViewCatalog, plan: RefreshPlan, reason: str) -> None:
    """Raise if a job failed because files of the stored rows are missing or truncated, which no retry can fix.

    Args:
        reason: The error of the job.

    Raises:
        InvalidMetadataError: Files are missing or truncated.
    """
    if not _ABOUT_FILES.search(reason):
        return
    try:
        view = catalog.load(plan.view)
        storage = catalog.load_storage(view)
        only = () if storage.rows_snapshot is None else (storage.rows_snapshot,)
        found = check_snapshots(store_of(catalog, view, storage), storage.table, only=only)
    except MaterializedViewError as error:
        log.warning("The files of %s could not be checked: %s", plan.view, error)
        return
    for damage in found.all[:1]:
        raise InvalidMetadataError(
            f"view {plan.view}: the Spark job failed, nothing was published: the {damage.role} {damage.location} of "
            f"the stored rows is damaged ({damage.why}). `airflow-mv repair {plan.view}` lists the possible repairs. "
            f"Error of the job: {shortened(reason, 300)}"
        )
