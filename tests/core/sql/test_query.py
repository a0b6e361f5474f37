# SPDX-License-Identifier: Apache-2.0
"""The tables that a query reads, and how pinning changes its text."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_mv.core.spec.identifiers import Identifier, string_literal
from airflow_mv.core.spec.properties import partition_transform
from airflow_mv.core.sql.query import (
    MAX_VIEW_DEPTH,
    NestedView,
    ParsedQuery,
    PinnedTable,
    base_tables,
    filtered_floats,
    parse_query,
    pin_query,
    pinned_table,
    selected,
    splice,
)
from airflow_mv.core.sql.types import refuse_metadata_columns
from airflow_mv.errors import InvalidQueryError

VIEW = "lake.sales.daily"


def parsed(sql: str, *, view: str = VIEW, namespace: tuple[str, ...] = ("s",), catalog: str = "lake") -> ParsedQuery:
    """Parse a query with short names."""
    return parse_query(sql, view=view, default_catalog=catalog, default_namespace=namespace)


def names(sql: str) -> list[str]:
    """Return what each reference means, in the order of the text."""
    return [str(item.identifier) for item in parsed(sql).references]


def nested(name: str, sql: str, columns: tuple[str, ...] = ("x",)) -> NestedView:
    return NestedView(
        Identifier.parse(name), parsed(sql, view=f"{VIEW}, nested view {name}"), columns, 1, f"uuid of {name}"
    )


def collect(sql: str, *views: NestedView) -> tuple[list[str], list[str]]:
    known = {view.identifier: view for view in views}
    found = base_tables(parsed(sql), known)
    return [str(item) for item in found.tables], [str(item.identifier) for item in found.views]


def pinned(sql: str, snapshots: Mapping[str, int | PinnedTable | None], *views: NestedView) -> str:
    tables = {
        Identifier.parse(name): item if isinstance(item, PinnedTable) else PinnedTable(Identifier.parse(name), item)
        for name, item in snapshots.items()
    }
    return pin_query(parsed(sql), tables=tables, views={view.identifier: view for view in views})


# ------------------------------------------------------------------------------------ references
@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT 1", []),
        ("SELECT * FROM t", ["lake.s.t"]),
        ("SELECT * FROM other.t", ["lake.other.t"]),
        ("SELECT * FROM ice.other.t", ["ice.other.t"]),
        ("SELECT * FROM ice.a.b.c.t", ["ice.a.b.c.t"]),
        ("SELECT * FROM `ice`.`a.b`.`c``d`", ["ice.`a.b`.`c``d`"]),
        ("SELECT * FROM lake.s.2024_orders", ["lake.s.`2024_orders`"]),
        ("SELECT * FROM lake.s.order", ["lake.s.order"]),
        ("SELECT * FROM t /* one */ . /* two */ u", ["lake.t.u"]),
        ("FROM t", ["lake.s.t"]),
        ("FROM t SELECT x", ["lake.s.t"]),
        ("(SELECT * FROM t)", ["lake.s.t"]),
        ("VALUES (1), (2)", []),
        ("SELECT * FROM VALUES (1) AS t(a), u", ["lake.s.u"]),
        (
            "SELECT * FROM a, b JOIN c USING (x) LEFT ANTI JOIN d ON true",
            ["lake.s.a", "lake.s.b", "lake.s.c", "lake.s.d"],
        ),
        ("SELECT * FROM (a JOIN b ON true) CROSS JOIN (c)", ["lake.s.a", "lake.s.b", "lake.s.c"]),
        ("SELECT * FROM t a JOIN t b ON a.x = b.x", ["lake.s.t", "lake.s.t"]),
        ("SELECT * FROM a UNION ALL SELECT * FROM b MINUS SELECT * FROM c", ["lake.s.a", "lake.s.b", "lake.s.c"]),
        (
            "SELECT (SELECT max(x) FROM a) FROM b WHERE x IN (1, (SELECT y FROM c)) HAVING 1 = (SELECT 1 FROM d)",
            ["lake.s.a", "lake.s.b", "lake.s.c", "lake.s.d"],
        ),
        ("SELECT * FROM a, LATERAL (SELECT * FROM b WHERE b.x = a.x)", ["lake.s.a", "lake.s.b"]),
        ("SELECT * FROM a LATERAL VIEW OUTER explode(xs) e AS x", ["lake.s.a"]),
        ("SELECT * FROM a, LATERAL explode(a.xs) e", ["lake.s.a"]),
        ("SELECT * FROM range(10) r JOIN a", ["lake.s.a"]),
        ("SELECT * FROM explode_outer(array(1)) JOIN posexplode(array(1)) JOIN stack(1, 2) JOIN a", ["lake.s.a"]),
        ("SELECT /*+ BROADCAST(b), MERGE(c) */ * FROM a", ["lake.s.a"]),
        ("SELECT 'FROM b', \"FROM c\", `FROM d` /* FROM e */ FROM a -- FROM f", ["lake.s.a"]),
        ("SELECT /* /* nested */ FROM b */ * FROM a", ["lake.s.a"]),
        ("SELECT * FROM a TABLESAMPLE (10 PERCENT) x PIVOT (sum(y) FOR z IN (1, 2))", ["lake.s.a"]),
        ("FROM a |> JOIN b USING (x) |> WHERE x IN (SELECT x FROM c)", ["lake.s.a", "lake.s.b", "lake.s.c"]),
    ],
)
def test_each_table_reference_is_found_and_nothing_else(sql: str, expected: list[str]) -> None:
    """A missed table would be read unpinned."""
    assert names(sql) == expected


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("WITH c AS (SELECT 1) SELECT * FROM c", []),
        ("WITH c AS (SELECT 1) SELECT * FROM C JOIN `c` d", []),
        ("WITH c AS (SELECT 1) SELECT * FROM s.c", ["lake.s.c"]),
        ("WITH c AS (SELECT * FROM c) SELECT * FROM c", ["lake.s.c"]),
        ("WITH c(a) AS (SELECT * FROM t) SELECT * FROM c", ["lake.s.t"]),
        ("WITH a AS (SELECT 1), b AS (SELECT * FROM a) SELECT * FROM b", []),
        ("WITH b AS (SELECT * FROM a), a AS (SELECT 1) SELECT * FROM a, b", ["lake.s.a"]),
        ("WITH a AS (WITH b AS (SELECT * FROM x) SELECT * FROM b) SELECT * FROM a, b", ["lake.s.x", "lake.s.b"]),
        ("WITH a AS (WITH a AS (SELECT * FROM a) SELECT * FROM a) SELECT * FROM a", ["lake.s.a"]),
        ("SELECT * FROM (WITH a AS (SELECT 1) SELECT * FROM a) JOIN a", ["lake.s.a"]),
        ("WITH a AS (SELECT 1) SELECT * FROM (SELECT * FROM a) WHERE EXISTS (SELECT 1 FROM a)", []),
        ("WITH a AS (SELECT 1) SELECT * FROM t UNION SELECT * FROM a", ["lake.s.t"]),
        ("(WITH a AS (SELECT 1) SELECT * FROM a) UNION SELECT * FROM a", ["lake.s.a"]),
        ("WITH a AS (SELECT 1) (SELECT * FROM a) UNION (SELECT * FROM a)", []),
        ("WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r WHERE n < 5) SELECT * FROM r", []),
        ("WITH RECURSIVE a AS (SELECT * FROM b), b AS (SELECT 1) SELECT * FROM a", ["lake.s.b"]),
        ("WITH a AS (SELECT 1) FROM t |> JOIN a |> UNION ALL (SELECT * FROM a)", ["lake.s.t"]),
        ("WITH straße AS (SELECT 1) SELECT * FROM strasse", ["lake.s.strasse"]),
        ("WITH Ä AS (SELECT 1) SELECT * FROM ä", []),
    ],
)
def test_a_name_refers_to_a_cte_exactly_where_it_does_in_spark(sql: str, expected: list[str]) -> None:
    """A CTE hides a table of the same name only within its scope."""
    assert names(sql) == expected


def test_a_reference_has_its_position_and_whether_it_has_an_alias() -> None:
    """Positions count characters of the user's text, including wide ones."""
    sql = "SELECT '😀é' -- lake.s.t\nFROM `lake`.s.`t😀` AS x, u"
    first, second = parsed(sql).references
    assert (sql[first.start : first.end], first.aliased) == ("`lake`.s.`t😀`", True)
    assert (sql[second.start : second.end], second.aliased) == ("u", False)


