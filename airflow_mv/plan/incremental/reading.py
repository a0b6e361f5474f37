# SPDX-License-Identifier: Apache-2.0
"""Read a query with sqlglot, except for calls that it would write again with another meaning."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sqlglot import Token, TokenType, exp

from airflow_mv.errors import InvalidQueryError
from airflow_mv.plan.incremental.dialect import parse
from airflow_mv.plan.incremental.model import RefusedError
from airflow_mv.plan.pinning import tokenized
from airflow_mv.plan.query import parse_query
from airflow_mv.plan.reasons import Code

#: Which argument of a function must be a string: sqlglot takes anything there for the name of a unit.
_UNITS = {"date_trunc": 0, "trunc": 1}
#: How many arguments of a function sqlglot keeps.
_ARGUMENTS = {"percentile": 2, "array_size": 0}


def read(sql: str, view: str) -> exp.Expr:
    """Read a query.

    Args:
        sql: The text.
        view: Whose query it is, for messages.

    Raises:
        RefusedError: It is not readable, or holds a call that would not be written as it was read.
    """
    try:
        text = parse_query(sql, view=view).text
    except InvalidQueryError as error:
        raise RefusedError(Code.UNREADABLE, str(error)) from error
    tokens = tokenized(text)
    for index, token in enumerate(tokens[:-1]):
        name = token.text.lower()
        if tokens[index + 1].token_type is TokenType.L_PAREN and (name in _UNITS or name in _ARGUMENTS):
            _check(name, list(_arguments(tokens, index + 2)))
    return parse(text, tokens)


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
