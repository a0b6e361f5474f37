# SPDX-License-Identifier: Apache-2.0
"""Temporary folders for files with secrets, and the removal of folders of killed processes.

The folder's name identifies the process that made it: the host's boot, the process namespace, the process id and the
start time of the process. A folder is removed only if this proves that its process has ended.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_PREFIX = "airflow-mv-"
_NAME = re.compile(rf"{_PREFIX}(?P<scope>[0-9a-f]{{12}})-(?P<pid>\d{{1,10}})-(?P<started>\d{{1,20}})-\w{{8}}", re.ASCII)
#: Fields of /proc/<pid>/stat behind the program's name; the start time is the 20th of them.
_STARTED = 19


@dataclass(frozen=True, slots=True)
class Swept:
    """The result of a sweep.

    Args:
        removed: Folders that were removed: their processes are gone.
        failed: Folders that should have been removed and could not be.
    """

    removed: tuple[Path, ...] = ()
    failed: tuple[Path, ...] = ()


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Yield a new folder that only this user may enter, and remove it at the end.

    Folders of processes that were killed are swept first.
    """
    sweep()
    pid = os.getpid()
    folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{_scope()}-{pid}-{_started(pid) or 0}-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def sweep() -> Swept:
    """Remove the folders that killed processes of this user have left on this host.

    A folder is removed only if its name has the right form, it belongs to this user, no other user may enter it, and
    its process is proven to have ended. Folders of another boot, container or host are kept.
    """
    removed: list[Path] = []
    failed: list[Path] = []
    scope = _scope()
    for folder in sorted(Path(tempfile.gettempdir()).glob(f"{_PREFIX}*")):
        name = _NAME.fullmatch(folder.name)
        if name is None or name["scope"] != scope or not _is_ours(folder):
            continue
        if not _is_gone(int(name["pid"]), int(name["started"])):
            continue
        shutil.rmtree(folder, ignore_errors=True)
        (failed if folder.exists() else removed).append(folder)
    return Swept(tuple(removed), tuple(failed))


def _is_ours(folder: Path) -> bool:
    try:
        found = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and stat.S_IMODE(found.st_mode) == 0o700


def _is_gone(pid: int, started: int) -> bool:
    """Whether a process has ended; its id may belong to another one by now."""
    if not started or not Path("/proc/self/stat").exists():
        return False
    return not Path(f"/proc/{pid}").exists() or _started(pid) not in (None, started)


def _started(pid: int) -> int | None:
    """Return when a process was started, in clock ticks since the boot; ``None`` if unknown."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        return int(text.rpartition(")")[2].split()[_STARTED])
    except (OSError, ValueError, IndexError):
        return None


def _scope() -> str:
    """Return the boot and process namespace within which a process id is unique."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
        space = Path("/proc/self/ns/pid").readlink()
    except OSError:
        return "0" * 12
    return hashlib.sha256(f"{boot}{space}".encode()).hexdigest()[:12]
