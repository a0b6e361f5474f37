# SPDX-License-Identifier: Apache-2.0
"""A refresh that waits in the triggerer: for the shared application, or for its driver in a cluster."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from airflow_mv.core.refresh.plan import RefreshPlan
    from airflow_mv.core.script import Script
    from airflow_mv.operators.spark_arguments import SparkTask

#: Seconds after which the task asks the cluster for the first time whether the driver still runs, and the most
#: seconds between two questions; each wait is twice as long as the one before. A driver that was killed leaves no
#: outcome, and asking needs the worker's access to the cluster. So the task takes a worker slot for a few seconds.
FIRST_QUESTION_SECONDS, QUESTION_SECONDS = 60.0, 600.0
#: Questions in a row without an answer after which the task fails.
MAX_UNANSWERED = 3
_MAX_DOUBLED = 10
#: How long a deferred task with an ``execution_timeout`` waits for a triggerer.
_UNTRIGGERED = timedelta(minutes=10)


@dataclass(frozen=True, slots=True)
class WaitingRefresh:
    """A refresh whose driver was submitted.

    The plan is kept: base tables change meanwhile, and a new plan would start another driver each time.

    Args:
        driver: YARN's id of the application, or namespace and name of the driver's pod.
        until: When the task's ``execution_timeout`` ends, in seconds since the epoch.
        asked: How often the cluster was asked for the driver.
        unanswered: How many of the last questions had no answer.
    """

    plan: RefreshPlan
    driver: str
    until: float | None = None
    asked: int = 0
    unanswered: int = 0

    @property
    def is_late(self) -> bool:
        """Whether the task's time has ended."""
        return self.until is not None and time.time() >= self.until

    @property
    def pause(self) -> float:
        """Seconds until the next question."""
        doubled = min(FIRST_QUESTION_SECONDS * 2.0 ** min(self.asked, _MAX_DOUBLED), QUESTION_SECONDS)
        return doubled if self.until is None else max(0.0, min(doubled, self.until - time.time()))

    @property
    def gives_up(self) -> bool:
        """Whether too many questions had no answer."""
        return self.unanswered >= MAX_UNANSWERED

    def after_question(self, *, answered: bool) -> WaitingRefresh:
        """Return it as it is after a question."""
        return replace(self, asked=self.asked + 1, unanswered=0 if answered else self.unanswered + 1)

    def to_dict(self) -> dict[str, Any]:
        """Return what Airflow stores with the deferred task."""
        fields = ("driver", "until", "asked", "unanswered")
        return {"plan": self.plan.to_json(), **{name: getattr(self, name) for name in fields}}

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> WaitingRefresh:
        """Read what :meth:`to_dict` wrote."""
        from airflow_mv.core.refresh.plan import RefreshPlan

        return cls(**{**document, "plan": RefreshPlan.from_json(document["plan"])})


@dataclass(frozen=True, slots=True)
class Resumption:
    """The state with which a deferred task continues. Empty for a task that begins.

    Args:
        plan: The plan, which is carried out to its end: base tables change meanwhile.
        until: When the task's ``execution_timeout`` ends, in seconds since the epoch: Airflow counts it anew.
        event: The event of the shared application's trigger.
        waiting: The refresh for whose driver the task waits.
    """

    plan: RefreshPlan | None = None
    until: float | None = None
    event: Mapping[str, Any] | None = None
    waiting: WaitingRefresh | None = None

    @classmethod
    def of(
        cls, event: Mapping[str, Any], plan: str | None, until: float | None, waiting: Mapping[str, Any] | None
    ) -> Resumption:
        """Read a trigger's event, and what Airflow has stored with the deferred task.

        ``dag.test()`` loses what was stored: then the task plans again, and finds the driver or its outcome.

        Raises:
            MaterializedViewError: The trigger could not read the store.
        """
        from airflow_mv.core.refresh.plan import RefreshPlan
        from airflow_mv.triggers.base_tables import payload_or_error

        if "folder" in event:
            return cls(None if plan is None else RefreshPlan.from_json(plan), until, event=event)
        payload_or_error(event)
        if waiting is None:
            return cls()
        refresh = WaitingRefresh.from_dict(waiting)
        return cls(refresh.plan, refresh.until, waiting=refresh)


