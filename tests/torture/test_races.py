# SPDX-License-Identifier: Apache-2.0
"""Many processes refresh one view concurrently: nothing is lost or published twice, all results are correct."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable
from itertools import product
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from typing import Any

import pytest

from tests.builders import LAYOUTS, Lake
from tests.torture.contenders import contenders
from tests.torture.history import State, checked, published, snapshot_of, watch
from tests.torture.victims import Order, Place, Report, contend

LONG = [pytest.mark.slow, pytest.mark.timeout(1800)]
SIZES = [
    pytest.param(uri, layout, count, rounds, id=f"{uri}-{layout}-{count}x{rounds}", marks=marks)
    for uri, layout, count, rounds, marks in (
        ("sqlite", "pointed", 8, 3, ()),
        ("postgres", "pointed", 8, 3, ()),
        ("postgres", "table", 4, 3, ()),
        ("postgres", "registered", 4, 3, LONG),
        *((*where, *size, LONG) for where in product(("sqlite", "postgres"), LAYOUTS) for size in ((16, 5), (64, 20))),
    )
]


def one_round(lake: Lake, ends: list[Connection], number: int, choice: random.Random) -> tuple[int, list[Report]]:
    """All refresh while base table and view keep changing; return the snapshot that each must reach.

    In every second round one process stages and all publish it at the same moment; otherwise each stages for itself.
    """
    snapshot = lake.append((number, choice.choice(["north", "east", "west"]), number))
    at = time.monotonic() + 0.5 + len(ends) / 64 if number % 2 else None
    for end in ends:
        end.send(Order(number, at))
    if choice.random() < 0.5:
        time.sleep(choice.random() * 0.5)
        lake.append((number, "late", 1))
    for end in ends:
        assert end.poll(600), "a refresh has not ended in time"
    return snapshot, [end.recv() for end in ends]


def check_reports(lake: Lake, states: list[State], rounds: list[tuple[int, list[Report]]]) -> None:
    """Every reported outcome agrees with the history that the database recorded."""
    numbers = {item.snapshot_id: item.sequence_number for item in lake.load().metadata.snapshots}
    by_file = {state.storage.location: state for state in states if state.record}
    ids = {state.record.refresh_id for state in states if state.record}
    for snapshot, reports in rounds:
        for report in reports:
            assert report.outcome in ("refreshed", "already-committed", "superseded", "fresh"), report
            assert report.refresh_id in ids
            readers_get = by_file[report.storage_table_location]
            assert numbers[snapshot_of(readers_get)] >= numbers[snapshot]


@pytest.mark.parametrize(("uri", "layout", "count", "rounds"), SIZES, indirect=["uri"])
def test_i01_no_refresh_is_lost_or_duplicated_in_a_race(
    home: Lake,
    processes: ForkServerContext,
    seed: int,
    figures: Callable[..., None],
    count: int,
    rounds: int,
) -> None:
    """Each round adds a base snapshot. Some refreshes are forced, some contenders also set properties.

    trino #31257, iceberg-rust #384, delta #1410: a lost commit or duplicated rows.
    """
    watch(home.iceberg.engine)
    choice = random.Random(seed)
    place, together = Place.of(home), processes.Barrier(count)
    with contenders(processes, count, contend, lambda number: (place, number, together)) as ends:
        started = time.monotonic()
        reported = [one_round(home, ends, number, choice) for number in range(1, rounds + 1)]
        seconds = time.monotonic() - started
    home.refresh()  # of a base snapshot that was added after the last round
    states = checked(home)
    check_reports(home, states, reported)
    assert len(published(states)) >= rounds
    figures(**summary([report for _, reports in reported for report in reports], states, seconds), seed=seed)


def summary(reports: list[Report], states: list[State], seconds: float) -> dict[str, Any]:
    """The measurements of a race."""
    publishing = sorted(report.seconds for report in reports)
    comments = [report.commented for report in reports if report.commented]
    swaps, matched = sum(report.swaps for report in reports), sum(report.matched for report in reports)
    return {
        "refreshes": len(reports),
        **Counter(report.outcome for report in reports),
        "comments": len(comments),
        "moves_of_the_pointer": len(states) - 1,
        "swaps": swaps,
        "conflicts": swaps - matched,
        "most_tries": max(1 + report.waits for report in reports),
        "most_tries_of_a_comment": max(comments),
        "seconds": seconds,
        "moves/s": (len(states) - 1) / seconds,
        "p50_of_a_publish_in_s": publishing[len(publishing) // 2],
        "p99_of_a_publish_in_s": publishing[int(len(publishing) * 0.99)],
    }
