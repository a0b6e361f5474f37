# SPDX-License-Identifier: Apache-2.0
"""One history of base tables and the views over it: after every change each view is refreshed and compared."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random
from typing import TypeVar

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from airflow_mv.script import MergeAdditiveStep, Outcome, ReplaceKeysStep, Script
from tests.engine.incremental.checking import Mismatch, accepting, check
from tests.engine.incremental.histories import VARIANTS, Change, Changing, make
from tests.engine.incremental.schemas import TABLES, Schema
from tests.engine.incremental.views import has_star, naming, query
from tests.engine.support import Lake
from tests.spark.changing import Table, delete_by_equality

#: Cost never decides: an incremental way is taken wherever there is one.
ALWAYS = {"airflow-mv.incremental-up-to": "1000000"}
#: Makes an empty namespace.
Lakes = Callable[[], Lake]
_Item = TypeVar("_Item")
_FUNCTION = re.compile(r"\b([A-Za-z]\w*)\(")
#: Modes in which the statements that the algebra writes run.
_COMPUTED = ("append", "merge", "replace-keys")


@dataclass
class Tally:
    """What a run has seen. A sequence is a view of a history: one history has several."""

    sequences: int = 0
    refreshes: int = 0
    by_duckdb: int = 0
    modes: Counter[str] = field(default_factory=Counter)
    variants: Counter[str] = field(default_factory=Counter)
    layouts: Counter[str] = field(default_factory=Counter)
    changes: Counter[str] = field(default_factory=Counter)
    fallbacks: Counter[str] = field(default_factory=Counter)
    #: Functions of views that were refreshed in another way than in full.
    functions: Counter[str] = field(default_factory=Counter)
    #: Views that ended early: what Spark says of their query itself.
    broken: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0

    def __str__(self) -> str:
        lines = [
            f"{self.sequences} sequences, {self.refreshes} refreshes ({self.by_duckdb} by DuckDB too) "
            f"in {self.seconds:.0f} s",
            f"modes {dict(self.modes)}; variants {dict(self.variants)}; layouts {dict(self.layouts)}",
            f"changes {dict(self.changes)}; full because {dict(self.fallbacks)}",
            f"{len(self.functions)} functions: {' '.join(sorted(self.functions))}",
            f"ended by an error of the query itself: {dict(self.broken)}",
        ]
        return "\n".join(lines)


@dataclass(frozen=True)
class View:
    """A view, its query with the tables' bare names, and how its storage table is written."""

    name: str
    sql: str
    how: str
    layout: str
    in_duckdb: bool = False
    #: The step after which it is made, and the columns that the tables have by then.
    since: int = 0
    columns: Schema = field(default_factory=dict)


@dataclass(frozen=True)
class History:
    """What is made, and the changes of each step."""

    variant: str
    tables: tuple[Change, ...]
    views: tuple[View, ...]
    steps: tuple[tuple[Change, ...], ...]
    #: Each view of so many is refreshed after every step, the others after the last one only.
    often: int = 1

    def refreshes(self, number: int, step: int) -> bool:
        """Whether a view is made or refreshed after a step."""
        since = self.views[number].since
        return step == since or (step > since and (step == len(self.steps) or number % self.often == 0))

    def __str__(self) -> str:
        lines = [self.variant, *(_told(item) for item in self.tables)]
        lines += [f"{view.name} ({_how(view)}): {view.sql}" for view in self.views]
        for number, step in enumerate(self.steps, 1):
            lines += [f"step {number}", *(_told(item) for item in step)]
        return "\n".join(lines)


def _how(view: View) -> str:
    return f"{view.layout}, by {view.how}" + (f", after step {view.since}" if view.since else "")


def _told(change: Change) -> str:
    if change.equal:
        return f"delete by equality from {change.table}: {change.equal}"
    text = change.text.replace("{snapshot}", f"<snapshot {change.pick}>")
    return replace(change, text=text).sql(f"lake.{change.table}", []) or ""


def play(lakes: Lakes, seed: int, tally: Tally, *, views: int = 4, steps: int = 3, often: int = 1) -> None:
    """Play one history, in a namespace of its own. One that fails is played again with less and less of it.

    Args:
        lakes: Makes an empty namespace.
        seed: Decides what happens.
        tally: Gets what ran.
        views: How many.
        steps: How often the tables change.
        often: Each view of so many is refreshed after every step, the others after the last one only.

    Raises:
        Mismatch: Names the seed, and the least history found that fails.
    """
    started = time.monotonic()
    history = invent(lakes, seed, views=views, steps=steps)
    history = replace(history, often=often)
    try:
        run(lakes(), history, tally, seed)
    except Mismatch as error:
        least, why = shrunk(lakes, history, error)
        raise Mismatch(
            f"seed {seed}, views={views}, steps={steps}, often={often}, at least:\n{least}\n{why}"
        ) from error
    tally.sequences += len(history.views)
    tally.variants[history.variant] += len(history.views)
    tally.layouts.update(view.layout for view in history.views)
    tally.changes.update(change.name for step in history.steps for change in step)
    tally.seconds += time.monotonic() - started


