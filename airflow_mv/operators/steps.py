# SPDX-License-Identifier: Apache-2.0
"""Plan and commit as separate tasks, for a Spark job that another operator submits in between."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Unpack

from airflow.providers.standard.utils.skipmixin import SkipMixin
from airflow.sdk import Context

from airflow_mv.core.spec.times import duration
from airflow_mv.errors import JobError
from airflow_mv.hooks import DEFAULT_ICEBERG_CONN_ID, MaterializedViewHook
from airflow_mv.lineage import RefreshLineage
from airflow_mv.operators.options import REFRESH_ARGUMENTS, RefreshArguments
from airflow_mv.operators.submission_files import job_arguments, ship, write_script
from airflow_mv.operators.task import announce, given_document, log_plan, log_result, requester
from airflow_mv.retries import RetriedOperator, task_errors
from airflow_mv.tasks.links import MaterializedViewLink, show_link
from airflow_mv.tasks.literals import CheckedOperator
from airflow_mv.tasks.older_airflow import AirflowFailException
from airflow_mv.triggers import JobOutcomeTrigger
from airflow_mv.triggers.base_tables import payload_or_error

if TYPE_CHECKING:
    from airflow_mv.core.catalog import MaterializedViewCatalog
    from airflow_mv.core.refresh.plan import RefreshPlan
    from airflow_mv.core.script import Outcome, Script
    from airflow_mv.core.spec.choices import FallbackPolicy
    from airflow_mv.tasks.keywords import Checks, LimitedTaskKeywords, TaskKeywords
    from airflow_mv.tasks.scope import ScopeName


_SPLIT = re.compile(r"""[\s"'\\]""")


