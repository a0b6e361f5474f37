# SPDX-License-Identifier: Apache-2.0
"""Find lost or truncated files of a view, and publish a state that a refresh can continue.

The rows of a view are derived: what is lost is computed again. A lost metadata file is replaced by an earlier whole
one. If a file of the current rows is lost, the view counts as never refreshed. A repair deletes nothing. It publishes
new metadata files in one conditional change that requires the catalog's state to be the one that was read. So a repair
cannot undo a running refresh, nor a refresh a repair.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from airflow_mv.common.damage import Checked, Damage, check_snapshots, store_of
from airflow_mv.common.snapshots import snapshot_of
from airflow_mv.common.status import timestamp
from airflow_mv.core.catalog import LoadedStorage, LoadedView, MaterializedViewCatalog, TableChange, storage_place
from airflow_mv.core.catalog.catalog import lost_properties_of, next_number
from airflow_mv.core.catalog.files import discard
from airflow_mv.core.catalog.loaded import Row
from airflow_mv.core.catalog.sql import TABLE, VIEW
from airflow_mv.core.publish.pointed import write_next
from airflow_mv.core.publish.protocol import Change, Effects, LoadedState, Verdict, commit
from airflow_mv.core.publish.storage_change import RestoreProperties, RestoreStorage, table_of
from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.core.spec.materialized_view import (
    PROPERTY,
    STORAGE_OF_PROPERTY,
    RefreshRecord,
    StorageState,
    property_text,
)
from airflow_mv.core.spec.table_metadata import TableMetadata
from airflow_mv.core.spec.view import with_view_properties
from airflow_mv.errors import (
    CommitConflictError,
    CommitStateUnknownError,
    InvalidMetadataError,
    MaterializedViewError,
    NotFoundError,
)
from airflow_mv.extras.maintenance.checksums import checksums, own_snapshots
from airflow_mv.extras.maintenance.clock import repair_clock
from airflow_mv.extras.maintenance.evidence import (
    Evidence,
    TableFile,
    ViewFile,
    lost_view_properties,
    require_materialized,
)
from airflow_mv.extras.maintenance.expire import without_snapshots
from airflow_mv.extras.maintenance.view_properties import RestoreViewProperties

log = logging.getLogger(__name__)

#: The record of a storage table that was never refreshed.
NEVER = '{"refreshes":[]}'
_MAIN = "main"
_ROUNDS = 4
_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding of a diagnosis.

    Args:
        what: What is wrong.
        file: The affected file.
        known: How it was detected, and what proves that the replacement is this view's.
        repair: What the repair does, or what an operator has to do.
        lost: What the repair loses.
        repairable: Whether the repair can fix it.
    """

    what: str
    file: str
    known: str
    repair: str
    lost: str = "nothing"
    repairable: bool = True


@dataclass(frozen=True, slots=True)
class Edit:
    """A change of a storage table's metadata.

    Args:
        drops: Ids of snapshots to remove.
        state: The new refresh history; ``None`` for a table that counts as never refreshed.
        resets: Whether the table has no current snapshot afterwards.
    """

    drops: tuple[int, ...]
    state: StorageState | None
    resets: bool

    @property
    def text(self) -> str:
        """The refresh history as the text of the table's property."""
        return NEVER if self.state is None else property_text(self.state)


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The diagnosis of a view, and the state that a repair publishes.

    Args:
        findings: What is wrong.
        view: The view metadata file that the repaired view is made from.
        table: The storage metadata file that it is made from.
        edit: A further change of the storage table's metadata.
        row: The view's row as it was read; ``None`` in a REST catalog.
        checked: What the check of the snapshots' files found.
    """

    findings: tuple[Finding, ...]
    view: LoadedView | None = None
    table: TableFile | None = None
    edit: Edit | None = None
    row: Row | None = None
    table_row: Row | None = None
    checked: Checked | None = None

    @property
    def repairable(self) -> bool:
        """Whether something is wrong and all of it can be repaired."""
        return bool(self.findings) and all(item.repairable for item in self.findings)


@dataclass(frozen=True, slots=True)
class RepairResult:
    """The result of a repair.

    Args:
        findings: What was wrong.
        done: Whether it was repaired.
    """

    view: Identifier
    findings: tuple[Finding, ...] = ()
    done: bool = False

    @property
    def ok(self) -> bool:
        """Whether the view is intact now, as far as this command checks it."""
        return self.done or not self.findings

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON document."""
        return {
            "view": str(self.view),
            "healthy": not self.findings,
            "repaired": self.done,
            "findings": [asdict(item) for item in self.findings],
        }


