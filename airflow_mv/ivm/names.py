# SPDX-License-Identifier: Apache-2.0
"""Resolve column names as Spark does. Ambiguous names are refused."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from sqlglot import exp

from airflow_mv.ivm.functions import VOLATILE
from airflow_mv.ivm.model import RefusedError
from airflow_mv.script import METADATA_COLUMNS
from airflow_mv.spec.reasons import Code

#: With what the aliases begin that an incremental refresh adds to a query.
GENERATED = "__"


@dataclass(frozen=True, slots=True)
class Field:
    """A column that a query can name. ``name`` is ``None`` if Spark generates the name."""

    name: str | None
    value: exp.Expr


@dataclass(frozen=True, slots=True)
class Visible:
    """A relation that a query can name, by one or more last parts of its path."""

    path: tuple[str, ...]
    fields: tuple[Field, ...]


@dataclass(slots=True)
class NameScope:
    """The names of one SELECT."""

    parent: NameScope | None
    relations: list[Visible] = field(default_factory=list)
    #: The columns of ``*``, among which names without a relation are resolved.
    star: list[Field] = field(default_factory=list)
    #: Earlier columns of the same SELECT list, which later ones may name.
    earlier: list[Field] = field(default_factory=list)
    #: Whether a join by USING or NATURAL hides columns, which makes ``t.*`` ambiguous.
    merged: bool = False
    #: The time window in GROUP BY, which Spark names ``window``.
    window: exp.Expr | None = None
    #: Aliases of outer relations that were named.
    outer: set[str] = field(default_factory=set)

    def add(self, visible: Visible) -> None:
        """Add a relation to the right of the present ones."""
        self.relations.append(visible)
        self.star.extend(visible.fields)

    def resolve(self, parts: Sequence[str]) -> exp.Expr:
        """Resolve a name, with struct fields after it.

        Raises:
            RefusedError: The name is unknown or ambiguous.
        """
        scope: NameScope | None = self
        found = self.own(parts)
        if found is None and self.may_be_metadata(parts):
            message = f"{'.'.join(parts)} may be a metadata column of Iceberg, before anything else of that name"
            raise RefusedError(Code.UNRESOLVED_NAME, message)
        if found is None:
            found = self._window(parts) or self._earlier(parts)
        while found is None and scope is not None and scope.parent is not None:
            scope = scope.parent
            found = scope.own(parts)
        if found is None:
            raise _unresolved(parts)
        self._record(found, scope)
        return found

    def own(self, parts: Sequence[str]) -> exp.Expr | None:
        """Resolve a name among this SELECT's own relations."""
        path = tuple(map(fold, parts))
        for length in range(len(path) - 1, 0, -1):
            fields = [
                item
                for relation in self.relations
                if relation.path[-length:] == path[:length]
                for item in relation.fields
            ]
            found = _only(fields, path[length], parts)
            if found is not None:
                return _with_fields(found, parts[length + 1 :])
        found = _only(self.star, path[0], parts)
        return _with_fields(found, parts[1:]) if found is not None else None

    def may_be_metadata(self, parts: Sequence[str]) -> bool:
        """Whether a name that no relation has may be one of the columns that Iceberg adds to each table."""
        return bool(self.relations) and not METADATA_COLUMNS.isdisjoint(map(fold, parts))

    def _window(self, parts: Sequence[str]) -> exp.Expr | None:
        if self.window is None or fold(parts[0]) != "window" or len(parts) > 2:
            return None
        return _with_fields(self.window.copy(), [fold(name) for name in parts[1:]])

    def _earlier(self, parts: Sequence[str]) -> exp.Expr | None:
        found = _only(self.earlier, fold(parts[0]), parts)
        if found is None:
            return None
        if found.find(exp.Window) or found.find(exp.UDTF):
            message = f"column {parts[0]} of the SELECT list is named by another: put the first in a subquery"
            raise RefusedError(Code.UNSUPPORTED_OPERATOR, message)
        return _with_fields(exp.Paren(this=found), parts[1:])

    def _record(self, found: exp.Expr, owner: NameScope | None) -> None:
        if owner is self:
            return
        names = {item.table for item in found.find_all(exp.Column)}
        folded = set(map(fold, names))
        scope: NameScope | None = self
        while scope is not None and scope is not owner:
            if any(item.name is not None and fold(item.name) in folded for item in scope._visible()):
                # Spark reads alias.column as a field of the inner struct column.
                message = f"{', '.join(sorted(names))} is an outer relation and a column of a subquery: rename one"
                raise RefusedError(Code.UNRESOLVED_NAME, message)
            scope.outer |= names
            scope = scope.parent

    def _visible(self) -> Iterator[Field]:
        yield from (item for relation in self.relations for item in relation.fields)
        yield from self.star
        yield from self.earlier

    def fields_of(self, parts: Sequence[str]) -> tuple[Field, ...]:
        """Return the columns of ``t.*``.

        Raises:
            RefusedError: It is ambiguous.
        """
        path = tuple(map(fold, parts))
        found = [relation for relation in self.relations if relation.path[-len(path) :] == path]
        if len(found) != 1 or self.merged:
            raise RefusedError(Code.UNRESOLVED_NAME, f"which columns {'.'.join(parts)}.* means is ambiguous")
        return found[0].fields


