# SPDX-License-Identifier: Apache-2.0
"""Rows of refreshes that never ran, and how many files a table has."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from airflow_mv.extras.registry.model import RefreshRow, month_of
from airflow_mv.extras.registry.registry import STAGING, Registry

START = datetime(2025, 1, 1, tzinfo=UTC)


def refresh_row(number: int, view: str = "lake.sales.daily", **fields: Any) -> RefreshRow:
    """The row of the refresh of an hour."""
    moment = fields.pop("refreshed_at", START + timedelta(hours=number))
    catalog, namespace, _ = view.split(".")
    return RefreshRow(
        catalog=catalog,
        namespace=namespace,
        month=month_of(moment),
        view=view,
        view_uuid=str(uuid.uuid5(uuid.NAMESPACE_URL, view)),
        refresh_id=str(uuid.uuid5(uuid.NAMESPACE_URL, f"{view} {number}")),
        refreshed_at=moment,
        version_id=1,
        **fields,
    )


def files_of(registry: Registry, component: str = "refreshes") -> list[Path]:
    """All files below a component's folder, but those of the staging folder."""
    table = registry._home.open(getattr(registry, component).kind)
    assert table is not None
    folder = Path(urlsplit(table.location()).path)
    return [path for path in folder.rglob("*") if path.is_file() and STAGING not in path.parts]
