# SPDX-License-Identifier: Apache-2.0
"""Which recorded refresh a reader asks for: by its id, by its rows, by what was current at a time, or by its input."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from operator import itemgetter

from airflow_mv.common.snapshots import is_complete, snapshots_of
from airflow_mv.core.catalog import LoadedStorage, LoadedView, MaterializedViewCatalog
from airflow_mv.core.catalog.layouts import all_refreshes
from airflow_mv.core.freshness.observe import observe_tables, require_readable
from airflow_mv.core.refresh.inputs import load_tables
from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.core.spec.materialized_view import (
    KEPT_ROLLBACKS,
    NO_SNAPSHOT,
    BaseTable,
    RefreshRecord,
    StorageState,
)
from airflow_mv.core.spec.table_metadata import TableMetadata, ancestors
from airflow_mv.core.spec.times import from_ms, parse_time, to_ms
from airflow_mv.errors import ConfigurationError, RefreshNotFoundError
from airflow_mv.foundation.words import not_one_of

#: Options of Spark's reader, and the fields that they set.
_OPTIONS = {"snapshot-id": "snapshot_id", "as-of-timestamp": "as_of"}


@dataclass(frozen=True, slots=True)
class TimeTravel:
    """Which rows of a view's history are read. At most one field is set; with none, the current rows.

    Args:
        as_of: The rows that the view had at this time; a time without a zone is UTC. Rollbacks count.
        refresh_id: The rows of this recorded refresh.
        sequence_number: The rows of the recorded refresh with this sequence number (of the storage table's snapshot).
        snapshot_id: The rows in this snapshot of the storage table, if they are those of a recorded refresh.
        bases_as_of: The rows that were computed from the base tables as they were at this time: of the refreshes
            that read no later snapshot, those of the newest definition, and of these the one that read the latest
            snapshots. Where intervals were refreshed on their own, the oldest rows count. A time without a zone is UTC.
    """

    as_of: datetime | None = None
    refresh_id: str | None = None
    sequence_number: int | None = None
    snapshot_id: int | None = None
    bases_as_of: datetime | None = None

    def __post_init__(self) -> None:
        if len(self.chosen) > 1:
            raise ConfigurationError(f"{' and '.join(self.chosen)} exclude each other: each of them chooses the rows")

    def with_options(self, options: Mapping[str, int | str]) -> TimeTravel:
        """Return the choice with that of options as Spark's reader has them.

        Args:
            options: ``snapshot-id``, or ``as-of-timestamp`` in milliseconds since the epoch.

        Raises:
            ConfigurationError: There is no such option, it is not a number, or the choice is made already.
        """
        chosen = dict(self.chosen)
        for name, value in options.items():
            if name not in _OPTIONS:
                raise not_one_of(name, _OPTIONS, field="options")
            if not str(value).removeprefix("-").isdigit():
                raise ConfigurationError(f"option {name}: {value!r} is not a whole number")
            if _OPTIONS[name] in chosen:
                raise ConfigurationError(f"option {name} and {_OPTIONS[name]} exclude each other")
            chosen[_OPTIONS[name]] = from_ms(int(value)) if _OPTIONS[name] == "as_of" else int(value)
        return TimeTravel(**chosen)  # type: ignore[arg-type]

    @property
    def chosen(self) -> dict[str, object]:
        """The field that is set, if there is one, with its value."""
        return {field.name: value for field in fields(self) if (value := getattr(self, field.name)) is not None}

    @property
    def given(self) -> TimeTravel | None:
        """``None`` if no field is set: the current rows."""
        return self if self.chosen else None

    def find(
        self, catalog: MaterializedViewCatalog, view: LoadedView, storage: LoadedStorage, state: StorageState
    ) -> RefreshRecord:
        """Return the recorded refresh that a reader asks for. The log of past refreshes also counts.

        Args:
            state: The table's refresh history.

        Raises:
            RefreshNotFoundError: The history holds no such refresh. The message says what it holds.
            SnapshotNotFoundError: The state of a base table at that time is no longer known.
            InvalidMetadataError: The log of past refreshes is broken.
        """
        state = _with_log(view, storage, state, self)
        if self.bases_as_of is not None:
            return _of_bases(catalog, view, state, parse_time(self.bases_as_of))
        if self.snapshot_id is not None:
            return _of_snapshot(view, storage, state, self.snapshot_id)
        if self.sequence_number is not None:
            found = [record for record in state.refreshes if record.sequence_number == self.sequence_number]
            return found[-1] if found else _missing(view, state, f"with sequence number {self.sequence_number}")
        if self.as_of is not None:
            return _of_time(view, state, parse_time(self.as_of))
        named = next((record for record in state.refreshes if record.refresh_id == self.refresh_id), None)
        return named or _missing(view, state, f"with id {self.refresh_id}")


def _with_log(view: LoadedView, storage: LoadedStorage, state: StorageState, wanted: TimeTravel) -> StorageState:
    """Return the history with the past refreshes that only the log has."""
    recorded = {record.refresh_id for record in state.refreshes}

    def counts(record: RefreshRecord) -> bool:
        if record.refresh_id in recorded or wanted.bases_as_of is None:
            return True
        # The log has no intervals of a refresh of one, and tables of an earlier definition may be gone.
        return is_complete(record) and record.version_id == view.metadata.current_version_id

    return state.model_copy(update={"refreshes": tuple(filter(counts, all_refreshes(view, storage)))})


def _of_time(view: LoadedView, state: StorageState, moment: datetime) -> RefreshRecord:
    refresh_id = current_at(state, to_ms(moment))
    found = next((record for record in state.refreshes if record.refresh_id == refresh_id), None)
    gone = f": the view was at refresh {refresh_id} then, which is no longer recorded" if refresh_id else ""
    return found or _missing(view, state, f"as of {moment.isoformat()}{gone}")


def _of_snapshot(view: LoadedView, storage: LoadedStorage, state: StorageState, snapshot_id: int) -> RefreshRecord:
    """Find the refresh whose rows a snapshot holds. A compaction of them holds the same rows."""
    if storage.table.find(snapshot_id) is None:
        return _missing(view, state, f"with snapshot {snapshot_id}: the storage table has no such snapshot")
    by_id = snapshots_of(storage, state.refreshes)
    # The records of compacted rows name the last compaction. What was compacted may also be there.
    heads = {
        found: record for record in state.refreshes for found in _same_rows(storage.table, by_id[record.refresh_id])
    }
    for same in _same_rows(storage.table, snapshot_id):
        if same in heads:
            return heads[same]
    return _missing(view, state, f"with snapshot {snapshot_id}: another writer's commit, or a refresh that has expired")


def _same_rows(table: TableMetadata, snapshot_id: int | None) -> Iterator[int]:
    """Yield a snapshot, and the earlier ones that differ from it by compactions only."""
    for snapshot in ancestors(table, snapshot_id):
        yield snapshot.snapshot_id
        if not snapshot.is_compaction:
            return


def _of_bases(
    catalog: MaterializedViewCatalog, view: LoadedView, state: StorageState, moment: datetime
) -> RefreshRecord:
    """Find the refresh with the latest input that is not later than a time. Snapshots of unknown time do not count.

    Only refreshes of one definition can be compared: others may read other tables, which may be gone since.
    """
    definitions: dict[Hashable, list[RefreshRecord]] = {}
    for record in reversed(state.refreshes):
        definitions.setdefault(_definition(record), []).append(record)
    for records in definitions.values():  # the newest definition first, and of each the newest refresh
        names = sorted({base.identifier for record in records for base in _bases(record)})
        observed, _ = observe_tables(catalog, [Identifier.parse(name) for name in names], None)
        require_readable(view.identifier, observed)
        commits = {str(name): _commit_times(table) for name, table in load_tables(catalog, observed).items()}
        read = [(record, [_commit_time(commits, base) for base in _bases(record)]) for record in records]
        fit = [record for record, times in read if all(time is not None and time <= to_ms(moment) for time in times)]
        if fit:
            return max(fit, key=lambda record: _input_time(commits, record))
    return _missing(view, state, f"that read its base tables as of {moment.isoformat()} or earlier")


def _definition(record: RefreshRecord) -> Hashable:
    nested = ((item.identifier, item.uuid, item.version_id) for item in record.nested_views)
    return record.version_id, frozenset(nested)


def _input_time(commits: Mapping[str, Mapping[int, int]], record: RefreshRecord) -> int:
    """Return a number that is larger for a later input: for each base table the time of the oldest stored rows."""
    times: dict[str, int] = {}
    for base in _bases(record):
        moment = _commit_time(commits, base) or 0
        times[base.identifier] = min(moment, times.get(base.identifier, moment))
    return sum(times.values())


def _bases(record: RefreshRecord) -> Iterator[BaseTable]:
    yield from record.base_tables
    for part in record.intervals:
        yield from part.base_tables


def _commit_times(table: TableMetadata) -> dict[int, int]:
    """Return when each snapshot was committed, also of expired ones that the table's log still has."""
    logged = {entry.snapshot_id: entry.timestamp_ms for entry in reversed(table.snapshot_log)}
    return {**logged, **{snapshot.snapshot_id: snapshot.timestamp_ms for snapshot in table.snapshots}}


def _commit_time(commits: Mapping[str, Mapping[int, int]], base: BaseTable) -> int | None:
    return 0 if base.snapshot_reference == NO_SNAPSHOT else commits[base.identifier].get(base.snapshot_reference)


def _missing(view: LoadedView, state: StorageState, requested: str) -> RefreshRecord:
    oldest = state.refreshes[0].refreshed_at_ms
    when = "of unknown time" if oldest is None else f"of {from_ms(oldest).isoformat()}"
    raise RefreshNotFoundError(
        f"view {view.identifier} has no refresh {requested} ({len(state.refreshes)} recorded, the oldest {when}; "
        f"`airflow-mv history {view.identifier}` lists them, and a view keeps more of them with --time-travel)"
    )


def current_at(state: StorageState, moment_ms: int) -> str | None:
    """Return the id of the refresh that was current at a time; its record may have been dropped since.

    Args:
        moment_ms: The time, ms since the epoch.

    Returns:
        ``None`` if unknown: the time is before the recorded history.
    """
    if len(state.rollbacks) == KEPT_ROLLBACKS and moment_ms < state.rollbacks[0].rolled_back_at_ms:
        return None  # an earlier rollback may have been dropped
    # A rollback is always later than what was published before it: of one time, the refresh is the later one.
    events = [(item.rolled_back_at_ms, 0, item.refresh_id) for item in state.rollbacks]
    events += [(record.refreshed_at_ms or 0, 1, record.refresh_id) for record in state.refreshes]
    earlier = sorted((event for event in events if event[0] <= moment_ms), key=itemgetter(0, 1))
    return earlier[-1][2] if earlier else None
