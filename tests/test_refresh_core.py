# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.builders import Lake, lake

@pytest.fixture
def home(sqlite_uri: str, warehouse: Path) -> Iterator[Lake]:
    with lake(sqlite_uri, warehouse) as found:
        yield found


def test_x(home: Lake) -> None:
    home.table()
    home.view()
    result = home.refresh()
    print(result)
    print(home.read(), home.storage().state)
    home.append()
    print(home.refresh(), home.read())
    home.compact()
    print(home.refresh(), home.read())
    print(home.refresh(), home.read())
    assert 0
