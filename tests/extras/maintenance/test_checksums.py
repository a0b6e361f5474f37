# SPDX-License-Identifier: Apache-2.0
"""Checksums of stored files: what is damage, and what is the store's failure."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet
from pyiceberg.io.pyarrow import PyArrowFileIO

from airflow_mv.common.damage import Store
from airflow_mv.errors import CatalogUnavailableError
from airflow_mv.extras.maintenance.checksums import changed_rows

ROWS = pa.table({"id": range(5000), "text": [f"text {number % 7}" for number in range(5000)]})


class Failing(PyArrowFileIO):
    """A store whose connection breaks after some bytes."""

    def new_input(self, location: str) -> Any:
        file = super().new_input(location)
        data = BytesIO(file.open().read())

        def read(size: int = -1) -> bytes:
            if data.tell() > 0:
                raise OSError("connection reset by peer")
            return BytesIO.read(data, size)

        data.read = read  # type: ignore[method-assign]
        file.open = lambda seekable=True: data
        return file


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A Parquet file with checksums."""
    path = tmp_path / "rows.parquet"
    parquet.write_table(ROWS, path, write_page_checksum=True)
    return path


def test_a_changed_row_is_damage_and_a_broken_connection_is_not(file: Path) -> None:
    location = f"file://{file}"
    whole = Store(PyArrowFileIO(), (f"file://{file.parent}",))
    assert changed_rows(whole, location) is None
    with pytest.raises(CatalogUnavailableError, match="connection reset"):
        changed_rows(Store(Failing(), whole.folders), location)
    content = bytearray(file.read_bytes())
    content[file.stat().st_size // 3] ^= 1
    file.write_bytes(content)
    assert "CRC checksum verification failed" in str(changed_rows(whole, location))
