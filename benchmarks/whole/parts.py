# SPDX-License-Identifier: Apache-2.0
"""The parts of a whole run. Each is one benchmark in a process of its own, so that it cannot lose the others."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

#: Seconds that a part gets to end after it was asked to.
_GRACE = 20.0
#: No part begins with less than this share of its time.
_LEAST = 0.4
_SHORTEST = 0.1


@dataclass(frozen=True, slots=True)
class Part:
    """A benchmark with options.

    Args:
        name: Names its files.
        minutes: It is ended after this time.
        words: The benchmark's command. ``{minutes}`` is the time in which it may begin something.
        figures: Names its figures. Parts that share a name measure other cells of one benchmark.
        reserve: Minutes that it needs to end what it has begun.
    """

    name: str
    minutes: float
    words: tuple[str, ...]
    figures: str
    reserve: float = 0.0

    def command(self, minutes: float) -> list[str]:
        """Return the benchmark's command if there are so many minutes."""
        within = f"{max(_SHORTEST, minutes - self.reserve):.1f}"
        return [within if word == "{minutes}" else word for word in self.words]


@dataclass(frozen=True, slots=True)
class Ended:
    """How a part ended.

    Args:
        part: Its name.
        minutes: How long it took.
        problem: Why there are no figures; empty if there are.
    """

    part: str
    minutes: float
    problem: str = ""

    def __str__(self) -> str:
        return f"{self.part}: {self.minutes:.1f} min, {self.problem or 'done'}"


def _part(name: str, minutes: float, words: str, figures: str = "", reserve: float = 0.0) -> Part:
    return Part(name, minutes, tuple(words.split()), figures or name, reserve)


_INCREMENTAL = "incremental --repeat 1 --minutes {minutes}"
_MEDIANS = "incremental --repeat 3 --minutes {minutes}"
_TEN = f"{_INCREMENTAL} --scale 10 --sequence"
#: Copy-on-write comes first, because it leaves no delete files behind. 0.04 %: one of the 2,400 days of TPC-H.
_LINEAGE = "v3-cow:mixed:0.1 v3-mor:clustered:0.04 v3-mor:mixed:0.1"
_LINEAGE_SMALL = "v3-cow:mixed:0.1 v3-cow:mixed:1 v3-cow:mixed:10 v3-mor:append:0.1 v3-mor:mixed:0.1"
#: Without bare Spark in a new process, which is its running session and Spark's start.
_TOOLS = "bare ours trino ours-process pipelines dbt"
#: In this order: what is left out for want of time comes last. The parts from the peers on have no targets.
PARTS = (
    _part("full-refresh", 4, "full-refresh --repeat 6"),
    _part("shared-application", 4, "shared-application --alone 2"),
    _part("many-views", 4, "many-views --repeat 2"),
    _part("many-views-postgresql", 4, "many-views --postgres --repeat 1"),
    _part("snapshots", 3, "freshness --number 10 --tables 5 --repeat 3"),
    _part("starts", 3, "starts"),
    _part("demo", 6, "demo"),
    _part("connect", 5, "connect --repeat 5"),
    _part("waiting-sensors", 4, "waiting-sensors --period 10"),
    _part("incremental", 9, f"{_MEDIANS} --percents 0.1 --variants v2-mor", reserve=2),
    _part("incremental-10", 10, f"{_TEN} v2-mor:append:0.1 v2-mor:mixed:0.1", reserve=4),
    _part("incremental-10-lineage", 18, f"{_TEN} {_LINEAGE}", "incremental-10", reserve=3),
    _part("peers", 15, f"peers --tools {_TOOLS} --views v1 v3 --minutes {{minutes}}", reserve=2),
    _part("memory", 6, "memory"),
    _part("peers-10", 15, "peers --scale 10 --tools bare ours trino --views v1 --minutes {minutes}", reserve=2),
    _part("incremental-0.1", 3, f"{_INCREMENTAL} --scale 0.1 --percents 0.1 --variants v2-mor", reserve=1),
    _part("many-views-1000", 2, "many-views --views 1000 --tables 200"),
    _part("many-views-100", 2, "many-views --views 100 --tables 20"),
    _part(
        "incremental-sizes", 6, f"{_INCREMENTAL} --percents 10 1 0.01 50 --variants v2-mor", "incremental", reserve=2
    ),
    _part("incremental-lineage", 6, f"{_INCREMENTAL} --sequence {_LINEAGE_SMALL}", "incremental", reserve=1),
)


