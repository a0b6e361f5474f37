# SPDX-License-Identifier: Apache-2.0
"""I23: for any parts of an identifier, the generated SQL parses to exactly these parts."""

from __future__ import annotations

import random

import pytest
import sqlglot
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from sqlglot import exp

from airflow_mv.core.refresh.statements import EmptyStorage, PinnedQuery, create_storage, renamed
from airflow_mv.core.script import CreateStorageStep
from airflow_mv.core.spec.identifiers import Identifier, quote, string_literal
from airflow_mv.core.spec.identifiers import quote as script_quote
from airflow_mv.core.sql.query import (
    NestedView,
    ParsedQuery,
    PinnedTable,
    base_tables,
    expand_view,
    parse_query,
    pin_query,
)
from tests.engine.fixtures import lake, lake_folder, spark
from tests.security.mutations import ODD_TEXTS

__all__ = ["lake", "lake_folder", "spark"]

parts = st.text(st.characters(exclude_categories=("Cc", "Cs")), min_size=1, max_size=60)
odd = st.text(st.sampled_from("`'\".;-/*\\ ${}()%a\u202e\u00e9"), min_size=1, max_size=12)
names = parts | odd
identifiers = st.builds(Identifier, names, st.lists(names, min_size=1, max_size=3).map(tuple), names)
#: Plain words around them: an odd name of a table must not change the rest of the statement.
QUERY = "SELECT a.x, 'it''s' AS y FROM {} AS a WHERE a.z > 1"


def parsed(sql: str, namespace: tuple[str, ...] = ("n",)) -> ParsedQuery:
    return parse_query(sql, view="v", default_catalog="c", default_namespace=namespace)


def _tables(sql: str) -> list[tuple[str, ...]]:
    tree = sqlglot.parse_one(sql, dialect="spark")
    return [tuple(part.name for part in table.parts) for table in tree.find_all(exp.Table)]


@settings(max_examples=200, deadline=None)
@given(identifiers, st.integers(0, 2**63 - 1) | st.none())
def test_i23_a_pinned_query_reads_exactly_the_named_table(name: Identifier, snapshot_id: int | None) -> None:
    """The name is quoted by its owner in the query and by this package in the result: one table with these parts."""
    sql = QUERY.format(name.sql())
    if "${" in sql:
        return  # refused, because Spark would substitute a setting
    found = base_tables(parsed(sql), {})
    assert found.tables == (name,)
    tables = {name: PinnedTable(name, snapshot_id)}
    pinned = pin_query(parsed(sql), tables=tables, views={})
    assert _tables(pinned) == [name.parts]
    assert pinned.endswith("AS a WHERE a.z > 1")
    assert pinned.count(name.sql()) == 1


@settings(max_examples=200, deadline=None)
@given(st.lists(names, min_size=1, max_size=4, unique=True), names)
def test_i23_column_names_are_quoted(columns: list[str], view: str) -> None:
    """Columns of a view and of a nested view are untrusted input."""
    for sql in (renamed("SELECT 1", columns), f"SELECT * FROM {expand_view('SELECT 1', tuple(columns), view)}"):
        alias = next(sqlglot.parse_one(sql, dialect="spark").find_all(exp.TableAlias))
        assert [column.name for column in alias.args["columns"]] == columns
    assert script_quote(view) == quote(view)


@settings(max_examples=200, deadline=None)
@given(names)
def test_i23_text_in_a_statement_is_quoted(text: str) -> None:
    """Locations and property values."""
    literal = sqlglot.parse_one(f"SELECT {string_literal(text)} AS a, 1 AS b", dialect="spark")
    assert [item.alias for item in literal.expressions] == ["a", "b"]
    assert len(list(literal.find_all(exp.Literal))) == 2


def test_i23_a_default_namespace_of_any_name_is_quoted() -> None:
    """It comes from the view's metadata, and is not checked as a part of the query's text."""
    name = Identifier("c", ("${env:HOME}", "a`; DROP TABLE t--"), "orders")
    tables = {name: PinnedTable(name, 7)}
    pinned = pin_query(parsed("SELECT * FROM orders", name.namespace), tables=tables, views={})
    assert pinned == "SELECT * FROM `c`.`${env:HOME}`.`a``; DROP TABLE t--`.`orders` VERSION AS OF 7"
    new = EmptyStorage(None, "file:///w", None, (), {}, ())
    script = create_storage(view=name, pinned=PinnedQuery(pinned, (), {}), token="t", new=new)
    assert ("spark.sql.variable.substitute", "false") in script.confs
    assert isinstance(script.steps[-1], CreateStorageStep)


def _odd_names() -> list[str]:
    choice = random.Random(23)
    alphabet = "`'\".;-/*\\ ${}()%aZ\u202e\u00e9\u0301\U0001f600\u2028"
    made = ["".join(choice.choices(alphabet, k=choice.randrange(1, 20))) for _ in range(200)]
    ranges = ["".join(map(chr, range(start, start + 60))) for start in range(0xA0, 0x600, 60)]
    plain = [text for text in ODD_TEXTS if text and text.isprintable() and len(text) < 256]
    return [*made, *ranges, *plain, "select", "__airflow__", "$snapshots", "x" * 255]


def test_i23_spark_itself_parses_every_odd_name_to_exactly_its_parts(spark: SparkSession) -> None:
    """Spark's parser decides; ``${…}`` in a name is a name in the sessions of jobs."""
    parser = spark._jsparkSession.sessionState().sqlParser()
    before = spark.conf.get("spark.sql.variable.substitute")
    spark.conf.set("spark.sql.variable.substitute", "false")
    try:
        for name in _odd_names():
            identifier = Identifier("lake", (name, "n"), name)
            found = parser.parseMultipartIdentifier(identifier.sql())
            assert [found.apply(index) for index in range(found.size())] == ["lake", name, "n", name]
        columns = list(dict.fromkeys(_odd_names()))
        selected = ", ".join(f"{number} AS {quote(column)}" for number, column in enumerate(columns))
        assert spark.sql(f"SELECT {selected}").columns == columns
    finally:
        spark.conf.set("spark.sql.variable.substitute", str(before))


@pytest.mark.parametrize("name", ["`", "a`.`b", "x` VERSION AS OF 1 --", "a`) UNION ALL SELECT * FROM `secret"])
def test_i23_a_name_cannot_end_its_quoting(name: str) -> None:
    """Typical attempts, written out."""
    identifier = Identifier("c", ("n",), name)
    assert _tables(f"SELECT * FROM {identifier.sql()}") == [("c", "n", name)]
    nested = NestedView(identifier, parsed("SELECT 1 AS a"), (name,), 1, "u")
    sql = pin_query(parsed(f"SELECT * FROM {identifier.sql()}"), tables={}, views={identifier: nested})
    assert _tables(sql) == []
