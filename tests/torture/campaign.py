# SPDX-License-Identifier: Apache-2.0
"""Interrupt the refreshes of one view repeatedly, retry each, and check the complete history from outside."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from multiprocessing.context import ForkServerContext
from pathlib import Path

import psutil
from pyiceberg.table import StaticTable

from airflow_mv.core.publish.refresh import has_landed
from airflow_mv.extras.maintenance.orphans import collect_orphans
from tests.builders import QUERY, Lake
from tests.torture.history import State, check_content, checked, moves, published, row_of, states_of
from tests.torture.interrupted import HASTY, Case, Ended, Interruption, Story, refresh_with_interruption
from tests.torture.points import Point
from tests.torture.victims import Place

_SECONDS = 60
#: How long a stopped process keeps its locks if the retry has to wait for them.
_STOPPED_SECONDS = 1.0


@dataclass
class Result:
    """The result of a campaign.

    Args:
        hits: How often each point was reached, by interruption.
        outcomes: How the retries ended.
        resumed: Outcomes of the refreshes that continued after the retry.
        moves: The number of pointer moves.
        garbage: Files of refreshes that did not end, before the collection.
        orphans: Those that exist after it, although they are proven the view's.
        unproven: Those that exist after it and are listed: no metadata file names them.
        seconds: Wall-clock time.
    """

    hits: Counter[tuple[Interruption, Point]] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    resumed: Counter[str] = field(default_factory=Counter)
    moves: int = 0
    garbage: int = 0
    orphans: int = 0
    unproven: int = 0
    seconds: float = 0.0

    def __add__(self, other: Result) -> Result:
        return Result(
            self.hits + other.hits,
            self.outcomes + other.outcomes,
            self.resumed + other.resumed,
            self.moves + other.moves,
            self.garbage + other.garbage,
            self.orphans + other.orphans,
            self.unproven + other.unproven,
            self.seconds + other.seconds,
        )


def points_of(processes: ForkServerContext, lake: Lake, place: Place, story: Story) -> list[Point]:
    """Return every point of a refresh of this story, by running one without interruption."""
    _prepare(lake, place, story)
    with _Victim(processes, place, Case(story, None)) as victim:
        ended = victim.reported()
    assert isinstance(ended, Ended), ended
    lake.refresh(place.name)
    return sorted(set(ended.seen))


def run_campaign(processes: ForkServerContext, place: Place, cases: Sequence[Case], seed: int) -> Result:
    """Interrupt, retry and check; the lake's database must be watched already.

    Args:
        processes: Starts the interrupted processes.
        place: The view of this campaign, and its base table: both are created here.
        cases: Executed one after the other.
        seed: For the rows of the base table.
    """
    started = time.monotonic()
    choice = random.Random(seed)
    with place.lake() as lake:
        lake.table(place.base)
        lake.view(place.view, sql=QUERY.replace("lake.sales.orders", f"lake.sales.{place.base}"))
        lake.refresh(place.name)
        result = Result()
        for case in cases:
            _one(processes, lake, place, case, result, choice)
        states = checked(lake, place.view, base=place.base)
        result.moves = len(states) - 1
        result.garbage = len(garbage(lake, states))
        collected = collect_orphans(lake.catalog, place.name, older_than=timedelta(0))
        unproven = {plain(location) for location in collected.unproven}
        left = {file for file in garbage(lake, states) if not file.endswith("/maintenance/deletion-log.json")}
        result.orphans, result.unproven = len(left - unproven), len(left & unproven)
        assert lake.refresh(place.name).outcome == "fresh"
        check_content(lake, states[-1], place.base)
    result.seconds = time.monotonic() - started
    return result


def _one(
    processes: ForkServerContext, lake: Lake, place: Place, case: Case, result: Result, choice: random.Random
) -> None:
    earlier = len(moves(lake.iceberg.engine, row_of(lake, place.view)))
    _prepare(lake, place, case.story, choice.choice(["north", "east", "south"]))
    with _Victim(processes, place, case) as victim:
        reported = victim.reported()
        assert reported == case.point, f"{case}: {reported}"
        result.hits[case.interruption, reported] += 1
        if case.interruption == Interruption.STOP:
            _resumed_after_retry(lake, place, victim, result)
        else:
            assert victim.exit_code() == {Interruption.KILL: -9, Interruption.TERM: 143}[case.interruption]
            result.outcomes[lake.refresh(place.name, effects=HASTY).outcome] += 1
    found = published(states_of(lake, place.view, since=earlier))
    assert len(found) == 1, f"{case}: published {len(found)} times"
    state = lake.storage(place.name).state
    assert state is not None
    assert list(state.current.snapshots.values()) == [lake.head(place.base)], f"{case}: not fresh"


def _prepare(lake: Lake, place: Place, story: Story, region: str = "north") -> None:
    if story == Story.FAST_FORWARD:
        lake.compact(place.base)
    else:
        lake.append((1, region, 1), name=place.base)


class _Victim:
    """A process that refreshes and is interrupted."""

    def __init__(self, processes: ForkServerContext, place: Place, case: Case) -> None:
        self.case = case
        self._reports, there = processes.Pipe(duplex=False)
        self._process = processes.Process(target=refresh_with_interruption, args=(place, case, there))
        self._process.start()
        there.close()

    def reported(self) -> Point | Ended:
        """Wait for its next report: the point of the interruption, or the outcome."""
        assert self._reports.poll(_SECONDS), f"{self.case}: neither interrupted nor ended"
        return self._reports.recv()

    def exit_code(self) -> int | None:
        """Wait for its end."""
        self._process.join(_SECONDS)
        return self._process.exitcode

    def system(self) -> psutil.Process:
        """The process in the operating system."""
        return psutil.Process(self._process.pid)

    def __enter__(self) -> _Victim:
        return self

    def __exit__(self, *_: object) -> None:
        self._reports.close()
        self._process.kill()
        self._process.join()
        self._process.close()


def _resumed_after_retry(lake: Lake, place: Place, victim: _Victim, result: Result) -> None:
    """The retry ends while the first try is stopped; then the first try continues."""
    system = victim.system()
    while system.status() != psutil.STATUS_STOPPED:
        time.sleep(0.001)
    # It may hold a database lock that the retry waits for.
    waking = threading.Timer(_STOPPED_SECONDS, _wake, [system])
    waking.start()
    result.outcomes[lake.refresh(place.name, effects=HASTY).outcome] += 1
    waking.cancel()
    _wake(system)
    ended = victim.reported()
    assert isinstance(ended, Ended), f"{victim.case}: {ended}"
    assert ended.outcome in ("refreshed", "already-committed", "superseded", "fresh"), f"{victim.case}: {ended}"
    storage = lake.storage(place.name)
    assert has_landed(storage, ended.refresh_id or ""), f"{victim.case}: {ended}"
    assert victim.exit_code() == 0
    result.resumed[ended.outcome] += 1


def _wake(process: psutil.Process) -> None:
    with suppress(psutil.NoSuchProcess):  # it was resumed before, and has ended
        process.resume()


def garbage(lake: Lake, states: Sequence[State]) -> set[str]:
    """The files below the view's folders that no state of its history has ever reached."""
    last = states[-1]
    folders = {plain(last.view.metadata.location), plain(last.storage.table.location)}
    there = {str(path) for folder in folders for path in Path(folder).rglob("*") if path.is_file()}
    return there - {plain(location) for location in _reached(lake, states)}


def _reached(lake: Lake, states: Sequence[State]) -> Iterator[str]:
    for move in moves(lake.iceberg.engine, states[-1].view.identifier.name):
        yield from (move.before, move.now)
    for state in states:
        yield state.view.metadata_location
        yield state.storage.location
    # The storage table of each state follows the one before: the last one has all snapshots and files.
    last = StaticTable.from_metadata(states[-1].storage.location)
    yield from (entry.metadata_file for entry in last.metadata.metadata_log)
    for snapshot in last.metadata.snapshots:
        yield snapshot.manifest_list
        for manifest in snapshot.manifests(last.io):
            yield manifest.manifest_path
            yield from (entry.data_file.file_path for entry in manifest.fetch_manifest_entry(last.io, False))


def plain(location: str) -> str:
    """The path of a local location."""
    return location.removeprefix("file://")
