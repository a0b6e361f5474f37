# SPDX-License-Identifier: Apache-2.0
"""Decide from metadata whether a compaction of stored rows is worth a Spark job."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_mv.spec.stored import whole_number
from airflow_mv.spec.table import TableMetadata

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile

#: So many small data files in one partition, or so many delete files in all, are worth a compaction.
MIN_FILES = 5
_TARGET_PROPERTY, _TARGET_BYTES = "write.target-file-size-bytes", 512 * 1024 * 1024
#: A data file below this share of the target size is small. Iceberg's ``rewrite_data_files`` has the same default.
_SMALL = 0.75
#: The content of a file with rows; every other file holds deleted rows.
_DATA = 0


@dataclass(frozen=True, slots=True)
class StoredFiles:
    """The files of one snapshot of a storage table.

    Args:
        data_files: How many data files it has.
        delete_files: How many files with deleted rows it has: position deletes and deletion vectors.
        size_bytes: The size of all of them.
        most_small: The most small data files in one partition.
    """

    data_files: int
    delete_files: int
    size_bytes: int
    most_small: int

    @property
    def are_many(self) -> bool:
        """Whether a compaction is worth a Spark job."""
        return self.most_small >= MIN_FILES or self.delete_files >= MIN_FILES

    def describe(self) -> str:
        """Return the numbers on which the decision is based, as text."""
        return (
            f"data files: {self.data_files}, the most small ones in a partition: {self.most_small}, "
            f"delete files: {self.delete_files}"
        )


def target_bytes(table: TableMetadata) -> int:
    """Return the size that a table's data files should have."""
    return whole_number(table.properties.get(_TARGET_PROPERTY, ""), 0) or _TARGET_BYTES


def stored_files(files: Iterable[DataFile], target: int) -> StoredFiles:
    """Count the files of a snapshot.

    Args:
        files: Its data and delete files.
        target: The size in bytes that a data file should have.
    """
    data = deletes = size = 0
    small: dict[tuple[int, object], int] = {}
    for file in files:
        size += file.file_size_in_bytes
        if int(file.content) != _DATA:
            deletes += 1
            continue
        data += 1
        if file.file_size_in_bytes < target * _SMALL:
            key = (file.spec_id, file.partition)
            small[key] = small.get(key, 0) + 1
    return StoredFiles(data, deletes, size, max(small.values(), default=0))
