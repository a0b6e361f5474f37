# SPDX-License-Identifier: Apache-2.0
"""Base tables of formats other than Iceberg. The extra that has the name of a format reads them in the driver.

Of such a table a script has the name, with its format and path: ``delta`.`/path``. Two of its versions differ in whole
files.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from contextlib import AbstractContextManager
from importlib import import_module
from typing import Any, NamedTuple, Protocol, cast

from pyspark.sql import Column, DataFrame

from airflow_mv.core.job.context import JobContext
from airflow_mv.core.script import TableRead
from airflow_mv.core.spec.identifiers import BY_FORMAT
from airflow_mv.errors import ConfigurationError

_NAME = re.compile(r"`(\w+)`\.`(?:[^`]|``)+`")


class Sizes(NamedTuple):
    """The sizes of files; ``rows`` is ``None`` if that of one is unknown."""

    files: int
    bytes: int
    rows: int | None


class Files(Protocol):
    """The files that only one of two versions has."""

    @property
    def sizes(self) -> Sizes:
        """Their sizes."""
        ...

    def frame(self) -> DataFrame:
        """Return their rows."""
        ...


class Versions(Protocol):
    """Two versions of a table."""

    @property
    def removed(self) -> Files:
        """The files that only the first has."""
        ...

    @property
    def added(self) -> Files:
        """The files that only the second has."""
        ...

    @property
    def has_feed(self) -> bool:
        """Whether the table has a change data feed between the two."""
        ...

    def problem(self, columns: Collection[str]) -> str | None:
        """Return why the rows of the two cannot be compared in these columns; ``None`` if they can."""
        ...

    def feed(self) -> tuple[DataFrame, Column]:
        """Return the rows of the change data feed, and their weight: 1 for a new row, -1 for a removed one."""
        ...


class JobTables(Protocol):
    """What the module ``job.tables`` of a format's extra has."""

    def require(self, context: JobContext, table: str) -> None:
        """Check that the session can read tables of this format.

        Raises:
            ConfigurationError: It cannot.
        """
        ...

    def reading(self, context: JobContext) -> AbstractContextManager[None]:
        """Return a block in which statements that write may read tables of this format."""
        ...

    def table_of(self, leaf: Any, reads: Collection[TableRead]) -> tuple[str, str] | None:
        """Return the table and its version that a ``LogicalRelation`` reads; ``None`` for another relation."""
        ...

    def has_version(self, context: JobContext, table: str, version: int) -> bool:
        """Whether a version of a table can be read."""
        ...

    def versions(self, context: JobContext, table: str, start: int, end: int) -> Versions:
        """Return two versions of a table."""
        ...


def format_of(table: str) -> JobTables | None:
    """Return what reads a table; ``None`` for one of Iceberg.

    Args:
        table: The quoted name, as in a script.

    Raises:
        ConfigurationError: This driver has not the extra of its format.
    """
    match = _NAME.fullmatch(table)
    if match is None or match[1] not in BY_FORMAT:
        return None
    try:
        return cast("JobTables", import_module(f"airflow_mv.extras.{match[1]}.job.tables"))
    except ModuleNotFoundError:
        raise ConfigurationError(f"{table}: this installation cannot read {match[1]} tables") from None


def formats_of(reads: Iterable[TableRead]) -> dict[JobTables, str]:
    """Return the formats of tables other than Iceberg's, each with the first of its tables.

    Raises:
        ConfigurationError: As for :func:`format_of`.
    """
    found: dict[JobTables, str] = {}
    for read in reads:
        if (tables := format_of(read.table)) is not None:
            found.setdefault(tables, read.table)
    return found