class PlanRefreshOperator(CheckedOperator, RetriedOperator, SkipMixin):
    """Plan a refresh, and write the files that any Spark submitter needs to run it.

    Script and job package are written beside the storage table, so the driver may run anywhere that reads the
    view's store. The return value is the plan, for :class:`CommitRefreshOperator`. Further XComs, for every submitter::

        run = SparkSubmitOperator(application=plan.output["application"], conf=plan.output["conf"], …)

    - ``application``: the location of the main file; ``application_args``: its arguments, a list
    - ``py_files``: the location of the zip for ``--py-files``
    - ``packages``: Maven coordinates with commas in between
    - ``conf``: Spark's settings without secrets, a dictionary
    - ``properties``: the same with the packages as ``spark.jars.packages``
    - ``spark_submit_conf``: the same as ``--conf key=value …`` in one text
    - ``secret_conf``: names of the settings that you have to give the driver, by its own secret store or a file

    :class:`~airflow_mv.operators.RefreshMaterializedViewOperator` explains ``as_of``, ``full`` … ``max_bytes``.

    Args:
        view: ``catalog.namespace.name`` (templated).
        iceberg_conn_id: Connection of type ``iceberg`` (templated).
        spark_task_ids: Tasks that run the script: skipped where the plan needs no Spark job.
        spark_version: The version of the Spark that runs the script, such as ``4.0``; the packages are for it. By
            default the newest supported one.
        conf: Further settings of Spark for the XComs, such as references to the platform's secret store. They are not
            rendered as templates.
        **kwargs: All that ``BaseOperator`` takes.
    """

    template_fields: Sequence[str] = ("view", "iceberg_conn_id", *REFRESH_ARGUMENTS)
    ui_color: str = "#d9efe5"
    operator_extra_links = (MaterializedViewLink(),)

    def __init__(  # noqa: PLR0913 (each is an argument of the task)
        self,
        *,
        view: str,
        iceberg_conn_id: str = DEFAULT_ICEBERG_CONN_ID,
        as_of: str | datetime | None = None,
        full: bool | str = False,
        on_fallback: FallbackPolicy | None = None,
        max_full_bytes: int | str | None = None,
        pins: Any = None,
        checks: Checks = None,
        scope: ScopeName = "whole",
        interval_column: str | None = None,
        interval_length: str | timedelta | None = None,
        max_snapshots: int | str | None = None,
        max_bytes: int | str | None = None,
        spark_task_ids: str | Sequence[str] = (),
        spark_version: str | None = None,
        conf: Mapping[str, str] | None = None,
        **kwargs: Unpack[TaskKeywords],
    ) -> None:
        super().__init__(**kwargs)
        self.view = view
        self.iceberg_conn_id = iceberg_conn_id
        self.as_of = as_of
        self.full = full
        self.on_fallback = on_fallback
        self.max_full_bytes = max_full_bytes
        self.pins = pins
        self._takes_pins = pins is not None
        self.checks = self.documents_of(checks)
        self.scope = scope
        self.interval_column = interval_column
        self.interval_length = interval_length
        self.max_snapshots = max_snapshots
        self.max_bytes = max_bytes
        self.spark_version = spark_version
        self.conf = dict(conf or {})
        self.spark_task_ids = [spark_task_ids] if isinstance(spark_task_ids, str) else list(spark_task_ids)
        self.check_literals()

    def execute(self, context: Context) -> dict[str, Any]:
        """Plan the refresh.

        Raises:
            NotFoundError: The view or a base table does not exist.
        """
        from airflow_mv.actions import informed
        from airflow_mv.common.status import annotated
        from airflow_mv.core.refresh.run import planned

        with task_errors(self):
            hook = MaterializedViewHook(self.iceberg_conn_id)
            catalog, view = hook.catalog_for(self.view), hook.connection.identify(self.view)
            show_link(context, view)
            arguments = RefreshArguments.of(self, takes_pins=self._takes_pins)
            options, pins = arguments.options(context, self.log), arguments.pinned(catalog, view)
            plan = planned(catalog, view, informed(options), pins=pins, annotate=annotated)
            log_plan(self.log, plan)
            document = plan.to_dict()
            if plan.script is not None:
                submission = self._hand_over(hook, plan.script)
        if plan.script is not None:
            for key, value in submission.items():
                context["ti"].xcom_push(key=key, value=value)
            return document
        if self.spark_task_ids:
            # Skipping ends the task, so the return value has to be pushed before.
            context["ti"].xcom_push(key="return_value", value=document)
            self.skip(ti=context["ti"], tasks=[self.dag.get_task(task_id) for task_id in self.spark_task_ids])
        return document

    def _hand_over(self, hook: MaterializedViewHook, script: Script) -> dict[str, Any]:
        settings = hook.spark_settings(self.view).on(self.spark_version)
        catalog = hook.catalog_for(self.view)
        submitted = write_script(catalog, script)
        application, package = ship(catalog, submitted.rpartition("/")[0])
        self.log.info("  script for Spark: %s", submitted)
        packages = ",".join(settings.packages)
        conf = {**settings.confs, **self.conf}
        properties = {"spark.jars.packages": packages, **conf}
        return {
            "application": application,
            "application_args": job_arguments(catalog, script, submitted),
            "py_files": package,
            "packages": packages,
            "conf": conf,
            "properties": properties,
            "spark_submit_conf": self._as_text(properties),
            "secret_conf": sorted(settings.secrets.keys() - conf.keys()),
        }

    def _as_text(self, properties: Mapping[str, str]) -> str:
        """Return settings as options of spark-submit. Platforms split such a text differently at blanks and quotes."""
        plain = {key: value for key, value in properties.items() if not _SPLIT.search(value)}
        if missing := sorted(properties.keys() - plain.keys()):
            self.log.warning(
                "The XCom spark_submit_conf leaves out %s: their values have blanks, quotes or backslashes. If the "
                "submitter takes one text, set them in its own configuration",
                ", ".join(missing),
            )
        return " ".join(f"--conf {key}={value}" for key, value in sorted(plain.items()))


