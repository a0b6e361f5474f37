# SPDX-License-Identifier: Apache-2.0
"""The text of a plan: what would run, the reasons, why no cheaper mode, and the estimates of both alternatives."""

from __future__ import annotations

from dataclasses import asdict

from airflow_mv.cli import show
from airflow_mv.cli.context import out
from airflow_mv.core.refresh.plan import Estimate
from airflow_mv.core.spec.reasons import Code, Reason

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
    """Each is on its own line; an estimate that earlier refreshes have corrected is marked."""
    estimates = [Estimate("replace-keys", 1.8, 2 * 2**20, 1207), Estimate("full", 4.0, 9 * 2**20, 1207, factor=2.0)]
    document = {
        "view": "lake.sales.daily",
        "mode": "replace-keys",
        "refresh_id": "83fc5026",
        "reasons": [Reason(Code.NOT_APPEND_ONLY, "no append: rows of lake.sales.orders were deleted").to_dict()],
        "base_tables": [_CHANGE],
        "estimates": [asdict(estimate) for estimate in estimates],
        "statements": ["SELECT 1\nFROM [x]"],
    }
    with out.capture() as printed:
        show.plan(document)
    assert [line.rstrip() for line in printed.get().splitlines()] == [
        "lake.sales.daily  replace-keys  83fc5026",
        "  no append: rows of lake.sales.orders were deleted (NOT_APPEND_ONLY)",
        "  lake.sales.orders  position-deletes: +1,200 -7 rows, +1 -0 files, +2.0 KiB -0 B, 2 partitions touched",
        "  expected: replace-keys     1.8 s  reading 2.0 MiB, 1,207 changed rows",
        "  expected: full             4.0 s  reading 9.0 MiB, as its refreshes take 2.0 times their first estimate",
        "",
        "-- 1 of 1",
        "SELECT 1",
        "FROM [x]",
    ]
