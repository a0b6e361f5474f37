# SPDX-License-Identifier: Apache-2.0
"""From a view's SQL to the SQL of an incremental refresh. Pure: sqlglot in, Spark SQL out.

``Query.analyse`` reads a query once; its methods give each strategy's statements, or the
typed reason why there are none. The statements read relations that the caller makes, see :class:`BaseRelation`.
"""

from __future__ import annotations

from airflow_mv.ivm.model import Appended as Appended
from airflow_mv.ivm.model import BaseRelation as BaseRelation
from airflow_mv.ivm.model import Merged as Merged
from airflow_mv.ivm.model import Replaced as Replaced
from airflow_mv.ivm.model import Signed as Signed
from airflow_mv.ivm.pushdown import Comparison as Comparison
from airflow_mv.ivm.query import IncrementalQuery as IncrementalQuery
from airflow_mv.ivm.query import regenerated_sql as regenerated_sql
