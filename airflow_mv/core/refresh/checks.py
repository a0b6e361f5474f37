# SPDX-License-Identifier: Apache-2.0
"""The checks of a refresh, and how their results affect it."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from airflow_mv.checks import CHECKS_PROPERTY, Check, read_checks
from airflow_mv.core.freshness.observe import Observation
from airflow_mv.core.freshness.state import State
from airflow_mv.core.refresh.check_sql import CheckContext, compile_checks
from airflow_mv.core.refresh.inputs import RefreshInputs
from airflow_mv.core.refresh.plan import RefreshPlan
from airflow_mv.core.refresh.statements import place_names
from airflow_mv.core.script import STORAGE, CheckResult, Outcome, Script, StagedChecks, staged
from airflow_mv.core.sql.intervals import condition
from airflow_mv.errors import CheckFailedError, ConfigurationError, JobError

log = logging.getLogger(__name__)

#: Limits of the message of a failed refresh: rows per check, and checks. The log has more.
_ROWS_IN_MESSAGE = 5
_CHECKS_IN_MESSAGE = 10


def all_checks(observation: Observation, given: Sequence[Check]) -> tuple[Check, ...]:
    """Return the view's own checks and those of the call.

    Args:
        given: The checks of the call.

    Raises:
        ConfigurationError: The view's property is invalid.
    """
    loaded = observation.view
    stored = stored_checks(loaded.metadata.properties, view=str(loaded.identifier))
    return tuple(dict.fromkeys((*stored, *given)))


def checks_to_run(inputs: RefreshInputs, checks: Sequence[Check]) -> StagedChecks | None:
    """Compile checks for a refresh. The checks of an interval read only its rows.

    Args:
        inputs: What the refresh is planned from.

    Raises:
        ConfigurationError: A check names a column that the view does not have.
        InvalidQueryError: The SQL of a check is invalid.
    """
    if not checks:
        return None
    observation = inputs.observation
    loaded, storage, schema = observation.view, observation.storage, observation.view.metadata.schema_
    interval = observation.interval
    before = ""
    if storage.rows_snapshot is not None and _has_rows_to_compare(observation):
        before = f"{storage.target.table} VERSION AS OF {storage.rows_snapshot}"
    subject = CheckContext(
        view=str(loaded.identifier),
        columns=schema.names,
        table=storage.target.written,
        before=before,
        where=condition(interval, schema.fields) if interval else "",
        tables=inputs.pinned_tables(),
        views=observation.dependencies.nested,
        default_catalog=loaded.default_catalog,
        default_namespace=loaded.default_namespace,
    )
    return compile_checks(checks, subject)


def require_fitting(properties: Mapping[str, str], *, view: str, columns: Sequence[str]) -> None:
    """Refuse a view's own checks if they do not fit its columns. The tables that they read are not checked here.

    Args:
        properties: The view's new properties.
        columns: The view's columns.

    Raises:
        ConfigurationError, InvalidQueryError: See :func:`checks_to_run`.
    """
    compile_checks(stored_checks(properties, view=view), CheckContext(view, columns, table=staged(STORAGE)))


def reads_staged_views(observation: Observation, checks: Sequence[Check]) -> bool:
    """Whether a check's query may read a base table that the job has to register: a pointed materialized view."""
    staged_views = place_names(observation.places).files
    return bool(staged_views) and any(check.kind == "sql" for check in checks)


def has_passed(script: Script, outcome: Outcome) -> bool:
    """Whether the staged rows have passed exactly the checks of this script; for a script without checks, had none."""
    wanted = script.checks.digest if script.checks else ""
    return outcome.checks_digest == wanted and not any(result.stops for result in outcome.checks)


def judge(plan: RefreshPlan, outcome: Outcome) -> None:
    """Log the failed checks of a staged refresh, and raise if one of them forbids publication.

    Raises:
        CheckFailedError, JobError: See :func:`require_passed`.
    """
    for result in outcome.checks if plan.script and plan.script.checks else ():
        if not result.passed:
            log.log(logging.ERROR if result.stops else logging.WARNING, "%s", "\n".join(result.lines()))
    require_passed(plan, outcome)


def require_passed(plan: RefreshPlan, outcome: Outcome) -> None:
    """Refuse to publish rows that have not passed their checks. The staged rows stay for inspection.

    Raises:
        CheckFailedError: With some of the rows that violate the checks.
        JobError: The job has not run these checks.
    """
    if plan.script is None or has_passed(plan.script, outcome):
        return
    failed = [result for result in outcome.checks if result.stops]
    if not failed:
        raise JobError(
            f"view {plan.view}: the Spark job has not run the plan's checks, so nothing was published. Does its driver "
            "run this version of airflow-mv, with the script of this plan?"
        )
    lines = [_shown(result) for result in failed[:_CHECKS_IN_MESSAGE]]
    if len(failed) > _CHECKS_IN_MESSAGE:
        lines.append(f"and {len(failed) - _CHECKS_IN_MESSAGE} more checks, which the log shows")
    message = "\n".join([
        f"view {plan.view}: {len(failed)} of {len(outcome.checks)} checks failed, so nothing was published and readers "
        "keep the rows that they have",
        *lines,
        f"The checked rows are kept for inspection: {_place(plan, outcome)}",
    ])  # fmt: skip
    raise CheckFailedError(message, results=tuple(failed))


def _shown(result: CheckResult) -> str:
    more = len(result.rows) - _ROWS_IN_MESSAGE
    lines = result.lines(_ROWS_IN_MESSAGE)
    return "\n".join([*lines, *([f"  and {more} more in the log"] if more > 0 else [])])


def _place(plan: RefreshPlan, outcome: Outcome) -> str:
    if outcome.branch is not None:
        return f"branch {outcome.branch} of {plan.storage_table}"
    return f"the Iceberg table with the metadata file {outcome.metadata_location}"


def _has_rows_to_compare(observation: Observation) -> bool:
    """Whether all of the stored rows are older rows of the same definition. Those of some intervals are too few."""
    freshness = observation.freshness
    is_ours = freshness.state not in (State.NEVER_REFRESHED, State.DEFINITION_CHANGED)
    return is_ours and all(item.part.computed for item in freshness.parts)


def stored_checks(properties: Mapping[str, str], *, view: str) -> tuple[Check, ...]:
    """Read the checks in a view's property. Functions are refused: who may set a property must not be able to run code.

    Args:
        properties: The view's properties.
        view: The view's name, for messages.

    Raises:
        ConfigurationError: A check is not valid, or is a function.
    """
    text, source = properties.get(CHECKS_PROPERTY), f"view {view}, property {CHECKS_PROPERTY}"
    if text is None:
        return ()
    found = read_checks(text, source=source)
    for check in found:
        if check.kind == "python":
            raise ConfigurationError(
                f"{source}: {check.name} is a function, which a property must not name; give it to the operator"
            )
    return found
