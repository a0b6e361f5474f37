# SPDX-License-Identifier: Apache-2.0
"""What the sensors share: they hold no worker slot while they wait, and an outage is waited through."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from airflow.sdk import BaseSensorOperator, Context, PokeReturnValue, conf
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException
from airflow.triggers.base import BaseTrigger

from airflow_mv.hooks import airflow_errors

_SETTING = "AIRFLOW__OPERATORS__DEFAULT_DEFERRABLE"


def deferrable_by_default() -> bool:
    """Whether sensors wait in the triggerer where the DAG does not say.

    They do, unless the deployment says no in the environment: by ``AIRFLOW__OPERATORS__DEFAULT_DEFERRABLE``. A no in
    ``airflow.cfg`` is nobody's decision, for Airflow itself writes it there. Whether a triggerer runs cannot be known
    when a DAG is read.
    """
    return _SETTING not in os.environ or conf.getboolean("operators", "default_deferrable")


class WaitingSensor(BaseSensorOperator):
    """A sensor that waits in the triggerer, or else between reschedules: no worker slot is held either way.

    Args:
        deferrable: Wait in the triggerer. ``None``: see :func:`deferrable_by_default`.
        mode: Where it does not: ``reschedule``, or ``poke``, which holds a worker slot.
        **kwargs: All that ``BaseSensorOperator`` takes.
    """

    def __init__(self, *, deferrable: bool | None = None, mode: str | None = None, **kwargs: Any) -> None:
        self.deferrable = deferrable_by_default() if deferrable is None else deferrable
        super().__init__(mode=mode or ("poke" if self.deferrable else "reschedule"), **kwargs)
        self._said: object = None

    def execute(self, context: Context) -> Any:
        """Poke, or look once and leave the rest to the trigger.

        Raises:
            AirflowFailException: Waiting cannot help, e.g. there is no such view.
            AirflowSkipException: In its place, with ``soft_fail`` or ``never_fail``.
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
        self.log.info(
            "Waiting in the triggerer, for at most %s. If no triggerer runs, nobody looks meanwhile: start one "
            "(`airflow triggerer`), or set deferrable=False, or %s=False for all, to be rescheduled between looks",
            timedelta(seconds=self.timeout),
            _SETTING,
        )
        return self.defer(
            trigger=self.trigger(), method_name="execute_complete", timeout=timedelta(seconds=self.timeout)
        )

    def poke(self, context: Context) -> PokeReturnValue:  # noqa: ARG002 (Airflow names it)
        """Look once.

        Raises:
            AirflowFailException: Waiting cannot help.
        """
        with airflow_errors():
            return self.look()

    def execute_complete(self, context: Context, event: Mapping[str, Any]) -> dict[str, Any]:  # noqa: ARG002
        """Take the trigger's event.

        Raises:
            AirflowFailException: The trigger met an error that waiting cannot mend.
        """
        with airflow_errors():
            return self.taken(event)

    @abstractmethod
    def look(self) -> PokeReturnValue:
        """Look once; an error is raised only where waiting cannot mend it."""

    @abstractmethod
    def trigger(self) -> BaseTrigger:
        """Return what waits in the triggerer."""

    @abstractmethod
    def taken(self, event: Mapping[str, Any]) -> dict[str, Any]:
        """Return what the task returns after the trigger's event."""

    def say(self, text: str, verdict: object) -> None:
        """Write a line to the log if the verdict is another one than that of the last look."""
        if verdict != self._said:
            self.log.info(text)
            self._said = verdict
