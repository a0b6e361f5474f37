# SPDX-License-Identifier: Apache-2.0
"""A component of the registry as an Iceberg table: read, upsert, delete, compact, expire."""

from __future__ import annotations

import logging
import random
import time
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from itertools import pairwise
from typing import Any, Generic

import pyarrow as pa
from pyiceberg.exceptions import CommitFailedException, ValidationException
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table, Transaction
from pyiceberg.table.metadata import TableMetadata

from airflow_mv.common.manifests import files_of, manifests_at
from airflow_mv.core.catalog.answers import NO_ANSWER, answered
from airflow_mv.core.catalog.files import MetadataFiles, discard
from airflow_mv.core.catalog.locations import lies_in
from airflow_mv.core.catalog.pyiceberg_compat import send_once
from airflow_mv.errors import CatalogUnavailableError, CommitConflictError, InvalidQueryError, MaterializedViewError
from airflow_mv.extras.registry.filters import Filter, all_rows, between, both, equal, one_of
from airflow_mv.extras.registry.homes import Home, schema_of
from airflow_mv.extras.registry.model import Kind, R
from airflow_mv.extras.registry.settings import ComponentSettings
from airflow_mv.foundation.words import did_you_mean

log = logging.getLogger(__name__)

#: How often a change is made while other writers come first.
MAX_TRIES = 20
#: How often it is repeated without an answer.
_MAX_UNANSWERED = 3
#: The most partitions that one commit compacts.
_MAX_COMPACTED = 24


