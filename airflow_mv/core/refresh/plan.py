# SPDX-License-Identifier: Apache-2.0
"""The plan of a refresh: what it does, why, and the estimated costs of the modes."""

from __future__ import annotations

import json
import math
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from airflow_mv.core.freshness.changes import Kind, Range, Size
from airflow_mv.core.freshness.state import BaseTableChange, State
from airflow_mv.core.script import CheckResult, Script, StagedChecks
from airflow_mv.core.spec.identifiers import Identifier, id_text
from airflow_mv.core.spec.interval import Interval
from airflow_mv.core.spec.materialized_view import BaseTable, NestedViewVersion
from airflow_mv.core.spec.reasons import Mode, Reason, fallback
from airflow_mv.core.spec.table_metadata import known_sum
from airflow_mv.core.spec.units import counted, human
from airflow_mv.errors import InvalidIdentifierError, InvalidMetadataError
from airflow_mv.foundation.documents import document_of, json_object, read, short_id


def _identifier(text: str) -> Identifier:
    try:
        return Identifier.parse(text)
    except InvalidIdentifierError as error:
        raise ValueError(str(error)) from None


#: Namespace of refresh ids.
_REFRESH_IDS = uuid.UUID("6f2c2f0e-6a43-5d3c-9d9b-6e0f3f3f7a10")


