# SPDX-License-Identifier: Apache-2.0
"""The effect of a refresh after each kind of change of base tables."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime

import pytest
from pyiceberg.catalog import load_catalog

from airflow_mv.core.refresh.plan import RefreshPlan
from airflow_mv.core.refresh.run import refresh
from airflow_mv.core.script import Outcome, Script
from airflow_mv.core.spec.materialized_view import PROPERTY
from airflow_mv.errors import BaseTableNotFoundError, RefreshRefusedError
from airflow_mv.extras.describe import history
from tests.engine.support import OTHER, Lake, as_arrow, no_spark

DAILY = "SELECT day, sum(amount) AS amount FROM {ns}.orders GROUP BY day"


@pytest.fixture
def orders(lake: Lake) -> Lake:
    """A lake with a base table of two commits."""
    lake.table("orders", "day integer, amount bigint", "(1, 10), (1, 20)", "(2, 30)")
    return lake


@pytest.fixture
def daily(orders: Lake) -> Lake:
    """The same with a refreshed view."""
    orders.create("daily", DAILY)
    orders.refresh("daily")
    return orders


def test_rows_that_are_committed_during_a_refresh_belong_to_the_next_one(orders: Lake) -> None:
    """The plan pins snapshots; the recorded snapshots are those that were read, before and during the Spark job."""
    orders.create("daily", DAILY)

    def stager(script: Script) -> Outcome:
        orders.insert("orders", "(4, 1)")
        return orders.stager(script)

    planned = orders.snapshot("orders")
    first = orders.refresh("daily", stager=stager, on_plan=lambda _: orders.insert("orders", "(3, 1)"))

    assert dict(first.snapshots) == {orders("orders"): planned}
    assert orders.rows("daily") == [(1, 30), (2, 30)]
    found = orders.status("daily")
    assert found.state == "stale"
    assert found.observation.freshness.base_tables[0].range.snapshots == 2

    orders.refresh("daily")
    assert orders.rows("daily") == [(1, 30), (2, 30), (3, 1), (4, 1)]
    again = orders.refresh("daily", stager=no_spark)
    assert (again.outcome, again.mode, again.rows_written) == ("fresh", "noop", 0)


def test_after_a_compaction_a_view_is_fresh_and_the_next_refresh_only_records_it(daily: Lake) -> None:
    """Spark rewrites files without changing rows, which must not cost a Spark job."""
    before = daily.settings("daily")["storage-table-location"]
    target = f"{daily.namespace}.orders"
    daily.run(f"CALL lake.system.rewrite_data_files(table => '{target}', options => map('rewrite-all', 'true'))")

    assert daily.status("daily").state == "fresh"
    assert daily.codes("daily") == ["ONLY_REPLACED"]

    result = daily.refresh("daily", stager=no_spark)
    assert (result.outcome, result.mode, result.rows_written) == ("refreshed", "fast-forward", 0)
    assert dict(result.snapshots) == {daily("orders"): daily.snapshot("orders")}
    assert daily.settings("daily")["storage-table-location"] != before
    assert daily.codes("daily") == ["FRESH"]
    assert daily.rows("daily") == [(1, 30), (2, 30)]

    daily.insert("orders", "(2, 1)")
    daily.refresh("daily")
    assert daily.rows("daily") == [(1, 30), (2, 31)]


def test_a_rollback_of_a_base_table_is_applied_to_the_view(daily: Lake) -> None:
    """The current snapshot is an ancestor with fewer rows, although no new snapshot was created."""
    first = daily.files.load_table((daily.namespace, "orders")).snapshots()[0].snapshot_id
    daily.run(f"CALL lake.system.rollback_to_snapshot('{daily.namespace}.orders', {first})")

    assert daily.codes("daily") == ["ROLLED_BACK"]
    daily.refresh("daily")
    assert daily.rows("daily") == [(1, 30)]
    assert daily.status("daily").state == "fresh"


def test_a_base_table_that_was_recreated_is_another_table(daily: Lake) -> None:
    """The name is the same, the uuid is not: snapshot ids of the two are unrelated."""
    daily.files.drop_table((daily.namespace, "orders"))
    assert daily.codes("daily") == ["BASE_UNREADABLE"]
    with pytest.raises(BaseTableNotFoundError, match=r"orders does not exist in catalog 'lake'"):
        daily.refresh("daily", stager=no_spark)

    daily.table("orders", "day integer, amount bigint", "(7, 7)")
    assert daily.codes("daily") == ["BASE_RECREATED"]
    daily.refresh("daily")
    assert daily.rows("daily") == [(7, 7)]


def test_i16_an_expired_snapshot_makes_a_view_stale_until_it_is_recomputed(daily: Lake) -> None:
    """The recorded snapshot can no longer be compared: an unneeded refresh is better than a wrong state."""
    daily.insert("orders", "(3, 1)", "(3, 2)")
    daily.run(
        f"CALL lake.system.expire_snapshots(table => '{daily.namespace}.orders', retain_last => 1, "
        f"older_than => TIMESTAMP '{datetime.now(UTC):%Y-%m-%d %H:%M:%S.%f}')"
    )

    assert daily.codes("daily") == ["SNAPSHOT_EXPIRED"]
    daily.refresh("daily")
    assert daily.rows("daily") == [(1, 30), (2, 30), (3, 3)]


def test_a_nested_plain_view_is_part_of_the_query(orders: Lake) -> None:
    """Its base tables are the view's, and its version is part of the definition."""
    orders.run(
        "CREATE VIEW {ns}.big (tag, betrag) AS SELECT day, amount FROM {ns}.orders WHERE amount >= 20",
        "CREATE VIEW {ns}.bigger AS SELECT * FROM {ns}.big",
    )
    orders.create("total", "SELECT tag, sum(betrag) AS total FROM {ns}.bigger AS b GROUP BY tag")
    orders.refresh("total")
    assert orders.rows("total") == [(1, 20), (2, 30)]

    orders.insert("orders", "(2, 40)")
    assert orders.codes("total") == ["BASE_CHANGED"]

    orders.run("CREATE OR REPLACE VIEW {ns}.big (tag, betrag) AS SELECT day, amount FROM {ns}.orders WHERE amount > 20")
    assert orders.status("total").state == "definition-changed"
    assert orders.codes("total") == ["NESTED_VIEW_CHANGED"]

    orders.refresh("total")
    assert orders.rows("total") == [(2, 70)]
    assert orders.status("total").state == "fresh"


