# SPDX-License-Identifier: Apache-2.0
"""SQL that a view must not contain. It runs with the rights of Spark's driver, so it is checked before Spark parses it.

Each text is refused when a view is created, and if another engine has stored it in a materialized view.
"""

from __future__ import annotations

import re
import time

import pytest

from airflow_mv.core.refresh import plan_refresh
from airflow_mv.core.sql.dialect import BoundedParser
from airflow_mv.core.sql.query import base_tables, parse_query
from airflow_mv.errors import InvalidQueryError
from tests.cli.support import call
from tests.security.conftest import VIEW, Shop, error_of, refused_or_works
from tests.security.test_hostile_metadata import with_sql

REFUSED = {
    # Java
    "reflect": ("SELECT reflect('java.lang.Runtime', 'getRuntime')", "calls any Java code"),
    "java_method": ("SELECT java_method('java.lang.System', 'getenv', 'HOME')", "calls any Java code"),
    "try_reflect": ("SELECT try_reflect('java.lang.System', 'exit', 1)", "calls any Java code"),
    "upper case and a comment": ("SELECT ReFleCT /* x */ ('java.lang.System', 'exit', 1)", "calls any Java code"),
    "in backticks": ("SELECT `reflect`('java.lang.System', 'exit', 1)", "calls any Java code"),
    "with its schema": ("SELECT system.builtin.java_method('a', 'b')", "calls any Java code"),
    "in a lambda": ("SELECT transform(array('a'), x -> reflect('java.lang.System', 'getenv', x))", "calls any Java"),
    "in a subquery": ("SELECT * FROM orders WHERE id IN (SELECT reflect('a', 'b'))", "calls any Java code"),
    "as a table function": ("SELECT * FROM orders LATERAL VIEW explode(reflect('a', 'b')) t AS x", "calls any Java"),
    # files by path
    "parquet by path": ("SELECT * FROM parquet.`/etc/passwd`", "reads files by path"),
    "text by path": ("SELECT * FROM text.`file:///etc/passwd`", "reads files by path"),
    "csv by path in a join": ("SELECT * FROM orders JOIN CSV.`/etc/passwd` USING (id)", "reads files by path"),
    "an Iceberg table by path": ("SELECT * FROM iceberg.`s3://salaries/t`", "outside of this catalog's folders"),
    "a link out of the warehouse": ("SELECT * FROM iceberg.`/etc/../etc`", "leads out of its folder"),
    "read_files": ("SELECT * FROM read_files('/etc/passwd')", "the table function read_files"),
    "an XML schema by path": (
        "SELECT from_xml(region, 'a int', map('rowValidationXSDPath', '/etc/passwd')) FROM orders",
        "may read a file by path",
    ),
    "an XML schema by a hidden path": (
        "SELECT from_xml(region, 'a int', map(concat('rowValidation', 'XSDPath'), '/etc/passwd')) FROM orders",
        "may read a file by path",
    ),
    "an Avro schema by path": (
        "SELECT from_avro(CAST('x' AS BINARY), '\"int\"', map('avroSchemaUrl', '/etc/passwd'))",
        "may read a file by path",
    ),
    "a Protobuf descriptor by path": (
        "SELECT from_protobuf(CAST('x' AS BINARY), 'M', '/etc/passwd')",
        "may read a file by path",
    ),
    # programs
    "TRANSFORM": ("SELECT TRANSFORM(id) USING 'cat /etc/passwd' FROM orders", "runs a program"),
    "a script of SQL": ("BEGIN SELECT 1; END", "must begin with SELECT or WITH"),
    # secrets of the session and the host
    "an environment variable": ("SELECT '${env:AWS_SECRET_ACCESS_KEY}'", "a setting of its session"),
    "a system property": ("SELECT '${system:user.home}'", "a setting of its session"),
    "a Spark setting": ("SELECT '${spark.sql.catalog.lake.jdbc.password}'", "a setting of its session"),
    # statements
    "two statements": ("SELECT 1; DROP TABLE lake.sales.orders", "several statements"),
    "DROP": ("DROP TABLE lake.sales.orders", "not a query"),
    "INSERT": ("INSERT INTO orders VALUES (1, 'x', 1)", "not a query"),
    "INSERT in a WITH": ("WITH a AS (SELECT 1) INSERT INTO orders SELECT * FROM a", "not a query"),
    "FROM … INSERT": ("FROM orders INSERT OVERWRITE TABLE orders SELECT *", "not a query"),
    "MERGE": ("MERGE INTO orders USING orders ON true WHEN MATCHED THEN DELETE", "not a query"),
    "DELETE": ("DELETE FROM orders", "not a query"),
    "CALL": ("CALL lake.system.rollback_to_snapshot('sales.orders', 1)", "not a query"),
    "SET": ("SET spark.sql.catalog.lake.uri = x", "not a query"),
    "ADD JAR": ("ADD JAR '/tmp/evil.jar'", "not a query"),
    "a temporary function": ("CREATE TEMPORARY FUNCTION f AS 'evil.Class'", "not a query"),
    "EXECUTE IMMEDIATE": ("EXECUTE IMMEDIATE 'DROP TABLE t'", "not a query"),
    "names that are computed": ("SELECT * FROM IDENTIFIER('lake.sales.' || 'orders')", "hides the name"),
    # queries that cannot be pinned
    "time travel to another state each time": ("SELECT * FROM orders TIMESTAMP AS OF now()", "time travel can be"),
    "itself": (f"SELECT * FROM {VIEW}", "cycle"),
    "10 MiB": ("SELECT '" + "x" * 10_485_760 + "'", "at most 1048576"),
    "500 levels": ("SELECT " + "(" * 500 + "1" + ")" * 500, "nested too deeply"),
    "doubling joins": ("SELECT * FROM orders " + "JOIN orders " * 60, "takes sqlglot too long|too deeply"),
    "an unclosed comment": ("SELECT 1 /* /*", "never closed|cannot be parsed"),
    "half a surrogate pair": ("SELECT '\ud800'", "not Unicode text"),
    "nothing": (" -- nothing", "the query is empty"),
    "a function that is not there": ("SELECT * FROM my_temporary_function(1)", "the table function"),
}  # fmt: skip


