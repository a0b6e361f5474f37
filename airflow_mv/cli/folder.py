# SPDX-License-Identifier: Apache-2.0
"""The commands ``export`` and ``apply``: views as a folder of SQL files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from airflow_mv.cli.context import (
    common,
    err,
    named_views,
    open_named,
    out,
    print_json,
    sparked,
    stager_for,
    this_user,
    visible,
)
from airflow_mv.core.spec.units import human

if TYPE_CHECKING:
    from airflow_mv.extras.folder.plan import Applied, FolderPlan

#: The exit codes of ``--check``: there is something to do, and a file is refused.
_CHANGES, _REFUSED = 3, 4
_SIGNS = {
    "create": "+",
    "rename": ">",
    "metadata": "~",
    "in-place": "~",
    "rebuild": "!",
    "drop": "-",
    "refused": "x",
    "unmanaged": "?",
}


@click.command()
@click.argument("namespace")
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@click.option("--overwrite", is_flag=True, help="Replace files that have another content.")
@click.option(
    "--uuid", is_flag=True, help="Write the uuid of each view, by which `apply` finds a file that was renamed."
)
@common
def export(*, namespace: str, folder: Path, overwrite: bool, uuid: bool, as_json: bool, conn_id: str | None) -> None:
    """Write views into a folder of SQL files.

    All materialized views of NAMESPACE, which is catalog.namespace: one file
    for each, as `airflow-mv apply` reads it.
    """
    from airflow_mv.common.each import materialized_views
    from airflow_mv.core.spec.identifiers import split_namespace
    from airflow_mv.extras.folder.write import write_file

    name, inner = split_namespace(namespace)
    catalog = open_named(name, conn_id)
    written = [
        write_file(folder, catalog, catalog.load(view), overwrite=overwrite, uuid=uuid)
        for view in materialized_views(catalog, inner)
    ]
    if as_json:
        print_json([{"file": str(path), "written": new} for path, new in written])
        return
    for path, new in written:
        out.print(visible(f"{path}{'' if new else '  unchanged'}"), markup=False)
    if not written:
        out.print(visible(f"{namespace} has no materialized views"), markup=False)


@click.command(name="apply")
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--namespace", metavar="CATALOG.NAMESPACE", help="The namespace of files whose names have no catalog.")
@click.option("--plan", "only_plan", is_flag=True, help="Show what would be done, and do nothing.")
@click.option(
    "--check", is_flag=True, help="As --plan; the exit code is 3 if there is something to do, 4 if a file is refused."
)
@click.option("--prune", is_flag=True, help="Drop materialized views of the same namespaces that no file defines.")
@click.option("--markdown", is_flag=True, help="Show the plan as Markdown, for the comment of a pull request.")
@click.option("--yes", is_flag=True, help="Confirm the changes without prompting.")
@click.option(
    "--on-diff",
    metavar="POLICY",
    help="Compute changed rows beside those on show, and publish, fail or ask if they differ, above limits such as "
    "'fail, rows=1%, changed=5%'. By default as each view's property airflow-mv.on-diff says.",
)
@sparked
@common
def apply_folder(
    *,
    folder: Path,
    namespace: str | None,
    only_plan: bool,
    check: bool,
    prune: bool,
    markdown: bool,
    yes: bool,
    on_diff: str | None,
    as_json: bool,
    conn_id: str | None,
    **spark: Any,
) -> None:
    """Make views what a folder of SQL files says.

    Shows the plan, asks, and changes the views in the order in which they read
    each other. A view changes as a whole or not at all. It refreshes nothing,
    but the views whose changed rows are compared before they are published.
    """
    from airflow_mv.actions import Rebuilds, apply_views, plan_views
    from airflow_mv.core.spec.properties import DiffPolicy
    from airflow_mv.extras.folder.files import read_folder

    files = read_folder(folder, namespace=namespace)
    named_views([str(file.view) for file in files])  # of one catalog
    catalog = open_named(files[0].view.catalog, conn_id)
    plan = plan_views(catalog, files, prune=prune)
    if check or only_plan:
        _print_plan(plan, as_json=as_json, markdown=markdown)
        if check and (plan.refused or plan.to_do):
            raise SystemExit(_REFUSED if plan.refused else _CHANGES)
        return
    if not as_json:
        _print_plan(plan, as_json=False, markdown=markdown)
    if plan.to_do and not yes:
        click.confirm(f"Change {len(plan.to_do)} views?", abort=True, err=True)
    stager = stager_for(catalog, **spark)
    how = Rebuilds(
        stager,
        session=lambda: stager.session,
        on_diff=None if on_diff is None else DiffPolicy.read(on_diff, source="--on-diff"),
        ask=lambda found: not yes and click.confirm(f"Publish the rows of {found.view}?", err=True),
        report=lambda line: err.print(visible(line), markup=False),
        requester=this_user(),
    )
    done = [_shown(item, quiet=as_json) for item in apply_views(catalog, plan, how)]
    if as_json:
        print_json({**plan.to_dict(), "applied": [item.to_dict() for item in done]})
    if plan.refused or any(item.outcome != "done" for item in done):
        raise SystemExit(1)


def _shown(item: Applied, *, quiet: bool) -> Applied:
    for line in item.lines if not quiet else ():
        out.print(visible(line if item.outcome == "done" else f"{item.outcome}: {line}"), markup=False)
    return item


def _print_plan(plan: FolderPlan, *, as_json: bool, markdown: bool) -> None:
    document = plan.to_dict()
    if as_json:
        print_json(document)
        return
    for line in _markdown(document) if markdown else _text(document):
        out.print(visible(line), markup=False)


def _summary(document: Mapping[str, Any]) -> str:
    counts = [f"{number} {action}" for action, number in document["counts"].items() if number]
    return ", ".join(counts)


def _text(document: Mapping[str, Any]) -> Iterator[str]:
    for change in document["changes"]:
        if change["action"] == "unchanged" and not change["differences"]:
            continue
        sign = _SIGNS.get(change["action"], "=")
        file = f"  ({change['file']})" if change["file"] else ""
        file = f" from {change['renamed_from']}{file}" if change["renamed_from"] else file
        yield f"{sign} {change['action']:<9} {change['view']}{file}"
        if change["reason"]:
            yield f"    {change['reason']}"
        for item in change["differences"]:
            yield f"    {_difference(item)}"
        for line in _consequences(change):
            yield f"    {line}"
    yield _summary(document)


def _consequences(change: Mapping[str, Any]) -> Iterator[str]:
    """Yield what a change costs, and whom it concerns."""
    if change["rebuilds"]:
        cost = change["cost"] or {}
        known = [f"reads {human(cost['bytes_read'])}"] if cost.get("bytes_read") is not None else []
        seconds = cost.get("expected_seconds") or cost.get("seconds")
        known += [f"takes about {seconds:,.0f} s"] if seconds is not None else []
        yield f"the next refresh recomputes all rows{': it ' + ', '.join(known) if known else ''}"
    if change["loses"]:
        yield f"readers lose {', '.join(change['loses'])}"
    about = {item["view"]: item for item in change["touched"]}
    if own := _whose(about.get(change["view"])):
        yield own
    for reader in change["readers"]:
        whose = _whose(about.get(reader))
        yield f"read by {reader}{f' ({whose})' if whose else ''}"


def _whose(touched: Mapping[str, Any] | None) -> str:
    """Return the owner and the DAGs of a view."""
    parts = [f"owner {touched['owner']}"] if touched and touched["owner"] else []
    dags = touched["dags"] if touched else []
    parts += [f"refreshed by the DAG{'s' if len(dags) > 1 else ''} {', '.join(dags)}"] if dags else []
    return ", ".join(parts)


def _difference(item: Mapping[str, Any]) -> str:
    if item["effect"] == "kept":
        return f"{item['field']}: {item['stored']} is kept, because the file does not say it"
    return f"{item['field']}: {item['stored']} → {item['wanted']}"


def _markdown(document: Mapping[str, Any]) -> Iterator[str]:
    yield f"**{_summary(document)}**"
    yield ""
    yield "| | view | what changes |"
    yield "|---|---|---|"
    for change in document["changes"]:
        if change["action"] == "unchanged" and not change["differences"]:
            continue
        renamed = f"from {change['renamed_from']}" if change["renamed_from"] else None
        parts = [change["reason"], renamed, *(_difference(item) for item in change["differences"])]
        parts += _consequences(change)
        cell = "<br>".join(_escaped(part) for part in parts if part)
        yield f"| {change['action']} | {_escaped(change['view'])} | {cell} |"


def _escaped(text: str) -> str:
    """Return text for a cell of a table: nothing in it is Markdown or HTML."""
    escaped = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return "".join(f"\\{c}" if c in "|*_`[]\\" else c for c in escaped)
