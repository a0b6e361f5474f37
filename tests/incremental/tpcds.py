# SPDX-License-Identifier: Apache-2.0
"""The 99 queries of TPC-DS as views, and data for them. Both come from DuckDB's extension when they are needed.

The extension exists for DuckDB 1.5 only. It is installed into a folder of its own, with its DuckDB, and runs in
a process of its own. The texts are DuckDB's; sqlglot writes them for Spark, without ORDER BY and LIMIT at the top.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from itertools import chain, product
from pathlib import Path

import duckdb
import sqlglot
from sqlglot import exp

FACTS = (
    *("store_sales", "store_returns", "catalog_sales", "catalog_returns", "web_sales", "web_returns", "inventory"),
)
DIMENSIONS = (
    *("call_center", "catalog_page", "customer", "customer_address", "customer_demographics", "date_dim"),
    *("household_demographics", "income_band", "item", "promotion", "reason", "ship_mode", "store", "time_dim"),
    *("warehouse", "web_page", "web_site"),
)
TABLES = (*FACTS, *DIMENSIONS)
NUMBERS = range(1, 100)

_VERSION = "1.5.5"
_LIBRARY = Path(__file__).parents[2] / ".bench" / f"tpcds-{_VERSION}"
_GENERATE = """
import json, pathlib, sys
import duckdb, duckdb_extension_tpcds
folder, scale = pathlib.Path(sys.argv[1]), float(sys.argv[2])
package = pathlib.Path(duckdb_extension_tpcds.__file__).parent
connection = duckdb.connect()
connection.execute(f"LOAD '{package}/extensions/v{duckdb.__version__}/tpcds.duckdb_extension'")
connection.execute(f"CALL dsdgen(sf = {scale})")
for (table,) in connection.execute("SELECT table_name FROM duckdb_tables()").fetchall():
    connection.execute(f"COPY {table} TO '{folder}/{table}.parquet'")
queries = dict(connection.execute("FROM tpcds_queries()").fetchall())
(folder / "queries.json").write_text(json.dumps(queries))
"""
#: At a small scale these have one row or a few: they get so many, and the facts refer to all of them.
_FEW = {
    "store": ("s_store_sk", "s_store_id", ("ss_store_sk", "sr_store_sk")),
    "warehouse": (
        *("w_warehouse_sk", "w_warehouse_id"),
        ("cs_warehouse_sk", "cr_warehouse_sk", "ws_warehouse_sk", "inv_warehouse_sk"),
    ),
    "call_center": ("cc_call_center_sk", "cc_call_center_id", ("cs_call_center_sk", "cr_call_center_sk")),
    "web_site": ("web_site_sk", "web_site_id", ("ws_web_site_sk",)),
    "web_page": ("wp_web_page_sk", "wp_web_page_id", ("ws_web_page_sk", "wr_web_page_sk")),
    "reason": ("r_reason_sk", "r_reason_id", ("sr_reason_sk", "cr_reason_sk", "wr_reason_sk")),
    "promotion": ("p_promo_sk", "p_promo_id", ("ss_promo_sk", "cs_promo_sk", "ws_promo_sk")),
}
_COPIES = 6
_PREFIXES = {
    **{"ss": "store_sales", "sr": "store_returns", "cs": "catalog_sales", "cr": "catalog_returns"},
    **{"ws": "web_sales", "wr": "web_returns", "inv": "inventory"},
}
#: Tables of which rows get the values that the queries ask for. The calendar and the clock stay as they are.
_ASKED = {
    **{"cc": "call_center", "ca": "customer_address", "i": "item", "p": "promotion", "r": "reason", "s": "store"},
    **{"w": "warehouse", "web": "web_site", "wp": "web_page", "sm": "ship_mode", "c": "customer"},
}
_MOST_ASKED = 12


def install() -> None:
    """Install DuckDB's extension, and the DuckDB that it is made for, beside the project's packages."""
    if (_LIBRARY / "installed").exists():
        return
    wanted = [f"duckdb=={_VERSION}", f"duckdb-extension-tpcds=={_VERSION}"]
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(_LIBRARY), *wanted]
    subprocess.run(command, check=True)
    (_LIBRARY / "installed").touch()


def generate(folder: Path, scale: float = 0.01) -> None:
    """Write the tables as Parquet files, and the texts of the queries; then see that the queries find rows.

    Args:
        folder: Where.
        scale: The scale factor.
    """
    install()
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-S", "-c", _GENERATE, str(folder), f"{scale:g}"]
    subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": str(_LIBRARY)}, capture_output=True)
    with duckdb.connect() as connection:
        load(connection, folder)
        for statement in chain(_copies(connection), _asked(queries(folder))):
            connection.execute(statement)
        for table in TABLES:
            connection.execute(f"COPY {table} TO '{folder}/{table}.parquet'")


def load(connection: duckdb.DuckDBPyConnection, folder: Path) -> None:
    """Make DuckDB tables of generated files."""
    for table in TABLES:
        connection.execute(f"CREATE TABLE {table} AS FROM '{folder}/{table}.parquet'")


def queries(folder: Path) -> dict[int, str]:
    """Return the queries in Spark's dialect, by number, with bare names of tables and a name for each column."""
    texts = json.loads((folder / "queries.json").read_text())
    return {number: _for_spark(texts[str(number)]) for number in NUMBERS}


