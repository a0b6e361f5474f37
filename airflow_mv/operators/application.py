# SPDX-License-Identifier: Apache-2.0
"""The task that runs the Spark application that the other tasks of its DAG run share."""

from __future__ import annotations

import atexit
import inspect
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, ClassVar, Unpack

from airflow.sdk import BaseOperator, Context

from airflow_mv.core.spec.identifiers import DELTA_BY_PATH, Identifier, split_namespace
from airflow_mv.errors import ConfigurationError, MaterializedViewError
from airflow_mv.extras.shared_application.job.requests import BEAT_SECONDS, FolderContent
from airflow_mv.hooks import (
    DEFAULT_ICEBERG_CONN_ID,
    DEFAULT_SPARK_CONN_ID,
    MaterializedViewHook,
    SparkTarget,
    spark_target,
)
from airflow_mv.hooks.airflow_compat import one_task_at_a_time
from airflow_mv.operators.sharing import FOLDER_KEY
from airflow_mv.operators.spark import SparkJob, Submission
from airflow_mv.operators.spark_arguments import SparkTaskOperator
from airflow_mv.retries import task_errors
from airflow_mv.tasks.older_airflow import BEFORE_3_3, conf

if TYPE_CHECKING:
    from airflow_mv.core.catalog import MaterializedViewCatalog
    from airflow_mv.extras.shared_application.folder import ApplicationFolder
    from airflow_mv.operators.create import CreateMaterializedViewOperator
    from airflow_mv.operators.refresh import RefreshMaterializedViewOperator
    from airflow_mv.tasks.keywords import SharedSparkKeywords, ShareKeywords

log = logging.getLogger(__name__)

_TASK_ID = "spark_application"
#: How long the end of a process waits for the end of an application that runs beside it.
_END_SECONDS = 15.0
#: Scheduled first, because the others wait for it.
_FIRST: dict[str, Any] = {"weight_rule": "absolute", "priority_weight": 1000}
#: Arguments that have Airflow's own defaults, whatever the DAG's ``default_args`` say for its other tasks: they would
#: keep the application from running beside these tasks, end it too early, or emit events for it.
_APART = (
    *("pool", "pool_slots", "max_active_tis_per_dag", "max_active_tis_per_dagrun", "execution_timeout"),
    *("depends_on_past", "wait_for_downstream", "outlets"),
)
#: Scripts of all views get their share of the executors.
_FAIR = {"spark.scheduler.mode": "FAIR"}
_POLL_SECONDS = 0.5
_STATES_SECONDS = 2.0
#: How long tasks of the run wait for a slot while none runs, before the application gives its own back: where there is
#: no other slot, and where they may wait for something else, such as a pool, a pod or a worker that starts.
STARVED_SECONDS = 30.0
STARVED_PERHAPS_SECONDS = 300.0
#: Of how many waiting tasks other runs are requested: their ids are in a URL.
_MAX_ASKED = 50
_FINISHED = frozenset({"success", "failed", "skipped", "upstream_failed", "removed"})
_WAITING = frozenset({"scheduled", "queued"})
_ACTIVE = frozenset({"running", "deferred", "restarting"})


