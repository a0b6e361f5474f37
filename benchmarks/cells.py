# SPDX-License-Identifier: Apache-2.0
"""What was measured of incremental refreshes beside full ones, and the tables of it."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from benchmarks import report

#: No refresh may take more of what a full one takes.
BOUND = 1.15
_MEGABYTE = 1e6


@dataclass(frozen=True, slots=True)
class Way:
    """One refresh: seconds, and the bytes that Spark read from and wrote to the tables' store.

    Args:
        seconds: Wall-clock time of plan, job and publication.
        read: Bytes, all files of all tables.
        written: Bytes likewise.
        cpu: Seconds of this process and of Spark's. Other work of the machine changes them less.
    """

    seconds: float
    read: int
    written: int
    cpu: float


@dataclass(frozen=True, slots=True)
class Run:
    """One view after one change, refreshed both ways.

    Args:
        mode: The incremental mode, ``full`` if there is none.
        incremental: Its time, even if it is the more expensive one.
        gave_up: Seconds until the job found that it could not go on; ``None`` where it did not, or none was started.
        full: The recompute of the same rows.
        chosen: The mode that the estimates choose.
        chosen_seconds: What that took; where its job falls back, with the recompute.
        recorded: Bytes of base table files that were read to know the change, by the refresh's own record.
        expected: Estimated seconds of the incremental mode, without corrections by the view's own refreshes.
        expected_full: Likewise of a full one.
        steps: Seconds of the incremental mode by step.
    """

    mode: str
    incremental: Way | None
    gave_up: float | None
    full: Way
    chosen: str
    chosen_seconds: float
    recorded: int | None = None
    expected: float | None = None
    expected_full: float | None = None
    steps: Mapping[str, float] = field(default_factory=dict)


@dataclass(slots=True)
class Cell:
    """One view after changes of one sort and size, as often as it was measured."""

    scale: float
    variant: str
    change: str
    percent: float
    view: str
    runs: list[Run] = field(default_factory=list)

    def median(self, value: Callable[[Run], float | None]) -> float | None:
        """Return the median over the runs that have a value."""
        found = [item for run in self.runs if (item := value(run)) is not None]
        return statistics.median(found) if found else None

    @property
    def ratio(self) -> float | None:
        """Incremental over full."""
        return self.median(lambda run: run.incremental.seconds / run.full.seconds if run.incremental else None)

    @property
    def chosen_ratio(self) -> float:
        """The time of the chosen mode divided by that of full: 1 if full is chosen."""
        return self.median(lambda run: run.chosen_seconds / run.full.seconds) or 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return all runs for a file."""
        return {**asdict(self), "ratio": self.ratio, "chosen_ratio": self.chosen_ratio}

    def __str__(self) -> str:
        return "  ".join(_row(self))


_HEAD = (
    *("tables", "change", "%", "view", "incremental, s", "full, s", "ratio", "mode", "plan", "chosen / full"),
    *("change, MB", "read, MB", "full read, MB", "written, MB", "full written, MB", "expected, s", "full expected, s"),
)


def table(cells: Iterable[Cell]) -> str:
    """Return a line for each cell."""
    return report.table(_HEAD, map(_row, cells))


def _row(cell: Cell) -> tuple[str, ...]:
    runs, last = cell.runs, cell.runs[-1]
    times = report.number(cell.median(lambda run: run.incremental.seconds if run.incremental else None))
    read, written = _bytes(cell, lambda way: way.read), _bytes(cell, lambda way: way.written)
    recorded = cell.median(lambda run: None if run.recorded is None else run.recorded / _MEGABYTE)
    expected = [cell.median(lambda run: run.expected), cell.median(lambda run: run.expected_full)]
    return (
        *(cell.variant, cell.change, f"{cell.percent:g}", cell.view),
        f"{times} ({len(runs)})" if len(runs) > 1 else times,
        report.number(cell.median(lambda run: run.full.seconds)),
        *(report.number(cell.ratio), last.mode, last.chosen, report.number(cell.chosen_ratio)),
        *(report.number(recorded), *read, *written, *map(report.number, expected)),
    )


