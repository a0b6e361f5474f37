# SPDX-License-Identifier: Apache-2.0
"""``refresh --namespace`` and ``--all``, with scripts that DuckDB runs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_mv.cli import main as commands
from tests.builders import QUERY, lake
from tests.cli.support import call
from tests.core.refresh.intervals.support import days_lake
from tests.engine.support import configure, reload_configuration


@pytest.fixture
def variables(tmp_path: Path) -> Iterator[dict[str, str]]:
    given = configure(tmp_path, "lake")
    yield given
    for name in given:
        del os.environ[name]
    reload_configuration()


def test_a_view_that_fails_does_not_stop_the_others(
    variables: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A chain is refreshed in its order; the failure is on stderr, and decides the exit code."""
    with lake(variables["PYICEBERG_CATALOG__LAKE__URI"], tmp_path / "lake") as home:
        home.table()
        home.table("gone")
        home.view("broken", QUERY.replace("orders GROUP", "gone GROUP"))
        home.view("z_first")
        home.view("a_second", "SELECT region, amount FROM lake.sales.z_first")
        home.iceberg.drop_table("sales.gone")
        module = __import__(commands.callback.__module__, fromlist=["stager_for"])
        monkeypatch.setattr(module, "stager_for", lambda *_, **__: home.stager)
        ended = call("refresh", "--namespace", "lake.sales", "--json")
        assert [(item["view"], item["outcome"]) for item in ended.json] == [
            ("lake.sales.z_first", "refreshed"),
            ("lake.sales.a_second", "refreshed"),
        ]
        assert ended.code == 1
        assert "3 views: 1 failed, 2 refreshed" in ended.stderr
        assert '"code": "BaseTableNotFoundError"' in ended.stderr
        again = call("refresh", "--all", "lake")
        assert (again.code, again.stdout.count("  fresh  ")) == (1, 2)
        assert " of 3: lake.sales.a_second fresh" in again.stderr
        for wrong in (("refresh",), ("refresh", "lake.sales.a_second", "--all", "lake")):
            assert call(*wrong).code == 2


def test_a_view_of_which_only_intervals_were_computed_is_recomputed_only_if_the_user_says_so(
    variables: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would compute all rows. Without a terminal the view is refused, and the others are refreshed."""
    with days_lake(variables["PYICEBERG_CATALOG__LAKE__URI"], tmp_path / "lake", "pointed") as home:
        home.sell((1, 10), (2, 20), (3, 30))
        home.view("other", "SELECT day, amount FROM lake.sales.sold")
        home.refresh_days(1, 2)
        module = __import__(commands.callback.__module__, fromlist=["stager_for"])
        monkeypatch.setattr(module, "stager_for", lambda *_, **__: home.stager)

        refused = call("refresh", "--namespace", "lake.sales", "--json")
        assert (refused.code, [item["view"] for item in refused.json]) == (1, ["lake.sales.other"])
        assert "view lake.sales.daily: only intervals of it were ever computed" in refused.stderr
        assert "needs --yes" in refused.stderr
        assert home.stored() == {1: (1, 10)}

        monkeypatch.setattr("airflow_mv.cli.refresh_each.may_ask", lambda: True)
        declined = call("refresh", "--all", "lake", stdin="n\n")
        assert (declined.code, home.stored()) == (1, {1: (1, 10)})
        assert "Compute all rows of these views? [y/N]" in declined.stderr
        agreed = call("refresh", "--all", "lake", stdin="y\n")
        assert (agreed.code, home.stored()) == (0, home.recomputed())

        again = call("refresh", "--all", "lake")
        assert (again.code, "Compute all rows" in again.stderr) == (0, False)


def test_yes_recomputes_it_without_a_question(
    variables: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with days_lake(variables["PYICEBERG_CATALOG__LAKE__URI"], tmp_path / "lake", "pointed") as home:
        home.sell((1, 10), (2, 20))
        home.refresh_days(1, 2)
        module = __import__(commands.callback.__module__, fromlist=["stager_for"])
        monkeypatch.setattr(module, "stager_for", lambda *_, **__: home.stager)
        done = call("refresh", "--namespace", "lake.sales", "--yes")
        assert (done.code, home.stored()) == (0, home.recomputed())