class SharedSparkApplicationOperator(SparkTaskOperator):
    """Run one Spark application for the scripts of other tasks of the DAG run, as long as these tasks need it.

    Spark starts when the first script arrives, so a run in which no view needs Spark starts none. The application
    ends with the last of the other tasks. Without a script for ``idle_seconds`` it also ends, and starts again for the
    next one. If it fails, each task continues with an application of its own.

    Over Spark Connect, where the server is shared, and where the catalog's server chooses the folders of tables, the
    task does nothing.

    Args:
        namespace: ``catalog.namespace`` (templated). The folder for requests and answers is in the namespace's folder.
        tasks: Ids of the tasks that use the application.
        iceberg_conn_id: Connection of type ``iceberg`` (templated).
        spark_conn_id: Connection of type ``spark`` (templated).
        idle_seconds: Seconds without a script after which the application ends.
        starved_seconds: Seconds after which it ends while tasks of the run are scheduled or queued, and none runs: it
            may hold the slot that they wait for. Where it surely does, because ``[core] parallelism`` or the DAG's
            ``max_active_tasks`` is 1, it ends after 30 s.
        name: Name of the Spark application (templated).
        **kwargs: All that ``SparkSubmitOperator`` takes except the application, and all that ``BaseOperator`` takes.
            Of the DAG's ``default_args`` those do not apply to this task that limit when and how long it runs
            (``pool``, ``execution_timeout``, ``depends_on_past`` …): it runs beside the tasks that they are for.
    """

    template_fields: Sequence[str] = (*SparkTaskOperator.template_fields, "namespace")

    def __init__(
        self,
        *,
        namespace: str,
        tasks: Sequence[str],
        idle_seconds: float = 600.0,
        starved_seconds: float = STARVED_PERHAPS_SECONDS,
        iceberg_conn_id: str = DEFAULT_ICEBERG_CONN_ID,
        spark_conn_id: str = DEFAULT_SPARK_CONN_ID,
        name: str | None = None,
        **kwargs: Unpack[SharedSparkKeywords],
    ) -> None:
        taken = inspect.signature(BaseOperator.__init__).parameters
        apart: dict[str, Any] = {key: taken[key].default for key in _APART}
        super().__init__(
            iceberg_conn_id=iceberg_conn_id,
            spark_conn_id=spark_conn_id,
            name=name or f"airflow-mv {namespace}",
            **{**apart, **_FIRST, **kwargs},
        )
        self.namespace = namespace
        self.tasks = list(tasks)
        self.idle_seconds = idle_seconds
        self.starved_seconds = starved_seconds
        self._job: SparkJob | None = None
        self.check_literals()

    def execute(self, context: Context) -> None:
        """Run the application.

        Raises:
            JobError: It has failed. A retry starts another one, for the tasks that are not finished.
            ConfigurationError: A connection is missing or wrong.
        """
        with task_errors(self):
            target = spark_target(self.spark_conn_id)
            if target.remote is not None:
                self.log.info("The tasks share a Spark Connect server already: no application is started")
                return
            if one_task_at_a_time():
                self.log.info("This run executes one task at a time: the first script starts the application here")
                return
            catalog, folder = self._opened()
            if folder is None:
                self.log.info("The server of catalog %s chooses the folders: no application is shared", catalog.name)
                return
            with _alive(folder, RunEnds(self, context)):
                context["ti"].xcom_push(key=FOLDER_KEY, value=folder.folder)
                number = self.serve(folder, catalog, target, context)
            self.log.info("The tasks of this run have ended" if number else "No view of this run needed Spark")

    def on_kill(self) -> None:
        """Kill the driver. Airflow gives the task 5 seconds."""
        if self._job is not None:
            self._job.kill()

    def beside(self, context: Context) -> ApplicationFolder | None:
        """Run the application in a thread of this process, which executes the tasks of the run one after another.

        ``dag.test()`` does so. The application ends with the process, or with another run's first script.

        Args:
            context: The context of the task that has a script.

        Returns:
            The application's folder; ``None`` if nothing is shared.
        """
        run = (context["ti"].dag_id, context["ti"].run_id, self.task_id)
        if (found := _LocalApplication.running.get(run)) is not None and found.is_alive():
            return found.folder
        copy = self.prepare_for_execution()
        copy.render_template_fields(context)
        if not BEFORE_3_3:  # which would warn that this has no effect
            copy.durable = False  # nothing resumes it
        target = spark_target(copy.spark_conn_id)
        if target.remote is not None:
            return None
        catalog, folder = copy._opened()
        if folder is None:
            return None
        _LocalApplication.end_all()
        _LocalApplication.running[run] = started = _LocalApplication(
            copy, folder, lambda: copy.serve(folder, catalog, target, context)
        )
        started.start()
        return folder

    def _opened(self) -> tuple[MaterializedViewCatalog, ApplicationFolder | None]:
        """Return the catalog, and the new application's folder; ``None`` if no folder can be shared."""
        from airflow_mv.extras.shared_application.folder import ApplicationFolder

        name, namespace = split_namespace(self.namespace)
        catalog = MaterializedViewHook(self.iceberg_conn_id, self.spark_conn_id).catalog_named(name)
        location = catalog.folders.of_application(namespace)
        return catalog, None if location is None else ApplicationFolder(catalog, location)

    def serve(
        self, folder: ApplicationFolder, catalog: MaterializedViewCatalog, target: SparkTarget, context: Context
    ) -> int:
        """Run a driver when there is a script, until no task needs one. Return how many drivers have run."""
        number, self._job = 0, SparkJob(self.spark_task())
        while self._wanted(folder):
            self._open_catalogs(catalog, folder)
            number += 1
            arguments = ["--extra", "shared_application", folder.folder, catalog.name, str(self.idle_seconds)]
            submission = Submission(catalog, target, arguments, confs=_FAIR)
            with self._job.prepared():
                self._job.run(context, submission, f"{folder.folder}:{number}", what="the shared application")
        return number

    def _wanted(self, folder: ApplicationFolder) -> bool:
        """Wait for a script. Return whether there is one; if not, the tasks have ended, or there was none for long.

        This task may hold the worker slot that they wait for, so it must not wait forever.
        """
        deadline = time.monotonic() + self.idle_seconds
        content = FolderContent.of({})
        while not (content := folder.content_after(content)).ended:
            if content.waiting:
                return True
            if time.monotonic() > deadline:
                self.log.warning(
                    "No task has sent a script for %.0f s: the other tasks start Spark themselves", self.idle_seconds
                )
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
                self.log.warning("Tasks of views that read catalog %s start Spark themselves: %s", name, error)
        if any(request.delta for request in requests):
            catalog.formats.add(DELTA_BY_PATH.data_source)


