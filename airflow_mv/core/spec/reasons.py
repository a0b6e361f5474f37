# SPDX-License-Identifier: Apache-2.0
"""Reasons, each a code and a sentence: why a view is fresh or stale, or is refreshed in its mode."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class Code(StrEnum):
    """The codes of reasons. Plan, log, command line, XCom and history use the same ones."""

    FRESH = "FRESH"
    ONLY_REPLACED = "ONLY_REPLACED"
    BASE_CHANGED = "BASE_CHANGED"
    ROLLED_BACK = "ROLLED_BACK"
    SNAPSHOT_EXPIRED = "SNAPSHOT_EXPIRED"
    BASE_RECREATED = "BASE_RECREATED"
    BASE_UNREADABLE = "BASE_UNREADABLE"
    INPUT_STALE = "INPUT_STALE"
    VIEW_UNREADABLE = "VIEW_UNREADABLE"
    CATALOG_UNREADABLE = "CATALOG_UNREADABLE"
    STORE_UNREADABLE = "STORE_UNREADABLE"
    NEVER_REFRESHED = "NEVER_REFRESHED"
    DEFINITION_CHANGED = "DEFINITION_CHANGED"
    NESTED_VIEW_CHANGED = "NESTED_VIEW_CHANGED"
    COLUMN_DROPPED = "COLUMN_DROPPED"
    COLUMN_RENAMED = "COLUMN_RENAMED"
    COLUMN_RETYPED = "COLUMN_RETYPED"
    STORAGE_CHANGED = "STORAGE_CHANGED"
    STORAGE_ALTERED = "STORAGE_ALTERED"
    ALREADY_NEWER = "ALREADY_NEWER"
    FORCED = "FORCED"
    STRATEGY_FULL = "STRATEGY_FULL"
    FILTERED_OUT = "FILTERED_OUT"
    INCREMENTAL = "INCREMENTAL"
    INCREMENTAL_UNAVAILABLE = "INCREMENTAL_UNAVAILABLE"
    ROWS_COMPARED = "ROWS_COMPARED"
    SCHEMA_CHANGED = "SCHEMA_CHANGED"
    COST = "COST"
    SKIPPED = "SKIPPED"
    INTERVAL = "INTERVAL"
    INTERVALS = "INTERVALS"
    REBASED = "REBASED"
    BOUNDED = "BOUNDED"
    # Refusals of the algebra, see airflow_mv.core.ivm.
    UNREADABLE = "UNREADABLE"
    UNRESOLVED_NAME = "UNRESOLVED_NAME"
    UNSUPPORTED_OPERATOR = "UNSUPPORTED_OPERATOR"
    UNKNOWN_FUNCTION = "UNKNOWN_FUNCTION"
    NOT_DETERMINISTIC = "NOT_DETERMINISTIC"
    TOO_LARGE = "TOO_LARGE"
    NO_KEYS = "NO_KEYS"
    NOT_LINEAR = "NOT_LINEAR"
    NOT_APPEND_ONLY = "NOT_APPEND_ONLY"
    NOT_ADDITIVE = "NOT_ADDITIVE"
    NO_VISIBLE_COUNT = "NO_VISIBLE_COUNT"
    WHOLE_RESULT = "WHOLE_RESULT"


#: Precedes the reasons why no incremental refresh is possible.
NOT_INCREMENTAL = "this change cannot be applied incrementally; the reasons follow"
#: The beginning of the reason of a job that could not refresh incrementally.
FOUND_BY_JOB = "found by the job"
#: Reasons of a refresh that are about the views that it reads, and do not decide what it does.
OF_INPUTS = frozenset({Code.INPUT_STALE, Code.BASE_UNREADABLE})
_UNEXPECTED = frozenset({Code.INCREMENTAL_UNAVAILABLE, Code.SKIPPED})


@dataclass(frozen=True, slots=True)
class Reason:
    """One reason: a code for machines, a sentence for people."""

    code: Code
    message: str

    def to_dict(self) -> dict[str, str]:
        """Return the JSON form."""
        return {"code": str(self.code), "message": self.message}


def fallback(reasons: Sequence[Reason]) -> str | None:
    """Return why an incremental view was unexpectedly recomputed in full, or not refreshed.

    Args:
        reasons: The reasons of a plan, a result or a record.

    Returns:
        ``None`` if nothing unexpected happened: a first refresh is full, and a full refresh may be the cheapest one.
    """
    at = next((at for at, reason in enumerate(reasons) if reason.code in _UNEXPECTED), None)
    if at is None:
        return None
    unexpected = [
        reason for reason in reasons[at:] if reason.message != NOT_INCREMENTAL and reason.code not in OF_INPUTS
    ]
    return "; ".join(reason.message for reason in unexpected or reasons[:at])


class Mode(StrEnum):
    """The modes of a refresh, cheapest first."""

    NOOP = "noop"
    FAST_FORWARD = "fast-forward"
    APPEND = "append"
    MERGE = "merge"
    REPLACE_KEYS = "replace-keys"
    REPLACE_INTERVAL = "replace-interval"
    FULL = "full"
