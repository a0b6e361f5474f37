# SPDX-License-Identifier: Apache-2.0
"""Refreshes staged without Spark: a script's statements in DuckDB, its snapshots by pyiceberg."""

from __future__ import annotations

import atexit
import re
import threading
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from types import MappingProxyType
from typing import Any

import duckdb
import pyarrow as pa
import sqlglot
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import IcebergTables, SqlCatalog
from pyiceberg.table import Table
from sqlalchemy import delete

from airflow_mv.core.catalog import MaterializedViewCatalog
from airflow_mv.core.script import (
    COMPLETE_KEY,
    REFRESH_ID_KEY,
    STAGING_CATALOG,
    CheckResult,
    CreateStorageStep,
    Outcome,
    RewriteStep,
    Script,
    SqlStep,
    StagedChecks,
)
from airflow_mv.core.spec.identifiers import split
from tests.branches import create_branch, overwrite_branch, replace_files

_REGISTER = re.compile(r"CALL .*register_table\(table => '([^']+)', metadata_file => '([^']+)'\)", re.DOTALL)
_BRANCH = re.compile(r"ALTER TABLE (?P<table>.+) CREATE BRANCH `(?P<branch>\w+)`(?: AS OF VERSION (?P<start>\d+))?")
_WRITE = re.compile(
    r"(?:INSERT OVERWRITE (?P<insert>[^\n]+)\n|CREATE OR REPLACE TABLE .*?\nAS )(?P<query>.*)", re.DOTALL
)
_PINNED = re.compile(r"(`delta`\.`[^`]+`|(?:`(?:[^`]|``)+`\.){2,}`(?:[^`]|``)+`)(?:\s+(?:FOR\s+)?VERSION AS OF (\d+))?")
_WORK = re.compile(r"CREATE OR REPLACE TEMPORARY VIEW|INSERT INTO")
_NO_STEPS = "only Spark can refresh from changes"


@cache
def _database() -> duckdb.DuckDBPyConnection:
    database = duckdb.connect(config={"threads": 1})
    atexit.register(_forget, database)
    return database


def _forget(database: duckdb.DuckDBPyConnection) -> None:
    database.close()
    _database.cache_clear()


def duck() -> duckdb.DuckDBPyConnection:
    """A cursor of this process's DuckDB, with its own registered tables: starting DuckDB takes longer than a query."""
    return _database().cursor()


class _Idle(threading.local):
    """This thread's unused scratch catalogs, by their access to stores; SQLite in memory is a thread's own."""

    def __init__(self) -> None:
        self.catalogs: dict[tuple[tuple[str, str], ...], list[SqlCatalog]] = {}


_idle = _Idle()


@contextmanager
def scratch_catalog(like: Catalog | None = None) -> Iterator[SqlCatalog]:
    """Lend an empty catalog in memory, with the namespace ``staged``; it reaches the stores of another catalog.

    A catalog is used again by the next block: creating its engine and tables takes longer than a refresh.
    """
    access = {key: value for key, value in (like.properties if like else {}).items() if key.startswith("s3.")}
    idle = _idle.catalogs.setdefault(tuple(sorted(access.items())), [])
    if idle:
        catalog = idle.pop()
    else:
        nowhere = {"uri": "sqlite://", "warehouse": "file:///nowhere", "init_catalog_tables": "true"}
        catalog = SqlCatalog("scratch", **nowhere, **access)
        catalog.create_namespace("staged")
    try:
        yield catalog
    finally:
        with catalog.engine.begin() as connection:
            connection.execute(delete(IcebergTables))
        idle.append(catalog)