class RunEnds:
    """Decides whether the run's tasks need the application no longer.

    Args:
        operator: The application's task.
    """

    def __init__(self, operator: SharedSparkApplicationOperator, context: Context) -> None:
        self._operator, self._ti = operator, context["ti"]
        self._starves_since: float | None = None

    def __call__(self) -> bool:
        """Return whether all tasks have ended, or seem to wait for the slot that the application holds."""
        found = self._states()
        own = [state for task_id, state in found if task_id in self._operator.tasks]
        if own and all(state in _FINISHED for state in own):
            return True
        waiting = sorted({task_id for task_id, state in found if state in _WAITING})
        if not waiting or any(state in _ACTIVE for _, state in found):
            self._starves_since = None
            return False
        self._starves_since = self._starves_since or time.monotonic()
        waited, surely = time.monotonic() - self._starves_since, self._has_the_only_slot()
        if waited <= (STARVED_SECONDS if surely else self._operator.starved_seconds):
            return False
        if not surely and self._other_runs_have(waiting):
            self._starves_since = None
            return False
        self._operator.log.warning(
            "No task of this run has run for %.0f s, and %s is waiting. Ending the application, because it %s the "
            "slot; the tasks start Spark themselves. If they wait for something else, set a longer starved_seconds",
            *(waited, ", ".join(waiting[:3]), "has" if surely else "may have"),
        )
        return True

    def _has_the_only_slot(self) -> bool:
        """Whether no other task of the run can run beside the application's."""
        return 1 in (conf.getint("core", "parallelism", fallback=0), self._operator.dag.max_active_tasks)

    def _other_runs_have(self, waiting: Sequence[str]) -> bool:
        """Whether instances of the waiting tasks run for other runs: ``max_active_tis_per_dag`` may be reached."""
        ti: Any = self._ti
        running = ti.get_ti_count(dag_id=ti.dag_id, task_ids=list(waiting[:_MAX_ASKED]), states=sorted(_ACTIVE))
        return int(running) > 0

    def _states(self) -> list[tuple[str, str | None]]:
        """Return id and state of each other task instance of the run.

        They are not asked for by their ids, which would all be in one URL: servers refuse a long one.
        """
        ti: Any = self._ti
        found: Mapping[str, Mapping[str, str | None]] = ti.get_task_states(dag_id=ti.dag_id, run_ids=[ti.run_id])
        known = set(self._operator.dag.task_ids)
        # Airflow adds the index of a mapped task to its id.
        states = [
            (name if name in known else name.rpartition("_")[0], state)
            for name, state in found.get(ti.run_id, {}).items()
        ]
        return [(task_id, state) for task_id, state in states if task_id != self._operator.task_id]


