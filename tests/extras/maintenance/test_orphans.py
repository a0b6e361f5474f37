# SPDX-License-Identifier: Apache-2.0
"""Collection of orphans: every orphan is deleted in the end, and never a file that is needed, recent or foreign."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from airflow_mv.core.catalog import LoadedStorage, MaterializedViewCatalog
from airflow_mv.core.refresh import plan_refresh
from airflow_mv.core.refresh.run import find_staged, stage
from airflow_mv.core.script import Outcome
from airflow_mv.errors import (
    InvalidMetadataError,
    MaterializedViewError,
    MetadataFileNotFoundError,
    NotMaterializedError,
    UnsupportedError,
    ViewNotFoundError,
)
from airflow_mv.extras.maintenance.deletion_log import log_location
from airflow_mv.extras.maintenance.orphans import DEFAULT_GRACE, collect_orphans, expire
from airflow_mv.extras.maintenance.reachable_files import snapshot_files
from tests.builders import Lake, lake
from tests.extras.maintenance.support import (
    LONG,
    VIEW,
    files,
    folder_of,
    kill,
    leave_staged,
    local,
    lose_answer,
    lose_race,
    make_older,
    marked_and_old,
    needed,
    orphans,
    plan_again,
    read_all,
    staged,
)


@pytest.fixture
def home(sqlite_uri: str, warehouse: Path) -> Iterator[Lake]:
    with lake(sqlite_uri, warehouse) as found:
        found.table()
        found.view()
        yield found


# -- all unneeded files are deleted ------------------------------------------------------------


@pytest.mark.parametrize("history", [kill, lose_race, plan_again, lose_answer, leave_staged])
def test_i12_after_the_grace_no_unneeded_file_is_left_and_every_snapshot_is_readable(
    home: Lake, history: Callable[[Lake], None]
) -> None:
    """I12: a collection after the grace deletes all garbage of refreshes."""
    home.refresh()
    home.append()
    history(home)
    before = read_all(home)
    left = orphans(home)
    assert collect_orphans(home.catalog, VIEW).files == ()
    make_older(folder_of(home))
    assert orphans(home) == left
    assert left
    collected = collect_orphans(home.catalog, VIEW)
    assert {str(local(file.location)) for file in collected.files} == left
    assert collected.size_bytes > 0
    assert orphans(home) == set()
    assert read_all(home) == before
    assert collect_orphans(home.catalog, VIEW).files == ()


def test_after_a_collection_the_view_can_be_refreshed(home: Lake) -> None:
    home.refresh()
    home.append()
    staged(home)
    marked_and_old(home)
    collect_orphans(home.catalog, VIEW)
    assert home.refresh().outcome == "refreshed"
    assert len(home.read()) == 3


def test_a_view_that_was_never_refreshed_is_collected_too(home: Lake) -> None:
    make_older(folder_of(home))
    collect_orphans(home.catalog, VIEW)
    assert orphans(home) == set()
    assert home.refresh().outcome == "refreshed"


def test_a_checksum_file_is_deleted_with_its_file(home: Lake) -> None:
    """Spark writes one beside each local file; no metadata names it."""
    home.refresh()
    home.append()
    staged(home)
    left = {Path(path) for path in orphans(home)}
    for path in map(Path, files(folder_of(home))):
        path.with_name(f".{path.name}.crc").write_bytes(b"crc")
    marked_and_old(home)
    collect_orphans(home.catalog, VIEW)
    assert all(path.with_name(f".{path.name}.crc").exists() for path in map(Path, needed(home)))
    assert not any(path.with_name(f".{path.name}.crc").exists() for path in left)


# -- recent files are kept ---------------------------------------------------------------------


def test_no_file_younger_than_the_grace_is_deleted(home: Lake) -> None:
    home.refresh()
    home.append()
    _, resume = staged(home)
    collect_orphans(home.catalog, VIEW)
    make_older(folder_of(home), seconds=DEFAULT_GRACE.total_seconds() - 60)
    before = files(folder_of(home))
    collected = collect_orphans(home.catalog, VIEW)
    assert collected.files == ()
    assert collected.kept_young == len(orphans(home)) > 0
    assert files(folder_of(home)) == before
    resume()
    assert len(home.read()) == 3


@pytest.mark.parametrize("days", [-30, 30])
def test_i15_the_host_s_clock_decides_nothing(home: Lake, monkeypatch: pytest.MonkeyPatch, days: int) -> None:
    """I15: only the store's clock decides how old a file is, so a host with a wrong clock deletes the same files."""
    home.refresh()
    home.append()
    staged(home)
    collect_orphans(home.catalog, VIEW)
    old = orphans(home)
    make_older(folder_of(home))
    home.append((77, "west", 1))
    staged(home)
    young = orphans(home) - old
    assert old
    assert young
    offset, seconds, nanoseconds = days * 86_400, time.time, time.time_ns
    monkeypatch.setattr(time, "time", lambda: seconds() + offset)
    monkeypatch.setattr(time, "time_ns", lambda: nanoseconds() + offset * 10**9)
    assert {str(local(file.location)) for file in collect_orphans(home.catalog, VIEW).files} == old
    assert orphans(home) == young


