# SPDX-License-Identifier: Apache-2.0
"""Each kind of check in real Spark: it accepts valid rows and rejects invalid ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from airflow_mv.checks import (
    Check,
    accepted_values,
    condition,
    not_null,
    python,
    read_checks,
    row_count,
    row_count_change,
    sql,
    unique,
)
from airflow_mv.core.refresh import RefreshOptions, plan_refresh
from airflow_mv.core.refresh.plan import RefreshPlan
from airflow_mv.errors import ConfigurationError, InvalidQueryError
from tests.core.refresh.checks.functions import broken, enough, no_negatives
from tests.engine.fixtures import new_lake
from tests.engine.support import Lake, no_spark

DAILY = "SELECT day, region, amount FROM {ns}.orders"
COLUMNS = "day integer, region varchar, amount bigint"
ROWS = ["(1, 'north', 10), (1, 'south', 20)", "(2, 'north', 30)"]


@pytest.fixture
def pointed(lake: Lake) -> Lake:
    """A lake with a view of a base table, refreshed."""
    lake.table("orders", COLUMNS, *ROWS)
    lake.create("daily", DAILY)
    lake.refresh("daily")
    return lake


@pytest.fixture(scope="module")
def wide(lake_folder: Path) -> Lake:
    """A view that was refreshed with three rows; the next refresh adds a row with a NULL, and is not published."""
    found = new_lake(lake_folder)
    found.table("orders", COLUMNS, *ROWS)
    found.create("daily", DAILY)
    found.refresh("daily")
    found.insert("orders", "(3, NULL, NULL)")
    return found


def checked(home: Lake, *checks: Any) -> tuple[Any, ...]:
    """The check results of the next refresh, which is staged and not published."""
    plan = plan_refresh(home.catalog, home("daily"), RefreshOptions(checks=read_checks(list(checks), source="test")))
    assert plan.script is not None
    outcome = home.stager(plan.script)
    assert outcome.error is None, outcome.error
    return outcome.checks


# -- each kind of check -------------------------------------------------------------------------


VERDICTS: list[tuple[Any, bool]] = [
    (row_count(at_least=4, at_most=4), True),
    (row_count(at_most=1, where="day = 3"), True),
    (row_count(at_least=2, where="day = 3"), False),
    (row_count_change(at_most_up=0.34), True),
    (row_count_change(at_most_up=0.33), False),
    (row_count_change(at_most_down=0.0), True),
    (row_count_change(at_most_down=0.5, where="day < 3"), True),
    (accepted_values("region", ["north", "south"]), True),
    (accepted_values("REGION", ["north", "it's"]), False),
    (accepted_values("day", [1, 2, 3]), True),
    (not_null("amount", where="day < 3"), True),
    (not_null("amount"), False),
    (unique("amount"), True),
    (unique("region"), False),
    (unique("region", where="day = 1"), True),
    ("day > 0 -- a comment", True),
    ("amount > 0", False),  # NULL is not true
    ("sum(amount) = 60", True),
    (condition("sum(amount) = 60", where="day = 1"), False),
    ("count(DISTINCT region) >= 2", True),
    (sql("SELECT count(*) = 1 FROM {rows} WHERE amount IS NULL"), True),
    ("WITH a AS (SELECT * FROM {rows}) SELECT count(*) = 5 FROM a", False),
    ("SELECT (SELECT count(*) FROM {rows}) = (SELECT count(*) FROM orders)", True),
    ("SELECT NULL FROM {rows} LIMIT 1", False),
]
#: Dictionaries of the common-sql provider, whether all their checks pass, and how many rows violate them.
COMMON_SQL: list[tuple[dict[str, Any], bool, int]] = [
    ({"amount": {"null_check": {"equal_to": 1}}}, True, 0),
    ({"amount": {"null_check": {"equal_to": 0}}}, False, 1),
    ({"amount": {"min": {"geq_to": 10}}}, True, 0),
    ({"amount": {"max": {"less_than": 31, "geq_to": 1}}}, True, 0),
    ({"amount": {"min": {"greater_than": 10}}}, False, 1),
    ({"amount": {"min": {"geq_to": 11, "tolerance": 0.1}}}, True, 0),
    ({"amount": {"max": {"equal_to": 28, "tolerance": 0.1}}}, True, 0),
    ({"amount": {"max": {"equal_to": 20}}}, False, 1),
    ({"amount": {"max": {"geq_to": 31}}}, False, 0),
    ({"region": {"distinct_check": {"equal_to": 2}}}, True, 0),
    ({"region": {"unique_check": {"equal_to": 0}}}, False, 1),
    ({"region": {"unique_check": {"equal_to": 0, "partition_clause": "day = 1"}}}, True, 0),
    ({"region": {"min": {"geq_to": "north"}}}, True, 0),
    ({"amount": {"min": {"geq_to": 5, "partition_clause": "day > 9"}}}, True, 0),
    ({"rows": {"check_statement": "COUNT(*) = 4"}}, True, 0),
    ({"sane": {"check_statement": "day + amount < 30", "partition_clause": "amount IS NOT NULL"}}, False, 1),
]


def test_each_kind_of_check_accepts_valid_and_rejects_invalid_rows(wide: Lake) -> None:
    """One job computes them all, so they do not affect each other."""
    results = checked(wide, *(check for check, _ in VERDICTS))
    found = [(check, result.passed) for (check, _), result in zip(VERDICTS, results, strict=True)]
    assert found == VERDICTS
    assert [result.problem for result in results if result.problem] == []


def test_dictionaries_of_the_common_sql_provider_have_the_same_meaning(wide: Lake) -> None:
    results = checked(wide, *(mapping for mapping, _, _ in COMMON_SQL))
    found = [(given[0], result.passed, len(result.rows)) for given, result in zip(COMMON_SQL, results, strict=True)]
    assert found == COMMON_SQL


def test_a_query_reads_all_base_tables_as_the_refresh_reads_them(pointed: Lake) -> None:
    """Totals are compared with another materialized view and a plain one, at the refresh's own snapshots."""
    pointed.run("CREATE VIEW {ns}.north AS SELECT * FROM {ns}.orders WHERE region = 'north'")
    pointed.create("both", "SELECT d.day, n.amount FROM {ns}.daily d JOIN {ns}.north n ON d.day = n.day")
    equal = sql("SELECT (SELECT sum(amount) FROM {rows}) = (SELECT sum(n.amount) FROM daily JOIN north n USING (day))")
    plan = plan_refresh(pointed.catalog, pointed("both"), RefreshOptions(checks=(equal,)))
    assert plan.script is not None
    pointed.insert("orders", "(2, 'north', 1000)")
    (result,) = pointed.stager(plan.script).checks
    assert result.passed, result


