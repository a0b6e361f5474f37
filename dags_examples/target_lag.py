# SPDX-License-Identifier: Apache-2.0
"""Refresh the views of a namespace only as often as their property `airflow-mv.target-lag` needs it."""

from __future__ import annotations

from datetime import timedelta

from airflow_mv.dags import target_lag_dag

dag = target_lag_dag("target_lag", namespace="lake.sales", period=timedelta(minutes=1), slots=2)
