# SPDX-License-Identifier: Apache-2.0
"""Gate tasks on the freshness of views, and on changes of their base tables."""

from airflow_mv.sensors.base_tables import BaseTablesChangedSensor as BaseTablesChangedSensor
from airflow_mv.sensors.freshness import MaterializedViewFreshSensor as MaterializedViewFreshSensor
