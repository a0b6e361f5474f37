# SPDX-License-Identifier: Apache-2.0
"""All 99 queries of TPC-DS as incremental views: which mode is planned after each sort of change. Without Spark."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import duckdb

from airflow_mv.core.freshness.changes import UNCHANGED, Kind, Range, Size
from airflow_mv.core.refresh.candidates import BaseTableInput, Candidate, IncrementalInput, StorageInput, candidate
from airflow_mv.core.refresh.plan import StoredCost
from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.core.sql.query import parse_query
from tests.core.ivm import tpcds
from tests.core.ivm.lab import spark_type, to_duckdb

_SHORT = ("ss", "sr", "cs", "cr", "ws", "wr", "inv")
#: Which tables change, and whether rows only come.
CHANGES: Mapping[str, tuple[Sequence[str], bool]] = {
    **{short: ((table,), True) for short, table in zip(_SHORT, tpcds.FACTS, strict=True)},
    "facts appended": (tpcds.FACTS, True),
    "facts changed": (tpcds.FACTS, False),
    "dimensions change": (tpcds.DIMENSIONS, False),
}
_APPENDED = Range(Kind.APPENDED, (("append", 1),), Size(1_000, 0, 100_000), only_appends=True)
_UPDATED = Range(Kind.POSITION_DELETES, (("overwrite", 1),), Size(1_000, 1_000, 100_000, 100_000))
_HEAD = """# How the 99 queries of TPC-DS are refreshed

Made by `python -m benchmarks tpcds-modes --document docs/incremental-tpcds.md`; do not edit. Each query is a view with
`refresh_strategy="incremental"`, as DuckDB's extension writes it with its validation parameters, without `ORDER BY` and
`LIMIT` at the top. The table shows the mode that is planned, whatever the estimates say is cheaper.

- *ss*, *sr*, *cs*, *cr*, *ws*, *wr*, *inv*: rows are appended to `store_sales`, `store_returns`, `catalog_sales`,
  `catalog_returns`, `web_sales`, `web_returns` or `inventory` alone.
- *facts appended*: rows are appended to all seven.
- *facts changed*: rows of all seven are inserted, updated and deleted.
- *dimensions change*: rows of all the other tables are inserted, updated and deleted.

`append`: the rows that the new rows make are inserted. `merge`: the changed groups' aggregates are made from the stored
ones and the change. `replace`: the rows of the affected keys are recomputed and replaced. `full`: all rows are
recomputed. An empty cell: the query reads none of the changed tables. `*`: the query compares with the value of a
subquery that all rows share; if that value has changed, the job recomputes all rows.

`tests/engine/incremental/test_tpcds.py` refreshes these views in Spark over partitioned tables, in ten rounds of
changes, and compares their rows with a recompute by Spark and by DuckDB.
"""


@dataclass(frozen=True, slots=True)
class Planned:
    """One query after one sort of change."""

    query: int
    change: str
    mode: str
    why: tuple[str, ...]


def plans(
    folder: Path, changes: Sequence[str] = tuple(CHANGES), numbers: Sequence[int] = tpcds.NUMBERS
) -> list[Planned]:
    """Plan the refresh of queries after sorts of changes.

    Args:
        folder: Generated files; no rows are needed.
        changes: Names from :data:`CHANGES`.
        numbers: The queries.
    """
    texts = tpcds.queries(folder)
    found = []
    with duckdb.connect() as connection:
        tpcds.load(connection, folder)
        columns = {table: _columns(connection, table) for table in tpcds.TABLES}
        for number in numbers:
            output = _columns(connection, f"({to_duckdb(texts[number])})")
            for change in changes:
                found.append(_planned(number, texts[number], output, columns, change))
    return [item for item in found if item.mode]


def _columns(connection: duckdb.DuckDBPyConnection, relation: str) -> tuple[tuple[str, str], ...]:
    """Return names and Spark's types: where DuckDB makes a double of decimals, Spark makes a decimal."""
    described = connection.sql(f"DESCRIBE FROM {relation}").fetchall()
    return tuple((row[0], spark_type(row[1]).replace("double", "decimal(38,6)")) for row in described)


