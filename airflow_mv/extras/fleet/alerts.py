# SPDX-License-Identifier: Apache-2.0
"""Alerts on freshness SLOs: which views are late, and which alerts were sent.

The alerts are based on the views themselves, not on runs: a refresh DAG that is paused, or whose runs are skipped, has
no run that could fail.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, Protocol

from airflow_mv.common.each import ItemResult
from airflow_mv.common.expiry import warnings
from airflow_mv.core.freshness.state import TableLag
from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.core.spec.properties import MAX_STALENESS_PROPERTY, max_staleness_of
from airflow_mv.core.spec.times import from_ms, parse_time
from airflow_mv.errors import ConfigurationError, MaterializedViewError
from airflow_mv.extras.fleet.fact_cache import FactCache
from airflow_mv.extras.fleet.known import CacheLookup, Opener, PropertiesOf, key_of, look_up, without_collections
from airflow_mv.extras.fleet.readiness import Readiness, readiness
from airflow_mv.extras.fleet.summary import SUMMARY, Summary

#: Prefix of the keys in the memory.
_KEY = "airflow_mv_breach."
_ON_TIME = frozenset({Readiness.FRESH, Readiness.WITHIN_GRACE})
#: The rows are those of no definition, or of another one: such a view is late some time after it was defined.
_WAITING = frozenset({Readiness.NEVER, Readiness.INVALID})


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
        readiness: Its state.
        max_staleness: The SLO; ``None``: the view has none.
        breached: Whether the view is later than that.
        lag_seconds: The view's lag, 0 if it has none; ``None`` if it is unknown.
        since: Time of the first base commit that it does not contain. If it has no rows of its definition, the time of
            that definition: its own, or that of a plain view that it reads.
        tables: The base tables with commits that it does not contain.
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


#: Returns the receivers of an event (``breach``, ``recovery``), by names that are the same in each run.
Receivers = Callable[[str], Mapping[str, Callable[[FreshnessAlert], object]]]


@dataclass(frozen=True, slots=True)
class WatchedViews:
    """The views of one catalog whose freshness SLOs are checked.

    Args:
        opener: Opens it. It is not called if the cache knows all of the views.
        views: Their names.
        namespace: Instead of ``views``: those of this namespace that have a freshness SLO; ``()``: of the whole
            catalog.
        cache: What metadata files say; by default nothing is kept.
        properties_of: The properties of catalogs by name, to look at their pointers without opening them.
    """

    catalog: str
    opener: Opener
    views: tuple[Identifier, ...] = ()
    namespace: tuple[str, ...] | None = None
    cache: FactCache = field(default_factory=lambda: FactCache(None))
    properties_of: PropertiesOf = lambda _: None

    def lookup(self) -> CacheLookup[Summary]:
        """Compare the cache with the catalog's present pointers."""
        properties = self.properties_of(self.catalog)
        if properties is None:
            return CacheLookup()
        wanted = {key_of(view) for view in self.views} if self.namespace is None else None
        return look_up(
            self.catalog, properties, self.namespace or None, self.cache, self.properties_of, SUMMARY, wanted=wanted
        )

    def known(self, lookup: CacheLookup[Summary]) -> list[ItemResult[Identifier, Summary]] | None:
        """Return the summaries of all views, if the cache knows them all; else ``None``."""
        known = lookup.known.views
        if self.namespace is not None and lookup.is_complete(self.namespace or None):
            return [ItemResult(summary.view, summary) for summary in lookup.known.materialized()]
        found = [(view, known.get(key_of(view))) for view in self.views]
        results = [ItemResult(view, kept) for view, kept in found if kept is not None and kept.status is not None]
        return results if results and len(results) == len(found) else None

    def observed(self, lookup: CacheLookup[Summary]) -> Iterator[ItemResult[Identifier, Summary]]:
        """Yield the summary of each view. What the cache knows is not read.

        Raises:
            StoreUnavailableError: A table that may be a view was left out. Raised after all views.
        """
        from airflow_mv.common.each import left_out
        from airflow_mv.extras.fleet.summaries import note_ordinary, summaries

        catalog = self.opener()
        note_ordinary(catalog, lookup)
        views = self.views if self.namespace is None else catalog.list(self.namespace or None)
        for result in summaries(catalog, views, lookup, self.cache, named=self.namespace is None):
            if result.value is None or result.value.status is not None:
                yield result
        for error in left_out(catalog, self.namespace or None):
            raise error


def freshness_slos(
    watched: WatchedViews, max_staleness: timedelta | None = None, *, now: datetime | None = None
) -> Iterator[FreshnessSlo]:
    """Check views against their freshness SLOs. A base table that they share is read once.

    An error of one view, in the catalog or because it has no SLO, is a breach of that view.

    Args:
        max_staleness: The SLO of all of them; by default each view's property ``airflow-mv.max-staleness``.
        now: The current time, for the lag.

    Raises:
        MaterializedViewError: A catalog or a store does not respond. Raised after all readable views.
    """
    moment = now or datetime.now(UTC)
    with without_collections():
        lookup = watched.lookup()
        known = watched.known(lookup)
        found = None if known is None else list(_slos_of(known, watched, max_staleness, moment))
    yield from _slos_of(watched.observed(lookup), watched, max_staleness, now) if found is None else found


