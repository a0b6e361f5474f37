# SPDX-License-Identifier: Apache-2.0
"""Run a script on Spark for a task: through spark-submit, in the DAG run's application, or over Spark Connect."""

from __future__ import annotations

import functools
import os
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk import DAG, Context
from airflow.sdk.exceptions import AirflowException

from airflow_mv.errors import AccessDeniedError, ConfigurationError, JobError, StoppedError
from airflow_mv.foundation.redaction import shortened
from airflow_mv.hooks import SparkTarget, spark_target
from airflow_mv.hooks.airflow_compat import redacted
from airflow_mv.operators.deferral import Resumption
from airflow_mv.operators.sharing import SharedApplication
from airflow_mv.operators.submission import SubmitOptions, environment_settings, submit_options
from airflow_mv.operators.submission_files import handed_over, job_arguments, write_script

if TYPE_CHECKING:
    from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

    from airflow_mv.core.catalog import MaterializedViewCatalog
    from airflow_mv.core.refresh.plan import RefreshPlan
    from airflow_mv.core.script import Outcome, Script
    from airflow_mv.extras.spark.session import InProcessStager
    from airflow_mv.operators.deferral import Deferral, WaitingRefresh
    from airflow_mv.operators.spark_arguments import SparkTask
    from airflow_mv.operators.spark_provider import SparkSubmission

_KILL_SECONDS = 3.0
_MAX_STATUS_LENGTH = 500
#: Set by a Connect client of this process or a user's profile. They would turn a submitted driver into a client.
_CONNECT_VARIABLES = ("SPARK_CONNECT_MODE_ENABLED", "SPARK_REMOTE", "SPARK_LOCAL_REMOTE")


@dataclass(frozen=True, slots=True)
class Submission:
    """One submission of the job's main file.

    Args:
        catalog: It and the catalogs that were opened through it become Spark's settings.
        target: The Spark connection.
        arguments: The arguments of the main file.
        confs: Further Spark settings without secrets. The user's override them.
    """

    catalog: MaterializedViewCatalog
    target: SparkTarget
    arguments: list[str]
    confs: Mapping[str, str] = field(default_factory=dict)


