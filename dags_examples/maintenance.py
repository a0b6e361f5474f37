# SPDX-License-Identifier: Apache-2.0
"""Expire old snapshots of all views of a namespace every night, and delete files that no snapshot needs."""

from __future__ import annotations

from airflow_mv.dags import maintenance_dag

dag = maintenance_dag("maintenance", namespace="lake.sales", older_than="3 d", schedule="0 3 * * *")
