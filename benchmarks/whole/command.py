# SPDX-License-Identifier: Apache-2.0
"""All benchmarks that have targets, in one run: each figure beside its target and the alternative."""

from __future__ import annotations

import argparse
import json
import signal
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.whole import pages
from benchmarks.whole.measured import FILE, load, measured
from benchmarks.whole.parts import PARTS, documents, run_all


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--minutes", type=float, default=40.0, metavar="M", help="begin no part after so many minutes")
    parser.add_argument("--parts", nargs="+", choices=[part.name for part in PARTS], help="only these parts")
    parser.add_argument("--keep", action="store_true", help=f"write {FILE.name}, the pages' tables and the plots")
    parser.add_argument("--pages", action="store_true", help=f"measure nothing: write them from {FILE.name}")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Run the parts, print the tables, return what is kept of them.

    ``--out`` names a folder here. A part whose figures are there is not run again.
    """
    if options.pages:
        pages.write(load())
        return load()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the part that runs is ended, too
    folder = options.out or options.cache / f"whole-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    options.out = folder / "measured.json"
    chosen = [part for part in PARTS if options.parts is None or part.name in options.parts]
    ended = run_all(
        chosen, folder, options.cache, options.minutes, lambda line: print(line, file=sys.stderr, flush=True)
    )
    found = measured(documents(folder), ended)
    print(_text(found))
    if options.keep:
        FILE.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        for file in dict.fromkeys(pages.write(found)):
            print(f"Written: {file.relative_to(Path.cwd()) if file.is_relative_to(Path.cwd()) else file}")
    return found


def _text(found: dict[str, Any]) -> str:
    parts = (pages.machine_line(found), pages.parts_lines(found), pages.figures_table(found))
    return "\n\n".join((*parts, found["tables"].get("peers", "The tools were not compared.")))
