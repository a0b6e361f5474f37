# SPDX-License-Identifier: Apache-2.0
"""Messages of the page: without secrets, of bounded length, with advice for errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from airflow_mv.core.spec.interval import Interval
from airflow_mv.core.spec.reasons import Code, Reason, fallback
from airflow_mv.errors import CatalogUnavailableError, ConfigurationError, MaterializedViewError, ViewNotFoundError
from airflow_mv.hooks.airflow_compat import redacted

_MAX_LENGTH = 2_000
_ADVICE: tuple[tuple[type[MaterializedViewError], str], ...] = (
    (ViewNotFoundError, "It may have been dropped or renamed. Go back to all views."),
    (CatalogUnavailableError, "The views themselves may be fine. The page retries automatically."),
    (ConfigurationError, "An administrator of Airflow's connections or configuration has to fix it."),
)


def harmless(text: str) -> str:
    """Return a message of bounded length, with the secrets that Airflow knows masked."""
    masked = redacted(text)
    return masked if len(masked) <= _MAX_LENGTH else f"{masked[:_MAX_LENGTH]} …"


def problem(error: MaterializedViewError) -> dict[str, Any]:
    """Return an error as the page shows it: what happened, and what to do."""
    advice = next((text for kind, text in _ADVICE if isinstance(error, kind)), "")
    return {"error": type(error).__name__, "message": harmless(str(error)), "advice": advice}


_MAX_COUNT = 20


def said(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the reasons, the interval and the checks that the page shows for a refresh.

    Args:
        document: A recorded refresh as ``airflow-mv history`` has it, or the extra of an asset event.

    Returns:
        ``reasons``, ``fallback`` (why an incremental view was unexpectedly recomputed in full), ``interval``
        and ``checks``; each ``None`` or empty if the document has none.
    """
    reasons = _reasons(document.get("reasons"))
    return {
        "reasons": reasons,
        "fallback": _text(document.get("fallback")) or _fallback(reasons),
        "interval": _interval(document.get("interval")),
        "checks": _checks(document.get("checks")),
    }


def _reasons(value: Any) -> list[dict[str, str]]:
    return [
        {"code": _text(item.get("code")) or "", "message": _text(item.get("message")) or ""}
        for item in _objects(value)[:_MAX_COUNT]
    ]


def _fallback(reasons: Sequence[Mapping[str, str]]) -> str | None:
    known = set(Code)
    return fallback([Reason(Code(item["code"]), item["message"]) for item in reasons if item["code"] in known])


def _interval(value: Any) -> dict[str, str] | None:
    if not isinstance(value, dict):
        return None
    try:
        return Interval.from_dict(value).to_dict()
    except (KeyError, TypeError, ValueError, OverflowError):
        return None


def _checks(value: Any) -> dict[str, Any] | None:
    """Count checks: a record lists them, an event counts them and names those that have not passed."""
    if isinstance(value, dict):
        passed, of = (_count(value.get(key)) for key in ("passed", "of"))
        warned = value.get("warned")
        names = [_text(item) for item in warned[:_MAX_COUNT]] if isinstance(warned, list) else []
        return {"passed": passed, "of": of, "lines": [f"{name}: warned" for name in names if name]} if of else None
    checks = _objects(value)
    if not checks:
        return None
    return {
        "passed": sum(check.get("result") == "passed" for check in checks),
        "of": len(checks),
        "lines": [_line(check) for check in checks[:_MAX_COUNT]],
    }


def _line(check: Mapping[str, Any]) -> str:
    observed = _text(check.get("observed"))
    line = f"{_text(check.get('name'))}: {_text(check.get('result'))}"
    return f"{line} ({observed})" if observed else line


def _objects(value: Any) -> list[Mapping[str, Any]]:
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list | tuple) else []


def _text(value: Any) -> str | None:
    return harmless(value) if isinstance(value, str) and value else None


def _count(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0
