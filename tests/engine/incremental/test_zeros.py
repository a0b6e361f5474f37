# SPDX-License-Identifier: Apache-2.0
"""Rows that a change does not affect keep their bits: -0.0 and 0.0 are equal, but readers can distinguish them."""

from __future__ import annotations

import math
import random
import struct
from collections import Counter
from typing import Any

import pytest

from airflow_mv.core.spec.reasons import Mode
from tests.engine.support import Lake

ROWS = "SELECT k, f, g, xs, s FROM {ns}.t WHERE k >= 0"
GROUPED = "SELECT k, count(*) AS n, max(f) AS f, min(s) AS s, max(xs) AS xs FROM {ns}.t GROUP BY k"
ZEROS = ("0.0D", "-0.0D", "double('NaN')", "1.5D", "NULL")


def bits(value: Any) -> Any:
    """A value that equals only values with the same bits; all NaN are equal."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else struct.pack(">d", value).hex()
    if isinstance(value, dict):
        return tuple(bits(item) for item in value.values())
    return tuple(map(bits, value)) if isinstance(value, list) else value


def bag(rows: list[dict[str, Any]]) -> Counter[Any]:
    return Counter(bits(row) for row in rows)


def row(chance: random.Random, key: int) -> str:
    f, g, x, y = (chance.choice(ZEROS) for _ in range(4))
    return f"({key}, {f}, CAST({g} AS FLOAT), array({x}, 1D), struct({y} AS x))"


@pytest.mark.parametrize(
    ("seed", "rounds"), [(0, 1), *(pytest.param(seed, 3, marks=pytest.mark.slow) for seed in range(6))]
)
def test_unaffected_rows_keep_their_bits(lake: Lake, seed: int, rounds: int) -> None:
    chance = random.Random(seed)
    lake.run(
        "CREATE TABLE {ns}.t (k int, f double, g float, xs array<double>, s struct<x: double>) USING iceberg "
        "TBLPROPERTIES ('write.delete.mode' = 'merge-on-read')",
        f"INSERT INTO {{ns}}.t VALUES {', '.join(row(chance, key % 3) for key in range(40))}",
    )
    for name, sql in (("rows", ROWS), ("grouped", GROUPED)):
        lake.create(name, sql, refresh_strategy="incremental", properties={"airflow-mv.incremental-up-to": "1000000"})
        lake.refresh(name)
    modes = set()
    for _ in range(rounds):
        key = chance.randrange(3)
        untouched = bag([item for item in lake.stored("grouped").to_pylist() if item["k"] != key])
        lake.run(
            f"INSERT INTO {{ns}}.t VALUES {', '.join(row(chance, key) for _ in range(6))}",
            f"DELETE FROM {{ns}}.t WHERE k = {key} AND f = 1.5",
        )
        modes.add(lake.refresh("rows").mode)
        lake.refresh("grouped")
        wanted = bag(lake.files.load_table((lake.namespace, "t")).scan().to_arrow().to_pylist())
        assert bag(lake.stored("rows").to_pylist()) == wanted
        assert bag([item for item in lake.stored("grouped").to_pylist() if item["k"] != key]) == untouched
    assert modes == {Mode.MERGE}
