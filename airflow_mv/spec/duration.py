# SPDX-License-Identifier: Apache-2.0
"""Read lengths of time as people write them."""

from __future__ import annotations

import re
from datetime import timedelta

from airflow_mv.errors import ConfigurationError

_AGE = re.compile(r"(?P<number>\d{1,9}(?:\.\d{1,6})?)\s*(?P<unit>[a-z]*)", re.ASCII)
_SECONDS = {
    **dict.fromkeys(("", "s", "sec", "second", "seconds"), 1),
    **dict.fromkeys(("m", "min", "minute", "minutes"), 60),
    **dict.fromkeys(("h", "hour", "hours"), 3600),
    **dict.fromkeys(("d", "day", "days"), 86_400),
    **dict.fromkeys(("w", "week", "weeks"), 604_800),
}


def duration(value: object, *, what: str) -> timedelta | None:
    """Read a length of time.

    Args:
        value: A ``timedelta``, a number of seconds, a text like ``90``, ``30 m``, ``2 h`` or ``1 day``, or nothing.
        what: For the message.

    Raises:
        ConfigurationError: It is none.
    """
    if isinstance(value, timedelta) or value is None or value in ("", "None"):
        found = value if isinstance(value, timedelta) else None
    else:
        found = _read(str(value).strip().lower(), what)
    if found is not None and found < timedelta(0):
        raise ConfigurationError(f"{what} is {value!r}; it must not be negative")
    return found


def _read(text: str, what: str) -> timedelta:
    match = _AGE.fullmatch(text)
    if match is None or match["unit"] not in _SECONDS:
        raise ConfigurationError(f"{what} is {text!r}, which is no length of time; write it like 30 m, 2 h or 1 d")
    try:
        return timedelta(seconds=float(match["number"]) * _SECONDS[match["unit"]])
    except OverflowError:
        raise ConfigurationError(f"{what} is {text!r}, which is too long") from None
