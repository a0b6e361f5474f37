# SPDX-License-Identifier: Apache-2.0
"""The page about TPC-DS is the output of its command, and nearly all queries are incremental. No Spark."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.tpcds_modes import CHANGES, document, plans

_PAGE = Path(__file__).parents[3] / "docs" / "incremental-tpcds.md"


def _column(change: str) -> dict[int, str]:
    place = list(CHANGES).index(change)
    rows = re.findall(r"^\| Q(\d+) \| (.*) \|$", _PAGE.read_text(), re.MULTILINE)
    found = {int(number): row.split(" | ")[place].strip() for number, row in rows}
    return {number: mode for number, mode in found.items() if mode}


def test_at_least_ninety_queries_are_incremental_after_appends(tpcds_folder: Path) -> None:
    """The planned modes agree with the page: here for each sixth query, below for all."""
    promised = _column("facts appended")
    assert sum(mode != "full" for mode in promised.values()) >= 90
    numbers = range(2, 100, 6)
    found = {row.query: row.mode for row in plans(tpcds_folder, ["facts appended"], numbers)}
    assert found == {number: mode for number, mode in promised.items() if number in numbers}


@pytest.mark.slow
def test_the_page_is_the_output_of_its_command(tpcds_folder: Path) -> None:
    """The reasons agree, too."""
    assert document(plans(tpcds_folder)) == _PAGE.read_text()