def fold(name: str) -> str:
    """Return a name in a form that is equal for names that Spark treats as equal."""
    return "".join((upper if len(upper := char.upper()) == 1 else char).lower() for char in name)


def chain(node: exp.Expr) -> list[str] | None:
    """Return the parts of a column's name with its struct fields, ``None`` for any other expression."""
    if isinstance(node, exp.Column) and not isinstance(node.this, exp.Star):
        return [part.name for part in node.parts]
    if isinstance(node, exp.Dot) and isinstance(node.expression, exp.Identifier):
        before = chain(node.this)
        return None if before is None else [*before, node.expression.name]
    return None


def check_variables(node: exp.Lambda) -> None:
    """Refuse a lambda function with two spellings of a variable: sqlglot reads the second one as a column.

    Raises:
        RefusedError: There is such a variable.
    """
    own = {fold(item.name) for item in node.expressions}
    for column in node.this.find_all(exp.Column):
        name = column.parts[0].name
        if fold(name) in own:
            message = f"{name} is a variable of a lambda function, where it is written with other letters"
            raise RefusedError(Code.UNRESOLVED_NAME, message)


def check_captures(expression: exp.Expr) -> None:
    """Refuse a resolved expression in which a variable of a lambda function has the name of a relation.

    Spark would read the relation's columns as fields of the variable.

    Raises:
        RefusedError: There is such a variable, or one that begins like the aliases of an incremental refresh.
    """
    for node in expression.find_all(exp.Lambda):
        aliases = {fold(column.table) for column in node.this.find_all(exp.Column)}
        for name in (item.name for item in node.expressions):
            if fold(name) in aliases or name.startswith(GENERATED):
                message = f"{name} is a variable of a lambda function and the name of a relation: rename the variable"
                raise RefusedError(Code.UNRESOLVED_NAME, message)


def _only(fields: Sequence[Field], name: str, written: Sequence[str]) -> exp.Expr | None:
    found = [item.value for item in fields if item.name is not None and fold(item.name) == name]
    if not found:
        return None
    if any(item != found[0] for item in found):
        raise RefusedError(Code.UNRESOLVED_NAME, f"{'.'.join(written)} may mean more than one column")
    return found[0].copy()


def _with_fields(value: exp.Expr, fields: Sequence[str]) -> exp.Expr:
    for name in fields:
        value = exp.Dot(this=value, expression=exp.to_identifier(name, quoted=True))
    return value


def _unresolved(parts: Sequence[str]) -> RefusedError:
    if len(parts) == 1 and parts[0].lower() in VOLATILE:
        return RefusedError(Code.NOT_DETERMINISTIC, f"{parts[0]} may give another value at each refresh")
    return RefusedError(Code.UNRESOLVED_NAME, f"which column {'.'.join(parts)} means is not clear from the text")
