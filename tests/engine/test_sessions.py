# SPDX-License-Identifier: Apache-2.0
"""Several sessions of one process (``newSession()`` of a notebook or a thread) refresh and read like the first one."""

from __future__ import annotations

import gc
import os
import re
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from pyspark.sql import SparkSession

from airflow_mv.actions import read
from airflow_mv.core.job.session import interruptible
from airflow_mv.core.refresh.run import refresh
from airflow_mv.errors import QueryValueError
from airflow_mv.extras.maintenance.verify import verify
from airflow_mv.extras.spark.session import session_stager
from tests.builders import LAYOUTS
from tests.engine.support import Lake

#: Number of refreshes of the long run in one JVM.
_JOBS = int(os.environ.get("TORTURE_JOBS", "320"))
_SESSIONS = 8
#: Bytes that a refresh may leave on the JVM's heap. Iceberg's vectorized reader keeps an allocator for each Parquet
#: file that was read, permanently: https://github.com/apache/iceberg/issues/13937.
_MAX_LEFT_BYTES = {"vectorized": 32 * 1024, "row by row": 4 * 1024}
SQL = "SELECT k, count(*) AS n, sum(v) AS v FROM {ns}.t GROUP BY k"


def test_threads_with_sessions_of_their_own_refresh_views_of_each_layout_at_once(lake: Lake) -> None:
    lake.table("t", "k INT, v INT", "(1, 1), (1, 2), (2, 5)")
    views = {"one": LAYOUTS[0], **{f"two_{layout}": layout for layout in LAYOUTS}}
    for name, layout in views.items():
        lake.create(name, SQL, refresh_strategy="incremental", layout=layout)

    def work(name: str, verified: bool) -> list[tuple[int, ...]]:
        session = lake.spark.newSession()
        stager = session_stager(lake.catalog, session, report=lambda _: None)
        refresh(lake.catalog, [lake(name)], stager=stager)
        found = sorted(tuple(row) for row in read(session, lake(name), catalog=lake.catalog).collect())
        assert not verified or verify(lake.catalog, lake(name), session=lambda: session).equal
        return found

    once, twice = [(1, 2, 3), (2, 2, 10)], [(1, 2, 3), (2, 2, 10), (3, 1, 7)]
    for rows, wanted, verified in (("(2, 5)", once, False), ("(3, 7)", twice, True)):
        lake.insert("t", rows)
        with ThreadPoolExecutor(len(views)) as pool:
            assert list(pool.map(work, views, [verified] * len(views))) == [wanted] * len(views)
    assert SparkSession.getActiveSession() is not None


class EndedError(BaseException):
    """What a signal handler raises, as Airflow's timeout does."""


@contextmanager
def ended_by_a_signal() -> Iterator[Callable[[float], None]]:
    """Expect that a signal ends what runs; yield what sends it, some seconds later."""

    def end(*_: object) -> None:
        raise EndedError

    before = signal.signal(signal.SIGUSR1, end)
    try:
        with pytest.raises(EndedError):
            yield lambda seconds: threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGUSR1)).start()
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_signal_during_a_refresh_or_a_verification_leaves_a_session_that_works(lake: Lake) -> None:
    """In a call of py4j the next one would take the answer to the interrupted one."""
    lake.table("t", "k INT, v INT", "(1, 1), (1, 2), (2, 5)")
    # Spark ends a task between two batches of rows, so there are many.
    lake.run("CREATE TABLE {ns}.big USING iceberg AS SELECT id % 3 AS k FROM range(200000)")
    slow = "SELECT k, sum(e) AS n FROM {ns}.big LATERAL VIEW explode(sequence(1, %d)) x AS e GROUP BY k"
    lake.create("slower", slow % 2000)
    lake.create("slow", slow % 200)
    lake.create("quick", SQL)
    lake.refresh("slow")
    with ended_by_a_signal() as signalled:
        stager = session_stager(lake.catalog, lake.spark, report=lambda line: "INSERT" in line and signalled(1))
        refresh(lake.catalog, [lake("slower")], stager=stager)

    def session() -> SparkSession:
        signalled(0.3)
        return lake.spark

    with ended_by_a_signal() as signalled:
        verify(lake.catalog, lake("slow"), session=session)
    refresh(lake.catalog, [lake("quick")], stager=session_stager(lake.catalog, lake.spark, report=lambda _: None))
    found = read(lake.spark, lake("quick"), catalog=lake.catalog).collect()
    assert sorted(map(tuple, found)) == [(1, 2, 3), (2, 1, 5)]
    assert verify(lake.catalog, lake("quick"), session=lambda: lake.spark).equal