def test_a_refresh_that_was_resumed_while_files_were_counted_keeps_its_files(home: Lake) -> None:
    """Its staged files are old and unreachable at first; the pointer moves to them before the deletion."""
    home.refresh()
    home.append()
    _, resume = staged(home)
    marked_and_old(home)
    waiting = [resume]

    def count_and_resume(catalog: MaterializedViewCatalog, storage: LoadedStorage) -> Iterable[str]:
        found = list(snapshot_files(catalog, storage))
        if waiting:
            waiting.pop()()
        return found

    collect_orphans(home.catalog, VIEW, files_of=count_and_resume)
    assert len(home.read()) == 3
    assert read_all(home)


def test_a_staged_refresh_is_not_resumed_if_its_files_are_near_the_grace(home: Lake) -> None:
    """A collection could delete them during the publication, so the refresh is staged again."""
    _, _ = staged(home)
    make_older(folder_of(home), seconds=DEFAULT_GRACE.total_seconds() / 2 - 60)
    home.refresh()
    assert len(home.stager.refreshes) == 1
    home.append()
    staged(home)
    make_older(folder_of(home), seconds=DEFAULT_GRACE.total_seconds() / 2 + 60)
    home.refresh()
    assert len(home.stager.refreshes) == 3
    assert len(home.read()) == 3


def test_the_age_of_a_replaced_outcome_is_not_that_of_its_successor(
    home: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another run may replace an outcome just after it was read; the old one's files may be deleted at any moment."""
    plan, old = home.stage()
    make_older(folder_of(home), seconds=DEFAULT_GRACE.total_seconds() / 2 + 60)
    read = home.catalog.files.read_text

    def read_and_be_replaced(location: str) -> str | None:
        text = read(location)
        monkeypatch.undo()
        stage(home.catalog, plan, home.stager)
        return text

    monkeypatch.setattr(home.catalog.files, "read_text", read_and_be_replaced)
    found = find_staged(home.catalog, plan)
    assert len(home.stager.refreshes) == 2
    assert found is None or found.metadata_location != (old and old.metadata_location)


# -- foreign files are kept --------------------------------------------------------------------


def test_i11_files_outside_the_view_s_folder_are_kept(home: Lake, warehouse: Path) -> None:
    home.view("other")
    beside = warehouse / "sales" / "notes.txt"
    beside.write_text("mine")
    beside.with_name(f"{folder_of(home).name}-beside").mkdir()
    home.refresh()
    home.append()
    staged(home)
    collect_orphans(home.catalog, VIEW)
    make_older(warehouse)
    own = files(folder_of(home))
    others = files(warehouse) - own
    collect_orphans(home.catalog, VIEW)
    assert files(warehouse) - own == others
    assert files(folder_of(home)) < own


def test_symbolic_links_are_not_followed(home: Lake, tmp_path: Path) -> None:
    """I19: neither the target of a link nor the files below it are deleted."""
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "rows.parquet").write_bytes(b"rows")
    home.refresh()
    (folder_of(home) / "elsewhere").symlink_to(precious)
    (folder_of(home) / "one.parquet").symlink_to(precious / "rows.parquet")
    make_older(precious, folder_of(home))
    collect_orphans(home.catalog, VIEW)
    assert (precious / "rows.parquet").exists()
    assert (folder_of(home) / "one.parquet").is_symlink()


