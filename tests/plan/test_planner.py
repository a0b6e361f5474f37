# SPDX-License-Identifier: Apache-2.0
"""The plan: which mode for which state, an id that is the input, and a document that reads back equal."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_mv.errors import InvalidMetadataError, RefreshRefusedError
from airflow_mv.plan.changes import Kind, Range, Size
from airflow_mv.plan.freshness import BaseTableChange, Code, Freshness, Reason, State
from airflow_mv.plan.planner import Choice, Mode, RefreshPlan, choose, refresh_id
from airflow_mv.plan.statements import full_refresh, partition_transforms
from airflow_mv.script import CreateStorageStep, Script, SqlStep
from airflow_mv.spec.identifiers import Identifier
from airflow_mv.spec.materialized_view import BaseTable, NestedViewVersion
from airflow_mv.spec.table import TableMetadata

REASON = {
    State.FRESH: Code.FRESH,
    State.STALE: Code.BASE_CHANGED,
    State.NEVER_REFRESHED: Code.NEVER_REFRESHED,
    State.DEFINITION_CHANGED: Code.DEFINITION_CHANGED,
}


def freshness(state: State, *, moved: bool = False) -> Freshness:
    change = BaseTableChange("lake.s.o", "iceberg-metastore", 1, 2, moved=moved, changed=state == State.STALE)
    code = Code.ONLY_REPLACED if moved and state == State.FRESH else REASON[state]
    return Freshness(state, (Reason(code, "because"),), (change,))


def chosen(
    state: State,
    strategy: Literal["full", "incremental"],
    *,
    moved: bool = False,
    forced: bool = False,
    on_fallback: Literal["full", "fail", "skip"] = "full",
) -> Choice:
    return choose(
        freshness(state, moved=moved), strategy=strategy, forced=forced, on_fallback=on_fallback, view="lake.s.v"
    )


# -- the mode ----------------------------------------------------------------------------------

STRATEGIES: list[Literal["full", "incremental"]] = ["full", "incremental"]
POLICIES: list[Literal["full", "fail", "skip"]] = ["full", "fail", "skip"]


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("policy", POLICIES)
def test_a_fresh_view_needs_nothing_and_a_compacted_base_only_a_new_record(
    strategy: Literal["full", "incremental"], policy: Literal["full", "fail", "skip"]
) -> None:
    assert chosen(State.FRESH, strategy, on_fallback=policy).mode == Mode.NOOP
    ahead = chosen(State.FRESH, strategy, moved=True, on_fallback=policy)
    assert (ahead.mode, [item.code for item in ahead.reasons]) == (Mode.FAST_FORWARD, [Code.ONLY_REPLACED])


@pytest.mark.parametrize("state", REASON)
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("policy", POLICIES)
def test_a_forced_refresh_is_full_whatever_the_state_and_policy(
    state: State, strategy: Literal["full", "incremental"], policy: Literal["full", "fail", "skip"]
) -> None:
    choice = chosen(state, strategy, forced=True, on_fallback=policy)
    assert (choice.mode, choice.reasons[0].code) == (Mode.FULL, Code.FORCED)
    assert Code.FRESH not in [item.code for item in choice.reasons]


@pytest.mark.parametrize("state", [State.STALE, State.NEVER_REFRESHED, State.DEFINITION_CHANGED])
@pytest.mark.parametrize("policy", POLICIES)
def test_the_full_strategy_recomputes_and_knows_no_fallback(
    state: State, policy: Literal["full", "fail", "skip"]
) -> None:
    choice = chosen(state, "full", on_fallback=policy)
    assert choice.mode == Mode.FULL
    assert [item.code for item in choice.reasons] == [REASON[state], Code.STRATEGY_FULL]


@pytest.mark.parametrize("state", [State.NEVER_REFRESHED, State.DEFINITION_CHANGED])
@pytest.mark.parametrize("policy", POLICIES)
def test_an_incremental_view_begins_with_a_full_refresh_and_that_is_no_fallback(
    state: State, policy: Literal["full", "fail", "skip"]
) -> None:
    """There is nothing to add to: the policy is about avoidable recomputing."""
    choice = chosen(state, "incremental", on_fallback=policy)
    assert (choice.mode, [item.code for item in choice.reasons]) == (Mode.FULL, [REASON[state]])


def test_an_incremental_view_that_must_be_recomputed_says_so() -> None:
    choice = chosen(State.STALE, "incremental")
    assert choice.mode == Mode.FULL
    assert [item.code for item in choice.reasons] == [Code.BASE_CHANGED, Code.INCREMENTAL_UNAVAILABLE]


def test_the_policy_fail_refuses_and_says_how_to_allow_it() -> None:
    with pytest.raises(RefreshRefusedError, match=r"lake\.s\.v.*on_fallback='full'"):
        chosen(State.STALE, "incremental", on_fallback="fail")


def test_the_policy_skip_leaves_the_view_as_it_is_and_says_so() -> None:
    choice = chosen(State.STALE, "incremental", on_fallback="skip")
    assert (choice.mode, choice.reasons[-1].code) == (Mode.NOOP, Code.SKIPPED)


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
    "storage_table_location": "s3://b/00003.json",
}


def test_the_same_input_has_the_same_refresh_id_everywhere() -> None:
    """Two workers must agree without talking: the literal guards the derivation against a careless change."""
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
        {"storage_table_location": "s3://b/00004.json"},
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
plans = st.builds(
    RefreshPlan,
    view=st.builds(Identifier, words, st.lists(words, min_size=1, max_size=3).map(tuple), words),
    view_uuid=words,
    version_id=st.integers(0, 2**31 - 1),
    metadata_location=texts,
    storage_table_location=texts,
    mode=st.sampled_from(Mode),
    reasons=reasons,
    refresh_id=words,
    records=st.lists(st.builds(base, words, longs, words), max_size=3).map(tuple),
    nested_views=st.lists(st.builds(nested, st.integers(0, 9), words), max_size=2).map(tuple),
    changes=st.lists(changes, max_size=2).map(tuple),
    state=st.sampled_from(State),
    script=scripts | st.none(),
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
        mode=Mode.FULL,
        reasons=(Reason(Code.FORCED, "asked for"),),
        refresh_id="r-1",
        records=(base(),),
        nested_views=(),
        changes=(),
        state=State.STALE,
        script=Script("lake.s.v", "r-1", "`t`", (SqlStep("SELECT 1"),)),
    )


@pytest.mark.parametrize("key", sorted(set(a_plan().to_dict()) - {"statements"}))
@pytest.mark.parametrize("value", [..., None, 7, "x", {"x": 1}])
def test_a_broken_plan_document_is_one_typed_error_or_none(key: str, value: object) -> None:
    """It crosses XCom: it may come back from an older version of the package."""
    document = a_plan().to_dict()
    if value is ...:
        del document[key]
    else:
        document[key] = value
    with suppress(InvalidMetadataError):
        RefreshPlan.from_dict(document)


def test_the_statements_of_a_plan_are_those_of_its_script() -> None:
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


def statements(*, same_schema: bool, storage: TableMetadata = STORAGE) -> tuple[str, ...]:
    return full_refresh(
        view="v",
        refresh_id="r",
        query="SELECT 1",
        columns=["key"],
        storage=storage,
        storage_location="file:///lake/it's here/1.json",
        same_schema=same_schema,
        nested={"base_0": "file:///n.json"},
        outcome_location="file:///o.json",
    ).statements


def test_a_full_refresh_registers_overwrites_and_nothing_else() -> None:
    register, nested_register, write = statements(same_schema=True)
    assert register.startswith("CALL `airflow_mv_staging`.system.register_table(")
    assert r"it\'s here/1.json" in register
    assert "staged.base_0" in nested_register
    assert write == "INSERT OVERWRITE `airflow_mv_staging`.`staged`.`storage`\nSELECT 1"


def test_old_metadata_files_are_kept_before_anything_is_written() -> None:
    """They belong to published versions: another writer's table may be set to delete them."""
    written = statements(same_schema=True, storage=TableMetadata(format_version=2, location="file:///x"))
    assert "'write.metadata.delete-after-commit.enabled' = 'false'" in written[-2]
    assert written[-1].startswith("INSERT OVERWRITE")


def test_a_changed_definition_replaces_the_schema_and_keeps_partitioning_that_still_fits() -> None:
    write = statements(same_schema=False)[-1]
    assert write.startswith("CREATE OR REPLACE TABLE")
    assert "PARTITIONED BY (bucket(16, `key`), `key`)" in write
    assert r"LOCATION 'file:///lake/it\'s here'" in write
    assert "delete-after-commit" in write


def test_partition_transforms_are_written_as_spark_reads_them() -> None:
    assert partition_transforms(STORAGE, ["day`s", "key"]) == ["months(`day``s`)", "bucket(16, `key`)", "`key`"]
