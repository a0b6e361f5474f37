# SPDX-License-Identifier: Apache-2.0
"""A swap is one conditional UPDATE: exactly one writer wins, in every isolation level and through a pooler."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Barrier

import pytest
from sqlalchemy import create_engine, make_url, text
from sqlalchemy.exc import OperationalError

from airflow_mv.core.catalog import MaterializedViewCatalog
from airflow_mv.errors import CommitStateUnknownError
from tests.builders import Lake, close, lake, open_catalog
from tests.contract.support import VIEW
from tests.services import free_port

LEVELS = ["read committed", "repeatable read", "serializable"]
RACERS, ROUNDS = 4, 10


def with_level(uri: str, level: str) -> str:
    """The same database, with another isolation level for all transactions."""
    option = f"-c default_transaction_isolation={level.replace(' ', chr(92) + ' ')}"
    return make_url(uri).update_query_dict({"options": option}).render_as_string(hide_password=False)


@pytest.mark.parametrize("level", LEVELS)
def test_i01_one_of_several_swaps_wins_in_every_isolation_level(postgres_uri: str, warehouse: Path, level: str) -> None:
    """Each loser gets a refusal or an unknown outcome; refreshes settle it, and all of them end."""
    uri = with_level(postgres_uri, level)
    with lake(uri, warehouse) as home:
        with home.iceberg.engine.connect() as connection:  # type: ignore[attr-defined]
            assert connection.execute(text("SHOW transaction_isolation")).scalar() == level
        compete(home, uri, warehouse)


def test_i01_one_of_several_swaps_wins_in_sqlite(sqlite_uri: str, warehouse: Path) -> None:
    """SQLite's transactions are serializable; it has no other level."""
    with lake(sqlite_uri, warehouse) as home:
        compete(home, sqlite_uri, warehouse)


def test_i01_one_of_several_swaps_wins_through_pgbouncer(postgres_uri: str, warehouse: Path, tmp_path: Path) -> None:
    """In transaction mode each transaction may use another session; the limits are set in each of them."""
    with pooled(postgres_uri, tmp_path) as uri, lake(uri, warehouse) as home:
        compete(home, uri, warehouse)


def compete(home: Lake, uri: str, warehouse: Path) -> None:
    home.table()
    view = home.view()
    home.refresh()
    racers = [open_catalog(uri, warehouse) for _ in range(RACERS)]
    catalogs, together = [MaterializedViewCatalog(iceberg) for iceberg in racers], Barrier(RACERS)

    def swap(number: int, base: str) -> bool | None:
        together.wait(300)
        try:
            return catalogs[number].swap(view, base, f"{base}.{number}")
        except CommitStateUnknownError:
            return None

    first = home.catalog.load(VIEW).metadata_location
    with ThreadPoolExecutor(RACERS) as pool:
        for _ in range(ROUNDS):
            answers = list(pool.map(swap, range(RACERS), [first] * RACERS))
            row = home.catalog.row(view)
            assert row is not None
            assert answers.count(True) == 1, answers
            assert row.location == f"{first}.{answers.index(True)}"
            assert home.catalog.swap(view, row.location, first)
    home.append()
    assert home.refresh().outcome == "refreshed"
    for iceberg in racers:
        close(iceberg)


@contextmanager
def pooled(uri: str, folder: Path) -> Iterator[str]:
    """The database behind pgbouncer in transaction mode, with one connection for all clients."""
    program = shutil.which("pgbouncer")
    if program is None:
        pytest.skip("pgbouncer is not installed")
    url, port = make_url(uri), free_port()
    (folder / "users.txt").write_text(f'"{url.username}" "{url.password or ""}"\n')
    (folder / "pgbouncer.ini").write_text(
        f"[databases]\n{url.database} = host={url.host} port={url.port}\n[pgbouncer]\nlisten_addr = 127.0.0.1\n"
        f"listen_port = {port}\nauth_type = plain\nauth_file = {folder}/users.txt\npool_mode = transaction\n"
        f"default_pool_size = 2\nunix_socket_dir =\nlogfile = {folder}/pgbouncer.log\n"
    )
    shutil.chown(folder, "nobody")
    folder.chmod(0o755)
    for parent in folder.parents:
        if Path(tempfile.gettempdir()) in parent.parents:
            parent.chmod(parent.stat().st_mode | 0o055)
    process = subprocess.Popen([program, "-q", "-u", "nobody", str(folder / "pgbouncer.ini")])
    try:
        there = url.set(host="127.0.0.1", port=port)
        wait_for(there.render_as_string(hide_password=False))
        yield there.render_as_string(hide_password=False)
    finally:
        process.terminate()
        process.wait(120)


def wait_for(uri: str) -> None:
    engine, deadline = create_engine(uri), time.monotonic() + 120
    while True:
        try:
            with engine.connect():
                break
        except OperationalError:
            assert time.monotonic() < deadline, "pgbouncer does not respond"
            time.sleep(0.1)
    engine.dispose()
