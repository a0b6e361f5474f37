# SPDX-License-Identifier: Apache-2.0
"""Verify a view's stored rows: recompute the query at the recorded base snapshots and compare."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from sqlglot import exp

from airflow_mv.common.damage import Checked, Damage, check_snapshots, store_of
from airflow_mv.core.catalog import MaterializedViewCatalog
from airflow_mv.core.freshness.observe import Observation, observe
from airflow_mv.core.freshness.state import State
from airflow_mv.core.refresh.inputs import load_tables, renamed_columns, tables_at_snapshots, with_own_columns
from airflow_mv.core.refresh.statements import place_names, renamed
from airflow_mv.core.script import SESSION_CONFS, STAGING
from airflow_mv.core.spec.identifiers import Identifier, id_text, quote
from airflow_mv.core.spec.interval import Interval, Span
from airflow_mv.core.spec.interval_parts import parts_of
from airflow_mv.core.spec.materialized_view import NO_SNAPSHOT, RefreshRecord
from airflow_mv.core.spec.table_metadata import TableMetadata
from airflow_mv.core.sql.interval_columns import condition
from airflow_mv.core.sql.query import ParsedQuery, pin_query
from airflow_mv.errors import (
    ConfigurationError,
    SnapshotNotFoundError,
    StaleViewError,
    UnsupportedError,
    VerificationError,
)
from airflow_mv.extras.maintenance.checksums import checksums, own_snapshots
from airflow_mv.foundation.redaction import shortened

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger(__name__)

#: The most differing rows that are shown, on each side.
MAX_ROWS = 20
#: Of 100 percent; and into how many shares the rows are divided for a sample.
_ALL, _SHARES = 100, 1_000_000
#: Types of columns whose values are the same in each computation, and that have a hash.
_EXACT = frozenset({"boolean", "int", "long", "date", "time", "timestamp", "timestamptz", "string", "uuid", "binary"})


@dataclass(frozen=True, slots=True)
class Part:
    """The rows of a view that are compared. By default all.

    Args:
        interval: Only the rows of this interval.
        sample: Only this percentage of the rows. The values of some columns decide which ones: the same rows are taken
            of the stored and of the recomputed ones, in each run.
    """

    interval: Span | None = None
    sample: float | None = None

    def __post_init__(self) -> None:
        if self.sample is not None and not 0 < self.sample <= _ALL:
            raise ConfigurationError(f"a sample of {self.sample:g} percent is not possible: more than 0, at most 100")


@dataclass(frozen=True, slots=True)
class Verification:
    """The result of a comparison.

    Args:
        refresh_id: The refresh whose rows were compared.
        rows: How many rows are stored.
        only_stored: Stored rows that are missing in the recomputed ones, at most :data:`MAX_ROWS`.
        only_recomputed: Recomputed rows that are missing in the stored ones, at most :data:`MAX_ROWS`.
        interval: Only the rows of this interval were compared.
        sample: Only this percentage of the rows was compared.
        altered: What other programs have changed of the storage table, so that engines do not read these rows.
    """

    view: Identifier
    refresh_id: str
    rows: int
    only_stored: tuple[tuple[Any, ...], ...]
    only_recomputed: tuple[tuple[Any, ...], ...]
    interval: Interval | None = None
    sample: float | None = None
    altered: tuple[str, ...] = ()

    @property
    def equal(self) -> bool:
        """Whether both are the same multiset of rows, and engines read them."""
        return not self.only_stored and not self.only_recomputed and not self.altered

    def require_equal(self) -> None:
        """Raise if the rows differ.

        Raises:
            VerificationError: Has up to :data:`MAX_ROWS` of the rows.
        """
        if self.equal:
            return
        _require_unaltered(self.view, self.altered)
        kinds = (("only stored", self.only_stored), ("only recomputed", self.only_recomputed))
        found = "; ".join(f"{kind}: {', '.join(map(str, rows))}" for kind, rows in kinds if rows)
        raise VerificationError(
            f"view {self.view}: the rows of refresh {self.refresh_id} differ from a recompute at the recorded "
            f"snapshots ({shortened(found, 1000)}). A refresh with full=True recomputes them"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON document."""
        return {
            "view": str(self.view),
            "refresh_id": self.refresh_id,
            "equal": self.equal,
            "rows": self.rows,
            **({} if self.interval is None else {"interval": self.interval.to_dict()}),
            **({} if self.sample is None else {"sample": self.sample}),
            "only_stored": [list(row) for row in self.only_stored],
            "only_recomputed": [list(row) for row in self.only_recomputed],
            "altered": list(self.altered),
        }