def without_records(state: StorageState, refresh_ids: Iterable[str]) -> StorageState:
    """Return a history without some refreshes. The current one must not be among them."""
    gone = set(refresh_ids)
    document = state.document()
    kept = [item for item in document["refreshes"] if item["refresh-id"] not in gone]
    return StorageState.read({**document, "refreshes": kept}, source=PROPERTY)


def edited(document: Mapping[str, Any], edit: Edit) -> dict[str, Any]:
    """Return table metadata after an edit. The caller sets the record."""
    changed = dict(document)
    if edit.resets:
        refs = {name: ref for name, ref in changed.get("refs", {}).items() if name != _MAIN}
        changed = {**changed, "current-snapshot-id": -1, "refs": refs, "snapshot-log": []}
    gone = set(edit.drops)
    refs = {name: ref for name, ref in changed.get("refs", {}).items() if ref["snapshot-id"] not in gone}
    return without_snapshots({**changed, "refs": refs}, gone)


# -- diagnosis ----------------------------------------------------------------------------------------


def diagnose(
    catalog: MaterializedViewCatalog,
    view: str | Identifier,
    *,
    data: bool = True,
    report: Callable[[str], None] = log.info,
) -> Diagnosis:
    """Read everything that a view needs. Return what is wrong and what a repair would do.

    Args:
        data: Whether to also check data files and delete files.
        report: Receives progress messages.

    Raises:
        ViewNotFoundError: There is no such view.
        NotMaterializedError: It is a plain view.
        CatalogUnavailableError: The catalog or the store did not respond, so nothing is known.
        RefusedLocationError: A file is in no folder that the catalog's configuration allows. It may be intact.
    """
    return _Doctor(Evidence.of(catalog, view), data, report).diagnose()


