# SPDX-License-Identifier: Apache-2.0
"""A view's query in the SQL dialects of other engines. sqlglot writes it, and what it would change is refused.

The new text is parsed again and written back. If that is not the query that it was written from, the dialect is
refused: the message shows the first part that differs. No engine runs the text here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache, lru_cache
from types import new_class
from typing import cast

from sqlglot import Dialect, ErrorLevel, Parser, exp
from sqlglot.errors import ParseError, SqlglotError

from airflow_mv.core.spec.choices import TRANSPILE_PROPERTY
from airflow_mv.core.spec.view import DIALECT
from airflow_mv.core.sql.dialect import PARSER_FAULTS, BoundedParser, TooManyStepsError
from airflow_mv.errors import ConfigurationError, InvalidMetadataError, UnsupportedError
from airflow_mv.foundation.redaction import shortened
from airflow_mv.foundation.words import did_you_mean

_NAME = re.compile(r"[a-z][a-z0-9_]{0,30}")
_MAX_LENGTH = 120
#: The most characters of a query that is translated.
MAX_TRANSLATED = 128 * 1024


def known_dialects(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names of dialects, each once, without Spark's, in which every view is stored.

    Raises:
        ConfigurationError: sqlglot knows no such dialect.
    """
    found = tuple(dict.fromkeys(name.strip().lower() for name in names if name.strip()))
    for name in found:
        if not _NAME.fullmatch(name) or Dialect.get(name) is None:
            raise ConfigurationError(
                f"there is no SQL dialect {name[:_MAX_LENGTH]!r} that sqlglot can write; there are trino, duckdb, "
                f"snowflake, bigquery and others{did_you_mean(name, Dialect.classes)}"
            )
    return tuple(name for name in found if name != DIALECT)


def texts(sql: str, dialects: Iterable[str], *, view: str) -> dict[str, str]:
    """Return a query in Spark's dialect and in others, by dialect.

    Args:
        sql: The query in Spark's dialect.
        dialects: The others.

    Raises:
        UnsupportedError: Names the dialect, and the part of the query that it cannot express.
    """
    return {DIALECT: sql, **{dialect: translated(sql, DIALECT, dialect, view=view) for dialect in dialects}}


def for_spark(stored: Mapping[str, str], dialect: str, *, view: str) -> str:
    """Return a stored query in another dialect as Spark's.

    Raises:
        InvalidMetadataError: There is no such dialect, or no text in it.
        UnsupportedError: The text cannot be translated.
    """
    if dialect not in stored or not _NAME.fullmatch(dialect):
        raise InvalidMetadataError(
            f"view {view}, property {TRANSPILE_PROPERTY}: the view has no SQL in the dialect {dialect[:_MAX_LENGTH]!r}"
        )
    return translated(stored[dialect], dialect, DIALECT, view=view)


@lru_cache(maxsize=256)
def translated(sql: str, source: str, target: str, *, view: str) -> str:
    """Return a query in another dialect.

    Args:
        source: Its dialect.
        target: The other dialect.

    Raises:
        UnsupportedError: The query would not be the same; the message shows where.
    """
    if len(sql) > MAX_TRANSLATED:
        raise UnsupportedError(
            f"view {view}: its query has {len(sql)} characters, and at most {MAX_TRANSLATED} are translated"
        )
    problem = f"view {view}: its query cannot be written in the dialect {target!r}"
    try:
        tree = _parsed(sql, source)
        unknown = next(tree.find_all(exp.Anonymous), None)
        if unknown is not None:
            raise UnsupportedError(
                f"{problem}: sqlglot does not know the function {shortened(unknown.name, _MAX_LENGTH)}"
            )
        text = tree.sql(dialect=target, unsupported_level=ErrorLevel.RAISE)
        back = _parsed(text, target).sql(dialect=source, unsupported_level=ErrorLevel.RAISE)
        difference = _difference(_comparable(tree), _comparable(_parsed(back, source)))
    except (SqlglotError, RecursionError, TooManyStepsError, *PARSER_FAULTS) as error:
        why = shortened(" ".join(str(error).split()), 300) or "sqlglot takes too long to parse it"
        raise UnsupportedError(f"{problem}: {why}") from None
    if difference is not None:
        before, after = (_shown(node, source) for node in difference)
        raise UnsupportedError(f"{problem}: {before} would become {after}")
    return text


@cache
def _bounded(parser: type[Parser]) -> type[Parser]:
    return cast(type[Parser], new_class("Bounded", (BoundedParser, parser)))


def _parsed(sql: str, dialect: str) -> exp.Expr:
    found = Dialect.get_or_raise(dialect)
    trees = _bounded(type(found).parser_class)(dialect=found).parse(found.tokenize(sql), sql)
    if len(trees) != 1 or trees[0] is None:
        raise ParseError("it is not one query")
    tree = trees[0]
    for node in list(tree.find_all(exp.TryCast)):
        if not node.args.get("safe"):
            # sqlglot reads Spark's CAST as TRY_CAST, as it was before Spark 4.
            node.replace(exp.Cast(this=node.this, to=node.to))
    return tree


def _comparable(tree: exp.Expr) -> exp.Expr:
    """Return a tree without differences in writing that mean the same in every dialect."""
    tree = tree.copy()
    for node in list(tree.walk()):
        if isinstance(node, exp.Identifier):
            node.set("quoted", None)
        elif isinstance(node, exp.Join) and node.args.get("kind") in ("SEMI", "ANTI"):
            node.set("side", None)
    return tree


def _difference(before: exp.Expr, after: exp.Expr) -> tuple[exp.Expr, exp.Expr] | None:
    """Return the smallest parts of two trees that differ."""
    if before == after:
        return None
    if type(before) is type(after):
        parts, others = list(before.iter_expressions()), list(after.iter_expressions())
        for one, other in zip(parts, others, strict=True) if len(parts) == len(others) else ():
            if (found := _difference(one, other)) is not None:
                return found
    return before, after


def _shown(node: exp.Expr, dialect: str) -> str:
    return shortened(node.sql(dialect=dialect), _MAX_LENGTH)
