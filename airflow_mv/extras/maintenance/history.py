# SPDX-License-Identifier: Apache-2.0
"""Proof of ownership: a file is a view's if the view's metadata files, current or old, name or reach it.

The files below the view's folders are listed first. A view metadata file is the view's if its content has the view's
uuid. A storage metadata file is the view's if its content has the uuid of a storage table that one of these view
metadata files names. Manifest lists, manifests, data, delete and statistics files are the view's if one of these
storage metadata files reaches them. Working files of refreshes are recognized by their content.
"""

from __future__ import annotations

import bisect
import hashlib
import json
import logging
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

import msgspec

from airflow_mv.core.catalog import LoadedStorage, LoadedView, MaterializedViewCatalog
from airflow_mv.core.catalog.files import CLOCK_TEXT, METADATA_SUFFIXES, StoredFile
from airflow_mv.core.script import REFRESH_ID_KEY, Outcome, Script
from airflow_mv.core.spec.materialized_view import DEFINITION_PROPERTY, PROPERTY, STORAGE_TABLE_UUID_PROPERTY
from airflow_mv.core.spec.stored import unpacked
from airflow_mv.core.spec.table_metadata import Snapshot
from airflow_mv.errors import ConfigurationError, InvalidMetadataError, MetadataFileNotFoundError
from airflow_mv.extras.maintenance.deletion_log import log_location
from airflow_mv.extras.maintenance.entries import CatalogEntry, MetadataPlaces
from airflow_mv.extras.maintenance.evidence import Evidence
from airflow_mv.extras.maintenance.matcher import LocationMatcher
from airflow_mv.extras.maintenance.reachable_files import PastFilesOf

_CUT_UUID = re.compile(rb'"(view|table)-uuid"\s*:\s*"([^"]{1,100})"')
_HEAD = 4096
#: A driver writes its outcome under a temporary name, and renames it.
_OUTCOME = re.compile(r"([0-9a-f-]{16,64})(?:\.script)?\.json(?:\.[0-9a-f]{32}\.tmp)?", re.ASCII)
_CLOCK = re.compile(r"clock-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\.tmp", re.ASCII)
_PACKAGE = re.compile(r"airflow_mv(?:_job)?-([0-9a-f]{12})-[0-9a-f]{8}\.(?:py|zip)", re.ASCII)
_MAX_WORKING_BYTES = 16 * 2**20
#: Why a file is not deleted.
UNPROVEN = "no metadata file of the view names it"
ELSEWHERE = "a state of the view that was published in another catalog may need it"

log = logging.getLogger(__name__)


class _StatisticsFile(msgspec.Struct, rename="kebab"):
    statistics_path: str
    snapshot_id: int | None = None


class _LogEntry(msgspec.Struct, rename="kebab"):
    metadata_file: str


class _Metadata(MetadataPlaces, rename="kebab"):
    """The needed fields of a metadata file of a view or a table."""

    metadata_log: list[_LogEntry] = msgspec.field(default_factory=list)
    snapshots: list[Snapshot] = msgspec.field(default_factory=list)
    statistics: list[_StatisticsFile] = msgspec.field(default_factory=list)
    partition_statistics: list[_StatisticsFile] = msgspec.field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Proof:
    """A proof that a file is the view's.

    Args:
        text: For people.
        by: The metadata file that names it; ``None`` if the file's own content is the proof.
        rank: Files of a lower rank are deleted first, so that a proof outlives what it proves.
    """

    text: str
    by: str | None
    rank: int


