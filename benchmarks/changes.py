# SPDX-License-Identifier: Apache-2.0
"""Copies of TPC-H's tables in each table format, and changes of a given size to them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from benchmarks.tpch import CATALOG, DATA, TABLES

if TYPE_CHECKING:
    from pyiceberg.catalog.sql import SqlCatalog
    from pyspark.sql import SparkSession

#: Table properties by variant: how rows are deleted.
VARIANTS: Mapping[str, Mapping[str, str]] = {
    f"v{version}-{short}": {
        "format-version": version,
        **{f"write.{verb}.mode": mode for verb in ("delete", "update", "merge")},
    }
    for version in ("2", "3")
    for short, mode in (("cow", "copy-on-write"), ("mor", "merge-on-read"))
}
#: Order keys of TPC-H leave gaps and end below this times the scale factor.
_KEYS = 6_000_000


@dataclass(frozen=True, slots=True)
class Tables:
    """A variant's own copies of the tables.

    Args:
        variant: One of :data:`VARIANTS`.
        scale: TPC-H scale factor.
        purpose: Words that tell these copies from others.
    """

    variant: str
    scale: float
    purpose: str

    @property
    def namespace(self) -> str:
        """Where they are."""
        return "_".join(["bench", *self.purpose.replace("-", " ").split()])

    def name(self, table: str) -> str:
        """A table's full name."""
        return f"{CATALOG}.{self.namespace}.{table}"

    def copy(self, spark: SparkSession, catalog: SqlCatalog) -> None:
        """Make the copies anew. They share the files of tables that are made once, and write their own elsewhere."""
        for table in TABLES:
            self._share(spark, catalog, table)

    def as_variant(self, spark: SparkSession, variant: str) -> Tables:
        """Let later changes delete rows as a variant of the same format version does, and return the tables as that."""
        for table in TABLES:
            spark.sql(f"ALTER TABLE {self.name(table)} SET TBLPROPERTIES ({_written(VARIANTS[variant])})")
        return replace(self, variant=variant)

    def _share(self, spark: SparkSession, catalog: SqlCatalog, table: str) -> None:
        name = (self.namespace, table)
        if catalog.table_exists(name):
            catalog.drop_table(name)
        original = catalog.load_table((self._made_once(spark, catalog, table), table))
        catalog.register_table(name, original.metadata_location)
        folder = f"{original.location().rsplit('/', 2)[0]}/{self.namespace}/{table}"
        own = {"write.data.path": f"{folder}/data", "write.metadata.path": f"{folder}/metadata"}
        properties = _written({**VARIANTS[self.variant], **own})
        spark.sql(f"REFRESH TABLE {self.name(table)}")
        spark.sql(f"ALTER TABLE {self.name(table)} SET TBLPROPERTIES ({properties})")

    def _made_once(self, spark: SparkSession, catalog: SqlCatalog, table: str) -> str:
        """Return the namespace of the table in the variant's format. Rows of format 3 have ids from their beginning."""
        version = VARIANTS[self.variant]["format-version"]
        if version == "2":
            return DATA
        namespace = f"{DATA}_v{version}"
        catalog.create_namespace_if_not_exists(namespace)
        if not catalog.table_exists((namespace, table)):
            spark.sql(
                f"CREATE TABLE {CATALOG}.{namespace}.{table} USING iceberg "
                f"TBLPROPERTIES ('format-version' = '{version}') AS SELECT * FROM {CATALOG}.{DATA}.{table}"
            )
        return namespace

    def sql(self, view: str) -> str:
        """A view's query over the copies."""
        return view.replace(f"{CATALOG}.{DATA}.", f"{CATALOG}.{self.namespace}.")

    # -- changes: a share of orders, and their lineitems ---------------------------------------------

    def append(self, spark: SparkSession, share: float, number: int) -> None:
        """Insert copies of a share of the orders and of their lineitems under new keys.

        Args:
            spark: The session.
            share: 0 to 1.
            number: Distinguishes one change from the next.
        """
        shift = int(_KEYS * self.scale * 4) * number
        for table, key in (("orders", "o_orderkey"), ("lineitem", "l_orderkey")):
            columns = [column for column in spark.table(self.name(table)).columns if column != key]
            spark.sql(
                f"INSERT INTO {self.name(table)} ({key}, {', '.join(columns)}) "
                f"SELECT {key} + {shift}, {', '.join(columns)} FROM {CATALOG}.{DATA}.{table} "
                f"WHERE {_chosen(key, share, number)}"
            )

    def mix(self, spark: SparkSession, share: float, number: int) -> None:
        """Delete half of a share of the orders with their lineitems, and update the other half's lineitems."""
        self._change(
            spark, _chosen("o_orderkey", share / 2, 2 * number), _chosen("o_orderkey", share / 2, 2 * number + 1)
        )

    def cluster(self, spark: SparkSession, share: float, number: int) -> None:
        """The same for orders whose rows are stored side by side, as those of one day in a table that grows daily."""
        keys = _KEYS * self.scale
        first = int(keys * (0.1 + 0.07 * number % 0.8))
        middle, last = first + int(keys * share / 2), first + int(keys * share)
        self._change(spark, f"o_orderkey BETWEEN {first} AND {middle}", f"o_orderkey BETWEEN {middle + 1} AND {last}")

    def _change(self, spark: SparkSession, deleted: str, updated: str) -> None:
        spark.sql(f"DELETE FROM {self.name('orders')} WHERE {deleted}")
        # Copy-on-write rewrites each file once for it. A DELETE and an UPDATE would rewrite it twice.
        spark.sql(
            f"MERGE INTO {self.name('lineitem')} USING (\n"
            f"SELECT o_orderkey, {deleted} AS deleted FROM {CATALOG}.{DATA}.orders WHERE {deleted} OR {updated})\n"
            "ON l_orderkey = o_orderkey\nWHEN MATCHED AND deleted THEN DELETE\n"
            "WHEN MATCHED THEN UPDATE SET l_quantity = l_quantity + 1, l_extendedprice = l_extendedprice * 1.01"
        )


def _written(properties: Mapping[str, str]) -> str:
    return ", ".join(f"'{key}' = '{value}'" for key, value in properties.items())


def _chosen(key: str, share: float, number: int) -> str:
    """Return a predicate that holds for about this share of the keys, another one for each number."""
    return f"pmod(xxhash64({key}, {number}), 1000000) < {round(share * 1_000_000)}"