@dataclass
class DuckStager:
    """Executes scripts as the Spark job does, with pyiceberg and DuckDB: equal steps write the same kind of snapshots.

    It supports no incremental step: it recomputes instead, as the job does when a step is impossible.

    Args:
        catalog: The views' catalog, for its name, and for the other catalogs of base tables.
        iceberg: The catalog of the base tables.
        calls: Every script that was executed, including creations.
    """

    catalog: MaterializedViewCatalog
    iceberg: Catalog
    calls: list[Script] = field(default_factory=list)

    @property
    def refreshes(self) -> list[Script]:
        """The scripts that were refreshes."""
        return [script for script in self.calls if not isinstance(script.steps[-1], CreateStorageStep | RewriteStep)]

    def __call__(self, script: Script) -> Outcome:
        """Execute a script, on its own branch if the storage table is in the catalog."""
        self.calls.append(script)
        if script.branch is not None:
            own = f"{script.branch}_{uuid.uuid4().hex[:8]}"
            script = replace(script, branch=own)
        script = script.bound(STAGING_CATALOG, script.branch)
        with scratch_catalog(self.iceberg) as scratch:
            try:
                return self._stage(scratch, script)
            except duckdb.Error as error:
                return Outcome(script.refresh_id, None, error=str(error), query_error=True)

    def _stage(self, scratch: SqlCatalog, script: Script) -> Outcome:
        if script.incremental and not script.fallback:
            return Outcome(script.refresh_id, None, error=_NO_STEPS, mode="none", fallback="no-spark",
                           fallback_reason=_NO_STEPS)  # fmt: skip
        rows = 0
        for step in (*_before_work(script), *script.fallback) if script.incremental else script.steps:
            if isinstance(step, CreateStorageStep):
                self._create(scratch, step)
            elif isinstance(step, RewriteStep):
                replace_files(self._table(scratch, step.table), step.branch or "main")
            else:
                rows += self._run(scratch, script, step.sql)
        location = self._table(scratch, script.table).metadata_location
        refused = {"fallback": "no-spark", "fallback_reason": _NO_STEPS} if script.incremental else {}
        checked = self._checked(scratch, script.checks) if script.checks else {}
        return Outcome(
            script.refresh_id, location, rows, executor_seconds=0.5, branch=script.branch, **refused, **checked
        )

    def _checked(self, scratch: SqlCatalog, checks: StagedChecks) -> dict[str, Any]:
        """Compute the checks as the job does, in one aggregation over the staged rows; functions are not supported."""
        (row,) = self._query(scratch, checks.statement(checks.checks)).to_pylist()
        values = list(row.values())
        results = [
            CheckResult(check.name, check.severity, values[2 * number + 1] is True, check.expected, values[2 * number])
            for number, check in enumerate(checks.checks)
        ]
        return {"checks": tuple(results), "checks_digest": checks.digest}

    def _create(self, scratch: SqlCatalog, step: CreateStorageStep) -> None:
        schema, comments = self._query(scratch, step.query).schema, dict(step.comments)
        schema = pa.schema(
            [item.with_metadata({"doc": text}) if (text := comments.get(item.name)) else item for item in schema]
        )
        catalog, *rest = split(step.table)
        home = scratch if catalog == STAGING_CATALOG else self.iceberg
        table = home.create_table(tuple(rest), schema=schema, location=step.location, properties=dict(step.properties))
        columns = [transform.strip("`") for transform in step.partition_by]
        if columns and set(columns) <= set(schema.names):
            with table.update_spec() as spec:
                for column in columns:
                    spec.add_identity(column)

    def _run(self, scratch: SqlCatalog, script: Script, sql: str) -> int:
        if register := _REGISTER.fullmatch(sql):
            scratch.register_table(register[1], register[2])
            return 0
        if branch := _BRANCH.fullmatch(sql):
            table = self._table(scratch, branch["table"])
            create_branch(table, branch["branch"], int(branch["start"]) if branch["start"] else None)
            return 0
        if sql.startswith("ALTER TABLE"):
            return 0
        write = _WRITE.fullmatch(sql)
        assert write, sql
        rows = self._query(scratch, write["query"])
        table = self._table(scratch, script.table)
        if write["insert"] is not None:
            rows = _as_stored(rows, table)
        stamps = {key.partition("snapshot-property.")[2]: value for key, value in script.confs if "property." in key}
        if script.branch is not None:
            overwrite_branch(table, script.branch, rows, {**stamps, **_stamp(script.refresh_id), COMPLETE_KEY: "true"})
            return rows.num_rows
        if write["insert"] is None:
            table = _reshaped(table, rows.schema)
        overwrite(table, rows, script.refresh_id, stamps)
        return rows.num_rows

    def _table(self, scratch: SqlCatalog, name: str) -> Table:
        catalog, *rest = split(name)
        if catalog not in (STAGING_CATALOG, self.catalog.name):
            return self.catalog.other(catalog).iceberg.load_table(tuple(rest))
        return (scratch if catalog == STAGING_CATALOG else self.iceberg).load_table(tuple(rest))

    def _query(self, scratch: SqlCatalog, sql: str) -> pa.Table:
        with duck() as session:

            def bind(match: re.Match[str]) -> str:
                name = f"pinned_{uuid.uuid4().hex}"
                session.register(name, self._scan(scratch, match[1], match[2]))
                return name

            # A table without a snapshot is pinned as a sample of no rows.
            text = _PINNED.sub(bind, sql.replace("TABLESAMPLE (0 ROWS)", ""))
            return _storable(session.sql(sqlglot.transpile(text, read="spark", write="duckdb")[0]).to_arrow_table())

    def _scan(self, scratch: SqlCatalog, name: str, snapshot_id: str | None) -> pa.Table:
        if name.startswith("`delta`."):
            from deltalake import DeltaTable

            from airflow_mv.extras.delta.tables import storage_options

            access = storage_options(self.catalog.properties)
            return DeltaTable(split(name)[1], int(snapshot_id or 0), storage_options=access).to_pyarrow_table()
        own, _, branch = name.partition(".`branch_airflow_mv_")  # a staged branch
        table = self._table(scratch, own)
        if branch:
            return table.scan().use_ref(f"airflow_mv_{branch.strip(chr(96))}").to_arrow()
        return table.scan(snapshot_id=int(snapshot_id) if snapshot_id else None).to_arrow()


