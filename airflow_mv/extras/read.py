# SPDX-License-Identifier: Apache-2.0
"""Read a materialized view's stored rows, according to ``allow-stale-data``."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

from pyiceberg.io import FileIO, InputFile, InputStream, OutputFile

from airflow_mv.common.damage import check_snapshots, different_size, store_of
from airflow_mv.common.frames import ArrowRows
from airflow_mv.common.snapshots import snapshot_of
from airflow_mv.common.status import Chains, inputs_of, timestamp, with_inputs
from airflow_mv.core.catalog import LoadedStorage, LoadedView, MaterializedViewCatalog
from airflow_mv.core.catalog.catalog import repairable
from airflow_mv.core.catalog.files import MetadataFiles, parsed, static_table
from airflow_mv.core.catalog.locations import ALLOWED
from airflow_mv.core.catalog.path_tables import locate_path
from airflow_mv.core.freshness.observe import Observation, observe_tables
from airflow_mv.core.freshness.state import State, assess
from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.core.spec.materialized_view import RefreshRecord, StorageState
from airflow_mv.core.spec.table_metadata import snapshot_as_of
from airflow_mv.core.spec.times import parse_time, to_ms
from airflow_mv.errors import (
    ConfigurationError,
    InvalidMetadataError,
    MetadataFileNotFoundError,
    NotFoundError,
    RefreshNotFoundError,
    StaleViewError,
    UnsupportedError,
)
from airflow_mv.foundation.documents import short_id

if TYPE_CHECKING:
    import pyarrow
    from pyiceberg.table import DataScan

log = logging.getLogger(__name__)

#: The states whose rows a view with ``allow-stale-data`` may return: earlier results of the same query.
_SERVABLE = (State.STALE, State.INVALID, State.UNKNOWN)


class PastRefresh(Protocol):
    """Chooses rows of the recorded history, see :class:`airflow_mv.extras.history.time_travel.TimeTravel`."""

    def find(
        self, catalog: MaterializedViewCatalog, view: LoadedView, storage: LoadedStorage, state: StorageState
    ) -> RefreshRecord:
        """Return the refresh that the rows are of.

        Raises:
            RefreshNotFoundError: The history holds no such refresh.
        """
        ...


@dataclass(frozen=True, slots=True)
class Readable:
    """Stored rows that may be read.

    Args:
        record: The refresh that the rows are of.
        snapshot_id: The storage snapshot that holds them; ``None`` for no rows at all.
        state: The state of these rows when the view was loaded.
    """

    view: LoadedView
    storage: LoadedStorage
    record: RefreshRecord
    snapshot_id: int | None
    state: State

    @property
    def refresh_id(self) -> str:
        """The refresh that produced the rows."""
        return self.record.refresh_id


class Rows(ArrowRows):
    """Rows of one snapshot, as pyiceberg's ``DataScan``: nothing is read before a method asks for rows.

    Each method reads the same rows again. All but :meth:`to_arrow_batch_reader` hold all rows in memory. Each raises
    ``NotFoundError`` if a data file is missing, ``InvalidMetadataError`` if a file is truncated or cannot be read, and
    ``CatalogUnavailableError`` if the store did not respond.

    Args:
        metadata_location: The metadata file.
        snapshot_id: The snapshot with the rows; ``None`` for no rows at all.
        name: How the rows are called as a table of DuckDB.
        limit: At most this many rows.
    """

    def __init__(self, metadata_location: str, snapshot_id: int | None, name: str, limit: int | None) -> None:
        self.metadata_location = metadata_location
        """The table's metadata file, by which engines open an Iceberg table."""
        self.snapshot_id = snapshot_id
        """The snapshot of the table with the rows; ``None`` for no rows at all."""
        self.limit = limit
        self._name = name

    @cached_property
    @abstractmethod
    def _scan(self) -> DataScan:
        """Open the table."""

    @abstractmethod
    def _errors(self) -> AbstractContextManager[None]:
        """Translate the errors of a read."""

    @property
    def columns(self) -> list[str]:
        """Column names in order."""
        return [field.name for field in self._scan.projection().fields]

    def to_arrow(self) -> pyarrow.Table:
        """Read the rows as an Arrow table."""
        with self._errors():
            return self._scan.to_arrow()

    def to_arrow_batch_reader(self) -> pyarrow.RecordBatchReader:
        """Read the rows as a stream of Arrow batches, which need not fit into memory. It can be read once."""
        import pyarrow

        with self._errors():
            batches = self._scan.to_arrow_batch_reader()
        return pyarrow.RecordBatchReader.from_batches(batches.schema, self._each(batches))

    def _each(self, batches: pyarrow.RecordBatchReader) -> Iterator[pyarrow.RecordBatch]:
        with self._errors():
            yield from batches


