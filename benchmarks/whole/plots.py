# SPDX-License-Identifier: Apache-2.0
"""Growth curves as SVG, on logarithmic axes, in colours that can be read on a light and on a dark screen."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

_WIDTH, _HEIGHT = 760, 400
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 220, 44, 52
#: Told apart by people who cannot see all colours.
_COLOURS = ("#2f86c8", "#d55e00", "#009e73", "#cc79a7", "#8a8a8a")
_STYLE = """
svg { font: 13px system-ui, sans-serif; }
.back { fill: #ffffff; } .grid { stroke: #d9d9de; } .text { fill: #24242b; } .line { fill: none; stroke-width: 2; }
@media (prefers-color-scheme: dark) { .back { fill: #17181c; } .grid { stroke: #3a3b42; } .text { fill: #e8e8ec; } }
"""


@dataclass(frozen=True, slots=True)
class Series:
    """One line.

    Args:
        name: In the legend.
        points: x and y, both above zero.
        colour: Its number.
        dashes: How it is drawn: ``""``, or a pattern of SVG.
    """

    name: str
    points: tuple[tuple[float, float], ...]
    colour: int = 0
    dashes: str = ""


@dataclass(frozen=True, slots=True)
class Plot:
    """A picture with lines.

    Args:
        title: Above it.
        across: What the x axis is.
        up: What the y axis is.
        series: The lines.
    """

    title: str
    across: str
    up: str
    series: tuple[Series, ...]

    def svg(self) -> str:
        """Return the picture."""
        points = [point for line in self.series for point in line.points]
        if not points:
            raise ValueError(f"{self.title}: nothing was measured")
        x, y = (_axis([point[at] for point in points]) for at in (0, 1))
        across = _scale(x, _LEFT, _WIDTH - _RIGHT)
        up = _scale(y, _HEIGHT - _BOTTOM, _TOP)
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img">',
            f"<title>{escape(self.title)}</title><style>{_STYLE}</style>",
            f'<rect class="back" width="{_WIDTH}" height="{_HEIGHT}" rx="6"/>',
            _text(_LEFT, 24, self.title, "start", bold=True),
            *_grid(x, y, across, up),
            _text((_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 12, self.across, "middle"),
            f'<g transform="translate(16 {(_TOP + _HEIGHT - _BOTTOM) / 2:.0f}) rotate(-90)">'
            f"{_text(0, 0, self.up, 'middle')}</g>",
            *(_line(line, across, up) for line in self.series),
            *(_legend(number, line) for number, line in enumerate(self.series)),
            "</svg>",
        ]
        return "\n".join(parts) + "\n"


def _axis(values: Sequence[float]) -> tuple[float, float]:
    """Return the ends of an axis: powers of ten, or halves of them."""
    low, high = (math.log10(value) for value in (min(values), max(values)))
    ends = math.floor(low * 2 + 1e-9) / 2, math.ceil(high * 2 - 1e-9) / 2
    return ends if ends[0] < ends[1] else (ends[0], ends[0] + 0.5)


def _scale(ends: tuple[float, float], first: float, last: float) -> Callable[[float], float]:
    low, high = ends
    return lambda value: first + (math.log10(value) - low) / (high - low) * (last - first)


def _grid(
    x: tuple[float, float], y: tuple[float, float], across: Callable[[float], float], up: Callable[[float], float]
) -> Iterator[str]:
    for value in _ticks(x):
        at = across(value)
        yield f'<line class="grid" x1="{at:.1f}" x2="{at:.1f}" y1="{_TOP}" y2="{_HEIGHT - _BOTTOM}"/>'
        yield _text(at, _HEIGHT - _BOTTOM + 18, _short(value), "middle")
    for value in _ticks(y):
        at = up(value)
        yield f'<line class="grid" y1="{at:.1f}" y2="{at:.1f}" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}"/>'
        yield _text(_LEFT - 8, at + 4, _short(value), "end")


def _ticks(ends: tuple[float, float]) -> Iterator[float]:
    """Yield powers of ten; with few of them also their triples."""
    few = ends[1] - ends[0] <= 2
    for power in range(math.floor(ends[0]), math.ceil(ends[1]) + 1):
        for factor in (1, 3) if few else (1,):
            if ends[0] - 1e-9 <= math.log10(factor * 10**power) <= ends[1] + 1e-9:
                yield float(factor * 10.0**power)


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 1 else f"{value:g}"


def _line(line: Series, across: Callable[[float], float], up: Callable[[float], float]) -> str:
    places = [(across(x), up(y)) for x, y in line.points]
    colour, dashes = _COLOURS[line.colour], f' stroke-dasharray="{line.dashes}"' if line.dashes else ""
    joined = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    dots = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in places)
    return f'<polyline class="line" stroke="{colour}"{dashes} points="{joined}"/>{dots}'


def _legend(number: int, line: Series) -> str:
    left, at = _WIDTH - _RIGHT + 16, _TOP + 12 + 22 * number
    dashes = f' stroke-dasharray="{line.dashes}"' if line.dashes else ""
    place = f'x1="{left}" x2="{left + 28}" y1="{at}" y2="{at}"'
    stroke = f'<line class="line" stroke="{_COLOURS[line.colour]}"{dashes} {place}/>'
    return stroke + _text(left + 36, at + 4, line.name, "start")


def _text(x: float, y: float, text: str, anchor: str, *, bold: bool = False) -> str:
    weight = ' font-weight="600"' if bold else ""
    return f'<text class="text" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{weight}>{escape(text)}</text>'


def plots(curves: Mapping[str, Any]) -> dict[str, Plot]:
    """Return each plot that there are curves for, by the name of its file."""
    makers = {
        "cost-by-change-size.svg": ("change", _by_change),
        "cost-by-data-size.svg": ("data", _by_data),
        "looks-by-views.svg": ("views", _by_views),
        "looks-by-snapshots.svg": ("snapshots", _by_snapshots),
    }
    return {file: make(curves[name]) for file, (name, make) in makers.items() if curves.get(name)}


def _lines(curves: Mapping[str, Any], names: Mapping[str, tuple[str, int, str]]) -> tuple[Series, ...]:
    return tuple(
        Series(title, tuple((float(x), float(y)) for x, y in curves[name]), colour, dashes)
        for name, (title, colour, dashes) in names.items()
        if curves.get(name)
    )


def _by_change(curves: Mapping[str, Any]) -> Plot:
    names = {
        f"{change} {view}": (f"{view}, {word}", int(view[1]), dashes)
        for change, word, dashes in (("append", "appended", ""), ("mixed", "scattered", "6 4"))
        for view in ("v0", "v1", "v2", "v3")
    }
    names["full"] = ("a full refresh", 4, "2 3")
    return Plot(
        "Incremental refresh by size of the change, SF 1, also where the plan chooses a full one",
        "changed rows of the base tables, %",
        "time divided by that of a full refresh",
        _lines(curves, names),
    )


def _by_data(curves: Mapping[str, Any]) -> Plot:
    names = {
        f"{way} {view}": (f"{view}, {word}", int(view[1]), dashes)
        for way, word, dashes in (
            ("append", "0.1 % appended", ""),
            ("mixed", "0.1 % scattered", "6 4"),
            ("full", "full", "2 3"),
        )
        for view in ("v1", "v3")
    }
    title = "A refresh after a change of 0.1 %, incremental and full"
    return Plot(title, "TPC-H scale factor", "seconds", _lines(curves, names))


def _by_views(curves: Mapping[str, Any]) -> Plot:
    names = {
        "empty cache": ("everything is read", 1, ""),
        "nothing has moved": ("nothing has moved", 0, ""),
        "moved": ("1 % of tables moved", 2, "6 4"),
    }
    return Plot("airflow-mv status --all, the whole process", "views", "seconds", _lines(curves, names))


def _by_snapshots(curves: Mapping[str, Any]) -> Plot:
    names = {"ours": ("airflow-mv", 0, ""), "theirs": ("pyiceberg's load_table", 1, "")}
    title = "The metadata of one base table is read"
    return Plot(title, "snapshots of the table", "milliseconds", _lines(curves, names))
