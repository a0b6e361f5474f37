# SPDX-License-Identifier: Apache-2.0
"""Check that a database can hold the pointers of views: it must support an atomic, visible compare-and-swap."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path

from sqlalchemy import Engine

from airflow_mv.errors import ConfigurationError

log = logging.getLogger(__name__)

#: Catalog property: ``true`` allows a SQLite database on a network file system.
NETWORK = "airflow-mv.sqlite-on-network"
_MOUNTS = Path("/proc/self/mountinfo")
_REMOTE = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "glusterfs", "lustre", "beegfs", "gpfs", "ncpfs"}
)
#: File systems in user space that are on this machine's own disks.
_LOCAL_FUSE = frozenset({"fuseblk", "fuse.fuse-overlayfs"})


def require_locks(engine: Engine, properties: Mapping[str, str]) -> None:
    """Refuse a SQLite database on a file system whose locks other machines may not see.

    Args:
        engine: The engine of a SQL catalog.
        properties: The catalog's properties.

    Raises:
        ConfigurationError: It is on such a file system, and the catalog's owner has not allowed it.
    """
    database = engine.url.database
    if engine.dialect.name != "sqlite" or not database or database.startswith((":memory:", "file::memory:")):
        return
    kind = remote_kind(database.removeprefix("file:"))
    if kind is None:
        return
    if str(properties.get(NETWORK, "false")).lower() == "true":
        log.warning("The SQLite database %s is on a file system of type %s: locks may not hold there", database, kind)
        return
    raise ConfigurationError(
        f"the SQLite database {database} is on a file system of type {kind}: SQLite's locks do not hold there between "
        f"machines, and two refreshes could both win. Use PostgreSQL, or a local disk; if only one machine ever opens "
        f"it, set the catalog property {NETWORK}=true"
    )


def remote_kind(path: str) -> str | None:
    """Return the type of a path's network file system; ``None`` if it is local or unknown."""
    try:
        mounts = _MOUNTS.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None  # not Linux
    kind = mounted_as(os.path.realpath(path), mounts)
    remote = kind in _REMOTE or (kind.startswith("fuse") and kind not in _LOCAL_FUSE)
    return kind if remote else None


def mounted_as(path: str, mounts: str) -> str:
    """Return the file system type of an absolute path.

    Args:
        path: The path, without symbolic links.
        mounts: The text of ``/proc/self/mountinfo``. Of two mounts at one place the later one counts.
    """
    best, kind = "", ""
    for line in mounts.splitlines():
        fields, _, rest = line.partition(" - ")
        words = fields.split()
        if len(words) < 5 or not rest:
            continue
        place = words[4].encode().decode("unicode_escape").rstrip("/")
        if (path == place or path.startswith(f"{place}/")) and len(place) >= len(best):
            best, kind = place, rest.split()[0]
    return kind
