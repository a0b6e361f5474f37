# SPDX-License-Identifier: Apache-2.0
"""Mistakes in a query, found without Spark: names that no table has, and calls that no function takes.

Functions may also be users' own, so an unknown one is refused only if a built-in function has nearly its name. A name
with its schema, such as ``tools.cuont(x)``, is never taken for a built-in function.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from sqlglot import Token, TokenType, exp

from airflow_mv.common.queries import use_of
from airflow_mv.core.ivm import BaseRelation, nearest_function
from airflow_mv.core.refresh.inputs import ResolvedQuery
from airflow_mv.core.sql.query import ParsedQuery, query_error

_OPENING = (TokenType.L_PAREN, TokenType.L_BRACKET, TokenType.L_BRACE)
_CLOSING = (TokenType.R_PAREN, TokenType.R_BRACKET, TokenType.R_BRACE)
#: In ``substring(x FROM 2 FOR 3)`` and ``extract(year FROM x)`` the arguments have words in between.
_BETWEEN = frozenset({"FROM", "FOR"})
#: How many arguments Spark's functions take, at least and at most, where sqlglot does not count them.
ARGUMENTS: Mapping[str, tuple[int, int | None]] = {
    **dict.fromkeys(("avg", "max", "mean", "min", "sum"), (1, 1)),
    **dict.fromkeys(("add_months", "array_contains", "date_format", "date_sub", "date_trunc", "element_at"), (2, 2)),
    **dict.fromkeys(("from_utc_timestamp", "ifnull", "instr", "left", "max_by", "min_by", "mod"), (2, 2)),
    **dict.fromkeys(("nullif", "nvl", "power", "right", "sha2", "to_utc_timestamp", "trunc"), (2, 2)),
    **dict.fromkeys(("date_add", "dateadd", "date_diff", "datediff", "lpad", "rpad", "split", "substr"), (2, 3)),
    **dict.fromkeys(("locate", "months_between", "regexp_extract", "replace", "substring"), (2, 3)),
    **dict.fromkeys(("bround", "ceil", "floor", "from_unixtime", "round", "to_date", "to_timestamp"), (1, 2)),
    **dict.fromkeys(("concat_ws", "count", "hash", "xxhash64"), (1, None)),
    **dict.fromkeys(("greatest", "least"), (2, None)),
    **dict.fromkeys(("if", "nvl2", "split_part"), (3, 3)),
    "regexp_replace": (3, 4),
    "unix_timestamp": (0, 2),
}


def refuse_mistakes(resolved: ResolvedQuery, relations: Sequence[BaseRelation]) -> None:
    """Refuse a query that Spark would refuse.

    Args:
        relations: Its base tables, with the columns that they have now.

    Raises:
        InvalidQueryError: Names the place, and the nearest legal name.
    """
    _check_calls(resolved.query)
    present = zip(resolved.dependencies.tables, resolved.tables, strict=True)
    if all(_has_present_columns(resolved, name, table.head) for name, table in present):
        use_of(resolved.query, relations, resolved.dependencies.nested, lambda *_: None, strict=True)


def _check_calls(query: ParsedQuery) -> None:
    unknown = {
        call.name.lower(): near
        for call in query.tree.find_all(exp.Anonymous)
        if not isinstance(call.parent, exp.Dot) and (near := nearest_function(call))
    }
    for name, place, count in _calls(query.tokens):
        if near := unknown.get(name):
            message = (
                f"there is no function {name}; did you mean {near!r}? If it is a function of your own, write its "
                "schema before it"
            )
            raise query_error(query.text, place, message, query.view)
        least, most = ARGUMENTS.get(name, (0, None))
        if count is not None and not least <= count <= (count if most is None else most):
            raise query_error(query.text, place, f"{name}() takes {_counted(least, most)}, not {count}", query.view)


def _calls(tokens: Sequence[Token]) -> Iterator[tuple[str, int, int | None]]:
    """Yield name, place and number of arguments of each call of a function without a schema.

    The number is ``None`` for arguments with words in between.
    """
    for index, token in enumerate(tokens[:-1]):
        is_call = tokens[index + 1].token_type is TokenType.L_PAREN and token.text.isidentifier()
        if is_call and not (index and tokens[index - 1].token_type is TokenType.DOT):
            yield token.text.lower(), token.start, _count(tokens, index + 1)


def _count(tokens: Sequence[Token], opening: int) -> int | None:
    depth, count, is_empty = 0, 1, True
    for token in tokens[opening:]:
        depth += (token.token_type in _OPENING) - (token.token_type in _CLOSING)
        if depth == 0:
            return 0 if is_empty else count
        is_empty = is_empty and token is tokens[opening]
        if depth == 1:
            if token.text.upper() in _BETWEEN:
                return None
            count += token.token_type is TokenType.COMMA
    return None


def _counted(least: int, most: int | None) -> str:
    if most is None:
        return f"at least {least} argument{'s'[: least != 1]}"
    return f"{least if least == most else f'{least} to {most}'} argument{'s'[: most != 1]}"


def _has_present_columns(resolved: ResolvedQuery, name: object, head: int | None) -> bool:
    """Whether a table is read with its present columns: one at an older snapshot may have others."""
    table = next(table for identifier, table in resolved.metadata.items() if identifier == name)
    return bool(table.schema_at(head).get("fields") == table.current_schema.get("fields"))
