# SPDX-License-Identifier: Apache-2.0
"""Mutation tests: if one rule of the job is broken, the comparison with a recompute fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.expressions import LessThan
from pyspark.sql import DataFrame

from airflow_mv.common import file_statistics
from airflow_mv.core.job import apply, delta, pruning, row_lineage
from tests.engine.fixtures import new_lake
from tests.engine.incremental.checking import Mismatch, check
from tests.engine.incremental.playing import ALWAYS, writing
from tests.engine.support import Lake

_GROUPS = "SELECT k, max(n) AS m FROM r GROUP BY k"
_DISTINCT = "SELECT k, count(DISTINCT n) AS m FROM r GROUP BY k"
_JOINED = "SELECT x.k, x.n, y.n AS m FROM r x LEFT JOIN r y ON x.k = y.k"
_WITH_ANOTHER = "SELECT x.k, x.n, y.m FROM r x JOIN s y ON x.k = y.k"
_NULL = "INSERT INTO {ns}.r VALUES (NULL, 9), (1, 9)"


@dataclass(frozen=True)
class Mutant:
    """One broken rule, and a view and a change that need the rule."""

    break_rule: Callable[[pytest.MonkeyPatch], None]
    change: str
    sql: str = _GROUPS
    #: How the stored rows are written.
    how: str = "delete"
    version: int = 2
    mode: str = "merge-on-read"


def _replace(owner: Any, name: str, value: Any) -> Callable[[pytest.MonkeyPatch], None]:
    return lambda monkeypatch: monkeypatch.setattr(owner, name, value)


def _equal(self: apply._Keys, left: str, right: str, keys: Any) -> str:
    return _kept_equal(self, left, right, keys).replace("<=>", "=")


def _without_null(values: set[Any], kind: Any) -> str | None:
    kept = _kept_predicate(values, kind)
    return kept.replace(" OR ? IS NULL", "") if kept else kept


def _without_largest(values: set[Any], kind: Any) -> str | None:
    known = {value for value in values if value is not None}
    return _kept_predicate(values - {max(known)} if len(known) > 1 else values, kind)


def _bounds_without_null(bounds: Mapping[str, Sequence[Any]], schema: Any) -> str:
    return _kept_within({name: (*kept[:2], False) for name, kept in bounds.items() if kept}, schema)


def _bounds_too_narrow(bounds: Mapping[str, Sequence[Any]], schema: Any) -> str:
    return _kept_within({name: (kept[0], kept[1] - 1, kept[2]) for name, kept in bounds.items() if kept}, schema)


def _held_bounds_too_narrow(*arguments: Any) -> dict[str, Sequence[Any]]:
    bounds = pruning.bounds_of(*arguments)
    return {name: (kept[0] + 1, *kept[1:]) for name, kept in bounds.items()}


def _nothing_deleted(self: delta._Tasks) -> Iterator[DataFrame]:
    return iter(())


def _only_come(self: row_lineage.RewrittenFiles, *arguments: Any) -> row_lineage.CountedRows | None:
    rows = _kept_by_lineage(self, *arguments)
    return None if rows is None else replace(rows, frame=rows.frame.where(f"`{rows.copies}` >= 0"))


def _unsigned(frame: DataFrame, step: Any, sign: int) -> DataFrame:
    return _kept_signed(frame, step, 1)


def _first_key_with_null(spark: Any, view: str, keys: Sequence[str], *others: Any) -> pruning.KeyFilters:
    return replace(pruning.key_filters(spark, view, keys, *others), first=keys[0])


def _insert_only(self: apply._Keys, new: str) -> None:
    self.context.write(f"INSERT INTO {self.step.table}\n{new}")


_kept_equal = apply._Keys._equal
_kept_predicate = pruning._predicate
_kept_within = pruning.within
_kept_by_lineage = row_lineage.RewrittenFiles.changed
_kept_signed = delta.signed

MUTANTS = {
    "delete: stored keys compared with =": Mutant(_replace(apply._Keys, "_equal", _equal), _NULL),
    "overwrite: stored keys compared with =": Mutant(
        _replace(apply._Keys, "_equal", _equal), _NULL, _DISTINCT, how="overwrite"
    ),
    "pruning: no IS NULL": Mutant(_replace(pruning, "_predicate", _without_null), _NULL),
    "pruning: one value too few": Mutant(
        _replace(pruning, "_predicate", _without_largest), "INSERT INTO {ns}.r VALUES (1, 9), (2, 9)"
    ),
    "pruning: the first key is NULL": Mutant(
        _replace(apply, "key_filters", _first_key_with_null),
        "DELETE FROM {ns}.r WHERE n IN (3, 5)",
        sql="SELECT k, n FROM r WHERE n > 0",
        how="positions",
    ),
    "bounds: no IS NULL": Mutant(_replace(delta, "within", _bounds_without_null), _NULL, _JOINED),
    "bounds: the greatest value is beyond": Mutant(
        _replace(delta, "within", _bounds_too_narrow), "INSERT INTO {ns}.r VALUES (1, 9), (2, 9)", _JOINED
    ),
    "bounds of held rows: the least value is beyond": Mutant(
        _replace(delta, "bounds_of", _held_bounds_too_narrow), "DELETE FROM {ns}.r WHERE n IN (1, 2)", _WITH_ANOTHER
    ),
    "delete: the stored rows stay": Mutant(_replace(apply._Keys, "_delete", _insert_only), _NULL),
    "delta: delete files are not read": Mutant(
        _replace(delta._Tasks, "_deleted", _nothing_deleted), "DELETE FROM {ns}.r WHERE k = 1 AND n = 3"
    ),
    "delta: what goes comes": Mutant(
        _replace(delta, "signed", _unsigned),
        "DELETE FROM {ns}.r WHERE k = 1 AND n = 3",
        sql="SELECT k, n FROM r WHERE n > 0",
    ),
    "delta: by lineage only the new rows": Mutant(
        _replace(row_lineage.RewrittenFiles, "changed", _only_come),
        "UPDATE {ns}.r SET k = 2 WHERE n = 3",
        version=3,
        mode="copy-on-write",
    ),
    "statistics: a bound is beyond the filter": Mutant(
        _replace(file_statistics, "_EXPRESSIONS", {**file_statistics._EXPRESSIONS, "<=": LessThan}),
        "INSERT INTO {ns}.r VALUES (4, 24)",
        sql="SELECT k, n FROM r WHERE n <= 24",
    ),
}
#: One of them; the others run in the long run.
_SOON = ("delta: by lineage only the new rows",)


def _made(folder: Path, mutant: Mutant) -> Lake:
    """Create a table with one file and the view over it."""
    lake = new_lake(folder)
    modes = ", ".join(f"'write.{verb}.mode' = '{mutant.mode}'" for verb in ("delete", "update", "merge"))
    lake.run(
        "CREATE TABLE {ns}.r (k int, n int) USING iceberg "
        f"TBLPROPERTIES ('format-version' = '{mutant.version}', {modes})",
        "INSERT INTO {ns}.r SELECT /*+ COALESCE(1) */ * FROM VALUES (1, 1), (1, 3), (2, 2), (NULL, 5)",
    )
    if " JOIN s " in mutant.sql:
        lake.run("CREATE TABLE {ns}.s (k int, m int) USING iceberg", "INSERT INTO {ns}.s VALUES (1, 10), (2, 20)")
    sql = mutant.sql.replace("FROM r ", "FROM {ns}.r ").replace("JOIN s ", "JOIN {ns}.s ")
    lake.create("v", sql, refresh_strategy="incremental", properties=ALWAYS)
    lake.refresh("v")
    return lake


def _refreshed(lake: Lake, mutant: Mutant) -> None:
    """Change the table, refresh the view incrementally, and compare."""
    lake.run(mutant.change)
    lake.refresh("v", on_fallback="fail", stager=writing(lake, mutant.how))
    check(lake, "v", mutant.sql, in_duckdb=True)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in _SOON else pytest.mark.slow) for name in MUTANTS]
)
def test_a_broken_rule_of_the_job_is_detected(lake_folder: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The view is correct with the rule and wrong without it."""
    mutant = MUTANTS[name]
    monkeypatch.setattr("airflow_mv.core.refresh.candidates._LARGE_BYTES", 0)  # the bounds of each change are used
    whole, broken = _made(lake_folder, mutant), _made(lake_folder, mutant)
    _refreshed(whole, mutant)
    mutant.break_rule(monkeypatch)
    with pytest.raises(Mismatch):
        _refreshed(broken, mutant)
