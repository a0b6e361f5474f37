# SPDX-License-Identifier: Apache-2.0
"""The two ``materialized_view_metadata`` records: parsing, preserved fields, serialization and validation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_mv.common.snapshots import is_complete
from airflow_mv.core.spec.materialized_view import (
    LOG_PROPERTY,
    MAX_LOG_BYTES,
    PROPERTY,
    RefreshRecord,
    StorageState,
    ViewSettings,
    log_text,
    parse_settings,
    parse_storage_state,
    past_refreshes,
    property_text,
)
from airflow_mv.errors import InvalidMetadataError, NewerFormatError

DATA = Path(__file__).parent / "data"
FILE = "file:///lake/daily/metadata/00007.metadata.json"
STATE = json.loads((DATA / "storage_state.json").read_text())
SETTINGS = {"storage-table-location": "file:///lake/daily/storage/metadata/00003.metadata.json"}


def read_settings(text: str) -> ViewSettings | None:
    return parse_settings({PROPERTY: text}, view="lake.sales.daily", location=FILE)


def read_state(text: str) -> StorageState | None:
    return parse_storage_state({PROPERTY: text}, view="lake.sales.daily", location=FILE)


def changed(path: str, value: Any) -> dict[str, Any]:
    """The storage record with one field set, or removed for ``...``."""
    document = json.loads(json.dumps(STATE))
    *steps, last = path.split("/")
    place: Any = document
    for step in steps:
        place = place[int(step)] if step.isdigit() else place[step]
    if value is ...:
        del place[last]
    else:
        place[last] = value
    return document


# -- parsing -----------------------------------------------------------------------------------


def test_a_view_without_the_property_is_a_plain_view() -> None:
    assert parse_settings({"comment": "x"}, view="v", location=FILE) is None


def test_a_storage_table_without_the_property_was_never_refreshed() -> None:
    assert parse_storage_state({}, view="v", location=FILE) is None


def test_an_empty_list_of_refreshes_means_never_refreshed() -> None:
    """The format allows it; other writers may use it instead of omitting the property."""
    assert read_state('{"refreshes": [], "current-refresh-id": "none"}') is None


def test_settings_have_the_defaults_of_the_format() -> None:
    read = read_settings(json.dumps(SETTINGS))
    assert read is not None
    assert (read.allow_stale_data, read.refresh_strategy) == (False, "full")


def test_defaults_are_not_written_out() -> None:
    """A rewrite must not add fields that it does not change."""
    read = read_settings(json.dumps(SETTINGS))
    assert read is not None
    assert json.loads(property_text(read)) == SETTINGS


def test_all_three_types_of_base_table_are_read() -> None:
    read = read_state(json.dumps(STATE))
    assert read is not None
    assert [table.type for table in read.current.base_tables] == [
        "iceberg-metastore",
        "iceberg-filesystem",
        "deltalake-filesystem",
    ]
    assert read.current.snapshots == {"sales.orders": 6113218347632409000, "raw.events": 77, "delta.users": 12}
    assert read.current.base_tables[1].location == "s3://lake/raw/events"
    assert dict(read.current.base_tables[0].properties) == {"hive.metastore.uris": "thrift://other:9083"}


def test_any_refresh_of_the_history_is_found_by_its_id() -> None:
    read = read_state(json.dumps(STATE))
    assert read is not None
    assert read.find("first").sequence_number == 3
    assert read.current.refresh_id == "second"
    with pytest.raises(KeyError):
        read.find("third")


# -- preserved fields --------------------------------------------------------------------------

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**80), 2**80) | st.text(max_size=8) | st.floats(-1e9, 1e9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
unknown = st.dictionaries(st.text(max_size=8).map(lambda key: f"x-{key}"), json_values, max_size=2)
strings = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
longs = st.integers(-(2**63), 2**63 - 1)


@st.composite
def base_tables(draw: st.DrawFn) -> dict[str, Any]:
    kind = draw(st.sampled_from(["iceberg-metastore", "iceberg-filesystem", "deltalake-filesystem"]))
    document = {"type": kind, "identifier": draw(strings), "snapshot-reference": draw(longs), **draw(unknown)}
    if kind != "iceberg-metastore":
        document["location"] = draw(strings)
    if draw(st.booleans()):
        document["properties"] = draw(st.dictionaries(strings, strings, max_size=2))
    return document


@st.composite
def states(draw: st.DrawFn) -> dict[str, Any]:
    ids = draw(st.lists(strings, min_size=1, max_size=3, unique=True))
    refreshes = []
    for refresh_id in ids:
        record = {
            "refresh-id": refresh_id,
            "version-id": draw(st.integers(0, 2**31 - 1)),
            "base-tables": draw(st.lists(base_tables(), max_size=2)),
            **draw(unknown),
        }
        if draw(st.booleans()):
            record["sequence-number"] = draw(longs)
        refreshes.append(record)
    return {"refreshes": refreshes, "current-refresh-id": draw(st.sampled_from(ids)), **draw(unknown)}


@settings(max_examples=150, deadline=None)
@given(states())
def test_reading_and_writing_a_storage_record_changes_nothing(document: dict[str, Any]) -> None:
    read = read_state(json.dumps(document))
    assert read is not None
    assert json.loads(property_text(read)) == document


@settings(max_examples=100, deadline=None)
@given(st.builds(lambda extra, stale: {**SETTINGS, "allow-stale-data": stale, **extra}, unknown, st.booleans()))
def test_repointing_a_view_changes_only_the_location(document: dict[str, Any]) -> None:
    read = read_settings(json.dumps(document))
    assert read is not None
    assert json.loads(property_text(read.repointed("s3://b/new"))) == {
        **document,
        "storage-table-location": "s3://b/new",
    }
    unnamed = {key: value for key, value in document.items() if key != "storage-table-location"}
    assert json.loads(property_text(read.repointed(None))) == unnamed


@pytest.mark.skipif(pydantic.VERSION < "2.14", reason="pydantic before 2.14 loses such a field")
def test_an_unknown_field_with_a_similar_name_is_preserved() -> None:
    """``refresh_id`` is not ``refresh-id``: it is neither read instead of it nor renamed."""
    document = changed("refreshes/0/refresh_id", "not ours")
    read = read_state(json.dumps(document))
    assert read is not None
    assert json.loads(property_text(read)) == document
    with pytest.raises(NewerFormatError, match="current-refresh-id"):
        read_state(json.dumps({"refreshes": STATE["refreshes"], "current_refresh_id": "r-1"}))


def record(refresh_id: str) -> RefreshRecord:
    return RefreshRecord.read({"refresh-id": refresh_id, "version-id": 1, "base-tables": []}, source="test")


def test_without_time_travel_the_single_record_is_replaced_and_unknown_fields_are_preserved() -> None:
    before = read_state(json.dumps({**STATE, "x-note": [1]}))
    after = StorageState.after(before, record("third"), keep=1)
    assert [item.refresh_id for item in after.refreshes] == ["third"]
    assert after.document()["x-note"] == [1]


def test_with_time_travel_records_are_added_and_old_records_are_not_changed() -> None:
    before = read_state(json.dumps(STATE))
    after = StorageState.after(before, record("third"), keep=100)
    assert after.document()["refreshes"][:2] == STATE["refreshes"]
    assert after.current.refresh_id == "third"


def test_the_log_keeps_the_newest_past_refreshes_within_its_bounds() -> None:
    """Intervals remain for the newest one only: a rollback to another one could not say what its rows came from."""
    day = {"column": "day", "start-us": 0, "end-us": 1}
    part = {**day, "refresh-id": "part", "base-tables": []}
    log: dict[str, str] = {}
    before: StorageState | None = None
    for number in range(60):
        own = {"refreshed-at-ms": number, "interval": day, "intervals": [part], "reasons": [{"code": "x" * 9000}]}
        after = StorageState.after(
            before, RefreshRecord.read({**record(str(number)).document(), **own}, source=""), keep=1
        )
        log = {LOG_PROPERTY: log_text(log, before, after, keep=10 if number < 30 else 1000)}
        before = after
        if number == 20:
            past = past_refreshes(log, source="test")
            assert [item.refresh_id for item in past] == [str(item) for item in range(11, 20)]
            assert [is_complete(item) for item in past] == [False] * 8 + [True]
    assert MAX_LOG_BYTES - 10_000 < len(log[LOG_PROPERTY]) < MAX_LOG_BYTES + 100
    assert before is not None
    assert (
        past_refreshes({LOG_PROPERTY: log_text(log, before, before, keep=50, not_before_ms=57)}, source="test")[
            0
        ].refresh_id
        == "57"
    )
    with pytest.raises(InvalidMetadataError, match="the file: field 'refreshes'"):
        past_refreshes({LOG_PROPERTY: '{"refreshes": {}}'}, source="the file")
    assert log_text({LOG_PROPERTY: "{"}, None, before, keep=50) == '{"refreshes":[]}', "it must not stop a refresh"


# -- validation --------------------------------------------------------------------------------

BROKEN_FIELDS = [
    ("refreshes", ..., "refreshes"),
    ("current-refresh-id", ..., "current-refresh-id"),
    ("current-refresh-id", "nobody", "current-refresh-id"),
    ("current-refresh-id", 5, "current-refresh-id"),
    ("refreshes", {}, "refreshes"),
    ("refreshes/1/refresh-id", ..., "refreshes.1.refresh-id"),
    ("refreshes/1/refresh-id", "", "refreshes.1.refresh-id"),
    ("refreshes/1/refresh-id", "first", "refresh-id occurs twice"),
    ("refreshes/0/version-id", ..., "refreshes.0.version-id"),
    ("refreshes/0/version-id", "1", "refreshes.0.version-id"),
    ("refreshes/0/version-id", True, "refreshes.0.version-id"),
    ("refreshes/0/version-id", 1.5, "refreshes.0.version-id"),
    ("refreshes/0/version-id", -1, "refreshes.0.version-id"),
    ("refreshes/0/base-tables", ..., "refreshes.0.base-tables"),
    ("refreshes/0/base-tables", None, "refreshes.0.base-tables"),
    ("refreshes/0/sequence-number", 2**64, "refreshes.0.sequence-number"),
    ("refreshes/0/base-tables/0/type", ..., "refreshes.0.base-tables.0.type"),
    ("refreshes/0/base-tables/0/type", "hudi", "refreshes.0.base-tables.0.type"),
    ("refreshes/0/base-tables/0/identifier", ..., "refreshes.0.base-tables.0.identifier"),
    ("refreshes/0/base-tables/0/snapshot-reference", ..., "refreshes.0.base-tables.0.snapshot-reference"),
    ("refreshes/0/base-tables/0/snapshot-reference", "12", "refreshes.0.base-tables.0.snapshot-reference"),
    ("refreshes/0/base-tables/0/snapshot-reference", 2**64, "refreshes.0.base-tables.0.snapshot-reference"),
    ("refreshes/0/base-tables/0/properties", {"a": 1}, "refreshes.0.base-tables.0.properties.a"),
    ("refreshes/1/base-tables/1/location", ..., "location is required"),
    ("refreshes/1/base-tables/2/location", "", "refreshes.1.base-tables.2.location"),
]


@pytest.mark.parametrize(("path", "value", "named"), BROKEN_FIELDS)
def test_an_error_names_the_invalid_field_the_view_and_the_file(path: str, value: object, named: str) -> None:
    with pytest.raises(NewerFormatError if value == "hudi" else InvalidMetadataError) as caught:
        read_state(json.dumps(changed(path, value)))
    assert named in str(caught.value)
    assert "lake.sales.daily" in str(caught.value)
    assert FILE in str(caught.value)


@pytest.mark.parametrize(
    ("document", "named"),
    [
        ({"storage-table-location": ""}, "storage-table-location"),
        ({"storage-table-location": 5}, "storage-table-location"),
        ({**SETTINGS, "allow-stale-data": "true"}, "allow-stale-data"),
    ],
)
def test_an_error_names_the_invalid_setting_the_view_and_the_file(document: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidMetadataError, match=named) as caught:
        read_settings(json.dumps(document))
    assert "lake.sales.daily" in str(caught.value)
    assert FILE in str(caught.value)


GOOD = json.dumps(STATE)
HOSTILE = {
    "empty": "",
    "null": "null",
    "a list": "[]",
    "a number": "7",
    "a word": "refresh",
    "NaN": GOOD.replace('"first"', "NaN", 1),
    "Infinity in an unknown field": GOOD[:-1] + ', "x": Infinity}',
    "an infinite number": GOOD[:-1] + ', "x": 1e999}',
    "a key twice": '{"refreshes": [], ' + GOOD[1:],
    "a key twice, deep": GOOD.replace('"version-id"', '"version-id": 9, "version-id"', 1),
    "nested 300 deep": GOOD[:-1] + ', "x": ' + "[" * 300 + "]" * 300 + "}",
    "nested 5,000 deep": GOOD[:-1] + ', "x": ' + "[" * 5000 + "]" * 5000 + "}",
    "objects nested 5,000 deep": '{"a":' * 5000 + "1" + "}" * 5000,
    "half a surrogate pair": GOOD.replace("first", "\\ud800"),
    "a number of 5,000 digits": GOOD.replace("6113218347632409000", "9" * 5000),
    "two documents": GOOD + GOOD,
    "a byte order mark": "\ufeff" + GOOD,
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_text_is_refused_with_one_error_that_names_view_file_and_property(text: str) -> None:
    for read in (read_state, read_settings):
        with pytest.raises(InvalidMetadataError) as caught:
            read(text)
        assert all(part in str(caught.value) for part in ("lake.sales.daily", FILE, PROPERTY))
        assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("part", range(20))
def test_truncated_text_is_refused(part: int) -> None:
    with pytest.raises(InvalidMetadataError, match="not valid JSON"):
        read_state(GOOD[: len(GOOD) * part // 20])
