# SPDX-License-Identifier: Apache-2.0
"""Names are resolved as in Spark; ambiguous ones are refused with a reason."""

from __future__ import annotations

import pytest

from airflow_mv.core.ivm import BaseRelation, IncrementalQuery, Replaced
from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.core.spec.reasons import Code, Reason
from airflow_mv.core.sql.query import NestedView
from tests.core.ivm.lab import parsed, query_at


def identifier(name: str) -> Identifier:
    return Identifier("lake", ("db",), name)


RELATIONS = (
    BaseRelation(identifier("r"), "t0", (("a", "int"), ("b", "int"), ("C", "int"), ("m", "map<string,int>")), True),
    BaseRelation(identifier("s"), "t1", (("a", "int"), ("f", "double"), ("d", "struct<x:int,y:struct<z:int>>")), True),
    BaseRelation(identifier("u"), "t2", (("a", "int"), ("xs", "array<int>")), False),
)
VIEWS = {
    identifier("v"): NestedView(identifier("v"), parsed("SELECT a, count(*) FROM r GROUP BY a"), ("k", "n"), 1, "uuid")
}


def analyse(sql: str, columns: int | list[tuple[str, str]]) -> IncrementalQuery | Reason:
    output = [(f"o{index}", "int") for index in range(columns)] if isinstance(columns, int) else columns
    return IncrementalQuery.analyse(parsed(sql), RELATIONS, output=output, views=VIEWS)


@pytest.mark.parametrize(
    ("sql", "columns", "expected"),
    [
        ("SELECT A FROM r", 1, None),
        ("SELECT a, c FROM r", 2, "SELECT `r`.`a` AS `o0`, `r`.`C` AS `o1` FROM `t0__new` AS `r`"),
        ("SELECT lake.db.r.a, db.r.b, r.C FROM r", 3, None),
        ("SELECT d.x, s.d.y.z FROM s", 2, "SELECT `s`.`d`.`x` AS `o0`, `s`.`d`.`y`.`z` AS `o1` FROM `t1__new` AS `s`"),
        (
            "SELECT b + 1 AS z, z * 2 AS y FROM r",
            2,
            "SELECT `r`.`b` + 1 AS `o0`, (`r`.`b` + 1) * 2 AS `o1` FROM `t0__new` AS `r`",
        ),
        (
            "SELECT a FROM r JOIN u USING (a)",
            1,
            "SELECT `r`.`a` AS `o0` FROM `t0__new` AS `r` JOIN `t2__new` AS `u` ON `r`.`a` = `u`.`a`",
        ),
        (
            "SELECT * EXCEPT (m, C) FROM r NATURAL FULL JOIN u",
            3,
            "SELECT COALESCE(`r`.`a`, `u`.`a`) AS `o0`, `r`.`b` AS `o1`, `u`.`xs` AS `o2` "
            "FROM `t0__new` AS `r` FULL JOIN `t2__new` AS `u` ON `r`.`a` = `u`.`a`",
        ),
        (
            "SELECT k, n FROM v",
            2,
            "SELECT `v`.`a` AS `o0`, `v`.`_c1` AS `o1` FROM (SELECT `r`.`a` AS `a`, COUNT(*) AS `_c1` "
            "FROM `t0__new` AS `r` GROUP BY `r`.`a`) AS `v`",
        ),
        (
            "SELECT to_json(struct(B, a)) FROM r",
            1,
            "SELECT TO_JSON(STRUCT(`r`.`b` AS `B`, `r`.`a` AS `a`)) AS `o0` FROM `t0__new` AS `r`",
        ),
        (
            "SELECT x.a, y.a FROM r x JOIN r y ON x.a = y.b, u x2",
            2,
            "SELECT `x`.`a` AS `o0`, `y`.`a` AS `o1` FROM `t0__new` AS `x` JOIN `t0__new` AS `y` ON `x`.`a` = `y`.`b` "
            "CROSS JOIN `t2__new` AS `x2`",
        ),
        (
            "SELECT a FROM r WHERE EXISTS (SELECT 1 FROM s r WHERE r.a = b)",
            1,
            "SELECT `r`.`a` AS `o0` FROM `t0__new` AS `r` WHERE EXISTS(SELECT 1 AS `one` FROM `t1__new` AS `r_2` "
            "WHERE `r_2`.`a` = `r`.`b`)",
        ),
        (
            "SELECT parse_json(a), listagg(b), first(b, true) FROM r GROUP BY parse_json(a)",
            3,
            "SELECT PARSE_JSON(`r`.`a`) AS `o0`, LISTAGG(`r`.`b`) AS `o1`, FIRST(`r`.`b`) IGNORE NULLS AS `o2` "
            "FROM `t0__new` AS `r` GROUP BY PARSE_JSON(`r`.`a`)",
        ),
        (
            "SELECT 2 AS two, count(*) FROM r GROUP BY 1",
            2,
            "SELECT 2 AS `o0`, COUNT(*) AS `o1` FROM `t0__new` AS `r` GROUP BY CAST(2 AS INT)",
        ),
        (
            "SELECT transform(xs, x -> x + a) FROM u",
            1,
            "SELECT TRANSFORM(`u`.`xs`, `x` -> `x` + `u`.`a`) AS `o0` FROM `t2__new` AS `u`",
        ),
    ],
)
def test_a_name_is_resolved_as_in_spark(sql: str, columns: int, expected: str | None) -> None:
    """Case, qualifiers, struct fields, aliases of the same SELECT, joined columns, nested views, hidden names."""
    query = analyse(sql, columns)
    assert isinstance(query, IncrementalQuery), query
    if expected is not None:
        assert query_at(query, "new") == expected


