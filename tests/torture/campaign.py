# SPDX-License-Identifier: Apache-2.0
"""Interrupt the refreshes of one view again and again, retry each, and check the whole history from the outside."""

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

from airflow_mv.maintenance.orphans import collect_orphans
from airflow_mv.publish.refresh import has_landed
from tests.builders import QUERY, Lake
from tests.torture.history import State, check_content, checked, moves, published, row_of, states_of
from tests.torture.points import Point
from tests.torture.struck import HASTY, Blow, Ended, Story, Strike, refresh_and_die
from tests.torture.victims import Place

_SECONDS = 60
#: How long a stopped process keeps what it holds, where the retry has to wait for it.
_STOPPED_SECONDS = 1.0


@dataclass
class Result:
    """What a campaign came to.

    Args:
        struck: How often each point was hit, by blow.
        outcomes: How the retries ended.
        zombies: How the refreshes ended that went on after the retry.
        moves: Moves of the pointer.
        garbage: Files of refreshes that did not come to their end, before the collection.
        orphans: Those that are there after it, although they are proven the view's.
        unproven: Those that are there after it, and listed: no metadata file names them.
        seconds: Wall-clock time.
    """

    struck: Counter[tuple[Blow, Point]] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    zombies: Counter[str] = field(default_factory=Counter)
    moves: int = 0
    garbage: int = 0
    orphans: int = 0
    unproven: int = 0
    seconds: float = 0.0

    def __add__(self, other: Result) -> Result:
        return Result(
            self.struck + other.struck,
            self.outcomes + other.outcomes,
            self.zombies + other.zombies,
            self.moves + other.moves,
            self.garbage + other.garbage,
            self.orphans + other.orphans,
            self.unproven + other.unproven,
            self.seconds + other.seconds,
        )


def points_of(processes: ForkServerContext, lake: Lake, place: Place, story: Story) -> list[Point]:
    """Every point that a refresh of this story passes, by letting one pass them all."""
    _prepare(lake, place, story)
    with _Victim(processes, place, Strike(story, None)) as victim:
        ended = victim.told()
    assert isinstance(ended, Ended), ended
    lake.refresh(place.name)
    return sorted(set(ended.seen))


def wage(processes: ForkServerContext, place: Place, strikes: Sequence[Strike], seed: int) -> Result:
    """Strike, retry and judge; the lake's database must be watched already.

    Args:
        processes: Starts the victims.
        place: A view of this campaign's own, and its base table: both are made here.
        strikes: One after the other.
        seed: For what the base table holds.
    """
    started = time.monotonic()
    choice = random.Random(seed)
    with place.lake() as lake:
        lake.table(place.base)
        lake.view(place.view, sql=QUERY.replace("lake.sales.orders", f"lake.sales.{place.base}"))
        lake.refresh(place.name)
        result = Result()
        for strike in strikes:
            _one(processes, lake, place, strike, result, choice)
        states = checked(lake, place.view, base=place.base)
        result.moves = len(states) - 1
        result.garbage = len(garbage(lake, states))
        collected = collect_orphans(lake.catalog, place.name, older_than=timedelta(0))
        unproven = {plain(location) for location in collected.unproven}
        left = {file for file in garbage(lake, states) if not file.endswith("/maintenance/ledger.json")}
        result.orphans, result.unproven = len(left - unproven), len(left & unproven)
        assert lake.refresh(place.name).outcome == "fresh"
        check_content(lake, states[-1], place.base)
    result.seconds = time.monotonic() - started
    return result


def _one(
    processes: ForkServerContext, lake: Lake, place: Place, strike: Strike, result: Result, choice: random.Random
) -> None:
    earlier = len(moves(lake.iceberg.engine, row_of(lake, place.view)))
    _prepare(lake, place, strike.story, choice.choice(["north", "east", "south"]))
    with _Victim(processes, place, strike) as victim:
        told = victim.told()
        assert told == strike.point, f"{strike}: {told}"
        result.struck[strike.blow, told] += 1
        if strike.blow == Blow.STOP:
            _as_zombie(lake, place, victim, result)
        else:
            assert victim.exit_code() == {Blow.KILL: -9, Blow.TERM: 143}[strike.blow]
            result.outcomes[lake.refresh(place.name, effects=HASTY).outcome] += 1
    found = published(states_of(lake, place.view, since=earlier))
    assert len(found) == 1, f"{strike}: published {len(found)} times"
    state = lake.storage(place.name).state
    assert state is not None
    assert list(state.current.snapshots.values()) == [lake.head(place.base)], f"{strike}: not fresh"


def _prepare(lake: Lake, place: Place, story: Story, region: str = "north") -> None:
    if story == Story.FAST_FORWARD:
        lake.compact(place.base)
    else:
        lake.append((1, region, 1), name=place.base)


class _Victim:
    """A process that refreshes and is struck."""

    def __init__(self, processes: ForkServerContext, place: Place, strike: Strike) -> None:
        self.strike = strike
        self._told, there = processes.Pipe(duplex=False)
        self._process = processes.Process(target=refresh_and_die, args=(place, strike, there))
        self._process.start()
        there.close()

    def told(self) -> Point | Ended:
        """Wait for what it says next: where it is struck, or how it ended."""
        assert self._told.poll(_SECONDS), f"{self.strike}: neither struck nor ended"
        return self._told.recv()

    def exit_code(self) -> int | None:
        """Wait for its end."""
        self._process.join(_SECONDS)
        return self._process.exitcode

    def system(self) -> psutil.Process:
        """The process as the system sees it."""
        return psutil.Process(self._process.pid)

    def __enter__(self) -> _Victim:
        return self

    def __exit__(self, *_: object) -> None:
        self._told.close()
        self._process.kill()
        self._process.join()
        self._process.close()


def _as_zombie(lake: Lake, place: Place, victim: _Victim, result: Result) -> None:
    """The retry ends while the first try hangs; then the first try goes on as if nothing had been."""
    system = victim.system()
    while system.status() != psutil.STATUS_STOPPED:
        time.sleep(0.001)
    # It may hold a lock of the database that the retry waits for.
    waking = threading.Timer(_STOPPED_SECONDS, _wake, [system])
    waking.start()
    result.outcomes[lake.refresh(place.name, effects=HASTY).outcome] += 1
    waking.cancel()
    _wake(system)
    ended = victim.told()
    assert isinstance(ended, Ended), f"{victim.strike}: {ended}"
    assert ended.outcome in ("refreshed", "already-committed", "superseded", "fresh"), f"{victim.strike}: {ended}"
    storage = lake.storage(place.name)
    assert has_landed(storage, ended.refresh_id or "", ()), f"{victim.strike}: {ended}"
    assert victim.exit_code() == 0
    result.zombies[ended.outcome] += 1


def _wake(process: psutil.Process) -> None:
    with suppress(psutil.NoSuchProcess):  # it was woken before, and has come to its end
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
    # Each state's storage table goes on from the one before: the last one knows all snapshots and files.
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
