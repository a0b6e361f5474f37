# SPDX-License-Identifier: Apache-2.0
"""Airflow hooks: map connections to catalogs and Spark targets."""

from airflow_mv.hooks.iceberg import DEFAULT_ICEBERG_CONN_ID as DEFAULT_ICEBERG_CONN_ID
from airflow_mv.hooks.spark import DEFAULT_SPARK_CONN_ID as DEFAULT_SPARK_CONN_ID
from airflow_mv.hooks.spark import SparkTarget as SparkTarget
from airflow_mv.hooks.spark import spark_target as spark_target
from airflow_mv.hooks.views import MaterializedViewHook as MaterializedViewHook
