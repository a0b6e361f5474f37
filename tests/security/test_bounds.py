# SPDX-License-Identifier: Apache-2.0
"""I25: metadata does not grow with the number of refreshes or replaces. I26: waiting blocks nothing."""

from __future__ import annotations

import asyncio
import json
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import psutil
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from sqlalchemy import create_engine, make_url, text

from airflow_mv.common.status import status
from airflow_mv.core.catalog import Layout, MaterializedViewCatalog
from airflow_mv.core.spec.view import new_view, replace_version, with_view_properties
from airflow_mv.errors import ConfigurationError
from airflow_mv.extras.describe import history as recorded
from airflow_mv.extras.history.rollback import rollback
from airflow_mv.extras.history.time_travel import TimeTravel
from airflow_mv.extras.maintenance.expire import expire
from airflow_mv.extras.read import read_rows, readable
from airflow_mv.hooks import MaterializedViewHook
from airflow_mv.triggers import MaterializedViewFreshTrigger
from airflow_mv.triggers.views import FreshnessRequest, read_view
from tests.airflow.conftest import Airflow, _airflow, airflow, lake_behind, seen_by
from tests.builders import LAYOUTS, Lake, lake
from tests.services import Quiet

__all__ = ["_airflow", "airflow"]

VIEW = "lake.sales.daily"
#: The maximum time for which a trigger may block the event loop; reading a view in the loop would take longer.
LOOP_SECONDS = 0.05
#: The parts of a table's metadata that grow until its snapshots are expired.
SNAPSHOTS = ("snapshots", "snapshot-log", "statistics", "partition-statistics", "refs")


def sizes(home: Lake) -> tuple[int, int, int]:
    """Bytes of the view's file and of the storage table's without snapshots, and the length of the metadata log."""
    view = home.catalog.load(VIEW)
    storage = json.loads(Path(home.storage().location.removeprefix("file://")).read_text())
    rest = {key: value for key, value in storage.items() if key not in SNAPSHOTS}
    return len(view.metadata.to_bytes()), len(json.dumps(rest)), len(storage["metadata-log"])


def refreshed(home: Lake, count: int) -> list[tuple[int, int, int]]:
    """Refresh a view many times: nine of ten refreshes only record a compaction of the base table, without a job."""
    found = []
    for number in range(count):
        if number % 10:
            home.compact()
        else:
            home.append((number, "north", 1))
            home.expire(home.load().metadata.snapshots[0].snapshot_id)
        result = home.refresh()
        assert result.outcome == "refreshed", result
        found.append(sizes(home))
    return found


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Lake]:
    (tmp_path / "w").mkdir()
    with lake(f"sqlite:///{tmp_path}/c.db", tmp_path / "w") as found:
        found.table()
        found.view(properties={"write.metadata.previous-versions-max": "20", "airflow-mv.history.max-count": "20"})
        found.refresh()
        yield found


@pytest.fixture
def forgetful(home: Lake) -> Lake:
    """The same, with a storage table whose metadata log is as short as the view's."""
    location = home.storage().location
    document = json.loads(home.catalog.files.read(location, what="storage table file"))
    document["properties"]["write.metadata.previous-versions-max"] = "20"
    home.catalog.files.replace_text(location, json.dumps(document))
    return home


def check_bounded(found: list[tuple[int, int, int]], log: int) -> None:
    early, late = found[2 * log : 2 * log + 10], found[-10:]
    for index, allowed in ((0, 8), (1, 200), (2, 0)):
        # Numbers in it (times, sequence numbers, row counts) may have one more digit.
        growth = max(size[index] for size in late) - max(size[index] for size in early)
        assert growth <= allowed, (index, early[-1], late[-1])
    assert late[-1][2] <= log * 2


def test_i25_sixty_refreshes_leave_metadata_of_the_same_size(forgetful: Lake) -> None:
    """Each writes a view file and a storage file, whose size must not depend on the number of refreshes."""
    check_bounded(refreshed(forgetful, 60), 20)
    assert len(recorded(forgetful.catalog, VIEW)) == 20


@pytest.mark.slow
def test_i25_a_thousand_refreshes_leave_metadata_of_the_same_size(home: Lake) -> None:
    """The long run."""
    found = refreshed(home, 1000)
    print(f"view file, storage file without snapshots, log: {found[0]} -> {found[250]} -> {found[-1]}")
    check_bounded(found, 100)


