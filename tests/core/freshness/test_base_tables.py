# SPDX-License-Identifier: Apache-2.0
"""Base tables that are not a catalog's current table: by path, by branch and tag, and at one snapshot for good."""

from __future__ import annotations

import gzip
import json
import shutil
import time
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from airflow_mv.common.refresh_state import REFRESH_STATE_KEY
from airflow_mv.common.status import status
from airflow_mv.core.freshness.observe import observe
from airflow_mv.core.freshness.state import State
from airflow_mv.core.refresh import RefreshOptions, plan_refresh
from airflow_mv.core.refresh.inputs import _described
from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.core.spec.materialized_view import PROPERTY, BaseTable
from airflow_mv.errors import BaseTableNotFoundError, InvalidMetadataError, InvalidQueryError, PinError
from airflow_mv.extras.pending.changes import PendingCriteria, pending_changes
from airflow_mv.extras.pins import pin_base_tables, restore
from airflow_mv.lineage.facts import gather
from tests.branches import create_branch
from tests.builders import FIRST, ORDERS, Lake, lake, orders
from tests.protocol.foreign import BucketStore

ALL = "SELECT id, region FROM "
VIEW = "sales.daily"


@pytest.fixture
def home(sqlite_uri: str, warehouse: Path) -> Iterator[Lake]:
    with lake(sqlite_uri, warehouse) as found:
        found.table()
        yield found


def ids(home: Lake, view: str = VIEW) -> list[int]:
    return sorted(row["id"] for row in home.read(view))


def folder(home: Lake) -> Path:
    return Path(urlsplit(home.load().location()).path)


def state(home: Lake) -> State:
    return status(home.catalog, VIEW).state


def as_hadoop(home: Lake, suffix: str = ".metadata.json", *, hint: str | None = "{}") -> None:
    """Give the table's folder the files that a table without a catalog has: ``v<n>`` and the hint."""
    metadata, current = folder(home) / "metadata", Path(urlsplit(home.load().metadata_location).path)
    version = len(list(metadata.glob("v[0-9]*"))) + 1
    data = current.read_bytes()
    (metadata / f"v{version}{suffix}").write_bytes(gzip.compress(data) if "gz" in suffix else data)
    if hint is not None:
        (metadata / "version-hint.text").write_text(hint.format(version))


# -- by path -----------------------------------------------------------------------------------


@pytest.mark.parametrize("written", ["iceberg.`{}`", "ICEBERG.`{}/`", "`iceberg`.`file://{}` AS t"])
def test_a_table_is_read_by_its_folder(home: Lake, written: str) -> None:
    """Its record has its own type and its folder, and its name as in the SQL."""
    home.view(sql=ALL + written.format(folder(home)))
    home.refresh()
    assert (ids(home), state(home)) == ([1, 2, 3], State.FRESH)
    (table,) = home.storage(VIEW).record.base_tables  # type: ignore[union-attr]
    assert table.type == "iceberg-filesystem"
    assert f"iceberg.`{table.location}`" == table.identifier
    assert table.location in written.format(folder(home))
    home.append((4, "east", 1))
    assert state(home) == State.STALE
    home.refresh()
    assert (ids(home), state(home)) == ([1, 2, 3, 4], State.FRESH)


@pytest.mark.parametrize("suffix", [".metadata.json", ".gz.metadata.json"])
def test_the_hint_names_the_current_metadata_file(home: Lake, suffix: str) -> None:
    """A hint may be behind by some commits; a file with a higher number but without a catalog is not looked for."""
    as_hadoop(home, suffix)
    home.append((4, "east", 1))  # only the catalog knows it
    home.view(sql=f"{ALL}iceberg.`{folder(home)}`")
    home.refresh()
    assert ids(home) == [1, 2, 3]
    as_hadoop(home, suffix, hint="1")
    assert state(home) == State.STALE
    home.refresh()
    assert ids(home) == [1, 2, 3, 4]


