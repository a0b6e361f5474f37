# SPDX-License-Identifier: Apache-2.0
"""Compare locations, with the links and the folders of this host's file systems resolved.

See :mod:`airflow_mv.spec.locations` for the two questions: :func:`lies_in` is certain, :class:`Places` errs towards
"the same".
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

from airflow_mv.errors import InvalidMetadataError
from airflow_mv.spec.locations import canonical, decoded, exact, irregular_segment, is_within, split_location


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
