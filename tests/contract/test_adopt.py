# SPDX-License-Identifier: Apache-2.0
"""A table that exists becomes a view of a query, and a table again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet as pq
from pyiceberg.table import Table

from airflow_mv.actions import create_view as create
from airflow_mv.common.status import status
from airflow_mv.core.catalog import MaterializedViewCatalog
from airflow_mv.core.define.definition import Definition
from airflow_mv.core.freshness.state import State
from airflow_mv.core.spec.properties import KEEP_PROPERTY
from airflow_mv.errors import (
    AlreadyExistsError,
    CommitConflictError,
    ConfigurationError,
    NotFoundError,
    StaleViewError,
    UnsupportedError,
)
from airflow_mv.extras.adopt import adopt
from airflow_mv.extras.maintenance.drop import drop, purge
from airflow_mv.extras.maintenance.expire import keep_base_snapshots
from airflow_mv.extras.maintenance.orphans import collect_orphans, maintain
from airflow_mv.extras.maintenance.repair import repair
from airflow_mv.extras.read import readable
from tests.builders import QUERY, Lake, lake, rewritten
from tests.contract.support import NORTH, SOUTH, VIEW, defined_at_once
from tests.faults import Clock, Fault, FaultyCatalog, after, arrive_late, lose_answer_after, lose_answer_before
from tests.homes import HOMES, home_parameter

OLD = [{"region": "old", "orders": 1, "amount": 1}]
COLUMNS = pa.schema([("region", pa.string()), ("orders", pa.int64()), ("amount", pa.int64())])
DEFINITION = Definition(QUERY)


@pytest.fixture(params=[home_parameter(name) for name in HOMES if name.endswith("-table")])
def bare(request: pytest.FixtureRequest, warehouse: Path) -> Iterator[Lake]:
    with lake(str(request.getfixturevalue(HOMES[request.param][0])), warehouse, layout="table") as found:
        found.table()
        yield found


@pytest.fixture
def home(bare: Lake) -> Lake:
    """A lake with a table that somebody has made, with a property."""
    made(bare).append(pa.Table.from_pylist(OLD, schema=COLUMNS))
    return bare


def made(home: Lake, columns: pa.Schema = COLUMNS, **properties: str) -> Table:
    return home.iceberg.create_table(VIEW, schema=columns, properties={"owner": "finance", **properties})


def adopted(home: Lake, definition: Definition = DEFINITION, **how: object) -> None:
    adopt(home.catalog, VIEW, definition, stager=home.stager, **how)  # type: ignore[arg-type]


def test_a_table_becomes_a_view_whose_first_refresh_replaces_the_rows(home: Lake) -> None:
    before = home.iceberg.load_table(VIEW)
    adopted(home)
    now = home.iceberg.load_table(VIEW)
    assert (now.metadata.table_uuid, now.properties["owner"]) == (before.metadata.table_uuid, "finance")
    assert now.metadata.snapshots == before.metadata.snapshots
    assert home.read() == OLD
    assert sorted(home.iceberg.list_tables("sales")) == [("sales", "daily"), ("sales", "orders")]
    assert status(home.catalog, VIEW).state == State.NEVER_REFRESHED
    with pytest.raises(StaleViewError):
        readable(home.catalog, VIEW)
    done = home.refresh()
    assert (done.outcome, str(done.mode)) == ("refreshed", "full")
    assert home.read() == [NORTH, SOUTH]
    assert status(home.catalog, VIEW).state == State.FRESH
    assert home.iceberg.load_table(VIEW).scan(snapshot_id=before.metadata.current_snapshot_id).count() == 1


def test_a_list_has_the_view_at_once_and_reads_only_tables_that_changed(home: Lake) -> None:
    """Where the catalog names the tables' files. Another process had listed the table as an ordinary one."""
    other = MaterializedViewCatalog(home.iceberg)
    if other.is_rest:
        pytest.skip("a server does not name the tables' files in a list")
    assert not other.list("sales")
    adopted(home)
    assert other.list("sales") == [other.identify(VIEW)]
    location = home.iceberg.load_table(VIEW).metadata_location
    Path(location.removeprefix("file:")).unlink()  # some catalogs write one slash, others three
    assert other.list("sales") == [other.identify(VIEW)]
    assert not MaterializedViewCatalog(home.iceberg).list("sales")


@pytest.mark.parametrize("fault", [lose_answer_after(), lose_answer_before(), arrive_late])
def test_i05_an_adoption_with_a_lost_answer_is_applied_once(home: Lake, clock: Clock, fault: Fault) -> None:
    catalog = FaultyCatalog(home.iceberg, fault)
    adopt(catalog, VIEW, DEFINITION, stager=home.stager, effects=clock.effects)
    other = QUERY.replace("sum", "max")
    create(home.catalog, VIEW, Definition(other), stager=home.stager, replace=True)
    catalog.arrive()
    assert home.catalog.load(VIEW).metadata.sql(view=VIEW) == other
    assert home.refresh().outcome == "refreshed"


