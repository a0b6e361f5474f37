# SPDX-License-Identifier: Apache-2.0
"""A process that is killed, hangs or is terminated at any point of a refresh leaves a correct state: a retry works."""

from __future__ import annotations

import itertools
import multiprocessing
import random
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from multiprocessing.context import ForkServerContext

import pytest

from tests.builders import Lake
from tests.torture.campaign import Result, points_of, wage
from tests.torture.history import watch
from tests.torture.points import AFTER, AMID, BEFORE, Point
from tests.torture.struck import Blow, Story, Strike
from tests.torture.victims import Place

#: Strikes on one view, before the next one's turn: its base table grows with each.
_EACH = 25
_PROCESSES = 2
#: What a refresh must have been struck at, at least (K1 to K14 of the kill points).
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
        [BEFORE, AMID, AFTER],
    ),
}
#: The same where the storage table is in the catalog: a commit to it publishes, and the view's own files stay.
EVERY_REGISTERED = {
    *(
        (call, phase)
        for call, phase in EVERY
        if not call.startswith(("outcome", "delete", "view metadata write"))
        and call not in ("staged metadata read", "storage metadata read")
    ),
    *product(["table look-up", "swap of a staging branch", "commit of the swap of a staging branch"], [BEFORE, AFTER]),
}
#: Those at which the database decides. Files are the same whatever the database: one kind of it will do for them.
OF_THE_DATABASE = {
    (call, phase)
    for call, phase in EVERY
    if call in ("pointer read", "look-up of base tables", "job", "swap", "commit of the swap")
}
QUICK = (Story.PLAIN, Story.REBASED, Story.ANSWER_LOST)
OF_THE_COMMITS = {
    (call, phase) for call, phase in EVERY_REGISTERED if "swap" in call or call in ("job", "storage metadata write")
}


def every_strike(
    processes: ForkServerContext, home: Lake, blow: Blow, stories: Iterable[Story] = tuple(Story)
) -> list[Strike]:
    """A strike at each point of each story, from refreshes that were let pass."""
    home.refresh()
    place = Place.of(home)
    return [Strike(story, point, blow) for story in stories for point in points_of(processes, home, place, story)]


def one_of_each(strikes: Iterable[Strike], choice: random.Random) -> list[Strike]:
    """One strike for each kind of call and phase, in whichever story and at whichever turn of the call."""
    kinds: dict[tuple[str, str], list[Strike]] = {}
    for strike in strikes:
        kinds.setdefault(kind(strike.point), []).append(strike)
    return [choice.choice(found) for found in kinds.values()]


def wage_all(home: Lake, strikes: Sequence[Strike], seed: int, processes: ForkServerContext) -> Result:
    """Strike in two processes at once, each time a view of its own in the one database."""
    parts = [strikes[start : start + _EACH] for start in range(0, len(strikes), _EACH)]
    if len(parts) == 1:  # a process of its own costs more than a few strikes
        return wage(processes, Place.of(home, "daily0", "orders0"), strikes, seed)
    with ProcessPoolExecutor(_PROCESSES, mp_context=processes) as pool:
        futures = [
            pool.submit(campaign, Place.of(home, f"daily{number}", f"orders{number}"), part, seed + number)
            for number, part in enumerate(parts)
        ]
        return sum((future.result() for future in futures), Result())


def campaign(place: Place, strikes: Sequence[Strike], seed: int) -> Result:
    """Wage one campaign from a process of the pool; it has a fork server of its own."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.torture.warm"])
    return wage(context, place, strikes, seed)


def due_at(home: Lake, *, whole: bool) -> set[tuple[str, str]]:
    """What kinds of points a campaign must hit."""
    database = home.iceberg.engine.dialect.name
    if home.layout == "registered":
        return EVERY_REGISTERED if whole else OF_THE_COMMITS
    return EVERY if whole or database == "sqlite" else OF_THE_DATABASE


def kind(point: Point | None) -> tuple[str, str]:
    """A point's call and phase, whichever turn of the call it is."""
    assert point
    return point.call, point.phase


