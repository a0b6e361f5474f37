# SPDX-License-Identifier: Apache-2.0
"""The queries of the view, and their columns."""

from __future__ import annotations

from typing import Any


def query(version: int, *, wider: bool) -> str:
    """The view's SQL; its comment contains the number that the simulated job stores with the rows."""
    more = ", 0 AS more" if wider else ""
    return f"SELECT k{more} FROM lake.s.a UNION ALL SELECT k{more} FROM lake.s.b /* version {version} */"


def columns_of(sql: str) -> dict[str, Any]:
    """The schema of a query's rows; its names may have been quoted."""
    return columns(wider=" AS more" in sql.replace("`", ""))


def columns(*, wider: bool) -> dict[str, Any]:
    """The columns of the rows."""
    names = ["k", "more"] if wider else ["k"]
    fields = [
        {"id": number, "name": name, "required": False, "type": "int"} for number, name in enumerate(names, start=1)
    ]
    return {"type": "struct", "schema-id": 0, "fields": fields}
