# SPDX-License-Identifier: Apache-2.0
"""A changed byte in a stored file of real Spark is found by ``verify --files``, in each format that has checksums."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from airflow_mv.core.refresh import candidates
from airflow_mv.extras.maintenance.repair import repair
from airflow_mv.extras.maintenance.verify import verify_files
from tests.engine.support import Lake

ROWS = "SELECT day, amount, concat('text ', amount % 7) AS text FROM {ns}.orders"
PARQUET = "airflow-mv.storage.write.parquet."
#: Deletes single rows at the second refresh, so that there is a delete file.
DELETES = {"airflow-mv.storage.write.delete.mode": "merge-on-read", "airflow-mv.incremental-up-to": "1000000"}
FORMATS = {
    "zstd": {},
    "gzip": {f"{PARQUET}compression-codec": "gzip"},
    "snappy": {f"{PARQUET}compression-codec": "snappy"},
    "plain": {f"{PARQUET}compression-codec": "uncompressed", f"{PARQUET}dict-encoding.enabled": "false"},
    "pages of version 2": {f"{PARQUET}page-version": "v2"},
}
VALUES = ", ".join(f"({number % 9}, {number * 37})" for number in range(4000))
#: Changed bits of each column.
SOME = 4
SAME_ROWS = ["the same rows"]


def pages(file: Path) -> list[range]:
    """Where the pages of each column are."""
    footer = pq.read_metadata(file)
    chunks = [footer.row_group(group).column(number) for group in range(footer.num_row_groups)
              for number in range(footer.num_columns)]  # fmt: skip
    starts = [chunk.dictionary_page_offset or chunk.data_page_offset for chunk in chunks]
    return [range(start, start + chunk.total_compressed_size) for start, chunk in zip(starts, chunks, strict=True)]


def named(lake: Lake, file: Path, place: int) -> list[str]:
    """The files that the check names while one bit of a file is another one; :data:`SAME_ROWS` if that changes no row.

    The header of a page has no checksum, and has statistics that no reader of these tests uses.
    """
    content, rows = file.read_bytes(), lake.rows("rows")
    file.write_bytes(content[:place] + bytes([content[place] ^ 1 << place % 8]) + content[place + 1 :])
    found = [item.location.removeprefix("file:") for item in verify_files(lake.catalog, lake("rows")).checked.all]
    same = not found and lake.rows("rows") == rows
    file.write_bytes(content)
    return SAME_ROWS if same else found


@pytest.mark.parametrize(
    "kind", [name if name == "zstd" else pytest.param(name, marks=pytest.mark.slow) for name in FORMATS]
)
def test_a_changed_byte_of_a_parquet_file_is_found(lake: Lake, kind: str) -> None:
    """In every column; a repair finds it too."""
    lake.table("orders", "day integer, amount bigint", VALUES)
    lake.create("rows", ROWS, properties=FORMATS[kind])
    lake.refresh("rows")
    assert verify_files(lake.catalog, lake("rows")).intact
    chance = random.Random(kind)
    (file,) = lake.stored_files("rows")
    columns = pages(file)
    assert len(columns) == 3
    found = [named(lake, file, place) for place in (chance.choice(column) for column in columns for _ in range(SOME))]
    assert [item for item in found if item not in ([str(file)], SAME_ROWS)] == []
    assert found.count(SAME_ROWS) <= 1

    content = bytearray(file.read_bytes())
    content[columns[1][len(columns[1]) // 2]] ^= 1
    file.write_bytes(content)
    (finding,) = repair(lake.catalog, lake("rows")).findings
    assert str(file) in str(finding)


def test_a_changed_byte_of_a_deletion_vector_is_found(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(candidates, "SMALL_STORAGE", -1)  # else so few rows are written anew by each refresh
    lake.table("orders", "day integer, amount bigint", VALUES)
    lake.create("rows", ROWS, refresh_strategy="incremental", properties={
        **DELETES, "airflow-mv.storage.format-version": "3"
    })  # fmt: skip
    lake.refresh("rows")
    storage = lake.catalog.load_storage(lake.view("rows"))
    folder = Path(storage.table.location.removeprefix("file:"))
    lake.run(f"DELETE FROM {lake('orders')} WHERE amount % 5 = 1")
    lake.refresh("rows")
    (file,) = folder.rglob("*.puffin")
    assert verify_files(lake.catalog, lake("rows")).intact
    vector = range(4, file.stat().st_size // 2)
    for place in random.Random(0).sample(vector, SOME):
        assert named(lake, file, place) == [str(file)], place