def history(home: Lake) -> tuple[int, set[str]]:
    """Bytes of the storage table's file without its snapshots, but with its tags; and the tagged refreshes."""
    storage = json.loads(Path(home.storage().location.removeprefix("file://")).read_text())
    rest = {key: value for key, value in storage.items() if key not in SNAPSHOTS or key == "refs"}
    tags = {name.removeprefix("refresh-") for name in storage.get("refs", {}) if name.startswith("refresh-")}
    return len(json.dumps(rest)), tags


def travelled(home: Lake, count: int, keep: int) -> list[int]:
    """Refresh a view with time travel many times; its history has the permitted length and is complete."""
    found = []
    for number in range(count):
        if number % 10 == 9:
            home.append((number, "north", 1))
        else:
            home.compact()
        assert home.refresh().outcome == "refreshed"
        length, tags = history(home)
        state = home.storage().state
        assert state is not None
        assert {record.refresh_id for record in state.refreshes} == tags
        assert len(tags) <= keep
        found.append(length)
    return found


@pytest.fixture
def travelling(tmp_path: Path) -> Iterator[Lake]:
    (tmp_path / "w").mkdir()
    with lake(f"sqlite:///{tmp_path}/c.db", tmp_path / "w") as found:
        found.table()
        small = {"write.metadata.previous-versions-max": "5", "airflow-mv.history.max-count": "10"}
        found.view(time_travel=True, properties=small)
        found.refresh()
        yield found


def test_i25_a_history_has_the_length_that_the_view_allows(travelling: Lake) -> None:
    """The oldest records are removed with their tags, so that their snapshots can expire; the others can be read."""
    location = travelling.storage().location
    document = json.loads(travelling.catalog.files.read(location, what="storage table file"))
    document["properties"]["write.metadata.previous-versions-max"] = "5"
    travelling.catalog.files.replace_text(location, json.dumps(document))
    lengths = travelled(travelling, 40, 10)
    assert max(lengths[-10:]) - max(lengths[15:25]) < 200, lengths
    state = travelling.storage().state
    assert state is not None
    assert len(state.refreshes) == 10
    oldest = state.refreshes[0].refresh_id
    expire(travelling.catalog, VIEW, older_than=timedelta(0))
    kept = {item.snapshot_id for item in travelling.storage().table.snapshots}
    tagged = {ref.snapshot_id for ref in travelling.storage().table.refs.values()}
    assert kept == tagged
    rows = read_rows(travelling.catalog, readable(travelling.catalog, VIEW, TimeTravel(refresh_id=oldest)))
    assert list(rows.rows())
    assert rollback(travelling.catalog, VIEW, oldest).changed
    assert travelling.refresh().outcome == "refreshed"


@pytest.mark.parametrize("layout", LAYOUTS)
def test_i25_a_history_has_the_age_that_the_view_allows(tmp_path: Path, layout: Layout) -> None:
    (tmp_path / "w").mkdir()
    with lake(f"sqlite:///{tmp_path}/c.db", tmp_path / "w", layout=layout) as home:
        home.table()
        home.view(time_travel=True, properties={"airflow-mv.history.max-age": "1 h"})
        for _ in range(2):
            home.append()
            home.refresh()
        assert len(history(home)[1]) == 2
        view = home.catalog.load("sales.daily")
        shorter = with_view_properties(view.metadata, {"airflow-mv.history.max-age": "0.01 s"})
        assert home.catalog.replace(view, shorter)
        time.sleep(0.02)
        home.append()
        home.refresh()
        state = home.storage().state
        assert state is not None
        assert history(home)[1] == {state.current_refresh_id}
        for name, text in (("max-count", "0"), ("max-count", "many"), ("max-age", "soon")):
            with pytest.raises(ConfigurationError, match=f"history.{name}"):
                home.view("other", time_travel=True, properties={f"airflow-mv.history.{name}": text})


