# SPDX-License-Identifier: Apache-2.0
"""Send an alert when views are later than their freshness SLO allows, and a message when they are on time again."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Unpack, cast
from urllib.parse import quote

from airflow.sdk import Asset, BaseNotifier, Context

from airflow_mv.core.spec.identifiers import split
from airflow_mv.core.spec.times import duration
from airflow_mv.errors import AlertError, ConfigurationError, MaterializedViewError
from airflow_mv.hooks import DEFAULT_ICEBERG_CONN_ID, MaterializedViewHook
from airflow_mv.retries import airflow_errors
from airflow_mv.tasks.literals import CheckedOperator, Reader
from airflow_mv.tasks.older_airflow import BEFORE_3_3

if TYPE_CHECKING:
    from airflow_mv.extras.fleet.alerts import FreshnessAlert, FreshnessSlo, Memory, WatchedViews
    from airflow_mv.tasks.keywords import TaskKeywords

Listener = BaseNotifier | Callable[["FreshnessAlert"], object]
#: Scheme of the asset whose state store keeps the sent alerts.
_SCHEME = "iceberg-mv-alerts"


class FreshnessAlertOperator(CheckedOperator):
    """Send one alert when a view exceeds its ``max_staleness``, and one message when it is on time again.

    It checks the views, not runs: it also sends alerts if the refresh DAG is paused, or its runs are skipped. Run it
    in a DAG of its own, every few minutes. A view that was never refreshed, or has a new definition, is late after
    ``max_staleness`` in this state. A view that cannot be read is late at once.

    Sent alerts are recorded in the state store of an asset of the task's own, after they were sent. If a worker dies in
    between, an alert is sent twice; none is lost. If a receiver fails, the next run tries only this one again. A mapped
    task has no such store, and fails: give one task all views.

    Sets the gauge ``airflow_mv.lag_seconds`` (tag ``view``) for each view. Returns (XCom) a document for each view.

    Args:
        views: A view's name, or several: ``catalog.namespace.name`` (templated).
        namespace: All views in ``catalog.namespace``, or in ``catalog``, that have a freshness SLO (templated).
        iceberg_conn_id: Connection of their catalog (templated).
        max_staleness: The freshness SLO: seconds, a ``timedelta`` or a text like ``2 h`` (templated). By default each
            view's property ``airflow-mv.max-staleness``.
        on_breach: Receivers of an alert: notifiers, which find the alert as ``freshness_alert`` in their context, or
            callables that take a :class:`airflow_mv.operators.FreshnessAlert`.
        on_recovery: The same, for the recovery.
        **kwargs: All that ``BaseOperator`` takes.
    """

    template_fields: Sequence[str] = ("views", "namespace", "iceberg_conn_id", "max_staleness")
    ui_color: str = "#f7e3d4"
    literals: ClassVar[Mapping[str, Reader]] = {"namespace": lambda value, _field: split(value)}  # also of a catalog

    def __init__(
        self,
        *,
        views: str | Sequence[str] = (),
        namespace: str | None = None,
        iceberg_conn_id: str = DEFAULT_ICEBERG_CONN_ID,
        max_staleness: timedelta | float | str | None = None,
        on_breach: Listener | Sequence[Listener] = (),
        on_recovery: Listener | Sequence[Listener] = (),
        **kwargs: Unpack[TaskKeywords],
    ) -> None:
        super().__init__(**kwargs)
        if bool(views) == bool(namespace):
            raise ConfigurationError("give either views or a namespace")
        self.views = views
        self.namespace = namespace
        self.iceberg_conn_id = iceberg_conn_id
        self.max_staleness = max_staleness
        self.on_breach = _listeners(on_breach, "on_breach")
        self.on_recovery = _listeners(on_recovery, "on_recovery")
        path = f"{quote(self.dag_id, safe='')}/{quote(self.task_id, safe='')}"
        self.memory = Asset(name=f"{_SCHEME}:{path}", uri=f"{_SCHEME}://{path}", group="airflow-mv")
        self.inlets = [*self.inlets, self.memory]
        self.check_literals()

    def execute(self, context: Context) -> list[dict[str, Any]]:
        """Check all views, and send new alerts.

        Raises:
            AirflowFailException: An argument is wrong.
            AlertError: An alert could not be delivered or recorded; the next run tries again.
            MaterializedViewError: A catalog does not respond. Raised after the views of all others.
        """
        from airflow_mv.extras.fleet.alerts import settle

        documents, undelivered = [], []

        def receivers(event: str) -> dict[str, Callable[[FreshnessAlert], None]]:
            listeners = self.on_breach if event == "breach" else self.on_recovery
            return {_named(*item): partial(self._send, context, *item) for item in enumerate(listeners)}

        with airflow_errors():
            memory = self._memory(context)
            for slo in self._slos():
                report_lag(str(slo.view), slo.lag_seconds)
                lag = "unknown" if slo.lag_seconds is None else f"{slo.lag_seconds:.0f} s"
                self.log.info("%s is %s, lag %s", slo.view, slo.readiness, lag)
                documents.append(slo.to_dict())
                try:
                    settle(slo, memory, receivers)
                except Exception as error:  # noqa: BLE001 (a notifier is the user's code; those of other views continue)
                    undelivered.append(f"{slo.view}: {type(error).__name__}: {error}")
            if undelivered:
                raise AlertError(f"alerts that were not delivered: {'; '.join(undelivered)}. The next run tries again")
        return documents

    def _send(self, context: Context, place: int, listener: Listener, alert: FreshnessAlert) -> None:
        name = _named(place, listener)
        self.log.warning("Sending an alert of a %s to %s: %s", alert.event, name, alert.message)
        try:
            _notify(listener, alert, context)
        except Exception:
            self.log.exception("The alert of %s was not delivered to %s", alert.view, name)
            raise

    def _slos(self) -> Iterator[FreshnessSlo]:
        from airflow_mv.extras.fleet.alerts import freshness_slos

        allowed = duration(self.max_staleness, what="max_staleness")
        first: MaterializedViewError | None = None
        for watched in self.watched():
            try:
                yield from freshness_slos(watched, allowed)
            except MaterializedViewError as error:
                first = first or error
        if first is not None:
            raise first

    def watched(self) -> Iterator[WatchedViews]:
        """Yield the views that are checked, by catalog."""
        from airflow_mv.extras.fleet.alerts import WatchedViews
        from airflow_mv.extras.fleet.fact_cache import FactCache

        def of(name: str, **chosen: Any) -> WatchedViews:
            properties_of = hook.connection.properties_from(name)
            return WatchedViews(
                name, partial(hook.catalog_named, name), cache=cache, properties_of=properties_of, **chosen
            )

        cache = FactCache.of_user()
        with closing(MaterializedViewHook(self.iceberg_conn_id)) as hook:
            if self.namespace:
                name, *space = split(self.namespace)
                yield of(name, namespace=tuple(space))
                return
            views = [
                hook.connection.identify(view) for view in ([self.views] if isinstance(self.views, str) else self.views)
            ]
            for name in sorted({view.catalog for view in views}):
                yield of(name, views=tuple(view for view in views if view.catalog == name))

    def _memory(self, context: Context) -> Memory:
        stores = context.get("asset_state_store")
        if stores is not None:
            with suppress(KeyError):  # only other inlets have a store
                return cast("Memory", stores[self.memory])
        if "ti" in context and not BEFORE_3_3:
            raise ConfigurationError(
                f"task {self.task_id}: Airflow has no state store for the alerts that it sends, so each run would send "
                "them again. A mapped task has none: instead of expand(views=...) give all views to one task, as a list"
            )
        self.log.warning("There is no state store here: every run sends an alert for each late view")
        return _Forgetful()


class _Forgetful:
    """Replaces the state store outside of Airflow's runs."""

    def get(self, key: str) -> None:  # noqa: ARG002
        return None

    def set(self, key: str, value: Any) -> None:
        pass

    def delete(self, key: str) -> None:
        pass


