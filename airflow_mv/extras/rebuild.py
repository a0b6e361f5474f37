# SPDX-License-Identifier: Apache-2.0
"""Compute the rows of a changed definition beside those on show, and publish both only if the caller agrees."""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from airflow_mv.core.catalog import LoadedView, MaterializedViewCatalog
from airflow_mv.core.freshness.state import SnapshotSet
from airflow_mv.core.publish import Requester
from airflow_mv.core.refresh import RefreshOptions, plan_refresh
from airflow_mv.core.refresh.plan import RefreshPlan, RefreshResult
from airflow_mv.core.refresh.run import Diagnose, publish, stage
from airflow_mv.core.script import Outcome, Stager
from airflow_mv.core.spec.materialized_view import RefreshRecord
from airflow_mv.core.spec.reasons import Mode
from airflow_mv.errors import RefreshRefusedError

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """A rebuild.

    Args:
        plan: What was computed.
        outcome: What its job did.
        result: How it was published; ``None`` if the view has changed meanwhile: its new definition is published, and
            the next refresh computes its rows.
    """

    plan: RefreshPlan
    outcome: Outcome | None
    result: RefreshResult | None


def rebuild(
    catalog: MaterializedViewCatalog,
    *,
    define: Callable[[Callable[[LoadedView], None]], object],
    stager: Stager,
    bases: Callable[[LoadedView, RefreshRecord], SnapshotSet | None],
    accept: Callable[[LoadedView, RefreshPlan, Outcome, SnapshotSet | None], None],
    options: RefreshOptions | None = None,
    diagnose: Diagnose | None = None,
    requester: Requester | None = None,
) -> Rebuilt:
    """Stage the rows of a definition, ask whether they may be published, publish the definition and then the rows.

    Readers see the present rows until the last commit. If the process ends before the definition is published, nothing
    has changed. If it ends after that, the rows on show are those of the earlier definition, and a rebuild of the same
    definition publishes the staged rows without a job.

    Args:
        define: Publishes the definition. It first calls its argument with the view as it will be.
        stager: Runs the job.
        bases: Returns the base tables to read, for the view as it will be and the refresh of its present rows;
            ``None``: as they are now.
        accept: Called with the view as it will be, the plan, what its job did, and the base tables from ``bases``. It
            raises to refuse the rows. Then nothing is published.
        options: How to refresh.
        diagnose: Called if the job fails.
        requester: Who requested it, for the refresh record.

    Raises:
        RefreshRefusedError: The policy of the view forbids a recompute, or it has no rows to compare with.
        MaterializedViewError: As for :func:`airflow_mv.core.refresh.run.stage` and ``define``.
    """
    started, staged = time.monotonic(), list[tuple[RefreshPlan, Outcome | None]]()

    def before(view: LoadedView) -> None:
        record = catalog.load_storage(view).record
        if record is None:
            raise RefreshRefusedError(f"view {view.identifier} has no rows to compare with: refresh it first")
        pins = bases(view, record)
        wanted = replace(options or RefreshOptions(), definition=digest_of(view))
        plan = plan_refresh(catalog, view, wanted, pins=pins)
        if plan.mode != Mode.FULL:
            why = "; ".join(reason.message for reason in plan.reasons)
            raise RefreshRefusedError(f"view {view.identifier} is not computed again: {why}")
        outcome = stage(catalog, plan, stager, diagnose)
        if outcome is not None:
            accept(view, plan, outcome, pins)
        staged.append((plan, outcome))

    define(before)
    plan, outcome = staged[0]
    result = publish(catalog, plan, outcome, requester=requester, started=started)
    if result is not None:
        result = replace(result, seconds=time.monotonic() - started)
    return Rebuilt(plan, outcome, result)


def digest_of(view: LoadedView) -> str:
    """Return a digest of what the rows of a view depend on: its query, its columns, how they are stored."""
    metadata, version = view.metadata, view.metadata.current_version
    parts = [
        sorted(version.texts.items()),
        [version.default_catalog, list(version.default_namespace)],
        [[field["name"], field["type"]] for field in metadata.schema_.fields],
        sorted((key, text) for key, text in metadata.properties.items() if key.startswith("airflow-mv.")),
    ]
    return hashlib.sha256(json.dumps(parts, default=str).encode("utf-8", "surrogatepass")).hexdigest()[:32]
