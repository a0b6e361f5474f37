# SPDX-License-Identifier: Apache-2.0
"""Files of Spark that are lost and repaired: the refresh reports the fault, and works after the repair."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Literal

import pytest

from airflow_mv.errors import InvalidMetadataError
from airflow_mv.extras.maintenance.repair import repair
from airflow_mv.extras.maintenance.verify import verify_files
from airflow_mv.extras.read import read_rows, readable
from tests.builders import LAYOUTS
from tests.engine.support import Lake

SUMS = "SELECT day, sum(amount) AS amount, count(*) AS orders FROM {ns}.orders GROUP BY day"


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_refresh_with_lost_files_names_the_repair_and_works_after_it(
    lake: Lake, layout: Literal["pointed", "registered"]
) -> None:
    """An incremental refresh reads the stored rows: no retry helps while their manifests are missing."""
    lake.table("orders", "day integer, amount bigint", "(1, 10), (2, 20)")
    lake.create("sums", SUMS, refresh_strategy="incremental", layout=layout)
    lake.refresh("sums", full=True)
    lake.insert("orders", "(2, 5), (3, 30)")
    lake.refresh("sums")
    assert verify_files(lake.catalog, lake("sums")).intact
    assert not repair(lake.catalog, lake("sums")).findings

    storage = lake.catalog.load_storage(lake.view("sums"))
    head = storage.table.find(storage.rows_snapshot or 0)
    assert head is not None
    Path((head.manifest_list or "").removeprefix("file:")).unlink()
    lake.insert("orders", "(3, 1)")
    with pytest.raises(InvalidMetadataError, match=f"airflow-mv repair {lake('sums')}") as caught:
        lake.refresh("sums")
    assert not caught.value.retryable

    assert repair(lake.catalog, lake("sums"), act=True).done
    assert lake.refresh("sums").outcome == "refreshed"
    assert stored(lake) == Counter([(1, 10, 1), (2, 25, 2), (3, 31, 2)])
    assert verify_files(lake.catalog, lake("sums")).intact


def stored(lake: Lake) -> Counter[tuple[int, ...]]:
    """The rows as a reader gets them."""
    return Counter(tuple(row) for row in read_rows(lake.catalog, readable(lake.catalog, lake("sums"))).rows())
