# SPDX-License-Identifier: Apache-2.0
"""Future times in table metadata, written by a wrong clock, are found and corrected so that Java reads the table."""

from __future__ import annotations

import copy
import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from airflow_mv.core.spec.materialized_view import (
    PROPERTY,
    corrected,
    goes_back,
    is_ahead,
    is_false,
    latest_ms,
    not_after,
)

STORE = 1_800_000_000_000
MINUTE = 60_000
stamps = st.integers(STORE - 200 * MINUTE, STORE + 200 * MINUTE)


@st.composite
def tables(draw: st.DrawFn) -> dict[str, Any]:
    count = draw(st.integers(0, 5))
    times = draw(st.lists(stamps, min_size=count, max_size=count))
    if draw(st.booleans()):
        times.sort()
    record = {"refresh-id": "r", "refreshed-at-ms": draw(stamps), "intervals": [{"refreshed-at-ms": draw(stamps)}, {}]}
    return {
        "last-updated-ms": draw(stamps),
        "snapshots": [{"snapshot-id": number, "timestamp-ms": item} for number, item in enumerate(times)],
        "snapshot-log": [{"snapshot-id": number, "timestamp-ms": item} for number, item in enumerate(times)],
        "metadata-log": [{"metadata-file": str(item), "timestamp-ms": item} for item in draw(st.lists(stamps))],
        "properties": {"a": "b", PROPERTY: json.dumps({"refreshes": [record], "unknown": 1})},
        "unknown-field": 7,
    }


def java_reads(document: dict[str, Any]) -> bool:
    """The checks in the constructor of Java's TableMetadata."""
    for name in ("snapshot-log", "metadata-log"):
        last = None
        for entry in document[name]:
            if last is not None and entry["timestamp-ms"] - last < -MINUTE:
                return False
            last = entry["timestamp-ms"]
        if last is not None and document["last-updated-ms"] - last < -MINUTE:
            return False
    return True


@given(tables())
def test_corrected_metadata_is_read_by_java_and_has_no_time_in_the_future(document: dict[str, Any]) -> None:
    before = copy.deepcopy(document)
    assert goes_back(document) == (not java_reads(document))
    after = corrected(document, STORE)
    assert document == before
    assert java_reads(after)
    assert latest_ms(after) <= STORE
    assert not is_false(after, STORE)
    assert corrected(after, STORE) == after
    record = json.loads(after["properties"][PROPERTY])["refreshes"][0]
    assert max(record["refreshed-at-ms"], record["intervals"][0]["refreshed-at-ms"]) <= STORE
    assert [item["snapshot-id"] for item in after["snapshot-log"]] == [
        item["snapshot-id"] for item in before["snapshot-log"]
    ]
    # A writer with a correct clock can change the table a minute later.
    assert java_reads({**after, "last-updated-ms": STORE})


@given(tables())
def test_times_in_the_past_are_not_changed(document: dict[str, Any]) -> None:
    late = latest_ms(document) + 400 * MINUTE
    assert not_after(document, late) == {**document, "properties": not_after(document, late)["properties"]}
    assert not is_ahead(document, latest_ms(document))
    assert is_ahead(document, latest_ms(document) - 1)
    if java_reads(document):
        assert not is_false(document, late)


def test_a_table_without_logs_and_with_a_foreign_property_is_not_changed() -> None:
    for text in ("", "[]", "{}", '{"refreshes": 3}', '{"refreshes": [1]}', "\x00"):
        assert corrected({"properties": {PROPERTY: text}}, STORE)["properties"][PROPERTY] == text
    assert latest_ms({}) == 0
    assert not is_false({"snapshots": None, "snapshot-log": None}, STORE)