@pytest.mark.parametrize(
    ("sql", "columns", "code"),
    [
        ("SELECT a FROM r JOIN s ON r.a = s.a", 1, Code.UNRESOLVED_NAME),
        ("SELECT nothing FROM r", 1, Code.UNRESOLVED_NAME),
        ("SELECT a FROM elsewhere", 1, Code.UNRESOLVED_NAME),
        ("SELECT r.* FROM r JOIN u USING (a)", 4, Code.UNRESOLVED_NAME),
        ("SELECT max(b) AS b, a FROM r GROUP BY a HAVING b > 1", 2, Code.UNRESOLVED_NAME),
        ("SELECT a FROM r LIMIT 3", 1, Code.UNSUPPORTED_OPERATOR),
        ("SELECT a FROM r OFFSET 3", 1, Code.UNSUPPORTED_OPERATOR),
        ("SELECT a FROM (SELECT a FROM r ORDER BY b LIMIT 3)", 1, Code.UNSUPPORTED_OPERATOR),
        ("SELECT a FROM r TABLESAMPLE (10 PERCENT)", 1, Code.UNSUPPORTED_OPERATOR),
        ("WITH RECURSIVE t AS (SELECT 1 AS a) SELECT a FROM t", 1, Code.UNSUPPORTED_OPERATOR),
        ("SELECT * FROM r PIVOT (sum(b) FOR a IN (1, 2))", 4, Code.UNSUPPORTED_OPERATOR),
        ("SELECT r.a FROM r, LATERAL (SELECT max(f) FROM s WHERE s.a = r.a) x", 1, Code.UNSUPPORTED_OPERATOR),
        ("SELECT r.a FROM r, s RIGHT JOIN u ON s.a = u.a", 1, Code.UNSUPPORTED_OPERATOR),
        ("SELECT max(c COLLATE UTF8_LCASE) FROM r", 1, Code.UNSUPPORTED_OPERATOR),
        ("SELECT collate(c, 'UTF8_LCASE') FROM r", 1, Code.UNSUPPORTED_OPERATOR),
        ("SELECT CAST(c AS STRING COLLATE UTF8_LCASE) FROM r", 1, Code.UNSUPPORTED_OPERATOR),
        ("SELECT a FROM r WHERE a = ANY (SELECT a FROM s)", 1, Code.UNSUPPORTED_OPERATOR),
        ("SELECT date_trunc(C, d) FROM r", 1, Code.UNSUPPORTED_OPERATOR),
        ("SELECT percentile(a, 0.5, b) FROM r", 1, Code.UNSUPPORTED_OPERATOR),
        ("SELECT array_size(xs) FROM u", 1, Code.UNSUPPORTED_OPERATOR),
        ("SELECT a, count(* EXCEPT (b)) FROM r GROUP BY a", 2, Code.UNSUPPORTED_OPERATOR),
        ("SELECT a, count(*, b) FROM r GROUP BY a", 2, Code.UNSUPPORTED_OPERATOR),
        ("SELECT rand() FROM r", 1, Code.NOT_DETERMINISTIC),
        ("SELECT a FROM r WHERE b < current_date", 1, Code.NOT_DETERMINISTIC),
        ("SELECT a, now() FROM r", 2, Code.NOT_DETERMINISTIC),
        ("SELECT a, localtimestamp FROM r", 2, Code.NOT_DETERMINISTIC),
        ("SELECT unix_timestamp() FROM r", 1, Code.NOT_DETERMINISTIC),
        ("SELECT my_function(a) FROM r", 1, Code.UNKNOWN_FUNCTION),
        ("SELECT db.my_function(a) FROM r", 1, Code.UNKNOWN_FUNCTION),
        ("SELECT a, b FROM r", 1, Code.UNREADABLE),
    ],
)
def test_an_ambiguous_query_is_refused(sql: str, columns: int, code: Code) -> None:
    """The refusal has a code for programs and a sentence for people."""
    refusal = analyse(sql, columns)
    assert isinstance(refusal, Reason)
    assert refusal.code == code, refusal
    assert refusal.message


