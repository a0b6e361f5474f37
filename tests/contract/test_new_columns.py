# SPDX-License-Identifier: Apache-2.0
"""A definition with other columns, where the storage table is a table of the catalog: it is changed in place."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyiceberg.table import Table
from pyiceberg.types import LongType, StringType

from airflow_mv.actions import create_view as create
from airflow_mv.common.status import status
from airflow_mv.core.define.definition import Definition
from airflow_mv.core.freshness.state import State
from airflow_mv.core.publish import PublishOutcome, publish
from airflow_mv.core.refresh.choose import plan_refresh
from airflow_mv.core.refresh.run import stage
from tests.builders import Lake, lake
from tests.contract.support import NORTH, SOUTH, VIEW, staged, where
from tests.homes import HOMES, home_parameter

WIDER = "SELECT id, upper(region) AS amount, amount AS region FROM lake.sales.orders"


@pytest.fixture(params=[home_parameter(name) for name in HOMES if not name.endswith("-pointed")])
def home(request: pytest.FixtureRequest, warehouse: Path) -> Iterator[Lake]:
    """A lake with a view that was never refreshed, in each catalog and layout with a storage table of the catalog."""
    fixture, layout = HOMES[request.param]
    with lake(str(request.getfixturevalue(fixture)), warehouse, layout=layout) as found:
        found.table()
        found.view()
        yield found


def named(home: Lake) -> Table:
    """The table that everyone can load by its name."""
    name = home.storage().name
    assert name is not None
    return home.iceberg.load_table((*name.namespace, name.name))


def names(home: Lake) -> list[str]:
    """Its columns. Only Spark keeps their order."""
    return sorted(named(home).schema().column_names)


def test_columns_and_rows_change_in_one_commit(home: Lake) -> None:
    """Old rows and columns stay visible by the name until then; renamed, retyped, reordered and dropped ones alike."""
    home.refresh()
    with named(home).transaction() as change:
        change.set_properties({"theirs": "kept"})
    before, name = named(home).metadata, named(home).name()
    create(home.catalog, VIEW, Definition(WIDER, layout=home.layout), stager=home.stager, replace=True)
    plan, outcome = staged(home)
    assert (names(home), home.read()) == (["amount", "orders", "region"], [NORTH, SOUTH])
    assert publish(home.catalog, plan, where(outcome)).outcome == PublishOutcome.COMMITTED
    after_ = named(home).metadata
    assert names(home) == ["amount", "id", "region"]
    kinds = {field.name: type(field.field_type) for field in after_.schema().fields}
    assert kinds == {"id": LongType, "amount": StringType, "region": LongType}
    assert home.read()[0] == {"id": 1, "amount": "NORTH", "region": 10}
    assert (named(home).name(), after_.table_uuid) == (name, before.table_uuid)
    assert after_.properties["theirs"] == "kept"
    assert {item.snapshot_id for item in before.snapshots} <= {item.snapshot_id for item in after_.snapshots}
    assert status(home.catalog, VIEW).state == State.FRESH
    home.append()
    assert home.refresh().outcome == "refreshed"
    assert len(home.read()) == 4


def test_new_columns_are_planned_again_if_someone_changed_the_table_s_columns(home: Lake) -> None:
    """The job has given the new columns ids that are another column's by now."""
    home.refresh()
    create(home.catalog, VIEW, Definition(WIDER, layout=home.layout), stager=home.stager, replace=True)
    plan, outcome = staged(home)
    with named(home).update_schema() as change:
        change.add_column("someone_s", LongType())
    assert publish(home.catalog, plan, where(outcome)).outcome == PublishOutcome.REPLAN
    assert home.refresh().outcome == "refreshed"
    assert names(home) == ["amount", "id", "region"]
    assert len(home.read()) == 3


def test_what_was_staged_with_new_columns_is_published_by_the_next_try(home: Lake) -> None:
    home.refresh()
    create(home.catalog, VIEW, Definition(WIDER, layout=home.layout), stager=home.stager, replace=True)
    plan, outcome = staged(home)
    assert outcome is not None
    assert plan.script is not None
    home.catalog.files.replace_text(plan.script.outcome_location or "", outcome.to_json())
    jobs = len(home.stager.refreshes)
    assert home.refresh().outcome == "refreshed"
    assert len(home.stager.refreshes) == jobs
    assert names(home) == ["amount", "id", "region"]


def test_new_columns_are_staged_again_if_another_refresh_was_staged_meanwhile(home: Lake) -> None:
    """Both snapshots have one sequence number: neither was in the metadata file that the other's job started from."""
    home.refresh()
    home.append()
    old = plan_refresh(home.catalog, VIEW)
    create(home.catalog, VIEW, Definition(WIDER, layout=home.layout), stager=home.stager, replace=True)
    new = plan_refresh(home.catalog, VIEW)
    stage(home.catalog, old, home.stager)
    outcome = stage(home.catalog, new, home.stager)
    assert publish(home.catalog, new, where(outcome)).outcome == PublishOutcome.REPLAN
    assert home.refresh().outcome == "refreshed"
    assert len(home.read()) == 4
    numbers = [item.sequence_number for item in home.storage().table.snapshots]
    assert len(set(numbers)) == len(numbers)