def hit(result: Result) -> set[tuple[str, str]]:
    """Which kinds of points were hit."""
    return {kind(point) for _, point in result.struck}


def told(result: Result, points: Iterable[Point | None]) -> dict[str, object]:
    """The figures of a campaign."""
    return {
        "strikes": result.struck.total(),
        "points": len(set(points)),
        "points_hit": len({point for _, point in result.struck}),
        **{f"retry_{name}": count for name, count in result.outcomes.items()},
        **{f"zombie_{name}": count for name, count in result.zombies.items()},
        "moves_of_the_pointer": result.moves,
        "garbage_files": result.garbage,
        "orphans_after_collection": result.orphans,
        "unproven_after_collection": result.unproven,
        "seconds_a_strike": result.seconds / result.struck.total(),
    }


CAMPAIGNS = [
    pytest.param(uri, layout, count, id=f"{uri}-{layout}-{count or 'one-of-each'}", marks=marks)
    for uri, layout, count, marks in (
        ("sqlite", "pointed", 0, ()),
        ("postgres", "pointed", 0, ()),
        ("sqlite", "registered", 0, ()),
        ("postgres", "registered", 0, pytest.mark.slow),
        *product(("sqlite", "postgres"), ("pointed", "registered"), (1000,), (pytest.mark.slow,)),
    )
]


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("uri", "layout", "count"), CAMPAIGNS, indirect=["uri"])
def test_a_refresh_that_is_killed_anywhere_is_published_exactly_once(
    home: Lake, processes: ForkServerContext, seed: int, figures: Callable[..., None], count: int
) -> None:
    """kill -9 before, amid and after every call to the outside; airflow #17479, iceberg #4673, #9546."""
    choice = random.Random(seed)
    due = due_at(home, whole=bool(count))
    quick = home.layout == "registered" and not count
    strikes = every_strike(processes, home, Blow.KILL, QUICK if quick else tuple(Story))
    every = [strike.point for strike in strikes]
    choice.shuffle(strikes)
    if count:
        strikes = [strike for strike, _ in zip(itertools.cycle(strikes), range(count), strict=False)]
    else:
        strikes = [strike for strike in one_of_each(strikes, choice) if kind(strike.point) in due]
    watch(home.iceberg.engine)
    result = wage_all(home, strikes, seed, processes)
    assert hit(result) >= due
    assert not count or {point for _, point in result.struck} == set(every)
    assert result.orphans == 0
    figures(**told(result, every), seed=seed)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("layout", "count"),
    [
        pytest.param("pointed", 4, id="4"),
        pytest.param("pointed", 0, id="every-point", marks=pytest.mark.slow),
        pytest.param("registered", 0, id="registered-every-point", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("blow", [Blow.STOP, Blow.TERM])
def test_a_refresh_that_hangs_or_is_asked_to_end_anywhere_is_published_exactly_once(
    home: Lake, processes: ForkServerContext, seed: int, figures: Callable[..., None], count: int, blow: Blow
) -> None:
    """A stopped process goes on after its retry has ended, as a worker does that the scheduler took for dead.

    airflow #42553, #31212: what it is told then is true as well, and none of its files is missed by anybody.
    """
    choice = random.Random(seed)
    strikes = every_strike(processes, home, blow, [Story.PLAIN, Story.REBASED] if count else tuple(Story))
    every = [strike.point for strike in strikes]
    choice.shuffle(strikes)
    if count:
        at_the_swap = [strike for strike in strikes if strike.point and "swap" in strike.point.call]
        strikes = [*at_the_swap[: count // 2], *strikes[: count // 2]]
    watch(home.iceberg.engine)
    result = wage_all(home, strikes, seed, processes)
    assert result.struck.total() == len(strikes)
    assert result.orphans == 0
    figures(**told(result, every), seed=seed)
