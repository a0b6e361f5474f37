# SPDX-License-Identifier: Apache-2.0
"""The uses of pyiceberg's private names, but for Hive's client, and what pyiceberg 0.11 lacks, in one module.

Managed Airflow pins pyiceberg 0.11.1, which has no views in SQL catalogs and no storage credentials. What is written
for it depends on :data:`PYICEBERG_0_11`, and can be removed with the support of that version.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, cast
from urllib.parse import urlparse

import pyiceberg
from pydantic import Field
from pyiceberg.avro.decoder import StreamingBinaryDecoder
from pyiceberg.avro.file import AvroFile, Block
from pyiceberg.avro.resolver import resolve_reader
from pyiceberg.catalog import Catalog, MetastoreCatalog
from pyiceberg.catalog import rest as rest_catalog
from pyiceberg.catalog.rest import Endpoint, HttpMethod, RestCatalog
from pyiceberg.catalog.rest.auth import OAuth2AuthManager, OAuth2TokenProvider
from pyiceberg.catalog.rest.scan_planning import StorageCredential
from pyiceberg.catalog.sql import IcebergTables, SqlCatalog
from pyiceberg.exceptions import NoSuchTableError, RESTError
from pyiceberg.expressions import BooleanExpression
from pyiceberg.expressions.visitors import _InclusiveMetricsEvaluator
from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestEntry, ManifestFile, _inherit_from_manifest
from pyiceberg.schema import Schema
from pyiceberg.table import Table as IcebergTable
from pyiceberg.table import Transaction
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import AssertTableUUID
from pyiceberg.typedef import Identifier, StructProtocol
from pyiceberg.types import strtobool
from requests import Session
from sqlalchemy import Column, MetaData, String, Table, inspect, select, text

if TYPE_CHECKING:
    pass

#: Makes the ``FileIO`` of a table from its properties and location.
LoadFileIO = Callable[[Mapping[str, str], str | None], FileIO]
#: Writes a table's metadata file.
WriteMetadata = Callable[[TableMetadata, FileIO, str], None]
#: The position of this field in a manifest's entry.
_SNAPSHOT_ID = 1
#: The length of the marker between two blocks of an Avro file, bytes.
_SYNC = 16
#: What the records of an Avro file become.
D = TypeVar("D", bound=StructProtocol)


#: Whether this pyiceberg lacks what this module adds for it.
PYICEBERG_0_11 = pyiceberg.__version__.startswith("0.11.")


def _rows() -> Table:
    """Return the SQL catalogs' table of tables and views. pyiceberg 0.11 does not know its column ``iceberg_type``."""
    known = cast(Table, IcebergTables.__table__)
    if not PYICEBERG_0_11:
        return known
    rows = known.to_metadata(MetaData())
    rows.append_column(Column("iceberg_type", String(5)))
    return rows


ROWS = _rows()


class SqlCatalogOf011(SqlCatalog):
    """The SQL catalog of pyiceberg 0.11, with rows of views among those of tables."""

    def __init__(self, name: str, **properties: str) -> None:
        # The constructor would look for the tables, and create them without the column ``iceberg_type``.
        super().__init__(name, **{**properties, "init_catalog_tables": "false"})
        self.properties = properties
        self._init_catalog()

    def _init_catalog(self) -> None:
        found = inspect(self.engine)
        if not found.has_table(ROWS.name):
            if strtobool(self.properties.get("init_catalog_tables", "true")):
                ROWS.create(self.engine, checkfirst=True)
                self.create_tables()
            self._schema_version = "v1"
            return
        missing = "iceberg_type" not in {column["name"] for column in found.get_columns(ROWS.name)}
        if missing and self.properties.get("schema_version") == "v1":
            with self.engine.begin() as connection:
                connection.execute(text(f"ALTER TABLE {ROWS.name} ADD COLUMN iceberg_type VARCHAR(5)"))
            missing = False
        self._schema_version = "v0" if missing else "v1"

    def load_table(self, identifier: str | Identifier) -> IcebergTable:
        """Load a table; a view is none."""
        namespace, name = self.namespace_from(identifier), self.table_name_from(identifier)
        if self._views(namespace, name):
            raise NoSuchTableError(f"Table does not exist: {'.'.join((*namespace, name))}")
        return super().load_table(identifier)

    def list_tables(self, namespace: str | Identifier) -> list[Identifier]:
        """List tables, without views."""
        found, views = super().list_tables(namespace), self._views(namespace)
        return [name for name in found if name[-1] not in views]

    def _views(self, namespace: str | Identifier, name: str | None = None) -> set[str]:
        if self._schema_version == "v0":
            return set()
        stored = self.namespace_to_string(namespace)
        query = select(ROWS.c.table_name).where(
            ROWS.c.catalog_name == self.name, ROWS.c.table_namespace == stored, ROWS.c.iceberg_type == "VIEW"
        )
        with self.engine.connect() as connection:
            return set(connection.scalars(query if name is None else query.where(ROWS.c.table_name == name)))


