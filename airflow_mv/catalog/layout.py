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
    def new_name(self, view: Identifier, token: str) -> Identifier | None:
        """Return the name in the catalog for a view's new storage table; ``None`` if it gets none.

        Args:
            view: The view.
            token: Random hexadecimal digits.
        """

    @abstractmethod
    def created(self, catalog: ReadsTables, name: Identifier | None, location: str, *, what: str) -> LoadedStorage:
        """Load a storage table that was just created, and that no view names yet.

        Args:
            catalog: Where it is.
            name: What :meth:`new_name` returned.
            location: Its metadata file.
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
