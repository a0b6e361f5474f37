# SPDX-License-Identifier: Apache-2.0
"""A cache of what metadata files say, in one file of the user's cache folder. Standard library only.

A metadata file never changes, so what it says stays true for its location. What a catalog says, its pointers, is never
kept. Deleting the cache is always safe: everything in it can be read again. It is no place for secrets: writers keep
only what freshness needs.

Other users must not be able to write to the cache, or they could have a stale view reported as fresh. So the folder and
the file must belong to this user and be writable to no other user. A link in their place is refused.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import stat
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path

log = logging.getLogger(__name__)

#: Environment variable: the folder of the cache, or ``off`` for none.
VARIABLE = "AIRFLOW_MV_CACHE"
#: The most bytes of the cache's file. Above it the entries that were not used for the longest time are deleted.
MAX_BYTES = 256 * 1024 * 1024
#: The most bytes of one entry.
MAX_ENTRY_BYTES = 4 * 1024 * 1024
#: Seconds to wait for another process that writes. After it the cache is not used.
_BUSY_SECONDS = 2.0
#: The part of the entries that is kept when the file is too large.
_KEPT = 0.7
_DAY = 86_400
_BATCH = 500
#: Part of the file's name. Another number for each change of what is stored, and of what decides freshness, its reasons
#: or the lag: what the earlier code has stored would stay true while no pointer moves.
FORMAT = 2

_TABLE = (
    "CREATE TABLE IF NOT EXISTS facts (kind TEXT NOT NULL, key TEXT NOT NULL, value BLOB NOT NULL, "
    "day INTEGER NOT NULL, PRIMARY KEY (kind, key))"
)


class FactCache:
    """Values by kind and key. No method raises: without a usable file nothing is found, and nothing is kept.

    Args:
        folder: The folder of the file; ``None`` for a cache that holds nothing.
        max_bytes: See :data:`MAX_BYTES`.
    """

    def __init__(self, folder: Path | None, *, max_bytes: int = MAX_BYTES) -> None:
        self.path = None if folder is None else folder / f"facts-{FORMAT}.sqlite"
        self._max_bytes = max_bytes

    @classmethod
    def of_user(cls) -> FactCache:
        """Return this user's cache, as the environment says; see :data:`VARIABLE`."""
        chosen = os.environ.get(VARIABLE, "")
        if chosen.lower() == "off":
            return cls(None)
        if chosen:
            return cls(Path(chosen))
        base = Path(os.environ.get("XDG_CACHE_HOME", ""))
        if not base.is_absolute():
            base = Path(os.path.expanduser("~"), ".cache")  # noqa: PTH111 (does not raise where there is no home)
        return cls(base / "airflow-mv" if base.is_absolute() else None)

    def all(self, kind: str) -> dict[str, bytes]:
        """Return all values of a kind."""
        found: dict[str, bytes] = {}
        with self._opened() as connection:
            found |= connection.execute("SELECT key, value FROM facts WHERE kind = ?", (kind,)) if connection else ()
        return found

    def get(self, kind: str, keys: Iterable[str]) -> dict[str, bytes]:
        """Return the known values of some keys of a kind."""
        wanted = list(dict.fromkeys(keys))
        found: dict[str, bytes] = {}
        with self._opened() as connection:
            for start in range(0, len(wanted) if connection else 0, _BATCH):
                part = wanted[start : start + _BATCH]
                marks = ", ".join("?" * len(part))
                query = f"SELECT key, value FROM facts WHERE kind = ? AND key IN ({marks})"  # noqa: S608 (marks only)
                found |= connection.execute(query, (kind, *part)) if connection else ()
        return found

    def put(self, kind: str, values: Mapping[str, bytes], *, gone: Iterable[str] = ()) -> None:
        """Keep values, in one transaction. Too large ones are left out.

        Args:
            kind: Their kind.
            values: By key.
            gone: Keys whose values are deleted.
        """
        day = int(time.time() // _DAY)
        rows = [(kind, key, value, day) for key, value in values.items() if len(value) <= MAX_ENTRY_BYTES]
        left = [(kind, key) for key in gone]
        if not rows and not left:
            return
        with self._opened(create=True) as connection:
            if connection is None:
                return
            with connection:
                connection.execute(_TABLE)
                connection.executemany("DELETE FROM facts WHERE kind = ? AND key = ?", left)
                connection.executemany("INSERT OR REPLACE INTO facts VALUES (?, ?, ?, ?)", rows)
            self._shrink(connection)

    def used(self, kind: str) -> None:
        """Note that the values of a kind are in use, so that others are deleted first. Writes at most once a day."""
        day = int(time.time() // _DAY)
        with self._opened() as connection:
            if connection is None:
                return
            (oldest,) = connection.execute("SELECT min(day) FROM facts WHERE kind = ?", (kind,)).fetchone()
            if oldest is not None and oldest < day:
                with connection:
                    connection.execute("UPDATE facts SET day = ? WHERE kind = ? AND day < ?", (day, kind, day))

    def _shrink(self, connection: sqlite3.Connection) -> None:
        """Delete the entries that were not used for the longest time if the file is too large."""
        if self.path is None or self.path.stat().st_size <= self._max_bytes:
            return
        connection.execute("VACUUM")  # pages that are free, or half empty, are not full of entries
        if (size := self.path.stat().st_size) <= _KEPT * self._max_bytes:
            return
        entries = "SELECT kind, key, length(value) + length(key) FROM facts ORDER BY day DESC, length(value)"
        kept = connection.execute(entries).fetchall()
        room, drop = _KEPT * self._max_bytes / size * sum(entry[2] for entry in kept), []
        for kind, key, length in kept:
            room -= length
            if room < 0:
                drop.append((kind, key))
        with connection:
            connection.executemany("DELETE FROM facts WHERE kind = ? AND key = ?", drop)
        connection.execute("VACUUM")

    @contextmanager
    def _opened(self, *, create: bool = False) -> Iterator[sqlite3.Connection | None]:
        """Open the file; ``None`` if there is none or it cannot be used. A broken one is deleted."""
        connection = self._connected(create=create)
        if connection is None:
            yield None
            return
        try:
            with closing(connection):
                yield connection
        except (sqlite3.DatabaseError, OSError) as error:
            self._note_unusable(error)

    def _connected(self, *, create: bool) -> sqlite3.Connection | None:
        try:
            path = self._usable(create=create)
            return None if path is None else sqlite3.connect(path, timeout=_BUSY_SECONDS)
        except (sqlite3.DatabaseError, OSError) as error:
            self._note_unusable(error)
            return None

    def _note_unusable(self, error: Exception) -> None:
        log.info("The cache %s is not used: %s", self.path, error)
        outdated = isinstance(error, sqlite3.DatabaseError) and "no such" in str(error)
        if self.path is not None and (outdated or type(error) is sqlite3.DatabaseError):
            with suppress(OSError):
                self.path.unlink()

    def _usable(self, *, create: bool) -> Path | None:
        if self.path is None:
            return None
        if create:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not _is_private(self.path.parent, stat.S_ISDIR):
                return None
            with suppress(FileExistsError):
                os.close(os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        elif not self.path.exists():
            return None
        private = _is_private(self.path.parent, stat.S_ISDIR) and _is_private(self.path, stat.S_ISREG)
        return self.path if private else None


def _is_private(path: Path, is_kind: object) -> bool:
    """Whether a path is of a kind, not a link, belongs to this user, and is writable to no other user."""
    found = path.lstat()
    private = found.st_uid == os.geteuid() and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    if private and is_kind(found.st_mode):  # type: ignore[operator]
        return True
    log.warning("Not using the cache at %s: this user must own it, and no other user may write to it", path)
    return False