@pytest.mark.slow
def test_i25_two_thousand_refreshes_with_time_travel_leave_metadata_of_the_same_size(tmp_path: Path) -> None:
    """The long run, with the default of 100 records and regular expiry; each refresh takes the same CPU time.

    The base table's snapshots are expired, too, because its history is not the view's.
    """
    (tmp_path / "w").mkdir()
    with lake(f"sqlite:///{tmp_path}/c.db", tmp_path / "w") as home:
        home.table()
        home.view(time_travel=True)
        home.refresh()
        sizes_, seconds = [], []
        for number in range(2000):
            started = time.process_time()  # without the time of other processes
            found = travelled(home, 1, 100)
            seconds.append(time.process_time() - started)
            sizes_.append(found[-1])
            if number % 100 == 99:
                expire(home.catalog, VIEW, older_than=timedelta(0))
                base = home.load()
                old = [item.snapshot_id for item in base.metadata.snapshots[:-1]]
                base.maintenance.expire_snapshots().by_ids(old).commit()
        early, late = sorted(seconds[200:300])[50], sorted(seconds[-100:])[50]
        print(f"bytes {sizes_[0]} -> {sizes_[250]} -> {sizes_[-1]}, seconds {early:.3f} -> {late:.3f}")
        assert max(sizes_[-100:]) - max(sizes_[200:300]) < 2000
        assert late < 2 * early


def test_i25_repeated_replaces_keep_neither_old_versions_nor_their_schemas() -> None:
    """Other writers keep the schemas of dropped versions permanently (apache/iceberg#18155)."""

    def definition(number: int) -> dict[str, Any]:
        fields = [{"id": 1, "name": f"c{number:04d}", "required": False, "type": "long"}]
        names = {"default_catalog": "lake", "default_namespace": ("sales",), "summary": {}, "now_ms": 10**12 + number}
        return {"schema": {"type": "struct", "fields": fields}, "sql": f"SELECT 1 AS c{number:04d}", **names}

    view = new_view(view_uuid="u", location="file:///w/v", properties={}, **definition(0))
    lengths = []
    for number in range(1, 600):
        view = replace_version(view, **definition(number))
        lengths.append(len(view.to_bytes()))
    assert len(view.versions) == len(view.schemas) == 10
    assert lengths[-1] - lengths[299] < 100, (lengths[299], lengths[-1], len(view.version_log))


# ---------------------------------------------------------------------------------------- triggers


@pytest.fixture
def daily(airflow: Airflow, tmp_path: Path) -> Iterator[Lake]:
    with lake_behind(airflow, tmp_path) as found:
        found.view()
        found.refresh()
        yield found


async def _first(trigger: MaterializedViewFreshTrigger) -> dict[str, Any]:
    async for event in trigger.run():
        return dict(event.payload)
    raise AssertionError("the trigger ended without an event")


def test_i26_two_copies_of_one_trigger_run_at_once_and_never_block_the_loop(daily: Lake) -> None:
    """After a restart two triggerers may run the same trigger, which shares the event loop with all others."""
    daily.append()
    _, arguments = MaterializedViewFreshTrigger(view=VIEW, poke_interval=0.05).serialize()
    assert json.loads(json.dumps(arguments)) == arguments
    with closing(MaterializedViewHook()) as hook:
        read_view(hook, FreshnessRequest(VIEW))  # triggers lazy imports
        before = time.thread_time()
        read_view(hook, FreshnessRequest(VIEW))
        one_look, loop = time.thread_time() - before, LoopTime()

    async def both() -> list[dict[str, Any]]:
        beating = asyncio.create_task(loop.watch())
        waiting = [asyncio.create_task(_first(MaterializedViewFreshTrigger(**arguments))) for _ in range(2)]
        while len(loop.used) < 30:
            await asyncio.sleep(0.05)
        assert not any(task.done() for task in waiting)
        await asyncio.to_thread(daily.refresh)
        found = await asyncio.wait_for(asyncio.gather(*waiting), 300)
        beating.cancel()
        return found

    one, two = asyncio.run(both())
    assert one["status"]["state"] == two["status"]["state"] == "fresh"
    assert one["status"]["refresh_id"] == two["status"]["refresh_id"]
    assert loop.most(0.9) < one_look / 2


def test_i26_a_cancelled_trigger_leaves_nothing_running(daily: Lake) -> None:
    """A cleared task's trigger is cancelled during a read."""
    daily.append()

    async def cancelled() -> None:
        task = asyncio.create_task(_first(MaterializedViewFreshTrigger(view=VIEW, poke_interval=0.01)))
        await asyncio.sleep(0.3)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert [item for item in asyncio.all_tasks() if item is not asyncio.current_task()] == []

    asyncio.run(cancelled())


