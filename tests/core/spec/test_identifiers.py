# SPDX-License-Identifier: Apache-2.0
"""Identifiers: which are accepted and refused, and that parsing reverses formatting."""

from __future__ import annotations

import pytest
import sqlglot
from hypothesis import given
from hypothesis import strategies as st
from sqlglot import exp

from airflow_mv.core.spec.identifiers import Identifier, quote, split
from airflow_mv.errors import InvalidIdentifierError

legal_parts = st.text(st.characters(exclude_categories=("Cc", "Cs")), min_size=1, max_size=255)
identifiers = st.builds(Identifier, legal_parts, st.lists(legal_parts, min_size=1, max_size=4).map(tuple), legal_parts)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("lake.sales.daily", Identifier("lake", ("sales",), "daily")),
        ("lake.sales.eu.daily", Identifier("lake", ("sales", "eu"), "daily")),
        ("lake.sales-eu.2024", Identifier("lake", ("sales-eu",), "2024")),
        ("lake.`sales.eu`.`a``b`", Identifier("lake", ("sales.eu",), "a`b")),
        ("lake.verkäufe.täglich", Identifier("lake", ("verkäufe",), "täglich")),
        ("sales.daily", Identifier("home", ("sales",), "daily")),
        ("daily", Identifier("home", ("main", "inner"), "daily")),
    ],
)
def test_a_name_is_read_with_backticks_and_completed_from_the_defaults(text: str, expected: Identifier) -> None:
    """Users may write short names; the code works with full names."""
    assert Identifier.parse(text, default_catalog="home", default_namespace=("main", "inner")) == expected


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "empty"),
        ("a..b", "empty"),
        (".a.b", "empty"),
        ("a.b.", "empty"),
        ("a.``.c", "empty"),
        ("`a.b.c", "unbalanced"),
        ("a.b.c`", "unbalanced"),
        ("a.`b`c`.d", "backtick"),
        ("a.b c.d", "backticks"),
        ("a.b;drop.d", "backticks"),
        ("a.b.'c'", "backticks"),
        ("a.b.`c\0`", "control character"),
        ("a.b.`c\x1f`", "control character"),
        ("a.`b\n`.c", "control character"),
        ("a.b.`\ud800`", "control character"),
        ("a.b." + "x" * 256, "256 characters"),
        ("a", "too few parts"),
        ("a.b", "too few parts"),
    ],
)
def test_an_invalid_name_is_refused_with_the_reason(text: str, reason: str) -> None:
    """Names are used in SQL, file paths and database rows, so they are validated first."""
    with pytest.raises(InvalidIdentifierError, match=reason):
        Identifier.parse(text)


def test_a_name_of_one_part_needs_a_default_namespace_too() -> None:
    """A guessed namespace could name another table."""
    with pytest.raises(InvalidIdentifierError, match="too few parts"):
        Identifier.parse("daily", default_catalog="lake")


@pytest.mark.parametrize(
    "parts", [("", ("s",), "t"), ("c", ("",), "t"), ("c", (), "t"), ("c", ("s",), "\x1f"), ("c", ("s",), "x" * 256)]
)
def test_every_way_to_create_an_identifier_validates_it(parts: tuple[str, tuple[str, ...], str]) -> None:
    """Identifiers also come from catalogs and stored files, not only from user input."""
    with pytest.raises(InvalidIdentifierError):
        Identifier(*parts)


@given(identifiers)
def test_reading_what_was_written_gives_the_same_identifier(identifier: Identifier) -> None:
    """Names are stored as text in refresh records and read back."""
    assert Identifier.parse(str(identifier)) == identifier
    assert Identifier.parse(identifier.sql()) == identifier


@given(identifiers)
def test_the_sql_form_is_read_by_a_spark_parser_as_exactly_these_parts(identifier: Identifier) -> None:
    """No part of a name can end the name and start other SQL."""
    table = sqlglot.parse_one(f"SELECT * FROM {identifier.sql()}", dialect="spark").find(exp.Table)
    assert table is not None
    assert tuple(part.name for part in table.parts) == identifier.parts


@given(st.text(max_size=40))
def test_any_text_is_parsed_as_a_name_or_refused_with_one_error_type(text: str) -> None:
    try:
        identifier = Identifier.parse(text)
    except InvalidIdentifierError:
        return
    assert Identifier.parse(str(identifier)) == identifier


def test_the_readable_form_uses_backticks_only_where_they_are_needed() -> None:
    """Users read it in logs and paste it into Spark."""
    assert str(Identifier("lake", ("sales-eu",), "daily_1")) == "lake.`sales-eu`.daily_1"
    assert quote("a`b") == "`a``b`"
    assert split("`a``b`.c") == ("a`b", "c")


def test_identifiers_sort_by_catalog_namespace_and_name() -> None:
    """Stored lists of tables are sorted by it."""
    names = ["b.a.a", "a.b.a", "a.a.b", "a.a.a"]
    assert [str(i) for i in sorted(map(Identifier.parse, names))] == sorted(names)
