# SPDX-License-Identifier: Apache-2.0
"""A pinned query returns, in Spark, the rows that the user's own text returned before later commits."""

from __future__ import annotations

import gc
import random
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyspark.sql import SparkSession

from airflow_mv.core.spec.identifiers import Identifier, string_literal
from airflow_mv.core.spec.properties import partition_transform
from airflow_mv.core.sql.query import (
    NestedView,
    ParsedQuery,
    PinnedTable,
    base_tables,
    parse_query,
    pin_query,
)
from airflow_mv.extras.spark.session import open_session
from airflow_mv.extras.spark.settings import spark_settings
from tests.core.job.changing import QUICK

#: PySpark does not close the socket of each collect(), but leaves it to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")

CATALOG = "pinned_lake"
HOME = f"{CATALOG}.sales"
CUSTOMERS = Identifier(CATALOG, ("sales",), "customers")
ODD = Identifier(CATALOG, ("odd ns; é",), "t'a\"b``le. ü😀; -- /* DROP")


def parsed(sql: str, namespace: str = "sales") -> ParsedQuery:
    return parse_query(sql, view="v", default_catalog=CATALOG, default_namespace=(namespace,))


VIEWS = [
    NestedView(
        Identifier(CATALOG, ("sales",), "big"),
        parsed(
            "WITH orders AS (SELECT * FROM orders WHERE amount >= 20) -- orders\nSELECT id, amount FROM orders -- end"
        ),
        ("big id", "worth"),
        1,
        "big",
    ),
    NestedView(
        Identifier(CATALOG, ("odd ns; é",), "biggest"),
        parsed("SELECT max(b.worth) FROM sales.big AS b, sales.customers HAVING count(*) > 1;", "odd ns; é"),
        ("top",),
        1,
        "biggest",
    ),
]

QUERIES = {
    "star": "SELECT * FROM orders",
    "qualified columns": f"SELECT orders.amount, sales.orders.id, {HOME}.orders.customer, {HOME}.orders.* FROM orders",
    "other spelling": "SELECT ORDERS.amount FROM `sales`.`orders` WHERE Sales.Orders.id > 1",
    "join": "SELECT orders.id, customers.name FROM orders JOIN customers ON orders.customer = customers.id",
    "join with aliases": "SELECT o.id, c.name FROM orders AS o LEFT JOIN sales.customers c ON o.customer = c.id",
    "self join": "SELECT a.id, b.id FROM orders a JOIN orders b ON a.amount < b.amount",
    "column aliases": "SELECT x, y FROM customers AS c(x, y)",
    "a CTE hides its own table": "WITH orders AS (SELECT * FROM orders WHERE id = 1) SELECT * FROM Orders, customers",
    "nested CTEs": """
        WITH a AS (WITH customers AS (SELECT id FROM orders) SELECT * FROM customers), b AS (SELECT count(*) n FROM a)
        SELECT a.id, b.n, customers.name FROM a, b, customers""",
    "a CTE in a subquery": """
        SELECT * FROM (WITH customers AS (SELECT 1 AS id) SELECT id FROM customers) JOIN customers USING (id)""",
    "a CTE of one branch": "(WITH orders AS (SELECT 99 AS id) SELECT id FROM orders) UNION ALL SELECT id FROM orders",
    "a recursive CTE": """
        WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < (SELECT count(*) FROM customers))
        SELECT i FROM n""",
    "correlated subquery": """
        SELECT name, (SELECT sum(amount) FROM orders WHERE orders.customer = customers.id) AS total FROM customers
        WHERE EXISTS (SELECT 1 FROM orders o WHERE o.customer = customers.id)
           OR id NOT IN (SELECT customer FROM orders)""",
    "having": "SELECT customer FROM orders GROUP BY customer HAVING sum(amount) >= (SELECT max(amount) FROM orders)",
    "union": "SELECT id FROM orders UNION ALL SELECT id FROM customers MINUS SELECT amount / 20 FROM orders",
    "lateral view": "SELECT orders.id, t.tag FROM orders LATERAL VIEW OUTER explode(tags) t AS tag",
    "lateral": "SELECT name, m FROM customers c, LATERAL (SELECT max(amount) m FROM orders WHERE customer = c.id) l",
    "table functions": "SELECT r.id, e.col FROM range(2) r CROSS JOIN orders o, LATERAL explode(o.tags) e",
    "pivot": "SELECT * FROM orders PIVOT (sum(amount) FOR customer IN (1, 2))",
    "sample": "SELECT orders.id FROM orders TABLESAMPLE (100 PERCENT)",
    "hints": "SELECT /*+ BROADCAST(customers), COALESCE(2) */ name FROM orders JOIN customers USING (id)",
    "comments and strings": """
        /* orders */ SELECT 'orders', "it's orders", '\\' FROM orders', id AS `customers` -- FROM customers
        FROM orders -- , customers
        WHERE 'customers' /* /* orders */ */ <> '' ;""",
    "from first and pipes": "FROM orders |> JOIN customers USING (id) |> WHERE amount > 10 |> SELECT name, amount",
    "struct fields": "SELECT info.city, orders.info.city AS c, sales.orders.info.city AS d FROM orders ORDER BY 1",
    "odd names": f"SELECT t.`c``o;l ü`, {ODD.sql()}.`c``o;l ü` FROM {ODD.sql()} JOIN {ODD.sql()} AS t ON true",
    "never written": """
        SELECT empty.x, e.* FROM orders LEFT JOIN empty ON x = orders.id LEFT JOIN empty TABLESAMPLE (9 ROWS) e""",
    "nested view": "SELECT * FROM big",
    "nested view, columns": f"SELECT big.`big id`, sales.big.worth, {HOME}.Big.worth w, {HOME}.big.* FROM {HOME}.big",
    "nested view, alias": "SELECT b.worth, o.id FROM orders o JOIN sales.big AS b ON b.`big id` = o.id",
    "nested view, sample": "SELECT b.x FROM big TABLESAMPLE (100 PERCENT) AS b(x, y)",
    "nested view, twice": "SELECT a.worth FROM big a JOIN big USING (worth) WHERE a.worth IN (SELECT worth FROM big)",
    "nested view of a view": "SELECT biggest.top FROM `odd ns; é`.biggest",
}


