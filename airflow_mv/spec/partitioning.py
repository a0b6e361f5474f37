# SPDX-License-Identifier: Apache-2.0
"""Partition fields as users write them, such as ``days(ts)``."""

from __future__ import annotations

import re
from typing import NamedTuple

from airflow_mv.errors import InvalidQueryError
from airflow_mv.quoting import quote

_TRANSFORM = re.compile(
    r"\s*(?:(?P<name>\w+)\s*\(\s*(?:(?P<width>[0-9]{1,10})\s*,\s*)?(?P<argument>\w+|`(?:[^`]|``)+`)\s*\)"
    r"|(?P<column>\w+|`(?:[^`]|``)+`))\s*"
)
_TIME_TRANSFORMS = {word: f"{unit}s" for unit in ("year", "month", "day", "hour") for word in (unit, f"{unit}s")}
_WIDTH_TRANSFORMS = ("bucket", "truncate")
_MAX_WIDTH = 2**31 - 1


class PartitionField(NamedTuple):
    """One partition field.

    Args:
        column: The column.
        transform: ``years``, ``months``, ``days``, ``hours``, ``bucket`` or ``truncate``; empty for the value itself.
        width: The number of buckets, or the width that values are cut to; else 0.
    """

    column: str
    transform: str = ""
    width: int = 0


def partition_field(text: str) -> PartitionField:
    """Read one partition field, such as ``days(ts)``.

    Args:
        text: A column, or ``years``, ``months``, ``days``, ``hours`` of a column, or ``bucket`` or
            ``truncate`` of a width and a column. Spark finds the column when the table is created.

    Raises:
        InvalidQueryError: It is not one of these.
    """
    match = _TRANSFORM.fullmatch(text)
    if match is None:
        raise _no_transform(text)
    column = _column(match["argument"] or match["column"])
    if match["name"] is None:
        return PartitionField(column)
    name, width = match["name"].lower(), match["width"]
    if name in _TIME_TRANSFORMS and width is None:
        return PartitionField(column, _TIME_TRANSFORMS[name])
    if name in _WIDTH_TRANSFORMS and width is not None and 0 < int(width) <= _MAX_WIDTH:
        return PartitionField(column, name, int(width))
    raise _no_transform(text)


def partition_transform(text: str) -> str:
    """Check one partition field, such as ``days(ts)``, and return it with its column quoted.

    Args:
        text: As for :func:`partition_field`.

    Raises:
        InvalidQueryError: It is not one of these.
    """
    column, transform, width = partition_field(text)
    argument = f"{width}, {quote(column)}" if width else quote(column)
    return f"{transform}({argument})" if transform else argument


def _column(written: str) -> str:
    return written[1:-1].replace("``", "`") if written.startswith("`") else written


def _no_transform(text: str) -> InvalidQueryError:
    return InvalidQueryError(
        f"partition field {text!r}: write a column, years(c), months(c), days(c), hours(c), "
        f"bucket(number, c) or truncate(number, c)"
    )
