# SPDX-License-Identifier: Apache-2.0
"""A store behind pyiceberg's ``FileIO``: list its files, read its clock, translate its errors."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from airflow_mv.catalog.database_limits import remote_mount
from airflow_mv.catalog.pyiceberg_compat import file_system_of, path_in
from airflow_mv.errors import (
    ConfigurationError,
    InvalidMetadataError,
    MaterializedViewError,
    MetadataFileNotFoundError,
    StoreUnavailableError,
    UnsupportedError,
)
from airflow_mv.redaction import shortened
from airflow_mv.spec.times import parse_timestamp, to_ms

if TYPE_CHECKING:
    from pyiceberg.io import FileIO

_NOT_IN_A_PATH = frozenset("#?;")
_LONGEST_CAUSE = 300
#: The key of a file's time in a listing of fsspec, by store.
_FSSPEC_TIMES = ("mtime", "LastModified", "last_modified", "updated")


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file in a listing.

    Args:
        location: Its location, written like the listed folder.
        size_bytes: Its size.
        modified_ms: When it was written, by the store's clock, milliseconds since the epoch.
    """

    location: str
    size_bytes: int
    modified_ms: int


def below(io: FileIO, base: str) -> Iterator[StoredFile]:
    """Yield the files below a folder, at any depth; see :meth:`airflow_mv.catalog.files.MetadataFiles.list`.

    Raises:
        UnsupportedError: The ``FileIO`` is neither pyarrow's nor fsspec's.
    """
    if _NOT_IN_A_PATH.intersection(base):
        raise UnsupportedError(f"{base} cannot be listed: it holds one of the characters # ? ;")
    if is_local(base):
        found = _below_local(urlsplit(base).path)
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
    if is_local(location):
        return Path(urlsplit(location).path).stat().st_mtime_ns // 1_000_000
    if hasattr(io, "fs_by_scheme"):
        return _arrow_time(io, location)
    if hasattr(io, "get_fs"):
        system = _fsspec(io, location)
        return _fsspec_time(system, location, system.info(location))
    raise UnsupportedError(f"{type(io).__name__} cannot return when {location} was written")


def is_local(location: str) -> bool:
    """Whether a location is in this host's own file system."""
    return urlsplit(location).scheme in ("", "file")


def on_disk(location: str) -> bool:
    """Whether a location is on a disk of this host. All other stores have deadlines."""
    return is_local(location) and remote_mount(urlsplit(location).path) is None


def leads_out(location: str, base: str) -> bool:
    """Whether symbolic links currently lead from below a local folder to a place outside of it."""
    if not is_local(location):
        return False
    folder, root = (os.path.realpath(urlsplit(item).path) for item in (location.rpartition("/")[0], base))
    return not f"{folder}/".startswith(f"{root.rstrip('/')}/")


def checksum_of(location: str) -> Iterator[str]:
    """Yield the location of the checksum that Hadoop keeps beside a local file."""
    folder, _, name = location.rpartition("/")
    if is_local(location) and Path(urlsplit(folder).path, f".{name}.crc").is_file():
        yield f"{folder}/.{name}.crc"


def remove_empty(folder: str, deleted: Iterable[str]) -> None:
    """Remove a local folder and the folders of deleted files below it, if they are empty.

    Args:
        folder: The folder.
        deleted: The deleted files.
    """
    root = Path(folder)
    above = {parent for path in deleted for parent in Path(path).parents if root in (parent, *parent.parents)}
    for parent in sorted(above, key=lambda path: len(path.parts), reverse=True):
        with suppress(OSError):
            parent.rmdir()


def _below_local(folder: str) -> Iterator[tuple[str, int, int]]:
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


@contextmanager
def named(location: str, what: str) -> Iterator[None]:
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
    except PermissionError as error:
        raise ConfigurationError(f"{what}: no permission for {location}: {error.strerror or error}") from None
    except OSError as error:
        cause = shortened(" ".join(str(error).split()), _LONGEST_CAUSE)
        raise StoreUnavailableError(f"{what}: the store of {location} did not respond: {cause}", location) from None
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
