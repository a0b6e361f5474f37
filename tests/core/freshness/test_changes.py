# SPDX-License-Identifier: Apache-2.0
"""The kind and size of a change follow from snapshot summaries alone."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis.strategies import DataObject, data, lists, sampled_from
from msgspec import structs

from airflow_mv.core.freshness.changes import (
    Kind,
    Range,
    Size,
    as_in_manifests,
    between,
    ends_of_commits,
    is_in_doubt,
)
from airflow_mv.core.script import REFRESH_ID_KEY
from airflow_mv.core.spec.table_metadata import FileChange, Snapshot, TableMetadata

#: The name of a total, of what adds to it, and of what subtracts from it.
TOTALS = (
    ("total-records", "added-records", "deleted-records"),
    ("total-data-files", "added-data-files", "deleted-data-files"),
    ("total-files-size", "added-files-size", "removed-files-size"),
    ("total-delete-files", "added-delete-files", "removed-delete-files"),
    ("total-position-deletes", "added-position-deletes", "removed-position-deletes"),
)


def table(*summaries: dict[str, str], parents: dict[int, int] | None = None, gone: int = 0) -> TableMetadata:
    """A table whose n-th snapshot has the n-th summary and its totals; the first ``gone`` have expired."""
    before: dict[int | None, dict[str, int]] = {None: {}}
    snapshots = []
    for number, summary in enumerate(summaries, start=1):
        parent = (parents or {}).get(number, number - 1 or None)
        before[number] = {
            total: before[parent].get(total, 0) + int(summary.get(added, 0)) - int(summary.get(removed, 0))
            for total, added, removed in TOTALS
        }
        complete = {key: str(value) for key, value in before[number].items()}
        schema = int(summary.get("schema", 0))
        snapshots.append(Snapshot(number, parent_snapshot_id=parent, schema_id=schema, summary={**complete, **summary}))
    return TableMetadata(
        format_version=2,
        location="s3://t",
        current_snapshot_id=len(summaries),
        snapshots=snapshots[gone:],
        schemas=[{"schema-id": number, "fields": [{"id": number, "name": "a"}]} for number in (0, 1)],
    )


APPEND = {"operation": "append", "added-records": "10", "added-data-files": "1", "added-files-size": "100",
          "changed-partition-count": "1"}  # fmt: skip
COPY_ON_WRITE = {"operation": "overwrite", "added-records": "9", "deleted-records": "10", "added-data-files": "1",
                 "deleted-data-files": "1", "added-files-size": "90", "removed-files-size": "100"}  # fmt: skip
POSITION = {"operation": "delete", "added-position-deletes": "3", "added-delete-files": "1", "added-files-size": "7"}
VECTOR = {**POSITION, "added-dvs": "1"}
EQUALITY = {"operation": "overwrite", "added-records": "1", "added-data-files": "1", "added-equality-deletes": "2"}
COMPACTION = {"operation": "replace", "added-records": "10", "deleted-records": "10", "added-files-size": "80",
              "removed-files-size": "100"}  # fmt: skip
ONLY_INSERTED = {"operation": "overwrite", "added-records": "2", "added-data-files": "1"}
NOTHING = {"operation": "delete"}


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
def test_each_snapshot_has_one_kind(summary: dict[str, str], kind: Kind, only_appends: bool) -> None:
    found = between(table(APPEND, summary), 1, 2)
    assert (found.kind, found.only_appends, found.snapshots) == (kind, only_appends, 1)


@pytest.mark.parametrize(
    ("summary", "size"),
    [(APPEND, 100), (COPY_ON_WRITE, 190), (COMPACTION, 180), (POSITION, 7)],
    ids=["append", "copy-on-write", "compaction", "a delete file"],
)
def test_the_size_of_a_commit_counts_added_and_removed_files(summary: dict[str, str], size: int) -> None:
    found = between(table(APPEND, summary), 1, 2).size
    assert (found.bytes_added or 0) + (found.bytes_removed or 0) == size


def test_a_commit_without_changes_in_its_summary_is_empty_only_if_its_manifests_prove_it() -> None:
    """A DELETE without a match has the same summary as a writer that omits the optional numbers."""
    found = table(APPEND, NOTHING)
    assert is_in_doubt(*reversed(found.snapshots))
    assert between(found, 1, 2).kind == Kind.REWRITTEN
    assert between(found, 1, 2).size.bytes_added is None
    assert between(found, 1, 2, same_rows={2}) == Range(
        Kind.REPLACED, (("delete", 1),), Size(total_rows=10, total_bytes=100)
    )


#: A commit of each kind as Java's Iceberg describes it.
FULL = [
    APPEND,
    COPY_ON_WRITE,
    {**POSITION, "added-position-delete-files": "1"},
    {**VECTOR, "removed-delete-files": "1", "removed-position-deletes": "2", "removed-dvs": "1"},
    {**EQUALITY, "added-delete-files": "1"},
    {**COMPACTION, "added-data-files": "1", "deleted-data-files": "3"},
    {"operation": "delete", "deleted-data-files": "1", "deleted-records": "10", "removed-files-size": "100"},
]


@pytest.mark.parametrize("summary", FULL, ids=lambda summary: str(summary["operation"]))
def test_a_summary_that_lacks_or_contradicts_anything_is_in_doubt(summary: dict[str, str]) -> None:
    """Each number alone: left out, another one, or none; and an operation that does not fit."""
    balances = (*TOTALS, ("total-equality-deletes", "added-equality-deletes", "removed-equality-deletes"))
    before = {total: 200 if removed in summary or "delete" not in total else 0 for total, _, removed in balances}
    parent = Snapshot(1, summary={total: str(number) for total, number in before.items()})
    totals = {
        total: str(before[total] + int(summary.get(added, 0)) - int(summary.get(removed, 0)))
        for total, added, removed in balances
    }

    def in_doubt(commit: dict[str, str]) -> bool:
        return is_in_doubt(Snapshot(2, parent_snapshot_id=1, summary={**totals, **commit}), parent)

    assert not in_doubt(summary)
    counts = [key for _, *keys in TOTALS for key in keys if key in summary]
    for key in counts:
        assert in_doubt({name: text for name, text in summary.items() if name != key}), key
        for wrong in ("0", "209", "-1", "ten", ""):
            assert in_doubt({**summary, key: wrong}), (key, wrong)
    for key, *_ in TOTALS:
        assert in_doubt({**summary, key: "7"}), key
    assert in_doubt({"operation": summary["operation"]})
    assert is_in_doubt(structs.replace(parent, summary={**parent.summary, "operation": "append"}), parent)
    assert not is_in_doubt(structs.replace(parent, summary={**parent.summary, "operation": "replace"}), parent)
    fits = {"append": [APPEND], "delete": [FULL[2], FULL[3], FULL[6]], "replace": [FULL[5]], "overwrite": FULL}
    for operation, commits in fits.items():
        assert summary in commits or in_doubt({**summary, "operation": operation}), operation


def test_manifests_decide_where_a_summary_is_in_doubt() -> None:
    """The operation stays if it fits; a commit whose manifests are unreadable may have changed any row."""
    said = Snapshot(2, summary={"operation": "append", "added-data-files": "5", "total-records": "9"})
    deleted = as_in_manifests(
        said, FileChange({"delete-files": 1, "position-delete-files": 1, "position-deletes": 3}, {})
    )
    assert (deleted.operation, deleted.number("added-data-files"), deleted.number("added-position-deletes")) == (
        ("overwrite", 0, 3)
    )
    added = as_in_manifests(said, FileChange({"data-files": 1, "records": 4}, {}))
    assert (added.operation, added.number("added-data-files"), added.number("total-records")) == ("append", 1, 9)
    unknown = as_in_manifests(said, None)
    assert (unknown.operation, unknown.number("added-data-files")) == ("overwrite", None)
    compaction = structs.replace(said, summary={"operation": "replace"})
    fewer = FileChange({"data-files": 1, "records": 4}, {"data-files": 2, "records": 5})
    assert as_in_manifests(compaction, fewer).operation == "overwrite"
    assert as_in_manifests(compaction, structs.replace(fewer, had_deletes=True)).operation == "replace"


#: Values that are not numbers, and one that contradicts the totals.
WRONG = ("-1", "ten", "1e3", "", " 1", "٣", "1_0", "77", "9" * 40)


@given(
    summaries=lists(sampled_from([APPEND, COPY_ON_WRITE, POSITION, EQUALITY, COMPACTION, NOTHING]), max_size=5),
    data=data(),
)
@settings(max_examples=300, deadline=None)
def test_missing_or_invalid_numbers_are_unknown_and_never_another_number(
    summaries: list[dict[str, str]], data: DataObject
) -> None:
    """Compared with the complete history: a known value must be the true value."""
    whole = table(APPEND, *summaries)
    complete = [dict(snapshot.summary) for snapshot in whole.snapshots]
    for summary in complete:
        for key in sorted(summary.keys() - {"operation", "schema"}):
            what = data.draw(sampled_from(["kept", "kept", "dropped", "wrong"]))
            if what == "dropped":
                del summary[key]
            elif what == "wrong" and key.startswith(("added-", "deleted-", "removed-")):
                summary[key] = data.draw(sampled_from(WRONG))
    last = len(complete)
    snapshots = [structs.replace(item, summary=complete[at]) for at, item in enumerate(whole.snapshots)]
    bare = structs.replace(whole, snapshots=snapshots)
    truth, found = between(whole, 1, last), between(bare, 1, last)
    assert found.operations == truth.operations
    if any(summary["operation"] != "replace" for summary in summaries):
        assert found.kind not in (Kind.UNCHANGED, Kind.REPLACED)
    lied = any(value in ("77", "9" * 40) for summary in complete for value in summary.values())
    if not lied:
        for name in Size.__dataclass_fields__:
            known = getattr(found.size, name)
            assert known in (None, getattr(truth.size, name)) or name == "bytes_touched", name


def test_a_number_that_contradicts_the_totals_is_unknown() -> None:
    complete = [{**summary, "total-records": "10", "total-files-size": "100"} for summary in (APPEND, APPEND)]
    size = between(table(*complete), 1, 2).size
    assert (size.rows_added, size.bytes_added, size.files_added) == (None, None, 1)


def test_a_missing_number_is_derived_from_the_totals() -> None:
    added = {"operation": "overwrite", "added-records": "5", "deleted-records": "2"}
    for dropped in ("added-records", "deleted-records"):
        complete = table(APPEND, added)
        del complete.snapshots[1].summary[dropped]
        assert (between(complete, 1, 2).size.rows_added, between(complete, 1, 2).size.rows_deleted) == (5, 2)


def test_a_range_has_its_most_restrictive_kind() -> None:
    """The most restrictive snapshot of the range decides which incremental modes are possible."""
    assert between(table(APPEND, APPEND, POSITION, COMPACTION), 1, 4).kind == Kind.POSITION_DELETES
    assert between(table(APPEND, APPEND, COMPACTION), 1, 3).kind == Kind.APPENDED


def test_a_compaction_changes_no_rows_but_its_bytes_are_counted() -> None:
    """The difference of two snapshots reads the files that a compaction wrote, so the estimate includes them."""
    size = between(table(APPEND, APPEND, COMPACTION), 1, 3).size
    assert (size.rows_added, size.rows_deleted) == (10, 0)
    assert (size.bytes_added, size.bytes_removed) == (180, 100)


def test_deleted_rows_are_taken_to_be_in_the_largest_files() -> None:
    """Small files that were appended since do not make a change of large files look cheap."""
    loaded = APPEND | {"added-data-files": "4", "added-files-size": "4000"}
    few, many = ({**POSITION, "added-delete-files": number} for number in ("4", "50"))
    assert between(table(loaded, *[APPEND] * 6, few), 7, 8).size.bytes_touched == 4000
    assert between(table(loaded, *[APPEND] * 6, many), 7, 8).size.bytes_touched == 4607, "all files"
    # Of the commits before the last twenty the average is known.
    assert between(table(loaded, *[APPEND] * 30, few), 31, 32).size.bytes_touched == 4 * 5200 // 16


def test_rows_that_a_merge_has_only_copied_are_no_changed_rows() -> None:
    """Spark says how many they are. A number that is greater than that of all rows is ignored."""
    found = [
        between(table(APPEND, COPY_ON_WRITE | {"spark.merge-into.num-target-rows-copied": copied}), 1, 2).size
        for copied in ("8", "11", "many")
    ]
    assert [(size.rows_added, size.rows_deleted) for size in found] == [(1, 2), (9, 10), (9, 10)]


def test_a_range_may_start_before_the_first_snapshot() -> None:
    found = between(table(APPEND, APPEND), None, 2)
    assert (found.kind, found.size.rows_added, found.size.total_rows) == (Kind.APPENDED, 20, 20)


def test_a_rollback_counts_the_undone_changes_in_reverse() -> None:
    size = between(table(APPEND, COPY_ON_WRITE), 2, 1).size
    assert (size.rows_added, size.rows_deleted, size.bytes_added, size.bytes_removed) == (10, 9, 100, 90)


def test_diverged_branches_may_have_changed_everything() -> None:
    found = between(table(APPEND, APPEND, APPEND, parents={3: 1}), 2, 3)
    assert (found.kind, found.size.bytes_added, found.size.bytes_removed) == (Kind.ROLLED_BACK, 200, 200)


def test_of_expired_commits_between_two_snapshots_the_least_is_known() -> None:
    """A tag has kept the first one. A table that only grows has at least grown by so much."""
    grown = table(*[APPEND] * 4)
    numbered = [structs.replace(item, sequence_number=item.snapshot_id) for item in grown.snapshots]
    kept = structs.replace(grown, snapshots=[item for item in numbered if item.snapshot_id != 2])
    shrunk = structs.replace(kept, snapshots=[*kept.snapshots[:-1], structs.replace(kept.snapshots[-1], summary={})])
    found = between(kept, 1, 4)
    assert (found.kind, found.size.rows_added) == (Kind.ROLLED_BACK, None)
    assert (found.size.bytes_added, found.size.bytes_removed, found.size.bytes_touched) == (300, 0, 0)
    unknown = between(shrunk, 1, 4).size
    assert (unknown.bytes_added, unknown.bytes_removed) == (None, 100)
    anew = structs.replace(numbered[3], parent_snapshot_id=None, summary=APPEND | {"total-data-files": "1"})
    replaced = structs.replace(kept, snapshots=[numbered[0], anew])
    assert between(replaced, 1, 4).size.bytes_removed == 100, "all rows are new"


def test_an_expired_start_is_not_a_rollback() -> None:
    assert between(table(APPEND, APPEND, APPEND, gone=2), 1, 3).kind == Kind.EXPIRED


def test_the_expired_parent_of_the_oldest_snapshot_still_starts_a_range() -> None:
    """An incremental append scan needs only the parent's id."""
    assert between(table(APPEND, APPEND, APPEND, gone=1), 1, 3).kind == Kind.APPENDED


