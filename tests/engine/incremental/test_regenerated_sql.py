# SPDX-License-Identifier: Apache-2.0
"""Incremental statements contain regenerated SQL of the view, which must be equivalent, or the refresh is full."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
import sqlglot
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from sqlglot import exp
from sqlglot.dialects.spark import Spark

from airflow_mv.core.ivm import regenerated_sql
from airflow_mv.core.ivm.regeneration import write
from airflow_mv.core.job.analysis import whole_text
from airflow_mv.core.job.context import JobContext
from airflow_mv.core.job.equivalence import check_equivalent
from airflow_mv.core.script import DeterminismStep
from airflow_mv.core.sql.query import parse_tree
from airflow_mv.errors import IncrementalRefusedError, InvalidQueryError
from tests.engine.incremental.test_edges import mode_after, table, view
from tests.engine.support import Lake

COLUMNS = (
    "k int, d double, c decimal(9, 2), s string, ts timestamp, dt date, arr array<int>, m map<string, int>, b boolean"
)
#: One call for each line, over these columns: scalar functions, aggregates, windows, with blank lines between.
CALLS = r"""
log10(d)
log2(d)
log(d)
log(10, d)
ln(d)
to_char(c, '999.99')
to_date(s, 'yyyy-MM-dd')
to_date(s)
date(s)
to_timestamp(s, 'yyyy-MM-dd HH:mm:ss')
date_format(ts, "yyyy-MM-dd'T'HH:mm")
from_unixtime(k, 'yyyy')
unix_timestamp(s, 'yyyy')
ts - INTERVAL 1 HOUR 30 MINUTES
ts + INTERVAL 1 DAY 2 HOURS 3 MINUTES
dt - INTERVAL 1 YEAR 2 MONTHS
ts - INTERVAL '1 2' DAY TO HOUR
ts > TIMESTAMP '2020-01-01 00:00:00'
dt = DATE '2020-01-01'
dt = CAST('2020-01-01' AS DATE)
date_trunc('month', ts)
trunc(dt, 'month')
date_sub(dt, k)
date_add(dt, k)
datediff(dt, dt)
timestampdiff(HOUR, ts, ts)
timestampadd(HOUR, k, ts)
dateadd(DAY, k, dt)
add_months(dt, 1)
months_between(dt, dt, false)
extract(YEAR FROM ts)
date_part('week', ts)
weekday(dt)
unix_date(dt)
from_utc_timestamp(ts, 'CET')
instr(s, 'a')
locate('a', s, 2)
position('a' IN s)
space(k)
substring(s FROM 2 FOR 3)
overlay(s PLACING 'a' FROM 1)
trim(BOTH 'x' FROM s)
ltrim('x', s)
lpad(s, 5)
levenshtein(s, s, 2)
regexp_replace(s, 'a', 'b')
regexp_extract(s, 'a(b)')
split(s, ',', 2)
concat_ws(',', s, s)
decode(k, 1, 'a', 'b')
nvl2(k, 1, 0)
CASE k WHEN 1 THEN 2 END
TRY_CAST(s AS INT)
k::string
k div 2
pmod(k, 2)
floor(c, -1)
k IS NOT NULL
NOT k IS NULL
k NOT BETWEEN 1 AND 2
k NOT IN (1, 2)
s LIKE 'a!%' ESCAPE '!'
s LIKE ANY ('a', 'b')
k IS DISTINCT FROM 1
b IS NOT TRUE
r'a\d'
'a\nb'
1.5D
1.5BD
transform(arr, x -> x + 1)
filter(arr, x -> x IS NOT NULL)
aggregate(arr, 0, (a, x) -> a + x)
arr[0]
element_at(arr, 1)
m['a']
named_struct('a', k).a
struct(k AS a, s AS b)
from_json(s, 'a INT')
sequence(1, k)

percentile_cont(0.5) WITHIN GROUP (ORDER BY d)
percentile_cont(0.5) WITHIN GROUP (ORDER BY d DESC)
percentile_disc(0.5) WITHIN GROUP (ORDER BY d DESC)
percentile(d, 0.5)
percentile_approx(d, 0.5, 100)
median(d)
mode(k)
count(DISTINCT k, s)
sum(k) FILTER (WHERE b)
stddev_pop(d)
first(k, true)
max_by(k, d)
bool_and(b)
listagg(s)
listagg(s, ',') WITHIN GROUP (ORDER BY s DESC)
string_agg(DISTINCT s)

