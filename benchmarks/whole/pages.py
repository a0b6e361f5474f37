# SPDX-License-Identifier: Apache-2.0
"""The tables of a whole run, and their places in the pages."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from benchmarks import report
from benchmarks.whole.figures import MISSED, UNKNOWN
from benchmarks.whole.plots import plots

_ROOT = Path(__file__).parents[2]
README = _ROOT / "README.md"
IMAGES = _ROOT / "docs" / "images"
#: The same, as a page of this folder names it.
_IMAGES = "../docs/images"
#: The groups of figures that the README has, too.
SHORT = (
    "A full refresh, SF 1: overhead over the bare statement",
    "0.1 % appended, SF 1, warm session",
    "0.1 % appended, SF 10: speed-up over a full refresh",
    "0.1 % scattered, SF 10, v2-mor: fraction of a full refresh",
    "Twenty small views in one Spark application",
    "`airflow-mv status --all`, 10,000 views, nothing moved",
    "Commands",
)

Measured = Mapping[str, Any]


def figures_table(measured: Measured) -> str:
    """Return all figures beside their targets, and a line that counts them."""
    rows: list[tuple[str, ...]] = []
    for group, found in groupby(measured["figures"], key=lambda figure: figure["group"]):
        rows.append((f"**{group}**", "", "", "", ""))
        rows += [tuple(item[key] for key in ("what", "measured", "target", "verdict", "beside")) for item in found]
    return f"{report.table(('', 'measured', 'target', '', 'for comparison'), rows)}\n\n{_counts(measured)}"


def _counts(measured: Measured) -> str:
    verdicts = [figure["verdict"] for figure in measured["figures"] if figure["target"] != "-"]
    missed, unknown = verdicts.count(MISSED), verdicts.count(UNKNOWN)
    return f"{len(verdicts)} targets: {len(verdicts) - missed - unknown} met, {missed} missed, {unknown} not measured."


def parts_lines(measured: Measured) -> str:
    """Return what took how long, and what has no figures."""
    took = sum(part["minutes"] for part in measured["parts"])
    lines = [f"- {part['part']}: {part['problem']}" for part in measured["parts"] if part["problem"]]
    return "\n".join([f"{len(measured['parts'])} parts, {took:.0f} minutes.", *lines])


def machine_line(measured: Measured) -> str:
    """Return what it was measured on."""
    facts = measured["machine"]
    if not facts:
        return "Nothing was measured."
    packages = ", ".join(f"{name} {number}" for name, number in facts["packages"].items())
    machine = f"{facts['cores']} cores, {facts['memory_gib']} GiB, load {facts['load'][0]} before"
    return f"`make bench` on {facts['at'][:10]}: {machine}; Python {facts['python']}, {packages}."


def short_table(measured: Measured) -> str:
    """Return the README's figures: a line for each of some groups."""
    rows = []
    for group, found in groupby(measured["figures"], key=lambda figure: figure["group"]):
        items = list(found)
        if group in SHORT:
            rows.append((group, *(_joined(items, key) for key in ("measured", "target", "beside"))))
    return f"{report.table(('', 'measured', 'target', 'for comparison'), rows)}\n\n{_counts(measured)}"


def _joined(found: Sequence[Mapping[str, str]], key: str) -> str:
    """Return one value of a group's figures: what was measured of each with its name; else once if all agree."""
    if key != "measured":
        texts = [item[key] for item in found if item[key]]
        return ", ".join(dict.fromkeys(texts) if len(set(texts)) == 1 else texts)
    return ", ".join(
        f"{item['what']} {item[key]}" + (f" {MISSED}" if item["verdict"] == MISSED else "") for item in found
    )


#: The plot that the README has, too.
_FIRST = "cost-by-change-size.svg"


def pictures(measured: Measured, folder: str, names: Sequence[str] | None = None) -> str:
    """Return the links to the plots that there are curves for, from a page with this way to the pictures' folder."""
    found = plots(measured["curves"])
    return "\n\n".join(f"![{found[name].title}]({folder}/{name})" for name in names or found if name in found)


def blocks(measured: Measured) -> dict[tuple[Path, str], str]:
    """Return the text for each marked place of each page. The README's figures are replaced by a whole run only."""
    page = _ROOT / "benchmarks" / "README.md"
    whole = (f"{machine_line(measured)} {parts_lines(measured)}", figures_table(measured), pictures(measured, _IMAGES))
    text = page.read_text(encoding="utf-8")
    found = {(page, name): block for name, block in measured["tables"].items() if f"<!-- {name} -->" in text}
    found[page, "whole"] = "\n\n".join(filter(None, whole))
    if {figure["group"] for figure in measured["figures"] if figure["verdict"] != UNKNOWN}.issuperset(SHORT):
        short = (
            machine_line(measured),
            short_table(measured),
            pictures(measured, _IMAGES.removeprefix("../"), (_FIRST,)),
        )
        found[README, "figures"] = "\n\n".join(filter(None, short))
    return found


def placed(text: str, name: str, block: str) -> str:
    """Return a page with a block between the markers of this name.

    Raises:
        ValueError: The page has no such markers.
    """
    pattern = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
    if len(pattern.findall(text)) != 1:
        raise ValueError(f"a page needs the markers <!-- {name} --> and <!-- /{name} --> once")
    return pattern.sub(lambda found: f"{found[1]}{block}\n{found[2]}", text)


def write(measured: Measured) -> list[Path]:
    """Write all blocks and plots, and return the files."""
    files = []
    for (page, name), block in blocks(measured).items():
        page.write_text(placed(page.read_text(encoding="utf-8"), name, block), encoding="utf-8")
        files.append(page)
    for name, plot in plots(measured["curves"]).items():
        (IMAGES / name).write_text(plot.svg(), encoding="utf-8")
        files.append(IMAGES / name)
    return files
