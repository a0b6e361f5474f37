# SPDX-License-Identifier: Apache-2.0
"""A view lives behind servers with the habits of others; the long run has the whole contract suite behind each."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest

from airflow_mv.actions import create_view as create
from airflow_mv.common.status import status
from airflow_mv.core.define.definition import Definition
from airflow_mv.core.freshness.state import State
from airflow_mv.core.publish.publications import publish
from airflow_mv.core.spec.reasons import Code
from airflow_mv.errors import UnsupportedError
from airflow_mv.extras.history.rollback import rollback
from airflow_mv.extras.maintenance.drop import drop, purge
from airflow_mv.extras.maintenance.orphans import maintain
from tests.builders import QUERY, lake
from tests.contract.support import EAST, NORTH, SOUTH, VIEW
from tests.rest.strict import HOW, STRICT, strict

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("layout", ["table", "registered"])
@pytest.mark.parametrize("how", [*sorted(HOW), ",".join(HOW)])
def test_a_view_lives_behind_a_strict_server(rest_uri: str, warehouse: Path, how: str, layout: str) -> None:
    with strict(rest_uri, *how.split(",")) as address, lake(address, warehouse, layout=layout) as home:
        home.table()
        home.table("others")
        home.view(time_travel=True)
        home.view("second")
        assert home.refresh().outcome == "refreshed"
        first = home.storage().record
        home.append()
        assert home.refresh().outcome == "refreshed"
        assert home.read() == [EAST, NORTH, SOUTH]
        assert [str(item) for item in home.catalog.list()] == ["lake.sales.daily", "lake.sales.second"]
        assert first is not None
        assert rollback(home.catalog, VIEW, first.refresh_id).changed
        assert home.read() == [NORTH, SOUTH]
        other = Definition(QUERY.replace("sum", "max"), layout=layout)
        create(home.catalog, VIEW, other, stager=home.stager, replace=True)
        assert home.refresh().outcome == "refreshed"
        maintain(home.catalog, VIEW, older_than=timedelta(0))
        for view in (VIEW, "sales.second"):
            drop(home.catalog, view)
        assert home.catalog.list() == []
        assert sorted(home.iceberg.list_tables("sales")) == [("sales", "orders"), ("sales", "others")]


@pytest.mark.parametrize("layout", ["table", "registered"])
def test_a_server_that_drops_branches_and_tags_is_refused_by_name_and_nothing_is_left(
    rest_uri: str, warehouse: Path, layout: str
) -> None:
    with strict(rest_uri, "refs-dropped") as address, lake(address, warehouse, layout=layout) as home:
        home.table()
        with pytest.raises(UnsupportedError, match=r"'lake' accepted a branch and a tag .* did not keep them"):
            home.view()
        assert home.iceberg.list_tables("sales") == [("sales", "orders")]


@pytest.mark.parametrize("layout", ["table", "registered"])
def test_a_server_that_begins_to_drop_branches_and_tags_publishes_nothing_wrong(
    rest_uri: str, warehouse: Path, layout: str
) -> None:
    """The refresh was staged while the server kept them."""
    with lake(rest_uri, warehouse, layout=layout) as home:
        home.table()
        home.view()
        home.refresh()
        home.append()
        plan, outcome = home.stage()
        with strict(rest_uri, "refs-dropped") as address, lake(address, warehouse, layout=layout) as worse:
            assert publish(worse.catalog, plan, outcome.staged).outcome == "committed"
        assert home.read() == [EAST, NORTH, SOUTH]
        assert status(home.catalog, VIEW).state == State.STALE, "no tag says which refresh the rows are from"
        assert home.refresh().reasons[0].code == Code.STORAGE_CHANGED
        assert home.refresh().outcome == "fresh"
        assert home.read() == [EAST, NORTH, SOUTH]


@pytest.mark.parametrize("layout", ["table", "registered"])
def test_a_server_that_drops_no_table_without_a_purge_keeps_no_template(
    rest_uri: str, warehouse: Path, layout: str
) -> None:
    with strict(rest_uri, "purge-only") as address, lake(address, warehouse, layout=layout) as home:
        home.table()
        home.view()
        assert len(home.iceberg.list_tables("sales")) == 2
        assert home.refresh().outcome == "refreshed"


def test_a_view_is_dropped_with_its_files_where_the_server_drops_no_table_without(
    rest_uri: str, warehouse: Path
) -> None:
    with strict(rest_uri, "purge-only") as address, lake(address, warehouse, layout="table") as home:
        home.table()
        home.view()
        home.refresh()
        home.append()
        home.refresh()
        with pytest.raises(UnsupportedError, match=r"'lake' drops no table without its files .*sales\.daily --purge"):
            drop(home.catalog, VIEW)
        assert home.read() == [EAST, NORTH, SOUTH]
        purge(home.catalog, VIEW)
        assert home.iceberg.list_tables("sales") == [("sales", "orders")]
        assert not [path for path in (warehouse / "sales" / "daily").rglob("*") if path.is_file()]
        assert home.load().scan().to_arrow().num_rows == 4
        home.view()
        assert home.refresh().outcome == "refreshed"


@pytest.mark.slow
@pytest.mark.parametrize("how", sorted(HOW))
def test_the_contract_suite_passes_behind_a_strict_server(how: str) -> None:
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-m",
        "",
        "-k",
        "rest-",
        "-p",
        "no:cacheprovider",
        "tests/contract",
    ]
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, STRICT: how}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:]