@dataclass
class _Doctor:
    """One diagnosis, from the catalog's row down to the data files."""

    evidence: Evidence
    data: bool
    report: Callable[[str], None]
    findings: list[Finding] = field(default_factory=list)
    table_row: Row | None = None

    def diagnose(self) -> Diagnosis:
        view = self._view()
        table = self._table(view) if view is not None else None
        if view is None or table is None or table.storage is None:
            return Diagnosis(tuple(self.findings), view)
        store = store_of(self.evidence.catalog, view, table.storage)
        own = own_snapshots(view, table.storage.table)
        found = table.storage.table
        checked = check_snapshots(store, found, only=own, data=self.data, content=checksums(found), report=self.report)
        edit = self._snapshots(table, checked) if checked.damaged else None
        rows = (self.evidence.row, self.table_row)
        return Diagnosis(tuple(self.findings), view, table, edit, *rows, checked)

    def _cannot(self, what: str, file: str, known: str, repair: str) -> None:
        advice = repair.replace("VIEW", str(self.evidence.view))
        self.findings.append(Finding(what, file, known, advice, "nothing more", repairable=False))

    # The view's metadata file.

    def _view(self) -> LoadedView | None:
        row = self.evidence.row
        if row is None:
            return self._view_without_row()
        current, previous = self._current(), self.evidence.view_file(row.previous) if row.previous else None
        if current.view is None:
            return self._lost_view(current, previous)
        require_materialized(current.view)
        return current.view

    def _view_without_row(self) -> LoadedView | None:
        """Return a view behind a REST server, or one that is a table."""
        view = self.evidence.view_of_table()
        if view is None:
            row = self.evidence.catalog.row(self.evidence.view)
            known = "the catalog's entry names it, and no other complete file there is marked as this view"
            what = "the table's metadata file is lost or truncated"
            self._cannot(what, row.location if row else "", known, _RESTORE_TABLE)
            return None
        require_materialized(view)
        return view

    def _current(self) -> ViewFile:
        """Read the file that the row names. It must be of the same view as the one that the row named before."""
        row = self.evidence.row
        current = self.evidence.view_file(row.location if row else "")
        previous = self.evidence.view_file(row.previous) if row and row.previous else None
        if previous is None or None in (current.uuid, previous.uuid) or current.uuid == previous.uuid:
            return current
        why = f"it has the view-uuid {current.uuid}, the file before it has {previous.uuid}"
        return ViewFile(current.location, None, why)

    def _lost_view(self, current: ViewFile, previous: ViewFile | None) -> LoadedView | None:
        if current.refused is not None:
            raise current.refused
        files = [item for item in self.evidence.view_files() if item.location != current.location]
        uuids = {item.uuid for item in files}
        wanted = previous.uuid if previous and previous.uuid else next(iter(uuids)) if len(uuids) == 1 else None
        known = f"the catalog's row names it: {current.why}"
        ours = [item for item in files if item.uuid == wanted and item.view and item.view.settings]
        if wanted is None or not ours:
            several = f"; {len(uuids)} views have files in this folder" if uuids else ""
            self._cannot("the view's metadata file is lost or truncated", current.location, known + several, _RECREATE)
            return None
        chosen, proof = self._instead(ours, previous)
        self.findings.append(
            Finding(
                "the view's metadata file is lost or truncated",
                current.location,
                f"{known}. {chosen.location} is complete; {proof}",
                f"publish the content of {chosen.location} again, as a new metadata file",
                "what was published after that file: a refresh, a changed definition or property",
            )
        )
        return chosen.view

    @staticmethod
    def _instead(files: Sequence[ViewFile], previous: ViewFile | None) -> tuple[ViewFile, str]:
        """Choose the file that replaces a lost one. Return it with the proof that it is this view's."""
        if previous is not None and previous in files:
            return previous, "the catalog's row named it before"
        newest = max(files, key=lambda item: (item.number, item.location))
        return newest, "it is the newest in the view's metadata folder, and all files there have its view-uuid"

    # The storage table's metadata file.

    def _table(self, view: LoadedView) -> TableFile | None:
        if _in_pointer(view):
            location = str(storage_place(view))
            table = self._allowed(self.evidence.table_file(location, view))
            return table if table.storage else self._lost_table(view, table, self._pointed_tables(view, table))
        if self.evidence.catalog.is_rest:
            return self.evidence.served_table(view)
        row = self.table_row = self.evidence.table_row(view)
        if row is None:
            known = f"the catalog has no row of the table {view.storage_table}"
            self._cannot("the storage table is not in the catalog", str(view.storage_table), known, _REPLACE)
            return None
        table = self._allowed(self.evidence.table_file(row.location, view))
        if table.storage is not None:
            return table
        return self._lost_table(view, table, self._registered_tables(view, table, row))

    def _allowed(self, table: TableFile) -> TableFile:
        """Refuse a table in a folder that the catalog's configuration does not allow, before that folder is listed.

        Raises:
            RefusedLocationError: It is in such a folder.
        """
        if table.refused is not None:
            raise table.refused
        return table

    def _pointed_tables(self, view: LoadedView, lost: TableFile) -> Iterator[tuple[TableFile, str]]:
        """Yield the storage metadata files that earlier files of the view name, best first, with their proofs."""
        row, number = self.evidence.row, next_number(view.metadata_location)
        previous = row.previous if row else None
        files = [item for item in self.evidence.view_files() if item.uuid == view.metadata.view_uuid]
        for item in sorted(files, key=lambda item: (item.location == previous, item.number), reverse=True):
            if item.view is None or not item.view.settings or not _in_pointer(item.view) or item.number >= number:
                continue
            table = self.evidence.table_file(str(storage_place(item.view)), item.view)
            if table.location != lost.location:
                yield table, f"the view's earlier metadata file {item.location} names it"

    def _registered_tables(self, view: LoadedView, lost: TableFile, row: Row) -> Iterator[tuple[TableFile, str]]:
        """Yield the file that the table's row named before, and earlier ones in the folder, newest first."""
        proof = "it has the table-uuid that the view names, and is marked as this view's storage table"
        if row.previous:
            yield self.evidence.table_file(row.previous, view), proof
        beside = self.evidence.table_files(row.location.rpartition("/")[0], view)
        for item in sorted(beside, key=lambda item: item.number, reverse=True):
            if item.committed and item.number < lost.number:
                yield item, proof

    def _lost_table(
        self, view: LoadedView, lost: TableFile, candidates: Iterable[tuple[TableFile, str]]
    ) -> TableFile | None:
        known = f"{'the view names' if _in_pointer(view) else 'the catalog names'} it: {lost.why}"
        found = next((item for item in candidates if item[0].storage is not None), None)
        if found is None:
            advice = _RECREATE_TABLE if view.holder else _REPLACE
            self._cannot("the storage table's metadata file is lost or truncated", lost.location, known, advice)
            return None
        chosen, proof = found
        self.findings.append(
            Finding(
                "the storage table's metadata file is lost or truncated",
                lost.location,
                f"{known}. {chosen.location} is complete; {proof}",
                f"publish the content of {chosen.location} again, as a new metadata file",
                f"the refreshes after {_when(chosen.state)}; the next refresh computes them again",
            )
        )
        return chosen

    # The snapshots.

    def _snapshots(self, table: TableFile, checked: Checked) -> Edit | None:
        storage, state = table.storage, table.state
        if storage is None:
            return None
        rows = {storage.rows_snapshot, storage.table.head} - {None}
        if rows.isdisjoint(checked.damaged):
            return self._older_snapshots(table, checked)
        damages = {item for number in rows for item in checked.damaged.get(number or 0, ())}
        self._broken(damages, "mark the view as never refreshed: the next refresh computes all rows", _ALL_LOST)
        recorded = {_rows_of(table, record) for record in (state.refreshes if state else ())}
        drops = tuple(number for number in storage.table.by_id if number in checked.damaged or number in recorded)
        return Edit(drops, None, resets=True)

    def _broken(self, damages: Iterable[Damage], repair: str, lost: str) -> None:
        items = sorted(damages, key=lambda item: (item.role, item.location))
        for item in items[:_SHOWN]:
            known = f"the current snapshot needs it: {item.why}"
            self.findings.append(Finding(f"a {item.role} is lost or truncated", item.location, known, repair, lost))
        if len(items) > _SHOWN:
            more = f"{len(items) - _SHOWN:,} more files are lost or truncated"
            self.findings.append(Finding(more, items[_SHOWN].location, "this one and others", repair, lost))

    def _older_snapshots(self, table: TableFile, checked: Checked) -> Edit:
        state = table.state
        gone = _gone(table, checked, state, state.current_refresh_id) if state else []
        for number, items in checked.damaged.items():
            refs = [name for name, ref in table.table.refs.items() if ref.snapshot_id == number] if table.table else []
            named = f", with the tags and branches {', '.join(refs)}" if refs else ""
            self.findings.append(
                Finding(
                    f"a {items[0].role} of the older snapshot {number} is lost or truncated",
                    items[0].location,
                    f"{items[0].why} ({len(items)} damaged files)",
                    f"drop snapshot {number} from the metadata{named}",
                    "time travel to that snapshot; the current rows do not change",
                )
            )
        return Edit(tuple(checked.damaged), without_records(state, gone) if state else None, resets=False)


