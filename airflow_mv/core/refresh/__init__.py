# SPDX-License-Identifier: Apache-2.0
"""Refresh views: read the inputs, choose and compile in pure functions, then stage, check and publish."""

from airflow_mv.core.freshness.state import SnapshotSet as SnapshotSet
from airflow_mv.core.refresh.choose import plan_refresh as plan_refresh
from airflow_mv.core.refresh.inputs import RefreshOptions as RefreshOptions
