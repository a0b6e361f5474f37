# SPDX-License-Identifier: Apache-2.0
"""Compute the fresh rows of a view in a Spark session of this process."""

from __future__ import annotations

import logging
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_mv.core.catalog import MaterializedViewCatalog
from airflow_mv.core.script import STAGING_CATALOG, Script
from airflow_mv.core.spec.reasons import FOUND_BY_JOB, Code, Reason
from airflow_mv.extras.fresh.plan import FreshPlan, ReadMode

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FreshRows:
    """The fresh rows of a view.

    Args:
        frame: The rows. What changed is computed already; the stored rows are read when the frame is used.
        mode: How they were computed. The job may have found that the planned mode is not possible.
        reasons: Why.
    """

    frame: DataFrame
    mode: ReadMode
    reasons: tuple[Reason, ...]


def fresh_rows(catalog: MaterializedViewCatalog, spark: SparkSession, plan: FreshPlan) -> FreshRows:
    """Compute the fresh rows of a view in a session. Nothing is committed, and no file is written.

    In a classic session the stored rows are read when the frame is used. Over Spark Connect all rows are computed once,
    by this call, and the server holds them.

    Args:
        spark: A session that knows the view's catalog, classic or Connect.
        plan: From :func:`airflow_mv.extras.fresh.plan.plan_fresh_read`.

    Raises:
        InvalidQueryError: The query no longer fits the view's columns.
        JobError: Spark failed.
    """
    from airflow_mv.common.stored_rows import spark_errors, stored_rows
    from airflow_mv.core.job.session import made_active
    from airflow_mv.extras.fresh.reading import read_script

    view, script = plan.view.identifier, plan.script
    log.info("Reading fresh rows of %s: %s (%s)", view, plan.mode, "; ".join(item.message for item in plan.reasons))
    if script is None:
        return FreshRows(stored_rows(spark, view, plan.storage, plan.snapshot_id), plan.mode, plan.reasons)
    inputs = {name: fresh_rows(catalog, spark, item).frame for name, item in plan.inputs.items()}
    with spark_errors(f"reading fresh rows of view {view}"), made_active(spark):
        frame, refused = read_script(spark, script, _staging(catalog, spark, plan, script), inputs)
    if refused is None:
        return FreshRows(frame, plan.mode, plan.reasons)
    log.info("Reading fresh rows of %s by its query: %s", view, refused)
    why = Reason(Code.INCREMENTAL_UNAVAILABLE, f"{FOUND_BY_JOB}: {refused}")
    return FreshRows(frame, ReadMode.QUERY, (*plan.reasons, why))


def _staging(catalog: MaterializedViewCatalog, spark: SparkSession, plan: FreshPlan, script: Script) -> str:
    """Open the staging catalog of a script, if it registers a table there, and return its name.

    The session keeps it, because the frame reads these tables whenever it is used.
    """
    from airflow_mv.common.stored_rows import kept_staging
    from airflow_mv.core.job.driver_files import file_access, only_access

    if not (script.is_staged or script.nested):
        return f"{STAGING_CATALOG}_{uuid.uuid4().hex[:12]}"
    vended = catalog.files.vended_properties(plan.storage.location)
    return kept_staging(spark, {**file_access(spark, plan.view.identifier.catalog), **only_access(vended)})
