# SPDX-License-Identifier: Apache-2.0
"""Candidates of a refresh are made from values alone, without a catalog or files."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import pytest

from airflow_mv.core.freshness.changes import Kind, Range, Size
from airflow_mv.core.ivm import Comparison
from airflow_mv.core.refresh.candidates import (
    AppendedFiles,
    BaseTableInput,
    Candidate,
    IncrementalInput,
    SnapshotFiles,
    StorageInput,
    candidate,
)
from airflow_mv.core.refresh.incremental import _MANY_FILES, _merge_on_read_files
from airflow_mv.core.refresh.plan import StoredCost
from airflow_mv.core.script import STAGING, DeltaStep, SqlStep
from airflow_mv.core.spec.identifiers import Identifier, quote
from airflow_mv.core.spec.reasons import Mode
from airflow_mv.core.spec.table_metadata import Snapshot, TableMetadata
from airflow_mv.core.sql.query import parse_query

TABLE = Identifier("lake", ("db",), "r")
APPENDED = Range(Kind.APPENDED, (("append", 1),), Size(10, 0, 100), only_appends=True)
UPDATED = Range(Kind.POSITION_DELETES, (("overwrite", 1),), Size(10, 10, 100, 100))


@dataclass
class FixedStatistics:
    """Statistics with a fixed answer that count the requests for them."""

    matches: bool = True
    requests: list[Sequence[tuple[Comparison, ...]]] = field(default_factory=list)
    #: Fields without a NULL.
    full: frozenset[int] = frozenset()

    def added_rows_may_match(
        self,
        table: Identifier,
        metadata_location: str,
        snapshots: Collection[int],
        filters: Sequence[tuple[Comparison, ...]],
    ) -> bool:
        assert (table, metadata_location, set(snapshots)) == (TABLE, "r.json", {2})
        self.requests.append(filters)
        return self.matches

    def rows_copied(self, _table: Identifier, _location: str, _snapshots: Collection[int]) -> int | None:
        return None

    def fields_without_nulls(
        self, table: Identifier, metadata_location: str, snapshots: Collection[int], fields: Collection[int]
    ) -> frozenset[int]:
        assert (table, metadata_location, set(snapshots)) == (TABLE, "r.json", {1, 2})
        return self.full & frozenset(fields)


def planned(
    sql: str, *output: str, change: Range = APPENDED, matches: bool = True, full: Collection[int] = ()
) -> Candidate:
    """Return the candidate of a view of one table with the integer columns ``a`` and ``b``; literals are strings."""
    columns, appended = (("a", "int"), ("b", "int")), AppendedFiles(TABLE, "r.json", frozenset({2}))
    files = SnapshotFiles(TABLE, "r.json", frozenset({1, 2}), {"a": 1, "b": 2})
    base = BaseTableInput(
        TABLE, TABLE.sql(), columns, 1, 2, change, 1_000, frozenset("ab"), appended=appended, files=files
    )
    given = IncrementalInput(
        view="lake.db.v",
        query=parse_query(sql, view="lake.db.v", default_catalog="lake", default_namespace=("db",)),
        views={},
        output=tuple((name, {"text": "string", "total": "bigint"}.get(name, "int")) for name in output),
        pinned=sql,
        bases=(base,),
        stored=StorageInput("`stored`", output, StoredCost(1_000, 10)),
    )
    found = candidate(given, FixedStatistics(matches, full=frozenset(full)))
    assert isinstance(found, Candidate), found
    return found


@pytest.mark.parametrize("version", ["new", "old", "delta"])
def test_a_string_literal_equal_to_a_relation_s_name_is_not_a_relation(version: str) -> None:
    """The relations that a statement reads come from its syntax tree, not from a text search."""
    name = quote(f"{STAGING}-t0__{version}").strip("`")
    found = planned(f"SELECT a, 'x{name}`' AS text FROM r", "a", "text")
    assert found.mode == Mode.APPEND
    assert [step for step in found.steps if isinstance(step, SqlStep) and step.view] == []
    (delta,) = [step for step in found.steps if isinstance(step, DeltaStep)]
    assert delta.uses == 1


def test_the_relations_of_all_statements_are_created_and_counted() -> None:
    """Affected keys are searched in both versions of a changed group; the change is read once for each term."""
    found = planned("SELECT a, max(b) AS b FROM r GROUP BY a", "a", "b", change=UPDATED)
    assert found.mode == Mode.REPLACE_KEYS
    (delta,) = [step for step in found.steps if isinstance(step, DeltaStep)]
    assert delta.uses == 1
    joined = planned("SELECT x.a, y.b FROM r AS x JOIN r AS y ON x.a = y.b", "a", "b")
    views = [step.view.strip("`") for step in joined.steps if isinstance(step, SqlStep) and step.view]
    (delta,) = [step for step in joined.steps if isinstance(step, DeltaStep)]
    assert (joined.mode, sorted(views), delta.uses) == (
        Mode.APPEND,
        [f"{STAGING}-t0__new", f"{STAGING}-t0__old"],
        2,
    )


def test_appended_rows_that_no_filter_matches_need_no_spark() -> None:
    """Only statistics are read while a refresh is planned, and only for appended rows."""
    sql = "SELECT a, b FROM r WHERE b > 7"
    assert planned(sql, "a", "b", matches=False).mode == Mode.FAST_FORWARD
    assert planned(sql, "a", "b", matches=True).mode == Mode.APPEND


@pytest.mark.parametrize(
    ("full", "mode"), [((), Mode.REPLACE_KEYS), ((1,), Mode.REPLACE_KEYS), ((1, 2), Mode.MERGE)], ids=str
)
def test_a_sum_of_columns_without_nulls_is_counted_by_the_rows(full: Collection[int], mode: Mode) -> None:
    """The files' statistics prove what a column that is declared NOT NULL promises."""
    sql = "SELECT a, sum(b * (1 - a)) AS total, count(*) AS n FROM r GROUP BY a"
    found = planned(sql, "a", "total", "n", change=UPDATED, full=full)
    assert found.mode == mode
    assert ("no summed column has a NULL" in found.reasons[0].message) == (mode == Mode.MERGE)


@pytest.mark.parametrize(
    ("deletes", "known"), [(("0", "2"), 22), (("2", "0"), 22), (("0", "0"), None), ((None, "2"), None), ((None,), None)]
)
def test_the_files_of_a_table_with_delete_files_are_counted(deletes: Sequence[str | None], known: int | None) -> None:
    """Their number tells a job over Spark Connect how to read them. Summaries may lack numbers."""
    summaries = [
        {"total-data-files": "10"} | ({} if number is None else {"total-delete-files": number}) for number in deletes
    ]
    snapshots = [Snapshot(snapshot_id=number, summary=summary) for number, summary in enumerate(summaries, 1)]
    table = TableMetadata(format_version=2, location="/t", snapshots=snapshots)
    assert _merge_on_read_files(table, (1, len(snapshots))) == known


def test_a_wrong_operation_keeps_a_job_from_the_changelog() -> None:
    """It skips commits that are stored as compactions; a job uses it where no number of files is given."""
    totals = {"total-data-files": "10", "total-delete-files": "0"}
    snapshots = [Snapshot(1, summary=totals), Snapshot(2, parent_snapshot_id=1, summary=totals)]
    table = TableMetadata(format_version=2, location="/t", snapshots=snapshots)
    assert _merge_on_read_files(table, (1, 2), {1}) is None
    assert _merge_on_read_files(table, (1, 2), {2}) == _MANY_FILES