def _named(place: int, listener: Listener) -> str:
    """Return the name of a receiver: its place in the list, and its class or function."""
    kind = type(listener) if isinstance(listener, BaseNotifier) else listener
    return f"{place}:{getattr(kind, '__qualname__', type(kind).__qualname__)}"


def _notify(listener: Listener, alert: FreshnessAlert, context: Context) -> None:
    if isinstance(listener, BaseNotifier):
        # A copy of each: a notifier writes its fields into the context, and renders them in place.
        copy.copy(listener)({**context, "freshness_alert": alert})
    else:
        listener(alert)


def _listeners(given: Listener | Sequence[Listener], what: str) -> list[Listener]:
    listeners = list(given) if isinstance(given, Sequence) else [given]
    if not all(callable(listener) for listener in listeners):
        raise ConfigurationError(f"{what} is {given!r}; give notifiers or callables")
    return listeners


#: Name of the gauge, after Airflow's own prefix; the tag ``view`` names the view.
LAG_SECONDS = "airflow_mv.lag_seconds"

log = logging.getLogger(__name__)


def report_lag(view: str, seconds: float | None) -> None:
    """Set the gauge of a view's lag. Never raises: a metric must not fail a task.

    Args:
        seconds: Its lag. ``None``, an unknown lag, leaves the gauge unchanged.
    """
    if seconds is None:
        return
    try:
        from airflow.providers.common.compat.sdk import Stats

        Stats.gauge(LAG_SECONDS, seconds, tags={"view": view})
    except Exception as error:  # noqa: BLE001 (each backend has its own)
        log.debug("The metric %s of %s was not sent: %s: %s", LAG_SECONDS, view, type(error).__name__, error)
