# SPDX-License-Identifier: Apache-2.0
"""The state that a repair chooses, from the content of the files alone."""

from __future__ import annotations

import pytest

from airflow_mv.extras.repair.repair import Edit, Link, ahead_of, edited


def chain(length: int, *, logged: int = 100) -> list[Link]:
    """States ``0`` to ``length - 1``, each with the last states before it in its log."""
    return [Link(str(n), n, tuple(map(str, range(max(0, n - logged), n)))) for n in range(length)]


@pytest.mark.parametrize("logged", [1, 2, 100])
@pytest.mark.parametrize("start", range(6))
def test_a_chain_is_followed_if_it_is_longer_than_one_step(start: int, logged: int) -> None:
    """A single step may be a refresh that died before its swap."""
    assert ahead_of(str(start), chain(6, logged=logged)) == ("5" if start < 4 else None)
    assert ahead_of("elsewhere", chain(6, logged=logged)) is None


@pytest.mark.parametrize("missing", [{"1"}, {"2"}, {"1", "2", "3"}])
def test_files_in_the_middle_may_be_missing(missing: set[str]) -> None:
    """The logs of later files name them."""
    left = [link for link in chain(6) if link.key not in missing | {"0"}]
    assert ahead_of("0", left) == "5"


def test_of_two_ends_the_common_ancestor_is_chosen() -> None:
    """At most one of them was published, and the files do not show which."""
    links = chain(4)
    fork = Link("3b", 3, links[3].log)
    assert ahead_of("0", [*links, fork]) == "2"
    assert ahead_of("1", [*links, fork]) == "2"
    assert ahead_of("2", [*links, fork]) is None


def test_a_branch_from_an_earlier_state_is_not_followed() -> None:
    """It was made from a state before the pointer's and was not published."""
    links = chain(3)
    side = [Link("2b", 2, ("0", "1b")), Link("3b", 3, ("0", "1b", "2b")), Link("4b", 4, ("0", "1b", "2b", "3b"))]
    assert ahead_of("2", [*links, *side]) is None


DOCUMENT = {
    "current-snapshot-id": 3,
    "last-updated-ms": 30,
    "refs": {"main": {"type": "branch", "snapshot-id": 3}, "refresh-b": {"type": "tag", "snapshot-id": 2}},
    "snapshots": [{"snapshot-id": number} for number in (1, 2, 3)],
    "snapshot-log": [{"snapshot-id": number, "timestamp-ms": number * 10} for number in (1, 2, 3)],
}


@pytest.mark.parametrize(("head", "drops"), [(1, (3,)), (2, (3, 1)), (None, (3,)), (None, (1, 2, 3))])
def test_dropped_snapshots_are_named_nowhere(head: int | None, drops: tuple[int, ...]) -> None:
    """An edit does not change its input; the log ends with the current snapshot."""
    before = repr(DOCUMENT)
    changed = edited(DOCUMENT, Edit(drops, None, moves=True, head=head), now_ms=40)
    assert repr(DOCUMENT) == before
    left = {item["snapshot-id"] for item in changed["snapshots"]}
    assert left == {1, 2, 3} - set(drops)
    assert {ref["snapshot-id"] for ref in changed["refs"].values()} <= left
    assert {entry["snapshot-id"] for entry in changed["snapshot-log"]} <= left
    assert changed["current-snapshot-id"] == (-1 if head is None else head)
    assert ("main" in changed["refs"]) == (head is not None)
    assert [entry["snapshot-id"] for entry in changed["snapshot-log"]][-1:] == ([] if head is None else [head])
