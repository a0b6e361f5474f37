# SPDX-License-Identifier: Apache-2.0
"""Random histories, random views: after every change the rows of an incremental refresh are those of a recompute.

DuckDB recomputes at the recorded snapshots if the query has the same meaning there; otherwise, and sometimes in
addition, Spark does. A failing history is run again, reduced step by step, and the smallest failing one is reported.

Before each refresh the fresh rows are read without it, and compared with those that it has stored.

A sequence is one view of one history, refreshed and compared after changes of its tables. ``TORTURE_SEED`` chooses the
histories of the long run, and ``TORTURE_SLICE=2/4`` runs the second quarter of them.
"""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from random import Random

import pytest
from pyspark.sql import SparkSession

from tests.engine.fixtures import new_lake
from tests.engine.incremental import playing
from tests.engine.incremental.checking import Mismatch
from tests.engine.incremental.histories import CHANGES, VARIANTS, Changing, make
from tests.engine.incremental.playing import History, Tally, View, play, shrunk
from tests.engine.support import MASTER, Lake

#: The first history of the long run.
_FIRST = 1000 * (1 + int(os.environ.get("TORTURE_SEED") or 0))
_READS = {"stored", "append", "merge", "replace-keys"}
_MODES = {"append", "merge", "replace-keys", "fast-forward", "noop"}
#: How changes are read and rows are written.
_METHODS = {"append", "deleted", "diff", "gathered", "lineage", "positions", "delete", "overwrite"}


@pytest.fixture(autouse=True)
def small_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Treat tables of a few rows as large ones: rows that match a change are gathered, and its bounds are used."""
    monkeypatch.setattr("airflow_mv.core.job.gather._ONE_IN", 0)
    monkeypatch.setattr("airflow_mv.core.job.positions._MERGED", 1)
    monkeypatch.setattr("airflow_mv.core.refresh.candidates._LARGE_BYTES", 0)


def _run(folder: Path, histories: range, *, views: int, steps: int, everything: bool, often: int = 1) -> Tally:
    tally, failed, lakes = Tally(), [], partial(new_lake, folder)
    for seed in histories:
        try:
            play(lakes, seed, tally, views=views, steps=steps, often=often)
        except Mismatch as error:
            failed.append(str(error))
            if len(failed) == 5:
                break
    session = SparkSession.getActiveSession()
    print(f"{tally}\nmaster: {session and session.sparkContext.master}")
    assert not failed, "\n\n".join(failed)
    assert {"replace-keys", "fast-forward"} <= set(tally.modes), tally
    assert len(histories) < len(VARIANTS) or set(VARIANTS) == set(tally.variants), tally
    if not everything:
        return tally
    # A fuzzer that does not reach a mode proves nothing about it.
    assert not _MODES - set(tally.modes), tally
    assert not _READS - set(tally.reads), tally
    # Few views are not refreshed incrementally.
    assert len(histories) < 100 or "full" in tally.modes, tally
    assert set(CHANGES) == set(tally.changes), tally
    assert {"pointed", "registered"} == set(tally.layouts), tally
    assert not _METHODS - set(tally.methods), tally
    assert tally.by_duckdb > tally.refreshes // 4, tally
    return tally


@pytest.mark.timeout(1200)
def test_incremental_equals_recompute(lake_folder: Path) -> None:
    """A history with delete files and one with row ids, two views each; one is refreshed after each change."""
    tally = _run(lake_folder, range(7, 16, 8), views=2, steps=3, often=5, everything=False)
    assert set(tally.variants) == {"v2-merge-on-read", "v3-copy-on-write"}
    assert tally.sequences == 4


def test_a_failing_history_is_reported_in_its_smallest_form(lake_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault that occurs only if two statements are combined: the reduced history has those two."""

    def fails(_: Lake, history: History, tally: Tally, seed: int) -> None:
        done = [change for step in history.steps for change in step]
        if any(item.name == "compact" for item in done) and any(len(item.rows) > 1 for item in history.tables):
            raise Mismatch("compacted rows")

    monkeypatch.setattr(playing, "run", fails)
    random = Random(1)
    views = tuple(View(f"v{number}", "SELECT a FROM r", "delete", "pointed") for number in range(3))
    changing = Changing.drawn(random)
    tables = make(random, "v2-merge-on-read", changing.columns)
    steps = tuple(changing.step(turn) for turn in (0, 1, 2, 3))
    history = History("v2-merge-on-read", tables, views, steps)
    least, why = shrunk(partial(new_lake, lake_folder), history, Mismatch("compacted rows"), tries=300)

    assert [change.name for step in least.steps for change in step] == ["compact"]
    assert [(change.name, len(change.rows)) for change in least.tables if change.name != "create"] == [("insert", 2)]
    assert (len(least.views), str(why), len(str(least).splitlines())) == (1, "compacted rows", 8)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.usefixtures("spark_as_it_is")
def test_incremental_equals_recompute_in_every_mode(lake_folder: Path) -> None:
    """A hundred sequences with Spark's default settings: each view is refreshed after each of three changes."""
    assert _run(lake_folder, range(25), views=4, steps=3, everything=True).sequences == 100


@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.timeout(3600)
def test_incremental_equals_recompute_with_two_executors() -> None:
    """The executors are processes of their own: what only the driver's process has would pass every local test."""
    test = f"{__file__}::{test_incremental_equals_recompute_in_every_mode.__name__}"
    master = "local-cluster[2,1,1024]"
    command = [sys.executable, "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", test]
    environment = {**os.environ, MASTER: master}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    assert f"master: {master}" in done.stdout
    print(done.stdout)


@pytest.mark.slow
@pytest.mark.timeout(6 * 3600)
def test_incremental_equals_recompute_at_length(lake_folder: Path) -> None:
    """Two thousand sequences: each view is refreshed after each of three changes."""
    histories = _slice(range(_FIRST, _FIRST + 500))
    tally = _run(lake_folder, histories, views=4, steps=3, everything=len(histories) >= 25)
    assert tally.sequences == 4 * len(histories)


def _slice(histories: range) -> range:
    part, parts = (int(item) for item in (os.environ.get("TORTURE_SLICE") or "1/1").split("/"))
    size = -(-len(histories) // parts)
    return histories[(part - 1) * size : part * size]
