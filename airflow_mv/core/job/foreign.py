# SPDX-License-Identifier: Apache-2.0
"""Base tables of formats other than Iceberg. The extra that has the name of a format reads them in the driver.

Of such a table a script has the name, with its format and path: ``delta`.`/path``. Two of its versions differ in whole
files.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol, cast

from pyspark.sql import DataFrame

from airflow_mv.core.job.context import JobContext
from airflow_mv.core.script import Delta, DeltaStep, TableRead
from airflow_mv.core.spec.identifiers import BY_FORMAT
from airflow_mv.errors import ConfigurationError

_NAME = re.compile(r"`(\w+)`\.`(?:[^`]|``)+`")


@dataclass(frozen=True, slots=True)
class ChangeRead:
    """A signed frame that has not run yet, and the facts that are known about it.

    Args:
        frame: The columns and the weight.
        facts: The data that will be read.
        net: Whether each row's weight is its net change already.
        sized: Whether Spark's own estimate of its size is about right.
        added: Whether it is known that no row was removed.
        most: An upper bound of its rows, if it is less than the rows read.
        held: Whether it is computed from so many rows that are held already.
    """

    frame: DataFrame
    facts: Delta
    net: bool = True
    sized: bool = True
    added: bool = False
    most: int | None = None
    held: bool = False


class JobTables(Protocol):
    """The interface of the module ``job.tables`` of a format's extra."""

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

    def change(self, context: JobContext, step: DeltaStep, start: int, end: int) -> ChangeRead:
        """Read the change of a table between two versions.

        Raises:
            IncrementalRefusedError: Its rows cannot be compared.
        """
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