def test_the_hint_may_be_the_name_of_a_file(home: Lake) -> None:
    """Some writers put the whole name into it."""
    before = home.load().metadata_location.rpartition("/")[2]
    home.append((4, "east", 1))
    (folder(home) / "metadata" / "version-hint.text").write_text(before.removesuffix(".metadata.json") + "\n")
    home.view(sql=f"{ALL}iceberg.`{folder(home)}`")
    home.refresh()
    assert ids(home) == [1, 2, 3]


def test_a_hint_that_names_no_metadata_file_is_like_none(home: Lake) -> None:
    """Anyone who can write to the folder can write anything into it."""
    name, current = Identifier.parse(f"iceberg.`{folder(home)}`"), home.load().metadata_location
    for hint in ("", "7", "9" * 5000, "../../../other/metadata/00001-x", "sub/00001-x", "x y", "²"):
        (folder(home) / "metadata" / "version-hint.text").write_text(hint)
        assert home.catalog.locate([name])[name].metadata_location == current, hint


def test_a_table_in_an_object_store_is_read_by_its_folder(sqlite_uri: str, warehouse: Path, s3_server: str) -> None:
    """With the access of the view's catalog, whose warehouse is elsewhere; with the hint and without it."""
    store = BucketStore(s3_server, f"tables-{uuid.uuid4().hex[:8]}")
    place = f"{store.warehouse}/orders"
    with lake(sqlite_uri, warehouse, **store.access, **{"airflow-mv.allowed-locations": store.warehouse}) as home:
        table = home.iceberg.create_table("sales.orders", schema=ORDERS, location=place)
        table.append(orders(FIRST))
        home.view(sql=f"{ALL}iceberg.`{place}`")
        home.refresh()
        assert (ids(home), state(home)) == ([1, 2, 3], State.FRESH)
        before = home.load().metadata_location.rpartition("/")[2]
        home.append((4, "east", 1))
        home.catalog.files.replace_text(f"{place}/metadata/version-hint.text", before)
        assert state(home) == State.FRESH
        home.catalog.files.delete(f"{place}/metadata/version-hint.text")
        home.refresh()
        assert ids(home) == [1, 2, 3, 4]


def test_two_files_with_the_highest_number_are_not_guessed_between(home: Lake) -> None:
    """One of them is of a commit that failed."""
    home.view(sql=f"{ALL}iceberg.`{folder(home)}`")
    current = Path(urlsplit(home.load().metadata_location).path)
    shutil.copy(current, current.with_name(f"{current.name[:5]}-other.metadata.json"))
    with pytest.raises(InvalidMetadataError, match=r"base table iceberg\.`.*2 metadata files have the highest number"):
        home.refresh()


def test_a_folder_without_a_table_is_an_unreadable_base_table(home: Lake) -> None:
    """Never fresh, and no job is started."""
    home.view(sql=f"{ALL}iceberg.`{folder(home)}`")
    home.refresh()
    shutil.move(folder(home), folder(home).with_name("elsewhere"))
    assert state(home) == State.UNKNOWN
    with pytest.raises(BaseTableNotFoundError, match="no metadata file is in"):
        home.refresh()


@pytest.mark.parametrize("by", ["path", "catalog"])
def test_a_table_that_is_created_again_with_the_same_file_names_is_another_table(home: Lake, by: str) -> None:
    """Files of a table without a catalog are numbered. It may be registered in a catalog, by such a file."""

    def created(*rows: tuple[int, str, int]) -> None:
        home.iceberg.drop_table("sales.orders")
        shutil.rmtree(place, ignore_errors=True)
        home.iceberg.create_table("sales.orders", schema=ORDERS, location=str(place)).append(orders(rows))
        as_hadoop(home)
        if by == "catalog":
            home.iceberg.drop_table("sales.orders")
            home.iceberg.register_table("sales.orders", f"file://{place}/metadata/v1.metadata.json")

    place = folder(home)
    created(*FIRST)
    home.view(sql=ALL + (f"iceberg.`{place}`" if by == "path" else "sales.orders"))
    home.refresh()
    assert (ids(home), state(home)) == ([1, 2, 3], State.FRESH)
    before = observe(home.catalog, VIEW).pointers
    created((7, "east", 1))
    found = observe(home.catalog, VIEW)
    assert [str(reason.code) for reason in found.freshness.reasons] == ["BASE_RECREATED"]
    assert (before, found.pointers) == (None, None), "pointers alone do not tell whether it is fresh"
    home.refresh()
    assert (ids(home), state(home)) == ([7], State.FRESH)


