# SPDX-License-Identifier: Apache-2.0
"""Wait until a view is fresh enough."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Unpack

from airflow.sdk import Context, PokeReturnValue
from airflow.triggers.base import BaseTrigger

from airflow_mv.core.spec.interval import Span
from airflow_mv.core.spec.times import duration
from airflow_mv.errors import ConfigurationError, MaterializedViewError
from airflow_mv.extras.fleet.readiness import Readiness
from airflow_mv.hooks import DEFAULT_ICEBERG_CONN_ID, MaterializedViewHook
from airflow_mv.hooks.dag_run import run_facts
from airflow_mv.retries import airflow_errors
from airflow_mv.sensors.waiting import WaitingSensor
from airflow_mv.tasks.links import MaterializedViewLink
from airflow_mv.tasks.literals import Reader, words
from airflow_mv.tasks.scope import scope_of
from airflow_mv.triggers.freshness import FreshnessPoll, MaterializedViewFreshTrigger, judge, span_of

if TYPE_CHECKING:
    from airflow_mv.tasks.keywords import SensorKeywords
from airflow_mv.triggers.views import FreshnessRequest, read_view


class MaterializedViewFreshSensor(WaitingSensor):
    """Wait until a materialized view is fresh. Reads metadata only; logs the state when it changes.

    ========================  ====================================================================================
    ``FRESH``                 It contains all commits of its base tables, and so do the views that it reads.
    ``WITHIN_GRACE``          Its lag is at most ``max_staleness``; this is accepted.
    ``STALE``                 Its lag is more than that.
    ``NEVER``, ``INVALID``    It was never refreshed, or its rows are those of another definition.
    ``UNKNOWN``               A base table cannot be read.
    ========================  ====================================================================================

    Returns (XCom) the document of ``airflow-mv status``, with ``readiness`` (one of these), ``lag_seconds`` and
    ``behind_since``.

    Args:
        view: ``catalog.namespace.name`` (templated).
        iceberg_conn_id: Connection of its catalog (templated).
        states: Accepted states: of those above, or of ``airflow-mv status``.
        max_staleness: Also accept a stale view whose lag is at most this: seconds, a ``timedelta``, or a text like ``2
            h`` (templated).
        scope: ``whole``, or ``interval``: consider only the rows that a refresh with ``scope="interval"`` in the
            same run refreshes, see :mod:`airflow_mv.tasks.scope`. They may be fresh although the rest of the view is
            not.
        interval_length: With this scope: length of the interval if a run gives only one end of it: ``1 d`` (templated).
        interval_start: Alternative: consider only the rows from this time on (templated).
        interval_end: Their end, excluded (templated); by default the end of the storage table's partition that begins
            at ``interval_start``.
        interval_column: The view's column (templated); by default that of its property
            ``airflow-mv.interval-column``.
        freshness: ``chain``: the view is as late as the materialized views that it reads, down to the base tables.
            ``direct``: it is fresh as soon as it has their present rows, however late these are.
        deferrable: Wait in the triggerer. Default: ``AIRFLOW__OPERATORS__DEFAULT_DEFERRABLE``; if that is not set, yes
            unless Airflow reports that no triggerer runs. Otherwise the task is rescheduled between polls. No worker
            slot is held either way.
        **kwargs: All that ``BaseSensorOperator`` takes (``poke_interval``, ``timeout``, ``soft_fail`` …).
    """

    template_fields: Sequence[str] = (
        "view", "iceberg_conn_id", "max_staleness", "interval_start", "interval_end", "interval_column",
        "interval_length",
    )  # fmt: skip
    literals: ClassVar[Mapping[str, Reader]] = {"scope": words("whole", "interval")}
    ui_color: str = "#d9efe5"
    operator_extra_links = (MaterializedViewLink(),)

    def __init__(  # noqa: PLR0913 (each is a field of the task)
        self,
        *,
        view: str,
        iceberg_conn_id: str = DEFAULT_ICEBERG_CONN_ID,
        states: Collection[str] = ("FRESH",),
        max_staleness: timedelta | float | str | None = None,
        scope: Literal["whole", "interval"] = "whole",
        interval_length: timedelta | str | None = None,
        interval_start: datetime | str | None = None,
        interval_end: datetime | str | None = None,
        interval_column: str | None = None,
        freshness: Literal["chain", "direct"] = "chain",
        deferrable: bool | None = None,
        **kwargs: Unpack[SensorKeywords],
    ) -> None:
        super().__init__(deferrable=deferrable, **kwargs)
        self.view = view
        self.iceberg_conn_id = iceberg_conn_id
        self.states = states
        self.max_staleness = max_staleness
        self.scope = scope
        self.interval_length = interval_length
        self.interval_start = interval_start
        self.interval_end = interval_end
        self.interval_column = interval_column
        self.freshness = freshness
        self._of_run: Span | None = None
        self.check_literals()
        self.states = _accepted(states)
        self._require_one_interval()

    def poke(self, context: Context) -> PokeReturnValue:
        """Poll once, for the rows that the run is for.

        Raises:
            AirflowFailException: Waiting cannot help.
        """
        if self.scope == "interval" and self._of_run is None:
            with airflow_errors():
                length = duration(self.interval_length, what="interval_length")
                found = scope_of(run_facts(context), "interval", column=self.interval_column, length=length)
            self._of_run = found.interval
            self.log.info("This run waits for the rows of %s: %s", found.interval, found.why)
        return super().poke(context)

    def look(self) -> PokeReturnValue:
        """Poll the view."""
        try:
            with closing(MaterializedViewHook(self.iceberg_conn_id)) as hook:
                found = read_view(hook, FreshnessRequest(self.view, self._span(), self.freshness == "direct"))
            seen = judge(found, states=self.states, max_staleness_seconds=self._max_staleness_seconds())
        except MaterializedViewError as error:
            if not error.retryable:
                raise
            seen = FreshnessPoll.failed(error)
        self._polls.note(self.log, seen)
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
            freshness=self.freshness,
        )

    def taken(self, event: Mapping[str, Any]) -> dict[str, Any]:
        """Log the result, and return the status."""
        seen = FreshnessPoll.from_dict(event)
        self.log.info(seen.describe())
        return seen.document()

    def _span(self) -> Span | None:
        if self.interval_start is None:
            return self._of_run
        return span_of(self.interval_start, self.interval_end, self.interval_column)

    def _require_one_interval(self) -> None:
        if self.scope == "interval" and (self.interval_start is not None or self.interval_end):
            raise ConfigurationError("give either scope='interval' or an interval_start, not both")
        if self.scope == "whole" and self.interval_length:
            raise ConfigurationError("interval_length needs scope='interval'")
        if self.scope == "whole" and self.interval_start is None and (self.interval_end or self.interval_column):
            raise ConfigurationError("interval_end and interval_column need an interval_start, or scope='interval'")

    def _max_staleness_seconds(self) -> float | None:
        found = duration(self.max_staleness, what="max_staleness")
        return None if found is None else found.total_seconds()


def _accepted(states: Collection[str]) -> tuple[str, ...]:
    if not states:
        raise ConfigurationError(f"states is {states!r}; it must list some of: {', '.join(Readiness)}")
    return tuple(str(Readiness.named(state)) for state in states)
