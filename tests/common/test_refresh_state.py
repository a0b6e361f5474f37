# SPDX-License-Identifier: Apache-2.0
"""The draft's ``refresh-state``: what this package writes, and what it reads from other writers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from airflow_mv.common.refresh_state import RefreshState, parse, refresh_state, written
from airflow_mv.core.spec.materialized_view import BaseTable, NestedViewVersion
from airflow_mv.core.spec.properties import refresh_state_of
from airflow_mv.errors import ConfigurationError, InvalidMetadataError

TABLE = {"type": "table", "name": "events", "namespace": ["sales", "eu"], "uuid": "t-1", "snapshot-id": 2**62}
VIEW = {"type": "view", "name": "plain", "namespace": ["sales"], "uuid": "v-1", "version-id": 3}
NOW = {"view-version-id": 1, "refresh-start-timestamp-ms": 1_573_518_435_000, "source-states": [TABLE, VIEW]}


def base(identifier: str, snapshot: int = 7, uuid: str | None = "t-1") -> BaseTable:
    properties = {"table-uuid": uuid} if uuid else {}
    document = {
        "type": "iceberg-metastore",
        "identifier": identifier,
        "snapshot-reference": snapshot,
        "properties": properties,
    }
    return BaseTable.read(document, source="test")


def made(*tables: BaseTable, views: tuple[NestedViewVersion, ...] = ()) -> RefreshState:
    return refresh_state(version_id=4, started_ms=5, tables=tables, nested_views=views, catalog="lake")


def test_the_written_document_follows_the_draft() -> None:
    plain = NestedViewVersion.read({"identifier": "lake.s.v", "uuid": "v-1", "version-id": 2}, source="test")
    text = written(made(base("lake.`s`.`odd name`"), base("other.a.b.c"), views=(plain,)))
    assert json.loads(text) == {
        "view-version-id": 4,
        "refresh-start-timestamp-ms": 5,
        "source-states": [
            {"type": "table", "name": "odd name", "namespace": ["s"], "uuid": "t-1", "snapshot-id": 7},
            {
                "type": "table",
                "name": "c",
                "namespace": ["a", "b"],
                "catalog": "other",
                "uuid": "t-1",
                "snapshot-id": 7,
            },
            {"type": "view", "name": "v", "namespace": ["s"], "uuid": "v-1", "version-id": 2},
        ],
    }


def test_a_table_without_a_uuid_is_omitted_and_one_without_a_snapshot_has_minus_one() -> None:
    """The draft requires the uuid. Spark and Trino compare -1 with a table that is still empty."""
    (source,) = made(base("lake.s.t", uuid=None), base("lake.s.u", snapshot=-1)).document()["source-states"]
    assert (source["name"], source["snapshot-id"]) == ("u", -1)


def test_the_form_of_2024_has_two_lists_without_names() -> None:
    """The field names of each form are those of the draft at its date."""
    plain = NestedViewVersion.read({"identifier": "lake.s.v", "uuid": "v-1", "version-id": 2}, source="test")
    text = written(made(base("lake.s.t"), views=(plain,)), "2024-10")
    assert json.loads(text) == {
        "refresh-version-id": 4,
        "refresh-start-timestamp-ms": 5,
        "source-table-states": [{"uuid": "t-1", "snapshot-id": 7}],
        "source-view-states": [{"uuid": "v-1", "version-id": 2}],
    }
    assert parse(text, source="s").document()["source-states"] == [
        {"type": "table", "uuid": "t-1", "snapshot-id": 7},
        {"type": "view", "uuid": "v-1", "version-id": 2},
    ]


#: What the tests of the branches read, in the form that each branch writes.
THEIRS = {
    "the draft's example": {
        "view-version-id": 1,
        "refresh-start-timestamp-ms": 1_573_518_435_000,
        "source-states": [
            {
                "type": "table",
                "namespace": ["default"],
                "name": "events",
                "uuid": "d4a10b5c-1e8a-4b72-9d67-3f4a8c9e1b2d",
                "snapshot-id": 6148331192489823102,
            }
        ],
    },
    "apache/iceberg#9830, a branch and a view": {
        "view-version-id": 1,
        "refresh-start-timestamp-ms": 1_573_518_435_000,
        "source-states": [
            {
                "type": "table",
                "name": "events",
                "namespace": ["default"],
                "uuid": "u-1",
                "snapshot-id": 100,
                "ref": "audit_branch",
            },
            {
                "type": "view",
                "name": "daily_summary",
                "namespace": ["analytics", "views"],
                "catalog": "other_catalog",
                "uuid": "u-2",
                "version-id": 5,
            },
        ],
    },
    "trinodb/trino#31027, an empty table": {
        "view-version-id": 2,
        "refresh-start-timestamp-ms": 1_573_518_435_000,
        "source-states": [
            {"type": "table", "name": "t", "namespace": ["s"], "catalog": "iceberg", "uuid": "u-1", "snapshot-id": -1}
        ],
    },
    "iceberg-rust-spec": {
        "refresh-version-id": 11,
        "source-states": [
            {
                "type": "table",
                "name": "page_views",
                "namespace": ["analytics", "events"],
                "catalog": "prod_cat",
                "uuid": "aa000000-1111-2222-3333-444444444444",
                "snapshot-id": 42,
                "ref": "staging",
            }
        ],
        "refresh-start-timestamp-ms": 1_730_000_000_000,
    },
    "the draft of 2024": {
        "refresh-version-id": 3,
        "source-table-states": [{"uuid": "u-1", "snapshot-id": 5, "ref": "main"}],
        "source-view-states": [{"uuid": "u-2", "version-id": 1}],
        "refresh-start-timestamp-ms": 1,
    },
}


@pytest.mark.parametrize("name", THEIRS)
def test_what_the_branches_of_the_draft_write_is_read_whole(name: str) -> None:
    document: dict[str, Any] = json.loads(json.dumps(THEIRS[name]))
    version = document.pop("view-version-id", None) or document.pop("refresh-version-id")
    lists = [document.get(f"source-{kind}states", []) for kind in ("", "table-", "view-")]
    state = parse(json.dumps(THEIRS[name]), source="s")
    assert (state.view_version_id, state.refresh_start_timestamp_ms) == (
        version, document["refresh-start-timestamp-ms"],
    )  # fmt: skip
    expected = [item for states in lists for item in states]
    assert all(theirs.items() <= ours.items() for theirs, ours in zip(
        expected, state.document()["source-states"], strict=True
    ))  # fmt: skip


#: The fields that the parser of apache/iceberg#9830 requires, by the type of a source.
REQUIRED = {
    "table": {"type": str, "name": str, "namespace": list, "uuid": str, "snapshot-id": int},
    "view": {"type": str, "name": str, "namespace": list, "uuid": str, "version-id": int},
}


def test_what_is_written_has_the_fields_that_the_branches_require() -> None:
    plain = NestedViewVersion.read({"identifier": "lake.s.v", "uuid": "v-1", "version-id": 2}, source="test")
    document = json.loads(written(made(base("lake.s.t"), base("other.a.b.c", snapshot=-1), views=(plain,))))
    assert (type(document["view-version-id"]), type(document["refresh-start-timestamp-ms"])) == (int, int)
    for source in document["source-states"]:
        assert {key: type(source.get(key)) for key in REQUIRED[source["type"]]} == REQUIRED[source["type"]]


def test_nothing_is_written_if_the_property_is_none() -> None:
    assert refresh_state_of({"airflow-mv.refresh-state": "none"}, view="v") is None
    with pytest.raises(ConfigurationError, match=r"view v.*airflow-mv\.refresh-state.*'1999'.*2026-06"):
        refresh_state_of({"airflow-mv.refresh-state": "1999"}, view="v")


def test_the_field_name_that_iceberg_rust_uses_for_the_version_is_read() -> None:
    document = {"refresh-version-id": 1, **{key: item for key, item in NOW.items() if key != "view-version-id"}}
    for text in (NOW, document):
        assert parse(json.dumps(text), source="s") == RefreshState.read(NOW, source="s")


def test_source_states_may_be_missing() -> None:
    """The draft's reference parser takes this as "none were tracked"."""
    assert parse('{"view-version-id": 1, "refresh-start-timestamp-ms": 2}', source="s").source_states == ()


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"view-version-id": "1"}, "view-version-id"),
        ({"source-states": [{**TABLE, "uuid": ""}]}, "uuid"),
        ({"source-states": [{**TABLE, "snapshot-id": 2**63}]}, "snapshot-id"),
        ({"source-states": [{**VIEW, "type": "MATERIALIZED_VIEW"}]}, "source-states"),
        ({"source-states": 1}, "source-states"),
        ({"refresh-start-timestamp-ms": None}, "refresh-start-timestamp-ms"),
    ],
)
def test_an_invalid_field_is_named(changed: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidMetadataError, match=f"summary of x.*{field}"):
        parse(json.dumps({**NOW, **changed}), source="summary of x")


@pytest.mark.parametrize("text", ["", "[]", "{", "null", '{"source-states": {}}', '{"source-states": [1]}'])
def test_text_that_is_not_a_document_raises_a_typed_error(text: str) -> None:
    with pytest.raises(InvalidMetadataError, match="summary"):
        parse(text, source="summary")