def test_views_over_materialized_views_are_refreshed_after_them(orders: Lake) -> None:
    """The inner view's storage table is a base table: the outer one reads its new snapshot."""
    orders.create("daily", DAILY)
    orders.create("highest", "SELECT max(amount) AS amount FROM {ns}.daily")
    orders.refresh("highest", "daily")
    assert orders.rows("highest") == [(30,)]

    orders.insert("orders", "(1, 5)")
    assert orders.codes("highest") == ["INPUT_STALE"]  # its rows are those of its base table
    assert orders.status("daily").state == "stale"

    orders.refresh("daily")
    assert orders.status("highest").state == "stale"
    orders.refresh("highest")
    assert orders.rows("highest") == [(35,)]
    assert orders.refresh("highest", "daily", stager=no_spark).outcome == "fresh"


def test_views_of_one_call_read_one_consistent_snapshot_set(orders: Lake) -> None:
    """Rows that arrive between two of the refreshes are in neither."""
    orders.create("daily", DAILY)
    orders.create("number", "SELECT count(*) AS n FROM {ns}.orders")
    pinned = orders.snapshot("orders")
    plans: list[RefreshPlan] = []

    def commit_more(plan: RefreshPlan) -> None:
        plans.append(plan)
        orders.insert("orders", "(9, 9)")

    orders.refresh("daily", "number", on_plan=commit_more)

    assert [plan.records[0].snapshot_reference for plan in plans] == [pinned, pinned]
    assert orders.rows("daily") == [(1, 30), (2, 30)]
    assert orders.rows("number") == [(3,)]


def test_base_tables_may_be_in_another_catalog(orders: Lake) -> None:
    """Both catalogs are configured for pyiceberg; Spark gets both, the view names both."""
    elsewhere = load_catalog(OTHER)
    elsewhere.create_namespace(orders.namespace)
    names = as_arrow("day integer, name varchar", "(1, 'Mo'), (2, 'Di')")
    elsewhere.create_table((orders.namespace, "days"), schema=names.schema).append(names)
    orders.create(
        "named",
        f"SELECT d.name, o.amount FROM {{ns}}.orders o JOIN {OTHER}.{orders.namespace}.days d ON o.day = d.day",
    )
    orders.refresh("named")

    assert orders.rows("named") == [("Di", 30), ("Mo", 10), ("Mo", 20)]
    storage = orders.catalog.load_storage(orders.view("named"))
    record = json.loads(storage.table.properties[PROPERTY])["refreshes"][-1]
    known = {item["identifier"].rpartition(".")[2]: item["properties"] for item in record["base-tables"]}
    assert "catalog" not in known["orders"]
    assert known["days"]["catalog"] == OTHER
    assert known["days"]["catalog-type"] == elsewhere.properties["type"]
    elsewhere.load_table((orders.namespace, "days")).append(names)
    assert orders.codes("named") == ["BASE_CHANGED"]


