# SPDX-License-Identifier: Apache-2.0
"""Sessions of one process: ``newSession()`` of a notebook or a thread refreshes and reads as the first one does."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from pyspark.sql import SparkSession

from airflow_mv.refresh.read import read
from airflow_mv.refresh.run import refresh
from airflow_mv.refresh.stagers import session_stager
from airflow_mv.refresh.verify import verify
from tests.builders import LAYOUTS
from tests.engine.support import Lake

SQL = "SELECT k, count(*) AS n, sum(v) AS v FROM {ns}.t GROUP BY k"


@pytest.mark.parametrize("layout", LAYOUTS)
def test_two_threads_with_sessions_of_their_own_refresh_two_views_at_once(lake: Lake, layout: str) -> None:
    lake.table("t", "k INT, v INT", "(1, 1), (1, 2), (2, 5)")
    views = ("one", "two")
    for name in views:
        lake.create(name, SQL, refresh_strategy="incremental", layout=layout)

    def work(name: str) -> list[tuple[int, ...]]:
        session = lake.spark.newSession()
        stager = session_stager(lake.catalog, session, report=lambda _: None)
        refresh(lake.catalog, [lake(name)], stager=stager)
        found = sorted(tuple(row) for row in read(session, lake(name), catalog=lake.catalog).collect())
        assert verify(lake.catalog, lake(name), session=lambda: session).equal
        return found

    for rows, wanted in (("(2, 5)", [(1, 2, 3), (2, 2, 10)]), ("(3, 7)", [(1, 2, 3), (2, 2, 10), (3, 1, 7)])):
        lake.insert("t", rows)
        with ThreadPoolExecutor(2) as pool:
            assert list(pool.map(work, views)) == [wanted, wanted]
    assert SparkSession.getActiveSession() is not None


def test_many_runs_in_many_sessions_leave_a_bounded_number_of_databases_and_views(lake: Lake) -> None:
    """What a run leaves in the JVM is lent to the next one, in whatever session that is."""
    from airflow_mv.job import run

    lake.table("t", "k INT, v INT", "(1, 1)")
    lake.create("one", SQL, refresh_strategy="incremental")
    lake.refresh("one")
    before = sum(map(len, run._idle.values()))
    for number in range(4):
        session = lake.spark.newSession()
        lake.insert("t", f"({number}, 1)")
        refresh(lake.catalog, [lake("one")], stager=session_stager(lake.catalog, session, report=lambda _: None))
        assert not session.catalog.listTables()
    assert sum(map(len, run._idle.values())) == before
