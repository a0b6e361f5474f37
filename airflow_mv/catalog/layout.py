# SPDX-License-Identifier: Apache-2.0
"""Base class of layouts: how a view names its storage table, and how it is found and opened."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from airflow_mv.catalog.loaded import LoadedStorage, LoadedView, ReadsTables
from airflow_mv.spec.identifiers import Identifier, StoragePlace
from airflow_mv.spec.table import TableMetadata

#: A layout's name.
Layout = str


class StoredLayout(ABC):
    """The stored form of a layout. :mod:`airflow_mv.catalog.layouts` lists all layouts."""

    name: ClassVar[Layout]
    #: Whether publication needs a compare-and-swap of the view's pointer, which only a SQL catalog supports.
    swaps_pointers: ClassVar[bool]
    #: Whether the catalog must have views. Otherwise the storage table holds the definition.
    needs_views: ClassVar[bool]
    #: The newest format version of a storage table. pyiceberg, which commits to tables of a catalog, writes only 2.
    max_format_version: ClassVar[int]

    @abstractmethod
    def claims(self, view: LoadedView) -> bool:
        """Whether a view has this layout."""

    @abstractmethod
    def place(self, view: LoadedView) -> StoragePlace:
        """Return where a view's storage table is: a metadata file, or a name in the catalog."""

    @abstractmethod
    def opened(
        self, view: LoadedView, location: str, table: TableMetadata | None, folders: tuple[str, ...], *, what: str
    ) -> LoadedStorage:
        """Check that a table is a view's storage table, and return it.

        Args:
            view: The view.
            location: The table's metadata file.
            table: Its content; ``None`` if there is no such table.
            folders: The folders that may contain its files.
            what: The file or table, for messages.

        Raises:
            NotFoundError: The table was dropped, renamed or replaced by another.
            InvalidMetadataError: It belongs to another view or table, or is outside of the folders.
        """

    @abstractmethod
    def template_name(self, view: Identifier, token: str) -> Identifier | None:
        """Return the name for a template: an empty table of the catalog that only shows the columns of a query.

        ``None`` if no template is needed, because the storage table itself can be made before a view names it.

        Args:
            view: The view.
            token: Random hexadecimal digits.
        """

    @abstractmethod
    def storage_name(self, view: Identifier, chosen: str | None) -> Identifier | None:
        """Return the name in the catalog of the storage table beside a view; ``None`` if there is none beside it.

        Args:
            view: The view.
            chosen: Its last part, if the user has chosen it.

        Raises:
            InvalidIdentifierError: It cannot be the name of a table beside the view.
        """

    @abstractmethod
    def created(self, catalog: ReadsTables, name: Identifier | None, location: str, *, what: str) -> LoadedStorage:
        """Load a template or storage table that was just created, and that no view names yet.

        Args:
            catalog: Where it is.
            name: Its name in the catalog, if it has one.
            location: Its metadata file; only needed if it has no name.
            what: The table, for messages.
        """

    @abstractmethod
    def earlier(self, view: LoadedView, place: str) -> LoadedView:
        """Return a view as it was when its storage table was at a place.

        Args:
            view: The view now.
            place: The storage table's place at that time, as text.
        """

    @abstractmethod
    def beside(self, view: LoadedView, location: str) -> tuple[str, ...]:
        """Return the folders outside of the view's folder that may contain the storage table.

        Args:
            view: The view.
            location: The table's current metadata file.
        """
