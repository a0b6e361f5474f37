# SPDX-License-Identifier: Apache-2.0
"""Check a view's query as Spark has analysed it: it reads its base tables at their snapshots, and nothing else.

Its types must still be those of the view's columns.

A refresh records the snapshots of the tables that the query's text names. A SQL function (``CREATE FUNCTION …
RETURN …``) may read another table, and may be replaced by another definition, which no snapshot records. Therefore
views must not call SQL functions. Spark expands functions when it analyses the query, so the analysed plan shows
everything that is read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, suppress
from itertools import zip_longest
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import types as T

from airflow_mv.core.job.context import JobContext
from airflow_mv.core.job.foreign import formats_of
from airflow_mv.core.script import METADATA_COLUMNS, Script
from airflow_mv.core.spec.identifiers import quoted
from airflow_mv.errors import InvalidQueryError

#: Settings with which a plan's text is complete.
_WHOLE_TEXT = {"spark.sql.debug.maxToStringFields": str(2**31 - 1), "spark.sql.maxPlanStringLength": str(2**31 - 16)}
_PART = "`(?:[^`]|``)+`"
TREE_PATTERNS = "org.apache.spark.sql.catalyst.trees.TreePattern"
_VARIABLES = "VARIABLE_REFERENCE"
#: The setting of a Spark that counts the rows of correlated subqueries rightly, where there are none.
_COUNTS = "DECORRELATE_EXISTS_IN_SUBQUERY_LEGACY_INCORRECT_COUNT_HANDLING_ENABLED"
#: Leaf nodes of a plan that do not read a table.
_CONSTANT = frozenset({"OneRowRelation", "LocalRelation", "Range", "CTERelationRef", "UnionLoopRef"})
_TABLE = "DataSourceV2Relation"
#: Delta's extension replaces its relation by one of the first version of Spark's API.
_FILES = "LogicalRelation"
#: The key of a column's metadata by which Spark marks a metadata column.
_METADATA_COLUMN = "__metadata_col"
#: What a SQL function that gives a table leaves in the analysed plan. It has no tree pattern.
_FUNCTION_NODE = "SQLFunctionNode"
_ANALYSED = re.compile(r"(?s)== Analyzed Logical Plan ==\n(.*?)\n== Optimized Logical Plan ==")
_TABLE_IN_TEXT = re.compile(r"(?m)^[ :+-]*RelationV2\[(.*)\] (.+)$")
#: A metadata column among the columns of a table. Iceberg reads no table that has a column of such a name itself.
_METADATA_IN_TEXT = re.compile(rf"(?:^|, )({'|'.join(sorted(METADATA_COLUMNS))})#\d+L?(?=,|$)")
_OTHER_IN_TEXT = re.compile(r"(?m)^[ :+-]*(Relation(?!V2)|HiveTableRelation|LogicalRDD|InMemoryRelation)\b.*$")
_VARIABLE = re.compile(r"variablereference\(([^=)]+)=")
#: Text that may be a call of a function by its full name.
_CALL = re.compile(rf"(?<![\w`.])((?:(?:{_PART}|\w+)\s*\.\s*)*(?:{_PART}|\w+))\s*\(")
_FUNCTION_IN_TEXT = re.compile(rf"(?m)^[ :+-]*{_FUNCTION_NODE} ")
_SQL_FUNCTION = "sqlFunction."
#: Frequent functions of Spark. No SQL function can take their names, so the server is not asked about them.
_FREQUENT = """
    abs and any_value approx_count_distinct array array_agg avg bool_and bool_or cast ceil coalesce collect_list
    collect_set concat concat_ws contains count count_if date date_add date_diff date_format date_sub date_trunc day
    dayofweek dense_rank explode first floor from_json get_json_object greatest grouping hash hour if ifnull in
    isnotnull isnull lag last lead least length like lower lpad ltrim map max max_by md5 min min_by minute mod month
    named_struct not nullif nvl or percentile power quarter rank regexp_extract regexp_replace replace round
    row_number rpad rtrim second sha2 size split sqrt stddev string struct substr substring sum timestamp to_date
    to_timestamp trim trunc try_divide unix_timestamp upper variance weekofyear when xxhash64 year
