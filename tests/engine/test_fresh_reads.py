# SPDX-License-Identifier: Apache-2.0
"""A fresh read returns the rows that a refresh would store, and writes nothing."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import airflow_mv
from airflow_mv.actions import plan_fresh, read_fresh
from airflow_mv.errors import ConfigurationError
from tests.builders import LAYOUTS
from tests.cli.support import call
from tests.engine.incremental.playing import ALWAYS
from tests.engine.support import Lake, multiset

QUERIES = {
    "append": "SELECT id, day, amount * 2 AS twice FROM {ns}.orders WHERE amount > 0",
    "merge": "SELECT day, sum(amount) AS amount, count(*) AS n FROM {ns}.orders GROUP BY day",
    "replace-keys": "SELECT day, count(DISTINCT amount) AS amounts FROM {ns}.orders GROUP BY day",
    "query": "SELECT id, row_number() OVER (ORDER BY id) AS number FROM {ns}.orders",
}
NAMES = {mode: mode.replace("-", "_") for mode in QUERIES}


def fresh(lake: Lake, name: str) -> Counter[str]:
    """The fresh rows of a view."""
    return multiset(airflow_mv.read(lake.spark, lake(name), fresh=True, catalog=lake.catalog).toArrow())


def left(lake: Lake) -> tuple[Any, ...]:
    """All that a read may leave: files, pointers, temporary views, settings of the session."""
    folder = Path(lake.view("merge").metadata.location.removeprefix("file:")).parent
    files = sorted(str(path) for path in folder.rglob("*") if path.is_file())
    pointers = {name: lake.view(name).metadata_location for name in NAMES.values()}
    views = sorted(item.name for item in lake.spark.catalog.listTables() if item.isTemporary)
    settings = {key: value for key, value in lake.spark.conf.getAll.items() if "spark.app" not in key}
    return files, pointers, views, settings


@pytest.mark.parametrize("layout", LAYOUTS)
def test_fresh_rows_are_those_of_a_refresh_and_nothing_is_written(lake: Lake, layout: Any) -> None:
    """In each mode, after appended, then after deleted rows; the stored rows stay as they are."""
    lake.table("orders", "id integer, day integer, amount bigint", "(1, 1, 10), (2, 1, 20), (3, 2, 30)")
    for mode, sql in QUERIES.items():
        name = NAMES[mode]
        lake.create(name, sql, refresh_strategy="incremental", properties=ALWAYS, layout=layout)
        lake.refresh(name)
        assert read_fresh(lake.catalog, lambda: lake.spark, lake(name)).mode == "stored"
    for change in ("INSERT INTO {ns}.orders VALUES (4, 2, 5), (5, 3, 7)", "DELETE FROM {ns}.orders WHERE id = 1"):
        lake.run(change)
        for mode in QUERIES:
            name = NAMES[mode]
            before, stored = left(lake), lake.rows(name)
            found = read_fresh(lake.catalog, lambda: lake.spark, lake(name))
            rows = multiset(found.frame.toArrow())

            assert left(lake) == before
            assert lake.rows(name) == stored
            expected = mode if change.startswith("INSERT") or mode != "append" else "merge"
            assert found.mode == expected, found.reasons
            lake.refresh(name)
            assert rows == multiset(lake.stored(name))
            # The frame has the rows of the time of the read, and they can be read again.
            assert multiset(found.frame.toArrow()) == rows


def test_a_chain_is_read_through_the_fresh_rows_of_its_inputs(lake: Lake) -> None:
    """A view that reads stale views has the rows that a refresh with its inputs would store."""
    lake.table("orders", "id integer, day integer, amount bigint", "(1, 1, 10), (2, 1, 20), (3, 2, 30)")
    lake.table("days", "day integer, name varchar", "(1, 'mon'), (2, 'tue')")
    create(lake, "by_day", "SELECT day, sum(amount) AS amount FROM {ns}.orders GROUP BY day")
    create(lake, "named", "SELECT d.name, b.* FROM {ns}.by_day b JOIN {ns}.days d ON d.day = b.day")
    create(lake, "total", "SELECT sum(amount) AS amount FROM {ns}.named WHERE amount > 5")
    lake.refresh("by_day", "named", "total")
    lake.insert("orders", "(4, 2, 5), (5, 3, 7)")
    lake.insert("days", "(3, 'wed')")
    plan = plan_fresh(lake.catalog, lake("total"))
    inner = plan.to_dict()["inputs"][0]

    assert fresh(lake, "total") == Counter(["['72']"])
    assert (plan.mode, inner["mode"], inner["inputs"][0]["mode"]) == ("query", "query", "merge")
    assert [reason.code for reason in plan.reasons][-1] == "INPUT_STALE"
    assert lake.rows("total") == [(60,)]
    lake.refresh("by_day")
    assert plan_fresh(lake.catalog, lake("named")).mode in ("merge", "replace-keys")
    assert fresh(lake, "total") == Counter(["['72']"])


def test_rows_that_a_refresh_may_not_compute_can_be_read(lake: Lake) -> None:
    """A policy is about what is written. A view without rows, or with an earlier definition, is read by its query."""
    lake.table("orders", "id integer, amount bigint", "(1, 10), (2, 20)")
    lake.create("counted", "SELECT count(*) AS n FROM {ns}.orders", properties={"airflow-mv.on-fallback": "fail"})
    assert fresh(lake, "counted") == Counter(["['2']"])
    lake.refresh("counted")
    lake.create("counted", "SELECT sum(amount) AS n FROM {ns}.orders", replace=True)
    found = read_fresh(lake.catalog, lambda: lake.spark, lake("counted"))

    assert found.mode == "query"
    assert found.frame.collect()[0].n == 30
    assert "DEFINITION_CHANGED" in [reason.code for reason in found.reasons]
    with pytest.raises(ConfigurationError, match="fresh rows are those of now"):
        airflow_mv.read(lake.spark, lake("counted"), fresh=True, snapshot_id=1, catalog=lake.catalog)


def test_what_the_job_finds_impossible_is_read_by_the_query(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reason is in the result."""
    lake.table("orders", "id integer, day integer, amount bigint", "(1, 1, 10), (2, 2, 20)")
    create(lake, "by_day", "SELECT day, sum(amount) AS amount FROM {ns}.orders GROUP BY day")
    lake.refresh("by_day")
    lake.insert("orders", "(3, 1, 5), (4, 3, 1)")
    monkeypatch.setattr("airflow_mv.core.job.context.JobContext.collect_locally", lambda *_, **__: None)
    found = read_fresh(lake.catalog, lambda: lake.spark, lake("by_day"))

    assert found.mode == "query"
    assert found.reasons[-1].code == "INCREMENTAL_UNAVAILABLE"
    assert "keys are affected" in found.reasons[-1].message
    assert multiset(found.frame.toArrow()) == Counter(["['1', '15']", "['2', '20']", "['3', '1']"])