def test_i19_a_table_outside_of_the_allowed_folders_is_refused(home: Lake, tmp_path: Path) -> None:
    """Neither by its path nor by the folder that its metadata names, also through a link."""
    outside = tmp_path / "outside"
    shutil.copytree(folder(home), outside / "orders")
    link = folder(home).parent / "link"
    link.symlink_to(outside / "orders")
    for path in (outside / "orders", link):
        with pytest.raises(
            InvalidMetadataError, match=r"base table iceberg.*, path: .* outside of this catalog's folders"
        ):
            home.view(sql=f"{ALL}iceberg.`{path}`")
    home.catalog.properties["airflow-mv.allowed-locations"] = str(outside)
    home.view(sql=f"{ALL}iceberg.`{outside / 'orders'}`")
    home.catalog.properties["warehouse"] = "file:///nowhere"
    with pytest.raises(InvalidMetadataError, match=r"field 'location': .* outside of this catalog's folders"):
        home.catalog.locate([Identifier.parse(f"iceberg.`{outside / 'orders'}`")])


def test_pins_and_pending_changes_know_tables_by_path(home: Lake) -> None:
    """A run reads what it has pinned; a wait may name the table by its path."""
    name = f"iceberg.`{folder(home)}`"
    view = home.view(sql=ALL + name)
    home.refresh()
    home.append((4, "east", 1))
    found = pending_changes(observe(home.catalog, view), PendingCriteria(tables=(name,)))
    assert found is not None
    assert [change.identifier for change in found.changes] == [name]
    run = pin_base_tables(home.catalog, [view])
    home.append((5, "east", 1))
    pins = restore(home.catalog, view, run)
    home.refresh(pins=pins)
    assert ids(home) == [1, 2, 3, 4]
    home.expire(int(run.base_tables[name].snapshot_id or 0))
    with pytest.raises(PinError, match="has expired since"):
        restore(home.catalog, view, run)


# -- branches and tags -------------------------------------------------------------------------


def branch(home: Lake, name: str, *rows: tuple[int, str, int]) -> None:
    """Add rows to a branch, which is made of the current snapshot first."""
    table = home.load()
    if name not in table.refs():
        create_branch(table, name, home.head())
    home.load().append(orders(rows), branch=name)


@pytest.mark.parametrize(
    "written", ["lake.sales.orders.branch_audit", "orders VERSION AS OF 'audit'", "iceberg.`{}`.tag_audit x"]
)
def test_the_snapshot_of_a_branch_decides(home: Lake, written: str) -> None:
    """Commits to other branches do not make the view stale."""
    branch(home, "audit", (4, "east", 1))
    home.view(sql=ALL + written.format(folder(home)))
    home.refresh()
    assert ids(home) == [1, 2, 3, 4]
    home.append((9, "main", 1))
    assert state(home) == State.FRESH
    branch(home, "audit", (5, "east", 1))
    (change,) = observe(home.catalog, VIEW).freshness.base_tables
    assert (change.changed, change.range.snapshots, change.range.only_appends) == (True, 1, True)
    home.refresh()
    assert (ids(home), state(home)) == ([1, 2, 3, 4, 5], State.FRESH)


def test_a_branch_is_read_as_of_a_time_by_its_own_history(home: Lake) -> None:
    """The table's log is of its main branch."""
    branch(home, "audit", (4, "east", 1))
    time.sleep(0.01)
    moment = datetime.now(UTC)
    time.sleep(0.01)
    branch(home, "audit", (5, "east", 1))
    home.append((9, "main", 1))
    home.view(sql=f"{ALL}orders VERSION AS OF 'audit'")
    home.refresh(options=RefreshOptions(as_of=moment))
    assert ids(home) == [1, 2, 3, 4]


