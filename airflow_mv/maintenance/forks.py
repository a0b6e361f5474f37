# SPDX-License-Identifier: Apache-2.0
"""Find the states of a view that were published in another catalog: one whose database is a copy of this one's.

A database that was restored beside the original, or a failover with two primaries, leaves two catalogs with the same
views in the same folders. Each of them goes on from the state that both had, and cannot reach the files of the other.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping


def states_elsewhere(
    current: str, logs: Mapping[str, Collection[str]], may_be_published: Callable[[str], bool]
) -> frozenset[str]:
    """Return the metadata files of a storage table that another catalog may name: none if there is no other catalog.

    A single step from a state of this catalog proves nothing: a refresh that was killed, or came too late, leaves such
    a file. A state that was continued was published, since changes are made from published states only. If there is
    one, the answer is all files that follow from this catalog's states and did not lead to the current one.

    Args:
        current: The metadata file that this catalog names.
        logs: The metadata log of each metadata file of the table.
        may_be_published: Whether a file may have been published. It is called for few files.
    """
    line = _line(current, logs)
    apart: set[str] = set()
    known = set(line)
    while new := {file for file, log in logs.items() if file not in known and not known.isdisjoint(log)}:
        apart |= new
        known |= new
    published = {file for file in apart if may_be_published(file)}
    continued = any(not published.isdisjoint(logs[file]) for file in published)
    return frozenset(apart) if continued else frozenset()


def _line(current: str, logs: Mapping[str, Collection[str]]) -> set[str]:
    """Return the states that led to the current one, as far as the logs go back."""
    line, left = {current}, [current]
    while left:
        earlier = set(logs.get(left.pop(), ())) - line
        line |= earlier
        left += earlier
    return line
