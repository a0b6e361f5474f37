# SPDX-License-Identifier: Apache-2.0
"""The engines that a view's owner names decide how its rows are written, or the view is refused."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_mv.core.define.definition import Definition
from airflow_mv.errors import ConfigurationError, UnsupportedError
from airflow_mv.extras.readers import READERS, for_readers

PAGE = Path(__file__).parents[2] / "docs" / "reading.md"
MODES = {f"airflow-mv.storage.write.{change}.mode": "copy-on-write" for change in ("delete", "update", "merge")}
VERSION_3 = {"airflow-mv.storage.format-version": "3"}


def defined(given: dict[str, str], **catalog: str) -> dict[str, str]:
    """The properties of a definition for its readers."""
    properties: Any = SimpleNamespace(properties={key.replace("_", "-"): value for key, value in catalog.items()})
    return dict(for_readers(Definition("SELECT 1", properties=given), properties, "lake.sales.daily").properties)


def test_without_readers_nothing_is_changed() -> None:
    assert defined({"owner": "sales", **VERSION_3}) == {"owner": "sales", **VERSION_3}


def test_an_engine_that_ignores_deletes_makes_refreshes_write_whole_files() -> None:
    given = {"airflow-mv.readers": "DuckDB, databricks"}
    assert defined(given) == {**given, **MODES}
    assert defined(defined(given)) == defined(given)


def test_engines_that_read_deletes_change_nothing_else() -> None:
    given = {"airflow-mv.readers": "duckdb,polars", **VERSION_3}
    assert defined(given) == given


def test_the_catalog_s_engines_are_the_default() -> None:
    default = {"airflow-mv.default_readers": "databricks"}
    assert defined({}, **default) == {"airflow-mv.readers": "databricks", **MODES}
    assert defined({"airflow-mv.readers": "spark"}, **default) == {"airflow-mv.readers": "spark"}


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (
            {"airflow-mv.readers": "duckdbb"},
            ConfigurationError,
            r"'duckdbb' is not a known engine; did you mean 'duckdb'",
        ),
        ({"airflow-mv.readers": "x"}, ConfigurationError, r"there are: arrow, athena"),
        ({"airflow-mv.readers": "spark, daft", **VERSION_3}, UnsupportedError, r"daft .* cannot read format version 3"),
        (
            {"airflow-mv.readers": "databricks", "airflow-mv.storage.write.merge.mode": "merge-on-read"},
            UnsupportedError,
            r"databricks .*write\.merge\.mode is merge-on-read",
        ),
    ],
)
def test_what_an_engine_cannot_read_is_refused(given: dict[str, str], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        defined(given)


def test_the_page_says_the_same_of_each_engine() -> None:
    part = PAGE.read_text().split("\n## Engines\n", 1)[1].split("\n## ", 1)[0]
    rows = re.findall(r"(?m)^\| `(\w+)`[^|]*\| [^|]+ \| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", part)
    assert [name for name, *_ in rows] == list(READERS)
    for name, positions, vectors, whole in rows:
        assert (positions != "no") == READERS[name].deletes, name
        assert (vectors == "yes") == (READERS[name].format_version == 3), name
        assert whole == "yes"
