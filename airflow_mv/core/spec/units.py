# SPDX-License-Identifier: Apache-2.0
"""Numbers with what they count, as text."""

from __future__ import annotations


def human(count: int | None) -> str:
    """Return a number of bytes as readable text."""
    if count is None:
        return "an unknown number of bytes"
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def counted(count: int, what: str) -> str:
    """Return a number of things, such as ``1 row`` and ``1,200 rows``.

    Args:
        count: The number.
        what: The name of one of them; more of them have an ``s``.
    """
    return f"{count:,} {what}{'' if count == 1 else 's'}"