def test_the_rows_do_not_depend_on_the_settings_of_the_session(lake: Lake) -> None:
    """Times are those of UTC, as in stored rows, in the session's thread and in others, whatever its time zone is."""
    lake.table("seen", "moment timestamptz", "('2024-03-01 23:30:00+00')")
    create(
        lake, "days", "SELECT CAST(moment AS DATE) AS day, count(*) AS n FROM {ns}.seen GROUP BY CAST(moment AS DATE)"
    )
    create(lake, "hours", "SELECT hour(moment) AS hour, row_number() OVER (ORDER BY moment) AS n FROM {ns}.seen")
    lake.refresh("days", "hours")
    lake.insert("seen", "('2024-03-02 23:30:00+00')")
    lake.spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    try:
        assert fresh(lake, "days") == Counter(["['2024-03-01', '1']", "['2024-03-02', '1']"])
        assert fresh(lake, "hours") == Counter(["['23', '1']", "['23', '2']"])
    finally:
        lake.spark.conf.set("spark.sql.session.timeZone", "UTC")


def create(lake: Lake, name: str, sql: str) -> None:
    """Create an incremental view, whose cost never decides."""
    lake.create(name, sql, refresh_strategy="incremental", properties=ALWAYS)


def test_the_commands_print_fresh_rows_and_their_cost(lake: Lake) -> None:
    """Both with the mode and the reasons. Rows of the past, of a path or of a query cannot be fresh."""
    lake.table("orders", "id integer, day integer, amount bigint", "(1, 1, 10), (2, 2, 20)")
    create(lake, "by_day", "SELECT day, sum(amount) AS amount FROM {ns}.orders GROUP BY day")
    lake.refresh("by_day")
    lake.insert("orders", "(3, 1, 5)")
    explained = call("explain", lake("by_day"), "--fresh", "--json").json
    rows = call("read", lake("by_day"), "--fresh", "--json").json
    limited = call("read", lake("by_day"), "--fresh", "--limit", "1")

    assert (explained["mode"], explained["rows_changed"], explained["stored_rows"]) == ("merge", 1, 2)
    assert [item["mode"] for item in explained["estimates"]] == ["merge", "query"]
    assert explained["bytes_read"] > explained["stored_bytes"]
    assert (rows["mode"], rows["columns"], sorted(rows["rows"])) == ("merge", ["day", "amount"], [[1, 15], [2, 20]])
    assert "1 row, merge: " in limited.stderr
    assert call("read", lake("by_day"), "--fresh", "--snapshot-id", "1").code != 0
    assert call("explain", "--sql", "SELECT 1 AS one", "--fresh").code == 2
    assert lake.rows("by_day") == [(1, 10), (2, 20)]


def test_each_view_of_a_namespace_is_a_temporary_view_of_its_name(lake: Lake) -> None:
    """Stored rows where stale ones are allowed and there are some, else fresh ones."""
    lake.table("orders", "id integer, day integer, amount bigint", "(1, 1, 10), (2, 2, 20)")
    sql = "SELECT day, sum(amount) AS amount FROM {ns}.orders GROUP BY day"
    for name, stale in (("daily", False), ("old", True), ("never", True), ("odd name", False)):
        lake.create(f"`{name}`", sql, refresh_strategy="incremental", properties=ALWAYS, allow_stale_data=stale)
    lake.refresh("daily", "old", "`odd name`")
    lake.insert("orders", "(3, 1, 5)")
    found = airflow_mv.register(lake.spark, f"{lake.catalog.name}.{lake.namespace}", catalog=lake.catalog)
    rows = {name: lake.spark.sql(f"SELECT amount FROM `{name}` WHERE day = 1").collect()[0][0] for name in found}
    for name in found:
        lake.spark.catalog.dropTempView(name)

    assert found == {"daily": "merge", "never": "query", "odd name": "merge", "old": "stored"}
    assert rows == {"daily": 15, "never": 15, "odd name": 15, "old": 10}