# ---------------------------------------------------------------------------------------- refused
@pytest.mark.parametrize(
    ("sql", "reason"),
    [
        ("", "the query is empty"),
        (" -- nothing\n", "the query is empty"),
        (" ; ", "the query is empty"),
        ("SELECT 1; SELECT 2", "line 1, column 9: there are several statements"),
        ("INSERT INTO t SELECT 1", "line 1, column 1: this is not a query"),
        ("DROP TABLE t", "not a query"),
        ("CREATE TABLE t AS SELECT 1", "not a query"),
        ("EXPLAIN SELECT 1", "not a query"),
        ("MERGE INTO a USING b ON true WHEN MATCHED THEN DELETE", "not a query"),
        ("SET x = 1", "not a query"),
        ("CALL x.system.expire_snapshots('t')", "not a query"),
        ("WITH a AS (SELECT 1) INSERT INTO t SELECT * FROM a", "not a query"),
        ("FROM t INSERT OVERWRITE TABLE u SELECT *", "not a query|sqlglot, which parses"),
        ("TABLE t", "not a query"),
        (
            "queries/daily.sql",
            "line 1, column 1: this is the name of a file, not a query: give --sql-file",
        ),
        ("s3://b/my queries/x.SQL ", "name of a file"),
        ("select/daily.sql", "name of a file"),
        ("sql/daily.sql.j2", "name of a file"),
        ("\ufeffSELECT x FROM t", "a byte order mark: read its file as utf-8-sig"),
        ("SELECT * FROM (TABLE t)", "column 16: write SELECT"),
        ("SELECT (TABLE t)", "column 9: write SELECT"),
        ("SELECT\n  x\nFROM WHERE y", "line 3, column"),
        ("SELECT 'abc", "line 1, column 8: ' is never closed"),
        ("SELECT 'it\\'s', \"\", `x` -- don't\n, `y\nFROM t", "line 2, column 3: ` is never closed"),
        ("SELECT 1 /* a /* b */", "never closed|cannot be parsed"),
        ("SELECT (1", "line 1, column"),
        ("SELECT " + "(" * 500 + "1" + ")" * 500, "nested too deeply"),
        ("SELECT map(1)", "sqlglot"),
        ("SELECT * FROM t VERSION AS OF lower('A')", "column 15: time travel can be VERSION AS OF"),
        ("SELECT * FROM t TIMESTAMP AS OF current_timestamp() x", "column 15: time travel can be VERSION AS OF"),
        ("SELECT * FROM t TIMESTAMP AS OF '20240101' x", "time travel can be VERSION AS OF"),
        ("SELECT * FROM t TIMESTAMP AS OF '2024-02-31'", "'2024-02-31' is not a time"),
        ("SELECT * FROM t VERSION AS OF 'it\\'s'", "time travel can be VERSION AS OF"),
        ("SELECT * FROM t FOR SYSTEM_VERSION AS OF 1", "line 1, column"),
        ("SELECT * FROM parquet.`/data/x`", "column 15: this reads files by path"),
        ("SELECT * FROM iceberg.`data/x`", "the path of a table must be absolute"),
        ("SELECT reflect('java.lang.System', 'exit', 1)", "column 8: reflect"),
        ("SELECT 1,\n `java_method` /* */ ('java.lang.System', 'exit')", "line 2, column 2: java_method"),
        ("SELECT system.builtin.try_reflect('a', 'b')", r"try_reflect\(\) calls"),
        ("SELECT * FROM read_files('/data')", "column 15: the table function read_files"),
        ("SELECT * FROM lake.system.range(1)", "table function range"),
        ("SELECT * FROM t, LATERAL my_function(t.x)", "table function my_function"),
        ("SELECT * FROM LATERAL t", "column 23: LATERAL is not followed"),
        ("FROM lateral SELECT *", "LATERAL is not followed"),
        ("SELECT * FROM a JOIN LATERAL x.y.t", "LATERAL is not followed"),
        ("SELECT * FROM f(TABLE(t))", "functions of whole tables"),
        ("SELECT * FROM IDENTIFIER('t')", r"IDENTIFIER\(\) hides"),
        ("SELECT TRANSFORM(x) USING 'cat' FROM t", "TRANSFORM"),
        ("SELECT * FROM ${env:TABLE}", "column 15: Spark would put a setting"),
        ("SELECT '${spark.app.id}'", "column 9: Spark would put a setting"),
        ("SELECT 1 -- C:\\\n FROM t", "ends with a backslash"),
        ("SELECT 1 /* /*+ */ FROM t -- */ */", "holds a hint"),
        ("SELECT * FROM lake.2024.t", "put each part of the name in backticks"),
        ("SELECT * FROM ``.t", "empty part|line 1"),
        ("SELECT '\ud800'", "not Unicode text"),
        ("SELECT " + "1," * 600_000 + "1", "at most 1048576"),
    ],
)
def test_a_text_that_cannot_be_pinned_or_is_not_a_query_is_refused_with_the_position(sql: str, reason: str) -> None:
    """The error shows the author of the SQL what to change."""
    with pytest.raises(InvalidQueryError, match=reason) as caught:
        names(sql)
    assert VIEW in str(caught.value)


