# SPDX-License-Identifier: Apache-2.0
"""A hook that is kept between looks, and made anew after an error."""

from __future__ import annotations

from airflow_mv.errors import CatalogUnavailableError, ConfigurationError, MaterializedViewError
from airflow_mv.hooks import MaterializedViewHook

#: Where triggers are found by their names, whichever module they are in: waiting tasks outlive an upgrade.
PUBLIC_MODULE = "airflow_mv.triggers"


class Connected:
    """Gives a hook for a connection: opening a catalog costs more than a look at a view.

    Args:
        iceberg_conn_id: The connection.
    """

    def __init__(self, iceberg_conn_id: str) -> None:
        self._conn_id = iceberg_conn_id
        self._hook: MaterializedViewHook | None = None

    @property
    def hook(self) -> MaterializedViewHook:
        """The hook."""
        if self._hook is None:
            self._hook = MaterializedViewHook(self._conn_id)
        return self._hook

    def after(self, *met: Exception) -> None:
        """Open the catalog anew after errors that may be the catalog's: a password was mended, a server moved.

        Args:
            met: What a look met. A fault of a view, which may last, says nothing against the catalog.
        """
        faults = (CatalogUnavailableError, ConfigurationError)
        if any(isinstance(error, faults) or not isinstance(error, MaterializedViewError) for error in met):
            self._hook = None
