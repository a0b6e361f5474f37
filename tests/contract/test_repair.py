# SPDX-License-Identifier: Apache-2.0
"""Broken files of real views: no command shows wrong rows, and ``repair`` leads back to the rows of a recompute."""

from __future__ import annotations

import itertools
import random
import shutil
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.table import StaticTable
from sqlalchemy import text

from airflow_mv.catalog import MaterializedViewCatalog
from airflow_mv.errors import (
    CommitConflictError,
    CommitError,
    MaterializedViewError,
    NotMaterializedError,
    StaleViewError,
    ViewNotFoundError,
)
from airflow_mv.freshness.status import history
from airflow_mv.maintenance import repair as repairs
from airflow_mv.maintenance.orphans import expire, maintain
from airflow_mv.maintenance.repair import Repaired, repair
from airflow_mv.publish import publish
from airflow_mv.refresh import RefreshOptions
from airflow_mv.refresh.read import read_arrow, readable
from airflow_mv.refresh.run import refresh
from airflow_mv.refresh.verify import verify_files
from airflow_mv.spec.identifiers import Identifier
from airflow_mv.spec.view import with_view_properties
from tests.builders import LAYOUTS, Lake, lake
from tests.contract.support import VIEW, staged, where
from tests.faults import Clock, FaultyCatalog, StoppedError, refuse
from tests.protocol.maintenance import files, folder_of, grow_old, local

OTHER = "sales.other"


@pytest.fixture(params=LAYOUTS)
def home(request: pytest.FixtureRequest, sqlite_uri: str, warehouse: Path) -> Iterator[Lake]:
    """A view that was refreshed three times, and another one whose files are mistaken for its own."""
    with lake(sqlite_uri, warehouse, layout=request.param) as found:
        found.table()
        found.table("others", rows=[(1, "east", 5), (2, "west", 6)])
        found.view(
            "other", "SELECT region, count(*) AS orders, sum(amount) AS amount FROM lake.sales.others GROUP BY region"
        )
        found.refresh(OTHER)
        grown(found, "daily")
        yield found


def grown(home: Lake, name: str, **definition: Any) -> None:
    home.view(name, allow_stale_data=True, **definition)
    for number in range(3):
        home.append((100 + number, f"region {number}", number))
        home.refresh(f"sales.{name}")


def commented(home: Lake, text: str) -> None:
    """Give the view another metadata file."""
    loaded = home.catalog.load(VIEW)
    assert home.catalog.replace(loaded, with_view_properties(loaded.metadata, {"comment": text}))


def recomputed(home: Lake) -> Counter[tuple[str, int, int]]:
    """The query's rows, by nothing of the package."""
    counts: Counter[str] = Counter()
    amounts: Counter[str] = Counter()
    for row in home.load().scan().to_arrow().to_pylist():
        counts[row["region"]] += 1
        amounts[row["region"]] += row["amount"]
    return Counter((region, counts[region], amounts[region]) for region in counts)


def shown(home: Lake) -> Counter[tuple[str, int, int]]:
    """The rows as a reader gets them, by a catalog that has just been opened."""
    catalog = MaterializedViewCatalog(home.iceberg)
    result = read_arrow(catalog, readable(catalog, VIEW))
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


def garble(path: Path, _: Path) -> None:
    path.write_bytes(random.randbytes(path.stat().st_size))


def mistake(path: Path, other: Path) -> None:
    shutil.copyfile(other, path)


DAMAGES = [delete, empty, cut, garble, mistake]
KINDS = ["view", "storage", "list", "manifest", "data"]


def state_of(home: Lake, warehouse: Path) -> tuple[Any, ...]:
    return files(warehouse), home.rows_of_catalog()


def in_full(home: Lake) -> Repaired:
    """Repair, twice: the second time there is nothing left to do."""
    done = repair(home.catalog, VIEW, act=True)
    assert done.ok, done
    before = home.rows_of_catalog()
    again = repair(home.catalog, VIEW, act=True)
    assert (again.findings, again.done) == ((), False)
    assert home.rows_of_catalog() == before
    return done


@pytest.mark.parametrize("kind", KINDS)
def test_i02_what_is_lost_or_cut_is_said_and_repaired(home: Lake, warehouse: Path, kind: str) -> None:
    """Before the repair no reader gets wrong rows, and a look changes nothing; afterwards a refresh has all rows."""
    random.seed(kind)
    for number, damage in enumerate(DAMAGES):
        commented(home, f"before {damage.__name__}")
        mine, theirs = parts(home)[kind], parts(home, OTHER)[kind]
        damage(mine, theirs)

        with pytest.raises(MaterializedViewError, match=rf"airflow-mv repair lake\.{VIEW}") as refused:
            shown(home)
        assert not refused.value.retryable
        before = state_of(home, warehouse)
        look = repair(home.catalog, VIEW)
        assert state_of(home, warehouse) == before
        assert not look.done
        assert any(mine.name in finding.file for finding in look.findings), look
        assert all(finding.repairable for finding in look.findings), look

        assert in_full(home).findings
        assert files(warehouse) >= before[0]
        home.append((200 + number, "new", number))
        home.refresh()
        assert shown(home) == recomputed(home), damage.__name__