class SparkJob:
    """Submits this package's job through the provider's ``SparkSubmitOperator``, with a task's arguments.

    What the job needs (job package, Maven packages, catalog settings) is added. Settings go to Spark in a file that
    only the worker's user can read, so no credential is a process argument.
    """

    def __init__(self, task: SparkTask) -> None:
        self._task = task
        self._submission: SparkSubmission | None = None
        #: The folder for the files of submissions, while there is one.
        self.scratch: Path | None = None

    @property
    def hook(self) -> SparkSubmitHook | None:
        """The hook of the current or last submission."""
        return None if self._submission is None else self._submission.hook

    @contextmanager
    def prepared(self) -> Iterator[None]:
        """Have a folder for the files of submissions, which contain credentials."""
        from airflow_mv.extras.spark.submit import scratch_folder

        with scratch_folder() as folder:
            self.scratch = folder
            yield

    def run(
        self,
        context: Context,
        submission: Submission,
        identity: str,
        *,
        what: str,
        on_submit: Callable[[], object] | None = None,
    ) -> str | None:
        """Submit the job, and wait for its end. Its output is a group in the task's log.

        Args:
            context: The task's context.
            submission: What to submit.
            identity: Key: equal for submissions that need to run only once.
            what: Names the job, for the message.
            on_submit: If given, a driver in a cluster that can be found by an id is not waited for. Called before
                such a driver is submitted, and not if one of an earlier try is found.

        Returns:
            The id of the driver that was not waited for.

        Raises:
            JobError: It failed.
            AccessDeniedError: A store refuses its account.
            ConfigurationError: The provider does not accept the arguments together.
        """
        from airflow_mv.extras.spark.submit import main_file

        hook = functools.partial(self._hook_of, submission)
        self._task.log.info("::group::Spark's own log, on master %s", submission.target.master)
        try:
            with _no_connect_variables():
                self._submission = self._new_submission(
                    identity=identity, new_hook=hook, on_submit=on_submit, application=str(main_file())
                )
                self._submission.submit(context)
                return self._submission.driver
        except (AirflowException, RuntimeError, OSError) as error:
            from airflow_mv.core.script import job_error

            raise job_error(f"{what}: spark-submit failed: {_tail(error)}") from None
        except ValueError as error:  # the provider does not accept the arguments together
            raise ConfigurationError(f"{what}: spark-submit was not started: {_tail(error)}") from None
        finally:
            self._task.log.info("::endgroup::")

    def attached(self, identity: str) -> SparkSubmission:
        """Return the submission by which an earlier process has started a driver."""
        from airflow_mv.operators.spark_provider import submit_hook

        arguments = {**self._task.arguments, "conn_id": self._task.spark_conn_id}
        self._submission = self._new_submission(
            identity=identity, new_hook=lambda _: submit_hook(arguments, local=False)
        )
        return self._submission

    def forget(self, context: Context) -> None:
        """Make another try submit again: Airflow would report the kept job as "already succeeded"."""
        if self._submission is not None:
            self._submission.forget(context)

    def kill(self) -> None:
        """Kill the submitted driver."""
        if self._submission is not None:
            self._submission.on_kill()
        if self.scratch is not None:  # it holds credentials, and no later code deletes it
            shutil.rmtree(self.scratch, ignore_errors=True)

    def _new_submission(self, **arguments: Any) -> SparkSubmission:
        from airflow_mv.operators.spark_provider import SparkSubmission

        given = {**self._task.arguments, "conn_id": self._task.spark_conn_id, **arguments}
        # A DAG of its own: if a file calls dag.test() within the block of its DAG, it would be added to that DAG.
        return SparkSubmission(dag=DAG("submission", auto_register=False), task_id=self._task.task_id, **given)

    def _hook_of(self, submission: Submission, conf: Mapping[Any, Any]) -> SparkSubmitHook:
        """Make the hook of a submission, with the user's options and those that the job needs."""
        from airflow_mv.extras.spark.session import settings_of
        from airflow_mv.operators.spark_provider import submit_hook

        target, users = submission.target, self._task.arguments
        variables = {str(key): str(value) for key, value in users.get("env_vars", {}).items()}
        as_settings = environment_settings(target.master, variables)
        given = SubmitOptions(
            conf={**submission.confs, **{str(key): str(value) for key, value in conf.items()}, **as_settings},
            packages=users.get("packages"),
            jars=users.get("jars"),
            py_files=users.get("py_files"),
            properties_file=users.get("properties_file"),
            environment={**os.environ, **variables},
            spark_binary=users.get("spark_binary"),
            cluster=_deploy_mode(self._task, target) == "cluster",
        )
        needed = submit_options(given, settings_of(submission.catalog), target, self.scratch or Path())
        own: dict[str, Any] = {"application_args": submission.arguments, "conn_id": self._task.spark_conn_id}
        own |= {"env_vars": None} if as_settings else {}
        # With YARN the provider also gives them to spark-submit, which finds the cluster by YARN_CONF_DIR.
        of_process = variables if "yarn" in (target.master or "") else None
        return submit_hook({**users, **needed, **own}, local=target.missing, environment=of_process)


