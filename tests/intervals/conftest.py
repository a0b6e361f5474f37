# SPDX-License-Identifier: Apache-2.0
"""The real engine, for those tests that ask for it: all of them share one Spark session."""

from __future__ import annotations

from tests.engine.fixtures import lake as spark_lake
from tests.engine.fixtures import lake_folder, pytest_configure

__all__ = ["lake_folder", "pytest_configure", "spark_lake"]
