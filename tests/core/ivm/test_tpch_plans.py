# SPDX-License-Identifier: Apache-2.0
"""``plan`` reports for TPC-H's queries the modes and reasons that the page lists. No Spark."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import duckdb
import pyarrow
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io.pyarrow import _pyarrow_to_schema_without_ids
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import assign_fresh_schema_ids
from pyiceberg.table.metadata import new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER

from airflow_mv.core.catalog import MaterializedViewCatalog
from airflow_mv.core.define.create import create
from airflow_mv.core.define.definition import Definition
from airflow_mv.core.refresh import RefreshOptions, plan_refresh
from airflow_mv.core.refresh.run import publish
from airflow_mv.core.script import REFRESH_ID_KEY, CreateStorageStep, Outcome, Script
from airflow_mv.core.spec.reasons import FOUND_BY_JOB, Code
from airflow_mv.core.spec.stored import decode, encode
from airflow_mv.core.spec.table_metadata import with_properties
from benchmarks.tpch_modes import ALWAYS, CHANGES, TABLES, Refreshed, generate, reasons_text
from tests.core.ivm.lab import to_duckdb
from tests.core.ivm.tpch import QUERIES

_PAGE = Path(__file__).parents[3] / "docs" / "incremental-tpch.md"
_SPACE = "tpch"
#: The tables that each kind of change writes to, and whether rows are only added.
_WRITTEN = {
    "orders replaced": (("orders", "lineitem"), False),
    "orders appended": (("orders", "lineitem"), True),
    "dimensions are updated": (("customer", "supplier", "part", "partsupp", "nation"), False),
}


class Planned:
    """TPC-H's tables with a few rows, and its views, which are fresh without computed rows."""

    def __init__(self, folder: Path) -> None:
        generate(folder / "raw", 0.001)
        self.duckdb = duckdb.connect()
        self.files = load_catalog("lake", type="sql", uri=f"sqlite:///{folder / 'c.db'}", warehouse=f"file://{folder}")
        assert isinstance(self.files, SqlCatalog)
        self.files.create_namespace(_SPACE)
        for table in TABLES:
            self.duckdb.execute(f"CREATE TABLE {table} AS FROM '{folder}/raw/{table}.parquet'")
            rows = self._rows(table)
            self.files.create_table((_SPACE, table), rows.schema).append(rows)
        self.catalog = MaterializedViewCatalog(self.files)
        for number, sql in QUERIES.items():
            definition = Definition(_named(sql), refresh_strategy="incremental", properties=ALWAYS)
            create(self.catalog, f"lake.{_SPACE}.q{number}", definition, stager=self._stager(sql))

    def change(self, tables: tuple[str, ...], *, appended: bool) -> None:
        """Write to tables."""
        for name in tables:
            table = self.files.load_table((_SPACE, name))
            if appended:
                table.append(self._rows(name))
            else:
                table.overwrite(self._rows(name))

    def plans(self, change: str) -> Iterator[Refreshed]:
        """Plan all views."""
        for number in QUERIES:
            plan = plan_refresh(self.catalog, f"lake.{_SPACE}.q{number}")
            yield Refreshed(number, change, str(plan.mode), reasons_text(plan.reasons))

    def refresh(self) -> None:
        """Publish as if the rows had been computed."""
        for number in QUERIES:
            plan = plan_refresh(self.catalog, f"lake.{_SPACE}.q{number}", RefreshOptions(full=True))
            before = plan.storage_table_location
            document = decode(self.catalog.files.read(before, what="storage table"), source=before)
            after = with_properties(document, previous_location=before, updates={}, tags={}, now_ms=1_700_000_000_000)
            snapshot_id, number = uuid.uuid4().int >> 66, after["last-sequence-number"] + 1
            # Without sizes, as for a refresh of another writer: the costs follow from the base tables alone.
            summary = {"operation": "overwrite", REFRESH_ID_KEY: plan.refresh_id}
            written = {"manifest-list": "file:///none", "timestamp-ms": after["last-updated-ms"], "summary": summary}
            snapshot = {"snapshot-id": snapshot_id, "sequence-number": number, **written}
            after["snapshots"] = [*after.get("snapshots", ()), snapshot]
            after |= {"current-snapshot-id": snapshot_id, "last-sequence-number": number}
            after["refs"] = {"main": {"snapshot-id": snapshot_id, "type": "branch"}}
            location = f"{document['location']}/metadata/{uuid.uuid4()}.metadata.json"
            self.catalog.files.write(location, encode(after))
            publish(self.catalog, plan, Outcome(plan.refresh_id, location))

    def _rows(self, table: str) -> pyarrow.Table:
        return self.duckdb.sql(f"FROM {table} LIMIT 10").to_arrow_table()

    def _stager(self, sql: str) -> Callable[[Script], Outcome]:
        """Return a stager that creates the empty storage table with the columns of the query in DuckDB."""

        def stage(script: Script) -> Outcome:
            step = script.steps[-1]
            assert isinstance(step, CreateStorageStep)
            assert step.location is not None
            arrow = self.duckdb.sql(to_duckdb(sql)).limit(0).to_arrow_table().schema
            # TPC-H has no floating columns: these are DuckDB's quotients of decimals, which Spark computes exactly.
            exact = pyarrow.decimal128(38, 6)
            arrow = pyarrow.schema(
                [item.with_type(exact) if item.type == pyarrow.float64() else item for item in arrow]
            )
            schema = assign_fresh_schema_ids(_pyarrow_to_schema_without_ids(arrow))
            made = new_table_metadata(schema, UNPARTITIONED_PARTITION_SPEC, UNSORTED_SORT_ORDER, step.location)
            location = f"{step.location}/metadata/00000-{uuid.uuid4()}.metadata.json"
            self.catalog.files.write(location, made.model_dump_json().encode())
            return Outcome(script.refresh_id, location)

        return stage


