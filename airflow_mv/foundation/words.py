# SPDX-License-Identifier: Apache-2.0
"""Words that an argument may be, and the nearest one to a wrong word."""

from __future__ import annotations

from collections.abc import Collection

from airflow_mv.errors import ConfigurationError


def did_you_mean(wrong: object, words: Collection[str], *, cutoff: float = 0.6) -> str:
    """Return ``; did you mean 'interval'?``, or nothing if no word is near.

    Args:
        cutoff: How alike they must be, from 0 to 1.
    """
    from difflib import get_close_matches

    by_case = {word.lower(): word for word in words}
    found = get_close_matches(str(wrong).lower(), by_case, 1, cutoff)
    return f"; did you mean {by_case[found[0]]!r}?" if found else ""


def listed(words: Collection[str]) -> str:
    """Return ``whole, as_of or interval``."""
    *first, last = words
    return f"{', '.join(first)} or {last}" if first else last


def not_one_of(value: object, words: Collection[str], *, field: str) -> ConfigurationError:
    """Return the error for a value that must be one of some words.

    Args:
        field: For the message.
    """
    return ConfigurationError(f"{field} is {value!r}; it must be {listed(words)}{did_you_mean(value, words)}")


def one_of(value: object, words: Collection[str], *, field: str) -> str:
    """Return a value that must be one of some words.

    Args:
        field: For the message.

    Raises:
        ConfigurationError: It is something else.
    """
    if isinstance(value, str) and value in words:
        return value
    raise not_one_of(value, words, field=field)
