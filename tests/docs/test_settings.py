# SPDX-License-Identifier: Apache-2.0
"""The page of settings names every setting that the code reads, with the default and limits of the code."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import airflow_mv
from airflow_mv.core.catalog.configured import DEFAULT_TIMEOUT
from airflow_mv.core.spec.properties import DEFAULT_MAX_COUNT, REFRESH_STATES, Policy
from airflow_mv.provider_info import get_provider_info

SOURCE = Path(airflow_mv.__file__).parent
PAGE = SOURCE.parent / "docs" / "reference" / "settings.md"
#: Keys that only this package writes.
OWN = {
    *(
        "storage-table",
        "storage-table-uuid",
        "storage-table-folder",
        "storage-of",
        "definition",
        "definition-id",
        "creation-id",
        "partitioning",
        "adopted",
        "registry-component",
        "refresh-log",
    ),
    *("refresh-id", "complete", "fallback", "change-id"),
}


def rows(heading: str) -> Iterator[list[str]]:
    part = PAGE.read_text().split(f"## {heading}\n", 1)[1].split("\n## ", 1)[0]
    for line in re.findall(r"(?m)^\| (.*) \|$", part)[1:]:
        yield [cell.strip("`") for cell in line.split(" | ")]


def test_every_property_that_is_read_is_on_the_page() -> None:
    texts = [path.read_text() for path in SOURCE.rglob("*.py")]
    read = {key for text in texts for key in re.findall(r'"airflow-mv\.([a-z.-]+)"', text)} - OWN
    listed = [row[0] for heading in ("View properties", "Catalog properties") for row in rows(heading)]
    assert sorted(listed) == sorted(f"airflow-mv.{key}{'KEY' if key.endswith('.') else ''}" for key in read)


def test_the_defaults_on_the_page_are_those_of_the_code() -> None:
    policy = Policy()
    shown = {row[0].removeprefix("airflow-mv."): row[1] for row in rows("View properties")}
    assert int(shown["history.max-count"]) == DEFAULT_MAX_COUNT
    assert float(shown["incremental-up-to"]) == policy.up_to
    assert shown["on-fallback"] == policy.on_fallback
    assert shown["refresh-state"] == REFRESH_STATES[0]
    assert [float(row[1]) for row in rows("Catalog properties") if "response-timeout" in row[0]] == [DEFAULT_TIMEOUT]
    options = get_provider_info()["config"]["airflow_mv"]["options"]
    documented = {row[0]: "" if row[1] == "none" else row[1] for row in rows("Airflow options")}
    assert documented == {name: option["default"] for name, option in options.items()}


def test_the_numbers_on_the_page_are_those_of_the_code() -> None:
    for _, value, place in rows("Fixed numbers"):
        module, _, name = place.rpartition(".")
        assert getattr(import_module(f"airflow_mv.{module}"), name) == float(value), place
