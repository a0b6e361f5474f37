# SPDX-License-Identifier: Apache-2.0
"""The guide for contributors is correct: the walks through the code, the layers, the codes."""

from __future__ import annotations

import inspect
import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from airflow_mv import errors
from airflow_mv.freshness.status import statuses
from airflow_mv.spec.reasons import Code
from tests.builders import Lake, lake

ROOT = Path(__file__).parents[2]
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
#: Only the command line and a real Spark session enter these files.
_NOT_WALKED = ("airflow_mv/job/", "airflow_mv/cli/", "airflow_mv/refresh/stagers.py")


def listed(walk: str) -> list[str]:
    """Return the files of an ordered list of CONTRIBUTING.md."""
    (section,) = re.findall(rf"<!-- walk: {walk} -->(.*?)<!-- end -->", CONTRIBUTING, re.DOTALL)
    return re.findall(r"(?m)^\d+\. `([\w/.]+)`", section)


@contextmanager
def entered() -> Iterator[set[str]]:
    """Collect the files of the package in which a function is called."""
    files: set[str] = set()

    def note(frame: FrameType, event: str, _: Any) -> None:
        name = frame.f_code.co_filename
        # Code without fast locals is that of modules and classes: it runs when a file is imported.
        if event == "call" and "/airflow_mv/" in name and frame.f_code.co_flags & inspect.CO_OPTIMIZED:
            files.add(f"airflow_mv/{name.rpartition('/airflow_mv/')[2]}")

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        yield files
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


@pytest.fixture
def home(sqlite_uri: str, warehouse: Path) -> Iterator[Lake]:
    with lake(sqlite_uri, warehouse) as found:
        found.table()
        found.view()
        yield found


def read_status(home: Lake) -> bool:
    (document,) = statuses(home.catalog, [home.catalog.identify("sales.daily")])
    return bool(document["state"] == "never-refreshed")


@pytest.mark.parametrize(
    ("walk", "most", "act"),
    [
        ("refresh", 21, lambda home: home.refresh().outcome == "refreshed"),
        ("status", 9, read_status),
    ],
)
def test_the_listed_files_are_few_and_are_entered(
    home: Lake, walk: str, most: int, act: Callable[[Lake], bool]
) -> None:
    files = listed(walk)
    assert 1 < len(files) <= most
    assert [file for file in files if not (ROOT / file).is_file()] == []
    with entered() as seen:
        assert act(home)
    assert [file for file in files if file not in seen and not file.startswith(_NOT_WALKED)] == []


def test_every_file_that_it_names_exists() -> None:
    named = re.findall(r"`((?:airflow_mv|tests|docs|examples)/[\w/.]*\w)`", CONTRIBUTING)
    assert named
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_the_documented_layers_are_the_enforced_layers_and_few() -> None:
    layers = re.findall(
        r'(?m)^    "(.*)",$',
        (ROOT / "pyproject.toml").read_text(encoding="utf-8").partition("layers = [")[2].partition("]")[0],
    )
    enforced = [re.findall(r"\w+", layer) for layer in layers]
    assert len(enforced) <= 9
    (shown,) = re.findall(r"```\n(cli.*?)```", CONTRIBUTING, re.DOTALL)
    assert [re.findall(r"\w+", line) for line in shown.splitlines()] == [
        [name for name in layer if name != "provider_info"] for layer in enforced
    ]


def explained(heading: str) -> dict[str, str]:
    """Return what to do by code, class or message, as docs/messages.md says it below a heading."""
    text = (ROOT / "docs" / "messages.md").read_text(encoding="utf-8").partition(f"\n## {heading}\n")[2]
    rows = re.findall(r"(?m)^\| (`.*?`) \|.*\| ([^|]*) \|$", text.partition("\n## ")[0])
    return {name: what_to_do for names, what_to_do in rows for name in re.findall(r"`([^`]+)`", names)}


def test_every_reason_and_every_error_is_explained_with_what_to_do() -> None:
    reasons, classes = explained("Reasons"), explained("Errors")
    assert set(reasons) == {str(code) for code in Code}
    own = {name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, Exception)}
    assert set(classes) == own
    assert [name for name, what_to_do in {**reasons, **classes}.items() if not what_to_do] == []


def test_the_frequent_messages_are_in_the_code() -> None:
    source = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "airflow_mv").rglob("*.py"))
    assert [message for message in explained("Frequent messages") if message not in source] == []


def test_the_glossary_is_in_alphabetical_order() -> None:
    text = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    terms = [line.split("|")[1].strip().lower() for line in text.splitlines() if line.startswith("| ")][1:]
    keys = [re.sub(r"[^a-z]", " ", term) for term in terms]
    assert keys == sorted(keys)
