# SPDX-License-Identifier: Apache-2.0
"""Run a script on Spark from a task: through spark-submit, or over Spark Connect."""

from __future__ import annotations

import functools
import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from airflow.sdk import DAG, Context
from airflow.sdk.exceptions import AirflowException

from airflow_mv.errors import ConfigurationError, JobError, StoppedError
from airflow_mv.hooks import DEFAULT_ICEBERG_CONN_ID, DEFAULT_SPARK_CONN_ID, SparkTarget, spark_target
from airflow_mv.hooks.airflow_compat import MaskingOperator, redacted
from airflow_mv.hooks.iceberg import mask
from airflow_mv.links import MaterializedViewLink, SparkApplicationLink
from airflow_mv.operators.cluster import WaitingRefresh
from airflow_mv.operators.sharing import SharedApplication
from airflow_mv.operators.spark_arguments import SparkArgumentsOperator
from airflow_mv.operators.submission import SubmitOptions, environment_settings, submit_options
from airflow_mv.operators.submission_files import handed_over, job_arguments, write_script
from airflow_mv.redaction import shortened
from airflow_mv.retries import RetriedOperator

if TYPE_CHECKING:
    from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

    from airflow_mv.core.catalog import MaterializedViewCatalog
    from airflow_mv.core.refresh.plan import RefreshPlan
    from airflow_mv.core.refresh.stagers import InProcessStager
    from airflow_mv.core.script import Outcome, Script, Stager
    from airflow_mv.operators.spark_provider import SparkSubmission

#: Arguments that the operator sets itself.
_OWN = ("application", "application_args", "java_class", "conn_id")
_KILL_SECONDS = 3.0
_MAX_STATUS_LENGTH = 500
#: How long a deferred task with an ``execution_timeout`` waits for a triggerer.
_UNTRIGGERED = timedelta(minutes=10)
#: Values that are never secrets, whatever their key (``….credentials.hive.enabled``): masking them would garble logs.
_PLAIN = re.compile(r"(?i)true|false|none|\d{1,9}|")
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


