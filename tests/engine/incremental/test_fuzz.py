# SPDX-License-Identifier: Apache-2.0
"""Random histories, random views: after every change the rows of an incremental refresh are those of a recompute.

Spark recomputes at the recorded snapshots, and DuckDB where it means the same by the query. A failure names its
seed: ``play(lake, seed, Tally(), views=…, steps=…)`` with the same figures plays it again.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engine.fixtures import new_lake
from tests.engine.incremental.checking import Mismatch
from tests.engine.incremental.histories import CHANGES, VARIANTS
from tests.engine.incremental.playing import Tally, play

_MODES = {"append", "merge", "replace-keys", "full", "fast-forward", "noop"}


def _run(folder: Path, histories: range, *, views: int, steps: int, everything: bool) -> Tally:
    tally, failed = Tally(), []
    for seed in histories:
        try:
            play(new_lake(folder), seed, tally, views=views, steps=steps)
        except Mismatch as error:
            failed.append(str(error))
            if len(failed) == 5:
                break
    print(tally)
    assert not failed, "\n\n".join(failed)
    assert {"replace-keys", "fast-forward"} <= set(tally.modes), tally
    if not everything:
        return tally
    # A fuzzer that does not come by every way shows nothing of it.
    assert not _MODES - set(tally.modes), tally
    assert set(VARIANTS) == set(tally.variants), tally
    assert set(CHANGES) == set(tally.changes), tally
    assert {"pointed", "registered"} == set(tally.layouts), tally
    assert tally.by_duckdb > tally.refreshes // 4, tally
    return tally


def test_incremental_equals_recompute(lake_folder: Path) -> None:
    """Twenty views, each through two changes of its tables."""
    assert _run(lake_folder, range(5), views=4, steps=2, everything=False).sequences == 20


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_incremental_equals_recompute_by_every_way(lake_folder: Path) -> None:
    """A hundred views, each through three changes of its tables."""
    assert _run(lake_folder, range(25), views=4, steps=3, everything=True).sequences == 100


@pytest.mark.slow
@pytest.mark.timeout(6 * 3600)
def test_incremental_equals_recompute_at_length(lake_folder: Path) -> None:
    """Two thousand views, each through three changes of its tables."""
    tally = _run(lake_folder, range(1000, 1500), views=4, steps=3, everything=True)
    assert tally.sequences == 2000
