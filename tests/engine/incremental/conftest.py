# SPDX-License-Identifier: Apache-2.0
"""The session without the settings for tables of a few rows."""

from __future__ import annotations

import pytest

from tests.engine import support
from tests.engine.support import Lake


@pytest.fixture
def spark_as_it_is(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Spark process small data as it does large data; the next test's lake configures the session again."""
    for key in support.QUICK:
        lake.spark.conf.unset(key)
    monkeypatch.setattr(support, "QUICK", {})