def test_an_adoption_follows_a_commit_of_others_and_stops_at_other_columns(home: Lake, clock: Clock) -> None:
    """The table is changed between the check and the commit."""

    def append() -> None:
        home.iceberg.load_table(VIEW).append(pa.Table.from_pylist(OLD, schema=COLUMNS))

    def widen() -> None:
        with home.iceberg.load_table(VIEW).update_schema() as change:
            change.rename_column("amount", "total")
        append_total = pa.Table.from_pylist([{"region": "x", "orders": 1, "total": 2}])
        home.iceberg.load_table(VIEW).append(append_total.cast(home.iceberg.load_table(VIEW).schema().as_arrow()))

    with pytest.raises(CommitConflictError, match="other columns, meanwhile"):
        adopt(FaultyCatalog(home.iceberg, after(widen)), VIEW, DEFINITION, stager=home.stager, effects=clock.effects)
    with home.iceberg.load_table(VIEW).update_schema() as change:
        change.rename_column("total", "amount")
    catalog = FaultyCatalog(home.iceberg, after(append))
    adopt(catalog, VIEW, DEFINITION, stager=home.stager, effects=clock.effects)
    assert len(catalog.commits) == 2
    assert len(home.read()) == 3
    home.refresh()
    assert home.read() == [NORTH, SOUTH]


def test_each_difference_of_the_columns_is_named_and_nothing_is_changed(bare: Lake) -> None:
    wrong = pa.schema([("amount", pa.int32()), ("region", pa.string()), ("extra", pa.int64())])
    made(bare, wrong).append(pa.Table.from_pylist([{"amount": 1, "region": "x", "extra": 1}], schema=wrong))
    before = bare.load("daily").metadata
    with pytest.raises(UnsupportedError) as caught:
        adopted(bare)
    for text in (
        "orders (bigint) is not in the table",
        "extra (bigint) is not in the query",
        "amount is int in the table and bigint in the query",
        "the order is amount, region, extra in the table and region, orders, amount in the query",
    ):
        assert text in str(caught.value)
    assert bare.load("daily").metadata == before
    assert sorted(bare.iceberg.list_tables("sales")) == [("sales", "daily"), ("sales", "orders")]


def _required(home: Lake) -> None:
    fields = [pa.field(item.name, item.type, nullable=item.name != "orders") for item in COLUMNS]
    made(home, pa.schema(fields)).append(pa.Table.from_pylist(OLD, schema=pa.schema(fields)))


def _old_format(home: Lake) -> None:
    made(home, **{"format-version": "1"}).append(pa.Table.from_pylist(OLD, schema=COLUMNS))


def _storage(home: Lake) -> None:
    made(home, **{"airflow-mv.storage-of": "sales.other"}).append(pa.Table.from_pylist(OLD, schema=COLUMNS))


def _tagged(home: Lake) -> None:
    table = made(home)
    table.append(pa.Table.from_pylist(OLD, schema=COLUMNS))
    table.manage_snapshots().create_tag(table.metadata.current_snapshot_id or 0, "airflow_mv_adopted").commit()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (_required, r"orders is NOT NULL in the table"),
        (_old_format, r"its format version is 1: ALTER TABLE .*'format-version' = '2'"),
        (_storage, r"it is the storage table of the view sales\.other"),
        (_tagged, r"branches or tags of an earlier view: airflow_mv_adopted\. Drop them"),
        (lambda home: made(home), r"it was never written: drop it"),
    ],
)
def test_a_table_that_does_not_fit_is_refused_with_the_cure(
    bare: Lake, make: Callable[[Lake], object], message: str
) -> None:
    make(bare)
    with pytest.raises(UnsupportedError, match=rf"table lake\.sales\.daily cannot be adopted: .*{message}"):
        adopted(bare)


def test_a_table_of_a_format_that_cannot_be_committed_to_is_refused(sqlite_uri: str, warehouse: Path) -> None:
    with lake(sqlite_uri, warehouse, layout="table") as found:
        found.table()
        made(found).append(pa.Table.from_pylist(OLD, schema=COLUMNS))
        rewritten(found.iceberg, VIEW, lambda table: table.update({"format-version": 3, "next-row-id": 0}))
        with pytest.raises(UnsupportedError, match="format version is 3, and pyiceberg commits to no newer one than 2"):
            adopted(found)


