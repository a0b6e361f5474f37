# SPDX-License-Identifier: Apache-2.0
"""A component of the registry as an Iceberg table: read, add, overwrite, delete, purge, expire."""

from __future__ import annotations

import logging
import random
import time
import types
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any, Generic, Protocol, Union, get_args, get_origin

import pyarrow as pa
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.expressions.visitors import bind, extract_field_ids
from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table, Transaction
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import (
    BooleanType,
    DoubleType,
    IcebergType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    TimestamptzType,
)

from airflow_mv.core.catalog import MaterializedViewCatalog
from airflow_mv.core.catalog.answers import NO_ANSWER, answered
from airflow_mv.core.catalog.files import discard
from airflow_mv.core.catalog.locations import lies_in
from airflow_mv.core.catalog.pyiceberg_compat import delete_manifests, replace_files, send_once, write_data_files
from airflow_mv.core.catalog.reachable_files import files_of_lists
from airflow_mv.errors import (
    CatalogUnavailableError,
    CommitConflictError,
    CommitStateUnknownError,
    ConfigurationError,
    InvalidQueryError,
    MaterializedViewError,
    MetadataFileNotFoundError,
)
from airflow_mv.extras.registry.filters import Filter, all_rows, between, both, equal, no, one_of
from airflow_mv.extras.registry.model import Kind, R
from airflow_mv.extras.registry.settings import ComponentSettings

log = logging.getLogger(__name__)

#: How often a commit is tried while other writers come first.
TRIES = 40
#: The most partitions that one commit compacts.
_MAX_COMPACTED = 24
#: The most tries without an answer.
_UNANSWERED = 10
#: The number of the first partition field, as the Iceberg specification has it.
_FIRST_PARTITION_FIELD = 1000
_TYPES: dict[Any, IcebergType] = {
    str: StringType(),
    int: LongType(),
    float: DoubleType(),
    bool: BooleanType(),
    datetime: TimestamptzType(),
}
#: The values of a row's partition columns.
Partition = tuple[str, ...]


def schema_of(kind: Kind[Any]) -> Schema:
    """Return the Iceberg schema of a component's rows: a column for each field of the model."""
    fields, number = [], len(kind.model.model_fields)
    for at, (name, field) in enumerate(kind.model.model_fields.items(), 1):
        annotation = field.annotation
        optional = get_origin(annotation) in (Union, types.UnionType)
        if optional:
            (annotation,) = (item for item in get_args(annotation) if item is not type(None))
        found, number = _type(annotation, number)
        required = field.is_required() and not optional
        fields.append(NestedField(at, name, found, required=required, doc=field.description))
    return Schema(*fields)


def _type(annotation: Any, number: int) -> tuple[IcebergType, int]:
    """Return an Iceberg type, and the last field id that is used then."""
    while get_origin(annotation) not in (None, tuple, Mapping) and annotation not in _TYPES:
        annotation = get_args(annotation)[0]  # Annotated
    origin = get_origin(annotation)
    if origin is tuple:
        return ListType(number + 1, StringType(), element_required=True), number + 1
    if origin is not None:
        return MapType(number + 1, StringType(), number + 2, LongType(), value_required=True), number + 2
    return _TYPES[annotation], number


def spec_of(kind: Kind[Any], schema: Schema) -> PartitionSpec:
    """Return a component's partitioning: by the values of its partition columns."""
    fields = [
        PartitionField(schema.find_field(name).field_id, _FIRST_PARTITION_FIELD + at, IdentityTransform(), name)
        for at, name in enumerate(kind.partitions)
    ]
    return PartitionSpec(*fields)


class Home(Protocol):
    """Where the tables of a registry are."""

    @property
    def name(self) -> str:
        """For messages."""

    @property
    def catalog(self) -> MaterializedViewCatalog:
        """The catalog whose views are registered; its store is the registry's."""

    def open(self, kind: Kind[Any]) -> Table | None:
        """Return the table of a component, or ``None`` if it does not exist yet."""

    def create(self, kind: Kind[Any]) -> Table:
        """Return the table of a component, and create it if it does not exist."""


