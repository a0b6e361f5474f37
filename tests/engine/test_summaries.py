# SPDX-License-Identifier: Apache-2.0
"""Incremental refreshes over base tables whose summaries lack numbers, or contradict themselves."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest

from airflow_mv.core.catalog import avro, manifest_changes
from airflow_mv.core.freshness.changes import Kind
from tests.builders import rewritten
from tests.engine.support import Lake, multiset, recomputed

GROUPED = "SELECT k, count(*) AS n, sum(v) AS v, max(v) AS most FROM {ns}.t GROUP BY k"
ROWS = "SELECT id, k, v FROM {ns}.t WHERE v > 1"
VIEWS = (("grouped", GROUPED), ("rows", ROWS))
CHANGES = (
    "INSERT INTO {ns}.t VALUES ({n}, 1, {n}), ({n}, 2, 5)",
    "DELETE FROM {ns}.t WHERE id % 3 = {n} % 3",
    "DELETE FROM {ns}.t WHERE id < 0",
    "UPDATE {ns}.t SET v = v + 1 WHERE k = {n} % 4",
    "MERGE INTO {ns}.t USING (SELECT {n} AS id, 3 AS k, 7 AS v) s ON t.id = s.id WHEN NOT MATCHED THEN INSERT *",
    "INSERT OVERWRITE {ns}.t SELECT id, k, v + 1 FROM {ns}.t WHERE id <> {n}",
)


Summary = dict[str, str]
_COUNTS = ("added-", "deleted-", "removed-")


def _counts(summary: Summary) -> list[str]:
    return [key for key in summary if key.startswith(_COUNTS)]


def _without(summary: Summary, *, totals: bool = False, deletes: bool = False) -> None:
    for key in [*summary]:
        about_deletes = key.startswith(("deleted-", "removed-")) or ("delete" in key and key.startswith("added-"))
        if (totals and key.startswith("total-")) or (deletes and about_deletes):
            del summary[key]


def half(summary: Summary, chance: random.Random) -> None:
    """A writer that leaves out numbers."""
    for key in [key for key in summary if key != "operation" and chance.random() < 0.5]:
        del summary[key]


def empty(summary: Summary, chance: random.Random) -> None:
    for key in summary.keys() - {"operation"}:
        del summary[key]


def zeroed(summary: Summary, chance: random.Random) -> None:
    summary |= dict.fromkeys(_counts(summary), "0")


def swapped(summary: Summary, chance: random.Random) -> None:
    """What was added is said to be removed, and the other way round."""
    for added, removed in (
        ("added-data-files", "deleted-data-files"),
        ("added-records", "deleted-records"),
        ("added-files-size", "removed-files-size"),
        ("added-delete-files", "removed-delete-files"),
        ("added-position-deletes", "removed-position-deletes"),
    ):
        values = summary.pop(added, None), summary.pop(removed, None)
        summary |= {key: value for key, value in zip((removed, added), values, strict=True) if value is not None}


def only_added(summary: Summary, chance: random.Random) -> None:
    """An append, as to what it says of files, rows and deletes; the totals tell otherwise."""
    _without(summary, deletes=True)


def only_added_without_totals(summary: Summary, chance: random.Random) -> None:
    _without(summary, deletes=True, totals=True)


def one_wrong(summary: Summary, chance: random.Random) -> None:
    if counts := _counts(summary):
        summary[chance.choice(counts)] = str(chance.randint(0, 5))


def totals_zeroed(summary: Summary, chance: random.Random) -> None:
    summary |= {key: "0" for key in summary if key.startswith("total-")}


def right(summary: Summary, chance: random.Random) -> None:
    """Only the operation may be another one."""


MUTATIONS = (half, empty, zeroed, swapped, only_added, only_added_without_totals, one_wrong, totals_zeroed, right)
OPERATIONS = (None, "append", "delete", "overwrite", "replace")


def _may_be_a_compaction(summary: Summary) -> bool:
    """Whether a commit wrote other files with as many rows, or with fewer in a table that has delete files.

    If such a commit says that it is a compaction, no metadata tells otherwise.
    """
    number = {key: int(summary.get(key, 0)) for key in ("added-records", "deleted-records", "added-delete-files")}
    rows = number["deleted-records"] - number["added-records"]
    rewrites = number["added-records"] and number["deleted-records"] and not number["added-delete-files"]
    had_deletes = summary.get("total-delete-files") != "0" or "removed-delete-files" in summary
    return bool(rewrites) and (rows == 0 or (rows > 0 and had_deletes))


CASES = [pair for pair in itertools.product(MUTATIONS, OPERATIONS) if pair != (right, None)]


@pytest.mark.parametrize(
    ("seed", "cases"), [(0, 12), *(pytest.param(seed, 40, marks=pytest.mark.slow) for seed in range(1, 7))]
)
def test_i30_a_refresh_equals_the_recompute_whatever_summaries_say(lake: Lake, seed: int, cases: int) -> None:
    """Real commits in both write modes, whose summaries are cut, emptied, swapped or zeroed, under any operation."""
    chance = random.Random(seed)
    lake.run("CREATE TABLE {ns}.t (id int, k int, v int) USING iceberg")
    lake.run("INSERT INTO {ns}.t SELECT id, id % 4, id FROM range(20)")
    for name, sql in VIEWS:
        lake.create(name, sql, refresh_strategy="incremental", properties={"airflow-mv.incremental-up-to": "1000"})
        lake.refresh(name)
    mutations = [*CASES]
    chance.shuffle(mutations)
    tried: list[tuple[str, ...]] = []

    def mutate(document: dict[str, Any]) -> None:
        summary = max(document["snapshots"], key=lambda item: item["sequence-number"])["summary"]
        mutation, operation = mutations[len(tried) % len(mutations)]
        if operation == "replace" and _may_be_a_compaction(summary):
            operation = "append"
        tried.append((mutation.__name__, str(operation), summary["operation"]))
        mutation(summary, chance)
        summary["operation"] = operation or summary["operation"]

    for number in range(100, 100 + cases):
        mode = chance.choice(("copy-on-write", "merge-on-read"))
        modes = ", ".join(f"'write.{what}.mode' = '{mode}'" for what in ("delete", "update", "merge"))
        change = CHANGES[number % len(CHANGES)]
        lake.run(f"ALTER TABLE {{ns}}.t SET TBLPROPERTIES ({modes})", change.replace("{n}", str(number)))
        rewritten(lake.files, f"{lake.namespace}.t", mutate)
        for name, sql in chance.sample(VIEWS, chance.randint(1, 2)):
            lake.refresh(name)
            stored = multiset(lake.stored(name))
            assert stored == recomputed(lake, name, sql.replace("{ns}.", "")), (mode, change, tried)
            assert stored == recomputed_now(lake, sql), (mode, change, tried)


def recomputed_now(lake: Lake, sql: str) -> Any:
    """The rows of the query at the present snapshot, by Spark: a lie must not make a view fresh."""
    return multiset(lake.sql(sql).toArrow())


def test_a_deleted_row_does_not_stay_behind_a_summary_of_an_append(lake: Lake) -> None:
    """DuckDB and iceberg-rust have written such commits: only the totals show the delete file."""
    lake.table("t", "id int, n int", "(1, 1), (2, 2)")
    lake.run("ALTER TABLE {ns}.t SET TBLPROPERTIES ('write.delete.mode' = 'merge-on-read')")
    sql = "SELECT count(*) AS c, sum(n) AS total FROM {ns}.t"
    lake.create("v", sql, refresh_strategy="incremental", properties={"airflow-mv.incremental-up-to": "1000"})
    lake.refresh("v")
    lake.run("DELETE FROM {ns}.t WHERE id = 1")

    def lie(document: dict[str, Any]) -> None:
        summary = document["snapshots"][-1]["summary"]
        _without(summary, deletes=True)
        summary["operation"] = "append"

    rewritten(lake.files, f"{lake.namespace}.t", lie)
    (change,) = lake.status("v").observation.freshness.base_tables
    assert (change.range.kind, change.range.only_appends) == (Kind.POSITION_DELETES, False)
    assert lake.refresh("v", on_fallback="fail").mode in ("merge", "replace-keys")
    assert lake.rows("v") == [(1, 2)]


def test_summaries_that_agree_with_themselves_open_no_manifest(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark's, in each write mode and format version, a compaction included."""
    opened: list[str] = []
    monkeypatch.setattr(manifest_changes, "read_manifests", lambda file: opened.append(file.location) or original(file))
    original = avro.read_manifests
    for version, mode in ((2, "copy-on-write"), (2, "merge-on-read"), (3, "merge-on-read")):
        modes = ", ".join(f"'write.{what}.mode' = '{mode}'" for what in ("delete", "update", "merge"))
        lake.run(
            f"CREATE OR REPLACE TABLE {{ns}}.t (id int, k int, v int) USING iceberg "
            f"TBLPROPERTIES ('format-version' = '{version}', {modes})",
            "INSERT INTO {ns}.t SELECT id, id % 4, id FROM range(20)",
        )
        lake.create("v", "SELECT id, k, v FROM {ns}.t", replace=version != 2 or mode != "copy-on-write")
        lake.refresh("v")
        options = "options => map('rewrite-all', 'true')"
        for change in (*CHANGES, f"CALL lake.system.rewrite_data_files(table => '{lake.namespace}.t', {options})"):
            if "id < 0" not in change:  # nothing to delete: the manifests tell that nothing has changed
                lake.run(change.replace("{n}", "7"))
        assert lake.status("v").state == "stale"
        assert opened == [], (version, mode)