def test_all_checks_are_one_aggregation(wide: Lake) -> None:
    """Thirty checks of a large table read it once."""
    checks = [not_null("day"), unique("day", "region"), row_count(at_least=1), condition("sum(amount) > 0")]
    plan = plan_refresh(wide.catalog, wide("daily"), RefreshOptions(checks=tuple(checks)))
    shown = plan.statements[-1]
    assert shown.count("FROM `__rows`") == 1
    assert "-- not_null(day): no NULL in day" in shown
    assert RefreshPlan.from_dict(json.loads(json.dumps(plan.to_dict()))).script == plan.script


def test_an_error_in_the_check_of_a_value_names_only_that_check(wide: Lake) -> None:
    """An error in one expression does not hide the results of the others."""
    good, *bad = checked(
        wide,
        row_count(at_least=1),
        condition("amount / (day - 1) >= 0"),
        "SELECT (SELECT sum(amount / (day - 1)) FROM {rows}) >= 0",
        "SELECT (SELECT max(element_at(array(1), day)) FROM orders) = count(*) FROM {rows}",
        "SELECT (SELECT count(*) FROM orders WHERE region RLIKE concat('(', region)) = count(*) FROM {rows}",
        "SELECT (SELECT amount FROM {rows}) > 0",
    )
    assert good.passed
    assert [check.passed for check in bad] == [False] * 5
    expected = ["DIVIDE_BY_ZERO", "DIVIDE_BY_ZERO", "INVALID_ARRAY_INDEX", "", "SCALAR_SUBQUERY_TOO_MANY_ROWS"]
    found = [str(check.problem) for check in bad]
    assert [name in text for name, text in zip(expected, found, strict=True)] == [True] * 5, found


