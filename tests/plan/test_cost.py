# SPDX-License-Identifier: Apache-2.0
"""What the estimates say of the benchmark's views at its size, before any refresh has taught them better."""

from __future__ import annotations

import pytest

from airflow_mv.plan.changes import Kind, Range, Size
from airflow_mv.plan.cost import BaseCost, Estimate, full_cost, incremental_cost

MIB = 2**20
#: TPC-H at scale factor 1: bytes of lineitem, orders, and the small tables together; rows of the first two.
LINEITEM, ORDERS, OTHERS, ROWS = 144 * MIB, 36 * MIB, 1 * MIB, (6_000_000, 1_500_000)
#: The benchmark's views: the mode after appends and after deletes, the tables read, bytes of the stored rows.
VIEWS = {
    "filter": ("append", "merge", (LINEITEM,), 15 * MIB),
    "join": ("append", "merge", (LINEITEM, ORDERS), 20 * MIB),
    "aggregate": ("merge", "replace-keys", (LINEITEM,), 1 * MIB),
    "four-way": ("merge", "replace-keys", (LINEITEM, ORDERS, OTHERS, OTHERS), 1 * MIB),
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
    appended, deleted, tables, storage = VIEWS[view]
    changes = changed(share, mixed=mixed, touches_files=touches_files)
    bases = [BaseCost(changes.get(size), size) for size in tables]
    mode = deleted if mixed else appended
    return incremental_cost(mode, bases, storage_bytes=storage), full_cost(sum(tables))


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


@pytest.mark.parametrize("view", ["filter", "join"])
def test_a_few_rows_deleted_from_all_files_are_read_and_not_shuffled(view: str) -> None:
    """Deletes by position in every file: the files are read for these rows only; as rewritten files they cost more."""
    incremental, full = estimates(view, 0.001, mixed=True)
    rewritten, _ = estimates(view, 0.001, mixed=True, touches_files=False)
    assert incremental.seconds < full.seconds < rewritten.seconds


def test_what_a_refresh_took_corrects_the_next_estimate_halfway_and_within_bounds() -> None:
    """One slow run is a hint, a cluster that had to start is none."""
    estimate = full_cost(LINEITEM)
    learned = estimate.factor_of(4 * estimate.seconds)
    assert learned == pytest.approx(2.0)
    assert estimate.corrected(learned).seconds == pytest.approx(2 * estimate.seconds, abs=0.01)
    assert estimate.corrected(1000.0).factor == 6.0
    assert estimate.corrected(0.0001).factor == 0.25
