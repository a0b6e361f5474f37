# SPDX-License-Identifier: Apache-2.0
"""Every call of a refresh to the outside is a point at which its process can be interrupted.

The package does not know of this: the calls of the database driver and of the file store are wrapped in the
process that will be interrupted.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO
from sqlalchemy import Engine

from airflow_mv.core.catalog import MaterializedViewCatalog, TableChange
from airflow_mv.core.script import Outcome, Script
from airflow_mv.core.spec.identifiers import Identifier

BEFORE, DURING, AFTER = "before", "during", "after"
#: The last two are commits to a storage table in the catalog, of branches that are not read.
SWAP, STAGED, DROPPED = "swap", "swap of a staging branch", "swap of a dropped branch"
_STATEMENTS = {
    "SELECT iceberg_tables.metadata_location": "pointer read",
    "SELECT iceberg_tables.table_namespace": "look-up of base tables",
    "SELECT iceberg_tables.catalog_name": "table look-up",
    "UPDATE iceberg_tables": SWAP,
}
_READS = {
    "view": "view metadata read",
    "storage table file": "storage metadata read",
    "staged storage table file": "staged metadata read",
    "table": "base metadata read",
    "file": "outcome read",
}


@dataclass(frozen=True, slots=True, order=True)
class Point:
    """One moment of a refresh.

    Args:
        call: The name of the call.
        number: The number among the calls of this name, from 1.
        phase: ``before``, ``during`` (half of a file is written) or ``after``.
    """

    call: str
    number: int
    phase: str

    def __str__(self) -> str:
        return f"{self.phase} {self.call} {self.number}"


class Points:
    """Observes every point, and runs the actions of some.

    Args:
        actions: What to do at which point; an action may end this process, raise, or act as another process.
    """

    def __init__(self, actions: dict[Point, Callable[[], object]]) -> None:
        self.actions = actions
        self.seen: list[Point] = []
        self._counts: Counter[str] = Counter()
        self._on = True
        self._staging = self._dropping = False
        self._committing: str | None = None

    @contextmanager
    def off(self) -> Iterator[None]:
        """Calls within this context are those of another process and are not points."""
        before, self._on = self._on, False
        try:
            yield
        finally:
            self._on = before

    @contextmanager
    def around(self, call: str) -> Iterator[Callable[[], None]]:
        """Mark the start of a call and its successful end; yields a function that marks its middle."""
        self._counts[call] += self._on
        number = self._counts[call]
        self._reach(Point(call, number, BEFORE))
        yield lambda: self._reach(Point(call, number, DURING))
        self._reach(Point(call, number, AFTER))

    def _reach(self, point: Point) -> None:
        if not self._on:
            return
        self.seen.append(point)
        if (action := self.actions.get(point)) is not None:
            action()

    # -- wrapped calls --------------------------------------------------------------------------

    def stager(self, stager: Callable[[Script], Outcome]) -> Callable[[Script], Outcome]:
        """Wrap the stager."""

        def stage(script: Script) -> Outcome:
            self._staging = True
            try:
                with self.around("job"):
                    return stager(script)
            finally:
                self._staging = False

        return stage

    def catalog(self, catalog: MaterializedViewCatalog, engine: Engine) -> MaterializedViewCatalog:
        """Wrap a catalog's database and its reads; writes are wrapped by :meth:`files`."""
        execute, commit = engine.dialect.do_execute, engine.dialect.do_commit

        def do_execute(cursor: Any, statement: str, *rest: Any) -> None:
            call = next((name for text, name in _STATEMENTS.items() if statement.startswith(text)), None)
            if call is None or not self._on:
                return execute(cursor, statement, *rest)
            if call == SWAP:
                call = STAGED if self._staging else DROPPED if self._dropping else SWAP
            with self.around(call):
                execute(cursor, statement, *rest)
            self._committing = call if call in (SWAP, STAGED, DROPPED) else None
            return None

        def do_commit(connection: Any) -> None:
            if self._committing is None or not self._on:
                return commit(connection)
            call, self._committing = self._committing, None
            with self.around(f"commit of the {call}"):
                commit(connection)
            return None

        engine.dialect.do_execute = do_execute  # type: ignore[method-assign]
        engine.dialect.do_commit = do_commit  # type: ignore[method-assign]
        read = catalog.files.read

        def named_read(location: str, *, what: str) -> bytes:
            kind = what.rsplit(", ", 1)[-1]
            with self.around(_READS.get(kind) or _READS.get(what.split(" ", 1)[0], "other read")):
                return read(location, what=what)

        catalog.files.read = named_read  # type: ignore[method-assign]
        catalog.tables.commit = self._committer(catalog.tables.commit)  # type: ignore[method-assign]
        return catalog

    def _committer(self, commit: Callable[[Identifier, str, TableChange], str | None]) -> Callable[..., str | None]:
        def commit_change(name: Identifier, uuid: str, change: TableChange) -> str | None:
            self._dropping = not change.properties  # a refresh writes its record; dropping its branch does not
            try:
                return commit(name, uuid, change)
            finally:
                self._dropping = False

        return commit_change

    def files(self) -> None:
        """Wrap the file store of this process, permanently."""
        create, delete = PyArrowFile.create, PyArrowFileIO.delete

        def watched_create(file: PyArrowFile, overwrite: bool = False) -> Any:
            if not self._on:
                return create(file, overwrite)
            around = self.around(f"{self._role(file.location)} write")
            during = around.__enter__()
            return _Stream(create(file, overwrite), during, lambda: around.__exit__(None, None, None))

        def watched_delete(io: PyArrowFileIO, location: Any) -> None:
            with self.around(f"delete of a {self._role(str(location))} file"):
                delete(io, location)

        PyArrowFile.create = watched_create  # type: ignore[method-assign]
        PyArrowFileIO.delete = watched_delete  # type: ignore[method-assign]

    def _role(self, location: str) -> str:
        if "/staged/" in location:
            return "outcome"
        if "/data/" in location:
            return "data"
        if location.endswith(".avro"):
            return "manifest list" if "/snap-" in location else "manifest"
        if self._staging:
            return "staged metadata"
        return "storage metadata" if re.search(r"/storage-[^/]+/metadata/", location) else "view metadata"


class _Stream:
    """A file that is being written; it may end after its first half."""

    def __init__(self, stream: Any, during: Callable[[], None], written: Callable[[], object]) -> None:
        self._stream = stream
        self._during: Callable[[], None] | None = during
        self._written = written
        self.closed = False

    def write(self, data: Any) -> int:
        whole = bytes(data)
        rest = whole
        if self._during is not None:
            self._stream.write(whole[: len(whole) // 2])
            self._stream.flush()
            during, self._during = self._during, None
            during()
            rest = whole[len(whole) // 2 :]
        self._stream.write(rest)
        return len(whole)

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._stream.close()
            self._written()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __enter__(self) -> _Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