class TaskStager:
    """The stager of a task: it runs a view's scripts on Spark. It connects to nothing before the first script.

    Args:
        catalog: The view's catalog; its properties become Spark's settings.
        context: The task's context.
        spark_application: Id of the task of this DAG that runs a shared Spark application.
        deferral: Whether and how the task waits in the triggerer.
        resumed: What the task continues with, if it was deferred.
    """

    def __init__(
        self,
        task: SparkTask,
        catalog: MaterializedViewCatalog,
        context: Context,
        *,
        spark_application: str | None,
        deferral: Deferral | None = None,
        resumed: Resumption | None = None,
    ) -> None:
        #: The Spark application that ran for the view, after it ran.
        self.application_id: str | None = None
        self.job = SparkJob(task)
        self._task = task
        self._catalog = catalog
        self._context = context
        self._deferral = deferral
        self._resumed = resumed or Resumption()
        self._waiting = self._resumed.waiting
        self._target: SparkTarget | None = None
        self._session: InProcessStager | None = None
        self._shared = None if spark_application is None else SharedApplication(spark_application, task.log)
        self._stopped = False

    def may_defer(self, plan: RefreshPlan | None) -> None:
        """Allow the task to wait in the triggerer while the script of a plan runs."""
        if self._deferral is not None:
            self._deferral.plan = plan

    @contextmanager
    def opened(self) -> Iterator[TaskStager]:
        """Yield the stager, ready for scripts; at the end its session is closed and its files are deleted."""
        if self._shared is not None and self._resumed.event is not None:
            self.application_id = self._shared.resume(self._catalog, self._resumed.event)
        with self.job.prepared():
            try:
                yield self
            finally:
                self._close()

    def kill(self) -> None:
        """Stop what was started on Spark. Airflow gives a task 5 seconds."""
        self._stopped = True
        session, self._session = self._session, None
        if session is not None:
            # Not in this thread, which may be in a call of the same session.
            stopping = threading.Thread(target=session.close, daemon=True)
            stopping.start()
            stopping.join(_KILL_SECONDS)
        if self._shared is not None:
            self._shared.cancel()
        self.job.kill()

    def _close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.close()

    def __call__(self, script: Script) -> Outcome:
        """Run a script.

        Raises:
            JobError: It failed.
            StoppedError: The task was stopped.
        """
        if self._target is None:
            self._target = spark_target(self._task.spark_conn_id)
            if self._target.missing:
                self._task.log.warning(self._target.notice)
        try:
            outcome = self._run(self._target, script)
        except Exception:
            if not self._stopped:
                raise
            # Spark's own error would only say that it has ended.
            raise StoppedError(
                f"view {script.view}: its Spark job was stopped from outside: the task was marked or cleared, or its "
                "worker ended. Nothing was published; another try starts again"
            ) from None
        self.application_id = outcome.application_id
        return outcome

    def _run(self, target: SparkTarget, script: Script) -> Outcome:
        if target.remote is not None:
            return self._over_connect(target.remote, script)
        waiting, self._waiting = self._waiting, None
        if waiting is not None and self._deferral is not None and waiting.plan.refresh_id == script.refresh_id:
            return self._left_by_driver(script, waiting, self._deferral)
        with handed_over(self._catalog, script) as answered:
            return self._in_application(script, answered) or self._submitted(target, answered)

    def _over_connect(self, remote: str, script: Script) -> Outcome:
        from airflow_mv.extras.spark.session import InProcessStager

        if self._session is None:
            self._task.log.info("Spark Connect: %s", remote.partition(";")[0])
            self._session = InProcessStager(self._catalog, remote=remote, report=self._task.log.info)
        return self._session(script)

    def _in_application(self, script: Script, answered: Script) -> Outcome | None:
        """Run a script in the shared application; ``None`` if there is none."""
        if self._shared is None:
            return None
        defer = None
        if (deferral := self._deferral) is not None and deferral.may_wait_for(script):
            defer = functools.partial(deferral.wait_for_application, self._catalog.name)
        return self._shared.stage(self._catalog, self._context, answered, defer)

    def _submitted(self, target: SparkTarget, script: Script) -> Outcome:
        """Run a script in a driver that spark-submit starts."""
        from airflow_mv.core.catalog.files import discard
        from airflow_mv.core.publish.layout import read_outcome

        catalog, submitted = self._catalog, write_script(self._catalog, script)
        # An outcome whose staged rows no longer exist must not end the wait for the new ones.
        discard_outcome = functools.partial(discard, catalog.files, str(script.outcome_location))
        deferral = self._deferral if self._may_leave_driver(target, script) else None
        try:
            driver = self.job.run(
                self._context,
                Submission(catalog, target, job_arguments(catalog, script, submitted)),
                _identity(self._context, script),
                what=f"view {script.view}",
                on_submit=None if deferral is None else discard_outcome,
            )
        except (AccessDeniedError, JobError):
            outcome = read_outcome(catalog, script)
            if outcome is not None and outcome.error is not None:
                return outcome
            raise
        if driver is not None and deferral is not None:
            deferral.wait_for_new_driver(catalog.name, script, driver)
        outcome = read_outcome(catalog, script)
        if outcome is None:
            self.job.forget(self._context)
            raise JobError(
                f"view {script.view}: the Spark job succeeded, but there is no outcome at {script.outcome_location}; "
                "the driver must be able to write there"
            )
        return outcome

    def _may_leave_driver(self, target: SparkTarget, script: Script) -> bool:
        """Whether to wait in the triggerer for the driver of a script."""
        if _deploy_mode(self._task, target) != "cluster":
            return False
        if self._deferral is None or not self._deferral.may_wait_for(script):
            return False
        log, users = self._task.log, self._task.arguments
        option = "yarn_track_via_rm_api" if "yarn" in str(target.master) else "track_driver_via_k8s_api"
        if not users.get(option):
            log.info("This task keeps its worker slot while its driver runs: %s is not set", option)
            return False
        if users.get("post_submit_commands"):
            log.info("This task keeps its worker slot while its driver runs, for its post_submit_commands")
            return False
        return True

    def _left_by_driver(self, script: Script, waiting: WaitingRefresh, deferral: Deferral) -> Outcome:
        """Return the outcome of a driver, or defer the task again while it runs.

        Raises:
            JobError: The driver has ended without an outcome, or has run for too long and was killed.
        """
        from airflow_mv.core.publish.layout import read_outcome

        catalog, context = self._catalog, self._context
        if (outcome := read_outcome(catalog, script)) is not None:
            return outcome
        submission = self.job.attached(_identity(context, script))
        runs, status = submission.ask(waiting.driver, context)
        self._task.log.info("The driver %s: %s", waiting.driver, status)
        if (outcome := read_outcome(catalog, script)) is not None:  # it may have ended in between
            return outcome
        waiting = waiting.after_question(answered=runs is not None)
        what = f"view {script.view}: its driver {waiting.driver}"
        if waiting.is_late and runs is not False:
            submission.on_kill()
            raise StoppedError(f"{what} was killed: it ran for longer than the task's execution_timeout")
        if runs or (runs is None and not waiting.gives_up):
            deferral.wait_for_driver(catalog.name, script, waiting)
        # Another try must not find it again.
        submission.forget(context)
        status = shortened(redacted(status), _MAX_STATUS_LENGTH)
        if runs is None:
            raise JobError(f"{what} left no outcome, and the cluster did not report its state: {status}")
        raise JobError(f"{what} has ended ({status}), and there is no outcome at {script.outcome_location}")


def _deploy_mode(task: SparkTask, target: SparkTarget) -> str | None:
    return task.arguments.get("deploy_mode") or target.deploy_mode


def _identity(context: Context, script: Script) -> str:
    """Return the key by which another try of this task finds the submitted driver.

    Airflow keeps task state after a clear, and reports an earlier finished job as "already succeeded".
    """
    return f"{context['dag_run'].clear_number}:{script.refresh_id}"


@contextmanager
def _no_connect_variables() -> Iterator[None]:
    variables = {name: os.environ.pop(name) for name in _CONNECT_VARIABLES if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(variables)


def _tail(error: BaseException) -> str:
    """Shorten the parent's error, which begins with the whole command, to the last lines of output."""
    head, found, output = str(error).partition("Last spark-submit output:")
    lines = [line.strip() for line in (output if found else head).splitlines()]
    kept = [line for line in lines if line and not line.startswith(("at ", "\tat "))]
    # Mask before cutting: Airflow does not recognize the first half of a secret.
    return shortened(redacted(" ".join(kept[-5:])), 1500) or type(error).__name__
