# SPDX-License-Identifier: Apache-2.0
"""What Spark would refuse is refused without Spark, with the place and the nearest name; what may be right is not."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pyarrow as pa
import pytest

from airflow_mv.core.refresh.inputs import resolve_query
from airflow_mv.core.refresh.statements import EmptyStorage
from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.core.spec.reasons import Reason
from airflow_mv.errors import InvalidQueryError
from airflow_mv.extras.columns.empty_table import known_table
from airflow_mv.extras.explain.explain import explain
from tests.builders import Lake, lake

VIEW = Identifier("lake", ("sales",), "daily")
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("name", pa.string()),
        ("s", pa.struct([("city", pa.string()), ("geo", pa.struct([("lat", pa.float64())]))])),
        ("xs", pa.list_(pa.struct([("k", pa.int32())]))),
        ("m", pa.map_(pa.string(), pa.string())),
    ]
)
#: Queries with the place of the mistake marked by ``^``, and the message.
WRONG_NAMES = [
    ("SELECT ^att FROM orders", "cannot resolve the column att; did you mean 'at'?"),
    ("SELECT ^o.att FROM orders AS o", "did you mean 'at'?"),
    ("SELECT ^odrers.at FROM orders", "did you mean 'orders'?"),
    ("SELECT ^s.citi FROM orders", "s has no field citi; did you mean 'city'?"),
    ("SELECT id, ^s.geo.latt FROM orders", "did you mean 'lat'?"),
    ("SELECT ^xs.kk FROM orders", "xs has no field kk"),
    ("SELECT id FROM orders WHERE ^namee = 'a'", "did you mean 'name'?"),
    ("SELECT id, count(*) AS n FROM orders GROUP BY ^idd", "did you mean 'id'?"),
    ("SELECT id, (SELECT max(^i.idd) FROM orders AS i) AS z FROM orders", "did you mean 'id'?"),
    ("WITH w AS (SELECT id AS total FROM orders) SELECT ^totl FROM w", "did you mean 'total'?"),
    ("SELECT id FROM orders AS o JOIN orders AS p USING (^idd)", "no common column idd; did you mean 'id'?"),
    ("SELECT ^day, count(*) AS n FROM orders GROUP BY day", "cannot resolve the column day"),
    ("SELECT max(^hour) AS h FROM orders", "cannot resolve the column hour"),
    ("SELECT\n  id,\n  ^naem\nFROM orders", "did you mean 'name'?"),
]
WRONG_CALLS = [
    ("SELECT ^cuont(*) AS n FROM orders", "there is no function cuont; did you mean 'count'?"),
    ("SELECT ^count() AS n FROM orders", "count() takes at least 1 argument, not 0"),
    ("SELECT ^date_trunc('day') AS d FROM orders", "date_trunc() takes 2 arguments, not 1"),
    ("SELECT ^substring(name) AS d FROM orders", "substring() takes 2 to 3 arguments, not 1"),
    ("SELECT ^if(id > 1, 2) AS d FROM orders", "if() takes 3 arguments, not 2"),
    ("SELECT upper(name, 'x'^) AS d FROM orders", "the call has 2 arguments, and the function takes at most 1"),
    ("SELECT upper(^) AS d FROM orders", "the call lacks an argument"),
]
#: What Spark may accept, although a part of it is not known here.
FINE = [
    "SELECT id, (SELECT sum(c) FROM (SELECT count(*) AS c FROM orders AS i WHERE i.id = o.id)) AS z FROM orders AS o",
    "SELECT id FROM orders AS o WHERE EXISTS (SELECT 1 FROM (SELECT i.id FROM orders AS i WHERE i.id = o.id) AS t)",
    "SELECT id AS a, a + 1 AS b FROM orders",
    "SELECT tools.cuont(id) AS n FROM orders",
    "SELECT my_udf(id) AS n FROM orders",
    "SELECT m.anything AS f FROM orders",
    "SELECT xs.k AS ks, s.geo.lat AS lat FROM orders",
    "SELECT substring(name FROM 1 FOR 2) AS p, extract(day FROM at) AS c FROM orders",
    "SELECT timestampdiff(MONTH, at, at) AS a, dateadd(DAY, 1, at) AS b, date_add(hours, 1, at) AS c FROM orders",
    "SELECT transform(xs, x -> x.k) AS y, aggregate(xs, 0, (acc, x) -> acc + x.k) AS z FROM orders",
    "SELECT id + 1 AS a, a + 1 AS b, count(DISTINCT name, id) AS c FROM orders GROUP BY id",
    "SELECT id AS n, sum(id) AS total FROM orders GROUP BY n HAVING total > 1 ORDER BY nothing_known",
    "SELECT current_date AS d, current_timestamp AS t, current_user AS u FROM orders",
    "SELECT o.id, e.x FROM orders AS o LATERAL VIEW explode(o.xs) e AS x",
    "SELECT window.start AS b, count(*) AS n FROM orders GROUP BY window(at, '1 hour')",
]


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    """One table with nested columns."""
    folder = tmp_path_factory.mktemp("mistakes")
    with lake(f"sqlite:///{folder / 'c.db'}", folder) as made:
        made.iceberg.create_table("sales.orders", SCHEMA)
        yield made


def created(shop: Lake, sql: str) -> object:
    resolved = resolve_query(shop.catalog, sql, None, VIEW, view=str(VIEW))
    return known_table(resolved, EmptyStorage(None, None, None, [], {}, ()))


@pytest.mark.parametrize(("marked", "message"), [*WRONG_NAMES, *WRONG_CALLS])
def test_a_mistake_is_refused_with_its_place(shop: Lake, marked: str, message: str) -> None:
    before, _, after = marked.partition("^")
    with pytest.raises(InvalidQueryError) as refused:
        explain(shop.catalog, VIEW, before + after)
    text = str(refused.value)
    line, column = before.count("\n") + 1, len(before.rpartition("\n")[2]) + 1
    assert message in text
    assert text.startswith(f"view {VIEW}: line {line}, column {column}: ")
    assert re.search(rf"\n {{4}} {{{column - 1}}}\^$", text)


@pytest.mark.parametrize(("marked", "message"), WRONG_NAMES)
def test_a_view_with_an_unknown_name_is_not_created(shop: Lake, marked: str, message: str) -> None:
    """Before anything is written, and without Spark."""
    with pytest.raises(InvalidQueryError, match=re.escape(message)):
        created(shop, marked.replace("^", ""))


@pytest.mark.parametrize("sql", FINE)
def test_what_may_be_right_is_explained(shop: Lake, sql: str) -> None:
    assert explain(shop.catalog, VIEW, sql).prospects


def test_a_column_of_an_older_snapshot_is_not_missed(shop: Lake) -> None:
    """Its schema may have had the column."""
    table = shop.iceberg.create_table("sales.renamed", pa.schema([("old", pa.int64())]))
    table.append(pa.table({"old": [1]}))
    with table.update_schema() as update:
        update.rename_column("old", "new")

    assert explain(shop.catalog, VIEW, "SELECT old FROM sales.renamed").prospects


def test_parts_of_nested_columns_have_certain_types(shop: Lake) -> None:
    sql = (
        "SELECT s.city AS city, s.geo.lat AS lat, xs[0].k AS k, m['a'] AS a, "
        "from_utc_timestamp(at, 'Europe/Berlin') AS here FROM orders"
    )
    assert dict(explain(shop.catalog, VIEW, sql).columns) == {
        "city": "string",
        "lat": "double",
        "k": "int",
        "a": "string",
        "here": "timestamp",
    }
    assert not isinstance(created(shop, sql), Reason)
    assert isinstance(created(shop, "SELECT m[1] AS a FROM orders"), Reason)  # Spark has to cast the key


def test_an_unknown_type_is_called_unknown(shop: Lake) -> None:
    found = explain(shop.catalog, VIEW, "SELECT regexp_extract(name, 'a', 0) AS p, id FROM orders")
    messages = " ".join(reason.message for item in found.prospects for reason in item.reasons)
    assert "column p of unknown type cannot be compared" in messages
    assert "map<" not in messages
