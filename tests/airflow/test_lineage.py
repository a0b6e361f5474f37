# SPDX-License-Identifier: Apache-2.0
"""Lineage: the events that OpenLineage's provider sends for a run in a real Airflow, written to a file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from airflow_mv.hooks import MaterializedViewHook
from airflow_mv.lineage.facts import Name, by_location, in_catalog
from tests.airflow.conftest import VIEW, Airflow, Run, lake_behind
from tests.builders import Lake

SCHEMA = json.loads(Path(__file__).parents[2].joinpath("docs/openlineage/RefreshRunFacet.json").read_text())

#: Modules that cannot be imported, as if they were not installed.
HIDE = """
import sys

loaded = [name for name in sys.modules if name.startswith("airflow.providers.openlineage")]
for name in ("openlineage", "airflow.providers.openlineage", *loaded):
    sys.modules[name] = None
"""
WITHOUT = f"""
from airflow.sdk import DAG
from airflow_mv.operators import RefreshMaterializedViewOperator

with DAG("without", schedule=None):
    RefreshMaterializedViewOperator(task_id="refresh", view="{VIEW}")
"""


@dataclass(frozen=True)
class Story:
    """The runs, and the events that were sent."""

    lake: Lake
    run: Run
    events: list[dict[str, Any]]

    def last(self, task_id: str, kind: str = "COMPLETE") -> dict[str, Any]:
        """The event at the end of a task."""
        (found,) = [
            event
            for event in self.events
            if event["job"]["name"].endswith(f".{task_id}") and event["eventType"] == kind
        ]
        return found


def _listening(airflow: Airflow, folder: Path) -> None:
    """Let OpenLineage's provider write its events to a file."""
    transport = {"type": "file", "log_file_path": str(folder / "events.jsonl"), "append": True}
    airflow.environment["AIRFLOW__OPENLINEAGE__TRANSPORT"] = json.dumps(transport)


def _sent(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]


def _stage(lake: Lake, view: str) -> None:
    """Stage what a Spark job would stage: lineage does not depend on who ran it."""
    script = MaterializedViewHook().plan(view).script
    lake.catalog.files.replace_text(script.outcome_location, lake.stager(script).to_json())


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    """A refresh, one with nothing to do, one that fails, and one between plan and commit tasks."""
    folder = tmp_path_factory.mktemp("lineage")
    (folder / "dags").mkdir()
    airflow = Airflow(folder / "dags")
    _listening(airflow, folder)
    try:
        with lake_behind(airflow, folder) as lake:
            for name in ("daily", "planned", "broken"):
                lake.view(name)
            _stage(lake, VIEW)
            _stage(lake, "lake.sales.planned")
            run = airflow.run(f"""
                first = RefreshMaterializedViewOperator(task_id="first", view="{VIEW}")
                again = RefreshMaterializedViewOperator(task_id="again", view="{VIEW}")
                plan = PlanRefreshOperator(task_id="plan", view="lake.sales.planned")
                commit = CommitRefreshOperator(task_id="commit", plan=plan.output)
                broken = RefreshMaterializedViewOperator(
                    task_id="broken", view="lake.sales.broken", spark_conn_id="missing"
                )
                report = task(task_id="report", inlets=[materialized_view_asset("{VIEW}")])(lambda: None)()
                chain(plan, commit, first, again, report, broken)
            """)
            assert not run.import_error
            yield Story(lake, run, _sent(folder))
    finally:
        airflow.close()
        airflow.disconnect()


def test_a_refresh_reads_its_base_tables_at_their_snapshots_and_writes_the_view(story: Story) -> None:
    """A lineage server joins by these names: they are those of OpenLineage's Spark integration."""
    assert story.run.states["first"] == "success", story.run.log
    result = story.run.values["first"]
    event = story.last("first")
    (source,), (view,) = event["inputs"], event["outputs"]
    table, loaded = story.lake.load(), story.lake.catalog.load(VIEW)

    assert (source["namespace"], source["name"]) == ("file", table.location().removeprefix("file://"))
    assert source["facets"]["version"]["datasetVersion"] == str(story.lake.head())
    assert [field["name"] for field in source["facets"]["schema"]["fields"]] == ["id", "region", "amount"]
    assert source["facets"]["datasetType"]["datasetType"] == "TABLE"
    assert source["facets"]["symlinks"]["identifiers"][0]["name"] == "sales.orders"
    assert source["facets"]["catalog"]["name"] == "lake"

    assert (view["namespace"], view["name"]) == ("file", loaded.metadata.location.removeprefix("file://"))
    assert view["facets"]["version"]["datasetVersion"] == result["refresh_id"]
    assert [(field["name"], field["type"]) for field in view["facets"]["schema"]["fields"]] == [
        ("region", "string"),
        ("orders", "long"),
        ("amount", "long"),
    ]
    assert (
        view["facets"]["datasetType"] | {"datasetType": "VIEW", "subType": "MATERIALIZED"}
        == (view["facets"]["datasetType"])
    )
    assert view["outputFacets"]["outputStatistics"]["rowCount"] == result["rows_written"] == 2