#: Names that need no backticks: Spark accepts them.
WORDS_OF_SQLGLOT = (
    *("returning", "partitioned_by", "xor", "glob", "notnull", "connect_by_root", "values", "any", "for", "if"),
)


@pytest.mark.parametrize("word", WORDS_OF_SQLGLOT)
def test_a_word_that_is_a_keyword_for_sqlglot_alone_is_a_name(word: str) -> None:
    """Of a column, a table and an alias; Spark's own keywords that it allows as names, too."""
    sql = f"SELECT {word}, t.{word} AS x, y AS {word}, sum({word}) FROM s.{word} AS t WHERE {word} > 1 GROUP BY {word}"
    quoted = sql.replace(word, f"`{word}`")
    assert parsed(sql).tree.sql("spark", identify=True) == parsed(quoted).tree.sql("spark", identify=True)
    assert names(sql) == [f"lake.s.{word}"]


@pytest.mark.parametrize(
    ("sql", "word"),
    [
        ("SELECT case + 1 AS y FROM t", "case"),
        ("SELECT a FROM t WHERE LIKE LIKE 'x'", "LIKE"),
        ("SELECT union, count(*) FROM t GROUP BY union", "union"),
        ("SELECT except FROM t", "except"),
    ],
)
def test_a_keyword_that_may_be_a_name_is_named(sql: str, word: str) -> None:
    """sqlglot's own message shows another place."""
    with pytest.raises(InvalidQueryError, match=f"If {word} is a name here, write `{word}` in backticks"):
        parsed(sql)


