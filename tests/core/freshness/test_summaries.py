# SPDX-License-Identifier: Apache-2.0
"""Base tables whose writers omit optional numbers in summaries: no change of rows is missed."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyiceberg.expressions import EqualTo

from airflow_mv.common.status import status
from airflow_mv.core.freshness.observe import observe
from airflow_mv.core.freshness.state import State
from airflow_mv.core.refresh import RefreshOptions, plan_refresh
from airflow_mv.core.spec.reasons import Code, Mode
from airflow_mv.errors import RefreshRefusedError
from airflow_mv.extras.pending.changes import pending_changes
from tests.builders import Lake, empty_commit, lake, orders, rewritten

#: Values of a summary that cannot be parsed as numbers.
WRONG = ("-3", "many", "1.5", "")


@pytest.fixture
def home(sqlite_uri: str, warehouse: Path) -> Iterator[Lake]:
    with lake(sqlite_uri, warehouse) as found:
        found.table()
        found.view(refresh_strategy="incremental")
        found.refresh()
        yield found


def strip(home: Lake, chance: random.Random, *, all_of_it: bool = False) -> None:
    """Remove random optional keys from the base table's summaries, or all but totals; make some values invalid."""
    only_totals = chance.random() < 0.4

    def change(document: dict[str, object]) -> None:
        for snapshot in document["snapshots"]:  # type: ignore[attr-defined]
            summary = snapshot["summary"]
            for key in sorted(summary.keys() - {"operation"}):
                if all_of_it or (not key.startswith("total-") if only_totals else chance.random() < 0.6):
                    del summary[key]
                # pyiceberg computes the next totals from these and fails for values that are not numbers.
                elif not key.startswith("total-") and chance.random() < 0.1:
                    summary[key] = chance.choice(WRONG)

    rewritten(home.iceberg, "sales.orders", change)


def commit(home: Lake, what: str, number: int) -> None:
    """Make one commit to the base table."""
    table = home.load()
    if what == "append" or (what == "delete" and not table.scan().to_arrow().num_rows):
        table.append(orders([(number, "north", number)]))
    elif what == "delete":
        table.delete(EqualTo("id", table.scan().to_arrow()["id"][0].as_py()))
    elif what == "overwrite":
        table.overwrite(orders([(number, "east", 1), (number, "south", 2), (number, "south", 3)]))
    elif what == "compact":
        home.compact()
    else:
        empty_commit(home.iceberg, "sales.orders")


@pytest.mark.filterwarnings("ignore:Delete operation did not match:UserWarning")
@pytest.mark.parametrize("seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 6))])
def test_a_change_of_rows_is_never_missed_whatever_summaries_omit(home: Lake, seed: int) -> None:
    """Compared with the rows themselves, before and after each group of commits."""
    chance = random.Random(seed)
    for number in range(100, 106):
        before = sorted(map(str, home.load().scan().to_arrow().to_pylist()))
        for _ in range(chance.randint(1, 2)):
            commit(home, chance.choice(["append", "delete", "overwrite", "compact", "nothing"]), number)
        strip(home, chance)
        after = sorted(map(str, home.load().scan().to_arrow().to_pylist()))
        state, plan = status(home.catalog, "sales.daily"), plan_refresh(home.catalog, "sales.daily")
        if before != after:
            assert state.state == State.STALE, state.reasons
            assert plan.mode not in (Mode.NOOP, Mode.FAST_FORWARD)
            assert pending_changes(observe(home.catalog, "sales.daily")) is not None
        home.refresh()
        assert status(home.catalog, "sales.daily").state == State.FRESH
        assert {row["region"]: row["amount"] for row in home.read()} == amounts(home)


def amounts(home: Lake) -> dict[str, int]:
    """The rows of the view's query, computed here."""
    found: dict[str, int] = {}
    for row in home.load().scan().to_arrow().to_pylist():
        found[row["region"]] = found.get(row["region"], 0) + row["amount"]
    return found


def test_a_commit_without_a_change_keeps_a_view_fresh_if_its_manifests_prove_it(home: Lake) -> None:
    """Engines make such a commit for a DELETE without a match; its summary alone would prove nothing."""
    empty_commit(home.iceberg, "sales.orders")
    strip(home, random.Random(1), all_of_it=True)
    found = status(home.catalog, "sales.daily")
    assert (found.state, [reason.code for reason in found.reasons]) == (State.FRESH, [Code.ONLY_REPLACED])
    assert pending_changes(observe(home.catalog, "sales.daily")) is None
    assert home.refresh().mode == Mode.FAST_FORWARD


def unreadable_manifests(home: Lake) -> None:
    """The last commit's manifest list is no Avro file."""
    snapshot = home.load().current_snapshot()
    assert snapshot is not None
    copy = Path(snapshot.manifest_list.removeprefix("file://")).with_name("broken.avro")
    copy.write_bytes(b"no avro")
    rewritten(
        home.iceberg, "sales.orders", lambda document: document["snapshots"][-1].update({"manifest-list": str(copy)})
    )


def test_an_unreadable_manifest_list_proves_nothing(home: Lake) -> None:
    empty_commit(home.iceberg, "sales.orders")
    unreadable_manifests(home)
    assert status(home.catalog, "sales.daily").state == State.STALE


@pytest.mark.parametrize("readable", [True, False])
def test_unknown_numbers_are_those_of_the_manifests_or_reported_as_unknown(home: Lake, *, readable: bool) -> None:
    """Manifests show what was added. The totals of a summary are not counted."""
    home.append()
    strip(home, random.Random(1), all_of_it=True)
    if not readable:
        unreadable_manifests(home)
    found = status(home.catalog, "sales.daily")
    change = found.to_dict()["base_tables"][0]
    assert (change["total_rows"], change["total_bytes"], change["only_appends"]) == (None, None, readable)
    assert (change["rows_added"], change["files_added"]) == ((1, 1) if readable else (None, None))
    assert ("+1 rows" if readable else "+unknown -unknown rows") in found.reasons[0].message
    pending = pending_changes(observe(home.catalog, "sales.daily"))
    assert pending is not None
    assert pending.to_dict()["tables"][0]["rows_added"] == change["rows_added"]
    plan = plan_refresh(home.catalog, "sales.daily")
    document = json.loads(json.dumps(plan.to_dict()))
    assert all(item["bytes_read"] is item["seconds"] is None for item in document["estimates"])


def test_a_recompute_of_unknown_size_exceeds_every_bound(home: Lake) -> None:
    home.load().overwrite(orders([(1, "north", 1)]))
    home.expire(home.storage().record.base_tables[0].snapshot_reference)  # type: ignore[union-attr]
    strip(home, random.Random(1), all_of_it=True)
    with pytest.raises(RefreshRefusedError, match="reads an unknown number of bytes"):
        plan_refresh(home.catalog, "sales.daily", RefreshOptions(max_full_bytes=10**12))