@dataclass(slots=True)
class Deferral:
    """Decides whether a task waits in the triggerer, and defers it.

    Args:
        defer: ``BaseOperator.defer`` of the task, which continues with ``execute_complete``.
        wanted: ``deferrable``. ``None``: as ``AIRFLOW__OPERATORS__DEFAULT_DEFERRABLE`` says; if that is not set, if a
            triggerer runs.
        timeout: The task's ``execution_timeout``.
        until: When it ends, if the task was deferred before, in seconds since the epoch.
        plan: The plan of the refresh that is carried out, if the task may be deferred while its script runs.
    """

    task: SparkTask
    defer: Callable[..., Any]
    wanted: bool | None
    timeout: timedelta | None
    until: float | None = None
    plan: RefreshPlan | None = None

    def may_wait_for(self, script: Script) -> bool:
        """Whether to wait in the triggerer for a script: as asked for, else if a triggerer is known to run.

        A deferred task is executed again from its beginning. It finds again only what the plan's own script has staged,
        not what a compaction or a new analysis of the query has made.
        """
        from airflow_mv.triggers.triggerer import deferrable_by_default, triggerer_runs

        if self.plan is None or script is not self.plan.script:
            return False
        wanted = deferrable_by_default() if self.wanted is None else self.wanted
        return bool(triggerer_runs()) if wanted is None else wanted

    def wait_for_application(self, catalog: str, folder: str, key: str) -> None:
        """Defer the task until the shared application has answered, or the task's time has ended."""
        from airflow_mv.triggers import SharedApplicationTrigger

        until = self._ends()
        trigger = SharedApplicationTrigger(
            catalog=catalog, folder=folder, key=key, iceberg_conn_id=self.task.iceberg_conn_id, until=until
        )
        # The trigger ends by itself; the timeout is for a task that no triggerer takes.
        limit = None if until is None else timedelta(seconds=max(0.0, until - time.time())) + _UNTRIGGERED
        kwargs = {"plan": self._planned.to_json(), "until": until}
        self.defer(trigger=trigger, method_name="execute_complete", kwargs=kwargs, timeout=limit)

    def wait_for_new_driver(self, catalog: str, script: Script, driver: str) -> NoReturn:
        """Defer the task after its driver was submitted."""
        self.wait_for_driver(catalog, script, WaitingRefresh(self._planned, driver, self._ends()))

    def wait_for_driver(self, catalog: str, script: Script, waiting: WaitingRefresh) -> NoReturn:
        """Defer the task until the driver has left its outcome, or the cluster has to be asked for it."""
        from airflow_mv.triggers import JobOutcomeTrigger

        pause = waiting.pause
        trigger = JobOutcomeTrigger(
            catalog=catalog,
            location=str(script.outcome_location),
            iceberg_conn_id=self.task.iceberg_conn_id,
            seconds=pause,
            driver=waiting.driver,
            spark_conn_id=self.task.spark_conn_id,
        )
        self.task.log.info("Waiting in the triggerer for the outcome of the driver %s", waiting.driver)
        # The trigger ends by itself; the timeout is for a task that no triggerer takes.
        limit = None if waiting.until is None else timedelta(seconds=pause) + _UNTRIGGERED
        kwargs = {"waiting": waiting.to_dict()}
        self.defer(trigger=trigger, method_name="execute_complete", kwargs=kwargs, timeout=limit)
        raise AssertionError  # defer() raises

    @property
    def _planned(self) -> RefreshPlan:
        if self.plan is None:
            raise AssertionError  # may_wait_for() has refused
        return self.plan

    def _ends(self) -> float | None:
        """Return when the time of a deferred task ends: its ``execution_timeout`` counts from the first wait."""
        if self.until is None and self.timeout is not None:
            self.until = time.time() + self.timeout.total_seconds()
        return self.until