def test_the_number_of_shown_rows_is_bounded(lake: Lake) -> None:
    lake.table("orders", "day integer, note varchar, raw blob", "(1, repeat('x', 5000), '\\xAA'::blob)")
    lake.insert("orders", ", ".join("(1, 'y', NULL)" for _ in range(50)))
    lake.create("daily", "SELECT day, note, raw FROM {ns}.orders")
    (result,) = checked(lake, condition("day > 1"))
    assert len(result.rows) == 20
    (result,) = checked(lake, condition("raw IS NULL"))
    assert result.rows[0][2] == "AA"
    assert len(str(result.rows[0][1])) == 200


# -- functions ----------------------------------------------------------------------------------


def test_a_function_of_the_staged_rows_can_be_a_check(pointed: Lake) -> None:
    pointed.insert("orders", "(3, 'north', -5)")
    results = checked(pointed, python(enough), python(no_negatives), python(broken))
    assert [result.passed for result in results] == [True, False, False]
    assert results[1].rows == (("3", "north", "-5"),)
    assert results[2].problem == "AssertionError: north is missing"


@pytest.mark.parametrize(
    ("check", "message"),
    [
        (condition("amount >= 0) OR (1 = 1"), "this is not one condition"),
        (condition("1 = 1) AS x, (2 = 2"), "this is not one condition"),
        (condition("amount IN (SELECT 1)"), "must not read a table"),
        (condition("row_number() OVER (ORDER BY day) > 0"), "a window function needs a query"),
        (condition("nothing > 0"), "no column 'nothing'"),
        (condition("reflect('java.lang.System', 'exit', 1) = 'x'"), "calls any Java code"),
        (condition("'${env:HOME}' = day"), "Spark would put a setting of its session"),
        (condition("amount >"), "sqlglot, which parses the query before Spark"),
        (condition("amount > 0; DROP TABLE x"), "several statements"),
        (
            row_count(at_least=1, where="sum(amount) > 0"),
            "a condition that selects rows must not have an aggregate function",
        ),
        (sql("SELECT 1 = 1"), r"must read the staged rows as \{rows\}"),
        (sql("SELECT count(*) = 0 FROM {rows}, lake.secret.salaries"), r"it reads `?lake`?\.`?secret`?\.`?salaries"),
        (sql("SELECT true FROM {rows}) UNION (SELECT false"), "sqlglot|not a query"),
        (sql("DELETE FROM {rows}"), "not a query"),
        (sql("SELECT true FROM {rows}, parquet.`/etc`"), "reads files by path"),
        (sql("SELECT max(_pos) > 0 FROM {rows}"), "_pos is a metadata column of Iceberg"),
        (not_null("day", where="1 = 1) OR (2 = 2"), "this is not one condition"),
    ],
    ids=lambda value: value.text or value.name if isinstance(value, Check) else "",
)
def test_hostile_sql_is_refused_before_spark(wide: Lake, check: Check, message: str) -> None:
    """Anyone who may write to the catalog can set a view's property."""
    with pytest.raises((InvalidQueryError, ConfigurationError), match=message):
        wide.refresh("daily", checks=(check,), full=True, stager=no_spark)


def test_odd_column_names_are_quoted(lake: Lake) -> None:
    odd = "a`b) IS NULL OR (1=1 -- "
    lake.table("orders", '"x" integer, "Größe; DROP" integer', "(1, 1), (1, 2)")
    quoted = odd.replace("`", "``")
    lake.create("daily", f"SELECT x AS `{quoted}`, `Größe; DROP` FROM {{ns}}.orders")
    results = checked(
        lake, not_null(odd), unique(odd), unique("Größe; DROP"), condition(f"`{quoted}` = 1"),
        {odd: {"max": {"leq_to": 0}}},
    )  # fmt: skip
    assert [result.passed for result in results] == [True, False, True, True, False]
    assert results[1].rows == (("1", "2"),)
    assert results[4].columns == (odd, "Größe; DROP")
