# SPDX-License-Identifier: Apache-2.0
"""Concurrent refreshes of intervals lose nothing, in any order, and resume their staged rows."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from airflow_mv.common.status import status
from airflow_mv.core.catalog import Layout
from airflow_mv.core.freshness.state import State
from airflow_mv.core.publish.protocol import Effects
from airflow_mv.core.refresh import RefreshOptions
from airflow_mv.core.refresh.plan import RefreshPlan
from airflow_mv.core.refresh.run import refresh
from airflow_mv.core.script import Outcome, Script
from airflow_mv.core.spec.reasons import Code
from airflow_mv.errors import CommitConflictError
from tests.builders import LAYOUTS
from tests.core.refresh.intervals.support import VIEW, Days, days, days_lake

_AT_ONCE = Effects(sleep=lambda seconds: None)


@pytest.fixture(params=LAYOUTS)
def lake(request: pytest.FixtureRequest, sqlite_uri: str, warehouse: Path) -> Iterator[Days]:
    """A view by days, in each layout."""
    with days_lake(sqlite_uri, warehouse, cast("Layout", request.param)) as made:
        yield made


class Interrupted:
    """A refresh during which other refreshes are published, between its staging and its publication."""

    def __init__(self, lake: Days, *others: Callable[[], Any]) -> None:
        self._lake = lake
        self._others = list(others)
        self.plans: list[RefreshPlan] = []

    def __call__(self, script: Script) -> Outcome:
        """Stage, and let another refresh publish first."""
        outcome = self._lake.stager(script)
        if self._others:
            self._others.pop(0)()
        return outcome

    def refresh(self, first: int | None = None, after: int = 0, **options: Any) -> Any:
        """Refresh the view, or some days of it."""
        chosen = RefreshOptions(interval=days(first, after) if first else None, **options)
        return refresh(
            self._lake.catalog, [VIEW], stager=self, options=chosen, on_plan=self.plans.append, effects=_AT_ONCE
        )[0]


def test_an_interval_that_lost_a_race_publishes_its_staged_rows(lake: Days) -> None:
    """Only the storage table has moved, so the query is not computed again."""
    lake.sell((1, 10), (2, 20), (3, 30))
    lost = Interrupted(lake, lambda: lake.refresh_days(1, 2), lambda: lake.refresh_days(3, 4))

    result = lost.refresh(2, 3)

    assert result.outcome == "refreshed"
    assert [Code.REBASED in [reason.code for reason in plan.reasons] for plan in lost.plans] == [False, True, True]
    assert "sold" in lost.plans[0].statements[-1]
    assert "sold" not in " ".join(statement for plan in lost.plans[1:] for statement in plan.statements)
    assert lake.stored() == lake.recomputed()


def test_the_log_says_how_often_a_refresh_was_planned_again(lake: Days, caplog: pytest.LogCaptureFixture) -> None:
    """It explains why a backfill of thirty days takes long."""
    lake.sell((1, 10), (2, 20))

    with caplog.at_level(logging.INFO, logger="airflow_mv"):
        Interrupted(lake, lambda: lake.refresh_days(1, 2)).refresh(2, 3)

    assert "Round 1 of at most 40" in caplog.text


def test_an_interval_whose_base_table_moved_too_is_computed_again(lake: Days) -> None:
    """The staged rows are not of the current snapshots any more."""
    lake.sell((1, 10), (2, 20))

    def others() -> None:
        lake.sell((2, 2))
        lake.refresh_days(1, 2)

    lost = Interrupted(lake, others)

    lost.refresh(2, 3)

    assert Code.REBASED not in [reason.code for plan in lost.plans for reason in plan.reasons]
    assert lake.stored() == lake.recomputed()


def test_a_full_refresh_at_the_same_snapshots_covers_an_interval(lake: Days) -> None:
    """The interval's rows are already published."""
    lake.sell((1, 10), (2, 20))
    lost = Interrupted(lake, lambda: lake.refresh(VIEW))

    assert lost.refresh(2, 3).outcome == "superseded"
    assert status(lake.catalog, VIEW).state == State.FRESH