@dataclass(frozen=True)
class Runs:
    """The result of each query before the later commits, and its pinned text."""

    spark: SparkSession
    before: dict[str, list[str]]
    pinned: dict[str, str]


def rows(spark: SparkSession, sql: str) -> list[str]:
    """Return the names of the columns, then the rows sorted by their text."""
    frame = spark.sql(sql)
    return [str(frame.columns), *sorted(map(str, frame.collect()))]


def build(spark: SparkSession, folder: Path) -> None:
    """Write two commits to each table but one."""
    spark.sql(f"CREATE NAMESPACE {HOME}")
    spark.sql(
        f"CREATE TABLE {HOME}.orders (id INT, customer INT, amount INT, tags ARRAY<STRING>, info STRUCT<city STRING>)"
    )
    spark.sql(f"CREATE TABLE {HOME}.customers (id INT, name STRING)")
    spark.sql(f"CREATE TABLE {HOME}.empty (x INT)")
    spark.sql(f"CREATE NAMESPACE {CATALOG}.`odd ns; é`")
    spark.sql(f"CREATE TABLE {ODD.sql()} (`c``o;l ü` INT) LOCATION {string_literal(folder.as_uri() + '/odd')}")
    write(spark, 1)
    write(spark, 2)
    for view in VIEWS:
        columns = ", ".join(f"`{column}`" for column in view.columns)
        spark.sql(f"USE {CATALOG}.`{view.query.default_namespace[0]}`")
        spark.sql(f"CREATE VIEW {view.identifier.sql()} ({columns}) AS {view.query.text}")


def write(spark: SparkSession, n: int) -> None:
    orders = f"({n}, {n}, {n * 10}, array('a', 'b{n}'), named_struct('city', 'c{n}'))"
    spark.sql(f"INSERT INTO {HOME}.orders VALUES {orders}")
    spark.sql(f"INSERT INTO {HOME}.customers VALUES ({n}, 'n{n}')")
    spark.sql(f"INSERT INTO {ODD.sql()} VALUES ({n})")


def change(spark: SparkSession) -> None:
    """Add rows to every table, and a column to one."""
    write(spark, 3)
    spark.sql(f"INSERT INTO {HOME}.empty VALUES (1)")
    spark.sql(f"UPDATE {HOME}.orders SET amount = amount + 100, customer = 3")
    spark.sql(f"UPDATE {HOME}.customers SET name = 'other'")
    spark.sql(f"ALTER TABLE {HOME}.orders ADD COLUMN added INT FIRST")


def pin_all(spark: SparkSession) -> dict[str, str]:
    """Pin each query to the current snapshots."""
    views = {view.identifier: view for view in VIEWS}
    tables: dict[Identifier, PinnedTable] = {}
    pinned = {}
    for name, sql in QUERIES.items():
        found = base_tables(parsed(sql), views)
        for table in found.tables:
            if table not in tables:
                history = spark.sql(f"SELECT snapshot_id FROM {table.sql()}.snapshots ORDER BY committed_at DESC")
                head = history.first()
                tables[table] = PinnedTable(table, head[0] if head else None)
        pinned[name] = pin_query(parsed(sql), tables=tables, views=views)
    return pinned


