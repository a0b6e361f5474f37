# SPDX-License-Identifier: Apache-2.0
"""``airflow-mv repair``: report lost or truncated files of a view, and go back to its newest intact state."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import click

from airflow_mv.cli.context import DIFFERENT, common, open_catalog, out, print_json, progress, visible


@click.command()
@click.argument("view")
@click.option("--yes", is_flag=True, help="Repair the view. Without it nothing is changed.")
@click.option(
    "--accept-older",
    is_flag=True,
    help="If the catalog's database was restored to an older day, stay at that state instead of going forward.",
)
@common
def repair(*, view: str, yes: bool, accept_older: bool, as_json: bool, conn_id: str | None) -> None:
    """Show which files of a view are lost or truncated, and repair it with --yes. Deletes nothing.

    Ends with 4 if something is wrong and was not repaired.
    """
    from airflow_mv.maintenance.repair import repair as repair_view

    catalog, (identifier,) = open_catalog([view], conn_id)
    done = repair_view(catalog, identifier, act=yes, accept_older=accept_older, report=progress)
    if as_json:
        print_json(done.to_dict())
    else:
        _show(done.to_dict())
    if not done.ok:
        sys.exit(DIFFERENT)


def _show(document: Mapping[str, Any]) -> None:
    view = document["view"]
    if document["healthy"]:
        out.print(f"{view}  nothing to repair", markup=False)
        return
    for item in document["findings"]:
        out.print(visible(item["what"]), style="bold", markup=False)
        for key in ("file", "known", "repair", "lost"):
            out.print(f"  {key + ':':8}{visible(item[key])}", markup=False)
    if document["repaired"]:
        out.print(f"repaired {view}; `airflow-mv refresh {view}` computes what is missing", markup=False)
    elif all(item["repairable"] for item in document["findings"]):
        out.print(f"nothing was changed; `airflow-mv repair {view} --yes` repairs it", markup=False)
    else:
        out.print("nothing was changed: the remaining files do not suffice to repair all of it", markup=False)