#: SQL that cannot be stored in a file, and SQL that takes the parser seconds each time.
UNSTORABLE = ("half a surrogate pair", "nothing", "doubling joins")


@pytest.mark.parametrize("way", REFUSED)
def test_forbidden_sql_is_refused_at_creation_and_nothing_is_left(
    shop: Shop, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before Spark is started: no view, no storage table, one error that says what to change."""
    sql, message = REFUSED[way]
    if way == "doubling joins":  # each parse takes all steps that are allowed
        monkeypatch.setattr(BoundedParser, "MAX_STEPS", BoundedParser.MAX_STEPS // 10)
    if way == "itself":
        sql = "SELECT * FROM lake.sales.new"
    before = sorted((shop.folder / "warehouse").rglob("*"))
    started = time.process_time()
    ended = call("create", "lake.sales.new", "--sql", sql, "--json")
    assert time.process_time() - started < (3 if way == "doubling joins" else 10)
    error = error_of(ended)
    # A view that reads its own name reads a view that does not exist yet.
    assert re.search(message if way != "itself" else "lake.sales.new", error), error
    assert "lake.sales.new" in error
    assert "root:" not in error
    assert sorted((shop.folder / "warehouse").rglob("*")) == before
    assert not shop.lake.catalog.exists("lake.sales.new")


@pytest.mark.parametrize("way", [way for way in REFUSED if way not in UNSTORABLE])
def test_forbidden_sql_is_refused_if_another_engine_stored_it(shop: Shop, way: str) -> None:
    """A user who may alter the view in another engine does not have the worker's rights."""
    sql, message = REFUSED[way]
    shop.with_view(with_sql(shop.document, sql))
    errors = refused_or_works("status", "refresh")
    assert len(errors) == 2
    for error in errors:
        assert VIEW in error
        assert re.search(message, error), error


def test_sql_of_a_nested_plain_view_is_checked_too(shop: Shop) -> None:
    """Its owner may be another user."""
    shop.lake.plain_view(
        "below", "SELECT id, java_method('java.lang.System', 'getenv', 'HOME') FROM sales.orders", ["a", "b"]
    )
    error = error_of(call("create", "lake.sales.outer", "--sql", "SELECT * FROM lake.sales.below", "--json"))
    assert "nested view lake.sales.below" in error
    assert "calls any Java code" in error


def test_views_that_read_each_other_are_refused(shop: Shop) -> None:
    """They would be expanded endlessly."""
    shop.lake.plain_view("a", "SELECT * FROM sales.orders")
    shop.lake.plain_view("b", "SELECT * FROM sales.a")
    shop.lake.plain_view("a", "SELECT * FROM sales.b")
    error = error_of(call("create", "lake.sales.outer", "--sql", "SELECT * FROM lake.sales.a", "--json"))
    assert "views read each other in a cycle: lake.sales.a -> lake.sales.b -> lake.sales.a" in error


ALLOWED = {
    "a hundred joins": "SELECT t0.id FROM orders t0 "
    + " ".join(f"JOIN orders t{n} ON t{n}.id = t0.id" for n in range(1, 100)),
    "templates": "SELECT '{{ 7*7 }}' AS a, '{% raw %}' AS b, '{0} %s' AS c FROM orders",
    "volatile functions": "SELECT rand() AS a, now() AS b, current_user() AS c, uuid() AS d FROM orders",
    "names of refused functions": "SELECT 'reflect(1)' AS `reflect`, id AS java_method FROM orders",
    "from_xml without options": "SELECT from_xml(region, 'a int') AS a FROM orders",
    "a final semicolon": "SELECT id FROM orders;",
    "SQL in comments": "SELECT id FROM orders -- ; DROP TABLE orders\n/* reflect('a') */",
}


@pytest.mark.parametrize("way", ALLOWED)
def test_unusual_but_harmless_sql_is_planned_unchanged(shop: Shop, way: str) -> None:
    """Refusing too much is an error, too. Volatile functions are evaluated at each refresh: see docs/security.md."""
    shop.with_view(with_sql(shop.document, ALLOWED[way].rstrip(";")))
    started = time.process_time()
    plan = plan_refresh(shop.lake.catalog, shop.lake.catalog.identify(VIEW))
    assert time.process_time() - started < 10
    assert [str(record.identifier) for record in plan.records] == ["lake.sales.orders"]


def test_a_thousand_joins_end_within_seconds() -> None:
    """sqlglot parses them recursively; at a thousand there is an error."""
    sql = "SELECT 1 FROM orders t0 " + " ".join(f"JOIN orders t{n} ON t{n}.id = t0.id" for n in range(1, 1001))
    started = time.process_time()
    try:
        query = parse_query(sql, view="v", default_catalog="lake", default_namespace=("sales",))
    except InvalidQueryError as error:
        assert "view v" in str(error)  # noqa: PT017 (either result is accepted)
    else:
        assert len(base_tables(query, {}).tables) == 1
    assert time.process_time() - started < 10
