# SPDX-License-Identifier: Apache-2.0
"""One DAG with real Spark, from an empty catalog to a fresh view and later refreshes. Each test reads its results."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.airflow.conftest import HISTORY, SMALL, VIEW, Airflow, Run, lake_behind
from tests.builders import QUERY, Lake

CANARY = "canary/pa ss+w0rd"


@dataclass(frozen=True)
class Story:
    """The results of the runs."""

    lake: Lake
    run: Run
    first: int
    second: int
    rows_between: list[dict[str, Any]]


@pytest.fixture(scope="module")
def story(module_airflow: Airflow, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    """Create, refresh twice, append rows, refresh as of a time before, check again, refresh.

    The catalog has a property that is a credential, to check where it is written.
    """
    with lake_behind(module_airflow, tmp_path_factory.mktemp("story"), token=CANARY) as lake:
        first = lake.head()
        run = module_airflow.run(f"""
            options = dict(view="{VIEW}", conf={SMALL})
            create = CreateMaterializedViewOperator(
                task_id="create", sql='''{QUERY}''', dialects=["trino"], refresh_strategy="full", **options
            )
            create_again = CreateMaterializedViewOperator(task_id="create_again", sql='''{QUERY};''', **options)
            refresh = RefreshMaterializedViewOperator(task_id="refresh", **options)
            again = RefreshMaterializedViewOperator(task_id="again", **options)
            chain(create, create_again, refresh, again)
        """)
        rows = lake.read() if run.state == "success" else []
        second = lake.append((7, "west", 1), (8, "west", 2))
        yield Story(lake, run, first, second, rows)


def test_the_run_creates_a_view_with_the_rows_of_its_query(story: Story) -> None:
    """Through all parts: Airflow, spark-submit, Iceberg, catalog."""
    assert story.run.states == dict.fromkeys(["create", "create_again", "refresh", "again"], "success"), story.run.log
    assert story.rows_between == [
        {"region": "north", "orders": 2, "amount": 15},
        {"region": "south", "orders": 1, "amount": 20},
    ]


def test_creating_the_same_view_again_does_not_change_it(story: Story) -> None:
    """The task is the first of a DAG that runs daily: a new version each day would make the rows invalid."""
    assert "lake.sales.daily has this definition already" in story.run.task_log("create_again")
    assert "Spark-Submit cmd" not in story.run.task_log("create_again")
    assert story.run.values["create_again"]["version_id"] == 1


def test_the_log_of_a_creation_has_the_query_in_each_dialect(story: Story) -> None:
    assert "SQL for trino: SELECT region, COUNT(*) AS orders, " in story.run.task_log("create")
    assert story.lake.catalog.load(VIEW).metadata.current_version.texts.keys() == {"spark", "trino"}


def test_a_task_that_ran_spark_links_to_its_application(story: Story) -> None:
    """A task that did not has no link."""
    links = {task: value for task, key, value in story.run.xcoms if key == "_link_SparkApplicationLink"}
    assert f"{HISTORY}local-" in str(links["refresh"])
    assert HISTORY not in str(links.get("again"))


def test_the_log_of_a_refresh_says_what_it_does_and_why(story: Story) -> None:
    """It is what users read first."""
    log = story.run.task_log("refresh")
    lines = [
        "Plan for lake.sales.daily: full (the view is never-refreshed)",
        "because its storage table has no rows yet [NEVER_REFRESHED]",
        f"reads lake.sales.orders at snapshot {story.first} (before: none)",
        "Spark-Submit cmd",
        "2 rows written",
        "lake.sales.daily: refreshed (full), 2 rows written, ",
    ]
    positions = [log.find(line) for line in lines]
    assert -1 not in positions, log
    assert positions == sorted(positions)
    assert "--conf spark.sql.shuffle.partitions=2" in log
    assert "--master local[2]" in log


def test_spark_s_part_of_the_log_begins_with_the_statement(story: Story) -> None:
    """Eight lines of Spark hid the statement; one remains, which Java prints before any setting is applied."""
    part = story.run.task_log("refresh").partition("Spark-Submit cmd")[2].partition("statement 1/")[0]
    assert [line for line in part.splitlines()[1:-1] if "jdk.incubator.vector" not in line] == []


def test_a_refresh_of_a_fresh_view_logs_it_and_starts_no_spark(story: Story) -> None:
    """Most runs of a daily DAG should be like this."""
    log = story.run.task_log("again")
    assert "Plan for lake.sales.daily: noop (the view is fresh)" in log
    assert "because every base table is at the snapshot that the last refresh read [FRESH]" in log
    assert "No Spark job is needed" in log
    assert "lake.sales.daily: fresh, nothing was written" in log
    assert "spark" not in log.partition("Plan for")[2].partition("Post Execute")[0].replace("Spark job", "").lower()
    assert story.run.values["again"]["refresh_id"] == story.run.values["refresh"]["refresh_id"]


def test_the_return_value_is_the_document_of_the_command_line(story: Story) -> None:
    """Scripts can read either."""
    document = story.run.values["refresh"]
    assert {key: document[key] for key in ("view", "outcome", "mode", "rows_written")} == {
        "view": VIEW,
        "outcome": "refreshed",
        "mode": "full",
        "rows_written": 2,
    }
    assert set(document) >= {"reasons", "refresh_id", "storage_table_location", "seconds"}
    assert document["storage_table_location"] == story.lake.storage().location


def test_only_a_refresh_that_published_emits_an_asset_event(story: Story) -> None:
    """An event for a fresh view would start every consumer without need."""
    extra = {
        "view": VIEW,
        "refresh_id": story.run.values["refresh"]["refresh_id"],
        "storage_table": None,
        "mode": "full",
        "outcome": "refreshed",
        "base_tables": {"lake.sales.orders": str(story.first)},
        "rows_written": 2,
        "lag_seconds": None,
        "seconds": story.run.values["refresh"]["seconds"],
        "interval": None,
        "reasons": story.run.values["refresh"]["reasons"],
        "fallback": None,
        "checks": None,
    }
    assert extra["reasons"][0]["code"] == "NEVER_REFRESHED"
    assert story.run.events == [["refresh", VIEW, extra]]
    assert "No asset event: nothing new was published" in story.run.task_log("again")


def test_a_credential_is_in_no_log_xcom_rendered_field_or_script(story: Story) -> None:
    """Spark gets it in a file that only the worker's user can read."""
    script = next((path.read_text() for path in _files(story.lake) if path.name.endswith(".script.json")), "")
    assert '"steps"' in script
    for text in (story.run.log, repr(story.run.xcoms), repr(story.run.rendered), script):
        assert CANARY not in text
        assert "canary" not in text
    assert "--properties-file" in story.run.log


