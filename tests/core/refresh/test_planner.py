# SPDX-License-Identifier: Apache-2.0
"""The plan: a mode for each state, an id derived from the input, and a document that is read back unchanged."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from airflow_mv.core.freshness.changes import Kind, Range, Size
from airflow_mv.core.freshness.state import BaseTableChange, State
from airflow_mv.core.refresh.plan import Estimate, RefreshPlan, refresh_id
from airflow_mv.core.refresh.statements import PinnedQuery, partition_transforms, refresh_script
from airflow_mv.core.script import (
    BRANCH,
    STAGING,
    CreateStorageStep,
    Script,
    SqlStep,
    StagedCheck,
    StagedChecks,
    Target,
    staged,
)
from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.core.spec.materialized_view import BaseTable, NestedViewVersion
from airflow_mv.core.spec.properties import SortColumn
from airflow_mv.core.spec.reasons import Code, Mode, Reason
from airflow_mv.core.spec.table_metadata import TableMetadata
from airflow_mv.errors import InvalidMetadataError

# -- the refresh id ----------------------------------------------------------------------------


def base(name: str = "lake.s.o", snapshot: int = 1, uuid: str = "t-1", **properties: str) -> BaseTable:
    document = {
        "type": "iceberg-metastore",
        "identifier": name,
        "snapshot-reference": snapshot,
        "properties": {"table-uuid": uuid, **properties},
    }
    return BaseTable.read(document, source="test")


def nested(version_id: int = 1, uuid: str = "n-1") -> NestedViewVersion:
    return NestedViewVersion.read({"identifier": "lake.s.n", "uuid": uuid, "version-id": version_id}, source="test")


INPUT: dict[str, Any] = {
    "view_uuid": "v-1",
    "version_id": 1,
    "records": [base(), base("lake.s.p", 7)],
    "nested_views": [nested()],
    "scope": "full",
    "storage_base": "s3://b/00003.json",
}


def test_the_same_input_has_the_same_refresh_id_in_every_process() -> None:
    """Two workers must agree without communication. The literal fails if the derivation is changed by mistake."""
    assert refresh_id(**INPUT) == refresh_id(**INPUT) == "b4899a81-16d0-5b0a-8ff7-7fa5da982393"


def test_the_order_of_tables_and_where_their_metadata_is_do_not_matter() -> None:
    moved = [base("lake.s.p", 7), base(**{"metadata-location": "s3://elsewhere"})]
    assert refresh_id(**{**INPUT, "records": moved}) == refresh_id(**INPUT)


@pytest.mark.parametrize(
    "change",
    [
        {"view_uuid": "v-2"},
        {"version_id": 2},
        {"records": [base()]},
        {"records": [base(snapshot=2), base("lake.s.p", 7)]},
        {"records": [base(uuid="t-2"), base("lake.s.p", 7)]},
        {"records": [base(snapshot=7), base("lake.s.p", 1)]},
        {"nested_views": []},
        {"nested_views": [nested(2)]},
        {"nested_views": [nested(uuid="n-2")]},
        {"scope": "fast-forward"},
        {"storage_base": "s3://b/00004.json"},
    ],
)
def test_any_other_input_has_another_refresh_id(change: dict[str, Any]) -> None:
    assert refresh_id(**{**INPUT, **change}) != refresh_id(**INPUT)


# -- the document ------------------------------------------------------------------------------

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
words = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=12)
longs = st.integers(-(2**63), 2**63 - 1)
counts = st.integers(0, 10**9)
reasons = st.lists(st.builds(Reason, st.sampled_from(Code), texts), max_size=2).map(tuple)
ranges = st.builds(
    Range,
    st.sampled_from(Kind),
    st.dictionaries(st.sampled_from(["append", "delete"]), counts).map(lambda items: tuple(sorted(items.items()))),
    st.builds(Size, counts, counts, counts),
    st.booleans(),
    st.booleans(),
)
changes = st.builds(
    BaseTableChange,
    words,
    st.just("iceberg-metastore"),
    longs | st.none(),
    longs | st.none(),
    st.booleans(),
    st.booleans(),
    ranges,
)
steps = st.one_of(
    st.builds(SqlStep, texts),
    st.builds(CreateStorageStep, texts, texts, texts, st.lists(texts).map(tuple), st.just((("a", "b"),))),
)
scripts = st.builds(
    Script, texts, texts, texts, st.lists(steps, max_size=3).map(tuple), texts | st.none(), st.just((("k", "v"),))
)
names = st.builds(Identifier, words, st.lists(words, min_size=1, max_size=3).map(tuple), words)
plans = st.builds(
    RefreshPlan,
    view=names,
    view_uuid=words,
    version_id=st.integers(0, 2**31 - 1),
    metadata_location=texts,
    storage_table_location=texts,
    storage_base=texts,
    storage_table=names | st.none(),
    mode=st.sampled_from(Mode),
    reasons=reasons,
    refresh_id=words,
    records=st.lists(st.builds(base, words, longs, words), max_size=3).map(tuple),
    nested_views=st.lists(st.builds(nested, st.integers(0, 9), words), max_size=2).map(tuple),
    changes=st.lists(changes, max_size=2).map(tuple),
    state=st.sampled_from(State),
    script=scripts | st.none(),
    estimates=st.lists(st.builds(Estimate, words, st.floats(0, 1e6), counts, counts), max_size=2).map(tuple),
    skips=st.booleans(),
)


@settings(max_examples=150, deadline=None)
@given(plans)
def test_a_plan_reads_back_equal_from_its_json(plan: RefreshPlan) -> None:
    assert RefreshPlan.from_dict(json.loads(json.dumps(plan.to_dict()))) == plan


def a_plan() -> RefreshPlan:
    return RefreshPlan(
        view=Identifier("lake", ("s",), "v"),
        view_uuid="v-1",
        version_id=1,
        metadata_location="s3://b/v.json",
        storage_table_location="s3://b/s.json",
        storage_base="s3://b/s.json",
        storage_table=Identifier("lake", ("sales",), "daily__storage"),
        layout="registered",
        mode=Mode.FULL,
        reasons=(Reason(Code.FORCED, "requested"),),
        refresh_id="r-1",
        records=(base(),),
        nested_views=(),
        changes=(),
        state=State.STALE,
        script=Script("lake.s.v", "r-1", "`t`", (SqlStep("SELECT 1"),)),
    )


@pytest.mark.parametrize("key", sorted(set(a_plan().to_dict()) - {"statements"}))
@pytest.mark.parametrize("value", [..., None, 7, "x", {"x": 1}])
def test_a_broken_plan_document_raises_one_typed_error_or_is_read(key: str, value: object) -> None:
    """A plan crosses XCom, so it may come from an older version of the package."""
    document = a_plan().to_dict()
    if value is ...:
        del document[key]
    else:
        document[key] = value
    with suppress(InvalidMetadataError):
        RefreshPlan.from_dict(document)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("view_uuid", 7),
        ("version_id", "1"),
        ("version_id", True),
        ("metadata_location", None),
        ("refresh_id", ["r-1"]),
        ("skips", "no"),
        ("reasons", {}),
        ("records", "x"),
        ("message", None),
        ("recorded", 1),
        ("moved", 1),
        ("total_bytes", 1.5),
        ("append", "3"),
        ("seconds", "1"),
    ],
)
def test_a_plan_with_a_field_of_another_type_is_refused_with_the_field_s_name(key: str, value: object) -> None:
    """The error occurs where the plan is read, not during publication."""
    change = BaseTableChange("lake.s.t", "iceberg-metastore", 1, 2, range=Range(Kind.APPENDED, (("append", 1),)))
    document = replace(a_plan(), changes=(change,), estimates=(Estimate("full", 1.0, 2, 3),)).to_dict()
    (table,), (reason,), (estimate,) = document["base_tables"], document["reasons"], document["estimates"]
    assert RefreshPlan.from_dict(document)
    holder = next(item for item in (document, reason, table, table["operations"], estimate) if key in item)
    holder[key] = value
    with pytest.raises(InvalidMetadataError, match=f"field '{key}'"):
        RefreshPlan.from_dict(document)


def test_the_statements_of_a_plan_are_the_statements_of_its_script() -> None:
    assert a_plan().statements == ("SELECT 1",)
    assert replace(a_plan(), script=None).statements == ()


# -- the statements ----------------------------------------------------------------------------

STORAGE = TableMetadata(
    format_version=2,
    location="file:///lake/it's here",
    current_schema_id=0,
    schemas=[
        {
            "schema-id": 0,
            "fields": [{"id": 1, "name": "day`s", "type": "date"}, {"id": 2, "name": "key", "type": "long"}],
        }
    ],
    partition_specs=[
        {
            "spec-id": 0,
            "fields": [
                {"source-id": 1, "transform": "month"},
                {"source-id": 2, "transform": "bucket[16]"},
                {"source-id": 2, "transform": "identity"},
                {"source-id": 2, "transform": "void"},
                {"source-id": 9, "transform": "identity"},
            ],
        }
    ],
    properties={"write.metadata.delete-after-commit.enabled": "false"},
)


def statements(
    *,
    replaces: list[str] | None = None,
    storage: TableMetadata = STORAGE,
    properties: Mapping[str, str] | None = None,
    order: Sequence[SortColumn] | None = None,
) -> tuple[str, ...]:
    return refresh_script(
        view="v",
        refresh_id="r",
        pinned=PinnedQuery("SELECT 1", (), {"base_0": "file:///n.json"}),
        columns=[("key", "int")],
        storage=storage,
        target=Target(staged("storage"), staged("storage"), registers="file:///lake/it's here/1.json"),
        summary={},
        replaces=replaces,
        properties=properties or {},
        order=order,
        outcome_location="file:///o.json",
    ).statements


def test_a_refresh_sets_the_sort_order_once_and_keeps_a_chosen_distribution() -> None:
    """All rows of a partition together; without partitions each file has a range of values."""
    order = (SortColumn("key", descending=True, nulls_first=False),)

    def altered(storage: TableMetadata, order: Sequence[SortColumn], **properties: str) -> list[str]:
        found = statements(storage=storage, order=order, properties=properties)
        return [text[text.index(" WRITE ") + 1 :] for text in found if " WRITE " in text]

    flat = structs.replace(STORAGE, partition_specs=[])
    fields = [{"source-id": 2, "transform": "identity", "direction": "desc", "null-order": "nulls-last"}]
    ordered = structs.replace(flat, sort_orders=[{"order-id": 1, "fields": fields}], default_sort_order_id=1)
    assert altered(STORAGE, order) == ["WRITE DISTRIBUTED BY PARTITION LOCALLY ORDERED BY `key` DESC NULLS LAST"]
    assert altered(flat, order) == ["WRITE ORDERED BY `key` DESC NULLS LAST"]
    chosen = altered(flat, order, **{"write.distribution-mode": "none"})
    assert chosen == ["WRITE LOCALLY ORDERED BY `key` DESC NULLS LAST"]
    assert altered(ordered, order) == []
    assert altered(ordered, ()) == ["WRITE UNORDERED"]
    assert altered(flat, ()) == []


def test_a_full_refresh_only_registers_and_overwrites() -> None:
    register, nested_register, write = statements()
    assert register.startswith("CALL `airflow_mv_staging`.system.register_table(")
    assert r"it\'s here/1.json" in register
    assert "staged.base_0" in nested_register
    assert write == "INSERT OVERWRITE `airflow_mv_staging`.`staged`.`storage`\nSELECT 1"


def test_old_metadata_files_are_protected_before_anything_is_written() -> None:
    """They belong to published versions; another writer's table may be configured to delete them."""
    written = statements(storage=TableMetadata(format_version=2, location="file:///x"))
    assert "'write.metadata.delete-after-commit.enabled' = 'false'" in written[-2]
    assert written[-1].startswith("INSERT OVERWRITE")