class Component(Generic[R]):
    """One component of a registry.

    Args:
        kind: The component.
    """

    def __init__(self, kind: Kind[R], home: Home, settings: ComponentSettings) -> None:
        self.kind, self._home, self._settings = kind, home, settings

    # -- read ----------------------------------------------------------------------------------

    def read(
        self,
        where: Filter | None = None,
        columns: Collection[str] | None = None,
        *,
        most: int | None = None,
        limit: int | None = None,
    ) -> pa.Table:
        """Return rows. Files of partitions that cannot match are not opened, and only these columns are read.

        Args:
            where: The filter; ``None``: all rows.
            columns: The columns; ``None``: all of the model.
            most: The most rows of the files to read; ``None``: all.
            limit: The number of rows after which the read ends; ``None``: it reads all.

        Raises:
            CatalogUnavailableError: The catalog did not respond.
            InvalidQueryError: The files have more rows, or the component has no such column. No file was read.
        """
        known = self.kind.model.model_fields
        if unknown := sorted({*(columns or ())} - {*known}):
            raise InvalidQueryError(
                f"the component {self.kind.name} has no column {unknown[0]!r}{did_you_mean(unknown[0], known)}. Its "
                f"columns are {', '.join(known)}"
            )
        names = tuple(self.kind.model.model_fields) if columns is None else tuple(dict.fromkeys(columns))
        # A selection has the order of the schema, and the answer that of the question.
        types = schema_of(self.kind).select(*names).as_arrow()
        table = self._home.open(self.kind)
        if table is None:
            return types.empty_table().select(list(names))
        with answered(self._home.name, f"reading the registry's table {self.kind.name}"):
            stored = tuple(name for name in names if name in table.schema().column_names)
            scan = table.scan(row_filter=where or all_rows(), selected_fields=stored, limit=limit)
            if most is not None and (rows := sum(task.file.record_count for task in scan.plan_files())) > most:
                raise InvalidQueryError(
                    f"the registry's table {self.kind.name} in {self._home.name} has {rows:,} rows for this query, "
                    f"and at most {most:,} are read here. Choose fewer days, or use the command line"
                )
            found = scan.to_arrow()
        arrays = [
            found[name].cast(types.field(name).type) if name in stored else pa.nulls(len(found), types.field(name).type)
            for name in names
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

    def upsert(self, rows: Iterable[R]) -> int:
        """Add rows and replace those with the same keys, in one commit.

        Args:
            rows: The rows; of two with the same key the last one is written.

        Returns:
            How many were written.

        Raises:
            CommitConflictError: Others changed the table each time.
        """
        cells = [*{row[self.kind.key]: row for row in (item.cells() for item in rows)}.values()]
        if cells:
            where = self._with_keys(cells)
            self._change(lambda table, change: change.overwrite(_arrow(table, cells), where))
        return len(cells)

    def add(self, rows: Sequence[R]) -> int:
        """Add rows, in one commit.

        Returns:
            How many were added.

        Raises:
            InvalidQueryError: A row with such a key exists, or two rows have the same key. Nothing was written.
            CommitConflictError: Others changed the table each time.
        """
        cells = [row.cells() for row in rows]
        twice = [key for key, number in Counter(row[self.kind.key] for row in cells).items() if number > 1]

        def add(table: Table, change: Transaction) -> None:
            there = table.scan(row_filter=self._with_keys(cells), selected_fields=(self.kind.key,)).to_arrow()
            if found := [*twice, *there[self.kind.key].to_pylist()]:
                raise InvalidQueryError(
                    f"the registry's table {self.kind.name} in {self._home.name} would have two rows with the "
                    f"{self.kind.key} {found[0]!r}; nothing was written"
                )
            change.append(_arrow(table, cells))

        if cells:
            self._change(add)
        return len(cells)

    def replace(self, rows: Sequence[R], where: Filter) -> None:
        """Replace all rows that pass a filter by others, in one commit.

        Args:
            rows: Rows that pass the filter too.

        Raises:
            CommitConflictError: Others changed the table each time.
        """
        cells = [row.cells() for row in rows]
        self._change(lambda table, change: change.overwrite(_arrow(table, cells), where))

    def delete(self, where: Filter) -> int:
        """Delete rows, in one commit. Their files stay until they expire.

        Returns:
            How many rows were deleted.

        Raises:
            CommitConflictError: Others changed the table each time.
        """
        counts: list[int] = []

        def delete(table: Table, change: Transaction) -> None:
            counts.append(table.scan(row_filter=where).count())
            change.delete(where)

        self._change(delete, only_existing=True)
        return counts[-1] if counts else 0

    def compact(self, where: Filter | None = None, *, max_files: int | None = None) -> int:
        """Rewrite each partition that has too many files as one file, in one commit.

        Args:
            where: A filter on partition columns; ``None``: all partitions.
            max_files: The most files of a partition; ``None``: the setting.

        Returns:
            How many partitions were rewritten.

        Raises:
            CommitConflictError: Others changed the table each time.
        """
        most, counts = self._settings.max_files if max_files is None else max_files, []

        def compact(table: Table, change: Transaction) -> None:
            files = Counter(_partition(task.file) for task in table.scan(row_filter=where or all_rows()).plan_files())
            places = sorted(place for place, number in files.items() if number > most)[:_MAX_COMPACTED]
            counts.append(len(places))
            for place in places:
                rows = equal(**dict(zip(self.kind.partitions, place, strict=True)))
                change.overwrite(table.scan(row_filter=rows).to_arrow(), rows)

        self._change(compact, only_existing=True)
        return counts[-1] if counts else 0

    def _with_keys(self, cells: list[dict[str, Any]]) -> Filter:
        """Return the filter for the keys of rows, with their partitions and times: other files are not opened."""
        columns = (self.kind.key, *self.kind.partitions)
        where = both(*(one_of(name, {row[name] for row in cells}) for name in columns))
        if (moment := self.kind.moment) is None:
            return where
        times = [row[moment] for row in cells]
        return both(where, between(moment, min(times), max(times)))

    def _change(self, change: Callable[[Table, Transaction], object], *, only_existing: bool = False) -> None:
        """Make a change by one commit; again from the new state, if another writer came first or there is no answer.

        Changes are made by keys, so one that was applied twice adds no row twice.
        """
        unanswered = 0
        for number in range(MAX_TRIES):
            try:
                table = self._home.open(self.kind) if only_existing else self._home.create(self.kind)
                if table is None or self._is_committed(table, change):
                    return
            except ValidationException as error:  # pyiceberg compares the files with the state that it plans from
                log.info("The commit to the registry's table %s conflicted, trying again: %s", self.kind.name, error)
            except CatalogUnavailableError:
                unanswered += 1
                if unanswered > _MAX_UNANSWERED:
                    raise
            time.sleep(random.uniform(0, min(0.1 * 2**number, 4)))  # noqa: S311 (jitter)
        raise CommitConflictError(
            f"the registry's table {self.kind.name} in {self._home.name} was changed by others {MAX_TRIES} times in a "
            "row, and nothing was written. Run it again"
        )

    def _is_committed(self, table: Table, change: Callable[[Table, Transaction], object]) -> bool:
        """Commit a change; ``False`` if another writer came first.

        A conflict with a copy of this commit, whose answer was lost, shows by the snapshots.
        """
        with answered(self._home.catalog.name, f"changing the registry's table {self.kind.name}"), _quiet():
            transaction = table.transaction()
            change(table, transaction)
            new = _snapshots(transaction.table_metadata) - _snapshots(table.metadata)
            try:
                if new:
                    send_once(transaction)
            except CommitFailedException:
                now = self._home.open(self.kind)
                return now is not None and new <= _snapshots(now.metadata)
        return True

    # -- expiration ----------------------------------------------------------------------------

    @property
    def expires(self) -> bool:
        """Whether anything expires: a period is set."""
        return self._settings.expire_after is not None

    def expire_if_due(self) -> None:
        """Expire old snapshots. A failure is only logged: the next sync tries again."""
        try:
            self.expire()
        except (MaterializedViewError, CommitFailedException, *NO_ANSWER) as error:
            log.warning("Could not expire old snapshots of the registry's table %s: %s", self.kind.name, error)

    def expire(self) -> int:
        """Remove the snapshots that have not been current for the period, and the files that only they need.

        Returns:
            How many snapshots were removed.
        """
        period = self._settings.expire_after
        table = None if period is None else self._home.open(self.kind)
        if period is None or table is None:
            return 0
        now_ms = self._home.catalog.files.now_ms(table.location())
        old = _superseded_before(table, now_ms - period // timedelta(milliseconds=1))
        if not old:
            return 0
        lists = {item.snapshot_id: item.manifest_list for item in table.metadata.snapshots}
        kept = _files_of_lists(self._home.catalog.files, [lists[item] for item in lists if item not in old])
        gone = _files_of_lists(self._home.catalog.files, [lists[item] for item in old]) - kept
        table.maintenance.expire_snapshots().by_ids(sorted(old)).commit()
        for location in sorted(gone):
            if lies_in(location, (table.location(),)):
                discard(self._home.catalog.files, location)
        log.info("The registry's table %s: %d snapshots and %d files expired", self.kind.name, len(old), len(gone))
        return len(old)


def _files_of_lists(files: MetadataFiles, lists: Iterable[str]) -> set[str]:
    """Return every file that manifest lists reach: themselves, their manifests and the files in these."""
    found = set(lists)
    manifests = {item.manifest_path: item for location in sorted(found) for item in manifests_at(files, location)}
    found.update(manifests)
    for manifest in manifests.values():
        found.update(files_of(files, manifest))
    return found


@contextmanager
def _quiet() -> Iterator[None]:
    """Ignore pyiceberg's warning that there was nothing to delete."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _snapshots(metadata: TableMetadata) -> set[int]:
    return {item.snapshot_id for item in metadata.snapshots}


def _superseded_before(table: Table, moment_ms: int) -> set[int]:
    """Return the snapshots that another one had replaced before a time, without those with a branch or tag."""
    named = {ref.snapshot_id for ref in table.metadata.refs.values()}
    ordered = sorted(table.metadata.snapshots, key=lambda item: item.sequence_number or 0)
    return {
        item.snapshot_id
        for item, later in pairwise(ordered)
        if later.timestamp_ms < moment_ms and item.snapshot_id not in named
    }


def _partition(file: DataFile) -> tuple[str, ...]:
    return tuple(file.partition[at] for at in range(len(file.partition)))


def _arrow(table: Table, cells: list[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(cells, schema=table.schema().as_arrow())
