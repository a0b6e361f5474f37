# SPDX-License-Identifier: Apache-2.0
"""Estimates for the benchmark's views at its scale, before earlier refreshes have calibrated them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_mv.core.freshness.changes import Kind, Range, Size
from airflow_mv.core.refresh.plan import BaseCost, Estimate, StoredCost, full_cost, incremental_cost

MIB = 2**20
#: TPC-H at scale factor 1: bytes of lineitem, orders, and the small tables together; rows of the first two.
LINEITEM, ORDERS, OTHERS, ROWS = 144 * MIB, 36 * MIB, 1 * MIB, (6_000_000, 1_500_000)
#: The benchmark's views: the mode after appends and after deletes, the tables read, the stored rows.
VIEWS = {
    "filter": ("append", "merge", (LINEITEM,), StoredCost(4 * MIB, 230_000)),
    "join": ("append", "merge", (LINEITEM, ORDERS), StoredCost(12 * MIB, 1_190_000)),
    "aggregate": ("merge", "merge", (LINEITEM,), StoredCost(30_000, 129)),
    "four-way": ("merge", "merge", (LINEITEM, ORDERS, OTHERS, OTHERS), StoredCost(30_000, 175)),
}
#: Seconds that ``python -m benchmarks incremental`` measured at 0.1 %: incremental and full, by view and change.
MEASURED = {
    ("filter", "append"): (0.29, 0.59),
    ("join", "append"): (0.67, 4.06),
    ("aggregate", "append"): (0.61, 2.37),
    ("four-way", "append"): (1.01, 4.64),
    ("filter", "merge-on-read"): (2.26, 0.96),
    ("join", "merge-on-read"): (4.45, 4.20),
    ("aggregate", "merge-on-read"): (1.46, 2.53),
    ("four-way", "merge-on-read"): (2.51, 4.54),
    ("filter", "copy-on-write"): (4.49, 0.92),
    ("join", "copy-on-write"): (22.8, 6.01),
    ("aggregate", "copy-on-write"): (19.2, 1.95),
    ("four-way", "copy-on-write"): (18.0, 5.95),
    ("filter", "copy-on-write with row ids"): (3.62, 1.16),
    ("join", "copy-on-write with row ids"): (5.78, 4.27),
    ("aggregate", "copy-on-write with row ids"): (2.83, 3.54),
    ("four-way", "copy-on-write with row ids"): (3.79, 4.90),
}


def changed(share: float, *, mixed: bool, touches_files: bool) -> dict[int, Range]:
    """Return a change of a share of lineitem and orders, as snapshot summaries report it."""
    found = {}
    for size, rows in zip((LINEITEM, ORDERS), ROWS, strict=True):
        part, number = int(size * share), int(rows * share)
        if not mixed:
            found[size] = Range(Kind.APPENDED, size=Size(rows_added=number, bytes_added=part), only_appends=True)
        elif touches_files:
            # A file whose rows are all deleted is removed.
            change = Size(number // 2, number, part // 2, part // 100, bytes_touched=size, total_rows=rows)
            found[size] = Range(Kind.POSITION_DELETES, size=change)
        else:
            added = rows - number // 2
            change = Size(rows_added=added, rows_deleted=rows, bytes_added=size - part // 2, bytes_removed=size)
            found[size] = Range(Kind.REWRITTEN, size=change)
    return found


def estimates(
    view: str, share: float, *, mixed: bool, touches_files: bool = True, row_ids: bool = False
) -> tuple[Estimate, Estimate]:
    """Return the estimates of the incremental and of the full refresh."""
    appended, deleted, tables, stored = VIEWS[view]
    changes = changed(share, mixed=mixed, touches_files=touches_files)
    copied = {size: rows - int(rows * share) for size, rows in zip((LINEITEM, ORDERS), ROWS, strict=True)}
    bases = [BaseCost(changes.get(size), size, row_ids, copied.get(size) if row_ids else None) for size in tables]
    mode = deleted if mixed else appended
    return incremental_cost(mode, bases, stored), full_cost(sum(tables))


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("share", [0.0001, 0.001, 0.01])
def test_a_small_append_is_estimated_to_be_cheaper_than_a_full_refresh(view: str, share: float) -> None:
    """Otherwise the view would always be recomputed, and no incremental refresh would ever correct the estimate."""
    incremental, full = estimates(view, share, mixed=False)
    assert incremental.seconds < full.seconds


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("share", [0.1, 0.5, 1.0])
@pytest.mark.parametrize(
    ("touches_files", "row_ids"),
    [(True, False), (False, False), (False, True)],
    ids=["merge-on-read", "copy-on-write", "copy-on-write with row ids"],
)
def test_changing_many_rows_is_estimated_to_cost_more_than_a_full_refresh(
    view: str, share: float, touches_files: bool, row_ids: bool
) -> None:
    """An incremental refresh must never cost a multiple of the full one, as it was measured at a tenth of the rows."""
    incremental, full = estimates(view, share, mixed=True, touches_files=touches_files, row_ids=row_ids)
    assert incremental.seconds > full.seconds


@pytest.mark.parametrize("view", VIEWS)
def test_rows_deleted_by_position_from_all_files_are_read_and_not_compared(view: str) -> None:
    """The files are read for the deleted rows only; in rewritten files they cost more, less with row ids."""
    incremental, _ = estimates(view, 0.001, mixed=True)
    rewritten, _ = estimates(view, 0.001, mixed=True, touches_files=False)
    by_ids, _ = estimates(view, 0.001, mixed=True, touches_files=False, row_ids=True)
    assert incremental.seconds < by_ids.seconds < rewritten.seconds / 1.5


@pytest.mark.parametrize(("view", "change"), MEASURED)
def test_after_the_first_refresh_the_mode_that_was_measured_to_be_cheaper_is_chosen(view: str, change: str) -> None:
    """The first refresh is full and calibrates full refreshes; nothing is known of incremental ones yet.

    Where the two take about the same time, either is right.
    """
    seconds, of_full = MEASURED[view, change]
    incremental, full = estimates(
        view,
        0.001,
        mixed=change != "append",
        touches_files=change == "merge-on-read",
        row_ids=change.endswith("row ids"),
    )
    full = full.corrected({"full": full.factor_of(of_full)})
    chosen = seconds if incremental.seconds < full.seconds else of_full
    assert chosen <= 1.15 * min(seconds, of_full)


@pytest.mark.parametrize(
    ("view", "share", "seconds", "of_full"), [("four-way", 0.1, 6.45, 4.06), ("join", 0.01, 5.58, 4.30)]
)
def test_many_scattered_deletes_in_a_join_are_estimated_to_cost_more_than_a_full_refresh(
    view: str, share: float, seconds: float, of_full: float
) -> None:
    """As it was measured."""
    assert seconds > of_full
    incremental, full = estimates(view, share, mixed=True)
    full = full.corrected({"full": full.factor_of(of_full)})
    assert incremental.seconds > full.seconds


@pytest.mark.parametrize("view", VIEWS)
def test_delete_files_that_are_replaced_are_not_taken_for_rewritten_rows(view: str) -> None:
    """Each further delete by position replaces the delete files of the last one, and snapshots count their bytes."""
    _, mode, tables, stored = VIEWS[view]
    changes = changed(0.01, mixed=True, touches_files=True)

    def seconds(replaced: int) -> float:
        moved = {key: replace(item, size=replace(item.size, bytes_removed=replaced)) for key, item in changes.items()}
        return incremental_cost(mode, [BaseCost(moved.get(size), size) for size in tables], stored).seconds or 0.0

    assert seconds(0) <= seconds(MIB) < seconds(0) + 0.2


def test_few_affected_keys_are_cheaper_than_all_of_them() -> None:
    """At most as many keys are affected as rows changed: few, in a view with one row for each order."""
    changes = changed(0.0001, mixed=True, touches_files=True)
    base = BaseCost(changes[LINEITEM], LINEITEM)
    of_all = incremental_cost("replace-keys", [base], StoredCost(MIB, 100))
    of_few = incremental_cost("replace-keys", [base], StoredCost(MIB, 1_500_000))
    assert of_few.seconds < of_all.seconds / 1.5


@pytest.mark.parametrize(("mode", "learned"), [("full", 4 ** (1 / 3)), ("merge", 4**0.5)])
def test_a_slow_refresh_corrects_the_next_estimate_by_a_part_and_within_bounds(mode: str, learned: float) -> None:
    """One slow run is a hint, a full one the less: a view's first refresh is in a session that has just started."""
    estimate = Estimate(mode, 2.0, MIB, 10)
    assert estimate.factor_of(8.0) == pytest.approx(learned, abs=1e-3)
    assert estimate.factor_of(2000.0) == estimate.factor_of(8.0)
    assert estimate.corrected({mode: learned, "append": 5.0}).seconds == pytest.approx(2 * learned, abs=1e-3)
    assert estimate.corrected({"append": 5.0}).seconds == 2.0
    assert estimate.corrected({mode: 1000.0}).factor == 6.0
    assert estimate.corrected({mode: 0.0001}).factor == 0.1


@pytest.mark.parametrize("mode", ["full", "merge"])
def test_an_overloaded_hour_is_forgotten_and_what_is_stored_is_what_is_used(mode: str) -> None:
    """Each estimate takes 2 s at the factor 1. In the slow hour refreshes take 40 times as long."""
    bare, factor = Estimate(mode, 2.0, MIB, 10), 1.0

    def learn(seconds: float) -> float:
        estimate = bare.corrected({mode: factor})
        assert estimate.factor == factor
        return estimate.factor_of(seconds) or 0.0

    factor = learn(80.0)
    assert factor <= 2.0
    for _ in range(20):
        factor = learn(80.0)
    assert factor == 6.0
    for _ in range(5):
        factor = learn(2.0)
    assert factor < 1.1


def test_a_faster_full_refresh_corrects_the_estimate_completely() -> None:
    """A full refresh is never fast by accident; an incremental one corrects by half: the next change may differ."""
    assert Estimate("full", 8.0, MIB, 10).factor_of(2.0) == 0.25
    assert Estimate("merge", 8.0, MIB, 10).factor_of(2.0) == 0.5
