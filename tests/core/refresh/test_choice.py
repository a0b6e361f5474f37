# SPDX-License-Identifier: Apache-2.0
"""The mode that a view's state calls for, and the reason."""

from __future__ import annotations

from typing import Literal

import pytest

from airflow_mv.core.freshness.state import BaseTableChange, Freshness, State
from airflow_mv.core.refresh.candidates import Candidate
from airflow_mv.core.refresh.choose import Choice, by_cost, by_policy
from airflow_mv.core.refresh.incremental import Alternatives
from airflow_mv.core.refresh.plan import Estimate
from airflow_mv.core.script import MergeAdditiveStep, SqlStep
from airflow_mv.core.spec.choices import FallbackPolicy
from airflow_mv.core.spec.properties import Policy
from airflow_mv.core.spec.reasons import Code, Mode, Reason, fallback
from airflow_mv.errors import RefreshRefusedError

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
    same_schema: bool = True,
    on_fallback: FallbackPolicy = "full",
    max_full_bytes: int | None = None,
    incremental: Candidate | None = None,
) -> Choice:
    found, policy = freshness(state, moved=moved), Policy(on_fallback, max_full_bytes)
    alternatives = Alternatives(incremental or (DEPENDENT,), FULL)
    return by_policy(
        found,
        policy,
        strategy=strategy,
        forced=forced,
        same_schema=same_schema,
        found=lambda: alternatives,
        full=lambda: FULL,
        view="lake.s.v",
    )


DEPENDENT = Reason(Code.NOT_LINEAR, "rows depend on each other")
FULL = Estimate("full", 4.0, 1_000_000, 10)


def merge(seconds: float) -> Candidate:
    """An incremental candidate that is estimated to take so many seconds."""
    why = Reason(Code.INCREMENTAL, "the groups follow from the change")
    steps = (SqlStep("INSERT INTO v SELECT 1"),)
    return Candidate(Mode.MERGE, steps, (why,), Estimate("merge", seconds, 1000, 10))


# -- the mode ----------------------------------------------------------------------------------

STRATEGIES: list[Literal["full", "incremental"]] = ["full", "incremental"]
POLICIES: list[FallbackPolicy] = ["full", "fail", "skip"]


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("policy", POLICIES)
def test_a_fresh_view_needs_nothing_and_a_compacted_base_table_only_a_new_record(
    strategy: Literal["full", "incremental"], policy: FallbackPolicy
) -> None:
    assert chosen(State.FRESH, strategy, on_fallback=policy).mode == Mode.NOOP
    ahead = chosen(State.FRESH, strategy, moved=True, on_fallback=policy)
    assert (ahead.mode, [item.code for item in ahead.reasons]) == (Mode.FAST_FORWARD, [Code.ONLY_REPLACED])


@pytest.mark.parametrize("moved", [False, True])
def test_a_fresh_view_whose_storage_table_is_to_be_another_one_is_recomputed_if_that_is_allowed(moved: bool) -> None:
    """As after any other change of the definition."""
    choice = chosen(State.FRESH, "full", moved=moved, same_schema=False, on_fallback="fail")
    assert (choice.mode, choice.reasons[-1].code) == (Mode.FULL, Code.SCHEMA_CHANGED)
    assert Code.FRESH not in [item.code for item in choice.reasons]
    assert chosen(State.FRESH, "incremental", moved=moved, same_schema=False).mode == Mode.FULL
    with pytest.raises(
        RefreshRefusedError, match="the columns or the partitioning of the storage table differ from the view's"
    ):
        chosen(State.FRESH, "incremental", moved=moved, same_schema=False, on_fallback="fail")
    with pytest.raises(RefreshRefusedError, match="max_full_bytes"):
        chosen(State.FRESH, "full", moved=moved, same_schema=False, max_full_bytes=1)


@pytest.mark.parametrize("state", REASON)
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("policy", POLICIES)
def test_a_forced_refresh_is_full_whatever_the_state_and_policy(
    state: State, strategy: Literal["full", "incremental"], policy: FallbackPolicy
) -> None:
    choice = chosen(state, strategy, forced=True, on_fallback=policy)
    assert (choice.mode, choice.reasons[0].code) == (Mode.FULL, Code.FORCED)
    assert Code.FRESH not in [item.code for item in choice.reasons]


