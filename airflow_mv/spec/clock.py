# SPDX-License-Identifier: Apache-2.0
"""Find and correct times in table metadata that are in the future.

Java Iceberg refuses to read or to change a table whose times go back by more than one minute. A table that holds a
time two hours in the future can therefore not be changed by anyone for two hours. All functions here are pure.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

from airflow_mv.spec.materialized_view import LOG_PROPERTY, PROPERTY

_LAST = "last-updated-ms"
_LOGS = ("snapshot-log", "metadata-log")
_LISTS = ("snapshots", *_LOGS)
#: What Java Iceberg tolerates between two entries of a log.
_TOLERATED_MS = 60_000
#: Properties with refresh records.
_RECORDS = (PROPERTY, LOG_PROPERTY)
_STAMP = "timestamp-ms"
_REFRESHED = "refreshed-at-ms"
_ROLLED_BACK = "rolled-back-at-ms"


def latest_ms(document: Mapping[str, Any]) -> int:
    """Return the latest time in table metadata, milliseconds since the epoch.

    Args:
        document: A decoded metadata file.
    """
    return max(_times(document), default=0)


def is_ahead(document: Mapping[str, Any], limit_ms: int) -> bool:
    """Whether table metadata holds a time later than a limit.

    Args:
        document: A decoded metadata file.
        limit_ms: The latest time that is allowed.
    """
    return latest_ms(document) > limit_ms


def goes_back(document: Mapping[str, Any]) -> bool:
    """Whether the times of table metadata go back further than Java Iceberg tolerates: it cannot read such a table.

    Args:
        document: A decoded metadata file.
    """
    last = int(document.get(_LAST, 0))
    for name in _LOGS:
        stamps = [int(item.get(_STAMP, 0)) for item in document.get(name) or ()]
        if any(earlier > later + _TOLERATED_MS for earlier, later in pairwise([*stamps, last])):
            return True
    return False


def is_false(document: Mapping[str, Any], limit_ms: int) -> bool:
    """Whether table metadata shows the work of a wrong clock, see :func:`is_ahead` and :func:`goes_back`.

    Args:
        document: A decoded metadata file.
        limit_ms: The latest time that is allowed.
    """
    return is_ahead(document, limit_ms) or goes_back(document)


def corrected(document: Mapping[str, Any], store_ms: int) -> dict[str, Any]:
    """Return table metadata in which no time is in the future, and none goes back.

    Args:
        document: A decoded metadata file; not changed.
        store_ms: The store's clock: no time is later than that.
    """
    changed = not_after(document, store_ms)
    for name in _LOGS:
        limit, entries = int(changed.get(_LAST, store_ms)), []
        for item in reversed(changed.get(name) or ()):
            entries.append(_capped(item, _STAMP, limit))
            limit = min(limit, int(entries[-1].get(_STAMP, limit)))
        if name in changed:
            changed[name] = entries[::-1]
    return changed


def not_after(document: Mapping[str, Any], limit_ms: int) -> dict[str, Any]:
    """Return table metadata in which no time is later than a limit.

    Later times are replaced by the limit, so the order of all entries is kept. The times of the refresh records
    in the table's property are limited too.

    Args:
        document: A decoded metadata file; not changed.
        limit_ms: The latest time that is allowed.
    """
    changed = dict(document)
    if _LAST in document:
        changed[_LAST] = min(int(document[_LAST]), limit_ms)
    for name in _LISTS:
        if name in document:
            changed[name] = [_capped(item, _STAMP, limit_ms) for item in document[name]]
    properties = document.get("properties", {})
    if PROPERTY in properties:
        texts = {key: _records_not_after(properties[key], limit_ms) for key in _RECORDS if key in properties}
        changed["properties"] = {**properties, **texts}
    return changed


def _times(document: Mapping[str, Any]) -> Iterator[int]:
    if _LAST in document:
        yield int(document[_LAST])
    for name in _LISTS:
        for item in document.get(name) or ():
            yield int(item.get(_STAMP, 0))


def _capped(item: Mapping[str, Any], key: str, limit_ms: int) -> dict[str, Any]:
    return {**item, key: min(int(item[key]), limit_ms)} if isinstance(item.get(key), int) else dict(item)


def _records_not_after(text: str, limit_ms: int) -> str:
    """Limit the times in the property with the refresh records. Text in another format is unchanged."""
    try:
        state = json.loads(text)
        changed = {**state, "refreshes": [_record_not_after(record, limit_ms) for record in state["refreshes"]]}
        if "rollbacks" in state:
            changed["rollbacks"] = [_capped(rollback, _ROLLED_BACK, limit_ms) for rollback in state["rollbacks"]]
    except (ValueError, TypeError, KeyError, AttributeError):
        return text
    return json.dumps(changed, separators=(",", ":"))


def _record_not_after(record: Mapping[str, Any], limit_ms: int) -> dict[str, Any]:
    capped = _capped(record, _REFRESHED, limit_ms)
    if "intervals" in record:
        capped["intervals"] = [_capped(part, _REFRESHED, limit_ms) for part in record["intervals"]]
    return capped
