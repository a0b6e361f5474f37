# SPDX-License-Identifier: Apache-2.0
"""One history of base tables and the views over it: after every change each view is refreshed and compared."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
from random import Random
from typing import TypeVar

from airflow_mv.script import MergeAdditiveStep, Outcome, ReplaceKeysStep, Script
from tests.engine.incremental.checking import Mismatch, can_run, check
from tests.engine.incremental.histories import COLUMNS, VARIANTS, Change, changes, make, written
from tests.engine.incremental.views import for_duckdb, has_star, naming, query
from tests.engine.support import Lake

#: Cost never decides: an incremental way is taken wherever there is one.
ALWAYS = {"airflow-mv.incremental-up-to": "1000000"}
#: Makes an empty namespace.
Lakes = Callable[[], Lake]
_Item = TypeVar("_Item")


@dataclass
class Tally:
    """What a run has seen."""

    sequences: int = 0
    refreshes: int = 0
    by_duckdb: int = 0
    modes: Counter[str] = field(default_factory=Counter)
    variants: Counter[str] = field(default_factory=Counter)
    layouts: Counter[str] = field(default_factory=Counter)
    changes: Counter[str] = field(default_factory=Counter)
    fallbacks: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0

    def __str__(self) -> str:
        return (
            f"{self.sequences} sequences, {self.refreshes} refreshes ({self.by_duckdb} by DuckDB too) in "
            f"{self.seconds:.0f} s; modes {dict(self.modes)}; variants {dict(self.variants)}; layouts "
            f"{dict(self.layouts)}; changes {dict(self.changes)}; full because {dict(self.fallbacks)}"
        )


@dataclass(frozen=True)
class View:
    """A view, its query with the tables' bare names, and how its storage table is written."""

    name: str
    sql: str
    how: str
    layout: str


@dataclass(frozen=True)
class History:
    """What is made, and the changes of each step."""

    variant: str
    tables: tuple[Change, ...]
    views: tuple[View, ...]
    steps: tuple[tuple[Change, ...], ...]

    def __str__(self) -> str:
        lines = [self.variant, *(_told(item) for item in self.tables)]
        lines += [f"{view.name} ({view.layout}, by {view.how}): {view.sql}" for view in self.views]
        for number, step in enumerate(self.steps, 1):
            lines += [f"step {number}", *(_told(item) for item in step)]
        return "\n".join(lines)


def _told(change: Change) -> str:
    text = change.text.replace("{snapshot}", f"<snapshot {change.pick}>")
    return replace(change, text=text).sql(f"lake.{change.table}", []) or ""


def play(lakes: Lakes, seed: int, tally: Tally, *, views: int = 4, steps: int = 3) -> None:
    """Play one history, in a namespace of its own. One that fails is played again with less and less of it.

    Raises:
        Mismatch: Names the seed, and the least history found that fails.
    """
    started = time.monotonic()
    history = invent(lakes, seed, views=views, steps=steps)
    try:
        run(lakes(), history, tally, seed)
    except Mismatch as error:
        least, why = shrunk(lakes, history, error)
        raise Mismatch(f"seed {seed}, views={views}, steps={steps}, at least:\n{least}\n{why}") from error
    tally.sequences += len(history.views)
    tally.variants[history.variant] += len(history.views)
    tally.layouts.update(view.layout for view in history.views)
    tally.changes.update(change.name for step in history.steps for change in step)
    tally.seconds += time.monotonic() - started


def invent(lakes: Lakes, seed: int, *, views: int, steps: int) -> History:
    """Make a history up."""
    random = Random(seed)
    variant = list(VARIANTS)[seed % len(VARIANTS)]
    tables = make(random, variant)
    made = tuple(_view(lakes, random, number, 7 * seed + number) for number in range(views))
    return History(variant, tables, made, tuple(changes(random, steps * seed + number) for number in range(steps)))


def _view(lakes: Lakes, random: Random, number: int, turn: int) -> View:
    while True:
        sql = query(random, turn)
        if can_run(_like(lakes), naming(sql, {name: _like(lakes)(name) for name in COLUMNS})):
            break
        turn += 1
    layout = "registered" if random.random() < 0.25 else "pointed"
    return View(f"v{number}", sql, random.choice(("overwrite", "delete", "merge")), layout)


@cache
def _like(lakes: Lakes) -> Lake:
    """A lake with empty tables, to ask Spark whether it accepts a query."""
    lake = lakes()
    lake.run(*(f"CREATE TABLE {{ns}}.{name} ({written(name)}) USING iceberg" for name in COLUMNS))
    return lake


