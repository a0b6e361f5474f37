# SPDX-License-Identifier: Apache-2.0
"""A look at all views with a cache has the same result as without one, and opens no file where nothing has moved."""

from __future__ import annotations

import json
import os
import random
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.utils.config import Config

from airflow_mv.core.catalog import MaterializedViewCatalog
from airflow_mv.core.catalog.configured import configured
from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.extras.fleet import fact_cache
from airflow_mv.extras.fleet.alerts import FreshnessSlo, WatchedViews, freshness_slos
from airflow_mv.extras.fleet.all_views import statuses_of_catalogs
from airflow_mv.extras.fleet.fact_cache import FORMAT, VARIABLE, FactCache
from tests.builders import QUERY, Lake, close, empty_commit, lake, open_catalog, rewritten

HEAVY = ("airflow", "pyarrow", "pydantic", "pyiceberg", "pyspark", "sqlglot")
SECRET = "s3cr3t-of-a-property"
#: Some hours from now, so that no lag is 0.
NOW = datetime.now(UTC) + timedelta(hours=3)


@pytest.fixture
def home(sqlite_uri: str, warehouse: Path) -> Iterator[Lake]:
    """Views of each layout, one through a plain view, one of another view, and one that was never refreshed."""
    with lake(sqlite_uri, warehouse) as found:
        found.table("orders")
        found.table("returns")
        found.plain_view("both", "SELECT * FROM sales.orders UNION ALL SELECT * FROM sales.returns")
        names = [
            found.view("pointed", QUERY, layout="pointed", properties={"owner.token": SECRET}),
            found.view("registered", QUERY, layout="registered"),
            found.view("tabled", "SELECT id, amount FROM sales.returns", layout="table"),
            found.view("nested", "SELECT region, count(*) AS n FROM sales.both GROUP BY region"),
            found.view("upper", "SELECT region FROM sales.pointed"),
            found.view("roof", "SELECT region FROM sales.upper UNION ALL SELECT CAST(id AS STRING) FROM sales.tabled"),
        ]
        for name in names:
            found.refresh(name)
        found.view("never", "SELECT id FROM sales.orders")
        yield found


def seen(home: Lake, cache: FactCache | None) -> list[dict[str, Any]]:
    """The documents of all views, by a process that has just started."""
    properties = dict(home.catalog.properties)
    iceberg = open_catalog(properties["uri"], Path(properties["warehouse"].removeprefix("file://")))
    try:
        openers = {"lake": lambda: MaterializedViewCatalog(iceberg)}
        found = statuses_of_catalogs(openers, cache=cache, properties_of={"lake": properties}.get)
    finally:
        close(iceberg)
    found.require_complete()
    return found.documents


def slos(home: Lake, cache: FactCache | None, *views: Identifier) -> list[FreshnessSlo]:
    """The state of all views against an SLO, or of those that are named, by a process that has just started."""
    properties = dict(home.catalog.properties)
    iceberg = open_catalog(properties["uri"], Path(properties["warehouse"].removeprefix("file://")))
    watched = WatchedViews(
        "lake",
        lambda: MaterializedViewCatalog(iceberg),
        views,
        None if views else (),
        cache or FactCache(None),
        {"lake": properties}.get,
    )
    try:
        return list(freshness_slos(watched, timedelta(seconds=1), now=NOW))
    finally:
        close(iceberg)


def _renamed(document: dict[str, Any]) -> None:
    document["schemas"][-1]["fields"][0]["name"] += "x"


def _rename(home: Lake) -> None:
    rewritten(home.iceberg, "sales.returns", _renamed)


def _recreated(home: Lake) -> None:
    home.iceberg.drop_table("sales.returns")
    home.table("returns")


def _dropped(home: Lake) -> None:
    home.catalog.drop("sales.never")
    home.view("never", "SELECT region FROM sales.returns")


ACTIONS: list[Callable[[Lake], object]] = [
    lambda home: home.append(),
    lambda home: home.append(name="returns"),
    lambda home: home.compact(),
    lambda home: home.refresh("sales.pointed"),
    lambda home: home.refresh("sales.registered"),
    lambda home: home.refresh("sales.tabled"),
    lambda home: home.refresh("sales.nested"),
    lambda home: home.refresh("sales.upper"),
    lambda home: empty_commit(home.iceberg, "sales.orders"),
    lambda home: home.plain_view("both", "SELECT * FROM sales.orders"),
    _recreated,
    _dropped,
]


@pytest.mark.parametrize("seed", range(2))
def test_the_cache_changes_no_document(home: Lake, tmp_path: Path, reads: list[str], seed: int) -> None:
    """After each of many changes: by the cache of the state before, by that of this state, and without one."""
    cache, choose = FactCache(tmp_path / "cache"), random.Random(seed)
    for action in (*choose.sample(ACTIONS, len(ACTIONS)), _rename):
        action(home)
        expected, late = seen(home, None), slos(home, None)
        # One of the two observes what has moved, and the other takes it from the cache.
        if choose.random() < 0.5:
            assert seen(home, cache) == expected
        assert slos(home, cache) == late
        assert seen(home, cache) == expected
        reads.clear()
        assert seen(home, cache) == expected
        assert slos(home, cache) == slos(home, cache, *(slo.view for slo in late)) == late
        assert reads == []