_RECREATE = "create the view again: `airflow-mv drop VIEW --force`, then `airflow-mv create VIEW --sql …`"
_RESTORE_TABLE = (
    "restore the file; or remove the table from the catalog with the program that made it, and create the view again"
)
_RECREATE_TABLE = (
    "restore the file, or create the view again: `airflow-mv drop VIEW`, then `airflow-mv create VIEW --sql …`"
)
_REPLACE = (
    "restore the file, or give the view a new storage table: `airflow-mv create VIEW --replace`, then `airflow-mv "
    "refresh VIEW`"
)
_ALL_LOST = "the stored rows and the history, until the next refresh computes the rows again"


def _in_pointer(view: LoadedView) -> bool:
    """Whether the view's own metadata file names the state of its stored rows, so that its pointer publishes them."""
    return not isinstance(storage_place(view), Identifier)


def _rows_of(table: TableFile, record: RefreshRecord) -> int | None:
    return snapshot_of(table.storage, record) if table.storage else None


def _gone(table: TableFile, checked: Checked, history: StorageState, kept: str) -> list[str]:
    """Return the refreshes of a history whose rows are damaged, except the one that is kept."""
    return [
        record.refresh_id
        for record in history.refreshes
        if record.refresh_id != kept and _rows_of(table, record) in checked.damaged
    ]


def _when(state: StorageState | None) -> str:
    if state is None:
        return "the view's creation"
    return f"{state.current_refresh_id} of {timestamp(state.current.refreshed_at_ms) or 'an unknown time'}"


#: What is found where all files are intact, and what mends it.
_Rest = tuple[Finding, Callable[[Effects], object]]


# -- repair -------------------------------------------------------------------------------------------


