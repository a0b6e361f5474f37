# SPDX-License-Identifier: Apache-2.0
"""Each block of Python in ``docs/reading.md`` runs as it stands there, and finds the rows of the view."""

from __future__ import annotations

import os
import re
import subprocess
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.builders import Lake, lake
from tests.engine.support import configure, reload_configuration
from tests.readers.test_readers import python

__all__ = ["python"]

DOCS = Path(__file__).parents[2] / "docs" / "reading.md"
BLOCKS = re.findall(r"^\*\*(\w+)\*\*[^\n]*\n```python\n(.*?)```", DOCS.read_text(), re.DOTALL | re.MULTILINE)
#: Those whose libraries the tests have. Spark's line is run by ``tests/engine/test_read.py``.
HERE = ("pandas", "Arrow", "DuckDB", "pyiceberg")
#: Prints what a block has found.
SHOW = "\nprint(globals().get('frame'), globals().get('rows'))"


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Lake]:
    """The view of the blocks, in a catalog of pyiceberg's configuration."""
    variables = configure(tmp_path, "lake")
    with lake(variables["PYICEBERG_CATALOG__LAKE__URI"], tmp_path / "lake", layout="pointed") as found:
        found.table()
        found.view()
        found.refresh()
        yield found
    for name in variables:
        del os.environ[name]
    reload_configuration()


def test_the_blocks_are_those_of_the_engines() -> None:
    engines = [name for name, _ in BLOCKS]
    assert engines == [*HERE, "Polars", "Polars", "Daft", "DataFusion", "ClickHouse", "Spark"]


@pytest.mark.parametrize(("engine", "code"), [item for item in BLOCKS if item[0] in HERE], ids=HERE)
def test_a_block_reads_the_rows(home: Lake, engine: str, code: str) -> None:
    names: dict[str, Any] = {}
    exec(code, names)
    found = {key: rows_of(names[key]) for key in ("frame", "table", "batches", "rows") if key in names}
    expected = [("north", 15), ("south", 20)]
    assert found, engine
    assert list(found.values()) == [expected] * len(found), engine


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_block_of_another_engine_reads_the_rows(home: Lake, python: Path) -> None:
    """In a Python that has these engines, and this package from here."""
    own = f"import sys; sys.path.append({sysconfig.get_path('purelib')!r})\n"
    for engine, code in BLOCKS:
        if engine in (*HERE, "Spark"):
            continue
        done = subprocess.run([python, "-c", own + code + SHOW], capture_output=True, text=True, check=False)
        assert done.returncode == 0, (engine, done.stderr[-3000:])
        for text in ("north", "15", "south", "20"):
            assert text in done.stdout, (engine, done.stdout)


def rows_of(value: Any) -> list[tuple[str, int]]:
    """The region and amount of each row of a frame, a table, a stream, or a list."""
    if hasattr(value, "read_all"):
        value = value.read_all()
    if hasattr(value, "to_pandas"):
        value = value.to_pandas()
    if hasattr(value, "to_dict"):
        value = [(row["region"], row["amount"]) for row in value.to_dict("records")]
    return sorted(value)