class ReadResult(Rows):
    """Stored rows that may be read.

    Args:
        readable: What is read, and of which refresh.
        limit: At most this many rows.
    """

    def __init__(self, catalog: MaterializedViewCatalog, readable: Readable, limit: int | None = None) -> None:
        name = readable.view.identifier.name
        super().__init__(readable.storage.location, readable.snapshot_id, name, limit)
        self.readable = readable
        self._catalog = catalog

    def __repr__(self) -> str:
        found = self.readable
        limit = "" if self.limit is None else f", limit {self.limit:,}"
        return f"<rows of {found.view.identifier}: {found.state}, refresh {short_id(found.refresh_id)}{limit}>"

    @cached_property
    def _scan(self) -> DataScan:
        """Open the storage table, and check the files that list its data files."""
        found, catalog = self.readable, self._catalog
        view, storage = found.view, found.storage
        with repairable(view.identifier), parsed(storage.location, f"view {view.identifier}, storage table file"):
            table = storage.open(catalog.tables)
            only = () if found.snapshot_id is None else (found.snapshot_id,)
            checked = check_snapshots(store_of(catalog, view, storage), storage.table, only=only, data=False)
            for damage in checked.all:
                what = f"view {view.identifier}, refresh {found.refresh_id}, {damage.role} {damage.location}"
                raise InvalidMetadataError(f"{what}: {damage.why}")
            table.io = _SizeCheckedIO(table.io, checked.sizes)
            return table.scan(snapshot_id=found.snapshot_id, limit=self.limit)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Translate the errors of a read."""
        view, refresh_id = self.readable.view.identifier, self.readable.refresh_id
        what = f"view {view}, refresh {refresh_id}, data file"
        with repairable(view), parsed(self.readable.storage.table.location, what):
            try:
                yield
            except FileNotFoundError as error:
                raise MetadataFileNotFoundError(
                    f"view {view}: a data file of refresh {refresh_id} is missing ({error}). Restore it, or recompute "
                    "the rows: a refresh with --full"
                ) from None


class TableRows(Rows):
    """Rows of an Iceberg table that is in no catalog: it is named by its folder or by a metadata file.

    Args:
        files: The store.
        location: The metadata file.
        snapshot_id: The snapshot; ``None`` for a table that was never written.
        limit: At most this many rows.
    """

    def __init__(self, files: MetadataFiles, location: str, snapshot_id: int | None, limit: int | None = None) -> None:
        folder = location.rpartition("/")[0].removesuffix("/metadata")
        super().__init__(location, snapshot_id, folder.rpartition("/")[2], limit)
        self._files = files

    def __repr__(self) -> str:
        return f"<rows of {self.metadata_location}: snapshot {self.snapshot_id}>"

    @cached_property
    def _scan(self) -> DataScan:
        """Open the table."""
        with self._errors():
            table = static_table(self._files, self.metadata_location, what="table metadata file")
        return table.scan(snapshot_id=self.snapshot_id, limit=self.limit)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        with parsed(self.metadata_location, "table"):
            try:
                yield
            except FileNotFoundError as error:
                raise MetadataFileNotFoundError(
                    f"table {self.metadata_location}: a file is missing ({error})"
                ) from None


def is_path(name: str) -> bool:
    """Whether a name is the path of a table: ``iceberg.`/path```, a folder, or a metadata file."""
    return "/" in name and (not name.rstrip().endswith("`") or name.lower().startswith(("iceberg.`", "`iceberg`.`")))


def table_rows(
    path: str,
    chosen: Mapping[str, Any] = MappingProxyType({}),
    *,
    limit: int | None = None,
    properties: Mapping[str, str] = MappingProxyType({}),
) -> TableRows:
    """Return the rows of an Iceberg table by its path. No catalog is asked.

    Args:
        path: The table's folder, as a path or in SQL's spelling ``iceberg.`path```, whose current metadata file is
            found as Iceberg's ``HadoopTables`` do; or a metadata file.
        chosen: ``snapshot_id``: the rows in this snapshot; or ``as_of``: the rows at this time, by the table's snapshot
            log, where a time without a zone is UTC. By default the current rows.
        limit: At most this many rows.
        properties: Access to the store, as for a catalog.

    Raises:
        ConfigurationError: Something else is chosen: a table has no refreshes.
        NotFoundError: There is no table, or no such snapshot.
        SnapshotNotFoundError: The table has no snapshot as of the time.
        InvalidMetadataError: The metadata cannot be read, or there is not one current file.
    """
    if others := sorted(chosen.keys() - {"snapshot_id", "as_of"}):
        raise ConfigurationError(
            f"{others[0]} chooses rows of a view, and {path} is a table: give a snapshot or a time"
        )
    snapshot_id, as_of = chosen.get("snapshot_id"), chosen.get("as_of")
    files, location = MetadataFiles({ALLOWED: path, **properties}), path
    if not path.endswith(".metadata.json"):
        name = Identifier.parse(path if path.endswith("`") else f"iceberg.`{path.rstrip('/')}`")
        own = {**properties, ALLOWED: name.path or ""}
        found = locate_path(files, own, name)
        if found is None:
            raise NotFoundError(f"there is no Iceberg table at {name.path}")
        location = found.metadata_location
    table = files.read_table(location, what="table metadata file")
    if as_of is not None:
        snapshot_id = snapshot_as_of(table, to_ms(parse_time(as_of)), name=path).snapshot_id
    if snapshot_id is not None and table.find(snapshot_id) is None:
        raise NotFoundError(f"table {location} has no snapshot {snapshot_id}")
    return TableRows(files, location, table.head if snapshot_id is None else snapshot_id, limit)


def readable(
    catalog: MaterializedViewCatalog,
    view: str | Identifier,
    wanted: PastRefresh | None = None,
    *,
    refresh: Callable[[Identifier], object] | None = None,
) -> Readable:
    """Find the stored rows that a reader may have.

    Stale rows are returned only if the view allows it; else the view is refreshed first, or the call is refused.
    Rows of another definition are never returned.

    Args:
        wanted: Which rows of the recorded history, for which no refresh runs; by default the current rows.
        refresh: Refreshes the view if that is needed. With ``None`` the call is refused instead.

    Raises:
        StaleViewError: A refresh would be needed, and ``refresh`` is ``None``.
        RefreshNotFoundError: The history holds no such refresh.
    """
    observation = Chains().observe(catalog, view)
    if wanted is not None:
        return _of_history(catalog, observation, wanted)
    loaded, storage, state = observation.view, observation.storage, observation.freshness.state
    servable = state == State.FRESH or (loaded.materialized.allow_stale_data and state in _SERVABLE)
    if not servable:
        why = "; ".join(reason.message for reason in observation.freshness.reasons)
        elsewhere = {item.view.catalog for item in inputs_of(observation)} - {catalog.name}
        if refresh is None or elsewhere:
            raise StaleViewError(
                f"view {loaded.identifier} is {state} ({why}), so its rows are not returned. {_remedy(observation)}"
            )
        log.info("%s is %s: refreshing it before it is read (%s)", loaded.identifier, state, why)
        refresh(loaded.identifier)
        loaded = catalog.load(loaded.identifier)
        storage, state = catalog.load_storage(loaded), State.FRESH
    return _recorded(catalog, loaded, storage, state, None)


def read_rows(catalog: MaterializedViewCatalog, found: Readable, *, limit: int | None = None) -> ReadResult:
    """Return stored rows, to be read through pyiceberg: no Spark.

    Args:
        found: From :func:`readable`.
        limit: At most this many rows.

    Raises:
        UnsupportedError: A column has a type that pyiceberg does not know.
    """
    log_what_is_read(found)
    for field in found.view.metadata.schema_.fields:
        if _has_variant(field["type"]):
            raise UnsupportedError(
                f"view {found.view.identifier}: pyiceberg cannot read the column {field['name']!r} of type variant: "
                "read the view in Spark (airflow_mv.read), or cast the column to another type in its query"
            )
    return ReadResult(catalog, found, limit)


def _remedy(observation: Observation) -> str:
    """Return what to do about rows that are not returned."""
    view, state = observation.view.identifier, observation.freshness.state
    refresh_first = f"Run `airflow-mv refresh {view}{' --with-inputs' if inputs_of(observation) else ''}`"
    if state not in _SERVABLE:
        return refresh_first
    return f"{refresh_first}, or allow stale rows: `airflow-mv create {view} --replace --allow-stale-data`"


def _has_variant(kind: Any) -> bool:
    """Whether a stored type is or contains variant."""
    if not isinstance(kind, dict):
        return bool(kind == "variant")
    parts = [field["type"] for field in kind.get("fields", [])]
    return any(_has_variant(part) for part in (*parts, *(kind.get(name) for name in ("element", "key", "value"))))


def _of_history(catalog: MaterializedViewCatalog, observation: Observation, wanted: PastRefresh) -> Readable:
    """Return recorded rows with their own state, which is not that of the present rows."""
    found = _recorded(catalog, observation.view, observation.storage, observation.freshness.state, wanted)
    if found.record == observation.record:
        return found
    tables, _ = observe_tables(catalog, observation.dependencies.tables, found.record)
    freshness = assess(
        found.record,
        version_id=observation.view.metadata.current_version_id,
        nested_views=observation.nested_views,
        observed=tables,
    )
    return replace(found, state=with_inputs(freshness, inputs_of(observation)).state)


def _recorded(
    catalog: MaterializedViewCatalog, view: LoadedView, storage: LoadedStorage, state: State, wanted: PastRefresh | None
) -> Readable:
    if storage.state is None:
        raise StaleViewError(f"view {view.identifier} was never refreshed; refresh it first")
    record = storage.state.current if wanted is None else wanted.find(catalog, view, storage, storage.state)
    head = snapshot_of(storage, record)
    if head is None and record != storage.state.current:
        raise RefreshNotFoundError(f"view {view.identifier}: the rows of refresh {record.refresh_id} have expired")
    return Readable(view, storage, record, head, state)


def log_what_is_read(found: Readable) -> None:
    """Log the refresh that rows are of."""
    log.info(
        "Reading %s: refresh %s of %s (%s)",
        found.view.identifier,
        found.refresh_id,
        timestamp(found.record.refreshed_at_ms) or "unknown time",
        found.state,
    )


class _SizeCheckedIO(FileIO):
    """Opens files for pyiceberg, and refuses files whose size differs from the recorded one.

    Args:
        io: Opens the files.
        sizes: The recorded sizes.
    """

    def __init__(self, io: FileIO, sizes: Mapping[str, int]) -> None:
        super().__init__(io.properties)
        self._io = io
        self._sizes = sizes

    def new_input(self, location: str) -> InputFile:
        """Return a file to read."""
        return _SizedInput(self._io.new_input(location), self._sizes.get(location))

    def new_output(self, location: str) -> OutputFile:
        """Return a file to write."""
        return self._io.new_output(location)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        """Delete a file."""
        self._io.delete(location)


class _SizedInput(InputFile):
    def __init__(self, file: InputFile, size: int | None) -> None:
        super().__init__(file.location)
        self._file = file
        self._wanted = size

    def __len__(self) -> int:
        return len(self._file)

    def exists(self) -> bool:
        return self._file.exists()

    def open(self, seekable: bool = True) -> InputStream:  # noqa: FBT001, FBT002 (pyiceberg's signature)
        stream = self._file.open(seekable=seekable)
        # pyarrow knows the size of an opened file, so that no further request is needed.
        size = stream.size() if hasattr(stream, "size") else len(self._file)
        if self._wanted is not None and size != self._wanted:
            stream.close()
            raise InvalidMetadataError(f"data file: {self.location}: {different_size(size, self._wanted)}")
        return stream
