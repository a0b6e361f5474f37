# SPDX-License-Identifier: Apache-2.0
"""Truncated and corrupt manifests raise errors. They can crash pyiceberg's compiled decoder."""

from __future__ import annotations

import random
from contextlib import suppress
from pathlib import Path

import pytest
from pyiceberg.io.pyarrow import PyArrowFileIO

from airflow_mv.core.catalog.avro import read_entries, read_manifests, require_frame
from tests.builders import lake


@pytest.fixture
def files(sqlite_uri: str, warehouse: Path) -> tuple[Path, Path]:
    """A manifest list and a manifest."""
    with lake(sqlite_uri, warehouse) as home:
        table = home.table()
        home.append()
        snapshot = table.refresh().current_snapshot()
        assert snapshot is not None
        manifest = snapshot.manifests(table.io)[0]
    return tuple(Path(item.removeprefix("file://")) for item in (snapshot.manifest_list, manifest.manifest_path))  # type: ignore[return-value]


def test_complete_files_are_read_as_pyiceberg_reads_them(files: tuple[Path, Path]) -> None:
    io = PyArrowFileIO()
    stored, manifests = read_manifests(io.new_input(str(files[0])))
    assert "snapshot-id" in stored
    assert len(manifests) == 2
    for manifest in manifests:
        wanted = [entry.data_file.file_path for entry in manifest.fetch_manifest_entry(io)]
        assert [entry.data_file.file_path for entry in read_entries(manifest, io)] == wanted


def test_a_file_that_is_truncated_at_any_byte_is_refused(files: tuple[Path, Path]) -> None:
    for path in files:
        data = path.read_bytes()
        require_frame(data)
        whole = [size for size in range(len(data)) if not refused(data[:size])]
        # Without a block it is a complete file without entries; the recorded number of entries shows the error.
        assert len(whole) <= 1


def refused(data: bytes) -> bool:
    try:
        require_frame(data)
    except ValueError:
        return True
    return False


def test_corrupt_bytes_give_a_value_or_an_error(files: tuple[Path, Path], tmp_path: Path) -> None:
    """The process does not crash or hang."""
    random.seed(1)
    io, data = PyArrowFileIO(), files[0].read_bytes()
    for number in range(100):
        changed = bytearray(data)
        for _ in range(random.randrange(1, 6)):
            changed[random.randrange(len(data))] = random.randrange(256)
        path = tmp_path / f"{number}.avro"
        path.write_bytes(changed)
        with suppress(Exception):  # pyiceberg raises errors of many types
            assert isinstance(read_manifests(io.new_input(str(path)))[1], list)
