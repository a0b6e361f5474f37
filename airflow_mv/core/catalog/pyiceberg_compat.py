# SPDX-License-Identifier: Apache-2.0
"""All uses of pyiceberg's private names, in one module."""

from __future__ import annotations

import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast
from urllib.parse import urlparse

from pyiceberg.avro.decoder import StreamingBinaryDecoder
from pyiceberg.avro.file import AvroFile, Block
from pyiceberg.avro.resolver import resolve_reader
from pyiceberg.catalog import Catalog, MetastoreCatalog
from pyiceberg.catalog.rest import Endpoint, RestCatalog
from pyiceberg.catalog.rest.auth import OAuth2AuthManager, OAuth2TokenProvider
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.expressions import BooleanExpression
from pyiceberg.expressions.visitors import _InclusiveMetricsEvaluator
from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestEntry, ManifestFile, _inherit_from_manifest
from pyiceberg.schema import Schema
from pyiceberg.table import Transaction
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import AssertTableUUID
from pyiceberg.typedef import StructProtocol
from requests import Session

from airflow_mv.errors import CatalogUnavailableError

if TYPE_CHECKING:
    from pyiceberg.catalog.hive import HiveCatalog

#: Makes the ``FileIO`` of a table from its properties and location.
LoadFileIO = Callable[[Mapping[str, str], str | None], FileIO]
#: Writes a table's metadata file.
WriteMetadata = Callable[[TableMetadata, FileIO, str], None]
#: The length of the marker between two blocks of an Avro file, bytes.
_SYNC = 16
#: What the records of an Avro file become.
D = TypeVar("D", bound=StructProtocol)


class PreparedSqlCatalog(SqlCatalog):
    """A SQL catalog that is prepared before its first query."""

    @abstractmethod
    def prepare(self) -> None:
        """Prepare the catalog. Its engine exists."""

    def _init_catalog(self) -> None:
        self.prepare()
        super()._init_catalog()


class PreparedRestCatalog(RestCatalog):
    """A REST catalog whose session is prepared before its first request, which may fetch a token."""

    @abstractmethod
    def prepare(self, session: Session) -> None:
        """Prepare a new session."""

    def _config_headers(self, session: Session) -> None:
        self.prepare(session)
        super()._config_headers(session)

    def _create_session(self) -> Session:
        session = super()._create_session()
        if isinstance(self._auth_manager, OAuth2AuthManager):
            # pyiceberg requests this token without a session, and would wait without a timeout.
            self._auth_manager.token_provider.__class__ = _tokens_by(self.prepare)
        return session


def _tokens_by(prepare: Callable[[Session], None]) -> type[OAuth2TokenProvider]:
    """Return a class of token providers that send requests through their own session, prepared by ``prepare``."""

    class Tokens(OAuth2TokenProvider):
        def _refresh_token(self) -> None:
            form = {"grant_type": "client_credentials", **({"scope": self.scope} if self.scope else {})}
            with Session() as session:
                prepare(session)
                answer = session.post(self.token_url, form, headers={"Authorization": self._client_secret_header})
            answer.raise_for_status()
            document = answer.json()
            seconds = document.get("expires_in", self.expires_in)
            if seconds is None:
                raise ValueError("the token response has no expires_in, and auth.oauth2 sets none")
            self._token = document["access_token"]
            self._expires_at = time.monotonic() + seconds - self.refresh_margin

    return Tokens


def session_of(catalog: RestCatalog) -> Session:
    """Return the session that a REST catalog sends its requests through; it keeps the credentials."""
    return catalog._session


def endpoints_of(catalog: RestCatalog) -> set[Endpoint]:
    """Return the endpoints that the server declares."""
    return catalog._supported_endpoints


def encoded_namespace(catalog: RestCatalog, namespace: tuple[str, ...]) -> str:
    """Return a namespace in its form for URLs, joined by the server's separator."""
    return catalog._encode_namespace_path(namespace)


def wrap_file_io(catalog: Catalog, wrap: Callable[[LoadFileIO], LoadFileIO]) -> None:
    """Replace the function that makes the ``FileIO`` of a catalog's tables.

    Args:
        wrap: Takes the present function, and returns the new one.
    """
    load = wrap(cast("LoadFileIO", catalog._load_file_io))

    def load_file_io(properties: Mapping[str, str] | None = None, location: str | None = None) -> FileIO:
        return load(properties or {}, location)

    catalog._load_file_io = load_file_io  # type: ignore[method-assign]


#: Is called with a table's name and metadata, its ``config``, and its ``storage-credentials`` by their prefixes.
SeenTable = Callable[[tuple[str, ...], TableMetadata, Mapping[str, str], Mapping[str, Mapping[str, str]]], None]


def on_loaded_tables(catalog: RestCatalog, seen: SeenTable) -> None:
    """Have a function called with each answer of a REST server that holds a table.

    Args:
        seen: The function.
    """
    for name in ("_response_to_table", "_response_to_staged_table"):
        setattr(catalog, name, _seeing(catalog, getattr(catalog, name), seen))


def _seeing(catalog: RestCatalog, inner: Callable[..., Any], seen: SeenTable) -> Callable[..., Any]:
    def table_of(identifier: tuple[str, ...], response: Any) -> Any:
        credentials = response.storage_credentials
        if response.metadata_location is None:
            # A staged table has no file yet, by whose location pyiceberg would choose the credentials.
            own = catalog._resolve_storage_credentials(credentials, response.metadata.location)
            response = response.model_copy(update={"config": {**response.config, **own}})
        seen(identifier, response.metadata, response.config, {item.prefix: item.config for item in credentials})
        return inner(identifier, response)

    return table_of