class History:
    """The proofs for the files in a view's folders.

    Args:
        files: What was listed in the view's folders.
        bases: These folders.
        past_files_of: Lists the files of earlier snapshots.
        reached: The forms of the files that are needed. Files of such a snapshot need no proof.

    Raises:
        CatalogUnavailableError: The store did not respond.
    """

    def __init__(
        self,
        catalog: MaterializedViewCatalog,
        view: LoadedView,
        storage: LoadedStorage,
        files: Iterable[StoredFile],
        bases: tuple[str, ...],
        *,
        compare: LocationMatcher,
        past_files_of: PastFilesOf,
        reached: frozenset[str] = frozenset(),
    ) -> None:
        self._catalog, self._view, self._compare, self._needed = catalog, view, compare, reached
        self._files = {compare.exact(file.location): file for file in files}
        self._proofs: dict[str, Proof] = {}
        self._published: list[int] = []
        self._deletion_log = log_location(bases[0])
        self._working: set[str] = {compare.exact(storage.table.location)}
        self._refreshes: set[str] = set()
        #: Files of an adopted table from before its adoption.
        self._earlier: set[str] = set()
        #: Files of states that were published in another catalog, their metadata files included.
        self._elsewhere: set[str] = set()
        #: Tables that are not the view's, but have metadata files in these folders.
        self.others: list[CatalogEntry] = []
        documents = dict(self._documents())
        self._follow_views(documents, storage)
        files_of = past_files_of(catalog, bases)
        self._follow_elsewhere(documents, storage, files_of)
        own = self._follow_storages(documents)
        self._follow_earlier(documents, files_of)
        self._follow_snapshots(own, files_of)
        self._find_others(documents)

    # -- queries ---------------------------------------------------------------------------------

    def proof(self, location: str) -> Proof | None:
        """Return the proof that a file is the view's, or ``None``. A checksum file has the proof of its file."""
        return self._proofs.get(self._compare.exact(owner(location))) or self._working_file(location)

    def why_not(self, location: str) -> str:
        """Return why a file has no proof."""
        return ELSEWHERE if self._compare.exact(owner(location)) in self._elsewhere else UNPROVEN

    def since_ms(self, file: StoredFile, proof: Proof) -> int:
        """Return a time before which a file was reachable, or not written yet.

        A file that a published metadata file names was reachable until the next one was published.
        """
        by = self._files.get(self._compare.exact(proof.by)) if proof.by else None
        if by is None or not self._is_needed(by.location):
            return file.modified_ms
        later = bisect.bisect_right(self._published, by.modified_ms)
        replaced_ms = self._published[later] if later < len(self._published) else by.modified_ms
        return max(file.modified_ms, replaced_ms)

    # -- metadata files ----------------------------------------------------------------------------

    def _documents(self) -> Iterator[tuple[str, _Metadata]]:
        for key, file in self._files.items():
            if file.location.endswith(METADATA_SUFFIXES):
                document = self._read(file.location)
                if document is not None:
                    yield key, document

    def _read(self, location: str) -> _Metadata | None:
        what = f"view {self._view.identifier}, metadata file in its folder"
        try:
            data = self._catalog.files.read(location, what=what)
        except (MetadataFileNotFoundError, InvalidMetadataError, ConfigurationError):
            return None
        try:
            return msgspec.json.decode(unpacked(data, location), type=_Metadata)
        except (msgspec.DecodeError, InvalidMetadataError, UnicodeDecodeError, RecursionError):
            return _cut(data)

    def _follow_views(self, documents: Mapping[str, _Metadata], storage: LoadedStorage) -> None:
        """Find the view's own metadata files, and the uuids of the storage tables that they name."""
        uuid = self._view.metadata.view_uuid
        self._uuids: dict[str, str | None] = {str(storage.table.table_uuid): None}
        named: dict[str, str] = {}
        for key, document in self._newest_first(documents):
            if document.view_uuid != uuid:
                continue
            self._proofs[key] = Proof(f"view metadata file with the view's uuid {uuid}", None, 5)
            location = self._files[key].location
            table_uuid = document.properties.get(STORAGE_TABLE_UUID_PROPERTY)
            if isinstance(table_uuid, str):
                self._uuids.setdefault(table_uuid, location)
            elif (first := _storage_location(document)) is not None:
                named.setdefault(self._compare.exact(first), location)
        for key, location in named.items():
            document_ = documents.get(key)
            if document_ is not None and document_.table_uuid and document_.view_uuid is None:
                self._uuids.setdefault(document_.table_uuid, location)

    def _follow_elsewhere(
        self,
        documents: Mapping[str, _Metadata],
        storage: LoadedStorage,
        files_of: Callable[[Snapshot], Iterable[str]],
    ) -> None:
        """Find the files that states may need which were published in another catalog, and take their proofs away."""
        views = {key for key, found in documents.items() if found.view_uuid is not None and key in self._proofs}
        states = self._states_elsewhere(documents, storage, views)
        if not states:
            return
        log.warning(
            "%s: the catalog points to %s, but states that are not its ancestors were published, such as that of %s: "
            "the catalog's database is a copy, or was restored from a backup. No file of these states is deleted",
            self._view.identifier,
            storage.location,
            self._files[max(states)].location,
        )
        for key in states:
            statistics = (*documents[key].statistics, *documents[key].partition_statistics)
            reached = [location for snapshot in documents[key].snapshots for location in files_of(snapshot)]
            paths = (*reached, *(item.statistics_path for item in statistics))
            self._elsewhere |= {self._compare.exact(path) for path in paths}
        # The other catalog may name any of the view's metadata files.
        self._elsewhere |= states | views
        for key in views:
            del self._proofs[key]

    def _states_elsewhere(
        self, documents: Mapping[str, _Metadata], storage: LoadedStorage, views: Iterable[str]
    ) -> frozenset[str]:
        """Return the storage metadata files that another catalog may name."""
        exact = self._compare.exact
        named = {exact(location) for key in views if (location := _storage_location(documents[key])) is not None}
        evidence = Evidence(self._catalog, self._view.identifier, None)

        def may_be_published(key: str) -> bool:
            if not storage.pointers:  # only the view names the table's files
                return key in named
            return evidence.table_file(self._files[key].location, self._view).committed

        logs = {
            key: [exact(entry.metadata_file) for entry in found.metadata_log]
            for key, found in documents.items()
            if found.table_uuid in self._uuids and found.view_uuid is None
        }
        return states_elsewhere(exact(storage.location), logs, may_be_published)

    def _follow_storages(self, documents: Mapping[str, _Metadata]) -> dict[str, _Metadata]:
        """Find the metadata files of the view's own storage tables, the newest first."""
        own = {}
        for key, document in self._newest_first(documents):
            if document.table_uuid not in self._uuids or document.view_uuid is not None or key in self._elsewhere:
                continue
            if self._view.adopted_at is not None and DEFINITION_PROPERTY not in document.properties:
                continue  # the table was not a view then
            own[key] = document
            text = f"storage metadata file with the storage table's uuid {document.table_uuid}"
            self._proofs.setdefault(key, Proof(text, self._uuids[document.table_uuid], 4))
            if document.location:
                self._working.add(self._compare.exact(document.location))
        needed = (self._files[key] for key in own if self._is_needed(self._files[key].location))
        self._published = sorted(file.modified_ms for file in needed)
        return own

    def _follow_earlier(
        self, documents: Mapping[str, _Metadata], files_of: Callable[[Snapshot], Iterable[str]]
    ) -> None:
        """Find the files that an adopted table had before its adoption, even if later snapshots reach them."""
        for document in documents.values():
            if self._view.adopted_at is None or document.table_uuid not in self._uuids:
                continue
            for snapshot in document.snapshots:
                if self._is_earlier(snapshot) and not self._is_needed(snapshot.manifest_list or ""):
                    self._earlier |= {self._compare.exact(location) for location in files_of(snapshot)}

    def _is_earlier(self, snapshot: Snapshot) -> bool:
        adopted_at = self._view.adopted_at
        return adopted_at is not None and snapshot.sequence_number <= adopted_at

    def _follow_snapshots(self, own: Mapping[str, _Metadata], files_of: Callable[[Snapshot], Iterable[str]]) -> None:
        """Find the files that the storage metadata files reach. The newest one that reaches a file is its proof."""
        followed: set[tuple[int, int, str | None]] = set()
        for key, document in own.items():
            by = self._files[key].location
            for snapshot in document.snapshots:
                # Each snapshot is in the metadata files of many refreshes.
                if (known := (snapshot.snapshot_id, snapshot.sequence_number, snapshot.manifest_list)) in followed:
                    continue
                followed.add(known)
                self._refreshes.add(snapshot.summary.get(REFRESH_ID_KEY, ""))
                if self._is_needed(snapshot.manifest_list or "") or self._is_earlier(snapshot):
                    continue
                for location in files_of(snapshot):
                    self._reached(location, by, snapshot.snapshot_id)
            earlier = {snapshot.snapshot_id for snapshot in document.snapshots if self._is_earlier(snapshot)}
            for item in (*document.statistics, *document.partition_statistics):
                if item.snapshot_id not in earlier:
                    self._reached(item.statistics_path, by, None)

    def _reached(self, location: str, by: str, snapshot_id: int | None) -> None:
        of = f"snapshot {snapshot_id} in " if snapshot_id is not None else ""
        proof = Proof(f"reached by {of}{by.rpartition('/')[2]}", by, _rank(location))
        key = self._compare.exact(location)
        if key not in self._earlier and key not in self._elsewhere:
            self._proofs.setdefault(key, proof)

    def _is_needed(self, location: str) -> bool:
        return bool(self._needed and self._compare.forms(location) & self._needed)

    def _newest_first(self, documents: Mapping[str, _Metadata]) -> list[tuple[str, _Metadata]]:
        return sorted(documents.items(), key=lambda item: (-self._files[item[0]].modified_ms, item[0]))

    def _find_others(self, documents: Mapping[str, _Metadata]) -> None:
        for key, document in documents.items():
            if key in self._proofs or document.view_uuid is not None or not document.location:
                continue
            if document.table_uuid in self._uuids:
                continue
            name = f"the table of uuid {document.table_uuid}"
            location = self._files[key].location
            self.others.append(CatalogEntry(name, location, document.folders, document.table_uuid))

    # -- working files -----------------------------------------------------------------------------

    def _working_file(self, location: str) -> Proof | None:
        """Return the proof of a working file of a refresh or of maintenance, by its name and content."""
        folder, _, name = location.rpartition("/")
        if location == self._deletion_log:
            return Proof("deletion log", None, 6)
        if _CLOCK.fullmatch(name):
            asked = self._content(location) == CLOCK_TEXT
            return Proof("written to read the store's clock", None, 0) if asked else None
        staged, _, last = folder.rpartition("/")
        if last != "staged" or self._compare.exact(staged) not in self._working:
            return None
        if (package := _PACKAGE.fullmatch(name)) is not None:
            return self._package(location, package[1])
        found = _OUTCOME.fullmatch(name)
        if found is None or not (found[1] in self._refreshes or self._is_of(location, found[1])):
            return None
        return Proof(f"working file of refresh {found[1]}", None, 0)

    def _package(self, location: str, digest: str) -> Proof | None:
        content = self._content(location)
        if content is None or hashlib.sha256(content).hexdigest()[:12] != digest:
            return None
        return Proof("job package with the digest in its name", None, 0)

    def _is_of(self, location: str, refresh_id: str) -> bool:
        """Whether a file is the script or the outcome of a refresh."""
        content = self._content(location)
        if content is None:
            return False
        kind = Script if location.endswith(".script.json") else Outcome
        try:
            return kind.from_json(content.decode()).refresh_id == refresh_id
        except (InvalidMetadataError, UnicodeDecodeError, RecursionError):
            return False

    def _content(self, location: str) -> bytes | None:
        file = self._files.get(self._compare.exact(location))
        if file is None or file.size_bytes > _MAX_WORKING_BYTES:
            return None
        try:
            return self._catalog.files.read(location, what="working file")
        except (MetadataFileNotFoundError, InvalidMetadataError, ConfigurationError):
            return None


