# SPDX-License-Identifier: Apache-2.0
"""The command ``versions``: the definitions that a view has had."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

from airflow_mv.cli.context import common, open_catalog, out, parse_time, print_json, visible


@click.command()
@click.argument("view")
@click.option("--at", help="Only the version that was current at this time, ISO 8601.")
@common
def versions(*, view: str, at: str | None, as_json: bool, conn_id: str | None) -> None:
    """List the versions of a view's definition, oldest first.

    Each with its time, its engine, its columns and its query.
    """
    from airflow_mv.extras.history.versions import versions as view_versions

    catalog, (identifier,) = open_catalog([view], conn_id)
    documents = view_versions(catalog, identifier, at=parse_time(at))
    if as_json:
        print_json(documents)
    else:
        _show(documents)


def _show(documents: Sequence[Mapping[str, Any]]) -> None:
    for document in documents:
        mark = "  current" if document["current"] else ""
        engine = f"  {document['engine']}" if document["engine"] else ""
        operation = f"  {document['operation']}" if document["operation"] else ""  # writers may leave it out
        head = f"version {document['version_id']}  {document['created_at'][:19]}Z{operation}{engine}{mark}"
        out.print(visible(head), style="bold", markup=False)
        if len(document["current_since"]) > 1:
            out.print(
                f"  current since {', '.join(time[:19] + 'Z' for time in document['current_since'])}", markup=False
            )
        columns = ", ".join(f"{column['name']} {column['type']}" for column in document["columns"])
        out.print(visible(f"  columns  {columns}"), markup=False)
        for dialect, text in document["texts"].items():
            out.print(visible(f"  {dialect}  {' '.join(text.split())}"), markup=False)