def repair(
    catalog: MaterializedViewCatalog,
    view: str | Identifier,
    *,
    act: bool = False,
    effects: Effects | None = None,
    report: Callable[[str], None] = log.info,
) -> RepairResult:
    """Diagnose a view, and repair it if ``act`` is set.

    Args:
        act: Whether to repair. By default nothing is changed.
        effects: The clock.
        report: Receives progress messages.

    Raises:
        CommitConflictError: The view has changed since it was read. Nothing was changed.
        CommitStateUnknownError: No answer; the repair may be published. Run it again to settle it.
        MaterializedViewError: See :func:`diagnose`.
    """
    identifier, effects = catalog.identify(view), effects or Effects()
    findings: list[Finding] = []
    for number in range(_ROUNDS):
        rest = _lost(catalog, identifier)
        if rest is None:
            found = diagnose(catalog, identifier, report=report)
            findings += [item for item in found.findings if item not in findings]
            if found.findings:
                if not act or not found.repairable:
                    break
                _publish(catalog, identifier, found, effects)
                continue
            rest = _altered(catalog, identifier) or _clock(catalog, identifier)
        if rest is None:
            return RepairResult(identifier, tuple(findings), done=number > 0)
        finding, mend = rest
        findings.append(finding)
        if not act or not finding.repairable:
            break
        mend(effects)
    return RepairResult(identifier, tuple(findings))


def _lost(catalog: MaterializedViewCatalog, view: Identifier) -> _Rest | None:
    """Return the finding about properties of the view's table that another program has removed or changed."""
    try:
        name = table_of(catalog, view)
        if name != view and (found := _lost_of_view(catalog, view)) is not None:
            return found
        lost = None if name is None else lost_properties_of(catalog, name, view)
    except (InvalidMetadataError, NotFoundError):
        return None  # the diagnosis names the fault
    if name is None or lost is None:
        return None
    finding = Finding(
        f"another program has removed or changed properties of the table {name}: {lost.names}",
        lost.location,
        f"the table has the tags {', '.join(lost.requires)}, and this earlier metadata file, which was current until "
        f"{timestamp(lost.until_ms)}, has the properties that belong to them",
        "set the properties as they were",
    )
    return finding, lambda effects: RestoreProperties(catalog, name, view, effects).publish()


def _lost_of_view(catalog: MaterializedViewCatalog, view: Identifier) -> _Rest | None:
    """Return the finding about properties of the view itself, beside a table of its rows."""
    loaded = catalog.load(view)
    found = lost_view_properties(catalog, loaded)
    if found is None:
        return None
    lost, location = found
    finding = Finding(
        f"another program has removed or changed properties of the view: {', '.join(lost)}",
        location,
        "this earlier metadata file of the view has them, and the storage table that they name exists",
        "set the properties as they were",
    )
    return finding, lambda effects: RestoreViewProperties(catalog, loaded, lost, effects).publish()


def _altered(catalog: MaterializedViewCatalog, view: Identifier) -> _Rest | None:
    """Return the finding about columns, partitioning or a sort order that another program has changed."""
    loaded = catalog.load(view)
    storage = catalog.load_storage(loaded)
    altered = storage.altered(loaded)
    if not altered.columns and not altered.settings:
        return None
    finding = Finding(
        f"another program has changed the storage table: {'; '.join((*altered.columns, *altered.settings))}",
        storage.location,
        "the schema of the snapshot with the view's rows, and what the last refresh recorded",
        "make the earlier schema, partition spec and sort order current again, as the next refresh does",
        "values that the other program has written since",
    )
    return finding, lambda effects: RestoreStorage(catalog, view, effects).publish()


def _clock(catalog: MaterializedViewCatalog, view: Identifier) -> _Rest | None:
    """Return the finding about times of a wrong clock in an intact storage table, if there is one."""
    try:
        found = repair_clock(catalog, view, dry_run=True)
    except MaterializedViewError as error:
        log.warning("Could not check the timestamps of %s: %s", view, error)
        return None
    if not found.needed:
        return None
    advice = "lower the timestamps to the store's clock" if found.correctable else "wait, or create the view again"
    finding = Finding(
        f"the storage table has timestamps of a wrong clock, up to {found.ahead_seconds:.0f} s in the future",
        found.storage_table_location,
        "the store's clock, and the order of the timestamps",
        advice,
        "the times at which these changes were made" if found.correctable else "nothing more",
        repairable=found.correctable,
    )
    return finding, lambda effects: repair_clock(catalog, view, effects=effects)


