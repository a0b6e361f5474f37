# SPDX-License-Identifier: Apache-2.0
"""Alerts on freshness SLOs: which views are late, and which alerts were sent.

The alerts are based on the views themselves, not on runs: a refresh DAG that is paused, or whose runs are skipped, has
no run that could fail.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, Protocol

from airflow_mv.errors import ConfigurationError
from airflow_mv.freshness.expiry import expiries, warnings
from airflow_mv.freshness.lag import (
    MAX_STALENESS_PROPERTY,
    Readiness,
    TableLag,
    lag,
    max_staleness_of,
    readiness,
)
from airflow_mv.spec.identifiers import Identifier
from airflow_mv.spec.times import from_ms

if TYPE_CHECKING:
    from airflow_mv.catalog import MaterializedViewCatalog
    from airflow_mv.freshness.observe import Observation

#: Prefix of the keys in the memory.
_KEY = "airflow_mv_breach."
_ON_TIME = frozenset({Readiness.FRESH, Readiness.WITHIN_GRACE})


class Memory(Protocol):
    """A store of JSON values by key, such as an asset's state store."""

    def get(self, key: str) -> Any:
        """Return a value, or ``None``."""

    def set(self, key: str, value: Any) -> None:
        """Store a value."""

    def delete(self, key: str) -> None:
        """Delete a value, if there is one."""


@dataclass(frozen=True, slots=True)
class FreshnessSlo:
    """One view's state against its freshness SLO.

    Args:
        view: The view.
        readiness: Its state.
        max_staleness: The SLO; ``None``: the view has none.
        breached: Whether the view is later than that.
        lag_seconds: The view's lag, 0 if it has none; ``None`` if it is unknown.
        since: Time of the first base commit that it does not contain. If it has no rows of its definition, the time of
            that definition: its own, or that of a plain view that it reads.
        tables: The base tables with commits that it does not contain.
        reasons: The reasons, as text.
        uuid: The view's uuid; ``None`` if the view cannot be read.
    """

    view: Identifier
    readiness: Readiness
    max_staleness: timedelta | None
    breached: bool
    lag_seconds: float | None = None
    since: datetime | None = None
    tables: tuple[TableLag, ...] = ()
    reasons: tuple[str, ...] = ()
    uuid: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "view": str(self.view),
            "readiness": str(self.readiness),
            "max_staleness_seconds": None if self.max_staleness is None else self.max_staleness.total_seconds(),
            "breached": self.breached,
            "lag_seconds": self.lag_seconds,
            "since": self.since.isoformat() if self.since else None,
            "base_tables": [
                {"identifier": table.identifier, "since": table.since.isoformat() if table.since else None}
                for table in self.tables
            ],
            "reasons": list(self.reasons),
        }


@dataclass(frozen=True, slots=True)
class FreshnessAlert:
    """The content of a notification.

    Args:
        event: ``breach``, or ``recovery`` after one.
        slo: The view's state, with its lag and the base tables that are ahead of it.
    """

    event: Literal["breach", "recovery"]
    slo: FreshnessSlo

    @property
    def view(self) -> str:
        """The view's name."""
        return str(self.slo.view)

    @property
    def lag(self) -> timedelta | None:
        """The view's lag, if it is known."""
        seconds = self.slo.lag_seconds
        return None if seconds is None else timedelta(seconds=round(seconds))

    @property
    def since(self) -> datetime | None:
        """Time of the first base commit that the view does not contain."""
        return self.slo.since

    @property
    def base_tables(self) -> tuple[str, ...]:
        """The base tables with commits that the view does not contain."""
        return tuple(table.identifier for table in self.slo.tables)

    @property
    def message(self) -> str:
        """One sentence that describes the alert."""
        if self.event == "recovery":
            return f"{self.view} is on time again ({self.slo.readiness})"
        behind = f", behind for {self.lag}" if self.lag else ""
        since = f" since {self.since.isoformat(timespec='seconds')}" if self.since else ""
        why = "; ".join(self.slo.reasons)
        allowed = f", {self.slo.max_staleness} is allowed" if self.slo.max_staleness is not None else ""
        return f"{self.view} is {self.slo.readiness}{behind}{since}{allowed}: {why}"

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {"event": self.event, **self.slo.to_dict(), "message": self.message}


