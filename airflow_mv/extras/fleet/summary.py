# SPDX-License-Identifier: Apache-2.0
"""The summary of a view's freshness, as it is kept in the cache: what listings, sensors and alerts need of a view.

It follows from the content of metadata files alone, and those never change. So it is valid as long as the catalogs name
the same files: see :mod:`airflow_mv.extras.fleet.known`. It is read without importing a catalog.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from airflow_mv.core.freshness.state import Lag, State
from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.core.spec.reasons import Code
from airflow_mv.extras.fleet.known import KeptStatus, Pointer

#: The codes of changes by other writers of the storage table, by which readers get other rows than those of a refresh.
_FOREIGN = (Code.STORAGE_CHANGED, Code.STORAGE_ALTERED)


class Summary(KeptStatus, frozen=True, omit_defaults=True, gc=False):
    """The summary of a view. A plain view has pointers only.

    Args:
        defined_ms: Time of the definition that the rows do not have: the view's own, or that of a plain view that it
            reads, in ms since the epoch.
        max_staleness: The freshness SLO, as the view's property has it.
        strategy: ``full`` or ``incremental``.
        interval_column: The column of its intervals, if it has one.
        recorded: Of the recorded refresh: ``mode``, ``rows_written``, ``rows``, ``reasons``, ``checks``, ``interval``,
            ``seconds``, ``requested_by``.
    """

    behind: Lag | None = None
    uuid: str | None = None
    defined_ms: int = 0
    max_staleness: str | None = None
    strategy: str | None = None
    interval_column: str | None = None
    recorded: dict[str, Any] | None = None

    @property
    def view(self) -> Identifier:
        """The name of a materialized view."""
        return Identifier.parse(self.document["view"])

    @property
    def document(self) -> dict[str, Any]:
        """The document of ``airflow-mv status`` of a materialized view."""
        return self.status or {}

    @property
    def state(self) -> State:
        """The state of a materialized view."""
        return State(self.document["state"])

    @property
    def lag(self) -> Lag:
        """The lag of a materialized view."""
        return self.behind or Lag(self.state)

    @property
    def has_foreign_rows(self) -> bool:
        """Whether another writer has written to the storage table, or changed its columns."""
        return any(reason["code"] in _FOREIGN for reason in self.document["reasons"])

    def pointed(self) -> dict[Identifier, str] | None:
        """Return the pointers by name; ``None`` if the summary depends on more than pointers."""
        return None if self.pointers is None else by_name(self.pointers)


SUMMARY = msgspec.json.Decoder(Summary)


def listed(pointers: Mapping[Identifier, str]) -> list[Pointer]:
    """Return pointers as they are kept."""
    return [(name.catalog, ".".join(name.namespace), name.name, location) for name, location in pointers.items()]


def by_name(pointers: Sequence[Pointer]) -> dict[Identifier, str]:
    """Return kept pointers by name."""
    return {Identifier(item[0], tuple(item[1].split(".")), item[2]): item[3] for item in pointers}


def encoded(summary: KeptStatus) -> bytes:
    """Return the stored form."""
    return msgspec.json.encode(summary)
