# SPDX-License-Identifier: Apache-2.0
"""Engines that read storage tables without this package get the rows of a recompute: see ``docs/reading.md``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from airflow_mv.core.define.definition import Definition
from airflow_mv.core.refresh import candidates
from airflow_mv.core.script import Outcome, Script
from airflow_mv.extras.readers import READERS, for_readers
from tests.engine.support import Lake
from tests.readers import engines

ROOT = Path(__file__).parents[2]
PRICED = "SELECT id, amount, note, price, day, made_at FROM {ns}.lines WHERE amount > 0"
COLUMNS = "id int, amount bigint, note varchar, price decimal(9, 2), day date, made_at timestamp"
ROWS = ", ".join(
    f"({number}, {number % 7}, {'NULL' if number % 11 == 0 else repr(f'zeile {number} äß')}, {number}.25, "
    f"'2026-01-01'::date + {number}, '2026-01-01 10:00:00.123456'::timestamp + INTERVAL {number} MINUTE)"
    for number in range(300)
)
CHANGES = (
    "DELETE FROM {} WHERE id BETWEEN 20 AND 25",
    "UPDATE {} SET amount = 9, note = 'changed' WHERE id IN (1, 150, 299)",
    "DELETE FROM {} WHERE id IN (1, 2, 298)",
)
#: The ways in which refreshes delete stored rows, each with the property of the view that makes them.
TABLES = {
    "position deletes": {},
    "deletion vectors": {"airflow-mv.storage.format-version": "3"},
    "copy-on-write": {"airflow-mv.readers": "databricks"},
}


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python with the engines; ``AIRFLOW_MV_TEST_READERS`` names one that is there already."""
    if given := os.environ.get("AIRFLOW_MV_TEST_READERS"):
        return Path(given)
    folder = tmp_path_factory.mktemp("readers")
    uv = Path(sys.executable).parent / "uv"
    subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, folder], check=True)
    found = folder / "bin" / "python"
    subprocess.run([uv, "pip", "install", "--quiet", "--python", found, "-r", ROOT / ".ci" / "readers.txt"], check=True)
    return found


def read_by_engines(python: Path, locations: dict[str, str]) -> dict[str, dict[str, Any]]:
    """What each engine reads of each table."""
    done = subprocess.run([python, engines.__file__], input=json.dumps(locations), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_every_engine_reads_the_rows_of_a_recompute(lake: Lake, python: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After refreshes that deleted stored rows in each of Iceberg's ways."""
    monkeypatch.setattr(candidates, "SMALL_STORAGE", -1)  # else so few rows are written anew by each refresh
    lake.table("lines", COLUMNS, ROWS)
    ways: list[str] = []

    def stager(script: Script) -> Outcome:
        outcome = lake.stager(script)
        ways.append(outcome.written_by)
        return outcome

    names = {kind: kind.replace(" ", "_").replace("-", "_") for kind in TABLES}
    for kind, properties in TABLES.items():
        wanted = for_readers(Definition(None, properties=properties), lake.catalog, names[kind]).properties
        lake.create(names[kind], PRICED, layout="pointed", refresh_strategy="incremental", properties=wanted)
        lake.refresh(names[kind])
    for change in CHANGES:
        lake.run(change.format(lake("lines")))
        for name in names.values():
            assert lake.refresh(name, stager=stager, on_fallback="fail").mode == "merge"
    assert set(ways) >= {"positions"}
    locations = {kind: lake.catalog.load_storage(lake.view(name)).location for kind, name in names.items()}
    assert {kind: deletes(lake, name) for kind, name in names.items()} == {
        "position deletes": ("PARQUET",),
        "deletion vectors": ("PUFFIN",),
        "copy-on-write": (),
    }

    expected = sorted([engines.text(value) for value in row] for row in lake.sql(PRICED).collect())
    frames = {kind: lake.spark.read.format("iceberg").load(location) for kind, location in locations.items()}
    in_spark = {
        kind: sorted([engines.text(value) for value in row] for row in frame.collect())
        for kind, frame in frames.items()
    }
    for engine, of in {**read_by_engines(python, locations), "spark": in_spark}.items():
        require_right(engine, of, expected)


def require_right(engine: str, found: dict[str, Any], expected: list[list[str | None]]) -> None:
    """Require the rows of each table; of one that the engine is not said to read, an error is right, too."""
    reader = READERS[engine.partition(" ")[0]]
    for kind, rows in found.items():
        if kind != "deletion vectors" or reader.format_version == 3 or not isinstance(rows, str):
            assert rows == expected, (engine, kind)


def deletes(lake: Lake, name: str) -> tuple[str, ...]:
    """The formats of the delete files of the stored rows."""
    location = lake.catalog.load_storage(lake.view(name)).location
    rows = lake.spark.read.format("iceberg").load(f"{location}#delete_files").select("file_format").distinct().collect()
    return tuple(sorted(row[0] for row in rows))
