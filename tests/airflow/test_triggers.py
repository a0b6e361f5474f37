# SPDX-License-Identifier: Apache-2.0
"""When the event trigger fires. A restart, an outage or a lost state store neither loses nor floods events."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import threading
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
import sqlalchemy
from airflow.jobs.triggerer_job_runner import TriggerCommsDecoder
from airflow.sdk.execution_time import comms
from airflow.triggers.base import TriggerEvent
from sqlalchemy import Engine

from airflow_mv.core.freshness.observe import Observation, observe
from airflow_mv.errors import ConfigurationError
from airflow_mv.extras.history.rollback import rollback
from airflow_mv.extras.pending.criteria import PendingCriteria
from airflow_mv.hooks import MaterializedViewHook
from airflow_mv.sensors import BaseTablesChangedSensor
from airflow_mv.triggers import (
    BaseTablesChangedOnceTrigger,
    BaseTablesChangedTrigger,
    JobOutcomeTrigger,
    MaterializedViewFreshTrigger,
    base_tables,
)
from airflow_mv.triggers.base_tables import find_pending
from airflow_mv.triggers.connected import connected, forget
from tests.airflow.conftest import VIEW, Airflow, seen_by
from tests.builders import Lake
from tests.older import AirflowFailException, TaskDeferred

Story = Callable[[Callable[[], Awaitable[dict[str, Any]]], Callable[[], Awaitable[None]]], Awaitable[None]]


class Store:
    """The state store of the watcher's asset."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.shared = False
        self.written = 0

    async def aget(self, key: str) -> Any:
        self._check()
        return self.values.get(key)

    async def aset(self, key: str, value: Any) -> None:
        self.written += 1
        self._check()
        self.values[key] = json.loads(json.dumps(value))

    def _check(self) -> None:
        if self.shared:  # Airflow's error for a trigger that two assets share
            raise ValueError("Task has 2 concrete inlets and outlets")


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base_tables, "_HANDED_OVER", 0.05)


def watch(store: Store | None, story: Story, **arguments: Any) -> None:
    """Run a triggerer with one watcher: the story gets the next event, or checks that there is none."""
    _, serialized = BaseTablesChangedTrigger(**{"views": VIEW, "poke_interval": 0.05, **arguments}).serialize()
    trigger = BaseTablesChangedTrigger(**json.loads(json.dumps(serialized)))
    trigger.asset_state_store = store  # type: ignore[assignment]

    noted = store.written if store else 0

    async def run() -> None:
        events: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

        async def drain(stream: AsyncIterator[TriggerEvent]) -> None:
            async for event in stream:
                events.put_nowait(json.loads(json.dumps(event.payload)))

        async def event() -> dict[str, Any]:
            nonlocal noted
            found = await asyncio.wait_for(events.get(), 300)
            noted += 1
            while store and store.written < noted and base_tables._HANDED_OVER < 1:
                await asyncio.sleep(0.02)
            return found

        async def nothing() -> None:
            await asyncio.sleep(0.6)
            assert events.empty(), events.get_nowait()

        running = asyncio.create_task(drain(trigger.run()))
        await story(event, nothing)
        assert not running.done(), running.exception()
        running.cancel()

    asyncio.run(run())


def test_a_commit_fires_once_and_a_compaction_never(airflow: Airflow, daily: Lake) -> None:
    """Until the view is refreshed and another commit is made."""

    async def story(event: Any, nothing: Any) -> None:
        await nothing()
        daily.compact()
        await nothing()
        first = daily.append()
        (view,) = (await event())["views"]
        assert (view["view"], view["tables"][0]["to"]) == (VIEW, str(first))
        daily.compact()
        await nothing()
        await asyncio.to_thread(daily.refresh)
        await nothing()
        daily.append()
        await event()

    watch(Store(), story)


def test_a_restart_announces_nothing_twice_and_finds_missed_changes(airflow: Airflow, daily: Lake) -> None:
    """Announcements are in the store; the base tables are in the catalog."""
    store = Store()
    daily.append()

    async def announced(event: Any, nothing: Any) -> None:
        await event()

    async def silent(event: Any, nothing: Any) -> None:
        await nothing()

    watch(store, announced)
    watch(store, silent)
    daily.append()
    watch(store, announced)


