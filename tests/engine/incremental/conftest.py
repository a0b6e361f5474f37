# SPDX-License-Identifier: Apache-2.0
"""The session without the settings that suit tables of a few rows."""

from __future__ import annotations

import pytest

from tests.engine import support
from tests.engine.support import Lake


@pytest.fixture
def spark_as_it_is(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have Spark do small things as it does large ones; the next test's lake sets the session again."""
    for key in support.QUICK:
        lake.spark.conf.unset(key)
    monkeypatch.setattr(support, "QUICK", {})
