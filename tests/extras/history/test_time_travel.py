# SPDX-License-Identifier: Apache-2.0
"""Earlier rows of a view: by id, by snapshot, by the time of the view, and by the time of its base tables."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.table import StaticTable

from airflow_mv.actions import create_view as create
from airflow_mv.core.define.definition import Definition
from airflow_mv.core.refresh import RefreshOptions
from airflow_mv.errors import ConfigurationError, RefreshNotFoundError
from airflow_mv.extras.describe import history
from airflow_mv.extras.history.rollback import rollback
from airflow_mv.extras.history.time_travel import TimeTravel
from airflow_mv.extras.maintenance.expire import expire
from airflow_mv.extras.read import read_rows, readable
from tests.builders import LAYOUTS, Lake, lake
from tests.core.refresh.intervals.support import days_lake

VIEW = "sales.daily"


@pytest.fixture(params=LAYOUTS)
def home(sqlite_uri: str, warehouse: Path, request: pytest.FixtureRequest) -> Iterator[Lake]:
    with lake(sqlite_uri, warehouse, layout=request.param) as found:
        found.table()
        yield found


def rows(home: Lake, wanted: TimeTravel) -> list[dict[str, Any]]:
    """The rows of the view at a point of its history, without Spark."""
    read = read_rows(home.catalog, readable(home.catalog, VIEW, wanted))
    return sorted((dict(zip(read.columns, row, strict=True)) for row in read.rows()), key=str)


def moment() -> datetime:
    """A time that differs from those of all commits."""
    time.sleep(0.003)
    now = datetime.now(UTC)
    time.sleep(0.003)
    return now


def test_rows_by_the_time_of_the_base_tables_are_those_of_a_refresh_that_read_them_then(home: Lake) -> None:
    """A refresh that came late reads the base tables of an earlier time: ``as_of`` that time it was not there yet."""
    home.view(time_travel=True)
    moments, expected = [], []
    for number, is_refreshed in enumerate((False, True, False, True, True)):
        home.append((number + 50, "west", number))
        moments.append(moment())
        if is_refreshed:
            home.append((number + 90, "south", number))  # a later commit, which this refresh does not read
            home.refresh(options=RefreshOptions(as_of=moments[-1]))
        expected.append(home.read() if number else None)
    for at, wanted in zip(moments, expected, strict=True):
        if wanted is None:
            with pytest.raises(RefreshNotFoundError, match="no refresh that read its base tables as of"):
                rows(home, TimeTravel(bases_as_of=at))
        else:
            assert rows(home, TimeTravel(bases_as_of=at)) == wanted
            assert rows(home, TimeTravel(bases_as_of=at.replace(tzinfo=None))) == wanted


def test_by_the_time_of_the_base_tables_refreshes_of_the_newest_definition_are_compared(home: Lake) -> None:
    """The number of base tables does not matter, and a table that only an earlier definition read may be gone."""
    home.table("other")
    home.view(sql="SELECT o.region, sum(p.amount) AS amount FROM orders o JOIN other p USING (id) GROUP BY o.region",
              time_travel=True)  # fmt: skip
    home.refresh()
    joined, then = home.read(), moment()
    single = Definition("SELECT region, sum(amount) AS amount FROM orders GROUP BY region", layout=home.layout)
    create(home.catalog, VIEW, single, stager=home.stager, replace=True)
    home.append()
    home.refresh()
    assert rows(home, TimeTravel(bases_as_of=moment())) == home.read() != joined
    assert rows(home, TimeTravel(bases_as_of=then)) == joined
    home.iceberg.drop_table("sales.other")
    assert rows(home, TimeTravel(bases_as_of=moment())) == home.read()


def test_by_the_time_of_the_base_tables_the_oldest_rows_of_a_refresh_count(sqlite_uri: str, warehouse: Path) -> None:
    """A refresh of one day leaves the others as they were, so a later refresh of all rows has the later input."""
    with days_lake(sqlite_uri, warehouse, "pointed", time_travel=True) as lake:
        lake.sell((1, 10), (2, 20))
        lake.refresh()
        lake.sell((1, 1))
        lake.refresh_days(1, 2)
        of_a_day, then = lake.read(), moment()
        lake.sell((2, 2))
        lake.refresh()
        assert rows(lake, TimeTravel(bases_as_of=moment())) == lake.read() != of_a_day
        assert rows(lake, TimeTravel(bases_as_of=then)) == of_a_day


def test_a_snapshot_has_the_rows_of_its_refresh_or_is_refused(home: Lake) -> None:
    home.view(time_travel=True)
    home.refresh()
    first, before = home.storage().rows_snapshot, home.read()
    home.append()
    home.refresh()
    assert rows(home, TimeTravel(snapshot_id=first)) == before
    assert rows(home, TimeTravel(snapshot_id=home.storage().rows_snapshot)) == home.read()
    numbers = [item["sequence_number"] for item in history(home.catalog, VIEW)]
    assert rows(home, TimeTravel(sequence_number=numbers[0])) == before
    with pytest.raises(RefreshNotFoundError, match=r"daily has no refresh with snapshot 5: .* no such snapshot"):
        rows(home, TimeTravel(snapshot_id=5))
    with pytest.raises(RefreshNotFoundError, match="no refresh with sequence number 77"):
        rows(home, TimeTravel(sequence_number=77))
    with pytest.raises(ConfigurationError, match="as_of and snapshot_id exclude each other"):
        TimeTravel(as_of=moment(), snapshot_id=first)


def test_a_past_refresh_is_read_until_its_rows_expire_also_without_time_travel(home: Lake) -> None:
    """The log of past refreshes has it, and not the view's one record."""
    home.view()
    home.refresh()
    first, before, then = home.storage(), home.read(), moment()
    assert first.record is not None
    home.append()
    home.refresh()
    ways = (
        TimeTravel(refresh_id=first.record.refresh_id),
        TimeTravel(sequence_number=first.record.sequence_number),
        TimeTravel(snapshot_id=first.rows_snapshot),
        TimeTravel(as_of=then),
        TimeTravel(bases_as_of=then),
    )
    assert all(rows(home, wanted) == before for wanted in ways)
    assert home.read() != before
    expire(home.catalog, VIEW, older_than=timedelta(0))
    with pytest.raises(RefreshNotFoundError, match=f"the rows of refresh {first.record.refresh_id} have expired"):
        rows(home, ways[0])