def test_a_triggerer_that_dies_before_it_has_recorded_an_event_sends_it_again(
    airflow: Airflow, daily: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Events are sent at least once; the other order could lose one."""
    monkeypatch.setattr(base_tables, "_HANDED_OVER", 60.0)
    store = Store()
    daily.append()

    async def announced(event: Any, nothing: Any) -> None:
        await event()

    watch(store, announced)
    assert store.values == {}
    watch(store, announced)


def test_a_change_that_is_not_refreshed_is_announced_again(airflow: Airflow, daily: Lake) -> None:
    """Airflow drops events for a paused DAG."""
    daily.append()

    async def story(event: Any, nothing: Any) -> None:
        first = await event()
        assert await event() == first | {"views": [{**first["views"][0], "lag_seconds": _any()}]}

    watch(Store(), story, remind_every=0.3)


def test_a_change_that_is_pending_again_after_a_rollback_of_the_view_is_announced_again(
    airflow: Airflow, daily: Lake
) -> None:
    """Also after a restart of the triggerer."""
    store = Store()
    before = daily.storage().record.refresh_id  # type: ignore[union-attr]
    daily.append()

    async def refreshed(event: Any, nothing: Any) -> None:
        await event()
        noted = store.written
        await asyncio.to_thread(daily.refresh)
        while store.written == noted:
            await asyncio.sleep(0.02)

    async def announced(event: Any, nothing: Any) -> None:
        await event()
        await nothing()

    watch(store, refreshed, remind_every=None)
    rollback(daily.catalog, VIEW, before)
    watch(store, announced, remind_every=None)


class _any:
    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]


def test_a_store_that_two_assets_share_loses_only_the_announcements(
    airflow: Airflow, daily: Lake, capfd: pytest.CaptureFixture[str]
) -> None:
    """The log says how to fix it."""
    store = Store()
    store.shared = True
    daily.append()

    async def story(event: Any, nothing: Any) -> None:
        await event()
        await nothing()

    watch(store, story)
    output = "".join(capfd.readouterr())
    assert "ValueError: Task has 2 concrete inlets and outlets; where two assets share this trigger" in output
    one, two = (BaseTablesChangedTrigger(views=VIEW, asset=name) for name in ("a", "b"))
    assert BaseTablesChangedTrigger.hash(*one.serialize()) != BaseTablesChangedTrigger.hash(*two.serialize())


def test_a_watcher_survives_views_that_it_cannot_read(airflow: Airflow, daily: Lake) -> None:
    """Otherwise Airflow would restart it each second. A missing view does not hide the others."""
    properties = airflow.connections["iceberg_default"]
    airflow.disconnect()

    async def story(event: Any, nothing: Any) -> None:
        await nothing()
        airflow.connect("iceberg_default", **properties)
        await nothing()
        daily.append()
        (first,) = (await event())["views"]
        assert first["view"] == VIEW
        daily.view("later")
        (second,) = (await event())["views"]
        assert (second["view"], second["state"]) == ("lake.sales.later", "never-refreshed")

    watch(Store(), story, views=["lake.sales.later", VIEW])


def test_a_permanent_error_of_one_view_opens_no_new_catalog(airflow: Airflow, daily: Lake) -> None:
    """Otherwise each poll would open one. An edited connection is used after an error of the catalog."""
    daily.append()
    path = daily.catalog.load(daily.view("broken")).metadata_location.removeprefix("file://")
    shared, wanted = connected("iceberg_default"), PendingCriteria()
    Path(path).write_text("{")

    first = shared.hook
    pending = find_pending(shared, ["lake.sales.broken", VIEW], wanted)
    assert (pending.errors["lake.sales.broken"][0], list(pending.views)) == ("InvalidMetadataError", [VIEW])
    assert shared.hook is first
    good = airflow.connections["iceberg_default"]
    airflow.connect("moved", conn_type="iceberg", extra={"type": "sql", "uri": "postgresql://me@127.0.0.1:1/x"})
    away = connected("moved")
    assert find_pending(away, [VIEW], wanted).errors[VIEW][0] == "CatalogUnavailableError"
    os.environ["AIRFLOW_CONN_MOVED"] = json.dumps(good)
    assert list(find_pending(away, [VIEW], wanted).views) == [VIEW]


def test_a_poll_of_fresh_views_opens_no_file_while_nothing_has_moved(
    airflow: Airflow, daily: Lake, reads: list[str]
) -> None:
    """A watcher of thousands of views polls them every minute."""
    for view in (daily.view("one"), daily.view("two", "SELECT id FROM sales.orders")):
        daily.refresh(view)
    shared, wanted = connected("iceberg_default"), PendingCriteria()
    names = ["lake.sales.one", "lake.sales.two"]

    def polled() -> tuple[set[str], bool]:
        reads.clear()
        return set(find_pending(shared, names, wanted).views), bool(reads)

    assert [polled(), polled()] == [(set(), True), (set(), False)]
    daily.append()
    assert [polled(), polled()] == [(set(names), True)] * 2
    daily.refresh("sales.one")
    assert [polled(), polled()] == [({"lake.sales.two"}, True)] * 2
    daily.compact()
    daily.refresh("sales.two")
    assert [polled(), polled()] == [(set(), True), (set(), False)]
    daily.catalog.drop("sales.one")
    assert list(find_pending(shared, names, wanted).errors) == ["lake.sales.one"]


def test_a_corrected_connection_does_not_end_a_wait_with_the_earlier_error(airflow: Airflow, daily: Lake) -> None:
    """It is read again only every 30 s; a task that is cleared right after the correction must not fail."""
    good = airflow.connections["iceberg_default"]
    extra = {**good["extra"], "uri": f"{good['extra']['uri']}.other"}
    airflow.connect("edited", conn_type="iceberg", extra=extra)
    daily.append()
    trigger = MaterializedViewFreshTrigger(view=VIEW, iceberg_conn_id="edited")
    assert seen_by(trigger).error_class == "ViewNotFoundError"
    os.environ["AIRFLOW_CONN_EDITED"] = json.dumps(good)
    assert seen_by(trigger).document()["state"] == "stale"
    os.environ["AIRFLOW_CONN_EDITED"] = json.dumps({"conn_type": "iceberg", "extra": extra})
    forget()
    shared = connected("edited")
    assert find_pending(shared, [VIEW], PendingCriteria()).fatal
    os.environ["AIRFLOW_CONN_EDITED"] = json.dumps(good)
    assert list(find_pending(shared, [VIEW], PendingCriteria()).views) == [VIEW]


def test_a_connection_that_is_not_found_for_a_while_ends_no_wait(
    airflow: Airflow, daily: Lake, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is read again every 30 s, and a secrets backend may fail then. The catalog that is open is used further."""
    monkeypatch.setattr("airflow_mv.triggers.connected.REREAD_SECONDS", 0.0)
    trigger = MaterializedViewFreshTrigger(view=VIEW)
    assert seen_by(trigger).document()["state"] == "fresh"
    connection = os.environ.pop("AIRFLOW_CONN_ICEBERG_DEFAULT")
    daily.append()
    assert seen_by(trigger).document()["state"] == "stale"
    assert "using its cached settings: there is no connection 'iceberg_default'" in caplog.text
    monkeypatch.setenv("AIRFLOW_CONN_ICEBERG_DEFAULT", connection)
    daily.refresh()
    assert seen_by(trigger).document()["state"] == "fresh"


@pytest.mark.parametrize(
    "wrong",
    [{"views": []}, {"views": VIEW, "require": "some"}, {"views": VIEW, "tables": "lake.sales.orders"},
     {"views": VIEW, "quiet_period": "soon"}, {"views": VIEW, "at_most_every": -1}],
)  # fmt: skip
def test_invalid_arguments_are_refused_when_the_dag_is_parsed(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        BaseTablesChangedTrigger(**wrong)


def test_the_sensor_returns_the_changes(airflow: Airflow, daily: Lake) -> None:
    """In the worker and from the trigger."""
    sensor = BaseTablesChangedSensor(task_id="changed", views=VIEW, poke_interval=0.05)
    with pytest.raises(TaskDeferred) as deferred:
        sensor.execute({})
    path, arguments = deferred.value.trigger.serialize()
    assert path == "airflow_mv.triggers.BaseTablesChangedOnceTrigger"
    trigger = BaseTablesChangedOnceTrigger(**json.loads(json.dumps(arguments)))

    async def first() -> Any:
        async for event in trigger.run():
            return event.payload
        raise AssertionError

    new = daily.append()
    announced = sensor.execute_complete({}, json.loads(json.dumps(asyncio.run(first()))))
    assert announced["views"][0]["tables"][0]["to"] == str(new)
    now = sensor.execute({})
    assert now["views"][0]["tables"] == announced["views"][0]["tables"]


def test_the_sensor_fails_if_waiting_cannot_help(airflow: Airflow, daily: Lake) -> None:
    """In both modes; for a table that is missing for a moment it waits."""
    with pytest.raises(AirflowFailException, match="ViewNotFoundError"):
        BaseTablesChangedSensor(task_id="changed", views="lake.sales.nowhere").execute({})
    sensor = BaseTablesChangedSensor(task_id="changed", views=VIEW)
    with pytest.raises(AirflowFailException, match="ConfigurationError: no"):
        sensor.execute_complete({}, {"error": ["ConfigurationError", "no"]})
    daily.iceberg.drop_table("sales.orders")
    assert not sensor.poke({})


def test_triggers_that_wait_at_the_same_time_share_their_reads(airflow: Airflow, daily: Lake, reads: list[str]) -> None:
    """Their views and base tables are looked up together, and only what has moved is read: a base table once."""
    daily.table("other")
    views = [str(daily.view(f"v{number}")) for number in range(12)]
    other = str(daily.view("new", "SELECT id FROM sales.other"))
    for view in views:
        daily.refresh(view)
    daily.append()
    triggers = [MaterializedViewFreshTrigger(view=view, poke_interval=60) for view in [*views, *views, other]]
    queries: list[int] = []

    async def poll() -> list[str]:
        queries.append(0)
        return [seen.document()["state"] for seen in await asyncio.gather(*(trigger.poll() for trigger in triggers))]

    def count(*_: object) -> None:
        queries[-1] += 1

    async def polls() -> None:
        del reads[:]
        assert await poll() == ["stale"] * 24 + ["never-refreshed"]
        assert max(Counter(reads).values()) == 1
        first = len(reads)
        assert await poll() == ["stale"] * 24 + ["never-refreshed"]
        assert queries[-1] == 0, "results are shared for half a period"
        for trigger in triggers:
            trigger.poke_interval = 0
        assert await poll() == ["stale"] * 24 + ["never-refreshed"]
        assert (len(reads), queries[-1]) == (first, 1), "nothing has moved, which one query tells"
        daily.refresh(views[0])
        daily.append(name="other")
        del reads[:]
        assert await poll() == ["fresh", *["stale"] * 11] * 2 + ["never-refreshed"]
        moved = {location.split("/metadata/")[0] for location in reads}
        assert len(moved) < 6, moved
        forget()
        del reads[:]
        assert await poll() == ["fresh", *["stale"] * 11] * 2 + ["never-refreshed"]
        assert reads == [], "a triggerer that starts takes what is still true from the cache"

    sqlalchemy.event.listen(Engine, "before_cursor_execute", count)
    try:
        asyncio.run(polls())
    finally:
        sqlalchemy.event.remove(Engine, "before_cursor_execute", count)


@pytest.mark.parametrize("awaits", ["fresh", "changed"])
def test_a_trigger_takes_no_result_of_a_read_that_began_before_it(
    airflow: Airflow, daily: Lake, monkeypatch: pytest.MonkeyPatch, awaits: str
) -> None:
    """Its task may have seen a commit that came after the read; it would resume too early."""
    began, ends, calls = threading.Event(), threading.Event(), iter(range(9))

    def slow_at_first(*arguments: Any, **options: Any) -> Observation:
        found = observe(*arguments, **options)
        if next(calls) == 0:
            began.set()
            assert ends.wait(60)
        return found

    async def event() -> str:
        if awaits == "changed":
            (view,) = (await anext(BaseTablesChangedOnceTrigger(views=[VIEW]).run())).payload["views"]
            return str(view["tables"][0]["to"])
        trigger = MaterializedViewFreshTrigger(view=VIEW, states=("fresh", "stale"))
        return str((await anext(trigger.run())).payload["status"]["state"])

    async def events() -> list[str]:
        running = asyncio.create_task(event())
        assert await asyncio.to_thread(began.wait, 60)
        snapshots.append(str(daily.append()))
        while_running = await event()
        ends.set()
        found = [await running, while_running]
        if awaits == "changed":
            snapshots.append(str(daily.append()))
        else:
            daily.refresh()
        return [*found, await event()]

    snapshots = [str(daily.append())] if awaits == "changed" else []
    monkeypatch.setattr("airflow_mv.core.freshness.observe.observe", slow_at_first)
    monkeypatch.setattr("airflow_mv.common.status.observe", slow_at_first)
    found = asyncio.run(events())
    assert found == (snapshots if awaits == "changed" else ["fresh", "stale", "fresh"])


@pytest.mark.usefixtures("airflow")
def test_the_event_loop_does_not_wait_for_a_thread_that_opens_a_catalog(monkeypatch: pytest.MonkeyPatch) -> None:
    """Airflow's triggerer answers a thread in its event loop: each would wait for the other."""

    class Hook(MaterializedViewHook):
        def __init__(self, conn_id: str) -> None:
            opening.set()
            asked = asyncio.run_coroutine_threadsafe(asyncio.sleep(0.5), loops[0])
            asked.result(10)
            super().__init__(conn_id)

    class Wrong(JobOutcomeTrigger):
        def _exists(self) -> bool:
            assert opening.wait(60)
            raise ConfigurationError("wrong")

    async def ended() -> list[str]:
        loops.append(asyncio.get_running_loop())
        triggers = [kind(catalog="lake", location=kind.__name__) for kind in (JobOutcomeTrigger, Wrong)]
        found = await asyncio.gather(*(anext(trigger.run()) for trigger in triggers))
        return [event.payload["error"][1] for event in found]

    loops: list[asyncio.AbstractEventLoop] = []
    opening = threading.Event()
    monkeypatch.setattr("airflow_mv.triggers.outcome.POLL_SECONDS", 0.1)
    monkeypatch.setattr("airflow_mv.triggers.connected.MaterializedViewHook", Hook)
    forget()
    opened, wrong = asyncio.run(ended())
    assert wrong == "wrong"
    assert "iceberg_default" in opened


async def supervised(end: socket.socket) -> None:
    """Answer as the triggerer's parent does: one question after the other, each a little late."""
    reader, writer = await asyncio.open_connection(sock=end)
    nothing = dict.fromkeys(("host", "schema", "login", "password", "port", "extra"))
    with suppress(asyncio.IncompleteReadError):
        while True:
            length = int.from_bytes(await reader.readexactly(4), "big")
            asked = msgspec.msgpack.decode(await reader.readexactly(length), type=comms._RequestFrame)
            await asyncio.sleep(0.001)
            body = {"type": "ConnectionResult", "conn_id": asked.body["conn_id"], "conn_type": "iceberg"}
            writer.write(comms._ResponseFrame(id=asked.id, body=nothing | body).as_bytes())
    writer.close()
    await writer.wait_closed()


def test_threads_and_the_event_loop_ask_airflow_at_the_same_time() -> None:
    """In Airflow before 3.2.2 the triggerer ended, when a thread had read the answer to another question."""

    async def answers() -> list[str]:
        reader, writer = await asyncio.open_connection(sock=ours)
        decoder = TriggerCommsDecoder(socket=ours, async_writer=writer, async_reader=reader)
        if hasattr(decoder, "start_reader"):
            await decoder.start_reader()

        def in_a_thread(name: str) -> str:
            return str(decoder.send(comms.GetConnection(conn_id=name)).conn_id)

        async def in_the_loop(name: str) -> str:
            return str((await decoder.asend(comms.GetConnection(conn_id=name))).conn_id)

        shared = connected("iceberg_default")
        threads = [shared.look(name, partial(in_a_thread, name), every=9) for name in names[::2]]
        found = await asyncio.gather(*threads, *map(in_the_loop, names[1::2]))
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()  # the decoder's own
        writer.close()
        await writer.wait_closed()
        return found

    names = [f"conn_{number}" for number in range(60)]
    ours, theirs = socket.socketpair()
    parent = threading.Thread(target=lambda: asyncio.run(supervised(theirs)))
    parent.start()
    found = asyncio.run(answers())
    parent.join()
    assert found == [*names[::2], *names[1::2]]
