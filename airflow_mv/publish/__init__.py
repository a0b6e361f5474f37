# SPDX-License-Identifier: Apache-2.0
"""The two ways to publish what was staged: by the view's pointer, or by a commit to a table of the catalog."""

from __future__ import annotations

from airflow_mv.publish.attempt import Attempt as Attempt
from airflow_mv.publish.attempt import RefreshMetrics as RefreshMetrics
from airflow_mv.publish.attempt import Staged as Staged
from airflow_mv.publish.pointed import PointedAttempt as PointedAttempt
from airflow_mv.publish.registered import RegisteredAttempt as RegisteredAttempt
