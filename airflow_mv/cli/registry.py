# SPDX-License-Identifier: Apache-2.0
"""The commands of the registry: sync, rebuild, query and its questions, and those that read and change its rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, BinaryIO

import click

from airflow_mv.cli import show
from airflow_mv.cli.context import Command, catalog_names, common, open_named, out, print_json, visible
from airflow_mv.errors import ConfigurationError
from airflow_mv.extras.registry.questions import QUESTIONS

if TYPE_CHECKING:
    from airflow_mv.core.catalog import MaterializedViewCatalog
    from airflow_mv.extras.registry.query import Answer
    from airflow_mv.extras.registry.sync import SyncResult
    from airflow_mv.extras.registry.tables import Component


@click.group()
def registry() -> None:
    """Query all views and refreshes of a catalog: state, modes, costs."""


def _of_catalog(command: Command) -> Command:
    """Add ``--catalog`` and the common options."""
    name = click.option("--catalog", "name", metavar="NAME", help="The catalog; not needed if there is only one.")
    return name(common(command))


def _open(name: str | None, conn_id: str | None) -> MaterializedViewCatalog:
    names = catalog_names(name or "", conn_id)
    if len(names) != 1:
        raise ConfigurationError(f"several catalogs are configured ({', '.join(names)}): name one with --catalog")
    return open_named(names[0], conn_id)


@registry.command()
@_of_catalog
def sync(*, name: str | None, as_json: bool, conn_id: str | None) -> None:
    """Bring new refreshes into the registry.

    One commit adds them. The rows of all views are updated.
    """
    from airflow_mv.extras.registry.sync import sync as sync_registry

    _show(sync_registry(_open(name, conn_id)), as_json=as_json)


@registry.command()
@click.option("--purge", is_flag=True, help="Delete all rows first. Only what the views record is left.")
@_of_catalog
def rebuild(*, purge: bool, name: str | None, as_json: bool, conn_id: str | None) -> None:
    """Rebuild the registry from the views. What only it knows stays, such as durations."""
    from airflow_mv.extras.registry.sync import rebuild as rebuild_registry

    _show(rebuild_registry(_open(name, conn_id), purge=purge), as_json=as_json)


@registry.command()
@click.argument("sql")
@_of_catalog
def query(*, sql: str, name: str | None, as_json: bool, conn_id: str | None) -> None:
    """Run one SELECT over the registry's tables.

    In DuckDB's SQL, over `views`, `refreshes` and `tables`. It can read nothing
    else.
    """
    from airflow_mv.extras.registry.query import query as run
    from airflow_mv.extras.registry.registry import require_registry

    _print(run(require_registry(_open(name, conn_id)), sql), as_json=as_json)


_WHERE = "A filter, such as \"view = 'lake.sales.daily' AND month >= '2026-11'\"."


@registry.command()
@click.argument("component")
@click.option("--where", metavar="FILTER", help=_WHERE)
@click.option("--columns", metavar="NAME,…", help="Read only these columns.")
@click.option("--limit", type=click.IntRange(min=1), help="Read at most this number of rows.")
@_of_catalog
def read(
    *,
    component: str,
    where: str | None,
    columns: str | None,
    limit: int | None,
    name: str | None,
    as_json: bool,
    conn_id: str | None,
) -> None:
    """Read rows of a component.

    A filter on partition columns opens only their files, and only the named
    columns are read.
    """
    from airflow_mv.extras.registry.filters import parse_filter
    from airflow_mv.extras.registry.query import Answer

    found = _component(name, conn_id, component)
    names = [text.strip() for text in columns.split(",")] if columns else None
    rows = found.read(parse_filter(where, found.kind) if where else None, names, limit=limit)
    _print(
        Answer(rows.column_names, [tuple(row.values()) for row in rows.to_pylist(maps_as_pydicts="strict")]),
        as_json=as_json,
    )


@registry.command()
@click.argument("component")
@click.argument("file", type=click.File("rb"))
@click.option("--overwrite", is_flag=True, help="Replace rows that have the same key.")
@_of_catalog
def add(
    *, component: str, file: BinaryIO, overwrite: bool, name: str | None, as_json: bool, conn_id: str | None
) -> None:
    """Add rows from a file, in one commit.

    It has one JSON object a line. FILE may be - for standard input. `registry read --json` prints such objects.
    """
    found = _component(name, conn_id, component)
    lines = [(number, line) for number, line in enumerate(file, 1) if line.strip()]
    rows = [found.kind.model.parse(line, source=f"{file.name}, line {number}") for number, line in lines]
    _counted(component, found.upsert(rows) if overwrite else found.add(rows), "written", as_json=as_json)


@registry.command()
@click.argument("component")
@click.option("--where", metavar="FILTER", required=True, help=f"{_WHERE} It names only keys.")
@_of_catalog
def delete(*, component: str, where: str, name: str | None, as_json: bool, conn_id: str | None) -> None:
    """Delete rows by their keys, in one commit.

    The files stay until they expire.
    """
    from airflow_mv.extras.registry.filters import parse_filter

    found = _component(name, conn_id, component)
    number = found.delete(parse_filter(where, found.kind, only_keys=True))
    _counted(component, number, "deleted", as_json=as_json)


@registry.command()
@click.argument("component", required=False)
@click.option("--yes", is_flag=True, help="Confirm the action without prompting.")
@_of_catalog
def purge(*, component: str | None, yes: bool, name: str | None, as_json: bool, conn_id: str | None) -> None:
    """Delete all rows of the catalog.

    Of one component, or of all. Staged refreshes go too. The files stay until they expire.
    """
    from airflow_mv.extras.registry.registry import require_registry

    found = require_registry(_open(name, conn_id))
    if not yes:
        click.confirm(f"Delete all rows of {component or 'all components'}?", abort=True, err=True)
    _counted(component or found.place, found.purge(component), "deleted", as_json=as_json)


@registry.command()
@_of_catalog
def expire(*, name: str | None, as_json: bool, conn_id: str | None) -> None:
    """Expire old snapshots now.

    Those older than `airflow-mv.registry.expire-after`, with their files.
    """
    from airflow_mv.extras.registry.registry import require_registry

    components = require_registry(_open(name, conn_id)).components
    removed = {component: found.expire() for component, found in components.items()}
    if as_json:
        print_json({"expired_snapshots": removed})
        return
    for component, number in removed.items():
        out.print(f"{component}  {number} snapshots expired", markup=False)


def _component(name: str | None, conn_id: str | None, component: str) -> Component[Any]:
    from airflow_mv.extras.registry.registry import require_registry

    return require_registry(_open(name, conn_id)).component(component)


def _counted(component: str, rows: int, done: str, *, as_json: bool) -> None:
    if as_json:
        print_json({"component": component, "rows": rows})
    else:
        out.print(f"{component}  {rows} rows {done}", markup=False)


def _question(question: str) -> click.Command:
    """Return the command of a question."""

    @click.command(question, help=QUESTIONS[question].about, short_help=QUESTIONS[question].about)
    @_of_catalog
    def ask(*, name: str | None, as_json: bool, conn_id: str | None, days: int = 30) -> None:
        from airflow_mv.extras.registry.query import ask as run
        from airflow_mv.extras.registry.registry import require_registry

        _print(run(require_registry(_open(name, conn_id)), question, days=days), as_json=as_json)

    days = click.Option(
        ["--days"], type=click.IntRange(min=1), default=30, show_default=True, help="Number of days to look back."
    )
    if QUESTIONS[question].has_time:
        ask.params.insert(0, days)
    return ask


for _name in QUESTIONS:
    registry.add_command(_question(_name))


def _show(done: SyncResult, *, as_json: bool) -> None:
    if as_json:
        print_json(done.to_dict())
        _require_complete(done)
        return
    removed = f", {done.removed_views} views removed" if done.removed_views else ""
    tables = f", {done.tables} base tables" if done.tables else ""
    out.print(f"{done.registry}  {done.refreshes} refreshes written, {done.views} views{removed}{tables}", markup=False)
    for what, why in done.faults.items():
        out.print(f"  not read: {visible(what)}: {visible(why)}", markup=False)
    _require_complete(done)


def _require_complete(done: SyncResult) -> None:
    """Raise if a store did not respond.

    Raises:
        MaterializedViewError: The first error.
    """
    for error in done.away:
        raise error


def _print(found: Answer, *, as_json: bool) -> None:
    if as_json:
        print_json(found.documents())
    else:
        show.table(found.columns, found.rows)
