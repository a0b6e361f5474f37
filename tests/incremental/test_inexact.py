# SPDX-License-Identifier: Apache-2.0
"""Floating-point sums may differ when a query runs again, so columns that depend on them cannot be keys.

Sums of decimals are exact and can be keys. The stored rows in these tests are a correct result, but another one than a
recompute of the old rows gives.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from decimal import Decimal

import pytest

from airflow_mv.ivm import IncrementalQuery, Replaced
from airflow_mv.spec.reasons import Code, Reason
from tests.incremental.lab import STRATEGIES, Bag, Change, Lab, Row, Table

#: Groups 1 and 2 have equal sums as decimals, and as doubles in some orders only.
OLD = [(1, 0.1), (1, 0.2), (1, 0.3), (2, 0.3), (2, 0.2), (2, 0.1)]
NEW = [*OLD, (3, 5.0), (4, 0.1)]
SUMS = "(SELECT k, k > 9 AS p, sum(x) AS s FROM a GROUP BY k) g"
RANKED = f"(SELECT k, p, rank() OVER (PARTITION BY p ORDER BY s) AS place FROM {SUMS}) w"
NUMBERED = f"(SELECT k, p, row_number() OVER (PARTITION BY p ORDER BY s, k) AS place FROM {SUMS}) w"

DECIDED_BY_SUMS = {
    "a rank by sums": (f"SELECT k FROM {RANKED} WHERE place = 1", [(1,), (2,)]),
    "a number by sums": (f"SELECT k FROM {NUMBERED} WHERE place = 2", [(2,)]),
    "groups of equal sums": (f"SELECT count(*) AS n FROM {SUMS} GROUP BY s", [(2,)]),
    "a sum as a whole number": (f"SELECT CAST(s * 10 AS int) AS n FROM {SUMS}", [(6,), (6,)]),
}
ONE_ROW_OF_SUMS = {
    "different sums": (f"SELECT count(*) AS n FROM (SELECT DISTINCT s FROM {SUMS}) d", [(1,)]),
    "a union of sums": (f"SELECT count(*) AS n FROM (SELECT s FROM {SUMS} UNION SELECT s FROM {SUMS}) d", [(1,)]),
    "sums above a bound": (f"SELECT count(*) AS n FROM {SUMS} WHERE s >= 0.6", [(2,)]),
    "groups with sums above a bound": (
        "SELECT count(*) AS n FROM (SELECT k FROM a GROUP BY k HAVING sum(x) >= 0.6) g",
        [(2,)],
    ),
    "members of groups with sums above a bound": (
        "SELECT count(*) AS n FROM a WHERE k IN (SELECT k FROM a GROUP BY k HAVING sum(x) >= 0.6)",
        [(6,)],
    ),
}
SHOWN = {
    "the partition of a rank": f"SELECT p, k FROM {RANKED} WHERE place = 1",
    "the groups of a bound": f"SELECT k, s FROM {SUMS} WHERE s >= 0.6",
    "the groups of sums": "SELECT k, sum(x) AS s FROM a GROUP BY k HAVING sum(x) > 0.2",
}


def _query(lab: Lab, sql: str, change: Change) -> IncrementalQuery:
    query = lab.analysed(sql, change)
    assert isinstance(query, IncrementalQuery)
    return query


def _sums(kind: str) -> tuple[Lab, Change]:
    """A laboratory with the groups, their values of some type, and their change."""
    return Lab([Table("a", (("k", "int"), ("x", kind)))]), Change({"a": OLD}, {"a": NEW})


def _refreshed(
    lab: Lab, sql: str, change: Change, stored: Sequence[Row] | None = None
) -> tuple[Bag, Bag, dict[str, Bag | Reason | str]]:
    """Return the stored rows, by default those of the query before, the recompute's, and those of each strategy."""
    query = _query(lab, sql, change)
    before: Bag = Counter(lab.run(query.old_query) if stored is None else stored)
    return before, *lab.refresh(query, dict.fromkeys(STRATEGIES, before))


@pytest.mark.parametrize("case", DECIDED_BY_SUMS)
def test_what_floating_sums_decide_is_no_key(case: str) -> None:
    """The stored rows would not be found again."""
    sql, _ = DECIDED_BY_SUMS[case]
    lab, change = _sums("double")
    found = _query(lab, sql, change).replace_keys()
    assert isinstance(found, Reason)
    assert found.code is Code.NO_KEYS


@pytest.mark.parametrize("case", ONE_ROW_OF_SUMS)
def test_one_row_needs_no_key(case: str) -> None:
    """It is computed again if the change reaches it, whatever another run had made of inexact sums."""
    sql, stored = ONE_ROW_OF_SUMS[case]
    lab, change = _sums("double")
    _, expected, results = _refreshed(lab, sql, change, stored)
    assert results["replace"] == expected
    lab, change = _sums("double")
    _, _, results = _refreshed(lab, sql, Change(change.old, change.old), stored)
    assert results["replace"] == Counter(stored)


