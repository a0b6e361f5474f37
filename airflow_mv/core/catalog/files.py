# SPDX-License-Identifier: Apache-2.0
"""Read, write, flush and list the files of a store. An existing file is never overwritten."""

from __future__ import annotations

import errno
import logging
import os
import stat
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from io import SEEK_END, SEEK_SET
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

from pyiceberg.catalog import Catalog, MetastoreCatalog
from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.io import FileIO, InputFile, InputStream, OutputFile, OutputStream, load_file_io
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import StaticTable
from pyiceberg.table.metadata import TableMetadata as IcebergMetadata

from airflow_mv.core.catalog.answers import DeniedByStoreError, is_denial
from airflow_mv.core.catalog.configured import store_timeout, with_store_limits
from airflow_mv.core.catalog.locations import (
    checked_on_disk,
    is_location,
    join,
)
from airflow_mv.core.catalog.pyiceberg_compat import (
    WriteMetadata,
    file_system_of,
    path_in,
    wrap_metadata_writer,
)
from airflow_mv.core.catalog.store_deadlines import LISTING_FACTOR, within
from airflow_mv.core.catalog.vended import Vended, VendedCredentials
from airflow_mv.core.spec.stored import MAX_BYTES
from airflow_mv.core.spec.table_metadata import TableMetadata, parse_table
from airflow_mv.core.spec.times import parse_timestamp, to_ms
from airflow_mv.errors import (
    AccessDeniedError,
    ConfigurationError,
    InvalidMetadataError,
    MaterializedViewError,
    MetadataFileNotFoundError,
    StoreUnavailableError,
    UnsupportedError,
)
from airflow_mv.foundation.redaction import shortened

if TYPE_CHECKING:
    from pyiceberg.io import FileIO

Result = TypeVar("Result")

log = logging.getLogger(__name__)


#: Content of the small file that is written to read the store's clock.
CLOCK_TEXT = b"what time is it?"
#: How the names of metadata files end.
METADATA_SUFFIXES = (".metadata.json", ".metadata.json.gz")
_PACKED = (".gz.metadata.json", ".metadata.json.gz")
#: An answer of S3 to HEAD has no text, and this status also for a token that has ended.
_UNCLEAR = "HTTP status 400"
Act = Literal["read", "write", "list", "delete"]
#: What an account needs for an act, by the scheme of the store.
_NEEDS: dict[str, dict[Act, str]] = {
    "s3": {
        "read": "s3:GetObject, and s3:ListBucket, without which a missing file is refused too",
        "write": "s3:PutObject, and s3:GetObject and s3:ListBucket to see that the file is new",
        "list": "s3:ListBucket",
        "delete": "s3:DeleteObject",
    },
    "gs": {
        "read": "storage.objects.get",
        "write": "storage.objects.create, and storage.objects.get to see that the file is new",
        "list": "storage.objects.list",
        "delete": "storage.objects.delete",
    },
    "abfss": {
        "read": "Storage Blob Data Reader",
        "write": "Storage Blob Data Contributor",
        "list": "Storage Blob Data Reader",
        "delete": "Storage Blob Data Contributor",
    },
}
_SAME_STORE = {"s3a": "s3", "s3n": "s3", "gcs": "gs", "abfs": "abfss", "wasb": "abfss", "wasbs": "abfss"}

#: What pyarrow says of a refusal whose text is longer than the bytes that were requested.
_UNREAD_REFUSAL = "Failed to flush response stream"