def test_an_interval_does_not_cover_a_full_refresh(lake: Days) -> None:
    """It has only some of the rows, so the full refresh is planned and published again."""
    lake.sell((1, 10), (2, 20))
    lost = Interrupted(lake, lambda: lake.refresh_days(2, 3))

    assert lost.refresh().outcome == "refreshed"
    assert status(lake.catalog, VIEW).state == State.FRESH
    assert lake.stored() == lake.recomputed()


def test_an_older_interval_does_not_cover_a_newer_one(lake: Days) -> None:
    """Older rows are superseded by newer ones; newer rows replace older ones."""
    lake.sell((1, 10), (2, 20))
    old = RefreshOptions(interval=days(1, 3))

    def others() -> None:
        lake.sell((2, 2))
        lake.refresh_days(1, 3)

    lost = Interrupted(lake, others)

    result = refresh(lake.catalog, [VIEW], stager=lost, options=old, effects=_AT_ONCE)[0]

    assert result.outcome == "superseded"
    assert lake.stored() == lake.recomputed()


def test_a_retry_of_a_published_interval_is_a_no_op(lake: Days) -> None:
    """A worker that died after the swap runs again; the record shows that nothing is left to do."""
    lake.sell((1, 10))
    first = lake.refresh_days(1, 2)

    again = lake.refresh_days(1, 2)

    assert (again.outcome, again.refresh_id) == ("fresh", first.refresh_id)


def test_endless_changes_of_others_end_a_refresh_with_a_conflict(
    sqlite_uri: str, warehouse: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number of rounds is bounded, and nothing is published."""
    monkeypatch.setattr("airflow_mv.core.refresh.run.MAX_INTERVAL_PLANS", 3)
    with days_lake(sqlite_uri, warehouse, "pointed") as lake:
        lake.sell((1, 10), (2, 20))
        always = [lambda: lake.refresh_days(1, 2, full=True)] * 4

        with pytest.raises(CommitConflictError, match="changed 3 times"):
            Interrupted(lake, *always).refresh(2, 3)

        assert 2 not in lake.stored()


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 12))])
def test_after_refreshes_in_any_order_the_rows_are_those_of_the_recorded_snapshots(lake: Days, seed: int) -> None:
    """Intervals, full refreshes and base commits, in sequence and interleaved; at the end the view is made fresh."""
    chance = random.Random(seed)
    expected: dict[int, tuple[int, int]] = {}

    def publish(*, between: bool = True) -> None:
        first = chance.choice([None, 1, 2, 3, 4])
        after = min(5, (first or 1) + chance.choice([1, 1, 2, 3]))
        others = [lambda: publish(between=False)] * chance.choice([0, 1, 2]) if between else []
        lost = Interrupted(lake, *others)
        result = lost.refresh(first, after, full=chance.random() < 0.2)
        if result.outcome == "refreshed":
            rows = lake.recomputed(dict(result.snapshots)["lake.sales.sold"])
            mine = set(range(6)) if first is None else set(range(first, after))
            for number in mine:
                expected.pop(number, None)
            expected.update({number: row for number, row in rows.items() if number in mine})

    lake.sell(*((number, 1) for number in range(5)))
    for _ in range(5):
        if chance.random() < 0.6:
            lake.sell((chance.randrange(5), chance.randrange(100)))
        publish()
        assert lake.stored() == expected
        if status(lake.catalog, VIEW).state == State.FRESH:
            assert lake.stored() == lake.recomputed()

    for number in chance.sample(range(1, 5), 4):
        lake.refresh_days(number, number + 1)
        assert status(lake.catalog, VIEW, interval=days(number, number + 1)).state == State.FRESH
    assert {key: row for key, row in lake.stored().items() if key} == {
        key: row for key, row in lake.recomputed().items() if key
    }
    lake.refresh(VIEW)
    assert lake.stored() == lake.recomputed()
