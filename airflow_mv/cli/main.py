# SPDX-License-Identifier: Apache-2.0
"""The commands. They parse, call and print; the work is done in other packages."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from airflow_mv.cli import show as render
from airflow_mv.cli.changes import changes
from airflow_mv.cli.context import (
    DIFFERENT,
    LAYOUTS,
    JsonErrors,
    catalog_names,
    chosen_views,
    common,
    guarded,
    how,
    named_views,
    open_catalog,
    open_named,
    out,
    parse_time,
    pin,
    pins_of,
    print_json,
    print_json_rows,
    progress,
    query_text,
    sparked,
    split_namespace,
    stager_for,
    this_user,
    visible,
    with_checks,
    with_interval,
    with_pins,
    with_time_travel,
)
from airflow_mv.cli.costs import costs
from airflow_mv.cli.diff import diff
from airflow_mv.cli.explain import explain, with_requirements
from airflow_mv.cli.folder import apply_folder, export
from airflow_mv.cli.fresh import read_fresh
from airflow_mv.cli.impact import impact
from airflow_mv.cli.lag import lag
from airflow_mv.cli.maintain import convert, drop, maintain, repair, rollback
from airflow_mv.cli.refresh_each import refresh_each
from airflow_mv.cli.registry import registry
from airflow_mv.cli.tables import tables
from airflow_mv.cli.timeline import timeline
from airflow_mv.cli.versions import versions
from airflow_mv.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_mv.core.catalog import LoadedView, MaterializedViewCatalog
    from airflow_mv.core.define.definition import Definition
    from airflow_mv.core.freshness.observe import Observation
    from airflow_mv.core.refresh import RefreshOptions
    from airflow_mv.core.refresh.plan import RefreshPlan, RefreshResult
    from airflow_mv.core.spec.choices import OnChange
    from airflow_mv.core.spec.identifiers import Identifier
    from airflow_mv.core.spec.interval import Span
    from airflow_mv.extras.fleet.known import CatalogStatuses
    from airflow_mv.extras.history.time_travel import TimeTravel
    from airflow_mv.extras.read import Rows
    from airflow_mv.extras.spark.session import InProcessStager

_STALE = 3


@click.group(cls=JsonErrors, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__)
def main() -> None:
    """Keep Apache Iceberg materialized views fresh.

    Catalogs are named as pyiceberg names them (.pyiceberg.yaml or PYICEBERG_CATALOG__<NAME>__…); a view is
    catalog.namespace.name. Exit codes: 0 done, 1 error, 2 wrong usage, 3 stale, 4 a check failed, 5 conflict.
    """


@main.command()
@click.argument("view")
@click.option("--sql", help="The query. Without it, the plain view of this name becomes a materialized one.")
@click.option(
    "--sql-file", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="A file with the query, in UTF-8."
)
@click.option(
    "--refresh-strategy",
    type=click.Choice(["full", "incremental"]),
    help="incremental: each refresh uses the cheapest possible mode, which may be a full one. full: each refresh "
    "recomputes all rows. A new view is incremental by default.",
)
@click.option("--allow-stale-data/--no-stale-data", default=None, help="Allow or refuse reads of stale rows.")
@click.option(
    "--time-travel/--no-time-travel",
    default=None,
    help="Keep the rows of every refresh for time travel, or only the current ones.",
)
@click.option(
    "--partition-by",
    multiple=True,
    help="Partition transform of the storage table, e.g. 'days(ts)'. With --replace, of the next recomputed rows.",
)
@click.option(
    "--sort-by",
    metavar="COLUMNS",
    help="Columns by which the rows in the storage table's files are sorted, e.g. 'day, region DESC'; '' for none.",
)
@click.option(
    "--layout",
    type=click.Choice(LAYOUTS),
    help="Where the storage table is: pointed (named by the view only), registered (a table beside the view), or table "
    "(the view itself is a table, which any engine reads by the view's name). By default pointed in a SQL catalog, "
    "and table elsewhere.",
)
@click.option(
    "--dialect",
    "dialects",
    multiple=True,
    metavar="NAME",
    help="Also store the query in this SQL dialect (trino, duckdb …), translated by sqlglot; refused if the "
    "translation is not equivalent. --replace keeps the dialects and translates the query again.",
)
@click.option(
    "--transpile",
    is_flag=True,
    help="Translate the SQL of another engine's plain view for Spark, by sqlglot. The translation is printed.",
)
@click.option(
    "--storage-name",
    metavar="NAME",
    help="With the layout registered: the name of the storage table in the view's namespace. It cannot be changed. "
    "By default the view's name and __storage.",
)
@click.option(
    "--column",
    "columns",
    multiple=True,
    metavar="NAME",
    help="The name of a column, in the order of the query's columns; by default the query's own.",
)
@click.option("--comment", metavar="TEXT", help="The view's comment.")
@click.option(
    "--column-comment",
    "column_comments",
    multiple=True,
    metavar="NAME=TEXT",
    help="The comment of a column; by default that of the base column.",
)
@click.option("--property", "properties", multiple=True, metavar="K=V", help="View property.")
@click.option(
    "--replace",
    is_flag=True,
    help="Replace the definition of an existing materialized view. Options that are not given keep their values. The "
    "query is analysed again.",
)
@click.option(
    "--on-change",
    type=click.Choice(["apply", "rebuild", "fail"]),
    help="Compare the definition with an existing view. apply: change settings, properties and checks, and refuse what "
    "needs a recompute of all rows; rebuild: apply everything; fail: refuse every difference.",
)
@click.option(
    "--adopt", is_flag=True, help="Turn the existing table of this name into the view; it must fit the query."
)
@click.option("--refresh", "and_refresh", is_flag=True, help="Refresh the view at once.")
@with_requirements
@sparked
@common
@with_checks
def create(
    *,
    view: str,
    sql: str | None,
    sql_file: Path | None,
    properties: tuple[str, ...],
    requirements: tuple[str, ...],
    and_refresh: bool,
    master: str | None,
    remote: str | None,
    as_json: bool,
    conn_id: str | None,
    **definition: Any,
) -> None:
    """Create a materialized view."""
    from airflow_mv.actions import refresh_views
    from airflow_mv.common.queries import texts_of
    from airflow_mv.common.status import status as view_status
    from airflow_mv.core.catalog.layouts import how_to_read
    from airflow_mv.core.define.definition import Definition
    from airflow_mv.core.spec.properties import SORT_PROPERTY
    from airflow_mv.extras.explain.explain import accepts_modes

    how_to_define = {name: definition.pop(name) for name in ("adopt", "replace", "on_change")}
    text = query_text(sql, sql_file)
    definition |= {name: definition[name] or None for name in ("checks", "columns")}
    definition["accept"] = accepts_modes(requirements)
    definition["column_comments"] = dict(_pair(item, "--column-comment") for item in definition["column_comments"])
    given = dict(_pair(item) for item in properties)
    if (order := definition.pop("sort_by")) is not None:
        given[SORT_PROPERTY] = order
    wanted = Definition(sql=text, properties=given, **definition)
    catalog, (identifier,) = open_catalog([view], conn_id)
    stager = stager_for(catalog, master, remote)
    created, lines = _defined(catalog, identifier, wanted, stager, **how_to_define)
    results = refresh_views(catalog, [identifier], stager=stager, requester=this_user()) if and_refresh else []
    if as_json:
        print_json(results[0].to_dict() if results else view_status(catalog, identifier).to_dict())
        return
    for line in (*lines, how_to_read(created, catalog.load_storage(created))):
        out.print(visible(line), markup=False)
    render.texts(texts_of(created.metadata, view=str(identifier)))
    for result in results:
        render.result(result.to_dict())


def _defined(
    catalog: MaterializedViewCatalog,
    view: Identifier,
    definition: Definition,
    stager: InProcessStager,
    *,
    adopt: bool,
    replace: bool,
    on_change: OnChange | None,
) -> tuple[LoadedView, list[str]]:
    """Create, adopt, compare or replace a view; return it, and what was done."""
    from airflow_mv.actions import adopt_table, create_view, define_view
    from airflow_mv.extras.explain.explain import why_recomputed
    from airflow_mv.extras.readers import for_readers

    if replace and (adopt or on_change):
        raise click.UsageError(f"--replace and {'--adopt' if adopt else '--on-change'} exclude each other")
    if on_change:
        done = define_view(catalog, view, definition, stager=stager, on_change=on_change, adopt=adopt)
        return done.view, done.lines
    definition = for_readers(definition, catalog, view)
    if adopt:
        made, action = adopt_table(catalog, view, definition, stager=stager), "adopted"
    else:
        action = "replaced" if replace and catalog.exists(view) else "created"
        made = create_view(catalog, view, definition, stager=stager, replace=replace)
    return made, [f"{action} {view}", *why_recomputed(catalog, made)]


@main.command()
@click.argument("views", nargs=-1)
@click.option("--namespace", help="All materialized views of catalog.namespace.")
@click.option(
    "--all",
    "whole",
    is_flag=False,
    flag_value="",
    metavar="[CATALOG]",
    help="All materialized views, of one catalog or of every one that is configured.",
)
@click.option("--check", is_flag=True, help="Exit with code 3 if a view is not fresh.")
@click.option(
    "--intervals", is_flag=True, help="Show which intervals of named views are fresh, stale or never computed."
)
@click.option("--from", "start", metavar="TIME", help="With --intervals: from this time, ISO 8601.")
@click.option("--to", "end", metavar="TIME", help="With --intervals: up to this time, which is excluded.")
@common
@with_interval
def status(
    *,
    views: tuple[str, ...],
    namespace: str | None,
    whole: str | None,
    check: bool,
    intervals: bool,
    start: str | None,
    end: str | None,
    interval: Span | None,
    as_json: bool,
    conn_id: str | None,
) -> None:
    """Show whether views are fresh, and why not. Reads metadata only.

    Views that cannot be read are shown as unknown. Ends with 1 if a catalog did not respond; the views of the others
    are shown, and it is named on stderr.
    """
    if sum((bool(views), namespace is not None, whole is not None)) != 1:
        raise click.UsageError("name views, or --namespace CATALOG.NAMESPACE, or --all [CATALOG]")
    if interval is not None and not views:
        raise click.UsageError("--interval needs named views")
    if _is_about_intervals(views, interval, intervals=intervals, bounds=(start, end)):
        _coverage(views, conn_id, start, end, as_json=as_json, check=check)
        return
    found = _looked(views, namespace, whole, interval, conn_id)
    if as_json:
        from airflow_mv.extras.fleet.known import without_collections

        with without_collections():
            print_json(found.documents, plain=True)
    else:
        render.statuses(found.documents)
    found.require_complete()
    if check and any(document["state"] != "fresh" for document in found.documents):
        sys.exit(_STALE)


def _looked(
    views: tuple[str, ...], namespace: str | None, whole: str | None, interval: Span | None, conn_id: str | None
) -> CatalogStatuses:
    """Return the status of the chosen views. What the cache knows of them is taken from there."""
    from airflow_mv.core.catalog.configured import configured
    from airflow_mv.extras.fleet.all_views import statuses_of_catalogs, statuses_of_views
    from airflow_mv.extras.fleet.fact_cache import FactCache
    from airflow_mv.extras.fleet.known import CatalogStatuses

    cache, properties_of = FactCache.of_user(), ({} if conn_id else configured()).get
    if views and interval is not None:
        from airflow_mv.common.status import statuses

        return CatalogStatuses(statuses(*open_catalog(views, conn_id), interval=interval))
    if views:
        opener = partial(open_catalog, views, conn_id)
        named = named_views(views)
        return CatalogStatuses(
            statuses_of_views(named, opener, cache=cache, properties_of=properties_of, count=_count_fresh)
        )
    name, space = (whole or "", None) if namespace is None else split_namespace(namespace, conn_id)
    openers = {item: partial(open_named, item, conn_id) for item in catalog_names(name, conn_id)}
    return statuses_of_catalogs(openers, space, cache=cache, properties_of=properties_of)


def _count_fresh(catalog: MaterializedViewCatalog, observation: Observation) -> dict[str, Any]:
    """Count the fresh intervals of a stale view. What is needed for it is imported for such a view only."""
    from airflow_mv.extras.fleet.coverage import count

    return count(catalog, observation)


def _is_about_intervals(
    views: tuple[str, ...], interval: Span | None, *, intervals: bool, bounds: tuple[str | None, str | None]
) -> bool:
    if any(bounds) and not intervals:
        raise click.UsageError("--from and --to need --intervals")
    if intervals and not views:
        raise click.UsageError("--intervals needs named views")
    if intervals and interval is not None:
        raise click.UsageError("--intervals and --interval exclude each other: use --from and --to")
    return intervals


def _coverage(
    views: tuple[str, ...], conn_id: str | None, start: str | None, end: str | None, *, as_json: bool, check: bool
) -> None:
    """Show the intervals of views."""
    from airflow_mv.extras.fleet.coverage import coverage

    catalog, identifiers = open_catalog(views, conn_id)
    found = [coverage(catalog, view, start=parse_time(start), end=parse_time(end)) for view in identifiers]
    if as_json:
        print_json([item.to_dict() for item in found])
    else:
        for item in found:
            render.coverage(item.to_dict(), str(item))
    if check and any(item.up_to_date < item.total for item in found):
        sys.exit(_STALE)


@main.command()
@click.argument("view")
@with_pins
@common
@how
def plan(*, view: str, options: RefreshOptions, pins: Path | None, as_json: bool, conn_id: str | None) -> None:
    """Show what a refresh would do, and why. Reads metadata only."""
    from airflow_mv.actions import plan_view
    from airflow_mv.extras.costs import with_expected
    from airflow_mv.extras.describe import durations

    catalog, (identifier,) = open_catalog([view], conn_id)
    document = plan_view(catalog, identifier, options, pins=pins_of(catalog, [identifier], pins)).to_dict()
    document["estimates"] = with_expected(document["estimates"], durations(catalog, identifier))
    if as_json:
        print_json(document)
    else:
        render.plan(document)


@main.command()
@click.argument("views", nargs=-1)
@click.option("--namespace", help="All materialized views of catalog.namespace.")
@click.option("--all", "whole", metavar="CATALOG", help="All materialized views of a catalog.")
@click.option(
    "--with-inputs",
    is_flag=True,
    help="First refresh the materialized views of the same catalog that the named ones read, directly or through "
    "others, all from one set of base snapshots. Options other than --as-of are for the named ones.",
)
@click.option(
    "--yes",
    is_flag=True,
    help="With --namespace or --all: compute all rows of views of which only intervals were ever computed, without "
    "prompting.",
)
@with_pins
@sparked
@common
@how
def refresh(
    *,
    views: tuple[str, ...],
    namespace: str | None,
    whole: str | None,
    with_inputs: bool,
    yes: bool,
    options: RefreshOptions,
    pins: Path | None,
    as_json: bool,
    conn_id: str | None,
    **spark: str | None,
) -> None:
    """Refresh views: plan, stage, publish. Several share one Spark application and one set of base snapshots.

    With --namespace or --all a view that fails does not stop the others: its error is on stderr, and the command ends
    with its exit code. A view of which only intervals were ever computed is recomputed as a whole: the command asks
    first, and without a terminal needs --yes.
    """
    from airflow_mv.actions import maintain_after_refresh

    if sum((bool(views), namespace is not None, whole is not None)) != 1:
        raise click.UsageError("name views, or --namespace CATALOG.NAMESPACE, or --all CATALOG")
    if with_inputs and pins is not None:
        raise click.UsageError("--with-inputs and --pins exclude each other: --with-inputs pins the base tables itself")
    if not views:
        if pins is not None or with_inputs:
            raise click.UsageError(f"{'--pins' if pins else '--with-inputs'} needs named views")
        catalog, identifiers = chosen_views((), namespace, conn_id, whole=whole)
        stager = stager_for(catalog, **spark)
        refresh_each(catalog, identifiers, options, stager, as_json=as_json, yes=yes)
        return
    catalog, identifiers = open_catalog(views, conn_id)
    stager = stager_for(catalog, **spark)
    show_plan = None if as_json else render.plan_line
    refresh_named = _with_inputs if with_inputs else partial(_as_named, pins=pins)
    results = refresh_named(catalog, identifiers, stager, options, show_plan)
    for result in results:
        maintain_after_refresh(catalog, result.view, published=result.published, stager=stager, report=progress)
    documents = [result.to_dict() for result in results]
    if as_json:
        print_json(documents)
        return
    for document in documents:
        render.result(document)


def _as_named(
    catalog: MaterializedViewCatalog,
    views: list[Identifier],
    stager: InProcessStager,
    options: RefreshOptions,
    on_plan: Callable[[RefreshPlan], None] | None,
    *,
    pins: Path | None,
) -> list[RefreshResult]:
    from airflow_mv.actions import refresh_views

    given = pins_of(catalog, views, pins)
    return refresh_views(
        catalog, views, stager=stager, options=options, pins=given, on_plan=on_plan, requester=this_user()
    )


def _with_inputs(
    catalog: MaterializedViewCatalog,
    views: list[Identifier],
    stager: InProcessStager,
    options: RefreshOptions,
    on_plan: Callable[[RefreshPlan], None] | None,
) -> list[RefreshResult]:
    from airflow_mv.actions import refresh_with_inputs

    return refresh_with_inputs(catalog, views, stager=stager, options=options, on_plan=on_plan, requester=this_user())


@main.command()
@click.argument("view")
@click.option("--limit", type=click.IntRange(min=1), help="At most this many, the newest ones.")
@common
def history(*, view: str, limit: int | None, as_json: bool, conn_id: str | None) -> None:
    """List the recorded refreshes, oldest first. With a registry, all of them are listed.

    Refreshes that failed in Spark, or did not pass their checks, are listed with their error for some days.
    """
    from airflow_mv.extras.describe import history as view_history
    from airflow_mv.extras.describe import with_failures
    from airflow_mv.extras.registry.history import with_registry

    catalog, (identifier,) = open_catalog([view], conn_id)
    published = with_registry(catalog, identifier, view_history(catalog, identifier))
    documents = with_failures(catalog, identifier, published)[-limit if limit else 0 :]
    if as_json:
        print_json(documents)
    else:
        render.history(documents)


@main.command()
@click.argument("view", metavar="VIEW|PATH")
@click.option("--limit", type=click.IntRange(min=0), default=None, help="The most rows to print.")
@click.option("--no-refresh", is_flag=True, help="Refuse to read a stale view instead of refreshing it.")
@click.option("--fresh", is_flag=True, help="The rows of now: stored rows and what changed since. Nothing is written.")
@sparked
@common
@with_time_travel
def read(
    *,
    view: str,
    wanted: TimeTravel | None,
    limit: int | None,
    no_refresh: bool,
    fresh: bool,
    master: str | None,
    remote: str | None,
    as_json: bool,
    conn_id: str | None,
) -> None:
    """Print the stored rows. If stale rows are not allowed, the view is refreshed first.

    Of a path the rows of that Iceberg table are printed, which needs no catalog: its folder, iceberg.`folder`, or a
    metadata file.
    """
    from airflow_mv.actions import refresh_with_inputs
    from airflow_mv.core.spec.identifiers import id_text
    from airflow_mv.extras.read import is_path, read_rows, readable, table_rows

    if is_path(view):
        if fresh:
            raise click.UsageError("--fresh takes a view: a table has no other rows than those that are stored")
        rows = table_rows(view, wanted.chosen if wanted else {}, limit=limit)
        found_in = {"path": view, "metadata_location": rows.metadata_location, "snapshot_id": id_text(rows.snapshot_id)}
        _print_rows({**found_in, "columns": rows.columns}, rows, as_json=as_json)
        return
    catalog, (identifier,) = open_catalog([view], conn_id)
    stager = stager_for(catalog, master, remote)
    if fresh:
        read_fresh(catalog, identifier, wanted, stager, limit, as_json=as_json)
        return

    def refreshed(view: Identifier) -> None:
        progress(f"the rows of {view} are not fresh, so it is refreshed first; with --no-refresh that is an error")
        refresh_with_inputs(catalog, [view], stager=stager, requester=this_user())

    found = readable(catalog, identifier, wanted, refresh=None if no_refresh else refreshed)
    result = read_rows(catalog, found, limit=limit)
    document = {
        "view": str(identifier),
        "refresh_id": found.refresh_id,
        "state": str(found.state),
        "columns": result.columns,
    }
    _print_rows(document, result, as_json=as_json)


def _print_rows(document: dict[str, Any], rows: Rows, *, as_json: bool) -> None:
    if as_json:
        print_json_rows(document, rows.rows())
    else:
        render.rows({**document, "rows": list(rows.rows())})


@main.command()
@click.argument("view")
@common
def show(*, view: str, as_json: bool, conn_id: str | None) -> None:
    """Print the stored metadata of view and storage table."""
    from airflow_mv.extras.describe import stored_metadata

    catalog, (identifier,) = open_catalog([view], conn_id)
    document = stored_metadata(catalog, identifier)
    if as_json:
        print_json(document)
    else:
        render.metadata(document)


@main.command()
@click.argument("view")
@click.option(
    "--files", is_flag=True, help="Check the stored files instead: existence, sizes, counts, checksums. Needs no Spark."
)
@click.option("--sample", type=float, metavar="PERCENT", help="Only this percentage of the rows, the same in each run.")
@sparked
@common
@with_interval
def verify(
    *,
    view: str,
    files: bool,
    sample: float | None,
    interval: Span | None,
    master: str | None,
    remote: str | None,
    as_json: bool,
    conn_id: str | None,
) -> None:
    """Compare the stored rows with a recompute.

    The query is computed at the recorded snapshots. Ends with 4 if the rows differ.
    """
    from airflow_mv.extras.maintenance.verify import Part, verify_files
    from airflow_mv.extras.maintenance.verify import verify as verify_view

    if files and (sample is not None or interval is not None):
        raise click.UsageError("--files checks all files: it takes neither --sample nor --interval")
    part = Part(interval, sample)
    catalog, (identifier,) = open_catalog([view], conn_id)
    if files:
        found = verify_files(catalog, identifier, report=progress)
        if as_json:
            print_json(found.to_dict())
        else:
            render.verified_files(found.to_dict())
        if not found.intact:
            sys.exit(DIFFERENT)
        return
    stager = stager_for(catalog, master, remote)
    verification = verify_view(catalog, identifier, session=lambda: stager.session, part=part)
    if as_json:
        print_json(verification.to_dict())
    else:
        render.verification(verification.to_dict())
    if not verification.equal:
        sys.exit(DIFFERENT)


@main.command()
@click.argument("names", nargs=-1, metavar="[CATALOG|VIEW]...")
@click.option("--spark", "with_spark", is_flag=True, help="Start Spark, and run a statement in each catalog.")
@sparked
@common
def doctor(
    *,
    names: tuple[str, ...],
    with_spark: bool,
    master: str | None,
    remote: str | None,
    as_json: bool,
    conn_id: str | None,
) -> None:
    """Check the environment and the catalogs, or a view's files.

    The environment: Java, jars, and the ways of refreshing that there are here. A view: its metadata, manifests and
    base tables.

    With --conn-id the connection is read as Airflow's workers read it, and its catalog is checked. Prints how to fix
    what fails.
    """
    from airflow_mv.cli.doctor import examine, examine_view, is_view

    views = [name for name in names if is_view(name)]
    catalogs = tuple(name for name in names if name not in views)
    spark = partial(stager_for, master=master, remote=remote) if with_spark else None
    found = examine(catalogs, conn_id, spark=spark) if catalogs or not views else ()
    findings = [finding.to_dict() for finding in found]
    for name in views:
        catalog, (identifier,) = open_catalog([name], conn_id)
        findings += [finding.to_dict() for finding in examine_view(catalog, identifier)]
    if as_json:
        print_json(findings)
    else:
        render.findings(findings)
    if any(finding["ok"] is False for finding in findings):
        sys.exit(1)


@click.command()
@click.option("--home", type=click.Path(file_okay=False, path_type=Path), help="Its folder; by default ./.demo.")
@guarded
def demo(*, home: Path | None) -> None:
    """Run a complete demo on real data.

    Creates and refreshes four views of flight data in a real Airflow, and checks every row.
    """
    from examples.demo.home import DemoHome
    from examples.demo.run import run

    run(DemoHome(home.resolve()) if home else DemoHome.default())


for _command in (
    changes,
    costs,
    diff,
    explain,
    maintain,
    rollback,
    convert,
    drop,
    pin,
    repair,
    registry,
    tables,
    timeline,
    versions,
    export,
    apply_folder,
    impact,
    lag,
):
    main.add_command(_command)
if (Path(__file__).parents[2] / "examples" / "demo").is_dir():  # a clone of the repository; not the wheel
    main.add_command(demo)


def _pair(text: str, option: str = "--property") -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise click.UsageError(f"{option} {text!r}: write KEY=VALUE")
    return key, value
