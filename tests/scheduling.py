# SPDX-License-Identifier: Apache-2.0
"""Which of two test processes runs which file: each starts at its own end of the suite, and they meet in the middle.

What is dear to start (an Airflow on the one end, a Spark session on the other) is then started once and not in each.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

#: From one end to the other; folders that are not named are in the middle: they are cheap.
_FIRST = ("plugin", "airflow", "security", "torture", "rest", "contract")
_LAST = ("incremental", "cli", "checks", "spark", "engine")
#: Files that share an Airflow, and one that ends with tests that do not: the first of their folder.
_NEIGHBOURS = ("test_scheduler.py", "test_backfill.py")
_ROOT = Path(__file__).parent


def place(item: pytest.Item) -> tuple[int, int]:
    """Return where in the suite a test's folder is, and where in the folder its file."""
    folder, name = item.path.relative_to(_ROOT).parts[0], item.path.name
    within = _NEIGHBOURS.index(name) if name in _NEIGHBOURS else len(_NEIGHBOURS)
    if folder in _FIRST:
        return _FIRST.index(folder) - len(_FIRST), within
    return 1 + _LAST.index(folder) if folder in _LAST else 0, within


class FromBothEnds(LoadFileScheduling):
    """Files in the order of collection for the first process, and from the last one backwards for all others."""

    def __init__(self, config: pytest.Config, log: Producer | None = None) -> None:
        config.option.loadscopereorder = False  # by the number of tests: of two files the longer may well run last
        super().__init__(config, log)

    def _assign_work_unit(self, node: WorkerController) -> None:
        if node is not self.nodes[0]:
            self.workqueue.move_to_end(next(reversed(self.workqueue)), last=False)
        super()._assign_work_unit(node)
