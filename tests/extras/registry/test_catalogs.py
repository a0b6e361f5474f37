# SPDX-License-Identifier: Apache-2.0
"""The registry's tables in catalogs of other servers: each change is a conditional commit there, too."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from airflow_mv.extras.registry.filters import all_rows, before_month, equal
from airflow_mv.extras.registry.registry import require_registry
from airflow_mv.extras.registry.settings import EXPIRE_AFTER, MAX_FILES, PLACE
from tests.builders import lake
from tests.extras.registry.support import files_of, refresh_row

HOURLY = [refresh_row(number, rows_written=number) for number in range(4)]


# Threads restore each other's filters, also the one that hides this.
@pytest.mark.filterwarnings("ignore:Delete operation did not match any records:UserWarning")
@pytest.mark.parametrize(
    "uri",
    [
        "glue_uri",
        pytest.param("postgres_uri", marks=pytest.mark.postgres),
        pytest.param("rest_uri", marks=pytest.mark.rest),
        pytest.param("hive_uri", marks=pytest.mark.slow),
    ],
)
def test_rows_are_added_overwritten_read_deleted_and_expired(
    uri: str, request: pytest.FixtureRequest, warehouse: Path
) -> None:
    """Of several writers at once none loses a row; and pyiceberg reads the table by its name."""
    settings = {PLACE: "airflow_mv", EXPIRE_AFTER: "1 s", MAX_FILES: "100"}
    with lake(str(request.getfixturevalue(uri)), warehouse, **settings) as home:
        registry = require_registry(home.catalog)
        refreshes = registry.refreshes
        with ThreadPoolExecutor(len(HOURLY)) as writers:
            assert list(writers.map(lambda row: refreshes.upsert([row, row]), HOURLY)) == [1] * len(HOURLY)
        assert refreshes.upsert(HOURLY) == len(HOURLY)
        later = refresh_row(0, rows_written=100)
        assert refreshes.upsert([later]) == 1
        assert refreshes.compact(before_month("2025-02")) == 0
        assert refreshes.delete(equal(refresh_id=HOURLY[3].refresh_id)) == 1
        assert sorted(row.rows_written for row in refreshes.rows()) == [1, 2, 100]
        assert [row.rows_written for row in refreshes.rows(equal(refresh_id=HOURLY[1].refresh_id))] == [1]
        table = home.iceberg.load_table("airflow_mv.refreshes")
        assert sorted(table.scan().to_arrow()["rows_written"].to_pylist()) == [1, 2, 100]
        assert refreshes.delete(all_rows()) == 3
        assert refreshes.rows() == []
        home.catalog.files.now_ms = lambda _: table.metadata.last_updated_ms + 3_600_000  # type: ignore[method-assign]
        before = len(files_of(registry))
        assert refreshes.expire() > 0
        assert len(files_of(registry)) < before
        assert len(home.iceberg.load_table("airflow_mv.refreshes").metadata.snapshots) == 1
