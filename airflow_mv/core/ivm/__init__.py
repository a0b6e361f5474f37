# SPDX-License-Identifier: Apache-2.0
"""Derive the SQL of an incremental refresh from a view's SQL. Pure functions: sqlglot in, Spark SQL out.

``IncrementalQuery.analyse`` analyses a query once. Each strategy is a method that returns statements, or the typed
reason why the strategy is impossible. The caller creates the relations that the statements read, see
:class:`BaseRelation`.
"""

from __future__ import annotations

from airflow_mv.core.ivm.functions import nearest_function as nearest_function
from airflow_mv.core.ivm.incremental_query import IncrementalQuery as IncrementalQuery
from airflow_mv.core.ivm.incremental_query import regenerated_sql as regenerated_sql
from airflow_mv.core.ivm.ir import Appended as Appended
from airflow_mv.core.ivm.ir import BaseRelation as BaseRelation
from airflow_mv.core.ivm.ir import Comparison as Comparison
from airflow_mv.core.ivm.ir import Merged as Merged
from airflow_mv.core.ivm.ir import Replaced as Replaced
