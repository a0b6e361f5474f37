# SPDX-License-Identifier: Apache-2.0
"""sqlglot's Spark dialect, changed where sqlglot would write SQL with another meaning.

A view's query is parsed in this dialect once: the same tree tells the base tables, expands ``*`` and is analysed for an
incremental refresh. Before an incremental refresh Spark itself compares the regenerated query with the user's own
(:class:`airflow_mv.script.DeterminismStep`). What is known to come out otherwise is kept here as it was written.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from sqlglot import Token, TokenType, exp
from sqlglot.dialects.spark import Spark
from sqlglot.generators.spark import SparkGenerator
from sqlglot.parsers.spark import SparkParser

#: Functions whose name and arguments are kept: sqlglot has another form for them, or another idea of a format.
KEPT = frozenset(
    """
    date_format date_sub date_trunc from_unixtime instr levenshtein locate log log10 log2 regexp_replace space
    to_char to_date to_number to_timestamp to_unix_timestamp trunc unix_date unix_timestamp
    """.split()  # noqa: SIM905
)
_TYPED = {exp.DType.DATE: "DATE", exp.DType.TIMESTAMPTZ: "TIMESTAMP"}
#: What may stand behind ``window`` where that is a name, and AS behind it.
_NEVER_NAMES = (TokenType.R_PAREN, TokenType.DOT, TokenType.COMMA)


class AsWrittenParser(SparkParser):
    """Spark's parser, which keeps more of what was written."""

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

    Parser = AsWrittenParser
    Generator = _Generator


def tokenized(sql: str) -> list[Token]:
    """Return the tokens of a text, where sqlglot takes ``window`` for a keyword only where it begins a clause.

    Raises:
        TokenError: There are none.
    """
    tokens = Spark().tokenize(sql)
    return [_as_name(token) if _is_named_window(tokens[at : at + 3]) else token for at, token in enumerate(tokens)]


def _is_named_window(tokens: Sequence[Token]) -> bool:
    """Whether the first token is the word ``window`` as the name of a function or a column."""
    if tokens[0].token_type is not TokenType.WINDOW:
        return False
    return len(tokens) < 3 or tokens[2].token_type is not TokenType.ALIAS or tokens[1].token_type in _NEVER_NAMES


def _as_name(token: Token) -> Token:
    return Token(TokenType.VAR, token.text, token.line, token.col, token.start, token.end, token.comments)
