# SPDX-License-Identifier: Apache-2.0
"""The documentation's site builds without a warning and loads nothing from other hosts."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from urllib.parse import unquote

import pytest

ROOT = Path(__file__).parents[2]
REPOSITORY = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]["Repository"]
BROKEN = ("[x](missing.md)", "[x](layouts.md#missing)", "[x](../tests/missing.py)")


def build(target: Path, config: Path = ROOT / ".ci" / "mkdocs.yml") -> subprocess.CompletedProcess[str]:
    """Build the site with warnings as errors, as configured."""
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--config-file", config, "--site-dir", target],
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The HTML of each page by its path."""
    pytest.importorskip("mkdocs", reason="the docs extra is not installed: run `make setup`")
    target = tmp_path_factory.mktemp("site")
    done = build(target)
    assert done.returncode == 0, done.stdout + done.stderr
    return {path.relative_to(target).as_posix(): path.read_text(encoding="utf-8") for path in target.rglob("*.html")}


def test_every_page_of_the_docs_is_on_the_site(site: dict[str, str]) -> None:
    pages = {path.relative_to(ROOT / "docs").with_suffix(".html").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    pages = {page.replace("README.html", "index.html") for page in pages}
    assert pages | {"index.html", "contributing.html", "reference/command-line.html"} <= set(site)


def test_a_page_loads_nothing_from_another_host(site: dict[str, str]) -> None:
    """A reader's browser must not contact third parties for fonts, scripts, styles or images."""
    loading = re.compile(
        r"<(?:script|link|img|iframe|source|video)\b[^>]*?\b(?:src|href)=[\"']?((?:https?:)?//[^\"'\s>]+)"
    )
    assert {page: found for page, text in site.items() if (found := loading.findall(text))} == {}


def test_a_link_to_the_repository_leads_to_an_existing_file(site: dict[str, str]) -> None:
    """The build makes such links of relative ones; only this test compares them with the repository."""
    link = re.compile(re.escape(REPOSITORY) + r"/(blob|tree)/main/([^\"#]+)")
    found = {(kind, unquote(path)) for text in site.values() for kind, path in link.findall(text)}
    assert ("blob", "tests/protocol/test_simulation.py") in found
    assert [
        path for kind, path in found if not (ROOT / path).exists() or (ROOT / path).is_dir() != (kind == "tree")
    ] == []


def test_a_broken_link_fails_the_build(tmp_path: Path) -> None:
    """The configuration is used with a small folder of pages in place of docs/."""
    pytest.importorskip("mkdocs", reason="the docs extra is not installed: run `make setup`")
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "page.md").write_text(f"# Page\n\n{' '.join(BROKEN)}\n", encoding="utf-8")
    (tmp_path / "docs" / "layouts.md").write_text("# Layouts\n", encoding="utf-8")
    text = (ROOT / ".ci" / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:")[0]
    text = re.sub(r"docs_dir: .*", f"docs_dir: {tmp_path}/docs", text)
    text = text.replace("- mkdocs_hooks.py", f"- {ROOT}/.ci/mkdocs_hooks.py")
    (tmp_path / "mkdocs.yml").write_text(text, encoding="utf-8")
    done = build(tmp_path / "site", tmp_path / "mkdocs.yml")
    assert done.returncode == 1
    said = done.stdout + done.stderr
    assert f"Aborted with {len(BROKEN)} warnings" in said
    assert [link for link in BROKEN if link[4:-1] not in said] == []
