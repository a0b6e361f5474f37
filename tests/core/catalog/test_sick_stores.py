# SPDX-License-Identifier: Apache-2.0
"""A store that does not respond, or that this host cannot reach, is a failure of what lies there only."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from sqlalchemy import insert

from airflow_mv.common.each import materialized_views
from airflow_mv.core.catalog import files as file_stores
from airflow_mv.core.catalog import limits, locations, store_deadlines
from airflow_mv.core.catalog.configured import STORE_TIMEOUT
from airflow_mv.core.catalog.files import GuardedIO, MetadataFiles
from airflow_mv.core.catalog.locations import on_disk
from airflow_mv.core.catalog.pyiceberg_compat import ROWS
from airflow_mv.core.catalog.store_deadlines import MAX_CALLS
from airflow_mv.errors import CatalogUnavailableError, StoreUnavailableError
from airflow_mv.extras.fleet.alerts import WatchedViews, freshness_slos
from airflow_mv.extras.maintenance.drop import purge
from airflow_mv.extras.maintenance.entries import other_entries
from airflow_mv.extras.maintenance.matcher import lies_elsewhere
from airflow_mv.extras.maintenance.orphans import collect_orphans
from airflow_mv.extras.maintenance.verify import verify_files
from airflow_mv.extras.pins import pin_base_tables
from airflow_mv.extras.registry.registry import require_registry
from airflow_mv.extras.registry.settings import PLACE
from airflow_mv.extras.registry.sync import rebuild, sync
from tests.builders import LAYOUTS, Lake, lake
from tests.cli.support import call
from tests.engine.support import reload_configuration
from tests.services import Quiet

SECONDS = 1.0
HDFS, BEHIND_FIREWALL = "hdfs://nn:8020/x/1.metadata.json", "gs://walled/x/metadata/1.metadata.json"
SICK = {"on_hdfs": HDFS, "walled": BEHIND_FIREWALL}
GCS = {"gcs.oauth2.token": "none", "gcs.oauth2.token-expires-at": "4102444800000"}


@pytest.fixture
def quiet() -> Iterator[Quiet]:
    """A server that accepts connections and never answers."""
    with closing(Quiet()) as found:
        yield found


@pytest.fixture
def properties(quiet: Quiet, warehouse: Path) -> dict[str, str]:
    """Those of a catalog whose buckets at Google do not answer."""
    own = {"gcs.service.host": f"http://127.0.0.1:{quiet.port}", STORE_TIMEOUT: f"{SECONDS:g}"}
    return {**GCS, **own, PLACE: f"{warehouse}/registry"}


@pytest.fixture(params=LAYOUTS)
def home(
    request: pytest.FixtureRequest,
    sqlite_uri: str,
    warehouse: Path,
    properties: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Lake]:
    """A lake that the command line can open: a fresh view, and two tables on stores that do not respond."""
    settings = {"type": "sql", "uri": sqlite_uri, "warehouse": f"file://{warehouse}", **properties}
    monkeypatch.setattr(store_deadlines, "_stores", store_deadlines._Stores())
    with monkeypatch.context() as patch:
        for key, value in settings.items():
            name = key.upper().replace(".", "__").replace("-", "_")
            patch.setenv(f"PYICEBERG_CATALOG__LAKE__{name}", value)
        reload_configuration()
        with lake(sqlite_uri, warehouse, layout=request.param, **properties) as found:
            found.table()
            found.view()
            found.refresh()
            for name, location in SICK.items():
                add_row(found, name, location)
            yield found
    reload_configuration()


def add_row(home: Lake, name: str, location: str, kind: str = "TABLE") -> None:
    """Add a table or view of another program, whose metadata file is somewhere."""
    assert isinstance(home.iceberg, SqlCatalog)
    row = {"catalog_name": home.catalog.name, "table_namespace": "sales", "table_name": name}
    with home.iceberg.engine.begin() as connection:
        connection.execute(insert(ROWS).values(**row, metadata_location=location, iceberg_type=kind))


def names_both(text: str) -> bool:
    """Whether a text names both tables with their locations."""
    return all(f"lake.sales.{name}" in text and location in text for name, location in SICK.items())


def test_i29_a_sick_store_hides_no_view_from_any_command(home: Lake) -> None:
    """What can be read is shown, what cannot is named with its place, and the exit code says that it was left out."""
    started = time.monotonic()
    for command in (("status", "--all"), ("status", "--namespace", "lake.sales")):
        found = call(*command, "--json")
        views = {document["view"]: document for document in found.json}
        assert (found.code, views["lake.sales.daily"]["state"]) == (1, "fresh")
        reasons = [document["reasons"][0] for document in found.json if document["view"] is None]
        assert [reason["code"] for reason in reasons] == ["STORE_UNREADABLE"] * 2
        assert names_both(json.dumps(reasons))
        assert names_both(found.stderr)
    assert call("status", "lake.sales.daily", "--json").code == 0
    refreshed = call("refresh", "--namespace", "lake.sales", "--json")
    assert (refreshed.code, [item["outcome"] for item in refreshed.json]) == (1, ["fresh"])
    assert names_both(refreshed.stderr)
    pinned = call("pin", "--namespace", "lake.sales", "--json")
    assert (pinned.code, [*pinned.json["views"]]) == (1, ["lake.sales.daily"])
    maintained = call("maintain", "--namespace", "lake.sales", "--json")
    assert (maintained.code, [item["view"] for item in maintained.json]) == (1, ["lake.sales.daily"])
    synced = call("registry", "sync", "--json")
    assert (synced.code, synced.json["views"], names_both(json.dumps(synced.json["faults"]))) == (1, 1, True)
    assert time.monotonic() - started < 60


def test_i29_a_sick_store_hides_no_view_from_alerts_pins_and_the_registry(home: Lake) -> None:
    catalog = home.catalog
    watched = WatchedViews("lake", lambda: catalog, namespace=("sales",))
    slos = freshness_slos(watched)
    assert str(next(slos).view) == "lake.sales.daily"
    with pytest.raises(StoreUnavailableError, match="left out"):
        next(slos)
    assert [view.name for view in materialized_views(catalog, "sales")] == ["daily"]
    assert [*pin_base_tables(catalog, ["sales.daily"]).base_tables] == ["lake.sales.orders"]
    assert sync(catalog).views == rebuild(catalog).views == 1
    assert require_registry(catalog).views.read(None, ["view"])["view"].to_pylist() == ["lake.sales.daily"]
    (entry,) = [name for name in catalog.table_views.unread if name.name == "walled"]
    assert str(entry) == "lake.sales.walled"
    assert isinstance(home.iceberg, SqlCatalog)
    home.iceberg.drop_table("sales.walled")
    catalog.list()
    assert [name.name for name in catalog.table_views.unread] == ["on_hdfs"]


def test_i29_views_on_a_sick_store_hide_no_other_view(home: Lake) -> None:
    """They are views by their rows, more of them than a catalog that does not respond is asked for."""
    for number in range(5):
        add_row(home, f"far{number}", f"gs://far/{number}/metadata/1.metadata.json", "VIEW")
    found = call("status", "--all", "--json")
    states = {document["view"]: document["state"] for document in found.json if document["view"]}
    assert states == {"lake.sales.daily": "fresh", **{f"lake.sales.far{number}": "unknown" for number in range(5)}}
    assert found.code == 1
    refreshed = call("refresh", "--namespace", "lake.sales", "--json")
    assert (refreshed.code, [item["view"] for item in refreshed.json]) == (1, ["lake.sales.daily"])
    assert sync(home.catalog).views == 6
    refused = call("drop", "lake.sales.far0", "--yes")
    assert (refused.code, "--force" in refused.error) == (1, True)
    assert call("drop", "lake.sales.far0", "--yes", "--force").code == 0
    assert call("drop", "lake.sales.walled", "--yes", "--force").code == 1  # nothing says that it is a view


def test_i29_a_table_in_another_store_needs_no_reading_before_a_deletion(home: Lake) -> None:
    folder = home.storage().table.location.removeprefix("file://")
    home.append()
    home.refresh()
    for _ in range(2):
        done = collect_orphans(home.catalog, "sales.daily", older_than=timedelta(0))
    assert not done.dry_run
    assert purge(home.catalog, "sales.daily").files
    assert not list(Path(folder).rglob("*.parquet"))


def test_i29_a_table_that_may_overlap_and_cannot_be_read_stops_a_deletion(
    sqlite_uri: str, warehouse: Path, properties: dict[str, str]
) -> None:
    """Where a view lies in the store that fails, nothing is deleted."""
    assert not lies_elsewhere("gs://walled/x", "s3://walled/y")  # one bucket through two protocols
    assert not lies_elsewhere("hdfs://a/x", "hdfs://b/y")  # two names of one cluster
    assert not lies_elsewhere("file:///x", "/y")
    assert not lies_elsewhere("viewfs://v/x", "s3://bucket/y")
    assert lies_elsewhere("gs://walled/x", "s3://other/y")
    assert lies_elsewhere(HDFS, "file:///w")
    with lake(sqlite_uri, warehouse, **properties) as home:
        home.table()
        add_row(home, "walled", BEHIND_FIREWALL)
        home.catalog.files._seconds = 0.2
        with pytest.raises(StoreUnavailableError, match=r"sales\.walled.*Nothing was deleted"):
            other_entries(home.catalog, frozenset(), ("gs://walled/view",))
        assert len(other_entries(home.catalog, frozenset(), ("gs://own/view",))) == 2


@pytest.mark.parametrize(
    ("location", "more"),
    [
        ("gs://walled/x.metadata.json", {}),
        ("s3://walled/x.metadata.json", {"s3.access-key-id": "a", "s3.secret-access-key": "b", "s3.region": "x"}),
        (
            "abfss://walled@account.dfs.core.windows.net/x.metadata.json",
            {
                "adls.account-name": "account",
                "adls.account-key": "a2V5",
                "py-io-impl": "pyiceberg.io.pyarrow.PyArrowFileIO",
            },
        ),
    ],
)
def test_every_store_has_a_deadline_whichever_library_reads_it(
    quiet: Quiet, location: str, more: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also for what pyiceberg reads by itself, and for a listing."""
    host = f"127.0.0.1:{quiet.port}"
    own = {"gcs.service.host": f"http://{host}", "s3.endpoint": f"http://{host}"}
    for kind in ("blob", "dfs"):
        own |= {f"adls.{kind}-storage-authority": host, f"adls.{kind}-storage-scheme": "http"}
    files = MetadataFiles({**GCS, **own, **more, STORE_TIMEOUT: "0.5"})
    for ask in (
        lambda: files.read(location, what="file"),
        lambda: list(files.list(location.rpartition("/")[0])),
        lambda: files.write(location, b"{}"),
    ):
        monkeypatch.setattr(store_deadlines, "_stores", store_deadlines._Stores())
        started = time.monotonic()
        with pytest.raises(StoreUnavailableError, match=r"walled.*(no response within 0\.5|not answered for .*) s"):
            ask()
        assert time.monotonic() - started < 10
    monkeypatch.setattr(store_deadlines, "_stores", store_deadlines._Stores())
    with pytest.raises(TimeoutError, match="no response"):
        files.io(location, what="file").new_input(location).open()