class _MovedOnError(Exception):
    """The table was changed since it was loaded."""


@dataclass(frozen=True, slots=True)
class _Edit:
    """A commit: rows to write, and files that it replaces or removes."""

    rows: pa.Table
    replaced: Sequence[DataFile]


class Component(Generic[R]):
    """One component of a registry.

    Args:
        kind: The component.
        home: Where its table is.
        settings: Its settings.
    """

    def __init__(self, kind: Kind[R], home: Home, settings: ComponentSettings) -> None:
        self.kind, self._home, self._settings = kind, home, settings

    # -- read ----------------------------------------------------------------------------------

    def read(
        self, where: Filter | None = None, columns: Collection[str] | None = None, most: int | None = None
    ) -> pa.Table:
        """Return rows. Files of partitions that cannot match are not opened, and only these columns are read.

        Args:
            where: The filter; ``None``: all rows.
            columns: The columns; ``None``: all of the model.
            most: The most rows of the files to read; ``None``: all.

        Raises:
            CatalogUnavailableError: The catalog did not respond.
            InvalidQueryError: The files have more rows. No file was read.
        """
        names = tuple(self.kind.model.model_fields) if columns is None else tuple(columns)
        table = self._home.open(self.kind)
        if table is None:
            return schema_of(self.kind).select(*names).as_arrow().empty_table()
        with answered(self._home.name, f"reading the registry's table {self.kind.name}"):
            stored = tuple(name for name in names if name in table.schema().column_names)
            scan = table.scan(row_filter=where or all_rows(), selected_fields=stored)
            if most is not None and (rows := sum(task.file.record_count for task in scan.plan_files())) > most:
                raise InvalidQueryError(
                    f"the registry's table {self.kind.name} in {self._home.name} has {rows:,} rows for this question, "
                    f"and at most {most:,} are read here. Ask about fewer days, or on the command line"
                )
            found = scan.to_arrow()
        wanted = schema_of(self.kind).select(*names).as_arrow()
        arrays = [
            found[field.name].cast(field.type) if field.name in stored else pa.nulls(len(found), field.type)
            for field in wanted
        ]
        return pa.table(arrays, names=list(names))

    def rows(self, where: Filter | None = None) -> list[R]:
        """Return rows as the component's model."""
        return [self._row(cells) for cells in self.read(where).to_pylist()]

    def _row(self, cells: Mapping[str, Any]) -> R:
        fields, values = self.kind.model.model_fields, {}
        for key, value in cells.items():
            if isinstance(value, list):
                values[key] = dict(value) if isinstance(fields[key].default, Mapping) else tuple(value)
            elif value is not None or fields[key].is_required():
                values[key] = value
        return self.kind.model.model_validate(values)

    # -- change --------------------------------------------------------------------------------

    def add(self, rows: Iterable[R]) -> int:
        """Add rows, in one commit. A row whose key exists is left as it is.

        Args:
            rows: The rows; of two with the same key the last one counts.

        Returns:
            How many were added.

        Raises:
            CommitConflictError: Other writers came first each time. It is safe to try again.
        """
        return self._put(list(rows), overwrite=False)

    def overwrite(self, rows: Iterable[R]) -> int:
        """Add rows, or replace those with the same keys, in one commit.

        Args:
            rows: The rows; of two with the same key the last one counts.

        Returns:
            How many were written.

        Raises:
            CommitConflictError: Other writers came first each time. It is safe to try again.
        """
        return self._put(list(rows), overwrite=True)

    def _put(self, rows: list[R], *, overwrite: bool) -> int:
        if not rows:
            return 0
        written = 0

        def edit(table: Table) -> _Edit:
            nonlocal written
            new = {self._key(row.cells()): row for row in rows}
            known = self._known_keys(table, rows)
            if not overwrite:
                new = {key: row for key, row in new.items() if key not in known}
            written = len(new)
            return self._edit(table, list(new.values()), {key for key in new if key in known})

        self._commit(edit)
        return written

    def delete(self, where: Filter) -> int:
        """Delete rows, in one commit. Their files stay until they expire.

        Args:
            where: A filter on keys and partition columns.

        Returns:
            How many rows were deleted.

        Raises:
            ConfigurationError: The filter uses other columns.
            CommitConflictError: Other writers came first each time.
        """
        schema = schema_of(self.kind)
        used = {schema.find_column_name(item) for item in extract_field_ids(bind(schema, where, case_sensitive=True))}
        if others := sorted(str(name) for name in used - self.kind.key_columns):
            raise ConfigurationError(
                f"rows of the registry's table {self.kind.name} are deleted by {', '.join(self.kind.key_columns)}; "
                f"the filter uses {', '.join(others)}"
            )
        count = 0

        def edit(table: Table) -> _Edit:
            nonlocal count
            files = [task.file for task in table.scan(row_filter=where).plan_files()]
            places = sorted({_partition(file) for file in files})
            replaced = [file for found in self._files(table, places).values() for file in found]
            left = [self._scan(table, both(self._at(place), no(where))) for place in places]
            rows = pa.concat_tables([_empty(table), *left])
            count = sum(file.record_count for file in replaced) - len(rows)
            return _Edit(rows, replaced) if count else _Edit(_empty(table), ())

        self._commit(edit, only_existing=True)
        return count

    def purge(self) -> int:
        """Delete all rows, in one commit. Table, history and files stay until they expire.

        Returns:
            How many rows were deleted.
        """
        return self.delete(all_rows())

    def compact(self, where: Filter) -> int:
        """Rewrite each partition that has several files as one file, in one commit.

        Args:
            where: A filter on partition columns.

        Returns:
            How many partitions were rewritten.

        Raises:
            CommitConflictError: Others changed the table each time.
        """
        count = 0

        def edit(table: Table) -> _Edit:
            nonlocal count
            files: dict[Partition, list[DataFile]] = defaultdict(list)
            for task in table.scan(row_filter=where).plan_files():
                files[_partition(task.file)].append(task.file)
            places = sorted(place for place, found in files.items() if len(found) > 1)[:_MAX_COMPACTED]
            count = len(places)
            rows = [self._partition_rows(table, place) for place in places]
            return _Edit(pa.concat_tables([_empty(table), *rows]), [file for place in places for file in files[place]])

        self._commit(edit, only_existing=True)
        return count

    # -- one commit ----------------------------------------------------------------------------

    def _commit(self, edit: Callable[[Table], _Edit], *, only_existing: bool = False) -> None:
        """Commit an edit to the present state of the table; again, if another writer came first.

        An edit is made by keys from the state that it is committed to. So it may be sent again after an unknown
        outcome: if the first one was applied, the keys are there.
        """
        reasons: list[str] = []
        for number in range(1, TRIES + 1):
            try:
                table = self._home.open(self.kind) if only_existing else self._home.create(self.kind)
                done = table is None or self._committed(table, edit)
            except CatalogUnavailableError as error:
                done = False
                reasons.append(str(error))
            if done:
                self._expire_if_due()
                return
            if len(reasons) == _UNANSWERED:
                raise CommitStateUnknownError(
                    f"the registry's table {self.kind.name} in {self._home.name}: {len(reasons)} changes got no answer "
                    f"({reasons[-1]}). One of them may still be applied; run it again, it adds no row twice"
                )
            time.sleep(min(0.05 * 2**number, 0.8) * (0.5 + random.random()))  # noqa: S311 (jitter)
        raise CommitConflictError(
            f"the registry's table {self.kind.name} in {self._home.name} was changed by others {TRIES} times in a row, "
            "and nothing was written. Run it again"
        )

    def _committed(self, table: Table, edit: Callable[[Table], _Edit]) -> bool:
        """Commit an edit; ``False`` if another writer came first.

        Raises:
            CatalogUnavailableError: No answer. The commit may be applied, even later.
            MetadataFileNotFoundError: A file of the table's present state is missing.
        """
        what = f"changing the registry's table {self.kind.name}"
        try:
            with answered(self._home.name, what), self._own_files(table):
                wanted = edit(table)
                if not len(wanted.rows) and not wanted.replaced:
                    return True
                return self._sent(table, write_data_files(table, wanted.rows), wanted.replaced)
        except _MovedOnError:
            return False

    def _sent(self, table: Table, added: Sequence[DataFile], removed: Sequence[DataFile]) -> bool:
        """Send a commit that adds and removes files; ``False`` if it has to be made again.

        Only the table's state tells what a conflict means: see decision record 5. All copies of the commit have the
        same sequence number. If another commit has that number, no copy can be applied any more.
        """
        change = _change(table, added, removed)
        snapshot = change.table_metadata.snapshots[-1]
        try:
            send_once(change)
        except CommitFailedException:
            now = self._home.open(self.kind)
            numbers = {} if now is None else {item.snapshot_id: item.sequence_number for item in now.snapshots()}
            if snapshot.snapshot_id in numbers:
                return True
            if snapshot.sequence_number and snapshot.sequence_number in numbers.values():
                delete_manifests(change)
                for file in added:
                    discard(self._home.catalog.files, file.file_path)
            return False
        return True

    @contextmanager
    def _own_files(self, table: Table) -> Iterator[None]:
        """Tell a file that has expired since the table was loaded from a file that is lost.

        Raises:
            _MovedOnError: The table has another state now.
            MetadataFileNotFoundError: A file of its present state is missing.
        """
        try:
            yield
        except FileNotFoundError as error:
            now = self._home.open(self.kind)
            if now is None or now.metadata_location != table.metadata_location:
                raise _MovedOnError from None
            raise MetadataFileNotFoundError(
                f"the registry's table {self.kind.name} in {self._home.name} has lost a file ({error}). Drop the "
                f"table, and make it again: airflow-mv registry rebuild --catalog {self._home.catalog.name}"
            ) from None

    def _edit(self, table: Table, rows: list[R], replaced: Collection[tuple[Any, ...]]) -> _Edit:
        """Return the commit that adds rows. A partition is rewritten if it has a row to replace, or too many files."""
        if not rows:
            return _Edit(_empty(table), ())
        parts: dict[Partition, list[R]] = defaultdict(list)
        for row in rows:
            parts[self._place(row.cells())].append(row)
        files = self._files(table, parts)
        tables, gone = [], []
        for place, found in sorted(parts.items(), key=lambda item: item[0]):
            new = pa.Table.from_pylist([row.cells() for row in found], schema=_empty(table).schema)
            keys = {self._key(row.cells()) for row in found}
            present = files.get(place, [])
            if present and (keys & set(replaced) or len(present) >= self._settings.max_files):
                old = self._partition_rows(table, place)
                mask = [self._key(cells) not in keys for cells in old.select(self.kind.keys).to_pylist()]
                new = pa.concat_tables([old.filter(pa.array(mask, pa.bool_())), new])
                gone += present
            tables.append(new)
        return _Edit(pa.concat_tables(tables), gone)

    def _known_keys(self, table: Table, rows: list[R]) -> set[tuple[Any, ...]]:
        where = self._around({self._place(row.cells()) for row in rows})
        if (moment := self.kind.moment) is not None:
            times = [getattr(row, moment) for row in rows]
            where = both(where, between(moment, min(times), max(times)))
        found = table.scan(row_filter=where, selected_fields=self.kind.keys).to_arrow()
        return {self._key(cells) for cells in found.to_pylist()}

    def _key(self, cells: Mapping[str, Any]) -> tuple[Any, ...]:
        return tuple(cells[name] for name in self.kind.keys)

    def _place(self, cells: Mapping[str, Any]) -> Partition:
        return tuple(cells[name] for name in self.kind.partitions)

    def _around(self, places: Collection[Partition]) -> Filter:
        """Return a filter that all rows of these partitions pass. Those of some others may pass, too."""
        columns = zip(*places, strict=True)
        return both(*(one_of(name, values) for name, values in zip(self.kind.partitions, columns, strict=True)))

    def _at(self, place: Partition) -> Filter:
        return equal(**dict(zip(self.kind.partitions, place, strict=True)))

    def _files(self, table: Table, places: Collection[Partition]) -> dict[Partition, list[DataFile]]:
        found: dict[Partition, list[DataFile]] = defaultdict(list)
        if places:
            for task in table.scan(row_filter=self._around(places)).plan_files():
                if (place := _partition(task.file)) in places:
                    found[place].append(task.file)
        return found

    def _partition_rows(self, table: Table, place: Partition) -> pa.Table:
        return self._scan(table, self._at(place))

    def _scan(self, table: Table, where: Filter) -> pa.Table:
        return table.scan(row_filter=where).to_arrow().cast(_empty(table).schema)

    # -- expiration ----------------------------------------------------------------------------

    def _expire_if_due(self) -> None:
        """Expire old snapshots if the period has passed. A failure is only logged: the next change tries again."""
        try:
            self.expire()
        except (MaterializedViewError, CommitFailedException, *NO_ANSWER) as error:
            log.warning("The registry's table %s: old snapshots were not expired: %s", self.kind.name, error)

    def expire(self) -> int:
        """Remove the snapshots that have not been current for the period, and the files that only they need.

        Nothing is done before the oldest snapshot has exceeded the period by a quarter, so that not every change is
        followed by a second commit.

        Returns:
            How many snapshots were removed.
        """
        period = self._settings.expire_after
        table = None if period is None else self._home.open(self.kind)
        if period is None or table is None or len(table.metadata.snapshots) < 2:
            return 0
        now_ms = self._home.catalog.files.now_ms(table.location())
        old = _superseded_before(table, now_ms - period // timedelta(milliseconds=1))
        oldest = _superseded_before(table, now_ms - period * 5 // 4 // timedelta(milliseconds=1))
        if not oldest:
            return 0
        lists = {item.snapshot_id: item.manifest_list for item in table.metadata.snapshots}
        kept = files_of_lists(self._home.catalog, [lists[item] for item in lists if item not in old])
        gone = files_of_lists(self._home.catalog, [lists[item] for item in old]) - kept
        table.maintenance.expire_snapshots().by_ids(sorted(old)).commit()
        for location in sorted(gone):
            if lies_in(location, (table.location(),)):
                discard(self._home.catalog.files, location)
        log.info("The registry's table %s: %d snapshots and %d files expired", self.kind.name, len(old), len(gone))
        return len(old)


def _change(table: Table, added: Sequence[DataFile], removed: Sequence[DataFile]) -> Transaction:
    """Return a commit that adds and removes files, which is not sent yet."""
    change = table.transaction()
    if removed:
        replace_files(change, table.io, added, removed)
        return change
    with change.update_snapshot().merge_append() as snapshot:
        for file in added:
            snapshot.append_data_file(file)
    return change


def _superseded_before(table: Table, moment_ms: int) -> set[int]:
    """Return the snapshots that another one had replaced before a time, without those with a branch or tag."""
    named = {ref.snapshot_id for ref in table.metadata.refs.values()}
    ordered = sorted(table.metadata.snapshots, key=lambda item: item.sequence_number or 0)
    return {
        item.snapshot_id
        for item, later in pairwise(ordered)
        if later.timestamp_ms < moment_ms and item.snapshot_id not in named
    }


def _partition(file: DataFile) -> Partition:
    return tuple(file.partition[at] for at in range(len(file.partition)))


def _empty(table: Table) -> pa.Table:
    return table.schema().as_arrow().empty_table()