@pytest.mark.parametrize(
    ("sql", "output", "expected"),
    [
        ("SELECT a, m FROM r", [("a", "int"), ("m", "map<string,int>")], ("a",)),
        ("SELECT m FROM r", [("m", "map<string,int>")], Code.NO_KEYS),
        ("SELECT sum(f) AS t, count(*) AS n FROM s GROUP BY a", [("t", "double"), ("n", "bigint")], ("n",)),
        ("SELECT sum(f) AS t FROM s GROUP BY a", [("t", "double")], Code.NO_KEYS),
        ("SELECT a, first(b) AS f FROM r GROUP BY a", [("a", "int"), ("f", "int")], ("a",)),
        ("SELECT f FROM (SELECT first(b) AS f FROM r GROUP BY a) WHERE f > 1", [("f", "int")], Code.NOT_DETERMINISTIC),
        (
            "SELECT a, b FROM (SELECT *, row_number() OVER (PARTITION BY a ORDER BY C) AS n FROM r) WHERE n = 1",
            [("a", "int"), ("b", "int")],
            ("a",),
        ),
        (
            "SELECT b FROM (SELECT *, row_number() OVER (PARTITION BY a ORDER BY C) AS n FROM r) WHERE n = 1",
            [("b", "int")],
            Code.NO_KEYS,
        ),
        (
            "SELECT a FROM (SELECT *, row_number() OVER (PARTITION BY a ORDER BY C) AS n FROM r) WHERE n = 1 AND b = 2",
            [("a", "int")],
            Code.NOT_DETERMINISTIC,
        ),
        ("SELECT count(*) OVER () AS n FROM r", [("n", "bigint")], Code.WHOLE_RESULT),
        ("SELECT k FROM v WHERE n > 1", [("k", "int")], ("k",)),
    ],
)
def test_only_deterministic_columns_are_keys(
    sql: str, output: list[tuple[str, str]], expected: tuple[str, ...] | Code
) -> None:
    """A floating sum or the choice among ties is not a key: the stored row would not be found again."""
    query = analyse(sql, output)
    assert isinstance(query, IncrementalQuery), query
    replaced = query.replace_keys()
    if isinstance(replaced, Replaced):
        assert replaced.keys == expected
    else:
        assert replaced.code == expected


def test_a_column_that_is_not_read_is_not_used() -> None:
    """A change of this column does not change the view, even if a derived table has it."""
    query = analyse("WITH t AS (SELECT * FROM r) SELECT a, count(*) AS n FROM t GROUP BY a", 2)
    assert isinstance(query, IncrementalQuery)
    assert query.used_columns[identifier("r")] == ("a",)
    assert query.used_columns[identifier("s")] == ()


def test_a_key_in_a_comparison_is_never_null() -> None:
    """Then ``=`` finds the same rows as ``<=>``, and engines use it for pruning."""
    query = analyse("SELECT r.a, r.b FROM r JOIN s ON r.a = s.a WHERE s.f > 1", 2)
    assert isinstance(query, IncrementalQuery)
    replaced = query.replace_keys()
    assert isinstance(replaced, Replaced)
    assert replaced.not_null == (True, False)


