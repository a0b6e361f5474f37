# SPDX-License-Identifier: Apache-2.0
"""Quote identifiers and texts for Spark SQL. Standard library only, because the driver uses it."""

from __future__ import annotations

import re

from airflow_mv.errors import InvalidQueryError

_ESCAPED = re.compile(r"['\\\x00-\x1f\x7f]|\$(?=\{)")


def quote(name: str) -> str:
    """Return a name as a quoted Spark SQL identifier."""
    return "`" + name.replace("`", "``") + "`"


def string_literal(text: str) -> str:
    """Return a Spark string literal that means exactly the text.

    Raises:
        InvalidQueryError: The text holds half a surrogate pair, which Spark cannot store.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidQueryError(f"{text!r} is not Unicode text") from error
    return "'" + _ESCAPED.sub(_escaped, text) + "'"


def _escaped(match: re.Match[str]) -> str:
    character = match[0]
    return f"\\{character}" if character in "'\\" else f"\\u{ord(character):04x}"
