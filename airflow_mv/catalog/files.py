# SPDX-License-Identifier: Apache-2.0
"""Metadata files: read, and write under fresh names. A file that exists is never written again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from urllib.parse import quote as percent
from urllib.parse import unquote, urlsplit

from pyiceberg.io import FileIO, InputFile, load_file_io

from airflow_mv.errors import (
    CatalogUnavailableError,
    ConfigurationError,
    InvalidMetadataError,
    MetadataFileNotFoundError,
)
from airflow_mv.spec.stored import MAX_BYTES

#: Schemes a metadata location may have: object stores and file systems, never http(s).
SCHEMES = frozenset(
    {"", "file", "s3", "s3a", "s3n", "gs", "gcs", "abfs", "abfss", "wasb", "wasbs", "hdfs", "viewfs", "oss"}
)


class MetadataFiles:
    """The store behind a catalog, through pyiceberg's ``FileIO``.

    Args:
        properties: The catalog's properties. Properties of views and tables are never used to build the
            ``FileIO``: they are data from strangers and could name endpoints or classes.
    """

    def __init__(self, properties: Mapping[str, str]) -> None:
        self._properties = dict(properties)
        self._opened: dict[str, FileIO] = {}

    def read(self, location: str, *, what: str) -> bytes:
        """Read a whole file.

        Args:
            location: The file.
            what: Names the view and the role of the file, for messages.

        Raises:
            MetadataFileNotFoundError: It does not exist.
            InvalidMetadataError: The location is none, or the file is too large.
            CatalogUnavailableError: The store did not answer.
            ConfigurationError: The store cannot be read with what is installed, or by this user.
        """
        with _named(location, what):
            file = self._io(location, what).new_input(location)
            if _size(file, location) > MAX_BYTES:
                raise InvalidMetadataError(f"{what}: {location} is larger than {MAX_BYTES} bytes")
            with file.open() as stream:
                return stream.read()

    def read_text(self, location: str) -> str | None:
        """Read a small text file, or ``None`` where there is none."""
        try:
            return self.read(location, what="file").decode("utf-8", "replace")
        except MetadataFileNotFoundError:
            return None

    def write(self, location: str, data: bytes) -> None:
        """Write a new file.

        Raises:
            FileExistsError: If the name is taken: names hold a fresh uuid, so this is a fault.
            CatalogUnavailableError: The store did not answer.
        """
        with (
            _named(location, "new file"),
            self._io(location, "file").new_output(location).create(overwrite=False) as stream,
        ):
            stream.write(data)

    def replace_text(self, location: str, text: str) -> None:
        """Write a working file of a refresh (script, outcome), over an older one of the same refresh."""
        with self._io(location, "file").new_output(location).create(overwrite=True) as stream:
            stream.write(text.encode("utf-8"))

    def delete(self, location: str) -> None:
        """Delete a file; one that is gone already is fine."""
        try:
            self._io(location, "file").delete(location)
        except FileNotFoundError:
            return

    def _io(self, location: str, what: str) -> FileIO:
        check_location(location, what=what)
        scheme = urlsplit(location).scheme
        if scheme not in self._opened:
            # One for each scheme: it keeps the store's connections.
            self._opened[scheme] = load_file_io(self._properties, location)
        return self._opened[scheme]


@contextmanager
def _named(location: str, what: str) -> Iterator[None]:
    """Turn a store's own errors into ours, which name the file and what it is."""
    try:
        yield
    except FileExistsError:
        raise
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
        raise MetadataFileNotFoundError(
            f"{what}: the file {location} does not exist ({type(error).__name__}). It was deleted, or the "
            "catalog points at another store; restore it or drop and create the view again"
        ) from None
    except PermissionError as error:
        raise ConfigurationError(f"{what}: no permission for {location}: {error.strerror}") from None
    except OSError as error:
        raise CatalogUnavailableError(f"{what}: the store of {location} did not answer: {error}") from None
    except (ValueError, ImportError) as error:
        raise ConfigurationError(f"{what}: {location} cannot be opened: {type(error).__name__}: {error}") from None


def _size(file: InputFile, location: str) -> int:
    try:
        return len(file)
    except TypeError:
        # What a device, a directory or a bucket answers.
        raise FileNotFoundError(f"{location} is no file") from None


def check_location(location: str, *, what: str) -> None:
    """Refuse what is no path of a store.

    Raises:
        InvalidMetadataError: Empty, relative, with ``..``, control characters, or an http(s) URL.
    """
    if not location or location != location.strip() or any(ord(char) < 32 for char in location):
        raise InvalidMetadataError(f"{what}: {location!r} is not a location")
    try:
        parts = urlsplit(location)
    except ValueError as error:
        raise InvalidMetadataError(f"{what}: {location!r} is not a location: {error}") from None
    if parts.scheme not in SCHEMES:
        raise InvalidMetadataError(f"{what}: {location!r}: locations of scheme {parts.scheme!r} are not read")
    if ".." in unquote(parts.path).split("/"):
        raise InvalidMetadataError(f"{what}: {location!r} leads out of its folder")
    if parts.scheme == "" and not location.startswith("/"):
        raise InvalidMetadataError(f"{what}: {location!r} is not an absolute location")


def path_segment(name: str) -> str:
    """Return a name as one harmless path segment; plain names stay as they are."""
    segment = percent(name, safe="-_=+ ").replace(" ", "_").replace("%", "~")
    return segment if segment.strip(".") else segment.replace(".", "~2E")


def join(base: str, *segments: str) -> str:
    """Join a location and segments with single slashes."""
    return "/".join([base.rstrip("/"), *segments])


def is_below(location: str, base: str) -> bool:
    """Whether a location is inside a folder, however ``file:`` is spelled."""
    return _plain(location).startswith(_plain(base).rstrip("/") + "/")


def _plain(location: str) -> str:
    parts = urlsplit(location)
    return parts.path if parts.scheme in ("", "file") else f"{parts.scheme}://{parts.netloc}{parts.path}"
