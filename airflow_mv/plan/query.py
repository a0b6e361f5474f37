# SPDX-License-Identifier: Apache-2.0
"""Stand-in."""
from __future__ import annotations
from dataclasses import dataclass
import sqlglot
from sqlglot import exp
from airflow_mv.spec.identifiers import Identifier

@dataclass(frozen=True, slots=True)
class NestedView:
    identifier: Identifier
    sql: str
    columns: tuple[str, ...]
    default_catalog: str
    default_namespace: tuple[str, ...]
    version_id: int
    uuid: str

@dataclass(frozen=True, slots=True)
class Dependencies:
    tables: tuple[Identifier, ...]
    views: tuple[NestedView, ...]

@dataclass(frozen=True, slots=True)
class PinnedTable:
    identifier: Identifier
    snapshot_id: int | None
    sql: str | None = None

def _refs(sql, c, n):
    tree = sqlglot.parse_one(sql, dialect="spark")
    ctes = {x.alias for x in tree.find_all(exp.CTE)}
    for t in tree.find_all(exp.Table):
        parts = [p.name for p in t.parts]
        if len(parts) == 1 and parts[0] in ctes:
            continue
        yield t.parts[0].meta["start"], t.parts[-1].meta["end"] + 1, Identifier.of(tuple(parts), default_catalog=c, default_namespace=n)

def base_tables(sql, *, default_catalog, default_namespace, load_view, view):
    return Dependencies(tuple(sorted({r[2] for r in _refs(sql, default_catalog, default_namespace)})), ())

def pin_query(sql, *, default_catalog, default_namespace, tables, views, view):
    for s, e, i in sorted(_refs(sql, default_catalog, default_namespace), reverse=True):
        p = tables[i]
        sql = sql[:s] + (p.sql or i.sql()) + (f" VERSION AS OF {p.snapshot_id}" if p.snapshot_id else "") + sql[e:]
    return sql

def partition_transform(text):
    return text

def string_literal(text):
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
