# SPDX-License-Identifier: Apache-2.0
"""The lake that all tools use: its base tables, what happens to them, and what the views should hold."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_mv.core.catalog import MaterializedViewCatalog
from airflow_mv.extras.spark.session import InProcessStager, settings_of
from benchmarks.changes import Tables
from benchmarks.incremental import QUERIES
from benchmarks.peers.turns import APPENDED, SCATTERED, Fingerprint
from benchmarks.tpch import CATALOG, SCRATCH, TABLES, Warehouse

if TYPE_CHECKING:
    from pyiceberg.catalog.sql import SqlCatalog

#: Share of the orders that a change concerns.
_SHARE = 0.001
#: Merge-on-read: what each of the tools can read, and what Iceberg's own engines write for scattered changes.
_VARIANT = "v2-mor"
#: Numbers that Spark and Trino compute alike. The first counts rows of ``lineitem``.
_NUMBERS: Mapping[str, str] = {
    "v0": "count(*), sum(l_orderkey), sum(l_quantity), sum(l_extendedprice)",
    "v1": "count(*), sum(l_orderkey), sum(l_quantity), sum(l_extendedprice), sum(o_custkey)",
    "v2": "sum(items), count(*), sum(quantity), sum(revenue)",
    "v3": "sum(items), count(*), sum(order_year), sum(revenue)",
}
#: After which a tool's process is given up, in seconds.
_MAX_LENGTH = 300


class ToolError(Exception):
    """A tool's process failed. The message has the end of its output."""


@dataclass
class Lake:
    """Base tables and a Spark session, in which they are changed.

    Args:
        warehouse: Where everything is.
        pointers: Its catalog.
        scratch: A folder for the tools' own files.
        views: The views that all tools keep, by name.
    """

    warehouse: Warehouse
    pointers: SqlCatalog
    scratch: Path
    views: tuple[str, ...]
    _changes: int = 0

    def __post_init__(self) -> None:
        self.catalog = MaterializedViewCatalog(self.pointers)
        self.stager = InProcessStager(self.catalog, report=lambda _: None)
        self.tables = Tables(_VARIANT, self.warehouse.scale, "peers")

    def fill(self) -> None:
        """Make the base tables anew."""
        self.warehouse.fill(self.pointers, self.stager.session)
        self.warehouse.clear(self.pointers)
        self.pointers.create_namespace_if_not_exists(self.tables.namespace)
        self.tables.copy(self.stager.session, self.pointers)

    def namespace(self, tool: str) -> str:
        """Return the namespace of a tool's tables, which is made if necessary."""
        name = f"{SCRATCH}_peers_{tool}"
        self.pointers.create_namespace_if_not_exists(name)
        return name

    def query(self, view: str) -> str:
        """Return a view's SQL."""
        return self.tables.sql(QUERIES[view]).strip()

    def change(self, stage: str) -> None:
        """Do to the base tables what happens before a stage."""
        self._changes += 1
        if stage == APPENDED:
            self.tables.append(self.stager.session, _SHARE, self._changes)
        elif stage == SCATTERED:
            self.tables.mix(self.stager.session, _SHARE, self._changes)

    def right(self) -> dict[str, Fingerprint]:
        """Return what each view should hold now."""
        return {view: self.holds(view, f"({self.query(view)})") for view in self.views}

    def holds(self, view: str, rows: str) -> Fingerprint:
        """Return what some rows of a view hold: those of a table, of a temporary view, or of a query in brackets."""
        (found,) = self.stager.session.sql(f"SELECT {_NUMBERS[view]} FROM {rows}").collect()
        return numbers(found)

    def base_metadata(self) -> dict[str, str]:
        """Return the metadata file of each base table."""
        return {name: self.pointers.load_table((self.tables.namespace, name)).metadata_location for name in TABLES}

    @cached_property
    def spark_folder(self) -> Path:
        """A folder with a ``spark-defaults.conf``, by which another process's Spark has the same settings."""
        import pyspark

        confs = settings_of(self.catalog).on(pyspark.__version__).session_confs()
        confs |= {"spark.sql.defaultCatalog": CATALOG, "spark.ui.enabled": "false"}
        folder = self.scratch / "spark"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "spark-defaults.conf").write_text("".join(f"{key} {value}\n" for key, value in confs.items()))
        return folder

    def run(self, command: list[str], folder: Path, **variables: str) -> tuple[float, str]:
        """Run a tool's process with Spark's settings.

        Returns:
            Seconds, and what it printed to standard output.

        Raises:
            ToolError: It failed.
        """
        plain = {key: value for key, value in os.environ.items() if not key.startswith(("SPARK_", "PYSPARK_"))}
        environment = {**plain, "SPARK_CONF_DIR": str(self.spark_folder), "SPARK_LOCAL_IP": "127.0.0.1", **variables}
        started = time.perf_counter()
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=_MAX_LENGTH, check=False
        )
        if done.returncode:
            raise ToolError(
                f"{Path(command[0]).name} ended with {done.returncode}: {(done.stdout + done.stderr)[-2000:]}"
            )
        return time.perf_counter() - started, done.stdout


def numbers(row: Any) -> Fingerprint:
    """Return the numbers of a row in a form that does not depend on the engine."""
    return tuple(Decimal(str(value)).normalize() for value in row)


def numbers_of(view: str, table: str) -> str:
    """Return the query for what a view holds, in any dialect."""
    return f"SELECT {_NUMBERS[view]} FROM {table}"
