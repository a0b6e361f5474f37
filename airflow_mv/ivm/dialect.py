# SPDX-License-Identifier: Apache-2.0
"""Spark's SQL as sqlglot reads and writes it, but for what sqlglot would write with another meaning.

Whether all of a query is written as it was read, Spark itself is asked before an incremental refresh begins
(:class:`airflow_mv.script.DeterminismStep`). What is known here to come out otherwise is kept as it was.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

from sqlglot import ErrorLevel, Token, TokenType, UnsupportedError, exp
from sqlglot.dialects.spark import Spark
from sqlglot.generators.spark import SparkGenerator
from sqlglot.parsers.spark import SparkParser

from airflow_mv.errors import InvalidQueryError
from airflow_mv.ivm.model import RefusedError
from airflow_mv.spec.reasons import Code
from airflow_mv.sql.query import parse_query, tokenized

#: Functions whose name and arguments are kept: sqlglot has another form for them, or another idea of a format.
KEPT = frozenset(
    """
    date_format date_sub date_trunc from_unixtime instr levenshtein locate log log10 log2 regexp_replace space
    to_char to_date to_number to_timestamp to_unix_timestamp trunc unix_date unix_timestamp
    """.split()  # noqa: SIM905
)
#: Other names of bool_or() and bool_and(), which sqlglot does not know.
_BOOLEAN = {"some": exp.LogicalOr, "every": exp.LogicalAnd}
_TYPED = {exp.DType.DATE: "DATE", exp.DType.TIMESTAMPTZ: "TIMESTAMP"}


class _Parser(SparkParser):
    #: Else a comma would be read as CROSS JOIN, which Spark's analysis tells from it.
    JOINS_HAVE_EQUAL_PRECEDENCE = False
    FUNCTIONS: ClassVar = {name: build for name, build in SparkParser.FUNCTIONS.items() if name.lower() not in KEPT}

    def _parse_interval(self, require_interval: bool = True, parse_function_unit: bool = True) -> exp.Expr | None:  # type: ignore[override]  # noqa: FBT001, FBT002 (sqlglot's)
        found = super()._parse_interval(require_interval, parse_function_unit)
        # An interval of several units is read as a sum: without parentheses a minus before it is for the first only.
        return exp.Paren(this=found) if isinstance(found, exp.Add) else found


class _Generator(SparkGenerator):
    TRANSFORMS: ClassVar = {
        **{kind: write for kind, write in SparkGenerator.TRANSFORMS.items() if kind is not exp.WithinGroup},
        exp.GroupConcat: lambda self, expression: self.function_of_texts(expression),
    }

    def not_sql(self, expression: exp.Not) -> str:
        """Write ``IS NOT NULL`` as people do: to Spark's analysis it is no ``NOT``."""
        inner = expression.this
        if type(inner) is exp.Is and isinstance(inner.expression, exp.Null):
            return f"{self.sql(inner, 'this')} IS NOT NULL"
        return super().not_sql(expression)

    def cast_sql(self, expression: exp.Cast, safe_prefix: str | None = None) -> str:
        """Write a typed literal as one: sqlglot takes only that for a cast that may fail."""
        value, name = expression.this, _TYPED.get(expression.to.this)
        if type(expression) is exp.Cast and name and isinstance(value, exp.Literal) and value.is_string:
            return f"{name} {self.sql(value)}"
        return super().cast_sql(expression, safe_prefix)

    def function_of_texts(self, expression: exp.GroupConcat) -> str:
        """Write LISTAGG without a separator where none was given."""
        if expression.args.get("separator") is not None:
            return str(SparkGenerator.TRANSFORMS[exp.GroupConcat](self, expression))
        value = expression.this
        order = value if isinstance(value, exp.Order) else None
        call = f"LISTAGG({self.sql(order.this if order else value)})"
        if order is None:
            return call
        written = ", ".join(self.sql(item) for item in order.expressions)
        return f"{call} WITHIN GROUP (ORDER BY {written})"


class AsWritten(Spark):
    """Spark's dialect, of which more is written as it was read."""

    Parser = _Parser
    Generator = _Generator


def parse(text: str, tokens: Sequence[Token]) -> exp.Expr:
    """Read a query that has been found readable, see :func:`airflow_mv.sql.query.parse_query`.

    Args:
        text: The query.
        tokens: Its tokens, without a semicolon.

    Raises:
        RefusedError: There is none.
    """
    (tree,) = _Parser(dialect=AsWritten()).parse(list(tokens), text)
    if tree is None:
        raise RefusedError(Code.UNREADABLE, "the query is empty")
    return tree.transform(_written_out)


def write(tree: exp.Expr, *, identify: bool = True, pretty: bool = False) -> str:
    """Return a query or an expression as Spark SQL.

    Args:
        tree: What :func:`parse` read, or made of parts of that.
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
    return write(parse(sql, tokenized(sql)), identify=False)


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
