# SPDX-License-Identifier: Apache-2.0
"""Listing files and reading the store's clock, on local folders and on the file systems behind object stores."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.memory import MemoryFileSystem
from pyarrow import fs
from pyiceberg.io.fsspec import FsspecFileIO
from pyiceberg.io.pyarrow import PyArrowFileIO

from airflow_mv.core.catalog.files import MetadataFiles
from airflow_mv.errors import AccessDeniedError, CatalogUnavailableError, UnsupportedError
from airflow_mv.extras.maintenance.matcher import leads_out

WRITTEN = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
BASE = "s3://bucket/warehouse/v"


class ArrowStore(PyArrowFileIO):
    """pyiceberg's own FileIO over a bucket in memory."""

    def _initialize_fs(self, scheme: str, netloc: str | None = None) -> fs.FileSystem:
        return self.__dict__.setdefault("store", fs._MockFileSystem(WRITTEN))


class Bucket(MemoryFileSystem):
    """A bucket in memory, addressed by ``s3://`` locations."""

    protocol = ("s3",)
    cachable = False

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return f"/{path.removeprefix('s3:').strip('/')}"


class FsspecStore(FsspecFileIO):
    """pyiceberg's other FileIO over a bucket in memory."""

    def _get_fs(self, scheme: str, hostname: str | None = None) -> Any:
        return Bucket()


@pytest.fixture(params=[ArrowStore, FsspecStore])
def store(request: pytest.FixtureRequest) -> Iterator[MetadataFiles]:
    """A bucket in memory, without files on the local disk."""
    files = MetadataFiles({"py-io-impl": f"{__name__}.{request.param.__name__}"})
    files._opened["s3"] = request.param({})
    yield files
    MemoryFileSystem.store.clear()
    MemoryFileSystem.pseudo_dirs[:] = [""]


@pytest.fixture
def local() -> MetadataFiles:
    return MetadataFiles({})


def put(files: MetadataFiles, location: str, text: str = "rows") -> None:
    io = files._opened["s3"]
    if isinstance(io, FsspecFileIO):
        Bucket().pipe_file(location, text.encode())
        return
    assert isinstance(io, PyArrowFileIO)
    _, netloc, path = io.parse_location(location)
    system = io.fs_by_scheme("s3", netloc)
    system.create_dir(path.rpartition("/")[0], recursive=True)
    with system.open_output_stream(path) as stream:
        stream.write(text.encode())


@pytest.mark.parametrize("spelled", ["", "file://", "file:"])
def test_listed_files_are_spelled_like_their_folder(local: MetadataFiles, tmp_path: Path, spelled: str) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "x=%2F 1.parquet").write_text("rows")
    (found,) = local.list(f"{spelled}{tmp_path}/")
    assert found.location == f"{spelled}{tmp_path}/a/b/x=%2F 1.parquet"
    assert found.size_bytes == 4
    assert local.read(found.location, what="file") == b"rows"


def test_a_folder_that_does_not_exist_is_listed_as_empty(
    local: MetadataFiles, store: MetadataFiles, tmp_path: Path
) -> None:
    assert list(local.list(f"file://{tmp_path}/nowhere")) == []
    if isinstance(store._opened["s3"], PyArrowFileIO):
        assert list(store.list(BASE)) == []


def test_a_folder_without_permission_is_not_listed_as_empty(local: MetadataFiles, tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0)
    user = os.geteuid()
    os.seteuid(user or 65534)  # root may enter every folder
    try:
        with pytest.raises(AccessDeniedError, match=r"no permission to list file://.*: Permission denied"):
            list(local.list(f"file://{tmp_path}"))
    finally:
        os.seteuid(user)


def test_links_are_neither_listed_nor_followed(local: MetadataFiles, tmp_path: Path) -> None:
    (tmp_path / "v").mkdir()
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "rows").write_text("rows")
    (tmp_path / "v" / "folder").symlink_to(tmp_path / "outside")
    (tmp_path / "v" / "file").symlink_to(tmp_path / "outside" / "rows")
    (tmp_path / "v" / "broken").symlink_to(tmp_path / "nowhere")
    (tmp_path / "v" / "own").write_text("rows")
    assert [file.location for file in local.list(f"file://{tmp_path}/v")] == [f"file://{tmp_path}/v/own"]
    assert leads_out(f"file://{tmp_path}/v/folder/rows", f"file://{tmp_path}/v")
    assert not leads_out(f"file://{tmp_path}/v/own", f"file://{tmp_path}/v")


def test_a_bucket_is_listed_with_sizes_and_the_store_s_times(store: MetadataFiles) -> None:
    names = ("metadata/00000-a.metadata.json", "storage/data/b.parquet", "storage/data/day=1%2F2/a.parquet")
    for name in names:
        put(store, f"{BASE}/{name}", name)
    put(store, f"{BASE}-beside/c.parquet")
    found = {file.location: file for file in store.list(BASE)}
    assert {location: file.size_bytes for location, file in found.items()} == {
        f"{BASE}/{name}": len(name) for name in names
    }
    known = isinstance(store._opened["s3"], PyArrowFileIO)
    moment = WRITTEN.timestamp() if known else time.time()
    assert all(abs(file.modified_ms / 1000 - moment) < (1 if known else 60) for file in found.values())


@pytest.mark.parametrize("name", ["a#b", "a?b", "a;b", "line\nbreak"])
def test_a_name_that_no_location_can_express_is_omitted(store: MetadataFiles, name: str) -> None:
    """pyiceberg truncates a location at these characters, so it would name another file."""
    put(store, f"{BASE}/a")
    system = store._opened["s3"]
    if isinstance(system, PyArrowFileIO):
        with system.fs_by_scheme("s3", "bucket").open_output_stream(f"bucket/warehouse/v/{name}") as stream:
            stream.write(b"rows")
    else:
        Bucket().pipe_file(f"{BASE}/{name}", b"rows")
    assert [file.location for file in store.list(BASE)] == [f"{BASE}/a"]


def test_the_time_is_that_of_the_store_s_clock(tmp_path: Path, local: MetadataFiles) -> None:
    """It is read by a probe file, which is deleted."""
    files = MetadataFiles({})
    io = ArrowStore({})
    io._initialize_fs("s3").create_dir("bucket/warehouse/v")
    files._opened["s3"] = io
    assert files.now_ms(BASE) == int(WRITTEN.timestamp() * 1000)
    assert list(files.list(BASE)) == []
    assert abs(local.now_ms(f"file://{tmp_path}") - time.time() * 1000) < 60_000
    assert list(tmp_path.iterdir()) == []


def test_a_store_that_cannot_be_listed_raises_an_error() -> None:
    files = MetadataFiles({})
    files._opened["s3"] = object()  # type: ignore[assignment]
    with pytest.raises(UnsupportedError, match="cannot list"):
        list(files.list(BASE))
    with pytest.raises(UnsupportedError, match="# \\? ;"):
        list(files.list("s3://bucket/a#b"))


def test_a_store_that_does_not_answer_is_unavailable(store: MetadataFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    io = store._opened["s3"]

    def away(*_: object, **__: object) -> None:
        raise OSError("no route to host")

    name = "fs_by_scheme" if isinstance(io, PyArrowFileIO) else "_get_fs_from_uri"
    monkeypatch.setattr(io, name, away)
    with pytest.raises(CatalogUnavailableError, match="no route to host"):
        list(store.list(BASE))