def run_all(
    parts: Iterable[Part], folder: Path, cache: Path, minutes: float, say: Callable[[str], None]
) -> list[Ended]:
    """Run the parts that have no figures in the folder yet, as long as there is time.

    Args:
        parts: Which.
        folder: Where each part's figures, and all that it printed, are kept.
        cache: The folder of the data that are made once.
        minutes: After which no further part begins. A part that runs then ends at its own limit.
        say: Gets one line for each part.
    """
    folder.mkdir(parents=True, exist_ok=True)
    began, ended = time.monotonic(), []
    for part in parts:
        left = minutes - (time.monotonic() - began) / 60
        if _file(folder, part.name, "json").exists():
            found = _kept(folder, part.name)
        elif left < _LEAST * part.minutes:
            found = Ended(part.name, 0.0, "left out: no time was left")
        else:
            found = _run(part, folder, cache, min(part.minutes, left))
        say(str(found))
        ended.append(found)
    return ended


def documents(folder: Path) -> dict[str, Any]:
    """Return what the parts have measured, by the name of the figures."""
    found: dict[str, Any] = {}
    for part in PARTS:
        file = _file(folder, part.name, "json")
        if file.exists():
            document = json.loads(file.read_text(encoding="utf-8"))
            if part.figures in found:
                before = found[part.figures]
                document = {
                    **before,
                    "cells": before["cells"] + document["cells"],
                    "tables": f"{before['tables']}\n\n{document['tables']}",
                }
            found[part.figures] = document
    return found


def _run(part: Part, folder: Path, cache: Path, minutes: float) -> Ended:
    """Run a part until it has ended, or its time has."""
    figures, log = _file(folder, part.name, "new"), _file(folder, part.name, "log")
    command = [sys.executable, "-m", "benchmarks", *part.command(minutes), "--cache", str(cache), "--out", str(figures)]
    began = time.monotonic()
    with log.open("w", encoding="utf-8") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)
        problem = _waited(process, 60 * minutes)
    took = (time.monotonic() - began) / 60
    if problem is None:
        problem = "" if process.returncode == 0 and figures.exists() else f"failed: {_last_line(log)}"
    found = Ended(part.name, took, problem)
    if not problem:
        figures.rename(_file(folder, part.name, "json"))
        _file(folder, part.name, "ended").write_text(json.dumps(asdict(found)), encoding="utf-8")
    figures.unlink(missing_ok=True)
    return found


def _waited(process: subprocess.Popen[bytes], seconds: float) -> str | None:
    """Wait for a process, and end it with all that it has started if it takes too long; say so then."""
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        for number, grace in ((signal.SIGTERM, _GRACE), (signal.SIGKILL, _GRACE)):
            os.killpg(process.pid, number)
            try:
                process.wait(grace)
                break
            except subprocess.TimeoutExpired:
                continue
        return f"ended after {seconds / 60:.0f} minutes"
    except KeyboardInterrupt:
        os.killpg(process.pid, signal.SIGTERM)
        raise
    return None


def _kept(folder: Path, name: str) -> Ended:
    file = _file(folder, name, "ended")
    return Ended(**json.loads(file.read_text(encoding="utf-8"))) if file.exists() else Ended(name, 0.0)


def _file(folder: Path, name: str, kind: str) -> Path:
    return folder / f"{name}.{kind}"


def _last_line(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines()]
    return next((line[:200] for line in reversed(lines) if line), "it printed nothing")
