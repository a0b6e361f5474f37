# SPDX-License-Identifier: Apache-2.0
"""A process that is killed, stopped or terminated at any point of a refresh leaves a correct state: a retry works."""

from __future__ import annotations

import itertools
import multiprocessing
import random
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from multiprocessing.context import ForkServerContext

import pytest

from tests.builders import LAYOUTS, Lake
from tests.torture.campaign import Result, points_of, run_campaign
from tests.torture.history import watch
from tests.torture.interrupted import Case, Interruption, Story
from tests.torture.points import AFTER, BEFORE, DURING, Point
from tests.torture.victims import Place

#: The number of cases on one view before the next view: its base table grows with each.
_EACH = 50
_PROCESSES = 2
#: The points at which a refresh must have been interrupted, at least (K1 to K14 of the kill points).
EVERY = {
    *product(
        [
            "pointer read",
            "look-up of base tables",
            "view metadata read",
            "storage metadata read",
            "staged metadata read",
            "base metadata read",
            "outcome read",
            "job",
            "swap",
            "commit of the swap",
            "delete of a view metadata file",
            "delete of a storage metadata file",
        ],
        [BEFORE, AFTER],
    ),
    *product(
        [
            "data write",
            "manifest write",
            "manifest list write",
            "staged metadata write",
            "outcome write",
            "storage metadata write",
            "view metadata write",
        ],
        [BEFORE, DURING, AFTER],
    ),
}
#: The same for a storage table in the catalog: a commit to it publishes, and the view's own files do not change.
EVERY_REGISTERED = {
    *(
        (call, phase)
        for call, phase in EVERY
        if not call.startswith(("outcome", "delete", "view metadata write"))
        and call not in ("staged metadata read", "storage metadata read")
    ),
    *product(["table look-up", "swap of a staging branch", "commit of the swap of a staging branch"], [BEFORE, AFTER]),
}
#: The same for a view that is a table: its own file holds the definition and the rows.
EVERY_TABLE = {
    *(
        (call, phase)
        for call, phase in EVERY_REGISTERED
        if call not in ("view metadata read", "storage metadata write")
    ),
    *product(["view metadata write"], [BEFORE, DURING, AFTER]),
}
#: The points that depend on the database. Files do not, so one kind of database is enough for them.
OF_THE_DATABASE = {
    (call, phase)
    for call, phase in EVERY
    if call in ("pointer read", "look-up of base tables", "job", "swap", "commit of the swap")
}
QUICK = (Story.PLAIN, Story.REBASED, Story.ANSWER_LOST)
OF_THE_COMMITS = ("job", "storage metadata write", "view metadata write")


def every_case(
    processes: ForkServerContext, home: Lake, interruption: Interruption, stories: Iterable[Story] = tuple(Story)
) -> list[Case]:
    """A case for each point of each story, from refreshes that ran without interruption."""
    home.refresh()
    place = Place.of(home)
    return [Case(story, point, interruption) for story in stories for point in points_of(processes, home, place, story)]


def one_of_each(cases: Iterable[Case], choice: random.Random) -> list[Case]:
    """One case for each kind of call and phase, in any story and for any number of the call."""
    kinds: dict[tuple[str, str], list[Case]] = {}
    for case in cases:
        kinds.setdefault(kind(case.point), []).append(case)
    return [choice.choice(found) for found in kinds.values()]


def run_campaigns(home: Lake, cases: Sequence[Case], seed: int, processes: ForkServerContext) -> Result:
    """Run the cases in two processes at once, each with its own view in the one database."""
    parts = [cases[start : start + _EACH] for start in range(0, len(cases), _EACH)]
    if len(parts) == 1:  # starting a process costs more than a few cases
        return run_campaign(processes, Place.of(home, "daily0", "orders0"), cases, seed)
    with ProcessPoolExecutor(_PROCESSES, mp_context=processes) as pool:
        futures = [
            pool.submit(campaign, Place.of(home, f"daily{number}", f"orders{number}"), part, seed + number)
            for number, part in enumerate(parts)
        ]
        return sum((future.result() for future in futures), Result())


def campaign(place: Place, cases: Sequence[Case], seed: int) -> Result:
    """Run one campaign in a process of the pool, which has its own fork server."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.torture.warm"])
    return run_campaign(context, place, cases, seed)


def due_at(home: Lake, *, whole: bool) -> set[tuple[str, str]]:
    """The kinds of points that a campaign must reach."""
    database = home.iceberg.engine.dialect.name
    if home.layout != "pointed":
        every = EVERY_TABLE if home.layout == "table" else EVERY_REGISTERED
        return every if whole else {item for item in every if "swap" in item[0] or item[0] in OF_THE_COMMITS}
    return EVERY if whole or database == "sqlite" else OF_THE_DATABASE


def kind(point: Point | None) -> tuple[str, str]:
    """A point's call and phase, without the number of the call."""
    assert point
    return point.call, point.phase


