# SPDX-License-Identifier: Apache-2.0
"""Triggers that wait for fresh views, for pending changes of their base tables, or for a Spark job elsewhere."""

from airflow_mv.triggers.application import SharedApplicationTrigger as SharedApplicationTrigger
from airflow_mv.triggers.base_tables import BaseTablesChangedOnceTrigger as BaseTablesChangedOnceTrigger
from airflow_mv.triggers.base_tables import BaseTablesChangedTrigger as BaseTablesChangedTrigger
from airflow_mv.triggers.base_tables import PendingReport as PendingReport
from airflow_mv.triggers.base_tables import find_pending as find_pending
from airflow_mv.triggers.freshness import FreshnessPoll as FreshnessPoll
from airflow_mv.triggers.freshness import MaterializedViewFreshTrigger as MaterializedViewFreshTrigger
from airflow_mv.triggers.freshness import judge as judge
from airflow_mv.triggers.freshness import span_of as span_of
from airflow_mv.triggers.outcome import JobOutcomeTrigger as JobOutcomeTrigger
from airflow_mv.triggers.views import read_view as read_view
