# SPDX-License-Identifier: Apache-2.0
"""Views over Delta tables, refreshed by Spark from changes, equal a recompute by other engines."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest


def _play(seed: int, steps: int, *options: str) -> dict[str, dict[str, int]]:
    """Play a history in a process of its own: Delta Lake has to be in a Spark session from its start."""
    module = ["-W", "ignore", "-m", "tests.engine.delta_histories"]
    done = subprocess.run(
        [sys.executable, *module, str(seed), str(steps), *options], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, dict[str, int]] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_views_of_delta_tables_equal_a_recompute() -> None:
    """Commits of every kind by delta-rs, and at the end a deletion vector by Spark; files and feeds are read."""
    found = _play(7, 3)
    assert not found["faults"]
    assert {"append", "diff", "feed"} <= found["methods"].keys()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 5))
def test_views_of_delta_tables_with_deletion_vectors_equal_a_recompute(seed: int) -> None:
    """The same with commits of Spark between: deletion vectors and MERGE."""
    assert not _play(seed, 12, "--by-spark")["faults"]