def test_the_run_facet_has_mode_and_reasons_and_the_job_facet_the_sql(story: Story) -> None:
    """The run facet is defined by this package and matches its published schema."""
    event = story.last("first")
    facet = event["run"]["facets"]["airflowMv_refresh"]
    jsonschema.validate(facet, SCHEMA)

    assert facet["_schemaURL"] == SCHEMA["$id"]
    assert (facet["mode"], facet["outcome"], facet["state"]) == ("full", "refreshed", "never-refreshed")
    assert [reason["code"] for reason in facet["reasons"]] == ["NEVER_REFRESHED", "STRATEGY_FULL"]
    assert facet["baseTables"] == [{"name": "lake.sales.orders", "to": str(story.lake.head())}]
    assert event["job"]["facets"]["sql"]["query"].startswith("SELECT region, count(*) AS orders")


def test_a_refresh_with_nothing_to_do_writes_no_dataset(story: Story) -> None:
    """Otherwise a server would show a newer time for the view's rows."""
    event = story.last("again")

    assert event["outputs"] == []
    assert [source["facets"]["version"]["datasetVersion"] for source in event["inputs"]] == [str(story.lake.head())]
    assert event["run"]["facets"]["airflowMv_refresh"]["outcome"] == "fresh"


def test_a_commit_task_reports_the_lineage_of_the_job_of_another_operator(story: Story) -> None:
    """The plan task wrote nothing, so it reports nothing."""
    event = story.last("commit")

    assert event["outputs"][0]["facets"]["version"]["datasetVersion"] == story.run.values["commit"]["refresh_id"]
    assert event["outputs"][0]["outputFacets"]["outputStatistics"]["rowCount"] == 2
    assert story.last("plan")["outputs"] == []


def test_a_task_with_the_view_s_asset_as_inlet_is_a_reader_of_the_view(story: Story) -> None:
    """The asset's name is a symlink of the view's dataset."""
    (source,) = story.last("report")["inputs"]
    (view,) = story.last("first")["outputs"]
    names = [(item["namespace"], item["name"]) for item in view["facets"]["symlinks"]["identifiers"]]

    assert (source["namespace"], source["name"]) == ("iceberg-mv://lake", "sales.daily")
    assert (source["namespace"], source["name"]) in names


def test_a_failed_refresh_reports_the_output_it_would_have_written(story: Story) -> None:
    """Without facets about a result."""
    event = story.last("broken", "FAIL")
    facet = event["run"]["facets"]["airflowMv_refresh"]
    jsonschema.validate(facet, SCHEMA)

    assert story.run.states["broken"] == "failed"
    assert "/sales/broken-" in event["outputs"][0]["name"]
    assert not event["outputs"][0].get("outputFacets")
    assert "outcome" not in facet


@pytest.mark.parametrize("fault", ["absent", pytest.param("no-answer", marks=pytest.mark.slow)])
def test_without_a_working_provider_the_refresh_continues(tmp_path: Path, fault: str) -> None:
    """The provider is optional, and its errors do not fail the task."""
    (tmp_path / "dags").mkdir()
    airflow = Airflow(tmp_path / "dags")
    dead = {"type": "http", "url": "http://127.0.0.1:1", "retry": {"total": 0}}
    if fault == "no-answer":
        airflow.environment["AIRFLOW__OPENLINEAGE__TRANSPORT"] = json.dumps(dead)
    try:
        with lake_behind(airflow, tmp_path) as lake:
            lake.view()
            _stage(lake, VIEW)
            file = tmp_path / "dags" / "without.py"
            file.write_text(f"{HIDE if fault == 'absent' else ''}\n{WITHOUT}")
            run = airflow.run_file(file)
    finally:
        airflow.close()
        airflow.disconnect()

    assert run.states == {"refresh": "success"}, run.log
    assert run.values["refresh"]["outcome"] == "refreshed"
    assert ("Failed to emit OpenLineage" in run.log) == (fault == "no-answer"), run.log


@pytest.mark.parametrize(
    ("location", "name"),
    [
        ("s3a://bucket/lake/sales/orders", Name("s3://bucket", "lake/sales/orders")),
        ("gs://bucket/lake/orders/", Name("gs://bucket", "lake/orders")),
        ("file:///lake/orders", Name("file", "/lake/orders")),
        ("file:/lake/orders", Name("file", "/lake/orders")),
        ("/lake/orders", Name("file", "/lake/orders")),
        ("hdfs://name:8020/lake/orders", Name("hdfs://name:8020", "/lake/orders")),
        ("abfss://c@acc.dfs.core.windows.net/lake", Name("abfss://c@acc.dfs.core.windows.net", "/lake")),
    ],
)
def test_a_table_is_named_by_its_location(location: str, name: Name) -> None:
    """Other producers of lineage use the same names."""
    assert by_location(location) == name


@pytest.mark.parametrize(
    ("properties", "name"),
    [
        (
            {"type": "sql", "uri": "postgresql+psycopg2://me:secret@db/lake?options=x"},
            Name("postgres://db:5432", "lake.sales.orders"),
        ),
        ({"type": "sql", "uri": "sqlite:////lake/catalog.db"}, Name("sqlite://lake/catalog.db", "sales.orders")),
        ({"type": "rest", "uri": "https://me:secret@host/api"}, Name("https://host/api", "sales.orders")),
        ({"type": "hive", "uri": "thrift://host:9083"}, None),
        ({"type": "glue"}, None),
    ],
)
def test_a_table_has_its_name_in_the_catalog_as_a_symlink_without_credentials(
    properties: dict[str, str], name: Name | None
) -> None:
    """A catalog's URI may contain credentials, and a lineage server has many readers."""
    assert in_catalog(properties, ("sales", "orders")) == name
