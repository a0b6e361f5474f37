# SPDX-License-Identifier: Apache-2.0
"""I20: a program that is ended while Spark starts leaves no secret; the next start removes what kill -9 leaves."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from airflow_mv.core.catalog import Layout
from airflow_mv.extras.spark import submit as scratch
from airflow_mv.extras.spark.submit import scratch_folder, sweep
from airflow_mv.operators.refresh import RefreshMaterializedViewOperator
from airflow_mv.operators.spark import SparkJob
from tests.builders import lake
from tests.cli.support import PROGRAM
from tests.security.sinks import Canary, files, found

SQL = "SELECT region, max_by(id, amount) AS id FROM lake.sales.orders GROUP BY region"  # only Spark knows the types


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A lake whose Java prints its version and otherwise sleeps."""
    (tmp_path / "w").mkdir()
    (tmp_path / "tmp").mkdir()
    with lake(f"sqlite:///{tmp_path}/c.db", tmp_path / "w") as made:
        made.table()
    java = tmp_path / "java" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f'#!/bin/sh\n[ "$1" = -version ] && exec {shutil.which("java")} -version\nexec sleep 60\n')
    java.chmod(0o755)
    return tmp_path


@contextmanager
def starting(home: Path, secret: str) -> Iterator[subprocess.Popen[bytes]]:
    """The command line while Spark is starting, when its settings have been written."""
    variables = {
        "PYICEBERG_CATALOG__LAKE__TYPE": "sql",
        "PYICEBERG_CATALOG__LAKE__URI": f"sqlite:///{home}/c.db",
        "PYICEBERG_CATALOG__LAKE__WAREHOUSE": f"file://{home}/w",
        "PYICEBERG_CATALOG__LAKE__S3__SECRET_ACCESS_KEY": secret,
        "JAVA_HOME": str(home / "java"),
        "TMPDIR": str(home / "tmp"),
    }
    arguments = [str(PROGRAM), "create", "lake.sales.daily", "--sql", SQL]
    inherited = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup it is ignored, by the command as well
    running = subprocess.Popen(
        arguments, env={**os.environ, **variables}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=home,
        start_new_session=True,
    )  # fmt: skip
    signal.signal(signal.SIGHUP, inherited)
    try:
        deadline = time.monotonic() + 300
        while not list((home / "tmp").glob("*/spark.properties")):
            assert running.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.02)
        time.sleep(0.3)  # the process that waits for Java has been started
        yield running
    finally:
        if running.poll() is None:
            running.kill()
        running.wait()
        # A separate process group, so that its remaining children are killed with it.
        try:
            os.killpg(running.pid, signal.SIGKILL)
        except ProcessLookupError:
            return


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(number, marks=[] if number == signal.SIGTERM else pytest.mark.slow, id=number.name)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    ],
)
def test_i20_a_command_that_is_terminated_while_spark_starts_leaves_no_secret(
    home: Path, number: signal.Signals
) -> None:
    secret = Canary("s3.secret-access-key")
    with starting(home, secret.text) as running:
        assert found([secret], files(home / "tmp"))  # the secret exists before the signal
        running.send_signal(number)
        assert running.wait(240) != 0
        assert found([secret], files(home / "tmp")) == []
        assert list((home / "tmp").glob("airflow-mv-*")) == []


def test_i20_files_of_a_killed_command_are_removed_by_the_next_start_and_not_before(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(home / "tmp"))
    secret = Canary("s3.secret-access-key")
    with starting(home, secret.text) as running:
        assert sweep().removed == ()  # the process is running
        assert found([secret], files(home / "tmp"))
        running.kill()
        running.wait()
        (left,) = (home / "tmp").glob("airflow-mv-*")
        assert found([secret], files(home / "tmp"))
    swept = sweep()
    assert (swept.removed, swept.failed) == ((left,), ())
    assert found([secret], files(home / "tmp")) == []


