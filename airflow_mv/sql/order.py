# SPDX-License-Identifier: Apache-2.0
"""Order views by what they read: each view comes after those that it reads."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from airflow_mv.errors import InvalidQueryError
from airflow_mv.spec.identifiers import Identifier

#: The views of a chain, and of each those of them that it reads.
Reads = Mapping[Identifier, Collection[Identifier]]


def levels(reads: Reads) -> tuple[tuple[Identifier, ...], ...]:
    """Return the views level by level: each reads views of earlier levels only, and one of the level just before.

    Args:
        reads: The views, and what each reads of them. Within a level their order stays.

    Raises:
        InvalidQueryError: They read each other in a circle.
    """
    done: set[Identifier] = set()
    found: list[tuple[Identifier, ...]] = []
    while waiting := [view for view in reads if view not in done]:
        ready = tuple(view for view in waiting if done.issuperset(reads[view]))
        if not ready:
            names = ", ".join(str(view) for view in waiting)
            raise InvalidQueryError(f"these materialized views read each other in a circle: {names}")
        found.append(ready)
        done.update(ready)
    return tuple(found)


def in_order(reads: Reads) -> list[Identifier]:
    """Return the views so that each comes after those that it reads; else their order stays.

    Args:
        reads: The views, and what each reads of them.

    Raises:
        InvalidQueryError: They read each other in a circle.
    """
    levels(reads)
    ordered: list[Identifier] = []
    while len(ordered) < len(reads):
        ordered.append(next(view for view in reads if view not in ordered and set(reads[view]) <= set(ordered)))
    return ordered


def all_read(view: Identifier, reads: Reads) -> set[Identifier]:
    """Return what a view reads, directly or through others of the chain.

    Args:
        view: One of the views.
        reads: The views, and what each reads of them; without circles.
    """
    found: set[Identifier] = set()
    waiting = [*reads[view]]
    while waiting:
        item = waiting.pop()
        if item not in found:
            found.add(item)
            waiting += reads[item]
    return found
