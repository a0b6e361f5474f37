# SPDX-License-Identifier: Apache-2.0
"""The plan of a refresh: what it does, and why."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from airflow_mv.documents import check_fields, id_text, json_object, json_objects, read
from airflow_mv.errors import InvalidIdentifierError, InvalidMetadataError
from airflow_mv.freshness.state import BaseTableChange, State
from airflow_mv.refresh.cost import Estimate
from airflow_mv.script import CheckResult, Script, StagedChecks
from airflow_mv.spec.identifiers import Identifier
from airflow_mv.spec.interval import Interval
from airflow_mv.spec.materialized_view import BaseTable, NestedViewVersion
from airflow_mv.spec.reasons import Code, Mode, Reason, fallback

#: Namespace of refresh ids.
_REFRESH_IDS = uuid.UUID("6f2c2f0e-6a43-5d3c-9d9b-6e0f3f3f7a10")


@dataclass(frozen=True, slots=True)
class RefreshPlan:
    """What a refresh will do, why, and all data that this needs. As JSON it is passed between processes.

    Args:
        view: The view.
        view_uuid: Its uuid. A view that was dropped and created again has another one.
        version_id: The version whose query is computed.
        metadata_location: The view metadata file that the plan was made from: the base of the swap.
        storage_table_location: The storage metadata file that the plan was made from.
        storage_base: The storage state that the plan was made from. Only another refresh changes it.
        storage_table: The storage table's name in the catalog, if it has one.
        layout: The view's layout.
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

    @property
    def statements(self) -> tuple[str, ...]:
        """The Spark statements, exactly as they run; none for ``noop`` and ``fast-forward``."""
        return self.script.statements if self.script else ()

    def with_checks(self, checks: StagedChecks | None) -> RefreshPlan:
        """Return the plan with the checks of the rows that its script stages."""
        return self if self.script is None else replace(self, script=replace(self.script, checks=checks))

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON document; :meth:`from_dict` reads it back."""
        return {
            "view": str(self.view),
            "mode": str(self.mode),
            "state": str(self.state),
            "reasons": [reason.to_dict() for reason in self.reasons],
            "estimates": [estimate.to_dict() for estimate in self.estimates],
            "refresh_id": self.refresh_id,
            "base_tables": [change.to_dict() for change in self.changes],
            "statements": list(self.statements),
            "view_uuid": self.view_uuid,
            "version_id": self.version_id,
            "metadata_location": self.metadata_location,
            "storage_table_location": self.storage_table_location,
            "storage_base": self.storage_base,
            "storage_table": str(self.storage_table) if self.storage_table else None,
            "layout": self.layout,
            "records": [record.document() for record in self.records],
            "nested_views": [view.document() for view in self.nested_views],
            "script": json.loads(self.script.to_json()) if self.script else None,
            "skips": self.skips,
            "interval": self.interval.to_dict() if self.interval else None,
            "behind_since_ms": self.behind_since_ms,
            "renamed": {name: list(columns) for name, columns in self.renamed},
            "repeats": self.repeats,
        }

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
        check_fields(document, _KINDS, "plan")
        try:
            script = document["script"]
            items = {name: json_objects(document[name], "plan", name) for name in _LISTS}
            for reason in items["reasons"]:
                check_fields(reason, {"message": str}, "plan")
            return cls(
                view=Identifier.parse(document["view"]),
                view_uuid=document["view_uuid"],
                version_id=document["version_id"],
                metadata_location=document["metadata_location"],
                storage_table_location=document["storage_table_location"],
                storage_base=document["storage_base"],
                storage_table=Identifier.parse(name) if (name := document["storage_table"]) else None,
                layout=document["layout"],
                mode=Mode(document["mode"]),
                reasons=tuple(Reason(Code(item["code"]), item["message"]) for item in items["reasons"]),
                refresh_id=document["refresh_id"],
                records=tuple(BaseTable.read(item, source="plan") for item in items["records"]),
                nested_views=tuple(NestedViewVersion.read(item, source="plan") for item in items["nested_views"]),
                changes=tuple(BaseTableChange.from_dict(item) for item in items["base_tables"]),
                state=State(document["state"]),
                script=Script.from_json(json.dumps(script)) if script else None,
                estimates=tuple(read(Estimate, item, "plan") for item in items["estimates"]),
                skips=document["skips"],
                interval=Interval.from_dict(stretch) if (stretch := document.get("interval")) else None,
                behind_since_ms=document.get("behind_since_ms"),
                renamed=tuple((name, tuple(columns)) for name, columns in document.get("renamed", {}).items()),
                repeats=document.get("repeats") is True,
            )
        except (KeyError, TypeError, ValueError, AttributeError, InvalidIdentifierError) as error:
            raise InvalidMetadataError(f"not a refresh plan: {type(error).__name__}: {str(error)[:300]}") from None


#: Types of the fields of :meth:`RefreshPlan.to_dict` that are taken without conversion, and the fields that are lists.
_KINDS = {
    **dict.fromkeys(
        ("view_uuid", "metadata_location", "storage_table_location", "storage_base", "refresh_id", "layout"), str
    ),
    "version_id": int,
    "skips": bool,
}
_LISTS = ("reasons", "records", "nested_views", "base_tables", "estimates")


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
        view_uuid: The view.
        version_id: Its version.
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
        view: The view.
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