def forget_earlier(home: Lake) -> None:
    """Let no refresh before the current one be known: as after maintenance with a short age."""
    loaded = home.catalog.load(VIEW)
    kept = {str(path) for path in parts(home).values()}
    kept |= {str(local(loaded.materialized.storage_table_location))}
    for path in files(local(loaded.metadata.location)):
        if path.endswith(".metadata.json") and path not in kept:
            Path(path).unlink()


@pytest.mark.parametrize("kind", ["list", "data"])
def test_a_current_snapshot_without_a_whole_one_before_is_computed_anew(home: Lake, kind: str) -> None:
    """The view counts as never refreshed then: a plain refresh is enough."""
    expire(home.catalog, VIEW, older_than=timedelta(0))
    forget_earlier(home)
    parts(home)[kind].unlink()
    (finding, *_) = in_full(home).findings
    assert "never refreshed" in finding.repair
    with pytest.raises(StaleViewError, match="never"):
        shown(home)
    assert home.refresh().outcome == "refreshed"
    assert shown(home) == recomputed(home)


def test_a_view_goes_back_to_the_refresh_before_and_says_which(home: Lake) -> None:
    """Its rows are those that were there then, and the record is of them."""
    rows = shown(home)
    before = home.storage().state
    assert before is not None
    home.append((300, "north", 1))
    home.refresh()
    parts(home)["data"].unlink()
    done = in_full(home)
    assert all(before.current_refresh_id in finding.repair for finding in done.findings)
    assert shown(home) == rows
    record = home.storage().record
    assert record is not None
    assert record.refresh_id == before.current_refresh_id
    home.refresh()
    assert shown(home) == recomputed(home)


def test_with_time_travel_only_the_broken_refresh_is_lost(sqlite_uri: str, warehouse: Path) -> None:
    """A broken older snapshot leaves the history; a broken current one leads back to the newest whole one."""
    with lake(sqlite_uri, warehouse) as home:
        home.table()
        grown(home, "daily", time_travel=True)
        first, second, third = (item["refresh_id"] for item in history(home.catalog, VIEW))
        good = shown(home)
        table = StaticTable.from_metadata(home.storage().location)
        second_snapshot = table.snapshot_by_name(f"refresh-{second}")
        assert second_snapshot is not None
        local(second_snapshot.manifest_list).unlink()
        (finding,) = in_full(home).findings
        assert str(second_snapshot.snapshot_id) in finding.repair
        assert [item["refresh_id"] for item in history(home.catalog, VIEW)] == [first, third]
        assert shown(home) == good
        parts(home)["list"].write_bytes(b"")
        in_full(home)
        assert [item["refresh_id"] for item in history(home.catalog, VIEW)] == [first]
        home.refresh()
        assert shown(home) == recomputed(home)
        assert maintain(home.catalog, VIEW, older_than=timedelta(0)).collected.files
        assert shown(home) == recomputed(home)


def test_view_metadata_is_taken_from_the_folder_if_the_row_does_not_help(home: Lake) -> None:
    """The newest whole file of this view counts; a file of another view in the same folder leaves nothing proven."""
    for number in range(3):
        commented(home, f"comment {number}")
    current, previous = parts(home)["view"], home.catalog.previous_location(home.catalog.identify(VIEW))
    assert previous is not None
    local(previous).write_bytes(b"{")
    other = parts(home, OTHER)["view"]
    current.unlink()
    stray = current.parent / f"00000-{uuid.uuid4()}.metadata.json"
    theirs, ours = str(other.parent.parent), str(current.parent.parent)
    stray.write_text(other.read_text().replace(theirs, ours))
    assert not repair(home.catalog, VIEW, act=True).ok
    stray.unlink()
    assert in_full(home).findings
    assert home.catalog.load(VIEW).metadata.properties["comment"] == "comment 0"
    home.refresh()
    assert shown(home) == recomputed(home)


# -- a database of another day ------------------------------------------------------------------


@contextmanager
def restored(home: Lake, names: Sequence[str]) -> Iterator[None]:
    """Let the rows of tables and views be afterwards what they were before."""
    query = "SELECT table_name, metadata_location, previous_metadata_location FROM iceberg_tables"
    with home.iceberg.engine.begin() as connection:  # type: ignore[attr-defined]
        rows = [row for row in connection.execute(text(query)).all() if row[0].startswith(tuple(names))]
    yield
    columns = "metadata_location = :at, previous_metadata_location = :before"
    update = f"UPDATE iceberg_tables SET {columns} WHERE table_name = :name"
    with home.iceberg.engine.begin() as connection:  # type: ignore[attr-defined]
        for name, at, before in rows:
            connection.execute(text(update), {"name": name, "at": at, "before": before})


