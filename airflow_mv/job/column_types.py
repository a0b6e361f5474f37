# SPDX-License-Identifier: Apache-2.0
"""Check that the types of a query are still those of the view's columns."""

from __future__ import annotations

import re
from itertools import zip_longest

from pyspark.sql import types as T

from airflow_mv.errors import InvalidQueryError
from airflow_mv.job.context import JobContext
from airflow_mv.script import Script

_PLAIN = re.compile(r"[a-z_]+(\(\d+,\d+\))?")
#: Lines of types. Each type can hold all values of the types before it in its line.
_LINES = (
    (T.ByteType, T.ShortType, T.IntegerType, T.LongType),
    (T.FloatType, T.DoubleType),
)


def check_types(context: JobContext, script: Script) -> None:
    """Refuse a query whose column types no longer fit the view's columns.

    Spark would convert the values, and lose digits or fail on the first value that is too large.

    Args:
        context: The context of the run.
        script: The script with the query and the types, bound to the run.

    Raises:
        InvalidQueryError: Names the columns and the types.
    """
    found = context.analysed(script.query).schema
    if [_plain(kind) for _, kind in script.types] == [kind.simpleString() for kind in _kinds(found)]:
        return
    wanted = context.query("SELECT " + ", ".join(f"CAST(NULL AS {kind}) AS `c`" for _, kind in script.types)).schema
    changed = [
        f"the query's type of column {name} changed from {want.simpleString()} to {have.simpleString()}"
        for (name, _), want, have in zip(script.types, _kinds(wanted), _kinds(found), strict=False)
        if not _holds(want, have)
    ]
    if len(found.fields) != len(script.types):
        changed = [f"the query has {len(found.fields)} columns, and the view has {len(script.types)}"]
    if changed:
        advice = f"replace the view (airflow-mv create {script.view} --replace, with the same query)"
        raise InvalidQueryError(f"{'; '.join(changed)}: {advice}")


def _plain(kind: str) -> str | None:
    """Return a type's text as Spark writes it; ``None`` for a type with parts, which Spark has to parse."""
    text = kind.replace(" ", "").lower()
    return text if _PLAIN.fullmatch(text) else None


def _kinds(schema: T.StructType) -> list[T.DataType]:
    return [field.dataType for field in schema.fields]


def _holds(want: T.DataType, have: T.DataType) -> bool:
    """Whether a column of one type can hold each value of another type exactly."""
    if isinstance(want, T.StructType) and isinstance(have, T.StructType):
        pairs = zip_longest(want.fields, have.fields)
        return all(a and b and a.name == b.name and _holds(a.dataType, b.dataType) for a, b in pairs)
    if isinstance(want, T.ArrayType) and isinstance(have, T.ArrayType):
        return _holds(want.elementType, have.elementType)
    if isinstance(want, T.MapType) and isinstance(have, T.MapType):
        return _holds(want.keyType, have.keyType) and _holds(want.valueType, have.valueType)
    if isinstance(want, T.DecimalType) and isinstance(have, T.DecimalType):
        whole = want.precision - want.scale >= have.precision - have.scale
        return whole and want.scale >= have.scale
    for line in _LINES:
        if type(want) in line and type(have) in line:
            return line.index(type(want)) >= line.index(type(have))
    return want.typeName() == have.typeName() or (isinstance(want, T.StringType) and isinstance(have, T.StringType))
