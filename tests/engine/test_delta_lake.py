# SPDX-License-Identifier: Apache-2.0
"""Views over Delta tables, refreshed by Spark from changes, equal a recompute by other engines."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest


def _play(seed: int, steps: int) -> dict[str, dict[str, int]]:
    """Play a history in a process of its own: Delta Lake has to be in a Spark session from its start."""
    module = ["-W", "ignore", "-m", "tests.engine.delta_histories"]
    command = [sys.executable, *module, str(seed), str(steps)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, dict[str, int]] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_views_of_delta_tables_equal_a_recompute() -> None:
    """Appends, an update and a deletion by delta-rs, then a deletion vector by Spark; files and feeds are read."""
    found = _play(7, 0)
    assert not found["faults"]
    assert {"append", "diff", "feed"} <= found["methods"].keys()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 5))
def test_views_of_delta_tables_with_deletion_vectors_equal_a_recompute(seed: int) -> None:
    """The same with random commits of every kind, also of Spark: deletion vectors and MERGE."""
    assert not _play(seed, 12)["faults"]
