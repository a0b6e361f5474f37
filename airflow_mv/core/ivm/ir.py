# SPDX-License-Identifier: Apache-2.0
"""The intermediate representation of a query: a tree in normal form.

Normal form: there are no CTEs and no views. Each relation has an alias that is unique in the whole query. Each column
names its relation. A subquery in an expression is replaced by a mark, and its query is stored beside the expression.
Trees and the expressions in them are immutable: changes make new ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from sqlglot import exp

from airflow_mv.core.script import WEIGHT
from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.core.spec.reasons import Code, Reason

Version = Literal["old", "new", "delta"]
SetOperator = Literal["UNION", "INTERSECT", "EXCEPT"]
JoinKind = Literal["INNER", "LEFT", "RIGHT", "FULL", "SEMI", "ANTI"]


@dataclass(frozen=True, slots=True)
class Match:
    """A row of a base table matches the change of another one: a column of both is equal."""

    column: str
    #: The other base table, by name, and its column.
    other: str
    other_column: str


@dataclass(frozen=True, slots=True)
class Base:
    """A base table, with or without a version."""

    name: str
    columns: tuple[str, ...]
    #: The Spark type of each column.
    types: tuple[str, ...]
    changed: bool
    version: Version | None = None
    #: Whether the rows that match other tables' changes are gathered while its own change is read.
    gathers: bool = False
    #: The matches that each wanted row has one of; empty if all rows are wanted.
    near: tuple[Match, ...] = ()


@dataclass(frozen=True, slots=True)
class Named:
    """A relation that the caller provides under a name."""

    name: str
    columns: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Rows:
    """VALUES: rows that never change."""

    sql: exp.Expr
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Relation:
    """One relation of a FROM clause and how it is joined to those before it."""

    alias: str
    source: Source
    join: JoinKind = "INNER"
    on: exp.Expr | None = None
    #: Whether it contains the change or its keys: few rows.
    small: bool = False


@dataclass(frozen=True, slots=True)
class Nested:
    """A subquery in an expression; ``mark`` is the name of the call that stands for it."""

    mark: str
    kind: Literal["EXISTS", "IN", "SCALAR"]
    tree: Tree
    #: Aliases of outer relations that it names.
    outer: frozenset[str]


@dataclass(frozen=True, slots=True)
class Output:
    """One column of a block."""

    name: str
    value: exp.Expr


@dataclass(frozen=True, slots=True)
class Grouping:
    """GROUP BY. ``sets`` lists the keys of each grouping set by position; ``None`` for one set with all keys."""

    keys: tuple[exp.Expr, ...]
    sets: tuple[tuple[int, ...], ...] | None = None


@dataclass(frozen=True, slots=True)
class Block:
    """One SELECT."""

    outputs: tuple[Output, ...]
    relations: tuple[Relation, ...]
    laterals: tuple[exp.Lateral, ...] = ()
    where: exp.Expr | None = None
    grouping: Grouping | None = None
    having: exp.Expr | None = None
    distinct: bool = False
    nested: tuple[Nested, ...] = ()


@dataclass(frozen=True, slots=True)
class Compound:
    """Two queries and a set operator. Columns are named like those of the left one."""

    operator: SetOperator
    distinct: bool
    left: Tree
    right: Tree


Tree: TypeAlias = Block | Compound
Source: TypeAlias = Base | Named | Rows | Block | Compound


# ---------------------------------------------------------------------------------------- queries
def names(source: Source) -> tuple[str, ...]:
    """Return the names of a relation's or a query's columns."""
    if isinstance(source, Block):
        return tuple(output.name for output in source.outputs)
    if isinstance(source, Compound):
        return names(source.left)
    return source.columns


def bases(source: Source) -> Iterator[Base]:
    """Yield each occurrence of a base table, in subqueries too."""
    if isinstance(source, Base):
        yield source
    elif isinstance(source, Compound):
        yield from bases(source.left)
        yield from bases(source.right)
    elif isinstance(source, Block):
        for relation in source.relations:
            yield from bases(relation.source)
        for nested in source.nested:
            yield from bases(nested.tree)


def touched(source: Source) -> bool:
    """Whether it reads a changed table without a version."""
    return any(base.changed and base.version is None for base in bases(source))


def marks(expression: exp.Expr | None, block: Block) -> tuple[Nested, ...]:
    """Return the subqueries of an expression of a block."""
    if expression is None:
        return ()
    found = {call.name for call in expression.find_all(exp.Anonymous)}
    return tuple(nested for nested in block.nested if nested.mark in found)


def conjuncts(expression: exp.Expr | None) -> list[exp.Expr]:
    """Split an expression at its ANDs."""
    if expression is None:
        return []
    if isinstance(expression, exp.Paren):
        inner = conjuncts(expression.this)
        return inner if len(inner) > 1 else [expression]
    if isinstance(expression, exp.And):
        return conjuncts(expression.left) + conjuncts(expression.right)
    return [expression]


def aliases(expression: exp.Expr, block: Block) -> frozenset[str]:
    """Return the relations that an expression names, including those in its subqueries."""
    own = {column.table for column in expression.find_all(exp.Column)}
    return frozenset(own.union(*(nested.outer for nested in marks(expression, block))))


# --------------------------------------------------------------------------------------- building
def weight(alias: str) -> exp.Column:
    """Return a change table's column of multiplicities."""
    return column(alias, WEIGHT)


