# SPDX-License-Identifier: Apache-2.0
"""The condition by which a change is filtered before it is read never excludes a row that matters to the view."""

from __future__ import annotations

from collections import Counter

import pytest

from airflow_mv.core.ivm import IncrementalQuery
from airflow_mv.core.spec.reasons import Reason
from tests.core.ivm.lab import STRATEGIES, Bag, Change, Lab, Row, query_at
from tests.core.ivm.queries import TABLES

CASES = {
    # The view's query: the condition of each table that has one.
    "SELECT a FROM r WHERE b > 1 AND c IS NULL": {"r": "`b` > 1 AND `c` IS NULL"},
    "SELECT a FROM r WHERE b > 1 OR c = 2": {"r": "`b` > 1 OR `c` = 2"},
    "SELECT a FROM r": {},
    "SELECT a, count(*) AS n FROM r WHERE b > 1 GROUP BY a HAVING max(c) > 2": {"r": "`b` > 1"},
    # Two occurrences: the disjunction of their conditions.
    "SELECT x.a FROM r x JOIN r y ON x.a = y.a WHERE x.b > 1 AND y.c = 2": {"r": "`b` > 1 OR `c` = 2"},
    "SELECT x.a FROM r x JOIN r y ON x.a = y.a WHERE x.b > 1": {},
    "SELECT a FROM r WHERE b > 1 UNION ALL SELECT c FROM r WHERE b > 1": {"r": "`b` > 1"},
    # A condition on several tables belongs to none of them.
    "SELECT r.a FROM r JOIN s ON r.a = s.a AND s.d > 1 AND r.b < s.b": {"s": "`d` > 1"},
    # NULL stands for the row of an outer join without a match.
    "SELECT r.a FROM r LEFT JOIN s ON r.a = s.a AND s.d > 1 AND r.c = 1 WHERE r.b = 2 AND s.b IS NULL": {
        "r": "`b` = 2",
        "s": "`d` > 1",
    },
    "SELECT s.a FROM r RIGHT JOIN s ON r.a = s.a AND r.b > 1 WHERE s.b = 2 AND r.c IS NULL": {"s": "`b` = 2"},
    "SELECT s.a FROM r FULL JOIN s ON r.a = s.a AND r.b > 1 WHERE s.b = 2": {},
    "SELECT a FROM r LEFT ANTI JOIN s ON r.a = s.a AND s.d > 1 AND r.b = 1 WHERE r.c = 2": {
        "r": "`c` = 2",
        "s": "`d` > 1",
    },
    # Subqueries: conditions on their own rows, none that names an outer column.
    "SELECT a FROM r WHERE b = 2 AND EXISTS (SELECT 1 FROM s WHERE s.a = r.a AND s.d > 1)": {
        "r": "`b` = 2",
        "s": "`d` > 1",
    },
    "SELECT a FROM r WHERE b NOT IN (SELECT b FROM s WHERE d > 1)": {"s": "`d` > 1"},
    "SELECT a FROM r WHERE b > (SELECT max(b) FROM s WHERE d > 1)": {"s": "`d` > 1"},
    # From outside through projections, DISTINCT and unions; not through groups, windows, EXCEPT.
    "SELECT k FROM (SELECT a + 1 AS k, b AS v FROM r WHERE c = 1) WHERE v > 2": {"r": "`c` = 1 AND (`b`) > 2"},
    "SELECT k FROM (SELECT DISTINCT a + 1 AS k FROM r) WHERE k > 2": {"r": "(`a` + 1) > 2"},
    "SELECT k FROM (SELECT a AS k FROM r UNION SELECT b FROM s) WHERE k > 2": {"r": "(`a`) > 2", "s": "(`b`) > 2"},
    "SELECT k FROM (SELECT a AS k, count(*) AS n FROM r GROUP BY a) WHERE k > 2": {},
    "SELECT k FROM (SELECT a AS k, row_number() OVER (PARTITION BY a ORDER BY b) AS n FROM r) WHERE n = 1": {},
    "SELECT k FROM (SELECT a AS k FROM r EXCEPT SELECT b FROM s) WHERE k > 2": {},
    "SELECT u.a FROM u LATERAL VIEW explode(xs) x AS v WHERE v > 1 AND u.e = 2": {"u": "`e` = 2"},
}


ROWS: dict[str, list[Row]] = {"r": [(1, 2, 3)], "s": [(1, 2, 3)], "u": [(1, 2, (3,))]}
NOTHING: dict[str, list[Row]] = {"r": [], "s": [], "u": []}


@pytest.mark.parametrize("sql", CASES)
def test_a_table_has_the_condition_that_each_of_its_rows_must_pass(sql: str) -> None:
    """It is the weakest condition over all occurrences of the table, in the query's own text."""
    query = Lab(TABLES).analysed(sql, Change(NOTHING, ROWS))
    assert isinstance(query, IncrementalQuery), query
    found = {identifier.name: text for identifier, text in query.conditions.items()}
    assert found == CASES[sql]


@pytest.mark.parametrize("old", [None, 0, 1, 2])
@pytest.mark.parametrize("new", [None, 0, 1, 2])
@pytest.mark.parametrize(
    "sql",
    [
        "SELECT a, c FROM r WHERE b > 1",
        "SELECT a, count(*) AS n, sum(c) AS t, count(c) AS m FROM r WHERE NOT b = 1 GROUP BY a",
        "SELECT a, max(c) AS m FROM r WHERE b IN (0, 2) OR b IS NULL GROUP BY a",
        "SELECT s.a, r.c FROM s LEFT JOIN r ON s.a = r.a AND r.b > 1",
        "SELECT a FROM s WHERE a NOT IN (SELECT a FROM r WHERE b > 1)",
    ],
)
def test_an_update_that_moves_a_row_into_or_out_of_the_filter_adds_or_removes_a_row(
    sql: str, old: int | None, new: int | None
) -> None:
    """NULL passes no filter, before or after the update; other rows do not change."""
    others: list[Row] = [(1, 2, 7), (2, 0, 7), (None, None, 7)]
    before = {"r": [(1, old, 5), *others], "s": [(1, 1, 1), (2, 1, 1)], "u": []}
    after = {**before, "r": [(1, new, 5), *others]}
    lab = Lab(TABLES)
    query = lab.analysed(sql, Change(before, after))
    assert isinstance(query, IncrementalQuery), query
    stored: Bag = Counter(lab.run(query_at(query, "old")))
    expected, results = lab.refresh(query, dict.fromkeys(STRATEGIES, stored))
    exact = {name: result for name, result in results.items() if not isinstance(result, Reason)}
    assert exact == dict.fromkeys(exact, expected)
    assert old == new or "replace" in exact
