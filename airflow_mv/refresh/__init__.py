# SPDX-License-Identifier: Apache-2.0
"""Refresh views: read the inputs, choose and compile in pure functions, then stage, check and publish."""

from airflow_mv.freshness.state import Pins as Pins
from airflow_mv.refresh.choose import plan_refresh as plan_refresh
from airflow_mv.refresh.inputs import RefreshOptions as RefreshOptions
