# SPDX-License-Identifier: Apache-2.0
"""What the estimates say of the benchmark's views at its size, before any refresh has taught them better."""

from __future__ import annotations

import pytest

from airflow_mv.freshness.changes import Kind, Range, Size
from airflow_mv.refresh.cost import BaseCost, Estimate, StoredCost, full_cost, incremental_cost

MIB = 2**20
#: TPC-H at scale factor 1: bytes of lineitem, orders, and the small tables together; rows of the first two.
LINEITEM, ORDERS, OTHERS, ROWS = 144 * MIB, 36 * MIB, 1 * MIB, (6_000_000, 1_500_000)
#: The benchmark's views: the mode after appends and after deletes, the tables read, the stored rows.
VIEWS = {
    "filter": ("append", "merge", (LINEITEM,), StoredCost(4 * MIB, 230_000)),
    "join": ("append", "merge", (LINEITEM, ORDERS), StoredCost(12 * MIB, 1_190_000)),
    "aggregate": ("merge", "replace-keys", (LINEITEM,), StoredCost(30_000, 129)),
    "four-way": ("merge", "replace-keys", (LINEITEM, ORDERS, OTHERS, OTHERS), StoredCost(30_000, 175)),
}
#: Seconds that ``python -m benchmarks incremental`` measured at 0.1 %: incremental and full, by view and change.
MEASURED = {
    ("filter", "append"): (0.48, 0.70),
    ("join", "append"): (1.16, 4.38),
    ("aggregate", "append"): (1.05, 2.05),
    ("four-way", "append"): (1.66, 4.58),
    ("filter", "merge-on-read"): (1.85, 0.79),
    ("join", "merge-on-read"): (6.95, 5.43),
    ("aggregate", "merge-on-read"): (4.29, 2.19),
    ("four-way", "merge-on-read"): (6.68, 5.03),
    ("filter", "copy-on-write"): (4.49, 0.92),
    ("join", "copy-on-write"): (22.8, 6.01),
    ("aggregate", "copy-on-write"): (19.2, 1.95),
    ("four-way", "copy-on-write"): (18.0, 5.95),
}


def changed(share: float, *, mixed: bool, touches_files: bool) -> dict[int, Range]:
    """Return a change of a share of lineitem and orders, as their snapshots tell it."""
    found = {}
    for size, rows in zip((LINEITEM, ORDERS), ROWS, strict=True):
        part, number = int(size * share), int(rows * share)
        if not mixed:
            found[size] = Range(Kind.APPENDED, size=Size(rows_added=number, bytes_added=part), only_appends=True)
        elif touches_files:
            told = Size(number // 2, number, bytes_added=part // 2, bytes_touched=size, total_rows=rows)
            found[size] = Range(Kind.POSITION_DELETES, size=told)
        else:
            told = Size(rows_added=rows - number, rows_deleted=rows, bytes_added=size - part // 2, bytes_removed=size)
            found[size] = Range(Kind.REWRITTEN, size=told)
    return found


def estimates(view: str, share: float, *, mixed: bool, touches_files: bool = True) -> tuple[Estimate, Estimate]:
    """Return what is expected of the incremental way and of the full one."""
    appended, deleted, tables, stored = VIEWS[view]
    changes = changed(share, mixed=mixed, touches_files=touches_files)
    bases = [BaseCost(changes.get(size), size) for size in tables]
    mode = deleted if mixed else appended
    return incremental_cost(mode, bases, stored), full_cost(sum(tables))


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("share", [0.0001, 0.001, 0.01])
def test_a_small_append_is_expected_to_be_cheaper_than_all_rows(view: str, share: float) -> None:
    """Else a view would be recomputed until a refresh has taught better, which it then never does."""
    incremental, full = estimates(view, share, mixed=False)
    assert incremental.seconds < full.seconds


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("touches_files", [True, False], ids=["merge-on-read", "copy-on-write"])
def test_half_of_all_rows_changed_is_expected_to_be_dearer_than_all_rows(view: str, touches_files: bool) -> None:
    """What must never happen is an incremental refresh that costs a multiple of the full one."""
    incremental, full = estimates(view, 0.5, mixed=True, touches_files=touches_files)
    assert incremental.seconds > full.seconds


@pytest.mark.parametrize("view", VIEWS)
def test_a_few_rows_deleted_from_all_files_are_read_and_not_compared(view: str) -> None:
    """Deletes by position in every file: the files are read for these rows only; as rewritten files they cost more."""
    incremental, _ = estimates(view, 0.001, mixed=True)
    rewritten, _ = estimates(view, 0.001, mixed=True, touches_files=False)
    assert incremental.seconds < rewritten.seconds / 2


@pytest.mark.parametrize(("view", "change"), MEASURED)
def test_after_its_first_refresh_the_way_is_chosen_that_was_measured_to_be_cheaper(view: str, change: str) -> None:
    """The first refresh is a full one, and tells what that takes; nothing is known of incremental ones by then."""
    seconds, of_full = MEASURED[view, change]
    incremental, full = estimates(view, 0.001, mixed=change != "append", touches_files=change == "merge-on-read")
    full = full.corrected({"full": full.factor_of(of_full)})
    assert (incremental.seconds < full.seconds) == (seconds < of_full)


def test_few_affected_keys_are_cheaper_than_all_of_them() -> None:
    """No more keys are affected than rows changed: of a view with a row for each order next to nothing."""
    changes = changed(0.0001, mixed=True, touches_files=True)
    base = BaseCost(changes[LINEITEM], LINEITEM)
    of_all = incremental_cost("replace-keys", [base], StoredCost(MIB, 100))
    of_few = incremental_cost("replace-keys", [base], StoredCost(MIB, 1_500_000))
    assert of_few.seconds < of_all.seconds / 1.5


@pytest.mark.parametrize("mode", ["full", "merge"])
def test_what_a_slow_refresh_took_corrects_the_next_estimate_halfway_and_within_bounds(mode: str) -> None:
    """One slow run is a hint, a cluster that had to start is none."""
    estimate = Estimate(mode, 2.0, MIB, 10)
    learned = estimate.factor_of(8.0)
    assert learned == pytest.approx(2.0)
    assert estimate.corrected({mode: learned, "append": 5.0}).seconds == pytest.approx(4.0)
    assert estimate.corrected({"append": 5.0}).seconds == 2.0
    assert estimate.corrected({mode: 1000.0}).factor == 6.0
    assert estimate.corrected({mode: 0.0001}).factor == 0.1


def test_a_full_refresh_is_never_fast_by_accident() -> None:
    """All of what a faster one teaches is taken; of an incremental one half, since the next change is another one."""
    assert Estimate("full", 8.0, MIB, 10).factor_of(2.0) == 0.25
    assert Estimate("merge", 8.0, MIB, 10).factor_of(2.0) == 0.5
