# SPDX-License-Identifier: Apache-2.0
"""The state after a failed refresh: the old rows, and a reason with what to do."""

from __future__ import annotations

import re

import pytest
from pyspark.errors import PySparkException

from airflow_mv.core.refresh import RefreshOptions, plan_refresh
from airflow_mv.core.refresh.plan import RefreshPlan
from airflow_mv.core.refresh.run import find_staged, publish, stage
from airflow_mv.core.script import Outcome, Script
from airflow_mv.errors import AlreadyExistsError, InvalidQueryError, QueryValueError
from tests.engine.support import Lake, no_spark

RATIO = "SELECT day, amount / parts AS ratio FROM {ns}.orders"


@pytest.fixture
def orders(lake: Lake) -> Lake:
    """A lake with a base table."""
    lake.table("orders", "day integer, amount double, parts double", "(1, 10, 2), (2, 30, 3)")
    return lake


@pytest.fixture
def ratio(orders: Lake) -> Lake:
    """The same with a refreshed view whose query fails for one kind of row."""
    orders.create("ratio", RATIO)
    orders.refresh("ratio")
    return orders


def test_a_job_that_fails_on_one_row_publishes_nothing_and_reports_the_reason(ratio: Lake) -> None:
    """In ANSI mode a division by zero fails the job after other rows were written, which must not become visible."""
    before = ratio.view("ratio").metadata_location
    ratio.insert("orders", "(3, 1, 0)")

    with pytest.raises(QueryValueError) as caught:
        ratio.refresh("ratio")

    assert not caught.value.retryable
    text = str(caught.value)
    assert text.startswith(f"view {ratio('ratio')}: the Spark job failed, nothing was published: [DIVIDE_BY_ZERO]")
    assert "amount / parts" in text
    assert not re.search(r"\n|\bat org\.|\.java:\d|\.scala:\d|JVM stacktrace", text)
    assert len(text) < 1000
    assert ratio.view("ratio").metadata_location == before
    assert ratio.rows("ratio") == [(1, 5.0), (2, 10.0)]
    assert ratio.status("ratio").state == "stale"

    ratio.files.load_table((ratio.namespace, "orders")).delete("day = 3")
    ratio.insert("orders", "(3, 1, 4)")
    ratio.refresh("ratio")
    assert ratio.rows("ratio") == [(1, 5.0), (2, 10.0), (3, 0.25)]


@pytest.mark.parametrize(
    ("column", "said"),
    [
        ("corr(amount, parts)", r"\[DIVIDE_BY_ZERO\].*(corr\(amount, parts\)|which expression: corr, )"),
        (
            "max(CAST(concat('x', day) AS INT))",
            r"\[CAST_INVALID_INPUT\] The value 'x1' .*CAST\(concat\('x'",
        ),
        ("max(CAST(amount AS BIGINT) * 9223372036854775807)", r"\[ARITHMETIC_OVERFLOW\].*BIGINT\) \* 92233720368"),
    ],
    ids=["division", "cast", "overflow"],
)
def test_an_error_of_the_rows_values_is_not_retried(orders: Lake, column: str, said: str) -> None:
    """With the expression, and the value if Spark tells it."""
    orders.insert("orders", "(1, 10, 2), (1, 10, 2)")
    orders.create("v", f"SELECT day, {column} AS x FROM {{ns}}.orders GROUP BY day")
    with pytest.raises(QueryValueError, match=said) as caught:
        orders.refresh("v")
    assert not caught.value.retryable
    assert "A retry fails too" in str(caught.value)


def test_a_staged_refresh_whose_publication_was_lost_is_published_without_spark(ratio: Lake) -> None:
    """The worker died between staging and the swap: the next try finds the staged outcome by the refresh id."""
    ratio.insert("orders", "(3, 8, 4)")
    plan = plan_refresh(ratio.catalog, ratio("ratio"))
    stage(ratio.catalog, plan, ratio.stager)
    assert ratio.rows("ratio") == [(1, 5.0), (2, 10.0)]

    again = ratio.refresh("ratio", stager=no_spark)

    assert (again.outcome, again.refresh_id, again.rows_written) == ("refreshed", plan.refresh_id, 3)
    assert ratio.rows("ratio") == [(1, 5.0), (2, 10.0), (3, 2.0)]


def test_a_refresh_that_is_published_twice_is_recorded_once(ratio: Lake) -> None:
    """Two workers with one plan, as after a lost lease: the second finds its own refresh in the history."""
    ratio.insert("orders", "(3, 8, 4)")
    plan = RefreshPlan.from_dict(plan_refresh(ratio.catalog, ratio("ratio")).to_dict())
    outcome = stage(ratio.catalog, plan, ratio.stager)
    first = publish(ratio.catalog, plan, outcome)
    second = publish(ratio.catalog, plan, outcome)

    assert first is not None
    assert second is not None
    assert (first.outcome, second.outcome) == ("refreshed", "already-committed")
    assert second.storage_table_location == first.storage_table_location
    assert ratio.rows("ratio") == [(1, 5.0), (2, 10.0), (3, 2.0)]


