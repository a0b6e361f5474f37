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


def test_a_table_without_a_uuid_or_snapshot_is_omitted() -> None:
    """The draft requires both for each table; readers take an incomplete list as "not determined"."""
    assert made(base("lake.s.t", uuid=None), base("lake.s.u", snapshot=-1)).source_states == ()


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
