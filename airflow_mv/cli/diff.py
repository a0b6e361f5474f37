# SPDX-License-Identifier: Apache-2.0
"""The command ``diff``: the rows of a view and those of another definition."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from airflow_mv.cli.context import (
    DIFFERENT,
    common,
    open_catalog,
    out,
    print_json,
    query_text,
    sparked,
    stager_for,
    visible,
)


@click.command()
@click.argument("view")
@click.option("--sql", help="The other query. By default the view's own, whose rows may be of an earlier definition.")
@click.option(
    "--sql-file",
    "--file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A file with the other query, as `apply` reads it.",
)
@click.option("--key", "keys", multiple=True, metavar="COLUMN", help="A column of the key of a row; may be repeated.")
@sparked
@common
def diff(
    *,
    view: str,
    sql: str | None,
    sql_file: Path | None,
    keys: tuple[str, ...],
    master: str | None,
    remote: str | None,
    as_json: bool,
    conn_id: str | None,
) -> None:
    """Compare a view's rows with those of another definition.

    Both are of the same snapshots of the base tables, so that only the
    definition differs. Ends with 4 if the rows differ.
    """
    from airflow_mv.extras.diff import diff as compared
    from airflow_mv.extras.folder.files import split_file

    text = query_text(sql, sql_file)
    if text is not None and sql_file is not None:
        text = split_file(text, sql_file)[1]
    catalog, (identifier,) = open_catalog([view], conn_id)
    stager = stager_for(catalog, master, remote)
    found = compared(catalog, identifier, session=lambda: stager.session, sql=text, key=keys)
    if as_json:
        print_json(found.to_dict())
    else:
        for line in found.lines():
            out.print(visible(line), markup=False)
    if not found.equal:
        sys.exit(DIFFERENT)
