# SPDX-License-Identifier: Apache-2.0
"""Mutation tests: if one rule is broken, the comparison with a recompute fails."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

import pytest
from sqlglot import exp

from airflow_mv.core.ivm import (
    affected_keys,
    append,
    delta_terms,
    functions,
    ir,
    merge,
    pushdown,
    subqueries,
)
from tests.core.ivm.lab import Lab
from tests.core.ivm.queries import TABLES
from tests.core.ivm.test_fuzz import Mismatch, Tally, refresh_repeatedly, run

CASES = 400


@dataclass(frozen=True)
class Mutant:
    """One broken rule, and views that need the rule."""

    views: tuple[str, ...]
    break_rule: Callable[[pytest.MonkeyPatch], None]
    #: A change that reveals it quickly.
    start: int = 0


def _replace(module: Any, name: str, value: Any) -> Callable[[pytest.MonkeyPatch], None]:
    return lambda monkeypatch: monkeypatch.setattr(module, name, value)


def _only_new(position: int, index: int) -> ir.Version:
    return "new"


def _equal(left: exp.Expr, right: exp.Expr) -> exp.Expr:
    return exp.EQ(this=exp.Paren(this=left.copy()), expression=exp.Paren(this=right.copy()))


def _without_full_pad(join: ir.JoinKind, position: int, index: int) -> tuple[ir.JoinKind, str]:
    kind, lost = _changed_join(join, position, index)
    return kind, "" if join == "FULL" else lost


def _last_relation_only(block: ir.Block, *arguments: Any) -> Iterator[tuple[int, ir.Block]]:
    terms = list(_relation_terms(block, *arguments))
    yield from terms[-1:]


def _last_occurrence_only(*arguments: Any) -> Iterator[tuple[str, exp.Expr | None]]:
    yield from dict(_required(*arguments)).items()


def _conditions_of_all(block: ir.Block, index: int, outer: Any) -> list[exp.Expr]:
    return [*ir.conjuncts(block.where), *ir.conjuncts(block.relations[index].on), *outer]


def _first_aggregate(value: exp.Expr) -> list[exp.Expr]:
    return _aggregates(value)[:1]


def _only_wanted(tree: ir.Tree, wanted: Iterable[int]) -> frozenset[int]:
    return frozenset(wanted) or frozenset({0})


def _nothing_kept_relaxed(block: ir.Block, relation: ir.Relation) -> ir.Block:
    """Return the changed keys without the note that they represent the relation."""
    wider = _relaxed(block, relation)
    return wider if wider == block else dataclasses.replace(wider, where=exp.false())


_aggregates = affected_keys._aggregates
_relaxed = affected_keys.relaxed
_required = pushdown._required
_changed_join = delta_terms._changed_join
_relation_terms = affected_keys.relation_terms

MUTANTS = {
    "no NULL-padded copy of a left join": Mutant(
        ("SELECT x.a AS o1, y.b AS o2 FROM r x LEFT JOIN s y ON x.a = y.a",),
        _replace(delta_terms, "_with_pad", lambda block, *rest: block),
        start=2,
    ),
    "no NULL-padded copy of a full join": Mutant(
        ("SELECT x.a AS o1, y.b AS o2 FROM r x FULL JOIN s y ON x.a = y.a",),
        _replace(delta_terms, "_changed_join", _without_full_pad),
        start=1,
    ),
    "all other relations new": Mutant(
        ("SELECT x.a AS o1, y.b AS o2 FROM r x JOIN s y ON x.a = y.a",),
        _replace(delta_terms, "version_beside", _only_new),
        start=7,
    ),
    "one term for a table that is read twice": Mutant(
        ("SELECT x.a AS o1, y.b AS o2 FROM r x JOIN r y ON x.a = y.b",),
        _replace(affected_keys, "relation_terms", _last_relation_only),
        start=3,
    ),
    "only the new version of a group": Mutant(
        ("SELECT count(*) AS o1 FROM r GROUP BY a",),
        _replace(affected_keys, "VERSIONS", ("new",)),
        start=3,
    ),
    "IN without NULL": Mutant(
        ("SELECT x.a AS o1 FROM r x WHERE x.b NOT IN (SELECT y.b FROM s y)",),
        _replace(subqueries, "_is_null", lambda value: exp.false()),
        start=7,
    ),
    "keys compared with =": Mutant(
        ("SELECT count(*) AS o1, sum(b) AS o2 FROM r GROUP BY a",),
        _replace(ir, "same", _equal),
        start=2,
    ),
    "a subquery above the groups is ignored": Mutant(
        ("SELECT a AS o1, count(*) AS o2 FROM r GROUP BY a HAVING count(*) >= (SELECT count(*) / 6 FROM s)",),
        _replace(affected_keys, "above", lambda block: []),
    ),
    "only the subquery's new value": Mutant(
        ("SELECT a AS o1, (SELECT max(b) FROM s WHERE s.a = r.a) AS o2 FROM r",),
        _replace(subqueries, "_versions", lambda block, nested: ("new",)),
        start=2,
    ),
    "merge: groups never end": Mutant(
        ("SELECT a AS o1, count(*) AS o2 FROM r GROUP BY a",),
        _replace(merge, "_end_of_group", lambda columns: None),
        start=4,
    ),
    "merge: a sum of nothing is 0": Mutant(
        ("SELECT a AS o1, count(*) AS o2, sum(b) AS o3, count(b) AS o4 FROM r GROUP BY a",),
        _replace(functions._Sum, "is_null_without_values", False),
        start=24,
    ),
    "merge: floats subtracted": Mutant(
        ("SELECT a AS o1, count(*) AS o2, sum(b / 10.0D) AS o3, count(b / 10.0D) AS o4 FROM r GROUP BY a",),
        _replace(functions._Sum, "check", lambda self, kind: None),
        start=3,
    ),
    "merge: a minimum ignores removed rows": Mutant(
        ("SELECT a AS o1, count(*) AS o2, min(b) AS o3 FROM r GROUP BY a",),
        _replace(merge, "_only_appended", lambda relations: True),
        start=4,
    ),
    "merge: as many values as rows": Mutant(
        ("SELECT a AS o1, count(*) AS o2, sum(b) AS o3 FROM r GROUP BY a",),
        _replace(merge, "has_value", lambda *arguments: True),
        start=24,
    ),
    "append: copies count once": Mutant(
        ("SELECT a AS o1 FROM r",),
        _replace(append, "one_by_one", lambda term, context: term),
        start=139,
    ),
    "conditions: of NULL for the optional side": Mutant(
        ("SELECT x.a AS o1, x.b AS o2 FROM r x LEFT JOIN s y ON x.a = y.a WHERE y.b IS NULL",),
        _replace(pushdown, "_conditions", _conditions_of_all),
        start=2,
    ),
    "conditions: of one occurrence for all": Mutant(
        ("SELECT x.a AS o1, y.b AS o2 FROM r x JOIN r y ON x.a = y.b WHERE x.b > 1 AND y.c > 1",),
        _replace(pushdown, "_required", _last_occurrence_only),
        start=11,
    ),
    "conditions: below a window": Mutant(
        (
            "SELECT k AS o1, n AS o2 FROM (SELECT a AS k, b AS v, count(*) OVER (PARTITION BY a) AS n FROM r) t "
            "WHERE v > 1",
        ),
        _replace(pushdown, "has_windows", lambda block: False),
        start=3,
    ),
    "constants that are not read": Mutant(
        ("SELECT a AS o1, b AS o2 FROM r WHERE b >= (SELECT max(b) FROM s)",),
        _replace(affected_keys, "Context", functools.partial(delta_terms.Context, skip_constants=True)),
        start=5,
    ),
    "split: one aggregate of several": Mutant(
        (
            "SELECT a AS o1, b AS o2, count(*) + max(c) AS o3, rank() OVER (PARTITION BY a ORDER BY sum(c)) AS o4 "
            "FROM r GROUP BY a, b",
        ),
        _replace(affected_keys, "_aggregates", _first_aggregate),
        start=1,
    ),
    "prune: columns that distinguish rows": Mutant(
        ("SELECT x.k AS o1 FROM (SELECT DISTINCT a AS k, b AS v FROM r) x",),
        _replace(pushdown, "_kept", _only_wanted),
    ),
    "prune: the generator that makes the rows": Mutant(
        ("SELECT x.k AS o1 FROM (SELECT e AS k, explode(xs) AS v FROM u) x",),
        _replace(pushdown, "_kept", _only_wanted),
    ),
    "relaxed: no row passes": Mutant(
        ("SELECT x.k AS o1 FROM (SELECT a AS k, count(*) AS v FROM r GROUP BY a) x WHERE x.v > 1",),
        _replace(affected_keys, "relaxed", _nothing_kept_relaxed),
        start=1,
    ),
    "append: a row of the optional side": Mutant(
        ("SELECT x.a AS o1, y.b AS o2 FROM r x LEFT JOIN s y ON x.a = y.a",),
        _replace(append, "check_linear", lambda block, index: None),
    ),
}


def _refresh(lab: Lab, mutant: Mutant, seed: int) -> None:
    refresh_repeatedly(lab, mutant.views[seed % len(mutant.views)], Random(seed), Tally())


def _caught(lab: Lab, mutant: Mutant) -> int | None:
    for seed in range(mutant.start, CASES):
        try:
            _refresh(lab, mutant, seed)
        except Mismatch:
            return seed
    return None


@pytest.mark.parametrize("name", MUTANTS)
def test_a_broken_rule_is_detected(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same changes fail with the broken rule and pass with the correct one."""
    lab, mutant = Lab(TABLES), MUTANTS[name]
    with monkeypatch.context() as broken:
        mutant.break_rule(broken)
        seed = _caught(lab, mutant)
    assert seed is not None
    _refresh(lab, mutant, seed)


def _found_by_the_fuzzer(lab: Lab, first: int, views: int) -> int | None:
    """Return the number of random views after which a broken rule is detected."""
    for number in range(views):
        try:
            run(lab, Random(first + number), Tally(), turn=first + number)
        except AssertionError:
            return number + 1
    return None


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_random_views_find_broken_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    """How many of the broken rules the fuzzer detects without views made for them, and how quickly.

    ``MUTANT_VIEWS`` limits the number of views; ``TORTURE_SEED`` chooses them.
    """
    views = int(os.environ.get("MUTANT_VIEWS") or 2000)
    first = 1_000 + 10_000 * int(os.environ.get("TORTURE_SEED") or 0)
    found = {}
    for name, mutant in MUTANTS.items():
        with monkeypatch.context() as broken:
            mutant.break_rule(broken)
            found[name] = _found_by_the_fuzzer(Lab(TABLES), first, views)
        print(f"{name}: " + (f"after {found[name]} views" if found[name] else f"not in {views} views"), flush=True)
    seen = [number for number in found.values() if number is not None]
    print(f"{len(seen)} of {len(MUTANTS)} broken rules found in at most {views} random views each")
    assert len(seen) >= 2 * len(MUTANTS) // 3, found
