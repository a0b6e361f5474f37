# SPDX-License-Identifier: Apache-2.0
"""Many processes refresh one view through a REST server concurrently: nothing is lost or published twice."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from pathlib import Path

import pytest

from airflow_mv.core.spec.materialized_view import StorageState
from tests.builders import Lake, lake
from tests.torture.contenders import contenders
from tests.torture.rest_contenders import Order, Report, contend

SIZES = [
    pytest.param("table", 4, 3, id="table-4x3"),
    pytest.param("registered", 4, 3, id="registered-4x3", marks=pytest.mark.slow),
    *(
        pytest.param(layout, 16, 10, id=f"{layout}-16x10", marks=[pytest.mark.slow, pytest.mark.timeout(1800)])
        for layout in ("table", "registered")
    ),
]


@pytest.fixture
def served(layout: str, rest_postgres_uri: str, warehouse: Path) -> Iterator[Lake]:
    """A view that keeps every refresh, in a REST catalog over PostgreSQL."""
    with lake(rest_postgres_uri, warehouse, layout=layout) as found:
        found.table()
        found.view(time_travel=True)
        yield found


def one_round(home: Lake, ends: list[Connection], number: int, choice: random.Random) -> tuple[int, list[Report]]:
    """All refresh while the base table keeps changing; return the snapshot that each must reach.

    In every second round one process stages and all publish it at the same moment; otherwise each stages for itself.
    """
    snapshot = home.append((number, choice.choice(["north", "east", "west"]), number))
    staged = None
    if number % 2:
        plan, outcome = home.stage()
        staged = (json.dumps(plan.to_dict()), outcome.to_json())
    at = time.monotonic() + 0.5
    for end in ends:
        end.send(Order(at, staged))
    if choice.random() < 0.5:
        home.append((number, "late", 1))
    for end in ends:
        assert end.poll(240), "a refresh has not ended in time"
    return snapshot, [end.recv() for end in ends]


def expected(home: Lake, snapshot: int) -> list[tuple[str, int, int]]:
    """The view's rows, computed from a snapshot of the base table."""
    totals: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    for row in home.load().scan(snapshot_id=snapshot).to_arrow().to_pylist():
        totals[row["region"]] += row["amount"]
        counts[row["region"]] += 1
    return sorted((region, counts[region], totals[region]) for region in counts)


def check_history(home: Lake) -> StorageState:
    """Each recorded refresh has the rows of the base snapshot that it names, once; nothing else was published."""
    storage = home.storage()
    state = storage.state
    assert state is not None
    assert storage.name is not None
    table = home.iceberg.load_table((*storage.name.namespace, storage.name.name))
    named = []
    for record in state.refreshes:
        snapshot = storage.table.refs[f"refresh-{record.refresh_id}"].snapshot_id
        rows = table.scan(snapshot_id=snapshot).to_arrow().to_pylist()
        assert sorted(tuple(row.values()) for row in rows) == expected(home, *record.snapshots.values())
        named.append(snapshot)
    published = [entry.snapshot_id for entry in storage.table.snapshot_log]
    if home.layout == "table":
        assert table.scan(snapshot_id=published.pop(0)).count() == 0, "the creation's snapshot"
    assert published == named
    tags = [name for name in storage.table.refs if name.startswith("airflow_mv_at_")]
    assert len(tags) == 1
    return state


@pytest.mark.parametrize(("layout", "count", "rounds"), SIZES)
def test_i08_no_refresh_is_lost_or_duplicated_in_a_race_through_rest(
    served: Lake,
    warehouse: Path,
    processes: ForkServerContext,
    seed: int,
    figures: Callable[..., None],
    count: int,
    rounds: int,
) -> None:
    """A REST server's views have no compare-and-swap, so the storage table's commit decides."""
    choice = random.Random(seed)
    place = (served.iceberg.properties["uri"], str(warehouse))
    with contenders(processes, count, contend, lambda _: place) as ends:
        started = time.monotonic()
        reported = [one_round(served, ends, number, choice) for number in range(1, rounds + 1)]
        seconds = time.monotonic() - started
    served.refresh()  # of a base snapshot that was added after the last round
    state = check_history(served)
    records = {record.refresh_id: record for record in state.refreshes}
    numbers = {item.snapshot_id: item.sequence_number for item in served.load().metadata.snapshots}
    reports = [report for _, found in reported for report in found]
    for snapshot, found in reported:
        for report in found:
            assert report.outcome in ("refreshed", "already-committed", "superseded", "fresh"), report
            (reached,) = records[report.refresh_id or ""].snapshots.values()
            assert numbers[reached] >= numbers[snapshot]
    publishing = sorted(report.seconds for report in reports)
    figures(
        refreshes=len(reports),
        **Counter(report.outcome for report in reports),
        published=len(records),
        branches_left=sum(name.startswith("airflow_mv_") for name in served.storage().table.refs) - 1,
        seconds=seconds,
        p50_of_a_refresh_in_s=publishing[len(publishing) // 2],
        p99_of_a_refresh_in_s=publishing[int(len(publishing) * 0.99)],
        seed=seed,
    )
