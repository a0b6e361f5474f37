# SPDX-License-Identifier: Apache-2.0
"""What each engine reads of tables, by their metadata files. Run by a Python of its own, see ``.ci/readers.txt``.

Standard input is a JSON object with the metadata file of each table; standard output one with the rows, or the error,
of each engine and table. Nothing of this repository is imported.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


def with_pyiceberg(location: str) -> Any:
    from pyiceberg.table import StaticTable

    return StaticTable.from_metadata(location).scan().to_arrow()


def with_arrow(location: str) -> Any:
    """As a stream of batches, which need not fit into memory."""
    from pyiceberg.table import StaticTable

    return StaticTable.from_metadata(location).scan().to_arrow_batch_reader().read_all()


def with_duckdb(location: str) -> Any:
    import duckdb

    connection = duckdb.connect(config={"allow_unsigned_extensions": True})
    for name in ("avro", "iceberg"):
        folder = Path(str(importlib.import_module(f"duckdb_extension_{name}").__file__)).parent
        (extension,) = folder.rglob(f"{name}.duckdb_extension")
        connection.load_extension(str(extension))
    return connection.execute("SELECT * FROM iceberg_scan(?)", [location]).to_arrow_table()


def with_polars(location: str) -> Any:
    import polars

    return polars.scan_iceberg(location).collect().to_arrow()


def with_polars_itself(location: str) -> Any:
    """By its own reader, which is chosen where it knows all that the table needs."""
    import polars

    return polars.scan_iceberg(location, reader_override="native").collect().to_arrow()


def with_daft(location: str) -> Any:
    import daft

    return daft.read_iceberg(location).to_arrow()


def with_datafusion(location: str) -> Any:
    import datafusion
    from pyiceberg_core.datafusion import IcebergDataFusionTable

    context = datafusion.SessionContext()
    table = IcebergDataFusionTable(identifier=["n", "t"], metadata_location=location, file_io_properties={})
    context.register_table("t", table)
    return context.sql("SELECT * FROM t").to_arrow_table()


def with_chdb(location: str) -> Any:
    import chdb

    os.chdir("/")  # it opens files below the current folder only
    folder, _, file = location.removeprefix("file://").rpartition("/metadata/")
    setting = f"iceberg_metadata_file_path = 'metadata/{file}'"
    query = f"SELECT * FROM icebergLocal('{folder}', 'Parquet', SETTINGS {setting})"
    return chdb.to_arrowTable(chdb.query(query, "Arrow"))


#: By the names of ``airflow-mv.readers``.
ENGINES: dict[str, Callable[[str], Any]] = {
    "arrow": with_arrow,
    "clickhouse": with_chdb,
    "daft": with_daft,
    "datafusion": with_datafusion,
    "duckdb": with_duckdb,
    "polars": with_polars,
    "polars native": with_polars_itself,
    "pyiceberg": with_pyiceberg,
}


def text(value: Any) -> str | None:
    """A value as all engines show it: ClickHouse reads text as bytes, and a time without a zone in UTC."""
    shown = value.decode() if isinstance(value, bytes) else value
    return None if shown is None else str(shown).removesuffix("+00:00")


def read(engine: Callable[[str], Any], location: str) -> Any:
    """The rows as text, or the error."""
    try:
        return sorted([text(value) for value in row.values()] for row in engine(location).to_pylist())
    except BaseException as error:  # noqa: BLE001 (some engines panic)
        return f"{type(error).__name__}: {error}"[:500]


if __name__ == "__main__":
    locations = json.load(sys.stdin)
    found = {
        name: {table: read(engine, location) for table, location in locations.items()}
        for name, engine in ENGINES.items()
    }
    print(json.dumps(found))
