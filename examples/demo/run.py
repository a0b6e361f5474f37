# SPDX-License-Identifier: Apache-2.0
"""The demo: load real flights, create three views, run the DAG in a real Airflow, check every row, print a report."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import time
from calendar import month_name
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pyiceberg.catalog import load_catalog
from rich.console import Console
from rich.table import Table

from airflow_mv.catalog import MaterializedViewCatalog
from airflow_mv.errors import CheckFailedError, JobError
from airflow_mv.refresh.create import Definition, create
from airflow_mv.refresh.stagers import InProcessStager
from examples.demo import by_name
from examples.demo.airflow_run import DAG_ID
from examples.demo.check import check
from examples.demo.data import load
from examples.demo.home import CATALOG, NAMESPACE, DemoHome
from examples.demo.views import AS_TABLE, VIEWS

console = Console(highlight=False, soft_wrap=True)

_POLL_SECONDS = 0.3
_LOG_TAIL = 40


@dataclass(frozen=True, slots=True)
class TaskRow:
    """A finished task of the demo's run."""

    task_id: str
    state: str
    seconds: float


def run(home: DemoHome) -> None:
    """Run the demo; what an earlier run has done is not done again.

    Raises:
        JobError: The Airflow run failed; the message names its log.
        CheckFailedError: A view differs from the independent computation, or an engine reads other rows.
    """
    started = time.monotonic()
    os.environ.update(home.environment())
    console.print(f"[bold]airflow-mv demo[/bold]  [dim]in {home.folder}[/dim]")
    catalog = prepare(home, range(1, 6))
    with step(f"run the DAG {DAG_ID} in Airflow (dag.test)"):
        values, tasks = _run_airflow(home)
    with step("check every row against DuckDB over the raw files"):
        counts = check(catalog, range(1, 7))
    with step(f"read {CATALOG}.{NAMESPACE}.{AS_TABLE} by its name, without airflow-mv"):
        _read_by_name(home, counts[AS_TABLE])
    _tell(home, values, tasks, counts, time.monotonic() - started)


def prepare(home: DemoHome, months: range) -> MaterializedViewCatalog:
    """Load the tables and create the views. Existing ones are kept.

    Args:
        home: Where to.
        months: Months of 2013, of which those that are missing are loaded.

    Returns:
        The catalog.
    """
    home.folder.mkdir(parents=True, exist_ok=True)
    iceberg = load_catalog(CATALOG, **home.catalog_properties)
    catalog = MaterializedViewCatalog(iceberg)
    first, last = (month_name[month] for month in (months[0], months[-1]))
    with step(f"load the flights of 2013 from New York, {first} to {last}"):
        for line in load(iceberg, months):
            console.print(f"    {line}", style="dim")
    with step("create three materialized views"):
        _create_views(catalog)
    return catalog


@contextmanager
def step(title: str) -> Iterator[None]:
    """Show a step and how long it took."""
    console.print(f"[cyan]▸[/cyan] {title}")
    started = time.monotonic()
    yield
    console.print(f"    [green]done[/green] [dim]in {time.monotonic() - started:.1f} s[/dim]")


def _create_views(catalog: MaterializedViewCatalog) -> None:
    missing = {name: sql for name, sql in VIEWS.items() if not catalog.exists(f"{CATALOG}.{NAMESPACE}.{name}")}
    if not missing:
        console.print("    all there", style="dim")
        return
    stager = InProcessStager(catalog, master="local[2]", report=lambda _: None)
    try:
        for name, sql in missing.items():
            definition = Definition(sql=sql, layout="table" if name == AS_TABLE else None)
            create(catalog, f"{CATALOG}.{NAMESPACE}.{name}", definition, stager=stager)
            where = "  (a table, which every engine reads by its name)" if name == AS_TABLE else ""
            console.print(f"    {CATALOG}.{NAMESPACE}.{name}{where}", style="dim")
    finally:
        stager.close()


