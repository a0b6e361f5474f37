# SPDX-License-Identifier: Apache-2.0
"""The command ``impact``: what a change of a column would do to views."""

from __future__ import annotations

import click

from airflow_mv.cli.context import common, open_catalog, out, print_json, visible

#: The exit code if a view becomes invalid.
_INVALID = 3


@click.command()
@click.argument("table")
@click.option("--drop", metavar="COLUMN", help="Drop this column.")
@click.option("--rename", nargs=2, metavar="COLUMN NAME", help="Rename a column.")
@click.option("--retype", nargs=2, metavar="COLUMN TYPE", help="Change the type of a column, e.g. amount bigint.")
@common
def impact(
    *,
    table: str,
    drop: str | None,
    rename: tuple[str, str] | None,
    retype: tuple[str, str] | None,
    as_json: bool,
    conn_id: str | None,
) -> None:
    """Show what a change of a column would do.

    To each view that reads the table, also through other views. Nothing is
    changed. The exit code is 3 if a view would become invalid.
    """
    from airflow_mv.extras.impact import ColumnChange
    from airflow_mv.extras.impact import impact as impacts

    given = [
        *([ColumnChange("drop", drop)] if drop else []),
        *([ColumnChange("rename", *rename)] if rename else []),
        *([ColumnChange("retype", *retype)] if retype else []),
    ]
    if len(given) != 1:
        raise click.UsageError("give one of --drop, --rename and --retype")
    catalog, (identifier,) = open_catalog([table], conn_id)
    found = impacts(catalog, identifier, given[0])
    if as_json:
        print_json({"table": str(identifier), "change": str(given[0]), "views": [item.to_dict() for item in found]})
    else:
        out.print(visible(f"{identifier}: {given[0]}"), style="bold", markup=False)
        for item in found:
            owner = f"  (owner: {item.owner})" if item.owner else ""
            out.print(visible(f"  {item.effect:<13} {item.view}: {item.why}{owner}"), markup=False)
        if not found:
            out.print("  no view of the catalog reads it", markup=False)
    if any(item.effect == "invalid" for item in found):
        raise SystemExit(_INVALID)
