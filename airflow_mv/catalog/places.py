# SPDX-License-Identifier: Apache-2.0
"""Compare locations: whether two spellings mean one file or folder.

A store can be reached by several spellings: ``s3a://`` and ``s3://``, ``hdfs://nn:8020/`` and ``hdfs:///``,
percent-encoding, doubled slashes, upper case where the store ignores it. There are two forms:

- :func:`canonical` decides what must not be deleted. Two different files may share it. One file never has two, except
  through links, which :class:`Places` resolves.
- :func:`exact` decides what is allowed or proven. Two locations with the same exact form are the same file. Only the
  aliases of a scheme and a default port are treated as equal. :func:`lies_in` resolves links, too.
"""

from __future__ import annotations

import os
import posixpath
import re
import unicodedata
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

from airflow_mv.errors import InvalidMetadataError

#: Schemes that mean the same store.
_ALIASES = {"s3a": "s3", "s3n": "s3", "gcs": "gs", "abfs": "abfss", "wasb": "wasbs", "": "file"}
#: Schemes whose host may be left out, or be an alias.
_WITHOUT_HOST = frozenset({"file", "hdfs", "viewfs"})
#: Schemes whose host is ``container@account``.
_AZURE = frozenset({"abfss", "wasbs"})
_DEFAULT_PORTS = {"hdfs": ":8020"}
_PARTS = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]*):(?://([^/]*))?(.*)", re.DOTALL)
#: pyiceberg ignores a location's text from one of these characters on, and in the last segment from a semicolon on.
#: The latter is left out of every segment: the last one of a folder is not the last one of its files.
_END_OF_PATH, _PARAMETERS = re.compile(r"[?#]"), re.compile(r"(?<!/\.)(?<!/\.\.);[^/]*")
_MOST_ENCODINGS = 8


class Parts(NamedTuple):
    """The parts of a location.

    Args:
        scheme: In lower case, aliases replaced; ``file`` if the location has none.
        host: A bucket, a container with its account, a name node.
        path: The rest, unchanged.
    """

    scheme: str
    host: str
    path: str

    @property
    def is_local(self) -> bool:
        """Whether it is in a file system of this host."""
        return self.scheme == "file"


def split_location(location: str) -> Parts:
    """Split a location into its parts. This never fails."""
    found = _PARTS.fullmatch(location)
    scheme, host, path = (found[1].lower(), found[2] or "", found[3]) if found else ("", "", location)
    return Parts(_ALIASES.get(scheme, scheme), host, path)


def exact(location: str) -> str:
    """Return the exact form: locations with the same form are the same file or folder. Links are not resolved."""
    scheme, host, path = split_location(location)
    return f"{scheme}://{host.removesuffix(_DEFAULT_PORTS.get(scheme, ' '))}{path.rstrip('/')}"


def canonical(location: str) -> str:
    """Return the canonical form, which all spellings of a file or folder share. Links are not resolved."""
    scheme, host, path = split_location(location)
    shown = _PARAMETERS.sub("", _END_OF_PATH.split(path, maxsplit=1)[0])
    plain = posixpath.normpath("/" + decoded(shown).lstrip("/")).rstrip("/")
    return unicodedata.normalize("NFC", f"//{_host(scheme, host)}{plain}".casefold())


def lies_elsewhere(location: str, folder: str) -> bool:
    """Whether a location is certainly in another store than a folder, whatever their paths are.

    Buckets are compared by name alone, since several schemes may reach one bucket. ``viewfs`` may show any store.
    """
    one, other = split_location(location), split_location(folder)
    if "viewfs" in (one.scheme, other.scheme):
        return False
    if one.scheme in _WITHOUT_HOST or other.scheme in _WITHOUT_HOST:
        return one.scheme != other.scheme
    return _host(one.scheme, one.host).casefold() != _host(other.scheme, other.host).casefold()


def is_within(form: str, folder: str) -> bool:
    """Whether a canonical or exact form is that of a folder, or of something below it."""
    return form == folder or form.startswith(f"{folder}/")


def irregular_segment(location: str) -> str | None:
    """Return the first empty, ``.`` or ``..`` segment of a path, quoted for a message; ``None`` if there is none.

    Percent-encoded segments count. A slash at the end does not.
    """
    path = decoded(split_location(location).path)
    segments = path.removesuffix("/").split("/")[1:] if path.startswith("/") else path.removesuffix("/").split("/")
    if path in ("", "/"):
        return None
    return next((f"{segment or '//'!r}" for segment in segments if segment in ("", ".", "..")), None)


def decoded(text: str) -> str:
    """Undo percent-encoding, even if it was applied several times."""
    for _ in range(_MOST_ENCODINGS):
        plain = unquote(text)
        if plain == text:
            break
        text = plain
    return text


def _host(scheme: str, host: str) -> str:
    if scheme in _WITHOUT_HOST:
        return ""
    if scheme in _AZURE:
        container, _, account = host.rpartition("@")
        return f"{container}@{account.partition('.')[0].partition(':')[0]}"
    return host.rpartition("@")[2].partition(":")[0]


# -------------------------------------------------------------------- with this host's file systems


def lies_in(location: str, folders: Iterable[str]) -> bool:
    """Whether a location is certainly in one of the folders, or is one of them. Links are followed."""
    place = exact_form(location)
    return any(is_within(place, exact_form(folder)) for folder in folders)


def exact_form(location: str) -> str:
    """Return the form that is equal only for the same location, with links followed."""
    parts = split_location(location)
    return exact(os.path.realpath(parts.path)) if parts.is_local else exact(location)


def check_regular(location: str, *, what: str) -> None:
    """Refuse a location with an empty, ``.`` or ``..`` segment, which stores resolve in different ways.

    Raises:
        InvalidMetadataError: It has such a segment, perhaps percent-encoded.
    """
    segment = irregular_segment(location)
    if segment is not None:
        raise InvalidMetadataError(
            f"{what}: {location!r} has the path segment {segment}, which means different folders on different "
            "stores. Write the location without it"
        )


class Places:
    """Compares locations so that two spellings of one file never look like two files.

    It caches results of the file system: use a new one for each listing of a store.
    """

    def __init__(self) -> None:
        self._folder = lru_cache(maxsize=20_000)(_forms_of_folder)

    def forms(self, location: str) -> frozenset[str]:
        """Return all canonical forms of a file or folder: two locations that share one may be the same."""
        parts = split_location(location)
        if not parts.is_local:
            return frozenset({canonical(location)})
        found = {canonical(location)}
        for path in {parts.path, decoded(parts.path)}:
            folder, _, name = path.rstrip("/").rpartition("/")
            plain = canonical(f"/{name}").lstrip("/")
            found |= {f"{form}/{plain}" for form in self._folder(folder or "/")}
            if Path(path.rstrip("/")).is_symlink():
                found.add(canonical(os.path.realpath(path)))
        return frozenset(found)

    def exact(self, location: str) -> str:
        """Return the exact form of a file, links on the way to it followed."""
        parts = split_location(location)
        if not parts.is_local:
            return exact(location)
        folder, _, name = parts.path.rpartition("/")
        return f"{self._folder(folder or '/')[0]}/{name}"

    def may_lie_in(self, location: str, folder: str) -> bool:
        """Whether a location may be in a folder, or be the folder."""
        folders = self.forms(folder)
        if any(is_within(form, other) for form in self.forms(location) for other in folders):
            return True
        inside, outside = split_location(location), split_location(folder)
        return inside.is_local and outside.is_local and _inode(outside.path) in _inodes_above(inside.path)


def _forms_of_folder(path: str) -> tuple[str, ...]:
    """Return a local folder's exact form, its canonical form and, where it exists, its inode."""
    real = os.path.realpath(path).rstrip("/")
    inode = _inode(path)
    return (f"file://{real}", canonical(real or "/"), *([inode] if inode else []))


def _inode(path: str) -> str:
    """Name a folder by its inode: a second mount of it, or another case of its name, has the same."""
    try:
        found = Path(path or "/").stat()
    except OSError:
        return ""
    return f"inode:{found.st_dev}:{found.st_ino}"


def _inodes_above(path: str) -> set[str]:
    folder = Path(os.path.realpath(path))
    return {_inode(str(item)) for item in (folder, *folder.parents)} - {""}
