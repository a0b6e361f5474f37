# SPDX-License-Identifier: Apache-2.0
"""The command ``tables``: what of base tables makes refreshes slow, and which views pay for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import click

from airflow_mv.cli import show
from airflow_mv.cli.context import common, open_catalog, out, print_json, visible
from airflow_mv.core.spec.units import counted, human

if TYPE_CHECKING:
    from airflow_mv.core.catalog import MaterializedViewCatalog
    from airflow_mv.core.freshness.observe import Observation
    from airflow_mv.core.spec.identifiers import Identifier
    from airflow_mv.extras.registry.base_tables import BaseTable


@click.command()
@click.argument("names", metavar="TABLE…", nargs=-1, required=True)
@click.option("--files", is_flag=True, help="Also list partitions and files.")
@common
def tables(*, names: tuple[str, ...], files: bool, as_json: bool, conn_id: str | None) -> None:
    """Show what of base tables makes refreshes slow.

    Small files, delete files, skew, missing statistics, files that are not
    clustered by the columns of joins and filters: each with the views that read
    the table, and the maintenance that helps. No data file is read.
    """
    from airflow_mv.common.status import readers_of
    from airflow_mv.extras.registry.base_tables import read_base_table

    catalog, identifiers = open_catalog(list(names), conn_id)
    found = [read_base_table(catalog, name) for name in identifiers]
    readers = readers_of(catalog, identifiers, lambda seen: seen)
    documents = [_document(catalog, table, readers, files=files) for table in found]
    if as_json:
        print_json(documents)
        return
    for document in documents:
        _show(document)


def _document(
    catalog: MaterializedViewCatalog, table: BaseTable, readers: Mapping[Identifier, Observation], *, files: bool
) -> dict[str, Any]:
    from airflow_mv.cli.costs import costs_of
    from airflow_mv.core.spec.identifiers import id_text
    from airflow_mv.extras.registry.advice import filtering_columns, findings

    name = table.name
    own = {view: seen for view, seen in sorted(readers.items()) if name in {item.name for item in seen.tables}}
    columns = filtering_columns([query for seen in own.values() for query in seen.queries], name)
    since = datetime.now(UTC) - timedelta(days=_DAYS)
    document = {
        **table.general.model_dump(mode="json", include=_SHOWN),
        "snapshot_id": id_text(table.snapshot_id),
        "partitions": len(table.segments),
        "manifests": table.manifests,
        "findings": [found.to_dict() for found in findings(table, columns)],
        "views": [{"view": str(view), "seconds_of_30_days": costs_of(catalog, view, since)["seconds"]} for view in own],
    }
    if files:
        document["units"] = [
            {**row.model_dump(mode="json"), "snapshot_id": id_text(row.snapshot_id)} for row in table.rows("files")
        ]
    return document


#: The days whose refreshes are added up.
_DAYS = 30
_SHOWN = {"table_name", "location", "format", "data_files", "delete_files", "rows", "deletes", "bytes"}


def _show(document: Mapping[str, Any]) -> None:
    snapshot = f"snapshot {document['snapshot_id']}" if document["snapshot_id"] is not None else "no snapshot"
    out.print(visible(f"{document['table_name']}  {snapshot}"), style="bold", markup=False)
    parts = (
        counted(document["partitions"], "partition"),
        f"{counted(document['data_files'], 'data file')} ({human(document['bytes'])})",
        counted(document["delete_files"], "delete file"),
        counted(document["rows"], "row"),
        counted(document["manifests"], "manifest"),
    )
    out.print(f"  {', '.join(parts)}", markup=False)
    for finding in document["findings"]:
        out.print(visible(f"  {finding['message']} ({finding['code']})"), markup=False)
        out.print(visible(f"    {finding['remedy']}"), markup=False)
    if not document["findings"]:
        out.print("  nothing to improve", markup=False)
    _show_views(document["views"])
    if "units" in document:
        from airflow_mv.extras.registry.base_tables import GENERAL

        lines = [_unit(row) for row in document["units"] if row["segment"] != GENERAL]
        show.table(("unit", "rows", "bytes", "deletes", "name"), lines, right={1, 2, 3})


def _unit(row: Mapping[str, Any]) -> Sequence[str]:
    name = row["segment"] if row["unit"] == "segment" else row["location"]
    return (
        row["unit"],
        f"{row['rows']:,}",
        human(row["bytes"] + row["delete_bytes"]),
        f"{row['deletes']:,}",
        visible(name),
    )


def _show_views(views: Sequence[Mapping[str, Any]]) -> None:
    if not views:
        out.print("  no view of the catalog reads it", markup=False)
    for view in views:
        cost = f": {view['seconds_of_30_days']:,.1f} s in 30 days" if view["seconds_of_30_days"] is not None else ""
        out.print(visible(f"  read by {view['view']}{cost}"), markup=False)
