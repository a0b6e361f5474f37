# SPDX-License-Identifier: Apache-2.0
"""All 22 queries of TPC-H as incremental views: which mode each takes after each sort of change, and why."""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_mv.actions import create_view as create
from airflow_mv.actions import refresh_views
from airflow_mv.core.catalog import MaterializedViewCatalog
from airflow_mv.core.define.definition import Definition
from airflow_mv.core.script import Outcome, Script
from airflow_mv.core.spec.reasons import Code, Reason
from airflow_mv.extras.spark.session import InProcessStager
from benchmarks.tpch import CATALOG, Warehouse
from tests.core.ivm.tpch import QUERIES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TABLES = ("customer", "lineitem", "nation", "orders", "part", "partsupp", "region", "supplier")
#: The specification's refresh functions together, its first one alone, and updates of all other tables.
CHANGES: Mapping[str, Sequence[str]] = {
    "orders replaced": (
        "DELETE FROM lineitem WHERE l_orderkey % 97 = 3",
        "DELETE FROM orders WHERE o_orderkey % 97 = 3",
        "INSERT INTO orders SELECT o_orderkey + 600000, * EXCEPT (o_orderkey) FROM orders WHERE o_orderkey % 101 = 5",
        "INSERT INTO lineitem SELECT l_orderkey + 600000, * EXCEPT (l_orderkey) FROM lineitem "
        "WHERE l_orderkey % 101 = 5 AND l_orderkey < 600000",
    ),
    "orders appended": (
        "INSERT INTO orders SELECT o_orderkey + 1200000, * EXCEPT (o_orderkey) FROM orders "
        "WHERE o_orderkey % 103 = 7 AND o_orderkey < 600000",
        "INSERT INTO lineitem SELECT l_orderkey + 1200000, * EXCEPT (l_orderkey) FROM lineitem "
        "WHERE l_orderkey % 103 = 7 AND l_orderkey < 600000",
    ),
    "dimensions are updated": (
        "UPDATE customer SET c_acctbal = c_acctbal + 100, c_mktsegment = 'BUILDING' WHERE c_custkey % 50 = 7",
        "UPDATE supplier SET s_nationkey = (s_nationkey + 1) % 25 WHERE s_suppkey % 9 = 2",
        "UPDATE part SET p_brand = 'Brand#23', p_container = 'MED BOX', p_size = 15 WHERE p_partkey % 60 = 11",
        "UPDATE partsupp SET ps_supplycost = ps_supplycost * 0.9, ps_availqty = ps_availqty + 10 "
        "WHERE ps_partkey % 40 = 9",
        "UPDATE nation SET n_name = 'GERMANIA' WHERE n_name = 'GERMANY'",
    ),
}
#: The estimates are left aside: the question is what can be done, not what pays at this size.
ALWAYS = {"airflow-mv.incremental-up-to": "1000000"}
_SCHEMA = "tpch_modes"
_HEAD = """# How the 22 queries of TPC-H are refreshed

Made by `python -m benchmarks tpch-modes --document docs/incremental-tpch.md`; do not edit. Each query is a view with
`refresh_strategy="incremental"`; after each sort of change it is refreshed from what changed, and its rows are compared
with a recompute (they are equal). The queries are those of the specification with its validation parameters, but for
the row limits that it sets to Q2, Q3, Q10, Q18 and Q21 ("the first 100 rows" and the like), which are **left out**:
with `ORDER BY … LIMIT` each of them is refreshed in full, since any row may push any other out of the first ones.
What is cheaper is left aside here: at this size a full refresh often is, and the estimates would take it.

- *orders replaced*: `orders` and their `lineitem`s are deleted and inserted (RF1 and RF2).
- *orders appended*: inserted only (RF1).
- *dimensions are updated*: rows of `customer`, `supplier`, `part`, `partsupp` and `nation` are updated.

`append`: the rows that the new rows make are inserted. `merge`: the changed groups' aggregates are made from the stored
ones and the change. `replace-keys`: the rows of the affected keys are recomputed and replaced. `full`: all rows are.
`noop`: the view reads none of the changed tables.
"""


@dataclass(frozen=True, slots=True)
class Refreshed:
    """One query after one sort of change."""

    query: int
    change: str
    mode: str
    why: tuple[str, ...]


def make_tables(spark: SparkSession, namespace: str, raw: Path, properties: Mapping[str, str]) -> None:
    """Make Iceberg tables of generated files.

    Args:
        spark: The session.
        namespace: Where, in full.
        raw: Folder of the Parquet files.
        properties: Table properties.
    """
    told = ", ".join(f"'{key}' = '{value}'" for key, value in properties.items())
    for table in TABLES:
        spark.sql(
            f"CREATE TABLE {namespace}.{table} USING iceberg TBLPROPERTIES ({told}) "
            f"AS SELECT * FROM parquet.`{raw}/{table}.parquet`"
        )


def generate(folder: Path, scale: float) -> None:
    """Generate the data as Parquet files."""
    program = Path(sys.executable).with_name("tpchgen-cli")
    command = [str(program), "parquet", "--scale-factor", f"{scale:g}", "--output-dir", str(folder), "--quiet"]
    subprocess.run(command, check=True)


