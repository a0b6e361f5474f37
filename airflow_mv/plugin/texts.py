# SPDX-License-Identifier: Apache-2.0
"""Texts on their way to a browser: no secrets, and what to do about an error."""

from __future__ import annotations

from typing import Any

from airflow.sdk._shared.secrets_masker import redact

from airflow_mv.errors import (
    CatalogUnavailableError,
    ConfigurationError,
    MaterializedViewError,
    ViewNotFoundError,
)

_LONGEST = 2_000
_ADVICE: tuple[tuple[type[MaterializedViewError], str], ...] = (
    (ViewNotFoundError, "It may have been dropped or renamed. Go back to all views."),
    (CatalogUnavailableError, "Nothing is known to be wrong with the views. The page tries again by itself."),
    (ConfigurationError, "Someone who may edit connections or Airflow's configuration has to mend it."),
)


def harmless(text: str) -> str:
    """Return a message without any secret that Airflow knows of, and of bounded length."""
    masked = str(redact(text))
    return masked if len(masked) <= _LONGEST else f"{masked[:_LONGEST]} …"


def problem(error: MaterializedViewError) -> dict[str, Any]:
    """Return an error as the page shows it: what happened, and what to do."""
    advice = next((text for kind, text in _ADVICE if isinstance(error, kind)), "")
    return {"error": type(error).__name__, "message": harmless(str(error)), "advice": advice}
