# SPDX-License-Identifier: Apache-2.0
"""A consistent snapshot set for several refreshes, in every catalog and layout."""

from __future__ import annotations

import pytest

from airflow_mv.core.refresh.plan import RefreshResult
from airflow_mv.errors import PinError
from airflow_mv.extras.pins import RunPins, pin_base_tables, restore
from tests.builders import Lake


def test_views_agree_on_every_catalog(every_home: Lake) -> None:
    """Base tables and other views change meanwhile; a view of the same run is read as that run published it."""
    home = every_home
    home.table()
    home.view()
    home.view("count", "SELECT count(*) AS n FROM lake.sales.orders")
    home.view("total", "SELECT sum(d.orders) AS n FROM lake.sales.daily d")
    home.view("top", "SELECT max(t.n) AS n, max(c.n) AS c FROM total t CROSS JOIN count c")
    home.refresh()
    pins = RunPins.read(
        pin_base_tables(home.catalog, ["sales.top", "sales.total", "sales.count"]).document(), source="test"
    )
    assert [*pins.views] == ["lake.sales.total", "lake.sales.count", "lake.sales.top"]
    head = home.head()

    def refreshed(name: str) -> RefreshResult:
        return home.refresh(f"sales.{name}", pins=restore(home.catalog, f"lake.sales.{name}", pins))

    home.append()
    home.refresh()
    refreshed("total")
    assert dict(refreshed("count").snapshots) == {"lake.sales.orders": head}
    refreshed("top")
    assert home.read("sales.total") == [{"n": 3}]
    assert home.read("sales.top") == [{"n": 3, "c": 3}]

    home.expire(head)
    with pytest.raises(PinError, match=f"snapshot {head}, which has expired"):
        refreshed("count")
