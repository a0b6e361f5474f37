# SPDX-License-Identifier: Apache-2.0
"""One driver runs the scripts of many tasks, which reach it through files in a folder."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import socket
import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from airflow_mv.core.job.driver_files import HadoopFiles
from airflow_mv.core.script import Outcome, Script, SqlStep, script_beside, submitted_script
from airflow_mv.extras.shared_application.job.requests import (
    BEAT,
    END,
    JobAnswer,
    JobRequest,
    Pulse,
    answer_file,
    cancel_file,
    request_file,
)
from airflow_mv.extras.shared_application.job.serve import serve
from airflow_mv.extras.spark.submit import build_package, jar_confs, main_file, write_properties
from airflow_mv.version import __version__
from tests.core.job.conftest import CANARY, TABLE, Lake, make_lake, rows_of
from tests.core.job.processes import SPARK_HOME, environment

PINNED = [("a", 10), ("b", 20)]
#: One task: Spark does not take a core from a task that runs.
MANY = "range(0, 100000000, 1, 1)"
ENDLESS = f"SELECT 'a' AS day, count(*) AS amount FROM {MANY} a, {MANY} b WHERE a.id * b.id % 7 = 3"


#: A file that has the Spark context of the application stopped, as a cluster does.
STOP = "stop"
#: The job's main file, beside a thread that waits for that file.
_MAIN = """
import pathlib, runpy, threading, time

def stop():
    while not pathlib.Path("{stop}").exists():
        time.sleep(0.1)
    from pyspark import SparkContext
    SparkContext._active_spark_context._jsc.sc().stop()