# ------------------------------------------------------------------------------------ many triggers


@dataclass
class Seen:
    """The resources that many triggers use while they wait."""

    connections: int = 0
    descriptors: int = 0
    threads: int = 0
    loop: LoopTime = field(default_factory=lambda: LoopTime())


@contextmanager
def watched(seen: Seen, connected: Callable[[], int]) -> Iterator[None]:
    """Observe this process and the database from a thread."""
    me, done = psutil.Process(), threading.Event()
    descriptors, threads = me.num_fds(), me.num_threads()

    def run() -> None:
        while not done.wait(0.03):
            seen.connections = max(seen.connections, connected())
            seen.descriptors = max(seen.descriptors, me.num_fds() - descriptors)
            seen.threads = max(seen.threads, me.num_threads() - threads)

    watching = threading.Thread(target=run)
    watching.start()
    try:
        yield
    finally:
        done.set()
        watching.join()


@dataclass
class LoopTime:
    """Measures how long an event loop is blocked.

    In CPU time of the loop's own thread, so that other processes of a busy host do not count.
    """

    used: list[float] = field(default_factory=list)

    async def watch(self) -> None:
        """Record the thread's CPU time between two of its own turns, 10 ms apart."""
        while True:
            before = time.thread_time()
            await asyncio.sleep(0.01)
            self.used.append(time.thread_time() - before)

    def most(self, share: float = 0.99) -> float:
        """The largest value, without a small share of outliers."""
        return sorted(self.used)[int(len(self.used) * share)]


@contextmanager
def limited_role(uri: str, limit: int) -> Iterator[tuple[str, Callable[[], int]]]:
    """A role with a limit of connections to a database: its URI, and a function that counts them."""
    role, engine = f"few_{uuid.uuid4().hex[:8]}", create_engine(uri)
    with engine.begin() as connection:
        connection.execute(text(f"CREATE ROLE {role} LOGIN PASSWORD 'p' CONNECTION LIMIT {limit}"))
        connection.execute(text(f"GRANT USAGE ON SCHEMA public TO {role}"))
        connection.execute(text(f"GRANT ALL ON ALL TABLES IN SCHEMA public TO {role}"))
    counting = text("SELECT count(*) FROM pg_stat_activity WHERE usename = :role")

    def count() -> int:
        with engine.connect() as connection:
            return int(connection.execute(counting, {"role": role}).scalar_one())

    count()
    try:
        yield make_url(uri).set(username=role, password="p").render_as_string(hide_password=False), count
    finally:
        with engine.begin() as connection:
            connection.execute(text(f"DROP OWNED BY {role}; DROP ROLE {role}"))
        engine.dispose()


def wait_with_many(airflow: Airflow, home: Lake, uri: str, count: int, connected: Callable[[], int]) -> Seen:
    """Have triggers wait until ten views are refreshed, while another client reads the status of one.

    From 1,000 triggers on each waits for a different view.
    """
    few = count < 1000
    properties = {"type": "sql", "uri": uri, "warehouse": home.iceberg.properties["warehouse"]}
    airflow.connect("many", conn_type="iceberg", extra=properties)
    home.table()
    views = [home.view(f"v{number}") for number in range(10 if few else count)]
    interval = 1.0 if few else 2.0
    triggers = [
        MaterializedViewFreshTrigger(view=str(view), iceberg_conn_id="many", poke_interval=interval)
        for view in islice(cycle(views), count)
    ]
    seen_by(MaterializedViewFreshTrigger(view=str(views[0]), iceberg_conn_id="many"))  # opens the catalog
    seen = Seen()

    async def story() -> None:
        beating = asyncio.create_task(seen.loop.watch())
        waiting = []
        for start in range(0, count, 50):  # a triggerer starts them in batches, too
            waiting += [asyncio.create_task(_first(trigger)) for trigger in triggers[start : start + 50]]
            await asyncio.sleep(0.1)
        await asyncio.sleep(1.5 if few else 15)
        assert not any(task.done() for task in waiting)
        another = SqlCatalog("lake", uri=uri, warehouse=properties["warehouse"])
        found = await asyncio.to_thread(status, MaterializedViewCatalog(another), "sales.v3")
        another.engine.dispose()
        assert found.to_dict()["state"] == "never-refreshed"
        beating.cancel()  # DuckDB runs in this process
        await asyncio.to_thread(lambda: [home.refresh(view) for view in views[:10]])
        ending = [task for number, task in enumerate(waiting) if number % len(views) < 10]
        payloads = await asyncio.wait_for(asyncio.gather(*ending), 300)
        assert {payload["status"]["state"] for payload in payloads} == {"fresh"}
        for task in set(waiting) - set(ending):
            assert not task.done()
            task.cancel()

    with watched(seen, connected):
        asyncio.run(story())
    return seen