class MetadataFiles:
    """The store behind a catalog, through pyiceberg's ``FileIO``.

    Args:
        properties: The catalog's properties. Properties of views and tables are never used to build the
            ``FileIO``: they are untrusted input and could name endpoints or classes.
        vended: The credentials that the catalog's server vends, if it is a REST catalog.
    """

    def __init__(self, properties: Mapping[str, str], vended: VendedCredentials | None = None) -> None:
        self._properties = with_store_limits(properties)
        self._seconds = store_timeout(properties)
        self._opened: dict[str, FileIO] = {}
        self._vended = vended
        self._opened_by: WeakKeyDictionary[Vended, dict[str, FileIO]] = WeakKeyDictionary()

    def read(self, location: str, *, what: str) -> bytes:
        """Read a whole file.

        Args:
            what: Names the view and the role of the file, for messages.

        Raises:
            MetadataFileNotFoundError: It does not exist.
            InvalidMetadataError: The location is not valid, or the file is too large.
            CatalogUnavailableError: The store did not respond.
            AccessDeniedError: It refuses this account.
            ConfigurationError: A library for the store is missing.
        """

        def content(io: FileIO) -> bytes:
            file = io.new_input(location)
            _require_size(_size(file, location), location, what)
            with file.open() as stream:
                return stream.read()

        on_disk = self._on_disk(location, what)
        with named(location, what):
            local = self._within(location, self._seconds, lambda: self._local_content(location, what), on_disk=on_disk)
            data = self._with_io(location, what, content) if local is None else local
        if (data[:2] == b"\x1f\x8b") != location.endswith(_PACKED):
            # Iceberg and pyiceberg decide by the name, so they could not read this file.
            raise InvalidMetadataError(
                f"{what}: {location}: gzip data must be in a file named *.gz.metadata.json, only"
            )
        return data

    def read_table(self, location: str, *, what: str) -> TableMetadata:
        """Read a table's metadata file.

        Raises:
            InvalidMetadataError, MetadataFileNotFoundError: It is broken, or does not exist.
        """
        return parse_table(self.read(location, what=what), source=f"{what} {location}")

    def _local_content(self, location: str, what: str) -> bytes | None:
        """Read a file of this host without pyiceberg's ``FileIO``: that imports pyarrow, and then pandas.

        Returns:
            ``None`` if it is no location of this host, or the catalog's owner has named a ``FileIO``.
        """
        parts = urlsplit(location)
        is_path = location.startswith("/") and "DEFAULT_SCHEME" not in self._properties
        is_local = is_path or (parts.scheme == "file" and not parts.netloc)
        if not is_local or "py-io-impl" in self._properties or self._vended_at(location):
            return None
        path = Path(location if is_path else parts.path)  # as pyiceberg, which takes ``?`` and ``#`` out of URIs only
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            raise FileNotFoundError(f"{location} is not a file")
        _require_size(found.st_size, location, what)
        return path.read_bytes()

    def read_text(self, location: str) -> str | None:
        """Read a small text file; ``None`` if it does not exist."""
        try:
            return self.read(location, what="file").decode("utf-8", "replace")
        except MetadataFileNotFoundError:
            return None

    def write(self, location: str, data: bytes) -> None:
        """Write a new file; on a local store it is flushed to disk before this returns.

        Raises:
            FileExistsError: The file exists. Names contain a new uuid, so this is a bug.
            CatalogUnavailableError: The store did not respond.
            AccessDeniedError: It refuses this account.
        """
        self._create(location, data, "new file", overwrite=False)

    def replace_text(self, location: str, text: str) -> None:
        """Write a working file of a refresh (script, outcome), and replace an older one of the same refresh."""
        self._create(location, text.encode("utf-8"), "working file", overwrite=True)

    def _create(self, location: str, data: bytes, what: str, *, overwrite: bool, lasting: bool = True) -> None:
        """Write a file, and flush it if the store is local."""

        def created(io: FileIO) -> None:
            with io.new_output(location).create(overwrite=overwrite) as stream:
                stream.write(data)

        with named(location, what, "write"):
            folder = first_folder(location)
            self._with_io(location, "file", created)
            if lasting:
                flush(location, folder)

    def delete(self, location: str) -> None:
        """Delete a file, and Hadoop's checksum file of a local one. A missing file is ignored.

        Raises:
            AccessDeniedError: The store refuses this account.
        """
        try:
            for item in (location, *checksum_of(location)):
                with suppress(FileNotFoundError):
                    self._with_io(item, "file", partial(_delete, location=item))
        except OSError as error:
            if (text := _denial(location, "delete", error)) is None:
                raise
            raise AccessDeniedError(text, location) from None

    def exists(self, location: str, *, what: str) -> bool:
        """Whether a file exists."""
        with named(location, what):
            return self._with_io(location, what, lambda io: io.new_input(location).exists())

    def list(self, base: str) -> Iterator[StoredFile]:
        """List the files below a folder, at any depth. A missing folder has no files.

        Symbolic links are neither listed nor followed. A name that cannot be written as a location is left out.

        Raises:
            CatalogUnavailableError: The store did not respond.
            AccessDeniedError: It refuses this account.
            UnsupportedError: The ``FileIO`` cannot list files.
        """
        with named(base, "folder", "list"):
            self._require_answer(base)
            listing = self._seconds * LISTING_FACTOR
            for file in self._with_io(base, "folder", lambda io: list(below(io, base)), seconds=listing):
                if is_location(file.location):
                    yield file

    def _require_answer(self, base: str) -> None:
        """Ask a store for one folder before a listing, which has more time. A silent store is not asked again."""
        if not self._on_disk(base, "folder"):
            with suppress(Exception):  # the listing raises the error
                self.exists(base, what="folder")

    def now_ms(self, base: str) -> int:
        """Return the store's clock in milliseconds since the epoch: the modification time of a new small file.

        Args:
            base: The folder in which the file is written, and deleted again.
        """
        location = self._small_file(base)
        try:
            return self.modified_ms(location)
        finally:
            discard(self, location)

    def require_deletes(self, base: str) -> None:
        """Check that files in a folder can be deleted: a small new file is.

        Raises:
            AccessDeniedError: The store refuses this account.
        """
        location = self._small_file(base)
        with named(location, "small new file"):
            self.delete(location)

    def _small_file(self, base: str) -> str:
        location = join(base, f"clock-{uuid.uuid4()}.tmp")
        self._create(location, CLOCK_TEXT, "new file", overwrite=False, lasting=False)
        return location

    def modified_ms(self, location: str) -> int:
        """Return when a file was written, by the store's clock, milliseconds since the epoch.

        Raises:
            MetadataFileNotFoundError: It does not exist.
        """
        with named(location, "file"):
            return self._with_io(location, "file", lambda io: modified_ms(io, location))

    def remove_empty_folders(self, base: str, deleted: Iterable[str]) -> None:
        """Remove a local folder and the folders of deleted files below it, if they are empty.

        Args:
            base: The folder. Nothing is done in an object store.
        """
        if (folder := local_path(base)) is not None:
            remove_empty(folder, [urlsplit(location).path for location in deleted])

    def io(self, location: str, *, what: str) -> FileIO:
        """Return the ``FileIO`` for a location.

        Raises:
            InvalidMetadataError: The location is not valid.
            NoCredentialsError: The catalog's server vends credentials, and none are known for this location.
        """
        on_disk, vended = self._on_disk(location, what), self._vended_at(location)
        if vended is None and on_disk:
            return self._opened_with(None, location)
        properties = vended.properties(location) if vended is not None else {}
        return GuardedIO(self._with_io, self._seconds, {**self._properties, **properties})

    def require_access(self, location: str) -> None:
        """Check that credentials for a location are known, if its catalog's server vends credentials.

        Raises:
            NoCredentialsError: They are not.
        """
        self._vended_at(location)

    def vended_properties(self, location: str) -> dict[str, str]:
        """Return the properties with which the catalog's server gives access to a location; none if it vends none."""
        vended = self._vended_at(location)
        return vended.properties(location) if vended else {}

    @property
    def vended_stores(self) -> frozenset[str]:
        """The schemes of the stores to which the catalog's server has vended credentials so far."""
        return frozenset(self._vended.schemes if self._vended else ())

    def vends(self, location: str) -> bool:
        """Whether the catalog's server has vended credentials for a location."""
        return self._vended is not None and self._vended.knows(location)

    def _within(self, location: str, seconds: float, act: Callable[[], Result], *, on_disk: bool) -> Result:
        """Call a location's store until a deadline. A disk of this host has none."""
        return act() if on_disk else within(self._whole(location), seconds, act)

    def _on_disk(self, location: str, what: str) -> bool:
        """Whether a location is on a disk of this host.

        Raises:
            InvalidMetadataError: The location is not valid.
        """
        return checked_on_disk(location, self._whole(location), what=what)

    def _whole(self, location: str) -> str:
        """Return a location with the scheme that pyiceberg gives to a path without one."""
        scheme = self._properties.get("DEFAULT_SCHEME")
        if scheme is None or not location.startswith("/"):
            return location
        return f"{scheme}://{self._properties.get('DEFAULT_NETLOC', '')}{location}"

    def _vended_at(self, location: str) -> Vended | None:
        return self._vended.at(location) if self._vended else None

    def _opened_with(self, vended: Vended | None, location: str) -> FileIO:
        if vended is None:
            scheme = urlsplit(location).scheme
            if scheme not in self._opened:
                # One ``FileIO`` for each scheme, because it keeps the store's connections.
                self._opened[scheme] = load_file_io(self._properties, location)
            return self._opened[scheme]
        opened, properties = self._opened_by.setdefault(vended, {}), vended.properties(location)
        key = "\0".join(f"{name}={value}" for name, value in sorted(properties.items()))
        if key not in opened:
            opened[key] = load_file_io({**self._properties, **properties}, location)
        return opened[key]

    def _with_io(
        self, location: str, what: str, act: Callable[[FileIO], Result], *, seconds: float | None = None
    ) -> Result:
        """Do something with a location's ``FileIO``; once more, with new credentials, if vended ones are refused.

        Args:
            location: A file or folder.
            what: Its role, for messages.
            act: What is done.
            seconds: The deadline; by default that of the catalog.
        """
        on_disk = self._on_disk(location, what)
        limit = self._seconds if seconds is None else seconds
        vended = self._vended_at(location)
        try:
            return self._within(location, limit, lambda: act(self._opened_with(vended, location)), on_disk=on_disk)
        except OSError as error:
            if vended is None or self._vended is None or not is_refusal(error):
                raise
            if not self._vended.renewed(location, vended):
                raise _refused(vended, error) from None
        again = self._vended_at(location)
        try:
            return self._within(location, limit, lambda: act(self._opened_with(again, location)), on_disk=on_disk)
        except OSError as error:
            raise (_refused(vended, error) if is_refusal(error) else error) from None


