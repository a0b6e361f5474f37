# SPDX-License-Identifier: Apache-2.0
"""Triggers that start DAGs, or resume tasks, when views have pending changes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, get_args

from airflow.triggers.base import BaseEventTrigger, BaseTrigger, TriggerEvent

from airflow_mv import errors
from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.core.spec.times import duration
from airflow_mv.errors import BaseTableNotFoundError, CatalogUnavailableError, ConfigurationError, MaterializedViewError
from airflow_mv.extras.pending.criteria import Announcements, PendingCriteria, Require
from airflow_mv.foundation.words import one_of
from airflow_mv.hooks import DEFAULT_ICEBERG_CONN_ID
from airflow_mv.tasks.literals import check_literals
from airflow_mv.triggers.connected import PUBLIC_MODULE, Connected, PollLog, connected
from airflow_mv.triggers.views import FreshnessRequest, unmoved

if TYPE_CHECKING:
    from airflow_mv.extras.pending.changes import PendingChanges

Time = timedelta | float | str
#: Key in the asset's state store.
ANNOUNCED = "airflow_mv_announced"
#: Seconds after which a yielded event is assumed to be in Airflow's database.
_HANDED_OVER = 5.0


@dataclass(frozen=True, slots=True)
class PendingReport:
    """The result of one poll of the base tables of views, as a trigger passes it to a task.

    Args:
        errors: Class and message of the error of each view that cannot be read.
        fatal: The first error that is not retryable, or ``None``.
    """

    views: dict[str, PendingChanges] = field(default_factory=dict)
    errors: dict[str, tuple[str, str]] = field(default_factory=dict)
    fatal: tuple[str, str] | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the event's payload."""
        return {"views": [item.to_dict() for item in self.views.values()]}

    def outcome(self) -> dict[str, Any] | None:
        """Return the payload of an event that ends a task, see :func:`payload_or_error`; ``None`` to wait on."""
        if self.views:
            return self.to_dict()
        return {"error": list(self.fatal)} if self.fatal else None

    def describe(self) -> str:
        """Return the pending changes and the errors, one line each."""
        lines = [
            f"{item.view} has pending changes: "
            + "; ".join(reason.message for reason in item.observation.freshness.reasons)
            for item in self.views.values()
        ]
        lines += [f"{view} cannot be read: {kind}: {text}" for view, (kind, text) in self.errors.items()]
        return "\n".join(lines) or "no pending changes"

    @property
    def verdict(self) -> object:
        """The part of the result that is logged when it changes."""
        return [item.mark for item in self.views.values()], self.errors


