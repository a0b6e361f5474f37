# SPDX-License-Identifier: Apache-2.0
"""One history of base tables and the views over it: after every change each view is refreshed and compared."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random

from airflow_mv.script import MergeAdditiveStep, Outcome, ReplaceKeysStep, Script
from tests.engine.incremental.checking import Mismatch, can_run, check
from tests.engine.incremental.histories import VARIANTS, Base, change, make, names_of
from tests.engine.incremental.views import for_duckdb, has_star, naming, query
from tests.engine.support import Lake

#: Cost never decides: an incremental way is taken wherever there is one.
ALWAYS = {"airflow-mv.incremental-up-to": "1000000"}


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


def play(lake: Lake, seed: int, tally: Tally, *, views: int = 4, steps: int = 3) -> None:
    """Play one history, in a namespace of its own.

    Raises:
        Mismatch: Names the seed, the variant, the query and all that was done.
    """
    random, started = Random(seed), time.monotonic()
    variant = list(VARIANTS)[seed % len(VARIANTS)]
    bases = make(lake, random, variant)
    made = [_view(lake, random, bases, number, 7 * seed + number, tally) for number in range(views)]
    done: list[tuple[str, str]] = []
    for step in range(steps + 1):
        if step:
            done.append((f"step {step}", ""))
            done += change(random, bases, steps * seed + step - 1)
        for view in made:
            try:
                _refresh(lake, view, tally, first=step == 0)
            except Exception as error:
                told = "\n".join(f"{name}: {text}" for name, text in done)
                raise Mismatch(
                    f"seed {seed}, {variant}, view {view.name} by {view.how}: {view.sql}\n{told}\n{error}"
                ) from error
    tally.sequences += len(made)
    tally.variants[variant] += len(made)
    tally.changes.update(name for name in names_of(done) if not name.startswith("step"))
    tally.seconds += time.monotonic() - started


def _view(lake: Lake, random: Random, bases: dict[str, Base], number: int, turn: int, tally: Tally) -> View:
    names = {name: base.sql for name, base in bases.items()}
    while True:
        sql = query(random, turn)
        # A view has the columns that it was made with: of a table that may get more, it names them.
        if not has_star(sql) and can_run(lake, naming(sql, names)):
            break
        turn += 1
    layout = "registered" if random.random() < 0.25 else "pointed"
    tally.layouts[layout] += 1
    lake.create(f"v{number}", naming(sql, names), refresh_strategy="incremental", properties=ALWAYS, layout=layout)
    return View(f"v{number}", sql, random.choice(("overwrite", "delete", "merge")))


def writing(lake: Lake, how: str) -> Callable[[Script], Outcome]:
    """Return the lake's stager; it writes small storage tables as large ones are written, too."""

    def stage(script: Script) -> Outcome:
        steps = tuple(
            replace(step, how=how) if isinstance(step, ReplaceKeysStep | MergeAdditiveStep) else step
            for step in script.steps
        )
        return lake.stager(replace(script, steps=steps))

    return stage


def _refresh(lake: Lake, view: View, tally: Tally, *, first: bool) -> None:
    result = lake.refresh(view.name, on_fallback="full", stager=writing(lake, view.how))
    mode = str(result.mode)
    if first:
        tally.modes["first"] += 1
    else:
        tally.modes[mode] += 1
        tally.refreshes += 1
        if mode == "full":
            told = result.reasons[-1]
            tally.fallbacks[str(told.code)] += 1
            if "Spark cannot run" in told.message:
                raise Mismatch(f"a fallback hides an error: {told.message}")
    tally.by_duckdb += check(lake, view.name, view.sql, in_duckdb=for_duckdb(view.sql))