def _publish(catalog: MaterializedViewCatalog, view: Identifier, found: Diagnosis, effects: Effects) -> None:
    """Publish one step of a repair. The next diagnosis finds what is left to do."""
    if found.view is None or found.table is None:
        raise NotFoundError(f"view {view}: there is nothing to repair it from")
    if _in_pointer(found.view):
        _publish_pointed(catalog, found, effects)
    elif found.row is not None and found.view.metadata_location != found.row.location:
        _publish_view(catalog, found.row, found.view, found.view.materialized.storage_table_location, effects)
    elif found.table_row is not None and found.table_row.location != found.table.location:
        _publish_table(catalog, found, found.table_row.location, effects)
    else:
        _commit_table(catalog, found, effects)


def _publish_pointed(catalog: MaterializedViewCatalog, found: Diagnosis, effects: Effects) -> None:
    """Write the changed metadata and swap the view's pointer, in one change."""
    view, table = found.view, found.table
    if found.row is None or view is None or table is None or table.document is None or table.table is None:
        return
    settings, edit, location, now_ms = view.materialized, found.edit, table.location, effects.now_ms()
    written = edit is not None or location != settings.storage_table_location
    if written:
        document = edited(table.document, edit) if edit else table.document
        location = write_next(
            catalog,
            table.table.location,
            document,
            previous_location=table.location,
            updates={PROPERTY: edit.text} if edit else {},
            tags={},
            now_ms=now_ms,
        )
    _publish_view(catalog, found.row, view, location, effects, discards=(location,) if written else ())


def _publish_view(
    catalog: MaterializedViewCatalog,
    row: Row,
    view: LoadedView,
    storage_location: str | None,
    effects: Effects,
    discards: tuple[str, ...] = (),
) -> None:
    """Write a view's metadata under a new name and swap the row to it, if the row did not change since it was read."""
    settings = view.materialized.repointed(storage_location)
    metadata = with_view_properties(view.metadata, {PROPERTY: property_text(settings)})
    number = max(next_number(row.location), next_number(view.metadata_location))
    new = catalog.write_metadata(metadata, number=number)
    _RowRepair(catalog, view.identifier, row.location, new, effects, discards).publish()


def _publish_table(catalog: MaterializedViewCatalog, found: Diagnosis, base: str, effects: Effects) -> None:
    """Write a storage table's metadata under a new name and swap its row to it (layouts with a table's row)."""
    view, table = found.view, found.table
    name = view.storage_table if view else None
    if name is None or table is None or table.document is None or table.table is None:
        return
    new = write_next(
        catalog,
        table.table.location,
        {**table.document},
        previous_location=table.location,
        updates={},
        tags={},
        now_ms=effects.now_ms(),
        number=max(next_number(table.location), next_number(base)),
    )
    _RowRepair(catalog, name, base, new, effects, kind=TABLE).publish()


def _commit_table(catalog: MaterializedViewCatalog, found: Diagnosis, effects: Effects) -> None:
    """Change the storage table in one commit (layouts with a table's row)."""
    view, table = found.view, found.table
    name, storage = (view.storage_table, table.storage) if view and table else (None, None)
    if name is None or storage is None:
        return
    change = TableChange(properties={STORAGE_OF_PROPERTY: storage.table.properties.get(STORAGE_OF_PROPERTY, "")})
    if found.edit is not None:
        change = _table_change(found.edit, table)
    _TableRepair(catalog, name, storage, change, effects).publish()


class _Repair(Change[LoadedState]):
    """One step of a repair. After a conflict it is not rebuilt: the view has to be diagnosed again."""

    def publish(self) -> None:
        """Run the protocol.

        Raises:
            CommitConflictError: The view has changed since it was read. Nothing was changed.
            CommitStateUnknownError: No answer; the repair may be published. Run it again to settle it.
        """
        if commit(self).verdict == Verdict.LANDED:
            return
        if self.unknown:
            raise CommitStateUnknownError(
                f"{self.target} has changed since it was read, and the catalog did not answer a commit: the repair "
                "may have been published before that. Nothing was deleted. Run it again"
            )
        raise CommitConflictError(f"{self.target} has changed since it was read: nothing was repaired. Run it again")


