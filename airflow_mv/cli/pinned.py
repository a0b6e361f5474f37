# SPDX-License-Identifier: Apache-2.0
"""Pin base tables once, for refreshes that come later: as documents in files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from airflow_mv.cli.context import Command, common, open_catalog, open_namespace, out, parse_time, print_json
from airflow_mv.errors import InvalidMetadataError

if TYPE_CHECKING:
    from airflow_mv.catalog import MaterializedViewCatalog
    from airflow_mv.planning import Pins
    from airflow_mv.planning.pins import RunPins
    from airflow_mv.spec.identifiers import Identifier


@click.command()
@click.argument("views", nargs=-1)
@click.option("--namespace", help="All materialized views of catalog.namespace.")
@click.option("--as-of", help="Base tables as they were then, ISO 8601.")
@common
def pin(
    *, views: tuple[str, ...], namespace: str | None, as_of: str | None, as_json: bool, conn_id: str | None
) -> None:
    """Pin base tables, so that later refreshes agree. Reads metadata only.

    Give the --json document to `refresh --pins FILE`; it lists the views in the order to refresh them.
    """
    from airflow_mv.planning.pins import materialized_views, pin_base_tables

    if bool(views) == (namespace is not None):
        raise click.UsageError("name views, or --namespace CATALOG.NAMESPACE")
    if namespace is not None:
        ((catalog, space),) = open_namespace(namespace, conn_id)
        identifiers = materialized_views(catalog, space)
    else:
        catalog, identifiers = open_catalog(views, conn_id)
    found = pin_base_tables(catalog, identifiers, as_of=parse_time(as_of))
    if as_json:
        print_json(found.document())
    else:
        _show(found)


def _show(found: RunPins) -> None:
    for name, held in found.base_tables.items():
        out.print(f"{name}  {held.snapshot_id or 'empty'}", markup=False)
    for view, names in found.views.items():
        out.print(f"{view}  after {', '.join(names)}" if names else view, markup=False)
    for name, why in found.faults.items():
        out.print(f"not pinned: {name}: {why}", markup=False)


def with_pins(command: Command) -> Command:
    """Add ``--pins``."""
    return click.option(
        "--pins",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="Read the base tables as `airflow-mv pin --json` has pinned them in this file.",
    )(command)


def pins_of(catalog: MaterializedViewCatalog, views: Sequence[Identifier], file: Path | None) -> Pins | None:
    """Read a file of pins, for these views.

    Raises:
        InvalidMetadataError: It holds none.
        PinError: They do not fit (any more).
    """
    from airflow_mv.planning.pins import RunPins, restore

    if file is None:
        return None
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InvalidMetadataError(f"pins in {file}: no JSON: {error}") from None
    run = RunPins.read(document, source=f"pins in {file}")
    return {name: table for view in views for name, table in restore(catalog, view, run).items()}