def moved_on(home: Lake, refreshes: int) -> None:
    for number in range(refreshes):
        home.append((400 + number, f"later {number}", number))
        home.refresh()


@pytest.mark.parametrize("kept", ["all files", "only the newest files"])
def test_a_restored_database_is_noticed_and_goes_forward(home: Lake, kept: str) -> None:
    """To the newest state that follows from the row's; also where maintenance has deleted what the row names."""
    with restored(home, ["daily"]):
        moved_on(home, 3)
        if kept != "all files":
            grow_old(folder_of(home))
            maintain(home.catalog, VIEW, older_than=timedelta(0))
            commented(home, "to have two view files")
            moved_on(home, 1)
            maintain(home.catalog, VIEW, older_than=timedelta(0))
            moved_on(home, 1)
        newest = shown(home)
    look = repair(home.catalog, VIEW)
    assert look.findings
    in_full(home)
    assert shown(home) == newest == recomputed(home)
    assert home.refresh().outcome == "fresh"


def test_an_older_state_can_be_accepted(home: Lake) -> None:
    """The newer files stay where they are; nothing leads on from the state that was accepted."""
    older = shown(home)
    with restored(home, ["daily"]):
        moved_on(home, 3)
    before = files(local(home.iceberg.properties["warehouse"]))
    done = repair(home.catalog, VIEW, act=True, accept_older=True)
    assert done.done
    assert "restored" in done.findings[0].what
    assert shown(home) == older
    assert not repair(home.catalog, VIEW).findings
    assert files(local(home.iceberg.properties["warehouse"])) >= before
    home.refresh()
    assert shown(home) == recomputed(home)


def test_what_a_refresh_that_died_has_left_is_no_newer_state(home: Lake, clock: Clock) -> None:
    """Everything is written, and the swap was never done: the view is healthy."""
    home.append()
    plan, outcome = staged(home)
    catalog = FaultyCatalog(home.iceberg, *[refuse] * 8)
    with pytest.raises(CommitError):
        publish(catalog, plan, where(outcome), effects=clock.effects)
    assert not repair(home.catalog, VIEW, act=True).findings


# -- races and kills ---------------------------------------------------------------------------------


def test_a_repair_that_is_overtaken_changes_nothing(home: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever publishes between the look and the act wins."""
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
def test_a_repair_that_is_killed_leaves_the_old_state_or_the_new_one(home: Lake, kind: str) -> None:
    """Before and after each write and each change of the catalog; the next repair ends it."""
    commented(home, "two view files")
    parts(home)[kind].unlink()
    for number in range(12):
        if not killed_at(home, number):
            break
    else:
        pytest.fail("a repair does less than this")
    assert not repair(home.catalog, VIEW).findings
    home.refresh()
    assert shown(home) == recomputed(home)


def killed_at(home: Lake, number: int) -> bool:
    """Repair, and die before the change of this number; whether it came so far."""
    catalog, count = MaterializedViewCatalog(home.iceberg), itertools.count()

    def dying(call: Callable[..., Any]) -> Callable[..., Any]:
        def change(*arguments: Any, **rest: Any) -> Any:
            if next(count) == number:
                raise StoppedError
            return call(*arguments, **rest)

        return change

    for target, name in (
        (catalog, "swap"),
        (catalog, "swap_table"),
        (catalog, "commit_table"),
        (catalog.files, "write"),
    ):
        setattr(target, name, dying(getattr(target, name)))
    try:
        assert repair(catalog, VIEW, act=True).ok
    except StoppedError:
        return True
    return False


# -- what is no damage -------------------------------------------------------------------------------


def test_a_healthy_view_is_left_alone(every_home: Lake, warehouse: Path) -> None:
    """In every catalog; and what is no materialized view is refused."""
    every_home.table()
    grown(every_home, "daily")
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
    """Also behind a REST server, whose storage table is changed by a commit."""
    every_home.table()
    grown(every_home, "daily")
    parts(every_home)["list"].unlink()
    assert [item["why"] for item in verify_files(every_home.catalog, VIEW).to_dict()["damaged"]] == [
        "it does not exist"
    ]
    assert repair(every_home.catalog, VIEW, act=True).done
    assert verify_files(every_home.catalog, VIEW).intact
    every_home.refresh()
    rows = recomputed(every_home)
    assert Counter((row["region"], row["orders"], row["amount"]) for row in every_home.read()) == rows
