# SPDX-License-Identifier: Apache-2.0
"""Other tools and this one, side by side: first build, unchanged, 0.1 % appended, 0.1 % scattered."""

from __future__ import annotations

import argparse
import logging
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

from benchmarks import report
from benchmarks.incremental import QUERIES, Clock
from benchmarks.peers.dbt import Merge, MergeRecent
from benchmarks.peers.lake import Lake
from benchmarks.peers.pipelines import Pipelines
from benchmarks.peers.spark import Bare, BareProcess, Ours, OursProcess
from benchmarks.peers.trino import trino_views
from benchmarks.peers.turns import (
    APPENDED,
    BUILD,
    LEFT_OUT,
    SCATTERED,
    STAGES,
    UNCHANGED,
    Fingerprint,
    Turn,
    difference,
    refusals,
    table,
)
from benchmarks.tpch import Warehouse

_TOOLS = ("bare", "ours", "trino", "bare-process", "ours-process", "pipelines", "dbt")


class Tool(Protocol):
    """What is compared."""

    @property
    def title(self) -> str:
        """Its row's name."""

    @property
    def runs_already(self) -> bool:
        """Whether a session or a server runs anyway; it is measured when it is warm."""

    def build(self) -> Turn:
        """Make the views, and fill them."""

    def refresh(self) -> Turn:
        """Refresh the views."""

    def holds(self, view: str) -> Fingerprint:
        """Return what a view holds now."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--scale", type=float, default=1.0, help="TPC-H scale factor (1: 6 million rows of lineitem)")
    parser.add_argument("--tools", nargs="+", choices=_TOOLS, default=list(_TOOLS))
    parser.add_argument("--views", nargs="+", choices=list(QUERIES), default=list(QUERIES))
    parser.add_argument("--minutes", type=float, metavar="M", help="begin nothing more after so many minutes")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure, print the table, return every figure."""
    facts = report.machine()
    logging.getLogger("airflow_mv").setLevel(logging.WARNING)
    warehouse = Warehouse.below(options.cache, options.scale)
    pointers = warehouse.open()
    scratch = warehouse.folder / "peers"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    lake = Lake(warehouse, pointers, scratch, tuple(options.views))
    try:
        lake.fill()
        turns = _measure(lake, options)
    finally:
        lake.stager.close()
        warehouse.clear(pointers)
        shutil.rmtree(scratch, ignore_errors=True)
    title = f"Tools side by side, TPC-H scale factor {options.scale:g}"
    tables = report.shown(title, facts, table(turns, options.views), refusals(turns))
    return {
        "benchmark": "peers",
        "scale": options.scale,
        "machine": facts,
        "turns": {tool: {stage: turn.to_dict() for stage, turn in found.items()} for tool, found in turns.items()},
        "tables": tables,
    }


def _measure(lake: Lake, options: argparse.Namespace) -> dict[str, dict[str, Turn]]:
    turns: dict[str, dict[str, Turn]] = {}
    clock = Clock(options.minutes)
    with ExitStack() as opened:
        tools = list(_opened(lake, options, opened, turns))
        for stage in (BUILD, APPENDED, SCATTERED):  # for the caches and the compilers
            lake.change(stage)
            for tool in (tool for tool in tools if tool.runs_already):
                _turn(tool, stage, clock)
        for stage in STAGES:
            in_time = clock.allows(stage)
            if in_time:
                lake.change(stage)
            right = lake.right() if in_time and stage != UNCHANGED else {}
            for tool in tools:
                turn = _turn(tool, stage, clock)
                turn.wrong = {view: _wrong(tool, view, right[view]) for view in turn.seconds if view in right}
                turns.setdefault(tool.title, {})[stage] = turn
                told = f"{sum(turn.seconds.values()):.1f} s" if turn.seconds else turn.refused
                print(f"{stage}: {tool.title}: {told}", flush=True)
    return turns


def _turn(tool: Tool, stage: str, clock: Clock) -> Turn:
    """Let a tool do its part of a stage. Where it fails, its own words stand in the table."""
    if not clock.allows(f"{stage}: {tool.title}"):
        return Turn(refused=LEFT_OUT)
    try:
        return tool.build() if stage == BUILD else tool.refresh()
    except Exception as error:  # noqa: BLE001 - one tool must not lose the others
        return Turn(refused=_words(error))


def _wrong(tool: Tool, view: str, right: Fingerprint) -> str:
    try:
        return difference(tool.holds(view), right)
    except Exception as error:  # noqa: BLE001 - one tool must not lose the others
        return f"cannot be read: {_words(error)}"


def _words(error: Exception) -> str:
    return " ".join(str(error).split())[:500]


def _opened(
    lake: Lake, options: argparse.Namespace, opened: ExitStack, turns: dict[str, dict[str, Turn]]
) -> Iterator[Tool]:
    """Yield the tools; one that cannot be set up has a row that says so."""

    def trino(lake: Lake, _: Path) -> Tool:
        views, refused = opened.enter_context(trino_views(lake))
        if refused:
            turns["Trino 470, REST catalog"] = {BUILD: Turn(refused=refused)}
        return views

    makers: dict[str, Callable[[Lake, Path], Tool]] = {
        "bare": lambda lake, _: Bare(lake),
        "ours": lambda lake, _: Ours(lake),
        "trino": trino,
        "bare-process": lambda lake, _: BareProcess(lake),
        "ours-process": lambda lake, _: OursProcess(lake),
        "pipelines": Pipelines,
        "dbt": Merge,
    }
    for name in options.tools:
        started = time.perf_counter()
        try:
            tool = makers[name](lake, options.cache)
            yield tool
            if isinstance(tool, Merge):
                yield MergeRecent(tool)
        except Exception as error:  # noqa: BLE001 - one tool must not lose the others
            turns[name] = {BUILD: Turn(refused=_words(error))}
        print(f"{name}: set up in {time.perf_counter() - started:.0f} s", flush=True)
