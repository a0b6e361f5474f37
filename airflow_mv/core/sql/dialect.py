# SPDX-License-Identifier: Apache-2.0
"""sqlglot's Spark dialect, changed where sqlglot would write SQL with another meaning.

A view's query is parsed in this dialect once. The same tree is used to find base tables, to expand ``*``, and for the
analysis of incremental refreshes. Before an incremental refresh Spark itself compares the regenerated query with the
user's own (:class:`airflow_mv.core.script.DeterminismStep`). This module keeps constructs in their original form that
sqlglot is known to regenerate differently.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

from sqlglot import Parser, Token, TokenType, exp
from sqlglot.dialects.spark import Spark
from sqlglot.generators.spark import SparkGenerator
from sqlglot.parsers.spark import SparkParser

#: sqlglot raises these for some calls that Spark accepts, such as map() with one argument.
PARSER_FAULTS = (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError)

#: Functions whose name and arguments are kept, because sqlglot rewrites them or their formats, or knows them only since
#: a version that managed Airflow does not have yet.
KEPT = frozenset(
    """
    date_format date_sub date_trunc from_unixtime instr levenshtein locate log log10 log2 regexp_replace space stack
    to_char to_date to_number to_timestamp to_unix_timestamp trunc unix_date unix_timestamp
    """.split()  # noqa: SIM905
)
_TYPED = {exp.DType.DATE: "DATE", exp.DType.TIMESTAMPTZ: "TIMESTAMP"}
#: Tokens that may follow ``window`` if it is a name, including AS.
_NEVER_NAMES = (TokenType.R_PAREN, TokenType.DOT, TokenType.COMMA)
_QUOTED = frozenset({TokenType.STRING, TokenType.IDENTIFIER, TokenType.RAW_STRING})
#: Words that sqlglot takes for keywords, and that Spark takes for names wherever they are in a query.
_NO_KEYWORDS = frozenset(
    """
    alter asof connect_by_root create describe drop fetch glob grant isnull lock notnull overlaps partitioned_by qualify
    returning revoke rollback serdeproperties straight_join uncache xor
    """.split()  # noqa: SIM905
)
#: Words that are keywords of sqlglot, and of Spark only before a parenthesis.
_FUNCTIONS = frozenset({"any", "some", "if"})
#: Words that are names before these tokens, as no operand and no table begins with one.
_NEED_OPERANDS = frozenset(
    """
    and between case cross else for having ilike inner insert into lateral like on or outer regexp rlike select
    tablesample then using values when where with
    """.split()  # noqa: SIM905
)
_NO_OPERANDS = frozenset(
    {
        None,
        TokenType.ALIAS,
        TokenType.ARROW,
        TokenType.COMMA,
        TokenType.DCOLON,
        TokenType.DOT,
        TokenType.EQ,
        TokenType.FROM,
        TokenType.GT,
        TokenType.GTE,
        TokenType.LT,
        TokenType.LTE,
        TokenType.L_BRACKET,
        TokenType.NEQ,
        TokenType.NULLSAFE_EQ,
        TokenType.R_PAREN,
        TokenType.SLASH,
    }
)
#: So many keywords before an error are tried as names.
_MAX_WORDS = 6
_INTERVAL_UNITS = frozenset(
    ("year", "month", "week", "day", "hour", "minute", "second", "millisecond", "microsecond", "nanosecond")
)


#: What sqlglot makes of calls such as ``like(a, b)`` and ``mod(a, b)``.
_WRITTEN_AS_OPERATORS = (exp.Like, exp.ILike, exp.RegexpLike, exp.Escape, exp.Mod, exp.IntDiv, exp.Collate, exp.Trim)
_OPERATORS = (exp.Binary, exp.Unary, exp.Between, exp.In)


class AsWrittenParser(SparkParser):
    """Spark's parser, which keeps more of the original text."""

    #: Otherwise a comma would be read as CROSS JOIN, and Spark's analysis distinguishes the two.
    JOINS_HAVE_EQUAL_PRECEDENCE = False
    FUNCTIONS: ClassVar = {name: build for name, build in SparkParser.FUNCTIONS.items() if name.lower() not in KEPT}

    def _parse_function_call(
        self,
        functions: dict[str, Callable[..., Any]] | None = None,
        anonymous: bool = False,  # noqa: FBT001, FBT002 (sqlglot's)
        optional_parens: bool = True,  # noqa: FBT001, FBT002
        any_token: bool = False,  # noqa: FBT001, FBT002
    ) -> exp.Expr | None:
        found = super()._parse_function_call(functions, anonymous, optional_parens, any_token)
        call = found.this if isinstance(found, exp.Paren) else found
        return _in_parentheses(call) if isinstance(call, _WRITTEN_AS_OPERATORS) else found

    def _parse_interval(self, require_interval: bool = True, parse_function_unit: bool = True) -> exp.Expr | None:  # type: ignore[override]  # noqa: FBT001, FBT002 (sqlglot's)
        found = super()._parse_interval(require_interval, parse_function_unit)
        # An interval of several units is read as a sum. Without parentheses a minus would apply to the first unit only.
        return exp.Paren(this=found) if isinstance(found, exp.Add) else found


