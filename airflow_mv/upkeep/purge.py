# SPDX-License-Identifier: Apache-2.0
"""Drop a materialized view together with its files."""

from __future__ import annotations

from airflow_mv.catalog import MaterializedViewCatalog
from airflow_mv.create import drop
from airflow_mv.spec.identifiers import Identifier
from airflow_mv.upkeep.maintenance import Collected, delete_all


def purge(catalog: MaterializedViewCatalog, view: str | Identifier) -> Collected:
    """Drop a view, and delete the files below its folders that are proven its own. All other files stay.

    Where it dies in between, the row is gone and files are left at the location that the log names.

    Raises:
        ViewNotFoundError: There is no such view.
        NotMaterializedError: It is a plain view, which is none of ours to drop.
        UnsupportedError: Its folder is another table's or view's, too. Nothing was dropped.
    """
    loaded = catalog.load(view)
    return delete_all(catalog, loaded, lambda: drop(catalog, loaded.identifier))