def test_a_table_may_be_read_beside_its_own_branch(home: Lake) -> None:
    """Columns are named by the table's name, as Spark does; both states are recorded."""
    branch(home, "audit", (4, "east", 1))
    sql = "SELECT orders.id, orders.region FROM orders VERSION AS OF 'audit' EXCEPT ALL SELECT id, region FROM orders"
    home.view(sql=sql)
    home.refresh()
    assert ids(home) == [4]
    assert [item.identifier for item in home.storage(VIEW).record.base_tables] == [  # type: ignore[union-attr]
        "lake.sales.orders", "lake.sales.orders.tag_audit",
    ]  # fmt: skip


def test_the_draft_s_refresh_state_names_the_branch_and_only_what_it_can_name(home: Lake) -> None:
    """Another engine compares a listed snapshot with the newest one of the table or its branch."""
    branch(home, "audit", (4, "east", 1))
    named = ("orders VERSION AS OF 'audit'", f"iceberg.`{folder(home)}`", by_id(home))
    home.view(sql=" UNION ALL ".join(ALL + name for name in named), layout="table")
    home.refresh()
    storage = home.storage(VIEW)
    summary = storage.table.snapshots[-1].summary[REFRESH_STATE_KEY]
    (source,) = json.loads(summary)["source-states"]
    assert (source["name"], source["namespace"], source["ref"]) == ("orders", ["sales"], "audit")


def test_lineage_names_a_table_by_its_folder_and_the_snapshot_that_is_read(home: Lake) -> None:
    """However the query names it."""
    branch(home, "audit", (4, "east", 1))
    view = home.view(sql=f"{ALL}orders VERSION AS OF 'audit' UNION ALL {ALL}iceberg.`{folder(home)}`")
    inputs = gather(home.catalog, plan_refresh(home.catalog, view)).inputs
    heads = {str(home.head()), str(home.load().refs()["audit"].snapshot_id)}
    assert {(table.name.name, table.version) for table in inputs} == {(str(folder(home)), head) for head in heads}


def test_a_missing_branch_is_named_and_the_view_is_not_fresh(home: Lake) -> None:
    """The error lists the branches that exist."""
    with pytest.raises(BaseTableNotFoundError, match=r"no branch or tag 'audit'; it has: main"):
        home.view(sql=f"{ALL}orders VERSION AS OF 'audit'")


def test_a_table_with_a_name_like_a_branch_stays_a_table(home: Lake) -> None:
    """Spark looks for the table first. A name with both meanings is refused."""
    home.iceberg.create_namespace("sales.deep")
    table = home.iceberg.create_table("sales.deep.branch_office", schema=home.load().schema())
    table.append(orders([(7, "x", 1)]))
    home.view(sql=f"{ALL}lake.sales.deep.branch_office")
    home.refresh()
    assert ids(home) == [7]
    home.iceberg.create_table("sales.deep", schema=home.load().schema())
    with pytest.raises(InvalidQueryError, match="rename one of them"):
        home.refresh()


def test_a_state_of_a_view_is_refused(home: Lake) -> None:
    """Only tables have snapshots."""
    home.view()
    with pytest.raises(InvalidQueryError, match="only tables have snapshots"):
        home.view("other", f"SELECT region FROM {VIEW} VERSION AS OF 'x'")


# -- one snapshot, for good --------------------------------------------------------------------


def by_id(home: Lake) -> str:
    return f"orders VERSION AS OF {home.head()}"


def by_time(home: Lake) -> str:
    moment = home.load().metadata.snapshots[-1].timestamp_ms
    shown = datetime.fromtimestamp(moment / 1000, UTC).isoformat(sep=" ", timespec="milliseconds")
    return f"orders TIMESTAMP AS OF '{shown.removesuffix('+00:00')}'"


