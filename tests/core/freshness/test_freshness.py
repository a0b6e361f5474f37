# SPDX-License-Identifier: Apache-2.0
"""The five freshness states, each with its reason, follow from snapshot ids alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from airflow_mv.core.freshness.state import Freshness, ObservedTable, State, assess
from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.core.spec.materialized_view import NestedViewVersion, RefreshRecord
from airflow_mv.core.spec.reasons import Code
from airflow_mv.core.spec.table_metadata import Snapshot, TableMetadata

#: The operations of snapshots 1 to 4: two appends, a compaction, a delete.
HISTORY = {1: "append", 2: "append", 3: "replace", 4: "delete"}


def table(
    head: int | None, *, retained: dict[int, str] = HISTORY, uuid: str = "t-1", name: str = "o", schema_id: int = 0
) -> ObservedTable:
    snapshots = [
        Snapshot(
            snapshot_id=number,
            parent_snapshot_id=number - 1 or None,
            schema_id=schema_id,
            summary={
                "operation": operation,
                **({"added-records": "10"} if operation != "delete" else {}),
                **({"deleted-records": "3"} if operation in ("delete", "replace") else {}),
                "total-position-deletes": "0",
            },
        )
        for number, operation in retained.items()
    ]
    metadata = TableMetadata(
        format_version=2, location="s3://t", current_snapshot_id=head, snapshots=snapshots, table_uuid=uuid
    )
    return ObservedTable.at(Identifier.parse(f"lake.sales.{name}"), metadata, head, f"s3://t/{head}.json")


def record(*tables: ObservedTable, version_id: int = 1, nested: tuple[NestedViewVersion, ...] = ()) -> RefreshRecord:
    document: dict[str, Any] = {
        "refresh-id": "r",
        "version-id": version_id,
        "base-tables": [item.record().document() for item in tables],
        "nested-views": [item.document() for item in nested],
    }
    return RefreshRecord.read(document, source="test")


def nested(version_id: int, uuid: str = "n-1") -> NestedViewVersion:
    return NestedViewVersion.read({"identifier": "lake.sales.n", "uuid": uuid, "version-id": version_id}, source="test")


def verdict(
    recorded: RefreshRecord | None, *observed: ObservedTable, views: tuple[NestedViewVersion, ...] = ()
) -> Freshness:
    return assess(recorded, version_id=1, nested_views=views, observed=observed)


def codes(found: Freshness) -> list[Code]:
    return [reason.code for reason in found.reasons]


def test_a_view_at_the_recorded_snapshots_is_fresh() -> None:
    found = verdict(record(table(2)), table(2))
    assert (found.state, codes(found), found.moved) == (State.FRESH, [Code.FRESH], False)


def test_a_view_without_base_tables_is_fresh_after_its_first_refresh() -> None:
    assert verdict(record()).state == State.FRESH


def test_a_base_table_that_was_never_written_is_fresh_until_its_first_commit() -> None:
    empty = record(table(None))
    assert verdict(empty, table(None)).state == State.FRESH
    assert empty.base_tables[0].snapshot_reference == -1
    found = verdict(empty, table(2))
    assert (found.state, codes(found)) == (State.STALE, [Code.BASE_CHANGED])
    assert (
        found.base_tables[0].to_dict().items()
        >= {
            "identifier": "lake.sales.o",
            "type": "iceberg-metastore",
            "recorded": None,
            "current": "2",
            "changed": True,
            "moved": True,
            "change": "appended",
            "snapshots": 2,
            "operations": {"append": 2},
            "rows_added": 20,
            "rows_deleted": 0,
        }.items()
    )


def test_a_view_without_a_record_was_never_refreshed() -> None:
    found = verdict(None, table(2))
    assert (found.state, codes(found)) == (State.NEVER_REFRESHED, [Code.NEVER_REFRESHED])


def test_a_stale_view_reports_which_table_changed_and_how() -> None:
    found = verdict(record(table(1)), table(4))
    change = found.base_tables[0]
    assert (found.state, codes(found)) == (State.STALE, [Code.BASE_CHANGED])
    assert (change.recorded, change.current, change.range.snapshots) == (1, 4, 3)
    assert change.range.operations == (("append", 1), ("delete", 1), ("replace", 1))
    assert (change.range.size.rows_added, change.range.size.rows_deleted) == (
        10,
        3,
    )  # rewritten files are not a change
    assert found.reasons[0].message == (
        "lake.sales.o advanced 1 → 4: 3 snapshots (1 append, 1 delete, 1 replace), +10 -3 rows"
    )


def test_rows_that_a_copy_on_write_commit_may_have_only_copied_are_reported_as_such() -> None:
    found = verdict(record(table(2)), table(3, retained={1: "append", 2: "append", 3: "overwrite"}))
    assert found.reasons[0].message.endswith(" rows (unchanged rows of rewritten files included)")


def test_after_compaction_alone_a_view_is_fresh_and_its_snapshots_have_moved() -> None:
    """The rows are the same, so only the new snapshot id must be recorded."""
    found = verdict(record(table(2)), table(3))
    assert (found.state, found.moved, codes(found)) == (State.FRESH, True, [Code.ONLY_REPLACED])
    assert not found.base_tables[0].changed


def test_a_changed_table_among_compacted_ones_is_stale_and_both_are_reported() -> None:
    found = verdict(record(table(2), table(1, name="p")), table(3), table(2, name="p"))
    assert found.state == State.STALE
    assert codes(found) == [Code.ONLY_REPLACED, Code.BASE_CHANGED]


def test_a_rollback_is_stale() -> None:
    found = verdict(record(table(2)), table(1))
    assert (found.state, codes(found)) == (State.STALE, [Code.ROLLED_BACK])
    assert "ancestor 1" in found.reasons[0].message


def test_a_rollback_followed_by_a_write_is_stale() -> None:
    branched = table(2)
    assert branched.table is not None
    other = Snapshot(snapshot_id=9, parent_snapshot_id=1, summary={"operation": "append"})
    metadata = TableMetadata(
        format_version=2, location="s3://t", current_snapshot_id=9, snapshots=[*branched.table.snapshots, other]
    )
    found = verdict(record(table(2)), ObservedTable(Identifier.parse("lake.sales.o"), "x", 9, metadata, "t-1"))
    assert codes(found) == [Code.ROLLED_BACK]
    assert found.base_tables[0].changed


def test_an_expired_recorded_snapshot_is_stale_if_later_changes_are_unknown() -> None:
    found = verdict(record(table(1)), table(4, retained={4: "delete"}))
    assert (found.state, codes(found)) == (State.STALE, [Code.SNAPSHOT_EXPIRED])


def test_an_expired_recorded_snapshot_is_harmless_if_all_later_snapshots_are_retained() -> None:
    compacted = table(3, retained={3: "replace"})
    found = verdict(record(table(2)), compacted)
    assert (found.state, codes(found)) == (State.FRESH, [Code.ONLY_REPLACED])
    for other in (table(2, schema_id=1), replace(table(2), schema_id=None)):
        found = verdict(record(other), compacted)
        assert (found.state, codes(found)) == (State.STALE, [Code.BASE_CHANGED]), "compacted rows have other columns"
        assert "its columns may have changed" in found.reasons[0].message


def test_a_table_that_was_dropped_and_recreated_is_another_table() -> None:
    """The uuid decides, even if the snapshot ids are equal."""
    found = verdict(record(table(2)), table(2, uuid="t-2"))
    assert (found.state, codes(found)) == (State.STALE, [Code.BASE_RECREATED])


def test_a_table_of_unknown_uuid_is_not_taken_for_another_table() -> None:
    """Records of other writers may have no uuid."""
    bare = RefreshRecord.read(
        {
            "refresh-id": "r",
            "version-id": 1,
            "base-tables": [{"type": "iceberg-metastore", "identifier": "lake.sales.o", "snapshot-reference": 2}],
        },
        source="test",
    )
    assert verdict(bare, table(2)).state == State.FRESH


def test_a_table_whose_pointer_did_not_move_is_fresh_without_its_metadata() -> None:
    """In the most frequent case no metadata file is opened."""
    pointer = ObservedTable(Identifier.parse("lake.sales.o"), "s3://t/2.json", 2, None, "t-1")
    assert verdict(record(table(2)), pointer).state == State.FRESH


def test_a_base_table_that_cannot_be_read_makes_the_state_unknown() -> None:
    """Unknown has precedence over fresh and stale."""
    gone = ObservedTable(Identifier.parse("lake.sales.o"), error="base table lake.sales.o does not exist")
    for recorded in (record(table(2), table(1, name="p")), None, record(version_id=9)):
        found = verdict(recorded, gone, table(2, name="p"))
        assert (found.state, codes(found)) == (State.UNKNOWN, [Code.BASE_UNREADABLE])
        assert "does not exist" in found.reasons[0].message


def test_another_view_version_is_a_changed_definition_even_at_equal_snapshots() -> None:
    found = verdict(record(table(2), version_id=3), table(2))
    assert (found.state, codes(found)) == (State.DEFINITION_CHANGED, [Code.DEFINITION_CHANGED])
    assert "version 3" in found.reasons[0].message


@pytest.mark.parametrize(
    ("before", "now", "text"),
    [
        ((nested(1),), (nested(2),), "version 1 → version 2"),
        ((nested(1),), (nested(1, uuid="n-2"),), "version 1 → version 1"),
        ((), (nested(1),), "not there → version 1"),
        ((nested(1),), (), "version 1 → not there"),
    ],
)
def test_a_nested_view_s_version_is_part_of_the_definition(
    before: tuple[NestedViewVersion, ...], now: tuple[NestedViewVersion, ...], text: str
) -> None:
    found = verdict(record(table(2), nested=before), table(2), views=now)
    assert (found.state, codes(found)) == (State.DEFINITION_CHANGED, [Code.NESTED_VIEW_CHANGED])
    assert text in found.reasons[0].message


def test_a_base_table_that_is_new_in_the_query_counts_as_changed() -> None:
    found = verdict(record(table(2)), table(2), table(1, name="p"))
    assert found.state == State.STALE
    assert found.base_tables[1].changed
    assert found.reasons


def test_every_state_but_fresh_has_a_reason_with_a_subject() -> None:
    for found in (verdict(None), verdict(record(table(1)), table(2)), verdict(record(version_id=2))):
        assert found.reasons
        assert all(reason.message for reason in found.reasons)