# ----------------------------------------------------------------------------------------- playing
def run(lake: Lake, history: History, tally: Tally, seed: int) -> None:
    """Play a history.

    Args:
        lake: An empty namespace.
        history: What happens in it.
        tally: Gets what ran.
        seed: Decides what Spark recomputes beside DuckDB.

    Raises:
        Mismatch: Says which view, after which step.
    """
    random = Random(seed)
    snapshots: dict[str, list[int]] = {name: [] for name in COLUMNS}
    for step, todo in enumerate((history.tables, *history.steps)):
        for change in todo:
            _change(lake, change, snapshots[change.table])
        for view in history.views:
            try:
                _refresh(lake, view, tally, random, first=step == 0)
            except Exception as error:
                raise Mismatch(f"after step {step}, view {view.name}: {error}") from error


def _change(lake: Lake, change: Change, snapshots: list[int]) -> None:
    sql = change.sql(lake(change.table), snapshots)
    if sql is None:
        return
    lake.run(sql)
    head = lake.files.load_table((lake.namespace, change.table)).metadata.current_snapshot_id
    if head is not None:
        snapshots.append(head)


def writing(lake: Lake, how: str) -> Callable[[Script], Outcome]:
    """Return the lake's stager; it writes small storage tables as large ones are written, too."""

    def stage(script: Script) -> Outcome:
        steps = tuple(
            replace(step, how=how) if isinstance(step, ReplaceKeysStep | MergeAdditiveStep) else step
            for step in script.steps
        )
        return lake.stager(replace(script, steps=steps))

    return stage


def _refresh(lake: Lake, view: View, tally: Tally, random: Random, *, first: bool) -> None:
    if first:
        sql = naming(view.sql, {name: lake(name) for name in COLUMNS})
        lake.create(view.name, sql, refresh_strategy="incremental", properties=ALWAYS, layout=view.layout)
    result = lake.refresh(view.name, on_fallback="full", stager=writing(lake, view.how))
    mode = "first" if first else str(result.mode)
    tally.modes[mode] += 1
    if not first:
        tally.refreshes += 1
        if mode == "full":
            told = result.reasons[-1]
            tally.fallbacks[str(told.code)] += 1
            if "Spark cannot run" in told.message:
                raise Mismatch(f"a fallback hides an error: {told.message}")
        # The first rows are a recompute themselves: what comes after them shows whether they were right.
        tally.by_duckdb += check(
            lake,
            view.name,
            view.sql,
            in_duckdb=for_duckdb(view.sql),
            twice=random.random() < 0.2,
            columns={name: tuple(columns) for name, columns in COLUMNS.items()} if has_star(view.sql) else {},
        )


# --------------------------------------------------------------------------------------- shrinking
def shrunk(lakes: Lakes, history: History, why: Mismatch, *, tries: int = 40) -> tuple[History, Mismatch]:
    """Leave out of a history that fails what is not needed for it to fail: views, steps, changes, rows.

    Args:
        lakes: Makes an empty namespace for each try.
        history: The history.
        why: How it fails.
        tries: How many histories are played at most.

    Returns:
        The least history found, and how it fails.
    """
    progress = True
    while progress and tries > 0:
        progress = False
        for less in smaller(history):
            if tries <= 0:
                break
            tries -= 1
            try:
                run(lakes(), less, Tally(), 0)
            except Mismatch as error:
                history, why, progress = less, error, True
                break
            except Exception:  # noqa: BLE001 (a change that cannot be made without another one is no case of ours)
                continue
    return history, why


def smaller(history: History) -> list[History]:
    """Return histories with less in them, the least first."""
    found = [replace(history, views=(view,)) for view in history.views if len(history.views) > 1]
    found += [replace(history, steps=history.steps[:end]) for end in range(1, len(history.steps))]
    found += [replace(history, steps=_without(history.steps, index)) for index in range(len(history.steps))]
    for number, step in enumerate(history.steps):
        for less in _less(step):
            found.append(replace(history, steps=(*history.steps[:number], less, *history.steps[number + 1 :])))
    found += [replace(history, tables=less) for less in _less(history.tables)]
    return [item for item in found if item.steps]


def _less(changes: tuple[Change, ...]) -> list[tuple[Change, ...]]:
    """Return changes without one of them, or with fewer rows; tables stay."""
    found = [_without(changes, index) for index, change in enumerate(changes) if change.name != "create"]
    for index, change in enumerate(changes):
        half = len(change.rows) // 2
        for kept in {change.rows[:half], change.rows[half:]} if half else ():
            found.append((*changes[:index], replace(change, rows=kept), *changes[index + 1 :]))
    return found


def _without(items: tuple[_Item, ...], index: int) -> tuple[_Item, ...]:
    return (*items[:index], *items[index + 1 :])
