# SPDX-License-Identifier: Apache-2.0
"""Print documents in human-readable form."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any

from rich import markup
from rich.cells import cell_len

from airflow_mv.cli.context import err, out, visible
from airflow_mv.core.spec.units import counted, human

#: A bracket in a text with markup.
_OPENS = "\\["
_LAST_COLUMN = "base snapshots, or why it failed"
_COLOURS = {
    "fresh": "green",
    "refreshed": "green",
    "already-committed": "green",
    "superseded": "green",
    "stale": "yellow",
    "skipped": "yellow",
    "never-refreshed": "yellow",
    "definition-changed": "yellow",
    "invalid": "red",
    "unknown": "red",
}


def statuses(documents: Sequence[Mapping[str, Any]]) -> None:
    """Print a block for each view: its state, and why."""
    if not documents:
        out.print("no materialized views")
    shown = [document for document in documents if document["view"] is not None]  # else a catalog; see stderr
    if not out.is_terminal:
        # A file or a pipe: rich takes ten times as long for ten thousand views.
        out.file.writelines(f"{line}\n" for document in shown for line in _plain_status(document))
        return
    for document in shown:
        state = f"{_coloured(document['state'])}{_fresh(document)}"
        out.print(f"{_escape(document['view'])}  {state}[dim]{_when(document)}[/dim]{_scope(document)}")
        for reason in document["reasons"]:
            out.print(f"  {_reason(reason)}")
        for line in _expiring(document):
            out.print(f"  [yellow]{_escape(line)}[/yellow]")


def _plain_status(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of a status without colours."""
    scope = _scope(document).replace(_OPENS, "[")
    yield f"{visible(document['view'])}  {document['state']}{_fresh(document)}{_when(document)}{scope}"
    for reason in document["reasons"]:
        yield f"  {visible(reason['message'])} ({reason['code']})"
    for line in _expiring(document):
        yield f"  {visible(line)}"


def _when(document: Mapping[str, Any]) -> str:
    return f"  refreshed {document['refreshed_at'][:19]}Z" if document["refreshed_at"] else ""


def _fresh(document: Mapping[str, Any]) -> str:
    """Return how many intervals of a stale view are fresh, if they were counted."""
    found = document.get("coverage")
    if found is None:
        return ""
    units = found["unit"] if found["intervals"] == 1 else f"{found['unit']}s"
    return f"  {found['up_to_date']:,} of {found['intervals']:,} {units} fresh"


