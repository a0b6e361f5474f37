# SPDX-License-Identifier: Apache-2.0
"""Checks in the forms that users write: Python, text, JSON, dictionaries of the common-sql provider."""

from __future__ import annotations

import functools
import json
from datetime import date
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_mv import checks
from airflow_mv.checks import CHECKS_PROPERTY, Check, as_documents, property_of, read_checks
from airflow_mv.core.refresh.checks import CheckContext, compile_checks, stored_checks
from airflow_mv.errors import ConfigurationError, InvalidQueryError

EACH = (
    checks.not_null("a", "b"),
    checks.unique("a", where="b > 0", severity="warn"),
    checks.accepted_values("a", [1, "x", 2.5, True, date(2024, 1, 2), Decimal("1.10")]),
    checks.row_count(at_least=1, at_most=10),
    checks.row_count_change(at_most_down=0.2, at_most_up=3),
    checks.condition("a > 0", name="positive"),
    checks.sql("SELECT count(*) = 0 FROM {rows}"),
    checks.python("my.module:function"),
)


def read(value: Any) -> tuple[Check, ...]:
    return read_checks(value, source="test")


def test_every_check_can_be_stored_as_json_and_read_back() -> None:
    """A property, a task's rendered field and a plan store checks as JSON."""
    assert read(json.loads(json.dumps(as_documents(list(EACH))))) == EACH
    assert read(property_of(EACH)) == EACH
    column = read({"a": {"min": {"geq_to": 0, "tolerance": 0.1, "partition_clause": "b > 0", "severity": "warn"}}})
    assert read(property_of(column)) == column


def test_a_text_is_a_condition_a_query_or_json() -> None:
    found = read(["amount >= 0", " select true from {rows}", '{"not_null": "a"}', '[{"unique": ["a", "b"]}]'])
    assert [check.kind for check in found] == ["condition", "sql", "not_null", "unique"]
    assert read("amount >= 0") == read(["amount >= 0", "amount >= 0"])


def test_dictionaries_of_the_common_sql_provider_are_accepted() -> None:
    """Users may have them for SQLColumnCheckOperator or SQLTableCheckOperator."""
    columns = read({"a": {"null_check": {"equal_to": 0}, "max": {"less_than": 5}}, "row_count": {"min": {"geq_to": 1}}})
    assert [check.name for check in columns] == ["a.null_check", "a.max", "row_count.min"]
    table = read({"not_null": {"check_statement": "COUNT(*) > 0", "partition_clause": "a > 1"}})
    assert table == (checks.condition("COUNT(*) > 0", name="not_null", where="a > 1"),)


def test_a_template_is_not_parsed_before_it_is_rendered() -> None:
    """Airflow renders the texts in lists and dictionaries; a text that is not a check yet is not changed."""
    given = [checks.condition("day = '{{ ds }}'"), "a = {{ params.a }}"]
    assert as_documents(given)[0]["condition"] == "day = '{{ ds }}'"
    assert as_documents("{{ var.json.checks }}") == "{{ var.json.checks }}"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (7, "checks are a list"),
        ([7], "7 is not a check"),
        ([{}], "is not a check"),
        ([{"not_null": ["a"], "unique": ["a"]}], "must have one of not_null"),
        ([{"no_null": ["a"]}], "must have one of not_null"),
        ([{"not_null": []}], "name a column"),
        ([{"not_null": [1]}], "names and SQL must be text"),
        ([{"not_null": ["a"], "severity": "fatal"}], "severity is 'fatal'; it must be error or warn"),
        ([{"not_null": ["a"], "where": 3}], "names and SQL must be text"),
        ([{"condition": ""}], "write its SQL|names and SQL"),
        ([{"sql": "SELECT 1", "where": "a > 1"}], "check sql: .* is not valid"),
        ([{"row_count": {}}], "give at_least or at_most"),
        ([{"row_count": {"at_least": 1.5}}], "a number of rows"),
        ([{"row_count": {"at_least": True}}], "a number of rows"),
        ([{"row_count": {"exactly": 1}}], "is not valid"),
        ([{"row_count_change": {"at_most_down": 20}}], "a share such as 0.2"),
        ([{"row_count_change": {"at_most_down": float("nan")}}], "not a text, number"),
        ([{"accepted_values": {"column": "a", "values": [None]}}], "not a text, number"),
        ([{"accepted_values": ["a"]}], "is not valid"),
        ([{"python": "os.system"}], "module:function"),
        ([{"a": {"min": {"tolerance": 0.1}}}], "compare with equal_to"),
        ([{"a": {"min": {"geq_to": 1, "greater_than": 1}}}], "compare with equal_to"),
        ([{"a": {"min": {"geq_to": "x", "tolerance": 0.1}}}], "a tolerance needs numbers only"),
        ([{"a": {"min": {"at_least": 1}}}], "has no at_least"),
        ([{"a": {"check_statement": "x", "partition": "y"}}], "has no partition"),
        ("[1", "is not JSON"),
        ([f"a > {number}" for number in range(201)], "at most 200"),
    ],
)
def test_an_invalid_check_is_refused_with_its_position(value: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^test: .*({message})"):
        read(value)


def test_a_function_must_be_importable_by_name() -> None:
    """A lambda exists in one process only."""
    assert checks.python(read).text == f"{__name__}:read"
    with pytest.raises(ConfigurationError, match="lambda"):
        checks.python(lambda rows: True)


def test_a_function_can_be_given_as_a_check() -> None:
    """In a list, or alone: `checks=[no_gaps]`. It is hidden from the template engine, which would call it."""
    wanted = (checks.python(read),)
    assert read(read) == read([read]) == read(as_documents([read])) == read(as_documents(read)) == wanted
    assert as_documents([read, "a > 0"]) == [checks.python(read).document(), "a > 0"]
    for nameless in (lambda rows: True, functools.partial(read)):
        with pytest.raises(ConfigurationError, match="module:function"):
            as_documents([nameless])


def test_a_property_cannot_name_a_function() -> None:
    """A user who may write to the catalog must not choose the code that a worker runs."""
    with pytest.raises(ConfigurationError, match=r"view v, property airflow-mv\.checks: .*is a function"):
        stored_checks({CHECKS_PROPERTY: property_of(EACH)}, view="v")
    assert stored_checks({CHECKS_PROPERTY: property_of(EACH[:-1])}, view="v") == EACH[:-1]
    assert stored_checks({}, view="v") == ()


WORDS = st.sampled_from([
    "not_null", "unique", "accepted_values", "row_count", "row_count_change", "condition", "sql", "python", "column",
    "values", "at_least", "at_most", "at_most_down", "name", "severity", "where", "a", "min", "geq_to", "tolerance",
    "check_statement", "warn", "a > 0", "SELECT true FROM {rows}", "a > (", "[1", "\ud800", "`", "sum(a) > 1",
])  # fmt: skip
NUMBERS = st.sampled_from([0, 1, -1, 0.5, 10**30, 1e308, float("inf"), True, None])
STRANGE = st.recursive(
    WORDS | NUMBERS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=12,
)


@settings(max_examples=400, deadline=None)
@given(STRANGE)
def test_any_property_value_is_compiled_or_refused(value: Any) -> None:
    """The text is untrusted: it raises no other error and gives no SQL that cannot be parsed."""
    subject = CheckContext("v", ["a", "B"], table="`t`", before="`t` VERSION AS OF 1")
    try:
        found = compile_checks(stored_checks({CHECKS_PROPERTY: json.dumps(value)}, view="v"), subject)
    except (ConfigurationError, InvalidQueryError):
        return
    assert found is None or all(check.passes for check in found.checks)
