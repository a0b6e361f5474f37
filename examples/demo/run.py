# SPDX-License-Identifier: Apache-2.0
"""The demo: load real flights, run a DAG in a real Airflow that keeps four views fresh, check every row, report."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from typing import Any

from rich.table import Table

from airflow_mv.errors import CheckFailedError
from examples.demo import by_name
from examples.demo.airflow_process import AirflowProcess, TaskRow
from examples.demo.airflow_run import DAG_ID
from examples.demo.bar import Bar, console
from examples.demo.home import CATALOG, NAMESPACE, SHORT_LIVED_JAVA, DemoHome
from examples.demo.views import AS_TABLE, VIEWS


def run(home: DemoHome) -> None:
    """Run the demo; what an earlier run has done is not done again.

    Raises:
        JobError: The Airflow run failed, or Spark; the message names its log.
        CheckFailedError: A view differs from the independent computation, or an engine reads other rows.
    """
    started = time.monotonic()
    os.environ.update({**home.environment(), **SHORT_LIVED_JAVA, "AIRFLOW_MV_DEMO_HOME": str(home.folder)})
    console.print(f"[bold]airflow-mv demo[/bold]  [dim]in {home.folder}[/dim]")
    is_new = not (home.folder / "catalog.db").exists()
    home.folder.mkdir(parents=True, exist_ok=True)
    with Bar() as bar, ExitStack() as stack:
        # Airflow starts while the tables are loaded, and a second Spark while Airflow runs the DAG.
        airflow = stack.enter_context(closing(AirflowProcess(home)))
        # Imported when these run already.
        from pyiceberg.catalog import load_catalog

        from airflow_mv.core.catalog import MaterializedViewCatalog
        from examples.demo.check import answers, compare
        from examples.demo.data import load

        with bar.step("load the flights of 2013 from New York, January to May", 5):
            iceberg = load_catalog(CATALOG, **home.catalog_properties)
            for line in load(iceberg, range(1, 6)):
                console.print(f"    {line}", style="dim")
        with bar.step(f"run the DAG {DAG_ID} in Airflow (dag.test)", 85):
            airflow.start()
            spark = stack.enter_context(closing(by_name.SparkProcess(home))) if is_new else None
            expected = answers(range(1, 7))
            airflow.wait(lambda row, share: _show(bar, row, share))
        with bar.step("check every row against DuckDB over the raw files", 5):
            counts = compare(MaterializedViewCatalog(iceberg), expected)
        with bar.step(f"read {CATALOG}.{NAMESPACE}.{AS_TABLE} by its name, without airflow-mv", 5):
            if spark is None and airflow.has_refreshed:
                spark = stack.enter_context(closing(by_name.SparkProcess(home)))
            _read_by_name(home, counts[AS_TABLE], spark.ask if spark else None)
    _tell(home, airflow, counts, time.monotonic() - started)


def _show(bar: Bar, row: TaskRow, share: float) -> None:
    mark = "[green]✓[/green]" if row.state == "success" else f"[red]✗ {row.state}[/red]"
    console.print(f"    {mark} {row.task_id:<36} [dim]{row.seconds:5.1f} s[/dim]")
    bar.advance(share)


def _read_by_name(home: DemoHome, rows: int, with_spark: Callable[[str], tuple[Any, ...]] | None) -> None:
    """Show the same query in two engines, and compare their answers. Spark is not started if no row is new."""
    query = by_name.QUERY.format(table=f"{CATALOG}.{NAMESPACE}.{AS_TABLE}")
    console.print(f"    {query}", style="dim", markup=False)
    found = {"Spark SQL": with_spark(AS_TABLE)} if with_spark else {}
    found["DuckDB, by pyiceberg"] = by_name.with_duckdb(home, AS_TABLE)
    for engine, (count, flights) in found.items():
        console.print(f"    {engine:<22} {count:,} rows, {flights:,} flights", style="dim", markup=False)
    if len(set(found.values())) > 1 or any(count != rows for count, _ in found.values()):
        raise CheckFailedError(f"view {AS_TABLE} has {rows} rows, and engines read by its name: {found}")


def _tell(home: DemoHome, airflow: AirflowProcess, counts: dict[str, int], seconds: float) -> None:
    values, took = airflow.values, {row.task_id: row.seconds for row in airflow.tasks}
    console.print("\n[bold]What was stale, and why[/bold]")
    for status in values.get("why_stale") or []:
        console.print(f"  {status['view']}  [yellow]{status['state']}[/yellow]")
        for reason in status["reasons"]:
            console.print(f"    {reason['message']}", markup=False)
    console.print("\n[bold]What ran[/bold]")
    table = Table("view", "refresh", "outcome", "mode", "rows written", "seconds", box=None, pad_edge=False)
    for name in VIEWS:
        for label, task_id in (("first", f"refresh_{name}"), ("after June", f"refresh_{name}_again")):
            value = values.get(task_id) or {}
            table.add_row(
                name,
                label,
                value.get("outcome", "?"),
                value.get("mode", "?"),
                f"{value.get('rows_written', 0):,}",
                f"{took.get(task_id, 0):.1f}",
            )
    console.print(table)
    rows = ", ".join(f"{name} {count:,}" for name, count in counts.items())
    console.print(f"\n[bold]Checked[/bold]  every row equals DuckDB's answer: {rows}")
    console.print("\n[bold]Busiest airlines[/bold] (read from the view by the report task)")
    for airline in (values.get("report") or {}).get("busiest", []):
        console.print(
            f"  {airline['airline']:<28} {airline['flights_sum']:>7,} flights, {airline['cancelled_sum']:,} cancelled"
        )
    _what_next(home, seconds)


def _what_next(home: DemoHome, seconds: float) -> None:
    exports = " ".join(
        f"PYICEBERG_CATALOG__{CATALOG.upper()}__{key.upper()}={value}" for key, value in home.catalog_properties.items()
    )
    console.print(f"\n[bold]Files[/bold]    {home.folder} [dim](catalog.db, warehouse/, airflow/, airflow.log)[/dim]")
    console.print("[bold]Next[/bold]")
    console.print(f"  export {exports}", markup=False)
    console.print(f"  airflow-mv status --all {CATALOG}")
    console.print(f"  airflow-mv plan {CATALOG}.{NAMESPACE}.route_month --full")
    console.print("  make airflow      # the same DAG in Airflow's UI")
    console.print(f"\n[dim]{seconds:.0f} s in all[/dim]")