class SparkJobOperator(RetriedOperator, MaskingOperator, SparkArgumentsOperator):
    """An operator whose work is this package's job, submitted by the provider's ``SparkSubmitOperator``.

    It takes all options of that; what the job needs (job package, Maven packages, catalog settings) is added. Settings
    go to Spark in a file that only the worker's user can read, so no credential is a process argument.

    Args:
        iceberg_conn_id: Connection of type ``iceberg`` (templated).
        spark_conn_id: Connection of type ``spark`` or ``spark_connect`` (templated).
        **kwargs: ``retry_policy`` and ``retry_delay``, and all arguments of ``SparkSubmitOperator`` except the
            application. ``packages=""`` adds no Maven packages: the cluster has the jars.
    """

    template_fields: Sequence[str] = (
        *SparkArgumentsOperator.template_fields,
        "iceberg_conn_id",
        "spark_conn_id",
    )
    #: A view may well be named ``lake.reports.sql``: no field may be read as the name of a template file.
    template_ext: Sequence[str] = ()
    ui_color: str = "#d9efe5"

    def __init__(
        self,
        *,
        iceberg_conn_id: str = DEFAULT_ICEBERG_CONN_ID,
        spark_conn_id: str = DEFAULT_SPARK_CONN_ID,
        **kwargs: Any,
    ) -> None:
        for key in _OWN:
            if key in kwargs:
                advice = "use spark_conn_id" if key == "conn_id" else "the operator sets it itself"
                raise ConfigurationError(f"{type(self).__name__} has no argument {key!r}: {advice}")
        super().__init__(**kwargs)
        self.iceberg_conn_id = iceberg_conn_id
        self.spark_conn_id = spark_conn_id
        self._submission: SparkSubmission | None = None
        self._scratch: Path | None = None

    @contextmanager
    def scratch(self) -> Iterator[None]:
        """Have a folder for the files of submissions, which contain credentials."""
        from airflow_mv.core.job.submit import scratch_folder

        with scratch_folder() as folder:
            self._scratch = folder
            yield

    def run_job(
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
            identity: Key: equal for submissions of which one is enough.
            what: Names the job, for the message.
            on_submit: If given, a driver in a cluster that can be found by an id is not waited for. Called before
                such a driver is submitted, and not if one of an earlier try is found.

        Returns:
            The id of the driver that was not waited for.

        Raises:
            JobError: It failed.
            ConfigurationError: The provider does not accept the arguments together.
        """
        from airflow_mv.core.job.submit import main_file

        hook = functools.partial(self._hook_of, submission)
        self.log.info("::group::Spark's own log, on master %s", submission.target.master)
        try:
            with _no_connect_variables():
                self._submission = self.new_submission(
                    identity=identity, new_hook=hook, on_submit=on_submit, application=str(main_file())
                )
                self._submission.submit(context)
                return self._submission.driver
        except (AirflowException, RuntimeError, OSError) as error:
            raise JobError(f"{what}: spark-submit failed: {_tail(error)}") from None
        except ValueError as error:  # the provider does not accept the arguments together
            raise ConfigurationError(f"{what}: spark-submit was not started: {_tail(error)}") from None
        finally:
            self.log.info("::endgroup::")

    def new_submission(self, **arguments: Any) -> SparkSubmission:
        """Make a submission with the user's arguments and those that are given.

        Args:
            **arguments: As for :class:`~airflow_mv.operators.spark_provider.SparkSubmission`.
        """
        from airflow_mv.operators.spark_provider import SparkSubmission

        given = {**self.spark_arguments(), "conn_id": self.spark_conn_id, **arguments}
        # A DAG of its own: if a file calls dag.test() within the block of its DAG, it would be added to that DAG.
        return SparkSubmission(dag=DAG("submission", auto_register=False), task_id=self.task_id, **given)

    @property
    def hook(self) -> SparkSubmitHook | None:
        """The hook of the current or last submission."""
        return None if self._submission is None else self._submission.hook

    def _hook_of(self, submission: Submission, conf: Mapping[Any, Any]) -> SparkSubmitHook:
        """Make the hook of a submission, with the user's options and those that the job needs."""
        from airflow_mv.core.refresh.stagers import settings_of
        from airflow_mv.operators.spark_provider import submit_hook

        target = submission.target
        variables = {str(key): str(value) for key, value in (self.env_vars or {}).items()}
        as_settings = environment_settings(target.master, variables)
        given = SubmitOptions(
            conf={**submission.confs, **{str(key): str(value) for key, value in conf.items()}, **as_settings},
            packages=self.packages,
            jars=self.jars,
            py_files=self.py_files,
            properties_file=self.properties_file,
            environment={**os.environ, **variables},
            spark_binary=self.spark_binary,
            cluster=(self.deploy_mode or target.deploy_mode) == "cluster",
        )
        needed = submit_options(given, settings_of(submission.catalog), target, self._scratch or Path())
        own: dict[str, Any] = {"application_args": submission.arguments, "conn_id": self.spark_conn_id}
        own |= {"env_vars": None} if as_settings else {}
        # With YARN the provider gives them to spark-submit, too, which finds the cluster by YARN_CONF_DIR.
        of_process = variables if "yarn" in (target.master or "") else None
        return submit_hook({**self.spark_arguments(), **needed, **own}, local=target.missing, environment=of_process)

    def mask_fields(self) -> None:
        """Mask the secrets among the settings."""
        for settings in (self.conf, self.env_vars):
            if isinstance(settings, Mapping):
                mask({str(key): value for key, value in settings.items() if not _PLAIN.fullmatch(str(value))})

    def on_kill(self) -> None:
        """Stop what this task has started on Spark. Airflow gives it 5 seconds."""
        if self._submission is not None:
            self._submission.on_kill()
        if self._scratch is not None:  # it holds credentials, and no later code deletes it
            shutil.rmtree(self._scratch, ignore_errors=True)


class MaterializedViewSparkOperator(SparkJobOperator):
    """A Spark job whose work is the script of a view.

    At most one task instance of the task runs at a time, over all runs (``max_active_tis_per_dag=1``): Airflow's
    backfill ignores ``max_active_runs``, and two refreshes of one view at once only waste work.

    Args:
        view: ``catalog.namespace.name`` (templated).
        name: Name of the Spark application (templated).
        spark_application: Id of the task of this DAG that runs a shared Spark application
            (:class:`~airflow_mv.operators.SharedSparkApplicationOperator`). The script runs there; if that task does
            not run, in an application of its own.
        deferrable: Whether a refresh waits in the triggerer, without a worker slot: for a shared application, or for a
            driver in a cluster whose state the provider can request (``yarn_track_via_rm_api``,
            ``track_driver_via_k8s_api``). ``None``: as ``AIRFLOW__OPERATORS__DEFAULT_DEFERRABLE`` says; if that is
            not set, if a triggerer runs.
        max_active_tis_per_dag: As for ``BaseOperator``.
        **kwargs: As for :class:`SparkJobOperator`.
    """

    template_fields: Sequence[str] = (*SparkJobOperator.template_fields, "view")
    operator_extra_links = (MaterializedViewLink(), SparkApplicationLink())

    def __init__(
        self,
        *,
        view: str,
        name: str | None = None,
        spark_application: str | None = None,
        deferrable: bool | None = None,
        max_active_tis_per_dag: int | None = 1,
        **kwargs: Any,
    ) -> None:
        super().__init__(name=name or f"airflow-mv {view}", max_active_tis_per_dag=max_active_tis_per_dag, **kwargs)
        self.view = view
        self.spark_application = spark_application
        self.deferrable = deferrable
        #: The Spark application that ran for the view, after it ran.
        self.application_id: str | None = None
        self._target: SparkTarget | None = None
        self._session: InProcessStager | None = None
        self._shared: SharedApplication | None = None
        self._stopped = False
        #: The trigger's event, if the task was deferred.
        self._event: Mapping[str, Any] | None = None
        #: The plan of the refresh that is carried out, if the task may be deferred while its driver runs.
        self._deferrable_plan: RefreshPlan | None = None
        #: The plan with which the task was deferred, which is carried out to its end: base tables change meanwhile.
        self._resumed_plan: RefreshPlan | None = None
        #: The refresh for whose driver the task was deferred, until its outcome is taken.
        self._waiting: WaitingRefresh | None = None
        #: When the time of a task that was deferred ends, in seconds since the epoch: Airflow counts it anew.
        self._until: float | None = None

    @contextmanager
    def stager(self, catalog: MaterializedViewCatalog, context: Context) -> Iterator[Stager]:
        """Yield a stager. It connects to nothing before the first script.

        Args:
            catalog: The view's catalog; its properties become Spark's settings.
            context: The task's context.
        """
        if self.spark_application is not None:
            self._shared = SharedApplication(self.spark_application, self.log)
            if self._event is not None:
                self.application_id = self._shared.resume(catalog, self._event)
        with self.scratch(), closing(_Closer(self)):
            yield functools.partial(self._stage, catalog, context)

    def on_kill(self) -> None:
        """Stop what this task has started on Spark. Airflow gives it 5 seconds."""
        self._stopped = True
        session, self._session = self._session, None
        if session is not None:
            # Not in this thread, which may be in a call of the same session.
            stopping = threading.Thread(target=session.close, daemon=True)
            stopping.start()
            stopping.join(_KILL_SECONDS)
        if self._shared is not None:
            self._shared.cancel()
        super().on_kill()

    def _stage(self, catalog: MaterializedViewCatalog, context: Context, script: Script) -> Outcome:
        if self._target is None:
            self._target = spark_target(self.spark_conn_id)
            if self._target.missing:
                self.log.warning(self._target.notice)
        try:
            outcome = self._run(catalog, context, self._target, script)
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

    def _run(self, catalog: MaterializedViewCatalog, context: Context, target: SparkTarget, script: Script) -> Outcome:
        if target.remote is not None:
            return self._stage_over_connect(catalog, target.remote, script)
        waiting, self._waiting = self._waiting, None
        if waiting is not None and waiting.plan.refresh_id == script.refresh_id:
            return self._left_by_driver(catalog, context, script, waiting)
        with handed_over(catalog, script) as answered:
            shared = self._staged_by_shared(catalog, context, script, answered)
            return shared or self._submit(catalog, context, target, answered)

    def _staged_by_shared(
        self, catalog: MaterializedViewCatalog, context: Context, script: Script, answered: Script
    ) -> Outcome | None:
        if self._shared is None:
            return None
        plan = self._deferrable_plan if self._may_defer(script) else None
        defer = functools.partial(self._wait_deferred, catalog.name, plan) if plan is not None else None
        return self._shared.stage(catalog, context, answered, defer)

    def _may_defer(self, script: Script) -> bool:
        """Whether to wait in the triggerer for a script: as asked for, else if a triggerer is known to run.

        A deferred task is executed again from its beginning. It finds again only what the plan's own script has staged,
        not what a compaction or a new analysis of the query has made.
        """
        from airflow_mv.triggers.triggerer import deferrable_by_default, triggerer_runs

        if self._deferrable_plan is None or script is not self._deferrable_plan.script:
            return False
        wanted = deferrable_by_default() if self.deferrable is None else self.deferrable
        return bool(triggerer_runs()) if wanted is None else wanted

    def _may_leave_driver(self, target: SparkTarget, script: Script) -> bool:
        """Whether to wait in the triggerer for the driver of a script."""
        if (self.deploy_mode or target.deploy_mode) != "cluster" or not self._may_defer(script):
            return False
        option = "yarn_track_via_rm_api" if "yarn" in str(target.master) else "track_driver_via_k8s_api"
        if not getattr(self, option):
            self.log.info("This task keeps its worker slot while its driver runs: %s is not set", option)
            return False
        if self.post_submit_commands:
            self.log.info("This task keeps its worker slot while its driver runs, for its post_submit_commands")
            return False
        return True

    def _wait_for_driver(self, catalog: str, script: Script, waiting: WaitingRefresh) -> NoReturn:
        """Defer the task until the driver has left its outcome, or the cluster has to be asked for it."""
        from airflow_mv.triggers import JobOutcomeTrigger

        pause = waiting.pause
        trigger = JobOutcomeTrigger(
            catalog=catalog,
            location=str(script.outcome_location),
            iceberg_conn_id=self.iceberg_conn_id,
            seconds=pause,
            driver=waiting.driver,
            spark_conn_id=self.spark_conn_id,
        )
        self.log.info("Waiting in the triggerer for the outcome of the driver %s", waiting.driver)
        # The trigger ends by itself; the timeout is for a task that no triggerer takes.
        limit = None if waiting.until is None else timedelta(seconds=pause) + _UNTRIGGERED
        kwargs = {"waiting": waiting.to_dict()}
        self.defer(trigger=trigger, method_name="continue_refresh", kwargs=kwargs, timeout=limit)
        raise AssertionError  # defer() raises

    def _wait_deferred(self, catalog: str, plan: RefreshPlan, folder: str, key: str) -> None:
        """Defer the task until the shared application has answered, or the task's time has ended."""
        from airflow_mv.triggers import SharedApplicationTrigger

        until = self._ends()
        trigger = SharedApplicationTrigger(
            catalog=catalog, folder=folder, key=key, iceberg_conn_id=self.iceberg_conn_id, until=until
        )
        # The trigger ends by itself; the timeout is for a task that no triggerer takes.
        limit = None if until is None else timedelta(seconds=max(0.0, until - time.time())) + _UNTRIGGERED
        kwargs = {"plan": plan.to_json(), "until": until}
        self.defer(trigger=trigger, method_name="execute_complete", kwargs=kwargs, timeout=limit)

    def _ends(self) -> float | None:
        """Return when the time of a deferred task ends: its ``execution_timeout`` counts from the first wait."""
        if self._until is None and self.execution_timeout is not None:
            self._until = time.time() + self.execution_timeout.total_seconds()
        return self._until

    def _stage_over_connect(self, catalog: MaterializedViewCatalog, remote: str, script: Script) -> Outcome:
        from airflow_mv.core.refresh.stagers import InProcessStager

        if self._session is None:
            self.log.info("Spark Connect: %s", remote.partition(";")[0])
            self._session = InProcessStager(catalog, remote=remote, report=self.log.info)
        return self._session(script)

    def _submit(
        self, catalog: MaterializedViewCatalog, context: Context, target: SparkTarget, script: Script
    ) -> Outcome:
        from airflow_mv.core.catalog.files import discard
        from airflow_mv.core.publish.layout import read_outcome

        submitted = write_script(catalog, script)
        # An outcome whose staged rows are gone must not end the wait for the new ones.
        discard_outcome = functools.partial(discard, catalog.files, str(script.outcome_location))
        try:
            driver = self.run_job(
                context,
                Submission(catalog, target, job_arguments(catalog, script, submitted)),
                _identity(context, script),
                what=f"view {script.view}",
                on_submit=discard_outcome if self._may_leave_driver(target, script) else None,
            )
        except JobError:
            outcome = read_outcome(catalog, script)
            if outcome is not None and outcome.error is not None:
                return outcome
            raise
        if driver is not None and self._deferrable_plan is not None:
            self._wait_for_driver(catalog.name, script, WaitingRefresh(self._deferrable_plan, driver, self._ends()))
        outcome = read_outcome(catalog, script)
        if outcome is None:
            # A job id that Airflow kept for a reattach would be reported as "already succeeded" again.
            if self._submission is not None:
                self._submission.forget(context)
            raise JobError(
                f"view {script.view}: the Spark job succeeded, but there is no outcome at {script.outcome_location}; "
                "the driver must be able to write there"
            )
        return outcome

    def _left_by_driver(
        self, catalog: MaterializedViewCatalog, context: Context, script: Script, waiting: WaitingRefresh
    ) -> Outcome:
        """Return the outcome of a driver, or defer the task again while it runs.

        Raises:
            JobError: The driver has ended without an outcome, or has run for too long and was killed.
        """
        from airflow_mv.core.publish.layout import read_outcome

        if (outcome := read_outcome(catalog, script)) is not None:
            return outcome
        self._submission = submission = self._attached(context, script)
        runs, status = submission.ask(waiting.driver, context)
        self.log.info("The driver %s: %s", waiting.driver, status)
        if (outcome := read_outcome(catalog, script)) is not None:  # it may have ended in between
            return outcome
        waiting = waiting.after_question(answered=runs is not None)
        what = f"view {script.view}: its driver {waiting.driver}"
        if waiting.is_late and runs is not False:
            submission.on_kill()
            raise StoppedError(f"{what} was killed: it ran for longer than the task's execution_timeout")
        if runs or (runs is None and not waiting.gives_up):
            self._wait_for_driver(catalog.name, script, waiting)
        # Another try must not find it again.
        submission.forget(context)
        status = shortened(redacted(status), _MAX_STATUS_LENGTH)
        if runs is None:
            raise JobError(f"{what} has left no outcome, and the cluster gives no answer about it: {status}")
        raise JobError(f"{what} has ended ({status}), and there is no outcome at {script.outcome_location}")

    def _attached(self, context: Context, script: Script) -> SparkSubmission:
        """Return the submission by which an earlier process has started the driver of a script."""
        from airflow_mv.operators.spark_provider import submit_hook

        arguments = {**self.spark_arguments(), "conn_id": self.spark_conn_id}
        return self.new_submission(
            identity=_identity(context, script), new_hook=lambda _: submit_hook(arguments, local=False)
        )


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


class _Closer:
    """Closes the session if the operator has opened one."""

    def __init__(self, operator: MaterializedViewSparkOperator) -> None:
        self._operator = operator

    def close(self) -> None:
        session, self._operator._session = self._operator._session, None
        if session is not None:
            session.close()


def _tail(error: BaseException) -> str:
    """Shorten the parent's error, which begins with the whole command, to the last lines of output."""
    head, found, output = str(error).partition("Last spark-submit output:")
    lines = [line.strip() for line in (output if found else head).splitlines()]
    kept = [line for line in lines if line and not line.startswith(("at ", "\tat "))]
    # Mask before cutting: Airflow does not recognize the first half of a secret.
    return shortened(redacted(" ".join(kept[-5:])), 1500) or type(error).__name__
