# SPDX-License-Identifier: Apache-2.0
"""The task that runs the Spark application that the other tasks of its DAG run share."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from airflow.sdk import Context

from airflow_mv.application import BEAT_SECONDS
from airflow_mv.errors import MaterializedViewError
from airflow_mv.hooks import MaterializedViewHook, SparkTarget, spark_target
from airflow_mv.hooks.airflow_compat import one_task_at_a_time
from airflow_mv.operators.sharing import FOLDER_KEY
from airflow_mv.operators.spark import SparkJobOperator, Submission
from airflow_mv.retries import task_errors
from airflow_mv.spec.base_tables import DELTA_BY_PATH
from airflow_mv.spec.identifiers import split_namespace

if TYPE_CHECKING:
    from airflow_mv.catalog import MaterializedViewCatalog
    from airflow_mv.refresh.application import ApplicationFolder

#: Scripts of all views get their share of the executors.
_FAIR = {"spark.scheduler.mode": "FAIR"}
_POLL_SECONDS = 0.5
_STATES_SECONDS = 2.0
_FINISHED = frozenset({"success", "failed", "skipped", "upstream_failed", "removed"})


class SharedSparkApplicationOperator(SparkJobOperator):
    """Run one Spark application for the scripts of other tasks of the DAG run, as long as these tasks need it.

    Spark starts when the first script is there, so a run in which no view needs Spark starts none. The application
    ends with the last of the other tasks. Without a script for ``idle_seconds`` it ends, too, and starts again for the
    next one. If it fails, each task goes on with an application of its own.

    Over Spark Connect, where the server is shared, and where the catalog's server chooses the folders of tables, the
    task does nothing.

    Args:
        namespace: ``catalog.namespace``. The folder for requests and answers is in the namespace's folder.
        tasks: Ids of the tasks that use the application.
        iceberg_conn_id: Connection of type ``iceberg`` (templated).
        spark_conn_id: Connection of type ``spark`` (templated).
        idle_seconds: Seconds without a script after which the application ends.
        **kwargs: All that ``SparkSubmitOperator`` takes, except the application.
    """

    template_fields: Sequence[str] = (*SparkJobOperator.template_fields, "namespace")

    def __init__(self, *, namespace: str, tasks: Sequence[str], idle_seconds: float = 600.0, **kwargs: Any) -> None:
        kwargs["name"] = kwargs.get("name") or f"airflow-mv {namespace}"
        super().__init__(**kwargs)
        self.namespace = namespace
        self.tasks = list(tasks)
        self.idle_seconds = idle_seconds

    def execute(self, context: Context) -> None:
        """Run the application.

        Raises:
            JobError: It has failed. A retry starts another one, for the tasks that are not finished.
            ConfigurationError: A connection is missing or wrong.
        """
        from airflow_mv.refresh.application import ApplicationFolder

        with task_errors():
            target = spark_target(self.spark_conn_id)
            if target.remote is not None:
                self.log.info("Spark Connect: the server is shared already")
                return
            if one_task_at_a_time():
                self.log.info("This run executes one task at a time: each has its own application")
                return
            hook = MaterializedViewHook(self.iceberg_conn_id, self.spark_conn_id)
            name, namespace = split_namespace(self.namespace)
            catalog = hook.catalog_named(name)
            location = catalog.application_folder(namespace)
            if location is None:
                self.log.info("The server of catalog %s chooses the folders of tables: none is shared", name)
                return
            self._run(ApplicationFolder(catalog, location), catalog, target, context)

    def _run(
        self, folder: ApplicationFolder, catalog: MaterializedViewCatalog, target: SparkTarget, context: Context
    ) -> None:
        with self._alive(folder, context):
            context["ti"].xcom_push(key=FOLDER_KEY, value=folder.folder)
            number = 0
            while self._wanted(folder):
                self._open_catalogs(catalog, folder)
                number += 1
                arguments = [folder.folder, catalog.name, "--serve", str(self.idle_seconds)]
                submission = Submission(catalog, target, arguments, confs=_FAIR)
                with self.scratch():
                    self.run_job(context, submission, f"{folder.folder}:{number}", what="the shared application")
            self.log.info("The tasks of this run have ended" if number else "No view of this run needed Spark")

    def _wanted(self, folder: ApplicationFolder) -> bool:
        """Wait for a script. Return whether there is one; if not, the tasks have ended, or there was none for long.

        This task may hold the worker slot that they wait for, so it must not wait forever.
        """
        deadline = time.monotonic() + self.idle_seconds
        while not (content := folder.content()).ended:
            if content.waiting:
                return True
            if time.monotonic() > deadline:
                self.log.warning("No task has asked for a script for %.0f s: the others run alone", self.idle_seconds)
                return False
            time.sleep(_POLL_SECONDS)
        return False

    def _open_catalogs(self, catalog: MaterializedViewCatalog, folder: ApplicationFolder) -> None:
        """Open the catalogs that the connection names or the waiting scripts need: Spark gets their settings."""
        requests = [request for key in folder.content().waiting if (request := folder.request(key))]
        for name in sorted({*catalog.openers, *(name for request in requests for name in request.catalogs)}):
            try:
                catalog.other(name)
            except MaterializedViewError as error:
                self.log.warning("Views that read catalog %s run alone: %s", name, error)
        if any(request.delta for request in requests):
            catalog.formats.add(DELTA_BY_PATH.data_source)

    @contextmanager
    def _alive(self, folder: ApplicationFolder, context: Context) -> Iterator[None]:
        """Write beats, and end the application with the last of its tasks, and at the end of the block."""
        stopped = threading.Event()
        folder.beat()
        thread = threading.Thread(target=self._watch, args=(folder, context, stopped), daemon=True)
        thread.start()
        try:
            yield
        finally:
            stopped.set()
            thread.join()
            with suppress(MaterializedViewError):  # without beats the tasks find out, later
                _finish(folder)

    def _watch(self, folder: ApplicationFolder, context: Context, stopped: threading.Event) -> None:
        beaten = 0.0
        while not stopped.wait(_STATES_SECONDS):
            try:
                if time.monotonic() - beaten > BEAT_SECONDS:
                    folder.beat()
                    beaten = time.monotonic()
                if self._tasks_ended(context):
                    folder.end()
                    return
            except Exception as error:  # noqa: BLE001 (the store or the API server may be away for a while)
                self.log.debug("Watching the run: %s", error)

    def _tasks_ended(self, context: Context) -> bool:
        ti: Any = context["ti"]
        states: Mapping[str, Mapping[str, str | None]] = ti.get_task_states(
            dag_id=ti.dag_id, task_ids=self.tasks, run_ids=[ti.run_id]
        )
        found = states.get(ti.run_id, {})
        return bool(found) and all(state in _FINISHED for state in found.values())


def _finish(folder: ApplicationFolder) -> None:
    """Delete the files, if all tasks have ended; otherwise tell those that wait."""
    if folder.content().ended:
        folder.remove()
    else:
        folder.end()
