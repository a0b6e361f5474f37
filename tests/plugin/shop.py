# SPDX-License-Identifier: Apache-2.0
"""A realistic lake: views in every state, refreshed by Airflow DAGs some hours ago."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

from airflow_mv.core.spec.materialized_view import LOG_PROPERTY, PROPERTY
from airflow_mv.core.spec.properties import MAX_STALENESS_PROPERTY
from airflow_mv.extras.registry.model import RefreshRow, month_of
from airflow_mv.extras.registry.registry import require_registry
from airflow_mv.extras.registry.settings import PLACE
from airflow_mv.extras.registry.sync import sync
from tests.builders import Lake, lake
from tests.core.refresh.intervals.support import add_days
from tests.older import TIMETABLES

#: Markup that a browser must show as text and never run.
HOSTILE = "<img src=x onerror=alert(1)>"
HOUR = 3600

#: An incremental view whose query supports no incremental mode.
UNEXPECTED = "cheapest_order"
VIEWS = {
    UNEXPECTED: "SELECT min_by(region, amount) AS region FROM lake.sales.orders GROUP BY id",
    "daily_revenue": "SELECT region, sum(amount) AS revenue FROM lake.sales.orders GROUP BY region",
    "orders_by_region": "SELECT region, count(*) AS orders FROM lake.sales.orders GROUP BY region",
    "returns_by_region": "SELECT region, count(*) AS returned FROM lake.sales.returns GROUP BY region",
    "customer_value": "SELECT o.region, sum(o.amount) AS amount FROM lake.sales.orders o "
    "JOIN lake.sales.customers c ON o.id = c.id GROUP BY o.region",
    "stock_by_region": "SELECT region, sum(amount) AS stock FROM lake.sales.shipments GROUP BY region",
    "region_report": "SELECT d.region, d.revenue, r.returned FROM lake.sales.daily_revenue d "
    "JOIN lake.sales.returns_by_region r ON d.region = r.region",
    "new_customers": "SELECT region, count(*) AS customers FROM lake.sales.customers GROUP BY region",
    "weekly_forecast": "SELECT region, max(amount) AS amount FROM lake.sales.shipments GROUP BY region",
}
REFRESHED = [name for name in VIEWS if name != "weekly_forecast"]

#: In pictures: the mode of each view's last refresh, the rows that the view has, and those that were written.
LAST = {
    UNEXPECTED: ("full", 812_440, 812_440),
    "daily_revenue": ("merge", 2_190, 14),
    "orders_by_region": ("merge", 36, 5),
    "returns_by_region": ("merge", 36, 3),
    "customer_value": ("replace-keys", 48_213, 1_908),
    "stock_by_region": ("full", 1_440, 1_440),
    "region_report": ("replace-keys", 2_190, 14),
    "new_customers": ("append", 91_377, 214),
}
#: In pictures: the rows of base tables, those of the last commit, and its age in hours.
COMMITS = {
    "orders": (4_126_380, 24_310, 9.5),
    "shipments": (1_204_530, 18_240, 7.4),
    "customers": (91_592, 215, 1.6),
}

DAGS = """
from datetime import datetime
from airflow.sdk import DAG, task
from TIMETABLES import CronDataIntervalTimetable
from airflow_mv.operators import RefreshMaterializedViewOperator
from airflow_mv.operators import refresh_params

def refresh(*names, **options):
    return [RefreshMaterializedViewOperator(task_id=name, view=f"lake.sales.{name}", **options) for name in names]

with DAG("sales_morning", schedule=None, is_paused_upon_creation=False):
    refresh("daily_revenue", "orders_by_region", "returns_by_region", "customer_value", "new_customers")
with DAG("sales_report", schedule="@daily", start_date=datetime(2026, 1, 1), catchup=False):
    refresh("region_report", "stock_by_region")
with DAG("already_fresh", schedule=None, is_paused_upon_creation=False):
    refresh("daily_revenue")
with DAG("forecast_by_day", schedule=CronDataIntervalTimetable("@daily", timezone="Europe/Berlin"),
         start_date=datetime(2026, 1, 1), catchup=False, params=refresh_params(), is_paused_upon_creation=False):
    refresh("weekly_forecast", scope="interval")
