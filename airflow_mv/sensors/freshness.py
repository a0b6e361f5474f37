# SPDX-License-Identifier: Apache-2.0
"""Wait until a view is fresh enough."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from airflow.sdk import PokeReturnValue
from airflow.triggers.base import BaseTrigger

from airflow_mv.errors import ConfigurationError, MaterializedViewError
from airflow_mv.hooks import DEFAULT_ICEBERG_CONN_ID, MaterializedViewHook
from airflow_mv.links import MaterializedViewLink
from airflow_mv.plan.lag import Readiness, duration
from airflow_mv.sensors.waiting import WaitingSensor
from airflow_mv.spec.interval import Span
from airflow_mv.triggers import Look, MaterializedViewFreshTrigger, look, span_of


class MaterializedViewFreshSensor(WaitingSensor):
    """Wait until a materialized view is fresh. Reads metadata only; the log says the state and why when it changes.

    ========================  ====================================================================================
    ``FRESH``                 It has all commits of its base tables.
    ``WITHIN_GRACE``          It lacks some, but none that is older than ``max_staleness``; this is accepted.
    ``STALE``                 It lacks older ones.
    ``NEVER``, ``INVALID``    It was never refreshed, or its rows are those of another definition.
    ``UNKNOWN``               A base table cannot be read.
    ========================  ====================================================================================

    Returns (XCom) the document of ``airflow-mv status``, with ``readiness`` (one of these), ``lag_seconds`` and
    ``behind_since``.

    Args:
        view: ``catalog.namespace.name`` (templated).
        iceberg_conn_id: Connection of its catalog (templated).
        states: States that are waited for, of those above or of ``airflow-mv status``.
        max_staleness: Accept a stale view, too, if the oldest base commit that it lacks is at most so old: seconds, a
            ``timedelta``, or a text like ``2 h`` (templated).
        interval_start: Look at nothing but the rows from this time on (templated), like
            ``{{ data_interval_start }}``: an interval that a backfill has refreshed may be fresh although the rest of
            the view is not.
        interval_end: The first moment after them (templated); by default the end of the storage table's partition
            that starts there.
        interval_column: The view's column; by default that of its property ``airflow-mv.interval-column``.
        deferrable: Wait in the triggerer. By default so, unless ``AIRFLOW__OPERATORS__DEFAULT_DEFERRABLE`` is false;
            then the task is rescheduled between looks. No worker slot is held either way.
        **kwargs: All that ``BaseSensorOperator`` takes (``poke_interval``, ``timeout``, ``soft_fail`` …).
    """

    template_fields: Sequence[str] = (
        "view", "iceberg_conn_id", "max_staleness", "interval_start", "interval_end", "interval_column",
    )  # fmt: skip
    ui_color: str = "#d9efe5"
    operator_extra_links = (MaterializedViewLink(),)

    def __init__(
        self,
        *,
        view: str,
        iceberg_conn_id: str = DEFAULT_ICEBERG_CONN_ID,
        states: Collection[str] = ("FRESH",),
        max_staleness: timedelta | float | str | None = None,
        interval_start: datetime | str | None = None,
        interval_end: datetime | str | None = None,
        interval_column: str | None = None,
        deferrable: bool | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(deferrable=deferrable, **kwargs)
        self.view = view
        self.iceberg_conn_id = iceberg_conn_id
        self.states = _checked(states)
        self.max_staleness = max_staleness
        self.interval_start = interval_start
        self.interval_end = interval_end
        self.interval_column = interval_column
        if interval_start is None and (interval_end or interval_column):
            raise ConfigurationError("interval_end and interval_column need an interval_start")
        if not isinstance(max_staleness, str):
            self._max_staleness_seconds()

    def look(self) -> PokeReturnValue:
        """Look at the view."""
        try:
            seen = look(
                MaterializedViewHook(self.iceberg_conn_id),
                self.view,
                states=self.states,
                max_staleness_seconds=self._max_staleness_seconds(),
                span=self._span(),
            )
        except MaterializedViewError as error:
            if not error.retryable:
                raise
            seen = Look.failed(error)
        self.say(seen.describe(), seen.verdict)
        return PokeReturnValue(is_done=seen.ready, xcom_value=seen.status)

    def trigger(self) -> BaseTrigger:
        """Return the trigger with the same arguments."""
        span = self._span()
        end = span.end.isoformat() if span and span.end else None
        return MaterializedViewFreshTrigger(
            view=self.view,
            iceberg_conn_id=self.iceberg_conn_id,
            states=self.states,
            max_staleness_seconds=self._max_staleness_seconds(),
            poke_interval=self.poke_interval,
            interval=(span.start.isoformat(), end, span.column) if span else None,
        )

    def taken(self, event: Mapping[str, Any]) -> dict[str, Any]:
        """Say what ended the waiting, and return the status."""
        seen = Look.from_dict(event)
        self.log.info(seen.describe())
        return seen.document()

    def _span(self) -> Span | None:
        if self.interval_start is None:
            return None
        return span_of(self.interval_start, self.interval_end, self.interval_column)

    def _max_staleness_seconds(self) -> float | None:
        found = duration(self.max_staleness, what="max_staleness")
        return None if found is None else found.total_seconds()


def _checked(states: Collection[str]) -> tuple[str, ...]:
    try:
        if isinstance(states, str) or not states:
            raise ConfigurationError("no list of states")
        return tuple(str(Readiness.named(state)) for state in states)
    except ConfigurationError:
        raise ConfigurationError(f"states is {states!r}; it must list some of: {', '.join(Readiness)}") from None
