# SPDX-License-Identifier: Apache-2.0
"""The text of a plan: what would run, the reasons, why no cheaper mode, and the estimates of both alternatives."""

from __future__ import annotations

from dataclasses import asdict

from airflow_mv.cli import show
from airflow_mv.cli.context import out
from airflow_mv.core.refresh.plan import Estimate
from airflow_mv.core.spec.reasons import Code, Reason
from airflow_mv.extras.costs import with_expected

_CHANGE = {
    "identifier": "lake.sales.orders",
    "moved": True,
    "change": "position-deletes",
    "rows_added": 1200,
    "rows_deleted": 7,
    "files_added": 1,
    "files_removed": 0,
    "bytes_added": 2048,
    "bytes_removed": 0,
    "partitions": 2,
}


def test_a_plan_shows_its_reasons_its_changes_and_both_estimates() -> None:
    """Each is on its own line. Recorded refreshes tell how long a person waits, with the start of Spark."""
    estimates = [Estimate("replace-keys", 1.8, 2 * 2**20, 1207), Estimate("full", 4.0, 9 * 2**20, 1207, factor=2.0)]
    refreshes = [
        {"mode": "full", "seconds": seconds, "job_seconds": 3.0} for seconds in (600.0, 60.0, 64.0, 62.0, 63.0, 61.0)
    ]
    document = {
        "view": "lake.sales.daily",
        "mode": "replace-keys",
        "refresh_id": "83fc5026",
        "reasons": [Reason(Code.NOT_APPEND_ONLY, "no append: rows of lake.sales.orders were deleted").to_dict()],
        "base_tables": [_CHANGE],
        "estimates": with_expected([*map(asdict, estimates)], refreshes),
        "statements": ["SELECT 1\nFROM [x]"],
    }
    with out.capture() as printed:
        show.plan(document)
    assert [line.rstrip() for line in printed.get().splitlines()] == [
        "lake.sales.daily  replace-keys  83fc5026",
        "  no append: rows of lake.sales.orders were deleted (NOT_APPEND_ONLY)",
        "  lake.sales.orders  position-deletes: +1,200 -7 rows, +1 -0 files, +2.0 KiB -0 B, 2 partitions touched",
        "  expected: replace-keys  about 61 s by its last 5 refreshes, of which 1.8 s of Spark's statements; reading "
        "2.0 MiB, 1,207 changed rows",
        "  expected: full          about 63 s by its last 5 refreshes, of which 4.0 s of Spark's statements; reading "
        "9.0 MiB",
        "",
        "-- 1 of 1",
        "SELECT 1",
        "FROM [x]",
    ]
    (alone,) = with_expected([asdict(estimates[0])], [])
    with out.capture() as printed:
        show.plan({**document, "estimates": [alone]})
    line = (
        "  expected: replace-keys  1.8 s of Spark's statements, and the start of Spark; reading 2.0 MiB, 1,207 changed"
    )
    assert f"{line} rows" in printed.get().splitlines()
