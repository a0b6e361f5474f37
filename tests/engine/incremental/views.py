# SPDX-License-Identifier: Apache-2.0
"""Random view queries in Spark's syntax over the tables of :mod:`tests.engine.incremental.histories`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from random import Random

from tests.core.ivm.queries import Grammar
from tests.engine.incremental.schemas import Schema
from tests.engine.incremental.typed import Typed

_TABLE = re.compile(r"\b(FROM|JOIN) (r|s|u)\b")
_KEYS = {"r": ("name", "place.x", "date_trunc('day', at)", "c"), "s": ("name", "day", "d", "f"), "u": ("e", "at", "xs")}
_VALUES = {"r": ("c", "b", "name", "at"), "s": ("d", "b", "day", "f"), "u": ("e", "at", "cardinality(xs)")}

#: Queries that read columns of all types; ``{k}``, ``{v}`` and ``{w}`` are of table ``{t}``, ``{n}`` is a number.
_TEMPLATES = (
    "SELECT * FROM {t} WHERE a >= {n}",
    "SELECT {k} AS k, count(*) AS n, count({v}) AS c, max({v}) AS m FROM {t} GROUP BY {k}",
    "SELECT {k} AS k, a, count(*) AS n, sum(b) AS t, count(b) AS c FROM {t} GROUP BY {k}, a",
    "SELECT d AS k, count(*) AS n, sum(d) AS t, count(d) AS c, avg(d) AS v FROM s GROUP BY d",
    "SELECT a, count(*) AS n, sum(d) AS t, count(d) AS c, avg(d) AS v, min(day) AS first FROM s GROUP BY a",
    "SELECT name, sum(f) AS t, avg(f) AS v, max(f) AS m, count(*) AS n FROM s GROUP BY name",
    "SELECT {k} AS k, count(DISTINCT {v}) AS d, min({w}) AS m FROM {t} GROUP BY {k} HAVING count(*) > 1",
    "SELECT {k} AS k, sort_array(collect_list({v})) AS l FROM {t} GROUP BY {k}",
    "SELECT {k} AS k, percentile(b, 0.5) AS p, stddev(b) AS d FROM r GROUP BY {k}",
    "SELECT x.name, y.d, x.place, y.day FROM r x {j}JOIN s y ON x.name = y.name",
    "SELECT x.name AS n, y.name AS m, y.f FROM r x {j}JOIN s y ON x.name <=> y.name AND y.a < {n}",
    "SELECT DISTINCT {k} AS k, {v} AS v FROM {t}",
    "SELECT {k} AS k, {v} AS v, row_number() OVER (PARTITION BY {k} ORDER BY {v}) AS n FROM {t}",
    "SELECT {k} AS k, {v} AS v, lag({v}) OVER (PARTITION BY {k} ORDER BY {v}) AS b, "
    "count(*) OVER (PARTITION BY {k}) AS n FROM {t}",
    "SELECT name AS k, a FROM r WHERE name NOT IN (SELECT name FROM s WHERE a > {n})",
    "SELECT name, place.y AS y FROM r WHERE EXISTS (SELECT 1 FROM s WHERE s.name = r.name AND s.day > DATE '2000-1-1')",
    "SELECT a, m, raw, at FROM u WHERE e <> {n}",
    "SELECT a, raw, count(*) AS n FROM u GROUP BY a, raw",
    "SELECT u.a, x.value AS v FROM u LATERAL VIEW OUTER explode(xs) x AS value",
    "SELECT k, v, count(*) AS n FROM (SELECT {k} AS k, {v} AS v FROM {t} UNION ALL SELECT {k}, {v} FROM {t} "
    "WHERE a = {n}) GROUP BY k, v",
    "WITH t AS (SELECT {k} AS k, count(*) AS n FROM {t} GROUP BY {k}) SELECT n, count(*) AS m FROM t GROUP BY n",
    "SELECT name, count(*) AS n, sum(count(*)) OVER (PARTITION BY name) AS t FROM s GROUP BY name, a",
    "SELECT count(*) AS n, sum(d) AS t, count(d) AS c, max(name) AS m FROM s",
    "SELECT count(*) AS n, sum(b) AS t, count(b) AS c FROM s",
    "SELECT a, (SELECT max(d) FROM s) AS m FROM r WHERE b = {n}",
    "SELECT a, c, (SELECT count(*) FROM s WHERE s.a = r.a) AS m FROM r",
    "SELECT a, b FROM r ORDER BY a, b LIMIT 3",
    "SELECT upper(name) AS n, coalesce(b, -1) AS b, CASE WHEN c > {n} THEN 'big' ELSE name END AS s FROM r",
    "SELECT a, grouping_id() AS g, name, count(*) AS n FROM r GROUP BY GROUPING SETS ((a), (name), ())",
    "SELECT a, map_keys(m) AS ks, size(xs) AS z, xs[0] AS f FROM u WHERE size(xs) > 0",
    "SELECT name FROM r INTERSECT SELECT name FROM s",
    "SELECT name FROM r EXCEPT ALL SELECT name FROM s",
    "SELECT first, count(*) AS n FROM (SELECT min(at) AS first, a FROM r GROUP BY a) GROUP BY first",
    "SELECT CAST(f AS STRING) AS k, count(*) AS n FROM s GROUP BY CAST(f AS STRING)",
    "SELECT a, CAST(f AS STRING) AS k, f FROM s WHERE a <= {n}",
    "SELECT name, max(CAST(f AS STRING)) AS m, count(*) AS n FROM s GROUP BY name",
    "SELECT max_by(name, c) AS m, a FROM r GROUP BY a HAVING count(DISTINCT c) = count(*)",
)
#: Inner joins by equal columns: of these a large table's change and its matching rows are read in one scan.
_JOINS = (
    "SELECT x.name, x.a, y.d FROM r x JOIN s y ON x.name = y.name",
    "SELECT x.a, y.b, z.e FROM r x JOIN s y ON x.a = y.a JOIN u z ON y.a = z.a WHERE x.b < {n}",
    "SELECT r.name, count(*) AS n, sum(s.d) AS t, count(s.d) AS c FROM r JOIN s ON r.name = s.name GROUP BY r.name",
)
#: DuckDB counts, divides, sorts or names these differently, or does not have them. For no rows it returns a grand
#: total, Spark does not.
_NOT_DUCKDB = re.compile(
    r"CUBE|ROLLUP|GROUPING|avg|percentile|stddev|collect_list|date_trunc|grouping_id|map_keys|cardinality|size\(|xs\[|max_by|explode|\bf\b"
)


def query(random: Random, turn: int, schema: Schema) -> tuple[str, bool]:
    """Write a view's query for a schema, with the tables' bare names.

    Returns:
        The query, and whether it has the same meaning in DuckDB: for most functions this is unknown.
    """
    if random.random() < 0.4:
        return Typed(random, schema).query(), False
    joins = random.random() < 0.3
    sql = random.choice(_JOINS).format(n=random.randint(0, 4)) if joins else _untyped(random, turn)
    return sql, for_duckdb(sql)


def _untyped(random: Random, turn: int) -> str:
    if random.random() < 0.5:
        return Grammar(random, turn if random.random() < 0.7 else None).query()
    table = random.choice(("r", "s", "u"))
    template = _TEMPLATES[turn % len(_TEMPLATES)]
    if "FROM r GROUP" in template and "{t}" not in template:
        table = "r"
    return template.format(
        t=table,
        k=random.choice(_KEYS[table]),
        v=random.choice(_VALUES[table]),
        w=random.choice(_VALUES[table]),
        n=random.randint(0, 4),
        j=random.choice(("", "LEFT ", "RIGHT ", "FULL ", "LEFT ")),
    )


def naming(sql: str, names: Mapping[str, str]) -> str:
    """Replace the tables' names."""
    return _TABLE.sub(lambda found: f"{found[1]} {names[found[2]]}", sql)


def has_star(sql: str) -> bool:
    """Whether the view has all columns of a table."""
    return bool(re.search(r"(SELECT|\.)\s*\*", sql)) and "EXISTS (SELECT *" not in sql


def for_duckdb(sql: str) -> bool:
    """Whether a query has the same meaning in DuckDB."""
    return not _NOT_DUCKDB.search(sql)