def _bytes(cell: Cell, value: Callable[[Way], int]) -> tuple[str, str]:
    ours = cell.median(lambda run: value(run.incremental) / _MEGABYTE if run.incremental else None)
    full = cell.median(lambda run: value(run.full) / _MEGABYTE)
    return report.number(ours), report.number(full)


def bound(cells: Iterable[Cell]) -> str:
    """Return how the chosen mode compares with a full refresh."""
    ordered = sorted(cells, key=lambda cell: -cell.chosen_ratio)
    if not ordered:
        return ""
    over = [cell for cell in ordered if cell.chosen_ratio > BOUND]
    lines = [
        f"The chosen mode divided by full, {len(ordered)} cells: at most {ordered[0].chosen_ratio:.2f}, "
        f"{len(over)} above {BOUND}" + (":" if over else ".")
    ]
    lines += [
        f"- {cell.variant}, {cell.change} {cell.percent:g} %, {cell.view}: {cell.runs[-1].chosen}, "
        f"{cell.chosen_ratio:.2f}"
        for cell in over
    ]
    return "\n".join(lines)


def falling_back(cells: Iterable[Cell]) -> str:
    """Return what it costs where a job finds too late that it has to recompute in full."""
    rows = []
    for cell in cells:
        lost = cell.median(lambda run: run.gave_up)
        if lost is None:
            continue
        full = cell.median(lambda run: run.full.seconds) or 0.0
        told = (report.number(lost), report.number(full), report.number((lost + full) / full), cell.runs[-1].chosen)
        rows.append((cell.variant, cell.change, f"{cell.percent:g}", cell.view, *told))
    head = ("tables", "change", "%", "view", "until it gave up, s", "full, s", "both / full", "plan")
    return f"Jobs that fell back:\n\n{report.table(head, rows)}" if rows else ""


def steps(cells: Iterable[Cell]) -> str:
    """Return where the time of the incremental refreshes goes, for the least change that was measured."""
    timed = [cell for cell in cells if any(run.steps for run in cell.runs)]
    if not timed:
        return ""
    least = min(cell.percent for cell in timed)
    chosen = [cell for cell in timed if cell.percent == least]
    parts = []
    for variant, change in dict.fromkeys((cell.variant, cell.change) for cell in chosen):
        group = [cell for cell in chosen if (cell.variant, cell.change) == (variant, change)]
        names = dict.fromkeys(name for cell in group for run in cell.runs for name in run.steps)
        rows = [(name, *(_milliseconds(cell, name) for cell in group)) for name in names]
        head = (f"{variant}, {change} {least:g} %: ms", *(cell.view for cell in group))
        parts.append(report.table(head, rows))
    return "Where the time of the incremental refreshes goes:\n\n" + "\n\n".join(parts)


def _milliseconds(cell: Cell, name: str) -> str:
    found = cell.median(lambda run: run.steps.get(name))
    return "-" if found is None else f"{1000 * found:.0f}"


def fit(cells: Iterable[Cell]) -> str:
    """Return how far the estimates are off, for each mode: what to multiply the figures of ``plan/cost.py`` by."""
    ratios: dict[str, list[float]] = {}
    for run in (run for cell in cells for run in cell.runs):
        if run.expected_full:
            ratios.setdefault("full", []).append(run.full.seconds / run.expected_full)
        if run.expected and run.incremental:
            ratios.setdefault(run.mode, []).append(run.incremental.seconds / run.expected)
    rows = [
        (mode, str(len(found)), f"{statistics.median(found):.2f} ({min(found):.2f} to {max(found):.2f})")
        for mode, found in sorted(ratios.items())
    ]
    return report.table(["mode", "runs", "measured / expected"], rows)
