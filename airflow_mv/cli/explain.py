# SPDX-License-Identifier: Apache-2.0
"""``airflow-mv explain``: how a view would be refreshed, before it is created or later."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from airflow_mv.cli.context import (
    catalog_of_query,
    common,
    open_catalog,
    open_named,
    out,
    print_json,
    query_text,
    visible,
)
from airflow_mv.cli.fresh import explain_fresh
from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.core.spec.units import human

if TYPE_CHECKING:
    from airflow_mv.core.catalog import MaterializedViewCatalog
    from airflow_mv.extras.explain.explain import Explanation

#: The view's name in messages about a query alone.
_UNNAMED = "view"


def with_requirements(command: Any) -> Any:
    """Add ``--require``."""
    what = (
        "Fail, before anything is created, if a refresh would be more expensive than this mode: append, merge or "
        "replace-keys. CHANGE=MODE for one kind of change of the base tables, such as append=append; may be repeated."
    )
    return click.option("--require", "requirements", multiple=True, metavar="[CHANGE=]MODE", help=what)(command)


@click.command()
@click.argument("view", required=False)
@click.option("--sql", help="A query. VIEW need not exist then; names are resolved in its namespace.")
@click.option(
    "--sql-file",
    "--file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A file with the query.",
)
@with_requirements
@click.option("--fresh", is_flag=True, help="Show instead what a read of the view's fresh rows would cost now.")
@common
def explain(
    *,
    view: str | None,
    sql: str | None,
    sql_file: Path | None,
    requirements: tuple[str, ...],
    fresh: bool,
    as_json: bool,
    conn_id: str | None,
) -> None:
    """Show how a view would be refreshed, and a cheaper query.

    One line for each base table and kind of change: the mode, and the expected seconds of Spark's statements.

    Reads metadata only: no Spark, and nothing is made. Give a view, a query, or both.
    """
    from airflow_mv.extras.explain.explain import explain as explained
    from airflow_mv.extras.explain.explain import require
    from airflow_mv.extras.explain.requirement import Requirement

    text = query_text(sql, sql_file)
    if view is None and text is None:
        raise click.UsageError("name a view, or give a query with --sql or --sql-file")
    if fresh:
        if view is None or text is not None or requirements:
            raise click.UsageError("--fresh takes an existing view, and no query or requirement")
        catalog, (identifier,) = open_catalog([view], conn_id)
        explain_fresh(catalog, identifier, as_json=as_json)
        return
    wanted = [Requirement.read(item) for item in requirements]
    catalog, identifier = _place(view, text or "", conn_id)
    found = explained(catalog, identifier, text)
    document = {**found.to_dict(), "base_tables": _base_tables(catalog, found)}
    if as_json:
        print_json(document)
    else:
        _show(document)
    require(found, wanted)


def _base_tables(catalog: MaterializedViewCatalog, found: Explanation) -> dict[str, Any]:
    """Return what of the files of base tables makes refreshes slower than these estimates say."""
    from airflow_mv.core.sql.query import parse_query
    from airflow_mv.extras.registry.advice import findings_of

    tables = dict.fromkeys(item.table for item in found.prospects)
    query = parse_query(
        found.sql,
        view=str(found.view),
        default_catalog=found.view.catalog,
        default_namespace=found.view.namespace,
    )
    findings = findings_of(catalog, [query], tables)
    return {name: [item.to_dict() for item in items] for name, items in findings.items()}


def _place(view: str | None, sql: str, conn_id: str | None) -> tuple[MaterializedViewCatalog, Identifier]:
    """Open the catalog of a view, or the one that a query alone names first."""
    if view is not None:
        catalog, (identifier,) = open_catalog([view], conn_id)
        return catalog, identifier
    name = catalog_of_query(sql, conn_id)
    return open_named(name, conn_id), Identifier(name, ("default",), _UNNAMED)


def _show(document: Mapping[str, Any]) -> None:
    for note in document["notes"]:
        out.print(visible(note), style="dim", markup=False)
    _show_prospects(document["prospects"])
    for table, findings in document["base_tables"].items():
        for item in findings:
            out.print(f"  {visible(table)}: {visible(item['message'])}", markup=False)
            out.print(f"    {visible(item['remedy'])}", markup=False)
    advice = document["advice"]
    if advice is None:
        return
    is_faster = _total_seconds(advice["prospects"]) < _total_seconds(document["prospects"])
    later = "This query has cheaper modes. With tables of the present size no refresh would take less time:"
    out.print(f"\n{'This query would be refreshed more cheaply:' if is_faster else later}", style="bold")
    for line in advice["differs"]:
        out.print(f"  {visible(line)}", markup=False)
    out.print(f"\n{visible(advice['sql'])}\n", markup=False)
    _show_prospects(advice["prospects"], reasons=False)


def _total_seconds(prospects: Sequence[Mapping[str, Any]]) -> float:
    """Return the expected seconds of the chosen modes, one refresh after each change."""
    chosen = [item["estimates"][0]["seconds"] for item in prospects if item["estimates"]]
    return sum(seconds or 0.0 for seconds in chosen)


def _show_prospects(prospects: Sequence[Mapping[str, Any]], *, reasons: bool = True) -> None:
    for table in dict.fromkeys(item["base_table"] for item in prospects):
        own = [item for item in prospects if item["base_table"] == table]
        out.print(visible(table), style="bold", markup=False)
        for item in own:
            out.print(f"  {item['change']:10}{_mode(item):24}{_expected(item)}".rstrip(), markup=False)
        for line in _reasons(own) if reasons else ():
            out.print(f"    {visible(line)}", markup=False)


def _mode(item: Mapping[str, Any]) -> str:
    mode: str = item["mode"]
    return mode if mode == item["possible"] else f"{mode}, not {item['possible']}"


def _expected(item: Mapping[str, Any]) -> str:
    costs = [f"{cost['mode']} {_seconds(cost)}" for cost in item["estimates"]]
    return f"{', '.join(costs)}; {item['like']}" if costs else ""


def _seconds(cost: Mapping[str, Any]) -> str:
    if cost["seconds"] is None:
        return "unknown"
    return f"{cost['seconds']:.1f} s reading {human(cost['bytes_read'])}"


def _reasons(own: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield each reason once, with the changes that it is about."""
    changes: dict[str, list[str]] = {}
    for item in own:
        for reason in item["reasons"]:
            if reason["code"] not in ("COST", "INCREMENTAL_UNAVAILABLE"):
                changes.setdefault(reason["message"], []).append(item["change"])
    for message, kinds in changes.items():
        yield f"{', '.join(kinds)}: {message}"
