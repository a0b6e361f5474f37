# SPDX-License-Identifier: Apache-2.0
"""Tables of a few rows: settings of the session that suit them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.engine.support import Lake
from tests.spark.changing import QUICK


@pytest.fixture
def quick(lake: Lake) -> Iterator[None]:
    """Have Spark do small things in a small way."""
    for key, value in QUICK.items():
        lake.spark.conf.set(key, value)
    yield
    for key in QUICK:
        lake.spark.conf.unset(key)
