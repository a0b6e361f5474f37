# SPDX-License-Identifier: Apache-2.0
"""The report of all benchmarks: it shows what was measured and what was not, and the pages show the kept run."""

from __future__ import annotations

import json
import shutil
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from benchmarks.whole import pages
from benchmarks.whole.figures import MET, MISSED, UNKNOWN, figures
from benchmarks.whole.measured import load, measured
from benchmarks.whole.parts import PARTS, Part, documents, run_all
from benchmarks.whole.plots import plots

MACHINE = {"cores": 2, "memory_gib": 24, "load": [0.5], "python": "3.11", "packages": {}, "at": "2026-01-01T00:00:00"}


def cell(change: str, percent: float, view: str, seconds: float) -> dict[str, Any]:
    """What the benchmark of incremental refreshes keeps of a view whose full refresh takes ten seconds."""
    run = {"incremental": {"seconds": seconds}, "full": {"seconds": 10.0}}
    values = {"variant": "v2-mor", "change": change, "percent": percent, "view": view, "runs": [run]}
    return {**values, "ratio": seconds / 10, "chosen_ratio": min(seconds / 10, 1.0)}


def test_each_figure_stands_beside_its_target_and_the_alternative() -> None:
    cells = [cell("append", 0.1, "v1", 0.5), cell("append", 0.1, "v2", 0.7), cell("mixed", 0.1, "v1", 30.0)]
    found = {(item.group, item.what): item for item in figures({"incremental": {"cells": cells, "machine": MACHINE}})}
    shown = [found["0.1 % appended, SF 1, warm session", view] for view in ("v1", "v2", "v3")]
    assert [(item.measured, item.target, item.verdict, item.beside) for item in shown] == [
        ("0.50 s", "≤ 0.6 s", MET, "full: 10.00 s"),
        ("0.70 s", "≤ 0.6 s", MISSED, "full: 10.00 s"),
        ("-", "≤ 1 s", UNKNOWN, ""),
    ]


def test_without_any_figures_each_target_is_named_as_not_measured() -> None:
    text = pages.figures_table(measured({}, []))
    assert text.endswith(" 0 met, 0 missed, 50 not measured.")


def test_a_bad_cell_is_in_the_curves() -> None:
    cells = [cell("mixed", percent, "v1", seconds) for percent, seconds in ((0.1, 30.0), (50, 90.0))]
    found = measured({"incremental": {"cells": cells, "machine": MACHINE}}, [])
    assert found["curves"]["change"] == {"mixed v1": [(0.1, 3.0), (50, 9.0)], "full": [(0.1, 1.0), (50, 1.0)]}
    picture = plots(found["curves"])["cost-by-change-size.svg"].svg()
    assert picture.count("<circle") == 4
    assert ET.fromstring(picture).tag.endswith("svg")


def test_a_part_that_fails_loses_no_other_and_what_is_there_is_not_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No part is left out silently."""
    monkeypatch.setattr(sys, "executable", shutil.which("false"))
    names = ("full-refresh", "incremental", "incremental-lineage", "peers")
    for name in names[1:3]:
        (tmp_path / f"{name}.json").write_text(json.dumps({"cells": [name], "machine": MACHINE, "tables": name}))
    wanted = [Part(name, 1.0, ("demo",), name) for name in names]
    said: list[str] = []
    ended = run_all(wanted[:3], tmp_path, tmp_path, 5.0, said.append)
    ended += run_all(wanted[3:], tmp_path, tmp_path, 0.0, said.append)
    assert [bool(part.problem) for part in ended] == [True, False, False, True]
    assert ended[0].problem == "failed: it printed nothing"
    assert ended[3].problem == "left out: no time was left"
    assert len(said) == 4
    found = documents(tmp_path)["incremental"]
    assert found["cells"] == ["incremental", "incremental-lineage"]
    assert found["tables"] == "incremental\n\nincremental-lineage"


def test_each_part_is_a_benchmark() -> None:
    from benchmarks.__main__ import options_of

    for part in PARTS:
        assert options_of([*part.command(part.minutes), "--out", "x.json"]).command == part.words[0]


def test_the_pages_show_the_figures_of_the_kept_run() -> None:
    """They are written by ``python -m benchmarks all --pages``."""
    for (page, name), block in pages.blocks(load()).items():
        text = page.read_text(encoding="utf-8")
        assert pages.placed(text, name, block) == text


def test_a_run_of_some_parts_leaves_the_figures_of_the_readme() -> None:
    found = measured({"starts": {"help": [0.2], "machine": MACHINE}}, [])
    assert pages.README not in {page for page, _ in pages.blocks(found)}
    shown = [{**figure, "verdict": MET} for figure in found["figures"]]
    block = pages.blocks({**found, "figures": shown})[pages.README, "figures"]
    assert "`--help` 0.20 s" in pages.placed(pages.README.read_text(encoding="utf-8"), "figures", block)


def test_the_plots_show_the_curves_of_the_kept_run() -> None:
    for file, plot in plots(load()["curves"]).items():
        assert (pages.IMAGES / file).read_text(encoding="utf-8") == plot.svg()
