# SPDX-License-Identifier: Apache-2.0
"""The documentation agrees with the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from airflow_mv.cli import main

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
HEADS = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "docker/README.md")]
PAGES = [*HEADS, *sorted((ROOT / "docs").rglob("*.md"))]


def test_the_dag_in_the_readme_is_the_example_that_the_tests_run() -> None:
    (file, shown), *others = re.findall(r"<!-- dag: (\S+) -->\n```python\n(.*?)```", README, re.DOTALL)
    assert not others
    assert (ROOT / file).read_text(encoding="utf-8").endswith("\n\n" + shown)


def test_every_command_in_the_readme_exists_with_its_options() -> None:
    for name, rest in re.findall(r"(?m)^airflow-mv (\w+)(.*)$", README):
        command = main.commands[name]
        known = {option for parameter in command.params for option in parameter.opts}
        assert set(re.findall(r"--[\w-]+", rest)) <= known
    (table,) = re.findall(r"(?ms)^\| command \| does \|\n(.*?)\n\n", README)
    listed = {name for cell in re.findall(r"(?m)^\| (`.*?) \|", table) for name in re.findall(r"`(\w+)`", cell)}
    assert listed == set(main.commands) - {"demo"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_inside_the_repository_are_valid(page: Path) -> None:
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text(encoding="utf-8"))
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_every_invariant_names_an_existing_test_with_its_number() -> None:
    """All 26 occur once, and no test has another number."""
    page = ROOT / "docs" / "invariants.md"
    named = re.findall(r"(?m)^\| (\d+) \|.*\[`test_i(\d\d)(\w+)`\]\((\S+)\)", page.read_text(encoding="utf-8"))
    assert [int(number) for number, *_ in named] == list(range(1, 27))
    for number, numbered, rest, file in named:
        assert int(number) == int(numbered)
        assert f"def test_i{numbered}{rest}(" in (page.parent / file).read_text(encoding="utf-8")


def test_every_statement_of_the_source_documents_names_existing_tests_or_what_is_missing() -> None:
    """The 70 statements are numbered without gaps. What works has a test; for the rest the page says why not."""
    page = ROOT / "docs" / "source-documents.md"
    head, *documents = re.split(r"(?m)^## ", page.read_text(encoding="utf-8"))
    counts = re.findall(r"(?m)^\| \[(.+?)\]\(.+?\) \| (\d+) \|$", head)
    assert sum(int(total) for _, total in counts) == 70
    for text, (title, total) in zip(documents, counts, strict=True):
        assert text.startswith(title + "\n")
        rows = re.findall(r"(?m)^\| (\d+) \| .+ \| (works|partly|not) \| (.+) \|$", text)
        assert [int(number) for number, *_ in rows] == list(range(1, int(total) + 1))
        for number, state, shown in rows:
            tests = re.findall(r"\[`(test_\w+)`\]\((\S+?)\)", shown)
            for test, file in tests:
                assert f"def {test}(" in (page.parent / file).read_text(encoding="utf-8"), (title, number)
            missing = re.sub(r"\[`test_\w+`\]\(\S+?\)[,. ]*", "", shown)
            assert tests if state == "works" else missing, (title, number)


def test_no_placeholder_is_left() -> None:
    assert not re.search(r"```\n```", README)
    assert "<!-- numbers -->" not in README