def test_a_catalog_of_base_tables_that_moved_is_looked_at_too(
    home: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A view's own catalog does not show that a table of another one has moved."""
    with lake(f"sqlite:///{tmp_path}/other.db", tmp_path / "other", "west") as west:
        west.iceberg.register_table("sales.orders", home.load().metadata_location)
        home.catalog.openers = {"west": lambda: west.catalog}
        home.refresh(home.view("far", "SELECT id FROM west.sales.orders"))
        cache = FactCache(tmp_path / "cache")
        both = {"lake": home.catalog.properties, "west": west.catalog.properties}

        def state() -> str:
            found = statuses_of_catalogs({"lake": lambda: home.catalog}, cache=cache, properties_of=both.get)
            return str({document["view"]: document["state"] for document in found.documents}["lake.sales.far"])

        assert [state(), state()] == ["fresh", "fresh"]
        west.append()
        assert [state(), state()] == ["stale", "stale"]


@pytest.mark.postgres
def test_a_look_at_postgresql_opens_no_file_either(
    postgres_uri: str, warehouse: Path, tmp_path: Path, reads: list[str]
) -> None:
    """The pointers are listed through another driver, with its own settings."""
    with lake(postgres_uri, warehouse) as home:
        home.table()
        home.refresh(home.view())
        cache = FactCache(tmp_path / "cache")
        assert seen(home, cache) == seen(home, None)
        reads.clear()
        assert [document["state"] for document in seen(home, cache)] == ["fresh"]
        assert reads == []
        home.append()
        assert [document["state"] for document in seen(home, cache)] == ["stale"]


def test_an_unreadable_file_is_not_remembered(home: Lake, tmp_path: Path) -> None:
    """A store that fails for a minute must not be reported as failing afterwards."""
    cache = FactCache(tmp_path / "cache")
    path = Path(home.catalog.load("sales.pointed").metadata_location.removeprefix("file://"))
    content = path.read_bytes()
    path.write_text("{")
    assert [item["state"] for item in seen(home, cache) if item["view"] == "lake.sales.pointed"] == ["unknown"]
    path.write_bytes(content)
    assert seen(home, cache) == seen(home, None)


def test_an_unchanged_look_imports_no_catalog(home: Lake, tmp_path: Path) -> None:
    """Importing pyiceberg takes longer than the rest of the look."""
    properties = home.catalog.properties
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        VARIABLE: str(tmp_path / "cache"),
        **{f"PYICEBERG_CATALOG__LAKE__{key.upper()}": properties[key] for key in ("uri", "warehouse")},
        "PYICEBERG_CATALOG__LAKE__TYPE": "sql",
    }
    code = (
        "import atexit, sys; from airflow_mv.cli import main; atexit.register(lambda: print("
        f"*(name for name in {HEAVY} if name in sys.modules), file=sys.stderr)); main(sys.argv[1:])"
    )

    def loaded(*arguments: str) -> tuple[str, list[str]]:
        command = [sys.executable, "-c", code, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
        return done.stdout, done.stderr.split()

    first, modules = loaded("status", "--all", "lake", "--json")
    assert "pyiceberg" in modules
    assert loaded("status", "--all", "lake", "--json") == (first, [])
    assert loaded("status", "--namespace", "lake.sales", "--json") == (first, [])
    one, two = (json.dumps(document) for document in json.loads(first)[:2])
    assert loaded("status", json.loads(two)["view"], json.loads(one)["view"], "--json") == (f"[{two}, {one}]\n", [])
    assert loaded("--help")[1] == []


@pytest.mark.parametrize("spoil", ["shared folder", "shared file", "link", "broken", "empty", "other content"])
def test_a_cache_that_others_may_write_or_that_is_broken_is_not_used(
    home: Lake, tmp_path: Path, spoil: str, caplog: pytest.LogCaptureFixture
) -> None:
    """What stands in it could report a stale view as fresh."""
    cache = FactCache(tmp_path / "cache")
    expected = seen(home, cache)
    assert cache.path is not None
    if spoil == "shared folder":
        cache.path.parent.chmod(0o777)
    elif spoil == "shared file":
        cache.path.chmod(0o666)
    elif spoil == "link":
        cache.path.rename(tmp_path / "moved")
        cache.path.symlink_to(tmp_path / "moved")
    elif spoil == "broken":
        cache.path.write_bytes(b"no database" * 1000)
    elif spoil == "empty":
        cache.path.write_bytes(b"")
    else:
        with sqlite3.connect(cache.path) as connection:
            connection.execute("UPDATE facts SET value = '[1]'")
    refused = spoil in ("shared folder", "shared file", "link")
    assert cache.get("any", ["key"]) == {}
    assert ("this user must own it" in caplog.text) == refused
    assert seen(home, cache) == expected


@pytest.mark.parametrize("fault", ["a file in place of the folder", "a file that is not a database", "locked"])
def test_a_cache_that_cannot_be_written_loses_what_it_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    """A process may write first: what it was asked for had to be read."""
    monkeypatch.setattr(fact_cache, "_BUSY_SECONDS", 0.1)
    cache = FactCache(tmp_path / "cache")
    assert cache.path is not None
    if fault == "a file in place of the folder":
        cache.path.parent.write_text("")
    else:
        cache.path.parent.mkdir(mode=0o700)
        cache.path.touch(mode=0o600)
    if fault == "a file that is not a database":
        cache.path.write_bytes(b"no database" * 1000)
    with closing(sqlite3.connect(cache.path if fault == "locked" else ":memory:")) as other:
        other.execute("BEGIN EXCLUSIVE")
        cache.put("kind", {"a": b"1"})
        cache.used("kind")
        assert cache.all("kind") == cache.get("kind", ["a"]) == {}
    cache.put("kind", {"a": b"1"})
    assert cache.all("kind") == ({} if fault == "a file in place of the folder" else {"a": b"1"})


def test_the_cache_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a shared folder for temporary files anybody may have made it first."""
    cache = FactCache(tmp_path / "cache")
    cache.put("kind", {"a": b"1"})
    assert cache.all("kind") == {"a": b"1"}
    owner = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    assert cache.all("kind") == {}


def test_no_secret_is_in_the_cache(home: Lake, tmp_path: Path) -> None:
    """Properties may hold some, and so does a database's address."""
    cache = FactCache(tmp_path / "cache")
    seen(home, cache)
    assert cache.path is not None
    data = cache.path.read_bytes()
    assert b"lake.sales.pointed" in data
    assert SECRET.encode() not in data
    assert cache.path.stat().st_mode & 0o777 == 0o600
    assert cache.path.parent.stat().st_mode & 0o777 == 0o700


def test_the_cache_stays_small_and_drops_what_was_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was used last stays."""
    cache = FactCache(tmp_path / "cache", max_bytes=200_000)
    assert cache.path is not None
    for day in range(8):
        monkeypatch.setattr(time, "time", lambda day=day: 86_400.0 * (1 + day))
        cache.put("kind", {f"{day}-{number}": bytes(1_000) for number in range(50)})
        assert cache.path.stat().st_size <= 200_000
    kept = cache.all("kind")
    assert sum(key.startswith("7-") for key in kept) == 50
    assert not any(key.startswith("0-") for key in kept)


def test_threads_and_processes_share_the_cache(tmp_path: Path) -> None:
    """Each writer's values arrive whole, whoever creates the file."""
    folder = tmp_path / "cache"

    def write(number: int) -> None:
        FactCache(folder).put("kind", {f"{number}-{item}": bytes([number]) * 2_000 for item in range(100)})

    with ThreadPoolExecutor(8) as writers:
        list(writers.map(write, range(16)))
    kept = FactCache(folder).all("kind")
    assert len(kept) >= 1_000
    assert all(value == bytes([int(key.partition("-")[0])]) * 2_000 for key, value in kept.items())


def test_a_setting_names_the_folder_or_switches_the_cache_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By default it is where the desktop's rules put caches."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv(VARIABLE, raising=False)
    name = f"facts-{FORMAT}.sqlite"
    assert FactCache.of_user().path == tmp_path / ".cache" / "airflow-mv" / name
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert FactCache.of_user().path == tmp_path / "xdg" / "airflow-mv" / name
    monkeypatch.setenv(VARIABLE, str(tmp_path / "own"))
    assert FactCache.of_user().path == tmp_path / "own" / name
    monkeypatch.setenv(VARIABLE, "off")
    assert FactCache.of_user().path is None


@pytest.mark.parametrize("place", ["home", "pyiceberg-home", "none"])
def test_catalogs_are_configured_as_pyiceberg_reads_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """From the first file that has content, and from variables, which win."""
    file = "Catalog:\n  Lake:\n    TYPE: sql\n    uri: sqlite:///a.db\n  west:\n    uri: http://x\n    s3.region: eu\n"
    (tmp_path / "other").mkdir()
    folder = {"home": tmp_path, "pyiceberg-home": tmp_path / "other"}.get(place)
    if folder:
        (folder / ".pyiceberg.yaml").write_text(file)
    monkeypatch.chdir(tmp_path / "other" if place == "none" else tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PYICEBERG_HOME", str(tmp_path / "other"))
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__URI", "sqlite:///b.db")
    monkeypatch.setenv("PYICEBERG_CATALOG__My_Own__S3__ACCESS_KEY_ID", "x")
    monkeypatch.setenv("PYICEBERG_MAX_WORKERS", "4")
    assert configured() == Config().config["catalog"]
