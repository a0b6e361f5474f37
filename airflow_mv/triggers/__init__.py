# SPDX-License-Identifier: Apache-2.0
"""Wait for views and their base tables off the worker, and start DAGs by what views have not seen."""

from airflow_mv.triggers.base_tables import BaseTablesChangedOnceTrigger as BaseTablesChangedOnceTrigger
from airflow_mv.triggers.base_tables import BaseTablesChangedTrigger as BaseTablesChangedTrigger
from airflow_mv.triggers.base_tables import PendingReport as PendingReport
from airflow_mv.triggers.base_tables import find_pending as find_pending
from airflow_mv.triggers.freshness import Look as Look
from airflow_mv.triggers.freshness import MaterializedViewFreshTrigger as MaterializedViewFreshTrigger
from airflow_mv.triggers.freshness import look as look
from airflow_mv.triggers.freshness import span_of as span_of
