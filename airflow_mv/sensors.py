# SPDX-License-Identifier: Apache-2.0
"""Gate tasks on the freshness of views."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from typing import Any

from airflow.sdk import BaseSensorOperator, Context, PokeReturnValue, conf

from airflow_mv.errors import ConfigurationError
from airflow_mv.hooks import DEFAULT_ICEBERG_CONN_ID, MaterializedViewHook, airflow_errors
from airflow_mv.triggers import Look, MaterializedViewFreshTrigger, look

_STATES = frozenset({"fresh", "stale", "never-refreshed", "definition-changed", "unknown"})


class MaterializedViewFreshSensor(BaseSensorOperator):
    """Wait until a materialized view is fresh. Reads metadata only; the log says the state and why when it changes.

    Returns (XCom) the document of ``airflow-mv status``, with ``lag_seconds``.

    Args:
        view: ``catalog.namespace.name`` (templated).
        iceberg_conn_id: Connection of its catalog (templated).
        states: States that are waited for.
        max_staleness: Accept a stale view, too, if the oldest base commit that it lacks is at most so old; a number
            is seconds.
        deferrable: Wait in the triggerer and hold no worker slot meanwhile.
        **kwargs: All that ``BaseSensorOperator`` takes (``poke_interval``, ``timeout``, ``soft_fail`` …).
    """

    template_fields: Sequence[str] = ("view", "iceberg_conn_id")
    ui_color: str = "#d9efe5"

    def __init__(
        self,
        *,
        view: str,
        iceberg_conn_id: str = DEFAULT_ICEBERG_CONN_ID,
        states: Collection[str] = ("fresh",),
        max_staleness: timedelta | float | None = None,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if isinstance(states, str) or not states or not _STATES.issuperset(states):
            raise ConfigurationError(f"states is {states!r}; it must list some of: {', '.join(sorted(_STATES))}")
        self.view = view
        self.iceberg_conn_id = iceberg_conn_id
        self.states = tuple(states)
        seconds = max_staleness.total_seconds() if isinstance(max_staleness, timedelta) else max_staleness
        self.max_staleness_seconds = seconds
        self.deferrable = deferrable
        self._said: object = None

    def execute(self, context: Context) -> Any:
        """Poke, or look once and leave the rest to the trigger.

        Raises:
            AirflowFailException: Waiting cannot help, e.g. there is no such view.
        """
        if not self.deferrable:
            return super().execute(context)
        seen = self._look()
        if seen.ready:
            return seen.document()
        trigger = MaterializedViewFreshTrigger(
            view=self.view,
            iceberg_conn_id=self.iceberg_conn_id,
            states=self.states,
            max_staleness_seconds=self.max_staleness_seconds,
            poke_interval=self.poke_interval,
        )
        return self.defer(trigger=trigger, method_name="execute_complete", timeout=timedelta(seconds=self.timeout))

    def poke(self, context: Context) -> PokeReturnValue:
        """Look once."""
        seen = self._look()
        return PokeReturnValue(is_done=seen.ready, xcom_value=seen.status)

    def execute_complete(self, context: Context, event: Mapping[str, Any]) -> dict[str, Any]:
        """Take the trigger's event.

        Raises:
            AirflowFailException: The trigger met an error that waiting cannot mend.
        """
        seen = Look.from_dict(event)
        self.log.info(seen.describe())
        with airflow_errors():
            return seen.document()

    def _look(self) -> Look:
        with airflow_errors():
            seen = look(
                MaterializedViewHook(self.iceberg_conn_id),
                self.view,
                states=self.states,
                max_staleness_seconds=self.max_staleness_seconds,
            )
        if seen.verdict != self._said:
            self.log.info(seen.describe())
            self._said = seen.verdict
        return seen