@pytest.mark.parametrize("count", [100, pytest.param(2000, marks=pytest.mark.slow)])
def test_i26_many_triggers_share_a_few_connections_to_postgresql(
    airflow: Airflow, postgres_uri: str, tmp_path: Path, count: int
) -> None:
    """The role may have 8: 4 for the triggers, 1 for the other reader, and those that the server has not closed yet."""
    (tmp_path / "w").mkdir()
    with lake(postgres_uri, tmp_path / "w") as home, limited_role(postgres_uri, 8) as (uri, connected):
        seen = wait_with_many(airflow, home, uri, count, connected)
    print(f"{count} triggers: {seen.connections} connections, {seen.descriptors} descriptors, {seen.loop.most():.3f} s")
    assert seen.connections <= 7
    assert seen.descriptors <= 20
    assert seen.threads <= 24
    assert seen.loop.most() < LOOP_SECONDS


@pytest.mark.parametrize("count", [100, pytest.param(2000, marks=pytest.mark.slow)])
def test_i26_many_triggers_use_few_file_descriptors_of_sqlite(airflow: Airflow, tmp_path: Path, count: int) -> None:
    (tmp_path / "w").mkdir()
    uri = f"sqlite:///{tmp_path}/c.db"
    with lake(uri, tmp_path / "w") as home:
        seen = wait_with_many(airflow, home, uri, count, lambda: 0)
    print(f"{count} triggers: {seen.descriptors} descriptors, {seen.loop.most():.3f} s of the loop")
    assert seen.descriptors <= 30
    assert seen.loop.most() < LOOP_SECONDS


@pytest.mark.parametrize("kind", ["database", "server of tokens"])
def test_i26_a_trigger_keeps_its_interval_beside_a_hundred_of_a_catalog_that_does_not_answer(
    airflow: Airflow, daily: Lake, kind: str
) -> None:
    """The catalog accepts connections: each read of it lasts until its deadline."""
    daily.append()
    with closing(Quiet()) as silent:
        address = f"127.0.0.1:{silent.port}"
        own = {"client_id": "me", "client_secret": "s", "token_url": f"http://{address}/token"}
        extra: dict[str, Any] = {
            "database": {
                "type": "sql",
                "uri": f"postgresql+psycopg2://me:p@{address}/x",
                "warehouse": "file:///nowhere",
            },
            "server of tokens": {"type": "rest", "uri": f"http://{address}", "auth": {"type": "oauth2", "oauth2": own}},
        }[kind]
        airflow.connect("sick", conn_type="iceberg", extra=extra)
        airflow.connect("iceberg_default", **airflow.connections["iceberg_default"])
        sick = [
            MaterializedViewFreshTrigger(view=f"lake.sales.v{number}", iceberg_conn_id="sick", poke_interval=0.2)
            for number in range(100)
        ]
        healthy = MaterializedViewFreshTrigger(view=VIEW, poke_interval=0.2)
        seen_by(MaterializedViewFreshTrigger(view=VIEW))

        async def story() -> float:
            hanging = [asyncio.create_task(_first(trigger)) for trigger in sick]
            await asyncio.sleep(1)
            waiting = asyncio.create_task(_first(healthy))
            await asyncio.sleep(1)
            await asyncio.to_thread(daily.refresh)
            refreshed = time.monotonic()
            found = await asyncio.wait_for(waiting, 300)
            took = time.monotonic() - refreshed
            assert found["status"]["state"] == "fresh"
            assert not any(task.done() for task in hanging)
            for task in hanging:
                task.cancel()
            return took

        before = threading.active_count()
        # Twice the interval on an idle host; waiting for the others' reads would take 10 s or more.
        assert asyncio.run(story()) < 8
        assert silent.accepted <= 20
        assert threading.active_count() <= before + 12
