# SPDX-License-Identifier: Apache-2.0
"""Rows as Arrow, and as frames of other libraries."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from importlib import import_module
from typing import TYPE_CHECKING, Any

from airflow_mv.errors import ConfigurationError

if TYPE_CHECKING:
    import duckdb
    import pandas
    import polars
    import pyarrow


class ArrowRows(ABC):
    """Rows that can be read as Arrow."""

    #: The view's name, without its catalog and namespace.
    _name: str

    @property
    @abstractmethod
    def columns(self) -> list[str]:
        """Column names in order."""

    @abstractmethod
    def to_arrow(self) -> pyarrow.Table:
        """Read the rows as an Arrow table."""

    @abstractmethod
    def to_arrow_batch_reader(self) -> pyarrow.RecordBatchReader:
        """Read the rows as a stream of Arrow batches, which need not fit into memory. It can be read once."""

    def to_pandas(self) -> pandas.DataFrame:
        """Read the rows as a pandas frame.

        Raises:
            ConfigurationError: pandas is not installed.
        """
        _library("pandas")
        return self.to_arrow().to_pandas()

    def to_polars(self) -> polars.DataFrame:
        """Read the rows as a Polars frame.

        Raises:
            ConfigurationError: Polars is not installed.
        """
        return _library("polars").from_arrow(self.to_arrow())

    def to_duckdb(
        self, table_name: str | None = None, connection: duckdb.DuckDBPyConnection | None = None
    ) -> duckdb.DuckDBPyConnection:
        """Read the rows, and register them as a table of DuckDB.

        Args:
            table_name: By default the view's name, without its catalog and namespace.
            connection: By default a new database in memory.

        Raises:
            ConfigurationError: DuckDB is not installed.
        """
        opened = connection or _library("duckdb").connect()
        opened.register(table_name or self._name, self.to_arrow())
        return opened

    def rows(self) -> Iterator[list[Any]]:
        """Yield each row as a list of Python values."""
        for batch in self.to_arrow_batch_reader():
            yield from (list(row.values()) for row in batch.to_pylist())


def _library(name: str) -> Any:
    """Import a library that is needed for one kind of frame only.

    Raises:
        ConfigurationError: It is not installed.
    """
    try:
        return import_module(name)
    except ImportError:
        raise ConfigurationError(f"{name} is not installed: pip install {name}") from None
