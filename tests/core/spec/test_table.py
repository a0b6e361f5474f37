# SPDX-License-Identifier: Apache-2.0
"""Table metadata: format versions 1 to 3, time travel by id, time and ref, and validation."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest

from airflow_mv.core.spec.table_metadata import (
    TableMetadata,
    ancestors,
    parse_table,
    snapshot_as_of,
    snapshots_between,
    with_properties,
)
from airflow_mv.errors import InvalidMetadataError, NewerFormatError, SnapshotNotFoundError

SOURCE = "view lake.sales.daily, storage table file s3://b/00003.metadata.json"


def snapshot(number: int, parent: int | None, **more: Any) -> dict[str, Any]:
    document = {"snapshot-id": number, "sequence-number": number, "timestamp-ms": number * 100, **more}
    document.setdefault("summary", {"operation": "append", "added-records": "5"})
    return document if parent is None else {**document, "parent-snapshot-id": parent}


def log(*entries: tuple[int, int]) -> list[dict[str, int]]:
    return [{"snapshot-id": number, "timestamp-ms": at} for number, at in entries]


#: 1 <- 2 <- 3, rolled back to 2, then 4 on top of 2; 1 has expired.
V2: dict[str, Any] = {
    "format-version": 2,
    "table-uuid": "t-1",
    "location": "s3://b/t",
    "last-sequence-number": 4,
    "last-updated-ms": 500,
    "last-column-id": 1,
    "current-schema-id": 1,
    "schemas": [
        {"type": "struct", "schema-id": 0, "fields": []},
        {"type": "struct", "schema-id": 1, "fields": [{"id": 1, "name": "a", "required": False, "type": "long"}]},
    ],
    "default-spec-id": 0,
    "partition-specs": [{"spec-id": 0, "fields": []}],
    "properties": {"owner": "x"},
    "current-snapshot-id": 4,
    "snapshots": [snapshot(2, 1), snapshot(3, 2), snapshot(4, 2)],
    "snapshot-log": log((1, 100), (2, 200), (3, 300), (2, 400), (4, 500)),
    "metadata-log": [{"metadata-file": "s3://b/t/metadata/v1.json", "timestamp-ms": 400}],
    "refs": {
        "main": {"snapshot-id": 4, "type": "branch"},
        "audit": {"snapshot-id": 3, "type": "branch", "max-ref-age-ms": 5},
        "month-end": {"snapshot-id": 2, "type": "tag"},
        "gone": {"snapshot-id": 1, "type": "tag"},
    },
}
V1: dict[str, Any] = {
    "format-version": 1,
    "location": "s3://b/t",
    "last-updated-ms": 100,
    "last-column-id": 1,
    "schema": {"type": "struct", "fields": [{"id": 1, "name": "a", "required": False, "type": "long"}]},
    "partition-spec": [],
    "current-snapshot-id": -1,
    "snapshots": [{"snapshot-id": 7, "timestamp-ms": 1, "manifests": ["s3://b/m.avro"]}],
}
V3 = {**V2, "format-version": 3, "next-row-id": 70, "encryption-keys": [{"key-id": "k"}]}


def table(document: dict[str, Any] | bytes = V2, **changes: Any) -> TableMetadata:
    if isinstance(document, bytes):
        return parse_table(document, source=SOURCE)
    changed = {**document, **{key.replace("_", "-"): value for key, value in changes.items()}}
    return parse_table(json.dumps({k: v for k, v in changed.items() if v is not ...}).encode(), source=SOURCE)


def test_all_three_format_versions_are_read_plain_and_gzipped() -> None:
    for document in (V2, V3):
        assert table(document).head == 4
        assert table(document).column_names == ("a",)
        assert table(gzip.compress(json.dumps(document).encode())) == table(document)
    assert table(V1).column_names == ("a",)
    assert table(V1).table_uuid is None


@pytest.mark.parametrize("nothing", [-1, None, ...])
def test_a_table_that_was_never_written_has_no_current_snapshot(nothing: object) -> None:
    """Version 1 writers store -1, pyiceberg stores null, Java omits the field."""
    assert table(current_snapshot_id=nothing).head is None


def test_a_version_1_snapshot_without_summary_counts_as_a_change_of_rows() -> None:
    """Nothing proves that it was a compaction."""
    read = table(V1).find(7)
    assert read is not None
    assert (read.operation, read.sequence_number, read.count("added-records")) == ("overwrite", 0, 0)


def test_a_summary_value_that_is_not_a_number_counts_as_zero() -> None:
    read = table(snapshots=[snapshot(2, None, summary={"operation": "append", "added-records": "many"})])
    assert read.snapshots[0].count("added-records") == 0


# -- time travel -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("at", "expected"),
    [(200, 2), (299, 2), (300, 3), (399, 3), (400, 2), (499, 2), (500, 4), (10**15, 4)],
)
def test_time_travel_follows_the_log_through_a_rollback(at: int, expected: int) -> None:
    """At 400 the table was rolled back to 2, so it reads 2, not 3."""
    assert snapshot_as_of(table(), at, name="t").snapshot_id == expected


def test_a_time_before_the_first_entry_is_refused_with_the_oldest_possible_time() -> None:
    with pytest.raises(SnapshotNotFoundError, match=r"as of 1970-\S+\.099\S+: the oldest possible time is 1970-\S+\.2"):
        snapshot_as_of(table(), 99, name="t")


def test_a_time_whose_snapshot_has_expired_is_refused_with_the_reason() -> None:
    with pytest.raises(SnapshotNotFoundError, match=r"it was at 1, which has expired; .* is 1970-01-01T00:00:00.2"):
        snapshot_as_of(table(), 150, name="t")


def test_time_travel_in_a_table_that_was_never_written_is_refused_with_the_reason() -> None:
    with pytest.raises(SnapshotNotFoundError, match="none was written"):
        snapshot_as_of(table(snapshot_log=[], current_snapshot_id=None), 100, name="t")


# -- snapshots between two snapshots -----------------------------------------------------------


def ids(found: tuple[Any, ...] | None) -> list[int] | None:
    return None if found is None else [item.snapshot_id for item in found]


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (2, 4, [4]),
        (1, 4, [2, 4]),  # 1 has expired, but 2 names it as its parent: nothing is missing in between
        (3, 4, None),  # rolled back
        (4, 2, None),
        (4, 4, []),
        (None, 4, None),  # 1 has expired: its changes are not known
        (None, None, []),
        (9, 4, None),
    ],
)
def test_the_snapshots_between_two_are_listed_oldest_first(
    old: int | None, new: int | None, expected: list[int] | None
) -> None:
    assert ids(snapshots_between(table(), old, new)) == expected


def test_the_whole_history_is_listed_from_no_snapshot_to_the_current_one() -> None:
    assert ids(snapshots_between(table(snapshots=[snapshot(1, None), snapshot(2, 1)]), None, 2)) == [1, 2]


def test_a_cycle_of_parents_is_not_followed_forever() -> None:
    """Hostile metadata must not hang a scheduler."""
    circle = table(snapshots=[snapshot(2, 3), snapshot(3, 2)])
    assert [item.snapshot_id for item in ancestors(circle, 3)] == [3, 2]
    assert snapshots_between(circle, 1, 3) is None


# -- the next metadata file --------------------------------------------------------------------


def test_the_next_file_preserves_all_other_fields_and_is_added_to_the_log() -> None:
    after = with_properties(V3, previous_location="s3://b/v2.json", updates={"p": "1"}, tags={}, now_ms=900)
    assert {**after, "properties": 0, "last-updated-ms": 0, "metadata-log": 0} == {
        **V3,
        "properties": 0,
        "last-updated-ms": 0,
        "metadata-log": 0,
    }
    assert after["properties"] == {"owner": "x", "p": "1"}
    assert after["metadata-log"][-1] == {"metadata-file": "s3://b/v2.json", "timestamp-ms": 500}
    assert after["last-updated-ms"] == 900
    assert "p" not in V3["properties"]


def test_a_slow_clock_does_not_move_the_table_s_time_back() -> None:
    after = with_properties(V2, previous_location="x", updates={}, tags={}, now_ms=3)
    assert after["last-updated-ms"] == 500


def test_a_tag_is_added_to_the_refs() -> None:
    after = with_properties(V2, previous_location="x", updates={}, tags={"refresh-1": 4}, now_ms=900)
    assert after["refs"] == {**V2["refs"], "refresh-1": {"snapshot-id": 4, "type": "tag"}}


@pytest.mark.parametrize(("limit", "kept"), [("3", 3), ("0", 1), ("many", 100), ("²", 100), ("9" * 5000, 100)])
def test_the_metadata_log_is_bounded_by_the_table_s_property(limit: str, kept: int) -> None:
    document = {**V2, "metadata-log": V2["metadata-log"] * 200}
    updates = {"write.metadata.previous-versions-max": limit}
    after = with_properties(document, previous_location="new", updates=updates, tags={}, now_ms=900)
    assert len(after["metadata-log"]) == kept
    assert after["metadata-log"][-1]["metadata-file"] == "new"


# -- validation --------------------------------------------------------------------------------

BROKEN: list[tuple[dict[str, Any], str]] = [
    ({"format_version": 0}, "format-version"),
    ({"format_version": ...}, "format-version"),
    ({"format_version": "2"}, "format-version"),
    ({"location": ...}, "location"),
    ({"location": 7}, "location"),
    ({"current_snapshot_id": "4"}, "current-snapshot-id"),
    ({"snapshots": {}}, "snapshots"),
    ({"snapshots": [{"timestamp-ms": 1}]}, "snapshot-id"),
    ({"snapshots": [snapshot(2, None, summary={"operation": 1})]}, "summary"),
    ({"snapshot_log": [{"snapshot-id": 1}]}, "timestamp-ms"),
    ({"metadata_log": [{"timestamp-ms": 1}]}, "metadata-file"),
    ({"refs": {"main": {"type": "branch"}}}, "snapshot-id"),
    ({"properties": {"a": 1}}, "properties"),
    ({"schemas": [7]}, "schemas"),
    ({"schemas": [{"schema-id": 1, "fields": [7]}]}, "schemas"),
    ({"schemas": [{"schema-id": 1, "fields": 7}]}, "schemas"),
    ({"schemas": [{"schema-id": 1, "fields": [{"id": 1, "type": "long"}]}]}, "schemas"),
    ({"schemas": [{"schema-id": 1, "fields": [{"id": 1, "name": "a"}]}]}, "schemas"),
    ({"schema": {"fields": [{"id": 1}]}}, "schema"),
    ({"partition_specs": [{"spec-id": 0, "fields": 5}]}, "partition-specs"),
    ({"partition_specs": [{"spec-id": 0, "fields": [5]}]}, "partition-specs"),
]


@pytest.mark.parametrize(("changes", "named"), BROKEN)
def test_an_error_names_the_invalid_field_the_view_and_the_file(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidMetadataError, match=named) as caught:
        table(**changes)
    assert SOURCE in str(caught.value)


@pytest.mark.parametrize("changes", [{}, {"snapshots": {"root": "manifest"}}, {"location": ...}])
def test_a_complete_file_of_a_later_version_is_not_broken(changes: dict[str, Any]) -> None:
    """Whatever the form of its other fields is."""
    with pytest.raises(NewerFormatError, match=r"format-version.*4 is not supported"):
        table(format_version=4, **changes)


# -- large files: snapshots are decoded when they are used ----------------------------------------

#: Looks like the structure of a document, inside of a text.
TRAP = '}, {"snapshot-id": 9}], "snapshots": [{"snapshot-id": 8}], {"'
LONG = [snapshot(n, n - 1, **{"manifest-list": TRAP * (n % 3), "x": TRAP[: n % len(TRAP)]}) for n in range(1, 4001)]
NESTED = {**LONG[2000], "y": [{"snapshot-id": n, "snapshots": [{"z": TRAP}]} for n in range(900)]}
FIRST = {"comment": {"snapshots": LONG[:5]}, "properties": {'"snapshots": [': TRAP}}
LARGE: dict[str, dict[str, Any]] = {
    "texts that look like structure": {**V2, "snapshots": LONG},
    "an item with arrays of objects": {**V2, "snapshots": [*LONG[:2000], NESTED, *LONG[2001:]]},
    "a field of the same name before it": {**FIRST, **V2, "snapshots": LONG},
    "few snapshots, and a long text": {**V2, "comment": TRAP * 9000},
    "no snapshots, and a long text": {**V2, "snapshots": [], "comment": TRAP * 9000},
}


def items(read: TableMetadata) -> list[tuple[Any, ...]]:
    return [(item.snapshot_id, item.parent_snapshot_id, item.manifest_list, item.summary) for item in read.snapshots]


def stored_items(document: dict[str, Any]) -> list[tuple[Any, ...]]:
    keys = ("snapshot-id", "parent-snapshot-id", "manifest-list", "summary")
    return [tuple(item.get(key) for key in keys) for item in document["snapshots"]]


@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize("document", LARGE.values(), ids=LARGE.keys())
def test_a_large_file_has_the_snapshots_that_a_json_parser_finds(document: dict[str, Any], indent: int | None) -> None:
    """Where an item begins is never taken from what only looks like it."""
    plain = json.dumps(document, indent=indent).encode()
    for data in (plain, gzip.compress(plain, 1)):
        read = table(data)
        assert items(read) == stored_items(document)
        for number, item in enumerate(document["snapshots"]):
            assert read.by_id[item["snapshot-id"]] == number
            assert read.snapshots[number].parent_snapshot_id == item["parent-snapshot-id"]


def test_of_a_large_file_s_repeated_fields_the_last_one_counts() -> None:
    """A field's name may be spelled with an escape, too."""
    for name in ("snapshots", "snap\\u0073hots"):
        end = b'"%b": %b}' % (name.encode(), json.dumps(LONG[:3]).encode())
        assert items(table(json.dumps({**V2, "snapshots": LONG}).encode()[:-1] + b", " + end))[3:] == []