def wrap_metadata_writer(catalog: MetastoreCatalog, wrap: Callable[[WriteMetadata], WriteMetadata]) -> None:
    """Replace the function that writes the metadata files of a catalog's tables.

    Args:
        wrap: Takes the present function, and returns the new one.
    """
    write = wrap(catalog._write_metadata)

    def write_metadata(metadata: TableMetadata, io: FileIO, metadata_path: str) -> None:
        write(metadata, io, metadata_path)

    catalog._write_metadata = write_metadata  # type: ignore[method-assign]


class HiveConnections:
    """Connections to a Hive Metastore: ``with connections as client``, one for each block.

    pyiceberg's own client has one connection, which threads would share, and waits for an answer without a timeout.

    Args:
        catalog: The catalog. From now on it also uses these connections.
        seconds: The timeout for one answer.
    """

    def __init__(self, catalog: HiveCatalog, seconds: float) -> None:
        self._make, self._properties = catalog._create_hive_client, dict(catalog.properties)
        self._milliseconds, self._open = seconds * 1000, threading.local()
        catalog._client = self  # type: ignore[assignment]

    def __enter__(self) -> Any:
        client = self._make(self._properties)
        buffered = vars(client._transport)
        socket = buffered.get("_TBufferedTransport__trans") or buffered.get("_trans")
        if socket is not None:
            socket.setTimeout(self._milliseconds)
        opened = client.__enter__()
        self._open.__dict__.setdefault("clients", []).append(client)
        return opened

    def __exit__(self, *error: Any) -> None:
        self._open.clients.pop().__exit__(*error)


@contextmanager
def hive_lock(catalog: HiveCatalog, client: Any, database: str, name: str) -> Iterator[None]:
    """Hold the lock by which commits to a table in a Hive Metastore exclude each other.

    Args:
        catalog: The catalog; its properties say how long to wait.
        client: An open connection.

    Raises:
        CatalogUnavailableError: Another client holds the lock.
    """
    from hive_metastore.ttypes import LockState, UnlockRequest
    from pyiceberg.exceptions import WaitingForLockException

    lock = client.lock(catalog._create_lock_request(database, name))
    try:
        if lock.state != LockState.ACQUIRED:
            catalog._wait_for_lock(database, name, lock.lockid, client)
        yield
    except (WaitingForLockException, CommitFailedException):
        raise CatalogUnavailableError(f"another client holds the lock of table {database}.{name}; try again") from None
    finally:
        client.unlock(UnlockRequest(lockid=lock.lockid))


class ColumnStatistics(Protocol):
    """The statistics of a data file that a test reads, by field id."""

    @property
    def record_count(self) -> int:
        """Its number of rows; negative: unknown."""

    @property
    def value_counts(self) -> dict[int, int]:
        """The number of values, NULLs included."""

    @property
    def null_value_counts(self) -> dict[int, int]:
        """The number of NULLs."""

    @property
    def nan_value_counts(self) -> dict[int, int]:
        """The number of NaNs."""

    @property
    def lower_bounds(self) -> dict[int, bytes]:
        """Lower bounds, in the format's binary form."""

    @property
    def upper_bounds(self) -> dict[int, bytes]:
        """Upper bounds, in the format's binary form."""


def may_match(schema: Schema, expression: BooleanExpression) -> Callable[[ColumnStatistics], bool]:
    """Return a test by a data file's statistics: whether a row of it may satisfy the expression."""
    return cast("Callable[[ColumnStatistics], bool]", _InclusiveMetricsEvaluator(schema, expression).eval)


def file_system_of(io: Any, location: str) -> Any:
    """Return the fsspec file system by which a ``FsspecFileIO`` reads a location."""
    return io._get_fs_from_uri(urlparse(location), location)


def path_in(system: Any, location: str) -> str:
    """Return the path by which an fsspec file system names a location."""
    return str(system._strip_protocol(location))


class WholeAvroFile(AvroFile[D]):
    """An Avro file that is read as a whole, checked, and then decoded by pyiceberg's Python decoder."""

    @abstractmethod
    def check(self, data: bytes) -> None:
        """Raise a ``ValueError`` if the file must not be decoded."""

    def __enter__(self) -> WholeAvroFile[D]:
        with self.input_file.open() as stream:
            data = stream.read()
        self.check(data)
        self.decoder = StreamingBinaryDecoder(data)
        self.header = self._read_header()
        self.schema = self.header.get_schema()
        self.reader = resolve_reader(self.schema, self.read_schema or self.schema, self.read_types, self.read_enums)
        return self

    def _read_block(self) -> int:
        if self.block:
            self.decoder.read(_SYNC)
        records, data = self.decoder.read_int(), self.decoder.read_bytes()
        if codec := self.header.compression_codec():
            data = codec.decompress(data)
        self.block = Block(reader=self.reader, block_records=records, block_decoder=StreamingBinaryDecoder(data))
        return records


def inherit_from_manifest(entry: ManifestEntry, manifest: ManifestFile) -> ManifestEntry:
    """Return an entry with the values that it inherits from its manifest: sequence numbers and the snapshot id."""
    return _inherit_from_manifest(entry, manifest)


def send_once(transaction: Transaction) -> None:
    """Commit a transaction with one request. No file is deleted, whatever the answer is.

    pyiceberg's own commit deletes the manifests after a conflict, which is not a proof that nothing was committed: a
    client, a proxy or a file system may repeat a request whose answer was lost. The copy conflicts with the original.

    Raises:
        CommitFailedException: The catalog reported a conflict.
    """
    uuid = AssertTableUUID(uuid=transaction.table_metadata.table_uuid)
    transaction._table._do_commit(updates=transaction._updates, requirements=(*transaction._requirements, uuid))
