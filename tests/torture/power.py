# SPDX-License-Identifier: Apache-2.0
"""What a power cut leaves of a folder: a stand-in for a file system that drops what was not flushed.

``strace`` records the calls of a process and its children, Java's too. The strictest reading of POSIX decides what a
cut leaves: a file's content is kept if it was flushed after its last write, and a name if its folder was flushed after
the name was made. Files are written once, so the content at the end is the flushed one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

#: Calls that change names and contents, or flush them.
CALLS = (
    "openat,creat,mkdir,mkdirat,rename,renameat,renameat2,link,linkat,unlink,unlinkat,write,pwrite64,writev,"
    "ftruncate,fsync,fdatasync,sync"
)
_CALL = re.compile(r"^(?P<pid>\d+) +(?P<name>\w+)\((?P<rest>.*)$")
_RESUMED = re.compile(r"^(?P<pid>\d+) +<\.\.\. \w+ resumed>(?P<rest>.*)$")
_TEXT = re.compile(r'"([^"]*)"')
_OPENED = re.compile(r"^\d+<([^>]*)>")


def command(output: Path, arguments: Sequence[str]) -> list[str]:
    """Return the command line that records the calls of a program."""
    return [
        "strace",
        "-f",
        "-y",
        "-qq",
        "--seccomp-bpf",
        "-s",
        "0",
        "-e",
        f"trace={CALLS}",
        "-o",
        str(output),
        *arguments,
    ]


@dataclass(slots=True)
class _Inode:
    flushed: bool = True


@dataclass
class Disk:
    """The names and contents below a folder, and which of them are flushed.

    Args:
        folder: The folder; it was there before, and flushed.
        marks: The folder whose new files mark moments: a cut is made just before each.
        names: The present names.
        kept: The names that a cut leaves, with what they name.
    """

    folder: Path
    marks: Path
    names: dict[Path, _Inode] = field(default_factory=dict)
    kept: dict[Path, _Inode] = field(default_factory=dict)
    events: int = 0

    def cuts(self, lines: Iterator[str]) -> Iterator[tuple[str, frozenset[Path]]]:
        """Yield each mark, and the files that a cut at that moment leaves."""
        for name, paths, result in _calls(lines):
            if result.startswith("-1"):
                continue
            if name in ("openat", "creat") and paths and paths[-1].parent == self.marks:
                yield paths[-1].name, self.survivors()
            self._apply(name, paths)

    def survivors(self) -> frozenset[Path]:
        """The files that a cut leaves with their content."""
        return frozenset(path for path, inode in self.kept.items() if inode.flushed and self._is_reached(path))

    def _is_reached(self, path: Path) -> bool:
        above = path.parent
        while above != self.folder:
            if above not in self.kept:
                return False
            above = above.parent
        return True

    def _apply(self, name: str, paths: Sequence[Path]) -> None:
        if name == "sync":
            for inode in self.names.values():
                inode.flushed = True
            self.kept = dict(self.names)
            return
        if not paths or self.folder not in (paths[-1], *paths[-1].parents):
            return
        self.events += 1
        self._change(name, paths[-1], paths[0])

    def _change(self, name: str, path: Path, first: Path) -> None:
        if name in ("openat", "creat", "mkdir", "mkdirat"):
            self.names.setdefault(path, _Inode())
        elif name in ("write", "pwrite64", "writev", "ftruncate"):
            self.names.setdefault(path, _Inode()).flushed = False
        elif name.startswith("rename"):
            self.names[path] = self.names.pop(first, _Inode())
        elif name.startswith("link"):
            self.names[path] = self.names.setdefault(first, _Inode())
        elif name.startswith("unlink"):
            self.names.pop(path, None)
            self.kept.pop(path, None)
        else:
            self._flush(path)

    def _flush(self, path: Path) -> None:
        self.names.setdefault(path, _Inode()).flushed = True
        self.kept |= {name: inode for name, inode in self.names.items() if name.parent == path}


def _calls(lines: Iterator[str]) -> Iterator[tuple[str, list[Path], str]]:
    """Yield each finished call that may matter: its name, its paths, its result."""
    begun: dict[str, tuple[str, str]] = {}
    for line in lines:
        if (resumed := _RESUMED.match(line)) is not None:
            if resumed["pid"] not in begun:
                continue
            name, first = begun.pop(resumed["pid"])
            rest = first + resumed["rest"]
        elif (call := _CALL.match(line)) is not None:
            name, rest = call["name"], call["rest"]
            if rest.rstrip().endswith("<unfinished ...>"):
                begun[call["pid"]] = name, rest.rpartition("<unfinished")[0]
                continue
        else:
            continue
        if name == "openat" and "O_CREAT" not in rest:
            continue
        given, _, result = rest.rpartition(" = ")
        yield name, _paths(name, given), result


def _paths(name: str, given: str) -> list[Path]:
    if name in ("write", "pwrite64", "writev", "ftruncate", "fsync", "fdatasync"):
        opened = _OPENED.match(given)
        return [Path(opened[1])] if opened else []
    return [Path(text) for text in _TEXT.findall(given) if text.startswith("/")]
