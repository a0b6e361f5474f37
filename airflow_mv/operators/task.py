# SPDX-License-Identifier: Apache-2.0
"""Shared by the tasks: log lines and the asset event."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import Asset, AssetAlias, Context

from airflow_mv.assets import VIEWS_ALIAS, materialized_view_asset
from airflow_mv.core.spec.identifiers import id_text
from airflow_mv.core.spec.reasons import FOUND_BY_JOB, OF_INPUTS, fallback
from airflow_mv.errors import ConfigurationError, InvalidIdentifierError
from airflow_mv.foundation.redaction import shortened

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator
    from airflow.sdk.types import Logger

    from airflow_mv.core.publish import Requester
    from airflow_mv.core.refresh.plan import RefreshPlan, RefreshResult
    from airflow_mv.core.script import CheckResult

#: Reasons, and characters of each, that an asset event carries.
_REASONS, _MAX_LENGTH = 5, 300


def view_outlet(view: Any) -> list[Asset | AssetAlias]:
    """Return the outlet of a task for a view: an alias if its full name is known only at run time."""
    if not isinstance(view, str) or "{{" in view or "{%" in view:
        return [VIEWS_ALIAS]
    try:
        return [materialized_view_asset(view)]
    except InvalidIdentifierError:
        return [VIEWS_ALIAS]  # a name without its catalog, which the connection gives; the run refuses a wrong one


def log_plan(log: Logger, plan: RefreshPlan) -> None:
    """Log what will be done, why, and from which snapshots."""
    if plan.interval is None:
        log.info("Plan for %s: %s (the view is %s)", plan.view, plan.mode, plan.state)
    else:
        log.info("Plan for %s: %s of the rows with %s (they are %s)", plan.view, plan.mode, plan.interval, plan.state)
    for reason in plan.reasons:
        if reason.code in OF_INPUTS:
            log.warning("  but %s [%s]", reason.message, reason.code)
        else:
            log.info("  because %s [%s]", reason.message, reason.code)
    if (why := fallback(plan.reasons)) is not None:
        done = "left as it is" if plan.script is None else "recomputed in full"
        # A query that is never incremental says so once for each definition, and not as a warning at each refresh.
        tell = log.info if plan.repeats and plan.script is not None else log.warning
        tell("%s is incremental, and is %s because of a fallback: %s", plan.view, done, why)
    if plan.script is None:
        log.info("  No Spark job is needed")
        return
    for change in plan.changes:
        before = "as before" if not change.moved else f"before: {_snapshot(change.recorded)}"
        log.info("  reads %s at snapshot %s (%s)", change.identifier, _snapshot(change.current), before)


def plan_text(plan: RefreshPlan) -> str:
    """Return a plan for the rendered templates: the mode, the reasons, and the statements as they run."""
    reasons = [f"because {reason.message} [{reason.code}]" for reason in plan.reasons]
    return "\n".join([f"{plan.mode} of {plan.view} (the view is {plan.state})", *reasons, *plan.statements])


def log_result(log: Logger, result: RefreshResult) -> None:
    """Log the outcome of a refresh."""
    if result.fallback is not None and result.fallback.startswith(FOUND_BY_JOB):  # else the plan's log lines have it
        log.warning("%s is incremental, and was refreshed by %s: %s", result.view, result.mode, result.fallback)
    if not result.published:
        log.info(
            "%s: %s, nothing was written; the current refresh is %s", result.view, result.outcome, result.refresh_id
        )
        return
    log.info(
        "%s: %s (%s), %s rows written, %.1f s in all; published as refresh %s",
        result.view,
        result.outcome,
        result.mode,
        f"{result.rows_written:,}",
        result.seconds,
        result.refresh_id,
    )
    named = str(result.storage_table) if result.storage_table else None
    if named is None:
        log.info("  no table of the catalog has the rows: `airflow-mv read %s` shows them", result.view)
    else:
        log.info("  other engines read the rows in: %s", named)
    if result.checks:
        passed = sum(check.passed for check in result.checks)
        log.info("  %d of %d checks passed before it was published", passed, len(result.checks))


def announce(operator: BaseOperator, context: Context, result: RefreshResult) -> None:
    """Set the extra of the view's asset event, or remove the event if nothing was published.

    Airflow emits an event for every outlet of a successful task. A refresh that found the view fresh would start every
    consumer for nothing, so its outlet is removed from this run of the task.
    """
    asset = materialized_view_asset(str(result.view))
    if VIEWS_ALIAS in operator.outlets and result.published:
        context["outlet_events"][VIEWS_ALIAS].add(asset, extra=event_extra(result))
    mine = [outlet for outlet in operator.outlets if isinstance(outlet, Asset) and outlet.uri == asset.uri]
    if not mine:
        return
    if result.published:
        context["outlet_events"][mine[0]].extra = event_extra(result)
        return
    # A new list: the old one belongs to the DAG's task; this is a copy of it.
    operator.outlets = [outlet for outlet in operator.outlets if outlet not in mine]
    operator.log.info("No asset event: nothing new was published")


def event_extra(result: RefreshResult) -> dict[str, Any]:
    """Return the extra of a refresh's asset event. Its size is bounded, because events are kept for long.

    Snapshot ids are strings, because they exceed JavaScript's safe integers.
    """
    reasons = result.reasons[:_REASONS]
    return {
        "view": str(result.view),
        "refresh_id": result.refresh_id,
        "storage_table": str(result.storage_table) if result.storage_table else None,
        "mode": str(result.mode),
        "outcome": result.outcome,
        "base_tables": {name: id_text(snapshot) for name, snapshot in result.snapshots},
        "rows_written": result.rows_written,
        "lag_seconds": result.lag_seconds,
        "seconds": round(result.seconds, 3),
        "interval": result.interval.to_dict() if result.interval else None,
        "reasons": [{"code": str(reason.code), "message": _cut(reason.message)} for reason in reasons],
        "fallback": _cut(result.fallback) if result.fallback is not None else None,
        "checks": _counted(result.checks),
    }


def _counted(checks: Sequence[CheckResult]) -> dict[str, Any] | None:
    """Count checks. Those of a published refresh have passed or warned."""
    warned = [_cut(check.name) for check in checks if not check.passed]
    return {"passed": len(checks) - len(warned), "of": len(checks), "warned": warned[:_REASONS]} if checks else None


def _cut(text: str) -> str:
    return shortened(text, _MAX_LENGTH)


def requester(context: Context) -> Requester:
    """Return who requests a refresh: the DAG, its run, the task, and the user who triggered the run."""
    from airflow_mv.core.publish import Requester

    ti, user = context.get("ti"), getattr(context.get("dag_run"), "triggering_user_name", None)
    if ti is None:  # outside of Airflow's task runner
        return Requester(user=user)
    return Requester(dag_id=ti.dag_id, run_id=ti.run_id, task_id=ti.task_id, user=user)


def given_document(value: Any, *, field: str, wanted: str) -> Mapping[str, Any]:
    """Parse the output of another task from XCom or a rendered template.

    Args:
        value: A document, or its JSON text.
        field: The operator's argument, for the message.
        wanted: What it must be and where it comes from, for the message.

    Raises:
        ConfigurationError: It is not a document.
    """
    try:
        document = json.loads(value) if isinstance(value, str) else value
    except ValueError:
        document = None
    if not isinstance(document, Mapping):
        raise ConfigurationError(f"{field} is {str(value)[:60]!r}, which is {wanted}")
    return document


def _snapshot(identity: int | None) -> str:
    return "none" if identity is None else str(identity)
