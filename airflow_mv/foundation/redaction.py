# SPDX-License-Identifier: Apache-2.0
"""Recognize secrets in settings and URLs, remove them from texts of other systems, and only then shorten the texts.

The order matters: Airflow masks only whole secrets in logs, so it would not recognize a secret that was cut in two.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote, quote_plus, unquote

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
    rf"(?i)([?&;,(]{_NAME}(?:passw|pwd|secret|token|credential|signature|(?:access|account|api|private|shared|storage)[._-]?key)"
    rf"{_NAME}=)([^&;,()\s]+)"
)

_hidden: set[str] = set()
#: Values that are secret for a short time, by their owner; only the latest owners are kept.
_current: dict[str, frozenset[str]] = {}
_MAX_OWNERS = 256


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
    while len(_current) > _MAX_OWNERS:
        _current.pop(next(iter(_current)), None)


def _forms(secrets: Iterable[str]) -> frozenset[str]:
    # Lines are joined before a text is cut.
    forms = {form for secret in secrets for form in (secret, " ".join(secret.split()))}
    return frozenset(form for form in forms if len(form) >= _SHORTEST and not _PLAIN.fullmatch(form))


def passwords_in(text: str) -> frozenset[str]:
    """Return the passwords in a setting that is a URL, as written there.

    Of a password that holds an unescaped ``@`` the part behind it is also returned: some parsers take it for a part of
    the host, and name the host in messages.
    """
    found = {match[2] for pattern in (_USER_OF_URL, _ORACLE, _OPTION) for match in pattern.finditer(text)}
    return frozenset(found | {password.partition("@")[2] for password in found} - {""})


def shortened(text: str, longest: int) -> str:
    """Return a text with hidden values and passwords in URLs replaced by ``***``, cut to a length.

    Args:
        longest: The maximum number of characters.
    """
    for secret in sorted(_hidden.union(*list(_current.values())), key=len, reverse=True):
        text = text.replace(secret, "***")
    text = _OPTION.sub(r"\1***", _ORACLE.sub(r"\1***@", _USER.sub(r"\1***@", text)))
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


# ------------------------------------------------------------ the secrets of a catalog's properties

#: Shorter values are not replaced in a message about the properties.
_SHORTEST_OF_SETTINGS = 3
#: Names of settings that are secret.
SECRET = re.compile(
    r"(?i)secret|passw|passphrase|pwd|credential|token|signature|connection[._-]?string"
    r"|(?:access|account|api|cryption|private|shared|storage)[._-]?key|sas[._-]|[._-]sas$|sse[._-]key|(^|[.])headers?[.]"
)
#: Ends of names that only look like those of secrets: Spark's pattern for secrets, a header that asks for credentials.
_NO_SECRETS = ("spark.redaction.regex", ".header.X-Iceberg-Access-Delegation")


def is_secret(key: str, value: str = "") -> bool:
    """Return whether a setting is a credential, by its key or by a password in a URL in its value."""
    return not key.endswith(_NO_SECRETS) and bool(SECRET.search(key) or passwords_in(value))


def secret_forms(properties: Mapping[str, Any]) -> frozenset[str]:
    """Return each secret value unchanged, and as three libraries write it in a URL.

    Args:
        properties: A catalog's properties or Spark settings, with nested mappings.
    """
    found = {unquoted for secret in _secrets(properties) for unquoted in (secret, unquote(secret))}
    return frozenset(
        form
        for secret in found
        for form in (secret, quote(secret, safe=""), quote_plus(secret), quote(secret, safe=" +"))
        if form
    )


def without_secrets(text: str, properties: Mapping[str, Any]) -> str:
    """Return a message of another library with the secret values in the properties replaced by ``***``."""
    for form in sorted(secret_forms(properties), key=len, reverse=True):
        if len(form) >= _SHORTEST_OF_SETTINGS:
            text = text.replace(form, "***")
    return text


def hide_secrets(properties: Mapping[str, Any]) -> frozenset[str]:
    """Hide the secret values in properties from messages from now on, and return their forms."""
    forms = secret_forms(properties)
    hide(forms)
    return forms


@contextmanager
def quiet_warnings(properties: Mapping[str, Any]) -> Iterator[None]:
    """Remove secret values from the warnings of libraries in this block: pyiceberg quotes URLs."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    for warning in caught:
        warnings.warn(without_secrets(str(warning.message), properties), warning.category, stacklevel=3)


def _secrets(properties: Mapping[str, Any]) -> Iterator[str]:
    for key, value in properties.items():
        if isinstance(value, Mapping):
            yield from _secrets(value)
            continue
        text = str(value)
        yield from passwords_in(text)
        if key != "uri" and is_secret(key, text):
            yield text
            if key.endswith("credential"):
                yield text.partition(":")[2]