def _require_size(size: int, location: str, what: str) -> None:
    if size > MAX_BYTES:
        raise InvalidMetadataError(f"{what}: {location} is larger than {MAX_BYTES} bytes")


def _delete(io: FileIO, location: str) -> None:
    io.delete(location)


class WithIO(Protocol):
    """Does something with a location's ``FileIO``, until a deadline."""

    def __call__(self, location: str, what: str, act: Callable[[FileIO], Result]) -> Result:
        """Do it."""


class GuardedIO(FileIO):
    """Opens the files of a table for pyiceberg. Each call has a deadline, and credentials that are vended at that time.

    Args:
        with_io: Does something with a location's ``FileIO``.
        seconds: The deadline of a read or write.
        properties: The properties of a ``FileIO`` of the table.
    """

    def __init__(self, with_io: WithIO, seconds: float, properties: Mapping[str, str]) -> None:
        super().__init__(dict(properties))
        self._with_io, self._seconds = with_io, seconds

    def new_input(self, location: str) -> InputFile:
        """Return a file to read."""
        return _GuardedInput(location, self._with_io, self._seconds)

    def new_output(self, location: str) -> OutputFile:
        """Return a file to write."""
        return _GuardedOutput(location, self._with_io, self._seconds)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        """Delete a file."""
        path = location if isinstance(location, str) else location.location
        with _denials(path, "delete"):
            self._with_io(path, "file", partial(_delete, location=path))


