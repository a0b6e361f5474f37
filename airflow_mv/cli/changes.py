# SPDX-License-Identifier: Apache-2.0
"""The command ``changes``: the rows by which two snapshots of a table differ."""

from __future__ import annotations

import click

from airflow_mv.cli import show as render
from airflow_mv.cli.context import common, err, open_named, print_json, sparked, stager_for, visible


@click.command()
@click.argument("table")
@click.option("--from", "start", required=True, metavar="SNAPSHOT", help="The snapshot before the change.")
@click.option("--to", "end", metavar="SNAPSHOT", help="The snapshot after it; by default the current one.")
@click.option("--column", "columns", multiple=True, metavar="NAME", help="Compare only these columns.")
@click.option("--limit", type=click.IntRange(min=0), help="The most rows to print.")
@click.option("--catalog", "home", metavar="NAME", help="For a table by path: the catalog that gives access to it.")
@sparked
@common
def changes(
    *,
    table: str,
    start: str,
    end: str | None,
    columns: tuple[str, ...],
    limit: int | None,
    home: str | None,
    master: str | None,
    remote: str | None,
    as_json: bool,
    conn_id: str | None,
) -> None:
    """Print the rows by which two snapshots of a table differ.

    Each row was added to the table or removed from it between the two.

    SNAPSHOT is a snapshot's id, the version of a Delta table, or, of a materialized view, the id of a refresh.
    """
    from airflow_mv.core.spec.identifiers import Identifier
    from airflow_mv.extras.history.changes import CHANGE_TYPE, INSERT, changed_rows, question

    name = Identifier.parse(table)
    if (home is not None) != (name.path is not None):
        raise click.UsageError("--catalog NAME is needed for a table by path, and only there")
    catalog = open_named(home or name.catalog, conn_id)
    asked = question(catalog, name, _snapshot(start), None if end is None else _snapshot(end), columns)
    frame = changed_rows(catalog, stager_for(catalog, master, remote).session, asked)
    counts = {row[0]: row[1] for row in frame.groupBy(CHANGE_TYPE).count().collect()}
    added, total = counts.get(INSERT, 0), sum(counts.values())
    shown = frame if limit is None else frame.limit(limit)
    rows = [list(row.values()) for row in shown.toArrow().to_pylist()]
    document = {
        "table": str(name),
        "from": str(asked.start),
        "to": str(asked.end),
        "on_one_line": asked.on_one_line,
        "added": added,
        "removed": total - added,
        "left_out": list(asked.left_out),
        "columns": [CHANGE_TYPE, *asked.columns],
        "rows": rows,
    }
    if as_json:
        print_json(document)
        return
    render.changed_rows(document)
    if asked.left_out:
        err.print(visible(f"left out, new or changed: {', '.join(asked.left_out)}"), style="dim", markup=False)


def _snapshot(text: str) -> int | str:
    """Return an id as a number; a refresh's id stays text."""
    return int(text) if text.isascii() and text.isdigit() else text
