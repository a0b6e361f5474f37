# SPDX-License-Identifier: Apache-2.0
"""Broken files of real views: no command returns wrong rows, and ``repair`` restores the rows of a recompute."""

from __future__ import annotations

import itertools
import random
import shutil
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import StaticTable
from sqlalchemy import text

from airflow_mv.actions import create_view as create
from airflow_mv.core.catalog import Layout, MaterializedViewCatalog
from airflow_mv.core.define.definition import Definition
from airflow_mv.core.publish import publish
from airflow_mv.core.refresh import RefreshOptions
from airflow_mv.core.refresh.run import refresh
from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.core.spec.view import with_view_properties
from airflow_mv.errors import (
    CommitConflictError,
    CommitError,
    MaterializedViewError,
    NotMaterializedError,
    RefusedLocationError,
    StaleViewError,
    ViewNotFoundError,
)
from airflow_mv.extras.define import define
from airflow_mv.extras.describe import history
from airflow_mv.extras.history.rollback import rollback
from airflow_mv.extras.maintenance import repair as repairs
from airflow_mv.extras.maintenance.drop import purge
from airflow_mv.extras.maintenance.orphans import maintain
from airflow_mv.extras.maintenance.repair import RepairResult, repair
from airflow_mv.extras.maintenance.verify import verify_files
from airflow_mv.extras.read import read_rows, readable
from tests.builders import LAYOUTS, QUERY, Lake, lake
from tests.contract.support import VIEW, staged, where
from tests.extras.maintenance.support import files, local
from tests.faults import Clock, FaultyCatalog, StoppedError, refuse

OTHER = "sales.other"


@pytest.fixture(scope="module")
def _built(tmp_path_factory: pytest.TempPathFactory) -> dict[Layout, Path]:
    """A folder for each layout, whose `copy` has the lake before each test: refreshes take most of a test's time."""
    folders = {layout: tmp_path_factory.mktemp(layout) for layout in LAYOUTS}
    for layout, folder in folders.items():
        (folder / "lake" / "warehouse").mkdir(parents=True)
        with opened(folder, layout) as found:
            found.table()
            found.table("others", rows=[(1, "east", 5), (2, "west", 6)])
            found.view("other", QUERY.replace("orders GROUP", "others GROUP"))
            found.refresh(OTHER)
            refreshed_three_times(found, "daily")
        shutil.copytree(folder / "lake", folder / "copy")
    return folders


@pytest.fixture(params=LAYOUTS)
def home(request: pytest.FixtureRequest, _built: dict[Layout, Path], monkeypatch: pytest.MonkeyPatch) -> Iterator[Lake]:
    """A view that was refreshed three times, and another view whose files are used in its place."""
    monkeypatch.setenv("AIRFLOW_MV_CACHE", "off")  # the same paths have other files in each test
    folder = _built[request.param]
    shutil.rmtree(folder / "lake")
    shutil.copytree(folder / "copy", folder / "lake")
    with opened(folder, request.param) as found:
        yield found


def opened(folder: Path, layout: Layout) -> AbstractContextManager[Lake]:
    return lake(f"sqlite:///{folder}/lake/catalog.db", folder / "lake" / "warehouse", layout=layout)


def refreshed_three_times(home: Lake, name: str, **definition: Any) -> None:
    home.view(name, allow_stale_data=True, **definition)
    for number in range(3):
        home.append((100 + number, f"region {number}", number))
        home.refresh(f"sales.{name}")


def set_comment(home: Lake, text: str) -> None:
    """Give the view another metadata file."""
    loaded = home.catalog.load(VIEW)
    assert home.catalog.replace(loaded, with_view_properties(loaded.metadata, {"comment": text}))


def recomputed(home: Lake) -> Counter[tuple[str, int, int]]:
    """The query's rows, computed without this package."""
    counts: Counter[str] = Counter()
    amounts: Counter[str] = Counter()
    for row in home.load().scan().to_arrow().to_pylist():
        counts[row["region"]] += 1
        amounts[row["region"]] += row["amount"]
    return Counter((region, counts[region], amounts[region]) for region in counts)


def shown(home: Lake) -> Counter[tuple[str, int, int]]:
    """The rows that a reader gets from a newly opened catalog."""
    catalog = MaterializedViewCatalog(home.iceberg)
    result = read_rows(catalog, readable(catalog, VIEW))
    return Counter((row[0], row[1], row[2]) for row in result.rows())


