# SPDX-License-Identifier: Apache-2.0
"""A view's query, analysed once, with one method for each strategy of incremental refresh."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from sqlglot import exp
from sqlglot.errors import SqlglotError

from airflow_mv.core.ivm import ir, regeneration
from airflow_mv.core.ivm.affected_keys import replaced
from airflow_mv.core.ivm.append import appended
from airflow_mv.core.ivm.ir import Appended, BaseRelation, Comparison, Merged, RefusedError, Replaced
from airflow_mv.core.ivm.merge import merged, merged_rows
from airflow_mv.core.ivm.pushdown import conditions, filters, pruned, within
from airflow_mv.core.ivm.regeneration import read
from airflow_mv.core.ivm.render import sql as to_sql
from airflow_mv.core.ivm.resolve import Environment, Resolved, Resolver, check_captures
from airflow_mv.core.ivm.subqueries import aggregated
from airflow_mv.core.script import WEIGHT
from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.core.spec.reasons import Code, Reason
from airflow_mv.core.sql.query import NestedView, ParsedQuery, fold

_Plan = TypeVar("_Plan")
#: sqlglot raises these for some calls that Spark accepts, when it reads or writes them.
_FAULTS = (SqlglotError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


@dataclass(frozen=True, slots=True)
class IncrementalQuery:
    """An analysed query, from which the statements of incremental refreshes are derived."""

    #: The columns that the query reads of each base table, in the table's order.
    used_columns: Mapping[Identifier, tuple[str, ...]]
    #: Those columns that the query equates with columns of other relations.
    joined_columns: Mapping[Identifier, tuple[str, ...]]
    #: The query in normal form.
    tree: ir.Tree
    #: Name and Spark type of each column of the view.
    output: tuple[tuple[str, str], ...]
    relations: tuple[BaseRelation, ...]

    @classmethod
    def analyse(
        cls,
        query: ParsedQuery,
        relations: Sequence[BaseRelation],
        *,
        output: Sequence[tuple[str, str]],
        views: Mapping[Identifier, NestedView],
    ) -> IncrementalQuery | Reason:
        """Put a query into the normal form of the algebra.

        Args:
            query: The view's own query.
            relations: Its base tables, those of nested views too.
            output: Name and Spark type of each column of the view.
            views: The nested plain views, as :func:`airflow_mv.core.sql.query.base_tables` finds them.
        """

        def build() -> IncrementalQuery:
            resolver = Resolver(relations, views)
            tree, written = normal_form(resolver, query)
            if len(written) != len(output):
                message = f"the query has {len(written)} columns, the view {len(output)}"
                raise RefusedError(Code.UNREADABLE, message)
            _check_names(resolver.used_columns(tree), [name for name, _ in output])
            tree = pruned(ir.named(tree, [name for name, _ in output]))
            to_sql(tree, pretty=False)  # refuses what sqlglot can parse and not write, for all that is derived from it
            return cls(
                used_columns=resolver.used_columns(tree),
                joined_columns=resolver.joined_columns(tree),
                tree=tree,
                output=tuple(output),
                relations=tuple(relations),
            )

        return unless_refused(build)

    @property
    def filters(self) -> Mapping[Identifier, Sequence[tuple[Comparison, ...]]]:
        """The comparisons that relevant rows of each base table satisfy; see :func:`pushdown.filters`."""
        found = filters(self.tree)
        return {relation.identifier: found.get(relation.name, []) for relation in self.relations}

    def filters_within(
        self, column: str, start: str, end: str, kind: str
    ) -> Mapping[Identifier, Sequence[tuple[Comparison, ...]]]:
        """Return :attr:`filters` of the query for the rows of an interval; see :func:`pushdown.within`."""
        position = next(index for index, (name, _) in enumerate(self.output) if name == column)
        found = filters(within(self.tree, position, start, end, kind))
        return {relation.identifier: found.get(relation.name, []) for relation in self.relations}

    @property
    def conditions(self) -> Mapping[Identifier, str]:
        """The conditions that relevant rows of some base tables satisfy, as SQL; see :func:`pushdown.conditions`."""
        found = conditions(self.tree)
        return {item.identifier: found[item.name] for item in self.relations if item.name in found}

    @property
    def is_grouped(self) -> bool:
        """Whether its rows are groups: then :meth:`merge` applies, otherwise :meth:`merge_rows`."""
        return isinstance(self.tree, ir.Block) and aggregated(self.tree)

    @property
    def is_one_row(self) -> bool:
        """Whether it aggregates all rows to one."""
        return isinstance(self.tree, ir.Block) and aggregated(self.tree) and self.tree.grouping is None

    def append(self, *, consolidated: bool = True, broadcast: bool = False) -> Appended | Reason:
        """Strategy A (append): rows were only added, and all operators are linear.

        Args:
            broadcast: Whether to hint to Spark that the change is small.
            consolidated: Whether a row of a change table may stand for several copies (``__w`` > 1).
        """
        return unless_refused(
            lambda: appended(self.tree, self.relations, consolidated=consolidated, broadcast=broadcast)
        )

    def merge(
        self, *, broadcast: bool = False, without_nulls: Mapping[Identifier, frozenset[str]] | None = None
    ) -> Merged | Reason:
        """Strategy B (merge): aggregates that follow from the stored row and the change.

        Args:
            broadcast: Whether to hint to Spark that the change is small.
            without_nulls: Further columns of base tables that have a value in each row, before and after the change.
        """
        known = without_nulls or {}
        relations = [
            replace(item, not_null=item.not_null | known.get(item.identifier, frozenset())) for item in self.relations
        ]
        return unless_refused(lambda: merged(self.tree, self.output, relations, broadcast=broadcast))

    def merge_rows(self, *, broadcast: bool = False) -> Merged | Reason:
        """Strategy B for rows: combine the stored copies of each changed row value with the change.

        Possible if all operators are linear. All columns are keys, and ``signed`` has the additional column ``__w``.

        Args:
            broadcast: Whether to hint to Spark that the change is small.
        """
        return unless_refused(lambda: merged_rows(self.tree, self.output, broadcast=broadcast))

    def replace_keys(self, *, broadcast: bool = False) -> Replaced | Reason:
        """Strategy C: the keys of all rows that may have changed.

        Args:
            broadcast: Whether to hint to Spark that the change is small.
        """
        return unless_refused(lambda: replaced(self.tree, self.output, broadcast=broadcast))


def _check_names(used: Mapping[Identifier, Sequence[str]], output: Sequence[str]) -> None:
    """Refuse a column with the name of the weight column."""
    for owner, names in (*((str(table), columns) for table, columns in used.items()), ("the view", output)):
        if any(fold(name) == WEIGHT for name in names):
            message = f"a column of {owner} is called {WEIGHT}, a name that the generated statements use"
            raise RefusedError(Code.UNSUPPORTED_OPERATOR, message)


def normal_form(resolver: Resolver, query: ParsedQuery) -> Resolved:
    """Return a query in normal form, and the name of each column as written."""
    tree, written = resolver.query(read(query), Environment(query.default_catalog, query.default_namespace, {}), None)
    ir.rewrite(tree, _without_captures)
    return tree, written


def _without_captures(expression: exp.Expr) -> exp.Expr:
    check_captures(expression)
    return expression


def regenerated_sql(sql: str) -> str | Reason:
    """Return the regenerated SQL of a query, as the statements of an incremental refresh contain it.

    Args:
        sql: The query's text; it may have snapshots.
    """
    return unless_refused(lambda: regeneration.regenerate(sql))


def unless_refused(build: Callable[[], _Plan]) -> _Plan | Reason:
    """Return what a function builds from a query; or why the query cannot be analysed."""
    try:
        return build()
    except RefusedError as error:
        return error.reason
    except RecursionError:
        return Reason(Code.TOO_LARGE, "the query is nested too deeply")
    except _FAULTS as error:
        return Reason(Code.UNREADABLE, f"sqlglot cannot parse and regenerate the query ({error!r})")
