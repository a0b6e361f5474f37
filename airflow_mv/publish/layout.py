# SPDX-License-Identifier: Apache-2.0
"""The interface of a storage layout for staging and publication, and what all layouts share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import ClassVar

from airflow_mv.catalog import Layout, MaterializedViewCatalog
from airflow_mv.errors import InvalidMetadataError
from airflow_mv.publish.refresh import Attempt, PlannedRefresh, Staged
from airflow_mv.script import Outcome, Script


class StorageLayout(ABC):
    """How a layout's refreshes are staged and published. :mod:`airflow_mv.publish.layouts` lists all."""

    name: ClassVar[Layout]

    @abstractmethod
    def attempt(self, catalog: MaterializedViewCatalog, staged: Staged) -> Attempt:
        """Return the attempt that publishes a staged refresh."""

    @abstractmethod
    def staged_before(
        self, catalog: MaterializedViewCatalog, plan: PlannedRefresh, script: Script
    ) -> Iterator[Outcome]:
        """Yield the outcomes of earlier tries of a refresh that were staged completely and can still be published.

        Args:
            catalog: Where the view is.
            plan: The refresh.
            script: Its script.
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
