# SPDX-License-Identifier: Apache-2.0
"""The Spark session and the lake of the tests of the job."""

from __future__ import annotations

from tests.core.job.conftest import lake, session, spark

__all__ = ["lake", "session", "spark"]
