# SPDX-License-Identifier: Apache-2.0
"""Twenty processes change one registry at once."""

from __future__ import annotations

import multiprocessing
import random
import traceback
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest

from airflow_mv.errors import CommitConflictError
from airflow_mv.extras.registry.registry import Registry, commit_staged, require_registry
from airflow_mv.extras.registry.settings import EXPIRE_AFTER, MAX_FILES, PLACE
from tests.builders import lake
from tests.extras.registry.support import refresh_row

PROCESSES, ROUNDS = 20, 1
pytestmark = pytest.mark.slow


def _open(uri: str, warehouse: str, place: str) -> Registry:
    from airflow_mv.core.catalog import MaterializedViewCatalog
    from tests.builders import open_catalog

    # Partitions are rewritten and snapshots expire while the others read and commit.
    settings = {PLACE: place, MAX_FILES: "3", EXPIRE_AFTER: "2 min"}
    return require_registry(MaterializedViewCatalog(open_catalog(uri, Path(warehouse), **settings)))


def _until_no_conflict(act: Callable[[], object]) -> None:
    """Do it again after a conflict, as a task of Airflow does."""
    while True:
        with suppress(CommitConflictError):
            act()
            return


def _work(number: int, uri: str, warehouse: str, place: str, start: Barrier, report: str) -> None:
    """Add own rows, rows that all add, and rows through the staging folder, which all bring in."""
    try:
        registry = _open(uri, warehouse, place)
        start.wait(300)
        for turn in range(ROUNDS):
            own, common = refresh_row(1000 * number + turn), refresh_row(-1 - turn)
            registry.stage(refresh_row(1000 * number + 100 + turn))
            acts = [
                lambda own=own, common=common: registry.refreshes.upsert([own, common]),
                lambda: commit_staged(registry),
            ]
            random.shuffle(acts)
            for act in acts:
                _until_no_conflict(act)
        Path(report).write_text("done")
    except BaseException:
        Path(report).write_text(traceback.format_exc())
        raise


@pytest.mark.parametrize("place", ["namespace", "folder"])
def test_nothing_is_lost_or_twice(place: str, sqlite_uri: str, warehouse: Path, tmp_path: Path) -> None:
    where = "airflow_mv" if place == "namespace" else f"{warehouse}/registry"
    with lake(sqlite_uri, warehouse):  # makes the catalog's tables
        registry = _open(sqlite_uri, str(warehouse), where)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        ["tests.builders", "airflow_mv.extras.registry.registry", "tests.extras.registry.support"]
    )
    start = context.Barrier(PROCESSES)
    reports = [tmp_path / f"{number}.txt" for number in range(PROCESSES)]
    workers = [
        context.Process(target=_work, args=(number, sqlite_uri, str(warehouse), where, start, str(reports[number])))
        for number in range(PROCESSES)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(500)
    assert [said for path in reports if (said := path.read_text()) != "done"] == []
    commit_staged(registry)
    numbers = [
        1000 * number + more + turn for number in range(PROCESSES) for more in (0, 100) for turn in range(ROUNDS)
    ]
    wanted = {refresh_row(number).refresh_id for number in [*numbers, *(-1 - turn for turn in range(ROUNDS))]}
    found = registry.refreshes.read(columns=["refresh_id"])["refresh_id"].to_pylist()
    assert sorted(found) == sorted(wanted)
    assert registry.count_staged() == 0