def test_a_changed_definition_replaces_the_schema_and_keeps_partitioning_that_still_applies() -> None:
    write = statements(replaces=partition_transforms(STORAGE, ["key"]))[-1]
    assert write.startswith("CREATE OR REPLACE TABLE")
    assert "PARTITIONED BY (bucket(16, `key`), `key`)" in write
    assert r"LOCATION 'file:///lake/it\'s here'" in write
    assert "delete-after-commit" in write


def test_partition_transforms_are_written_in_spark_s_syntax() -> None:
    assert partition_transforms(STORAGE, ["day`s", "key"]) == ["months(`day``s`)", "bucket(16, `key`)", "`key`"]


TEXTS = st.lists(st.sampled_from([STAGING, BRANCH, "airflow_mv_staging", "b1", "`", "parts", "name", " "])).map("".join)


@given(TEXTS, TEXTS, TEXTS)
def test_run_specific_names_are_typed_parts_of_a_script(sql: str, rows: str, view: str) -> None:
    """A script's JSON contains no text placeholders, so text of the view's owner is never replaced."""
    checks = StagedChecks(rows, (StagedCheck("c", "warn", "e", passes=sql),), "d")
    script = Script(view, "b1", rows, (SqlStep(sql),), confs=(("k", sql),), branch="b1", checks=checks)
    text = script.to_json()
    assert STAGING not in text
    assert BRANCH not in text
    assert Script.from_json(text) == script

    bound = script.bound("S", "b1_2")
    wanted = [text.replace(STAGING, "S").replace(BRANCH, "b1_2") for text in (sql, rows, view)]
    assert bound.checks is not None
    assert [bound.steps[0].sql, bound.table, bound.view] == wanted  # type: ignore[union-attr]
    assert [bound.confs[0][1], bound.checks.rows, bound.checks.checks[0].passes] == [wanted[0], wanted[1], wanted[0]]
    assert bound.branch == "b1_2"


@pytest.mark.parametrize("parts", [[1], [{"name": "other"}], [{"name": []}], [["x"]], 7, None, {"name": "staging"}])
def test_text_with_invalid_parts_is_refused_as_a_script(parts: Any) -> None:
    document = json.loads(Script("v", "r", "`t`", (SqlStep("SELECT 1"),)).to_json())
    document["steps"][0]["sql"] = {"parts": parts}
    with pytest.raises(InvalidMetadataError):
        Script.from_json(json.dumps(document))