def one() -> exp.Expr:
    """Return the number 1."""
    return exp.Literal.number(1)


def selecting(block: Block, outputs: Sequence[Output]) -> Block:
    """Return a block with other columns, without DISTINCT, GROUP BY and HAVING: its FROM and WHERE."""
    bare = replace(block, outputs=tuple(outputs), grouping=None, having=None, distinct=False)
    return with_used_nested(bare)


def with_used_nested(block: Block) -> Block:
    """Return a block without the subqueries that are no longer in its expressions."""
    held: list[exp.Expr | None] = [block.where, block.having, *block.laterals]
    held += [output.value for output in block.outputs] + [relation.on for relation in block.relations]
    held += block.grouping.keys if block.grouping else ()
    used = {call.name for expression in held if expression is not None for call in expression.find_all(exp.Anonymous)}
    return replace(block, nested=tuple(item for item in block.nested if item.mark in used))


def union(trees: Sequence[Tree], columns: Sequence[str] | None = None) -> Tree:
    """Return the UNION ALL of one or more queries, with the given column names or those of the first query."""
    first, *rest = trees
    result = named(first, columns) if columns is not None else first
    for tree in rest:
        result = Compound("UNION", left=result, right=tree, distinct=False)
    return result


def named(tree: Tree, columns: Sequence[str]) -> Tree:
    """Return a query with other names for its columns."""
    if isinstance(tree, Compound):
        return replace(tree, left=named(tree.left, columns))
    return named_block(tree, columns)


def named_block(block: Block, columns: Sequence[str]) -> Block:
    """Return a block with other names for its columns."""
    outputs = tuple(Output(name, item.value) for name, item in zip(columns, block.outputs, strict=True))
    return replace(block, outputs=outputs)


def column(alias: str, name: str) -> exp.Column:
    """Return a quoted column."""
    return exp.Column(this=exp.to_identifier(name, quoted=True), table=exp.to_identifier(alias, quoted=True))


def both(*conditions: exp.Expr | None) -> exp.Expr | None:
    """Return the AND of conditions; ``None`` stands for true."""
    given = [condition for condition in conditions if condition is not None]
    return exp.and_(*given, copy=True) if given else None


def either(*conditions: exp.Expr) -> exp.Expr:
    """Return the OR of one or more conditions."""
    return exp.or_(*conditions, copy=True)


def same(left: exp.Expr, right: exp.Expr) -> exp.Expr:
    """Return ``left <=> right``."""
    return exp.NullSafeEQ(this=exp.Paren(this=left.copy()), expression=exp.Paren(this=right.copy()))


