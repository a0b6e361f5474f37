# SPDX-License-Identifier: Apache-2.0
"""Run many scripts in one driver: those whose requests appear in a folder."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from pyspark.sql import SparkSession

from airflow_mv.core.job.driver import quiet, reason, run_submitted
from airflow_mv.core.job.driver_files import open_files
from airflow_mv.core.job.session import CATALOG, hide_secrets
from airflow_mv.errors import InvalidMetadataError
from airflow_mv.extras.shared_application.job.requests import (
    SILENT_SECONDS,
    FolderContent,
    JobAnswer,
    JobRequest,
    Pulse,
    answer_file,
    request_file,
)
from airflow_mv.version import __version__

#: Seconds between two looks at the folder.
POLL_SECONDS = 0.25
IDLE_SECONDS = 600.0
#: The most scripts that run at the same time: one for each core of the application and each of these parts of the
#: driver's heap, within bounds.
_HEAP_BYTES = 256 * 2**20
_FEWEST, _MAX_COUNT = 2, 16
#: How often jobs are cancelled at the end; after that Spark stops under them.
_STOP_LOOKS = 20
_STOPPED = "its Spark application was stopped"
_POOL = "spark.scheduler.pool"
_DELTA = "DeltaSparkSessionExtension"


def serve(
    spark: SparkSession,
    folder: str,
    catalog: str,
    *,
    report: Callable[[str], None],
    idle_seconds: float = IDLE_SECONDS,
    pulse: Pulse | None = None,
) -> str | None:
    """Run the scripts that are requested in a folder, each in a thread and a session of its own, until the end.

    The end is the file ``END``, ``idle_seconds`` without work, the death of the task that
    started this driver, a store that has not responded for ``SILENT_SECONDS``, or a Spark
    context that was stopped, for instance by the cluster. Jobs that run then are cancelled.

    Args:
        spark: A classic session.
        folder: The application's folder.
        catalog: The name of the catalog in Spark by whose access to files the folder is read and written.
        report: Called with progress messages.
        idle_seconds: Seconds without work after which the driver ends.
        pulse: Decides whether that task is dead.

    Returns:
        Why the driver ended, in one line, if it was not asked to; ``None`` if it was.
    """
    hide_secrets(spark)
    try:
        with quiet():
            return _Server(spark, folder, catalog, report).run(idle_seconds, pulse or Pulse())
    except Exception as error:  # noqa: BLE001 (the last line on stderr is what an operator shows)
        return f"{folder}: {reason(error)}"


class _Server:
    """The state of a serving driver."""

    def __init__(self, spark: SparkSession, folder: str, catalog: str, report: Callable[[str], None]) -> None:
        self._spark = spark
        self._folder = folder
        self._files = open_files(spark, catalog)
        self._report = report
        self._application_id = str(spark.sparkContext.applicationId)
        self._taken: set[str] = set()
        self._running: set[str] = set()
        #: When the folder's store began not to respond, in monotonic seconds; ``None`` while it responds.
        self._failing_since: float | None = None
        #: Answers that could not be written yet.
        self._unwritten: dict[str, JobAnswer] = {}
        #: Sessions that no script uses now. A session keeps its connections to catalogs.
        self._idle: list[SparkSession] = []

    def run(self, idle_seconds: float, pulse: Pulse) -> str | None:
        """Serve until the end."""
        jvm: Any = self._spark._jvm
        heap = int(getattr(jvm, "java.lang.Runtime").getRuntime().maxMemory())
        most = max(_FEWEST, min(self._spark.sparkContext.defaultParallelism, heap // _HEAP_BYTES, _MAX_COUNT))
        self._report(f"application {self._application_id} runs up to {most} scripts at a time")
        pool = ThreadPoolExecutor(most)
        try:
            return self._serve(pool, idle_seconds, pulse)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            self._stop_jobs()

    def _serve(self, pool: ThreadPoolExecutor, idle_seconds: float, pulse: Pulse) -> str | None:
        busy = time.monotonic()
        content = FolderContent.of({})
        while True:
            content = self._look(pool, content)
            if content.ended:
                return None
            if self._is_stopped():
                return f"{self._folder}: {_STOPPED}"
            if self._failing_since is None and pulse.is_gone(content):
                return f"{self._folder}: the task that started this application is no longer running"
            for key in content.cancelled & self._taken:
                self._spark.sparkContext.cancelJobGroup(key)
            if content.waiting:
                busy = time.monotonic()
            elif time.monotonic() - busy > idle_seconds:
                self._report(f"no work for {idle_seconds:.0f} s")
                return None
            time.sleep(POLL_SECONDS)

    def _look(self, pool: ThreadPoolExecutor, content: FolderContent) -> FolderContent:
        """Take what is new in the folder. Return its content, or the last content while its store does not respond."""
        try:
            content = FolderContent.of(self._files.modified(self._folder))
            for key in sorted(content.waiting - self._taken):
                self._take(pool, key)
            for key in sorted(self._unwritten):
                self._write(key, self._unwritten[key])
                del self._unwritten[key]
        except Exception as error:
            if self._failing_since is None:
                self._report(f"{self._folder}: {reason(error)}")
                self._failing_since = time.monotonic()
            if time.monotonic() - self._failing_since > SILENT_SECONDS:
                raise
        else:
            self._failing_since = None
        return content

    def _stop_jobs(self) -> None:
        """Cancel jobs until no script runs, for a while: a script may be between two of them."""
        for _ in range(_STOP_LOOKS):
            if not self._running:
                return
            if not self._is_stopped():
                self._spark.sparkContext.cancelAllJobs()
            time.sleep(POLL_SECONDS)

    def _is_stopped(self) -> bool:
        """Whether Spark's context was stopped. Python keeps running without it, and each script would fail."""
        context: Any = self._spark.sparkContext
        return bool(context._jsc.sc().isStopped())

    def _take(self, pool: ThreadPoolExecutor, key: str) -> None:
        text = self._files.read_text(f"{self._folder}/{request_file(key)}")
        if not text:  # a file of a local store is empty before it is written
            return
        self._taken.add(key)
        pool.submit(self._answer, key, text)

    def _answer(self, key: str, text: str) -> None:
        self._running.add(key)
        try:
            answer = self._run(key, text)
        except Exception as error:  # noqa: BLE001 (a task waits for the answer as long as the driver runs)
            answer = JobAnswer(ran=False, refusal=reason(error))
        try:
            self._write(key, answer)
        except Exception as error:  # noqa: BLE001 (py4j's, which has no types)
            self._report(f"request {key}: {reason(error)}")
            self._unwritten[key] = answer
        self._running.discard(key)

    def _write(self, key: str, answer: JobAnswer) -> None:
        self._files.write_text(f"{self._folder}/{answer_file(key)}", answer.to_json())

    def _run(self, key: str, text: str) -> JobAnswer:
        try:
            request = JobRequest.from_json(text)
        except InvalidMetadataError as error:
            return JobAnswer(ran=False, refusal=str(error))
        lacks = self._lacking(request)
        if lacks is not None:
            return JobAnswer(ran=False, refusal=lacks)
        lines: list[str] = []

        def say(line: str) -> None:
            lines.append(line)
            self._report(f"{request.view}: {line}")

        session = self._idle.pop() if self._idle else self._spark.newSession()
        # In a pool of its own a script gets its share of the executors, however many tasks the others have.
        self._spark.sparkContext.setLocalProperty(_POOL, key)
        self._spark.sparkContext.setJobGroup(key, request.view, interruptOnCancel=True)
        refusal = run_submitted(session, request.submitted, request.catalog, request.table, report=say)
        if refusal is None:
            self._idle.append(session)
        elif self._is_stopped():
            return JobAnswer(ran=False, refusal=_STOPPED)
        else:
            self._report(f"{request.view}: {refusal}")
        return JobAnswer(ran=True, refusal=refusal, lines=tuple(lines), application_id=self._application_id)

    def _lacking(self, request: JobRequest) -> str | None:
        """Return what a script needs that this application was not started with; ``None`` if nothing."""
        if request.package != __version__:
            return f"the task has airflow-mv {request.package}, and the shared application {__version__}"
        for name in (request.catalog, *request.catalogs):
            if self._spark.conf.get(f"{CATALOG}{name}", None) is None:
                return f"the shared application was started without the catalog {name!r}"
        if request.delta and _DELTA not in str(self._spark.conf.get("spark.sql.extensions", "")):
            return "the shared application was started without Delta Lake"
        return None