row_number() OVER (PARTITION BY k ORDER BY d DESC)
rank() OVER (ORDER BY d NULLS LAST)
sum(k) OVER (PARTITION BY s ORDER BY d ROWS BETWEEN 1 PRECEDING AND CURRENT ROW)
sum(k) OVER (ORDER BY ts RANGE BETWEEN INTERVAL 1 DAY PRECEDING AND CURRENT ROW)
lag(k, 1, 0) OVER (ORDER BY d)
first_value(k) IGNORE NULLS OVER (ORDER BY d)
"""


#: Two queries over partitioned tables with joined CTEs. ``{r}`` and ``{s}`` are pinned tables.
PARTITIONED = (
    "WITH c AS (SELECT k, d, sum(n) AS n, max(n) AS m FROM {r} WHERE n BETWEEN 1 AND 90 GROUP BY k, d), "
    "e AS (SELECT k, n + 1 AS n FROM c WHERE d > 0) "
    "SELECT a.k, a.m, concat(s.t, 'a, b', 'c') AS t, CAST(b.n AS STRING) AS x, coalesce(a.n, b.n, 7) AS y, "
    "CASE WHEN s.t = 'a' THEN 1 WHEN s.t LIKE 'b%' THEN 2 ELSE 3 END AS z "
    "FROM c AS a JOIN e AS b ON a.k = b.k LEFT JOIN {s} AS s ON s.d = a.d AND s.n > 1 "
    "WHERE a.n > 2 AND a.n - coalesce(b.n, 0) < 50",
    "WITH c AS (SELECT k, d, n FROM {r}) SELECT x.k, row_number() OVER (PARTITION BY x.d ORDER BY x.n DESC) AS p, "
    "round(x.n / 3, 2) AS q FROM (SELECT * FROM c UNION ALL SELECT k, d, n FROM {s} WHERE t IN ('a', 'b')) AS x "
    "JOIN c ON c.d = x.d WHERE EXISTS (SELECT * FROM {s} AS s WHERE s.k = c.k AND s.t > 'x')",
)
#: A function, and another one with the same number of arguments.
OTHER_FUNCTIONS = {exp.Sum: exp.Min, exp.Max: exp.Count, exp.Round: exp.Pow, exp.RowNumber: exp.Rank}
OTHER_OPERATORS = {exp.GT: exp.GTE, exp.LT: exp.LTE, exp.Add: exp.Sub, exp.Sub: exp.Add, exp.Div: exp.Mul}


def mutants(sql: str) -> Iterator[str]:
    """Yield queries that differ from a query in one place and in their meaning."""
    count = len(list(sqlglot.parse_one(sql, dialect="spark").walk()))
    for place in range(count):
        for change in (_another_value, _another_operator, _another_order, _one_part_less):
            tree = sqlglot.parse_one(sql, dialect="spark")
            node = next(node for number, node in enumerate(tree.walk()) if number == place)
            if change(node):
                yield tree.sql(dialect="spark")


def _another_value(node: exp.Expr) -> bool:
    if isinstance(node, exp.Literal):
        node.set("this", f"{node.name}1")
    elif isinstance(node, exp.Table) and node.alias == "s":
        node.args["version"].set("expression", exp.Literal.number(node.args["version"].expression.name + "1"))
    elif isinstance(node, exp.DataType):
        node.set("this", exp.DType.DATE)
    elif isinstance(node, exp.Column) and isinstance(node.parent, exp.Column | exp.Select | exp.Alias):
        node.set("this", exp.to_identifier("d" if node.name == "k" else "k"))
    else:
        return False
    return True


def _another_operator(node: exp.Expr) -> bool:
    other = {**OTHER_FUNCTIONS, **OTHER_OPERATORS}.get(type(node))
    if isinstance(node, exp.Join):
        node.set("side", "" if node.side else "LEFT")
    elif isinstance(node, exp.Ordered):
        node.set("desc", not node.args.get("desc"))
    elif isinstance(node, exp.Union):
        node.set("distinct", not node.args.get("distinct"))
    elif isinstance(node, exp.Exists | exp.In | exp.Like):
        node.replace(exp.Not(this=node.copy()))
    elif other is not None:
        node.replace(other(**node.args))
    else:
        return False
    return True


def _another_order(node: exp.Expr) -> bool:
    is_list = isinstance(node, exp.Func) or (isinstance(node, exp.Select) and node.parent is None)
    if is_list and len(node.expressions) > 1:
        node.set("expressions", node.expressions[::-1])
    elif isinstance(node, exp.Sub | exp.Div):
        node.set("this", node.expression.copy())
    elif isinstance(node, exp.Case):
        node.set("ifs", node.args["ifs"][::-1])
    else:
        return False
    return True


def _one_part_less(node: exp.Expr) -> bool:
    if isinstance(node, exp.And):
        node.replace(node.left.copy())
    elif isinstance(node, exp.Concat):  # the same characters in two strings instead of one
        node.set("expressions", [node.expressions[0], *map(exp.Literal.string, ("a", "b", "c"))])
    elif isinstance(node, exp.Select | exp.Group) and len(node.expressions) > 1 and node.parent is None:
        node.set("expressions", node.expressions[:-1])
    else:
        return False
    return True


def equivalent(spark: SparkSession, sql: str, again: str | None = None, *, by_text: bool = False) -> bool:
    """Return whether Spark finds a query and its regenerated SQL equivalent.

    Args:
        spark: The session.
        sql: The query.
        again: The regenerated SQL.
        by_text: Whether to compare as over Spark Connect.
    """
    written = again or regenerated_sql(sql)
    assert isinstance(written, str), written
    work = JobContext(spark, "none")
    work.jvm = None if by_text else work.jvm
    try:
        check_equivalent(work, DeterminismStep(sql, written), work.query(sql))
    except IncrementalRefusedError:
        return False
    return True


def test_every_call_is_regenerated_unchanged(lake: Lake) -> None:
    """A function that sqlglot wrote as another, nearly equivalent one gave stored rows that no query returns."""
    table(lake, "r", COLUMNS)
    for calls in CALLS.strip().split("\n\n"):
        items = [f"{call} AS c{number}" for number, call in enumerate(calls.splitlines())]
        if not equivalent(lake.spark, f"SELECT {', '.join(items)} FROM {lake('r')}"):
            wrong = [item for item in items if not equivalent(lake.spark, f"SELECT {item} FROM {lake('r')}")]
            pytest.fail(f"regenerated differently: {wrong}")


@pytest.mark.parametrize(
    ("call", "other"),
    [
        ("log10(d)", "log(10, d)"),
        ("to_date(s, 'yyyy')", "to_date(s)"),
        ("ts - INTERVAL 1 HOUR 30 MINUTES", "ts - INTERVAL 1 HOUR + INTERVAL 30 MINUTES"),
        ("c + 1", "c + 1.0"),
    ],
)
def test_spark_distinguishes_two_expressions(lake: Lake, call: str, other: str) -> None:
    """This protects against differences that are not known here."""
    table(lake, "r", COLUMNS)
    name = lake("r")
    assert not equivalent(lake.spark, f"SELECT {call} FROM {name}", f"SELECT {other} FROM {name}")


@pytest.mark.slow
def test_a_query_over_partitioned_tables_is_alike_to_itself_alone(lake: Lake) -> None:
    """Spark numbers the CTEs of each query, and the filters that it derives from a join differ each time."""
    for name in ("r", "s"):
        columns = "k int, d int, n int, t string"
        lake.run(f"CREATE TABLE {{ns}}.{name} ({columns}) USING iceberg PARTITIONED BY (d)")
        lake.run(f"INSERT INTO {{ns}}.{name} VALUES (1, 1, 1, 'a'), (2, 2, 2, 'b')")
    pins = {name: f"{lake(name)} VERSION AS OF {lake.snapshot(name)}" for name in ("r", "s")}
    seen = [0, 0]
    for template in PARTITIONED:
        sql = template.format(**pins)
        assert equivalent(lake.spark, sql)
        assert equivalent(lake.spark, sql, by_text=True)
        for mutant in mutants(sql):
            try:
                lake.spark.sql(mutant)
            except PySparkException:
                continue
            by_text = seen[0] > 3 * seen[1]  # that takes longer
            seen[by_text] += 1
            assert not equivalent(lake.spark, sql, mutant, by_text=by_text), mutant
    assert min(seen) >= 12


def test_a_cte_over_a_partitioned_table_is_refreshed_incrementally(lake: Lake) -> None:
    """Joined with another table, and used twice."""
    lake.run(
        "CREATE TABLE {ns}.r (k int, d int, n int) USING iceberg PARTITIONED BY (d)",
        "CREATE TABLE {ns}.s (d int, t string) USING iceberg PARTITIONED BY (d)",
        "INSERT INTO {ns}.r VALUES (1, 1, 10), (2, 2, 20)",
        "INSERT INTO {ns}.s VALUES (1, 'a'), (2, 'b')",
    )
    sql = (
        "WITH c AS (SELECT k, d, sum(n) AS n, count(*) AS m FROM r GROUP BY k, d) "
        "SELECT a.k, a.d, b.n, a.m, s.t FROM c AS a JOIN c AS b ON a.k = b.k JOIN s ON s.d = a.d WHERE s.t > ''"
    )
    view(lake, sql)
    change = ("INSERT INTO {ns}.r VALUES (1, 1, 1), (3, 2, 3)", "INSERT INTO {ns}.s VALUES (3, 'c')")
    assert mode_after(lake, sql, *change) == "replace-keys"
    assert mode_after(lake, sql, "DELETE FROM {ns}.r WHERE k = 2") == "replace-keys"
    assert len(lake.rows("v")) == 2


@pytest.mark.slow
def test_calls_that_were_regenerated_differently_are_refreshed_incrementally(lake: Lake) -> None:
    """Appended rows got LOG(10, 1000), which is not 3, a date in another format, and a time that was one hour off."""
    table(lake, "r", "k int, x double, n decimal(5, 2), s string, t timestamp")
    sql = (
        "SELECT k, log10(x) AS l, to_char(n, '999.99') AS c, to_date(s, 'dd/MM/yyyy') AS d, "
        "t - INTERVAL 1 HOUR 30 MINUTES AS h FROM r "
        "WHERE t - INTERVAL 1 HOUR 30 MINUTES > TIMESTAMP '2020-01-01 00:00:00'"
    )
    view(lake, sql)
    change = "INSERT INTO {ns}.r VALUES (1, 1000, 1.5, '02/01/2020', TIMESTAMP '2020-01-01 02:00:00')"
    assert mode_after(lake, sql, change) == "append"
    assert lake.rows("v")[0][:2] == (1, 3.0)


#: Operators and special forms of Spark. ``{}`` is the place of an operand.
FORMS = r"""
-{}
~{}
NOT {}
{} IS NULL
{} IS NOT NULL
{} IS TRUE
{} IS NOT FALSE
{} IS DISTINCT FROM k
k <=> {}
{} BETWEEN k AND m
k BETWEEN m AND {}
{} NOT IN (k, m)
k IN ({}, m)
{} LIKE k
k LIKE {}
{} NOT LIKE k
{} ILIKE k
{} RLIKE k
{} LIKE ALL (k, m)
{} LIKE k ESCAPE '!'
{}[k]
k[{}]
{}.f
{}::int
TRY_CAST({} AS int)
EXTRACT(YEAR FROM {})
CASE WHEN {} THEN k END
CASE {} WHEN k THEN m ELSE n END
CASE k WHEN {} THEN m ELSE {} END
transform({}, x -> x + 1)
transform(k, x -> {})
named_struct('a', {})
array({}, k)[m]
position({} IN k)
substring({} FROM k FOR m)
overlay({} PLACING k FROM m)
trim(LEADING k FROM {})
INTERVAL '1' DAY + {}
{} - INTERVAL 1 DAY 2 HOURS
sum({}) OVER (PARTITION BY k ORDER BY m)
sum(k) OVER (PARTITION BY {} ORDER BY {} DESC)
sum(k) FILTER (WHERE {})
count(DISTINCT {}, k)
{} + k
k - {}
k / {}
{} DIV k
k % {}
{} & k
k | {}
{} ^ k
{} << k
k >> {}
{} = k
k <> {}
{} < k
k >= {}
{} AND k
k OR {}
{} || k
""".strip().splitlines()
#: Calls that sqlglot reads as operators.
AS_OPERATORS = """
like({}, k)
like(k, {}, '!')
ilike({}, k)
rlike(k, {})
regexp_like({}, k)
mod({}, k)
mod(k, {})
div({}, k)
and({}, k)
or(k, {})
ltrim(k, {})
nvl({}, k)
date({})
double({})
from_utc_timestamp({}, k)
""".strip().splitlines()
_CALL = re.compile(r"\w+\([^()]*\)")
#: Functions that no view calls, or whose calls have their own forms. A cast of a cast to a timestamp is written as one.
NOT_CALLED = {
    *("any", "between", "case", "not", "reflect", "java_method", "try_reflect", "some", "when", "window"),
    *("input_file_block_length", "input_file_block_start", "input_file_name", "spark_partition_id"),
    *("collate", "timestamp", "monotonically_increasing_id", "session_window"),
}


def _item(expression: str) -> str | None:
    """Return an expression as it is regenerated; ``None`` for one that is refused."""
    begin, end = "SELECT ", " AS y FROM lake.s.t"
    written = regenerated_sql(f"{begin}{expression}{end}")
    return written[len(begin) : -len(end)] if isinstance(written, str) else None


def _texts(outer: str, inner: str) -> tuple[str, str, str] | None:
    """Return one form inside another one: as written; regenerated; regenerated one by one, with parentheses."""
    part = inner.format("a", "a")
    if not _CALL.fullmatch(outer) and not _CALL.fullmatch(inner):
        part = f"({part})"
    whole = outer.format(part, part)
    found, around, alone = (_item(text) for text in (whole, outer.format("zz", "zz"), part))
    if found is None or around is None or alone is None:
        return None
    return whole, found, around.replace("zz", f"({alone})")


def _differing(spark: SparkSession, outer: list[str], inner: list[str]) -> tuple[int, list[str]]:
    """Regenerate every form inside every other one, and let Spark parse the result.

    Returns:
        How many were compared, and those that Spark reads in another way than the parts that were regenerated alone.
    """
    jvm: Any = spark._jsparkSession
    parser = jvm.sessionState().sqlParser()

    @cache
    def plan(expression: str) -> str | None:
        try:
            return re.sub(r"#\d+", "", str(parser.parsePlan(f"SELECT {expression} AS y").toString()))
        except (Py4JJavaError, PySparkException):
            return None

    texts = [item for form in outer for operand in inner if (item := _texts(form, operand))]
    valid = [(found, wanted) for whole, found, wanted in texts if plan(whole) and plan(wanted)]
    return len(valid), [found for found, wanted in valid if plan(found) != plan(wanted)]


def test_a_call_that_is_written_as_an_operator_keeps_its_parentheses(spark: SparkSession) -> None:
    """``mod(a + 1, b) * 2`` became ``a + 1 % b * 2``: the job fell back where ``explain`` had promised an append."""
    with whole_text(JobContext(spark, "none")):
        compared, wrong = _differing(spark, AS_OPERATORS, FORMS[::3])
        others, more = _differing(spark, FORMS[::2], AS_OPERATORS)
    assert wrong + more == []
    assert compared + others > 500


@pytest.mark.slow
def test_every_function_and_operator_inside_every_other_keeps_its_place(spark: SparkSession) -> None:
    """All operators in all, and each function of Spark in and around them: about 38,000 expressions."""
    names = [str(row[0]) for row in spark.sql("SHOW ALL FUNCTIONS").collect()]
    calls = [f"{name}({{}}, k)" for name in names if name.isidentifier() and name not in NOT_CALLED]
    with whole_text(JobContext(spark, "none")):
        results = [
            _differing(spark, [*FORMS, *AS_OPERATORS], [*FORMS, *AS_OPERATORS]),
            _differing(spark, [*FORMS, *AS_OPERATORS], calls),
            _differing(spark, calls, ["a + k", "a OR k", "a IS NULL", *AS_OPERATORS[:4]]),
        ]
    assert [text for _, wrong in results for text in wrong] == []
    assert sum(compared for compared, _ in results) > 30_000


#: Places of a name in a query.
PLACES = (
    "SELECT {w} FROM t", "SELECT t.{w} FROM t", "SELECT 1 AS {w}", "SELECT a {w}, b FROM t",
    "SELECT a FROM t WHERE {w} > 1",
    "SELECT {w}.x FROM t AS {w}", "SELECT * FROM ns.{w}", "SELECT * FROM t {w}", "SELECT 1 + {w} AS y FROM t",
    "SELECT a FROM t ORDER BY {w} DESC", "SELECT {w}, count(*) FROM t GROUP BY {w}", "SELECT f(a, {w}) AS y FROM t",
    "WITH {w} AS (SELECT 1 AS x) SELECT * FROM {w}", "SELECT a FROM t JOIN u ON t.{w} = u.{w}",
    "SELECT {w}[0] AS y FROM t",
    "SELECT * FROM t JOIN u USING ({w})", "SELECT a FROM t WHERE {w} IS NULL", "SELECT CAST({w} AS INT) AS y FROM t",
)  # fmt: skip
#: Words that Spark takes for names in places where sqlglot takes them for what they usually are. Plan equivalence
#: keeps such a query from an incremental refresh.
AS_USUAL = {
    *("all", "as", "case", "current_date", "current_timestamp", "current_user", "distinct", "else", "except", "false"),
    *("from", "in", "intersect", "join", "minus", "not", "null", "over", "session_user", "table", "then", "true"),
    *("union", "when"),
}


@pytest.mark.parametrize("each", [11, pytest.param(1, marks=pytest.mark.slow)])
def test_a_word_is_a_name_where_it_is_one_for_spark(spark: SparkSession, each: int) -> None:
    """Otherwise the error says which word to write in backticks."""
    jvm: Any = spark._jsparkSession
    parser = jvm.sessionState().sqlParser()
    words = {str(row[0]).lower() for row in spark.sql("SELECT keyword FROM sql_keywords()").collect()}
    words |= {word.lower() for word in Spark.Tokenizer.KEYWORDS if word.isidentifier()}
    pairs = [(place, word) for word in sorted(words - AS_USUAL) for place in PLACES][::each]
    wrong = []
    with whole_text(JobContext(spark, "none")):
        for place, word in pairs:
            plain, quoted = place.replace("{w}", word), place.replace("{w}", f"`{word}`")
            if _parsed_by(parser, plain) == _parsed_by(parser, quoted) and not _is_name(plain, quoted, word):
                wrong.append(plain)
    assert wrong == []


def _parsed_by(parser: Any, sql: str) -> str:
    try:
        return re.sub(r"#\d+", "", str(parser.parsePlan(sql).toString()))
    except (Py4JJavaError, PySparkException):
        return sql  # it differs from the same text with backticks


def _is_name(plain: str, quoted: str, word: str) -> bool:
    """Whether a word is read like the name in backticks, or refused with the words that it belongs into them."""
    try:
        tree = parse_tree(plain, view="v")
    except InvalidQueryError as error:
        return f"`{word}` in backticks" in str(error)
    return write(tree) == write(parse_tree(quoted, view="v"))


def test_a_query_whose_regenerated_sql_differs_is_refreshed_in_full(lake: Lake) -> None:
    """sqlglot parses '' inside of a string as the end of one string and the start of another."""
    table(lake, "r", "k int", "(1)")
    view(lake, "SELECT k, 'it''s' AS t FROM r WHERE k > 0")
    lake.run("INSERT INTO {ns}.r VALUES (2)")
    result = lake.refresh("v", on_fallback="full")
    assert (result.mode, str(result.reasons[-1].code)) == ("full", "INCREMENTAL_UNAVAILABLE")
    message = result.reasons[-1].message
    assert re.search(r"would mean something else in .* refresh: .*it's AS t.* would be .*its AS t", message), message
    assert len({row[1] for row in lake.rows("v")}) == 1