def test_calls_of_a_silent_store_are_bounded_and_others_go_on(
    quiet: Quiet, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A thousand reads take no thousand threads, and no thousand deadlines."""
    monkeypatch.setattr(store_deadlines, "_stores", store_deadlines._Stores())
    files = MetadataFiles({**GCS, "gcs.service.host": f"http://127.0.0.1:{quiet.port}", STORE_TIMEOUT: "1"})
    before, errors = threading.active_count(), []

    def ask(number: int) -> None:
        try:
            files.read(f"gs://walled/{number}.json", what="file")
        except CatalogUnavailableError as error:
            errors.append(str(error))

    started = time.monotonic()
    readers = [threading.Thread(target=ask, args=(number,)) for number in range(100)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    for number in range(1000):
        ask(number)
    assert time.monotonic() - started < 10
    assert len(errors) == 1100
    assert threading.active_count() - before <= MAX_CALLS
    assert any("called again in" in error or "already wait" in error for error in errors)
    (tmp_path / "a.json").write_text("{}")
    assert files.read(f"file://{tmp_path}/a.json", what="file") == b"{}"


def test_a_store_that_answers_again_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """One slow call of a store that answers others is no failure of the store."""
    monkeypatch.setattr(store_deadlines, "_stores", store_deadlines._Stores())
    monkeypatch.setattr(store_deadlines, "RETRY_SECONDS", 0.3)
    held, place = threading.Event(), "s3://bucket/x"
    with pytest.raises(TimeoutError, match=r"no response within 0\.1 s"):
        store_deadlines.within(place, 0.1, held.wait)
    with pytest.raises(TimeoutError, match="called again in"):
        store_deadlines.within(place, 5, lambda: 1)
    time.sleep(0.4)
    assert store_deadlines.within(place, 5, lambda: 1) == 1  # the first call still hangs
    assert store_deadlines.within(place, 5, lambda: 2) == 2
    held.set()


def test_a_network_file_system_is_a_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has a deadline, and each mount is a store of its own. Disks of this host are called directly."""
    monkeypatch.setattr(locations, "_remote_mounts", lambda _: ("/mnt/share/inner", "/mnt/share"))
    assert not on_disk("file:///mnt/share/x")
    assert on_disk("file:///mnt/x")
    assert store_deadlines.store_name("file:///mnt/share/inner/x") == "file:///mnt/share/inner"
    assert store_deadlines.store_name("/mnt/share/../share/x") == "file:///mnt/share"
    assert store_deadlines.store_name("/mnt/shared/x") is None
    held = threading.Event()
    with pytest.raises(TimeoutError, match="no response"):
        store_deadlines.within("/mnt/share/x", 0.1, held.wait)
    held.set()
    assert store_deadlines.store_name("s3a://bucket/x") == store_deadlines.store_name("s3://bucket/y")


def test_all_that_pyiceberg_reads_and_writes_by_itself_has_deadlines(
    sqlite_uri: str, warehouse: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Local files stand for a store: commits, writes, scans, a refresh, maintenance and a check of files."""
    called: list[str] = []

    def noted(location: str) -> str:
        called.append(location)
        return "s3://store"

    monkeypatch.setattr(store_deadlines, "store_name", noted)
    monkeypatch.setattr(file_stores, "checked_on_disk", lambda *_, what: False)
    monkeypatch.setattr(limits, "on_disk", lambda _: False)
    with lake(sqlite_uri, warehouse, layout="table") as home:
        assert isinstance(home.table().io, GuardedIO)
        home.view()
        home.refresh()
        home.append()
        home.refresh()
        assert {row["region"]: row["amount"] for row in home.read()} == {"north": 15, "south": 20, "east": 7}
        assert collect_orphans(home.catalog, "sales.daily").reachable
        assert not verify_files(home.catalog, home.catalog.identify("sales.daily")).checked.damaged
    assert {location.rpartition(".")[2] for location in called} >= {"json", "avro", "parquet"}