@pytest.mark.parametrize(
    ("sql", "column"),
    [
        ("SELECT x, `_FILE` FROM t", 11),
        ("SELECT x FROM t WHERE t._pos > 1", 25),
        ("SELECT lake.s.t._partition.x FROM t", 17),
        ("SELECT max(_last_updated_sequence_number) AS m FROM t", 12),
        ("SELECT a.x FROM t a JOIN t b USING (_row_id)", 37),
        ("SELECT x FROM t a WHERE EXISTS (SELECT 1 FROM u WHERE a._spec_id = u.x)", 57),
        ("SELECT v.x FROM t LATERAL VIEW explode(array(_deleted)) v AS x", 46),
        ("SELECT transform(x, e -> e + _pos) AS y FROM t", 30),
    ],
)
def test_a_metadata_column_is_refused_with_the_position_if_nothing_else_has_its_name(sql: str, column: int) -> None:
    """A compaction changes its values while the rows stay the same."""
    with pytest.raises(InvalidQueryError, match=f"line 1, column {column}: .* is a metadata column of Iceberg"):
        refuse_metadata_columns(parsed(sql).tree, sql, VIEW, ["x"])


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT s._file FROM t",
        "SELECT transform(x, _pos -> _pos + 1) AS y FROM t",
        "SELECT transform(x, e -> e._pos) AS y FROM t",
        "SELECT _file FROM (SELECT x AS _file FROM t)",
        "SELECT _file AS x, 1 AS _file FROM t",
        "SELECT _pos FROM t LATERAL VIEW explode(x) AS _pos",
        "SELECT _pos FROM t AS t(_pos)",
        "WITH c(_pos) AS (SELECT x FROM t) SELECT _pos FROM c",
        "SELECT * FROM t UNPIVOT (v FOR _pos IN (x, y))",
        "SELECT _Row_Id, _change_type FROM t",
    ],
)
def test_a_name_that_may_be_another_column_s_is_left_to_spark(sql: str) -> None:
    """A subquery, a struct or a base table may have a column of the name."""
    refuse_metadata_columns(parsed(sql).tree, sql, VIEW, ["x", "_ROW_ID", "_change_type"])


