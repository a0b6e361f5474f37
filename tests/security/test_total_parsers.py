# SPDX-License-Identifier: Apache-2.0
"""I18: reading any stored bytes returns a value or raises one of our errors, within a second and 256 MiB.

The parsers run in other processes (:mod:`tests.security.parsers`), which watch for network, files and imports.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.errors import MaterializedViewError
from tests.builders import Lake, lake
from tests.security.mutations import ODD_TEXTS, Mutator
from tests.security.parsers import PARSERS, limited

ROOT = Path(__file__).parents[2]
SEED = int(os.environ.get("AIRFLOW_MV_FUZZ_SEED", "20261121"))


def fuzzed(names: Sequence[str], seed: int, count: int) -> dict[str, dict[str, Any]]:
    """Run a process of some parsers and return the report of each."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.security.parsers", str(seed), str(count), *names],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=550 if count < 10_000 else 3500,
        check=False,
    )
    assert done.returncode == 0, f"{names}, seed {seed}: {done.stderr[-2000:]}"
    reports: dict[str, dict[str, Any]] = json.loads(done.stdout)
    return reports


def test_i18_every_parser_returns_a_value_or_raises_one_of_our_errors() -> None:
    """Each parser reads real files, large ones, and 60 broken or hostile variants of its kind of document."""
    names = [*PARSERS]
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda half: fuzzed(half, SEED, 60), (names[::2], names[1::2]))
    reports = {**first, **second}
    assert reports.keys() == PARSERS.keys()
    assert {name: report["wrong"] for name, report in reports.items()} == {name: [] for name in PARSERS}
    # If all inputs are refused, or none, the fuzzer proves nothing.
    assert all(report["read"] > 1 and report["refused"] > 15 for report in reports.values()), reports


@pytest.mark.slow
@pytest.mark.parametrize("name", PARSERS)
def test_i18_every_parser_returns_a_value_or_raises_one_of_our_errors_for_ten_thousand_inputs(name: str) -> None:
    """``AIRFLOW_MV_FUZZ_SEED`` chooses other inputs."""
    report = fuzzed([name], SEED, 10_000)[name]
    print(f"{name}: {report}")
    assert report["wrong"] == [], f"seed {SEED}"
    assert report["read"] > 20, report
    assert report["refused"] > 400, report


def test_i18_an_import_a_file_a_socket_and_too_much_memory_are_detected() -> None:
    """A parser that imports, opens a file or a socket, or takes 512 MiB is reported."""
    code = """
import json, socket, sys
from tests.security import parsers
def import_(data):
    import wave
def file(data):
    open('/dev/null').close()
def connect(data):
    socket.socket().close()
def fill(data):
    bytearray(1 << 29)
found = {}
for act in (import_, file, connect, fill):
    parsers.PARSERS['identifier'] = act
    found[act.__name__] = parsers.feed('identifier', 1, 1)['wrong'][:1]
print(json.dumps(found))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=500, check=True
    )
    found = json.loads(done.stdout)
    expected = {"import_": "import", "file": "open", "connect": "socket.", "fill": "MemoryError"}
    assert all(expected[name] in wrong[0] for name, wrong in found.items()), found


# ---------------------------------------------------------------------------------- catalog rows


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Lake]:
    (tmp_path / "w").mkdir()
    with lake(f"sqlite:///{tmp_path}/catalog.db", tmp_path / "w") as found:
        found.table()
        found.view()
        found.refresh()
        yield found


def _fuzz_rows(home: Lake, seed: int, count: int) -> tuple[int, int]:
    """Change the view's row at random and read it; return how often that was accepted and refused."""
    random = Mutator(seed).random
    good = dict(_row(home))
    pools = {
        "metadata_location": (
            *_local(ODD_TEXTS),
            good["metadata_location"],
            "x" * 1500,
            "file:///",
            None,
            "/",
            "//h/x",
        ),
        "table_namespace": (*ODD_TEXTS, "sales", "sales", "a..b", ".", "x" * 300),
        "table_name": (*ODD_TEXTS, "daily", "daily", "DAILY", "a.b"),
        "iceberg_type": (None, "VIEW", "VIEW", "TABLE", "view", "", "MATERIALIZED"),
        "catalog_name": ("lake", "lake", "lake", "LAKE", "other", ""),
    }
    ended = [0, 0]
    for _ in range(count):
        row = {key: random.choice(pools[key]) if random.random() < 0.4 else good[key] for key in pools}
        try:
            parameters = {key: value.replace("\ud800", "?") if value else value for key, value in row.items()}
            with home.iceberg.engine.begin() as connection:
                connection.execute(_UPDATE, {**parameters, "id": good["rowid"]})
        except UnicodeEncodeError:
            continue
        ended[_looked_at(home, row)] += 1
    return ended[0], ended[1]


_UPDATE = text(
    "UPDATE iceberg_tables SET metadata_location = :metadata_location, table_namespace = :table_namespace, "
    "table_name = :table_name, iceberg_type = :iceberg_type, catalog_name = :catalog_name WHERE rowid = :id"
)


def _row(home: Lake) -> dict[str, Any]:
    with home.iceberg.engine.connect() as connection:
        query = text("SELECT rowid, * FROM iceberg_tables WHERE iceberg_type = 'VIEW'")
        return dict(connection.execute(query).mappings().one())


def _local(texts: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(text for text in texts if not text.startswith("s3://b/x"))


def _looked_at(home: Lake, row: dict[str, Any]) -> int:
    messages = []
    for look in (
        lambda: home.catalog.list(),
        lambda: home.catalog.load(Identifier("lake", tuple(row["table_namespace"].split(".")), row["table_name"])),
        lambda: home.catalog.load("lake.sales.daily"),
        lambda: home.catalog.locate([Identifier("lake", ("sales",), "daily")]),
    ):
        started = time.process_time()
        try:
            with limited([]):
                look()
        except MaterializedViewError as error:
            messages.append(str(error))
        assert time.process_time() - started < 1, row
    assert all(len(message) < 2500 for message in messages)
    return bool(messages)


def test_i18_every_catalog_row_is_listed_loaded_or_refused_with_one_of_our_errors(home: Lake) -> None:
    """A row may come from any engine that shares the database, or from a person."""
    worked, refused = _fuzz_rows(home, SEED, 150)
    assert worked > 8
    assert refused > 100


@pytest.mark.slow
def test_i18_ten_thousand_catalog_rows_are_listed_loaded_or_refused_with_one_of_our_errors(home: Lake) -> None:
    """Ten thousand rows find rarer combinations."""
    worked, refused = _fuzz_rows(home, SEED, 10_000)
    print(f"catalog row: seed {SEED}: {worked} worked, {refused} were refused")
    assert worked > 500
    assert refused > 2500