def _named(sql: str) -> str:
    """Replace the tables' names by their full names."""
    names = "|".join(TABLES)
    return re.sub(rf"(\bFROM|\bJOIN|,)(\s+)({names})\b", rf"\1\2lake.{_SPACE}.\3", sql)


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> list[Refreshed]:
    """All plans after each kind of change."""
    lake = Planned(tmp_path_factory.mktemp("tpch"))
    found: list[Refreshed] = []
    for change in CHANGES:
        tables, appended = _WRITTEN[change]
        lake.refresh()
        lake.change(tables, appended=appended)
        found += lake.plans(change)
    return found


def _documented() -> tuple[dict[tuple[int, str], str], dict[tuple[int, str], set[str]]]:
    """Return the page's mode of each query after each kind of change, and why it is not a cheaper one."""
    page = _PAGE.read_text()
    modes = {
        (int(number), change): mode
        for number, row in re.findall(r"^\| Q(\d+) \| (.*) \|$", page, re.MULTILINE)
        for change, mode in zip(CHANGES, row.split(" | "), strict=True)
    }
    why: dict[tuple[int, str], set[str]] = {key: set() for key in modes}
    for part in re.split(r"^After \*", page, flags=re.MULTILINE)[1:]:
        for numbers, reasons in re.findall(r"^- ([Q\d, ]+): (.*)$", part, re.MULTILINE):
            for number in re.findall(r"\d+", numbers):
                why[int(number), part.split("*")[0]].add(reasons)
    return modes, why


@pytest.mark.parametrize("change", CHANGES)
def test_the_plan_of_each_query_agrees_with_the_page(planned: list[Refreshed], change: str) -> None:
    """A difference is allowed only where the job finds a reason that a plan cannot know."""
    modes, why = _documented()
    decided_by_job = {key for key, reasons in why.items() if any(text.startswith(FOUND_BY_JOB) for text in reasons)}
    for item in (item for item in planned if item.change == change):
        key = (item.query, change)
        assert item.mode == ("replace-keys" if key in decided_by_job else modes[key]), key
        reasons = {text.replace(f"lake.{_SPACE}.", "") for text in item.why}
        assert reasons == {text for text in why[key] if not text.startswith(FOUND_BY_JOB)}, key


def test_each_reason_is_a_sentence_about_the_query(planned: list[Refreshed]) -> None:
    """A reason is never just a code."""
    codes = {str(code) for code in Code}
    for item in planned:
        assert item.mode in ("append", "merge", "noop") or item.why, item
        assert all(text not in codes and " " in text for text in item.why), item
