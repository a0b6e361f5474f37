# SPDX-License-Identifier: Apache-2.0
"""Branches of a table, created and written with pyiceberg alone, as Spark does."""

from __future__ import annotations

import fcntl
import os
import random
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pyarrow as pa
from pyiceberg.exceptions import CommitFailedException, RESTError
from pyiceberg.io.pyarrow import _dataframe_to_data_files
from pyiceberg.table import Table
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.snapshots import Operation, Summary
from pyiceberg.table.update import (
    AddSnapshotUpdate,
    AssertTableUUID,
    RemoveSnapshotRefUpdate,
    SetSnapshotRefUpdate,
    TableUpdate,
)

#: How long a writer tries to commit beside others.
_MAX_SECONDS = 100.0


def create_branch(table: Table, branch: str, start: int | None) -> None:
    """Create a branch as Spark does: in an empty table it starts with an empty snapshot."""

    def change(now: Table) -> Iterable[TableUpdate]:
        if start is not None:
            return [SetSnapshotRefUpdate(ref_name=branch, type=SnapshotRefType.BRANCH, snapshot_id=start)]
        # A transaction would refuse this: pyiceberg creates the first snapshot of a table on its main branch only.
        return now.transaction().update_snapshot(branch=branch).fast_append()._commit()[0]

    _commit(table, change)


def overwrite_branch(table: Table, branch: str, rows: pa.Table, summary: dict[str, str]) -> None:
    """Replace the rows of a branch."""

    def change(now: Table) -> Iterable[TableUpdate]:
        transaction = now.transaction()
        empty = now.scan().use_ref(branch).count() == 0
        (transaction.append if empty else transaction.overwrite)(rows, snapshot_properties=summary, branch=branch)
        return transaction._updates

    _commit(table, change)


def replace_files(table: Table, branch: str) -> None:
    """Write the rows of a branch into one new file, as Spark's ``rewrite_data_files`` does."""

    def change(now: Table) -> Iterable[TableUpdate]:
        transaction, scan = now.transaction(), now.scan() if branch == "main" else now.scan().use_ref(branch)
        rows, files = scan.to_arrow(), [task.file for task in scan.plan_files()]
        with transaction.update_snapshot(branch=branch).overwrite() as update:
            for file in files:
                update.delete_data_file(file)
            for file in _dataframe_to_data_files(transaction.table_metadata, rows, now.io):
                update.append_data_file(file)
        return [_as_replace(item) for item in transaction._updates]

    _commit(table, change)


def _as_replace(update: TableUpdate) -> TableUpdate:
    """Give a new snapshot the operation of a compaction, which pyiceberg does not write."""
    if not isinstance(update, AddSnapshotUpdate) or update.snapshot.summary is None:
        return update
    summary = Summary(Operation.REPLACE, **update.snapshot.summary.additional_properties)
    return AddSnapshotUpdate(snapshot=update.snapshot.model_copy(update={"summary": summary}))


def drop_branch(table: Table, branch: str) -> None:
    """Drop a branch or a tag."""
    _commit(table, lambda _: [RemoveSnapshotRefUpdate(ref_name=branch)])


def _commit(table: Table, change: Callable[[Table], Iterable[TableUpdate]]) -> None:
    """Commit a change of a branch, and retry whenever another writer has committed."""
    with _in_turn(table):
        end = time.monotonic() + _MAX_SECONDS
        while time.monotonic() < end:
            now = table.catalog.load_table(table.name())
            with suppress(CommitFailedException, RESTError, ValueError):
                table.catalog.commit_table(now, (AssertTableUUID(uuid=now.metadata.table_uuid),), tuple(change(now)))
                return
            time.sleep(random.uniform(0.01, 0.1))
    raise AssertionError(f"other writers kept changing {table.name()}")


@contextmanager
def _in_turn(table: Table) -> Iterator[None]:
    """Wait for the other writers of branches, in all processes.

    A change writes its data files anew at each try. Of sixteen writers at once, one would lose for minutes. What the
    package itself commits meanwhile is not held back.
    """
    folder = Path(os.environ["AIRFLOW_HOME"])  # of this test run, and deleted with it
    with (folder / f"branches-{table.metadata.table_uuid}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
