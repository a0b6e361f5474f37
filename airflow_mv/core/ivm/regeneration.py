# SPDX-License-Identifier: Apache-2.0
"""Prepare a parsed query for the algebra, and write the algebra's queries as Spark SQL."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sqlglot import ErrorLevel, Token, TokenType, UnsupportedError, exp

from airflow_mv.core.ivm.ir import RefusedError
from airflow_mv.core.spec.reasons import Code
from airflow_mv.core.sql.dialect import AsWritten, AsWrittenParser, tokenized
from airflow_mv.core.sql.query import ParsedQuery

#: Other names of bool_or() and bool_and(), which sqlglot does not know.
_BOOLEAN = {"some": exp.LogicalOr, "every": exp.LogicalAnd}


def write(tree: exp.Expr, *, identify: bool = True, pretty: bool = False) -> str:
    """Return a query or an expression as Spark SQL.

    Args:
        tree: A result of :func:`read`, or a tree made of parts of one.
        identify: Whether to quote all names.
        pretty: Whether to format it with line breaks.

    Raises:
        RefusedError: A part of it cannot be written.
    """
    try:
        return tree.sql(dialect=AsWritten, identify=identify, pretty=pretty, unsupported_level=ErrorLevel.RAISE)
    except UnsupportedError as error:
        raise RefusedError(Code.UNSUPPORTED_OPERATOR, f"a part of the query cannot be regenerated: {error}") from error


def regenerate(sql: str) -> str:
    """Return the regenerated SQL of a query.

    Args:
        sql: The query's text; it may have snapshots.

    Raises:
        RefusedError: It cannot be written.
    """
    (tree,) = AsWrittenParser(dialect=AsWritten()).parse(tokenized(sql), sql)
    if tree is None:
        raise RefusedError(Code.UNREADABLE, "the query is empty")
    return write(tree.transform(_written_out), identify=False)


def _written_out(node: exp.Expr) -> exp.Expr:
    """Write what sqlglot's Spark dialect omits, and read any(…) as an aggregate, except after LIKE."""
    if isinstance(node, exp.Anonymous) and len(node.expressions) == 1 and node.name.lower() in _BOOLEAN:
        return _BOOLEAN[node.name.lower()](this=node.expressions[0].copy())
    if isinstance(node, exp.ParseJSON):
        return exp.Anonymous(this="parse_json", expressions=[node.this.copy()])
    if (
        isinstance(node, exp.Any)
        and isinstance(node.this, exp.Paren)
        and not isinstance(node.parent, exp.Like | exp.ILike)
    ):
        return exp.LogicalOr(this=node.this.this.copy())
    return node


#: The argument of a function that must be a string, because sqlglot reads anything there as the name of a unit.
_UNITS = {"date_trunc": 0, "trunc": 1}
#: The number of arguments that sqlglot keeps, by function.
_ARGUMENTS = {"percentile": 2, "array_size": 0}


def read(query: ParsedQuery) -> exp.Expr:
    """Return a copy of a query's tree for the algebra, with the aggregates that sqlglot does not recognize.

    Raises:
        RefusedError: It has a call that sqlglot would not write as it was read.
    """
    tokens = query.tokens
    for index, token in enumerate(tokens[:-1]):
        name = token.text.lower()
        if tokens[index + 1].token_type is TokenType.L_PAREN and (name in _UNITS or name in _ARGUMENTS):
            _check(name, list(_arguments(tokens, index + 2)))
    return query.tree.transform(_written_out)


def _check(name: str, arguments: Sequence[Sequence[Token]]) -> None:
    if name in _ARGUMENTS and len(arguments) > _ARGUMENTS[name]:
        message = f"{name}() with {len(arguments)} arguments is not supported here"
        raise RefusedError(Code.UNSUPPORTED_OPERATOR, message)
    position = _UNITS.get(name)
    if position is not None and len(arguments) > position:
        kinds = [token.token_type for token in arguments[position]]
        if kinds != [TokenType.STRING]:
            message = f"{name}() with a unit that is not written as a string is not supported here"
            raise RefusedError(Code.UNSUPPORTED_OPERATOR, message)


def _arguments(tokens: Sequence[Token], start: int) -> Iterator[list[Token]]:
    """Yield the arguments of a call, whose opening parenthesis is before the start."""
    depth = 1
    argument: list[Token] = []
    for token in tokens[start:]:
        depth += {TokenType.L_PAREN: 1, TokenType.R_PAREN: -1}.get(token.token_type, 0)
        if depth == 0:
            break
        if depth == 1 and token.token_type is TokenType.COMMA:
            yield argument
            argument = []
        else:
            argument.append(token)
    if argument:
        yield argument