def test_as_of_reads_earlier_snapshots_and_never_replaces_later_rows(orders: Lake) -> None:
    """A backfill run of an earlier date must not remove newer rows."""
    orders.create("daily", DAILY)
    then = _now()
    orders.insert("orders", "(3, 1)")
    orders.refresh("daily", as_of=then)
    assert orders.rows("daily") == [(1, 30), (2, 30)]
    assert orders.status("daily").state == "stale"

    orders.refresh("daily")
    assert orders.rows("daily") == [(1, 30), (2, 30), (3, 1)]
    back = orders.refresh("daily", as_of=then, stager=no_spark)
    assert back.outcome == "fresh"
    assert [str(reason.code) for reason in back.reasons] == ["ALREADY_NEWER"]
    assert orders.rows("daily") == [(1, 30), (2, 30), (3, 1)]


def test_with_time_travel_every_refresh_can_be_read_again(orders: Lake) -> None:
    """Each has its own tagged snapshot: by refresh id, and by a time at which it was current."""
    orders.create("daily", DAILY, time_travel=True)
    first = orders.refresh("daily")
    between = _now()
    orders.insert("orders", "(1, 70)")
    second = orders.refresh("daily")
    recorded = history(orders.catalog, orders("daily"))

    assert [item["refresh_id"] for item in recorded] == [first.refresh_id, second.refresh_id]
    assert [item["current"] for item in recorded] == [False, True]
    assert orders.rows("daily", refresh_id=first.refresh_id) == [(1, 30), (2, 30)]
    assert orders.rows("daily", refresh_id=second.refresh_id) == [(1, 100), (2, 30)]
    assert orders.rows("daily", as_of=between) == [(1, 30), (2, 30)]
    assert orders.rows("daily", as_of=_now()) == [(1, 100), (2, 30)]


def test_a_forced_refresh_recomputes_although_nothing_has_changed(daily: Lake) -> None:
    """For a query that depends on more than its base tables, for example."""
    before = daily.catalog.load_storage(daily.view("daily")).state
    result = daily.refresh("daily", full=True)
    after = daily.catalog.load_storage(daily.view("daily")).state

    assert (result.outcome, result.mode, result.rows_written) == ("refreshed", "full", 2)
    assert result.reasons[0].code == "FORCED"
    assert before is not None
    assert after is not None
    assert before.current_refresh_id != after.current_refresh_id


def test_an_incremental_view_reports_why_only_a_recompute_is_possible(daily: Lake) -> None:
    """The caller may want to avoid its cost."""
    daily.create("grows", DAILY.replace("daily", "grows"), refresh_strategy="incremental")
    daily.refresh("grows")
    orders = (daily.namespace, "orders")
    recorded = daily.files.load_table(orders).current_snapshot()
    assert recorded is not None
    daily.insert("orders", "(3, 1)")
    daily.files.load_table(orders).maintenance.expire_snapshots().by_id(recorded.snapshot_id).commit()

    with pytest.raises(RefreshRefusedError, match=r"grows would have to be recomputed in full.*expired"):
        daily.refresh("grows", on_fallback="fail", stager=no_spark)
    assert daily.refresh("grows", on_fallback="skip", stager=no_spark).outcome == "skipped"
    assert daily.rows("grows") == [(1, 30), (2, 30)]
    assert daily.refresh("grows").mode == "full"
    assert daily.rows("grows") == [(1, 30), (2, 30), (3, 1)]


def test_a_view_that_is_named_twice_is_refreshed_once(daily: Lake) -> None:
    """A name given twice is one refresh."""
    results = refresh(daily.catalog, [daily("daily"), daily("daily")], stager=no_spark)
    assert [str(result.view) for result in results] == [daily("daily")]


def _now() -> datetime:
    time.sleep(0.01)
    moment = datetime.now(UTC)
    time.sleep(0.01)
    return moment