def test_a_folder_that_becomes_a_link_after_it_was_listed_is_kept(home: Lake, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    home.refresh()
    doomed = folder_of(home) / "doomed"
    doomed.mkdir()
    (doomed / "rows.parquet").write_bytes(b"rows")
    make_older(folder_of(home))

    def move(catalog: MaterializedViewCatalog, storage: LoadedStorage) -> Iterable[str]:
        if not precious.exists():
            doomed.rename(precious)
            doomed.symlink_to(precious)
        return snapshot_files(catalog, storage)

    collect_orphans(home.catalog, VIEW, files_of=move)
    assert (precious / "rows.parquet").exists()


def test_a_warehouse_behind_a_link_is_one_folder(sqlite_uri: str, warehouse: Path, tmp_path: Path) -> None:
    """A file that has two spellings is needed under both."""
    link = tmp_path / "link"
    link.symlink_to(warehouse)
    with lake(sqlite_uri, link) as home:
        home.table()
        home.view()
        home.refresh()
        home.append()
        staged(home)
        marked_and_old(home)
        assert collect_orphans(home.catalog, VIEW).files
        assert len(home.read()) == 2


@pytest.mark.parametrize("name", ["a#b.parquet", "a?b.parquet", "a;b.parquet", " a.parquet "])
def test_a_name_that_no_location_can_express_is_kept(home: Lake, name: str) -> None:
    """pyiceberg would truncate it to the name of another file, and delete that one."""
    home.refresh()
    (folder_of(home) / name).write_bytes(b"rows")
    (folder_of(home) / name.split("b")[0][:1]).write_bytes(b"rows")
    make_older(folder_of(home))
    collect_orphans(home.catalog, VIEW)
    assert (folder_of(home) / name).exists()


def test_i11_another_table_in_the_folder_is_kept_and_the_rest_is_collected(home: Lake) -> None:
    """Files below the other table's folder are kept; the view's own garbage is deleted."""
    home.refresh()
    home.append()
    staged(home)
    garbage = orphans(home)
    inside = home.iceberg.create_table(
        "sales.inside", schema=home.load().schema(), location=f"file://{folder_of(home)}/inside"
    )
    inside.append(home.load().scan().to_arrow())
    collected = collect_orphans(home.catalog, VIEW, older_than=timedelta(0))
    assert {str(local(file.location)) for file in collected.files} == garbage
    assert set(collected.unproven) >= {f"file://{path}" for path in files(folder_of(home) / "inside")}
    assert len(inside.scan().to_arrow()) == 4


@pytest.mark.parametrize("key", ["write.data.path", "write.metadata.path"])
def test_i11_files_that_another_table_writes_into_the_folder_are_kept(home: Lake, key: str) -> None:
    """Its location is elsewhere; its metadata names the folder."""
    home.refresh()
    place = f"file://{folder_of(home)}/theirs"
    theirs = home.iceberg.create_table("sales.theirs", schema=home.load().schema(), properties={key: place})
    theirs.append(home.load().scan().to_arrow())
    before = files(folder_of(home) / "theirs")
    assert before
    collect_orphans(home.catalog, VIEW, older_than=timedelta(0))
    assert files(folder_of(home) / "theirs") == before
    assert orphans(home) == before


def test_i11_a_table_that_shares_the_storage_table_s_folder_stops_maintenance(home: Lake) -> None:
    """The storage table's file is registered under another name, so its history belongs to two tables."""
    home.refresh()
    home.append()
    staged(home)
    home.iceberg.register_table("sales.clone", home.storage().location)
    before = files(folder_of(home))
    with pytest.raises(UnsupportedError, match=r"lake\.sales\.daily.*lake\.sales\.clone"):
        collect_orphans(home.catalog, VIEW, older_than=timedelta(0))
    assert files(folder_of(home)) - before == set()


def test_i11_files_without_proof_of_ownership_are_listed_and_kept(home: Lake) -> None:
    """A file that a driver wrote before any metadata cannot be distinguished from a foreign one."""
    home.refresh()
    data = local(home.storage().table.location) / "data"
    lost = data / "00000-0-7b1e2a3c-0000-4000-8000-000000000000-00001.parquet"
    lost.write_bytes(b"rows")
    make_older(folder_of(home))
    collected = collect_orphans(home.catalog, VIEW, older_than=timedelta(0))
    assert collected.unproven == {f"file://{lost}": "no metadata file of the view names it"}
    assert lost.exists()


def test_a_view_that_needs_files_elsewhere_is_not_collected(home: Lake, warehouse: Path) -> None:
    home.refresh()
    before = files(warehouse)

    def elsewhere(catalog: MaterializedViewCatalog, storage: LoadedStorage) -> Iterable[str]:
        yield from snapshot_files(catalog, storage)
        yield home.load().metadata_location

    with pytest.raises(UnsupportedError, match="not below"):
        collect_orphans(home.catalog, VIEW, older_than=timedelta(0), files_of=elsewhere)
    assert files(warehouse) == before


# -- errors and unknown states delete nothing --------------------------------------------------


def reachable(home: Lake, kind: str) -> Path:
    """A file of a kind that the view needs."""
    return Path(next(path for path in sorted(needed(home)) if kind in path.rsplit("/", 1)[-1]))


@pytest.mark.parametrize("kind", ["snap-", "-m0.avro", ".parquet"])
def test_a_missing_needed_file_stops_maintenance(home: Lake, kind: str) -> None:
    """I2: metadata that cannot be read completely may need any file."""
    home.refresh()
    home.append()
    staged(home)
    reachable(home, kind).unlink()
    make_older(folder_of(home))
    before = files(folder_of(home))
    with pytest.raises(MetadataFileNotFoundError, match="does not exist"):
        collect_orphans(home.catalog, VIEW)
    assert files(folder_of(home)) == before


@pytest.mark.parametrize("kind", ["snap-", "-m0.avro"])
@pytest.mark.parametrize("content", [b"", b"Obj\x01", b"\x00" * 500, b"no Avro at all"])
def test_i02_a_broken_needed_file_stops_maintenance(home: Lake, kind: str, content: bytes) -> None:
    home.refresh()
    home.append()
    staged(home)
    reachable(home, kind).write_bytes(content)
    make_older(folder_of(home))
    before = files(folder_of(home))
    with pytest.raises(InvalidMetadataError, match="cannot be read"):
        collect_orphans(home.catalog, VIEW)
    assert files(folder_of(home)) == before


def test_a_manifest_that_was_truncated_between_two_blocks_stops_maintenance(home: Lake) -> None:
    """It is read without an error, and would make a live file look unneeded."""
    home.refresh()
    home.append()
    staged(home)
    manifest = reachable(home, "-m0.avro")
    sync = manifest.read_bytes()[-16:]
    manifest.write_bytes(manifest.read_bytes().split(sync)[0] + sync)
    make_older(folder_of(home))
    before = files(folder_of(home))
    with pytest.raises(InvalidMetadataError, match="has 0 entries, but its manifest list counts 1"):
        collect_orphans(home.catalog, VIEW)
    assert files(folder_of(home)) == before


def test_a_view_that_was_dropped_and_recreated_meanwhile_stops_maintenance(home: Lake, warehouse: Path) -> None:
    home.refresh()
    counted: list[set[str]] = []

    def drop_and_create(catalog: MaterializedViewCatalog, storage: LoadedStorage) -> Iterable[str]:
        found = list(snapshot_files(catalog, storage))
        home.catalog.drop(VIEW)
        home.view()
        counted.append(files(warehouse))
        return found

    with pytest.raises(ViewNotFoundError, match="created again"):
        collect_orphans(home.catalog, VIEW, older_than=timedelta(0), files_of=drop_and_create)
    assert files(warehouse) == counted[0]


def test_a_plain_view_is_refused(home: Lake) -> None:
    home.plain_view("plain", "SELECT * FROM lake.sales.orders")
    with pytest.raises(NotMaterializedError):
        collect_orphans(home.catalog, "sales.plain", older_than=timedelta(0))


def test_a_dry_run_deletes_nothing_and_lists_the_same_files(home: Lake) -> None:
    home.refresh()
    home.append()
    staged(home)
    marked_and_old(home)
    before = files(folder_of(home))
    dry = collect_orphans(home.catalog, VIEW, dry_run=True)
    assert files(folder_of(home)) == before
    real = collect_orphans(home.catalog, VIEW)
    assert dry.files == real.files != ()
    assert before - files(folder_of(home)) == {str(local(file.location)) for file in real.files}


def test_an_interrupted_deletion_is_completed_by_the_next_one(home: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Outcomes are deleted first, so that no refresh is resumed whose files are deleted."""
    home.refresh()
    home.append()
    staged(home)
    marked_and_old(home)
    delete, left = home.catalog.files.delete, [1, 1]

    def tire(location: str) -> None:
        if not location.endswith(".tmp") and not left:
            raise OSError("the store is away")
        if not location.endswith(".tmp"):
            left.pop()
        delete(location)

    monkeypatch.setattr(home.catalog.files, "delete", tire)
    with pytest.raises(MaterializedViewError, match="did not respond"):
        collect_orphans(home.catalog, VIEW)
    monkeypatch.undo()
    assert list((local(home.storage().table.location) / "staged").iterdir()) == []
    home.refresh()
    assert len(home.stager.refreshes) == 3
    marked_and_old(home)
    collect_orphans(home.catalog, VIEW)
    assert orphans(home) == set()


def test_a_failed_collection_leaves_no_file_of_its_own(home: Lake) -> None:
    """The store's clock is read by a probe file, which is deleted afterwards."""
    before = files(folder_of(home))
    collect_orphans(home.catalog, VIEW)
    assert files(folder_of(home)) == before


# -- the deletion log --------------------------------------------------------------------------------


def ledger_of(home: Lake) -> Path:
    return local(log_location(home.catalog.load(VIEW).metadata.location))


def just_expired(home: Lake) -> set[str]:
    """Make all files old after an expiry made some of them unreachable; return those."""
    home.refresh()
    first = needed(home)
    home.append()
    home.refresh()
    make_older(folder_of(home))
    expire(home.catalog, VIEW, older_than=timedelta(0))
    return {file for file in first & orphans(home) if not file.endswith(".metadata.json")}


def made_up(home: Lake, since_ms: int, **more: object) -> str:
    marks = {f"file://{file}": since_ms for file in files(folder_of(home))}
    uuid = home.catalog.load(VIEW).metadata.view_uuid
    return json.dumps({"version": 1, "view-uuid": uuid, "unreachable-since-ms": marks, **more})


@pytest.mark.parametrize(
    "content",
    [
        lambda _: "",
        lambda _: "[" * 50_000,
        lambda home: made_up(home, 0),
        lambda home: made_up(home, -(2**63)),
        lambda home: made_up(home, 2**62),
        lambda home: made_up(home, (time.time_ns() // 10**6) - 1000 * int(LONG)),
        lambda home: made_up(home, 0)[:-20],
        lambda home: made_up(home, 0, **{"view-uuid": "another"}),
        lambda home: made_up(home, 0, deleted="x"),
    ],
)
def test_i11_a_forged_or_truncated_ledger_deletes_no_file_earlier(home: Lake, content: Callable[[Lake], str]) -> None:
    """It claims that all files are unreachable for long; files that were reachable until now are kept for the grace."""
    fresh = just_expired(home)
    assert fresh
    ledger_of(home).parent.mkdir(exist_ok=True)
    ledger_of(home).write_text(content(home))
    collected = collect_orphans(home.catalog, VIEW)
    assert not {str(local(file.location)) for file in collected.files} & fresh
    assert fresh <= files(folder_of(home))
    make_older(folder_of(home))
    collect_orphans(home.catalog, VIEW)
    assert not fresh & files(folder_of(home))
    assert read_all(home)


def test_a_file_that_was_recorded_and_then_published_is_recorded_again(home: Lake) -> None:
    """It was staged when it was first recorded as unreachable; its time starts when its snapshot expires."""
    home.refresh()
    home.append()
    _, resume = staged(home)
    marked_and_old(home)
    resume()
    rows = {file for file in needed(home) if file.endswith(".parquet")}
    home.append((77, "west", 1))
    home.refresh()
    make_older(folder_of(home))
    ledger = ledger_of(home).read_text()
    expire(home.catalog, VIEW, older_than=timedelta(0))
    assert any(file in ledger for file in rows & orphans(home))
    collect_orphans(home.catalog, VIEW)
    assert rows <= files(folder_of(home))


def test_the_ledger_lists_deleted_files_with_the_reasons(home: Lake) -> None:
    home.refresh()
    home.append()
    staged(home)
    marked_and_old(home)
    collected = collect_orphans(home.catalog, VIEW)
    (run,) = json.loads(ledger_of(home).read_text())["deleted"]
    assert run["names"] == dict(collected.proofs)
    assert run["files"] == len(collected.files) > 0


def test_i12_working_files_are_proven_by_their_content(home: Lake) -> None:
    """An outcome, one before its renaming, a script, a clock file; foreign files with such names are kept."""
    home.refresh()
    plan = plan_refresh(home.catalog, VIEW)
    assert plan.script is None
    home.append()
    plan = plan_refresh(home.catalog, VIEW)
    assert plan.script is not None
    folder = local(home.storage().table.location) / "staged"
    outcome = Outcome(plan.refresh_id, None).to_json()
    theirs = str(uuid.uuid4())
    own = {
        folder / f"{plan.refresh_id}.json": outcome,
        folder / f"{plan.refresh_id}.json.{uuid.uuid4().hex}.tmp": outcome,
        folder / f"{plan.refresh_id}.script.json": plan.script.to_json(),
        folder_of(home) / f"clock-{uuid.uuid4()}.tmp": "what time is it?",
    }
    foreign = {
        folder / f"{theirs}.json": outcome,
        folder / f"{theirs}.script.json": "{}",
        folder_of(home) / f"{plan.refresh_id}.json": outcome,
        folder_of(home) / f"clock-{uuid.uuid4()}.tmp": "mine",
        folder / "airflow_mv-0123456789ab-01234567.zip": "mine",
    }
    for path, text in {**own, **foreign}.items():
        path.write_text(text)
    collected = collect_orphans(home.catalog, VIEW, older_than=timedelta(0))
    assert not any(path.exists() for path in own)
    assert {local(location) for location in collected.unproven} == foreign.keys()
    assert all(path.exists() for path in foreign)