class _GuardedInput(InputFile):
    def __init__(self, location: str, with_io: WithIO, seconds: float) -> None:
        super().__init__(location)
        self._with_io, self._seconds = with_io, seconds

    def __len__(self) -> int:
        with _denials(self.location, "read"):
            return self._with_io(self.location, "file", lambda io: len(io.new_input(self.location)))

    def exists(self) -> bool:
        with _denials(self.location, "read"):
            return self._with_io(self.location, "file", lambda io: io.new_input(self.location).exists())

    def open(self, seekable: bool = True) -> InputStream:  # noqa: ARG002, FBT001, FBT002 (pyiceberg's signature)
        return _GuardedStream(self.location, self._with_io, self._seconds)


class _GuardedStream:
    """A file that is read. An S3 client requests the content only when it is read, long after the file was opened."""

    def __init__(self, location: str, with_io: WithIO, seconds: float) -> None:
        self._location, self._with_io, self._seconds = location, with_io, seconds
        with _denials(location, "read"):
            self._stream: Any = with_io(location, "file", lambda io: io.new_input(location).open())

    @property
    def closed(self) -> bool:
        return bool(self._stream.closed)

    def read(self, size: int = -1) -> bytes:
        position, stream = self._stream.tell(), self._stream
        try:
            return within(self._location, self._seconds, lambda: _read(stream, size))
        except OSError as error:
            if not is_refusal(error) and _UNREAD_REFUSAL not in str(error):
                raise

        def again(io: FileIO) -> bytes:
            self._stream = io.new_input(self._location).open()
            self._stream.seek(position)
            return _read(self._stream, size)

        with _denials(self._location, "read"):
            return self._with_io(self._location, "file", again)

    def seek(self, offset: int, whence: int = SEEK_SET) -> int:
        return int(self._stream.seek(offset, whence))

    def tell(self) -> int:
        return int(self._stream.tell())

    def size(self) -> int:
        position = self.tell()
        end = self.seek(0, SEEK_END)
        self.seek(position)
        return end

    def close(self) -> None:
        self._stream.close()

    def __enter__(self) -> _GuardedStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _read(stream: Any, size: int) -> bytes:
    return bytes(stream.read() if size is None or size < 0 else stream.read(size))


