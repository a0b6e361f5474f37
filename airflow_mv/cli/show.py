# SPDX-License-Identifier: Apache-2.0
"""Print documents for people."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from rich.markup import escape
from rich.table import Table

from airflow_mv.cli.context import err, out

_COLOURS = {
    "fresh": "green",
    "refreshed": "green",
    "already-committed": "green",
    "superseded": "green",
    "stale": "yellow",
    "skipped": "yellow",
    "never-refreshed": "yellow",
    "definition-changed": "yellow",
    "unknown": "red",
}


def statuses(documents: Sequence[Mapping[str, Any]]) -> None:
    """Print a block for each view: its state, and why."""
    if not documents:
        out.print("no materialized views")
    for document in documents:
        when = f"  refreshed {document['refreshed_at'][:19]}Z" if document["refreshed_at"] else ""
        out.print(f"{escape(document['view'])}  {_coloured(document['state'])}[dim]{when}[/dim]")
        for reason in document["reasons"]:
            out.print(f"  {_reason(reason)}")


def plan(document: Mapping[str, Any]) -> None:
    """Print a plan: mode, reasons, base tables and the statements as they would run."""
    out.print(f"{escape(document['view'])}  [bold]{document['mode']}[/bold]  [dim]{document['refresh_id']}[/dim]")
    for reason in document["reasons"]:
        out.print(f"  {_reason(reason)}")
    for number, statement in enumerate(document["statements"], 1):
        out.print(f"\n[dim]-- {number} of {len(document['statements'])}[/dim]")
        out.print(statement, markup=False)
    if not document["statements"]:
        out.print("  [dim]no Spark job[/dim]")


def plan_line(planned: Any) -> None:
    """Print what is about to run, on stderr."""
    err.print(f"{escape(str(planned.view))}  [bold]{planned.mode}[/bold]")
    for reason in planned.reasons:
        err.print(f"  {_reason(reason.to_dict())}")


def result(document: Mapping[str, Any]) -> None:
    """Print how a refresh ended."""
    rows = f"  {document['rows_written']:,} rows" if document["rows_written"] else ""
    out.print(
        f"{escape(document['view'])}  {_coloured(document['outcome'])}  {document['mode']}{rows}  "
        f"{document['seconds']:.1f} s  [dim]{document['refresh_id']}[/dim]"
    )


def history(documents: Sequence[Mapping[str, Any]]) -> None:
    """Print the recorded refreshes as a table."""
    table = Table("refreshed", "refresh id", "mode", "rows", "version", "base snapshots", box=None, pad_edge=False)
    for item in documents:
        snapshots = ", ".join(f"{base['identifier']}@{base['snapshot_reference']}" for base in item["base_tables"])
        rows = "" if item["rows_written"] is None else f"{item['rows_written']:,}"
        mark = " *" if item["current"] else ""
        table.add_row(
            (item["refreshed_at"] or "")[:19],
            item["refresh_id"] + mark,
            item["mode"] or "",
            rows,
            str(item["version_id"]),
            escape(snapshots),
        )
    out.print(table if documents else "never refreshed")


def rows(document: Mapping[str, Any]) -> None:
    """Print rows as a table, and which refresh they are of."""
    table = Table(*(escape(column) for column in document["columns"]), box=None, pad_edge=False)
    for row in document["rows"]:
        table.add_row(*("" if value is None else escape(str(value)) for value in row))
    out.print(table)
    count = len(document["rows"])
    err.print(
        f"{count} row{'s' if count != 1 else ''} of refresh {document['refresh_id']} ({document['state']})", style="dim"
    )


def verification(document: Mapping[str, Any]) -> None:
    """Print whether stored and recomputed rows are equal, and some of those that are not."""
    if document["equal"]:
        out.print(f"{escape(document['view'])}  [green]equal[/green]  {document['rows']:,} rows")
        return
    out.print(f"{escape(document['view'])}  [red]different[/red]")
    for side in ("only_stored", "only_recomputed"):
        for row in document[side]:
            out.print(f"  {side.replace('_', ' ')}: {row}", markup=False)


def findings(documents: Sequence[Mapping[str, Any]]) -> None:
    """Print the doctor's findings."""
    for item in documents:
        mark = "[green]✓[/green]" if item["ok"] else "[red]✗[/red]"
        out.print(f"{mark} {escape(item['check'])}: {escape(item['found'])}")
        if not item["ok"] and item["mend"]:
            out.print(f"    {escape(item['mend'])}")


def metadata(document: Mapping[str, Any]) -> None:
    """Print stored metadata, indented."""
    out.print(json.dumps(document, indent=2, ensure_ascii=False), markup=False)


def _coloured(word: str) -> str:
    colour = _COLOURS.get(word, "white")
    return f"[{colour}]{word}[/{colour}]"


def _reason(reason: Mapping[str, str]) -> str:
    return f"{escape(reason['message'])} [dim]({reason['code']})[/dim]"
