# SPDX-License-Identifier: Apache-2.0
"""The pages in docs/reference are those that `make docs-reference` writes, and read well on GitHub."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from airflow_mv import errors

ROOT = Path(__file__).parents[2]
PAGES = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "docs" / "reference").glob("*.md")}
PUBLIC = ("airflow_mv.operators", "airflow_mv.sensors", "airflow_mv.triggers", "airflow_mv.dags")


def test_the_pages_are_as_new() -> None:
    pytest.importorskip("griffe", reason="the docs extra is not installed: run `make setup`")
    command = [sys.executable, ROOT / ".ci" / "reference.py", "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, f"run `make docs-reference`, these pages are stale:\n{done.stdout}{done.stderr}"


def test_no_directive_and_no_role_is_left() -> None:
    for name, text in PAGES.items():
        assert (
            re.findall(r"^:::.*|:(?:class|func|meth|mod|attr|data):`.*|``[^`\n]+``(?!`)", text, re.MULTILINE) == []
        ), name


@pytest.mark.parametrize("module", PUBLIC)
def test_every_public_name_and_argument_is_in_the_reference(module: str) -> None:
    source = Path(str(import_module(module).__file__)).read_text(encoding="utf-8")
    names = re.findall(r"import (\w+) as \1", source)
    assert names
    assert [name for name in names if f'<a id="{module}.{name}"></a>' not in "".join(PAGES.values())] == []


def test_every_error_is_in_the_reference() -> None:
    names = [name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, Exception)]
    assert [name for name in names if f'<a id="airflow_mv.errors.{name}"></a>' not in PAGES["errors.md"]] == []
