# SPDX-License-Identifier: Apache-2.0
"""TPC-DS's queries as incremental views in Spark: after each round of changes their rows equal a recompute."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import duckdb
import pytest

from tests.core.ivm import tpcds
from tests.engine.fixtures import new_lake
from tests.engine.incremental.tpcds import HEAVY, RECOMPUTED, ROUNDS, Play, Played, lessen, tables

VARIANTS = ("v3-merge-on-read", "v2-copy-on-write", "v2-merge-on-read")
#: The queries of one test: each third of those that are quick to refresh, and the others.
GROUPS = (
    *(tuple(n for n in tpcds.NUMBERS if n % 3 == part and n not in HEAVY | RECOMPUTED) for part in range(3)),
    tuple(sorted(HEAVY)),
)
_GIVEN_ROUNDS = os.environ.get("TPCDS_ROUNDS")
#: Each query is refreshed after one of so many rounds, and after the last round.
_OFTEN = int(os.environ.get("TPCDS_OFTEN", "1"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("tpcds")
    tpcds.generate(made)
    lessen(made)
    return made


def _played(lake_folder: Path, folder: Path, variant: str, numbers: Iterable[int], rounds: Iterable[str]) -> Played:
    lake = new_lake(lake_folder)
    tables(lake, folder, variant)
    lake.spark.sql(f"USE {lake.catalog.name}.{lake.namespace}")
    texts = tpcds.queries(folder)
    try:
        with duckdb.connect() as connection:
            found = Play(lake, {number: texts[number] for number in numbers}, connection, _OFTEN).run(rounds)
    finally:
        lake.spark.catalog.setCurrentCatalog("spark_catalog")
    print(found)
    return found


def _cases() -> list[tuple[str, int]]:
    part, parts = (int(item) for item in (os.environ.get("TORTURE_SLICE") or "1/1").split("/"))
    return [(variant, group) for group in range(len(GROUPS)) for variant in VARIANTS][part - 1 :: parts]


@pytest.mark.slow
@pytest.mark.timeout(4 * 3600)
@pytest.mark.parametrize(("variant", "group"), _cases())
def test_queries_equal_their_recompute_after_each_round(
    lake_folder: Path, folder: Path, variant: str, group: int
) -> None:
    """Every query of a group is compared after the rounds by Spark; after the first and the last by DuckDB, too."""
    numbers = GROUPS[group]
    rounds = _GIVEN_ROUNDS.split(",") if _GIVEN_ROUNDS else list(ROUNDS)
    found = _played(lake_folder, folder, variant, numbers, rounds)
    assert not found.wrong, "\n".join(found.wrong)
    assert found.refreshes >= len(numbers) * len(rounds) // _OFTEN
    assert found.by_duckdb >= len(numbers)
