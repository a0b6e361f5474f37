# SPDX-License-Identifier: Apache-2.0
"""The table of the tools side by side shows what they take, what they refuse, and wrong rows."""

from __future__ import annotations

from decimal import Decimal

from benchmarks.peers.pipelines import flow_seconds
from benchmarks.peers.turns import Turn, difference, refusals, table


def test_wrong_rows_are_shown_beside_the_seconds() -> None:
    right = (Decimal(10), Decimal(7))
    assert difference(right, right) == ""
    assert difference((Decimal(10), Decimal(8)), right) == "old values"
    turn = Turn({"v0": 1.5}, {"v0": "merge"}, 20.0, {"v0": difference((Decimal(7), Decimal(7)), right)})
    refused = Turn(refused="not supported")
    text = table({"one": {"unchanged": turn}, "other": {"unchanged": refused}}, ["v0"])
    assert "1.50 merge (**3 rows missing**)" in text
    assert "refused" in text
    assert refusals({"other": {"unchanged": refused}}) == "- other: not supported"


def test_the_seconds_of_a_pipeline_are_read_from_what_it_prints() -> None:
    printed = """
2026-11-24 09:01:22: Flow lake.shop.v0 is QUEUED.
2026-11-24 09:01:22: Flow lake.shop.v0 is RUNNING.
[Stage 0:> (0 + 1) / 1]      2026-11-24 09:01:28: Flow lake.shop.v0 has COMPLETED.
2026-11-24 09:01:22: Flow lake.shop.v1 is RUNNING.
"""
    assert flow_seconds(printed) == {"v0": 6.0}