"""
BUILT_IN = frozenset(_FREQUENT.split())
#: Comments, quoted names and strings. A string in which its quote is written twice is Spark 4.1's.
_STRINGS = re.compile(
    r"""(?s)--[^\n]*|/\*.*?\*/|`[^`]*`|(?P<doubled>'(?:[^'\\]|\\.)*''|"(?:[^"\\]|\\.)*"")"""
    r"""|'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\""""
)
_CURE = "a refresh reads the tables that the query names at the snapshots that it records, and nothing else"

_PLAIN = re.compile(r"[a-z_]+(\(\d+,\d+\))?")
#: Lines of types. Each type can hold all values of the types before it in its line.
_LINES = (
    (T.ByteType, T.ShortType, T.IntegerType, T.LongType),
    (T.FloatType, T.DoubleType),
)

#: A table's quoted name, and the snapshot that is read.
_TableSnapshot = tuple[str, str | None]


def check_reads(context: JobContext, sql: str) -> DataFrame:
    """Analyse a query and check what it reads.

    Args:
        sql: The query. It may read what the run's script lists.

    Returns:
        The query as a frame; it has not run.

    Raises:
        InvalidQueryError: It calls a SQL function, or reads a session variable, a metadata column or anything else than
            these tables at their snapshots. Or Spark leaves out the quotes in its strings.
    """
    _check_strings(context, sql)
    frame = context.analysed(sql)
    if context.jvm is None:
        _check_text(context, sql, frame)
        return frame
    plan: Any = frame._jdf.queryExecution().analyzed()
    nodes = [(node, _kind(node)) for node in _nodes(plan)]
    if contains(context, plan, "SQL_SCALAR_FUNCTION") or any(kind == _FUNCTION_NODE for _, kind in nodes):
        raise _function(next(_sql_functions(context, sql), "(of unknown name)"))
    if not context.java.can.has(TREE_PATTERNS, _VARIABLES) or contains(context, plan, _VARIABLES):
        with whole_text(context):
            _check_variables(str(plan.toString()))
    _check_counts(context, nodes)
    _check_leaves(context, [(node, kind) for node, kind in nodes if node.children().isEmpty()])
    _check_metadata_columns(sql, [node for node, kind in nodes if kind in (_TABLE, _FILES)])
    return frame


def contains(context: JobContext, plan: Any, pattern: str) -> bool:
    """Whether a plan has a tree pattern. Without such a pattern in Spark it does not: 3.5 has no SQL functions.

    Args:
        pattern: Such as ``PYTHON_UDF``.
    """
    patterns = context.java.find(TREE_PATTERNS)
    return context.java.can.has(TREE_PATTERNS, pattern) and bool(plan.containsPattern(getattr(patterns, pattern)()))


def _check_strings(context: JobContext, sql: str) -> None:
    """Refuse a quote that is written twice in a string, if Spark leaves both out: the plan was made with one.

    Spark 4.0 does, and 4.1 with ``spark.sql.legacy.consecutiveStringLiterals.enabled``.
    """
    doubled = next((found["doubled"] for found in _STRINGS.finditer(sql) if found["doubled"]), None)
    if doubled is not None and context.spark.sql("SELECT 'a''b'").collect()[0][0] != "a'b":
        raise InvalidQueryError(
            f"the query has the string {doubled}…, and Spark {context.spark.version} leaves out quotes written "
            "twice (in Spark 4.1 by the setting spark.sql.legacy.consecutiveStringLiterals.enabled): write \\' instead"
        )


def _check_counts(context: JobContext, nodes: list[tuple[Any, str]]) -> None:
    """Refuse a correlated subquery for which Spark 3.5 does not see that an aggregate of no rows is also a row.

    There ``EXISTS (SELECT count(*) …)`` is false if no row matches. It does see it if a scalar subquery is no more than
    the aggregate.
    """
    if context.java.can.has("org.apache.spark.sql.internal.SQLConf", _COUNTS):
        return
    for node, _ in nodes:
        if node.subqueries().isEmpty():
            continue
        for kind, subquery in _subqueries(node):
            if not contains(context, subquery, "OUTER_REFERENCE"):
                continue
            wholes = [item for item in _below(subquery) if _is_whole(item)]
            top = subquery
            while _kind(top) in ("Project", "Filter", "SubqueryAlias"):
                top = top.children().apply(0)
            if wholes and not (kind == "ScalarSubquery" and len(wholes) == 1 and _is_whole(top)):
                raise InvalidQueryError(
                    f"the query has a correlated subquery with an aggregate without GROUP BY, for which Spark "
                    f"{context.spark.version} returns other rows than Spark 4 where no row matches: write it as a "
                    "join, or use Spark 4"
                )


def _is_whole(node: Any) -> bool:
    """Whether a node of a plan is an aggregate without groups, which returns a row even if there is no row."""
    return _kind(node) == "Aggregate" and bool(node.groupingExpressions().isEmpty())


def _subqueries(node: Any) -> Iterator[tuple[str, Any]]:
    """Yield the kind and the plan of each subquery in the expressions of a node."""
    for item in (found for root in _each(node.expressions()) for found in _below(root)):
        if (kind := _kind(item)) in ("Exists", "ListQuery", "ScalarSubquery"):
            yield kind, item.plan()


def _below(root: Any) -> Iterator[Any]:
    """Yield a node of a plan or of an expression, and all below it."""
    waiting = [root]
    while waiting:
        node = waiting.pop()
        yield node
        waiting += _each(node.children())


def _kind(node: Any) -> str:
    return str(node.getClass().getSimpleName())


def _check_leaves(context: JobContext, leaves: list[tuple[Any, str]]) -> None:
    allowed = {(read.table, _text(read.snapshot)) for read in context.reads}
    for leaf, kind in leaves:
        if kind == _TABLE and leaf.identifier().isDefined() and leaf.catalog().isDefined():
            found = _table(leaf, travels="timeTravelSpec" in dir(leaf))
            if found not in allowed:
                raise _foreign(found[0], {name for name, _ in allowed})
        elif kind == _FILES and (version := _foreign_table(context, leaf)) is not None:
            if version not in allowed:
                raise _foreign(version[0], {name for name, _ in allowed})
        elif kind not in _CONSTANT:
            raise _foreign(" ".join(str(leaf.simpleString(25)).split()), set())


def _foreign_table(context: JobContext, leaf: Any) -> tuple[str, str] | None:
    """Return the table of another format that a leaf reads, and its version."""
    found = (tables.table_of(leaf, context.reads) for tables in formats_of(context.reads))
    return next((table for table in found if table is not None), None)


def _check_metadata_columns(sql: str, tables: list[Any]) -> None:
    """Refuse a query that reads a metadata column. Spark then adds all of them to the table's columns, at the end."""
    for table in tables:
        output = table.output()
        if output.isEmpty() or not output.last().metadata().contains(_METADATA_COLUMN):
            continue
        added = (item for item in _each(output) if item.metadata().contains(_METADATA_COLUMN))
        raise _metadata_column([str(item.name()) for item in added], sql)


def _metadata_column(names: Iterable[str], sql: str) -> InvalidQueryError:
    written = [name for name in names if re.search(rf"(?i)\b{re.escape(name)}\b", sql)]
    return InvalidQueryError(
        f"the query reads a metadata column of a table ({', '.join(written) or 'of unknown name'}). Compaction "
        "changes its values but not the rows: remove it"
    )


def whole_text(context: JobContext) -> AbstractContextManager[None]:
    """Make Spark write complete texts of plans."""
    return context.settings(_WHOLE_TEXT)


def _text(snapshot: int | None) -> str | None:
    return None if snapshot is None else str(snapshot)


def _nodes(plan: Any) -> Iterator[Any]:
    """Yield the nodes of a plan and of its subqueries. Their text would be long where a query has many columns."""
    for root in (plan, *_each(plan.subqueriesAll())):
        yield from _below(root)


def _each(sequence: Any) -> Iterator[Any]:
    return (sequence.apply(number) for number in range(sequence.size()))


def _table(leaf: Any, *, travels: bool) -> _TableSnapshot:
    """Return the table of a plan's leaf.

    Args:
        travels: Whether Spark keeps the version that the query names. Else only Iceberg's table has it.
    """
    identifier = leaf.identifier().get()
    name = quoted(map(str, (leaf.catalog().get().name(), *identifier.namespace(), identifier.name())))
    if not travels:
        return name, _text(leaf.table().snapshotId())
    travel = leaf.timeTravelSpec()
    version = re.fullmatch(r"VERSION AS OF '(\d+)'", str(travel.get())) if travel.isDefined() else None
    return name, version[1] if version else None


def _sql_functions(context: JobContext, sql: str) -> Iterator[str]:
    """Yield the SQL functions that a query calls, temporary ones too."""
    names = dict.fromkeys(".".join(re.findall(rf"{_PART}|\w+", found[1])) for found in _CALL.finditer(sql))
    for name in names:
        if name.strip("`").lower() in BUILT_IN:
            continue
        with suppress(Exception):  # a word before a parenthesis, or a catalog that lists no functions
            if str(context.spark.catalog.getFunction(name).className) == _SQL_FUNCTION:
                yield f"{name.replace('`', '')}()"