def parts(home: Lake, view: str = VIEW) -> dict[str, Path]:
    """One file of each kind that a view's current state needs."""
    loaded = home.catalog.load(view)
    storage = home.catalog.load_storage(loaded)
    table = StaticTable.from_metadata(storage.location)
    snapshot = table.snapshot_by_id(storage.rows_snapshot or 0)
    assert snapshot is not None
    manifest = next(item for item in snapshot.manifests(table.io) if item.added_files_count)
    data = manifest.fetch_manifest_entry(table.io)[0].data_file.file_path
    found = {
        "view": loaded.metadata_location,
        "storage": storage.location,
        "list": snapshot.manifest_list,
        "manifest": manifest.manifest_path,
        "data": data,
    }
    return {kind: local(location) for kind, location in found.items()}


def delete(path: Path, _: Path) -> None:
    path.unlink()


def empty(path: Path, _: Path) -> None:
    path.write_bytes(b"")


def cut(path: Path, _: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: random.randrange(1, len(data))])


def corrupt(path: Path, _: Path) -> None:
    path.write_bytes(random.randbytes(path.stat().st_size))


def replace_by_other_view_s(path: Path, other: Path) -> None:
    shutil.copyfile(other, path)


DAMAGES = [delete, empty, cut, corrupt, replace_by_other_view_s]
KINDS = ["view", "storage", "list", "manifest", "data"]


def state_of(home: Lake) -> tuple[Any, ...]:
    return files(local(home.iceberg.properties["warehouse"])), home.rows_of_catalog()


def repaired_twice(home: Lake) -> RepairResult:
    """Repair twice: the second repair finds nothing to do."""
    done = repair(home.catalog, VIEW, act=True)
    assert done.ok, done
    before = home.rows_of_catalog()
    again = repair(home.catalog, VIEW, act=True)
    assert (again.findings, again.done) == ((), False)
    assert home.rows_of_catalog() == before
    return done


def test_a_view_whose_columns_have_unusual_names_is_not_damaged(home: Lake) -> None:
    """Writers replace characters of such names in Parquet files."""
    home.view("odd", "SELECT sum(amount) AS `total sales`, count(*) AS `count(1)` FROM lake.sales.orders")
    home.refresh("sales.odd")
    rows = home.read("sales.odd")
    assert (repair(home.catalog, "sales.odd", act=True).findings, len(rows)) == ((), 1)
    assert verify_files(home.catalog, "sales.odd").intact
    assert home.read("sales.odd") == rows


@pytest.mark.parametrize("home", ["registered", "table"], indirect=True)
def test_what_the_configuration_does_not_allow_is_not_damaged(home: Lake, tmp_path: Path) -> None:
    """The setting may be missing in this process only. Nothing is repaired, replaced or rebuilt."""
    allowed = {"airflow-mv.allowed-locations": f"file://{tmp_path}"}
    uri, warehouse = home.iceberg.properties["uri"], local(home.iceberg.properties["warehouse"])
    name = home.storage().name
    assert name is not None
    with lake(uri, warehouse, layout=home.layout, **allowed) as wide:
        with wide.iceberg.load_table((*name.namespace, name.name)).transaction() as change:
            change.set_properties({"write.data.path": f"file://{tmp_path}/data"})
        wide.append()
        wide.refresh()
        before, rows = state_of(wide), wide.read()
    definition = Definition(QUERY, layout=home.layout)
    for act in (
        lambda: repair(home.catalog, VIEW, act=True),
        lambda: create(home.catalog, VIEW, definition, stager=home.stager, replace=True),
        lambda: define(home.catalog, VIEW, definition, stager=home.stager, on_change="rebuild"),
    ):
        with pytest.raises(RefusedLocationError, match=r"list its folder in .*'airflow-mv\.allowed-locations'$"):
            act()
    with lake(uri, warehouse, layout=home.layout, **allowed) as wide:
        assert (state_of(wide), wide.read()) == (before, rows)


