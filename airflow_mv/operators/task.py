# SPDX-License-Identifier: Apache-2.0
"""What the tasks share: options from templates, what the log says, the asset event."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from airflow.sdk import Asset, Context

from airflow_mv.assets import materialized_view_asset
from airflow_mv.errors import ConfigurationError, InvalidIdentifierError

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator
    from airflow.sdk.types import Logger

    from airflow_mv.plan.planner import RefreshPlan
    from airflow_mv.planning import RefreshOptions
    from airflow_mv.results import RefreshResult

#: Outcomes that gave the view's readers something new; only these make an asset event.
PUBLISHED = frozenset({"refreshed", "already-committed"})
_TRUE, _FALSE = frozenset({"true", "1", "yes"}), frozenset({"false", "0", "no", "none", ""})


def refresh_options(as_of: Any, full: Any, on_fallback: Any, max_full_bytes: Any = None) -> RefreshOptions:
    """Read rendered template fields.

    Args:
        as_of: A time, its text in ISO 8601 (without a zone: UTC), or nothing.
        full: A truth value or its text.
        on_fallback: ``full``, ``fail`` or ``skip``, or nothing.
        max_full_bytes: A number, its text, or nothing.

    Raises:
        ConfigurationError: One of them is something else.
    """
    from airflow_mv.planning import RefreshOptions

    if on_fallback not in ("full", "fail", "skip", "None", "", None):
        raise ConfigurationError(f"on_fallback is {on_fallback!r}; it must be full, fail or skip")
    policy = None if on_fallback in ("None", "", None) else on_fallback
    return RefreshOptions(moment(as_of), truth(full), policy, _bytes(max_full_bytes))


def _bytes(value: Any) -> int | None:
    text = str(value)
    if text in ("None", ""):
        return None
    if isinstance(value, bool) or not text.isdecimal():
        raise ConfigurationError(f"max_full_bytes is {value!r}; it must be a number of bytes")
    return int(text)


def moment(value: Any) -> datetime | None:
    """Read a point in time as a template leaves it.

    Raises:
        ConfigurationError: It is none.
    """
    if value is None or value == "":
        return None
    try:
        read = value if isinstance(value, datetime) else datetime.fromisoformat(str(value))
    except ValueError:
        raise ConfigurationError(
            f"as_of is {value!r}, which is no point in time. Write it like 2013-06-30T00:00:00+00:00, or as a template "
            "that is set in this kind of run: {{ dag_run.run_after }} always is, {{ data_interval_end }} is not"
        ) from None
    return read if read.tzinfo else read.replace(tzinfo=UTC)


def truth(value: Any) -> bool:
    """Read a truth value as a template leaves it.

    Raises:
        ConfigurationError: It is none.
    """
    text = str(value).strip().lower()
    if text not in _TRUE | _FALSE:
        raise ConfigurationError(f"full is {value!r}; it must be true or false")
    return text in _TRUE


def view_outlet(view: Any) -> list[Asset]:
    """Return the outlet of a task for a view, if its name is known when the DAG is read."""
    if not isinstance(view, str) or "{{" in view or "{%" in view:
        return []
    try:
        return [materialized_view_asset(view)]
    except InvalidIdentifierError:
        return []  # a name without its catalog, or a wrong one, which the run will refuse


def log_plan(log: Logger, plan: RefreshPlan) -> None:
    """Say what is going to be done, why, and from which snapshots."""
    log.info("Plan for %s: %s (the view is %s)", plan.view, plan.mode, plan.state)
    for reason in plan.reasons:
        log.info("  because %s [%s]", reason.message, reason.code)
    if plan.script is None:
        log.info("  No Spark job is needed")
        return
    for change in plan.changes:
        before = "as before" if not change.moved else f"before: {_snapshot(change.recorded)}"
        log.info("  reads %s at snapshot %s (%s)", change.identifier, _snapshot(change.current), before)


def log_result(log: Logger, result: RefreshResult) -> None:
    """Say how a refresh ended."""
    if result.outcome not in PUBLISHED:
        log.info("%s: %s, nothing was written; readers get refresh %s", result.view, result.outcome, result.refresh_id)
        return
    log.info(
        "%s: %s (%s), %s rows written, %.1f s in all; readers get refresh %s from now on",
        result.view,
        result.outcome,
        result.mode,
        f"{result.rows_written:,}",
        result.seconds,
        result.refresh_id,
    )


def announce(operator: BaseOperator, context: Context, result: RefreshResult) -> None:
    """Give the view's asset event its facts, or take the event back where nothing was published.

    Airflow makes an event for every outlet of a task that succeeds. A refresh that found the view fresh would
    then start every consumer for nothing, so its outlet is taken out of this run of the task.
    """
    asset = materialized_view_asset(str(result.view))
    mine = [outlet for outlet in operator.outlets if isinstance(outlet, Asset) and outlet.uri == asset.uri]
    if not mine:
        return
    if result.outcome in PUBLISHED:
        context["outlet_events"][mine[0]].extra = event_extra(result)
        return
    # A new list: the old one belongs to the DAG's task, of which this is a copy.
    operator.outlets = [outlet for outlet in operator.outlets if outlet not in mine]
    operator.log.info("No asset event: nothing new was published")


def event_extra(result: RefreshResult) -> dict[str, Any]:
    """Return what the asset event of a refresh carries. Snapshot ids are text: they exceed JavaScript's numbers."""
    return {
        "view": str(result.view),
        "refresh_id": result.refresh_id,
        "mode": str(result.mode),
        "outcome": result.outcome,
        "base_tables": {name: str(snapshot) for name, snapshot in result.snapshots},
        "rows_written": result.rows_written,
    }


def plan_document(value: Any) -> Mapping[str, Any]:
    """Read a plan as XCom or a template gives it.

    Raises:
        ConfigurationError: It is none.
    """
    try:
        document = json.loads(value) if isinstance(value, str) else value
    except ValueError:
        document = None
    if not isinstance(document, Mapping):
        raise ConfigurationError(
            f"plan is {str(value)[:60]!r}, which is no plan; give it the PlanRefreshOperator's output: plan=plan.output"
        )
    return document


def _snapshot(identity: int | None) -> str:
    return "none" if identity is None else str(identity)