@pytest.mark.parametrize("case", DECIDED_BY_SUMS | ONE_ROW_OF_SUMS)
def test_what_decimal_sums_decide_is_exact(case: str) -> None:
    """Also in twice derived tables, whose types no table tells."""
    sql, stored = (DECIDED_BY_SUMS | ONE_ROW_OF_SUMS)[case]
    lab, change = _sums("decimal(10,2)")
    _, expected, results = _refreshed(lab, sql, change, stored)
    assert results["replace"] == expected


def test_averages_that_spark_makes_of_doubles_are_as_inexact_as_these() -> None:
    """Those of whole numbers and of decimals of at most 11 digits; a sum of them, too."""
    exact = {"int": False, "decimal(11,2)": False, "decimal(12,2)": True, "double": False}
    queries = (
        "SELECT avg(x) AS m FROM a GROUP BY k",
        "SELECT CAST(avg(x) AS int) AS m FROM a GROUP BY k",
        "SELECT sum(m) AS s FROM (SELECT k, avg(x) AS m FROM a GROUP BY k) g GROUP BY k > 1",
    )
    for kind, is_exact in exact.items():
        lab, change = _sums(kind)
        for sql in queries:
            assert isinstance(_query(lab, sql, change).replace_keys(), Reason) is not is_exact, (kind, sql)


@pytest.mark.parametrize("case", SHOWN)
@pytest.mark.parametrize("kind", ["double", "decimal(10,2)"])
def test_where_the_groups_are_shown_their_rows_are_replaced_whatever_sums_decide(case: str, kind: str) -> None:
    """By a boundary on which a sum lies no row stays that should go."""
    lab, change = _sums(kind)
    _, expected, results = _refreshed(lab, SHOWN[case], change)
    assert results["replace"] == expected


W = "(SELECT p, n, row_number() OVER (PARTITION BY p ORDER BY x) AS rn FROM t) w"
TIED = [(1, 1, 3), (1, 1, 5)]
DECIDED_BY_NUMBERS = {
    "a sum in the order of numbers": (f"SELECT sum(n) OVER (PARTITION BY p ORDER BY rn) AS s FROM {W}", [(5,), (8,)]),
    "a rank by numbers": (
        f"SELECT n FROM (SELECT n, rank() OVER (PARTITION BY p ORDER BY rn) AS r FROM {W}) z WHERE r = 1",
        [(5,)],
    ),
    "a sum beside a number": (
        "SELECT count(*) AS c FROM (SELECT p, CASE WHEN rn = 1 THEN sum(n) OVER (PARTITION BY p ORDER BY n) ELSE 0 END "
        f"AS v FROM {W}) z WHERE v > 3",
        [(1,)],
    ),
    "a sum of what a number lets pass": (
        f"SELECT count(*) AS c FROM (SELECT p, sum(n) FILTER (WHERE rn = 1) AS s FROM {W} GROUP BY p) g WHERE s > 4",
        [(1,)],
    ),
    "different numbers": (f"SELECT count(*) AS c FROM (SELECT DISTINCT n, rn FROM {W}) d", [(2,)]),
    "members by numbers": (f"SELECT n FROM t WHERE (n, x) IN (SELECT n, rn FROM {W})", [(5,)]),
}


@pytest.mark.parametrize("case", DECIDED_BY_NUMBERS)
def test_what_numbers_of_tied_rows_decide_is_refused_or_right(case: str) -> None:
    """Which of two rows that tie is the first is open: another run may say otherwise than the stored rows."""
    sql, stored = DECIDED_BY_NUMBERS[case]
    lab = Lab([Table("t", (("p", "int"), ("x", "int"), ("n", "int")))])
    _, expected, results = _refreshed(lab, sql, Change({"t": TIED}, {"t": [*TIED, (1, 2, 9)]}), stored)
    assert isinstance(results["replace"], Reason) or results["replace"] == expected


def test_what_is_made_of_arrays_is_as_certain_as_they_are() -> None:
    """Whatever function makes them; a key that is shown finds the rows of chosen values, too."""
    lab = Lab([Table("t", (("k", "int"), ("x", "int")))])
    rows = [(1, 2), (1, 3)]
    for sql in (
        "SELECT k, e FROM t LATERAL VIEW explode(sort_array(array(x, x + 1))) l AS e",
        f"SELECT DISTINCT p, n, rn FROM {W.replace('FROM t', 'FROM (SELECT k AS p, x AS n, x FROM t) t')}",
    ):
        stored, expected, results = _refreshed(lab, sql, Change({"t": rows}, {"t": [*rows, (1, 4), (2, 4)]}))
        assert results["replace"] == expected != stored, sql


