# SPDX-License-Identifier: Apache-2.0
"""Incremental refreshes over base tables whose writers omit optional numbers in summaries."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.builders import rewritten
from tests.engine.support import Lake, multiset, recomputed

GROUPED = "SELECT k, count(*) AS n, sum(v) AS v, max(v) AS most FROM {ns}.t GROUP BY k"
ROWS = "SELECT id, k, v FROM {ns}.t WHERE v > 1"
VIEWS = (("grouped", GROUPED), ("rows", ROWS))
CHANGES = (
    "INSERT INTO {ns}.t VALUES ({n}, 1, {n}), ({n}, 2, 5)",
    "DELETE FROM {ns}.t WHERE id % 3 = {n} % 3",
    "DELETE FROM {ns}.t WHERE id < 0",
    "UPDATE {ns}.t SET v = v + 1 WHERE k = {n} % 4",
    "MERGE INTO {ns}.t USING (SELECT {n} AS id, 3 AS k, 7 AS v) s ON t.id = s.id WHEN NOT MATCHED THEN INSERT *",
    "INSERT OVERWRITE {ns}.t SELECT id, k, v + 1 FROM {ns}.t WHERE id <> {n}",
)


@pytest.mark.parametrize(
    ("seed", "in_turn"), [(0, True), *(pytest.param(seed, False, marks=pytest.mark.slow) for seed in range(6))]
)
def test_a_refresh_equals_the_recompute_whatever_summaries_leave_out(lake: Lake, seed: int, in_turn: bool) -> None:
    """Each change is written in one of the two write modes. In turn, each view is refreshed after every other one."""
    chance = random.Random(seed)
    lake.run("CREATE TABLE {ns}.t (id int, k int, v int) USING iceberg")
    lake.run("INSERT INTO {ns}.t SELECT id, id % 4, id FROM range(20)")
    for name, sql in VIEWS:
        lake.create(name, sql, refresh_strategy="incremental", properties={"airflow-mv.incremental-up-to": "1000"})
        lake.refresh(name)

    def strip(document: dict[str, Any]) -> None:
        for snapshot in document["snapshots"]:
            summary = snapshot["summary"]
            for key in [key for key in summary if key != "operation" and chance.random() < 0.5]:
                del summary[key]

    changes = [*CHANGES]
    chance.shuffle(changes)
    for number, change in enumerate(changes, start=100):
        mode = ("copy-on-write", "merge-on-read")[(number + seed) % 2]
        modes = ", ".join(f"'write.{what}.mode' = '{mode}'" for what in ("delete", "update", "merge"))
        lake.run(f"ALTER TABLE {{ns}}.t SET TBLPROPERTIES ({modes})", change.replace("{n}", str(number)))
        rewritten(lake.files, f"{lake.namespace}.t", strip)
        for name, sql in VIEWS[number % 2 :: 2] if in_turn else VIEWS:
            lake.refresh(name)
            assert multiset(lake.stored(name)) == recomputed(lake, name, sql.replace("{ns}.", "")), (mode, change, name)
