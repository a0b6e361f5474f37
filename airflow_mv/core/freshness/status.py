# SPDX-License-Identifier: Apache-2.0
"""The freshness of views, as it is reported."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from airflow_mv.core.catalog import (
    LoadedStorage,
    LoadedView,
    MaterializedViewCatalog,
)
from airflow_mv.core.freshness.chains import Chains, observe_each
from airflow_mv.core.freshness.expiry import expiries
from airflow_mv.core.freshness.observe import Observation
from airflow_mv.core.freshness.state import State
from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.core.spec.interval import Span
from airflow_mv.core.spec.reasons import Reason
from airflow_mv.core.spec.times import from_ms

log = logging.getLogger(__name__)


def status(catalog: MaterializedViewCatalog, view: str | Identifier, *, interval: Span | None = None) -> ViewStatus:
    """Return the freshness of a view. Reads metadata only.

    Args:
        interval: Consider only the rows of this interval.

    Raises:
        ViewNotFoundError, NotMaterializedError, InvalidMetadataError, MetadataFileNotFoundError: The
            view cannot be read.
    """
    return ViewStatus(Chains().observe(catalog, view, span=interval))


def statuses(
    catalog: MaterializedViewCatalog,
    views: Iterable[Identifier],
    *,
    interval: Span | None = None,
) -> list[dict[str, Any]]:
    """Return the freshness documents of several views; a base table that they share is read once.

    Args:
        views: Their names.
        interval: Consider only the rows of this interval.

    Raises:
        MaterializedViewError: One of them cannot be read.
    """
    results = observe_each(catalog, views, lambda seen: ViewStatus(seen).to_dict(), span=interval)
    return [result.get() for result in results]


def how_to_read(view: LoadedView, storage: LoadedStorage) -> str:
    """Return where people read a view's stored rows, and what a query by the view's name does."""
    name, table = view.identifier, storage.name
    recomputes = "A Spark query by the view's name does not use them: it runs the view's SQL"
    if table is None:
        how = f"`airflow-mv read {name}`, or airflow_mv.read(spark, {str(name)!r}) in Spark. {recomputes}"
    else:
        then = ": it is the view itself" if table == name else f". {recomputes}"
        how = f"the table {table}, in every engine that uses this catalog{then}"
    return f"stored rows of {name}: {how}"


@dataclass(frozen=True, slots=True)
class ViewStatus:
    """The freshness of a view; :meth:`to_dict` is the document of ``airflow-mv status``."""

    observation: Observation

    @property
    def state(self) -> State:
        """The view's freshness."""
        return self.observation.freshness.state

    @property
    def reasons(self) -> tuple[Reason, ...]:
        """The reasons."""
        return self.observation.freshness.reasons

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON document."""
        record, expiring = self.observation.record, expiries(self.observation)
        return {
            "view": str(self.observation.view.identifier),
            "catalog": self.observation.view.identifier.catalog,
            "state": str(self.state),
            "refresh_id": record.refresh_id if record else None,
            "refreshed_at": timestamp(record.refreshed_at_ms) if record else None,
            "version_id": self.observation.view.metadata.current_version_id,
            "base_tables": [
                {**change.to_dict(), "expires_at": _text(expiring.get(change.identifier))}
                for change in self.observation.freshness.base_tables
            ],
            "reasons": [reason.to_dict() for reason in self.reasons],
            "interval": self.observation.interval.to_dict() if self.observation.interval else None,
            "intervals": [
                {
                    **item.part.interval.to_dict(),
                    "refresh_id": item.part.refresh_id,
                    "refreshed_at": timestamp(item.part.refreshed_at_ms),
                    "fresh": item.is_fresh and not self.observation.freshness.inputs,
                }
                for item in self.observation.freshness.parts
                if item.part.interval is not None
            ],
        }


def _text(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat()


def timestamp(milliseconds: int | None) -> str | None:
    """Return ms since the epoch as ISO 8601 in UTC."""
    return None if milliseconds is None else from_ms(milliseconds).isoformat()