class CommitRefreshOperator(CheckedOperator, RetriedOperator):
    """Publish the rows that a planned refresh's Spark job staged. Running it again does not publish them twice.

    Returns (XCom) the document of ``airflow-mv refresh``. Name the view's asset
    (:func:`airflow_mv.assets.materialized_view_asset`) in ``outlets`` to emit its event, with the same extra as that
    of ``RefreshMaterializedViewOperator``.

    Args:
        plan: The :class:`PlanRefreshOperator`'s output (templated).
        iceberg_conn_id: Connection of type ``iceberg`` (templated).
        wait_for_outcome: Where the Spark task only submits the job: how long to wait for its outcome, in the triggerer
            and without a worker slot: a ``timedelta``, seconds, or a text like ``2 h`` (templated). A driver that was
            killed leaves no outcome. ``None``: the outcome must be there.
        trigger_rule: As for ``BaseOperator``. By default ``none_failed``, because the Spark task may have been skipped.
        **kwargs: All that ``BaseOperator`` takes.
    """

    template_fields: Sequence[str] = ("plan", "iceberg_conn_id", "wait_for_outcome")
    ui_color: str = "#d9efe5"
    operator_extra_links = (MaterializedViewLink(),)

    def __init__(
        self,
        *,
        plan: Any,
        iceberg_conn_id: str = DEFAULT_ICEBERG_CONN_ID,
        wait_for_outcome: timedelta | float | str | None = None,
        trigger_rule: str = "none_failed",
        **kwargs: Unpack[LimitedTaskKeywords],
    ) -> None:
        super().__init__(trigger_rule=trigger_rule, **kwargs)
        self.plan = plan
        self.iceberg_conn_id = iceberg_conn_id
        self.wait_for_outcome = wait_for_outcome
        self.check_literals()
        self.view: str | None = None
        self._waited = False
        self._lineage = RefreshLineage()

    def execute(self, context: Context) -> dict[str, Any]:
        """Publish the staged rows.

        Raises:
            AirflowFailException: The Spark job failed or left nothing, or the view changed since it was planned:
                the plan task has to run again.
            CommitError: A retry may help.
        """
        from airflow_mv.actions import add_to_registry, diagnose, maintain_after_refresh
        from airflow_mv.core.refresh.run import publish, stage

        started = time.monotonic()
        with task_errors(self):
            wanted = "no plan; give it the PlanRefreshOperator's output: plan=plan.output"
            plan = _read_plan(given_document(self.plan, field="plan", wanted=wanted))
            self.view = str(plan.view)
            show_link(context, self.view)
            hook = MaterializedViewHook(self.iceberg_conn_id)
            catalog = hook.catalog_for(str(plan.view))
            self._wait_if_missing(catalog, plan)
            self._lineage.note_plan(catalog, plan)
            try:
                outcome = stage(catalog, plan, _left_behind(catalog), diagnose)
            except JobError as error:
                raise AirflowFailException(f"{type(error).__name__}: {error}") from None
            result = publish(catalog, plan, outcome, requester=requester(context), started=started)
        if result is None:
            raise AirflowFailException(
                f"{plan.view} changed after it was planned, so nothing was published: clear the plan task to plan again"
            )
        maintain_after_refresh(catalog, plan.view, published=result.published, stager=None, report=self.log.info)
        result = replace(result, seconds=time.monotonic() - started)
        add_to_registry(catalog, plan, outcome, result, requester=requester(context))
        self._lineage.note_result(result)
        log_result(self.log, result)
        announce(self, context, result)
        return result.to_dict()

    def execute_complete(self, context: Context, event: Mapping[str, Any]) -> dict[str, Any]:
        """Publish what the job has staged meanwhile.

        Raises:
            AirflowFailException: As for :meth:`execute`.
            MaterializedViewError: The trigger could not read the store.
        """
        with task_errors(self):
            payload_or_error(event)
        self._waited = True
        return self.execute(context)

    def get_openlineage_facets_on_complete(self, _task_instance: Any) -> Any:
        """Return the lineage. The OpenLineage provider calls this after a success."""
        return self._lineage.of_success()

    def get_openlineage_facets_on_failure(self, _task_instance: Any) -> Any:
        """Return the planned lineage. The OpenLineage provider calls this after a failure."""
        return self._lineage.of_failure()

    def _wait_if_missing(self, catalog: MaterializedViewCatalog, plan: RefreshPlan) -> None:
        """Wait in the triggerer if the job has not left its outcome yet."""
        from airflow_mv.core.publish.layout import read_outcome

        limit = duration(self.wait_for_outcome, what="wait_for_outcome")
        location = plan.script.outcome_location if plan.script else None
        if limit is None or self._waited or plan.script is None or location is None:
            return
        if read_outcome(catalog, plan.script) is None:
            self.log.info(
                "Waiting in the triggerer for the outcome of the Spark job, for at most %s: %s", limit, location
            )
            trigger = JobOutcomeTrigger(catalog=catalog.name, location=location, iceberg_conn_id=self.iceberg_conn_id)
            self.defer(trigger=trigger, method_name="execute_complete", timeout=limit)


def _read_plan(document: Mapping[str, Any]) -> RefreshPlan:
    from airflow_mv.core.refresh.plan import RefreshPlan

    return RefreshPlan.from_dict(document)


def _left_behind(catalog: MaterializedViewCatalog) -> Any:
    """Return a stager that reads the outcome of the submitted driver."""
    from airflow_mv.core.publish.layout import read_outcome

    def take(script: Script) -> Outcome:
        outcome = read_outcome(catalog, script)
        if outcome is None:
            raise JobError(
                f"view {script.view}: the Spark job left no outcome at {script.outcome_location}. Has the Spark task "
                "run with the plan's application, application_args and py_files?"
            )
        return outcome

    return take
