# SPDX-License-Identifier: Apache-2.0
"""The registered layout with real Spark, in a SQL catalog and behind a REST server."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from airflow_mv.actions import read
from airflow_mv.common.refresh_state import REFRESH_STATE_KEY, parse
from airflow_mv.core.catalog import MaterializedViewCatalog
from airflow_mv.core.freshness.state import State
from airflow_mv.errors import JobError
from airflow_mv.extras.maintenance.drop import drop
from airflow_mv.extras.maintenance.verify import verify
from airflow_mv.extras.spark.session import settings_of, with_catalogs
from tests.cli.support import call
from tests.engine.support import Lake, no_spark, reload_configuration
from tests.services import RestServers, rest_properties

DAILY = "SELECT day, sum(amount) AS amount FROM {ns}.orders GROUP BY day"


@pytest.fixture
def behind_rest(request: pytest.FixtureRequest, lake: Lake, tmp_path: Path) -> Iterator[Lake]:
    servers: RestServers = request.getfixturevalue("rest_jvm")
    name = f"rest{uuid.uuid4().hex[:8]}"
    with servers.serve(f"sqlite:///{tmp_path}/catalog.db", tmp_path / "warehouse") as address:
        own = {
            f"PYICEBERG_CATALOG__{name.upper()}__{key.upper()}": text for key, text in rest_properties(address).items()
        }
        os.environ.update(own)
        reload_configuration()
        catalog = MaterializedViewCatalog(name)
        settings = settings_of(catalog)
        found = Lake(with_catalogs(lake.spark, {**settings.confs, **settings.secrets}), catalog, "sales")
        found.files.create_namespace("sales")
        yield found
        for key in own:
            del os.environ[key]
        reload_configuration()


#: For tests whose subject is the job: one of them shows that it reaches the catalog behind a server, too.
ANYWHERE = pytest.mark.parametrize(
    "home", ["sqlite", pytest.param("rest", marks=[pytest.mark.rest, pytest.mark.slow])], indirect=True
)


@pytest.fixture(params=["sqlite", pytest.param("rest", marks=pytest.mark.rest)])
def home(request: pytest.FixtureRequest, lake: Lake) -> Lake:
    """A lake with a base table of two commits."""
    found: Lake = request.getfixturevalue("behind_rest") if request.param == "rest" else lake
    found.table("orders", "day integer, amount bigint", "(1, 10), (1, 20)", "(2, 30)")
    return found


@pytest.fixture
def served(behind_rest: Lake) -> Lake:
    """The same, behind a REST server only."""
    behind_rest.table("orders", "day integer, amount bigint", "(1, 10), (1, 20)", "(2, 30)")
    return behind_rest


def create(home: Lake, name: str = "daily", sql: str = DAILY, **definition: Any) -> str:
    """Create a view in the registered layout; return its storage table's name for Spark."""
    view = home.create(name, sql, layout="registered", **definition)
    assert view.storage_table is not None
    return view.storage_table.sql()


def rows(home: Lake, sql: str) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in home.sql(sql).collect())


def refs(home: Lake, name: str = "daily") -> list[str]:
    return sorted(home.catalog.load_storage(home.view(name)).table.refs)


def test_a_view_can_be_created_refreshed_read_verified_replaced_and_dropped(home: Lake) -> None:
    table = create(home, partition_by=["bucket(2, day)"])
    assert rows(home, f"SELECT * FROM {table}") == []
    assert home.status("daily").state == State.NEVER_REFRESHED

    done = home.refresh("daily")
    assert (done.outcome, done.rows_written) == ("refreshed", 2)
    assert rows(home, f"SELECT * FROM {table}") == [(1, 30), (2, 30)]
    assert sorted(map(tuple, read(home.spark, home("daily"), catalog=home.catalog).collect())) == [(1, 30), (2, 30)]
    assert home.refresh("daily", stager=no_spark).outcome == "fresh"

    home.insert("orders", "(3, 1)")
    assert home.status("daily").state == State.STALE
    home.refresh("daily")
    assert rows(home, f"SELECT * FROM {table}") == [(1, 30), (2, 30), (3, 1)]
    assert verify(home.catalog, home("daily"), session=lambda: home.spark).equal

    home.create("daily", "SELECT count(*) AS days FROM {ns}.orders", replace=True)
    assert rows(home, f"SELECT day, amount FROM {table}") == [(1, 30), (2, 30), (3, 1)]
    home.refresh("daily")
    assert rows(home, f"SELECT days FROM {table}") == [(4,)]
    assert list(map(tuple, read(home.spark, home("daily"), catalog=home.catalog).collect())) == [(4,)]
    drop(home.catalog, home("daily"))
    assert [name for _, name in home.files.list_tables(home.namespace)] == ["orders"]
    assert not home.catalog.exists(home("daily"))


def test_the_snapshot_s_summary_has_the_draft_s_refresh_state(served: Lake) -> None:
    before = datetime.now(UTC).timestamp() * 1000
    create(served)
    served.refresh("daily")
    storage = served.catalog.load_storage(served.view("daily"))
    snapshot = storage.table.find(storage.table.head or 0)
    assert snapshot is not None
    state = parse(snapshot.summary[REFRESH_STATE_KEY], source="summary")
    assert (state.view_version_id, state.refresh_start_timestamp_ms >= before) == (1, True)
    base = served.files.load_table((served.namespace, "orders"))
    (source,) = [source.document() for source in state.source_states]
    assert source == {
        "type": "table",
        "name": "orders",
        "namespace": [served.namespace],
        "uuid": str(base.metadata.table_uuid),
        "snapshot-id": served.snapshot("orders"),
    }