def by_name(home: Lake) -> str:
    return f"lake.sales.orders.snapshot_id_{home.head()}"


@pytest.mark.parametrize("pinned", [by_id, by_time, by_name])
def test_a_pinned_table_never_makes_the_view_stale(home: Lake, pinned: Callable[[Lake], str]) -> None:
    """Nor does a refresh as of another time read another state of it."""
    home.table("more", rows=[(20, "x", 1)])
    home.view(sql=f"{ALL}{pinned(home)} UNION ALL {ALL}more")
    home.refresh()
    home.append((4, "east", 1))
    assert state(home) == State.FRESH
    home.append((21, "x", 1), name="more")
    home.refresh(options=RefreshOptions(as_of=datetime.now(UTC) - timedelta(milliseconds=1)))
    assert ids(home) == [1, 2, 3, 20, 21]
    changes = {item.identifier: item for item in observe(home.catalog, VIEW).freshness.base_tables}
    assert not any(change.moved for change in changes.values())


@pytest.mark.parametrize(("fixed", "expected"), [(True, State.FRESH), (False, State.INVALID)])
def test_a_fixed_snapshot_keeps_its_columns_and_a_branch_does_not(home: Lake, *, fixed: bool, expected: State) -> None:
    """A column that the table loses later is still there."""
    branch(home, "audit", (4, "east", 1))
    audit = "orders VERSION AS OF 'audit'"
    home.view(sql=ALL + (by_id(home) if fixed else audit))
    home.refresh()
    with home.load().update_schema(allow_incompatible_changes=True) as change:
        change.delete_column("region")
    assert state(home) == expected


@pytest.mark.parametrize("pinned", [by_id, by_time])
def test_an_expired_pinned_snapshot_is_a_clear_error(home: Lake, pinned: Callable[[Lake], str]) -> None:
    """The state names the snapshot or the time, and is not fresh."""
    home.view(sql=ALL + pinned(home))
    home.refresh()
    old = home.head()
    home.append((4, "east", 1))
    home.expire(old)
    found = status(home.catalog, VIEW)
    assert found.state == State.UNKNOWN
    with pytest.raises(BaseTableNotFoundError, match=r"lake\.sales\.orders .*(expired|no snapshot as of)"):
        home.refresh()


def test_a_time_in_the_future_would_not_be_for_good(home: Lake) -> None:
    """Its state is not known yet."""
    with pytest.raises(BaseTableNotFoundError, match=r"2999-01-01T00:00:00.*is in the future"):
        home.view(sql=f"{ALL}orders TIMESTAMP AS OF '2999-01-01'")


# -- records of other writers ------------------------------------------------------------------


def recorded_as(home: Lake, **table: object) -> None:
    """Give the recorded base table other fields, as another writer would record it."""
    name = home.storage(VIEW).name
    assert name is not None
    stored = home.iceberg.load_table((*name.namespace, name.name))
    document = json.loads(stored.properties[PROPERTY])
    (before,) = document["refreshes"][-1]["base-tables"]
    document["refreshes"][-1]["base-tables"] = [{**before, "properties": {}, **table}]
    stored.transaction().set_properties({PROPERTY: json.dumps(document)}).commit_transaction()


def test_a_base_table_is_found_by_the_name_that_another_writer_recorded(home: Lake) -> None:
    """It stands in the record as in the SQL, so it may be short: completed as in the SQL, it is the same table."""
    home.view(layout="table")
    home.refresh()
    for fields in (
        {"identifier": "orders"},
        {"identifier": "sales.orders"},
        {"identifier": "sales.orders", "properties": {"catalog": "lake"}},
    ):
        recorded_as(home, **fields)
        assert state(home) == State.FRESH
    home.append((4, "east", 1))
    (change,) = observe(home.catalog, VIEW).freshness.base_tables
    assert (change.range.kind, change.range.snapshots) == ("appended", 1)