def invent(lakes: Lakes, seed: int, *, views: int, steps: int) -> History:
    """Make a history up; the last of its views is made after the first step."""
    random = Random(seed)
    variant = list(VARIANTS)[seed % len(VARIANTS)]
    changing = Changing.drawn(random)
    tables = make(random, variant, changing.columns)
    lake, turn = lakes(), 7 * seed
    # Where a column is a partition, Iceberg 1.12 takes NULL to be less than all and unequal to all in an OR.
    ors = not any("PARTITIONED BY (a)" in change.text for change in tables)
    made = _views(lake, random, range(views - 1), turn, changing.columns, ors=ors)
    done = [changing.step(steps * seed)]
    made += _views(lake, random, range(views - 1, views), turn, changing.columns, ors=ors, since=1)
    done += [changing.step(steps * seed + number) for number in range(1, steps)]
    return History(variant, tables, tuple(made), tuple(done))


def _views(
    lake: Lake, random: Random, numbers: range, turn: int, schema: Schema, *, ors: bool, since: int = 0
) -> list[View]:
    made = []
    with accepting(lake, schema) as accepts:
        for number in numbers:
            attempt = turn + number
            sql, in_duckdb = query(random, attempt, schema)
            while (" OR " in sql and not ors) or not accepts(sql):
                attempt += 1
                sql, in_duckdb = query(random, attempt, schema)
            layout = "registered" if random.random() < 0.25 else "pointed"
            how = random.choice(("overwrite", "delete", "merge"))
            made.append(View(f"v{number}", sql, how, layout, in_duckdb, since, schema))
    return made


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
    snapshots: dict[str, list[int]] = {name: [] for name in TABLES}
    broken: set[str] = set()
    for step, todo in enumerate((history.tables, *history.steps)):
        for change in todo:
            _change(lake, change, snapshots[change.table])
        for number, view in enumerate(history.views):
            if view.name in broken or not history.refreshes(number, step):
                continue
            try:
                _refresh(lake, view, tally, random, first=step == view.since)
            except Exception as error:
                if isinstance(error, Mismatch) or not (told := _fails(lake, view)):
                    raise Mismatch(f"after step {step}, view {view.name}: {error}") from error
                tally.broken[told] += 1
                broken.add(view.name)


def _fails(lake: Lake, view: View) -> str:
    """Say how the query itself fails over the tables as they are, or their last snapshots; nothing if it does not."""
    heads = {name: lake.files.load_table((lake.namespace, name)).metadata.current_snapshot_id for name in TABLES}
    tables = {name: lake(name) for name in TABLES}
    pinned = {name: f"{tables[name]} VERSION AS OF {head}" if head else tables[name] for name, head in heads.items()}
    try:
        for names in (tables, pinned):
            lake.spark.sql(naming(view.sql, names)).collect()
    except (PySparkException, Py4JJavaError) as error:
        return str(error).splitlines()[0][:60]
    return ""


def _change(lake: Lake, change: Change, snapshots: list[int]) -> None:
    if change.equal is not None:
        table = lake.files.load_table((lake.namespace, change.table))
        if table.spec().is_unpartitioned() and snapshots:
            delete_by_equality(Table(lake.spark, lake(change.table)), **dict([change.equal]))
            lake.run(f"REFRESH TABLE {lake(change.table)}")
    elif (sql := change.sql(lake(change.table), snapshots)) is not None:
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
        sql = naming(view.sql, {name: lake(name) for name in TABLES})
        lake.create(view.name, sql, refresh_strategy="incremental", properties=ALWAYS, layout=view.layout)
    result = lake.refresh(view.name, on_fallback="full", stager=writing(lake, view.how))
    mode = "first" if first else str(result.mode)
    tally.modes[mode] += 1
    if first:
        return  # a recompute itself: what comes after it shows whether it was right
    tally.refreshes += 1
    if mode == "full":
        told = result.reasons[-1]
        tally.fallbacks[str(told.code)] += 1
        if "Spark cannot run" in told.message:
            raise Mismatch(f"a fallback hides an error: {told.message}")
    elif mode in _COMPUTED:
        tally.functions.update({name.lower() for name in _FUNCTION.findall(view.sql)})
    tally.by_duckdb += check(
        lake,
        view.name,
        view.sql,
        in_duckdb=view.in_duckdb,
        twice=random.random() < 0.2,
        columns={name: tuple(columns) for name, columns in view.columns.items()} if has_star(view.sql) else {},
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
    late = max((view.since for view in history.views), default=0)
    found += [replace(history, steps=history.steps[:end]) for end in range(late + 1, len(history.steps))]
    found += [replace(history, steps=_without(history.steps, index)) for index in range(late, len(history.steps))]
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
