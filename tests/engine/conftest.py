# SPDX-License-Identifier: Apache-2.0
"""All tests that need real Spark share one session."""

from __future__ import annotations

from tests.engine.fixtures import lake, lake_folder, pytest_configure, spark

__all__ = ["lake", "lake_folder", "pytest_configure", "spark"]
