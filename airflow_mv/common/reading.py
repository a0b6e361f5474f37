# SPDX-License-Identifier: Apache-2.0
"""How people read a view: where its stored rows are, and its query in each dialect."""

from __future__ import annotations

from contextlib import suppress

from airflow_mv.core.catalog import LoadedStorage, LoadedView
from airflow_mv.core.spec.view import DIALECT, ViewMetadata
from airflow_mv.core.sql.query import spark_sql
from airflow_mv.errors import MaterializedViewError


def how_to_read(view: LoadedView, storage: LoadedStorage) -> str:
    """Return where people read a view's stored rows, and what a query by the view's name does."""
    name, table = view.identifier, storage.name
    recomputes = "A Spark query by the view's name does not use them: it runs the view's SQL"
    if table is None:
        in_python = f"airflow_mv.scan({str(name)!r}) in Python, airflow_mv.read(spark, {str(name)!r}) in Spark"
        how = f"`airflow-mv read {name}`, {in_python}. {recomputes}"
    else:
        then = ": it is the view itself" if table == name else f". {recomputes}"
        how = f"the table {table}, in every engine that uses this catalog{then}"
    return f"stored rows of {name}: {how}"


def texts_of(metadata: ViewMetadata, *, view: str) -> dict[str, str]:
    """Return a view's query by dialect: the one that Spark runs, if there is one, and each text that is stored."""
    found = metadata.current_version.texts
    with suppress(MaterializedViewError):
        return {DIALECT: spark_sql(metadata, view=view), **found}
    return found
