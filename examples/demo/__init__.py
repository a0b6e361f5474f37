# SPDX-License-Identifier: Apache-2.0
"""The demo: real flights, four materialized views, a real Airflow. ``airflow-mv demo`` runs it."""
