# SPDX-License-Identifier: Apache-2.0
"""Wait until base tables of views have changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any, ClassVar, Unpack, get_args

from airflow.sdk import PokeReturnValue
from airflow.triggers.base import BaseTrigger

from airflow_mv.extras.pending.criteria import PendingCriteria, Require
from airflow_mv.hooks import DEFAULT_ICEBERG_CONN_ID
from airflow_mv.sensors.waiting import WaitingSensor
from airflow_mv.tasks.literals import Reader, words
from airflow_mv.triggers.base_tables import (
    BaseTablesChangedOnceTrigger,
    Time,
    find_pending,
    named_views,
    payload_or_error,
    pending_criteria,
)

if TYPE_CHECKING:
    from airflow_mv.tasks.keywords import SensorKeywords
from airflow_mv.triggers.connected import Connected


class BaseTablesChangedSensor(WaitingSensor):
    """Wait until a view has pending changes.

    Compaction does not count. For a view that was never refreshed, or whose definition changed, every base table
    counts.

    Returns (XCom) the views with their changed tables: the recorded and the current snapshot (ids as strings), and
    rows.

    Args:
        views: A view's name, or several: ``catalog.namespace.name`` (templated). One view with pending changes is
            enough.
        iceberg_conn_id: Connection of their catalog (templated).
        tables: Names of the base tables that count (templated). Default: all base tables.
        require: Whether ``any`` of a view's base tables must have changed, or ``all``.
        quiet_period: Wait until the newest commit is this old: seconds, a ``timedelta`` or a text like ``5 m``.
        wait_at_most: Do not wait for ``quiet_period`` once the oldest commit is this old.
        deferrable: Wait in the triggerer; the default is that of :class:`MaterializedViewFreshSensor`.
        **kwargs: All that ``BaseSensorOperator`` takes (``poke_interval``, ``timeout``, ``soft_fail`` …).
    """

    template_fields: Sequence[str] = ("views", "iceberg_conn_id", "tables")
    literals: ClassVar[Mapping[str, Reader]] = {"require": words(*get_args(Require))}
    ui_color: str = "#d9efe5"

    def __init__(
        self,
        *,
        views: str | Sequence[str],
        iceberg_conn_id: str = DEFAULT_ICEBERG_CONN_ID,
        tables: Sequence[str] = (),
        require: Require = "any",
        quiet_period: Time = 0.0,
        wait_at_most: Time | None = None,
        deferrable: bool | None = None,
        **kwargs: Unpack[SensorKeywords],
    ) -> None:
        super().__init__(deferrable=deferrable, **kwargs)
        self.views = views
        self.iceberg_conn_id = iceberg_conn_id
        self.tables = tables
        self.require = require
        self.quiet_period = quiet_period
        self.wait_at_most = wait_at_most
        self.check_literals()

    def _wanted(self) -> PendingCriteria:
        return pending_criteria(self.tables, self.require, self.quiet_period, self.wait_at_most)

    def look(self) -> PokeReturnValue:
        """Poll the base tables."""
        with closing(Connected(self.iceberg_conn_id)) as connection:
            pending = find_pending(connection, named_views(self.views), self._wanted())
        self._polls.note(self.log, pending)
        outcome = pending.outcome()
        return PokeReturnValue(is_done=outcome is not None, xcom_value=outcome and payload_or_error(outcome))

    def trigger(self) -> BaseTrigger:
        """Return the trigger with the same arguments."""
        return BaseTablesChangedOnceTrigger(
            views=named_views(self.views),
            iceberg_conn_id=self.iceberg_conn_id,
            poke_interval=self.poke_interval,
            **self._wanted().arguments(),
        )

    def taken(self, event: Mapping[str, Any]) -> dict[str, Any]:
        """Return the payload."""
        return dict(payload_or_error(event))