def test_an_unusable_outcome_is_not_resumed(ratio: Lake) -> None:
    """An incomplete file, a foreign one, or one whose rows were deleted: Spark runs again."""
    plan = plan_refresh(ratio.catalog, ratio("ratio"), RefreshOptions(full=True))
    staged = Outcome(plan.refresh_id, ratio.view("ratio").materialized.storage_table_location)
    assert plan.script is not None
    assert plan.script.outcome_location is not None
    damaged = (
        staged.to_json()[:40],
        Outcome("other", staged.metadata_location).to_json(),
        Outcome(plan.refresh_id, "file:///nowhere/00001-x.metadata.json").to_json(),
        Outcome(plan.refresh_id, None, error="failed").to_json(),
    )
    for text in damaged:
        ratio.catalog.files.replace_text(plan.script.outcome_location, text)
        assert find_staged(ratio.catalog, plan) is None


def test_a_view_that_is_replaced_during_its_refresh_gets_the_new_definition_s_rows(ratio: Lake) -> None:
    """Rows of the old query under the new definition would be wrong, so the refresh is planned again."""

    def stager(script: Script) -> Outcome:
        outcome = ratio.stager(script)
        if len(ratio.scripts) == scripts + 1:
            ratio.run("CREATE OR REPLACE VIEW {ns}.ratio AS SELECT day, amount * 2 AS ratio FROM {ns}.orders")
        return outcome

    ratio.insert("orders", "(3, 8, 4)")
    scripts = len(ratio.scripts)
    result = ratio.refresh("ratio", stager=stager)

    assert result.outcome == "refreshed"
    assert len(ratio.scripts) == scripts + 2
    assert ratio.rows("ratio") == [(1, 20.0), (2, 60.0), (3, 16.0)]
    assert ratio.status("ratio").state == "fresh"


def test_a_property_that_is_set_during_a_refresh_is_preserved_without_another_job(ratio: Lake) -> None:
    """It does not affect the rows: the swap is repeated on the new base."""

    def stager(script: Script) -> Outcome:
        outcome = ratio.stager(script)
        ratio.run("ALTER VIEW {ns}.ratio SET TBLPROPERTIES ('team' = 'finance')")
        return outcome

    ratio.insert("orders", "(3, 8, 4)")
    scripts = len(ratio.scripts)
    assert ratio.refresh("ratio", stager=stager).outcome == "refreshed"
    assert len(ratio.scripts) == scripts + 1
    assert ratio.view("ratio").metadata.properties["team"] == "finance"
    assert ratio.status("ratio").state == "fresh"


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("SELECT day, nope(amount) AS a FROM {ns}.orders", r"UNRESOLVED_ROUTINE.*nope"),
        ("SELECT day, day FROM {ns}.orders", r"two columns named 'day'"),
        ("SELECT sum(day) FROM {ns}.orders GROUP BY sum(day)", r"GROUP_BY_AGGREGATE"),
        ("SELECT NULL AS nothing FROM {ns}.orders", r"'nothing' is always NULL.*CAST"),
    ],
)
def test_a_query_that_spark_refuses_creates_no_view_and_names_the_position(
    orders: Lake, sql: str, message: str
) -> None:
    """Spark analyses the query before anything is stored."""
    with pytest.raises(InvalidQueryError, match=message) as caught:
        orders.create("broken", sql)
    assert "\n" not in str(caught.value)
    assert not orders.catalog.exists(orders("broken"))


def test_an_existing_name_is_not_replaced(ratio: Lake) -> None:
    """By a materialized view, a plain view or a table: nothing is replaced unless requested."""
    ratio.run("CREATE VIEW {ns}.plain AS SELECT 1 AS one")
    before = {name: ratio.view(name).metadata_location for name in ("ratio", "plain")}
    scripts = len(ratio.scripts)
    for name in ("ratio", "plain"):
        with pytest.raises(AlreadyExistsError, match=f"{name} exists already"):
            ratio.create(name, "SELECT 2 AS two")
    assert len(ratio.scripts) == scripts
    with pytest.raises(AlreadyExistsError, match=r"table .*orders exists already"):
        ratio.create("orders", "SELECT 2 AS two")
    assert before == {name: ratio.view(name).metadata_location for name in before}
    assert ratio.files.load_table((ratio.namespace, "orders"))


def test_an_error_of_spark_elsewhere_in_the_process_is_not_changed(ratio: Lake) -> None:
    """A refresh in a notebook or a task must leave PySpark unchanged, including its error reporting."""
    with pytest.raises(PySparkException, match="reserved table property"):
        ratio.run("ALTER VIEW {ns}.ratio SET TBLPROPERTIES ('owner' = 'me')")
