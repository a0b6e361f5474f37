# SPDX-License-Identifier: Apache-2.0
"""Remove secrets from texts of other systems, and only then shorten the texts for messages.

The order matters: Airflow masks only whole secrets in logs, so it would not recognize a secret that was cut in two.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

#: Shorter values could be parts of ordinary words.
_SHORTEST = 5
#: Values of settings whose names only look like those of secrets, such as ``token-refresh-enabled``.
_PLAIN = re.compile(r"true|false|[0-9.]+", re.IGNORECASE | re.ASCII)
_USER = re.compile(r"(//[^/\s:@]*:)[^/\s@]+@")

_hidden: set[str] = set()


def hide(secrets: Iterable[str]) -> None:
    """Remove values from every text that is shortened from now on in this process.

    Args:
        secrets: The values, in each form that a text may contain.
    """
    for secret in secrets:
        # Lines are joined before a text is cut.
        for form in (secret, " ".join(secret.split())):
            if len(form) >= _SHORTEST and not _PLAIN.fullmatch(form):
                _hidden.add(form)


def shortened(text: str, longest: int) -> str:
    """Return a text with hidden values and passwords in URLs replaced by ``***``, cut to a length.

    Args:
        text: The text.
        longest: The maximum number of characters.
    """
    for secret in sorted(_hidden, key=len, reverse=True):
        text = text.replace(secret, "***")
    text = _USER.sub(r"\1***@", text)
    return text if len(text) <= longest else f"{text[: longest - 1]}…"
