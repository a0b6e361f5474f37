# SPDX-License-Identifier: Apache-2.0
"""Checks run in the real engine: all tests share one Spark session."""

from __future__ import annotations

from tests.engine.fixtures import lake, lake_folder, pytest_configure, spark

__all__ = ["lake", "lake_folder", "pytest_configure", "spark"]
