# SPDX-License-Identifier: Apache-2.0
"""Names: what can be written, what is refused, and that writing and reading are inverse."""

from __future__ import annotations

import pytest
import sqlglot
from hypothesis import given
from hypothesis import strategies as st
from sqlglot import exp

from airflow_mv.errors import InvalidIdentifierError
from airflow_mv.quoting import quote
from airflow_mv.spec.identifiers import Identifier, split

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
    """Users write short names; everything inside works on full ones."""
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
def test_what_cannot_be_a_name_is_refused_with_the_place_or_the_part(text: str, reason: str) -> None:
    """A name goes into SQL, file paths and database rows: nothing odd may get that far."""
    with pytest.raises(InvalidIdentifierError, match=reason):
        Identifier.parse(text)


def test_a_name_of_one_part_needs_a_default_namespace_too() -> None:
    """Guessing a namespace would read another table."""
    with pytest.raises(InvalidIdentifierError, match="too few parts"):
        Identifier.parse("daily", default_catalog="lake")


@pytest.mark.parametrize(
    "parts", [("", ("s",), "t"), ("c", ("",), "t"), ("c", (), "t"), ("c", ("s",), "\x1f"), ("c", ("s",), "x" * 256)]
)
def test_no_way_of_making_an_identifier_skips_the_checks(parts: tuple[str, tuple[str, ...], str]) -> None:
    """Identifiers also come from catalogs and stored files, not only from written names."""
    with pytest.raises(InvalidIdentifierError):
        Identifier(*parts)


@given(identifiers)
def test_reading_what_was_written_gives_the_same_identifier(identifier: Identifier) -> None:
    """Names are stored as text in refresh records and read back."""
    assert Identifier.parse(str(identifier)) == identifier
    assert Identifier.parse(identifier.sql()) == identifier


@given(identifiers)
def test_the_sql_form_is_read_by_a_spark_parser_as_exactly_these_parts(identifier: Identifier) -> None:
    """Whatever a part holds, it cannot end the name and begin other SQL."""
    table = sqlglot.parse_one(f"SELECT * FROM {identifier.sql()}", dialect="spark").find(exp.Table)
    assert table is not None
    assert tuple(part.name for part in table.parts) == identifier.parts


@given(st.text(max_size=40))
def test_any_text_is_either_a_name_or_a_clear_refusal(text: str) -> None:
    """No input ends in another error."""
    try:
        identifier = Identifier.parse(text)
    except InvalidIdentifierError:
        return
    assert Identifier.parse(str(identifier)) == identifier


def test_the_readable_form_has_backticks_only_where_they_are_needed() -> None:
    """People read it in logs and paste it into Spark."""
    assert str(Identifier("lake", ("sales-eu",), "daily_1")) == "lake.`sales-eu`.daily_1"
    assert quote("a`b") == "`a``b`"
    assert split("`a``b`.c") == ("a`b", "c")


def test_identifiers_sort_by_catalog_namespace_and_name() -> None:
    """Stored lists of tables have one order."""
    names = ["b.a.a", "a.b.a", "a.a.b", "a.a.a"]
    assert [str(i) for i in sorted(map(Identifier.parse, names))] == sorted(names)
