# SPDX-License-Identifier: Apache-2.0
"""TPC-H's queries as incremental views in Spark: after each kind of change their rows equal a recompute."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.tpch_modes import CHANGES, Refreshed, generate, make_tables, play
from tests.core.ivm.tpch import QUERIES
from tests.engine.fixtures import new_lake
from tests.engine.incremental.checking import differences, stored
from tests.engine.incremental.histories import VARIANTS
from tests.engine.support import Lake, multiset

_PAGE = Path(__file__).parents[3] / "docs" / "incremental-tpch.md"
#: One of each kind: additive, semi-join, global, outer join below two aggregations, subquery over the changed table.
FEW = (1, 4, 6, 13, 18)


def _played(
    lake: Lake, folder: Path, variant: str, queries: tuple[int, ...], changes: tuple[str, ...]
) -> list[Refreshed]:
    generate(folder, 0.01)
    namespace = f"{lake.catalog.name}.{lake.namespace}"
    make_tables(lake.spark, namespace, folder, VARIANTS[variant])
    lake.run(f"USE {namespace}")

    def check(number: int) -> None:
        expected = multiset(lake.spark.sql(QUERIES[number]).toArrow())
        assert not (differing := differences(expected, multiset(stored(lake, f"q{number}")))), f"Q{number}: {differing}"

    try:
        return play(lake.catalog, lake.namespace, lake.run, lake.stager, queries, check, changes)
    finally:
        lake.spark.catalog.setCurrentCatalog("spark_catalog")


@pytest.mark.slow
def test_queries_of_each_kind_are_refreshed_incrementally(lake: Lake, tmp_path: Path) -> None:
    """Orders and their lineitems were deleted and inserted: none of these queries is recomputed in full."""
    found = _played(lake, tmp_path, "v2-merge-on-read", FEW, ("orders replaced",))
    assert {row.query for row in found if row.mode != "full"} == set(FEW)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("variant", VARIANTS)
def test_all_queries_equal_their_recompute(lake_folder: Path, tmp_path: Path, variant: str) -> None:
    """After each kind of change, in the modes that the page lists."""
    found = _played(new_lake(lake_folder), tmp_path, variant, tuple(QUERIES), tuple(CHANGES))
    differing = re.findall(r"^\| Q(\d+) \| (.*) \|$", _PAGE.read_text(), re.MULTILINE)
    page = {
        (int(number), change): mode
        for number, row in differing
        for change, mode in zip(CHANGES, row.split(" | "), strict=True)
    }
    assert {(row.query, row.change): row.mode for row in found} == page
