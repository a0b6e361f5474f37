# SPDX-License-Identifier: Apache-2.0
"""Compare locations so that nothing is deleted that another spelling of a location may mean.

:func:`canonical` decides what must not be deleted. Two different files may share it. One file never has two, except
through links, which :class:`LocationMatcher` resolves.
"""

from __future__ import annotations

import os
import posixpath
import re
import unicodedata
from functools import lru_cache
from pathlib import Path
from urllib.parse import urlsplit

from airflow_mv.core.catalog.files import local_path
from airflow_mv.core.catalog.locations import decoded, exact, is_within, split_location

#: Schemes whose host may be left out, or be an alias.
_WITHOUT_HOST = frozenset({"file", "hdfs", "viewfs"})
#: Schemes whose host is ``container@account``.
_AZURE = frozenset({"abfss", "wasbs"})
#: pyiceberg ignores a location's text from one of these characters on, and in the last segment from a semicolon on.
#: The latter is left out of every segment: the last one of a folder is not the last one of its files.
_END_OF_PATH, _PARAMETERS = re.compile(r"[?#]"), re.compile(r"(?<!/\.)(?<!/\.\.);[^/]*")


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


def _host(scheme: str, host: str) -> str:
    if scheme in _WITHOUT_HOST:
        return ""
    if scheme in _AZURE:
        container, _, account = host.rpartition("@")
        return f"{container}@{account.partition('.')[0].partition(':')[0]}"
    return host.rpartition("@")[2].partition(":")[0]


def leads_out(location: str, base: str) -> bool:
    """Whether symbolic links currently lead from below a local folder to a place outside of it."""
    if local_path(location) is None:
        return False
    folder, root = (os.path.realpath(urlsplit(item).path) for item in (location.rpartition("/")[0], base))
    return not f"{folder}/".startswith(f"{root.rstrip('/')}/")


class LocationMatcher:
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