def freshness_slos(
    catalog: MaterializedViewCatalog,
    views: Iterable[Identifier],
    max_staleness: timedelta | None = None,
    *,
    listed: bool = False,
    now: datetime | None = None,
) -> Iterator[FreshnessSlo]:
    """Check views against their freshness SLOs. A base table that they share is read once.

    An error of one view, in the catalog or because it has no SLO, is a breach of that view.

    Args:
        catalog: Where they are.
        views: Their names.
        max_staleness: The SLO of all of them; by default each view's property ``airflow-mv.max-staleness``.
        listed: The views were listed, not named: leave out plain views and views without an SLO.
        now: The current time, for the lag.

    Raises:
        MaterializedViewError: A catalog does not answer. Raised after all readable views.
    """
    from airflow_mv.freshness.observe import observe_each

    def judge(seen: Observation) -> FreshnessSlo | None:
        slo = _slo_of(seen, max_staleness, now or datetime.now(UTC))
        return slo if listed else _require_slo(slo)

    unanswered = None
    for result in observe_each(catalog, views, judge, plain=(lambda _: None) if listed else None):
        error = result.error
        if error is not None and error.retryable:
            unanswered = unanswered or error
        elif error is not None:
            reasons = (f"{type(error).__name__}: {error}",)
            yield FreshnessSlo(result.item, Readiness.UNKNOWN, max_staleness, breached=True, reasons=reasons)
        elif result.value is not None:
            yield result.value
    if unanswered is not None:
        raise unanswered


def _require_slo(slo: FreshnessSlo) -> FreshnessSlo:
    if slo.max_staleness is None:
        raise ConfigurationError(
            f"view {slo.view}: it has no freshness SLO; give max_staleness, or set its property "
            f"{MAX_STALENESS_PROPERTY}, e.g. to '2 h'"
        )
    return slo


def _slo_of(seen: Observation, max_staleness: timedelta | None, now: datetime) -> FreshnessSlo:
    metadata = seen.view.metadata
    allowed = max_staleness
    if allowed is None:
        allowed = max_staleness_of(metadata.properties, view=str(seen.view.identifier))
    behind = lag(seen)
    found, since = readiness(seen.freshness, behind, allowed, now=now), behind.since
    if found in (Readiness.NEVER, Readiness.INVALID):
        since = from_ms(_defined_ms(seen))
    # Rows of another definition are late once the view has had them for too long. An unknown state is late.
    waits = found in (Readiness.NEVER, Readiness.INVALID)
    late = allowed is not None and found not in _ON_TIME and not (waits and since and now - since <= allowed)
    return FreshnessSlo(
        seen.view.identifier,
        found,
        allowed,
        breached=late,
        lag_seconds=behind.seconds(now),
        since=since,
        tables=behind.tables,
        reasons=(*(reason.message for reason in seen.freshness.reasons), *warnings(expiries(seen), now=now)),
        uuid=metadata.view_uuid,
    )


def _defined_ms(seen: Observation) -> int:
    """Return the time of the definition that the rows do not have: the view's, or that of a nested view."""
    own, record = seen.view.metadata.current_version, seen.record
    known = {view.identifier: view for view in record.nested_views} if record else {}
    nested = zip(seen.dependencies.views, seen.nested_views, strict=True)
    changed = [view.version_ms for view, now in nested if record and known.get(now.identifier) != now]
    if not changed or (record and record.version_id != own.version_id):
        changed.append(own.timestamp_ms)
    return min(changed)


def settle(slo: FreshnessSlo, memory: Memory, deliver: Callable[[FreshnessAlert], None]) -> None:
    """Send an alert for a breach or a recovery that was not sent before, and then record it.

    Args:
        slo: The view's current state.
        memory: The sent alerts; only the view's own key is changed.
        deliver: Sends the alert. If it raises, nothing is recorded and the next call sends it again.
    """
    key = _KEY + hashlib.sha256(str(slo.view).encode()).hexdigest()[:16]
    was_sent = _was_sent(memory.get(key), slo)
    if slo.breached == was_sent:
        return
    deliver(FreshnessAlert("breach" if slo.breached else "recovery", slo))
    if slo.breached:
        memory.set(key, {"view": str(slo.view), "uuid": slo.uuid, "sent_at": datetime.now(UTC).isoformat()})
    else:
        memory.delete(key)


def _was_sent(noted: Any, slo: FreshnessSlo) -> bool:
    """Whether an alert was sent for this view. A view that was dropped and created again is another one."""
    if not isinstance(noted, Mapping):
        return False
    return None in (noted.get("uuid"), slo.uuid) or noted["uuid"] == slo.uuid