if TYPE_CHECKING or not PYICEBERG_0_11:
    from pyiceberg.exceptions import TooManyRequestsError as TooManyRequestsError

    _SqlCatalog = SqlCatalog
else:
    _SqlCatalog = SqlCatalogOf011

    class TooManyRequestsError(RESTError):
        """The error for the status 429. pyiceberg 0.11 raises one that says nothing of the status."""


class PreparedSqlCatalog(_SqlCatalog):
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


#: Loads a view.
LOAD_VIEW = Endpoint(http_method=HttpMethod.GET, path="/v1/{prefix}/namespaces/{namespace}/views/{view}")


def endpoints_of(catalog: RestCatalog) -> set[Endpoint]:
    """Return the endpoints that the server declares, or that the property ``view-endpoints-supported`` adds."""
    found = catalog._supported_endpoints
    if (
        PYICEBERG_0_11
        and found >= rest_catalog.VIEW_ENDPOINTS
        and strtobool(catalog.properties.get(rest_catalog.VIEW_ENDPOINTS_SUPPORTED, "false"))
    ):
        return {*found, LOAD_VIEW}
    return found


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
        setattr(catalog, name, _seeing(getattr(catalog, name), seen))


if PYICEBERG_0_11:

    class _TableResponse(rest_catalog.TableResponse):
        storage_credentials: list[StorageCredential] = Field(alias="storage-credentials", default_factory=list)

    # Answers are parsed by the class of this name. Other code in this process gets a field more.
    rest_catalog.TableResponse = _TableResponse  # type: ignore[misc]


def _own_credentials(credentials: Iterable[StorageCredential], location: str) -> Mapping[str, str]:
    """Return the credentials with the longest prefix of a location."""
    fitting = [item for item in credentials if location.startswith(item.prefix)]
    return max(fitting, key=lambda item: len(item.prefix)).config if fitting else {}


def _seeing(inner: Callable[..., Any], seen: SeenTable) -> Callable[..., Any]:
    def table_of(identifier: tuple[str, ...], response: Any) -> Any:
        credentials = response.storage_credentials
        if response.metadata_location is None or PYICEBERG_0_11:
            # A staged table has no file yet, by whose location pyiceberg would choose the credentials.
            own = _own_credentials(credentials, response.metadata.location)
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


@dataclass(frozen=True, slots=True)
class ColumnStatistics:
    """The statistics of a data file that a test reads, by field id. A missing one is unknown.

    Args:
        record_count: Its number of rows; negative: unknown.
        value_counts: The number of values, NULLs included.
        lower_bounds: In the format's binary form, as the upper ones.
    """

    record_count: int
    value_counts: dict[int, int]
    null_value_counts: dict[int, int]
    nan_value_counts: dict[int, int]
    lower_bounds: dict[int, bytes]
    upper_bounds: dict[int, bytes]


def may_match(schema: Schema, expression: BooleanExpression) -> Callable[[ColumnStatistics], bool]:
    """Return a test by a data file's statistics: whether a row of it may satisfy the expression."""
    return cast("Callable[[ColumnStatistics], bool]", _InclusiveMetricsEvaluator(schema, expression).eval)


def file_system_of(io: Any, location: str) -> Any:
    """Return the fsspec file system by which a ``FsspecFileIO`` reads a location."""
    address = urlparse(location)
    return io._get_fs_from_uri(address) if PYICEBERG_0_11 else io._get_fs_from_uri(address, location)


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
    if PYICEBERG_0_11 and entry.snapshot_id is None:
        entry._data[_SNAPSHOT_ID] = manifest.added_snapshot_id  # its own setter overwrites the entry's status
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