def test_the_history_says_how_many_bytes_earlier_refreshes_hold(home: Lake) -> None:
    """As many as the files that the current rows do not need, also after a rollback; none once they have expired."""
    home.view(time_travel=True)
    for _ in range(3):
        home.append()
        home.refresh()
    entries = history(home.catalog, VIEW)
    assert sum(item["bytes_held"] for item in entries) == _unneeded(home)
    assert entries[-1]["bytes_held"] == 0
    rollback(home.catalog, VIEW, entries[1]["refresh_id"])
    entries = history(home.catalog, VIEW)
    assert [item["bytes_held"] > 0 for item in entries] == [True, False, True]
    assert sum(item["bytes_held"] for item in entries) == _unneeded(home)
    expire(home.catalog, VIEW, older_than=timedelta(0))
    assert sum(item["bytes_held"] for item in history(home.catalog, VIEW)) == _unneeded(home)


def _unneeded(home: Lake) -> int:
    """The bytes of data files that retained snapshots reach and the current rows do not, by pyiceberg's manifests."""
    table = StaticTable.from_metadata(home.storage().location)
    sizes: dict[str, int] = {}
    needed: set[str] = set()
    for snapshot in table.metadata.snapshots:
        for manifest in snapshot.manifests(table.io):
            for entry in manifest.fetch_manifest_entry(table.io):
                sizes[entry.data_file.file_path] = entry.data_file.file_size_in_bytes
                if snapshot.snapshot_id == home.storage().rows_snapshot:
                    needed.add(entry.data_file.file_path)
    return sum(size for path, size in sizes.items() if path not in needed)