@pytest.mark.parametrize(
    "sql",
    ["SELECT * FROM a" + " JOIN a" * 40, "SELECT " + "struct(" * 30 + "1" + " AS a)" * 30],
    ids=["joins", "structs"],
)
def test_a_query_that_sqlglot_would_parse_for_years_is_refused_in_seconds(sql: str) -> None:
    """A worker must not hang on a query."""
    with pytest.raises(InvalidQueryError, match="sqlglot"):
        names(sql)


def test_an_error_shows_the_line_with_a_caret_below_the_position() -> None:
    """Tabs and long lines must not move the caret."""
    with pytest.raises(InvalidQueryError) as caught:
        names("SELECT\n\tx, y FROM csv.`/t`\nWHERE z")
    assert str(caught.value).split("\n")[1:] == ["    \tx, y FROM csv.`/t`", "    \t          ^"]
    with pytest.raises(InvalidQueryError) as caught:
        names(f"SELECT {'1, ' * 1000} 1 FROM csv.`/t`")
    _, line, caret = str(caught.value).split("\n")
    assert len(line) <= 124
    assert line[caret.index("^") :].startswith("csv.")


WORDS = [
    "SELECT",
    "FROM",
    "(",
    ")",
    ",",
    "t",
    ".",
    "`",
    "'",
    ";",
    "WITH",
    "AS",
    "a",
    "JOIN",
    "/*",
    "*/",
    "--",
    "\n",
    "1",
]


@given(st.text(max_size=60) | st.lists(st.sampled_from(WORDS)).map(" ".join))
def test_any_text_is_parsed_or_refused_with_our_error(sql: str) -> None:
    """SQL is untrusted input: no text may raise another error."""
    try:
        names(sql)
    except InvalidQueryError:
        return


# ----------------------------------------------------------------------------------------- pinning
def test_only_table_names_are_changed() -> None:
    """Comments, hints, whitespace and literals are preserved."""
    sql = "/* t */ SELECT /*+ BROADCAST(t) */ t.x,  't' AS `t`\nFROM t -- t\nJOIN other.u AS u\tUSING (x) ;\n-- end"
    assert pinned(sql, {"lake.s.t": 12, "lake.other.u": 34}) == (
        "/* t */ SELECT /*+ BROADCAST(t) */ t.x,  't' AS `t`\nFROM `lake`.`s`.`t` VERSION AS OF 12 -- t\n"
        "JOIN `lake`.`other`.`u` VERSION AS OF 34 AS u\tUSING (x) "
    )


def test_a_table_without_a_snapshot_returns_no_rows() -> None:
    """It may get rows between plan and run, but the refresh has recorded that it read none."""
    assert pinned_table(Identifier("lake", ("s",), "t"), None) == "(`lake`.`s`.`t` TABLESAMPLE (0 ROWS))"


QUERIES = [
    "SELECT * FROM t",
    "select o.* from `a b`.`c``d` o join t on o.x = t.x where exists (select 1 from lake.s.t)",
    "WITH t AS (SELECT * FROM t), u AS (SELECT * FROM t) SELECT * FROM t JOIN u, s.u LATERAL VIEW explode(x) e AS y",
    "FROM t |> JOIN u USING (x) |> SELECT x",
    "SELECT 'é😀', /* 😀 */ * FROM t UNION ALL (SELECT 2, * FROM (u) LIMIT 3)",
]