@pytest.fixture(scope="module")
def runs(session: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    folder = tmp_path_factory.mktemp("lake")
    properties = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"{folder.as_uri()}/warehouse"}
    SqlCatalog(CATALOG, **properties).engine.dispose()  # makes the database's tables
    spark = open_session(spark_settings(CATALOG, properties).session_confs())
    settings = {"spark.sql.shuffle.partitions": "2", **QUICK}
    for key, value in settings.items():
        spark.conf.set(key, value)
    try:
        build(spark, folder)
        spark.sql(f"USE {HOME}")
        before = {name: rows(spark, sql) for name, sql in QUERIES.items()}
        pinned = pin_all(spark)
        spark.sql("USE spark_catalog.default")
        change(spark)
        yield Runs(spark, before, pinned)
    finally:
        spark.sql("USE spark_catalog.default")
        for key in settings:
            spark.conf.unset(key)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.mark.parametrize("name", QUERIES)
def test_a_pinned_query_returns_the_rows_from_before_later_commits(runs: Runs, name: str) -> None:
    """It runs in a session with another current catalog, as in a job."""
    assert len(runs.before[name]) > 1
    assert rows(runs.spark, runs.pinned[name]) == runs.before[name]


def test_the_later_commits_changed_the_result_of_the_user_s_text(runs: Runs) -> None:
    """Otherwise the other tests of this file would prove nothing."""
    runs.spark.sql(f"USE {HOME}")
    try:
        same = [name for name, sql in QUERIES.items() if rows(runs.spark, sql) == runs.before[name]]
    finally:
        runs.spark.sql("USE spark_catalog.default")
    assert same == []


def test_a_pinned_query_can_be_inserted_and_renamed(runs: Runs) -> None:
    """A refresh does this with the query, whatever its first and last tokens are."""
    for text in runs.pinned.values():
        runs.spark.sql(f"EXPLAIN SELECT * FROM (\n{text}\n) AS `__view`")
        runs.spark.sql(f"EXPLAIN INSERT OVERWRITE {HOME}.empty SELECT count(*) FROM (\n{text}\n)")


def test_a_table_that_is_read_by_another_name_is_qualified_by_its_own(runs: Runs) -> None:
    """A materialized view is read from its storage table, which the staging catalog registers under another name."""
    snapshot = runs.spark.sql(f"SELECT snapshot_id FROM {HOME}.customers.snapshots ORDER BY committed_at").collect()[0][
        0
    ]
    member = Identifier(CATALOG, ("sales",), "member")

    def pinned(sql: str, snapshot_id: int | None) -> list[str]:
        tables = {member: PinnedTable(member, snapshot_id, sql=CUSTOMERS.sql())}
        text = pin_query(parsed(sql), tables=tables, views={})
        return rows(runs.spark, text)

    sql = f"SELECT member.id, sales.member.name, {HOME}.member.name AS n FROM member TABLESAMPLE (100 PERCENT)"
    assert pinned(sql, snapshot) == ["['id', 'name', 'n']", "Row(id=1, name='n1', n='n1')"]
    assert pinned(sql, None) == ["['id', 'name', 'n']"]
    assert pinned("SELECT m.x FROM member AS m(x, y)", snapshot) == ["['x']", "Row(x=1)"]


def test_a_string_literal_has_exactly_its_text_in_spark(runs: Runs) -> None:
    """Locations and property values may contain any characters."""
    choice = random.Random(7)
    alphabet = "'\"`\\\n\r\t\0\x1a\b%_uU0aé😀 ${};-/*"
    texts = [
        "",
        "it's",
        "\\",
        "\\\\'",
        "\\u0041 \\n \\% \\_",
        "${spark.app.name} $ {x} ${",
        "'; DROP TABLE x; --",
        "r'a'",
    ]
    texts += ["".join(map(chr, range(0x300))), "\u2028\ufeff\uffff\U0010ffff"]
    texts += ["".join(choice.choices(alphabet, k=choice.randrange(40))) for _ in range(200)]
    row = runs.spark.sql(
        f"SELECT {', '.join(f'{string_literal(text)} AS c{n}' for n, text in enumerate(texts))}"
    ).first()
    assert row is not None
    assert list(row) == texts


def test_each_partition_field_is_accepted_by_spark(runs: Runs) -> None:
    """The text is checked before Spark starts: what passes must be accepted by Spark."""
    texts = [
        "id",
        "`o``d d`",
        "year(ts)",
        "bucket(4, id)",
        "truncate(3, `o``d d`)",
        "hours(ts)",
        "MONTHS(ts)",
        "days(ts)",
    ]
    for number, text in enumerate(texts):
        field = partition_transform(text)
        table = f"{HOME}.p{number}"
        runs.spark.sql(f"CREATE TABLE {table} (id INT, ts TIMESTAMP, `o``d d` STRING) PARTITIONED BY ({field})")
        described = runs.spark.sql(f"DESCRIBE {table}").collect()
        assert any(item[0] == "Part 0" or item[0].startswith("# Partition") for item in described), text
