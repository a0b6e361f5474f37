# SPDX-License-Identifier: Apache-2.0
"""All tests that need real Spark share one session."""

from __future__ import annotations

from tests.engine.fixtures import lake as spark_lake
from tests.engine.fixtures import lake_folder, pytest_configure

__all__ = ["lake_folder", "pytest_configure", "spark_lake"]
