# SPDX-License-Identifier: Apache-2.0
"""From a view's SQL to the SQL of an incremental refresh. Pure: sqlglot in, Spark SQL out.

``Query.analyse`` reads a query once; its methods give each strategy's statements, or the
typed reason why there are none. The statements read relations that the caller makes, see :class:`BaseRelation`.
"""

from __future__ import annotations

from airflow_mv.plan.incremental.filters import Comparison as Comparison
from airflow_mv.plan.incremental.model import Appended as Appended
from airflow_mv.plan.incremental.model import BaseRelation as BaseRelation
from airflow_mv.plan.incremental.model import Merged as Merged
from airflow_mv.plan.incremental.model import Replaced as Replaced
from airflow_mv.plan.incremental.model import Signed as Signed
from airflow_mv.plan.incremental.query import Query as Query
from airflow_mv.plan.incremental.query import written_again as written_again