with DAG("forecast_with_scope", schedule=None, params={"scope": "whole"}, is_paused_upon_creation=False):
    refresh("weekly_forecast", scope="{{ params.scope }}")
with DAG("by_day", schedule="@daily", start_date=datetime(2024, 1, 1), catchup=False, is_paused_upon_creation=False):
    refresh("daily", scope="interval")
with DAG("without_views", schedule=None, is_paused_upon_creation=False):
    @task
    def nothing(): ...
    nothing()
""".replace("TIMETABLES", TIMETABLES)


@contextmanager
def shop(folder: Path, *, aged: bool = False) -> Iterator[Lake]:
    """Create the lake in a folder.

    Args:
        folder: An empty folder.
        aged: Whether it is for pictures: commits and refreshes are backdated by hours, and sizes are plausible. If not,
            one view has markup as its name, and the metadata of one is broken.
    """
    (folder / "warehouse").mkdir()
    with lake(f"sqlite:///{folder}/catalog.db", folder / "warehouse", **{PLACE: "airflow_mv"}) as found:
        for table in ("orders", "returns", "customers", "shipments"):
            found.table(table, rows=[(number, ("north", "south", "east")[number % 3], number) for number in range(9)])
        for name, sql in VIEWS.items():
            strategy = "incremental" if aged or name == UNEXPECTED else "full"
            allowed = {"customer_value": "2 h", "stock_by_region": "4 h" if aged else "1 s"}.get(name)
            properties = {MAX_STALENESS_PROPERTY: allowed} if allowed else {}
            found.view(name, sql, time_travel=name == "daily_revenue", refresh_strategy=strategy, properties=properties)
        found.refresh(f"sales.{UNEXPECTED}")
        found.append()
        for name in REFRESHED:
            found.refresh(f"sales.{name}")
        found.append(name="shipments")
        found.append(name="customers")
        found.compact("returns")
        found.table("coupons")
        found.view("coupon_use", "SELECT region, count(*) AS used FROM lake.sales.coupons GROUP BY region")
        found.iceberg.drop_table("sales.coupons")
        found.plain_view("plain", "SELECT id, region, amount FROM lake.sales.orders")
        _by_day(found)
        if aged:
            _age(found)
        else:
            _break(found)
        _register(found)
        yield found


def connection(folder: Path | str) -> str:
    """The connection to the lake, as JSON."""
    uri, warehouse = f"sqlite:///{folder}/catalog.db", f"file://{folder}/warehouse"
    extra = {"type": "sql", "uri": uri, "warehouse": warehouse, PLACE: "airflow_mv"}
    return json.dumps({"conn_type": "iceberg", "extra": extra})


def _register(found: Lake) -> None:
    """Two months of refreshes in the registry, beside those that the lake has made; one view costs far more."""
    chance, now = random.Random(9), datetime.now(UTC)
    rows = [
        _registered(number, name, now - timedelta(hours=6 * number + 1), chance)
        for name in REFRESHED
        for number in range(240)
    ]
    require_registry(found.catalog).refreshes.upsert(rows)
    sync(found.catalog)


def _registered(number: int, name: str, moment: datetime, chance: random.Random) -> RefreshRow:
    full = name != "customer_value" or number % 40 == 0
    size = {"customer_value": 90.0, "cheapest_order": 60.0, "region_report": 30.0}.get(name, 8.0)
    seconds = size * (1.0 if full else 0.2) * chance.uniform(0.8, 1.2)
    unexpected = name == UNEXPECTED or (name == "customer_value" and full)
    why = "min_by keeps an arbitrary row" if name == UNEXPECTED else "lake.sales.customers was overwritten"
    return RefreshRow(
        catalog="lake",
        namespace="sales",
        month=month_of(moment),
        view=f"lake.sales.{name}",
        view_uuid=f"registered {name}",
        refresh_id=f"{name} {number}",
        refreshed_at=moment,
        version_id=1,
        mode="full" if full else "merge",
        fallback=why if unexpected else None,
        rows_written=chance.randrange(2_000, 90_000),
        bytes_read=chance.randrange(10**8, 10**9) if full else chance.randrange(10**6, 10**8),
        outcome="refreshed",
        seconds=seconds + 3.0,
        job_seconds=seconds,
        executor_seconds=1.7 * seconds,
        full_seconds=size,
        dag_id="sales_report" if name in ("region_report", "stock_by_region") else "sales_morning",
    )


def refresh_ids(found: Lake) -> dict[str, str]:
    """The current refresh of each refreshed view."""
    states = {name: found.storage(f"sales.{name}").state for name in REFRESHED}
    return {f"lake.sales.{name}": state.current_refresh_id for name, state in states.items() if state}


def _by_day(found: Lake) -> None:
    """Add a view of 26 days of June 2024: the 15th is stale, the 21st to the 24th were never computed."""
    days = add_days(found.iceberg, found.catalog, found.layout)
    days.sell(*((day, 10 * day) for day in range(1, 25)))
    days.refresh_days(1, 21)
    days.sell((15, 1))
    days.sell((26, 5))
    days.refresh_days(25, 27)


def _break(found: Lake) -> None:
    found.view(f"`{HOSTILE}`", "SELECT id FROM lake.sales.orders")
    found.view("abandoned", "SELECT id FROM lake.sales.orders")
    location = found.catalog.load("sales.abandoned").metadata_location
    Path(location.removeprefix("file://")).write_text("{ this is no metadata")


def _age(found: Lake) -> None:
    """Rewrite stored times and sizes, as if commits and refreshes had been made over the last night."""
    now = time.time_ns() // 1_000_000
    for table, (rows, added, hours) in COMMITS.items():
        _rewrite(found.load(table).metadata_location, partial(_committed, now=now, rows=rows, added=added, hours=hours))
    for place, (name, last) in enumerate(LAST.items()):
        _rewrite(found.storage(f"sales.{name}").location, partial(_refreshed, now=now, hours=8 + place / 9, last=last))
    for location in (found.load("sold").metadata_location, found.storage("sales.daily").location):
        _rewrite(location, _earlier)


def _rewrite(location: str, change: Any) -> None:
    path = Path(location.removeprefix("file://"))
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))


def _sized(snapshot: dict[str, Any], rows: int, added: int) -> None:
    bytes_of_row = 46
    sizes = {"total-records": rows, "total-files-size": bytes_of_row * rows}
    new = {"added-records": added, "added-files-size": bytes_of_row * added}
    snapshot["summary"] |= {key: str(value) for key, value in (sizes | new).items()}


def _committed(document: dict[str, Any], *, now: int, rows: int, added: int, hours: float) -> None:
    moment = int(now - hours * HOUR * 1000)
    before, last = document["snapshots"][-2:]
    _sized(before, rows - added, rows - added)
    _sized(last, rows, added)
    last["timestamp-ms"] = moment
    for entry in document["snapshot-log"]:
        entry["timestamp-ms"] = min(entry["timestamp-ms"], moment)


def _refreshed(document: dict[str, Any], *, now: int, hours: float, last: tuple[str, int, int]) -> None:
    mode, rows, written = last
    records = json.loads(document["properties"][PROPERTY])
    for record in records["refreshes"]:
        record |= {"refreshed-at-ms": int(now - hours * HOUR * 1000), "mode": mode, "rows-written": written}
        if mode != "full":
            record["reasons"] = [{"code": "INCREMENTAL", "message": f"{mode} is expected to be the cheapest way"}]
    document["properties"][PROPERTY] = json.dumps(records)
    document["properties"].pop(LOG_PROPERTY, None)
    _sized(document["snapshots"][-1], rows, written)


def _earlier(document: dict[str, Any]) -> None:
    """Move all commits and refreshes some hours into the past."""
    back = 3 * HOUR * 1000
    for entry in (*document["snapshots"], *document["snapshot-log"]):
        entry["timestamp-ms"] -= back
    if PROPERTY in document["properties"]:
        records = json.loads(document["properties"][PROPERTY])
        for record in records["refreshes"]:
            for item in (record, *record.get("intervals", ())):
                item["refreshed-at-ms"] -= back
        document["properties"][PROPERTY] = json.dumps(records)