@given(st.sampled_from(QUERIES), st.text("é😀 \n\t-ab", max_size=20))
def test_pinning_each_reference_to_itself_does_not_change_the_query(sql: str, comment: str) -> None:
    """Positions are correct after any characters."""
    sql = f"/*{comment}*/ {sql} /*{comment}*/"
    query = parsed(sql)
    found = query.references
    same = splice(query.text, {item.span: sql[item.start : item.end] for item in found})
    full = splice(query.text, {item.span: item.identifier.sql() for item in found})
    assert same == sql
    again = parsed(full, catalog="no", namespace=("no",))
    assert [item.identifier for item in again.references] == [item.identifier for item in found]
    assert parsed(same).tree == query.tree


@given(st.sampled_from(QUERIES))
def test_every_table_of_a_pinned_query_has_a_version(sql: str) -> None:
    """Parsed again, each reference names a snapshot."""
    tables = base_tables(parsed(sql), {}).tables
    text = pinned(sql, dict.fromkeys(map(str, tables), 7))
    assert text.count(" VERSION AS OF 7") == len(names(sql))
    assert all(name.endswith(".snapshot_id_7") for name in names(text))


def test_a_splice_keeps_the_text_between_its_positions() -> None:
    """Edits may be given in any order."""
    assert splice("abcdef", {(4, 5): "X", (0, 2): ""}) == "cdXf"


# ------------------------------------------------------------------------------------ nested views
def test_dependencies_of_nested_views_are_collected_once_and_sorted() -> None:
    """Freshness depends on base tables and on the versions of the nested views."""
    views = nested("lake.s.w", "SELECT * FROM v JOIN a"), nested("lake.s.v", "SELECT * FROM b JOIN a")
    assert collect("SELECT * FROM w JOIN v JOIN c", *views) == (
        ["lake.s.a", "lake.s.b", "lake.s.c"],
        ["lake.s.v", "lake.s.w"],
    )


def test_names_in_a_nested_view_are_completed_with_its_own_defaults() -> None:
    """A nested view may have been written in another catalog and namespace than the view that reads it."""
    query = parsed("SELECT * FROM t", catalog="ice", namespace=("y", "z"))
    view = NestedView(Identifier.parse("ice.x.v"), query, ("a",), 1, "u")
    assert collect("SELECT * FROM ice.x.v JOIN t", view) == (["ice.y.z.t", "lake.s.t"], ["ice.x.v"])


def test_a_nested_view_becomes_a_subquery_with_the_views_columns() -> None:
    """A view cannot be read at a snapshot, so its query is inlined."""
    view = nested("lake.s.v", "SELECT 1 AS `a b` FROM t -- all;\n;", ("a b", "c"))
    assert pinned("SELECT v.c FROM v", {"lake.s.t": 7}, view) == (
        "SELECT v.c FROM ((\nSELECT 1 AS `a b` FROM `lake`.`s`.`t` VERSION AS OF 7 -- all;\n\n) AS `v`(`a b`, `c`))"
    )


def test_long_column_names_of_a_nested_view_are_shortened() -> None:
    """A subquery's alias has one part; for a view Spark accepts columns with the full name."""
    view = nested("lake.s.v", "SELECT 1")
    text = pinned(
        "SELECT lake.s.v.x, s.V.x.f, `v`.x, lake.s.v.*, t.s.v FROM v JOIN t ON lake.s.t.x = v.x", {"lake.s.t": 7}, view
    )
    assert text.startswith("SELECT `v`.x, `v`.x.f, `v`.x, `v`.*, t.s.v FROM ((\nSELECT 1\n) AS `v`(`x`)) JOIN")
    assert text.endswith("ON lake.s.t.x = v.x")


def test_long_column_names_in_a_deep_namespace_are_shortened_too() -> None:
    """sqlglot stores the fifth part of a name in another node than the first four."""
    text = pinned("SELECT lake.a.b.v.x.f FROM lake.a.b.v", {}, nested("lake.a.b.v", "SELECT 1"))
    assert text.startswith("SELECT `v`.x.f FROM ((")


