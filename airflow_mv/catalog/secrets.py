# SPDX-License-Identifier: Apache-2.0
"""Find the secret values in a catalog's properties, in every form in which a library may write them."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote, quote_plus, unquote

from airflow_mv.catalog.spark import is_secret
from airflow_mv.redaction import hide, passwords_in

_SHORTEST = 3


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
        if len(form) >= _SHORTEST:
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
