# SPDX-License-Identifier: Apache-2.0
"""Spark Declarative Pipelines: materialized views in a pipeline, which ``spark-pipelines run`` updates."""

from __future__ import annotations

import re
from datetime import datetime
from pathlib import Path

from benchmarks.peers.environments import PIPELINES, environment
from benchmarks.peers.lake import Lake
from benchmarks.peers.turns import Fingerprint, Turn
from benchmarks.tpch import CATALOG

_EVENT = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d): Flow \S+\.(\w+) (?:is|has) (\w+)\.")


class Pipelines:
    """One pipeline with all views. Its flows run at the same time, so their seconds overlap."""

    title = "Spark Declarative Pipelines 4.1.3, new process"
    name = "pipelines"
    runs_already = False

    def __init__(self, lake: Lake, cache: Path) -> None:
        self.lake = lake
        self.namespace = lake.namespace(self.name)
        self.programs = environment(cache, self.name, PIPELINES)
        self.folder = lake.scratch / self.name
        views = self.folder / "transformations"
        views.mkdir(parents=True, exist_ok=True)
        for view in lake.views:
            text = f"CREATE MATERIALIZED VIEW {view} USING iceberg AS {lake.query(view)};\n"
            (views / f"{view}.sql").write_text(text)
        (self.folder / "spark-pipeline.yml").write_text(
            f"name: peers\ncatalog: {CATALOG}\ndatabase: {self.namespace}\n"
            f"storage: {(self.folder / 'storage').as_uri()}\nlibraries:\n  - glob:\n      include: transformations/**\n"
        )

    def build(self) -> Turn:
        """Run the pipeline for the first time."""
        return self.refresh()

    def refresh(self) -> Turn:
        """Run the pipeline: a truncate and an append of each view."""
        python, command = str(self.programs / "python"), str(self.programs / "spark-pipelines")
        path = f"{self.programs}:/usr/local/bin:/usr/bin:/bin"
        seconds, printed = self.lake.run([command, "run"], self.folder, PATH=path, PYSPARK_PYTHON=python)
        return Turn(flow_seconds(printed), dict.fromkeys(self.lake.views, "full"), seconds)

    def holds(self, view: str) -> Fingerprint:
        """Return what the view holds now."""
        return self.lake.holds(view, f"{CATALOG}.{self.namespace}.{view}")


def flow_seconds(printed: str) -> dict[str, float]:
    """Return the whole seconds of each flow from its start to its end, which is how exactly it prints them."""
    times: dict[str, dict[str, datetime]] = {}
    for at, flow, state in _EVENT.findall(printed):
        times.setdefault(flow, {})[state] = datetime.fromisoformat(at)
    return {
        flow: (states["COMPLETED"] - states["RUNNING"]).total_seconds()
        for flow, states in sorted(times.items())
        if {"RUNNING", "COMPLETED"} <= states.keys()
    }
