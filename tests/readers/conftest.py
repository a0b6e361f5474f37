# SPDX-License-Identifier: Apache-2.0
"""One Spark session, which refreshes the views."""

from __future__ import annotations

from tests.engine.fixtures import lake, lake_folder, pytest_configure, spark

__all__ = ["lake", "lake_folder", "pytest_configure", "spark"]
