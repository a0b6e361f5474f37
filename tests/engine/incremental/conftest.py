# SPDX-License-Identifier: Apache-2.0
"""Tables of a few rows: settings of the session that suit them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.engine.support import Lake

#: Of five rows, code is interpreted sooner than it is compiled, and one plan is made sooner than three.
_QUICK = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
}


@pytest.fixture
def quick(lake: Lake) -> Iterator[None]:
    """Have Spark do small things in a small way."""
    for key, value in _QUICK.items():
        lake.spark.conf.set(key, value)
    yield
    for key in _QUICK:
        lake.spark.conf.unset(key)