def test_i20_doctor_and_a_start_remove_files_of_dead_processes(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dead = subprocess.Popen([sys.executable, "-c", "0"])
    started = scratch._started(dead.pid)
    dead.wait()
    for act in ("doctor", "start"):
        left = home / "tmp" / f"airflow-mv-{scratch._scope()}-{dead.pid}-{started}-abcdefgh"
        left.mkdir(mode=0o700)
        (left / "spark.properties").write_text("spark.x=secret")
        if act == "doctor":
            environment = {**os.environ, "TMPDIR": str(home / "tmp")}
            ended = subprocess.run(
                [str(PROGRAM), "doctor"], env=environment, capture_output=True, text=True, check=False
            )
            assert "removed 1 folders" in " ".join(ended.stdout.split())
        else:
            monkeypatch.setattr("tempfile.tempdir", str(home / "tmp"))
            with scratch_folder():
                pass
        assert not left.exists()


def test_only_files_that_are_proven_to_be_of_a_dead_own_process_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    dead = subprocess.Popen([sys.executable, "-c", "0"])
    started = scratch._started(dead.pid)
    dead.wait()
    scope, us = scratch._scope(), os.getpid()
    assert started
    kept = {
        "of another program": "airflow-mv-abcdefgh",
        "of another boot or container": f"airflow-mv-{'0' * 12}-{dead.pid}-{started}-abcdefgh",
        "of this process": f"airflow-mv-{scope}-{us}-{scratch._started(us)}-abcdefgh",
        "of a process whose start is not known": f"airflow-mv-{scope}-{dead.pid}-0-abcdefgh",
        "longer": f"airflow-mv-{scope}-{dead.pid}-{started}-abcdefgh.backup",
    }
    for name in kept.values():
        (tmp_path / name).mkdir(mode=0o700)
    good = f"airflow-mv-{scope}-{dead.pid}-{started}-"
    (tmp_path / f"{good}readable").mkdir()
    (tmp_path / f"{good}readable").chmod(0o755)
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (tmp_path / "elsewhere" / "file").write_text("x")
    (tmp_path / f"{good}linkedto").symlink_to(tmp_path / "elsewhere")
    (tmp_path / f"{good}just1one").write_text("a file")
    before = sorted(tmp_path.rglob("*"))
    assert sweep() == scratch.SweepResult()
    assert sorted(tmp_path.rglob("*")) == before

    wrong = tmp_path / f"airflow-mv-{scope}-{us}-1-abcdefgh"  # this process id with another start time
    (tmp_path / f"{good}abcdefgh" / "deep").mkdir(mode=0o700, parents=True)
    (tmp_path / f"{good}abcdefgh").chmod(0o700)
    wrong.mkdir(mode=0o700)
    assert set(sweep().removed) == {wrong, tmp_path / f"{good}abcdefgh"}


def test_the_operator_s_folder_can_be_removed_by_a_later_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    operator = RefreshMaterializedViewOperator(task_id="t", view="lake.sales.daily")
    job = SparkJob(operator.spark_task())
    with job.prepared():
        assert job.scratch is not None
        assert scratch._NAME.fullmatch(job.scratch.name)
        assert job.scratch.stat().st_mode & 0o777 == 0o700
        assert sweep().removed == ()
    assert not job.scratch.exists()


@pytest.mark.parametrize(
    ("number", "layout", "seconds"),
    [
        (signal.SIGTERM, "registered", 1.0),
        *(
            pytest.param(number, layout, seconds, marks=pytest.mark.slow)
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
            for layout in ("pointed", "registered", "table")
            for seconds in (0.0, 0.3, 2.0)
        ),
    ],
)
def test_a_refresh_that_is_stopped_during_a_statement_says_so_and_leaves_nothing(
    tmp_path: Path, number: signal.Signals, layout: Layout, seconds: float
) -> None:
    """py4j would give the answer to the stopped call to the cleanup. No file of rows, folder or process stays.

    Spark ends a task between two batches of rows, so the table has many; each of them takes a while.
    """
    (tmp_path / "w").mkdir()
    (tmp_path / "tmp").mkdir()
    endless = "SELECT region, sum(v) AS total FROM lake.sales.orders LATERAL VIEW explode(sequence(1, 9000)) e AS v"
    with lake(f"sqlite:///{tmp_path}/c.db", tmp_path / "w", layout=layout) as made:
        made.table(rows=[(id, "north", 1) for id in range(200_000)])
        made.view("daily", f"{endless} GROUP BY region")
        rows = set(tmp_path.rglob("*.parquet"))
        running = _refreshing(tmp_path)
        lines = iter(running.stderr or ())
        assert any("statement" in line and "INSERT" in line for line in lines)
        time.sleep(seconds)
        running.send_signal(number)
        assert running.wait(120) == 128 + number
        said = list(lines)
        assert running.stderr
        running.stderr.close()
        assert said[-1] == f"error: stopped by {number.name}. The command may be run again\n"
        assert set(tmp_path.rglob("*.parquet")) == rows
    deadline = time.monotonic() + 30  # Java removes its folders, and ends, after Python
    while list((tmp_path / "tmp").iterdir()) or _is_group(running.pid):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def _refreshing(home: Path) -> subprocess.Popen[str]:
    variables = {
        "PYICEBERG_CATALOG__LAKE__TYPE": "sql",
        "PYICEBERG_CATALOG__LAKE__URI": f"sqlite:///{home}/c.db",
        "PYICEBERG_CATALOG__LAKE__WAREHOUSE": f"file://{home}/w",
        "TMPDIR": str(home / "tmp"),
        "SPARK_LOCAL_DIRS": str(home / "tmp"),
    }
    inherited = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    arguments = [str(PROGRAM), "refresh", "lake.sales.daily", "--verbose", "--master", "local[2]"]
    running = subprocess.Popen(
        arguments, env={**os.environ, **variables}, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    signal.signal(signal.SIGHUP, inherited)
    return running


def _is_group(pid: int) -> bool:
    try:
        os.killpg(pid, 0)
    except ProcessLookupError:
        return False
    return True
