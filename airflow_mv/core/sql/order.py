# SPDX-License-Identifier: Apache-2.0
"""Order views by their dependencies: each view comes after the views that it reads."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.errors import InvalidQueryError

#: The views of a chain, each with the views of the chain that it reads.
Reads = Mapping[Identifier, Collection[Identifier]]


def levels(reads: Reads) -> tuple[tuple[Identifier, ...], ...]:
    """Return the views by level. Each view reads views of earlier levels only, and at least one of the level before.

    Args:
        reads: The views, each with the views of the chain that it reads. Within a level their order is kept.

    Raises:
        InvalidQueryError: The views depend on each other in a cycle.
    """
    done: set[Identifier] = set()
    found: list[tuple[Identifier, ...]] = []
    while waiting := [view for view in reads if view not in done]:
        ready = tuple(view for view in waiting if done.issuperset(reads[view]))
        if not ready:
            names = ", ".join(str(view) for view in waiting)
            raise InvalidQueryError(f"these materialized views read each other in a cycle: {names}")
        found.append(ready)
        done.update(ready)
    return tuple(found)


def in_order(reads: Reads) -> list[Identifier]:
    """Sort the views so that each comes after the views that it reads. Otherwise their order is kept.

    Args:
        reads: The views, each with the views of the chain that it reads.

    Raises:
        InvalidQueryError: The views depend on each other in a cycle.
    """
    levels(reads)
    ordered: list[Identifier] = []
    while len(ordered) < len(reads):
        ordered.append(next(view for view in reads if view not in ordered and set(reads[view]) <= set(ordered)))
    return ordered