@pytest.mark.parametrize("home", ["pointed", "registered"], indirect=True)
def test_i19_a_folder_that_the_configuration_does_not_allow_is_not_listed(
    home: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither is its content: the refusal comes first."""
    place, view = f"file://{tmp_path}/metadata/1.metadata.json", home.catalog.load(VIEW)
    if home.layout == "pointed":
        path = Path(local(view.metadata_location))
        path.write_text(path.read_text().replace(view.materialized.storage_table_location, place))
    else:
        assert isinstance(home.iceberg, SqlCatalog)
        swap = "UPDATE iceberg_tables SET metadata_location = :place WHERE table_name = 'daily__storage'"
        with home.iceberg.engine.begin() as connection:
            assert connection.execute(text(swap), {"place": place}).rowcount == 1
    listed: list[str] = []
    inner = home.catalog.files.list

    def recorded(base: str) -> Iterator[Any]:
        listed.append(base)
        return inner(base)

    monkeypatch.setattr(home.catalog.files, "list", recorded)
    with pytest.raises(RefusedLocationError, match="outside of this catalog's folders"):
        repair(home.catalog, VIEW, act=True)
    assert not [base for base in listed if str(tmp_path) in base]


@pytest.mark.parametrize("each", [2, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", KINDS)
def test_i02_lost_or_truncated_files_are_reported_and_repaired(home: Lake, kind: str, each: int) -> None:
    """Before it no reader gets wrong rows, and inspecting changes nothing; afterwards a refresh has all rows."""
    random.seed(kind)
    turn = KINDS.index(kind) + LAYOUTS.index(home.layout)  # each damage of each kind of file in one of the layouts
    for number, damage in enumerate(DAMAGES[turn % each :: each]):
        set_comment(home, f"before {damage.__name__}")
        mine, theirs = parts(home)[kind], parts(home, OTHER)[kind]
        damage(mine, theirs)

        with pytest.raises(MaterializedViewError, match=rf"airflow-mv repair lake\.{VIEW}") as refused:
            shown(home)
        assert not refused.value.retryable
        before = state_of(home)
        inspected = repair(home.catalog, VIEW)
        assert state_of(home) == before
        assert not inspected.done
        assert any(mine.name in finding.file for finding in inspected.findings), inspected
        assert all(finding.repairable for finding in inspected.findings), inspected

        assert repaired_twice(home).findings
        assert state_of(home)[0] >= before[0]
        home.append((200 + number, "new", number))
        home.refresh()
        assert shown(home) == recomputed(home), damage.__name__


@pytest.mark.parametrize("kind", ["list", "data"])
def test_a_view_with_a_broken_current_snapshot_is_computed_again(home: Lake, kind: str) -> None:
    """The view then counts as never refreshed, so a plain refresh is enough."""
    parts(home)[kind].unlink()
    (finding, *_) = repaired_twice(home).findings
    assert "never refreshed" in finding.repair
    with pytest.raises(StaleViewError, match="never"):
        shown(home)
    assert home.refresh().outcome == "refreshed"
    assert shown(home) == recomputed(home)


def test_with_time_travel_only_the_broken_refresh_is_lost(sqlite_uri: str, warehouse: Path) -> None:
    """A broken older snapshot leaves the history. After a rollback a broken newest one is an older one."""
    with lake(sqlite_uri, warehouse) as home:
        home.table()
        refreshed_three_times(home, "daily", time_travel=True)
        first, second, third = (item["refresh_id"] for item in history(home.catalog, VIEW))
        good = shown(home)
        table = StaticTable.from_metadata(home.storage().location)
        second_snapshot = table.snapshot_by_name(f"refresh-{second}")
        assert second_snapshot is not None
        local(second_snapshot.manifest_list).unlink()
        (finding,) = repaired_twice(home).findings
        assert str(second_snapshot.snapshot_id) in finding.repair
        assert [item["refresh_id"] for item in history(home.catalog, VIEW)] == [first, third]
        assert shown(home) == good
        parts(home)["list"].write_bytes(b"")
        rollback(home.catalog, VIEW, first)
        repaired_twice(home)
        assert [item["refresh_id"] for item in history(home.catalog, VIEW)] == [first]
        home.refresh()
        assert shown(home) == recomputed(home)
        assert maintain(home.catalog, VIEW, older_than=timedelta(0)).collected.files
        assert shown(home) == recomputed(home)


def test_view_metadata_is_taken_from_the_folder_if_the_catalog_s_row_is_wrong(home: Lake) -> None:
    """The newest complete file of this view is used; if the folder has a file of another view, nothing is proven."""
    for number in range(3):
        set_comment(home, f"comment {number}")
    row = home.catalog.row(home.catalog.identify(VIEW))
    current, previous = parts(home)["view"], row.previous if row else None
    assert previous is not None
    local(previous).write_bytes(b"{")
    other = parts(home, OTHER)["view"]
    current.unlink()
    stray = current.parent / f"00000-{uuid.uuid4()}.metadata.json"
    theirs, ours = str(other.parent.parent), str(current.parent.parent)
    stray.write_text(other.read_text().replace(theirs, ours))
    if home.layout != "table":  # there each file names its view
        assert not repair(home.catalog, VIEW, act=True).ok
        stray.unlink()
    assert repaired_twice(home).findings
    assert home.catalog.load(VIEW).metadata.properties["comment"] == "comment 0"
    home.refresh()
    assert shown(home) == recomputed(home)


# -- a restored database -------------------------------------------------------------------------


def rows_of(home: Lake, names: Sequence[str]) -> list[dict[str, Any]]:
    """The catalog's rows of tables and views."""
    with home.iceberg.engine.begin() as connection:  # type: ignore[attr-defined]
        rows = connection.execute(text("SELECT * FROM iceberg_tables")).mappings().all()
    return [dict(row) for row in rows if row["table_name"].startswith(tuple(names))]


def set_rows(home: Lake, rows: Sequence[dict[str, Any]]) -> None:
    """Give the catalog these rows, instead of those of the same names."""
    with home.iceberg.engine.begin() as connection:  # type: ignore[attr-defined]
        for row in rows:
            connection.execute(text("DELETE FROM iceberg_tables WHERE table_name = :table_name"), row)
            columns = ", ".join(row)
            values = ", ".join(f":{name}" for name in row)
            connection.execute(text(f"INSERT INTO iceberg_tables ({columns}) VALUES ({values})"), row)


@contextmanager
def restored(home: Lake, names: Sequence[str]) -> Iterator[None]:
    """Restore the rows of tables and views at the end."""
    rows = rows_of(home, names)
    yield
    set_rows(home, rows)


def refreshed_more(home: Lake, refreshes: int) -> None:
    for number in range(refreshes):
        home.append((400 + number, f"later {number}", number))
        home.refresh()


@pytest.mark.parametrize("copy", ["stays behind", "goes on", "is purged"])
def test_maintenance_in_a_copy_of_the_database_deletes_no_file_of_the_original(home: Lake, copy: str) -> None:
    """Both have the same uuids and the same folder, so that all newer files look like the copy's own."""
    with restored(home, ["daily"]):
        refreshed_more(home, 3)
        newest, original = shown(home), rows_of(home, ["daily"])
    if copy == "goes on":
        refreshed_more(home, 2)
    if copy == "is purged":
        left = purge(home.catalog, VIEW).unproven
    else:
        maintain(home.catalog, VIEW, older_than=timedelta(0))
        left = maintain(home.catalog, VIEW, older_than=timedelta(0)).collected.unproven
    assert "a state of the view that was published in another catalog may need it" in left.values()
    set_rows(home, original)
    assert verify_files(home.catalog, VIEW).intact
    assert shown(home) == newest
    maintain(home.catalog, VIEW, older_than=timedelta(0))
    assert shown(home) == newest


def test_files_of_a_refresh_that_died_are_not_a_newer_state(home: Lake, clock: Clock) -> None:
    """All files are written and the swap was never sent: the view is intact."""
    home.append()
    plan, outcome = staged(home)
    catalog = FaultyCatalog(home.iceberg, *[refuse] * 8)
    with pytest.raises(CommitError):
        publish(catalog, plan, where(outcome), effects=clock.effects)
    assert not repair(home.catalog, VIEW, act=True).findings


@pytest.mark.parametrize("layout", ["registered", "table"])
def test_files_of_a_job_that_changes_the_columns_are_no_earlier_state(
    sqlite_uri: str, warehouse: Path, layout: str
) -> None:
    """They lie beside the table's with its uuid and its record, and other rows. Nothing has committed them."""
    with lake(sqlite_uri, warehouse, layout=layout) as home:
        home.table()
        refreshed_three_times(home, "daily")
        before = home.storage().table
        other = Definition("SELECT id, upper(region) AS amount FROM lake.sales.orders", layout=layout)
        create(home.catalog, VIEW, other, stager=home.stager, replace=True)
        (_, outcome), lost = staged(home), []
        for number in range(2):
            storage = home.storage()
            assert storage.name is not None
            table = home.iceberg.load_table((*storage.name.namespace, storage.name.name))
            table.manage_snapshots().create_tag(storage.table.head or 0, f"later_{number}").commit()
            lost.append(local(home.storage().location))
        assert outcome is not None
        assert local(outcome.staged).parent == lost[0].parent
        for path in lost:
            path.unlink()
        repaired_twice(home)
        after = home.storage().table
        assert (after.head, after.current_schema_id) == (before.head, before.current_schema_id)


# -- races and kills ---------------------------------------------------------------------------------


def test_a_repair_that_loses_a_race_changes_nothing(home: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """A change that is published between the repair's read and its commit wins."""
    parts(home)["data"].unlink()
    real = repairs._publish

    def overtaken(catalog: MaterializedViewCatalog, view: Identifier, *rest: Any) -> None:
        monkeypatch.setattr(repairs, "_publish", real)
        refresh(home.catalog, [view], stager=home.stager, options=RefreshOptions(full=True))
        real(catalog, view, *rest)

    monkeypatch.setattr(repairs, "_publish", overtaken)
    with pytest.raises(CommitConflictError, match="Run it again"):
        repair(home.catalog, VIEW, act=True)
    assert shown(home) == recomputed(home)


@pytest.mark.parametrize("kind", ["view", "storage", "data"])
def test_a_killed_repair_leaves_the_old_or_the_new_state(home: Lake, kind: str) -> None:
    """It is killed before and after each write and each change of the catalog; the next repair completes it."""
    set_comment(home, "two view files")
    parts(home)[kind].unlink()
    for number in range(12):
        if not killed_at(home, number):
            break
    else:
        pytest.fail("the repair has fewer changes than this")
    assert not repair(home.catalog, VIEW).findings
    home.refresh()
    assert shown(home) == recomputed(home)


def killed_at(home: Lake, number: int) -> bool:
    """Repair, and die before the change of this number; return whether it was reached."""
    catalog, count = MaterializedViewCatalog(home.iceberg), itertools.count()

    def dying(call: Callable[..., Any]) -> Callable[..., Any]:
        def change(*arguments: Any, **rest: Any) -> Any:
            if next(count) == number:
                raise StoppedError
            return call(*arguments, **rest)

        return change

    for target, name in (
        (catalog, "swap"),
        (catalog.tables, "commit"),
        (catalog.files, "write"),
    ):
        setattr(target, name, dying(getattr(target, name)))
    try:
        assert repair(catalog, VIEW, act=True).ok
    except StoppedError:
        return True
    return False


# -- intact views ------------------------------------------------------------------------------------


def test_an_intact_view_is_not_changed(every_home: Lake, warehouse: Path) -> None:
    """This holds in every catalog; a view that is not materialized is refused."""
    every_home.table()
    refreshed_three_times(every_home, "daily")
    before = files(warehouse), every_home.storage()
    done = repair(every_home.catalog, VIEW, act=True)
    assert (done.findings, done.done, done.ok) == ((), False, True)
    assert (files(warehouse), every_home.storage()) == before
    assert verify_files(every_home.catalog, VIEW).intact
    every_home.plain_view("plain", "SELECT * FROM lake.sales.orders")
    with pytest.raises(NotMaterializedError):
        repair(every_home.catalog, "sales.plain", act=True)
    with pytest.raises(ViewNotFoundError):
        repair(every_home.catalog, "sales.nothing", act=True)


def test_lost_files_are_repaired_in_every_catalog(every_home: Lake) -> None:
    """This holds behind a REST server, too, where the storage table is changed by a commit."""
    every_home.table()
    refreshed_three_times(every_home, "daily")
    parts(every_home)["list"].unlink()
    assert [item["why"] for item in verify_files(every_home.catalog, VIEW).to_dict()["damaged"]] == [
        "it does not exist"
    ]
    assert repair(every_home.catalog, VIEW, act=True).done
    every_home.refresh()
    assert verify_files(every_home.catalog, VIEW).intact
    if not every_home.catalog.is_rest:  # otherwise only the server can change what it names
        parts(every_home)["storage"].unlink()
        assert repair(every_home.catalog, VIEW, act=True).done
        assert not repair(every_home.catalog, VIEW).findings
    every_home.refresh()
    rows = recomputed(every_home)
    assert Counter((row["region"], row["orders"], row["amount"]) for row in every_home.read()) == rows