def test_names_and_options_that_do_not_fit_are_refused(home: Lake) -> None:
    with pytest.raises(NotFoundError, match=r"there is no table lake\.sales\.nothing"):
        adopt(home.catalog, "sales.nothing", DEFINITION, stager=home.stager)
    for definition, option in (
        (Definition(None), "--sql"),
        (Definition(QUERY, partition_by=["region"]), "--partition-by"),
        (Definition(QUERY, layout="registered"), "--layout"),
    ):
        with pytest.raises(ConfigurationError, match=option):
            adopted(home, definition)
    adopted(home)
    with pytest.raises(AlreadyExistsError, match="is a view already"):
        adopted(home)


def test_a_repair_leaves_the_snapshots_from_before_the_adoption(
    sqlite_uri: str, warehouse: Path, tmp_path: Path
) -> None:
    """Their files may lie in folders that the catalog's configuration does not name. They are not the view's."""
    with lake(sqlite_uri, warehouse, layout="table") as home:
        home.table()
        pq.write_table(pa.Table.from_pylist(OLD, schema=COLUMNS), tmp_path / "imported.parquet")
        table = made(home)
        table.add_files([f"file://{tmp_path}/imported.parquet"])
        adopted(home)
        home.refresh()
        before = home.iceberg.load_table(VIEW).metadata
        assert repair(home.catalog, VIEW, act=True).findings == ()
        assert home.iceberg.load_table(VIEW).metadata == before


def test_several_runs_may_adopt_a_table_at_the_same_time(home: Lake) -> None:
    assert sorted(defined_at_once(home, adopt=adopt)) == ["adopted", "unchanged", "unchanged", "unchanged"]
    home.refresh()
    assert len(home.read()) == 2


def test_a_dropped_view_leaves_the_table_as_an_ordinary_one(home: Lake) -> None:
    """It can be adopted again."""
    for _ in range(2):
        adopted(home, Definition(QUERY, time_travel=True))
        home.append()
        home.refresh()
        rows = home.read()
        assert "the table lake.sales.daily with its rows" in (drop(home.catalog, VIEW).left or "")
        table = home.iceberg.load_table(VIEW)
        assert sorted(table.scan().to_arrow().to_pylist(), key=str) == rows
        assert {key for key in table.properties if key.startswith(("airflow-mv", "materialized"))} == set()
        assert set(table.refs()) == {"main"}
        assert table.properties["owner"] == "finance"
        assert not home.catalog.exists(VIEW)


def test_a_snapshot_that_another_view_keeps_is_kept_before_and_after_the_adoption(home: Lake) -> None:
    """That view still reads the table as it was."""
    reader = home.view("reader", f"SELECT region FROM {VIEW}", properties={KEEP_PROPERTY: "7 days"})
    home.refresh(reader)
    keep_base_snapshots(home.catalog, reader)
    (tag,) = kept = home.iceberg.load_table(VIEW).refs().keys() - {"main"}
    assert tag.startswith("airflow_mv_keep_")
    adopted(home)
    home.refresh()
    drop(home.catalog, VIEW)
    assert home.iceberg.load_table(VIEW).refs().keys() == {"main", *kept}


def test_i11_files_from_before_the_adoption_are_never_the_view_s(sqlite_uri: str, warehouse: Path) -> None:
    """Neither maintenance nor a purge deletes them, even if another program has expired their snapshots."""
    with lake(sqlite_uri, warehouse, layout="table") as found:
        found.table()
        made(found).append(pa.Table.from_pylist(OLD, schema=COLUMNS))
        _maintained_and_purged(found)


def _maintained_and_purged(home: Lake) -> None:
    folder = Path(home.iceberg.load_table(VIEW).location().removeprefix("file://"))
    before = {path for path in folder.rglob("*") if path.is_file()}
    adopted(home)
    home.iceberg.load_table(VIEW).append(pa.Table.from_pylist(OLD, schema=COLUMNS))  # reaches the earlier files, too
    for _ in range(3):
        home.append()
        home.refresh()
    for _ in range(2):
        maintain(home.catalog, VIEW, older_than=timedelta(0))
    table = home.iceberg.load_table(VIEW)
    assert len(table.metadata.snapshots) == 2, "the rows before the adoption, and the present ones"
    first = table.metadata.snapshots[0].snapshot_id
    table.manage_snapshots().remove_tag("airflow_mv_adopted").commit()
    home.expire(first, "daily")
    for _ in range(2):
        collect_orphans(home.catalog, VIEW, older_than=timedelta(0))
    assert before <= {path for path in folder.rglob("*") if path.is_file()}
    assert len(home.read()) == 3
    purge(home.catalog, VIEW)
    assert not home.iceberg.table_exists(VIEW)
    left = {path for path in folder.rglob("*") if path.is_file()}
    assert {path for path in left if not path.name.endswith(".crc")} == before
