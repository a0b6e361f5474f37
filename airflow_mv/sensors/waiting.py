# SPDX-License-Identifier: Apache-2.0
"""Shared by the sensors: they wait deferred, without a worker slot, and continue to wait during a catalog outage."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.sdk import BaseSensorOperator, Context, PokeReturnValue
from airflow.triggers.base import BaseTrigger

from airflow_mv.retries import airflow_errors
from airflow_mv.tasks.literals import CheckedOperator
from airflow_mv.tasks.older_airflow import AirflowFailException, AirflowSkipException
from airflow_mv.triggers.connected import PollLog
from airflow_mv.triggers.triggerer import SETTING, deferrable_by_default, triggerer_runs

_HINT = (
    ". If no triggerer runs, nothing polls: start one (`airflow triggerer`), or set deferrable=False, or "
    f"{SETTING}=False for all, to be rescheduled between polls"
)


class WaitingSensor(CheckedOperator, BaseSensorOperator):
    """A sensor that waits in the triggerer, or is rescheduled between polls. No worker slot is held either way.

    Args:
        deferrable: Wait in the triggerer. ``None``: see :func:`deferrable_by_default`; if that is not set, yes
            unless Airflow reports that no triggerer runs. Each poll checks this again.
        mode: Without a triggerer: ``reschedule``, or ``poke``, which holds a worker slot.
        **kwargs: All that ``BaseSensorOperator`` takes.
    """

    def __init__(self, *, deferrable: bool | None = None, mode: str | None = None, **kwargs: Any) -> None:
        decided = deferrable_by_default() if deferrable is None else deferrable
        self.deferrable = decided is not False
        self._asks_for_triggerer = decided is None
        super().__init__(mode=mode or "reschedule", **kwargs)
        self._polls = PollLog()

    def execute(self, context: Context) -> Any:
        """Poke, or poll once and defer to the trigger.

        Raises:
            AirflowFailException: Waiting cannot help, e.g. there is no such view.
            AirflowSkipException: The same, with ``soft_fail`` or ``never_fail``.
        """
        if not self.deferrable:
            return super().execute(context)
        try:
            seen = self.poke(context)
        except AirflowFailException as error:
            if self.soft_fail or self.never_fail:
                raise AirflowSkipException(str(error)) from error
            raise
        if seen.is_done:
            return seen.xcom_value
        runs = triggerer_runs() if self._asks_for_triggerer else None
        if runs is False:
            how = "this task is rescheduled between polls" if self.reschedule else "this task keeps its worker slot"
            self.log.info("No triggerer runs: %s (mode=%s)", how, self.mode)
            return super().execute(context)
        left = self._left(context)
        self.log.info("Waiting in the triggerer, for at most %s%s", left, "" if runs else _HINT)
        return self.defer(trigger=self.trigger(), method_name="execute_complete", timeout=left)

    def _left(self, context: Context) -> timedelta:
        """Return the rest of the timeout: the task may have been rescheduled before a triggerer ran."""
        limit = timedelta(seconds=self.timeout)
        began = context["ti"].get_first_reschedule_date(context) if context.get("task_reschedule_count") else None
        return limit if began is None else max(limit - (datetime.now(UTC) - began), timedelta())

    def poke(self, context: Context) -> PokeReturnValue:  # noqa: ARG002 (Airflow names it)
        """Poll once.

        Raises:
            AirflowFailException: Waiting cannot help.
        """
        with airflow_errors():
            return self.look()

    def execute_complete(self, context: Context, event: Mapping[str, Any]) -> dict[str, Any]:  # noqa: ARG002
        """Take the trigger's event.

        Raises:
            AirflowFailException: The trigger met an error that is not retryable.
        """
        with airflow_errors():
            return self.taken(event)

    @abstractmethod
    def look(self) -> PokeReturnValue:
        """Poll once. Raise an error only if it is not retryable."""

    @abstractmethod
    def trigger(self) -> BaseTrigger:
        """Return the trigger."""

    @abstractmethod
    def taken(self, event: Mapping[str, Any]) -> dict[str, Any]:
        """Return what the task returns after the trigger's event."""