def play(
    catalog: MaterializedViewCatalog,
    namespace: str,
    execute: Callable[[str], object],
    stager: Callable[[Script], Outcome],
    queries: Iterable[int],
    check: Callable[[int], None],
    changes: Iterable[str] = tuple(CHANGES),
) -> list[Refreshed]:
    """Create the views, change the tables, and refresh the views after each sort of change.

    Args:
        catalog: Where the tables and views are.
        namespace: Likewise, the last part; the session's current one.
        execute: Runs a statement.
        stager: Runs scripts.
        queries: Numbers.
        check: Compares a view's rows with the recompute.
        changes: Sorts of changes.
    """
    numbers = list(queries)
    for number in numbers:
        definition = Definition(QUERIES[number], refresh_strategy="incremental", properties=ALWAYS)
        create(catalog, f"{namespace}.q{number}", definition, stager=stager)
        refresh_views(catalog, [f"{namespace}.q{number}"], stager=stager)
    found = []
    for change in changes:
        for statement in CHANGES[change]:
            execute(statement)
        for number in numbers:
            (result,) = refresh_views(catalog, [f"{namespace}.q{number}"], stager=stager)
            check(number)
            found.append(Refreshed(number, change, str(result.mode), reasons_text(result.reasons)))
    return found


def reasons_text(reasons: Iterable[Reason]) -> tuple[str, ...]:
    """Return why no cheaper mode is taken."""
    told = (Code.INCREMENTAL, Code.COST, Code.BASE_CHANGED, Code.FRESH, Code.ONLY_REPLACED)
    return tuple(reason.message for reason in reasons if reason.code not in told)


def document(rows: Sequence[Refreshed], scale: float) -> str:
    """Return the page."""
    about = f"Scale factor {scale:g} ({round(6_000_000 * scale):,} rows of `lineitem`), "
    lines = [_HEAD, about + "tables of format version 2, merge-on-read.\n"]
    lines += [f"| query | {' | '.join(CHANGES)} |", f"| ---: |{' --- |' * len(CHANGES)}"]
    for number in dict.fromkeys(row.query for row in rows):
        modes = {row.change: row.mode for row in rows if row.query == number}
        lines.append(f"| Q{number} | {' | '.join(modes[change] for change in CHANGES)} |")
    lines.append("\n## Why nothing cheaper\n")
    for change in CHANGES:
        lines.append(f"After *{change}*:\n")
        lines += [f"- {_named(numbers)}: {told}" for told, numbers in _grouped(rows, change).items()]
        lines.append("")
    return "\n".join(lines)


def _grouped(rows: Sequence[Refreshed], change: str) -> dict[str, list[int]]:
    groups: dict[str, list[int]] = {}
    for row in rows:
        for told in row.why if row.change == change else ():
            text = told.replace(f"{CATALOG}.{_SCHEMA}.", "")
            groups.setdefault(text, []).append(row.query)
    return dict(sorted(groups.items(), key=lambda item: item[1]))


def _named(numbers: Sequence[int]) -> str:
    return ", ".join(f"Q{number}" for number in dict.fromkeys(numbers))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--scale", type=float, default=0.01, help="TPC-H scale factor")
    parser.add_argument("--document", type=Path, help="write the page to this file")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Refresh all views, print the page, return the rows."""
    with tempfile.TemporaryDirectory() as folder:
        warehouse = Warehouse(Path(folder), options.scale)
        tables = warehouse.open()
        tables.create_namespace(_SCHEMA)
        generate(Path(folder) / "raw", options.scale)
        catalog = MaterializedViewCatalog(tables)
        stager = InProcessStager(catalog, report=lambda _: None)
        try:
            rows = _modes(catalog, stager, Path(folder) / "raw")
        finally:
            stager.close()
    page = document(rows, options.scale)
    print(page)
    if options.document:
        options.document.write_text(page)
    return {"benchmark": "tpch-modes", "scale": options.scale, "rows": [asdict(row) for row in rows]}


def _modes(catalog: MaterializedViewCatalog, stager: InProcessStager, raw: Path) -> list[Refreshed]:
    spark = stager.session
    spark.conf.set("spark.sql.shuffle.partitions", "2")
    modes = {f"write.{verb}.mode": "merge-on-read" for verb in ("delete", "update", "merge")}
    make_tables(spark, f"{CATALOG}.{_SCHEMA}", raw, {"format-version": "2", **modes})
    spark.sql(f"USE {CATALOG}.{_SCHEMA}")

    def check(number: int) -> None:
        storage = catalog.load_storage(catalog.load(f"{_SCHEMA}.q{number}"))
        stored = spark.read.format("iceberg").load(storage.location)
        query = spark.sql(QUERIES[number])
        if any(kind == "double" for _, kind in query.dtypes):
            return
        if stored.exceptAll(query).count() or query.exceptAll(stored).count():
            raise SystemExit(f"Q{number}: the stored rows are not those of a recompute")

    return play(catalog, _SCHEMA, spark.sql, stager, QUERIES, check)
