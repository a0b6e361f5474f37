# SPDX-License-Identifier: Apache-2.0
"""TPC-DS's tables in Iceberg, partitioned, ten rounds of changes, and its queries refreshed after each round."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow

from tests.core.ivm import tpcds
from tests.core.ivm.lab import to_duckdb
from tests.engine.incremental.checking import stored
from tests.engine.incremental.histories import VARIANTS
from tests.engine.incremental.playing import ALWAYS
from tests.engine.support import Lake

PARTITIONING = {
    "store_sales": "truncate(500, ss_sold_date_sk)",
    "store_returns": "bucket(2, sr_item_sk)",
    "catalog_sales": "bucket(3, cs_item_sk)",
    "catalog_returns": "truncate(1000, cr_returned_date_sk)",
    "web_sales": "truncate(1000, ws_sold_date_sk)",
    "web_returns": "bucket(2, wr_item_sk)",
    "inventory": "truncate(1000, inv_date_sk)",
    "date_dim": "truncate(20000, d_date_sk)",
    "item": "i_category",
}
#: The column that gets new values in appended rows, for each fact table.
_NUMBERS = {
    **{"store_sales": "ss_ticket_number", "store_returns": "sr_ticket_number"},
    **{"catalog_sales": "cs_order_number", "catalog_returns": "cr_order_number"},
    **{"web_sales": "ws_order_number", "web_returns": "wr_order_number", "inventory": "inv_quantity_on_hand"},
}
#: DuckDB computes averages and quotients of decimals as doubles, Spark as rounded decimals.
_NEAR, _NEARLY = 2e-4, 1e-5
#: The permitted difference from DuckDB's numbers. Q78 rounds a quotient of doubles: Spark rounds its decimal text, so
#: 23 / 40 = 0.575 becomes 0.58; DuckDB rounds the binary number, which is a little below, to 0.57.
_ROUNDED = {78: 0.0101}
#: These cannot be refreshed incrementally, see docs/incremental-tpcds.md: a recompute would be compared with itself.
RECOMPUTED = frozenset({9, 44, 49, 51})
#: A refresh of one of these takes as long as those of five others.
HEAVY = frozenset({4, 5, 11, 14, 23, 24, 31, 64, 70, 74, 75, 77, 78, 80})


def append(table: str, turn: int) -> str:
    """Return a statement that appends rows like existing ones; those of a sale and its return match."""
    number = _NUMBERS[table]
    chosen = f"inv_item_sk + inv_date_sk) % 29 = {turn}" if table == "inventory" else f"{number}) % 23 = {turn}"
    added = "3" if table == "inventory" else str(10_000_000 * (turn + 1))
    return (
        f"INSERT INTO {table} BY NAME SELECT * EXCEPT ({number}), "
        f"CAST({number} + {added} AS {'INT' if table == 'inventory' else 'BIGINT'}) AS {number} "
        f"FROM {table} WHERE ({chosen}"
    )


#: Dimensions with thousands of rows: the key, the suffix of referring columns, and the rows that are always kept.
_LARGE = {
    "date_dim": ("d_date_sk", "_date_sk", "d_year BETWEEN 1998 AND 2002"),
    "time_dim": ("t_time_sk", "_time_sk", "false"),
    "customer_demographics": ("cd_demo_sk", "_cdemo_sk", "cd_demo_sk % 50 = 1"),
    "household_demographics": ("hd_demo_sk", "_hdemo_sk", "hd_demo_sk % 50 = 1"),
}


ROUNDS: Mapping[str, tuple[str, ...]] = {
    "append": tuple(append(table, 1) for table in tpcds.FACTS),
    "delete and update": (
        "DELETE FROM store_sales WHERE ss_ticket_number % 31 = 3",
        "DELETE FROM store_returns WHERE sr_ticket_number % 31 = 3",
        "UPDATE catalog_sales SET cs_quantity = cs_quantity + 1, cs_ext_sales_price = cs_ext_sales_price + 1, "
        "cs_item_sk = cs_item_sk % 180 + 1 WHERE cs_order_number % 37 = 1",
        "UPDATE catalog_returns SET cr_return_amount = cr_return_amount + 1 WHERE cr_order_number % 11 = 1",
        "UPDATE web_sales SET ws_ext_discount_amt = ws_ext_discount_amt + 5, ws_sold_date_sk = ws_sold_date_sk + 7 "
        "WHERE ws_order_number % 19 = 1",
        "DELETE FROM web_returns WHERE wr_order_number % 17 = 2",
        "UPDATE inventory SET inv_quantity_on_hand = inv_quantity_on_hand + 40 WHERE inv_item_sk % 23 = 4",
    ),
    "dimensions": (
        "UPDATE item SET i_brand_id = i_brand_id + 1, i_category = 'Music' WHERE i_item_sk % 13 = 5",
        "UPDATE customer_address SET ca_state = 'GA', ca_zip = '85669' WHERE ca_address_sk % 17 = 3",
        "UPDATE customer SET c_birth_month = 5, c_current_addr_sk = c_current_addr_sk % 500 + 1 "
        "WHERE c_customer_sk % 19 = 2",
        "UPDATE store SET s_state = 'TN', s_gmt_offset = -5 WHERE s_store_sk = 2",
        "DELETE FROM promotion WHERE p_promo_sk = 3",
        "INSERT INTO warehouse SELECT * FROM warehouse WHERE w_warehouse_sk = 4",
        "UPDATE date_dim SET d_day_name = 'Sunday' WHERE d_date = DATE '2000-02-01'",
        "UPDATE household_demographics SET hd_dep_count = 4 WHERE hd_demo_sk % 29 = 1",
        append("store_sales", 2),
    ),
    "compaction": (
        "CALL {catalog}.system.rewrite_data_files(table => '{ns}.store_sales', options => map('rewrite-all', 'true'))",
        "CALL {catalog}.system.rewrite_data_files(table => '{ns}.inventory', options => map('rewrite-all', 'true'))",
        "CALL {catalog}.system.rewrite_manifests(table => '{ns}.catalog_sales')",
        append("web_sales", 3),
        append("web_returns", 3),
    ),
    "evolution": (
        "ALTER TABLE store_sales ADD COLUMN ss_more INT",
        "ALTER TABLE catalog_sales ADD PARTITION FIELD bucket(2, cs_order_number)",
        "ALTER TABLE inventory ALTER COLUMN inv_quantity_on_hand TYPE BIGINT",
        "ALTER TABLE web_sales REPLACE PARTITION FIELD ws_sold_date_sk_trunc WITH bucket(2, ws_item_sk)",
        "ALTER TABLE item RENAME COLUMN i_formulation TO i_formula",
        append("store_sales", 4),
        append("catalog_sales", 4),
        append("web_sales", 4),
        append("inventory", 4).replace("AS INT)", "AS BIGINT)"),
        "UPDATE store_sales SET ss_more = 1, ss_net_profit = ss_net_profit - 1 WHERE ss_item_sk = 7",
    ),
    "overwrite": (
        "INSERT OVERWRITE web_sales SELECT * FROM web_sales WHERE ws_order_number % 29 <> 5",
        "INSERT OVERWRITE store_returns SELECT * FROM store_returns WHERE sr_item_sk % 29 <> 5 OR sr_item_sk IS NULL",
        "INSERT OVERWRITE call_center SELECT * FROM call_center WHERE cc_call_center_sk <> 5",
    ),
    "rollback": (
        "CALL {catalog}.system.set_current_snapshot('{ns}.catalog_sales', {earlier})",
        append("catalog_returns", 6),
        append("store_sales", 6),
    ),
    "branches": (
        "ALTER TABLE store_returns CREATE BRANCH audit",
        "INSERT INTO {catalog}.{ns}.store_returns.branch_audit "
        "SELECT * FROM store_returns WHERE sr_ticket_number % 23 = 7",
        "CALL {catalog}.system.fast_forward('{ns}.store_returns', 'main', 'audit')",
        "ALTER TABLE store_sales CREATE BRANCH elsewhere",
        "DELETE FROM {catalog}.{ns}.store_sales.branch_elsewhere WHERE ss_item_sk < 50",
        append("inventory", 7).replace("AS INT)", "AS BIGINT)"),
    ),
    "merge and empty": (
        "MERGE INTO store_sales t USING (SELECT ss_item_sk AS i, ss_ticket_number AS n FROM store_sales "
        "WHERE ss_ticket_number % 41 = 9 GROUP BY ALL) u ON t.ss_item_sk = u.i AND t.ss_ticket_number = u.n "
        "WHEN MATCHED AND ss_quantity % 2 = 0 THEN DELETE "
        "WHEN MATCHED THEN UPDATE SET ss_quantity = ss_quantity + 10, ss_store_sk = 4, ss_sales_price = NULL",
        "DELETE FROM web_returns",
        "DELETE FROM catalog_returns WHERE cr_returned_date_sk < 2452000",
    ),
    "all at once": (
        *(append(table, 8) for table in tpcds.FACTS if table not in ("inventory", "web_returns")),
        "CALL {catalog}.system.set_current_snapshot('{ns}.web_returns', {earlier})",
        "DELETE FROM store_sales WHERE ss_item_sk = 11",
        "UPDATE item SET i_manufact_id = i_manufact_id + 1 WHERE i_item_sk % 7 = 1",
        "ALTER TABLE catalog_sales ADD COLUMN cs_more STRING",
        "CALL {catalog}.system.rewrite_data_files(table => '{ns}.catalog_sales')",
        "DELETE FROM customer WHERE c_customer_sk % 97 = 5",
    ),
}


@dataclass
class Played:
    """The statistics of a run."""

    modes: dict[tuple[int, str], str] = field(default_factory=dict)
    reasons: dict[tuple[int, str], str] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    refreshes: int = 0
    by_duckdb: int = 0
    rows: int = 0

    def full_after(self, change: str) -> set[int]:
        """Return the queries that were recomputed after a round."""
        return {number for (number, name), mode in self.modes.items() if name == change and mode == "full"}

    def __str__(self) -> str:
        lines = [f"{self.refreshes} refreshes ({self.by_duckdb} by DuckDB too), {self.rows} rows compared"]
        for change in ROUNDS:
            modes = Counter(mode for (_, name), mode in self.modes.items() if name == change)
            lines.append(f"{change}: {dict(modes)}")
            lines += [f"    Q{n}: {text}" for (n, name), text in self.reasons.items() if name == change]
        return "\n".join([*lines, *self.wrong])


@dataclass
class Play:
    """One run with some of the queries.

    Args:
        lake: The lake with the tables.
        texts: The queries by number.
        duckdb: Also computes the rows, when a query is refreshed for the first time and after the last round.
        often: Each query is refreshed after one of so many rounds, and after the last round.
    """

    lake: Lake
    texts: Mapping[int, str]
    duckdb: duckdb.DuckDBPyConnection
    often: int = 1
    played: Played = field(default_factory=Played)
    _snapshots: dict[str, int | None] = field(default_factory=dict)

    def run(self, rounds: Iterable[str]) -> Played:
        """Create the views; change the tables, refresh and compare, round by round."""
        for number, sql in self.texts.items():
            self.lake.create(f"q{number}", sql, refresh_strategy="incremental", properties=ALWAYS)
            self.lake.refresh(f"q{number}")
        names = list(rounds)
        for turn, change in enumerate(names):
            for statement in ROUNDS[change]:
                self._execute(statement)
            last = turn == len(names) - 1
            if in_duckdb := last or turn < self.often:
                self._read_again()
            for index, number in enumerate(self.texts):
                if last or (index + turn) % self.often == 0:
                    self._refresh(number, change, in_duckdb=in_duckdb)
        return self.played

    def _execute(self, statement: str) -> None:
        parts = {"{catalog}": self.lake.catalog.name, "{ns}": self.lake.namespace}
        if "{earlier}" in statement:
            table = statement.split("{ns}.")[1].split("'")[0]
            parts["{earlier}"] = str(self._earlier(table))
        for place, part in parts.items():
            statement = statement.replace(place, part)
        self.lake.spark.sql(statement).collect()

    def _earlier(self, table: str) -> int:
        """Return the snapshot before the last one."""
        metadata = self.lake.files.load_table((self.lake.namespace, table)).metadata
        return metadata.snapshot_log[-2].snapshot_id

    def _read_again(self) -> None:
        """Load the rows of changed tables into DuckDB."""
        for table in tpcds.TABLES:
            head = self.lake.files.load_table((self.lake.namespace, table)).metadata.current_snapshot_id
            if self._snapshots.get(table, 0) != head:
                rows = self.lake.spark.table(table).toArrow()  # noqa: F841 (DuckDB finds it by its name)
                self.duckdb.execute(f"CREATE OR REPLACE TABLE {table} AS FROM rows")
                self._snapshots[table] = head

    def _refresh(self, number: int, change: str, *, in_duckdb: bool) -> None:
        started = time.monotonic()
        try:
            result = self.lake.refresh(f"q{number}", on_fallback="full")
        except Exception as error:  # noqa: BLE001 (the other queries continue)
            self.played.wrong.append(f"Q{number} after {change}: {type(error).__name__}: {str(error)[:500]}")
            return
        mode = str(result.mode)
        self.played.modes[number, change] = mode
        if mode == "full":
            self.played.reasons[number, change] = result.reasons[-1].message[:300]
        self.played.refreshes += 1
        refreshed = time.monotonic() - started
        found = stored(self.lake, f"q{number}")
        for text in self._differences(number, found, in_duckdb=in_duckdb):
            self.played.wrong.append(f"Q{number} after {change} ({mode}): {text}")
        self.played.rows += found.num_rows
        spent = time.monotonic() - started - refreshed
        wrong = "WRONG" if self.played.wrong and self.played.wrong[-1].startswith(f"Q{number} after {change}") else ""
        print(
            f"Q{number} after {change}: {mode}, {found.num_rows} rows, {refreshed:.1f} + {spent:.1f} s {wrong}",
            self.played.reasons.get((number, change), ""),
            flush=True,
        )

    def _differences(self, number: int, found: pyarrow.Table, *, in_duckdb: bool) -> Iterator[str]:
        got = _sorted(found)
        expected = _sorted(self.lake.spark.sql(self.texts[number]).toArrow())
        if text := differ(expected, got, near=1e-9, nearly=1e-9):
            yield f"Spark says otherwise: {text}"
        if not in_duckdb:
            return
        try:
            rows = self.duckdb.sql(to_duckdb(self.texts[number])).to_arrow_table()
        except duckdb.Error as error:
            yield f"DuckDB cannot: {str(error)[:200]}"
            return
        self.played.by_duckdb += 1
        if text := differ(_sorted(rows), got, near=_ROUNDED.get(number, _NEAR), nearly=_NEARLY):
            yield f"DuckDB says otherwise: {text}"


def lessen(folder: Path) -> None:
    """Remove the rows of large dimensions that no fact refers to; a refresh reads each dimension several times."""
    with duckdb.connect() as connection:
        tpcds.load(connection, folder)
        columns = connection.execute("SELECT table_name, column_name FROM duckdb_columns()").fetchall()
        for table, (key, ending, kept) in _LARGE.items():
            uses = [f"SELECT {name} FROM {used}" for used, name in columns if name.endswith(ending) and used != table]
            used = " UNION ".join(uses)
            connection.execute(
                f"DELETE FROM {table} WHERE NOT ({kept}) AND {key} NOT IN (FROM ({used}) AS used(k) WHERE k > 0)"
            )
            connection.execute(f"COPY {table} TO '{folder}/{table}.parquet'")


def tables(lake: Lake, folder: Path, variant: str) -> None:
    """Create the Iceberg tables from generated files."""
    properties = {**VARIANTS[variant], "write.distribution-mode": "none", "write.spark.fanout.enabled": "true"}
    text = ", ".join(f"'{key}' = '{value}'" for key, value in properties.items())
    for table in tpcds.TABLES:
        by = f"PARTITIONED BY ({PARTITIONING[table]})" if table in PARTITIONING else ""
        lake.spark.sql(
            f"CREATE TABLE {lake(table)} USING iceberg {by} TBLPROPERTIES ({text}) "
            f"AS SELECT * FROM parquet.`{folder}/{table}.parquet`"
        )


# ------------------------------------------------------------------------------------- comparing
def _sorted(table: pyarrow.Table) -> list[tuple[Any, ...]]:
    rows = [tuple(_plain(value) for value in row.values()) for row in table.to_pylist()]
    return sorted(rows, key=lambda row: [_key(value) for value in row])


def _plain(value: Any) -> Any:
    if isinstance(value, int | Decimal) and not isinstance(value, bool):
        return float(value)
    return value.rstrip() if isinstance(value, str) else value


def _key(value: Any) -> tuple[int, Any]:
    """Numbers are compared coarsely: last digits must not decide the order."""
    if value is None:
        return (0, 0)
    if isinstance(value, float):
        return (1, float(f"{value:.4g}"))
    return (2, str(value))


def differ(expected: list[tuple[Any, ...]], got: list[tuple[Any, ...]], *, near: float, nearly: float) -> str:
    """Return how two sorted lists of rows differ; empty if they do not.

    Args:
        expected: The expected rows.
        got: The actual rows.
        near: The permitted absolute difference of numbers.
        nearly: The permitted relative difference of numbers.
    """
    if len(expected) != len(got):
        return f"{len(expected)} rows expected, {len(got)} found"
    for one, other in zip(expected, got, strict=True):
        if not _alike(one, other, near, nearly):
            break
    else:
        return ""
    # If similar numbers have another order, each row must have a similar one.
    rest = list(got)
    for row in expected:
        place = next((index for index, other in enumerate(rest) if _alike(row, other, near, nearly)), None)
        if place is None:
            return f"lacks {row}; left are {rest[:3]}"
        del rest[place]
    return ""


def _alike(one: tuple[Any, ...], other: tuple[Any, ...], near: float, nearly: float) -> bool:
    return all(_same(left, right, near, nearly) for left, right in zip(one, other, strict=True))


def _same(one: Any, other: Any, near: float, nearly: float) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return one == other or abs(one - other) <= max(near, nearly * max(abs(one), abs(other)))
    return bool(one == other)