@pytest.mark.cluster
def test_a_later_refresh_reads_the_view_as_of_a_time_or_now(
    story: Story, module_airflow: Airflow, connect: str
) -> None:
    """`as_of` is a template: a run can read the base tables as of its own time."""
    host, _, port = connect.removeprefix("sc://").partition(":")
    module_airflow.connect("connect", conn_type="spark_connect", host=host, port=int(port))
    before = story.lake.load().metadata.snapshot_by_id(story.first).timestamp_ms
    run = module_airflow.run(
        f"""
        options = dict(view="{VIEW}", conf={SMALL})
        as_of = RefreshMaterializedViewOperator(task_id="as_of", as_of="{{{{ dag_run.conf['at'] }}}}", **options)
        now = RefreshMaterializedViewOperator(
            task_id="now", view="{VIEW}", spark_conn_id="connect", as_of="{{{{ dag_run.conf['none'] }}}}"
        )
        as_of >> now
        """,
        run_conf={"at": f"{_iso(before + 1)}", "none": ""},
    )

    assert run.state == "success", run.log
    assert "noop (the view is fresh)" in run.task_log("as_of")
    assert run.rendered["as_of"]["as_of"] == _iso(before + 1)
    log = run.task_log("now")
    assert "full (the view is stale)" in log
    assert f"lake.sales.orders advanced {story.first} → {story.second}: 1 snapshot (1 append), +2" in log
    assert f"reads lake.sales.orders at snapshot {story.second} (before: {story.first})" in log
    assert run.values["now"]["rows_written"] == 3
    assert {"region": "west", "orders": 2, "amount": 3} in story.lake.read()


def _files(lake: Lake) -> Any:
    from pathlib import Path

    return Path(str(lake.iceberg.properties["warehouse"]).removeprefix("file://")).rglob("*.json")


def _iso(milliseconds: int) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat()
