# SPDX-License-Identifier: Apache-2.0
"""The rows of a changed definition are computed beside those on show, and published only if they may differ so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from airflow_mv.actions import Rebuilds, apply_views, plan_views
from airflow_mv.common.status import status
from airflow_mv.core.catalog import STORED_LAYOUTS
from airflow_mv.core.freshness.state import State
from airflow_mv.core.spec.properties import DiffPolicy
from airflow_mv.errors import ConfigurationError
from airflow_mv.extras.folder.files import read_folder
from airflow_mv.extras.history.rollback import rollback, rollback_version
from tests.engine.support import Lake, no_spark

LAYOUTS = sorted(STORED_LAYOUTS)
HEAD = "---\nlayout: {layout}\nowner: sales\n---\n"
DAILY = "SELECT day, count(*) AS orders, sum(amount) AS amount FROM {ns}.orders GROUP BY day\n"
MORE = "SELECT day, count(*) AS orders, sum(amount) AS amount, max(amount) AS most FROM {ns}.orders GROUP BY day\n"
FEWER = "SELECT day, count(*) AS orders, sum(amount) AS amount FROM {ns}.orders WHERE amount > 10 GROUP BY day\n"
ROWS = [(1, 2, 30), (2, 1, 30), (3, 1, 5)]


class Killed(BaseException):
    """The process ends here."""


class Folder:
    """A folder with the file of one view."""

    def __init__(self, lake: Lake, path: Path, layout: str) -> None:
        self.lake, self.path, self.layout, self.report = lake, path, layout, list[str]()

    def write(self, sql: str, on_diff: str = "") -> None:
        head = HEAD.replace("{layout}", self.layout)
        head = head.replace("owner", f"on_diff: {on_diff}\nowner") if on_diff else head
        text = (head + sql).replace("{ns}", f"{self.lake.catalog.name}.{self.lake.namespace}")
        (self.path / "daily.sql").write_text(text)

    def plan(self) -> Any:
        files = read_folder(self.path, namespace=f"{self.lake.catalog.name}.{self.lake.namespace}")
        return plan_views(self.lake.catalog, files)

    def apply(self, on_diff: str | None = None, stager: Any = None, **how: Any) -> tuple[str, list[str]]:
        policy = None if on_diff is None else DiffPolicy.read(on_diff, source="test")
        self.report.clear()
        given = Rebuilds(stager or self.lake.stager, lambda: self.lake.spark, policy, report=self.report.append, **how)
        done = [*apply_views(self.lake.catalog, self.plan(), given)]
        assert len(done) <= 1
        return (done[0].outcome, [*done[0].lines]) if done else ("none", [])

    @property
    def state(self) -> State:
        return status(self.lake.catalog, self.lake("daily")).state

    @property
    def sql(self) -> str:
        return self.lake.view("daily").metadata.current_version.texts["spark"]

    @property
    def rows(self) -> list[tuple[Any, ...]]:
        return sorted(self.lake.rows("daily"))


@pytest.fixture(params=LAYOUTS)
def folder(lake: Lake, tmp_path: Path, request: pytest.FixtureRequest) -> Folder:
    lake.table("orders", "day integer, amount bigint", "(1, 10), (1, 20), (2, 30), (3, 5)")
    found = Folder(lake, tmp_path, request.param)
    found.write(DAILY)
    assert found.apply()[0] == "done"
    lake.refresh("daily")
    lake.run("INSERT INTO {ns}.orders VALUES (9, 900)")  # after the refresh: only the definition differs
    return found


def test_a_difference_above_the_limits_changes_nothing(folder: Folder) -> None:
    folder.write(FEWER, "fail, rows=50%, removed=10%, changed=100%")
    outcome, lines = folder.apply()
    assert outcome == "failed"
    assert "gone are 33.33% (1 of 3); allowed are 10.00%" in lines[0]
    assert folder.report[:4] == [
        f"{folder.lake('daily')}: 3 rows before, 2 after, compared by day",
        "  keys: 2 in both, 1 before only, 0 after only",
        "    before only: day=3",
        "  orders: 50.00% differ (1 of 2); sum 4 → 2",
    ]
    assert (folder.rows, folder.sql, folder.state) == (ROWS, folder.sql, State.STALE)
    assert "WHERE" not in folder.sql
    assert folder.plan().to_dict()["counts"]["rebuild"] == 1


def test_an_accepted_difference_is_published_with_its_definition(folder: Folder) -> None:
    """At the same base snapshots; the next refresh is incremental again. A rollback brings the earlier rows back."""
    version = folder.lake.view("daily").metadata.current_version_id
    (first,) = folder.lake.catalog.load_storage(folder.lake.view("daily")).state.refreshes  # type: ignore[union-attr]
    folder.write(FEWER, "fail, rows=50%, removed=50%, changed=50%")
    outcome, lines = folder.apply()
    assert (outcome, lines[-1].startswith("published 2 rows as refresh ")) == ("done", True)
    assert (folder.rows, folder.state) == ([(1, 1, 20), (2, 1, 30)], State.STALE)  # day 9 is not in yet
    assert folder.plan().to_do == []
    rollback_version(folder.lake.catalog, folder.lake("daily"), version)
    rollback(folder.lake.catalog, folder.lake("daily"), first.refresh_id)
    assert (folder.rows, folder.state) == (ROWS, State.STALE)
    folder.apply("publish")
    assert folder.lake.refresh("daily").mode != "noop"
    assert folder.rows == [(1, 1, 20), (2, 1, 30), (9, 1, 900)]


def test_a_column_that_is_added_is_no_difference_of_values(folder: Folder) -> None:
    folder.write(MORE, "fail")
    assert folder.apply()[0] == "done"
    assert folder.rows == [(1, 2, 30, 20), (2, 1, 30, 30), (3, 1, 5, 5)]
    assert "  column most: after only" in folder.report


def test_somebody_is_asked(folder: Folder) -> None:
    folder.write(FEWER, "ask")
    assert folder.apply()[0] == "failed"
    assert folder.rows == ROWS
    asked = []
    assert folder.apply(ask=lambda found: asked.append(found) is None)[0] == "done"
    assert (len(asked), folder.rows) == (1, [(1, 1, 20), (2, 1, 30)])


@pytest.mark.parametrize("at", ["stage", "accept", "publish"])
def test_a_killed_rebuild_leaves_the_rows_and_the_next_apply_goes_on(
    folder: Folder, at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed after its job, after the comparison, and between the definition and the rows: no job runs again."""

    def killed(*_: object, **__: object) -> Any:
        raise Killed

    def die_after(script: Any) -> Any:
        folder.lake.stager(script)
        raise Killed

    folder.write(FEWER, "publish")
    places = {"accept": "airflow_mv.actions._require_accepted", "publish": "airflow_mv.extras.rebuild.publish"}
    with monkeypatch.context() as patch:
        if at in places:
            patch.setattr(places[at], killed)
        with pytest.raises(Killed):
            folder.apply(stager=die_after if at == "stage" else None)
    assert folder.rows == ROWS
    assert ("WHERE" in folder.sql) == (at == "publish")
    assert folder.plan().to_dict()["counts"]["rebuild"] == 1
    assert folder.apply(stager=None if at == "stage" else no_spark)[0] == "done"
    assert (folder.rows, folder.plan().to_do) == ([(1, 1, 20), (2, 1, 30)], [])


def test_rows_that_were_staged_for_another_definition_are_not_published(folder: Folder) -> None:
    """Its version would have had the same number."""
    folder.write(FEWER, "fail")
    assert folder.apply()[0] == "failed"
    folder.write(FEWER.replace("> 10", "> 25"), "publish")
    assert folder.apply()[0] == "done"
    assert folder.rows == [(2, 1, 30)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("publsh", "'publsh' is not publish, fail or ask; did you mean 'publish'"),
        ("fail, row=1%", "'row=1%' is not a limit: .* did you mean 'rows'"),
        ("fail, rows", "is not a limit"),
        ("fail, rows=x", "is not a limit"),
    ],
)
def test_a_wrong_policy_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        DiffPolicy.read(text, source="on_diff")
    assert DiffPolicy.read("fail, changed.a.b=2, rows=0.5%", source="").columns == {"a.b": 2.0}