def _check_text(context: JobContext, sql: str, frame: DataFrame) -> None:
    """Check the text of the analysed plan. Over Connect only the text is available."""
    for function in _sql_functions(context, sql):
        raise _function(function)
    with whole_text(context):
        # With the limit, Spark does not plan the reading of the tables; the analysed plan has all of them.
        explained = context.explained(frame.limit(0))
    found = _ANALYSED.search(explained)
    text = found[1] if found else explained
    if _FUNCTION_IN_TEXT.search(text):
        raise _function("(of unknown name)")
    _check_variables(text)
    allowed = {(_unquoted(read.table), _text(read.snapshot)) for read in context.reads}
    for columns, read in _TABLE_IN_TEXT.findall(text):
        if added := _METADATA_IN_TEXT.findall(columns):
            raise _metadata_column(added, sql)
        name, _, snapshot = str(read).partition(" VERSION AS OF ")
        if (name, snapshot.strip("'") or None) not in allowed:
            raise _foreign(name, {name for name, _ in allowed})
    if other := _OTHER_IN_TEXT.search(text):
        raise _foreign(" ".join(other[0].split())[:100], set())


def _unquoted(name: str) -> str:
    return ".".join(part[1:-1].replace("``", "`") for part in re.findall(_PART, name))


def _foreign(name: str, tables: set[str]) -> InvalidQueryError:
    shown = _unquoted(name) if name.startswith("`") else name
    how = "at another snapshot than the refresh does" if name in tables else "which is none of its base tables"
    return InvalidQueryError(f"the query reads {shown}, {how}: {_CURE}")


def _function(name: str) -> InvalidQueryError:
    return InvalidQueryError(
        f"the query calls the SQL function {name}. If its definition changes, nothing shows that the view is stale. "
        "Write its definition into the query itself"
    )


def _check_variables(plan: str) -> None:
    """Refuse the text of a plan that reads a session variable."""
    if found := _VARIABLE.search(plan):
        raise InvalidQueryError(
            f"the query reads the session variable {found[1]}, which the session of a refresh does not have: write the "
            "value"
        )


def check_types(context: JobContext, script: Script) -> None:
    """Refuse a query whose column types no longer fit the view's columns.

    Spark would convert the values, and lose digits or fail on the first value that is too large.

    Args:
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
