# SPDX-License-Identifier: Apache-2.0
"""Bare Spark, and this package: in a session that runs, and in a new process for each refresh."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import airflow_mv
from airflow_mv.actions import create_view as create
from airflow_mv.core.define.definition import Definition
from airflow_mv.core.refresh.run import refresh
from airflow_mv.extras.maintenance.drop import drop
from benchmarks.peers.lake import Lake
from benchmarks.peers.turns import Fingerprint, Turn
from benchmarks.tpch import CATALOG

#: Runs each statement of a JSON list in one session, and prints their seconds.
_STATEMENTS = """
import json, sys, time
from pyspark.sql import SparkSession
spark = SparkSession.builder.getOrCreate()
seconds = {}
for name, statement in json.loads(sys.argv[1]).items():
    started = time.perf_counter()
    spark.sql(statement).collect()
    seconds[name] = time.perf_counter() - started
print(json.dumps(seconds))
spark.stop()
"""


class Bare:
    """``CREATE OR REPLACE TABLE … AS SELECT`` in a session that runs."""

    title = "bare Spark, running session"
    name = "bare"
    runs_already = True

    def __init__(self, lake: Lake) -> None:
        self.lake = lake
        self.place = f"{CATALOG}.{lake.namespace(self.name)}"

    def statements(self) -> dict[str, str]:
        """Return the statement of each view."""
        return {
            view: f"CREATE OR REPLACE TABLE {self.place}.{view} USING iceberg AS {self.lake.query(view)}"
            for view in self.lake.views
        }

    def refresh(self) -> Turn:
        """Recompute."""
        turn = Turn(modes=dict.fromkeys(self.lake.views, "full"))
        for view, statement in self.statements().items():
            started = time.perf_counter()
            self.lake.stager.session.sql(statement).collect()
            turn.seconds[view] = time.perf_counter() - started
        return turn

    def build(self) -> Turn:
        """Compute for the first time."""
        return self.refresh()

    def holds(self, view: str) -> Fingerprint:
        """Return what the view holds now."""
        return self.lake.holds(view, f"{self.place}.{view}")


class BareProcess(Bare):
    """The same statements in a new process, as a scheduler submits them."""

    title = "bare Spark, new process"
    name = "bare_process"
    runs_already = False

    def refresh(self) -> Turn:
        command = [sys.executable, "-c", _STATEMENTS, json.dumps(self.statements())]
        seconds, printed = self.lake.run(command, self.lake.scratch)
        found = json.loads(printed.strip().splitlines()[-1])
        return Turn(found, dict.fromkeys(found, "full"), seconds)


class Ours:
    """``airflow_mv.core.refresh`` in a session that runs."""

    title = "airflow-mv, running session"
    name = "ours"
    runs_already = True

    def __init__(self, lake: Lake) -> None:
        self.lake = lake
        self.place = f"{CATALOG}.{lake.namespace(self.name)}"

    def build(self) -> Turn:
        """Create the views, and fill them."""
        turn = Turn()
        for view in self.lake.views:
            name = f"{self.place}.{view}"
            if self.lake.catalog.exists(name):
                drop(self.lake.catalog, name)
            started = time.perf_counter()
            self._create(view)
            turn.modes[view] = self._refreshed(name)
            turn.seconds[view] = time.perf_counter() - started
        return turn

    def refresh(self) -> Turn:
        """Refresh as the plan chooses."""
        turn = Turn()
        for view in self.lake.views:
            started = time.perf_counter()
            turn.modes[view] = self._refreshed(f"{self.place}.{view}")
            turn.seconds[view] = time.perf_counter() - started
        return turn

    def _create(self, view: str) -> None:
        definition = Definition(self.lake.query(view))
        create(self.lake.catalog, f"{self.place}.{view}", definition, stager=self.lake.stager)

    def _refreshed(self, name: str) -> str:
        (result,) = refresh(self.lake.catalog, [name], stager=self.lake.stager)
        return str(result.mode)

    def holds(self, view: str) -> Fingerprint:
        """Return what the view holds now."""
        with _shown(self.lake, f"{self.place}.{view}") as rows:
            return self.lake.holds(view, rows)


class OursProcess(Ours):
    """``airflow-mv refresh`` of all views, in a new process. The views were created before."""

    title = "airflow-mv, new process"
    name = "ours_process"
    runs_already = False

    def build(self) -> Turn:
        for view in self.lake.views:
            self._create(view)
        return self.refresh()

    def refresh(self) -> Turn:
        program = str(Path(sys.executable).with_name("airflow-mv"))
        command = [program, "refresh", *(f"{self.place}.{view}" for view in self.lake.views), "--json"]
        found = {
            f"PYICEBERG_CATALOG__LAKE__{key.upper().replace('.', '__')}": value
            for key, value in self.lake.warehouse.properties.items()
        }
        seconds, printed = self.lake.run(command, self.lake.scratch, **found)
        results = {item["view"].rpartition(".")[2]: item for item in json.loads(printed)}
        return Turn(
            {view: item["seconds"] for view, item in results.items()},
            {view: item["mode"] for view, item in results.items()},
            seconds,
        )


@contextmanager
def _shown(lake: Lake, view: str) -> Iterator[str]:
    spark = lake.stager.session
    airflow_mv.read(spark, view, catalog=lake.catalog).createOrReplaceTempView("shown")
    try:
        yield "shown"
    finally:
        spark.catalog.dropTempView("shown")