def test_a_statement_that_spark_cannot_end_delays_a_stop_for_a_bounded_time(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = threading.Event()
    monkeypatch.setattr("airflow_mv.core.job.session.STOP_SECONDS", 2.0)
    started = time.monotonic()
    with ended_by_a_signal() as signalled:
        signalled(0.5)
        interruptible(lake.spark, lambda: ended.wait(60))
    assert time.monotonic() - started < 20
    assert not ended.is_set()
    ended.set()


def test_rows_and_their_verification_do_not_depend_on_the_time_zone_of_the_session(lake: Lake) -> None:
    lake.run("CREATE TABLE {ns}.t (at TIMESTAMP, local TIMESTAMP_NTZ) USING iceberg")
    query = "SELECT date(at) AS day, date_trunc('day', local) AS day_here, count(*) AS n FROM {ns}.t GROUP BY ALL"
    lake.create("days", query, refresh_strategy="incremental", properties={"airflow-mv.incremental-up-to": "1000"})
    for zone in ("UTC", "America/New_York", "Asia/Kathmandu"):
        lake.run("INSERT INTO {ns}.t VALUES (TIMESTAMP'2026-03-08T02:30:00Z', TIMESTAMP_NTZ'2026-03-08 02:30:00')")
        session = lake.spark.newSession()
        session.conf.set("spark.sql.session.timeZone", zone)
        refresh(lake.catalog, [lake("days")], stager=session_stager(lake.catalog, session, report=lambda _: None))
        assert verify(lake.catalog, lake("days"), session=lambda session=session: session).equal, zone
        assert session.conf.get("spark.sql.session.timeZone") == zone
    assert [(str(day), n) for day, _, n in lake.rows("days")] == [("2026-03-08", 3)]


def test_the_meaning_of_a_query_does_not_depend_on_the_ansi_mode_of_the_session(lake: Lake) -> None:
    """Without it, the sum would be of type DOUBLE, and the number that is too large NULL."""
    lake.table("t", "k INT", "(1)")
    lake.create("plus", "SELECT k + '1' AS k FROM {ns}.t")
    lake.create("casts", "SELECT CAST(concat('x', k) AS INT) AS k FROM {ns}.t")
    session = lake.spark.newSession()
    session.conf.set("spark.sql.ansi.enabled", "false")
    stager = session_stager(lake.catalog, session, report=lambda _: None)
    refresh(lake.catalog, [lake("plus")], stager=stager)
    assert lake.rows("plus") == [(2,)]
    with pytest.raises(QueryValueError, match="CAST_INVALID_INPUT"):
        refresh(lake.catalog, [lake("casts")], stager=stager)
    assert session.conf.get("spark.sql.ansi.enabled") == "false"


def test_many_runs_in_many_sessions_leave_a_bounded_number_of_catalogs_and_views(lake: Lake) -> None:
    """Resources of a run in the JVM are reused by the next one, in whatever session."""
    from airflow_mv.core.job import driver

    lake.table("t", "k INT, v INT", "(1, 1)")
    lake.create("one", SQL, refresh_strategy="incremental")
    lake.refresh("one")
    before = sum(map(len, driver._idle.values()))
    for number in range(4):
        session = lake.spark.newSession()
        lake.insert("t", f"({number}, 1)")
        refresh(lake.catalog, [lake("one")], stager=session_stager(lake.catalog, session, report=lambda _: None))
        assert not session.catalog.listTables()
    assert sum(map(len, driver._idle.values())) == before


def _heap(spark: SparkSession) -> tuple[int, Counter[str]]:
    """Return the number of reachable bytes in the JVM, and those of each class."""
    gc.collect()
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    pid = str(jvm.java.lang.ProcessHandle.current().pid())
    for _ in range(3):  # Spark's cleaner runs after a collection and frees what it has found
        jvm.java.lang.System.gc()
        time.sleep(1)
    histogram = subprocess.run(["jcmd", pid, "GC.class_histogram"], capture_output=True, text=True, check=True).stdout
    rows = [line.split() for line in histogram.splitlines() if re.match(r"\s*\d+:\s+\d", line)]
    sizes = Counter({row[3]: int(row[2]) for row in rows})
    return sum(sizes.values()), sizes


@pytest.mark.slow
@pytest.mark.timeout(4 * 3600)
@pytest.mark.parametrize("reading", _MAX_LEFT_BYTES)
def test_many_jobs_in_eight_sessions_of_one_jvm_leave_no_heap_garbage(lake: Lake, reading: str) -> None:
    """Views of both layouts, refreshed from each session in turn; the heap is compared after the caches are full."""
    lake.table("t", "k INT, v INT", "(1, 1)")
    names = [f"v{number}" for number in range(4)]
    for number, name in enumerate(names):
        lake.create(name, SQL, refresh_strategy="incremental", layout=("pointed", "registered")[number % 2])
    sessions = [lake.spark.newSession() for _ in range(_SESSIONS)]
    for session in sessions:
        session.conf.set("spark.sql.iceberg.vectorization.enabled", str(reading == "vectorized").lower())
    measured = []
    started = time.monotonic()
    for job in range(_JOBS):
        if job % len(names) == 0:
            lake.insert("t", f"({job % 7}, 1)")
        session = sessions[job % len(sessions)] if job // _SESSIONS % 2 else sessions[-1 - job % len(sessions)]
        stager = session_stager(lake.catalog, session, report=lambda _: None)
        refresh(lake.catalog, [lake(names[job % len(names)])], stager=stager)
        if (job + 1) % max(_JOBS // 4, 1) == 0:
            measured.append(_heap(lake.spark))
            print(f"{job + 1} jobs, {time.monotonic() - started:.0f} s: {measured[-1][0] / 2**20:.1f} MiB", flush=True)
    grown = (measured[-1][1] - measured[1][1]).most_common(12)
    left = (measured[-1][0] - measured[1][0]) / (_JOBS / 2)
    print(f"{left / 1024:.1f} KiB for each job of the second half; grown: {grown}")
    assert left < _MAX_LEFT_BYTES[reading], grown