class _NoStatistics:
    """The lake has no files: any row may match."""

    def added_rows_may_match(self, *_: object) -> bool:
        return True


def _planned(
    number: int,
    sql: str,
    output: tuple[tuple[str, str], ...],
    columns: Mapping[str, tuple[tuple[str, str], ...]],
    change: str,
) -> Planned:
    changed, only_appends = CHANGES[change]
    read = [table for table in tpcds.TABLES if _reads(sql, table)]
    if not set(read) & set(changed):
        return Planned(number, change, "", ())
    happened = _APPENDED if only_appends else _UPDATED
    bases = tuple(_base(table, columns[table], happened if table in changed else UNCHANGED) for table in read)
    question = IncrementalInput(
        view=f"q{number}",
        query=parse_query(sql, view=f"q{number}", default_catalog="lake", default_namespace=("tpcds",)),
        views={},
        output=output,
        pinned=sql,
        bases=bases,
        stored=StorageInput("`stored`", tuple(name for name, _ in output), StoredCost(1_000_000, 1_000)),
    )
    found = candidate(question, _NoStatistics())
    if not isinstance(found, Candidate):
        return Planned(number, change, "full", tuple(reason.message for reason in found))
    mode = str(found.mode).replace("-keys", "")
    has_constants = any(getattr(step, "constants", ()) for step in found.steps)
    return Planned(number, change, mode + (" *" if has_constants else ""), ())


def _reads(sql: str, table: str) -> bool:
    return any(word.strip("(),`") == table for word in sql.split())


def _base(table: str, columns: tuple[tuple[str, str], ...], happened: Range) -> BaseTableInput:
    return BaseTableInput(
        identifier=Identifier("lake", ("tpcds",), table),
        sql=f"lake.tpcds.{table}",
        columns=columns,
        recorded=1,
        target=2 if happened is not UNCHANGED else 1,
        range=happened,
        total_bytes=100_000_000,
        kept=frozenset(name for name, _ in columns),
    )


def document(rows: Sequence[Planned]) -> str:
    """Return the page."""
    numbers = list(dict.fromkeys(row.query for row in rows))
    modes = {(row.query, row.change): row.mode for row in rows}
    lines = [_HEAD, _counted(rows)]
    lines += [f"| query | {' | '.join(CHANGES)} |", f"| ---: |{' --- |' * len(CHANGES)}"]
    for number in numbers:
        lines.append(f"| Q{number} | {' | '.join(modes.get((number, change), '') for change in CHANGES)} |")
    lines.append("\n## Why all rows are recomputed\n")
    for why, queries in _grouped(rows).items():
        lines.append(f"- {', '.join(f'Q{number}' for number in queries)}: {why}")
    return "\n".join([*lines, ""])


def _counted(rows: Sequence[Planned]) -> str:
    appended = {row.query for row in rows if CHANGES[row.change][1]}
    full = {row.query for row in rows if CHANGES[row.change][1] and row.mode == "full"}
    none = len(tpcds.NUMBERS) - len(appended)
    return (
        f"**After appends {len(appended - full)} queries are refreshed from what changed**, {len(full)} are "
        f"recomputed, and {none} reads none of these tables.\n"
    )


def _grouped(rows: Iterable[Planned]) -> dict[str, list[int]]:
    groups: dict[str, list[int]] = {}
    for row in rows:
        for why in row.why:
            if row.query not in groups.setdefault(why.replace("lake.tpcds.", ""), []):
                groups[why.replace("lake.tpcds.", "")].append(row.query)
    return dict(sorted(groups.items(), key=lambda item: item[1]))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--document", type=Path, help="write the page to this file")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Plan all refreshes, print the page, return the rows."""
    with tempfile.TemporaryDirectory() as folder:
        tpcds.generate(Path(folder), scale=0)
        rows = plans(Path(folder))
    page = document(rows)
    print(page)
    if options.document:
        options.document.write_text(page)
    return {"benchmark": "tpcds-modes", "rows": [asdict(row) for row in rows]}