def _require_unaltered(view: Identifier, altered: tuple[str, ...]) -> None:
    """Raise if another program has changed the storage table.

    Raises:
        VerificationError: Names what it has changed.
    """
    if altered:
        raise VerificationError(
            f"view {view}: another program has changed its storage table: {'; '.join(altered)}. A refresh, or "
            f"`airflow-mv repair {view} --yes`, restores it"
        )


@dataclass(frozen=True, slots=True)
class FilesVerification:
    """The result of a check of a view's files.

    Args:
        snapshots: How many snapshots of it are retained.
        current: The snapshot with the view's rows.
        checked: The checked files, and the damage found.
        altered: What other programs have changed of the storage table's columns, partitioning and sort order.
    """

    view: Identifier
    snapshots: int
    current: int | None
    checked: Checked
    altered: tuple[str, ...] = ()

    @property
    def intact(self) -> bool:
        """Whether every file exists as recorded, and the table is as the last refresh left it."""
        return not self.checked.damaged and not self.altered

    def require_intact(self) -> None:
        """Raise if a file is missing or broken.

        Raises:
            VerificationError: Names the first files.
        """
        damaged = self.checked.all
        if damaged:
            first = "; ".join(f"{item.role} {item.location}: {item.why}" for item in damaged[:5])
            raise VerificationError(
                f"view {self.view}: {len(damaged)} files are missing or broken ({first}). `airflow-mv repair "
                f"{self.view}` shows what can be restored"
            )
        _require_unaltered(self.view, self.altered)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON document."""
        return {
            "view": str(self.view),
            "intact": self.intact,
            "snapshots": self.snapshots,
            "files": self.checked.files,
            "bytes": self.checked.size_bytes,
            "damaged": [self._damage(item) for item in self.checked.all],
            "altered": list(self.altered),
        }

    def _damage(self, damage: Damage) -> dict[str, Any]:
        of = sorted(number for number, items in self.checked.damaged.items() if damage in items)
        found = {"file": damage.location, "role": damage.role, "why": damage.why}
        return {**found, "snapshots": [id_text(snapshot) for snapshot in of], "current": self.current in of}


def verify_files(
    catalog: MaterializedViewCatalog, view: str | Identifier, *, report: Callable[[str], None] = log.info
) -> FilesVerification:
    """Check that all files of a view's retained snapshots exist, with the recorded sizes and counts, and unchanged.

    Snapshots of an adopted table from before its adoption are not the view's, and are not checked.

    All files are read as a whole, but ORC and Avro data files, which have no checksums.

    Args:
        report: Receives progress messages.

    Raises:
        InvalidMetadataError, MetadataFileNotFoundError: The metadata of the view or its storage table is broken.
    """
    loaded = catalog.load(view)
    storage = catalog.load_storage(loaded)
    own = own_snapshots(loaded, storage.table)
    table = storage.table
    checked = check_snapshots(
        store_of(catalog, loaded, storage), table, only=own, content=checksums(table), report=report
    )
    altered = storage.altered(loaded)
    found = (*altered.columns, *altered.settings)
    return FilesVerification(loaded.identifier, len(own), storage.rows_snapshot, checked, found)


def verify(
    catalog: MaterializedViewCatalog,
    view: str | Identifier,
    *,
    session: Callable[[], SparkSession],
    part: Part | None = None,
) -> Verification:
    """Recompute a view at the snapshots that its current refresh recorded, and compare as multisets.

    Floating point columns are compared to 11 significant digits: their sums depend on the order of rows. A signal that
    stops the program ends the statement first (:func:`airflow_mv.core.job.session.interruptible`).

    Args:
        session: Opens a session with the base tables' catalogs. It is called only when the session is needed.
        part: Which rows are compared; by default all. Spark pushes the condition into the query where it can.

    Raises:
        StaleViewError: There is no refresh of the present definition to compare with.
        SnapshotNotFoundError: A base table is itself a materialized view, and the rows that were read have expired.
        ConfigurationError: The view has no column for the interval.
        UnsupportedError: The view has no column by which rows can be sampled.
    """
    part = part or Part()
    observation = observe(catalog, view, span=part.interval)
    record = observation.record
    name = observation.view.identifier
    if record is None or observation.freshness.state == State.DEFINITION_CHANGED:
        raise StaleViewError(f"view {name} is {observation.freshness.state}: there are no rows to verify; refresh it")
    tables = load_tables(catalog, observation.tables)
    _require_rows_of_views(observation, tables, record)
    from airflow_mv.core.job.session import interruptible

    spark, query = session(), _recomputed(observation, tables, record)
    return interruptible(spark, partial(_compared, spark, observation, record, query, part))


def _require_rows_of_views(
    observation: Observation, tables: Mapping[Identifier, TableMetadata], record: RefreshRecord
) -> None:
    """Check that the rows of materialized views that the view reads are still there.

    Raises:
        SnapshotNotFoundError: They have expired: maintenance of a view keeps its current rows only.
    """
    for recorded in (record.base_tables, *(item.base_tables for item in record.intervals)):
        for table in recorded:
            name, snapshot = Identifier.parse(table.identifier), table.snapshot_reference
            if name in observation.places and snapshot != NO_SNAPSHOT and tables[name].find(snapshot) is None:
                raise SnapshotNotFoundError(
                    f"view {observation.view.identifier}: the rows of {name} that it was computed from (snapshot "
                    f"{snapshot}) have expired: refresh the view, then verify it"
                )


def _compared(
    spark: SparkSession, observation: Observation, record: RefreshRecord, query: str, part: Part
) -> Verification:
    """Compare the rows, with the session settings of a refresh: the query may depend on the time zone."""
    from airflow_mv.common.stored_rows import spark_errors, stored_rows
    from airflow_mv.core.job.driver import registered
    from airflow_mv.core.job.session import temporary_settings

    view, storage = observation.view.identifier, observation.storage
    files, where = place_names(observation.places).files, _condition(observation, part)
    with (
        spark_errors(f"verifying view {view}"),
        temporary_settings(spark, dict(SESSION_CONFS)),
        registered(spark, view.catalog, files) as staging,
    ):
        stored = _comparable(stored_rows(spark, view, storage, storage.rows_snapshot).where(where))
        recomputed = _comparable(spark.sql(query.replace(STAGING, staging)).where(where))
        return Verification(
            view=view,
            refresh_id=record.refresh_id,
            rows=stored.count(),
            only_stored=_first(stored.exceptAll(recomputed)),
            only_recomputed=_first(recomputed.exceptAll(stored)),
            interval=observation.interval,
            sample=part.sample,
            altered=storage.altered(observation.view).columns,
        )


def _condition(observation: Observation, part: Part) -> str:
    """Return the condition that the compared rows pass."""
    fields, conditions = observation.view.metadata.schema_.fields, ["TRUE"]
    if observation.interval is not None:
        conditions.append(condition(observation.interval, fields))
    if part.sample is not None:
        columns = _sampled_by(observation)
        conditions.append(
            f"pmod(xxhash64({', '.join(map(quote, columns))}), {_SHARES}) < {part.sample * _SHARES / _ALL}"
        )
    return " AND ".join(conditions)


def _sampled_by(observation: Observation) -> list[str]:
    """Return the columns whose values decide whether a row is in a sample.

    If the query is grouped by columns of the view, these: Spark reads the rows of the sampled groups only. Otherwise
    all columns whose values are the same in each computation: not those of floating point, and none that has no hash.

    Raises:
        UnsupportedError: There is none.
    """
    view = observation.view
    exact = [
        item["name"]
        for item in view.metadata.schema_.fields
        if item["type"] in _EXACT or str(item["type"]).startswith("decimal(")
    ]
    keys = grouping_columns(observation.query, view.metadata.schema_.names)
    if not exact:
        raise UnsupportedError(f"view {view.identifier}: none of its columns can decide which rows are in a sample")
    return [name for name in exact if name in keys] or exact


def _recomputed(observation: Observation, tables: Mapping[Identifier, TableMetadata], record: RefreshRecord) -> str:
    """Return a query for the expected rows: each part at the snapshots from which it was computed."""
    fields, rest = observation.view.metadata.schema_.fields, "TRUE"
    by_origin: dict[tuple[tuple[str, int], ...], list[str]] = {}
    for part in parts_of(record):
        if part.interval is not None:
            by_origin.setdefault(part.origin, []).append(f"({condition(part.interval, fields)})")
    if by_origin:
        within = " OR ".join(text for texts in by_origin.values() for text in texts)
        rest = f"NOT coalesce({within}, FALSE)"
    parts = [(dict(origin), " OR ".join(texts)) for origin, texts in by_origin.items()]
    # A view that was only refreshed by intervals must have no rows outside of them.
    whole = (record.snapshots, "FALSE" if record.only_intervals else rest)
    names = observation.view.metadata.schema_.names
    queries = [
        f"{renamed(_pinned(observation, tables, snapshots), names)}\nWHERE {where}"
        for snapshots, where in [whole, *parts]
    ]
    return "\nUNION ALL\n".join(queries)


def _pinned(observation: Observation, tables: Mapping[Identifier, TableMetadata], snapshots: dict[str, int]) -> str:
    heads = {name: None if head == NO_SNAPSHOT else head for name, head in snapshots.items()}
    then = tuple(replace(table, head=heads.get(table.identifier)) for table in observation.tables)
    observation = with_own_columns(replace(observation, tables=then), tables)
    pinned = tables_at_snapshots(observation, tables, renamed_columns(then, tables))
    return pin_query(observation.query, tables=pinned, views=observation.dependencies.nested)


def _comparable(frame: DataFrame) -> DataFrame:
    def column(name: str, kind: str) -> str:
        text = quote(name)
        if "variant" in kind:  # Spark compares none
            return f"to_json(named_struct('v', {text})) AS {text}"
        if kind not in ("double", "float"):
            return text
        return f"CASE WHEN {text} IS NOT NULL THEN CAST(printf('%.10e', {text}) AS DOUBLE) END AS {text}"

    return frame.selectExpr(*(column(name, kind) for name, kind in frame.dtypes))


def _first(frame: DataFrame) -> tuple[tuple[Any, ...], ...]:
    return tuple(tuple(row) for row in frame.limit(MAX_ROWS).collect())


def grouping_columns(query: ParsedQuery, columns: Sequence[str]) -> frozenset[str]:
    """Return the columns of a view that are keys of its query's GROUP BY, as far as the text shows it.

    Args:
        columns: The view's columns, in order.
    """
    tree = query.tree
    group = tree.args.get("group") if isinstance(tree, exp.Select) else None
    shown = tree.expressions if isinstance(tree, exp.Select) else []
    if group is None or set(filter(group.args.get, group.args)) != {"expressions"} or len(shown) != len(columns):
        return frozenset()
    written = {item.sql().lower() for item in group.expressions}
    return frozenset(
        column
        for number, (item, column) in enumerate(zip(shown, columns, strict=True), 1)
        if not written.isdisjoint({item.unalias().sql().lower(), item.alias_or_name.lower(), str(number)})
        and not item.find(exp.AggFunc, exp.Star)
    )
