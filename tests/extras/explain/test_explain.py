# SPDX-License-Identifier: Apache-2.0
"""What is explained before a view is created is what is planned later, and advice keeps what it promises. No Spark."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from random import Random
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from airflow_mv.actions import define_view
from airflow_mv.core.define.definition import Definition
from airflow_mv.core.refresh.choose import plan_refresh
from airflow_mv.core.spec.reasons import Code, Mode
from airflow_mv.core.sql.query import parse_tree
from airflow_mv.core.sql.types import columns_of
from airflow_mv.errors import ConfigurationError, MaterializedViewError, UnsupportedError
from airflow_mv.extras.define import define
from airflow_mv.extras.explain.explain import Explanation, accepts_modes, explain
from airflow_mv.extras.explain.requirement import Requirement
from benchmarks.tpch_modes import ALWAYS
from tests.builders import Lake, lake
from tests.core.ivm.lab import to_duckdb
from tests.core.ivm.queries import TABLES, Grammar, rows
from tests.duck import duck

SCHEMAS = {
    "r": pa.schema([("a", pa.int32()), ("b", pa.int32()), ("c", pa.int32())]),
    "s": pa.schema([("a", pa.int32()), ("b", pa.int32()), ("d", pa.decimal128(9, 2))]),
    "u": pa.schema([("a", pa.int32()), ("e", pa.int32()), ("xs", pa.list_(pa.int32()))]),
    "f": pa.schema([("a", pa.int32()), ("x", pa.float64())]),
}
#: Queries that advice helps, and the mode that refreshes of the advised query need at most after any change.
HELPED = {
    "SELECT a, sum(b) AS total FROM r GROUP BY a": Mode.MERGE,
    "SELECT a, sum(b) AS total -- of b, FROM r\nFROM r\nGROUP BY a": Mode.MERGE,
    "SELECT a, avg(d) AS mean FROM s GROUP BY a": Mode.MERGE,
    "SELECT sum(c) AS total, count(*) AS n FROM r GROUP BY a, b + 1": Mode.MERGE,
    "WITH w AS (SELECT * FROM r WHERE b > 0) SELECT w.a, sum(w.b + y.b) AS row_count FROM w JOIN s AS y ON w.a = y.a "
    "GROUP BY 1": Mode.MERGE,
    "SELECT a, sum(x) AS total, sum(x * 2) AS twice FROM f GROUP BY a": Mode.MERGE,
    "SELECT a, b FROM r ORDER BY b, a LIMIT 3": Mode.MERGE,
    "SELECT a, sum(b) AS total FROM r GROUP BY a ORDER BY total DESC LIMIT 2": Mode.MERGE,
    "SELECT max(b) AS most FROM r GROUP BY a": Mode.REPLACE_KEYS,
}  # fmt: skip
#: Queries that no advice helps.
HELPLESS = (
    "SELECT a, current_date() AS today FROM r",
    "SELECT a, rank() OVER (ORDER BY b) AS place FROM r",
    "SELECT a, count(DISTINCT b) AS n FROM r GROUP BY a",
    "SELECT a, b FROM r ORDER BY c LIMIT 3",
    "SELECT a, sum(b) AS total FROM r GROUP BY a UNION ALL SELECT a, b FROM s",
)
_MODES = list(Mode)


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    """Base tables of all types that the random queries use, with a few rows."""
    folder = tmp_path_factory.mktemp("explain")
    with lake(f"sqlite:///{folder / 'c.db'}", folder) as made:
        random = Random(1)
        for table in TABLES:
            made.iceberg.create_table(f"sales.{table.name}", SCHEMAS[table.name])
            append(made, table.name, random)
        floats = made.iceberg.create_table("sales.f", SCHEMAS["f"])
        floats.append(pa.table({"a": [1, 1, 2, None], "x": [0.25, 1.5, -3.125, None]}, schema=SCHEMAS["f"]))
        yield made


def append(shop: Lake, name: str, random: Random) -> None:
    """Append random rows."""
    if name == "f":
        added = pa.table({"a": [1, 3], "x": [random.randint(0, 99) / 4, None]}, schema=SCHEMAS["f"])
    else:
        table = next(item for item in TABLES if item.name == name)
        made = [dict(zip(SCHEMAS[name].names, row, strict=True)) for row in rows(random, table, 6)]
        added = pa.Table.from_pylist(made, schema=SCHEMAS[name])
    shop.load(name).append(added)


def change(shop: Lake, name: str, kind: str, random: Random) -> None:
    """Change a table in one way."""
    append(shop, name, random)  # so that there is something to delete
    table = shop.load(name)
    if kind == "delete":
        some = next(item for item in table.scan().to_arrow().column("a").to_pylist() if item is not None)
        table.delete(f"a = {some}")
    elif kind == "update":
        table.overwrite(table.scan().to_arrow().slice(1))


def result(shop: Lake, sql: str, columns: int) -> Counter[tuple[Any, ...]]:
    """The first columns of a query, computed by DuckDB, with numbers rounded."""
    with duck() as session:
        for name in SCHEMAS:
            session.register(name, shop.load(name).scan().to_arrow())
        found = session.sql(to_duckdb(sql)).fetchall()
    return Counter(tuple(map(_rounded, row[:columns])) for row in found)


def _rounded(value: Any) -> Any:
    return value if isinstance(value, str | list) or value is None else round(float(value), 6)


def require_as_explained(shop: Lake, name: str, sql: str, turn: int) -> Explanation | None:
    """Create and fill a view, change one of its tables, and compare the plan with what was explained.

    Returns:
        What was explained before the view was created; ``None`` if DuckDB cannot run the query.
    """
    before = explain(shop.catalog, f"sales.{name}", sql)
    try:
        shop.view(name, sql, refresh_strategy="incremental", properties=ALWAYS)
        shop.refresh(f"sales.{name}")
    except (MaterializedViewError, duckdb.Error):  # DuckDB lacks some of Spark's operators
        return None
    view = explain(shop.catalog, f"sales.{name}", advice=False)
    stored = columns_of({"fields": shop.catalog.load(f"sales.{name}").metadata.schema_.fields})
    if [kind for _, kind in before.columns] == [kind for _, kind in stored]:
        assert [item.possible for item in before.prospects] == [item.possible for item in view.prospects]
    expected = view.prospects[turn % len(view.prospects)]
    if expected.change in ("append", "delete", "update"):
        change(shop, expected.table.name, expected.change, Random(turn))
        # A deletion is preceded by an append, in the same plan or in an earlier refresh.
        plan = plan_refresh(shop.catalog, f"sales.{name}")
        if not any(reason.code == Code.FILTERED_OUT for reason in plan.reasons):
            assert plan.mode == expected.mode, (sql, expected)
    return before


def test_a_view_is_refreshed_as_explained_before_it_was_created(shop: Lake) -> None:
    """For random queries and each kind of change: the mode of the plan is the one that was explained."""
    modes: Counter[str] = Counter()
    for seed in range(3, 42, 6):
        sql = Grammar(Random(seed), seed).query()
        found = require_as_explained(shop, f"random_{seed}", sql, seed)
        modes.update(str(item.possible) for item in found.prospects if item) if found else None
        if found is not None and found.advice is not None:
            require_kept(shop, f"helped_{seed}", sql, found)
    assert {"append", "merge", "replace-keys"} <= set(modes), modes


@pytest.mark.parametrize("sql", HELPED)
def test_advice_has_the_old_columns_and_is_refreshed_as_promised(shop: Lake, sql: str) -> None:
    """Its columns are compared in DuckDB, and its refreshes with plans after real changes."""
    found = explain(shop.catalog, "sales.unborn", sql)
    require_kept(shop, "unborn", sql, found)
    assert found.advice is not None
    assert max(_MODES.index(item.possible) for item in found.advice.prospects) <= _MODES.index(HELPED[sql])
    turn = list(HELPED).index(sql)
    assert require_as_explained(shop, f"advised_{turn}", found.advice.sql, turn) is not None


@pytest.mark.parametrize("sql", HELPLESS)
def test_what_no_column_can_change_gets_no_advice(shop: Lake, sql: str) -> None:
    """The reasons say why."""
    found = explain(shop.catalog, "sales.unborn", sql)
    assert found.advice is None
    assert all(item.reasons for item in found.prospects)


def test_a_type_that_only_spark_knows_is_the_worst_case(shop: Lake) -> None:
    """Nothing is promised for a column that may be floating-point, or not comparable."""
    found = explain(shop.catalog, "sales.unborn", "SELECT a, sum(pmod(b, 7)) AS total, count(*) AS n FROM r GROUP BY a")
    assert found.columns[1] == ("total", None)
    assert {item.possible for item in found.prospects if item.change == "append"} == {Mode.REPLACE_KEYS}
    assert "the type of total cannot be resolved" in found.notes[-1]


def test_a_requirement_that_cannot_be_met_makes_nothing(shop: Lake) -> None:
    """The message says which change needs more, why, and which query would do; no script runs, no file is written."""
    sql, location = "SELECT a, sum(b) AS total FROM r GROUP BY a", "sales.required"
    scripts = len(shop.stager.calls)
    for required in ("append", "merge", "delete=merge"):
        wanted = Definition(sql, accept=accepts_modes(("append=merge", required)))
        with pytest.raises(UnsupportedError, match=r"of lake\.sales\.r needs .*because no ") as error:
            define(shop.catalog, location, wanted, stager=shop.stager)
        assert ("This query would meet it: SELECT a, sum(b) AS total, count" in str(error.value)) == (
            "merge" in required
        )
    assert (len(shop.stager.calls), shop.catalog.exists(location)) == (scripts, False)
    kept = Definition(sql, accept=accepts_modes(("replace-keys", "append=merge")))
    done = define_view(shop.catalog, location, kept, stager=shop.stager)
    assert (done.action, done.notes) == ("created", ())
    with pytest.raises(UnsupportedError, match="delete of"):
        define(shop.catalog, location, Definition(sql, accept=accepts_modes(("merge",))), stager=shop.stager)
    for wrong in ("full", "merges", "drop=merge", ""):
        with pytest.raises(ConfigurationError, match="is not MODE or CHANGE=MODE"):
            Requirement.read(wrong)


def test_creation_says_why_a_view_is_recomputed_and_what_would_change_that(shop: Lake) -> None:
    """In two sentences, and nothing for a view whose refreshes are incremental."""
    wanted = Definition("SELECT a, b FROM r ORDER BY b LIMIT 3", refresh_strategy="incremental")
    lines = define_view(shop.catalog, "sales.top", wanted, stager=shop.stager).lines
    assert lines[1].startswith("all rows are recomputed after append, delete, update, overwrite of lake.sales.r: LIMIT")
    assert lines[2] == (
        "this query would need it less often: SELECT a, b FROM r (the view has all rows: read it with "
        "SELECT * FROM lake.sales.top ORDER BY b LIMIT 3)"
    )


def require_kept(shop: Lake, name: str, sql: str, found: Explanation) -> None:
    """An advised query has the old columns, and is refreshed as promised."""
    advice = found.advice
    assert advice is not None
    columns = len(list(parse_tree(sql, view=name).expressions)) or len(found.columns)
    bare = sql[: sql.rindex("ORDER BY")] if "LIMIT" in sql else sql
    assert result(shop, advice.sql, columns) == result(shop, bare, columns), advice.sql
    again = explain(shop.catalog, f"sales.{name}", advice.sql)
    assert [item.possible for item in again.prospects] == [item.possible for item in advice.prospects]
    pairs = zip(advice.prospects, found.prospects, strict=True)
    assert any(_MODES.index(one.possible) < _MODES.index(other.possible) for one, other in pairs)