@dataclass(frozen=True, slots=True)
class RefreshPlan:
    """The plan of a refresh: its mode, the reasons, and the script. As JSON it is passed between processes.

    Args:
        view_uuid: Its uuid. A view that was dropped and created again has another one.
        version_id: The version whose query is computed.
        metadata_location: The view metadata file that the plan was made from: the base of the swap.
        storage_table_location: The storage metadata file that the plan was made from.
        storage_base: The storage state that the plan was made from. Only another refresh changes it.
        storage_table: The storage table's name in the catalog, if it has one.
        mode: What to do.
        reasons: Why, in order of weight.
        refresh_id: Derived from the input; see :func:`refresh_id`.
        records: What the refresh will record for each base table.
        nested_views: The plain views that the query is expanded through.
        changes: How each base table has changed since the last refresh.
        state: The view's freshness before the refresh.
        script: The script for Spark; ``None`` if no Spark job is needed.
        estimates: The estimated costs of the compared modes, the chosen one first.
        skips: Whether the view stays as it is if the job finds that it cannot refresh incrementally.
        interval: The interval to refresh; ``None`` for the whole view.
        behind_since_ms: When the first base commit that the view does not contain was made, if known.
        renamed: The columns whose names meant another column at the snapshot to read, by base table.
        repeats: Whether the last refresh of this definition was a fallback for the same reasons.
    """

    view: Identifier
    view_uuid: str
    version_id: int
    metadata_location: str
    storage_table_location: str
    storage_base: str
    storage_table: Identifier | None
    layout: str
    mode: Mode
    reasons: tuple[Reason, ...]
    refresh_id: str
    records: tuple[BaseTable, ...]
    nested_views: tuple[NestedViewVersion, ...]
    changes: tuple[BaseTableChange, ...]
    state: State
    script: Script | None = None
    estimates: tuple[Estimate, ...] = ()
    skips: bool = False
    interval: Interval | None = None
    behind_since_ms: int | None = None
    renamed: tuple[tuple[str, tuple[str, ...]], ...] = ()
    repeats: bool = False

    def __repr__(self) -> str:
        where = f", {self.interval}" if self.interval else ""
        job = counted(len(self.statements), "statement") if self.script else "no Spark job"
        return f"<plan of {self.view}{where}: {self.mode}, {job}, refresh {short_id(self.refresh_id)}>"

    @property
    def statements(self) -> tuple[str, ...]:
        """The Spark statements, exactly as they run; none for ``noop`` and ``fast-forward``."""
        return self.script.statements if self.script else ()

    def with_checks(self, checks: StagedChecks | None) -> RefreshPlan:
        """Return the plan with the checks of the rows that its script stages."""
        return self if self.script is None else replace(self, script=replace(self.script, checks=checks))

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON document; :meth:`from_dict` reads it back."""
        found = document_of(self, _WRITERS)
        return {**found, "base_tables": found.pop("changes"), "statements": list(self.statements)}

    def to_json(self) -> str:
        """Serialise, as a text that Airflow keeps unchanged with a deferred task; :meth:`from_json` reads it back."""
        return json.dumps(self.to_dict())

    @classmethod
    def from_json(cls, text: str) -> RefreshPlan:
        """Read what :meth:`to_json` wrote.

        Raises:
            InvalidMetadataError: It is not such a document; the message names the field.
        """
        return cls.from_dict(json_object(text, "plan"))

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> RefreshPlan:
        """Read what :meth:`to_dict` wrote.

        Raises:
            InvalidMetadataError: It is not such a document; the message names the field.
        """
        if not isinstance(document, Mapping):
            raise InvalidMetadataError("not a document of kind plan: not a JSON object")
        given = {**document, "changes": document.get("base_tables")}
        names = cls.__dataclass_fields__.keys() & given.keys()
        return read(cls, {name: given[name] for name in names}, "plan", _READERS)


#: How values are written that are not dataclasses, or have a form of their own; and how they are read back.
_WRITERS: dict[type, Callable[[Any], Any]] = {
    Identifier: str,
    BaseTable: BaseTable.document,
    NestedViewVersion: NestedViewVersion.document,
    BaseTableChange: BaseTableChange.to_dict,
    Interval: Interval.to_dict,
    Script: Script.document,
}
_READERS: dict[Any, Callable[[Any], Any]] = {
    Identifier: _identifier,
    BaseTable: partial(BaseTable.read, source="plan"),
    NestedViewVersion: partial(NestedViewVersion.read, source="plan"),
    BaseTableChange: BaseTableChange.from_dict,
    Interval: Interval.from_dict,
    Script: Script.of,
}


def refresh_id(
    *,
    view_uuid: str,
    version_id: int,
    records: Sequence[BaseTable],
    nested_views: Sequence[NestedViewVersion],
    scope: str,
    storage_base: str,
) -> str:
    """Derive the id of a refresh from its input.

    Two workers that do the same refresh from the same state compute the same id, so a retry or a zombie task
    finds the work of the other. The storage state is part of the input: an id occurs once in a history.

    Args:
        records: Every base table with the snapshot that is read.
        nested_views: Every nested view with its version.
        scope: What the refresh covers, such as ``full``, and the checks that its rows have to pass.
        storage_base: The storage state that the refresh starts from.
    """
    tables = sorted((item.identifier, item.snapshot_reference, item.properties.get("table-uuid")) for item in records)
    views = sorted((item.identifier, item.uuid, item.version_id) for item in nested_views)
    parts = [view_uuid, version_id, tables, views, scope, storage_base]
    return str(uuid.uuid5(_REFRESH_IDS, json.dumps(parts)))


@dataclass(frozen=True, slots=True)
class RefreshResult:
    """The result of a refresh; :meth:`to_dict` is the document in XCom and on the command line.

    Args:
        outcome: ``refreshed``, ``fresh``, ``already-committed``, ``superseded`` or ``skipped``.
        mode: The mode that ran.
        reasons: Why that mode.
        refresh_id: The refresh that produced the stored rows; ``None`` if there is none.
        storage_table_location: The storage metadata file that the view names now.
        storage_table: The table of the catalog in which every engine reads the stored rows, if there is one.
        rows_written: Rows that this refresh wrote.
        seconds: Wall-clock time of all steps.
        snapshots: The snapshot of each base table that the refresh read; ``-1`` for an empty table.
        interval: The refreshed interval; ``None`` for the whole view.
        lag_seconds: Time from the first base commit that this refresh added to the view until its publication, by the
            clocks of the two hosts; ``None`` if unknown.
        checks: The results of the checks of the published rows.
    """

    view: Identifier
    outcome: str
    mode: Mode
    reasons: tuple[Reason, ...]
    refresh_id: str | None
    storage_table_location: str
    storage_table: Identifier | None
    rows_written: int
    seconds: float
    snapshots: tuple[tuple[str, int], ...] = ()
    interval: Interval | None = None
    lag_seconds: float | None = None
    checks: tuple[CheckResult, ...] = ()

    def __repr__(self) -> str:
        where = f", {self.interval}" if self.interval else ""
        done = f"{self.outcome}, {self.mode}, {counted(self.rows_written, 'row')} written, {self.seconds:.1f} s"
        return f"<refresh of {self.view}{where}: {done}, refresh {short_id(self.refresh_id)}>"

    @property
    def published(self) -> bool:
        """Whether it published something new to the view's readers."""
        return self.outcome in ("refreshed", "already-committed")

    @property
    def fallback(self) -> str | None:
        """Why an incremental view was unexpectedly recomputed in full, or not refreshed; else ``None``."""
        return fallback(self.reasons)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON document."""
        return {
            "view": str(self.view),
            "outcome": self.outcome,
            "mode": str(self.mode),
            "reasons": [reason.to_dict() for reason in self.reasons],
            "fallback": self.fallback,
            "refresh_id": self.refresh_id,
            "storage_table_location": self.storage_table_location,
            "storage_table": str(self.storage_table) if self.storage_table else None,
            "rows_written": self.rows_written,
            "seconds": round(self.seconds, 3),
            "base_tables": {name: id_text(snapshot) for name, snapshot in self.snapshots},
            "interval": self.interval.to_dict() if self.interval else None,
            "lag_seconds": self.lag_seconds,
            "checks": [result.summary() for result in self.checks],
        }


# --------------- Estimate the cost of a refresh from metadata, well enough to separate cheap modes from expensive ones
# The constants were measured on one class of machine; only their ratios matter. The measured durations of a view's
# last refreshes correct its estimates. ``python -m benchmarks incremental`` prints estimates and durations side by
# side, and ``benchmarks/README.md`` describes how to calibrate the constants with it.


#: Bytes of Parquet that two cores scan and filter in a second, for a query that reads some of the columns.
_SCAN = 300e6
#: Bytes that they scan, join, aggregate and write in a second, in a full refresh of an ordinary query.
_COMPUTE = 55e6
#: Bytes of rows that they compare in a second by all values. A comparison by row ids takes little longer than the scan.
_COMPARE = 28e6
#: Seconds to find changed rows by their ids, even one row.
_FIXED_ROW_IDS = 0.5
#: A row that is read at its position, among others that are not read, takes as long as so many rows of whole files.
_BY_POSITION = 4
#: Changed rows that they take from scans, and find among the stored rows, in a second. Those that are compared by all
#: values are counted by their bytes.
_CHANGED_ROWS = 75e3
#: Bytes of stored rows that they find by value, and rewrite, in a second.
_REWRITE = 4e6
#: Bytes of stored rows in which they find few rows by value, to delete them where they are, in a second.
_LOCATE = 20e6
#: Seconds for the jobs that do so, even for one row.
_FIXED_LOCATE = 1.0
#: With a larger share of the stored rows, whole files of them are rewritten.
_FEW = 0.1
#: Seconds that a statement without data takes: planning, scheduling, commit.
_FIXED_FULL = 0.5
_FIXED = {"append": 0.4, "merge": 0.9, "replace-keys": 1.6}
#: Seconds to prepare the change of one table.
_FIXED_DELTA = 0.15
#: The range of the factors that are learned and used.
_LEAST_FACTOR, _MAX_FACTOR = 0.1, 6.0
#: One refresh counts as at most so many times slower or faster than its estimate: it may be an outlier, such as the
#: start of a cluster or an overloaded hour.
_MAX_SEEN = 4.0
#: Up to this size, rewriting a stored table takes as long as patching it.
SMALL_STORAGE = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Estimate:
    """The estimated cost of one refresh mode.

    Args:
        seconds: On the machine of the constants, in a warm session; ``None`` if the bytes are unknown.
        bytes_read: Bytes of base table files and of the storage table that are read; ``None`` if unknown.
        rows_changed: Rows of base tables that changed; ``None`` if unknown.
        factor: The measured duration of the view's refreshes in this mode, divided by the bare estimate. It is
            contained in ``seconds``.
    """

    mode: str
    seconds: float | None
    bytes_read: int | None
    rows_changed: int | None
    factor: float = 1.0

    def corrected(self, factors: Mapping[str, float]) -> Estimate:
        """Return the estimate, corrected by the measured factors.

        Args:
            factors: By mode.
        """
        known = _bounded(factors.get(self.mode, 1.0))
        return self if self.seconds is None else replace(self, seconds=round(self.seconds * known, 3), factor=known)

    def factor_of(self, seconds: float) -> float | None:
        """Return the new factor after a refresh of this duration; ``None`` if it had no estimate.

        The geometric mean of the old and the measured factor. After a full refresh that was faster than estimated, the
        measured factor itself: a full refresh is never fast by accident. It may be slow by accident, because a view's
        first refresh is a full one, in a session that has just started. So after a slower one the old factor counts
        twice. An incremental refresh may also be fast by accident, because changes differ. No single refresh decides:
        its part is bounded, and so is the factor, as it is used.
        """
        if self.seconds is None:
            return None
        seen = min(seconds / self.seconds, _MAX_SEEN)
        if self.mode == "full":
            return round(_bounded(self.factor * (seen if seen < 1 else seen ** (1 / 3))), 3)
        return round(_bounded(self.factor * math.sqrt(max(seen, 1 / _MAX_SEEN))), 3)

    def __str__(self) -> str:
        if self.seconds is None:
            return f"{self.mode} unknown, because the size of a base table is unknown"
        return f"{self.mode} {self.seconds:.1f} s for {human(self.bytes_read)}"


def _bounded(factor: float) -> float:
    return min(max(factor, _LEAST_FACTOR), _MAX_FACTOR)


@dataclass(frozen=True, slots=True)
class BaseCost:
    """A base table in an estimate.

    Args:
        range: The change; ``None`` if the table did not change.
        total_bytes: Bytes of its files now; ``None`` if unknown.
        has_row_ids: Whether its rows have ids, so that copied ones are recognized.
        rows_copied: How many of the added rows, and of the removed ones, are unchanged copies; ``None`` if unknown.
    """

    range: Range | None
    total_bytes: int | None
    has_row_ids: bool = False
    rows_copied: int | None = None

    @property
    def changed_bytes(self) -> int | None:
        """The most bytes that comparing the two snapshots reads; ``None`` if unknown."""
        if self.range is None:
            return 0
        size = self.range.size
        if self.range.only_appends:
            return self.total_bytes if size.bytes_added is None else size.bytes_added
        return self._at_most_both((size.bytes_added, size.bytes_removed, size.bytes_touched))

    @property
    def compare_seconds(self) -> float | None:
        """Seconds to compare rows: of files that only one of the two snapshots has, and deleted rows of other files.

        Rows of other files are counted several times, because they take longer. ``None`` if unknown.
        """
        if self.range is None or self.range.only_appends:
            return 0.0
        size = self.range.size
        if self.has_row_ids and not size.bytes_touched:
            rows = 0 if self.rows_copied is None else self.changed_rows or 0
            return _FIXED_ROW_IDS + rows / _CHANGED_ROWS
        deleted = size.bytes_touched
        if deleted and None not in (size.rows_deleted, size.total_rows):
            rows, total = size.rows_deleted or 0, size.total_rows or 0
            deleted = _BY_POSITION * deleted * min(rows, total) // max(total, 1)
        compared = self._at_most_both((size.bytes_added, size.bytes_removed, deleted))
        return None if compared is None else compared / _COMPARE + self._rows_by_position(size) / _CHANGED_ROWS

    def _rows_by_position(self, size: Size) -> float:
        """About how many rows have changed, without those of rewritten files, if rows were deleted by position."""
        if not size.bytes_touched or not self.total_bytes:
            return 0.0
        # Without removed data files, the removed bytes are those of delete files.
        removed = 0 if size.files_removed == 0 else size.bytes_removed or 0
        rewritten = (size.total_rows or 0) * removed / self.total_bytes
        return max((self.changed_rows or 0) - 2 * rewritten, 0.0)

    def _at_most_both(self, sizes: Iterable[int | None]) -> int | None:
        """At most both snapshots are read, which have about the same size."""
        known = known_sum(sizes)
        if self.total_bytes is None:
            return known
        both = 2 * max(self.total_bytes, 1)
        return both if known is None else min(known, both)

    @property
    def is_read_once(self) -> bool:
        """Whether one scan of its files can find its change and the rows that match changes of other tables."""
        if self.range is None:
            return False
        return bool(self.range.size.bytes_touched or (self.has_row_ids and self.range.kind == Kind.REWRITTEN))

    @property
    def changed_rows(self) -> int | None:
        """Rows added or removed, without copied ones if their number is known; ``None``: unknown."""
        if self.range is None:
            return 0
        rows = known_sum((self.range.size.rows_added, self.range.size.rows_deleted))
        return None if rows is None else max(rows - 2 * (self.rows_copied or 0), 0)


@dataclass(frozen=True, slots=True)
class StoredCost:
    """The storage table in an estimate.

    Args:
        rows: Rows in them.
    """

    bytes: int
    rows: int


def full_cost(total_bytes: int | None, *, rows_changed: int | None = 0) -> Estimate:
    """Estimate a full refresh.

    Args:
        total_bytes: Bytes of the base tables' files; ``None`` if unknown.
        rows_changed: For the plan.
    """
    seconds = None if total_bytes is None else _FIXED_FULL + total_bytes / _COMPUTE
    return Estimate("full", seconds, total_bytes, rows_changed)


def incremental_cost(mode: str, bases: Sequence[BaseCost], stored: StoredCost) -> Estimate:
    """Estimate an incremental refresh.

    Args:
        mode: ``append``, ``merge`` or ``replace-keys``.
        stored: The rows of the view.
    """
    changed = [base for base in bases if base.range is not None]
    rows = known_sum([base.changed_rows for base in changed])
    delta = known_sum([base.changed_bytes for base in changed])
    comparing = [base.compare_seconds for base in changed]
    others = known_sum([base.total_bytes for base in bases])
    if delta is None or None in comparing or others is None:
        return Estimate(mode, None, None, rows)
    # The change of each table is joined with the whole other tables: once for each changed table.
    read = delta + sum(others - (base.total_bytes or 0) for base in changed)
    largest = max(changed, key=lambda base: base.total_bytes or 0, default=None)
    if largest is not None and largest.is_read_once:
        read -= (len(changed) - 1) * (largest.total_bytes or 0)
    seconds = sum(filter(None, comparing))
    if mode == "replace-keys":
        # The rows of the affected keys are searched in all base tables and in the stored rows.
        read += others + stored.bytes
        # At most as many keys are affected as rows changed. With few large groups, all of them are.
        affected = 1.0 if rows is None else min(rows / max(stored.rows, 1), 1.0)
        seconds += affected * others / _COMPUTE + _written(stored, affected)
    elif mode == "merge":
        read += stored.bytes
        if not all(base.range.only_appends for base in changed if base.range):
            # Scattered deletes touch all files of the stored rows.
            few = rows is not None and rows <= _FEW * stored.rows
            seconds += _written(stored, _FEW if few and stored.bytes > SMALL_STORAGE else 1.0)
    seconds += _FIXED[mode] + _FIXED_DELTA * len(changed) + read / _SCAN
    return Estimate(mode, round(seconds, 3), read, rows)


def _written(stored: StoredCost, share: float) -> float:
    """Return the seconds to find and replace a share of the stored rows, which are anywhere in them."""
    if stored.bytes > SMALL_STORAGE and share <= _FEW:
        return _FIXED_LOCATE + stored.bytes / _LOCATE
    return share * stored.bytes / _REWRITE
