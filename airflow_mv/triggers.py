# SPDX-License-Identifier: Apache-2.0
"""Wait for views off the worker, and decide what "fresh enough" is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_mv import errors
from airflow_mv.errors import MaterializedViewError
from airflow_mv.hooks import DEFAULT_ICEBERG_CONN_ID, MaterializedViewHook

if TYPE_CHECKING:
    from airflow_mv.observe import Observation


@dataclass(frozen=True, slots=True)
class Look:
    """One look at a view, as it crosses from trigger to task.

    Args:
        ready: Whether the view is as it was waited for.
        status: The document of ``airflow-mv status``, with ``lag_seconds``; ``None`` after an error.
        error_class: Name of the error that ended the waiting, or ``None``.
        message: Its message.
    """

    ready: bool
    status: dict[str, Any] | None = None
    error_class: str | None = None
    message: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {"ready": self.ready, "status": self.status, "error_class": self.error_class, "message": self.message}

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Look:
        """Read what :meth:`to_dict` wrote."""
        return cls(**document)

    def document(self) -> dict[str, Any]:
        """Return the status document.

        Raises:
            MaterializedViewError: The error that ended the waiting, of its own class.
        """
        if self.status is None:
            kind = getattr(errors, self.error_class or "", MaterializedViewError)
            raise kind(self.message)
        return self.status

    @property
    def verdict(self) -> object:
        """What is worth a line in the log when it changes; the lag grows all the time."""
        return (self.status["state"], self.status["reasons"]) if self.status else (self.error_class, self.message)

    def describe(self) -> str:
        """Say the state and why, in one line."""
        if self.status is None:
            return f"{self.error_class}: {self.message}"
        lag = self.status["lag_seconds"]
        behind = f", behind for {timedelta(seconds=round(lag))}" if lag else ""
        why = "; ".join(reason["message"] for reason in self.status["reasons"])
        return f"{self.status['view']} is {self.status['state']}{behind}: {why}"


def look(
    hook: MaterializedViewHook, view: str, *, states: Collection[str], max_staleness_seconds: float | None
) -> Look:
    """Look at a view and say whether it is fresh enough.

    Args:
        hook: Where the view is.
        view: The view.
        states: Accepted states.
        max_staleness_seconds: A stale view is accepted, too, if the oldest base commit that it lacks is at most so
            old.

    Raises:
        MaterializedViewError: It cannot be looked at.
    """
    status = hook.status(view)
    lag = lag_seconds(status.observation)
    tolerable = max_staleness_seconds is not None and lag is not None and lag <= max_staleness_seconds
    ready = str(status.state) in states or (str(status.state) == "stale" and tolerable)
    return Look(ready, {**status.to_dict(), "lag_seconds": lag})


def lag_seconds(observation: Observation, *, now: datetime | None = None) -> float | None:
    """Return how long ago the first base commit was made that a stale view lacks.

    Args:
        observation: A look at the view.
        now: The time to count to.

    Returns:
        Seconds; 0 for a fresh view; ``None`` where it cannot be told: never refreshed, another definition, or
        snapshots that have expired.
    """
    from airflow_mv.plan.freshness import State
    from airflow_mv.spec.table import snapshots_between

    if observation.freshness.state == State.FRESH:
        return 0.0
    if observation.freshness.state != State.STALE:
        return None
    tables = {table.identifier: table.table for table in observation.tables}
    commits = []
    for change in observation.freshness.base_tables:
        table = tables[change.identifier]
        if change.changed:
            missing = snapshots_between(table, change.recorded, change.current) if table else None
            if not missing:
                return None
            commits.append(min(item.timestamp_ms for item in missing if item.operation != "replace"))
    moment = (now or datetime.now(UTC)).timestamp()
    return round(max(0.0, moment - min(commits) / 1000), 3) if commits else None


class MaterializedViewFreshTrigger(BaseTrigger):
    """Wait until a view is fresh enough. Its event is a serialised :class:`Look`.

    A catalog that does not answer is waited for, too; an error that waiting cannot mend ends it.

    Args:
        view: The view.
        iceberg_conn_id: Connection of its catalog.
        states: Accepted states.
        max_staleness_seconds: See :func:`look`.
        poke_interval: Seconds between looks.
    """

    def __init__(
        self,
        *,
        view: str,
        iceberg_conn_id: str = DEFAULT_ICEBERG_CONN_ID,
        states: Collection[str] = ("fresh",),
        max_staleness_seconds: float | None = None,
        poke_interval: float = 60.0,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.view = view
        self.iceberg_conn_id = iceberg_conn_id
        self.states = list(states)
        self.max_staleness_seconds = max_staleness_seconds
        self.poke_interval = poke_interval

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return what the triggerer makes the trigger from."""
        return (
            f"{type(self).__module__}.{type(self).__qualname__}",
            {
                "view": self.view,
                "iceberg_conn_id": self.iceberg_conn_id,
                "states": self.states,
                "max_staleness_seconds": self.max_staleness_seconds,
                "poke_interval": self.poke_interval,
            },
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Look until the view is fresh enough; say so in the log when the answer changes."""
        said = None
        while True:
            # pyiceberg and SQLAlchemy block: never on the triggerer's event loop.
            seen = await asyncio.to_thread(self._look)
            if seen.verdict != said:
                self.log.info(seen.describe())
                said = seen.verdict
            if seen.ready:
                yield TriggerEvent(seen.to_dict())  # type: ignore[no-untyped-call]
                return
            await asyncio.sleep(self.poke_interval)

    def _look(self) -> Look:
        try:
            return look(
                MaterializedViewHook(self.iceberg_conn_id),
                self.view,
                states=self.states,
                max_staleness_seconds=self.max_staleness_seconds,
            )
        except MaterializedViewError as error:
            return Look(ready=not error.retryable, error_class=type(error).__name__, message=str(error))