class _GuardedOutput(OutputFile):
    def __init__(self, location: str, with_io: WithIO, seconds: float) -> None:
        super().__init__(location)
        self._with_io, self._seconds = with_io, seconds

    def __len__(self) -> int:
        return self._with_io(self.location, "file", lambda io: len(io.new_output(self.location)))

    def exists(self) -> bool:
        return self._with_io(self.location, "file", lambda io: io.new_output(self.location).exists())

    def to_input_file(self) -> InputFile:
        return _GuardedInput(self.location, self._with_io, self._seconds)

    def create(self, overwrite: bool = False) -> OutputStream:  # noqa: FBT001, FBT002 (pyiceberg's signature)
        with _denials(self.location, "write"):
            stream = self._with_io(self.location, "file", lambda io: io.new_output(self.location).create(overwrite))
        return _GuardedWriter(self.location, self._seconds, stream)


class _GuardedWriter:
    """A file that is written. Object stores get the content when it is closed."""

    def __init__(self, location: str, seconds: float, stream: Any) -> None:
        self._location, self._seconds, self._stream = location, seconds, stream

    @property
    def closed(self) -> bool:
        return bool(self._stream.closed)

    def write(self, data: bytes) -> int:
        with _denials(self._location, "write"):
            return int(within(self._location, self._seconds, lambda: self._stream.write(data)))

    def tell(self) -> int:
        return int(self._stream.tell())

    def flush(self) -> None:
        with _denials(self._location, "write"):
            within(self._location, self._seconds, self._stream.flush)

    def close(self) -> None:
        with _denials(self._location, "write"):
            within(self._location, self._seconds, self._stream.close)

    def __enter__(self) -> _GuardedWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def is_refusal(error: OSError) -> bool:
    """Whether a store has, or may have, refused the credentials, or the access that they give."""
    return is_denial(error) or _UNCLEAR in str(error)