def _in_parentheses(call: exp.Expr) -> exp.Expr:
    """Return a call that is written as an operator, with the parentheses that keep its place and its operands."""
    for name, operand in list(call.args.items()):
        if isinstance(call, exp.Escape) and name == "this":
            _in_parentheses(operand)
        elif isinstance(operand, _OPERATORS) and not isinstance(operand, exp.Paren | exp.Dot):
            call.set(name, exp.Paren(this=operand))
    return call if isinstance(call, exp.Trim) else exp.Paren(this=call)


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
    MAX_STEPS: ClassVar[int] = 200_000
    MAX_STEPS_PER_TOKEN: ClassVar[int] = 20
    steps_left: int

    def parse(self, raw_tokens: list[Token], sql: str) -> list[exp.Expr | None]:
        """Parse tokens.

        Raises:
            TooManyStepsError: It takes too long.
        """
        self.steps_left = max(self.MAX_STEPS, self.MAX_STEPS_PER_TOKEN * len(raw_tokens))
        return super().parse(raw_tokens, sql)

    def _advance(self, times: int = 1) -> None:
        self.steps_left -= 1
        if self.steps_left < 0:
            raise TooManyStepsError
        super()._advance(times)


def tokenized(sql: str) -> list[Token]:
    """Return the tokens of a text. What only sqlglot takes for a keyword is a name, as if it were in backticks.

    Raises:
        TokenError: There are none.
    """
    tokens = Spark().tokenize(sql)
    found = [token.token_type for token in tokens[:1]]
    found += [_type(tokens, at) for at in range(1, len(tokens))]
    return [
        token if token.token_type is kind else _as_name(token, kind) for token, kind in zip(tokens, found, strict=True)
    ]


def _type(tokens: Sequence[Token], at: int) -> TokenType:
    """Return the type of a token after the first one, which says whether the text is a query."""
    token, following = tokens[at], tokens[at + 1 : at + 4]
    word, after = token.text.lower(), following[0].token_type if following else None
    if token.token_type in _QUOTED or not word.isidentifier():
        return token.token_type
    if token.token_type is TokenType.WINDOW and _is_named_window(tokens[at : at + 3]):
        return TokenType.VAR
    is_field = tokens[at - 1].token_type is TokenType.DOT and token.token_type is not TokenType.VAR
    is_name = (is_field or word in _NO_KEYWORDS or word in _FUNCTIONS) and after is not TokenType.L_PAREN
    is_name |= word in _NEED_OPERANDS and after in _NO_OPERANDS
    is_name |= word == "interval" and not _begins_interval(following)
    return TokenType.IDENTIFIER if is_name else token.token_type


def _begins_interval(tokens: Sequence[Token]) -> bool:
    """Whether the tokens are those of an interval's value: a string, or a number before a unit."""
    signed = bool(tokens) and tokens[0].token_type in (TokenType.DASH, TokenType.PLUS)
    value = tokens[1 if signed else 0 :]
    if value and value[0].token_type is TokenType.NUMBER:
        return len(value) > 1 and value[1].text.lower().removesuffix("s") in _INTERVAL_UNITS
    return bool(value) and value[0].token_type is TokenType.STRING


def _is_named_window(tokens: Sequence[Token]) -> bool:
    """Whether the first token is the word ``window`` as the name of a function or a column."""
    return len(tokens) < 3 or tokens[2].token_type is not TokenType.ALIAS or tokens[1].token_type in _NEVER_NAMES


def with_names(tokens: Sequence[Token], place: int) -> Iterator[tuple[str, list[Token]]]:
    """Yield keywords, the nearest to a place first, with the tokens in which they are names: there, then everywhere.

    Args:
        place: Where parsing has failed, in characters.
    """
    keywords = [at for at, token in enumerate(tokens) if at and _is_keyword(token)]
    for at in [at for at in keywords if tokens[at].start <= place + 1][: -_MAX_WORDS - 1 : -1]:
        same = {item for item in keywords if tokens[item].text.lower() == tokens[at].text.lower()}
        for names in ({at}, same):
            yield tokens[at].text, [_as_name(item) if number in names else item for number, item in enumerate(tokens)]


def _is_keyword(token: Token) -> bool:
    return token.text.isidentifier() and token.token_type not in _QUOTED and token.token_type is not TokenType.VAR


def _as_name(token: Token, kind: TokenType = TokenType.IDENTIFIER) -> Token:
    """Return a token as a name."""
    return Token(kind, token.text, token.line, token.col, token.start, token.end, token.comments)
