# SPDX-License-Identifier: Apache-2.0
"""Faults of single calls: a stale read, an invalid row count, a truncated file, a store without permission."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from airflow_mv.core.catalog import Layout
from airflow_mv.core.publish import PublishOutcome, publish
from airflow_mv.core.refresh import RefreshOptions
from airflow_mv.core.refresh.plan import RefreshPlan
from airflow_mv.core.refresh.run import find_staged, stage
from airflow_mv.errors import MaterializedViewError
from airflow_mv.extras.maintenance.orphans import collect_orphans
from tests.builders import LAYOUTS, Lake, lake
from tests.faults import Clock, FaultyCatalog, count_unknown, cut_short, forbidden, lose_answer_after

VIEW = "sales.daily"


@pytest.fixture(params=LAYOUTS)
def home(request: pytest.FixtureRequest, sqlite_uri: str, warehouse: Path) -> Iterator[Lake]:
    layout: Layout = request.param
    with lake(sqlite_uri, warehouse, layout=layout) as found:
        found.table()
        found.view()
        yield found


def staged(home: Lake) -> tuple[RefreshPlan, str | None]:
    """A plan, and the location of its staged rows."""
    plan, outcome = home.stage(options=RefreshOptions(full=True))
    return plan, outcome.branch or outcome.metadata_location


def changes(catalog: FaultyCatalog) -> int:
    """The number of changes that were sent."""
    return len(catalog.sent) + sum(1 for change in catalog.commits if change.properties)


def test_a_stale_read_costs_a_refused_change_and_nothing_else(home: Lake, clock: Clock) -> None:
    """A replica returns the state that the plan was made from; the change itself is sent to the primary."""
    home.refresh()
    plan, what = staged(home)
    catalog = FaultyCatalog(home.iceberg)
    catalog.remember(VIEW)
    home.append()
    home.refresh()
    newer = home.storage().state
    catalog.stale_looks = 1
    found = publish(catalog, plan, what, effects=clock.effects)
    assert (found.outcome, found.tries, changes(catalog)) == (PublishOutcome.REPLAN, 2, 1)
    assert home.storage().state == newer
    assert home.refresh().outcome == "fresh"


def test_a_stale_read_after_a_lost_answer_does_not_prove_a_failure(home: Lake, clock: Clock) -> None:
    """The same change is sent again and refused; then the current state is read."""
    plan, what = staged(home)
    catalog = FaultyCatalog(home.iceberg)
    catalog.remember(VIEW)
    catalog.schedule = [lose_answer_after(lambda: setattr(catalog, "stale_looks", 1))]
    found = publish(catalog, plan, what, effects=clock.effects)
    assert (found.outcome, found.tries, changes(catalog)) == (PublishOutcome.COMMITTED, 3, 2)
    assert home.refresh().outcome == "fresh"
    assert len(home.read()) == 2


def test_an_invalid_row_count_is_settled_by_reading_the_catalog(home: Lake, clock: Clock) -> None:
    """-1 is not an answer: the catalog shows whether it landed. A table commit without a row is rolled back."""
    plan, what = staged(home)
    catalog, sent = FaultyCatalog(home.iceberg, count_unknown), 1 if home.layout == "pointed" else 2
    found = publish(catalog, plan, what, effects=clock.effects)
    assert (found.outcome, found.tries, changes(catalog)) == (PublishOutcome.COMMITTED, 2, sent)
    assert home.refresh().outcome == "fresh"


@pytest.mark.parametrize("part", ["/metadata/0", "/storage-"])
def test_a_file_that_is_truncated_while_the_process_lives_is_never_published(
    home: Lake, clock: Clock, part: str
) -> None:
    """The view's file or the storage table's: the next try writes another name, and a collection deletes the rest."""
    if home.layout == "table" and part == "/storage-":
        pytest.skip("the view's files are those of its table")
    plan, what = staged(home)
    with cut_short(part) as struck:
        found = publish(home.catalog, plan, what, effects=clock.effects)
    assert len(struck) == 1
    assert (found.outcome, found.tries) == (PublishOutcome.COMMITTED, 2)
    assert len(home.read()) == 2
    assert home.refresh().outcome == "fresh"
    collect_orphans(home.catalog, VIEW, older_than=timedelta(0))
    assert not Path(struck[0].removeprefix("file://")).exists()
    assert home.refresh().outcome == "fresh"


def test_a_store_without_permission_for_a_file_publishes_nothing_and_reports_it(home: Lake, clock: Clock) -> None:
    """When permission is given, the staged refresh is published."""
    plan, what = staged(home)
    before = home.catalog.load(VIEW).metadata_location, home.storage().base
    with (
        forbidden(".metadata.json") as struck,
        pytest.raises(MaterializedViewError, match=r"no permission|PermissionError"),
    ):
        publish(home.catalog, plan, what, effects=clock.effects)
    assert struck
    assert (home.catalog.load(VIEW).metadata_location, home.storage().base) == before
    assert publish(home.catalog, plan, what, effects=clock.effects).outcome == PublishOutcome.COMMITTED
    assert home.refresh().outcome == "fresh"


@pytest.mark.parametrize("home", ["pointed"], indirect=True)  # in the other layout each run has its own branch
def test_the_age_of_a_newer_outcome_is_not_used_for_an_older_one(home: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """The outcome was read, then another try replaced it by a newer one: the older files may be collected."""
    plan, old = staged(home)
    for path in Path(home.catalog.load(VIEW).metadata.location.removeprefix("file://")).rglob("*"):
        os.utime(path, (1_000_000_000, 1_000_000_000))

    def then_staged_by_another_run(look: Callable[[str], Any]) -> Callable[[str], Any]:
        def looked(location: str) -> Any:
            seen = look(location)
            monkeypatch.undo()
            assert stage(home.catalog, plan, home.stager) is not None
            return seen

        return looked

    for name in ("modified_ms", "read_text"):  # whichever is called first
        monkeypatch.setattr(home.catalog.files, name, then_staged_by_another_run(getattr(home.catalog.files, name)))
    found = find_staged(home.catalog, plan)
    assert found is None or found.metadata_location != old