def overwrite(table: Table, rows: pa.Table, refresh_id: str, more: Mapping[str, str] = MappingProxyType({})) -> None:
    """Replace a table's rows with a snapshot whose summary has the refresh id, and what else the script sets."""
    stamp = {**more, **_stamp(refresh_id)}
    if table.scan().count() == 0:
        table.append(rows, snapshot_properties=stamp)
    else:
        table.overwrite(rows, snapshot_properties=stamp)


def _before_work(script: Script) -> list[SqlStep]:
    """The steps that register the storage table, before the incremental steps."""
    return [step for step in script.steps if isinstance(step, SqlStep) and not _WORK.match(step.sql)]


def _stamp(refresh_id: str) -> dict[str, str]:
    return {REFRESH_ID_KEY: refresh_id}


def _as_stored(rows: pa.Table, table: Table) -> pa.Table:
    """As INSERT does: columns are matched by position, and get the table's types, which are Spark's."""
    stored = table.schema().as_arrow()
    return rows.rename_columns(stored.names).cast(pa.schema([item.remove_metadata() for item in stored]))


def _storable(rows: pa.Table) -> pa.Table:
    """DuckDB's sums are 128 bits wide; Spark's are longs."""
    fields = [pa.field(item.name, pa.int64() if _is_wide(item.type) else item.type) for item in rows.schema]
    return rows.cast(pa.schema(fields))


def _is_wide(kind: pa.DataType) -> bool:
    return bool(pa.types.is_decimal(kind) and kind.scale == 0)


def _reshaped(table: Table, schema: pa.Schema) -> Table:
    with table.update_schema(allow_incompatible_changes=True) as update:
        for name in set(table.schema().column_names) - set(schema.names):
            update.delete_column(name)
    with table.update_schema(allow_incompatible_changes=True) as update:
        update.union_by_name(schema)
    return table
