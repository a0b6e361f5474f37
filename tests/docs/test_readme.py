# SPDX-License-Identifier: Apache-2.0
"""The documentation agrees with the code."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from airflow_mv.cli import main

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
HEADS = [
    ROOT / name
    for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "docker/README.md", "dags_examples/README.md")
]
PAGES = [*HEADS, *sorted((ROOT / "docs").rglob("*.md"))]


def test_the_dag_in_the_readme_is_the_example_that_the_tests_run() -> None:
    (file, shown), *others = re.findall(r"<!-- dag: (\S+) -->\n```python\n(.*?)```", README, re.DOTALL)
    assert not others
    assert (ROOT / file).read_text(encoding="utf-8").endswith("\n\n" + shown)


def test_the_table_in_the_readme_is_the_one_that_its_dag_reads(tmp_path: Path) -> None:
    (code,) = re.findall(r"<!-- table -->\n```python\n(.*?)```", README, re.DOTALL)
    exec(code.replace("/abs", str(tmp_path)), {})
    named = {"TYPE": "sql", "URI": f"sqlite:///{tmp_path}/catalog.db", "WAREHOUSE": f"file://{tmp_path}/warehouse"}
    configured = {f"PYICEBERG_CATALOG__LAKE__{key}": value for key, value in named.items()}
    (sql,) = re.findall(r'sql="(.*?)"', README)
    command = [Path(sys.executable).parent / "airflow-mv", "explain", "lake.sales.daily", "--sql", sql]
    done = subprocess.run(command, env={**os.environ, **configured}, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert "lake.sales.orders" in done.stdout


def test_every_documented_command_exists_with_its_options() -> None:
    texts = [(page, page.read_text(encoding="utf-8")) for page in PAGES]
    named = [(page, text) for page, all_text in texts for text in re.findall(r"airflow-mv ([a-z][^`\n|]*)", all_text)]
    assert len(named) > 100
    assert [(page.name, text, wrong) for page, text in named if (wrong := unknown_in(text))] == []


def unknown_in(text: str) -> list[str]:
    """Return what is no command or no option of it, in a command line without its first word."""
    command: click.Command = main
    words = text.partition("airflow-mv ")[0].split()
    while isinstance(command, click.Group) and words and words[0] in command.commands:
        command = command.commands[words.pop(0)]
    known = {name for item in command.params for name in (*item.opts, *item.secondary_opts)} | {"--help"}
    options = [word for word in re.findall(r"(?<![\w-])--[a-z][\w-]*", " ".join(words)) if word not in known]
    return words[:1] if command is main else options


def test_the_readme_lists_every_command() -> None:
    (table,) = re.findall(r"(?ms)^\| command \| does \|\n(.*?)\n\n", README)
    listed = {name for cell in re.findall(r"(?m)^\| (`.*?) \|", table) for name in re.findall(r"`(\w+)`", cell)}
    assert listed == set(main.commands) - {"demo"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_inside_the_repository_are_valid(page: Path) -> None:
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text(encoding="utf-8"))
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_every_invariant_names_an_existing_test_with_its_number() -> None:
    """They are numbered without gaps, and no test has another number."""
    page = ROOT / "docs" / "invariants.md"
    named = re.findall(r"(?m)^\| (\d+) \|.*\[`test_i(\d\d)(\w+)`\]\((\S+)\)", page.read_text(encoding="utf-8"))
    assert [int(number) for number, *_ in named] == list(range(1, len(named) + 1))
    assert len(named) >= 27
    for number, numbered, rest, file in named:
        assert int(number) == int(numbered)
        assert f"def test_i{numbered}{rest}(" in (page.parent / file).read_text(encoding="utf-8")


def test_every_statement_of_the_source_documents_names_existing_tests_or_what_is_missing() -> None:
    """They are numbered. What works has a test, what is typed exists, and for the rest the page says why."""
    page = ROOT / "docs" / "source-documents.md"
    head, *documents = re.split(r"(?m)^## ", page.read_text(encoding="utf-8"))
    counts = re.findall(r"(?m)^\| \[(.+?)\]\(.+?\) \| (\d+) \|$", head)
    assert sum(int(total) for _, total in counts) == 77
    for text, (title, total) in zip(documents, counts, strict=True):
        assert text.startswith(title + "\n")
        rows = re.findall(
            r"(?m)^\| (\d+) \| .+? \| ([^|]+?) \| (works|(?:in|by|as) [^|]+|inside|not) \| (.+) \|$", text
        )
        assert [int(number) for number, *_ in rows] == list(range(1, int(total) + 1))
        for number, typed, state, shown in rows:
            commands = [one or two for one, two in re.findall(r"``([a-z].*?)``|`([a-z][^`]*)`", typed)]
            assert [command for command in commands if unknown_in(command)] == [], (title, number)
            assert commands or state != "works" or typed in _NOT_TYPED, (title, number)
            tests = re.findall(r"\[`(test_\w+)`\]\((\S+?)\)", shown)
            for test, file in tests:
                assert f"def {test}(" in (page.parent / file).read_text(encoding="utf-8"), (title, number)
            missing = re.sub(r"\[`test_\w+`\]\(\S+?\)[,. ]*", "", shown)
            assert tests if state == "works" else missing, (title, number)


#: What a user sees without a command of this package.
_NOT_TYPED = ("nothing", "both in one query", "the engine's own SQL", "the engine's time travel over the table")


def test_each_example_dag_is_in_the_table_of_examples() -> None:
    folder = ROOT / "dags_examples"
    listed = re.findall(r"(?m)^\| \[`\S+`\]\((\S+)\) \|", (folder / "README.md").read_text(encoding="utf-8"))
    assert sorted(listed) == sorted([*(file.name for file in folder.glob("*.py")), "managed_spark"])


def test_the_demos_page_shows_the_tasks_that_its_dag_has() -> None:
    from examples.demo.dags.nyc_flights import dag

    shown = re.findall(r"(?m)^    ✓ (\w+) +\d+\.\d s$", (ROOT / "docs" / "demo.md").read_text(encoding="utf-8"))
    assert sorted(shown) == sorted(dag.task_ids), "run `make docs-demo`"


def test_no_placeholder_is_left() -> None:
    assert not re.search(r"```\n```", README)
    assert "<!-- numbers -->" not in README


@pytest.mark.parametrize("group", [main, main.commands["registry"]], ids=["all", "registry"])
def test_the_list_of_commands_shows_whole_sentences(group: click.Group) -> None:
    """click cuts a first sentence that is longer than a line."""
    shown = CliRunner().invoke(group, ["--help"]).output.partition("Commands:")[2]
    assert shown
    assert "..." not in shown
