# SPDX-License-Identifier: Apache-2.0
"""The maintenance commands: maintain, rollback, drop, repair."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click

from airflow_mv.cli.context import (
    DIFFERENT,
    LAYOUTS,
    chosen_views,
    common,
    open_catalog,
    out,
    print_json,
    progress,
    sparked,
    stager_for,
    visible,
)
from airflow_mv.errors import (
    InvalidMetadataError,
    MaterializedViewError,
    NewerFormatError,
    NotFoundError,
    NotMaterializedError,
    UnsupportedError,
    ViewNotFoundError,
)

if TYPE_CHECKING:
    from airflow_mv.core.catalog import LoadedView, MaterializedViewCatalog
    from airflow_mv.core.spec.identifiers import Identifier

_AGE = re.compile(r"(\d{1,6})([smhd])", re.ASCII)
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


class Age(click.ParamType):  # type: ignore[type-arg]  # click takes the argument since 8.4
    """A length of time: a whole number and a unit, such as ``3d``, ``12h``, ``30m`` or ``0s``."""

    name = "age"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> timedelta:
        """Parse the text. An invalid one exits with the code for wrong usage."""
        if isinstance(value, timedelta):
            return value
        match = _AGE.fullmatch(str(value))
        if match is None:
            self.fail(
                f"{value!r} is not an age: write a whole number and a unit, such as 3d, 12h, 30m or 0s", param, ctx
            )
        return timedelta(**{_UNITS[match[2]]: int(match[1])})


@click.command()
@click.argument("views", nargs=-1)
@click.option("--namespace", help="All materialized views of catalog.namespace.")
@click.option(
    "--older-than",
    type=Age(),
    default="3d",
    show_default=True,
    help="Expire and delete only what nothing has needed for this long: 3d, 12h, 30m. At least twice the longest "
    "refresh.",
)
@click.option("--dry-run", is_flag=True, help="Show what would be expired and deleted, with proofs; change nothing.")
@click.option(
    "--compact",
    is_flag=True,
    help="First rewrite small files, and files with deleted rows. Starts Spark if there are many.",
)
@sparked
@common
def maintain(
    *,
    views: tuple[str, ...],
    namespace: str | None,
    older_than: timedelta,
    dry_run: bool,
    compact: bool,
    master: str | None,
    remote: str | None,
    as_json: bool,
    conn_id: str | None,
) -> None:
    """Expire old snapshots and delete orphan files.

    Only files that are proven to be the view's are deleted.

    A view that fails does not stop the others. Its error is on stderr, and the command ends with its exit code.
    """
    from airflow_mv.actions import maintain_view

    catalog, identifiers = chosen_views(views, namespace, conn_id)
    stager = stager_for(catalog, master, remote) if compact else None
    _each(
        catalog,
        identifiers,
        lambda view: maintain_view(
            catalog, view, older_than=older_than, dry_run=dry_run, stager=stager, report=progress
        ),
        _show,
        as_json=as_json,
    )


def _each(
    catalog: MaterializedViewCatalog,
    views: Sequence[Identifier],
    run: Callable[[Identifier], dict[str, Any]],
    show: Callable[[dict[str, Any]], None],
    *,
    as_json: bool,
) -> None:
    from airflow_mv.common.each import for_each, left_out

    documents: list[dict[str, Any]] = []
    errors: list[MaterializedViewError] = []
    for result in for_each(views, run):
        if result.error is not None:
            errors.append(result.error)
            continue
        documents.append(result.get())
        if not as_json:
            show(documents[-1])
    if as_json and (documents or not errors):
        print_json(documents)
    errors += left_out(catalog)
    for error in errors[1:]:
        progress(str(error))
    if errors:
        raise errors[0]


@click.command()
@click.argument("view")
@click.option("--to", "refresh_id", help="The refresh, by its id in the history.")
@click.option("--to-version", "version_id", type=int, help="The version of the definition, as `versions` lists it.")
@common
def rollback(*, view: str, refresh_id: str | None, version_id: int | None, as_json: bool, conn_id: str | None) -> None:
    """Make an earlier refresh or definition current again.

    After --to, the next refresh brings the view up to date again. After --to-version, rows of another definition are
    not returned until the next refresh has recomputed them.
    """
    from airflow_mv.extras.history.rollback import rollback as roll_back
    from airflow_mv.extras.history.rollback import rollback_version

    if (refresh_id is None) == (version_id is None):
        raise click.UsageError("give --to REFRESH or --to-version NUMBER")
    catalog, (identifier,) = open_catalog([view], conn_id)
    if refresh_id is not None:
        document = roll_back(catalog, identifier, refresh_id).to_dict()
        what = document["refresh_id"]
    else:
        document = rollback_version(catalog, identifier, version_id or 0).to_dict()
        what = f"version {document['version_id']}"
    if as_json:
        print_json(document)
    else:
        out.print(f"{document['view']}  {document['outcome']}  {what}", markup=False)


@click.command()
@click.argument("view")
@click.option("--layout", type=click.Choice(LAYOUTS), required=True, help="The new layout.")
@common
def convert(*, view: str, layout: str, as_json: bool, conn_id: str | None) -> None:
    """Move a view to another layout, in one step. Rows, history and settings stay. SQL catalogs only."""
    from airflow_mv.core.catalog.layouts import how_to_read
    from airflow_mv.extras.convert import convert as convert_view

    catalog, (identifier,) = open_catalog([view], conn_id)
    done = convert_view(catalog, identifier, layout)
    if as_json:
        print_json(done.to_dict())
        return
    changed = f"converted {identifier} from {done.before} to {done.layout}"
    out.print(changed if done.changed else f"{identifier} has the layout {done.layout} already", markup=False)
    loaded = catalog.load(identifier)
    out.print(how_to_read(loaded, catalog.load_storage(loaded)), markup=False)


@click.command()
@click.argument("view")
@click.option("--purge", is_flag=True, help="Also delete the files below the view's location that are proven its own.")
@click.option("--force", is_flag=True, help="Drop it although its files cannot be read, or cannot be purged.")
@click.option("--yes", is_flag=True, help="Confirm the action without prompting.")
@common
def drop(*, view: str, purge: bool, force: bool, yes: bool, as_json: bool, conn_id: str | None) -> None:
    """Remove a view from the catalog. Its files stay, unless they are purged.

    A table that was adopted stays in the catalog with its rows, unless it is purged.
    """
    if not yes:
        click.confirm("Remove the view from the catalog?", abort=True, err=True)
    catalog, (identifier,) = open_catalog([view], conn_id)
    document: dict[str, Any] = {"view": str(identifier), "dropped": True}
    document |= _purged(catalog, identifier, force=force) if purge else _dropped(catalog, identifier, force=force)
    if as_json:
        print_json(document)
        return
    files = f", {_files(document)}" if "deleted_files" in document else ""
    out.print(f"dropped {identifier}{files}", markup=False)
    _show_unproven(document.get("unproven", {}))
    if document.get("left"):
        out.print(f"left: {visible(document['left'])}", markup=False)


def _dropped(catalog: MaterializedViewCatalog, view: Identifier | LoadedView, *, force: bool) -> dict[str, Any]:
    from airflow_mv.extras.maintenance.drop import drop as drop_view

    left = drop_view(catalog, view, force=force).left
    return {"left": left} if left else {}


def _purged(catalog: MaterializedViewCatalog, view: Identifier, *, force: bool) -> dict[str, Any]:
    """Drop a view with its files. If they cannot be proven its own, drop it only with ``force`` and leave the files."""
    from airflow_mv.extras.maintenance.drop import purge as purge_view
    from airflow_mv.extras.maintenance.evidence import folder_of

    folder, loaded = folder_of(catalog, view), None
    try:
        loaded = catalog.load(view)
        done = purge_view(catalog, loaded)
    except (NewerFormatError, NotMaterializedError, ViewNotFoundError):
        raise
    except (InvalidMetadataError, NotFoundError, UnsupportedError) as error:
        if not catalog.exists(view):
            raise  # it failed after the drop
        if not force:
            raise type(error)(
                f"{error}. Its files cannot be purged, and nothing was dropped: `airflow-mv drop {view} --force` drops "
                f"the view and leaves its files in {folder}"
            ) from None
        left = f"its files in {folder} were not purged: {error}"
        return {"left": "; ".join(filter(None, (left, _dropped(catalog, loaded or view, force=True).get("left"))))}
    return {
        "deleted_files": len(done.files),
        "deleted_bytes": done.size_bytes,
        "unproven": dict(done.unproven),
    }


def _show(document: dict[str, Any]) -> None:
    would = "would be " if document["dry_run"] else ""
    out.print(visible(document["view"]), style="bold", markup=False)
    _show_compaction(document.get("compaction"))
    why = {"current": "current", "named": "with a tag or branch", "young": "too young", "adopted": "from before"}
    kept = ", ".join(f"{count} {why[reason]}" for reason, count in document["kept_snapshots"].items() if count)
    out.print(f"  snapshots {would}expired: {len(document['expired_snapshots'])}; kept: {kept or 'none'}")
    if document["dropped_branches"]:
        out.print(f"  branches of killed refreshes {would}dropped: {len(document['dropped_branches'])}")
    for name in document["dropped_tables"]:
        out.print(f"  empty table of a killed creation {would}dropped: {visible(name)}", markup=False)
    counts = document["kept_files"]
    kept = f"{counts['reachable']} needed, {counts['young']} too young, {counts['waiting']} waiting for the grace"
    out.print(f"  {would}{_files(document)}; kept: {kept}")
    for location, proof in document["proofs"].items():
        out.print(f"    {visible(location)}  ({visible(proof)})", markup=False)
    _show_unproven(document["unproven"])


def _show_compaction(document: Mapping[str, Any] | None) -> None:
    if document is None:
        return
    said = {"compacted": "compacted", "would-compact": "would be compacted"}.get(document["outcome"], "not compacted")
    out.print(f"  {said}: {visible(document['why'])}", markup=False)
    if (after := document["after"]) is not None:
        before = document["before"]["bytes"]
        files = f"data files: {after['data_files']}, delete files: {after['delete_files']}"
        out.print(f"  the same rows now: {files}, {after['bytes']:,} bytes instead of {before:,}", markup=False)


def _show_unproven(unproven: Mapping[str, str]) -> None:
    if unproven:
        out.print(f"  not proven the view's, and left: {len(unproven)}")
    for location, reason in unproven.items():
        out.print(f"    {visible(location)}  ({visible(reason)})", markup=False)


def _files(document: dict[str, Any]) -> str:
    return f"deleted: {document['deleted_files']} files, {document['deleted_bytes']:,} bytes"


@click.command()
@click.argument("view")
@click.option("--yes", is_flag=True, help="Apply the repair. Without this option nothing is changed.")
@common
def repair(*, view: str, yes: bool, as_json: bool, conn_id: str | None) -> None:
    """Show which files of a view are damaged, and repair it.

    Repairs only with --yes. Deletes nothing.

    Ends with 4 if something is wrong and was not repaired.
    """
    from airflow_mv.extras.maintenance.repair import repair as repair_view

    catalog, (identifier,) = open_catalog([view], conn_id)
    done = repair_view(catalog, identifier, act=yes, report=progress)
    if as_json:
        print_json(done.to_dict())
    else:
        _show_repair(done.to_dict())
    if not done.ok:
        sys.exit(DIFFERENT)


def _show_repair(document: Mapping[str, Any]) -> None:
    view = document["view"]
    if document["healthy"]:
        out.print(f"{view}  nothing to repair", markup=False)
        return
    for item in document["findings"]:
        out.print(visible(item["what"]), style="bold", markup=False)
        for key in ("file", "known", "repair", "lost"):
            out.print(f"  {key + ':':8}{visible(item[key])}", markup=False)
    if document["repaired"]:
        out.print(f"repaired {view}; `airflow-mv refresh {view}` computes what is missing", markup=False)
    elif all(item["repairable"] for item in document["findings"]):
        out.print(f"nothing was changed; `airflow-mv repair {view} --yes` repairs it", markup=False)
    else:
        out.print("nothing was changed: the remaining files do not suffice to repair all of it", markup=False)
