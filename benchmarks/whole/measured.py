# SPDX-License-Identifier: Apache-2.0
"""What is kept of a whole run: the figures, the curves, the parts' tables. The pages are made of it alone."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks import report
from benchmarks.whole.figures import Document, Documents, cell, figures, seconds_of
from benchmarks.whole.parts import Ended

#: The run that the pages show.
FILE = Path(__file__).parents[1] / "measured.json"
_VIEWS = ("v0", "v1", "v2", "v3")
_VARIANT = "v2-mor"

Curve = list[tuple[float, float]]


def measured(documents: Documents, ended: Iterable[Ended]) -> dict[str, Any]:
    """Return what is kept of a run."""
    return {
        "machine": next((dict(found["machine"]) for found in documents.values()), {}),
        "parts": [asdict(part) for part in ended],
        "figures": [asdict(figure) for figure in figures(documents)],
        "curves": curves(documents),
        "tables": {name: found["tables"] for name, found in documents.items() if "tables" in found},
    }


def load(file: Path = FILE) -> dict[str, Any]:
    """Read what is kept of a run."""
    return dict(json.loads(file.read_text(encoding="utf-8")))


def curves(documents: Documents) -> dict[str, dict[str, Curve]]:
    """Return the growth curves of a run, by what grows."""
    return {
        "change": _change(documents.get("incremental", {})),
        "data": _data(documents),
        "views": _views(documents),
        "snapshots": _snapshots(documents.get("snapshots", {})),
    }


def _change(found: Document) -> dict[str, Curve]:
    lines: dict[str, Curve] = {}
    for item in found.get("cells", ()):
        if item["variant"] == _VARIANT and item["ratio"] is not None:
            lines.setdefault(f"{item['change']} {item['view']}", []).append((item["percent"], item["ratio"]))
    percents = sorted({x for line in lines.values() for x, _ in line})
    return {
        **{name: sorted(line) for name, line in lines.items()},
        **({"full": [(x, 1.0) for x in percents]} if percents else {}),
    }


def _data(documents: Documents) -> dict[str, Curve]:
    lines: dict[str, Curve] = {}

    def seconds(part: str, change: str, view: str, way: str) -> float:
        found = cell(documents[part], variant=_VARIANT, change=change, percent=0.1, view=view)
        return seconds_of(found, way)

    for part, scale in (("incremental-0.1", 0.1), ("incremental", 1.0), ("incremental-10", 10.0)):
        for view in _VIEWS:
            for change in ("append", "mixed"):
                _add(lines, f"{change} {view}", scale, seconds, part, change, view, "incremental")
            _add(lines, f"full {view}", scale, seconds, part, "append", view, "full")
    return lines


def _views(documents: Documents) -> dict[str, Curve]:
    lines: dict[str, Curve] = {}

    def seconds(part: str, ending: str) -> float:
        runs = documents[part]["runs"]
        titles = [title for title in runs if title.startswith("`status --all`") and title.endswith(ending)]
        return report.median(item["seconds"] for item in runs[titles[0]] if "seconds" in item)

    for part, views in (("many-views-100", 100), ("many-views-1000", 1000), ("many-views", 10_000)):
        for ending in ("empty cache", "nothing has moved", "moved"):
            _add(lines, ending, views, seconds, part, "have moved" if ending == "moved" else ending)
    return lines


def _snapshots(found: Document) -> dict[str, Curve]:
    lines: dict[str, Curve] = {}

    def short(snapshots: str, reader: str) -> float:
        return 1000 * report.median(found["seconds"][snapshots][f"a base table: {reader}"])

    def longest(reader: str) -> float:
        return 1000 * report.median(run[0] for run in found["longest"][reader])

    for name, reader in (("ours", "ours"), ("theirs", "pyiceberg's load_table")):
        for snapshots in found.get("seconds", {}):
            _add(lines, name, float(snapshots), short, snapshots, reader)
        _add(lines, name, 100_000, longest, reader)
    return lines


def _add(lines: dict[str, Curve], name: str, x: float, y: Callable[..., float], *arguments: str) -> None:
    """Add a point to a curve, if it was measured."""
    with suppress(LookupError, ValueError):
        lines.setdefault(name, []).append((x, round(y(*arguments), 4)))
    if not lines[name]:
        del lines[name]