class _RowRepair(_Repair[Row | None]):
    """Make a row name another metadata file. It has landed if the row names that file, or named it before.

    Args:
        catalog: Where the row is.
        base: The file that the row names now.
        new: The file that the row is to name.
        discards: Other files that were written for it.
        kind: Whether the row is of a view or of a table.
    """

    def __init__(
        self,
        catalog: MaterializedViewCatalog,
        name: Identifier,
        base: str,
        new: str,
        effects: Effects,
        discards: tuple[str, ...] = (),
        *,
        kind: str = VIEW,
    ) -> None:
        super().__init__(str(name), "the repair", effects)
        self._catalog, self._name, self._base, self._new = catalog, name, base, new
        self._discards, self._kind = discards, kind

    def load(self) -> Row | None:
        """Read the row."""
        return self._catalog.row(self._name)

    def judge(self, state: Row | None) -> Verdict:
        """``SUPERSEDED`` if another writer has moved the row."""
        if state is not None and self._new in (state.location, state.previous):
            return Verdict.LANDED
        return Verdict.READY if self.may_land(state) else Verdict.SUPERSEDED

    def send(self, _state: Row | None) -> bool:
        """Swap the row."""
        return self._catalog.swap(self._name, self._base, self._new, kind=self._kind)

    def may_land(self, state: Row | None) -> bool:
        """Whether the row is as it was read."""
        return state is not None and state.location == self._base

    def clean_up(self) -> None:
        """Delete what was written. After a lost answer delete nothing, because the row may name our file."""
        for location in () if self.unknown else (self._new, *self._discards):
            discard(self._catalog.files, location)


class _TableRepair(_Repair[tuple[str, TableMetadata] | None]):
    """A commit to a storage table. It has landed if the table is in the state that the commit makes.

    Args:
        storage: The table as it was read.
    """

    def __init__(
        self,
        catalog: MaterializedViewCatalog,
        name: Identifier,
        storage: LoadedStorage,
        change: TableChange,
        effects: Effects,
    ) -> None:
        super().__init__(str(name), "the repair", effects)
        self._catalog, self._name, self._storage, self._change = catalog, name, storage, change

    def load(self) -> tuple[str, TableMetadata] | None:
        """Load the table."""
        located = self._catalog.locate([self._name]).get(self._name)
        return (located.metadata_location, self._catalog.table_metadata(self._name, located)) if located else None

    def judge(self, state: tuple[str, TableMetadata] | None) -> Verdict:
        """``SUPERSEDED`` if another writer has changed what the commit requires."""
        if state is None or state[1].table_uuid != self._storage.table.table_uuid:
            return Verdict.SUPERSEDED
        if state[0] != self._storage.location and self._has_landed(state[1]):
            return Verdict.LANDED
        return Verdict.READY if self._meets(state[1]) else Verdict.SUPERSEDED

    def _has_landed(self, table: TableMetadata) -> bool:
        change = self._change
        refs = {name: ref.snapshot_id for name, ref in table.refs.items()}
        return (
            all(table.properties.get(key) == value for key, value in change.properties.items())
            and all(refs.get(name) == item for name, item in (*change.branches.items(), *change.tags.items()))
            and refs.keys().isdisjoint(change.removes)
            and table.by_id.keys().isdisjoint(change.drops)
        )

    def _meets(self, table: TableMetadata) -> bool:
        refs = {name: ref.snapshot_id for name, ref in table.refs.items()}
        return all(refs.get(name) == item for name, item in self._change.requires.items())

    def send(self, _state: tuple[str, TableMetadata] | None) -> bool:
        """Commit."""
        uuid = self._storage.table.table_uuid or ""
        return self._catalog.tables.commit(self._name, uuid, self._change) is not None

    def may_land(self, state: tuple[str, TableMetadata] | None) -> bool:
        """Whether the commit's requirements hold."""
        return state is not None and self._meets(state[1])


def _table_change(edit: Edit, table: TableFile | None) -> TableChange:
    storage = table.storage if table else None
    if storage is None:
        raise MaterializedViewError("there is no storage table to change")
    refs = {name: ref.snapshot_id for name, ref in storage.table.refs.items()}
    tag = storage.state.tag if storage.state else None
    removes = {name for name, snapshot in refs.items() if snapshot in edit.drops and name != _MAIN}
    if edit.resets and tag in refs:
        removes.add(str(tag))
    return TableChange(
        requires={_MAIN: storage.table.head, **refs},
        removes=(*sorted(removes), *((_MAIN,) if edit.resets and _MAIN in refs else ())),
        properties={PROPERTY: edit.text} if edit.state is not None or edit.resets else {},
        drops=edit.drops,
    )