@pytest.mark.parametrize("state", [State.STALE, State.NEVER_REFRESHED, State.DEFINITION_CHANGED])
@pytest.mark.parametrize("policy", POLICIES)
def test_the_full_strategy_recomputes_and_is_not_a_fallback(state: State, policy: FallbackPolicy) -> None:
    choice = chosen(state, "full", on_fallback=policy)
    assert choice.mode == Mode.FULL
    assert [item.code for item in choice.reasons] == [REASON[state], Code.STRATEGY_FULL]


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("policy", POLICIES)
def test_the_first_refresh_is_full_and_not_a_fallback(
    strategy: Literal["full", "incremental"], policy: FallbackPolicy
) -> None:
    """There are no stored rows yet; the policy is about avoidable full refreshes."""
    choice = chosen(State.NEVER_REFRESHED, strategy, on_fallback=policy, max_full_bytes=1)
    assert (choice.mode, choice.reasons[0].code) == (Mode.FULL, Code.NEVER_REFRESHED)


@pytest.mark.parametrize(
    ("state", "strategy"),
    [(State.DEFINITION_CHANGED, "incremental"), (State.DEFINITION_CHANGED, "full"), (State.STALE, "full")],
)
def test_a_recompute_after_a_new_definition_and_of_a_full_view_obeys_the_policy(
    state: State, strategy: Literal["full", "incremental"]
) -> None:
    """Another query over large tables costs as much as any fallback; a full view wants it, within its budget."""
    assert codes(chosen(state, strategy, max_full_bytes=1_000_000))[0] == REASON[state]
    with pytest.raises(RefreshRefusedError, match=r"reads 976\.6 KiB.*max_full_bytes allows 1000 B: because"):
        chosen(state, strategy, max_full_bytes=1000)
    kept = chosen(state, strategy, max_full_bytes=1000, on_fallback="skip")
    assert (kept.mode, codes(kept)[-1]) == (Mode.NOOP, Code.SKIPPED)
    if strategy == "full":
        assert chosen(state, strategy, on_fallback="fail").mode == Mode.FULL
        return
    assert chosen(state, strategy, on_fallback="skip").mode == Mode.NOOP
    with pytest.raises(RefreshRefusedError, match="on_fallback is 'fail': because"):
        chosen(state, strategy, on_fallback="fail")


def test_the_reason_for_recomputing_an_incremental_view_is_reported() -> None:
    choice = chosen(State.STALE, "incremental")
    assert choice.mode == Mode.FULL
    assert codes(choice) == [Code.BASE_CHANGED, Code.INCREMENTAL_UNAVAILABLE, Code.NOT_LINEAR]


def codes(choice: Choice) -> list[Code]:
    return [item.code for item in choice.reasons]


def test_the_cheaper_mode_is_chosen_and_both_estimates_are_reported() -> None:
    cheap, expensive = chosen(State.STALE, "incremental", incremental=merge(1)), merge(5)
    assert (cheap.mode, codes(cheap)) == (Mode.MERGE, [Code.BASE_CHANGED, Code.INCREMENTAL, Code.COST])
    assert [item.mode for item in cheap.estimates] == ["merge", "full"]
    full = chosen(State.STALE, "incremental", incremental=expensive)
    assert (full.mode, codes(full)) == (Mode.FULL, [Code.BASE_CHANGED, Code.COST])
    assert "5.0 s" in full.reasons[-1].message
    assert "4.0 s" in full.reasons[-1].message


@pytest.mark.parametrize(
    ("up_to", "seconds", "mode", "message"),
    [
        (1.0, 5.0, Mode.FULL, "full is expected to be cheaper: full 4.0 s"),
        (2.0, 5.0, Mode.MERGE, "it may take 2 times as long as full (airflow-mv.incremental-up-to)"),
        (2.0, 3.0, Mode.MERGE, "expected: merge 3.0 s"),
        (0.5, 3.0, Mode.FULL, "merge may take 0.5 times as long as full at most (airflow-mv.incremental-up-to)"),
    ],
)
def test_the_plan_names_the_cheaper_mode_and_the_preference(
    up_to: float, seconds: float, mode: Mode, message: str
) -> None:
    """A property may make the more expensive mode run; the plan never calls that mode the cheaper one."""
    found = Alternatives(merge(seconds), FULL)
    choice = by_cost(freshness(State.STALE), found, Policy(up_to=up_to), view="lake.s.v")
    (why,) = [reason.message for reason in choice.reasons if reason.code == Code.COST]
    assert choice.mode == mode
    assert message in why


@pytest.mark.parametrize("policy", ["fail", "skip"])
def test_without_permission_for_a_full_refresh_the_incremental_one_runs_at_any_cost(policy: FallbackPolicy) -> None:
    assert chosen(State.STALE, "incremental", incremental=merge(50), on_fallback=policy).mode == Mode.MERGE


