# SPDX-License-Identifier: Apache-2.0
"""Plan a refresh with all that the catalog knows: look, choose, compile. The rules themselves are in ``plan/``."""

from airflow_mv.refresh.planner import Pins as Pins
from airflow_mv.refresh.planner import RefreshOptions as RefreshOptions
from airflow_mv.refresh.planner import plan_refresh as plan_refresh
from airflow_mv.refresh.planner import same_columns as same_columns
