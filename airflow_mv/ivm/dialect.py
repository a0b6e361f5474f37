# SPDX-License-Identifier: Apache-2.0
"""A parsed query as the algebra takes it, and queries of the algebra as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sqlglot import ErrorLevel, Token, TokenType, UnsupportedError, exp

from airflow_mv.ivm.model import RefusedError
from airflow_mv.spec.reasons import Code
from airflow_mv.sql.dialect import AsWritten, AsWrittenParser, tokenized
from airflow_mv.sql.query import ParsedQuery

#: Other names of bool_or() and bool_and(), which sqlglot does not know.
_BOOLEAN = {"some": exp.LogicalOr, "every": exp.LogicalAnd}


def write(tree: exp.Expr, *, identify: bool = True, pretty: bool = False) -> str:
    """Return a query or an expression as Spark SQL.

    Args:
        tree: What :func:`read` returned, or made of parts of that.
        identify: Whether to quote all names.
        pretty: Whether people read it, so that it has a line for each part.

    Raises:
        RefusedError: A part of it cannot be written.
    """
    try:
        return tree.sql(dialect=AsWritten, identify=identify, pretty=pretty, unsupported_level=ErrorLevel.RAISE)
    except UnsupportedError as error:
        raise RefusedError(
            Code.UNSUPPORTED_OPERATOR, f"a part of the query cannot be written again: {error}"
        ) from error


def regenerate(sql: str) -> str:
    """Return a query as it is read here and written again.

    Args:
        sql: Its text; it may have snapshots.

    Raises:
        RefusedError: It cannot be written.
    """
    (tree,) = AsWrittenParser(dialect=AsWritten()).parse(tokenized(sql), sql)
    if tree is None:
        raise RefusedError(Code.UNREADABLE, "the query is empty")
    return write(tree.transform(_written_out), identify=False)


def _written_out(node: exp.Expr) -> exp.Expr:
    """Say what sqlglot's Spark dialect leaves out, and read any(…) as the aggregate that it is but behind LIKE."""
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


#: Which argument of a function must be a string: sqlglot takes anything there for the name of a unit.
_UNITS = {"date_trunc": 0, "trunc": 1}
#: How many arguments of a function sqlglot keeps.
_ARGUMENTS = {"percentile": 2, "array_size": 0}


def read(query: ParsedQuery) -> exp.Expr:
    """Return a query's tree as the algebra takes it: a copy, with the aggregates that sqlglot does not see.

    Args:
        query: The query.

    Raises:
        RefusedError: It holds a call that would not be written as it was read.
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
