# SPDX-License-Identifier: Apache-2.0
"""sqlglot's Spark dialect, changed where sqlglot would write SQL with another meaning.

A view's query is parsed in this dialect once. The same tree is used to find base tables, to expand ``*``, and for the
analysis of incremental refreshes. Before an incremental refresh Spark itself compares the regenerated query with the
user's own (:class:`airflow_mv.script.DeterminismStep`). This module keeps constructs in their original form that
sqlglot is known to regenerate differently.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from sqlglot import Parser, Token, TokenType, exp
from sqlglot.dialects.spark import Spark
from sqlglot.generators.spark import SparkGenerator
from sqlglot.parsers.spark import SparkParser

#: Functions whose name and arguments are kept, because sqlglot rewrites them or their formats.
KEPT = frozenset(
    """
    date_format date_sub date_trunc from_unixtime instr levenshtein locate log log10 log2 regexp_replace space
    to_char to_date to_number to_timestamp to_unix_timestamp trunc unix_date unix_timestamp
    """.split()  # noqa: SIM905
)
_TYPED = {exp.DType.DATE: "DATE", exp.DType.TIMESTAMPTZ: "TIMESTAMP"}
#: Tokens that may follow ``window`` if it is a name, including AS.
_NEVER_NAMES = (TokenType.R_PAREN, TokenType.DOT, TokenType.COMMA)


class AsWrittenParser(SparkParser):
    """Spark's parser, which keeps more of the original text."""

    #: Otherwise a comma would be read as CROSS JOIN, and Spark's analysis distinguishes the two.
    JOINS_HAVE_EQUAL_PRECEDENCE = False
    FUNCTIONS: ClassVar = {name: build for name, build in SparkParser.FUNCTIONS.items() if name.lower() not in KEPT}

    def _parse_interval(self, require_interval: bool = True, parse_function_unit: bool = True) -> exp.Expr | None:  # type: ignore[override]  # noqa: FBT001, FBT002 (sqlglot's)
        found = super()._parse_interval(require_interval, parse_function_unit)
        # An interval of several units is read as a sum. Without parentheses a minus would apply to the first unit only.
        return exp.Paren(this=found) if isinstance(found, exp.Add) else found


class _Generator(SparkGenerator):
    TRANSFORMS: ClassVar = {
        **{kind: write for kind, write in SparkGenerator.TRANSFORMS.items() if kind is not exp.WithinGroup},
        exp.GroupConcat: lambda self, expression: self.function_of_texts(expression),
    }

    def not_sql(self, expression: exp.Not) -> str:
        """Write ``IS NOT NULL``, which Spark's analysis distinguishes from ``NOT … IS NULL``."""
        inner = expression.this
        if type(inner) is exp.Is and isinstance(inner.expression, exp.Null):
            return f"{self.sql(inner, 'this')} IS NOT NULL"
        return super().not_sql(expression)

    def cast_sql(self, expression: exp.Cast, safe_prefix: str | None = None) -> str:
        """Write a typed literal in its own form. Only typed literals are read as a plain ``exp.Cast``."""
        value, name = expression.this, _TYPED.get(expression.to.this)
        if type(expression) is exp.Cast and name and isinstance(value, exp.Literal) and value.is_string:
            return f"{name} {self.sql(value)}"
        return super().cast_sql(expression, safe_prefix)

    def function_of_texts(self, expression: exp.GroupConcat) -> str:
        """Write LISTAGG without a separator if none was given."""
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
    """Spark's dialect, which writes more constructs in the form in which they were read."""

    Parser = AsWrittenParser
    Generator = _Generator


class TooManyStepsError(Exception):
    """Not a subclass of sqlglot's errors, because sqlglot would catch it."""


class BoundedParser(Parser):
    """Stops parsing where sqlglot's attempts double with each JOIN without ON, or each nested STRUCT."""

    #: Reading a token takes sqlglot one to two steps; 200,000 steps take about a second.
    MOST_STEPS: ClassVar[int] = 200_000
    MOST_STEPS_PER_TOKEN: ClassVar[int] = 20
    steps_left: int

    def parse(self, raw_tokens: list[Token], sql: str) -> list[exp.Expr | None]:
        """Parse tokens.

        Raises:
            TooManyStepsError: It takes too long.
        """
        self.steps_left = max(self.MOST_STEPS, self.MOST_STEPS_PER_TOKEN * len(raw_tokens))
        return super().parse(raw_tokens, sql)

    def _advance(self, times: int = 1) -> None:
        self.steps_left -= 1
        if self.steps_left < 0:
            raise TooManyStepsError
        super()._advance(times)


def tokenized(sql: str) -> list[Token]:
    """Return the tokens of a text. ``window`` is a keyword only where it begins a clause.

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
