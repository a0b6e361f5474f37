# SPDX-License-Identifier: Apache-2.0
"""What the statistics of data files prove about their rows, without reading one of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import date
from decimal import Decimal, InvalidOperation
from typing import Any, Protocol

from pyiceberg.expressions import (
    And,
    BooleanExpression,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    LessThan,
    LessThanOrEqual,
)
from pyiceberg.expressions.visitors import _InclusiveMetricsEvaluator
from pyiceberg.manifest import ManifestContent, ManifestEntryStatus
from pyiceberg.schema import Schema
from pyiceberg.serializers import FromInputFile
from pyiceberg.types import DateType, DecimalType, IntegerType, LongType, StringType

from airflow_mv.catalog.files import MetadataFiles

_EXPRESSIONS: Mapping[str, Callable[..., BooleanExpression]] = {
    "=": EqualTo,
    "<": LessThan,
    "<=": LessThanOrEqual,
    ">": GreaterThan,
    ">=": GreaterThanOrEqual,
}
#: More manifests than this are not looked through: a Spark job costs less.
_MOST_MANIFESTS = 50


class Comparison(Protocol):
    """A column against a literal."""

    @property
    def column(self) -> str:
        """The column."""

    @property
    def operator(self) -> str:
        """``=``, ``<``, ``<=``, ``>`` or ``>=``."""

    @property
    def value(self) -> str:
        """The literal's text."""

    @property
    def kind(self) -> str:
        """``number``, ``text`` or ``date``."""


def added_rows_may_match(
    files: MetadataFiles,
    location: str,
    snapshots: Collection[int],
    filters: Sequence[Sequence[Comparison]],
) -> bool:
    """Whether a row that was appended may pass one of several filters; ``True`` where it cannot be told.

    Args:
        files: The table's store.
        location: A metadata file of the table that knows the snapshots.
        snapshots: The appending snapshots.
        filters: Filters; a row that passes one of them matters.
    """
    if not all(filters):
        return True
    io = files.io(location, what="table metadata file")
    table = FromInputFile.table_metadata(io.new_input(location))
    expressions = [_expression(comparisons, table.schema()) for comparisons in filters]
    if None in expressions:
        return True
    tests = [_InclusiveMetricsEvaluator(table.schema(), item) for item in expressions if item is not None]
    manifests = [
        manifest
        for snapshot in table.snapshots
        if snapshot.snapshot_id in snapshots
        for manifest in snapshot.manifests(io)
        if manifest.content == ManifestContent.DATA and manifest.added_snapshot_id == snapshot.snapshot_id
    ]
    if len(manifests) > _MOST_MANIFESTS:
        return True
    added = (
        entry.data_file
        for manifest in manifests
        for entry in manifest.fetch_manifest_entry(io)
        if entry.status == ManifestEntryStatus.ADDED
    )
    return any(test.eval(file) for file in added for test in tests)


def _expression(comparisons: Sequence[Comparison], schema: Schema) -> BooleanExpression | None:
    """Return what of a filter can be tested against statistics, or ``None`` for nothing."""
    parts = []
    for comparison in comparisons:
        value = _value(comparison, schema)
        if value is not None:
            parts.append(_EXPRESSIONS[comparison.operator](comparison.column, value))
    if not parts:
        return None
    return parts[0] if len(parts) == 1 else And(*parts)


def _value(comparison: Comparison, schema: Schema) -> Any:
    """Return a literal in the column's own type; ``None`` where Spark would convert the column instead."""
    try:
        kind = schema.find_field(comparison.column).field_type
        if isinstance(kind, IntegerType | LongType) and comparison.kind == "number":
            return int(comparison.value)
        if isinstance(kind, DecimalType) and comparison.kind == "number":
            value = Decimal(comparison.value)
            scaled = value.quantize(Decimal(1).scaleb(-kind.scale))  # pyiceberg takes it in the column's scale only
            return scaled if scaled == value else None
        if isinstance(kind, StringType) and comparison.kind == "text":
            return comparison.value
        if isinstance(kind, DateType) and comparison.kind == "date":
            return date.fromisoformat(comparison.value)
    except (ValueError, InvalidOperation):
        return None
    return None
