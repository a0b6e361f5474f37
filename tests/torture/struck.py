# SPDX-License-Identifier: Apache-2.0
"""A process that is interrupted at a given point of a refresh: killed, stopped for a while, or terminated."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from multiprocessing.connection import Connection

from pyiceberg.catalog.sql import SqlCatalog

from airflow_mv.errors import MaterializedViewError
from airflow_mv.publish.protocol import Effects
from airflow_mv.refresh import plan_refresh
from airflow_mv.refresh.run import refresh, stage
from tests.builders import Lake
from tests.torture.points import AFTER, BEFORE, Point, Points
from tests.torture.victims import Place, comment

#: Waits are no part of what is tested here.
HASTY = Effects(sleep=lambda seconds: time.sleep(min(seconds, 0.02)))
SWAP = Point("swap", 1, BEFORE)
COMMITTED = Point("commit of the swap", 1, AFTER)


class Story(StrEnum):
    """What happens in a refresh, but for the strike."""

    PLAIN = "plain"
    RESUMED = "resumed"
    FAST_FORWARD = "fast-forward"
    REBASED = "rebased"
    SUPERSEDED = "superseded"
    ANSWER_LOST = "answer lost"
    SWAP_LOST = "swap lost"


class Blow(StrEnum):
    """What strikes the process."""

    KILL = "SIGKILL"
    STOP = "SIGSTOP"
    TERM = "SIGTERM"


@dataclass(frozen=True, slots=True)
class Strike:
    """One refresh and its end.

    Args:
        story: What happens in it.
        point: Where it is struck; ``None`` lets it end by itself.
        blow: By what.
    """

    story: Story
    point: Point | None
    blow: Blow = Blow.KILL


@dataclass(frozen=True, slots=True)
class Ended:
    """A refresh that came to its end: what it was told, and the points that it passed."""

    outcome: str
    refresh_id: str | None
    seen: tuple[Point, ...]


def refresh_and_die(place: Place, strike: Strike, report: Connection) -> None:
    """Refresh a view, and be struck on the way.

    Args:
        place: The view.
        strike: Where.
        report: Told the point, just before; or the end, where there is one.
    """
    with place.lake() as lake:
        points = Points({})
        if strike.story == Story.RESUMED:
            stage(lake.catalog, plan_refresh(lake.catalog, place.name), lake.stager)
        points.actions = _incidents(strike.story, lake.iceberg, place, points)
        if strike.point is not None:
            points.actions[strike.point] = lambda: _strike(strike, report)
        points.files()
        catalog = points.catalog(lake.catalog, lake.iceberg.engine)
        try:
            (result,) = refresh(catalog, [place.name], stager=points.stager(lake.stager), effects=HASTY)
        except MaterializedViewError as error:
            report.send(Ended(type(error).__name__, None, tuple(points.seen)))
        else:
            report.send(Ended(result.outcome, result.refresh_id, tuple(points.seen)))


def _strike(strike: Strike, report: Connection) -> None:
    report.send(strike.point)
    if strike.blow == Blow.TERM:
        # As Airflow's task runner does: the handler raises, so that what is open is closed.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    os.kill(os.getpid(), signal.Signals[strike.blow])


def _incidents(story: Story, iceberg: SqlCatalog, place: Place, points: Points) -> dict[Point, Callable[[], object]]:
    """What a story has in store for a refresh that nobody strikes."""

    def lose() -> None:
        raise iceberg.engine.dialect.dbapi.OperationalError("the connection broke (a test's fault)")  # type: ignore[union-attr]

    def by_someone_else(act: Callable[[Lake], object]) -> Callable[[], None]:
        def acting() -> None:
            with points.off(), place.lake() as other:
                act(other)

        return acting

    def supersede(other: Lake) -> None:
        other.append(name=place.base)
        other.refresh(place.name)

    return {
        Story.REBASED: {SWAP: by_someone_else(lambda other: comment(other.catalog, place.name, str(time.time_ns())))},
        Story.SUPERSEDED: {SWAP: by_someone_else(supersede)},
        Story.ANSWER_LOST: {COMMITTED: lose},
        Story.SWAP_LOST: {SWAP: lose},
    }.get(story, {})
