# SPDX-License-Identifier: Apache-2.0
"""The command ``lag``: target, present and worst lag of views, and what would be refreshed now."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import click

from airflow_mv.cli import show as render
from airflow_mv.cli.context import chosen_views, common, out, print_json, progress, visible


@click.command()
@click.argument("views", nargs=-1)
@click.option("--namespace", help="All materialized views of catalog.namespace.")
@click.option("--all", "whole", metavar="CATALOG", help="All materialized views of a catalog.")
@click.option("--period", default=60, show_default=True, help="Seconds between two decisions.")
@click.option("--slots", default=1, show_default=True, help="Refreshes at a time.")
@common
def lag(
    *,
    views: tuple[str, ...],
    namespace: str | None,
    whole: str | None,
    period: int,
    slots: int,
    as_json: bool,
    conn_id: str | None,
) -> None:
    """Show the target, present and worst lag of views.

    The worst lag is that of the last 7 days. Below stands which views must be refreshed now. Reads metadata only.
    """
    from airflow_mv.common.each import left_out
    from airflow_mv.extras.lag.decide import decide
    from airflow_mv.extras.lag.views import lag_reports

    if sum((bool(views), namespace is not None, whole is not None)) != 1:
        raise click.UsageError("name views, or --namespace CATALOG.NAMESPACE, or --all CATALOG")
    catalog, chosen = chosen_views(views, namespace, conn_id, whole=whole)
    now = datetime.now(UTC)
    results = list(lag_reports(catalog, chosen, now))
    reports = [item.get() for item in results if item.error is None]
    told = [report.for_decision(now) for report in reports]
    decision = decide(told, now, period=timedelta(seconds=period), slots=slots).to_dict()
    documents = [report.to_dict() for report in reports]
    if as_json:
        print_json({"views": documents, "now": decision})
    else:
        _show(documents, decision)
    errors = [*(item.error for item in results if item.error is not None), *left_out(catalog)]
    for error in errors[1:]:
        progress(str(error))
    if errors:
        raise errors[0]


def _show(views: Sequence[dict[str, Any]], decision: dict[str, Any]) -> None:
    if not views:
        out.print("no materialized views")
        return
    now = {run["view"]: "now" for run in decision["runs"]}
    due = {item["view"]: f"by {item['due'][:19]}Z" for item in decision["waiting"]}
    lines = [
        (
            item["view"],
            "downstream" if item["downstream"] else _text(item["target_seconds"]),
            _text(item["lag_seconds"], "unknown"),
            _text(item["worst_seconds"], "unknown") + ("" if item["kept"] else " (late)"),
            _text(item["expected_seconds"]),
            now.get(item["view"]) or due.get(item["view"], ""),
        )
        for item in views
    ]
    render.table(("view", "target", "lag", "worst of 7 days", "refresh takes", "refresh"), lines, right={1, 2, 3, 4})
    for risk in decision["at_risk"]:
        out.print(visible(f"TARGET_LAG_AT_RISK {risk['view']}: {risk['why']}"), markup=False)


def _text(seconds: float | None, unknown: str = "") -> str:
    return unknown if seconds is None else str(timedelta(seconds=round(seconds)))
