# SPDX-License-Identifier: Apache-2.0
"""Flush files to disk before a pointer names them.

After a power failure a local file system may have lost a file that was written but not flushed, while the database
that names it has kept its commit. The file and its folders are therefore flushed first. An object store keeps what it
has confirmed and needs no flush.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

from airflow_mv.catalog.listing import is_local


def first_folder(location: str) -> Path | None:
    """Return the nearest existing folder of a new local file; ``None`` for other stores."""
    if not is_local(location):
        return None
    return next((folder for folder in local_path(location).parents if folder.is_dir()), None)


def flush(location: str, up_to: Path | None = None) -> None:
    """Flush a local file and its folder. Nothing is done for other stores.

    Args:
        location: The file.
        up_to: A folder above it. The folders up to this one are new, and are flushed too.
    """
    if not is_local(location):
        return
    path = local_path(location)
    fsync(path)
    for folder in path.parents:
        with suppress(PermissionError):  # a folder that can be entered but not read
            fsync(folder)
        if up_to is None or folder == up_to or up_to not in folder.parents:
            return


def local_path(location: str) -> Path:
    """Return the path of a local file."""
    return Path(urlsplit(location).path)


def fsync(path: Path) -> None:
    """Flush a file or a folder."""
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
