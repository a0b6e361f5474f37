# SPDX-License-Identifier: Apache-2.0
"""The objects that a catalog loads: a view, a located name, and an entry."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from airflow_mv.core.spec.identifiers import Identifier, StoragePlace, split
from airflow_mv.core.spec.materialized_view import (
    ADOPTED_PROPERTY,
    CREATION_ID_PROPERTY,
    PROPERTY,
    STORAGE_TABLE_PROPERTY,
    STORAGE_TABLE_UUID_PROPERTY,
    ViewSettings,
    definition_tag,
)
from airflow_mv.core.spec.table_metadata import TableMetadata, sequence_number
from airflow_mv.core.spec.view import ViewMetadata
from airflow_mv.errors import InvalidIdentifierError, InvalidMetadataError, NotMaterializedError

#: The name of a metadata file of a table without a catalog.
_NUMBERED = re.compile(r"v[0-9]+(?:\.gz)?\.metadata\.json(?:\.gz)?")


#: Properties that a view has only if it is, or was, materialized.
_OF_MATERIALIZED = frozenset({STORAGE_TABLE_PROPERTY, STORAGE_TABLE_UUID_PROPERTY, CREATION_ID_PROPERTY})


@dataclass(frozen=True, slots=True)
class Holder:
    """The table that holds a view's definition, in the layout ``table``.

    Args:
        table: The table, as it was when the definition was read.
        definition_id: The id of the change that wrote the definition.
    """

    table: TableMetadata
    definition_id: str

    @property
    def tag(self) -> str:
        """The tag that exists as long as this is the definition."""
        return definition_tag(self.definition_id)

    @property
    def tagged(self) -> int | None:
        """The snapshot with the tag; ``None`` if another writer has removed the tag."""
        ref = self.table.refs.get(self.tag)
        return ref.snapshot_id if ref else None


@dataclass(frozen=True, slots=True)
class LoadedView:
    """The state of a view in one metadata file; the base of every swap.

    Args:
        metadata_location: The file that the pointer named when it was read.
        settings: The materialization's settings, or ``None`` for a plain view.
        holder: The table that holds the definition, if it is not a view's metadata file.
    """

    identifier: Identifier
    metadata_location: str
    metadata: ViewMetadata
    settings: ViewSettings | None
    holder: Holder | None = None

    def __repr__(self) -> str:
        return f"<view {self.identifier}: version {self.metadata.current_version_id}>"

    @property
    def base(self) -> str:
        """The state that a change of the definition requires: as long as it is the same, the change may be applied."""
        if self.holder is None:
            return self.metadata_location
        return f"{self.holder.table.table_uuid}@{self.holder.tagged}#{self.holder.definition_id}"

    @property
    def definition_tags(self) -> dict[str, int | None]:
        """The tag that exists as long as this is the definition, with its snapshot, if a table holds the definition."""
        return {} if self.holder is None else {self.holder.tag: self.holder.tagged}

    @property
    def adopted_at(self) -> int | None:
        """The table's last sequence number before it was adopted; ``None`` for a table that was made for the view.

        Raises:
            InvalidMetadataError: The property is not a number.
        """
        text = self.metadata.properties.get(ADOPTED_PROPERTY)
        if text is None:
            return None
        if (number := sequence_number(text)) is None:
            source = f"view {self.identifier}, file {self.metadata_location}, property {ADOPTED_PROPERTY}"
            raise InvalidMetadataError(f"{source}: {text[:80]!r} is not a sequence number")
        return number

    @property
    def default_catalog(self) -> str:
        """The catalog of names in the query that do not name one."""
        return self.metadata.current_version.default_catalog or self.identifier.catalog

    @property
    def default_namespace(self) -> tuple[str, ...]:
        """The namespace of names in the query that do not name one."""
        return self.metadata.current_version.default_namespace

    @property
    def context(self) -> Identifier:
        """A name in the catalog and the namespace in which short names in the query are resolved."""
        return Identifier(
            self.default_catalog, self.default_namespace or self.identifier.namespace, self.identifier.name
        )

    @property
    def was_materialized(self) -> bool:
        """Whether another program has removed the settings of a materialized view: its other properties are there."""
        return self.settings is None and not _OF_MATERIALIZED.isdisjoint(self.metadata.properties)

    @property
    def materialized(self) -> ViewSettings:
        """The settings of a materialized view.

        Raises:
            NotMaterializedError: It is a plain view.
        """
        if self.was_materialized:
            raise NotMaterializedError(
                f"view {self.identifier} was a materialized view: another program has removed its property {PROPERTY}. "
                f"`airflow-mv repair {self.identifier} --yes` restores it from an earlier metadata file; if there is "
                "none, drop the view with the program that made it, and create it again"
            )
        if self.settings is None:
            raise NotMaterializedError(
                f"view {self.identifier} is a plain view, not a materialized one; "
                f"`airflow-mv create {self.identifier}` (without --sql) turns it into one"
            )
        return self.settings

    @property
    def storage_table(self) -> Identifier | None:
        """The storage table's name in the registered layout; it is in the view's own catalog.

        Raises:
            InvalidMetadataError: The property is not a name.
        """
        text = self.metadata.properties.get(STORAGE_TABLE_PROPERTY)
        if text is None:
            return None
        try:
            parts = split(text)
            return Identifier(self.identifier.catalog, parts[:-1], parts[-1])
        except InvalidIdentifierError as error:
            source = f"view {self.identifier}, file {self.metadata_location}, property {STORAGE_TABLE_PROPERTY}"
            raise InvalidMetadataError(f"{source}: {error}") from None


@dataclass(frozen=True, slots=True)
class Located:
    """A table or view that a name in a query stands for.

    Args:
        kind: Whether it is a table or a view.
        table: A table's metadata, if the catalog returned it with the pointer.
        view: A view, if the catalog returned it with the pointer.
        place: How a query reads the table if not by the located name: by another name, or by this metadata file.
    """

    kind: Literal["table", "view"]
    metadata_location: str
    table: TableMetadata | None = None
    view: LoadedView | None = None
    place: StoragePlace | None = None

    def is_still(self, metadata_location: str | None) -> bool:
        """Whether the table certainly is as it was when its metadata file had this location.

        Metadata that came with the pointer is to be compared itself: a table that was created again may reuse a name.
        """
        return (
            self.table is None
            and self.metadata_location == metadata_location
            and not may_be_reused(self.metadata_location)
        )


@dataclass(frozen=True, slots=True)
class Row:
    """The entry of a table or view in a database or a metastore.

    Args:
        kind: ``TABLE`` or ``VIEW``.
        location: The metadata file that it names; empty where it names none.
        previous: The metadata file that it named before.
    """

    kind: str
    location: str
    previous: str | None


def may_be_reused(metadata_location: str) -> bool:
    """Whether a table that is dropped and created again may have a metadata file of this name again.

    Catalogs put a new uuid into the name. ``HadoopTableOperations`` names a file by its number, and such a table can be
    registered in a catalog.
    """
    return _NUMBERED.fullmatch(metadata_location.rpartition("/")[2]) is not None
