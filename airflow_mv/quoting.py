# SPDX-License-Identifier: Apache-2.0
"""Quote Spark SQL identifiers. Standard library only, because the driver uses it."""

from __future__ import annotations


def quote(name: str) -> str:
    """Return a name as a quoted Spark SQL identifier."""
    return "`" + name.replace("`", "``") + "`"
