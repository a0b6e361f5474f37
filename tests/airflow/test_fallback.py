# SPDX-License-Identifier: Apache-2.0
"""A full recompute of an incremental view is reported everywhere, and refused on request."""

from __future__ import annotations

import pytest

from airflow_mv.core.spec.reasons import fallback
from airflow_mv.extras.describe import history
from airflow_mv.hooks import MaterializedViewHook
from tests.airflow.conftest import VIEW, Airflow, Run
from tests.builders import QUERY, Lake

WHOLE = "SELECT region, amount FROM lake.sales.orders ORDER BY amount, region LIMIT 2"


def _refreshed(airflow: Airflow, lake: Lake, **arguments: str) -> Run:
    """Refresh, with the result of a Spark job already staged."""
    if arguments.get("on_fallback", "full") == "full":
        script = MaterializedViewHook().plan(VIEW).script
        lake.catalog.files.replace_text(script.outcome_location, lake.stager(script).to_json())
    given = "".join(f", {name}={value!r}" for name, value in arguments.items())
    return airflow.run(f'RefreshMaterializedViewOperator(task_id="refresh", view="{VIEW}", retries=2{given})')


def _warnings(run: Run) -> list[str]:
    return [line for line in run.log.splitlines() if "[warning" in line and VIEW in line]


def _prepare(lake: Lake, sql: str) -> None:
    # On tables of four rows a full refresh is cheaper.
    lake.view(sql=sql, refresh_strategy="incremental", properties={"airflow-mv.incremental-up-to": "1000"})
    lake.refresh()
    lake.append()


def test_an_unexpected_recompute_is_a_warning_in_xcom_and_in_the_history(airflow: Airflow, sales: Lake) -> None:
    """It reads all base tables: a changed query or an expired snapshot must not cause this every day unnoticed.

    The same fallback of the same definition is no warning again.
    """
    _prepare(sales, WHOLE)
    run = _refreshed(airflow, sales)
    (warning,) = _warnings(run)
    why = run.values["refresh"]["fallback"]

    assert "lake.sales.daily is incremental, and is recomputed in full because of a fallback: " in warning
    assert why
    assert why in warning
    assert (run.values["refresh"]["mode"], run.values["refresh"]["outcome"]) == ("full", "refreshed")
    recorded = history(sales.catalog, VIEW)[-1]
    assert recorded["mode"] == "full"
    assert "INCREMENTAL_UNAVAILABLE" in [reason["code"] for reason in recorded["reasons"]]

    sales.append()
    again = _refreshed(airflow, sales)
    assert _warnings(again) == []
    assert (again.values["refresh"]["mode"], again.values["refresh"]["fallback"]) == ("full", why)


def test_a_recompute_that_the_job_fell_back_to_is_reported_too(airflow: Airflow, sales: Lake) -> None:
    """The plan was incremental, so only the end of the task can report it."""
    _prepare(sales, QUERY)
    run = _refreshed(airflow, sales)
    (warning,) = _warnings(run)

    assert "lake.sales.daily is incremental, and was refreshed by full: found by the job: " in warning
    assert run.values["refresh"]["fallback"].startswith("found by the job: ")
    assert any("found by the job" in reason["message"] for reason in history(sales.catalog, VIEW)[-1]["reasons"])


@pytest.mark.parametrize("arguments", [{"on_fallback": "fail"}, {"max_full_bytes": "1", "on_fallback": ""}])
def test_a_recompute_is_refused_before_spark_starts_and_not_retried(
    airflow: Airflow, sales: Lake, arguments: dict[str, str]
) -> None:
    """By on_fallback, or by the bytes that it would read."""
    _prepare(sales, WHOLE)
    run = _refreshed(airflow, sales, **arguments)

    assert run.states == {"refresh": "failed"}
    assert run.log.count("RefreshRefusedError: view lake.sales.daily would have to be recomputed in full") == 1
    assert "Spark-Submit cmd" not in run.log


def test_a_skipped_view_is_a_warning_too(airflow: Airflow, sales: Lake) -> None:
    """Its rows become older with every run that skips it."""
    _prepare(sales, WHOLE)
    run = _refreshed(airflow, sales, on_fallback="skip")
    (warning,) = _warnings(run)

    assert "lake.sales.daily is incremental, and is left as it is because of a fallback: " in warning
    assert run.values["refresh"]["outcome"] == "skipped"
    assert "on_fallback is 'skip'" in run.values["refresh"]["fallback"]


def test_an_expected_refresh_has_no_fallback(airflow: Airflow, daily: Lake) -> None:
    """A first refresh, and one of a view with the strategy full, are expected."""
    daily.append()
    plan = MaterializedViewHook().plan(VIEW)
    run = _refreshed(airflow, daily)

    assert fallback(plan.reasons) is None
    assert run.values["refresh"]["fallback"] is None
    assert _warnings(run) == []