class _LocalApplication(threading.Thread):
    """A shared application beside the tasks of a run that one process executes."""

    running: ClassVar[dict[tuple[str, str, str], _LocalApplication]] = {}

    def __init__(
        self, operator: SharedSparkApplicationOperator, folder: ApplicationFolder, serve: Callable[[], int]
    ) -> None:
        super().__init__(daemon=True)
        self.folder = folder
        self._operator, self._serve = operator, serve

    def run(self) -> None:
        """Serve until the end. The tasks find out about a failure, and start Spark themselves."""
        with _alive(self.folder, lambda: False):
            try:
                self._serve()
            except Exception as error:  # noqa: BLE001 (no thread waits for this one)
                self._operator.log.warning("The shared application has ended: %s", error)

    @classmethod
    def end_all(cls) -> None:
        """End the applications of this process."""
        for application in cls.running.values():
            with suppress(MaterializedViewError):
                application.folder.end()
            application.join(_END_SECONDS)
            if application.is_alive():
                application._operator.on_kill()
        cls.running.clear()


atexit.register(_LocalApplication.end_all)


@contextmanager
def _alive(folder: ApplicationFolder, ended: Callable[[], bool]) -> Iterator[None]:
    """Write beats, and end the application with the last of its tasks, and at the end of the block."""
    stopped = threading.Event()
    folder.beat()
    thread = threading.Thread(target=_watch, args=(folder, ended, stopped), daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()
        with suppress(MaterializedViewError):  # without beats the tasks find out, later
            _finish(folder)


def _watch(folder: ApplicationFolder, ended: Callable[[], bool], stopped: threading.Event) -> None:
    beaten, fails = 0.0, False
    while not stopped.wait(_STATES_SECONDS):
        try:
            if time.monotonic() - beaten > BEAT_SECONDS:
                folder.beat()
                beaten = time.monotonic()
            if ended():
                folder.end()
                return
            fails = False
        except Exception as error:  # noqa: BLE001 (the store or the API server may be away for a while)
            level = logging.DEBUG if fails else logging.WARNING
            log.log(level, "Could not read the states of tasks, so the application may outlive the run: %s", error)
            fails = True


def share_spark_application(
    *tasks: CreateMaterializedViewOperator | RefreshMaterializedViewOperator,
    namespace: str | None = None,
    **kwargs: Unpack[ShareKeywords],
) -> SharedSparkApplicationOperator:
    """Let tasks of the current DAG share a Spark application, and return the task that runs it.

    The connections are those of the first task. Give Spark's arguments here: those of the other tasks count only where
    a task has to start Spark itself.

    The returned task starts with the run, and holds a worker slot for ``idle_seconds`` at most without a script. If the
    tasks that share it wait for others of the DAG for longer, let it also wait for these: ``etl >> application``.

    Args:
        *tasks: Tasks that create, refresh, maintain … views.
        namespace: As for the operator; by default that of the first task's view.
        **kwargs: All that :class:`SharedSparkApplicationOperator` takes, by default with the ``task_id``
            ``spark_application``.

    Raises:
        ConfigurationError: There is neither a task nor a namespace.
        InvalidIdentifierError: The first task's view is a template or has no full name, and no namespace is given.
    """
    if tasks:
        kwargs.setdefault("iceberg_conn_id", tasks[0].iceberg_conn_id)
        kwargs.setdefault("spark_conn_id", tasks[0].spark_conn_id)
        namespace = namespace or Identifier.parse(tasks[0].view).full_namespace
    if namespace is None:
        raise ConfigurationError("a shared Spark application needs a task that has a view, or a namespace")
    kwargs.setdefault("task_id", _TASK_ID)
    application = SharedSparkApplicationOperator(namespace=namespace, tasks=[task.task_id for task in tasks], **kwargs)
    for task in tasks:
        task.spark_application = application.task_id
    # The other tasks continue without it: its failure must not fail the run.
    application.as_teardown()
    return application


def _finish(folder: ApplicationFolder) -> None:
    """Delete the files, if all tasks have ended; otherwise notify the waiting ones."""
    if folder.content().ended:
        folder.remove()
    else:
        folder.end()