def payload_or_error(payload: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return an event's payload.

    Raises:
        MaterializedViewError: The payload is an error. It is raised again with its own class.
    """
    if "error" in payload:
        name, message = payload["error"]
        raise getattr(errors, name, MaterializedViewError)(message)
    return payload


def find_pending(connected: Connected, views: Sequence[str], wanted: PendingCriteria) -> PendingReport:
    """Find the pending changes of views. Each base table is read once, however many views read it.

    Args:
        connected: Where the views are.
        views: Their names.
        wanted: Which pending changes count.
    """
    from airflow_mv.common.each import for_each
    from airflow_mv.common.status import ReadCache
    from airflow_mv.core.freshness.observe import observe
    from airflow_mv.core.freshness.state import State
    from airflow_mv.extras.pending.changes import pending_changes

    found: dict[str, PendingChanges] = {}
    failed: dict[str, tuple[str, str]] = {}
    met: list[MaterializedViewError] = []
    fatal: tuple[str, str] | None = None
    cache = ReadCache()

    def pending(view: str) -> PendingChanges | None:
        hook = connected.hook
        seen = observe(hook.catalog_for(view), hook.connection.identify(view), reads=cache)
        changes = pending_changes(seen, wanted)
        is_fresh = changes is None and seen.freshness.state == State.FRESH and seen.pointers is not None
        connected.fresh[view, wanted] = seen.pointers if is_fresh else None
        return changes

    fresh = _still_fresh(connected, views, wanted)
    for result in for_each([view for view in views if view not in fresh], pending):
        view, error = result.item, result.error
        if error is not None:
            failed[view] = (type(error).__name__, str(error))
            # A table that is dropped and created again is missing for a moment.
            if not (error.retryable or isinstance(error, BaseTableNotFoundError)):
                fatal = fatal or failed[view]
            met.append(error)
        elif result.value is not None:
            found[view] = result.value
    connected.after(*met)
    if fatal is not None and connected.was_edited():
        return find_pending(connected, views, wanted)
    return PendingReport(found, failed, fatal)


def _still_fresh(connected: Connected, views: Sequence[str], wanted: PendingCriteria) -> set[str]:
    """Return the views that were fresh at the last poll of this process and whose pointers have not changed since."""
    known: dict[FreshnessRequest, Mapping[Identifier, str]] = {
        FreshnessRequest(view): pointers for view in views if (pointers := connected.fresh.get((view, wanted)))
    }
    try:
        return {item.view for item in unmoved(connected.hook, known)} if known else set()
    except MaterializedViewError:
        return set()  # the reads of the views meet the error again


def named_views(views: str | Sequence[str]) -> list[str]:
    """Return a list of view names, given one name or several.

    Raises:
        ConfigurationError: No name was given.
    """
    names = [views] if isinstance(views, str) else list(views)
    if not names or not all(isinstance(name, str) and name for name in names):
        raise ConfigurationError(f"views is {views!r}; name a materialized view, or a list of them")
    return names


def pending_criteria(
    tables: Sequence[str], require: Require, quiet_period: Time, wait_at_most: Time | None
) -> PendingCriteria:
    """Return which pending changes count.

    Raises:
        ConfigurationError: One of the values is invalid.
    """
    if isinstance(tables, str):
        raise ConfigurationError(f"tables is {tables!r}; it must be a list")
    one_of(require, get_args(Require), field="require")
    quiet = duration(quiet_period, what="quiet_period") or timedelta(0)
    return PendingCriteria(tuple(tables), require, quiet, duration(wait_at_most, what="wait_at_most"))


class BaseTablesChangedTrigger(BaseEventTrigger):
    """Fire when materialized views have pending changes.

    For an ``AssetWatcher``; the DAG that is scheduled on the asset refreshes the views::

        orders = Asset("daily_is_behind", watchers=[
            AssetWatcher(name="commits", trigger=BaseTablesChangedTrigger(views="lake.sales.daily"))
        ])

    It compares recorded snapshots with current ones. So compaction fires no event; changes made while no triggerer
    ran are found when one runs again; and a duplicate event starts a refresh that finds nothing to do. Announced
    changes are kept in the asset's state store, written after the event: a restart may repeat the last event, but
    loses none.

    One trigger for many views reads each base table once per poll. The event's payload lists the views with their
    changed tables: the recorded and the current snapshot (ids as strings), and rows.

    Args:
        views: A view's name, or several: ``catalog.namespace.name``.
        iceberg_conn_id: Connection of their catalog.
        tables: Names of the base tables that count; each of the views must read them. Default: all base tables.
        require: ``any``: one changed table is enough; ``all``: each of them must have changed.
        quiet_period: Wait until the newest commit is this old: seconds, a ``timedelta`` or a text like ``5 m``.
        wait_at_most: Do not wait for ``quiet_period`` once the oldest commit is this old.
        at_most_every: Minimum time between two events.
        remind_every: Fire again for changes that are not refreshed after this time: Airflow keeps no events for a
            paused DAG. ``None``: never.
        poke_interval: Seconds between polls.
        asset: Name of the asset. Needed where two assets have a watcher with the same arguments: Airflow makes one
            trigger of the two, which then has no state store.
    """

    #: Airflow gives the trigger its asset's store; Airflow 3.2 has none.
    asset_state_store: Any = None

    def __init__(
        self,
        *,
        views: str | Sequence[str],
        iceberg_conn_id: str = DEFAULT_ICEBERG_CONN_ID,
        tables: Sequence[str] = (),
        require: Require = "any",
        quiet_period: Time = 0.0,
        wait_at_most: Time | None = None,
        at_most_every: Time = 0.0,
        remind_every: Time | None = 3600.0,
        poke_interval: float = 60.0,
        asset: str | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.views = named_views(views)
        check_literals(type(self).__name__, {"views": self.views, "tables": tables})
        self.iceberg_conn_id = iceberg_conn_id
        self.wanted = pending_criteria(tables, require, quiet_period, wait_at_most)
        self.at_most_every = duration(at_most_every, what="at_most_every") or timedelta(0)
        self.remind_every = duration(remind_every, what="remind_every")
        self.poke_interval = poke_interval
        self.asset = asset

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return what the triggerer makes the trigger from."""
        return (
            f"{PUBLIC_MODULE}.{type(self).__qualname__}",
            {
                "views": self.views,
                "iceberg_conn_id": self.iceberg_conn_id,
                **self.wanted.arguments(),
                "at_most_every": self.at_most_every.total_seconds(),
                "remind_every": None if self.remind_every is None else self.remind_every.total_seconds(),
                "poke_interval": self.poke_interval,
                "asset": self.asset,
            },
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Poll until cancelled; fire for pending changes that were not announced."""
        announced = Announcements(self.at_most_every, self.remind_every)
        announced.recall(await self._stored(), self.views)
        polls, since = PollLog(), time.monotonic()
        while True:
            pending = await self._pending(since)
            polls.note(self.log, pending)
            if announced.forget(set(self.views) - pending.views.keys() - pending.errors.keys()):
                await self._store(announced.state())
            now = time.time()
            marks = {view: item.mark for view, item in pending.views.items()}
            due = announced.due(marks, now)
            if due:
                yield TriggerEvent(PendingReport({view: pending.views[view] for view in due}).to_dict())  # type: ignore[no-untyped-call]
                announced.announced({view: marks[view] for view in due}, now)
                # If the triggerer dies before the event is in the database, it must find the changes unannounced.
                await asyncio.sleep(_HANDED_OVER)
                await self._store(announced.state())
            await asyncio.sleep(self.poke_interval)

    async def _pending(self, since: float) -> PendingReport:
        try:
            return await _shared_pending(self, since)
        except Exception as error:  # noqa: BLE001 (Airflow starts a watcher that ends again, once a second)
            return PendingReport(errors=dict.fromkeys(self.views, (type(error).__name__, str(error))))

    async def _stored(self) -> object:
        if self.asset_state_store is None:
            return None
        try:
            return await self.asset_state_store.aget(ANNOUNCED)
        except Exception as error:  # noqa: BLE001 (without it an event may come twice, and that does no harm)
            self.log.warning("Could not read the last announced snapshots; announcing again: %s", _cause(error))
            return None

    async def _store(self, state: dict[str, Any]) -> None:
        if self.asset_state_store is None:
            return
        try:
            await self.asset_state_store.aset(ANNOUNCED, state)
        except Exception as error:  # noqa: BLE001 (as above)
            self.log.warning(
                "Could not store the announced snapshots; they are announced again after a restart: %s", _cause(error)
            )


class BaseTablesChangedOnceTrigger(BaseTrigger):
    """Wait until views have pending changes; for a deferred task.

    It also waits for a catalog that does not respond. An error that is not retryable ends the wait.

    Args:
        views: Names of the views.
        iceberg_conn_id: Connection of their catalog.
        tables: See :class:`BaseTablesChangedTrigger`.
        require: Likewise.
        quiet_period: Likewise.
        wait_at_most: Likewise.
        poke_interval: Seconds between polls.
    """

    def __init__(
        self,
        *,
        views: Sequence[str],
        iceberg_conn_id: str = DEFAULT_ICEBERG_CONN_ID,
        tables: Sequence[str] = (),
        require: Require = "any",
        quiet_period: Time = 0.0,
        wait_at_most: Time | None = None,
        poke_interval: float = 60.0,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.views = named_views(views)
        check_literals(type(self).__name__, {"views": self.views, "tables": tables})
        self.iceberg_conn_id = iceberg_conn_id
        self.wanted = pending_criteria(tables, require, quiet_period, wait_at_most)
        self.poke_interval = poke_interval

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return what the triggerer makes the trigger from."""
        return (
            f"{PUBLIC_MODULE}.{type(self).__qualname__}",
            {
                "views": self.views,
                "iceberg_conn_id": self.iceberg_conn_id,
                **self.wanted.arguments(),
                "poke_interval": self.poke_interval,
            },
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Poll until there are pending changes. Log the result when it changes."""
        polls, since = PollLog(), time.monotonic()
        while True:
            pending = await _shared_pending(self, since)
            polls.note(self.log, pending)
            payload = pending.outcome()
            if payload is not None:
                yield TriggerEvent(payload)  # type: ignore[no-untyped-call]
                return
            await asyncio.sleep(self.poke_interval)


async def _shared_pending(
    trigger: BaseTablesChangedTrigger | BaseTablesChangedOnceTrigger, since: float
) -> PendingReport:
    """Poll in a thread, or take the result of another trigger's poll that began at this monotonic time or later."""
    shared, views, wanted = connected(trigger.iceberg_conn_id), trigger.views, trigger.wanted
    try:
        return await shared.look(
            (*views, wanted), lambda: find_pending(shared, views, wanted), every=trigger.poke_interval, since=since
        )
    except CatalogUnavailableError as error:
        return PendingReport(errors=dict.fromkeys(views, (type(error).__name__, str(error))))


def _cause(error: Exception) -> str:
    # Airflow raises it when several assets share one trigger, and for a value that cannot be stored.
    hint = "; where two assets share this trigger, give it the argument asset=<the asset's name>"
    return f"{type(error).__name__}: {error}{hint if isinstance(error, ValueError) else ''}"
