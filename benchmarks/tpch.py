# SPDX-License-Identifier: Apache-2.0
"""TPC-H as Iceberg tables in a SQLite-catalogued warehouse: made once for a scale factor, then kept."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pyiceberg.catalog import load_catalog
from pyiceberg.catalog.sql import IcebergTables, SqlCatalog
from sqlalchemy import delete

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CATALOG = "lake"
#: Where the base tables are, and where the benchmarks put what they make: here, and in namespaces that begin so.
DATA, SCRATCH = "tpch", "bench"
TABLES = ("nation", "supplier", "orders", "lineitem")

#: The views of the comparison with other tools: a join that keeps many rows, and two that keep few.
VIEWS: Mapping[str, str] = {
    "v1": """
SELECT l.l_orderkey, l.l_linenumber, l.l_quantity, l.l_extendedprice, l.l_discount, l.l_shipdate,
       o.o_custkey, o.o_orderdate, o.o_orderpriority
FROM lake.tpch.lineitem l JOIN lake.tpch.orders o ON l.l_orderkey = o.o_orderkey
WHERE o.o_orderpriority = '3-MEDIUM'""",
    "v2": """
SELECT date_trunc('month', l_shipdate) AS ship_month, l_returnflag, l_linestatus,
       sum(l_quantity) AS quantity, sum(l_extendedprice * (1 - l_discount)) AS revenue, count(*) AS items
FROM lake.tpch.lineitem
GROUP BY date_trunc('month', l_shipdate), l_returnflag, l_linestatus""",
    "v3": """
SELECT n.n_name AS nation, year(o.o_orderdate) AS order_year,
       sum(l.l_extendedprice * (1 - l.l_discount)) AS revenue, count(*) AS items
FROM lake.tpch.lineitem l
JOIN lake.tpch.orders o ON l.l_orderkey = o.o_orderkey
JOIN lake.tpch.supplier s ON l.l_suppkey = s.s_suppkey
JOIN lake.tpch.nation n ON s.s_nationkey = n.n_nationkey
GROUP BY n.n_name, year(o.o_orderdate)""",
}


@dataclass(frozen=True, slots=True)
class Warehouse:
    """The tables of one scale factor.

    Args:
        folder: Absolute path; holds the catalog, the warehouse and, while it is made, the raw files.
        scale: TPC-H scale factor; 1 is 6 million rows of lineitem.
    """

    folder: Path
    scale: float

    @classmethod
    def below(cls, cache: Path, scale: float) -> Warehouse:
        """The tables of a scale factor in a cache folder."""
        return cls(cache.resolve() / f"tpch-sf{scale:g}", scale)

    @property
    def properties(self) -> dict[str, str]:
        """What pyiceberg needs to open the catalog; Spark's settings follow from it."""
        return {
            "type": "sql",
            "uri": f"sqlite:///{self.folder / 'catalog.db'}",
            "warehouse": (self.folder / "warehouse").as_uri(),
            "spark.driver.memory": "4g",
        }

    def open(self) -> SqlCatalog:
        """Open the catalog, with its two namespaces."""
        self.folder.mkdir(parents=True, exist_ok=True)
        catalog = load_catalog(CATALOG, **self.properties)
        assert isinstance(catalog, SqlCatalog)
        for namespace in (DATA, SCRATCH):
            catalog.create_namespace_if_not_exists(namespace)
        return catalog

    def fill(self, catalog: SqlCatalog, spark: SparkSession) -> None:
        """Make the tables that are not there yet."""
        missing = [name for name in TABLES if not catalog.table_exists((DATA, name))]
        if not missing:
            return
        raw = self.folder / "raw"
        print(f"Making TPC-H at scale factor {self.scale:g} in {self.folder} (once)", flush=True)
        _generate(raw, self.scale, missing)
        for name in missing:
            spark.sql(
                f"CREATE TABLE {CATALOG}.{DATA}.{name} USING iceberg AS SELECT * FROM parquet.`{raw / name}.parquet`"
            )
        shutil.rmtree(raw)

    def clear(self, catalog: SqlCatalog) -> None:
        """Drop what earlier runs of the benchmarks made, rows and files."""
        with catalog.engine.begin() as connection:
            names = delete(IcebergTables).where(IcebergTables.table_namespace.startswith(SCRATCH))
            connection.execute(names)
        for folder in (self.folder / "warehouse").glob(f"{SCRATCH}*"):
            shutil.rmtree(folder, ignore_errors=True)


def _generate(raw: Path, scale: float, tables: list[str]) -> None:
    program = Path(sys.executable).with_name("tpchgen-cli")
    if not program.exists():
        raise SystemExit("tpchgen-cli is missing; install it: pip install 'airflow-mv[bench]'")
    raw.mkdir(parents=True, exist_ok=True)
    command = [str(program), "parquet", "--scale-factor", f"{scale:g}", "--tables", ",".join(tables)]
    subprocess.run([*command, "--output-dir", str(raw), "--quiet"], check=True)
