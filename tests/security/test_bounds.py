# SPDX-License-Identifier: Apache-2.0
"""I25: metadata does not grow with the number of refreshes or replaces. I26: waiting blocks nothing."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_mv.spec.view import new_view, replace_version
from airflow_mv.triggers import MaterializedViewFreshTrigger
from tests.airflow.conftest import Airflow, _airflow, airflow, lake_behind
from tests.builders import Lake, lake

__all__ = ["_airflow", "airflow"]

VIEW = "lake.sales.daily"
#: What grows in a table until its snapshots are expired, whoever writes it.
SNAPSHOTS = ("snapshots", "snapshot-log", "statistics", "partition-statistics", "refs")


def sizes(home: Lake) -> tuple[int, int, int]:
    """Bytes of the view's file, and of the storage table's without its snapshots; and files in the metadata log."""
    view = home.catalog.load(VIEW)
    storage = json.loads(Path(home.storage().location.removeprefix("file://")).read_text())
    rest = {key: value for key, value in storage.items() if key not in SNAPSHOTS}
    return len(view.metadata.to_bytes()), len(json.dumps(rest)), len(storage["metadata-log"])


def refreshed(home: Lake, count: int) -> list[tuple[int, int, int]]:
    """Refresh a view many times: nine of ten only record that the base table was compacted, which needs no job."""
    found = []
    for number in range(count):
        if number % 10:
            home.compact()
        else:
            home.append((number, "north", 1))
            home.expire(home.load().metadata.snapshots[0].snapshot_id)
        result = home.refresh()
        assert result.outcome == "refreshed", result
        found.append(sizes(home))
    return found


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Lake]:
    (tmp_path / "w").mkdir()
    with lake(f"sqlite:///{tmp_path}/c.db", tmp_path / "w") as found:
        found.table()
        found.view(properties={"write.metadata.previous-versions-max": "20"})
        found.refresh()
        yield found


@pytest.fixture
def forgetful(home: Lake) -> Lake:
    """The same, and the storage table remembers as few metadata files as the view does."""
    location = home.storage().location
    document = json.loads(home.catalog.files.read(location, what="storage table file"))
    document["properties"]["write.metadata.previous-versions-max"] = "20"
    home.catalog.files.replace_text(location, json.dumps(document))
    return home


def check_bounded(found: list[tuple[int, int, int]], log: int) -> None:
    early, late = found[2 * log : 2 * log + 10], found[-10:]
    for index, allowed in ((0, 8), (1, 200), (2, 0)):
        # Numbers in it (times, sequence numbers, row counts) may have a digit more.
        growth = max(size[index] for size in late) - max(size[index] for size in early)
        assert growth <= allowed, (index, early[-1], late[-1])
    assert late[-1][2] <= log * 2


def test_i25_sixty_refreshes_leave_metadata_of_the_same_size(forgetful: Lake) -> None:
    """Each writes a view file and a storage file: neither may grow with their number."""
    check_bounded(refreshed(forgetful, 60), 20)


@pytest.mark.slow
def test_i25_a_thousand_refreshes_leave_metadata_of_the_same_size(home: Lake) -> None:
    """The long run."""
    found = refreshed(home, 1000)
    print(f"view file, storage file without snapshots, log: {found[0]} -> {found[250]} -> {found[-1]}")
    check_bounded(found, 100)


def test_i25_replacing_a_view_over_and_over_keeps_neither_old_versions_nor_their_schemas() -> None:
    """Schemas of dropped versions stay for ever in other writers' files (apache/iceberg#18155)."""

    def definition(number: int) -> dict[str, Any]:
        fields = [{"id": 1, "name": f"c{number:04d}", "required": False, "type": "long"}]
        names = {"default_catalog": "lake", "default_namespace": ("sales",), "summary": {}, "now_ms": 10**12 + number}
        return {"schema": {"type": "struct", "fields": fields}, "sql": f"SELECT 1 AS c{number:04d}", **names}

    view = new_view(view_uuid="u", location="file:///w/v", properties={}, **definition(0))
    lengths = []
    for number in range(1, 600):
        view = replace_version(view, **definition(number))
        lengths.append(len(view.to_bytes()))
    assert len(view.versions) == len(view.schemas) == 10
    assert lengths[-1] - lengths[299] < 100, (lengths[299], lengths[-1], len(view.version_log))


# ---------------------------------------------------------------------------------------- triggers


@pytest.fixture
def daily(airflow: Airflow, tmp_path: Path) -> Iterator[Lake]:
    with lake_behind(airflow, tmp_path) as found:
        found.view()
        found.refresh()
        yield found


async def _first(trigger: MaterializedViewFreshTrigger) -> dict[str, Any]:
    async for event in trigger.run():
        return dict(event.payload)
    raise AssertionError("the trigger ended without an event")


def test_i26_two_copies_of_one_trigger_run_at_once_and_never_block_the_loop(
    daily: Lake, caplog: pytest.LogCaptureFixture
) -> None:
    """After a restart two triggerers may run the same trigger; all others share the loop with it."""
    daily.append()
    _, arguments = MaterializedViewFreshTrigger(view=VIEW, poke_interval=0.05).serialize()
    assert json.loads(json.dumps(arguments)) == arguments
    MaterializedViewFreshTrigger(**arguments)._look()  # what is imported once is imported now
    gaps = []

    async def heart() -> None:
        while True:
            before = time.perf_counter()
            await asyncio.sleep(0.01)
            gaps.append(time.perf_counter() - before)

    async def both() -> list[dict[str, Any]]:
        asyncio.get_running_loop().slow_callback_duration = 0.5
        beating = asyncio.create_task(heart())
        waiting = [asyncio.create_task(_first(MaterializedViewFreshTrigger(**arguments))) for _ in range(2)]
        await asyncio.sleep(0.5)
        assert not any(task.done() for task in waiting)
        await asyncio.to_thread(daily.refresh)
        found = await asyncio.wait_for(asyncio.gather(*waiting), 60)
        beating.cancel()
        return found

    with caplog.at_level(logging.WARNING, "asyncio"):
        one, two = asyncio.run(both(), debug=True)
    assert one["status"]["state"] == two["status"]["state"] == "fresh"
    assert one["status"]["refresh_id"] == two["status"]["refresh_id"]
    assert [record.getMessage() for record in caplog.records if "took" in record.getMessage()] == []
    assert len(gaps) > 20
    # The median: a busy machine may hold any single beat up.
    assert sorted(gaps)[len(gaps) // 2] < 0.2


def test_i26_a_trigger_that_is_cancelled_leaves_nothing_running(daily: Lake) -> None:
    """A cleared task's trigger is cancelled in the midst of a look."""
    daily.append()

    async def cancelled() -> None:
        task = asyncio.create_task(_first(MaterializedViewFreshTrigger(view=VIEW, poke_interval=0.01)))
        await asyncio.sleep(0.3)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert [item for item in asyncio.all_tasks() if item is not asyncio.current_task()] == []

    asyncio.run(cancelled())
