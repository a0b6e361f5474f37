# SPDX-License-Identifier: Apache-2.0
"""Random views through several refreshes: each strategy that is not refused equals a recompute."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, field
from random import Random

import duckdb
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_mv.core.ivm import IncrementalQuery, determinism, functions
from airflow_mv.core.spec.reasons import Reason
from tests.core.ivm.lab import STRATEGIES, Bag, Lab, query_at
from tests.core.ivm.queries import OPERATORS, TABLES, Grammar, change, first_rows, joined

REFRESHES = 3


@dataclass
class Tally:
    """What a run of the fuzzer has covered."""

    views: int = 0
    operators: Counter[str] = field(default_factory=Counter)
    strategies: Counter[str] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)
    changed_rows: int = 0

    def __str__(self) -> str:
        return f"{self.views} views; {dict(self.strategies)}; refused {dict(self.refusals)}; {dict(self.operators)}"


class Mismatch(AssertionError):
    """A strategy gave other rows than a recompute."""


def run(lab: Lab, random: Random, tally: Tally, turn: int | None = None, refreshes: int = REFRESHES) -> None:
    """Create a view, change its tables several times, and refresh it each time with every strategy."""
    grammar = Grammar(random, turn)
    if refresh_repeatedly(lab, grammar.query(), random, tally, refreshes):
        tally.operators.update(grammar.used)


def refresh_repeatedly(lab: Lab, sql: str, random: Random, tally: Tally, refreshes: int = REFRESHES) -> bool:
    """Refresh a view after each of several changes; return whether DuckDB and the algebra support it."""
    old = first_rows(random)
    stored: dict[str, Bag] | None = None
    for _ in range(refreshes):
        step = change(random, old)
        try:
            query = lab.analysed(sql, step)
        except duckdb.Error:
            return False  # DuckDB cannot run the view itself
        if isinstance(query, Reason):
            tally.refusals[f"analyse {query.code}"] += 1
            return False
        if stored is None:
            before: Bag = Counter(lab.run(query_at(query, "old")))
            stored = dict.fromkeys(STRATEGIES, before)
            tally.views += 1
        stored = _step(lab, query, stored, sql, tally)
        old = {name: list(rows) for name, rows in step.new.items()}
    return True


def _step(lab: Lab, query: IncrementalQuery, stored: dict[str, Bag], sql: str, tally: Tally) -> dict[str, Bag]:
    expected, results = lab.refresh(query, stored)
    after = {}
    for name, result in results.items():
        after[name] = expected
        if isinstance(result, Reason):
            tally.refusals[f"{name} {result.code}"] += 1
            continue
        if isinstance(result, str):
            raise Mismatch(f"{name} of {sql}: {result}")
        if result != expected:
            raise Mismatch(f"{name} of {sql}: lacks {dict(expected - result)}, has {dict(result - expected)}")
        tally.strategies[name] += 1
        tally.changed_rows += sum(((expected - stored[name]) + (stored[name] - expected)).values())
        after[name] = result
    return after


def check_coverage(tally: Tally) -> None:
    """Every operator is generated, and the views do change."""
    assert not OPERATORS - set(tally.operators), OPERATORS - set(tally.operators)
    assert not set(STRATEGIES) - set(tally.strategies), tally
    assert tally.changed_rows > tally.views
    assert tally.refusals["replace NOT_DETERMINISTIC"] == 0, "the views of this fuzzer are all deterministic"


def test_incremental_equals_recompute() -> None:
    """For any view and change, the stored rows are those of a recompute, as a multiset."""
    tally = Tally()
    check_seeds(Lab(TABLES), tally, range(58, 154), refreshes=1)
    check_coverage(tally)


@pytest.mark.slow
def test_incremental_equals_recompute_for_small_queries() -> None:
    """Hypothesis makes smaller queries than plain random numbers."""
    tally, lab = Tally(), Lab(TABLES)

    @settings(max_examples=10, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
    @given(st.randoms(use_true_random=False))
    def examples(random: Random) -> None:
        run(lab, random, tally)

    examples()
    assert tally.views


def check_joins(seeds: range) -> None:
    """Refresh joins; the statements read the largest changed table as the rows that match the other changes."""
    lab, tally = Lab(TABLES), Tally()
    for seed in seeds:
        random = Random(seed)
        sql = joined(random)
        try:
            refresh_repeatedly(lab, sql, random, tally)
        except AssertionError as error:
            raise Mismatch(f"seed {seed}: {error}") from error
    assert lab.gathered > len(seeds) // 3, tally
    assert {"rows", "merge", "replace"} <= set(tally.strategies), tally


def test_joins_of_changed_tables_need_only_the_rows_that_match_the_other_changes() -> None:
    """The relations have no other rows of the gathering table."""
    check_joins(range(12))


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_joins_of_changed_tables_need_only_the_rows_that_match_the_other_changes_at_length() -> None:
    """The same with 3,000 joins."""
    check_joins(range(50_000, 53_000))


def check_seeds(lab: Lab, tally: Tally, seeds: range, refreshes: int = REFRESHES) -> None:
    """Run the fuzzer with each seed."""
    for seed in seeds:
        try:
            run(lab, Random(seed), tally, turn=seed, refreshes=refreshes)
        except AssertionError as error:
            raise Mismatch(f"seed {seed}: {error}") from error


def check_inexact(monkeypatch: pytest.MonkeyPatch, seeds: range) -> None:
    """Treat every aggregate as inexact: each strategy that is still possible is correct."""
    monkeypatch.setattr(functions, "is_exact", lambda call: False)
    monkeypatch.setattr(determinism, "is_exact_sum", lambda call, block: False)
    tally = Tally()
    check_seeds(Lab(TABLES), tally, seeds)
    assert tally.refusals["replace NOT_DETERMINISTIC"] > 0, tally
    assert tally.strategies["replace"] > len(seeds), tally


def test_rows_that_another_run_may_compute_differently_are_among_the_affected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys of rows that pass an inexact bound in one run only are affected: more keys, the same rows."""
    check_inexact(monkeypatch, range(150, 160))


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_rows_that_another_run_may_compute_differently_are_among_the_affected_at_length(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The same with 3,000 views."""
    check_inexact(monkeypatch, range(20_000, 23_000))


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_incremental_equals_recompute_at_length() -> None:
    """The same with 10,000 views; ``TORTURE_SEED`` chooses which."""
    tally = Tally()
    first = 1_000 + 10_000 * int(os.environ.get("TORTURE_SEED") or 0)
    check_seeds(Lab(TABLES), tally, range(first, first + 10_000))
    print(tally)
    check_coverage(tally)
