# SPDX-License-Identifier: Apache-2.0
"""Options of a view's owner: allowed words, and names of properties that no other module of this package defines.

Only standard modules are imported, because every DAG file with a view imports this one.
"""

from __future__ import annotations

from typing import Literal

#: How a view is refreshed.
RefreshStrategy = Literal["full", "incremental"]
#: The names of the layouts.
LayoutName = Literal["pointed", "registered", "table"]
#: What happens if a view exists with another definition than a given one.
OnChange = Literal["apply", "rebuild", "fail"]
#: What happens if an incremental view would have to be recomputed in full.
FallbackPolicy = Literal["full", "fail", "skip"]
#: ``ignore-unused``: columns that the query does not name do not matter. ``rebuild``: the same, and a refresh has Spark
#: analyse the query again. ``fail``: every changed column matters, and a refresh is refused.
OnSchemaChange = Literal["ignore-unused", "rebuild", "fail"]

#: View property: keep every refresh as a record with its own tagged storage snapshot.
TIME_TRAVEL_PROPERTY = "airflow-mv.time-travel"
#: View property: the SQL dialects in which a definition is stored beside Spark's, separated by commas.
DIALECTS_PROPERTY = "airflow-mv.dialects"
#: View property: the dialect of the text from which the SQL for Spark is translated, if the view has none.
TRANSPILE_PROPERTY = "airflow-mv.transpile"
#: View property: the default interval column.
COLUMN_PROPERTY = "airflow-mv.interval-column"