def test_a_long_column_name_that_cannot_be_shortened_requires_an_alias() -> None:
    """The short name could refer to the other relation."""
    with pytest.raises(InvalidQueryError, match=r"give lake\.s\.v an alias"):
        pinned("SELECT lake.s.v.x FROM lake.s.v JOIN other.v", {"lake.other.v": 7}, nested("lake.s.v", "SELECT 1"))


def test_a_table_that_is_read_by_another_name_keeps_its_own_name_for_columns() -> None:
    """A materialized view as a base table is read as its storage table, registered in the staging catalog."""
    table = PinnedTable(Identifier.parse("lake.s.m"), 7, sql="`staging`.`s`.`base_0`")
    assert pinned("SELECT m.x, s.m.x FROM m", {"lake.s.m": table}) == (
        "SELECT m.x, `m`.x FROM (`staging`.`s`.`base_0` VERSION AS OF 7 AS `m`)"
    )
    unwritten = PinnedTable(Identifier.parse("lake.s.m"), None, sql="`staging`.`s`.`base_0`")
    assert pinned("SELECT * FROM m x", {"lake.s.m": unwritten}) == (
        "SELECT * FROM (`staging`.`s`.`base_0` TABLESAMPLE (0 ROWS) AS `m`) x"
    )


def test_views_that_read_each_other_are_refused_with_the_cycle() -> None:
    """Spark would not terminate, either."""
    views = (
        nested("lake.s.a", "SELECT * FROM b"),
        nested("lake.s.b", "SELECT * FROM c"),
        nested("lake.s.c", "SELECT * FROM a"),
    )
    with pytest.raises(InvalidQueryError, match=r"cycle: lake\.s\.a -> lake\.s\.b -> lake\.s\.c -> lake\.s\.a"):
        collect("SELECT * FROM a", *views)
    with pytest.raises(InvalidQueryError, match="cycle"):
        pinned("SELECT * FROM a", {}, *views)
    with pytest.raises(InvalidQueryError, match=r"cycle: lake\.sales\.daily -> lake\.sales\.daily"):
        collect(f"SELECT * FROM {VIEW}")


def test_views_are_nested_at_most_64_levels_deep_in_any_order() -> None:
    """Deeper nesting is refused before Spark's stack overflows."""
    views = [nested(f"lake.s.v{n}", f"SELECT * FROM v{n + 1}") for n in range(MAX_VIEW_DEPTH)]
    assert collect("SELECT * FROM v0", *views)[0] == [f"lake.s.v{MAX_VIEW_DEPTH}"]
    too_deep = [*views, nested(f"lake.s.v{MAX_VIEW_DEPTH}", "SELECT 1")]
    with pytest.raises(InvalidQueryError, match="64 deep"):
        collect("SELECT * FROM v0", *too_deep)
    backwards = ", ".join(f"v{n}" for n in range(MAX_VIEW_DEPTH, -1, -1))
    with pytest.raises(InvalidQueryError, match="64 deep"):
        collect(f"SELECT * FROM {backwards}", *too_deep)


def test_views_that_double_in_size_at_each_level_are_refused_before_memory_is_full() -> None:
    """Forty small views can expand to a query of terabytes."""
    views = [nested(f"lake.s.v{n}", f"SELECT * FROM v{n + 1} UNION ALL SELECT * FROM v{n + 1}") for n in range(40)]
    assert collect("SELECT * FROM v0", *views)[0] == ["lake.s.v40"]
    with pytest.raises(InvalidQueryError, match="nested views make a query of over"):
        pinned("SELECT * FROM v0", {"lake.s.v40": 1}, *views)


def test_an_error_in_a_nested_view_names_that_view() -> None:
    """The position is in the nested view's text, not in the text of the view that reads it."""
    with pytest.raises(InvalidQueryError, match=r"view lake\.sales\.daily, nested view lake\.s\.v: line 1, column 15"):
        collect("SELECT * FROM v", nested("lake.s.v", "SELECT * FROM csv.`/t`"))