def hit(result: Result) -> set[tuple[str, str]]:
    """The kinds of points that were reached."""
    return {kind(point) for _, point in result.hits}


def reported(result: Result, points: Iterable[Point | None]) -> dict[str, object]:
    """The measurements of a campaign."""
    return {
        "cases": result.hits.total(),
        "points": len(set(points)),
        "points_hit": len({point for _, point in result.hits}),
        **{f"retry_{name}": count for name, count in result.outcomes.items()},
        **{f"zombie_{name}": count for name, count in result.resumed.items()},
        "moves_of_the_pointer": result.moves,
        "garbage_files": result.garbage,
        "orphans_after_collection": result.orphans,
        "unproven_after_collection": result.unproven,
        "seconds_a_strike": result.seconds / result.hits.total(),
    }


CAMPAIGNS = [
    pytest.param(uri, layout, count, id=f"{uri}-{layout}-{count or 'one-of-each'}", marks=marks)
    for uri, layout, count, marks in (
        ("sqlite", "pointed", 0, pytest.mark.slow),
        ("postgres", "pointed", 0, ()),
        ("sqlite", "table", 0, ()),
        ("sqlite", "registered", 0, pytest.mark.slow),
        *product(("postgres",), ("registered", "table"), (0,), (pytest.mark.slow,)),
        *product(("sqlite", "postgres"), LAYOUTS, (1000,), (pytest.mark.slow,)),
    )
]


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("uri", "layout", "count"), CAMPAIGNS, indirect=["uri"])
def test_a_refresh_that_is_killed_anywhere_is_published_exactly_once(
    home: Lake, processes: ForkServerContext, seed: int, figures: Callable[..., None], count: int
) -> None:
    """SIGKILL before, during and after every call to the outside; airflow #17479, iceberg #4673, #9546."""
    choice = random.Random(seed)
    due = due_at(home, whole=bool(count))
    cases = every_case(processes, home, Interruption.KILL, tuple(Story) if count else QUICK)
    every = [case.point for case in cases]
    choice.shuffle(cases)
    if count:
        cases = [case for case, _ in zip(itertools.cycle(cases), range(count), strict=False)]
    else:
        cases = [case for case in one_of_each(cases, choice) if kind(case.point) in due]
    watch(home.iceberg.engine)
    result = run_campaigns(home, cases, seed, processes)
    assert hit(result) >= due
    assert not count or {point for _, point in result.hits} == set(every)
    assert result.orphans == 0
    figures(**reported(result, every), seed=seed)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("uri", "layout", "count", "interruption"),
    [
        # A stopped process holds the database's locks, a terminated one cleans up its files.
        pytest.param("sqlite", "pointed", 4, Interruption.STOP, id="sqlite-SIGSTOP-4"),
        pytest.param("postgres", "pointed", 4, Interruption.TERM, id="postgres-SIGTERM-4"),
        pytest.param("postgres", "pointed", 4, Interruption.STOP, id="postgres-SIGSTOP-4", marks=pytest.mark.slow),
        *(
            pytest.param(
                uri, layout, 0, interruption, id=f"{uri}-{layout}-{interruption}-every-point", marks=pytest.mark.slow
            )
            for uri, layout, interruption in product(
                ("sqlite", "postgres"), LAYOUTS, (Interruption.STOP, Interruption.TERM)
            )
        ),
    ],
    indirect=["uri"],
)
def test_a_refresh_that_is_stopped_or_terminated_anywhere_is_published_exactly_once(
    home: Lake,
    processes: ForkServerContext,
    seed: int,
    figures: Callable[..., None],
    count: int,
    interruption: Interruption,
) -> None:
    """A stopped process continues after its retry has ended, like a worker that the scheduler considered dead.

    airflow #42553, #31212: its reported outcome is correct, too, and none of the deleted files is needed.
    """
    choice = random.Random(seed)
    cases = every_case(processes, home, interruption, [Story.PLAIN, Story.REBASED] if count else tuple(Story))
    every = [case.point for case in cases]
    choice.shuffle(cases)
    if count:
        at_the_swap = [case for case in cases if case.point and "swap" in case.point.call]
        cases = [*at_the_swap[: count // 2], *cases[: count // 2]]
    watch(home.iceberg.engine)
    result = run_campaigns(home, cases, seed, processes)
    assert result.hits.total() == len(cases)
    assert result.orphans == 0
    figures(**reported(result, every), seed=seed)
