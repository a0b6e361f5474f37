# SPDX-License-Identifier: Apache-2.0
"""Distribution of files over three test processes: one starts at each end of the suite, and one in the middle.

So expensive services (Airflow at one end, a Spark session at the other) are started once and not in each process. Both
often wait for processes of their own; the files in the middle need neither, and keep the cores busy meanwhile.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

#: The order of folders; those that are not named are cheap and in the middle.
_FIRST = ("plugin", "airflow", "security", "torture", "rest", "contract")
_LAST = (
    *("core/ivm", "cli", "core/refresh/intervals", "core/refresh/checks", "core/job", "extras/shared_application"),
    "engine",
)
#: The first files of their folder: files that share an Airflow, and one whose last tests do not.
_NEIGHBOURS = ("test_scheduler.py", "test_backfill.py")
_ROOT = Path(__file__).parent


@cache
def room_of(path: Path, rooms: tuple[str, ...]) -> int | None:
    """Return the position of the folder that a file is in, at any depth."""
    path = path.relative_to(_ROOT)
    return next((number for number, room in enumerate(rooms) if path.is_relative_to(room)), None)


def place(item: pytest.Item) -> tuple[int, int]:
    """Return the position of a test's folder in the suite, and of its file in the folder."""
    first, last, name = room_of(item.path, _FIRST), room_of(item.path, _LAST), item.path.name
    within = _NEIGHBOURS.index(name) if name in _NEIGHBOURS else len(_NEIGHBOURS)
    if first is not None:
        return first - len(_FIRST), within
    return 0 if last is None else last + 1, within


class FromBothEnds(LoadFileScheduling):
    """Files in the order of collection for the first process, in the opposite order for the second.

    All others get the middle one of those that are left.
    """

    def __init__(self, config: pytest.Config, log: Producer | None = None) -> None:
        config.option.loadscopereorder = False  # this order is by the number of tests, so the longest file may run last
        super().__init__(config, log)

    def _assign_work_unit(self, node: WorkerController) -> None:
        files, number = [*self.workqueue], self.nodes.index(node)
        if number:
            self.workqueue.move_to_end(files[-1] if number == 1 else files[len(files) // 2], last=False)
        super()._assign_work_unit(node)
