# SPDX-License-Identifier: Apache-2.0
"""Texts of others on their way into a message: without secrets, and only then cut.

Whoever masks secrets in a log, as Airflow does, looks for the whole of each: half of one, as a cut leaves it, gets by.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

#: Shorter ones would take words out of every message.
_SHORTEST = 5
#: Values of settings that only sound like secrets, such as ``token-refresh-enabled``.
_PLAIN = re.compile(r"true|false|[0-9.]+", re.IGNORECASE | re.ASCII)
_USER = re.compile(r"(//[^/\s:@]*:)[^/\s@]+@")

_hidden: set[str] = set()


def hide(secrets: Iterable[str]) -> None:
    """Have values taken out of every text that is shortened from now on in this process.

    Args:
        secrets: The values, in each form in which a text may hold them.
    """
    for secret in secrets:
        # Lines are joined before a text is cut.
        for form in (secret, " ".join(secret.split())):
            if len(form) >= _SHORTEST and not _PLAIN.fullmatch(form):
                _hidden.add(form)


def shortened(text: str, longest: int) -> str:
    """Return a text of others with hidden values, and passwords in URLs, replaced by ``***``, and then cut.

    Args:
        text: The text.
        longest: Characters that may stay.
    """
    for secret in sorted(_hidden, key=len, reverse=True):
        text = text.replace(secret, "***")
    text = _USER.sub(r"\1***@", text)
    return text if len(text) <= longest else f"{text[: longest - 1]}…"
