# SPDX-License-Identifier: Apache-2.0
"""``python -m tests.plugin.screenshots [FOLDER]``: the pictures of the page in docs/images, light and dark."""

from __future__ import annotations

import random
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.plugin.pictures import with_palette
from tests.plugin.served import ROOT, chromium, served
from tests.plugin.shop import DAGS, LAST, connection, refresh_ids, shop

SIZE = {"width": 1280, "height": 800}
VIEW = "lake.sales.customer_value"
FORECAST = "lake.sales.weekly_forecast"
PICTURES = {
    "page": "/plugin/materialized-views",
    "groups": "/plugin/materialized-views/airflow-mv/?group=dag",
    "view": f"/plugin/materialized-views/airflow-mv/?view={VIEW}",
    "refreshes": f"/plugin/materialized-views/airflow-mv/?view={VIEW}",
    "intervals": "/plugin/materialized-views/airflow-mv/?view=lake.sales.daily",
    "graph": "/plugin/materialized-views/airflow-mv/?as=graph",
    "costs": "/plugin/materialized-views/airflow-mv/?as=costs",
    "dag": "/dags/sales_morning/plugin/dag-materialized-views",
}
#: What is scrolled to the middle of a picture.
_MIDDLE = {"refreshes": "svg.plot"}
_SECONDS = {"full": 96.0, "fast-forward": 0.4}


def main(folder: Path) -> None:
    """Take the screenshots."""
    with tempfile.TemporaryDirectory() as scratch, shop(home := Path(scratch), aged=True) as found:
        settings = {"AIRFLOW_CONN_ICEBERG_DEFAULT": connection(home)}
        (home / "server").mkdir()
        runs = _nights() + _morning(refresh_ids(found))
        with served(home / "server", dags=DAGS, settings=settings, runs=runs) as server, chromium() as browser:
            empty = browser.new_page()
            for theme in ("light", "dark"):
                context = server.context(browser, "admin", viewport=SIZE, color_scheme=theme)
                page = context.new_page()
                page.set_default_timeout(120_000)
                for name, path in PICTURES.items():
                    page.goto(f"{server.url}{path}")
                    inside = page.frame_locator("iframe")
                    inside.locator("table, svg.graph").first.wait_for()
                    page.wait_for_timeout(2500)
                    if name in _MIDDLE:
                        inside.locator(_MIDDLE[name]).evaluate("item => item.scrollIntoView({ block: 'center' })")
                    (folder / f"{name}-{theme}.png").write_bytes(with_palette(page.screenshot(), empty))
                context.close()


def _nights() -> list[dict[str, Any]]:
    """Weeks of refreshes of one view; two have failed."""
    chance = random.Random(7)
    runs = []
    for night in range(24, 0, -1):
        mode = chance.choice(["replace-keys", "replace-keys", "replace-keys", "replace-keys", "fast-forward", "full"])
        extra = None if night in (6, 7) else _extra(VIEW, f"night {night}", mode, chance)
        kind = "manual jana" if night in (5, 14) else "scheduled"
        runs.append({"dag_id": "sales_morning", "hours": 8 + 24 * night, "kind": kind, "published": {VIEW: extra}})
    return runs


def _morning(current: dict[str, str]) -> list[dict[str, Any]]:
    """The last refresh of each view."""
    chance = random.Random(8)
    published: dict[str, dict[str, Any]] = {"sales_morning": {}, "sales_report": {}}
    for view, refresh_id in current.items():
        dag_id = "sales_report" if view.endswith(("report", "stock_by_region")) else "sales_morning"
        mode, _, written = LAST[view.rpartition(".")[2]]
        published[dag_id][view] = _extra(view, refresh_id, mode, chance) | {"rows_written": written}
    runs = [{"dag_id": dag_id, "hours": 8, "kind": "scheduled", "published": of} for dag_id, of in published.items()]
    failed = {"dag_id": "forecast_by_day", "hours": 7, "kind": "scheduled", "published": {FORECAST: None}}
    return [*runs, failed]


def _extra(view: str, refresh_id: str, mode: str, chance: random.Random) -> dict[str, Any]:
    rows = {"fast-forward": 0, "full": 47_000 + chance.randrange(900)}.get(mode, chance.randrange(200, 4_000))
    seconds = round(_SECONDS.get(mode, 21.0) * chance.uniform(0.7, 1.3), 1)
    lag = round(60 * chance.uniform(25, 140))
    found = {
        "view": view,
        "refresh_id": refresh_id,
        "mode": mode,
        "rows_written": rows,
        "seconds": seconds,
        "lag_seconds": lag,
    }
    return {**found, "reasons": [{"code": code, "message": message} for code, message in _why(mode, rows, chance)]}


def _why(mode: str, rows: int, chance: random.Random) -> list[tuple[str, str]]:
    before, after = (chance.randrange(10**18, 9 * 10**18) for _ in range(2))
    if mode == "fast-forward":
        return [("ONLY_REPLACED", "lake.sales.orders was compacted: the same rows in other files")]
    added = chance.randrange(9_000, 30_000) * (40 if mode == "full" else 1)
    moved = f"lake.sales.orders advanced {before} → {after}: {rows % 7 + 2} snapshots, +{added:,} rows"
    cost = "full is expected to be cheaper: full 96 s for 180 MiB, replace-keys 141 s for 203 MiB"
    return [
        ("BASE_CHANGED", moved),
        ("COST", cost) if mode == "full" else ("INCREMENTAL", f"{mode} is the cheapest way"),
    ]


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "images")
