# SPDX-License-Identifier: Apache-2.0
"""The rows of a view are compared with those of another definition, at the same snapshots of the base tables."""

from __future__ import annotations

import math
from decimal import Decimal
from random import Random
from typing import Any

import pytest

from airflow_mv.checks import unique
from airflow_mv.core.catalog import STORED_LAYOUTS
from airflow_mv.errors import InvalidQueryError, SnapshotNotFoundError, StaleViewError
from airflow_mv.extras.diff import Diff, compare, diff
from tests.duck import duck
from tests.engine.support import Lake, as_arrow

LAYOUTS = sorted(STORED_LAYOUTS)
DAILY = "SELECT day, count(*) AS orders, sum(amount) AS amount FROM {ns}.orders GROUP BY day"
FEWER = "SELECT day, count(*) AS orders, sum(amount) AS amount FROM {ns}.orders WHERE amount > 10 GROUP BY day"


@pytest.fixture
def daily(lake: Lake) -> Lake:
    lake.table("orders", "day integer, amount bigint", "(1, 10), (1, 20), (2, 30), (3, 5)")
    lake.create("daily", DAILY)
    lake.refresh("daily")
    return lake


def found(lake: Lake, sql: str | None = None, key: tuple[str, ...] = ()) -> Diff:
    text = None if sql is None else sql.replace("{ns}", f"{lake.catalog.name}.{lake.namespace}")
    return diff(lake.catalog, lake("daily"), session=lambda: lake.spark, sql=text, key=key)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_only_the_definition_differs(lake: Lake, layout: Any) -> None:
    """What was committed after the refresh is on no side, in each layout."""
    lake.table("orders", "day integer, amount bigint", "(1, 10), (1, 20), (2, 30), (3, 5)")
    lake.create("daily", DAILY, layout=layout)
    lake.refresh("daily")
    lake.run("INSERT INTO {ns}.orders VALUES (2, 1000), (9, 1)")
    assert found(lake).equal
    other = found(lake, FEWER)
    assert other.to_dict() == {
        "view": lake("daily"),
        "equal": False,
        "keys": ["day"],
        "same_bases": True,
        "rows": {"before": 3, "after": 2},
        "only_before": {"count": 1, "samples": [{"day": "3"}]},
        "only_after": {"count": 0, "samples": []},
        "both": 2,
        "repeated": 0,
        "columns": [
            {
                "name": name,
                "differing": 1,
                "share": 0.5,
                "sums": {"before": sums[0], "after": sums[1]},
                "samples": [{"key": {"day": "1"}, "before": values[0], "after": values[1]}],
            }
            for name, sums, values in (("orders", ("4", "2"), ("2", "1")), ("amount", ("65", "50"), ("30", "20")))
        ],
        "dropped": [],
        "added": [],
    }
    assert other.lines() == [
        f"{lake('daily')}: 3 rows before, 2 after, compared by day",
        "  keys: 2 in both, 1 before only, 0 after only",
        "    before only: day=3",
        "  orders: 50.00% differ (1 of 2); sum 4 → 2",
        "    day=1: 2 → 1",
        "  amount: 50.00% differ (1 of 2); sum 65 → 50",
        "    day=1: 30 → 20",
    ]


def test_the_rows_of_an_earlier_definition_are_compared_with_the_present_one(daily: Lake) -> None:
    daily.create("daily", FEWER, replace=True)
    assert found(daily).to_dict() == found(daily, FEWER).to_dict()
    daily.refresh("daily")
    assert found(daily).equal


def test_columns_and_types_that_differ_are_named(daily: Lake) -> None:
    other = found(
        daily, "SELECT day, CAST(count(*) AS INT) AS orders, max(amount) AS most FROM {ns}.orders GROUP BY day"
    )
    assert (other.dropped, other.added, other.equal) == (("amount",), ("most",), False)
    (orders,) = other.columns
    assert (orders.differing, orders.types) == (0, ("bigint", "int"))
    assert "  orders: its type is int, it was bigint" in other.lines()


def test_the_key_is_that_of_the_groups_of_a_check_or_of_the_caller(daily: Lake) -> None:
    """Without a key whole rows are compared, with their number."""
    ungrouped = "SELECT * FROM (SELECT day, count(*) AS orders, sum(amount) AS amount FROM {ns}.orders GROUP BY day)"
    assert found(daily, ungrouped).keys == ("day",)  # that of the view
    assert found(daily, DAILY, ("orders", "day")).keys == ("orders", "day")
    assert found(daily, DAILY, ("orders",)).repeated == 1
    with pytest.raises(InvalidQueryError, match="the column nope of the key is not one of both sides"):
        found(daily, DAILY, ("nope",))
    daily.create("plain", "SELECT day, amount FROM {ns}.orders")
    daily.refresh("plain")
    again = "SELECT day, amount FROM {ns}.orders UNION ALL SELECT 1, 10"
    text = again.replace("{ns}", f"{daily.catalog.name}.{daily.namespace}")
    rows = diff(daily.catalog, daily("plain"), session=lambda: daily.spark, sql=text)
    assert (rows.keys, rows.rows, rows.both, rows.only_before, rows.only_after) == ((), (4, 5), 4, 0, 1)
    assert rows.samples[1][0].key == {"day": "1", "amount": "10"}
    daily.create("checked", "SELECT day, amount FROM {ns}.orders", checks=[unique("amount")])
    daily.refresh("checked")
    assert diff(daily.catalog, daily("checked"), session=lambda: daily.spark, sql=text).keys == ("amount",)