def _expiring(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each base table whose recorded snapshot may expire soon."""
    tables = {table["identifier"]: table["expires_at"] for table in document["base_tables"] if table["expires_at"]}
    if tables:
        from airflow_mv.common.expiry import warnings
        from airflow_mv.core.spec.times import parse_time

        yield from warnings({name: parse_time(text) for name, text in tables.items()})


def coverage(document: Mapping[str, Any], summary: str) -> None:
    """Print how many intervals of a view are fresh, and the ranges of intervals of the same state."""
    out.print(f"{_escape(document['view'])}  {_escape(summary)}  [dim]by {_escape(document['column'])}[/dim]")
    cut = len("2024-06-01" if document["unit"] != "hour" else "2024-06-01T05:00")
    lines = [
        (item["start"][:cut], item["end"][:cut], f"{item['count']:,}", item["state"].replace("-", " "))
        for item in document["ranges"]
    ]
    table(("from", "to (excluded)", f"{document['unit']}s", "state"), lines, right={2})


def plan(document: Mapping[str, Any]) -> None:
    """Print a plan: mode, reasons, base tables and the statements as they would run."""
    out.print(
        f"{_escape(document['view'])}  [bold]{document['mode']}[/bold]{_scope(document)}  "
        f"[dim]{document['refresh_id']}[/dim]"
    )
    for reason in document["reasons"]:
        out.print(f"  {_reason(reason)}")
    for change in document["base_tables"]:
        if change["moved"]:
            out.print(f"  {_escape(change['identifier'])}  {_change(change)}")
    for estimate in document["estimates"]:
        out.print(f"  expected: {_escape(_estimate(estimate))}")
    if not document["statements"]:
        out.print("  [dim]no Spark job[/dim]")
    for number, statement in enumerate(document["statements"], 1):
        out.print(f"\n[dim]-- {number} of {len(document['statements'])}[/dim]")
        out.print(visible(statement), markup=False)


def _scope(document: Mapping[str, Any]) -> str:
    """Return the interval of a document, if it is not about all rows."""
    interval = document.get("interval")
    if interval is None:
        return ""
    return f"  {_escape(interval['column'])} in \\[{interval['start']}, {interval['end']})"


def _estimate(estimate: Mapping[str, Any]) -> str:
    """Return the estimate of one mode: the time to wait by the view's own refreshes, and that of Spark's statements."""
    mode, expected = f"{estimate['mode']:12}", estimate["expected_seconds"]
    refreshes = "refresh" if estimate["measured"] == 1 else f"{estimate['measured']} refreshes"
    waits = "" if expected is None else f"about {expected:,.{1 if expected < 10 else 0}f} s by its last {refreshes}"
    if estimate["seconds"] is None:
        unknown = "unknown, because the size of a base table is unknown"
        return f"{mode}  {waits or unknown}"
    statements = f"{estimate['seconds']:.1f} s of Spark's statements"
    work = f"{waits}, of which {statements}" if waits else f"{statements}, and the start of Spark"
    counts = estimate["rows_changed"] and estimate["mode"] != "full"
    rows = f", {estimate['rows_changed']:,} changed rows" if counts else ""
    if estimate["rows_changed"] is None:
        rows = ", an unknown number of changed rows"
    return f"{mode}  {work}; reading {human(estimate['bytes_read'])}{rows}"


def _change(change: Mapping[str, Any]) -> str:
    """Return the change of a base table: kind, rows, files, bytes and partitions."""
    if change["change"] == "unknown" and change["recorded"] is None:
        return "not read before"
    pairs = (("rows", "deleted", _grouped), ("files", "removed", _grouped), ("bytes", "removed", human))
    rows, files, size = (
        f"+{_number(change[f'{what}_added'], write)} -{_number(change[f'{what}_{gone}'], write)}"
        for what, gone, write in pairs
    )
    where = f", {change['partitions']:,} partitions touched" if change["partitions"] else ""
    return f"{change['change']}: {rows} rows, {files} files, {size}{where}"


def _number(number: int | None, write: Callable[[int], str]) -> str:
    return "unknown" if number is None else write(number)


def _grouped(number: int) -> str:
    return f"{number:,}"


def plan_line(planned: Any) -> None:
    """Print what is about to run, on stderr."""
    err.print(f"{_escape(str(planned.view))}  [bold]{planned.mode}[/bold]")
    for reason in planned.reasons:
        err.print(f"  {_reason(reason.to_dict())}")


def result(document: Mapping[str, Any]) -> None:
    """Print the outcome of a refresh."""
    rows = f"  {counted(document['rows_written'], 'row')}" if document["rows_written"] else ""
    out.print(
        f"{_escape(document['view'])}  {_coloured(document['outcome'])}  {document['mode']}{_scope(document)}{rows}  "
        f"{document['seconds']:.1f} s  [dim]{document['refresh_id']}[/dim]"
    )
    if checks := document["checks"]:
        out.print(f"  {sum(check['result'] == 'passed' for check in checks)} of {len(checks)} checks passed")
    for check in checks:
        if check["result"] != "passed":
            text = f"{check['name']}: expected {check['expected']}; found {check['observed']}"
            out.print(f"  [yellow]{check['result']}[/yellow]  {_escape(text)}")


def history(documents: Sequence[Mapping[str, Any]]) -> None:
    """Print the recorded refreshes as a table; the current one is marked."""
    from airflow_mv.extras.costs import requested_by

    if not documents:
        out.print("never refreshed")
        return
    lines = [
        (
            "*" if item["current"] else "",
            (item["failed_at"] or item["refreshed_at"] or "")[:19],
            item["refresh_id"],
            "failed" if item["error"] else item["mode"],
            "" if item["rows_written"] is None else f"{item['rows_written']:,}",
            "" if item["seconds"] is None else f"{item['seconds']:,.1f}",
            "" if item["bytes_held"] is None else human(item["bytes_held"]),
            "" if item["version_id"] is None else item["version_id"],
            requested_by(item["requested_by"]) if item["requested_by"] else "",
            item["error"]
            if item["error"]
            else ", ".join(f"{base['identifier']}@{base['snapshot_reference']}" for base in item["base_tables"])
            + (f"; {item['interval']['start'][:19]} to {item['interval']['end'][:19]}" if item["interval"] else ""),
        )
        for item in documents
    ]
    header = ("", "at (UTC)", "refresh id", "mode", "rows", "seconds", "held", "version", "requested by", _LAST_COLUMN)
    table(header, lines, right={4, 5, 6, 7})


def rows(document: Mapping[str, Any]) -> None:
    """Print rows as a table, with full values, and the refresh that they are of."""
    stored = document["rows"]
    _values(document)
    err.print(
        f"{len(stored)} row{'s' if len(stored) != 1 else ''} of {_of(document)}",
        style="dim",
    )


def _of(document: Mapping[str, Any]) -> str:
    """Return which rows were read: of a view's refresh with its state, or of a table's snapshot."""
    if "refresh_id" in document:
        return f"refresh {document['refresh_id']} ({document['state']})"
    return f"snapshot {document['snapshot_id']} of {document['metadata_location']}"


def fresh_rows(document: Mapping[str, Any]) -> None:
    """Print fresh rows as a table, and how they were computed."""
    count = len(document["rows"])
    _values(document)
    why = "; ".join(reason["message"] for reason in document["reasons"])
    err.print(f"{count} row{'s' if count != 1 else ''}, {document['mode']}: {why}", style="dim", markup=False)


def changed_rows(document: Mapping[str, Any]) -> None:
    """Print the rows by which two snapshots differ as a table, and how many there are."""
    _values(document)
    line = "" if document["on_one_line"] else "; the second does not follow from the first by commits alone"
    err.print(
        f"{document['added']} added, {document['removed']} removed from {document['from']} to {document['to']}{line}",
        style="dim",
    )


def _values(document: Mapping[str, Any]) -> None:
    """Print columns and rows, with numbers at the right."""
    numbers = {
        index
        for index in range(len(document["columns"]))
        if all(isinstance(row[index], int | float | Decimal | None) for row in document["rows"])
    }
    lines = [["NULL" if value is None else value for value in row] for row in document["rows"]]
    table(document["columns"], lines, right=numbers)


def table(header: Sequence[str], lines: Sequence[Sequence[Any]], *, right: Collection[int] = ()) -> None:
    """Print columns side by side, with their names. Values are neither truncated nor wrapped."""
    texts = [[_cell(value) for value in line] for line in lines]
    names = [_cell(name) for name in header]
    widths = [max(cell_len(line[index]) for line in [names, *texts]) for index in range(len(names))]
    for line, style in [(names, "bold"), *((line, None) for line in texts)]:
        padded = [_padded(text, widths[index], index in right) for index, text in enumerate(line)]
        out.print("  ".join(padded).rstrip(), markup=False, style=style)


def _cell(value: Any) -> str:
    return "" if value is None else visible(str(value)).replace("\n", "\\n").replace("\t", "\\t")


def _padded(text: str, width: int, right: bool) -> str:  # noqa: FBT001
    space = " " * (width - cell_len(text))
    return space + text if right else text + space


def verification(document: Mapping[str, Any]) -> None:
    """Print whether stored and recomputed rows are equal, and some of the rows that differ."""
    if document["equal"]:
        out.print(f"{_escape(document['view'])}  [green]equal[/green]  {counted(document['rows'], 'row')}")
        return
    out.print(f"{_escape(document['view'])}  [red]different[/red]")
    for side in ("only_stored", "only_recomputed"):
        for row in document[side]:
            out.print(f"  {side.replace('_', ' ')}: {visible(str(row))}", markup=False)
    _altered(document)


def _altered(document: Mapping[str, Any]) -> None:
    for text in document["altered"]:
        out.print(f"  another program has changed the storage table: {visible(text)}", markup=False)
    if document["altered"]:
        out.print(f"`airflow-mv refresh {document['view']}` restores it", markup=False)


def verified_files(document: Mapping[str, Any]) -> None:
    """Print a summary of a view's checked files, and the damaged ones."""
    counts = f"{document['files']:,} files, {human(document['bytes'])}, {document['snapshots']} snapshots"
    word = "[red]damaged[/red]" if document["damaged"] else "[green]intact[/green]"
    word = "[red]changed[/red]" if document["altered"] and not document["damaged"] else word
    out.print(f"{_escape(document['view'])}  {word}  {counts}")
    for item in document["damaged"]:
        where = "the current snapshot" if item["current"] else "an older snapshot"
        out.print(f"  {item['role']} {visible(item['file'])}: {visible(item['why'])} ({where})", markup=False)
    _altered(document)
    if document["damaged"]:
        out.print(f"`airflow-mv repair {document['view']}` shows what can be done", markup=False)


def findings(documents: Sequence[Mapping[str, Any]]) -> None:
    """Print the doctor's findings."""
    for item in documents:
        mark = {True: "[green]✓[/green]", False: "[red]✗[/red]", None: "[dim]-[/dim]"}[item["ok"]]
        out.print(f"{mark} {_escape(item['check'])}: {_escape(item['found'])}")
        if not item["ok"] and item["fix"]:
            out.print(f"    {_escape(item['fix'])}")


def texts(found: Mapping[str, str]) -> None:
    """Print a view's query in each dialect, if there is one that sqlglot has written."""
    for dialect, text in found.items() if len(found) > 1 else ():
        out.print(f"SQL for {visible(dialect)}:\n{visible(text)}", markup=False)


def metadata(document: Mapping[str, Any]) -> None:
    """Print stored metadata, indented."""
    out.print(visible(json.dumps(document, indent=2, ensure_ascii=False)), markup=False)


def _coloured(word: str) -> str:
    colour = _COLOURS.get(word, "white")
    return f"[{colour}]{word}[/{colour}]"


def _reason(reason: Mapping[str, str]) -> str:
    return f"{_escape(reason['message'])} [dim]({reason['code']})[/dim]"


def _escape(text: object) -> str:
    return markup.escape(visible(str(text)))