threading.Thread(target=stop, daemon=True).start()
runpy.run_path("{main}", run_name="__main__")
"""


@dataclass
class Application:
    """A serving driver, and the tasks that use it.

    Args:
        lake: The lake that it knows.
        folder: Its folder.
        process: spark-submit.
    """

    lake: Lake
    folder: Path
    process: subprocess.Popen[bytes]
    scripts: dict[str, Script] = field(default_factory=dict)

    def ask(self, script: Script, **needs: object) -> str:
        """Request a script; return its key."""
        key = uuid.uuid4().hex
        given: dict[str, Any] = {"submitted": written(script), "package": __version__, **needs}
        request = JobRequest(script.view, catalog=self.lake.name, **given)
        (self.folder / request_file(key)).write_text(request.to_json())
        self.scripts[key] = script
        return key

    def answer(self, key: str, seconds: float = 120) -> JobAnswer:
        """Wait for the answer."""
        file = self.folder / answer_file(key)
        wait(file.exists, self.process, seconds)
        return JobAnswer.from_json(file.read_text())

    def outcome(self, key: str) -> Outcome:
        """Return the outcome of an answered request."""
        return Outcome.from_json(Path(str(self.scripts[key].outcome_location)).read_text())

    def whole(self, query: str | None = None) -> Script:
        """Return a script that creates and fills a storage table of its own."""
        return self.lake.whole(query, outcome_location=str(self.folder.parent / f"{uuid.uuid4().hex}.outcome.json"))


def written(script: Script) -> str:
    """Write a script beside its outcome; return its location with its digest."""
    location = script_beside(str(script.outcome_location))
    Path(location).write_text(script.to_json())
    return submitted_script(location, script.to_json())


def wait(until: Callable[[], object], process: subprocess.Popen[bytes], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not until():
        assert process.poll() is None, "the application has ended"
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.fixture(scope="module")
def application(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Application]:
    """An application under spark-submit, with a secret in its properties. Its task writes a beat as long as it runs."""
    root = tmp_path_factory.mktemp("application")
    lake, folder = make_lake(root, token=CANARY), root / "folder"
    folder.mkdir()
    settings = lake.settings
    confs = {**settings.confs, **jar_confs({"spark.jars.packages": ",".join(settings.packages)})}
    confs |= {"spark.ui.enabled": "false", "spark.log.level": "ERROR", "spark.scheduler.mode": "FAIR"}
    properties = write_properties(root, confs, settings.secrets)
    command = [str(SPARK_HOME / "bin" / "spark-submit"), "--master", "local[2]", "--properties-file", str(properties)]
    main = root / "main.py"
    main.write_text(_MAIN.format(stop=root / STOP, main=main_file()))
    command += ["--py-files", str(build_package(root)), str(main)]
    command += ["--extra", "shared_application", str(folder), lake.name, "600"]
    ended = threading.Event()

    def beat() -> None:
        while not ended.wait(1):
            (folder / BEAT).write_text("")

    beating = threading.Thread(target=beat)
    beating.start()
    with (root / "out").open("wb") as out:
        process = subprocess.Popen(command, cwd=root, env=environment(), stdout=out, stderr=out, start_new_session=True)
    try:
        yield Application(lake, folder, process)
    finally:
        ended.set()
        beating.join()
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def test_many_scripts_run_in_one_application_and_a_failing_one_disturbs_no_other(application: Application) -> None:
    """Each has its own staged table, outcome and messages."""
    good = [application.ask(application.whole()) for _ in range(3)]
    divides = f"SELECT day, 1 DIV (amount - 20) AS amount FROM {application.lake.name}.sales.orders"
    bad = application.ask(application.whole(divides))

    answers = [application.answer(key) for key in good]
    staged = [application.outcome(key) for key in good]
    assert [rows_of(outcome) for outcome in staged] == [PINNED] * 3
    assert len({outcome.metadata_location for outcome in staged}) == 3
    (application_id,) = {answer.application_id for answer in answers} | {item.application_id for item in staged}
    assert application_id
    for answer in answers:
        assert answer.ran
        assert answer.refusal is None
        assert any(line.startswith("statement 2/2: INSERT OVERWRITE") for line in answer.lines)

    assert "Division by zero" in str(application.answer(bad).refusal)
    assert application.outcome(bad).error_class == "DIVIDE_BY_ZERO"
    assert not [path for path in application.folder.iterdir() if CANARY.encode() in path.read_bytes()]


def test_a_short_script_does_not_wait_for_a_long_one_which_can_be_cancelled(application: Application) -> None:
    endless = application.ask(application.whole(ENDLESS))
    wait(lambda: ": statement 2/2" in (application.folder.parent / "out").read_text(), application.process)
    short = application.ask(application.whole())
    assert application.answer(short).refusal is None
    assert not (application.folder / answer_file(endless)).exists()

    (application.folder / cancel_file(endless)).write_text("")
    assert "cancel" in str(application.answer(endless).refusal).lower()


def test_an_answer_that_cannot_be_written_is_written_later(application: Application) -> None:
    """Its task would wait for it as long as the application runs. Here a folder is where the file should be."""
    out, begun = application.folder.parent / "out", ": statement 2/2"
    seen = out.read_text().count(begun)
    endless = application.ask(application.whole(ENDLESS))
    wait(lambda: out.read_text().count(begun) > seen, application.process)
    place = application.folder / answer_file(endless)
    (place / "occupied").mkdir(parents=True)
    (application.folder / cancel_file(endless)).write_text("")
    wait(lambda: f"request {endless}: " in out.read_text(), application.process)
    assert application.answer(application.ask(application.whole())).refusal is None

    shutil.rmtree(place)
    assert "cancel" in str(application.answer(endless).refusal).lower()


def test_a_script_that_needs_what_the_application_lacks_is_not_run(application: Application) -> None:
    """Its task then starts an application of its own."""
    unknown = application.answer(application.ask(application.whole(), catalogs=("elsewhere",)))
    lacking = "the shared application was started without"
    assert (unknown.ran, unknown.refusal) == (False, f"{lacking} the catalog 'elsewhere'")
    delta = application.answer(application.ask(application.whole(), delta=True))
    assert (delta.ran, delta.refusal) == (False, f"{lacking} Delta Lake")
    newer = application.answer(application.ask(application.whole(), package="9.9"))
    assert (newer.ran, newer.refusal) == (
        False,
        f"the task has airflow-mv 9.9, and the shared application {__version__}",
    )


def test_an_application_whose_context_was_stopped_ends_even_if_a_script_hangs(application: Application) -> None:
    """As YARN or a master does. The tasks run what it was given, alone; here a store of one script never responds."""
    out, begun = application.folder.parent / "out", f"{application.lake.name}.sales.daily: statement 2/2"
    seen = out.read_text().count(begun)
    endless = application.ask(application.whole(ENDLESS))
    wait(lambda: out.read_text().count(begun) > seen, application.process)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        application.ask(application.whole(), submitted=f"http://127.0.0.1:{silent.getsockname()[1]}/x#sha256=0")
        silent.settimeout(60)
        silent.accept()
        (application.folder.parent / STOP).write_text("")
        assert application.process.wait(60) == 1
    answer = JobAnswer.from_json((application.folder / answer_file(endless)).read_text())
    assert (answer.ran, answer.refusal) == (False, "its Spark application was stopped")
    assert out.read_text().endswith("its Spark application was stopped\n")


def test_the_end_file_ends_the_application_and_cancels_what_runs(
    spark: SparkSession, lake: Lake, tmp_path: Path
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / BEAT).write_text("")
    lines: list[str] = []
    ending = threading.Thread(
        target=lambda: lines.append(str(serve(spark, str(folder), lake.name, report=lines.append)))
    )
    ending.start()
    creation = lake.creation("SELECT 'a' AS day, 1L AS amount")
    script = replace(creation, steps=(*creation.steps, SqlStep(f"INSERT OVERWRITE {TABLE}\n{ENDLESS}")), reads=())
    script = replace(script, outcome_location=str(tmp_path / "outcome.json"))
    request = JobRequest("sales.daily", written(script), lake.name, __version__)
    (folder / request_file("endless")).write_text(request.to_json())
    deadline = time.monotonic() + 60
    while not any("statement 2/2" in line for line in lines):
        assert time.monotonic() < deadline, lines
        time.sleep(0.05)
    (folder / END).write_text("")
    ending.join(60)
    assert lines[-1] == "None"
    assert "cancel" in JobAnswer.from_json((folder / answer_file("endless")).read_text()).refusal.lower()


def test_an_application_without_work_ends(session: SparkSession, tmp_path: Path) -> None:
    (tmp_path / BEAT).write_text("")
    lines: list[str] = []
    assert serve(session, str(tmp_path), "unused", report=lines.append, idle_seconds=0.5) is None
    assert lines[-1] == "no work for 0 s"


def test_an_application_waits_for_its_store_to_respond_again(
    session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But not forever: its tasks wait for it."""
    modified, failures = HadoopFiles.modified, iter(range(2))

    def failing(self: HadoopFiles, folder: str) -> dict[str, int]:
        if next(failures, None) is not None:
            raise OSError("the store did not respond")
        return modified(self, folder)

    monkeypatch.setattr(HadoopFiles, "modified", failing)
    (tmp_path / BEAT).write_text("")
    lines: list[str] = []
    assert serve(session, str(tmp_path), "unused", report=lines.append, idle_seconds=1.0) is None
    assert lines[1:] == [f"{tmp_path}: the store did not respond", "no work for 1 s"]

    failures = iter(range(10**9))
    monkeypatch.setattr("airflow_mv.extras.shared_application.job.serve.SILENT_SECONDS", 0.5)
    found = serve(session, str(tmp_path), "unused", report=lines.append)
    assert found == f"{tmp_path}: the store did not respond"


def test_an_application_whose_task_was_killed_ends(session: SparkSession, tmp_path: Path) -> None:
    """Nobody would end it. Only changes of the beat's time count: the clocks of two hosts may differ."""
    (tmp_path / BEAT).write_text("")
    os.utime(tmp_path / BEAT, (1, 1))
    seconds = itertools.count(0, 25)
    pulse = Pulse(60, lambda: next(seconds))
    found = serve(session, str(tmp_path), "unused", report=lambda _: None, pulse=pulse)
    assert "the task that started this application is no longer running" in str(found)
    assert next(seconds) == 125