def test_a_table_without_a_given_snapshot_is_refused() -> None:
    """No table may be read unpinned."""
    with pytest.raises(InvalidQueryError, match=r"no snapshot of lake\.s\.u"):
        pinned("SELECT * FROM t JOIN u", {"lake.s.t": 1})


# ----------------------------------------------------------------------------- partition transforms
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("day", "`day`"),
        (" `a ``b`  ", "`a ``b`"),
        ("days(ts)", "days(`ts`)"),
        ("DAY( TS )", "days(`TS`)"),
        ("years(`ts`)", "years(`ts`)"),
        ("month(ts)", "months(`ts`)"),
        ("hours(ts)", "hours(`ts`)"),
        ("Bucket(16, id)", "bucket(16, `id`)"),
        ("truncate(10,`a ``b`)", "truncate(10, `a ``b`)"),
    ],
)
def test_a_partition_field_is_returned_with_its_column_quoted(text: str, expected: str) -> None:
    assert partition_transform(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "days()",
        "days(ts",
        "weeks(ts)",
        "days(1, ts)",
        "bucket(id)",
        "bucket(0, id)",
        "bucket(99999999999, id)",
        "bucket(id, 16)",
        "truncate(-1, id)",
        "days(ts), id",
        "id) LOCATION 'x' --",
        "days(`ts)",
    ],
)
def test_any_other_partition_field_is_refused(text: str) -> None:
    """The text is used in a CREATE TABLE statement."""
    with pytest.raises(InvalidQueryError, match="partition field"):
        partition_transform(text)


def test_half_a_surrogate_pair_is_not_a_string_literal() -> None:
    """Spark would silently store a question mark."""
    with pytest.raises(InvalidQueryError, match="Unicode"):
        string_literal("\ud800")


def test_an_error_of_the_parser_quotes_the_word_and_not_sqlglot_s_token() -> None:
    """``<Token token_type: …>`` has no meaning for the author of a query."""
    with pytest.raises(InvalidQueryError) as raised:
        parsed("SELECT x FROM WHERE y > 1 WHERE")
    assert "Expected table name but got WHERE" in str(raised.value)
    assert "Token" not in str(raised.value)


@pytest.mark.parametrize(
    ("sql", "filtered"),
    [
        ("SELECT d, f, st FROM t", ""),
        ("SELECT d, f FROM t WHERE k > 7", ""),
        ("SELECT d, st FROM t WHERE F > 7", "f"),
        ("SELECT k FROM t WHERE nullif(d, 7) IS NULL", "d"),
        ("SELECT y FROM (SELECT d AS y FROM (SELECT f + 1 AS d FROM t)) WHERE y = 0", "d f"),
        ("SELECT x FROM (SELECT st.x FROM t) WHERE x = 0", "st"),
        ("SELECT x FROM (SELECT st.* FROM t) WHERE x = 0", "st"),
        ("SELECT k FROM (SELECT k, abs(d) FROM t) WHERE `abs(d)` > 7", "d"),
        ("SELECT d, count(*) AS n FROM t GROUP BY d HAVING d > 7", "d"),
        ("SELECT k FROM t JOIN u ON t.d = u.k", "d"),
        ("SELECT k FROM t JOIN u USING (f)", "f d st"),
        ("SELECT k FROM t UNION ALL SELECT k FROM t WHERE k > 0", "f d st"),
        ("WITH c(x) AS (SELECT d FROM t) SELECT x FROM c WHERE x > 7", "f d st"),
    ],
)
def test_no_scan_sees_a_filter_of_a_floating_point_column(sql: str, filtered: str) -> None:
    columns = [("k", "int"), ("f", "float"), ("d", "double"), ("st", "struct<`x`: double>")]
    found = filtered_floats([parsed(sql)], columns)
    assert set(found) == set(filtered.split())
    items, unfiltered = selected([name for name, _ in columns], found)
    ones = {"f": "`f` * 1F AS `f`", "d": "`d` * 1D AS `d`"}
    assert items.split(", ") == [ones[name] if name in {*found} & {*ones} else f"`{name}`" for name, _ in columns]
    assert unfiltered == ("st" in found)
