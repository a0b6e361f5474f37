# SPDX-License-Identifier: Apache-2.0
"""The command line ``airflow-mv``."""

from airflow_mv.cli.main import main as main