def test_max_full_bytes_refuses_a_full_refresh_before_spark_starts_but_not_an_incremental_one() -> None:
    """An unexpected full refresh may read a table of many years."""
    with pytest.raises(RefreshRefusedError, match=r"976\.6 KiB.*max_full_bytes allows 1000 B.*rows depend"):
        chosen(State.STALE, "incremental", max_full_bytes=1000)
    assert chosen(State.STALE, "incremental", max_full_bytes=1000, incremental=merge(50)).mode == Mode.MERGE
    assert chosen(State.STALE, "incremental", max_full_bytes=1_000_000).mode == Mode.FULL
    assert chosen(State.NEVER_REFRESHED, "incremental", max_full_bytes=1000).mode == Mode.FULL


def test_the_policy_fail_refuses_and_names_the_option_that_allows_it() -> None:
    with pytest.raises(RefreshRefusedError, match=r"lake\.s\.v.*on_fallback='full'"):
        chosen(State.STALE, "incremental", on_fallback="fail")


def test_the_policy_skip_does_not_change_the_view_and_reports_it() -> None:
    choice = chosen(State.STALE, "incremental", on_fallback="skip")
    assert (choice.mode, choice.reasons[-1].code) == (Mode.NOOP, Code.SKIPPED)


@pytest.mark.parametrize("on_fallback", ["fail", "skip", "full"])
def test_a_view_whose_storage_table_another_writer_changed_is_recomputed_only_if_the_policy_allows(
    on_fallback: FallbackPolicy,
) -> None:
    """Such a recompute is unexpected, so it is a fallback like any other."""
    written = (Reason(Code.STORAGE_CHANGED, "another writer has changed it"),)
    alternatives = Alternatives(written, FULL)
    found = Freshness(State.STALE, written, ())
    if on_fallback == "fail":
        with pytest.raises(RefreshRefusedError, match="another writer has changed it"):
            by_cost(found, alternatives, Policy("fail"), view="lake.s.v")
        return
    choice = by_cost(found, alternatives, Policy(on_fallback), view="lake.s.v")

    assert choice.mode == (Mode.NOOP if on_fallback == "skip" else Mode.FULL)
    assert [reason.code for reason in choice.reasons].count(Code.STORAGE_CHANGED) == 1
    assert "another writer has changed it" in (fallback(choice.reasons) or "") or on_fallback == "skip"


def test_only_an_unexpected_mode_has_a_warning() -> None:
    """The warning is one sentence, for the log and for XCom."""
    assert fallback(chosen(State.STALE, "incremental").reasons) == "rows depend on each other"
    assert "on_fallback is 'skip'" in (fallback(chosen(State.STALE, "incremental", on_fallback="skip").reasons) or "")
    assert fallback(chosen(State.STALE, "incremental", incremental=merge(1.0)).reasons) is None
    assert fallback(chosen(State.STALE, "incremental", incremental=merge(9.0)).reasons) is None
    assert fallback(chosen(State.NEVER_REFRESHED, "incremental").reasons) is None
    assert fallback(chosen(State.STALE, "full").reasons) is None


def test_a_mode_that_needs_no_spark_is_never_the_more_expensive_one() -> None:
    """A property that prefers full refreshes requires no recompute if there is nothing to compute."""
    seen = Candidate(Mode.FAST_FORWARD, (), (Reason(Code.FILTERED_OUT, "none"),), Estimate("fast-forward", 0.1, 0, 0))
    choice = by_cost(freshness(State.STALE), Alternatives(seen, FULL), Policy(up_to=0.01), view="lake.s.v")
    assert choice.mode == Mode.FAST_FORWARD


@pytest.mark.parametrize(
    ("keys", "how", "of_keys"), [(("k",), "delete", True), (("k",), "overwrite", False), ((), "delete", False)]
)
def test_the_plan_of_a_merge_shows_which_stored_rows_it_reads_and_writes(
    keys: tuple[str, ...], how: str, *, of_keys: bool
) -> None:
    """A few stored rows are combined and rewritten as a whole, without a search for keys."""
    shown = MergeAdditiveStep("`s`", ("k", "n"), keys, "SELECT 1", "SELECT 2", how=how).describe()
    assert ("BY KEYS" in shown, "of these keys" in shown) == (of_keys, of_keys)
    assert shown.startswith("DELETE `s`" if of_keys else "OVERWRITE `s` FROM")