def test_an_empty_base_table_gives_an_empty_view(served: Lake) -> None:
    served.table("nothing", "day integer, amount bigint")
    table = create(served, sql=DAILY.replace("orders", "nothing"))
    assert served.refresh("daily").outcome == "refreshed"
    assert served.status("daily").state == State.FRESH
    assert rows(served, f"SELECT * FROM {table}") == []


@ANYWHERE
def test_a_view_on_a_view_is_computed_from_the_published_rows(home: Lake) -> None:
    create(home)
    top = create(home, "top", "SELECT max(amount) AS most FROM {ns}.daily")
    home.refresh("daily", "top")
    assert rows(home, f"SELECT * FROM {top}") == [(30,)]
    home.insert("orders", "(1, 100)")
    home.refresh("daily", "top")
    assert rows(home, f"SELECT * FROM {top}") == [(130,)]


@ANYWHERE
def test_a_job_that_fails_leaves_no_branch_and_publishes_nothing(home: Lake) -> None:
    table = create(home, sql="SELECT day, 10 / (amount - 20) AS ratio FROM {ns}.orders")
    with pytest.raises(JobError, match="DIVIDE_BY_ZERO"):
        home.refresh("daily")
    assert refs(home) == []
    assert rows(home, f"SELECT * FROM {table}") == []


def test_every_refresh_stays_readable(served: Lake) -> None:
    table = create(served, time_travel=True)
    first = served.refresh("daily")
    served.insert("orders", "(3, 1)")
    served.refresh("daily")
    tag = f"refresh-{first.refresh_id}"
    assert rows(served, f"SELECT * FROM {table} VERSION AS OF '{tag}'") == [(1, 30), (2, 30)]
    assert len([name for name in refs(served) if name.startswith("refresh-")]) == 2


def test_spark_s_compaction_and_writes_of_others_are_distinguished(served: Lake) -> None:
    table = create(served, partition_by=["bucket(2, day)"])
    served.refresh("daily")
    served.insert("orders", "(3, 1)")
    served.refresh("daily")
    served.run(
        f"CALL {served.catalog.name}.system.rewrite_data_files(table => '{table.split('.', 1)[1]}', "
        "options => map('rewrite-all', 'true'))"
    )
    assert served.status("daily").state == State.FRESH
    served.run(f"INSERT INTO {table} VALUES (9, 9)")
    assert served.status("daily").state == State.STALE
    served.refresh("daily")
    assert rows(served, f"SELECT * FROM {table}") == [(1, 30), (2, 30), (3, 1)]
    assert served.status("daily").state == State.FRESH


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["registered", "table"])
def test_what_spark_changes_of_the_stored_table_is_put_back_and_the_refresh_stays_incremental(
    home: Lake, layout: str
) -> None:
    view = home.create("daily", DAILY, layout=layout, refresh_strategy="incremental")
    table = (view.storage_table or view.identifier).sql()
    home.refresh("daily")
    for change in ("DROP COLUMN amount", "ADD COLUMN amount bigint", "ADD PARTITION FIELD day", "WRITE ORDERED BY day"):
        home.run(f"ALTER TABLE {table} {change}")
    assert rows(home, f"SELECT amount FROM {table}") == [(None,), (None,)], "engines read by ids"
    assert (home.status("daily").state, home.codes("daily")[:3]) == (State.STALE, ["STORAGE_ALTERED"] * 3)
    assert call("verify", home("daily"), "--files", "--json").json["altered"]
    assert call("verify", home("daily"), "--json").json["altered"]
    home.insert("orders", "(2, 5)")
    assert home.refresh("daily", on_fallback="fail").mode == "merge"
    assert rows(home, f"SELECT * FROM {table}") == [(1, 30), (2, 35)]
    assert home.status("daily").state == State.FRESH
    assert call("verify", home("daily"), "--json").json["equal"]
    if layout == "table":
        home.run(f"ALTER TABLE {table} UNSET TBLPROPERTIES ('airflow-mv.definition', 'airflow-mv.storage-of')")
        assert "was a view until" in call("status", home("daily")).stderr
        assert call("repair", home("daily"), "--yes", "--json").json["repaired"]
        assert home.status("daily").state == State.FRESH


def test_all_steps_work_from_the_command_line(served: Lake) -> None:
    sql = DAILY.replace("{ns}", f"{served.catalog.name}.{served.namespace}")
    made = call("create", served("daily"), "--sql", sql, "--layout", "registered", "--refresh", "--json").json
    assert (made["outcome"], made["rows_written"]) == ("refreshed", 2)
    shown = call("show", served("daily"), "--json").json
    table = served.view("daily").storage_table
    assert (shown["layout"], shown["storage_table"]) == ("registered", str(table))
    assert call("status", served("daily"), "--check", "--json").json[0]["state"] == "fresh"
    assert sorted(call("read", served("daily"), "--json").json["rows"]) == [[1, 30], [2, 30]]
    assert call("verify", served("daily"), "--json").json["equal"]
    assert len(call("history", served("daily"), "--json").json) == 1
    assert call("drop", served("daily"), "--yes", "--json").json["dropped"]
    assert not served.catalog.exists(served("daily"))