def _denial(location: str, act: Act, error: OSError) -> str | None:
    """Return the message for a refusal of a store; ``None`` for other errors."""
    if isinstance(error, DeniedByStoreError):
        return str(error)
    if not is_denial(error, location):
        return None
    scheme = urlsplit(location).scheme
    needs = _NEEDS.get(_SAME_STORE.get(scheme, scheme), {}).get(act)
    return f"no permission to {act} {location}{f' ({needs})' if needs else ''}: {_cause(error)}"


@contextmanager
def _denials(location: str, act: Act) -> Iterator[None]:
    """Name the file and the permission if a store refuses a call of pyiceberg."""
    try:
        yield
    except OSError as error:
        if (text := _denial(location, act, error)) is None:
            raise
        raise DeniedByStoreError(text) from None


def _refused(vended: Vended, error: OSError) -> PermissionError:
    text = shortened(" ".join(str(error).split()), 300)
    return PermissionError(
        errno.EACCES,
        f"the store refused the credentials that the catalog's server vended for {vended.what}, and the new ones after "
        f"it was loaded again: {text}",
    )


def discard(files: MetadataFiles, location: str) -> None:
    """Delete an unneeded file. A failure is only logged, because the file does no harm."""
    try:
        files.delete(location)
    except (OSError, MaterializedViewError) as error:
        log.warning("The unneeded file %s could not be deleted: %s", location, error)


def _size(file: InputFile, location: str) -> int:
    try:
        return len(file)
    except TypeError:
        # Errors for a device, a directory or a bucket.
        raise FileNotFoundError(f"{location} is not a file") from None


def static_table(files: MetadataFiles, location: str, *, what: str) -> StaticTable:
    """Return the table of a metadata file, for pyiceberg to read.

    Args:
        what: Names the file's role, for messages.

    Raises:
        InvalidMetadataError: The location is not valid.
    """
    io = files.io(location, what=what)
    metadata = FromInputFile.table_metadata(io.new_input(location))
    return StaticTable(("static-table", location), metadata, location, io, NoopCatalog("static-table"))


# --------------------------------------------------------------------- Flush files to disk before a pointer names them
# After a power failure a local file system may have lost a file that was written but not flushed, while the
# database that names it has kept its commit. The file and its folders are therefore flushed first. An object store
# keeps what it has confirmed and needs no flush.


def first_folder(location: str) -> Path | None:
    """Return the nearest existing folder of a new local file; ``None`` for other stores."""
    path = local_path(location)
    return None if path is None else next((folder for folder in path.parents if folder.is_dir()), None)


def flush(location: str, up_to: Path | None = None) -> None:
    """Flush a local file and its folder. Nothing is done for other stores.

    Args:
        up_to: A folder above it. The folders up to this one are new, and are flushed too.
    """
    path = local_path(location)
    if path is None:
        return
    _fsync(path)
    for folder in path.parents:
        with suppress(PermissionError):  # a folder that can be entered but not read
            _fsync(folder)
        if up_to is None or folder == up_to or up_to not in folder.parents:
            return


def local_path(location: str) -> Path | None:
    """Return the path of a local file or folder; ``None`` for other stores."""
    parts = urlsplit(location)
    return Path(parts.path) if parts.scheme in ("", "file") else None


def _fsync(path: Path) -> None:
    """Flush a file or a folder."""
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _above(paths: Iterable[Path], folders: tuple[str, ...]) -> set[Path]:
    """Return the folders that lead to files, up to the folders that may contain them: each may be a new one."""
    tops = {path for folder in folders if (path := local_path(folder)) is not None}
    return {above for path in paths for above in path.parents if not tops.isdisjoint((above, *above.parents))}


