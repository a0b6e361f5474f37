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

from airflow_mv.core.publish.protocol import Effects
from airflow_mv.core.refresh import plan_refresh
from airflow_mv.core.refresh.run import refresh, stage
from airflow_mv.errors import MaterializedViewError
from tests.builders import Lake
from tests.torture.points import AFTER, BEFORE, Point, Points
from tests.torture.victims import Place, comment

#: Waits are not part of these tests.
HASTY = Effects(sleep=lambda seconds: time.sleep(min(seconds, 0.02)))
SWAP = Point("swap", 1, BEFORE)
COMMITTED = Point("commit of the swap", 1, AFTER)


class Story(StrEnum):
    """What happens in a refresh besides the interruption."""

    PLAIN = "plain"
    RESUMED = "resumed"
    FAST_FORWARD = "fast-forward"
    REBASED = "rebased"
    SUPERSEDED = "superseded"
    ANSWER_LOST = "answer lost"
    SWAP_LOST = "swap lost"


class Interruption(StrEnum):
    """The kind of the interruption."""

    KILL = "SIGKILL"
    STOP = "SIGSTOP"
    TERM = "SIGTERM"


@dataclass(frozen=True, slots=True)
class Case:
    """One refresh and its interruption.

    Args:
        story: What else happens in it.
        point: The point of the interruption; ``None`` lets the refresh end.
        interruption: The kind of the interruption.
    """

    story: Story
    point: Point | None
    interruption: Interruption = Interruption.KILL


@dataclass(frozen=True, slots=True)
class Ended:
    """A refresh that ended: its outcome, and the points that it passed."""

    outcome: str
    refresh_id: str | None
    seen: tuple[Point, ...]


def refresh_with_interruption(place: Place, case: Case, report: Connection) -> None:
    """Refresh a view, and be interrupted at a point.

    Args:
        place: The view.
        case: The point and the kind of the interruption.
        report: Receives the point before the interruption, or the outcome if there is none.
    """
    with place.lake() as lake:
        points = Points({})
        if case.story == Story.RESUMED:
            stage(lake.catalog, plan_refresh(lake.catalog, place.name), lake.stager)
        points.actions = _incidents(case.story, lake.iceberg, place, points)
        if case.point is not None:
            points.actions[case.point] = lambda: _interrupt(case, report)
        points.files()
        catalog = points.catalog(lake.catalog, lake.iceberg.engine)
        try:
            (result,) = refresh(catalog, [place.name], stager=points.stager(lake.stager), effects=HASTY)
        except MaterializedViewError as error:
            report.send(Ended(type(error).__name__, None, tuple(points.seen)))
        else:
            report.send(Ended(result.outcome, result.refresh_id, tuple(points.seen)))


def _interrupt(case: Case, report: Connection) -> None:
    report.send(case.point)
    if case.interruption == Interruption.TERM:
        # As Airflow's task runner: the handler raises, so that open resources are closed.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    os.kill(os.getpid(), signal.Signals[case.interruption])


def _incidents(story: Story, iceberg: SqlCatalog, place: Place, points: Points) -> dict[Point, Callable[[], object]]:
    """The events of a story in a refresh without interruption."""

    def lose() -> None:
        raise iceberg.engine.dialect.dbapi.OperationalError("the connection broke (injected fault)")  # type: ignore[union-attr]

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