def test_a_changed_schema_is_reported() -> None:
    assert between(table(APPEND, {**APPEND, "schema": "1"}), 1, 2).schema_changed
    assert not between(table(APPEND, APPEND), 1, 2).schema_changed


@pytest.mark.parametrize(
    ("line", "ends"),
    [
        ("append append delete", "1 2 3"),  # an ordinary table
        ("r/append", "1"),
        ("q/overwrite r/overwrite r/append", "1 3"),
        ("q/append delete r/append", "1 3"),  # Spark deletes whole files without a stamp
        ("q/append delete delete r/overwrite", "1 4"),
        ("r/overwrite delete r/append", "3"),
        ("r/delete r/append replace s/append", "2 3 4"),  # a compaction
        ("append overwrite r/overwrite", "1 2 3"),  # an adopted table
        ("r/append append delete", "1 2 3"),  # the view was dropped, and its table kept
        ("- r/delete r/append", "3"),  # an expired snapshot
    ],
)
def test_a_snapshot_within_a_refresh_is_not_the_end_of_a_commit(line: str, ends: str) -> None:
    found: list[Snapshot | None] = []
    for number, text in enumerate(line.split(), start=1):
        refresh_id, _, operation = text.rpartition("/")
        summary = {"operation": operation, **({REFRESH_ID_KEY: refresh_id} if refresh_id else {})}
        found.append(None if operation == "-" else Snapshot(number, summary=summary))
    assert ends_of_commits(found) == {int(number) for number in ends.split()}