def _read_by_name(home: DemoHome, rows: int) -> None:
    """Show the same query in two engines, and compare their answers."""
    query = by_name.QUERY.format(table=f"{CATALOG}.{NAMESPACE}.{AS_TABLE}")
    console.print(f"    {query}", style="dim", markup=False)
    found = {
        "Spark SQL": by_name.with_spark(home, AS_TABLE),
        "DuckDB, by pyiceberg": by_name.with_duckdb(home, AS_TABLE),
    }
    for engine, (count, flights) in found.items():
        console.print(f"    {engine:<22} {count:,} rows, {flights:,} flights", style="dim", markup=False)
    if len(set(found.values())) > 1 or any(count != rows for count, _ in found.values()):
        raise CheckFailedError(f"view {AS_TABLE} has {rows} rows, and engines read by its name: {found}")


def _run_airflow(home: DemoHome) -> tuple[dict[str, Any], list[TaskRow]]:
    home.airflow_home.mkdir(parents=True, exist_ok=True)
    results, begun = home.folder / "results.json", home.folder / "run.begun"
    for file in (results, begun):
        file.unlink(missing_ok=True)
    database = home.airflow_home / "airflow.db"
    before = _last_run(database)
    command = [sys.executable, "-m", "examples.demo.airflow_run", str(results), str(begun)]
    with home.log_file.open("w", encoding="utf-8") as log:
        child = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env={**os.environ})
        shown: list[TaskRow] = []
        while child.poll() is None:
            time.sleep(_POLL_SECONDS)
            if begun.exists():
                _show_new(database, before, shown)
    _show_new(database, before, shown)
    if child.returncode != 0 or not results.exists():
        tail = home.log_file.read_text(encoding="utf-8", errors="replace").splitlines()[-_LOG_TAIL:]
        console.print("\n".join(tail), markup=False, style="dim")
        raise JobError(f"the DAG {DAG_ID} failed; the whole log is {home.log_file}")
    return json.loads(results.read_text(encoding="utf-8")), shown


def _show_new(database: os.PathLike[str], before: int, shown: list[TaskRow]) -> None:
    for row in _finished(database, before):
        if row.task_id not in {item.task_id for item in shown}:
            shown.append(row)
            mark = "[green]✓[/green]" if row.state == "success" else f"[red]✗ {row.state}[/red]"
            console.print(f"    {mark} {row.task_id:<36} [dim]{row.seconds:5.1f} s[/dim]")


def _query(database: os.PathLike[str], sql: str, *values: Any) -> list[tuple[Any, ...]]:
    try:
        connection = sqlite3.connect(f"file:{os.fspath(database)}?mode=ro", uri=True, timeout=5)
    except sqlite3.OperationalError:
        return []
    try:
        return connection.execute(sql, values).fetchall()
    except sqlite3.OperationalError:
        return []  # the tables are not there yet, or Airflow is writing: look again later
    finally:
        connection.close()


def _last_run(database: os.PathLike[str]) -> int:
    rows = _query(database, "SELECT max(id) FROM dag_run")
    return int(rows[0][0] or 0) if rows else 0


def _finished(database: os.PathLike[str], before: int) -> list[TaskRow]:
    sql = (
        "SELECT t.task_id, t.state, t.start_date, t.end_date FROM task_instance t JOIN dag_run r "
        "ON r.dag_id = t.dag_id AND r.run_id = t.run_id WHERE r.dag_id = ? AND r.id > ? "
        "AND t.end_date IS NOT NULL AND t.state IN ('success', 'failed', 'upstream_failed', 'skipped') "
        "ORDER BY t.end_date"
    )
    return [
        TaskRow(name, state, _seconds(start, end)) for name, state, start, end in _query(database, sql, DAG_ID, before)
    ]


def _seconds(start: str | None, end: str | None) -> float:
    if not start or not end:
        return 0.0
    return (datetime.fromisoformat(end) - datetime.fromisoformat(start)).total_seconds()


def _tell(home: DemoHome, values: dict[str, Any], tasks: list[TaskRow], counts: dict[str, int], seconds: float) -> None:
    took = {row.task_id: row.seconds for row in tasks}
    console.print("\n[bold]What was stale, and why[/bold]")
    for status in values.get("why_stale") or []:
        console.print(f"  {status['view']}  [yellow]{status['state']}[/yellow]")
        for reason in status["reasons"]:
            console.print(f"    {reason['message']}", markup=False)
    console.print("\n[bold]What ran[/bold]")
    table = Table("view", "refresh", "outcome", "mode", "rows", "seconds", "refresh id", box=None, pad_edge=False)
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
                (value.get("refresh_id") or "")[:8],
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