def stored_tables(home: Lake) -> list[dict[str, Any]]:
    """The base tables of the current refresh, as they are stored."""
    document: dict[str, Any] = json.loads(home.storage(VIEW).table.properties[PROPERTY])
    tables: list[dict[str, Any]] = document["refreshes"][-1]["base-tables"]
    return tables


def test_a_record_has_the_name_in_the_sql_and_beside_it_the_full_name(home: Lake) -> None:
    """A table that only a nested view names has its full name, and a clause of time travel is no part of a name."""
    home.table("other")
    create_branch(home.load(), "audit", home.head())
    home.plain_view("plain", f"{ALL}lake.sales.other", columns=("id", "region"))
    home.view(
        sql=f"{ALL}`sales` . orders UNION ALL {ALL}orders VERSION AS OF 'audit' UNION ALL {ALL}plain".replace(
            " . ", "."
        )
    )
    home.refresh()
    found = {item["identifier"]: item["properties"].get("full-name") for item in stored_tables(home)}
    assert found == {
        "`sales`.orders": "lake.sales.orders",
        "orders": "lake.sales.orders.tag_audit",
        "lake.sales.other": None,
    }
    assert [item.identifier for item in home.storage(VIEW).record.base_tables] == [  # type: ignore[union-attr]
        "lake.sales.orders", "lake.sales.orders.tag_audit", "lake.sales.other",
    ]  # fmt: skip
    assert state(home) == State.FRESH
    before = stored_tables(home)
    home.append((4, "east", 1))
    assert (state(home), home.refresh().outcome) == (State.STALE, "refreshed")
    assert [item["identifier"] for item in stored_tables(home)] == [item["identifier"] for item in before]


@pytest.mark.parametrize(
    ("properties", "found"),
    [
        (
            {"type": "sql", "uri": "postgresql+psycopg2://me:s3cr@et/word@db:5432/lake?sslpassword=x", "token": "t"},
            {"catalog-type": "sql", "catalog-uri": "postgresql+psycopg2://db:5432/lake"},
        ),
        (
            {"uri": "https://catalog.example/api", "credential": "id:word"},
            {"catalog-uri": "https://catalog.example/api"},
        ),
        ({"uri": "jdbc:oracle:thin:me/word@//db", "warehouse": "s3://b"}, {"catalog-warehouse": "s3://b"}),
    ],
)
def test_a_catalog_is_described_without_users_passwords_and_options(
    properties: dict[str, str], found: dict[str, str]
) -> None:
    assert _described("x", properties) == {"catalog": "x", **found}


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"identifier": "o", "properties": {"full-name": "x.y.o"}}, "x.y.o"),
        ({"identifier": "o", "properties": {"full-name": "not a name"}}, "o"),
        ({"identifier": "o"}, "lake.sales.o"),
        ({"identifier": "`a b`.o"}, "lake.`a b`.o"),
        ({"identifier": "x.y.o"}, "x.y.o"),
        ({"identifier": "o", "properties": {"catalog": "x"}}, "x.sales.o"),
        ({"identifier": "y.o", "properties": {"catalog": "x"}}, "x.y.o"),
        ({"identifier": "x.y.o", "properties": {"catalog": "x"}}, "x.y.o"),
        ({"identifier": "y.z.o", "properties": {"catalog": "x"}}, "x.y.z.o"),
        ({"identifier": "o", "type": "iceberg-filesystem", "location": "s3://b/o"}, "iceberg.`s3://b/o`"),
        (
            {"identifier": "iceberg.`/o`.tag_x", "type": "iceberg-filesystem", "location": "/o"},
            "iceberg.`/o`.tag_x",
        ),
        ({"identifier": "not a name"}, "not a name"),
    ],
)
def test_a_recorded_name_is_completed_by_the_view_s_context_or_the_recorded_catalog(
    fields: dict[str, object], name: str
) -> None:
    """A name that cannot be read stays as it is, and is no table of the view."""
    table = BaseTable.read({"type": "iceberg-metastore", "snapshot-reference": 1, **fields}, source="test")
    assert table.full_name("lake", ("sales",)) == name
