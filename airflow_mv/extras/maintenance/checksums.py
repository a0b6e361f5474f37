# SPDX-License-Identifier: Apache-2.0
"""Compare the content of data files and delete files with its checksums, and the footer with the manifest.

Parquet files have checksums of their pages, if their writer wrote them, and deletion vectors one each.
"""

from __future__ import annotations

import logging
import zlib
from functools import partial

import pyarrow as pa
from pyarrow import parquet
from pyiceberg.io import InputStream
from pyiceberg.manifest import FileFormat
from pyiceberg.schema import make_compatible_name
from pyiceberg.table.puffin import PuffinFile

from airflow_mv.common.damage import CheckedFile, ContentCheck, Store
from airflow_mv.core.catalog import LoadedView
from airflow_mv.core.catalog.files import named, parsed
from airflow_mv.core.spec.table_metadata import TableMetadata
from airflow_mv.errors import InvalidMetadataError

log = logging.getLogger(__name__)

_MAGIC = b"PAR1"
_TAIL = 8
#: Rows of a Parquet file that are decoded at a time, and bytes of a column that are read at a time.
_BATCH_ROWS, _BUFFER_BYTES = 65_536, 2**20
#: A blob of a Puffin file: its length, a magic number, the deleted rows, and their CRC-32.
_DELETION_VECTOR, _WORD = "deletion-vector-v1", 4
_MAX_PUFFIN_BYTES = 256 * 2**20


def checksums(table: TableMetadata) -> ContentCheck:
    """Return the check of a table's files against their checksums."""
    return partial(_changed, table)


def own_snapshots(view: LoadedView, table: TableMetadata) -> tuple[int, ...]:
    """Return the retained snapshots that were written for a view: those of an adopted table from before are not.

    Their files are others', and may lie in folders that the catalog's configuration does not name.
    """
    since = view.adopted_at
    return tuple(item.snapshot_id for item in table.snapshots if since is None or item.sequence_number > since)


def _changed(table: TableMetadata, store: Store, file: CheckedFile) -> str | None:
    if file.file_format == FileFormat.PARQUET:
        return _of_another(table, store, file) or changed_rows(store, file.location)
    return changed_vectors(store, file.location, file.size_bytes) if file.file_format == FileFormat.PUFFIN else None


def _of_another(table: TableMetadata, store: Store, file: CheckedFile) -> str | None:
    footer = _footer(store, file.location, file.size_bytes)
    if footer.num_rows != file.records:
        return f"it has {footer.num_rows} records, {file.records} are recorded"
    if file.role != "data file":
        return None
    columns = footer.schema.to_arrow_schema()
    stored = {(_field_id(column), column.name) for column in columns}
    fields = [item for schema in table.schemas for item in schema.get("fields", [])]
    # Writers replace characters in the names of columns that Avro does not allow, also in Parquet files.
    ours = {(item.get("id"), name) for item in fields for name in (item["name"], make_compatible_name(item["name"]))}
    strange = stored and all(number is not None for number, _ in stored) and not stored & ours
    return f"it has other columns ({', '.join(columns.names[:5])})" if strange else None


def _footer(store: Store, location: str, size: int) -> parquet.FileMetaData:
    """Read a Parquet file's footer."""
    with named(location, "data file"), store.io.new_input(location).open() as stream:
        stream.seek(max(size - _TAIL, 0))
        tail = stream.read()
        length = int.from_bytes(tail[:4], "little")
        if tail[4:] != _MAGIC or length + _TAIL > size:
            raise InvalidMetadataError(f"data file: {location}: it has no Parquet footer")
        stream.seek(size - _TAIL - length)
        footer = stream.read()
    with parsed(location, "data file"):
        try:
            return parquet.read_metadata(pa.BufferReader(_MAGIC + footer))
        except OSError as error:  # pyarrow raises it for a footer that is not valid Thrift
            raise ValueError(str(error)) from None


def changed_rows(store: Store, location: str) -> str | None:
    """Read the pages of a Parquet file, and return what is wrong with them."""
    with named(location, "data file"), store.io.new_input(location).open() as stream:
        source = _Source(stream)
        try:
            file = parquet.ParquetFile(
                pa.PythonFile(source, "r"), buffer_size=_BUFFER_BYTES, page_checksum_verification=True
            )
            for _ in file.iter_batches(_BATCH_ROWS, use_threads=False):
                pass
        except NotImplementedError as error:  # a type that pyarrow does not read
            log.info("The rows of %s were not checked: %s", location, error)
        except (OSError, ValueError) as error:
            if source.error is not None:
                raise source.error from None
            return f"its content has changed since it was written: {error}"
    return None


def changed_vectors(store: Store, location: str, size: int) -> str | None:
    """Compare the deletion vectors of a Puffin file with their checksums. Return what is wrong with them."""
    if size > _MAX_PUFFIN_BYTES:
        return None
    with named(location, "delete file"), store.io.new_input(location).open() as stream:
        data = stream.read()
    with parsed(location, "delete file"):
        blobs = PuffinFile(data).footer.blobs
    for blob in (item for item in blobs if item.type == _DELETION_VECTOR):
        vector = data[blob.offset : blob.offset + blob.length]
        end = _WORD + int.from_bytes(vector[:_WORD], "big")
        if zlib.crc32(vector[_WORD:end]) != int.from_bytes(vector[end:], "big"):
            return "its content has changed since it was written: the checksum of a deletion vector is wrong"
    return None


class _Source:
    """A stream whose own error is distinguished from an error in its content: pyarrow raises ``OSError`` for both.

    Args:
        stream: The stream.
    """

    closed = False

    def __init__(self, stream: InputStream) -> None:
        self._stream = stream
        self.error: OSError | None = None

    def read(self, size: int = -1) -> bytes:
        try:
            return self._stream.read(size) if size >= 0 else self._stream.read()
        except OSError as error:
            self.error = error
            raise

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._stream.seek(offset, whence)

    def tell(self) -> int:
        return self._stream.tell()

    def close(self) -> None:
        """The stream is closed by its owner."""


def _field_id(column: pa.Field) -> int | None:
    text = (column.metadata or {}).get(b"PARQUET:field_id", b"")
    return int(text) if text.isdigit() else None
