# SPDX-License-Identifier: Apache-2.0
"""Sensors that wait for fresh views, or for changes of their base tables."""

from airflow_mv.sensors.base_tables import BaseTablesChangedSensor as BaseTablesChangedSensor
from airflow_mv.sensors.freshness import MaterializedViewFreshSensor as MaterializedViewFreshSensor
