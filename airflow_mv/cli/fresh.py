# SPDX-License-Identifier: Apache-2.0
"""``airflow-mv read --fresh`` and ``explain --fresh``: rows without a refresh, and what they cost."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

from airflow_mv.cli import show as render
from airflow_mv.cli.context import out, print_json, print_json_rows, visible
from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.core.spec.units import counted, human

if TYPE_CHECKING:
    from airflow_mv.core.catalog import MaterializedViewCatalog
    from airflow_mv.extras.history.time_travel import TimeTravel
    from airflow_mv.extras.spark.session import InProcessStager


def read_fresh(
    catalog: MaterializedViewCatalog,
    view: Identifier,
    wanted: TimeTravel | None,
    stager: InProcessStager,
    limit: int | None,
    *,
    as_json: bool,
) -> None:
    """Print the fresh rows of a view."""
    from airflow_mv.actions import fetch_fresh, refuse_past

    refuse_past(wanted)
    with closing(stager):
        found = fetch_fresh(catalog, view, lambda: stager.session, limit)
    document = {
        "view": str(view),
        "mode": str(found.mode),
        "reasons": [reason.to_dict() for reason in found.reasons],
        "columns": found.columns,
    }
    if as_json:
        print_json_rows(document, found.rows())
    else:
        render.fresh_rows({**document, "rows": list(found.rows())})


def explain_fresh(catalog: MaterializedViewCatalog, view: Identifier, *, as_json: bool) -> None:
    """Print how the fresh rows of a view would be read now, and what that would cost."""
    from airflow_mv.actions import plan_fresh

    document = plan_fresh(catalog, view).to_dict()
    if as_json:
        print_json(document)
    else:
        _show(document, "")


def _show(document: dict[str, Any], indent: str) -> None:
    rows = document["rows_changed"]
    changed = "unknown change" if rows is None else f"{counted(rows, 'changed row')} of base tables"
    stored = f"{counted(document['stored_rows'] or 0, 'stored row')} ({human(document['stored_bytes'])})"
    size = f"reads {human(document['bytes_read'])}"
    out.print(visible(f"{indent}{document['view']}: {document['mode']}, {size}"), markup=False, style="bold")
    out.print(f"{indent}  {stored}, {changed}", markup=False)
    for item in document["estimates"]:
        seconds = "unknown" if item["seconds"] is None else f"{item['seconds']:.1f} s"
        out.print(f"{indent}  expected: {item['mode']} {seconds} for {human(item['bytes_read'])}", markup=False)
    for reason in document["reasons"]:
        out.print(visible(f"{indent}  {reason['code']}: {reason['message']}"), markup=False, style="dim")
    for item in document["inputs"]:
        _show(item, f"{indent}  ")