def at(source: Source, version: Version) -> Source:
    """Return a relation or query with a version for all base tables that have none."""
    if isinstance(source, Base):
        return replace(source, version=version) if source.version is None else source
    return tree_at(source, version) if isinstance(source, Block | Compound) else source


def tree_at(tree: Tree, version: Version) -> Tree:
    """Return a query at a version."""
    if isinstance(tree, Compound):
        return replace(tree, left=tree_at(tree.left, version), right=tree_at(tree.right, version))
    return block_at(tree, version)


def block_at(block: Block, version: Version) -> Block:
    """Return a block at a version."""
    relations = tuple(replace(item, source=at(item.source, version)) for item in block.relations)
    return replace(block, relations=relations, nested=tuple(nested_at(item, version) for item in block.nested))


def nested_at(nested: Nested, version: Version) -> Nested:
    """Return a subquery at a version."""
    return replace(nested, tree=tree_at(nested.tree, version))


def rewrite(tree: Tree, change: Callable[[exp.Expr], exp.Expr]) -> Tree:
    """Return a query with a function applied to every expression in it, subqueries included.

    The function gets a copy.
    """
    if isinstance(tree, Compound):
        return replace(tree, left=rewrite(tree.left, change), right=rewrite(tree.right, change))
    return rewrite_block(tree, change)


def rewrite_block(tree: Block, change: Callable[[exp.Expr], exp.Expr]) -> Block:
    """Return a block with a function applied to every expression in it, as :func:`rewrite` does."""
    grouping = tree.grouping
    return replace(
        tree,
        outputs=tuple(Output(item.name, change(item.value.copy())) for item in tree.outputs),
        relations=tuple(_rewrite_relation(item, change) for item in tree.relations),
        laterals=tuple(_rewrite_lateral(item, change) for item in tree.laterals),
        where=_optional(tree.where, change),
        grouping=replace(grouping, keys=tuple(change(key.copy()) for key in grouping.keys)) if grouping else None,
        having=_optional(tree.having, change),
        nested=tuple(replace(item, tree=rewrite(item.tree, change)) for item in tree.nested),
    )


def _rewrite_relation(relation: Relation, change: Callable[[exp.Expr], exp.Expr]) -> Relation:
    source = relation.source
    if isinstance(source, Block | Compound):
        source = rewrite(source, change)
    return replace(relation, source=source, on=_optional(relation.on, change))


def _optional(expression: exp.Expr | None, change: Callable[[exp.Expr], exp.Expr]) -> exp.Expr | None:
    return None if expression is None else change(expression.copy())


def _rewrite_lateral(lateral: exp.Lateral, change: Callable[[exp.Expr], exp.Expr]) -> exp.Lateral:
    result = lateral.copy()
    result.set("this", change(lateral.this.copy()))
    return result


def substitute(expression: exp.Expr, find: Callable[[exp.Expr], exp.Expr | None]) -> exp.Expr:
    """Return an expression with parts replaced, outermost first. Replacements are not searched again."""
    found = find(expression)
    if found is not None:
        return found
    result = expression.copy()
    _substitute_below(result, find)
    return result


def _substitute_below(node: exp.Expr, find: Callable[[exp.Expr], exp.Expr | None]) -> None:
    for child in list(node.iter_expressions()):
        found = find(child)
        if found is None:
            _substitute_below(child, find)
        else:
            child.replace(found)


# ------------------------------------------------------------------------------- The inputs and results of the algebra


#: The rows that the relations ``<name>__near_new`` and ``<name>__near_old`` must have, by the base table's name: all
#: that match the change of another table in one of these ways. They may also have other rows of their version.
Near = frozenset[tuple[str, Match]]