def flush_table_commits(catalog: Catalog) -> None:
    """Make pyiceberg flush the metadata file of a commit before it moves the table's pointer."""
    if not isinstance(catalog, MetastoreCatalog):
        return

    def flushed(inner: WriteMetadata) -> WriteMetadata:
        def write(metadata: IcebergMetadata, io: FileIO, metadata_path: str) -> None:
            folder = first_folder(metadata_path)
            inner(metadata, io, metadata_path)
            flush(metadata_path, folder)

        return write

    wrap_metadata_writer(catalog, flushed)


# ------------------------- A store behind pyiceberg's ``FileIO``: list its files, read its clock, translate its errors


_NOT_IN_A_PATH = frozenset("#?;")
_MAX_CAUSE_LENGTH = 300
#: The key of a file's time in a listing of fsspec, by store.
_FSSPEC_TIMES = ("mtime", "LastModified", "last_modified", "updated")


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file in a listing.

    Args:
        location: Its location, written like the listed folder.
        modified_ms: When it was written, by the store's clock, milliseconds since the epoch.
    """

    location: str
    size_bytes: int
    modified_ms: int


def below(io: FileIO, base: str) -> Iterator[StoredFile]:
    """Yield the files below a folder, at any depth; see :meth:`airflow_mv.core.catalog.files.MetadataFiles.list`.

    Raises:
        UnsupportedError: The ``FileIO`` is neither pyarrow's nor fsspec's.
    """
    if _NOT_IN_A_PATH.intersection(base):
        raise UnsupportedError(f"{base} cannot be listed: it holds one of the characters # ? ;")
    if (folder := local_path(base)) is not None:
        found = _below_local(folder)
    elif hasattr(io, "fs_by_scheme"):
        found = _below_arrow(io, base)
    elif hasattr(io, "get_fs"):
        found = _below_fsspec(io, base)
    else:
        raise UnsupportedError(f"{type(io).__name__} cannot list {base}: use pyiceberg's PyArrowFileIO or FsspecFileIO")
    for relative, size, modified_ms in found:
        # pyiceberg cuts a location at these characters, so it would open another file.
        if not _NOT_IN_A_PATH.intersection(relative):
            yield StoredFile(f"{base.rstrip('/')}/{relative}", size, modified_ms)


def modified_ms(io: FileIO, location: str) -> int:
    """Return when a file was written, by the store's clock, milliseconds since the epoch.

    Raises:
        FileNotFoundError: It does not exist.
        UnsupportedError: The ``FileIO`` is neither pyarrow's nor fsspec's.
    """
    if (path := local_path(location)) is not None:
        return path.stat().st_mtime_ns // 1_000_000
    if hasattr(io, "fs_by_scheme"):
        return _arrow_time(io, location)
    if hasattr(io, "get_fs"):
        system = _fsspec(io, location)
        return _fsspec_time(system, location, system.info(location))
    raise UnsupportedError(f"{type(io).__name__} cannot return when {location} was written")


def checksum_of(location: str) -> Iterator[str]:
    """Yield the location of the checksum that Hadoop keeps beside a local file."""
    folder, _, name = location.rpartition("/")
    above = local_path(folder)
    if above is not None and Path(above, f".{name}.crc").is_file():
        yield f"{folder}/.{name}.crc"


def remove_empty(root: Path, deleted: Iterable[str]) -> None:
    """Remove a local folder and the folders of deleted files below it, if they are empty."""
    above = {parent for path in deleted for parent in Path(path).parents if root in (parent, *parent.parents)}
    for parent in sorted(above, key=lambda path: len(path.parts), reverse=True):
        with suppress(OSError):
            parent.rmdir()


def _below_local(folder: Path) -> Iterator[tuple[str, int, int]]:
    for parent, _, names in os.walk(folder, onerror=_unless_gone):
        for name in names:
            path = Path(parent, name)
            try:
                found = path.lstat()
            except FileNotFoundError:
                continue  # deleted by its owner since
            if path.is_symlink() or not path.is_file():
                continue
            yield path.relative_to(folder).as_posix(), found.st_size, found.st_mtime_ns // 1_000_000


def _unless_gone(error: OSError) -> None:
    # A folder that cannot be entered must not count as empty.
    if not isinstance(error, FileNotFoundError):
        raise error


def _below_arrow(io: Any, base: str) -> Iterator[tuple[str, int, int]]:
    from pyarrow.fs import FileSelector, FileType

    scheme, netloc, path = io.parse_location(base.rstrip("/"), io.properties)
    selector = FileSelector(path, recursive=True, allow_not_found=True)
    for found in io.fs_by_scheme(scheme, netloc).get_file_info(selector):
        if found.type == FileType.File:
            yield _relative(found.path, path), found.size or 0, (found.mtime_ns or 0) // 1_000_000


def _arrow_time(io: Any, location: str) -> int:
    scheme, netloc, path = io.parse_location(location, io.properties)
    found = io.fs_by_scheme(scheme, netloc).get_file_info(path)
    if found.mtime_ns is None:
        raise FileNotFoundError(f"{location} is not a file with a time")
    return int(found.mtime_ns) // 1_000_000


def _below_fsspec(io: Any, base: str) -> Iterator[tuple[str, int, int]]:
    system = _fsspec(io, base)
    root = path_in(system, base)
    for path, found in system.find(base, detail=True).items():
        yield _relative(path, root), found.get("size") or 0, _fsspec_time(system, path, found)


def _relative(path: str, root: str) -> str:
    stem = root.strip("/") + "/"
    if not path.lstrip("/").startswith(stem):
        raise OSError(f"a listing of {root} named {path}, which is not below it")
    return path.lstrip("/")[len(stem) :]


def _fsspec(io: Any, location: str) -> Any:
    system = file_system_of(io, location)
    system.invalidate_cache()
    return system


def _fsspec_time(system: Any, path: str, found: Any) -> int:
    """Read the time of an entry in a listing. Its key and type depend on the store."""
    stamp = next((found[key] for key in _FSSPEC_TIMES if found.get(key)), None) or system.modified(path)
    if isinstance(stamp, str):
        stamp = parse_timestamp(stamp)
    return to_ms(stamp) if isinstance(stamp, datetime) else int(float(stamp) * 1000)


# ------------------------------------------------------------------------------------------- errors


def _cause(error: OSError) -> str:
    return shortened(" ".join(str(error.strerror or error).split()), _MAX_CAUSE_LENGTH)


@contextmanager
def named(location: str, what: str, act: Act = "read") -> Iterator[None]:
    """Translate a store's errors into errors that name the file and its role."""
    try:
        yield
    except FileExistsError:
        raise
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
        raise MetadataFileNotFoundError(
            f"{what}: the file {location} does not exist ({type(error).__name__}). It was deleted, or the "
            "catalog points at another store: restore the file, or correct the catalog's properties"
        ) from None
    except OSError as error:
        if (denial := _denial(location, act, error)) is not None:
            raise AccessDeniedError(f"{what}: {denial}", location) from None
        text = f"{what}: the store of {location} did not respond: {_cause(error)}"
        raise StoreUnavailableError(text, location) from None
    except (ValueError, ImportError) as error:
        raise ConfigurationError(f"{what}: {location} cannot be opened: {type(error).__name__}: {error}") from None


@contextmanager
def parsed(location: str, what: str) -> Iterator[None]:
    """Translate pyiceberg's errors on broken files as well, see :func:`named`."""
    with named(location, what):
        try:
            yield
        except (OSError, ImportError, MaterializedViewError):
            raise
        except Exception as error:  # noqa: BLE001 (broken Avro files raise many kinds of errors)
            raise InvalidMetadataError(f"{what}: {location} cannot be read: {type(error).__name__}: {error}") from None
