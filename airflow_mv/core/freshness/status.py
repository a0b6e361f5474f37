# SPDX-License-Identifier: Apache-2.0
"""Read-only queries on views: freshness of many views, history, stored metadata."""

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
    stored_layout,
    stored_table,
    stored_view,
)
from airflow_mv.core.catalog.layouts import all_refreshes
from airflow_mv.core.freshness.chains import Chains, observe_each
from airflow_mv.core.freshness.expiry import expiries
from airflow_mv.core.freshness.observe import Observation
from airflow_mv.core.freshness.state import State
from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.core.spec.interval import Span
from airflow_mv.core.spec.interval_parts import tables_read
from airflow_mv.core.spec.reasons import Reason
from airflow_mv.core.spec.refresh_state import REFRESH_STATE_KEY, parse
from airflow_mv.core.spec.snapshots import held_bytes
from airflow_mv.core.spec.times import from_ms
from airflow_mv.core.sql.translation import texts_of
from airflow_mv.documents import id_text
from airflow_mv.errors import InvalidMetadataError, NewerFormatError

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


def history(catalog: MaterializedViewCatalog, view: str | Identifier) -> list[dict[str, Any]]:
    """Return the recorded refreshes of a view, oldest first.

    ``rows`` and ``bytes`` are the size of the view after the refresh. ``bytes_held`` is the size of the files that are
    not the view's any more, and are kept for this refresh and earlier ones. All are ``None`` if its rows have expired.
    """
    loaded = catalog.load(view)
    storage = catalog.load_storage(loaded)
    state = storage.state
    if state is None:
        return []
    records = all_refreshes(loaded, storage)
    heads = storage.snapshots_of(records)
    held = held_bytes(storage.table, [head for head in heads.values() if head is not None])
    return [
        {
            "refresh_id": record.refresh_id,
            "version_id": record.version_id,
            "sequence_number": record.sequence_number,
            "mode": record.mode,
            "reasons": [dict(reason) for reason in record.reasons],
            "base_tables": [
                {
                    "identifier": table.identifier,
                    "type": table.type,
                    "snapshot_reference": id_text(table.snapshot_reference),
                }
                for table in tables_read(record)
            ],
            "refreshed_at": timestamp(record.refreshed_at_ms),
            "rows_written": record.rows_written,
            "rows_deleted": record.rows_deleted,
            "rows_changed": record.rows_changed,
            "rows_read": record.rows_read,
            "bytes_read": record.bytes_read,
            "snapshot_id": id_text(head),
            "rows": None if head is None else storage.table.rows_at(head),
            "bytes": None if head is None else storage.table.bytes_at(head),
            "bytes_held": None if head is None else held.get(head),
            "checks": [dict(check) for check in record.checks],
            "current": record.refresh_id == state.current_refresh_id,
            "interval": record.interval.interval.to_dict() if record.interval else None,
        }
        for record in records
        for head in [heads[record.refresh_id]]
    ]


def stored_metadata(catalog: MaterializedViewCatalog, view: str | Identifier) -> dict[str, Any]:
    """Return the metadata of a view and of its storage table, as stored."""
    loaded = catalog.load(view)
    storage = catalog.load_storage(loaded)
    return {
        "view": str(loaded.identifier),
        "layout": stored_layout(loaded).layout,
        "metadata_location": loaded.metadata_location,
        "metadata": stored_view(catalog, loaded),
        "storage_table": str(storage.name) if storage.name else None,
        "storage_table_location": storage.location,
        "how_to_read": how_to_read(loaded, storage),
        "texts": texts_of(loaded.metadata, view=str(loaded.identifier)),
        "storage_table_metadata": stored_table(catalog, loaded, storage),
        "refresh_state": _refresh_state(storage),
    }


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


def _refresh_state(storage: LoadedStorage) -> dict[str, Any] | None:
    """Return the refresh state in the current snapshot's summary, in any version of the draft specification."""
    snapshot = None if storage.table.head is None else storage.table.find(storage.table.head)
    text = snapshot.summary.get(REFRESH_STATE_KEY) if snapshot else None
    if text is None:
        return None
    try:
        return parse(text, source=f"storage table {storage.name}, summary key {REFRESH_STATE_KEY}").document()
    except (InvalidMetadataError, NewerFormatError) as error:
        log.warning("%s", error)
        return None


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