def _for_spark(text: str) -> str:
    tree = sqlglot.parse_one(text, read="duckdb")
    assert isinstance(tree, exp.Select)
    tree.set("order", None)
    tree.set("limit", None)
    seen: set[str] = set()
    for index, item in enumerate(tree.selects):
        name = item.alias_or_name
        if not name or name.lower() in seen:
            name = f"column_{index}"
            item.replace(exp.alias_(item.unalias().copy(), name))
        seen.add(name.lower())
    return tree.sql(dialect="spark", pretty=True)


# ------------------------------------------------------------------------------------------- rows
def _copies(connection: duckdb.DuckDBPyConnection) -> Iterator[str]:
    """Yield statements that make several rows of the tables that have few, and spread the facts over them."""
    for table, (key, name, references) in _FEW.items():
        yield f"DELETE FROM {table} WHERE {key} > 1"
        yield (
            f"INSERT INTO {table} SELECT {table}.* REPLACE (n AS {key}, {name} || n AS {name}) "
            f"FROM {table}, range(2, {_COPIES + 1}) AS copies(n)"
        )
        for column in references:
            fact = _PREFIXES[column.split("_")[0]]
            others = "inv_item_sk + inv_date_sk" if fact == "inventory" else _order_of(fact)
            yield f"UPDATE {fact} SET {column} = 1 + ({others}) % {_COPIES} WHERE {column} IS NOT NULL"


def _order_of(fact: str) -> str:
    prefix = next(prefix for prefix, table in _PREFIXES.items() if table == fact)
    number = "ticket_number" if prefix in ("ss", "sr") else "order_number"
    return f"{prefix}_item_sk + 7 * {prefix}_{number}"


def _asked(texts: Mapping[int, str]) -> Iterator[str]:
    """Yield statements that give some rows of each dimension, in turn, the values that a query asks for."""
    wanted: dict[str, list[dict[str, str]]] = {}
    for text in texts.values():
        for where in sqlglot.parse_one(text, read="spark").find_all(exp.Where):
            for found in _values(where.this):
                for prefix in {column.split("_")[0] for column in found}:
                    own = {column: value for column, value in found.items() if column.split("_")[0] == prefix}
                    if prefix in _ASKED and own not in wanted.setdefault(prefix, []):
                        wanted[prefix].append(own)
    for prefix, rows in wanted.items():
        for index, row in enumerate(rows):
            told = ", ".join(f"{column} = {value}" for column, value in row.items())
            yield f"UPDATE {_ASKED[prefix]} SET {told} WHERE rowid % {len(rows)} = {index}"


def _values(condition: exp.Expr) -> list[dict[str, str]]:
    """Return some ways to meet a condition, as the values of columns."""
    condition = condition.unnest()
    if isinstance(condition, exp.And):
        both = product(_values(condition.left), _values(condition.right))
        return [one | other for one, other in both][:_MOST_ASKED]
    if isinstance(condition, exp.Or):
        return [*_values(condition.left), *_values(condition.right)][:_MOST_ASKED]
    column = condition.this
    if not isinstance(column, exp.Column):
        return [{}]
    values: list[exp.Expr] = []
    if isinstance(condition, exp.EQ):
        values = [condition.expression]
    elif isinstance(condition, exp.In):
        values = list(condition.expressions)
    elif isinstance(condition, exp.Between):
        values = [condition.args["low"]]
    told = [item.sql(dialect="duckdb") for item in values if not item.find(exp.Column, exp.Query)]
    return [{column.name: item} for item in told] or [{}]


if __name__ == "__main__":
    install()
