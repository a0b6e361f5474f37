# SPDX-License-Identifier: Apache-2.0
"""dbt with its Spark adapter: incremental models with the merge strategy."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.peers.environments import DBT, environment
from benchmarks.peers.lake import Lake
from benchmarks.peers.turns import Fingerprint, Turn
from benchmarks.tpch import CATALOG

#: What identifies a row of each view, which a merge needs.
_KEYS = {
    "v0": ["l_orderkey", "l_linenumber"],
    "v1": ["l_orderkey", "l_linenumber"],
    "v2": ["ship_month", "l_returnflag", "l_linestatus"],
    "v3": ["nation", "order_year"],
}
#: A model's filter on new rows, where the view has a column with a time: the usual one of dbt's documentation.
_RECENT = {
    "v0": "l_shipdate >= (SELECT max(l_shipdate) FROM {{ this }})",
    "v1": "o_orderdate >= (SELECT max(o_orderdate) FROM {{ this }})",
}
_PROJECT = """
name: peers
config-version: 2
profile: peers
models:
  +materialized: incremental
  +incremental_strategy: merge
  +file_format: iceberg
"""
_PROFILE = (
    "peers: {target: here, outputs: {here: {type: spark, method: session, host: none, schema: SCHEMA, threads: 1}}}"
)


class Merge:
    """Models that merge all rows of their query: rows of deleted orders stay.

    Its project also has the models of :class:`MergeRecent`, after its own, so that both need one process.
    """

    title = "dbt-spark 1.11 merge, new process"
    name = "dbt"
    runs_already = False

    def __init__(self, lake: Lake, cache: Path) -> None:
        self.lake = lake
        self.namespace = lake.namespace(self.name)
        self.programs = environment(cache, self.name, DBT)
        self.folder = lake.scratch / self.name
        self.last: dict[str, float] = {}
        (self.folder / "models").mkdir(parents=True, exist_ok=True)
        (self.folder / "dbt_project.yml").write_text(_PROJECT)
        (self.folder / "profiles.yml").write_text(_PROFILE.replace("SCHEMA", self.namespace))
        for view in lake.views:
            text = f"{{{{ config(unique_key={_KEYS[view]}) }}}}\n{lake.query(view)}\n"
            self._model(view, text)
            if view in _RECENT:
                self._model(_recent(view), f"{text}{{% if is_incremental() %}} AND {_RECENT[view]} {{% endif %}}\n")

    def _model(self, name: str, text: str) -> None:
        (self.folder / "models" / f"{name}.sql").write_text(text)

    def build(self) -> Turn:
        """Run the models for the first time."""
        return self._run("full")

    def refresh(self) -> Turn:
        """Run the models."""
        return self._run("merge")

    def _run(self, mode: str) -> Turn:
        """Run all models; the seconds of the process are without those of the models that are not of this class."""
        self.last = {}
        command = [str(self.programs / "dbt"), "--no-use-colors", "run", "--profiles-dir", "."]
        seconds, _ = self.lake.run(command, self.folder, DBT_SEND_ANONYMOUS_USAGE_STATS="false")
        results = json.loads((self.folder / "target" / "run_results.json").read_text())["results"]
        self.last = {item["unique_id"].rpartition(".")[2]: item["execution_time"] for item in results}
        found = {view: self.last[view] for view in self.lake.views}
        others = sum(taken for model, taken in self.last.items() if model not in found)
        return Turn(found, dict.fromkeys(found, mode), seconds - others)

    def holds(self, view: str) -> Fingerprint:
        """Return what the view holds now."""
        return self.lake.holds(view, f"{CATALOG}.{self.namespace}.{view}")


class MergeRecent:
    """Models that merge the rows from the latest day on: late rows are missed. They ran in the other class' process."""

    title = "dbt-spark 1.11 merge of the latest day, the same process"
    runs_already = False

    def __init__(self, merge: Merge) -> None:
        self.merge = merge

    def build(self) -> Turn:
        """Return what the first run took."""
        return self._turn("full")

    def refresh(self) -> Turn:
        """Return what the run took."""
        return self._turn("merge")

    def _turn(self, mode: str) -> Turn:
        views = [view for view in self.merge.lake.views if _recent(view) in self.merge.last]
        found = {view: self.merge.last[_recent(view)] for view in views}
        return Turn(found, dict.fromkeys(found, mode))

    def holds(self, view: str) -> Fingerprint:
        """Return what the view holds now."""
        return self.merge.lake.holds(view, f"{CATALOG}.{self.merge.namespace}.{_recent(view)}")


def _recent(view: str) -> str:
    return f"{view}_recent"
