# SPDX-License-Identifier: Apache-2.0
"""I15: a worker or driver with a wrong clock publishes no future time, in either layout."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from pyiceberg.catalog import load_catalog

from airflow_mv.core.catalog import MaterializedViewCatalog, stored_table, tables
from airflow_mv.core.publish.protocol import Effects
from airflow_mv.core.refresh import plan_refresh
from airflow_mv.core.refresh.run import publish
from airflow_mv.core.refresh.run import stage as run_stage
from airflow_mv.core.script import CLOCK, MAX_AHEAD_MS, Outcome
from airflow_mv.core.spec.materialized_view import goes_back, is_ahead, latest_ms
from airflow_mv.errors import ClockError, FutureTimeError, UnsupportedError
from airflow_mv.extras.diagnosis import diagnose
from airflow_mv.extras.history.rollback import rollback
from airflow_mv.extras.maintenance.clock import repair_clock
from airflow_mv.extras.maintenance.repair import repair
from tests.builders import Lake, shift_times
from tests.contract.support import VIEW, ids, staged

HOURS = 7_200_000
JAVA = "Invalid update timestamp 1: before the latest metadata log entry timestamp 2"


def now() -> int:
    return time.time_ns() // 1_000_000


def document(home: Lake) -> dict[str, Any]:
    found: dict[str, Any] = stored_table(home.catalog, home.catalog.load(VIEW), home.storage())
    return found


def right(home: Lake) -> None:
    """No published time is in the future or decreases, and the next refresh is published."""
    found = document(home)
    assert latest_ms(found) <= now()
    assert not goes_back(found)
    state = home.storage().state
    assert state is not None
    assert max(record.refreshed_at_ms or 0 for record in state.refreshes) <= now() + MAX_AHEAD_MS
    home.append()
    assert home.refresh().outcome == "refreshed"
    assert sum(row["orders"] for row in home.read()) == home.load().scan().count()


def of_the_future(home: Lake) -> None:
    """A view whose storage table was changed by a host with a clock that is two hours ahead."""
    home.table()
    home.view(time_travel=True)
    home.refresh()
    home.append()
    home.refresh()
    shift_times(home.storage().location, HOURS)


@pytest.mark.parametrize("skew", [HOURS, -HOURS])
def test_i15_a_worker_with_a_wrong_clock_publishes_no_future_time(every_home: Lake, skew: int) -> None:
    wrong = Effects(now_ms=lambda: now() + skew)
    every_home.table()
    every_home.view(time_travel=True)
    assert every_home.refresh(effects=wrong).outcome == "refreshed"
    first = ids(every_home)[-1]
    every_home.append()
    assert every_home.refresh(effects=wrong).outcome == "refreshed"
    assert rollback(every_home.catalog, VIEW, first, effects=wrong).changed
    right(every_home)


@pytest.mark.parametrize("skew", [HOURS, -HOURS])
def test_i15_rows_that_a_driver_with_a_wrong_clock_staged_are_published_with_the_right_time(
    every_home: Lake, skew: int, caplog: pytest.LogCaptureFixture
) -> None:
    if every_home.layout != "pointed":
        pytest.skip("there the driver compares its clock itself before it commits")
    every_home.table()
    every_home.view()
    every_home.refresh()
    every_home.append()
    plan, outcome = staged(every_home)
    assert outcome is not None
    assert outcome.metadata_location is not None
    shift_times(outcome.metadata_location, skew)
    assert publish(every_home.catalog, plan, outcome) is not None
    if skew > 0:
        assert not is_ahead(document(every_home), now() + MAX_AHEAD_MS)
    warned = [item.getMessage() for item in caplog.records if "wrong times" in item.getMessage()]
    assert len(warned) == 1
    assert re.search(r"up to 7\d\d\d s ahead of" if skew > 0 else "go back by more than a minute", warned[0])
    right(every_home)


@pytest.mark.parametrize(
    ("skew", "text"), [(HOURS, r"is 7\d\d\d s ahead of the store"), (-HOURS, "ahead of the clock of this host")]
)
def test_i15_a_commit_by_pyiceberg_is_refused_if_the_worker_s_clock_is_wrong(
    every_home: Lake, monkeypatch: pytest.MonkeyPatch, skew: int, text: str
) -> None:
    """A commit to a table in a SQL catalog uses this process's clock; a REST server uses its own."""
    if every_home.layout == "pointed" or not every_home.catalog.is_sql:
        pytest.skip("the commit is not written by pyiceberg")
    every_home.table()
    every_home.view()
    every_home.refresh()
    every_home.append()
    plan, outcome = staged(every_home)
    before = every_home.storage().location
    monkeypatch.setattr(tables, "time", SimpleNamespace(time_ns=lambda: (now() + skew) * 1_000_000))
    with pytest.raises(ClockError, match=text) as caught:
        publish(every_home.catalog, plan, outcome)
    assert caught.value.retryable
    assert every_home.storage().location == before
    monkeypatch.undo()
    assert publish(every_home.catalog, plan, outcome) is not None
    right(every_home)


def test_i15_an_error_of_a_view_with_future_times_names_the_command_that_repairs_it(every_home: Lake) -> None:
    """Java refuses to change such a table; its error is reported as one of a clock, with the repair command."""
    if not every_home.catalog.is_sql:
        every_home.table()
        every_home.view()
        every_home.refresh()
        shift_times(every_home.storage().location, HOURS)
        # A client that knows the file's tag is answered that nothing has moved.
        iceberg = load_catalog(every_home.iceberg.name, **every_home.iceberg.properties)
        with pytest.raises(UnsupportedError, match="only the server of catalog"):
            repair_clock(MaterializedViewCatalog(iceberg), VIEW)
        return
    of_the_future(every_home)
    rows, recorded = every_home.read(), ids(every_home)
    every_home.append()
    plan = plan_refresh(every_home.catalog, VIEW)
    failed = Outcome(plan.refresh_id, None, error=JAVA)
    with pytest.raises(FutureTimeError, match=r"airflow-mv repair .*sales.daily") as caught:
        run_stage(every_home.catalog, plan, lambda _: failed, diagnose)
    assert not caught.value.retryable

    found = repair_clock(every_home.catalog, VIEW, dry_run=True)
    assert found.needed
    assert not found.done
    assert 7000 < found.ahead_seconds < 7300
    assert latest_ms(document(every_home)) > now() + HOURS // 2
    (shown,) = repair(every_home.catalog, VIEW).findings
    assert "wrong clock" in shown.what
    assert latest_ms(document(every_home)) > now() + HOURS // 2
    assert repair(every_home.catalog, VIEW, act=True).done
    assert not repair_clock(every_home.catalog, VIEW).needed
    assert (every_home.read(), ids(every_home)) == (rows, recorded)
    right(every_home)


def test_a_wrong_clock_on_another_host_is_reported_and_retryable(every_home: Lake) -> None:
    every_home.table()
    every_home.view()
    plan = plan_refresh(every_home.catalog, VIEW)
    failed = Outcome(plan.refresh_id, None, error=JAVA)
    reported = replace(failed, error="the clock of Spark's driver is 7200 s ahead", error_class=CLOCK)
    for outcome in (failed, reported):
        with pytest.raises(ClockError, match="clock") as caught:
            run_stage(every_home.catalog, plan, lambda _, outcome=outcome: outcome, diagnose)
        assert caught.value.retryable
