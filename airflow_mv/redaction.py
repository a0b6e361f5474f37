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
#: The password of a URL's user. It may hold an ``@`` that should have been written as ``%40``.
_USER = re.compile(r"(//[^/\s:]*:)([^/\s]+)@")
#: The same where the text is nothing but a URL. SQLAlchemy leaves blanks as they are.
_USER_OF_URL = re.compile(r"(//[^/\s:]*:)([^/]+)@")
#: The user and password of Oracle's JDBC URLs: ``jdbc:oracle:thin:user/password@//host``.
_ORACLE = re.compile(r"(?i)(jdbc:oracle:\w+:[^/@\s]*/)([^/@\s]+)@")
_NAME = r"[^=?&;,()\s]{0,40}"
#: A secret option of a URL: ``?password=…``, ``;pwd=…``, ``(token=…)``.
_OPTION = re.compile(
    rf"(?i)([?&;,(]{_NAME}(?:passw|pwd|secret|token|credential|signature|(?:access|api|account|shared|private)[._-]?key)"
    rf"{_NAME}=)([^&;,()\s]+)"
)

_hidden: set[str] = set()
#: Values that are secret for a short time, by their owner; only the latest owners are kept.
_current: dict[str, frozenset[str]] = {}
_MOST_OWNERS = 256


def hide(secrets: Iterable[str]) -> None:
    """Remove values from every text that is shortened from now on in this process.

    Args:
        secrets: The values, in each form that a text may contain.
    """
    _hidden.update(_forms(secrets))


def hide_current(owner: str, secrets: Iterable[str]) -> None:
    """Hide values that are replaced again and again, in place of the owner's earlier ones.

    Args:
        owner: Whose values they are. Those of the owners that called this longest ago are forgotten.
        secrets: The values, in each form that a text may contain.
    """
    _current.pop(owner, None)
    _current[owner] = _forms(secrets)
    while len(_current) > _MOST_OWNERS:
        _current.pop(next(iter(_current)), None)


def _forms(secrets: Iterable[str]) -> frozenset[str]:
    # Lines are joined before a text is cut.
    forms = {form for secret in secrets for form in (secret, " ".join(secret.split()))}
    return frozenset(form for form in forms if len(form) >= _SHORTEST and not _PLAIN.fullmatch(form))


def passwords_in(text: str) -> frozenset[str]:
    """Return the passwords in a setting that is a URL, as written there.

    Of a password that holds an unescaped ``@`` the part behind it is returned, too: some parsers take it for a part of
    the host, and name the host in messages.
    """
    found = {match[2] for pattern in (_USER_OF_URL, _ORACLE, _OPTION) for match in pattern.finditer(text)}
    return frozenset(found | {password.partition("@")[2] for password in found} - {""})


def shortened(text: str, longest: int) -> str:
    """Return a text with hidden values and passwords in URLs replaced by ``***``, cut to a length.

    Args:
        text: The text.
        longest: The maximum number of characters.
    """
    for secret in sorted(_hidden.union(*list(_current.values())), key=len, reverse=True):
        text = text.replace(secret, "***")
    text = _OPTION.sub(r"\1***", _ORACLE.sub(r"\1***@", _USER.sub(r"\1***@", text)))
    return text if len(text) <= longest else f"{text[: longest - 1]}…"
