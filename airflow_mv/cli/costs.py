# SPDX-License-Identifier: Apache-2.0
"""The command ``costs``: what refreshes cost, and who requested them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import click

from airflow_mv.cli import show as render
from airflow_mv.cli.context import chosen_views, common, err, out, print_json, progress

if TYPE_CHECKING:
    from airflow_mv.core.catalog import MaterializedViewCatalog
    from airflow_mv.core.spec.identifiers import Identifier


@click.command()
@click.argument("views", nargs=-1)
@click.option("--namespace", help="All materialized views of catalog.namespace.")
@click.option("--all", "whole", metavar="CATALOG", help="All materialized views of a catalog.")
@click.option("--days", type=click.IntRange(min=1), default=30, show_default=True, help="Number of days to look back.")
@common
def costs(
    *, views: tuple[str, ...], namespace: str | None, whole: str | None, days: int, as_json: bool, conn_id: str | None
) -> None:
    """Show what refreshes cost by view, and who requested them. Reads metadata only.

    A view records its last 50 refreshes, with time travel the last hundred. With a registry all refreshes count.
    """
    from airflow_mv.common.each import for_each, left_out

    if sum((bool(views), namespace is not None, whole is not None)) != 1:
        raise click.UsageError("name views, or --namespace CATALOG.NAMESPACE, or --all CATALOG")
    catalog, chosen = chosen_views(views, namespace, conn_id, whole=whole)
    since = datetime.now(UTC) - timedelta(days=days)
    results = list(for_each(chosen, lambda view: costs_of(catalog, view, since)))
    found = sorted(
        (item.get() for item in results if item.error is None), key=lambda item: -(item["cost_seconds"] or 0.0)
    )
    if as_json:
        print_json(found)
    else:
        _show(found)
    errors = [*(item.error for item in results if item.error is not None), *left_out(catalog)]
    for error in errors[1:]:
        progress(str(error))
    if errors:
        raise errors[0]


def costs_of(catalog: MaterializedViewCatalog, view: Identifier, since: datetime) -> dict[str, Any]:
    """Return the costs of a view's refreshes from a time on, see :func:`airflow_mv.extras.costs.costs`."""
    from airflow_mv.extras.costs import costs
    from airflow_mv.extras.describe import history
    from airflow_mv.extras.registry.history import with_registry

    return costs(str(view), with_registry(catalog, view, history(catalog, view)), since)


def _show(found: list[dict[str, Any]]) -> None:
    if not found:
        out.print("no materialized views")
        return
    header = ("view", "refreshes", "modes", "rows written", "seconds", "cost (s)", "requested by")
    lines = [
        (
            item["view"],
            item["refreshes"],
            _counted(item["modes"]),
            _number(item["rows_written"], ",.0f"),
            _number(item["seconds"], ",.1f"),
            _number(item["cost_seconds"], ",.1f"),
            _counted(item["requested_by"]),
        )
        for item in found
    ]
    render.table(header, lines, right={1, 3, 4, 5})
    if unmeasured := sum(item["unmeasured"] for item in found):
        err.print(f"{unmeasured} refreshes have no recorded duration", style="dim")


def _counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.items())


def _number(number: float | None, form: str) -> str:
    return "" if number is None else format(number, form)
