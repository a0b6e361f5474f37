# SPDX-License-Identifier: Apache-2.0
"""A lake for commands: its catalog is configured by variables."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.builders import Lake, lake


@pytest.fixture
def configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lake]:
    """The only configured catalog, without a table."""
    from tests.engine.support import configure, reload_configuration  # it imports PySpark

    for name, value in configure(tmp_path, "lake").items():
        monkeypatch.setenv(name, value)
    reload_configuration()
    with lake(f"sqlite:///{tmp_path}/lake.db", tmp_path / "lake") as found:
        yield found
    monkeypatch.undo()
    reload_configuration()
