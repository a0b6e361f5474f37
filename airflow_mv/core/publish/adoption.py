# SPDX-License-Identifier: Apache-2.0
"""Make an existing table a view (layout ``table``), and make an adopted view an ordinary table again.

Each is one commit to the table. The adoption requires ``main`` where it was checked, and that the tag
``airflow_mv_adopted`` does not exist; it sets this tag, which stays as long as the view does. So at most one copy of an
adoption is applied, and the rows from before it can be read. The release requires the tag of the definition, as every
change of a definition does.
"""

from __future__ import annotations

import uuid
from typing import NamedTuple

from airflow_mv.core.catalog import LoadedView, MaterializedViewCatalog, TableChange
from airflow_mv.core.catalog.loaded import Holder
from airflow_mv.core.catalog.tables import definition_properties, view_in_table
from airflow_mv.core.publish.protocol import Change, Effects, Verdict, commit
from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.core.spec.materialized_view import (
    ADOPTED_PROPERTY,
    ADOPTED_TAG,
    DEFINITION_ID_PROPERTY,
    DEFINITION_PROPERTY,
    LOG_PROPERTY,
    PROPERTY,
    STORAGE_OF_PROPERTY,
    is_own_ref,
)
from airflow_mv.core.spec.table import TableMetadata
from airflow_mv.core.spec.view import ViewMetadata, with_view_properties
from airflow_mv.errors import AlreadyExistsError, CommitConflictError

_MAIN = "main"


class _State(NamedTuple):
    """A table, and the view that it is."""

    table: TableMetadata
    view: LoadedView | None


class AdoptTable(Change[_State]):
    """The adoption of a table. It is recognized by the view's uuid.

    Args:
        catalog: Where the table is.
        view: Its name.
        metadata: The view's first metadata.
        table: The table as it was checked.
        effects: Clock, sleep and jitter.
    """

    def __init__(
        self,
        catalog: MaterializedViewCatalog,
        view: Identifier,
        metadata: ViewMetadata,
        table: TableMetadata,
        effects: Effects,
    ) -> None:
        super().__init__(f"table {view}", "its adoption", effects)
        self._catalog, self._view, self._metadata, self._checked = catalog, view, metadata, table
        self._id = uuid.uuid4().hex
        self._base: int | None = None

    def load(self) -> _State:
        """Load the table."""
        location, table = self._catalog.load_table(self._view, what=self.target)
        return _State(table, view_in_table(self._view, location, table))

    def judge(self, state: _State) -> Verdict:
        """``SUPERSEDED`` if it is another view by now; ``REPLAN`` if it is another table, or its columns changed."""
        if state.view is not None:
            ours = state.view.metadata.view_uuid == self._metadata.view_uuid
            return Verdict.LANDED if ours else Verdict.SUPERSEDED
        now, then = state.table, self._checked
        same = (now.table_uuid, now.current_schema_id) == (then.table_uuid, then.current_schema_id)
        return Verdict.READY if same and now.head is not None else Verdict.REPLAN

    def send(self, state: _State) -> bool:
        """Commit the definition and its tag, if ``main`` has not moved since the table was loaded."""
        table, head = state.table, state.table.head
        self._base = head
        if head is None:
            return False
        earlier = {ADOPTED_PROPERTY: str(table.last_sequence_number)}
        metadata = with_view_properties(self._metadata, earlier)
        holder = Holder(table, self._id)
        change = TableChange(
            requires={_MAIN: head, ADOPTED_TAG: None, holder.tag: None},
            tags={ADOPTED_TAG: head, holder.tag: head},
            properties={
                STORAGE_OF_PROPERTY: self._view.within_catalog,
                **definition_properties(self._view, table, metadata, self._id),
            },
            unsets=tuple(name for name in (PROPERTY, LOG_PROPERTY) if name in table.properties),
        )
        return self._catalog.tables.commit(self._view, table.table_uuid or "", change) is not None

    def may_land(self, state: _State) -> bool:
        """Whether it is not a view, and ``main`` has not moved since the adoption was sent."""
        return state.view is None and state.table.head == self._base

    def publish(self) -> LoadedView:
        """Run the protocol.

        Raises:
            AlreadyExistsError: The table has become another view.
            CommitConflictError, CommitStateUnknownError: See :func:`airflow_mv.core.publish.protocol.commit`.
        """
        verdict = commit(self).verdict
        if verdict == Verdict.SUPERSEDED:
            raise AlreadyExistsError(f"{self._view} has become another view meanwhile; its definition stays")
        if verdict == Verdict.REPLAN:
            raise CommitConflictError(f"table {self._view} was replaced, or got other columns, meanwhile. Run it again")
        return self._catalog.load(self._view)


def release(holder: Holder) -> TableChange:
    """Return the commit that makes an adopted view an ordinary table again, with its present rows.

    Args:
        holder: The view's table.
    """
    table = holder.table
    own = (DEFINITION_PROPERTY, DEFINITION_ID_PROPERTY, STORAGE_OF_PROPERTY, PROPERTY, LOG_PROPERTY)
    return TableChange(
        requires={holder.tag: holder.tagged},
        removes=tuple(sorted(ref for ref in table.refs if is_own_ref(ref))),
        unsets=tuple(name for name in own if name in table.properties),
    )