def owner(location: str) -> str:
    """Return the file that a checksum file belongs to: Hadoop keeps ``.x.crc`` beside each local file ``x``."""
    folder, _, name = location.rpartition("/")
    return f"{folder}/{name[1:-4]}" if name.startswith(".") and name.endswith(".crc") else location


def _rank(location: str) -> int:
    name = location.rpartition("/")[2]
    return 1 if not name.endswith(".avro") else 3 if name.startswith("snap-") else 2


def _cut(data: bytes) -> _Metadata | None:
    """Return the fields in the beginning of a metadata file that its writer did not finish."""
    found = _CUT_UUID.search(data[:_HEAD])
    if found is None:
        return None
    uuid = found[2].decode("utf-8", "replace")
    return _Metadata(location="", view_uuid=uuid) if found[1] == b"view" else _Metadata(location="", table_uuid=uuid)


def _storage_location(document: _Metadata) -> str | None:
    try:
        return str(json.loads(document.properties[PROPERTY])["storage-table-location"])
    except (KeyError, TypeError, ValueError, RecursionError):
        return None


# ----------------------------------------------------------------------- states of a copied catalog


def states_elsewhere(
    current: str, logs: Mapping[str, Collection[str]], may_be_published: Callable[[str], bool]
) -> frozenset[str]:
    """Return the metadata files of a storage table that another catalog may name: none if there is no other catalog.

    A single step from a state of this catalog proves nothing: a refresh that was killed, or came too late, leaves such
    a file. A state that was continued was published, since changes are made from published states only. If there is
    one, the answer is all files that follow from this catalog's states and did not lead to the current one.

    Args:
        logs: The metadata log of each metadata file of the table.
        may_be_published: Whether a file may have been published. It is called for few files.
    """
    line = _line(current, logs)
    apart: set[str] = set()
    known = set(line)
    while new := {file for file, log in logs.items() if file not in known and not known.isdisjoint(log)}:
        apart |= new
        known |= new
    published = {file for file in apart if may_be_published(file)}
    continued = any(not published.isdisjoint(logs[file]) for file in published)
    return frozenset(apart) if continued else frozenset()


def _line(current: str, logs: Mapping[str, Collection[str]]) -> set[str]:
    """Return the states that led to the current one, as far as the logs go back."""
    line, left = {current}, [current]
    while left:
        earlier = set(logs.get(left.pop(), ())) - line
        line |= earlier
        left += earlier
    return line
