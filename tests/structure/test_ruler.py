# SPDX-License-Identifier: Apache-2.0
"""The way of a command through the package is short, and CONTRIBUTING.md describes it completely.

``make ruler`` prints the figures. A count may fall: then the number here and the list in CONTRIBUTING.md follow.
"""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
#: The most files that each walk enters, and the most moves from one file to another.
LIMITS = {
    "core": {
        "create": (28, 221),
        "status": (18, 115),
        "refresh": (32, 367),
        "incremental plan": (42, 629),
    },
    "cli": {
        "airflow-mv create": (62, 1508),
        "airflow-mv status": (32, 195),
        "airflow-mv refresh": (55, 600),
        "airflow-mv refresh, incremental": (77, 1198),
    },
    "operator": {"operator": (65, 611)},
}
#: The most public methods of a class, properties included.
MAX_METHODS = 25
#: Files that every walk enters and no list has to name: values, names and texts.
FOUNDATION = frozenset(
    f"airflow_mv/{name}.py"
    for name in (
        *("foundation/redaction", "version"),
        *("core/spec/identifiers", "core/spec/stored", "core/spec/times", "core/spec/units", "core/spec/reasons"),
    )
)


@cache
def walked(kind: str, folder: Path) -> dict[str, dict[str, Any]]:
    """Run the walks of one kind in a new process; return what each entered."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    folder = folder / kind
    folder.mkdir()
    done = subprocess.run(
        [sys.executable, "-m", "tests.structure.walks", kind, str(folder)],
        cwd=ROOT,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"walk"')]
    return {line["walk"]: line for line in lines}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("walks")


def listed(walk: str) -> set[str]:
    """Return the files whose lines a section of CONTRIBUTING.md has."""
    (section,) = re.findall(rf"<!-- walk: {walk} -->(.*?)<!-- end -->", CONTRIBUTING, re.DOTALL)
    return set(re.findall(r"(?m)^(?:\d+\.|-) `(airflow_mv/[\w/.]+\.py)`", section))


@pytest.mark.parametrize("kind", ["core", "cli", pytest.param("operator", marks=pytest.mark.airflow)])
def test_no_walk_gets_longer(kind: str, folder: Path) -> None:
    found = {name: (len(walk["files"]), walk["moves"]) for name, walk in walked(kind, folder).items()}
    for name, (files, moves) in found.items():
        print(f"{name}: {files} files, {moves} moves")
    assert found.keys() == LIMITS[kind].keys()
    longer = {name: most for name, most in LIMITS[kind].items() if found[name][0] > most[0] or found[name][1] > most[1]}
    assert longer == {}


@pytest.mark.parametrize("command", ["refresh", "status"])
def test_the_files_that_a_command_enters_are_those_that_the_guide_lists(command: str, folder: Path) -> None:
    entered = set(walked("cli", folder)[f"airflow-mv {command}"]["files"])
    names = listed(command)
    assert entered - names - FOUNDATION == set()
    assert names - entered == set()


def test_the_foundation_is_small_and_is_entered(folder: Path) -> None:
    walks = walked("cli", folder).values()
    assert len(FOUNDATION) <= 10
    assert {file for walk in walks for file in walk["files"]} >= FOUNDATION


def test_no_class_has_more_public_methods_than_its_limit() -> None:
    """A class with more is several things: a catalog's tables, folders and pointers are classes of their own."""
    found = {
        f"{path.relative_to(ROOT)}: {item.name}": len(names)
        for path in (ROOT / "airflow_mv").rglob("*.py")
        for item in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(item, ast.ClassDef)
        if len(names := [one for one in item.body if _is_public_method(one)]) > MAX_METHODS
    }
    assert found == {}


def _is_public_method(item: ast.stmt) -> bool:
    return isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef) and not item.name.startswith("_")
