# SPDX-License-Identifier: Apache-2.0
"""The two ways to publish what was staged: by the view's pointer, or by a commit to a table of the catalog."""

from __future__ import annotations

from airflow_mv.layouts.attempt import Attempt as Attempt
from airflow_mv.layouts.attempt import Figures as Figures
from airflow_mv.layouts.attempt import Staged as Staged
from airflow_mv.layouts.pointed import PointedAttempt as PointedAttempt
from airflow_mv.layouts.registered import RegisteredAttempt as RegisteredAttempt
