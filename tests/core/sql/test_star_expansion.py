# SPDX-License-Identifier: Apache-2.0
"""``*`` stands for the columns that its tables had when the view was created, even if they have more now."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.core.sql.query import NestedView, ParsedQuery, parse_query
from airflow_mv.core.sql.types import ColumnLists, expand_stars

#: All columns that each table has had, the current ones first.
SCHEMAS = {"r": [("a", "b", "more"), ("a", "b")], "s": [("x", "y", "z"), ("x", "y"), ("x",)]}
NESTED = Identifier("lake", ("db",), "nested")


def parsed(sql: str) -> ParsedQuery:
    """Parse a query with short names."""
    return parse_query(sql, view="lake.db.v", default_catalog="lake", default_namespace=("db",))


VIEWS = {NESTED: NestedView(NESTED, parsed("SELECT a, b FROM r"), ("p", "q"), 1, "u")}


def written(sql: str, columns: Sequence[str]) -> str:
    """Expand the stars of a view's query."""
    query = parsed(sql)
    schemas = {Identifier("lake", ("db",), name): ColumnLists(lists) for name, lists in SCHEMAS.items()}
    return expand_stars(query, columns=columns, views=VIEWS, schemas=schemas).text


@pytest.mark.parametrize(
    ("sql", "columns", "expected"),
    [
        ("SELECT * FROM r", "a, b", "SELECT `r`.`a`, `r`.`b` FROM r"),
        (
            "WITH RECURSIVE t AS (SELECT 1 AS k UNION ALL SELECT * FROM t) SELECT s.* FROM s JOIN t ON k = x",
            "x, y",
            "WITH RECURSIVE t AS (SELECT 1 AS k UNION ALL SELECT * FROM t) SELECT `s`.`x`, `s`.`y` "
            "FROM s JOIN t ON k = x",
        ),
        (
            "WITH \u017f AS (SELECT 1 AS x, 2 AS y) SELECT * FROM s",
            "x, y",
            "WITH \u017f AS (SELECT 1 AS x, 2 AS y) SELECT * FROM s",
        ),
        (
            "SELECT x.*, count(*) AS n FROM lake.db.r x",
            "a, b, n",
            "SELECT `x`.`a`, `x`.`b`, count(*) AS n FROM lake.db.r x",
        ),
        ("SELECT `lake`.`db`.r.* FROM lake.db.r", "A, B", "SELECT `r`.`a`, `r`.`b` FROM lake.db.r"),
        ("SELECT * FROM r, s", "a, b, x, y", "SELECT `r`.`a`, `r`.`b`, `s`.`x`, `s`.`y` FROM r, s"),
        ("SELECT * FROM r, s", "a, b, more, x", "SELECT `r`.*, `s`.`x` FROM r, s"),
        ("SELECT *, a * 2 FROM r", "a, b, (a * 2)", "SELECT `r`.`a`, `r`.`b`, a * 2 FROM r"),
        (
            "SELECT * FROM r LEFT ANTI JOIN s ON a = x",
            "a, b",
            "SELECT `r`.`a`, `r`.`b` FROM r LEFT ANTI JOIN s ON a = x",
        ),
        (
            "SELECT * FROM r JOIN nested n ON a = p",
            "a, b, p, q",
            "SELECT `r`.`a`, `r`.`b`, `n`.* FROM r JOIN nested n ON a = p",
        ),
        (
            "SELECT * FROM r LATERAL VIEW explode(b) l AS v WHERE EXISTS (SELECT * FROM s JOIN r USING (k))",
            "a, b, v",
            "SELECT `r`.`a`, `r`.`b`, `l`.* FROM r LATERAL VIEW explode(b) l AS v "
            "WHERE EXISTS (SELECT * FROM s JOIN r USING (k))",
        ),
        # Below: additional columns would change the rows, or make the query invalid.
        (
            "SELECT DISTINCT * FROM (SELECT * FROM r UNION ALL SELECT a, b FROM r) d -- *",
            "a, b",
            "SELECT DISTINCT * FROM (SELECT `r`.`a`, `r`.`b` FROM r UNION ALL SELECT a, b FROM r) d -- *",
        ),
        (
            "WITH t AS (SELECT * FROM r) SELECT t.* FROM t",
            "a, b",
            "WITH t AS (SELECT `r`.`a`, `r`.`b` FROM r) SELECT t.* FROM t",
        ),
        ("SELECT * FROM (SELECT * FROM r)", "a, b", "SELECT * FROM (SELECT `r`.`a`, `r`.`b` FROM r)"),
        ("WITH r AS (SELECT 1 AS a, 2 AS b) SELECT * FROM r", "a, b", None),
        # Unchanged: all columns are wanted, nothing can be expanded, or the columns are ambiguous.
        ("SELECT * FROM r", "a, b, more", None),
        ("SELECT a * b AS p FROM r", "p", None),
        ("SELECT * FROM r", "a, c", None),
        ("SELECT * EXCEPT (b) FROM r", "a", None),
        ("SELECT * FROM r JOIN s USING (k)", "a, b, x", None),
        ("SELECT * FROM r AS t(a, b, c)", "a, b", None),
        ("SELECT * FROM (SELECT a FROM r), s", "a, x", None),
        ("SELECT * FROM lake.db.r JOIN lake.other.r", "a, b, a, b", None),
    ],
)
def test_star_is_expanded_to_the_newest_columns_that_match_the_view_s(
    sql: str, columns: str, expected: str | None
) -> None:
    """The rest of the text is not changed."""
    assert written(sql, columns.split(", ")) == (expected or sql)


def test_the_expansion_of_many_tables_and_schemas_stops_in_time() -> None:
    """The number of combinations grows with each table."""
    sql = "SELECT * FROM " + ", ".join(f"s AS s{number}" for number in range(40))
    assert written(sql, ["x"]) == sql
    joined = "SELECT * FROM " + " JOIN ".join(f"db.t{number}" for number in range(12))
    many = {
        Identifier("lake", ("db",), f"t{number}"): ColumnLists(
            [tuple(f"c{index}" for index in range(width)) for width in range(40, 0, -1)]
        )
        for number in range(12)
    }
    assert expand_stars(parsed(joined), columns=["no"], views={}, schemas=many).text == joined
