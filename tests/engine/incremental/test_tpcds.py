# SPDX-License-Identifier: Apache-2.0
"""TPC-DS's queries as incremental views in Spark: after each round of changes their rows are the recompute's."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import duckdb
import pytest

from tests.engine.fixtures import new_lake
from tests.engine.incremental.tpcds import ROUNDS, Play, Played, tables
from tests.incremental import tpcds

VARIANTS = ("v2-merge-on-read", "v2-copy-on-write", "v3-merge-on-read")
#: The queries of one test: each ninth.
GROUPS = range(9)
_GIVEN_ROUNDS = os.environ.get("TPCDS_ROUNDS")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("tpcds")
    tpcds.generate(made)
    return made


def _played(lake_folder: Path, folder: Path, variant: str, numbers: Iterable[int], rounds: Iterable[str]) -> Played:
    lake = new_lake(lake_folder)
    tables(lake, folder, variant)
    lake.spark.sql(f"USE {lake.catalog.name}.{lake.namespace}")
    texts = tpcds.queries(folder)
    try:
        with duckdb.connect() as connection:
            found = Play(lake, {number: texts[number] for number in numbers}, connection).run(rounds)
    finally:
        lake.spark.catalog.setCurrentCatalog("spark_catalog")
    print(found)
    return found


def _cases() -> list[tuple[str, int]]:
    part, parts = (int(item) for item in (os.environ.get("TORTURE_SLICE") or "1/1").split("/"))
    return [(variant, group) for variant in VARIANTS for group in GROUPS][part - 1 :: parts]


@pytest.mark.slow
@pytest.mark.timeout(4 * 3600)
@pytest.mark.parametrize(("variant", "group"), _cases())
def test_queries_equal_their_recompute_after_each_round(
    lake_folder: Path, folder: Path, variant: str, group: int
) -> None:
    """Every query of a group after every round, by Spark and by DuckDB."""
    numbers = [number for number in tpcds.NUMBERS if number % len(GROUPS) == group]
    rounds = _GIVEN_ROUNDS.split(",") if _GIVEN_ROUNDS else list(ROUNDS)
    found = _played(lake_folder, folder, variant, numbers, rounds)
    assert not found.wrong, "\n".join(found.wrong)
    assert found.refreshes == len(numbers) * len(rounds)