@pytest.mark.parametrize("end", [b"", b"]]", b"}", b"],", b"]}}", b"] x}", b",]}", b"]]}"], ids=repr)
def test_a_large_file_whose_end_is_wrong_is_refused(end: bytes) -> None:
    whole = json.dumps({**{key: V2[key] for key in V2 if key != "snapshots"}, "snapshots": LONG})
    assert whole.endswith("}]}")
    with pytest.raises(InvalidMetadataError, match="not valid table metadata"):
        table(whole[:-2].encode() + end)


def test_a_snapshot_with_a_fault_is_refused_when_it_is_used() -> None:
    """The other snapshots of a large file can be read."""
    read = table({**V2, "snapshots": [*LONG[:3000], snapshot(3001, 7, summary={"operation": 1}), *LONG[3001:]]})
    assert read.snapshots[2999].summary == LONG[2999]["summary"]
    with pytest.raises(InvalidMetadataError, match="field 'snapshots': Expected `str`") as caught:
        read.find(3001)
    assert SOURCE in str(caught.value)


GOOD = json.dumps(V2).encode()
PACKED = gzip.compress(GOOD, mtime=0)
HOSTILE = {
    "empty": b"",
    "a list": b"[]",
    "invalid UTF-8": GOOD.replace(b"s3://b/t", b"s3://\xff/t"),
    "a byte order mark": b"\xef\xbb\xbf" + GOOD,
    "NaN": GOOD.replace(b"500", b"NaN"),
    "2^64": GOOD.replace(b'"current-snapshot-id": 4', b'"current-snapshot-id": %d' % 2**64),
    "nested 50,000 deep": GOOD[:-1] + b', "x": ' + b"[" * 50_000 + b"]" * 50_000 + b"}",
    "gzip, truncated": PACKED[:-9],
    "gzip, broken": PACKED[:40] + b"\xff\xff" + PACKED[42:],
}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_bytes_are_refused_with_one_error_that_names_view_and_file(data: bytes) -> None:
    with pytest.raises(InvalidMetadataError) as caught:
        table(data)
    assert SOURCE in str(caught.value)


@pytest.mark.parametrize("part", range(20))
@pytest.mark.parametrize("whole", [GOOD, PACKED], ids=["plain", "gzip"])
def test_truncated_files_are_refused(whole: bytes, part: int) -> None:
    with pytest.raises(InvalidMetadataError):
        table(whole[: len(whole) * part // 20])
