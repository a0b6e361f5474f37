# SPDX-License-Identifier: Apache-2.0
"""Check the files that snapshots name: manifest lists, manifests, data files and delete files.

Iceberg's metadata has no checksums. Each file is compared with its metadata: its existence, its size, its counts and,
for Parquet, its footer. Parquet files and deletion vectors have checksums of their own content, which are checked too.
"""

from __future__ import annotations

import logging
import threading
import zlib
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pyarrow as pa
from pyarrow import parquet
from pyiceberg.io import FileIO, InputFile, InputStream, OutputFile
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
)
from pyiceberg.schema import make_compatible_name
from pyiceberg.table.puffin import PuffinFile

from airflow_mv.core.catalog.avro import read_entries, read_manifests
from airflow_mv.core.catalog.catalog import MaterializedViewCatalog
from airflow_mv.core.catalog.files import named, parsed
from airflow_mv.core.catalog.layouts import LoadedStorage
from airflow_mv.core.catalog.loaded import LoadedView
from airflow_mv.core.catalog.locations import allowed_folders, check_confined
from airflow_mv.core.spec.table import Snapshot, TableMetadata
from airflow_mv.errors import (
    InvalidMetadataError,
    MaterializedViewError,
    MetadataFileNotFoundError,
    RefusedLocationError,
)

log = logging.getLogger(__name__)

#: Files that are checked in parallel.
_WORKERS = 16
_REPORT_EACH = 1000
_MAGIC = b"PAR1"
_TAIL = 8
#: Rows of a Parquet file that are decoded at a time, and bytes of a column that are read at a time.
_BATCH_ROWS, _BUFFER_BYTES = 65_536, 2**20
#: A blob of a Puffin file: its length, a magic number, the deleted rows, and their CRC-32.
_DELETION_VECTOR, _WORD = "deletion-vector-v1", 4
_MAX_PUFFIN_BYTES = 256 * 2**20


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
class _DataFile:
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

    def footer(self, location: str, size: int) -> parquet.FileMetaData:
        """Read a Parquet file's footer."""
        with named(location, "data file"), self.io.new_input(location).open() as stream:
            stream.seek(max(size - _TAIL, 0))
            tail = stream.read()
            length = int.from_bytes(tail[:4], "little")
            if tail[4:] != _MAGIC or length + _TAIL > size:
                raise InvalidMetadataError(f"data file: {location}: it has no Parquet footer")
            stream.seek(size - _TAIL - length)
            footer = stream.read()
        with parsed(location, "data file"):
            try:
                return parquet.read_metadata(pa.BufferReader(_MAGIC + footer))
            except OSError as error:  # pyarrow raises it for a footer that is not valid Thrift
                raise ValueError(str(error)) from None

    def changed_rows(self, location: str) -> str | None:
        """Read the pages of a Parquet file, and return what is wrong with them."""
        with named(location, "data file"), self.io.new_input(location).open() as stream:
            source = _Source(stream)
            try:
                file = parquet.ParquetFile(
                    pa.PythonFile(source, "r"), buffer_size=_BUFFER_BYTES, page_checksum_verification=True
                )
                for _ in file.iter_batches(_BATCH_ROWS, use_threads=False):
                    pass
            except NotImplementedError as error:  # a type that pyarrow does not read
                log.info("The rows of %s were not checked: %s", location, error)
            except (OSError, ValueError) as error:
                if source.error is not None:
                    raise source.error from None
                return f"its content has changed since it was written: {error}"
        return None

    def changed_vectors(self, location: str, size: int) -> str | None:
        """Compare the deletion vectors of a Puffin file with their checksums. Return what is wrong with them."""
        if size > _MAX_PUFFIN_BYTES:
            return None
        with named(location, "delete file"), self.io.new_input(location).open() as stream:
            data = stream.read()
        with parsed(location, "delete file"):
            blobs = PuffinFile(data).footer.blobs
        for blob in (item for item in blobs if item.type == _DELETION_VECTOR):
            vector = data[blob.offset : blob.offset + blob.length]
            end = _WORD + int.from_bytes(vector[:_WORD], "big")
            if zlib.crc32(vector[_WORD:end]) != int.from_bytes(vector[end:], "big"):
                return "its content has changed since it was written: the checksum of a deletion vector is wrong"
        return None


class _Source:
    """A stream whose own error is told from an error in its content: pyarrow raises ``OSError`` for both."""

    closed = False

    def __init__(self, stream: InputStream) -> None:
        self._stream = stream
        self.error: OSError | None = None

    def read(self, size: int = -1) -> bytes:
        try:
            return self._stream.read(size) if size >= 0 else self._stream.read()
        except OSError as error:
            self.error = error
            raise

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._stream.seek(offset, whence)

    def tell(self) -> int:
        return self._stream.tell()

    def close(self) -> None:
        """The stream is closed by its owner."""


def store_of(catalog: MaterializedViewCatalog, view: LoadedView, storage: LoadedStorage) -> Store:
    """Return the store of a view's storage table."""
    folders = (*allowed_folders(catalog.properties, view.metadata_location), storage.table.location)
    return Store(catalog.files.io(storage.table.location, what="storage table"), folders)


def own_snapshots(view: LoadedView, table: TableMetadata) -> tuple[int, ...]:
    """Return the retained snapshots that were written for a view: those of an adopted table from before are not.

    Their files are others', and may lie in folders that the catalog's configuration does not name.
    """
    since = view.adopted_at
    return tuple(item.snapshot_id for item in table.snapshots if since is None or item.sequence_number > since)


