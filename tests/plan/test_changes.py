# SPDX-License-Identifier: Apache-2.0
"""The kind and the size of a change, from snapshot summaries alone."""

from __future__ import annotations

import pytest

from airflow_mv.plan.changes import Kind, between, bytes_changed
from airflow_mv.spec.table import Snapshot, TableMetadata


def table(*summaries: dict[str, str], parents: dict[int, int] | None = None, gone: int = 0) -> TableMetadata:
    """A table whose n-th snapshot has the n-th summary; the first ``gone`` have expired."""
    snapshots = [
        Snapshot(
            snapshot_id=number,
            parent_snapshot_id=(parents or {}).get(number, number - 1 or None),
            schema_id=int(summary.get("schema", 0)),
            summary=summary,
        )
        for number, summary in enumerate(summaries, start=1)
        if number > gone
    ]
    return TableMetadata(format_version=2, location="s3://t", current_snapshot_id=len(summaries), snapshots=snapshots)


APPEND = {"operation": "append", "added-records": "10", "added-data-files": "1", "added-files-size": "100",
          "total-records": "10", "total-files-size": "100", "changed-partition-count": "1"}  # fmt: skip
COPY_ON_WRITE = {"operation": "overwrite", "added-records": "9", "deleted-records": "10", "added-data-files": "1",
                 "deleted-data-files": "1", "added-files-size": "90", "removed-files-size": "100"}  # fmt: skip
POSITION = {"operation": "delete", "added-position-deletes": "3", "added-delete-files": "1"}
VECTOR = {**POSITION, "added-dvs": "1"}
EQUALITY = {"operation": "overwrite", "added-records": "1", "added-data-files": "1", "added-equality-deletes": "2"}
COMPACTION = {"operation": "replace", "added-records": "9", "deleted-records": "9", "added-files-size": "80",
              "removed-files-size": "180"}  # fmt: skip
ONLY_INSERTED = {"operation": "overwrite", "added-records": "2", "added-data-files": "1"}


@pytest.mark.parametrize(
    ("summary", "kind", "only_appends"),
    [
        (APPEND, Kind.APPENDED, True),
        (COMPACTION, Kind.REPLACED, True),
        (COPY_ON_WRITE, Kind.REWRITTEN, False),
        ({"operation": "delete", "deleted-data-files": "1"}, Kind.REWRITTEN, False),
        (POSITION, Kind.POSITION_DELETES, False),
        (VECTOR, Kind.DELETION_VECTORS, False),
        (EQUALITY, Kind.EQUALITY_DELETES, False),
        # Rows were only added, but a scan of appends would not see them.
        (ONLY_INSERTED, Kind.APPENDED, False),
    ],
    ids=lambda value: str(value) if isinstance(value, Kind) else "",
)
def test_one_snapshot_is_of_one_kind(summary: dict[str, str], kind: Kind, only_appends: bool) -> None:
    found = between(table(APPEND, summary), 1, 2)
    assert (found.kind, found.only_appends, found.snapshots) == (kind, only_appends, 1)


@pytest.mark.parametrize(
    ("summary", "size"),
    [
        (APPEND, 100),
        (COPY_ON_WRITE, 190),
        (COMPACTION, 260),
        ({**POSITION, "added-files-size": "7"}, 7),
        ({"operation": "delete", "total-records": "10"}, 0),
        (ONLY_INSERTED, None),
        ({"operation": "append"}, None),
    ],
    ids=["append", "copy-on-write", "compaction", "a delete file", "nothing", "no size", "no figures"],
)
def test_the_size_of_a_commit_is_that_of_the_files_it_added_and_removed(
    summary: dict[str, str], size: int | None
) -> None:
    """What its writer did not say is not taken for nothing."""
    assert bytes_changed(Snapshot(snapshot_id=1, summary=summary)) == size


def test_a_range_is_of_its_worst_kind() -> None:
    """What an incremental refresh can do is decided by the hardest snapshot of the range."""
    assert between(table(APPEND, APPEND, POSITION, COMPACTION), 1, 4).kind == Kind.POSITION_DELETES
    assert between(table(APPEND, APPEND, COMPACTION), 1, 3).kind == Kind.APPENDED


def test_rows_of_a_compaction_are_no_change_but_its_bytes_are_read() -> None:
    """A difference of two snapshots reads what compaction wrote: the estimate must know."""
    size = between(table(APPEND, APPEND, COMPACTION), 1, 3).size
    assert (size.rows_added, size.rows_deleted) == (10, 0)
    assert (size.bytes_added, size.bytes_removed) == (180, 180)


def test_the_table_from_nothing_is_a_range_too() -> None:
    found = between(table(APPEND, APPEND), None, 2)
    assert (found.kind, found.size.rows_added, found.size.total_rows) == (Kind.APPENDED, 20, 10)


def test_a_rollback_counts_what_it_undoes_the_other_way_round() -> None:
    size = between(table(APPEND, COPY_ON_WRITE), 2, 1).size
    assert (size.rows_added, size.rows_deleted, size.bytes_added, size.bytes_removed) == (10, 9, 100, 90)


def test_parted_branches_may_have_changed_everything() -> None:
    found = between(table(APPEND, APPEND, APPEND, parents={3: 1}), 2, 3)
    assert (found.kind, found.size.bytes_added, found.size.bytes_removed) == (Kind.ROLLED_BACK, 100, 100)


def test_an_expired_start_is_no_rollback() -> None:
    assert between(table(APPEND, APPEND, APPEND, gone=2), 1, 3).kind == Kind.EXPIRED


def test_the_expired_parent_of_the_oldest_snapshot_still_starts_a_range() -> None:
    """Append scans need nothing but the parent's id."""
    assert between(table(APPEND, APPEND, APPEND, gone=1), 1, 3).kind == Kind.APPENDED


def test_a_changed_schema_is_told() -> None:
    assert between(table(APPEND, {**APPEND, "schema": "1"}), 1, 2).schema_changed
    assert not between(table(APPEND, APPEND), 1, 2).schema_changed
