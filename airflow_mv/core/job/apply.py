# SPDX-License-Identifier: Apache-2.0
"""Update the stored rows of the affected keys: delete the rows of these keys, and insert the query's rows of them.

``storage' = (storage anti-join D) + (new semi-join D)`` holds for any set of key columns as long as D has every
key whose rows differ. The driver holds D, so that Spark can push it below aggregates and into joins.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.types import DataType

from airflow_mv.core.job.context import JobContext, columns_of, incomparable
from airflow_mv.core.job.gather import PLACE
from airflow_mv.core.job.positions import Located, locate, position_deletes
from airflow_mv.core.job.pruning import KeyFilters, key_filters, skipping_keys, skips
from airflow_mv.core.script import WEIGHT, MergeAdditiveStep, ReplaceKeysStep
from airflow_mv.core.spec.identifiers import quote
from airflow_mv.errors import IncrementalRefusedError

_OVERFLOW = re.compile(r"ARITHMETIC_OVERFLOW|NUMERIC_VALUE_OUT_OF_RANGE|CAST_OVERFLOW")
#: Most row groups are skipped. Iceberg counts each as 4 MiB, and as much for each delete file: one task for each.
_OPEN_COST = 256 * 2**10
#: A class of a Spark whose SQL takes the options of a table: it is Spark 4.
_OPTIONS = "org.apache.spark.sql.catalyst.parser.SqlBaseParser$OptionsClauseContext"
_NO_EQUALITY = ("map", "variant", "geometry", "geography", "calendarinterval")


def replace_keys(context: JobContext, step: ReplaceKeysStep) -> None:
    """Run a :class:`~airflow_mv.core.script.ReplaceKeysStep`.

    Raises:
        IncrementalRefusedError: Codes ``too-many-keys``, ``key-type``; and ``constant-changed`` where the script has
            a fallback, because the fallback is cheaper then.
    """
    affected = step.affected
    if step.constants:
        statement = " UNION ALL ".join(f"({constant})" for constant in step.constants)
        if not any(row[0] is not False for row in context.query(statement).collect()):
            affected = step.affected_unless or affected
        elif context.has_fallback:
            raise IncrementalRefusedError(
                "constant-changed", "a value that every row of the query depends on has changed"
            )
    if not step.keys:
        _replace_all(context, step, affected)
        return
    names = columns_of(step.keys)
    keys = _Keys(context, step, context.query(f"SELECT * FROM (\n{affected}\n) AS `__affected`({names})"))
    if context.keys:
        keys.locate(step.keys)
        keys.write(keys.only(f"(\n{step.query}\n) AS `__new`({columns_of(step.columns)})", "`__new`"))


def merge_additive(context: JobContext, step: MergeAdditiveStep) -> None:
    """Run a :class:`~airflow_mv.core.script.MergeAdditiveStep`.

    Raises:
        IncrementalRefusedError: Codes ``overflow``, ``too-many-keys``, ``key-type``.
    """
    try:
        _merge_additive(context, step)
    except IncrementalRefusedError:
        raise
    except Exception as error:
        if not _OVERFLOW.search(str(error)):
            raise
        raise IncrementalRefusedError("overflow", "a sum over stored and changed rows overflows its type") from error


def _merge_additive(context: JobContext, step: MergeAdditiveStep) -> None:
    columns = columns_of(step.columns)
    changed = columns_of((*step.columns, WEIGHT)) if step.weighted else columns
    keys = _Keys(context, step, context.query(f"SELECT * FROM (\n{step.changes}\n) AS `__changed`({changed})"))
    if not context.keys:
        return
    whole = step.combines_all
    if not whole:
        keys.locate(step.columns)
    new = (
        f"SELECT * FROM (\nWITH `__stored` AS ({f'SELECT * FROM {step.table}' if whole else keys.stored}), "
        f"`__delta` AS (SELECT * FROM {keys.view})\n{step.combine}\n) AS `__new`({columns})"
    )
    if whole:
        context.written_by = "overwrite"
        with context.sized_for(0):  # a few rows of both
            context.overwrite(step.table, new)
        return
    if step.how == "overwrite":
        keys.write(new)  # a single statement reads the stored rows and replaces them
        return
    view = _name("rows")
    context.view(view, context.kept(context.query(new), context.keys).frame)
    keys.write(f"SELECT * FROM {view}")


def _replace_all(context: JobContext, step: ReplaceKeysStep, affected: str) -> None:
    """Replace all rows if anything changes: without a key they are one group."""
    found = context.collect_locally(context.query(f"SELECT 1 FROM (\n{affected}\n) LIMIT 1"))
    context.keys = found.rows if found else 0
    context.written_by = "overwrite" if context.keys else "none"
    if context.keys:
        context.overwrite(step.table, step.query)


class _Keys:
    """The affected keys, held by the driver under the name ``view``.

    Args:
        step: The step that uses the keys.
        frame: A query for the keys, which is run here. It may have more columns.
    """

    def __init__(self, context: JobContext, step: ReplaceKeysStep | MergeAdditiveStep, frame: DataFrame) -> None:
        self.context, self.step = context, step
        self.view = _name("keys")
        types = {field.name: field.dataType for field in frame.schema.fields}
        _check_comparable([types[key] for key in step.keys])
        found = context.collect_locally(
            frame.distinct() if isinstance(step, ReplaceKeysStep) else frame,
            step.most_keys,
            context.changed_bytes(context.sql),
        )
        if found is None:
            message = f"more than {step.most_keys} keys are affected, or more bytes of them than the driver may hold"
            raise IncrementalRefusedError("too-many-keys", message)
        context.keys = found.rows
        context.view(self.view, found.frame)
        context.written_by = step.how if context.keys else "none"
        self._types = types
        self._deletes: Any = None
        self._located: Located | None = None

    def locate(self, columns: Sequence[str]) -> None:
        """Find the stored rows of the keys, to delete them by position where this is possible.

        Args:
            columns: The columns that are wanted of them.
        """
        if self.step.how == "positions":
            self._deletes = position_deletes(self.context, self.step.table, columns, self._skipping_keys)
            if self._deletes is not None:
                self._located = locate(self.context, self._deletes, self._select_stored((*columns, *PLACE)))
            self.context.written_by = "delete" if self._located is None else "positions"

    @property
    def stored(self) -> str:
        """The SELECT of the stored rows of the keys."""
        found = self._located
        return f"SELECT * FROM {found.view}" if found else self._select_stored()

    @cached_property
    def filters(self) -> KeyFilters:
        """Statistics of the rows that have one of the keys."""
        # A merge asks for stored rows only.
        keys = self._skipping_keys if isinstance(self.step, MergeAdditiveStep) else self.step.keys
        return key_filters(self.context.spark, self.view, keys, self._types, self.context.keys or 0)

    def only(self, relation: str, alias: str) -> str:
        """Return the SELECT of a query's rows that have an affected key.

        Args:
            relation: The query and its alias, as in a FROM.
            alias: The alias, quoted.
        """
        # Spark can push a semi join on one column to one side of a join below, but not a semi join on all columns.
        single = [(key, self._sign(key)) for key in self.step.keys if key not in self.filters.predicates]
        return self._having_keys(f"{alias}.*", relation, alias, single, self.filters.predicates)

    def _select_stored(self, columns: Sequence[str] = ()) -> str:
        """Return the SELECT of the stored rows that have an affected key."""
        first = self.filters.first
        single = [] if first is None else [(first, "=")]
        selected = ", ".join(f"`__old`.{quote(column)}" for column in columns) or "`__old`.*"
        takes = self.context.jvm is None or self.context.java.can.has(_OPTIONS)
        options = f" WITH ('file-open-cost' = '{_OPEN_COST}')" if takes else ""
        stored = f"{self.step.table}{options} AS `__old`"
        return self._having_keys(selected, stored, "`__old`", single, self._stored_predicates)

    def _having_keys(
        self,
        selected: str,
        relation: str,
        alias: str,
        single: Sequence[tuple[str, str]],
        predicates: Mapping[str, str],
    ) -> str:
        """Return a SELECT of the rows that have an affected key.

        Args:
            relation: The relation and its alias.
            alias: The alias, quoted.
            single: Keys that are joined by themselves before all are, each with its comparison.
            predicates: See :class:`~airflow_mv.core.job.pruning.KeyFilters`.
        """
        if len(self.step.keys) == 1:
            single = ()
        joins = [
            f"LEFT SEMI JOIN (SELECT {quote(key)} FROM {self.view}) AS `__k{number}` "
            f"ON {alias}.{quote(key)} {sign} `__k{number}`.{quote(key)}"
            for number, (key, sign) in enumerate(single)
        ]
        joins.append(f"LEFT SEMI JOIN {self.view} AS `__d` ON {self._equal(alias, '`__d`', self.step.keys)}")
        hints = ", ".join([*(f"`__k{number}`" for number in range(len(single))), "`__d`"])
        where = _condition(predicates, alias)
        return (
            f"SELECT /*+ BROADCAST({hints}) */ {selected} FROM {relation}\n"
            + "\n".join(joins)
            + (f"\nWHERE {where}" if where else "")
        )

    def write(self, new: str) -> None:
        """Delete the stored rows with an affected key, and insert the given rows.

        Args:
            new: A query for all new rows of these keys, columns in the storage table's order.
        """
        if self.step.how == "overwrite":
            self._overwrite(new)
        else:
            self._delete(new)

    def _overwrite(self, new: str) -> None:
        table, columns = self.step.table, columns_of(self.step.columns)
        equal = self._equal("`__old`", "`__d`", self.step.keys)
        others = (
            f"SELECT /*+ BROADCAST(`__d`) */ {columns} FROM {table} AS `__old`\n"
            f"LEFT ANTI JOIN {self.view} AS `__d` ON {equal}"
        )
        self.context.overwrite(table, new, others)

    def _delete(self, new: str) -> None:
        table = self.step.table
        equal = self._equal("`__old`", "`__d`", self.step.keys)
        pruning = _condition(self._stored_predicates, "`__old`")
        if self._located is not None:
            self._located.delete(self.context)
        else:
            self.context.run(
                f"DELETE FROM {table} AS `__old` WHERE {f'{pruning} AND ' if pruning else ''}"
                f"EXISTS (SELECT 1 FROM {self.view} AS `__d` WHERE {equal})"
            )
        self.context.write(f"INSERT INTO {table}\n{new}")

    def _equal(self, left: str, right: str, keys: Sequence[str]) -> str:
        return " AND ".join(f"{left}.{quote(key)} {self._sign(key)} {right}.{quote(key)}" for key in keys)

    def _sign(self, key: str) -> str:
        return "=" if key in self.step.not_null else "<=>"

    @cached_property
    def _stored_predicates(self) -> Mapping[str, str]:
        """The predicates for the storage table."""
        filters = self.filters
        found = {key: text for key, text in filters.predicates.items() if key in self._skipping_keys}
        if self._deletes is None:
            return found
        return {key: text for key, text in found.items() if skips(filters.passing.get(key), self._deletes.bounds(key))}

    @cached_property
    def _skipping_keys(self) -> Sequence[str]:
        """The keys whose predicates are applied to the storage table."""
        context = self.context
        columns = None if context.jvm is None else context.java.clustered_by(self.step.table, context.branch)
        return skipping_keys(self.step.keys, self._types, columns)


def _condition(predicates: Mapping[str, str], alias: str) -> str:
    """Return the condition that all predicates hold."""
    return " AND ".join(text.replace("?", f"{alias}.{quote(key)}") for key, text in predicates.items())


def _check_comparable(types: Sequence[DataType]) -> None:
    for kind in types:
        if incomparable(kind, _NO_EQUALITY) is not None:
            raise IncrementalRefusedError("key-type", f"a key of type {kind.simpleString()} cannot be compared")


def _name(what: str) -> str:
    return quote(f"airflow_mv_{what}_{uuid.uuid4().hex[:12]}")
