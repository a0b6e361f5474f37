# SPDX-License-Identifier: Apache-2.0
"""Quote Spark SQL identifiers. Standard library only: it ships to the driver."""

from __future__ import annotations


def quote(name: str) -> str:
    """Return a name as Spark writes it."""
    return "`" + name.replace("`", "``") + "`"
