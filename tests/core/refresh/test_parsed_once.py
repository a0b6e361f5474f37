# SPDX-License-Identifier: Apache-2.0
"""A plan parses each text once: the view's query, nested views, checks, and the pinned query."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.types import StringType
from sqlglot.parser import Parser

from airflow_mv import checks
from airflow_mv.core.define.create import create
from airflow_mv.core.define.definition import Definition
from airflow_mv.core.refresh.choose import RefreshOptions, plan_refresh
from airflow_mv.core.refresh.plan import RefreshPlan
from airflow_mv.core.refresh.run import refresh
from airflow_mv.extras.pins import pin_base_tables, restore
from tests.builders import Lake, lake

NESTED = "SELECT * FROM lake.sales.orders WHERE amount > 0"
SQL = "SELECT p.*, amount + 1 AS more FROM lake.sales.positive AS p"
CHECKS = (
    checks.sql("SELECT count(*) > 0 FROM {rows} AS r JOIN lake.sales.positive AS p ON p.id = r.id"),
    checks.condition("amount > 0"),
)


@pytest.fixture
def home(sqlite_uri: str, warehouse: Path) -> Iterator[Lake]:
    """A stale view that reads a base table through a plain view; the base table has a new column."""
    with lake(sqlite_uri, warehouse) as found:
        found.table()
        found.plain_view("positive", NESTED)
        found.view(sql=SQL, refresh_strategy="incremental")
        found.refresh()
        with found.load().update_schema() as update:
            update.add_column("added", StringType())
        found.append((4, "east", 7))
        yield found


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count how often sqlglot parses each query."""
    found: Counter[str] = Counter()
    original = Parser.parse

    def parse(self: Parser, raw_tokens: Any, sql: str | None = None) -> Any:
        if sql is not None and "SELECT" in sql:
            found[sql] += 1
        return original(self, raw_tokens, sql)

    monkeypatch.setattr(Parser, "parse", parse)
    return found


@pytest.mark.parametrize("pinned", [False, True])
@pytest.mark.parametrize("full", [False, True])
def test_a_plan_parses_each_text_once(home: Lake, parsed: Counter[str], *, full: bool, pinned: bool) -> None:
    """Dependencies, star expansion, pins, the incremental analysis and the checks share one syntax tree."""
    run = pin_base_tables(home.catalog, ["sales.daily"])
    parsed.clear()
    pins = restore(home.catalog, "sales.daily", run) if pinned else None
    options = RefreshOptions(full=full, checks=CHECKS, on_fallback="fail")
    plan = plan_refresh(home.catalog, "sales.daily", options, pins=pins)
    assert plan.mode == ("full" if full else "append")
    assert plan.script is not None
    assert plan.script.checks is not None
    assert parsed[SQL] == parsed[NESTED] == 1
    assert {text: count for text, count in parsed.items() if count > 1} == {}


AMOUNTS = "SELECT region, amount FROM lake.sales.orders"
TOTAL = "SELECT sum(amount) AS total FROM lake.sales.amounts"


@pytest.fixture
def chained(home: Lake) -> Lake:
    """Two more views, of which one reads the other."""
    home.view("amounts", sql=AMOUNTS)
    home.view("total", sql=TOTAL)
    return home


def test_a_refresh_of_several_views_parses_each_view_once(chained: Lake, parsed: Counter[str]) -> None:
    """The order of the views and their plans share what was parsed."""
    parsed.clear()
    results = refresh(chained.catalog, ["sales.total", "sales.amounts"], stager=chained.stager)
    assert [str(result.view) for result in results] == ["lake.sales.amounts", "lake.sales.total"]
    assert {result.outcome for result in results} == {"refreshed"}
    assert parsed[AMOUNTS] == parsed[TOTAL] == 1


def test_a_view_that_is_replaced_during_a_refresh_of_several_is_refreshed_with_its_new_query(chained: Lake) -> None:
    highest = Definition("SELECT max(amount) AS highest FROM lake.sales.amounts")

    def replace(plan: RefreshPlan) -> None:
        if plan.view.name == "amounts":
            create(chained.catalog, "sales.total", highest, stager=chained.stager, replace=True)

    refresh(chained.catalog, ["sales.total", "sales.amounts"], stager=chained.stager, on_plan=replace)
    (row,) = chained.read("sales.total")
    assert row.keys() == {"highest"}
