# SPDX-License-Identifier: Apache-2.0
"""Floating-point sums may differ when a query runs again, so columns that depend on them cannot be keys.

Sums of decimals are exact and can be keys. The stored rows in these tests are a correct result, but differ from a
recompute of the old rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from decimal import Decimal

import pytest

from airflow_mv.core.ivm import IncrementalQuery, Replaced
from airflow_mv.core.spec.reasons import Code, Reason
from tests.core.ivm.lab import STRATEGIES, Bag, Change, Lab, Row, Table, query_at

#: Groups 1 and 2 have equal sums as decimals; as doubles only in some orders.
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
    """A test bench with the groups, their values of some type, and their change."""
    return Lab([Table("a", (("k", "int"), ("x", kind)))]), Change({"a": OLD}, {"a": NEW})


def _refreshed(
    lab: Lab, sql: str, change: Change, stored: Sequence[Row] | None = None
) -> tuple[Bag, Bag, dict[str, Bag | Reason | str]]:
    """Return the stored rows (by default the old query's), the recompute's rows, and the rows of each strategy."""
    query = _query(lab, sql, change)
    before: Bag = Counter(lab.run(query_at(query, "old")) if stored is None else stored)
    return before, *lab.refresh(query, dict.fromkeys(STRATEGIES, before))


@pytest.mark.parametrize("case", DECIDED_BY_SUMS)
def test_a_column_that_depends_on_floating_sums_is_not_a_key(case: str) -> None:
    """The stored row would not be found by its key."""
    sql, _ = DECIDED_BY_SUMS[case]
    lab, change = _sums("double")
    found = _query(lab, sql, change).replace_keys()
    assert isinstance(found, Reason)
    assert found.code is Code.NO_KEYS


@pytest.mark.parametrize("case", ONE_ROW_OF_SUMS)
def test_a_query_with_one_row_needs_no_key(case: str) -> None:
    """The row is recomputed if the change affects it, whatever another run computed for inexact sums."""
    sql, stored = ONE_ROW_OF_SUMS[case]
    lab, change = _sums("double")
    _, expected, results = _refreshed(lab, sql, change, stored)
    assert results["replace"] == expected
    lab, change = _sums("double")
    _, _, results = _refreshed(lab, sql, Change(change.old, change.old), stored)
    assert results["replace"] == Counter(stored)


@pytest.mark.parametrize("case", DECIDED_BY_SUMS | ONE_ROW_OF_SUMS)
def test_a_column_that_depends_on_decimal_sums_is_exact(case: str) -> None:
    """This holds in nested derived tables, too, whose types are not in any table's schema."""
    sql, stored = (DECIDED_BY_SUMS | ONE_ROW_OF_SUMS)[case]
    lab, change = _sums("decimal(10,2)")
    _, expected, results = _refreshed(lab, sql, change, stored)
    assert results["replace"] == expected


def test_averages_that_spark_computes_as_doubles_are_inexact() -> None:
    """Averages of integers and of decimals of at most 11 digits, and sums of such averages."""
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
def test_rows_of_visible_groups_are_replaced_whatever_depends_on_sums(case: str, kind: str) -> None:
    """No row remains that should be removed because a sum is equal to a bound."""
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
def test_a_result_that_depends_on_ties_is_refused_or_correct(case: str) -> None:
    """The order of tied rows is nondeterministic: another run may choose another row than the stored one."""
    sql, stored = DECIDED_BY_NUMBERS[case]
    lab = Lab([Table("t", (("p", "int"), ("x", "int"), ("n", "int")))])
    _, expected, results = _refreshed(lab, sql, Change({"t": TIED}, {"t": [*TIED, (1, 2, 9)]}), stored)
    assert isinstance(results["replace"], Reason) or results["replace"] == expected


def test_functions_of_arrays_are_as_deterministic_as_the_arrays() -> None:
    """A visible key finds the rows of nondeterministic values, too."""
    lab = Lab([Table("t", (("k", "int"), ("x", "int")))])
    rows = [(1, 2), (1, 3)]
    for sql in (
        "SELECT k, e FROM t LATERAL VIEW explode(sort_array(array(x, x + 1))) l AS e",
        f"SELECT DISTINCT p, n, rn FROM {W.replace('FROM t', 'FROM (SELECT k AS p, x AS n, x FROM t) t')}",
    ):
        stored, expected, results = _refreshed(lab, sql, Change({"t": rows}, {"t": [*rows, (1, 4), (2, 4)]}))
        assert results["replace"] == expected != stored, sql


def test_a_changed_subquery_over_floating_sums_is_detected() -> None:
    """Its condition is not dropped together with the conditions that read such sums themselves."""
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


def test_rows_that_pass_an_inexact_bound_are_not_counted_twice() -> None:
    """Rows that another run may let pass are affected, but do not count."""
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
def test_a_stored_row_at_an_inexact_bound_is_removed_when_its_table_changes(bound: str) -> None:
    """By the current sums it was never there; it is stored because another run let it pass."""
    lab = Lab([Table("a", (("k", "int"), ("x", "double"))), Table("r", (("k", "int"), ("t", "int"), ("b", "double")))])
    sums = "(SELECT k, sum(x) AS s FROM a GROUP BY k) g"
    sql = f"SELECT r.k, r.t FROM {sums} JOIN r ON r.k = g.k {bound}"
    old = [(1, 7, 0.0), (2, 7, 0.6000000000000001)]
    change = Change({"a": OLD, "r": old}, {"a": OLD, "r": old[:1]})
    _, expected, results = _refreshed(lab, sql, change, [(1, 7), (2, 7)])
    assert results["replace"] == expected == Counter([(1, 7)])
    assert isinstance(results["rows"], Reason)


def test_a_single_row_below_an_average_is_recomputed_if_a_change_affects_it() -> None:
    """The average decides which rows are summed; an unrelated change does not change the row."""
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
