# SPDX-License-Identifier: Apache-2.0
"""Trigger that waits until a view is fresh enough."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_mv import errors
from airflow_mv.core.spec.interval import Interval, Span
from airflow_mv.core.spec.times import parse_time
from airflow_mv.errors import ConfigurationError, MaterializedViewError
from airflow_mv.extras.fleet.readiness import Readiness, readiness
from airflow_mv.hooks import DEFAULT_ICEBERG_CONN_ID
from airflow_mv.tasks.literals import check_literals
from airflow_mv.triggers.connected import PUBLIC_MODULE, PollLog, connected
from airflow_mv.triggers.views import FreshnessRequest, ViewFreshness


@dataclass(frozen=True, slots=True)
class FreshnessPoll:
    """The result of one poll of a view, as a trigger passes it to a task.

    Args:
        ready: Whether the wait is over: the view is fresh enough, or an error ended the wait.
        status: The document of ``airflow-mv status``, with ``readiness``, ``lag_seconds`` and ``behind_since``;
            ``None`` after an error.
        error_class: Name of the error's class, or ``None``.
    """

    ready: bool
    status: dict[str, Any] | None = None
    error_class: str | None = None
    message: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {"ready": self.ready, "status": self.status, "error_class": self.error_class, "message": self.message}

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> FreshnessPoll:
        """Read what :meth:`to_dict` wrote."""
        return cls(**document)

    @classmethod
    def failed(cls, error: MaterializedViewError) -> FreshnessPoll:
        """Return the result for an error. The wait continues if the error is retryable."""
        return cls(ready=not error.retryable, error_class=type(error).__name__, message=str(error))

    def document(self) -> dict[str, Any]:
        """Return the status document.

        Raises:
            MaterializedViewError: The error that ended the wait, with its own class.
        """
        if self.status is None:
            kind = getattr(errors, self.error_class or "", MaterializedViewError)
            raise kind(self.message)
        return self.status

    @property
    def verdict(self) -> object:
        """The part of the result that is logged when it changes. Without the lag, which always grows."""
        return (self.status["state"], self.status["reasons"]) if self.status else (self.error_class, self.message)

    def describe(self) -> str:
        """Return the state and the reasons in one line."""
        if self.status is None:
            return f"{self.error_class}: {self.message}"
        lag_seconds = self.status["lag_seconds"]
        behind = f", behind for {timedelta(seconds=round(lag_seconds))}" if lag_seconds else ""
        why = "; ".join(reason["message"] for reason in self.status["reasons"])
        interval = self.status.get("interval")
        rows = f", {Interval.from_dict(interval)}," if interval else ""
        return f"{self.status['view']}{rows} is {self.status['state']}{behind}: {why}"


def judge(seen: ViewFreshness, *, states: Collection[str], max_staleness_seconds: float | None) -> FreshnessPoll:
    """Decide whether a view is fresh enough.

    Args:
        states: Accepted states: names of ``Readiness``, or words of ``airflow-mv status``.
        max_staleness_seconds: Also accept a stale view whose lag is at most this.
    """
    tolerated = None if max_staleness_seconds is None else timedelta(seconds=max_staleness_seconds)
    summary, behind = seen.summary, seen.summary.lag
    found = readiness(summary.state, behind, tolerated, foreign=summary.has_foreign_rows)
    document = {
        **summary.document,
        "readiness": str(found),
        "lag_seconds": behind.seconds(),
        "behind_since": behind.since.isoformat() if behind.since else None,
    }
    return FreshnessPoll(found == Readiness.WITHIN_GRACE or found in map(Readiness.named, states), document)


def span_of(start: object, end: object = None, column: str | None = None) -> Span:
    """Return the requested interval.

    Args:
        start: Its start, included: a time, or its text in ISO 8601 (without a zone: UTC).
        end: Its end, excluded. Empty: the end of the partition that begins at ``start``.
        column: The view's column; by default the one that the view names.

    Raises:
        ConfigurationError: One of them is not a time, perhaps a template that is not set in this kind of run.
    """
    return Span(_moment(start, "interval_start"), _moment(end, "interval_end") if end else None, column)


def _moment(value: object, field: str) -> datetime:
    try:
        return parse_time(value)
    except ValueError:
        raise ConfigurationError(
            f"{field} is {value!r}, which is not a point in time. Write it like 2013-06-30T00:00:00+00:00, or as a "
            "template that is set in this kind of run"
        ) from None


class MaterializedViewFreshTrigger(BaseTrigger):
    """Wait until a view is fresh enough. Its event is a serialised :class:`FreshnessPoll`.

    It also waits for a catalog that does not respond. An error that is not retryable ends the wait.

    Args:
        view: ``catalog.namespace.name``.
        iceberg_conn_id: Connection of its catalog.
        states: Accepted states.
        max_staleness_seconds: See :func:`judge`.
        poke_interval: Seconds between polls.
        interval: Consider only the rows of this interval: start and end (or ``None``) in ISO 8601, and the column
            (or ``None``); see :class:`airflow_mv.core.spec.interval.Span`.
        freshness: As for :class:`airflow_mv.sensors.MaterializedViewFreshSensor`.
    """

    def __init__(
        self,
        *,
        view: str,
        iceberg_conn_id: str = DEFAULT_ICEBERG_CONN_ID,
        states: Collection[str] = ("fresh",),
        max_staleness_seconds: float | None = None,
        poke_interval: float = 60.0,
        interval: Sequence[str | None] | None = None,
        freshness: Literal["chain", "direct"] = "chain",
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.view = view
        self.iceberg_conn_id = iceberg_conn_id
        self.states = states if isinstance(states, str) else list(states)
        self.max_staleness_seconds = max_staleness_seconds
        self.poke_interval = poke_interval
        self.interval = list(interval) if interval else None
        check_literals(type(self).__name__, {"view": view, "states": self.states, "freshness": freshness})
        self.freshness = freshness

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return what the triggerer makes the trigger from."""
        return (
            f"{PUBLIC_MODULE}.{type(self).__qualname__}",
            {
                "view": self.view,
                "iceberg_conn_id": self.iceberg_conn_id,
                "states": self.states,
                "max_staleness_seconds": self.max_staleness_seconds,
                "poke_interval": self.poke_interval,
                "interval": self.interval,
                "freshness": self.freshness,
            },
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Poll until the view is fresh enough. Log the result when it changes."""
        polls, since = PollLog(), time.monotonic()
        while True:
            seen = await self.poll(since=since)
            polls.note(self.log, seen)
            if seen.ready:
                yield TriggerEvent(seen.to_dict())  # type: ignore[no-untyped-call]
                return
            await asyncio.sleep(self.poke_interval)

    async def poll(self, *, since: float = 0.0) -> FreshnessPoll:
        """Poll once, or take the result of another trigger's poll.

        Args:
            since: Monotonic time. A read that began before it is not shared.
        """
        # pyiceberg and SQLAlchemy block: never on the triggerer's event loop.
        try:
            wanted = FreshnessRequest(
                self.view, span_of(*self.interval) if self.interval else None, self.freshness == "direct"
            )
            seen = await connected(self.iceberg_conn_id).poll(wanted, every=self.poke_interval, since=since)
        except MaterializedViewError as error:
            return FreshnessPoll.failed(error)
        return judge(seen, states=self.states, max_staleness_seconds=self.max_staleness_seconds)
