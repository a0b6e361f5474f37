# SPDX-License-Identifier: Apache-2.0
"""A view's query in other dialects: the same query, or a refusal that says what would change."""

from __future__ import annotations

import pytest

from airflow_mv.core.sql.translation import MAX_TRANSLATED, known_dialects, translated
from airflow_mv.errors import ConfigurationError, UnsupportedError


@pytest.mark.parametrize(
    ("query", "trino", "duckdb"),
    [
        (
            "SELECT `a b`, CAST(x AS string) AS x, try_cast(y AS int) AS y FROM t WHERE d >= DATE '2024-01-01'",
            'SELECT "a b", CAST(x AS VARCHAR) AS x, TRY_CAST(y AS INTEGER) AS y FROM t '
            "WHERE d >= CAST('2024-01-01' AS DATE)",
            'SELECT "a b", CAST(x AS TEXT) AS x, TRY_CAST(y AS INT) AS y FROM t '
            "WHERE d >= CAST('2024-01-01' AS DATE)",
        ),
        (
            "SELECT e FROM t LATERAL VIEW explode(items) y AS e WHERE s RLIKE 'a.*'",
            "SELECT e FROM t CROSS JOIN UNNEST(items) AS y(e) WHERE REGEXP_LIKE(s, 'a.*')",
            "SELECT e FROM t CROSS JOIN UNNEST(items) AS y(e) WHERE REGEXP_MATCHES(s, 'a.*')",
        ),
    ],
)
def test_a_query_is_written_in_other_dialects(query: str, trino: str, duckdb: str) -> None:
    """Spark's CAST raises an error for a wrong value, so it is not the other engine's TRY_CAST."""
    assert translated(query, "spark", "trino", view="v") == trino
    assert translated(query, "spark", "duckdb", view="v") == duckdb


@pytest.mark.parametrize(
    ("query", "lost"),
    [
        ("SELECT a / b FROM t", r"a would become CAST\(a AS DOUBLE\)"),
        ("SELECT collect_list(a) FROM t", r"COLLECT_LIST\(a\) would become COLLECT_LIST\(a\) FILTER"),
        ("SELECT percentile(a, 0.9) FROM t", "does not support exact quantiles"),
        ("SELECT /*+ BROADCAST(t) */ a FROM t", "Hints are not supported"),
        ("SELECT our_function(a) FROM t", "sqlglot does not know the function our_function"),
        ("SELECT a FROM", r"Expected table name|Invalid expression"),
        ("SELECT " + "(" * 5000 + "1" + ")" * 5000, "recursion"),
        ("SELECT 1" + " " * MAX_TRANSLATED, "characters"),
    ],
)
def test_what_another_dialect_cannot_express_is_refused(query: str, lost: str) -> None:
    with pytest.raises(UnsupportedError, match=lost) as refused:
        translated(query, "spark", "trino", view="lake.sales.daily")
    assert "view lake.sales.daily: its query" in str(refused.value)


def test_dialects_are_known_by_name() -> None:
    """Spark's own text is always stored."""
    assert known_dialects(["Trino", "duckdb", "spark", "trino", ""]) == ("trino", "duckdb")
    with pytest.raises(ConfigurationError, match="no SQL dialect 'klingon'"):
        known_dialects(["klingon"])


def test_a_text_of_another_engine_cannot_take_forever() -> None:
    """sqlglot tries each nested bracket in two ways."""
    with pytest.raises(UnsupportedError, match="sqlglot takes too long to parse it"):
        translated("SELECT " + "ARRAY[" * 60 + "1" + "]" * 60, "trino", "spark", view="lake.sales.daily")
