# SPDX-License-Identifier: Apache-2.0
"""Spark's own servers as processes on the loopback interface, stopped when a block ends."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyspark

from airflow_mv.core.script import Outcome, Script
from airflow_mv.extras.spark.submit import jar_confs, write_properties
from tests.cli.support import Ended
from tests.core.job.changing import QUICK
from tests.services import free_port

#: This environment's Spark, or where it has none another one's.
SPARK_HOME = Path(os.environ.get("AIRFLOW_MV_TEST_SPARK_HOME") or Path(pyspark.__file__).parent)
ROOT = Path(__file__).parents[3]
_CALLS = """
import json, sys
from dataclasses import astuple
from tests.cli.support import call
for line in sys.stdin:
    print(json.dumps(astuple(call(*json.loads(line)))), flush=True)
"""
_SCRIPTS = """
import json, sys
from airflow_mv.core.job.driver import run
from airflow_mv.extras.spark.session import open_session
from airflow_mv.core.script import Script
for line in sys.stdin:
    task = json.loads(line)
    spark = open_session(task["confs"], remote=task["remote"])
    for script in task["scripts"]:
        print("OUTCOME", run(spark, Script.from_json(script), report=print).to_json())
    left = [key for key in spark.conf.getAll if "airflow_mv_staging" in key or "refresh-id" in key]
    print("LEFT", sorted([*left, *(view.name for view in spark.catalog.listTables())]))
    assert open_session(task["confs"], remote=task["remote"]) is spark
    spark.stop()
    print("DONE", flush=True)
"""


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "SPARK_HOME": str(SPARK_HOME), "PYSPARK_PYTHON": sys.executable, **more}


@contextmanager
def serving(command: Sequence[str], log: Path, ready: str, **env: str) -> Iterator[re.Match[str]]:
    """Run a server until the block ends; it is ready once its log matches."""
    with log.open("w") as output:
        # A separate process session: bin/spark-class may leave a shell above Java.
        process = subprocess.Popen(
            command,
            cwd=log.parent,
            env=environment(**env),
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    stopper = threading.Event()
    try:
        deadline = time.monotonic() + 300
        while not (found := re.search(ready, log.read_text())):
            assert process.poll() is None, log.read_text()[-2000:]
            assert time.monotonic() < deadline, log.read_text()[-2000:]
            stopper.wait(0.2)
        yield found
    finally:
        os.killpg(process.pid, 15)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            process.wait()


@contextmanager
def connect_server(folder: Path, confs: Mapping[str, str]) -> Iterator[str]:
    """Run a Spark Connect server with Iceberg and without a catalog; yields its URL."""
    started_with = {"spark.sql.extensions": confs["spark.sql.extensions"], **jar_confs(confs), **QUICK}
    started_with["spark.sql.shuffle.partitions"] = "2"
    port = free_port()
    server = [str(SPARK_HOME / "bin" / "spark-submit"), "--master", "local[2]", "--class"]
    server += ["org.apache.spark.sql.connect.service.SparkConnectServer", "--conf", "spark.ui.enabled=false"]
    server += ["--conf", f"spark.connect.grpc.binding.port={port}"]
    server += ["--conf", "spark.connect.grpc.binding.address=127.0.0.1", "--conf", "spark.log.level=INFO"]
    server += ["--properties-file", str(write_properties(folder, started_with)), "spark-internal"]
    with serving(server, folder / "server.log", "Spark Connect server started at"):
        yield f"sc://127.0.0.1:{port}"


class OverConnect:
    """Runs scripts over Spark Connect, in another process, which is started once for all calls."""

    def __init__(self, remote: str) -> None:
        self.remote = remote
        self.process = subprocess.Popen(
            [sys.executable, "-c", _SCRIPTS],
            cwd=ROOT,
            env=environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def __call__(self, confs: Mapping[str, str], *scripts: Script) -> tuple[list[Outcome], str]:
        """Run scripts in one session, in which they leave nothing.

        Args:
            confs: Settings of the session.
            scripts: What to run, in order.

        Returns:
            Their outcomes, and the process's output.
        """
        questions, answers = self.process.stdin, self.process.stdout
        assert questions
        assert answers
        task = {"confs": dict(confs), "scripts": [script.to_json() for script in scripts], "remote": self.remote}
        print(json.dumps(task), file=questions, flush=True)
        lines = [answers.readline()]
        while lines[-1] not in ("DONE\n", ""):  # a process that has ended gives empty lines
            lines.append(answers.readline())
        output = "".join(lines)
        assert {"LEFT []\n", "DONE\n"} <= {*lines}, output[-3000:]
        found = [line.removeprefix("OUTCOME ") for line in lines if line.startswith("OUTCOME ")]
        return [Outcome.from_json(line) for line in found], output


@contextmanager
def command_line(**env: str) -> Iterator[Callable[..., Ended]]:
    """Yield a function that calls the command line in another process, which is started once for all calls.

    A process that runs Spark's Java, such as the tests', cannot be a client of Spark Connect.
    """
    process = subprocess.Popen(
        [sys.executable, "-c", _CALLS],
        cwd=ROOT,
        env=environment(**env),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        questions, answers = process.stdin, process.stdout
        assert questions
        assert answers

        def call(*arguments: str) -> Ended:
            print(json.dumps(arguments), file=questions, flush=True)
            return Ended(*json.loads(answers.readline()))

        yield call
