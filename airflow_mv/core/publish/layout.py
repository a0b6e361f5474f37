# SPDX-License-Identifier: Apache-2.0
"""The interface of a storage layout for staging and publication, and what all layouts share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from airflow_mv.core.catalog import Layout, LoadedStorage, LoadedView, MaterializedViewCatalog, TableChange
from airflow_mv.core.publish.protocol import Effects
from airflow_mv.core.publish.refresh import Attempt, PlannedRefresh, Staged
from airflow_mv.core.script import Outcome, Script
from airflow_mv.errors import InvalidMetadataError


@dataclass(frozen=True, slots=True)
class ChangedMetadata:
    """A changed storage table.

    Args:
        document: Its metadata, as the next metadata file.
        properties: Table properties to set besides.
    """

    document: dict[str, Any]
    properties: dict[str, str] = field(default_factory=dict)


class StorageEdit(Protocol):
    """A change of a storage table without a refresh, in the two forms in which it can be sent."""

    def changed_metadata(self, storage: LoadedStorage, document: dict[str, Any], now_ms: int) -> ChangedMetadata:
        """Change the decoded metadata file of a storage table."""

    def table_change(self, storage: LoadedStorage) -> TableChange:
        """Return the table commit that makes the change."""


class StorageLayout(ABC):
    """How a layout's refreshes are staged and published. :mod:`airflow_mv.core.publish.publications` lists all."""

    name: ClassVar[Layout]

    @abstractmethod
    def attempt(self, catalog: MaterializedViewCatalog, staged: Staged) -> Attempt:
        """Return the attempt that publishes a staged refresh."""

    @abstractmethod
    def staged_before(
        self, catalog: MaterializedViewCatalog, plan: PlannedRefresh, script: Script
    ) -> Iterator[Outcome]:
        """Yield the outcomes of earlier tries of a refresh that were staged completely and can still be published."""

    @abstractmethod
    def edit(
        self, catalog: MaterializedViewCatalog, change: StorageEdit, effects: Effects, *, as_file: bool = False
    ) -> Attempt:
        """Return the attempt that sends a change without a refresh, such as an expiry.

        Args:
            effects: Clock, sleep and jitter.
            as_file: Send the next metadata file itself, for what no table commit can change. The catalog must have
                rows: :attr:`airflow_mv.core.catalog.MaterializedViewCatalog.is_sql`.
        """

    @abstractmethod
    def drop_storage(self, catalog: MaterializedViewCatalog, view: LoadedView, *, force: bool) -> str | None:
        """Remove a view's storage table from the catalog.

        Args:
            catalog: Where the view is or was.
            force: Also remove a table whose metadata is lost.

        Returns:
            What is left in the catalog, and why; ``None`` if nothing is.
        """


def read_outcome(catalog: MaterializedViewCatalog, script: Script) -> Outcome | None:
    """Read the outcome of a job; ``None`` if there is none, or it is incomplete."""
    text = catalog.files.read_text(script.outcome_location) if script.outcome_location else None
    try:
        return Outcome.from_json(text) if text else None
    except InvalidMetadataError:
        return None


def good_outcome(catalog: MaterializedViewCatalog, script: Script) -> Outcome | None:
    """Return the outcome of an earlier try of a script, if it did not fail."""
    outcome = read_outcome(catalog, script)
    return outcome if outcome and outcome.refresh_id == script.refresh_id and not outcome.error else None
