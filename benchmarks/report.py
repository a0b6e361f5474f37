# SPDX-License-Identifier: Apache-2.0
"""Sum up runs, print them as Markdown, keep them as JSON."""

from __future__ import annotations

import json
import os
import platform
import statistics
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any


def median(values: Iterable[float]) -> float:
    """Return the median."""
    return statistics.median(values)


def spread(values: Sequence[float], *, digits: int = 2, scale: float = 1.0) -> str:
    """Return ``median (least to most)``."""
    low, middle, high = (value * scale for value in (min(values), median(values), max(values)))
    return f"{middle:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def number(value: float | None) -> str:
    """Return a number with two digits behind the point, or a dash."""
    return "-" if value is None else f"{value:.2f}"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table; all columns but the first are right-aligned."""
    lines = [list(head), *(list(row) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    rule = ["-" * width if column == 0 else "-" * (width - 1) + ":" for column, width in enumerate(widths)]
    aligns = ["<", *(">" * (len(head) - 1))]
    return "\n".join(
        "| "
        + " | ".join(f"{cell:{align}{width}}" for cell, align, width in zip(line, aligns, widths, strict=True))
        + " |"
        for line in [lines[0], rule, *lines[1:]]
    )


def machine() -> dict[str, Any]:
    """Return the class of the machine and how busy it was, not its name."""
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "cores": os.cpu_count(),
        "memory_gib": round(pages / 2**30),
        "load": [round(value, 2) for value in os.getloadavg()],
        "python": platform.python_version(),
        "packages": {name: version(name) for name in ("pyspark", "pyiceberg", "msgspec", "sqlglot")},
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def about(facts: dict[str, Any]) -> str:
    """Return one line about the machine."""
    load = f"{facts['load'][0]} before and {os.getloadavg()[0]:.2f} after"
    packages = ", ".join(f"{name} {number}" for name, number in facts["packages"].items())
    return f"{facts['cores']} cores, {facts['memory_gib']} GiB, load {load}; Python {facts['python']}, {packages}"


def shown(title: str, facts: dict[str, Any], *tables: str) -> str:
    """Print tables below a title, and return them with a line about the machine, for a page."""
    block = "\n\n".join((f"{about(facts)}.", *filter(None, tables)))
    print(f"\n{title}\n\n{block}")
    return block


def keep(path: Path | None, document: dict[str, Any]) -> None:
    """Write every single measurement to a file, if one is asked for."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(document, indent=1) + "\n")
        print(f"\nEvery run: {path}")
