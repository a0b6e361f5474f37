# SPDX-License-Identifier: Apache-2.0
"""Helpers of the contract suite."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

from airflow_mv.core.catalog import LoadedView, MaterializedViewCatalog
from airflow_mv.core.define.definition import Definition
from airflow_mv.core.refresh import RefreshOptions, plan_refresh
from airflow_mv.core.refresh.plan import RefreshPlan
from airflow_mv.core.refresh.run import stage
from airflow_mv.core.script import Outcome
from tests.builders import QUERY, Lake
from tests.duck import DuckStager

VIEW = "sales.daily"
NORTH, SOUTH = {"region": "north", "orders": 2, "amount": 15}, {"region": "south", "orders": 1, "amount": 20}
EAST = {"region": "east", "orders": 1, "amount": 7}


def staged(home: Lake, options: RefreshOptions | None = None) -> tuple[RefreshPlan, Outcome | None]:
    """A refresh that is staged and not published."""
    plan = plan_refresh(home.catalog, VIEW, options)
    return plan, stage(home.catalog, plan, home.stager)


def defined_at_once(home: Lake, *, adopt: Callable[..., LoadedView] | None = None) -> list[str]:
    """Define the view four times, all before any has done it, and return what each has done."""
    from airflow_mv.extras.define import define  # the tests of the core alone use the others

    together = Barrier(4)

    def one(_: int) -> str:
        catalog = MaterializedViewCatalog(home.iceberg)
        together.wait(60)
        layout = None if adopt else home.layout
        return define(
            catalog, VIEW, Definition(QUERY, layout=layout), stager=DuckStager(catalog, home.iceberg), adopt=adopt
        ).action

    with ThreadPoolExecutor(4) as pool:
        return list(pool.map(one, range(4)))


def where(outcome: Outcome | None) -> str | None:
    return outcome.staged if outcome else None


def ids(home: Lake) -> list[str]:
    state = home.storage().state
    return [record.refresh_id for record in state.refreshes] if state else []


def left_over(home: Lake) -> list[str]:
    """Branches and tags of the storage table that the next refresh does not need."""
    storage, holder = home.storage(), home.catalog.load(VIEW).holder
    needed = {"main", holder.tag if holder else ""}
    return [name for name in storage.table.refs if name not in needed and not name.startswith("airflow_mv_at_")]
