# SPDX-License-Identifier: Apache-2.0
"""The documents of all commands: snapshot ids are text, and errors are JSON. No Spark."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_mv.cli import main
from tests.builders import lake
from tests.cli.support import call, execute
from tests.engine.support import configure, reload_configuration

VIEW = "lake.sales.daily"
#: The largest integer up to which JavaScript represents every one.
_SAFE = 2**53
#: They need Spark, a registry or an Airflow; their documents contain those of other commands.
_NOT_CALLED = {"apply", "changes", "create", "diff", "export", "refresh", "registry", "demo"}


@pytest.fixture
def variables(tmp_path: Path) -> Iterator[dict[str, str]]:
    given = configure(tmp_path, "lake")
    yield given
    for name in given:
        del os.environ[name]
    reload_configuration()


def unsafe(document: Any, path: str = "") -> Iterator[str]:
    """Yield the places of numbers that lose digits in JavaScript."""
    pairs = (
        document.items() if isinstance(document, dict) else enumerate(document) if isinstance(document, list) else ()
    )
    for key, item in pairs:
        yield from unsafe(item, f"{path}/{key}")
    if isinstance(document, int) and abs(document) > _SAFE:
        yield path


def test_no_command_writes_a_number_that_other_programs_change(variables: dict[str, str], tmp_path: Path) -> None:
    """All commands, with refreshes in the history; the text of an id is the whole id."""
    with lake(variables["PYICEBERG_CATALOG__LAKE__URI"], tmp_path / "lake") as home:
        home.table()
        home.view(time_travel=True)
        first, _ = home.refresh(), home.append()
        home.refresh()
        home.append()
        calls = (
            *(("status", VIEW), ("plan", VIEW), ("history", VIEW), ("show", VIEW), ("pin", VIEW), ("explain", VIEW)),
            *(("costs", VIEW), ("timeline", VIEW), ("tables", "lake.sales.orders")),
            *(("impact", "lake.sales.orders", "--drop", "amount"), ("lag", VIEW)),
            *(("versions", VIEW), ("doctor", VIEW), ("repair", VIEW), ("verify", VIEW, "--files")),
            ("read", VIEW, "--refresh-id", first.refresh_id),
            ("maintain", VIEW, "--older-than", "0s"),
            *(("rollback", VIEW, "--to", first.refresh_id), ("convert", VIEW, "--layout", "registered")),
            ("drop", VIEW, "--yes"),
        )
        assert {name for name, *_ in calls} == set(main.commands) - _NOT_CALLED
        documents = {}
        refused = call("drop", VIEW, "--json", stdin="n\n")
        # The runner of older Clicks echoes the answer, and asks for it with a space.
        assert (refused.code, refused.stdout) in ((1, ""), (1, " n\n"))
        assert "Remove the view from the catalog? [y/N]" in refused.stderr
        for given in calls:
            ended = call(*given, "--json")
            documents[given[0]] = ended.json
            assert list(unsafe(ended.json)) == [], given
        assert documents["status"][0]["base_tables"][0]["current"] == str(home.head())
        assert isinstance(documents["status"][0]["base_tables"][0]["recorded"], str)


def test_a_locale_of_ascii_hides_nothing(variables: dict[str, str], tmp_path: Path) -> None:
    """JSON is UTF-8; in texts for people, characters that the terminal does not have are escaped."""
    ascii_only = {**variables, "PYTHONIOENCODING": "ascii"}
    with lake(variables["PYICEBERG_CATALOG__LAKE__URI"], tmp_path / "lake") as home:
        home.table()
        home.view("größe", comment="5 € each")
        text, document, unknown = (
            execute("status", *given, folder=tmp_path, variables=ascii_only)
            for given in (["lake.sales.größe"], ["lake.sales.größe", "--json"], ["lake.sales.höhe", "--json"])
        )
    assert (text.code, document.code) == (0, 0)
    assert "gr\\xf6\\xdfe" in text.stdout
    assert document.json[0]["view"] == "lake.sales.`größe`"
    assert "höhe" in unknown.error


@pytest.mark.parametrize(
    ("given", "code", "exit_code"),
    [
        (("status", "lake.sales.none"), "ViewNotFoundError", 1),
        (("status", "lake..none"), "InvalidIdentifierError", 2),
        (("status",), "UsageError", 2),
        (("history", VIEW, "--limit", "0"), "UsageError", 2),
        (("plan", VIEW, "--nothing"), "UsageError", 2),
    ],
)
def test_an_error_is_json_with_a_code(
    variables: dict[str, str], tmp_path: Path, given: tuple[str, ...], code: str, exit_code: int
) -> None:
    """Also where the call itself is wrong."""
    with lake(variables["PYICEBERG_CATALOG__LAKE__URI"], tmp_path / "lake"):
        ended = call(*given, "--json")
    (line,) = [line for line in ended.stderr.splitlines() if line.startswith("{")]
    error = json.loads(line)["error"]
    assert (error["code"], error["retryable"], ended.code) == (code, False, exit_code)
    assert error["message"]
