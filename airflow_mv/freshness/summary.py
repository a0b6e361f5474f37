# SPDX-License-Identifier: Apache-2.0
"""The summary of a view's freshness, as it is kept in the cache: what listings and alerts need of an observation.

It follows from the content of metadata files alone, and those never change. So it is valid as long as the catalogs name
the same files: see :mod:`airflow_mv.freshness.known`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from airflow_mv.catalog import LoadedView
from airflow_mv.freshness.known import Pointer
from airflow_mv.freshness.observe import Observation
from airflow_mv.spec.identifiers import Identifier


class Summary(msgspec.Struct, frozen=True, omit_defaults=True):
    """The summary of a view.

    Args:
        pointers: The pointers that it follows from.
        status: The document of ``airflow-mv status``; ``None`` for a plain view, and for a table that is no view.
        counted: How many intervals are fresh; empty if there is nothing to count, ``None`` if it was not counted.
    """

    pointers: list[Pointer]
    status: dict[str, Any] | None = None
    counted: dict[str, Any] | None = None


def summary_of(seen: Observation, status: dict[str, Any], counted: dict[str, Any] | None = None) -> Summary | None:
    """Return the summary of an observation; ``None`` if it depends on more than pointers.

    Args:
        seen: The observation.
        status: Its document.
        counted: See :class:`Summary`.
    """
    if seen.pointers is None or seen.interval is not None:
        return None
    return Summary(_listed(seen.pointers), status, counted)


def summary_of_plain(view: LoadedView) -> Summary:
    """Return the summary of a plain view."""
    return Summary(_listed({view.identifier: view.metadata_location}))


def summary_of_table(table: Identifier, location: str) -> Summary:
    """Return the summary of a table that is no view."""
    return Summary(_listed({table: location}))


def encoded(summary: Summary) -> bytes:
    """Return the stored form."""
    return msgspec.json.encode(summary)


def _listed(pointers: Mapping[Identifier, str]) -> list[Pointer]:
    return [(name.catalog, ".".join(name.namespace), name.name, location) for name, location in pointers.items()]
