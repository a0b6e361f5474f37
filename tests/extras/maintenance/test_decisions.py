# SPDX-License-Identifier: Apache-2.0
"""The change of a table's metadata by a repair."""

from __future__ import annotations

import pytest

from airflow_mv.extras.maintenance.repair import Edit, edited

DOCUMENT = {
    "current-snapshot-id": 3,
    "last-updated-ms": 30,
    "refs": {"main": {"type": "branch", "snapshot-id": 3}, "refresh-b": {"type": "tag", "snapshot-id": 2}},
    "snapshots": [{"snapshot-id": number} for number in (1, 2, 3)],
    "snapshot-log": [{"snapshot-id": number, "timestamp-ms": number * 10} for number in (1, 2, 3)],
}


@pytest.mark.parametrize(("resets", "drops"), [(False, (1,)), (False, (2, 1)), (True, (3,)), (True, (1, 2, 3))])
def test_dropped_snapshots_are_named_nowhere(resets: bool, drops: tuple[int, ...]) -> None:
    """An edit does not change its input; the log ends with the current snapshot."""
    before = repr(DOCUMENT)
    changed = edited(DOCUMENT, Edit(drops, None, resets=resets))
    assert repr(DOCUMENT) == before
    left = {item["snapshot-id"] for item in changed["snapshots"]}
    assert left == {1, 2, 3} - set(drops)
    assert {ref["snapshot-id"] for ref in changed["refs"].values()} <= left
    assert {entry["snapshot-id"] for entry in changed["snapshot-log"]} <= left
    assert changed["current-snapshot-id"] == (-1 if resets else 3)
    assert ("main" in changed["refs"]) == (not resets)
    assert [entry["snapshot-id"] for entry in changed["snapshot-log"]][-1:] == ([] if resets else [3])