def test_what_a_changed_subquery_says_of_floating_sums_is_seen() -> None:
    """Its condition is not left out with those that ask such sums themselves."""
    queries = (
        "SELECT k FROM r WHERE x > (SELECT avg(d) FROM s)",
        "SELECT k, count(*) AS n FROM r WHERE x > (SELECT sum(d) FROM s) GROUP BY k",
        "SELECT k FROM r WHERE x > (SELECT max(d) FROM s HAVING sum(d) > 1)",
        "SELECT k FROM r WHERE k IN (SELECT d FROM s GROUP BY d HAVING sum(d) > 1)",
    )
    lab = Lab([Table("r", (("k", "int"), ("x", "double"))), Table("s", (("d", "double"),))])
    rows = [(1, 1.0), (2, 5.0), (3, 9.0)]
    change = Change({"r": rows, "s": [(2.0,)]}, {"r": rows, "s": [(2.0,), (14.0,), (3.0,)]})
    for sql in queries:
        stored, expected, results = _refreshed(lab, sql, change)
        assert results["replace"] == expected != stored, sql


def test_a_count_of_what_passes_a_bound_counts_no_more_than_that() -> None:
    """What another run may let pass is looked for among the rows, and not counted."""
    lab = Lab([Table("a", (("k", "int"), ("p", "int"), ("x", "double"))), Table("r", (("n", "int"),))])
    sums = "(SELECT k, p, sum(x) AS s FROM a GROUP BY k, p) g"
    old, numbers = [(1, 1, 1.0), (2, 1, 1.0), (3, 1, 0.1)], [(number,) for number in range(1, 6)]
    change = Change({"a": old, "r": numbers}, {"a": [*old, (4, 1, 1.0)], "r": numbers})
    for counts in (
        f"SELECT count(*) FROM {sums} WHERE s > 0.6 GROUP BY p",
        f"SELECT count(*) OVER (PARTITION BY p) FROM {sums} WHERE s > 0.6",
        f"SELECT c FROM (SELECT p, count(*) AS c FROM {sums} WHERE s > 0.6 GROUP BY p) h",
    ):
        _, expected, results = _refreshed(lab, f"SELECT n FROM r WHERE n IN ({counts})", change)
        assert results["replace"] == expected == Counter([(3,)]), counts


@pytest.mark.parametrize("bound", ["WHERE g.s > r.b", "AND g.s > r.b"])
def test_a_row_at_a_bound_goes_when_its_own_table_says_so(bound: str) -> None:
    """By the sums as they are now it never was there; it is stored, since another run let it pass."""
    lab = Lab([Table("a", (("k", "int"), ("x", "double"))), Table("r", (("k", "int"), ("t", "int"), ("b", "double")))])
    sums = "(SELECT k, sum(x) AS s FROM a GROUP BY k) g"
    sql = f"SELECT r.k, r.t FROM {sums} JOIN r ON r.k = g.k {bound}"
    old = [(1, 7, 0.0), (2, 7, 0.6000000000000001)]
    change = Change({"a": OLD, "r": old}, {"a": OLD, "r": old[:1]})
    _, expected, results = _refreshed(lab, sql, change, [(1, 7), (2, 7)])
    assert results["replace"] == expected == Counter([(1, 7)])
    assert all(isinstance(results[name], Reason) for name in ("signed", "rows"))


def test_one_row_of_what_passes_an_average_is_computed_again_if_a_change_reaches_it() -> None:
    """The average decides which rows are added up; a change elsewhere leaves the row as it is."""
    sql = (
        "SELECT sum(a.x) AS s FROM a JOIN b ON b.k = a.k "
        "WHERE b.n = 1 AND a.x > (SELECT 1.3 * avg(c.x) FROM a AS c WHERE c.k = b.k)"
    )
    tables = [Table("a", (("k", "int"), ("x", "decimal(7,2)"))), Table("b", (("k", "int"), ("n", "int")))]
    old: dict[str, list[Row]] = {"a": [(1, 1), (1, 9), (2, 5), (2, 1)], "b": [(1, 1), (2, 2)]}
    stored: Bag = Counter([(Decimal("9.00"),)])
    for added, expected in (((1, 20), Decimal("20.00")), ((2, 20), Decimal("9.00"))):
        lab = Lab(tables)
        query = _query(lab, sql, Change(old, {**old, "a": [*old["a"], added]}))
        plan = query.replace_keys()
        assert isinstance(plan, Replaced)
        assert plan.keys == ()
        assert bool(lab.run(plan.affected)) == (added[0] == 1)
        assert lab.apply(plan, query, stored) == Counter([(expected,)])