@dataclass(frozen=True, slots=True)
class BaseRelation:
    """One base table of the query.

    The generated SQL reads ``<name>__new``, and of a changed table also ``<name>__old`` and
    ``<name>__delta``: the used columns and ``__w``, the signed number of copies.
    """

    identifier: Identifier
    #: Stem of the relation names, such as ``t0``.
    name: str
    #: Name and Spark type of each column, in order.
    columns: tuple[tuple[str, str], ...]
    #: Whether anything changed.
    changed: bool
    #: Whether rows were only added: every ``__w`` is positive.
    appended_only: bool = False
    #: Columns that are never NULL, before and after the change.
    not_null: frozenset[str] = frozenset()
    #: Whether its rows that match the changes of other tables are gathered while its own change is read. Then the
    #: statements read ``<name>__near_new`` and ``<name>__near_old`` where those rows are enough.
    gathers: bool = False


@dataclass(frozen=True, slots=True)
class Appended:
    """Strategy A: the UNION ALL of these SELECTs is inserted. Columns are in the view's order."""

    terms: tuple[str, ...]
    #: How often the terms name each relation.
    reads: Mapping[str, int]
    near: Near = frozenset()


@dataclass(frozen=True, slots=True)
class Merged:
    """Strategy B: partial aggregates of the change are combined with the stored rows of the same keys.

    ``signed`` is one SELECT with the view's columns: the changed groups and their partial
    aggregates (of ``merge_rows``: the changed row values, and ``__w`` after them). The stored rows
    of these keys (compare with ``<=>``) are replaced by those of :meth:`combine`.
    Correct only in ANSI mode: otherwise a sum that overflows is NULL, like that of an empty group.
    """

    #: Output columns that identify a group; empty if the view has one row.
    keys: tuple[str, ...]
    signed: str
    #: The statement of :meth:`combine`, with ``stored`` and ``delta`` as names of its relations.
    template: str
    #: For each key whether it is provably never NULL, so that ``=`` may stand for ``<=>``.
    not_null: tuple[bool, ...]
    #: How often ``signed`` names each relation.
    reads: Mapping[str, int]
    near: Near = frozenset()

    def combine(self, stored: str, delta: str) -> str:
        """Return the SELECT of the new rows of the changed groups, columns in the view's order.

        Args:
            stored: Name, as SQL, of a relation with the stored rows of the changed keys, and no other rows.
            delta: Name, as SQL, of a relation with the rows of ``signed``.
        """
        return self.template.replace("`__stored`", stored).replace("`__delta`", delta)


@dataclass(frozen=True, slots=True)
class Replaced:
    """Strategy C: ``storage' = (storage anti-join D) + (Q_new semi-join D)``, compared with ``<=>``.

    ``affected`` selects D: distinct values of ``keys``, columns named like the keys. It is always
    complete. If there are ``constants``, the job may first run each (one row, one boolean): if all are
    false, ``affected_unless_constants`` is complete too, and cheaper; if one is true, nearly every row
    is affected and a full refresh is cheaper. Without ``keys`` the query has one row, and ``affected``
    has rows if the change affects it.
    """

    keys: tuple[str, ...]
    affected: str
    #: For each key whether it is provably never NULL, so that ``=`` may stand for ``<=>``.
    not_null: tuple[bool, ...]
    #: How often the statements together name each relation.
    reads: Mapping[str, int]
    constants: tuple[str, ...] = ()
    affected_unless_constants: str | None = field(default=None)
    near: Near = frozenset()


class RefusedError(Exception):
    """Carries a reason to the public method that returns it. It is never raised out of the package."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.reason = Reason(code, message)


LiteralKind = Literal["number", "text", "date", "timestamp"]


@dataclass(frozen=True, slots=True)
class Comparison:
    """A comparison of a column with a literal.

    Args:
        operator: ``=``, ``<``, ``<=``, ``>`` or ``>=``.
        value: The literal's text.
        only_calendar: Whether it holds only for dates and times of the years 1 to 9999.
    """

    column: str
    operator: str
    value: str
    kind: LiteralKind
    only_calendar: bool = False

    def __str__(self) -> str:
        return f"{self.column} {self.operator} {self.value}"
