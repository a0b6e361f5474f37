# SPDX-License-Identifier: Apache-2.0
"""What each tool did with the views in each stage, and the table of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from decimal import Decimal
from typing import Any

from benchmarks import report

#: What happens to the base tables before each stage.
STAGES = ("first build", "unchanged", "0.1 % appended", "0.1 % scattered")
BUILD, UNCHANGED, APPENDED, SCATTERED = STAGES

#: What a view holds in a few numbers. The first is how many rows of its base tables are in it.
Fingerprint = tuple[Decimal, ...]


@dataclass(slots=True)
class Turn:
    """One tool, one stage.

    Args:
        seconds: For each view that it refreshed, by the tool's own clock.
        modes: How it refreshed the view, as far as it says or shows it.
        process: Seconds of the whole process; ``None`` where a server or a session runs anyway.
        wrong: What is wrong with the view's rows after it, by view; empty for right ones.
        refused: Why nothing was refreshed.
    """

    seconds: dict[str, float] = field(default_factory=dict)
    modes: dict[str, str] = field(default_factory=dict)
    process: float | None = None
    wrong: dict[str, str] = field(default_factory=dict)
    refused: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return it for a file."""
        return asdict(self)


LEFT_OUT = "left out: no time was left"

#: By tool, then by stage.
Turns = Mapping[str, Mapping[str, Turn]]


def difference(found: Fingerprint, right: Fingerprint) -> str:
    """Return what is wrong with a view's rows; empty for right ones."""
    if found == right:
        return ""
    if found[0] == right[0]:
        return "old values"
    count = abs(found[0] - right[0])
    return f"{count:,} rows {'too many' if found[0] > right[0] else 'missing'}"


def table(turns: Turns, views: Sequence[str]) -> str:
    """Return one Markdown table, tools side by side in each stage."""
    head = ("", "tool", *(f"{view}, s" for view in views), "whole process, s")
    rows = [
        (stage, tool, *(_cell(stages[stage], view) for view in views), _process(stages[stage]))
        for stage in STAGES
        for tool, stages in turns.items()
        if stage in stages
    ]
    return report.table(head, rows)


def _cell(turn: Turn, view: str) -> str:
    if view not in turn.seconds and turn.refused:
        return "left out" if turn.refused == LEFT_OUT else "refused"
    if view not in turn.seconds:
        return "-"
    parts = [f"{turn.seconds[view]:.2f}", turn.modes.get(view, "")]
    if turn.wrong.get(view):
        parts.append(f"(**{turn.wrong[view]}**)")
    return " ".join(part for part in parts if part)


def _process(turn: Turn) -> str:
    return "-" if turn.process is None else f"{turn.process:.1f}"


def refusals(turns: Turns) -> str:
    """Return what the tools refused, and with which words."""
    found = {f"- {tool}: {turn.refused}" for tool, stages in turns.items() for turn in stages.values() if turn.refused}
    return "\n".join(sorted(found))