@pytest.mark.parametrize(
    ("sql", "columns", "code"),
    [
        ("SELECT session_window.start, count(*) FROM r GROUP BY session_window(CAST(a AS TIMESTAMP), '1 hour')", 2, 0),
        (
            "SELECT count(*) FROM r GROUP BY window(timestamp(a), '1 day'), window(timestamp(b), '1 day')",
            1,
            0,
        ),
        ("SELECT (SELECT max(a) FROM s), count(*) FROM r GROUP BY window(CAST(a AS TIMESTAMP), '1 day')", 2, 0),
        ("SELECT explode(m) FROM r", 2, 0),
        ("SELECT inline(array(struct(a, b))) FROM r", 2, 0),
        ("SELECT *, posexplode(xs) AS (p, e) FROM u JOIN r USING (a)", 7, 0),
        ("SELECT a AS __w FROM r", [("__W", "int")], 0),
        ("SELECT a, `window`.start FROM r", 2, 1),
        ("SELECT count(*) FROM r, LATERAL (SELECT a + 1 AS x)", 1, 0),
    ],
)
def test_a_query_without_incremental_statements_has_a_reason(
    sql: str, columns: int | list[tuple[str, str]], code: int
) -> None:
    """Sessions, two time windows, generators with unknown columns, names reserved for generated statements."""
    found = analyse(sql, columns)
    assert isinstance(found, Reason), found
    assert found.code == (Code.UNSUPPORTED_OPERATOR, Code.UNRESOLVED_NAME)[code]


@pytest.mark.parametrize(
    ("sql", "columns", "written"),
    [
        (
            "SELECT window.start, count(*) FROM r WHERE b > 0 GROUP BY window(CAST(a AS TIMESTAMP), '1 day')",
            2,
            "SELECT `windowed`.`window`.`start` AS `o0`, COUNT(*) AS `o1` FROM ("
            "SELECT WINDOW(CAST(`r`.`a` AS TIMESTAMP), '1 day') AS `window` FROM `t0__new` AS `r` "
            "WHERE `r`.`b` > 0) AS `windowed` "
            "GROUP BY `windowed`.`window`.`start`, `windowed`.`window`.`end`",
        ),
        ("SELECT explode(xs) FROM u", 1, "SELECT EXPLODE(`u`.`xs`) AS `o0` FROM `t2__new` AS `u`"),
        (
            "SELECT a, posexplode_outer(xs) FROM u WHERE a > 1",
            3,
            "SELECT `u`.`a` AS `o0`, `exploded`.`__g0` AS `o1`, `exploded`.`__g1` AS `o2` FROM `t2__new` AS `u` "
            "LATERAL VIEW OUTER POSEXPLODE(`u`.`xs`) exploded AS `__g0`, `__g1` WHERE `u`.`a` > 1",
        ),
        ("SELECT a FROM r GROUP BY a HAVING any(b > 1)", 1, None),
        ("SELECT window FROM (SELECT a AS window FROM r)", 1, None),
        ("SELECT sum(a) OVER window FROM r WINDOW window AS (PARTITION BY b)", 1, None),
    ],
)
def test_alternative_syntax_is_parsed_as_in_spark(sql: str, columns: int, written: str | None) -> None:
    """``window`` as a name, generators without AS, ``any`` as an aggregate."""
    found = analyse(sql, columns)
    assert isinstance(found, IncrementalQuery), found
    assert written in (None, query_at(found, "new"))


def test_many_nested_views_are_refused_before_memory_is_full() -> None:
    """Each view reads the view below twice, so the expanded text doubles at each level."""
    views = {}
    for level in range(1, 12):
        below = "r" if level == 1 else f"v{level - 1}"
        sql = f"SELECT x.a FROM {below} x JOIN {below} y ON x.a = y.a"
        name = identifier(f"v{level}")
        views[name] = NestedView(name, parsed(sql), ("a",), 1, "uuid")
    refusal = IncrementalQuery.analyse(parsed("SELECT a FROM v11"), RELATIONS, output=[("a", "int")], views=views)
    assert isinstance(refusal, Reason)
    assert refusal.code == Code.TOO_LARGE
