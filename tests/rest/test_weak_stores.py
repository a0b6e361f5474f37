# SPDX-License-Identifier: Apache-2.0
"""A part of the contract suite on stores that give less than all rights."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.homes import NO_DELETE, STORE
from tests.stores import STORES

#: The homes of each store. A view with other columns is written in a catalog of the tests' own stager, which has no
#: vended credentials; Spark's are tested elsewhere.
_HOMES = {NO_DELETE: "sqlite-table", "minute": "rest- and not further_dialects and not old_rows_are_not_returned"}


@pytest.mark.slow
@pytest.mark.parametrize("how", sorted(STORES))
def test_a_view_lives_on_a_store_with_fewer_rights(how: str) -> None:
    options = ["-q", "-m", "", "-k", _HOMES[how], "-p", "no:cacheprovider", "tests/contract/test_layouts.py"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options],
        cwd=Path(__file__).parents[2],
        env={**os.environ, STORE: how},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-4000:]