def _slos_of(
    results: Iterable[ItemResult[Identifier, Summary]],
    watched: WatchedViews,
    max_staleness: timedelta | None,
    now: datetime | None,
) -> Iterator[FreshnessSlo]:
    unanswered = None
    for result in results:
        error = result.error
        if error is not None and error.retryable:
            unanswered = unanswered or error
            continue
        try:
            if error is not None:
                raise error
            slo = _slo_of(result, max_staleness, now or datetime.now(UTC), listed=watched.namespace is not None)
        except MaterializedViewError as problem:
            reasons = (f"{type(problem).__name__}: {problem}",)
            slo = FreshnessSlo(result.item, Readiness.UNKNOWN, max_staleness, breached=True, reasons=reasons)
        yield slo
    if unanswered is not None:
        raise unanswered


def _slo_of(
    result: ItemResult[Identifier, Summary], max_staleness: timedelta | None, now: datetime, *, listed: bool
) -> FreshnessSlo:
    view, summary, allowed = result.item, result.get(), max_staleness
    if allowed is None:
        allowed = max_staleness_of(summary.max_staleness, view=str(view))
    if allowed is None and not listed:
        raise ConfigurationError(
            f"view {view}: it has no freshness SLO; give max_staleness, or set its property "
            f"{MAX_STALENESS_PROPERTY}, e.g. to '2 h'"
        )
    behind = summary.lag
    found = readiness(summary.state, behind, allowed, foreign=summary.has_foreign_rows, now=now)
    since = _since(summary, found)
    reasons = [reason["message"] for reason in summary.document["reasons"]]
    return FreshnessSlo(
        view,
        found,
        allowed,
        breached=allowed is not None and is_late(summary, allowed, now),
        lag_seconds=behind.seconds(now),
        since=since,
        tables=behind.tables,
        reasons=(*reasons, *warnings(_expiring(summary), now=now)),
        uuid=summary.uuid,
    )


def is_late(summary: Summary, allowed: timedelta, now: datetime) -> bool:
    """Whether a view breaches its freshness SLO.

    Rows of another definition are late once the view has had them for too long. An unknown state is late.
    """
    found = readiness(summary.state, summary.lag, allowed, foreign=summary.has_foreign_rows, now=now)
    if found in _WAITING and (since := _since(summary, found)):
        return now - since > allowed
    return found not in _ON_TIME


def _since(summary: Summary, found: Readiness) -> datetime | None:
    return from_ms(summary.defined_ms) if found in _WAITING else summary.lag.since


def _expiring(summary: Summary) -> dict[str, datetime]:
    tables = summary.document["base_tables"]
    return {item["identifier"]: parse_time(item["expires_at"]) for item in tables if item["expires_at"]}


def settle(slo: FreshnessSlo, memory: Memory, receivers: Receivers) -> None:
    """Send an alert for a breach or a recovery to each receiver that has not got it, and then record who has.

    Args:
        slo: The view's current state.
        memory: The sent alerts; only the view's own key is changed.
        receivers: Returns the receivers of an event. The next call sends the alert again to those that raised.

    Raises:
        Exception: The error of the first receiver that raised, after all of them were called.
    """
    key = _KEY + hashlib.sha256(str(slo.view).encode()).hexdigest()[:16]
    alert = FreshnessAlert("breach" if slo.breached else "recovery", slo)
    event, some = _last_event(memory.get(key), slo)
    if event == alert.event and some is None:
        return
    got = set(some or ()) if event == alert.event else set()
    failed: list[Exception] = []
    for name, deliver in receivers(alert.event).items():
        try:
            if name not in got:
                deliver(alert)
                got.add(name)
        except Exception as error:  # noqa: BLE001 (the user's code; the other receivers must get the alert)
            failed.append(error)
    if alert.event == "recovery" and not failed:
        memory.delete(key)
    elif got or not failed:
        partly = {"got": sorted(got)} if failed else {}
        sent_at = datetime.now(UTC).isoformat()
        memory.set(key, {"view": alert.view, "uuid": slo.uuid, "event": alert.event, "sent_at": sent_at, **partly})
    if failed:
        raise failed[0]


def _last_event(noted: Any, slo: FreshnessSlo) -> tuple[str | None, Sequence[str] | None]:
    """Return the event that was sent last, and the names of those who got it; ``None`` if all did.

    A view that was dropped and created again is another one.
    """
    if not isinstance(noted, Mapping) or (None not in (noted.get("uuid"), slo.uuid) and noted["uuid"] != slo.uuid):
        return "recovery", None
    return noted.get("event"), noted.get("got")
