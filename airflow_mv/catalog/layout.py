# SPDX-License-Identifier: Apache-2.0
"""How a layout's storage table is named by its view, found, and opened."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

from airflow_mv.catalog.loaded import LoadedStorage, LoadedView
from airflow_mv.spec.identifiers import Identifier
from airflow_mv.spec.table import TableMetadata

#: A layout's name.
Layout = str


class StoredLayout(ABC):
    """A layout, as far as what is stored goes. :mod:`airflow_mv.catalog.layouts` lists all."""

    name: ClassVar[Layout]
    #: Whether a view's pointer must be compared and swapped to publish: only a SQL catalog can do that.
    swaps_pointers: ClassVar[bool]

    @abstractmethod
    def claims(self, properties: Mapping[str, str]) -> bool:
        """Whether a view with these properties has this layout."""

    @abstractmethod
    def place(self, view: LoadedView) -> str | Identifier:
        """Return where a view's storage table is: a metadata file, or a name in the catalog."""

    @abstractmethod
    def opened(
        self, view: LoadedView, location: str, table: TableMetadata | None, folders: tuple[str, ...], *, what: str
    ) -> LoadedStorage:
        """Check that a table is a view's storage table, and return it.

        Args:
            view: The view.
            location: The table's metadata file.
            table: Its content; ``None`` where there is no such table.
            folders: Where its files may lie.
            what: The file or table, for messages.

        Raises:
            NotFoundError: The table was dropped, renamed or replaced by another.
            InvalidMetadataError: It is another view's or table's, or lies elsewhere.
        """

    @abstractmethod
    def beside(self, view: LoadedView, location: str) -> tuple[str, ...]:
        """Return the folders outside of the view's that the storage table may be in.

        Args:
            view: The view.
            location: The table's metadata file now.
        """