def test_what_cannot_be_compared_is_refused(daily: Lake) -> None:
    daily.create("new", DAILY)
    with pytest.raises(StaleViewError, match="has no rows to compare with"):
        diff(daily.catalog, daily("new"), session=lambda: daily.spark)
    daily.run("INSERT INTO {ns}.orders VALUES (1, 1)")
    first = daily.sql("SELECT snapshot_id FROM {ns}.orders.snapshots ORDER BY committed_at").first()
    assert first is not None
    daily.run(
        f"CALL {daily.catalog.name}.system.expire_snapshots(table => '{daily.namespace}.orders', "
        f"snapshot_ids => array({first[0]}))"
    )
    with pytest.raises(SnapshotNotFoundError, match="has expired: refresh the view first"):
        found(daily)


def test_random_tables_are_compared_as_an_independent_program_compares_them(lake: Lake) -> None:
    """With NULLs, NaN, repeated keys, missing columns and rows; DuckDB joins and compares them in its own way."""
    columns = "k integer, g varchar, n bigint, d decimal(12, 2), f double, s varchar, l integer[]"
    random = Random(8)
    for turn in range(4):
        rows = {(number, random.choice(["a", "b", None])): _values(random) for number in range(40)}
        other = {key: _values(random) if random.random() < 0.2 else value for key, value in rows.items()}
        for key in random.sample(sorted(rows, key=str), 5):
            del other[key]
        other |= {(100 + number, None): _values(random) for number in range(turn)}
        sides = [[(*key, *value) for key, value in side.items()] for side in (rows, other)]
        sides[1] += sides[1][:turn]  # repeated
        tables = [as_arrow(columns, ", ".join(map(_literal, side))) for side in sides]
        frames = [_frame(lake, f"side_{turn}_{number}", columns, side) for number, side in enumerate(sides)]
        view = lake.catalog.identify(lake("any"))
        spark = compare(lake.spark, view, *frames, ("k", "g"))
        with duck() as connection:
            connection.register("o", tables[0])
            connection.register("n", tables[1])
            assert _figures(spark) == _expected(connection)
        whole = compare(lake.spark, view, *frames, ())
        with duck() as connection:
            connection.register("o", tables[0])
            connection.register("n", tables[1])
            one, two = (
                connection.sql(f"SELECT count(*) FROM (SELECT * FROM {a} EXCEPT ALL SELECT * FROM {b})").fetchall()
                for a, b in (("o", "n"), ("n", "o"))
            )
            assert ([(whole.only_before,)], [(whole.only_after,)]) == (one, two)


def _values(random: Random) -> tuple[Any, ...]:
    return (
        random.choice([None, 0, 1, 2**40]),
        random.choice([None, Decimal("1.25"), Decimal("-7")]),
        random.choice([None, 0.5, 3.0, math.nan, math.inf]),
        random.choice([None, "", "x", "é'"]),
        random.choice([None, (), (1,), (1, 2)]),
    )


def _literal(row: tuple[Any, ...]) -> str:
    def one(value: Any) -> str:
        if value is None:
            return "NULL"
        if isinstance(value, tuple):
            return f"[{', '.join(map(str, value))}]"
        if isinstance(value, str):
            return "'" + value.replace("'", "''") + "'"
        return f"'{value}'::double" if isinstance(value, float) else str(value)

    return f"({', '.join(map(one, row))})"


def _frame(lake: Lake, name: str, columns: str, rows: list[tuple[Any, ...]]) -> Any:
    lake.table(name, columns, ", ".join(map(_literal, rows)))
    return lake.spark.table(lake(name))


def _figures(found: Diff) -> dict[str, Any]:
    return {
        "rows": found.rows,
        "only": (found.only_before, found.only_after),
        "both": found.both,
        "repeated": found.repeated,
        "differing": {item.name: item.differing for item in found.columns},
        "sums": {item.name: item.sums for item in found.columns if item.name in ("n", "d")},
    }


def _expected(connection: Any) -> dict[str, Any]:
    def number(sql: str) -> Any:
        return connection.sql(sql).fetchall()[0][0]

    keys = "(SELECT k, g, count(*) AS c FROM {0} GROUP BY k, g)"
    joined = f"{keys.format('o')} a FULL JOIN {keys.format('n')} b ON a.k = b.k AND a.g IS NOT DISTINCT FROM b.g"
    once = f"SELECT a.k, a.g FROM {joined} WHERE a.c = 1 AND b.c = 1"
    pairs = (
        f"(SELECT o.*, n.n AS n2, n.d AS d2, n.f AS f2, n.s AS s2, n.l AS l2 FROM ({once}) q "
        "JOIN o ON o.k = q.k AND o.g IS NOT DISTINCT FROM q.g JOIN n ON n.k = q.k AND n.g IS NOT DISTINCT FROM q.g)"
    )
    names = ("n", "d", "f", "s", "l")
    return {
        "rows": (number("SELECT count(*) FROM o"), number("SELECT count(*) FROM n")),
        "only": (
            number(f"SELECT count(*) FROM {joined} WHERE b.c IS NULL"),
            number(f"SELECT count(*) FROM {joined} WHERE a.c IS NULL"),
        ),
        "both": number(f"SELECT count(*) FROM ({once})"),
        "repeated": number(f"SELECT count(*) FROM {joined} WHERE a.c > 1 OR b.c > 1"),
        "differing": {c: number(f"SELECT count(*) FROM {pairs} WHERE {c} IS DISTINCT FROM {c}2") for c in names},
        "sums": {
            c: tuple(number(f"SELECT CAST(sum({c}) AS VARCHAR) FROM {side}") for side in ("o", "n")) for c in ("n", "d")
        },
    }
