# SPDX-License-Identifier: Apache-2.0
"""The command ``timeline``: the snapshots of a table or view, and the refreshes that read or wrote them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import click

from airflow_mv.cli.context import common, open_catalog, out, print_json, visible
from airflow_mv.core.spec.units import counted


@click.command()
@click.argument("name", metavar="VIEW|TABLE")
@click.option("--limit", type=click.IntRange(min=1), default=20, show_default=True, help="Show the newest snapshots.")
@click.option("--files", is_flag=True, help="Also show manifest lists and manifests.")
@common
def timeline(*, name: str, limit: int, files: bool, as_json: bool, conn_id: str | None) -> None:
    """Show snapshots, and which refresh used which.

    Of a view, the snapshots of its stored rows with the refreshes that wrote
    them. Of a base table, its snapshots with the refreshes that read them.
    """
    from airflow_mv.extras.history.timeline import timeline as snapshots

    catalog, (identifier,) = open_catalog([name], conn_id)
    document = snapshots(catalog, identifier, limit=limit)
    if as_json:
        print_json(document)
        return
    out.print(visible(f"{document['name']}  {document['kind']}"), style="bold", markup=False)
    for snapshot in document["snapshots"]:
        for line in _lines(snapshot, files=files):
            out.print(visible(line), markup=False)
    if not document["snapshots"]:
        out.print("  no snapshot: nothing was written yet", markup=False)


def _lines(snapshot: Mapping[str, Any], *, files: bool) -> Iterator[str]:
    marks = ", ".join((*(["current"] if snapshot["current"] else []), *snapshot["refs"]))
    counts = ", ".join(_changes(snapshot)) or "no change of files"
    yield (
        f"  {snapshot['committed_at'][:23]}Z  {snapshot['snapshot_id']}  {snapshot['operation'] or '-'}  {counts}"
        f"{f'  [{marks}]' if marks else ''}"
    )
    for refresh in snapshot["refreshes"]:
        yield f"    refresh {refresh['refresh_id']} of {refresh['view']}"
    if files:
        yield f"    manifest list {snapshot['manifest_list']}"
        for item in snapshot["manifests"]:
            entries = (item[f"{what}_files"] for what in ("added", "existing", "deleted"))
            added, existing, deleted = ("?" if number is None else f"{number:,}" for number in entries)
            yield f"      {item['content']} {added} added, {existing} existing, {deleted} deleted  {item['location']}"


def _changes(snapshot: Mapping[str, Any]) -> Iterator[str]:
    for sign, kind in (("+", "added"), ("-", "deleted")):
        numbers = ((snapshot[f"{kind}_files"], "file"), (snapshot[f"{kind}_rows"], "row"))
        yield from (f"{sign}{counted(number, what)}" for number, what in numbers if number)
    if snapshot["added_delete_files"]:
        yield f"+{counted(snapshot['added_delete_files'], 'delete file')}"
