# SPDX-License-Identifier: Apache-2.0
"""Find causes of a failed job that its error does not name: a wrong clock, damaged files."""

from __future__ import annotations

import re

from airflow_mv.common.damage import require_whole_files
from airflow_mv.core.catalog import MaterializedViewCatalog, stored_table
from airflow_mv.core.refresh.plan import RefreshPlan
from airflow_mv.core.script import CLOCK, MAX_AHEAD_MS, Outcome
from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.core.spec.materialized_view import is_false, latest_ms
from airflow_mv.core.spec.times import from_ms
from airflow_mv.errors import ClockError, FutureTimeError, MaterializedViewError

#: Error messages of Java Iceberg for times that go back by more than a minute.
_ABOUT_CLOCKS = re.compile(
    r"Expected sorted (snapshot|previous metadata) log entries|Invalid (update|snapshot) timestamp", re.ASCII
)


def diagnose(catalog: MaterializedViewCatalog, plan: RefreshPlan, outcome: Outcome) -> None:
    """Raise the error of a failed job if its cause is found.

    Args:
        outcome: What the job reported.

    Raises:
        ClockError, FutureTimeError: The clock of Spark's driver is wrong, or the view holds times of a wrong clock.
        InvalidMetadataError: Files are missing or truncated.
    """
    reason = outcome.error or ""
    if outcome.error_class == CLOCK or _ABOUT_CLOCKS.search(reason):
        raise _clock_error(catalog, plan.view, reason)
    require_whole_files(catalog, plan, reason)


def _clock_error(catalog: MaterializedViewCatalog, view: Identifier, reason: str) -> MaterializedViewError:
    """Return the error for a job that failed because of a clock: the view's stored times, or the driver's clock."""
    if not _ABOUT_CLOCKS.search(reason):
        return ClockError(reason if str(view) in reason else f"view {view}: {reason}")
    loaded = catalog.load(view)
    storage = catalog.load_storage(loaded)
    document = stored_table(catalog, loaded, storage)
    store_ms, latest = catalog.files.now_ms(storage.table.location), latest_ms(document)
    if is_false(document, store_ms + MAX_AHEAD_MS):
        when = from_ms(latest).isoformat(timespec="seconds")
        return FutureTimeError(
            f"view {view}: its storage table has times up to {max(0, latest - store_ms) / 1000:.0f} s ahead of the "
            f"store's clock (the latest is {when}): a host with a wrong clock has changed it. Nothing was published. "
            f"Correct them with `airflow-mv repair {view}`"
        )
    return ClockError(
        f"view {view}: Spark found timestamps that go backwards ({reason}): the driver's clock is behind that of the "
        "last writer of the storage table or of a base table. Nothing was published. Synchronize the clocks, then run "
        "the refresh again"
    )