@dataclass(slots=True)
class _CheckRun:
    """One check of several snapshots. Each file is checked once."""

    store: Store
    table: TableMetadata
    checksums: bool
    report: Callable[[str], None]
    files: dict[str, _DataFile] = field(default_factory=dict)
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
                return Damage(location, "manifest", _sizes(size, manifest.manifest_length)), ()
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

        def check(file: _DataFile) -> Damage | None:
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

    def _damage(self, file: _DataFile) -> Damage | None:
        try:
            size = self.store.size(file.location, file.role)
            if size != file.size_bytes:
                return Damage(file.location, file.role, _sizes(size, file.size_bytes))
            why = self._changed(file, size) if self.checksums else None
        except (MetadataFileNotFoundError, InvalidMetadataError) as error:
            why = _why(error)
        return Damage(file.location, file.role, why) if why else None

    def _changed(self, file: _DataFile, size: int) -> str | None:
        if file.file_format == FileFormat.PARQUET:
            return self._of_another(file, size) or self.store.changed_rows(file.location)
        return self.store.changed_vectors(file.location, size) if file.file_format == FileFormat.PUFFIN else None

    def _of_another(self, file: _DataFile, size: int) -> str | None:
        footer = self.store.footer(file.location, size)
        if footer.num_rows != file.records:
            return f"it has {footer.num_rows} records, {file.records} are recorded"
        if file.role != "data file":
            return None
        columns = footer.schema.to_arrow_schema()
        stored = {(_field_id(column), column.name) for column in columns}
        fields = [item for schema in self.table.schemas for item in schema.get("fields", [])]
        # Writers replace characters in the names of columns that Avro does not allow, also in Parquet files.
        ours = {
            (item.get("id"), name) for item in fields for name in (item["name"], make_compatible_name(item["name"]))
        }
        strange = stored and all(number is not None for number, _ in stored) and not stored & ours
        return f"it has other columns ({', '.join(columns.names[:5])})" if strange else None


def check_snapshots(
    store: Store,
    table: TableMetadata,
    *,
    only: Collection[int] | None = None,
    data: bool = True,
    checksums: bool = True,
    report: Callable[[str], None] = log.info,
) -> Checked:
    """Check the files that the snapshots of a table name.

    Args:
        only: Ids of the snapshots to check; by default all that are retained.
        data: Whether data files and delete files are checked too.
        checksums: Whether Parquet files and deletion vectors are read, and compared with their checksums.
        report: Called with the progress.

    Raises:
        CatalogUnavailableError: The store did not respond. This does not mean damage.
        ConfigurationError: There is no permission to read the store.
        RefusedLocationError: A file is in no folder that is allowed. This does not mean damage either.
    """
    run = _CheckRun(store, table, checksums, report)
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


def _data_file(file: DataFile) -> _DataFile:
    role = "data file" if file.content == DataFileContent.DATA else "delete file"
    return _DataFile(file.file_path, role, file.file_size_in_bytes, file.record_count, file.file_format)


def _listed(manifests: Iterable[ManifestFile]) -> int | None:
    """Return the number of data files in manifests; ``None`` if one of them does not record it."""
    data = [item for item in manifests if item.content == ManifestContent.DATA]
    counts = [count for item in data for count in (item.added_files_count, item.existing_files_count)]
    return None if None in counts else sum(filter(None, counts))


def _field_id(column: pa.Field) -> int | None:
    text = (column.metadata or {}).get(b"PARQUET:field_id", b"")
    return int(text) if text.isdigit() else None


def _sizes(size: int, wanted: int) -> str:
    return f"it has {size:,} bytes, {wanted:,} are recorded"


def _why(error: MaterializedViewError) -> str:
    """Return what is wrong with a file.

    Raises:
        RefusedLocationError: This is the error. The file may be intact.
    """
    if isinstance(error, RefusedLocationError):
        raise error
    return "it does not exist" if isinstance(error, MetadataFileNotFoundError) else str(error)


class SizeCheckedIO(FileIO):
    """Opens files for pyiceberg, and refuses files whose size differs from the recorded one.

    Args:
        io: Opens the files.
        sizes: The recorded sizes.
    """

    def __init__(self, io: FileIO, sizes: Mapping[str, int]) -> None:
        super().__init__(io.properties)
        self._io = io
        self._sizes = sizes

    def new_input(self, location: str) -> InputFile:
        """Return a file to read."""
        return _SizedInput(self._io.new_input(location), self._sizes.get(location))

    def new_output(self, location: str) -> OutputFile:
        """Return a file to write."""
        return self._io.new_output(location)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        """Delete a file."""
        self._io.delete(location)


class _SizedInput(InputFile):
    def __init__(self, file: InputFile, size: int | None) -> None:
        super().__init__(file.location)
        self._file = file
        self._wanted = size

    def __len__(self) -> int:
        return len(self._file)

    def exists(self) -> bool:
        return self._file.exists()

    def open(self, seekable: bool = True) -> InputStream:  # noqa: FBT001, FBT002 (pyiceberg's signature)
        stream = self._file.open(seekable=seekable)
        # pyarrow knows the size of an opened file, so that no further request is needed.
        size = stream.size() if hasattr(stream, "size") else len(self._file)
        if self._wanted is not None and size != self._wanted:
            stream.close()
            raise InvalidMetadataError(f"data file: {self.location}: {_sizes(size, self._wanted)}")
        return stream
