# SPDX-License-Identifier: Apache-2.0
"""The freshness of views as it is reported: a view that reads a stale materialized view is stale.

A refresh of a view reads the stored rows of the materialized views in its query, so what it does depends on these rows
alone, and is decided from :func:`airflow_mv.core.freshness.observe.observe`. Everything that reports whether a view is
fresh goes through here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from typing import Any, ClassVar, Self, TypeVar

from airflow_mv.common.each import ItemResult, for_each
from airflow_mv.common.expiry import expires_ms
from airflow_mv.common.snapshots import snapshots_of
from airflow_mv.core.catalog import LoadedView, MaterializedViewCatalog
from airflow_mv.core.catalog.catalog import pointers_of
from airflow_mv.core.catalog.layouts import readable_refreshes
from airflow_mv.core.freshness.changes import Kind, changes_rows
from airflow_mv.core.freshness.observe import Observation, located_together, observe, observe_tables
from airflow_mv.core.freshness.state import (
    Answer,
    BaseTableChange,
    Freshness,
    Lag,
    ObservedTable,
    Reads,
    SnapshotSet,
    State,
    TableLag,
    compare,
)
from airflow_mv.core.refresh.inputs import RefreshInputs
from airflow_mv.core.refresh.plan import RefreshPlan
from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.core.spec.interval import Span
from airflow_mv.core.spec.interval_parts import parts_of
from airflow_mv.core.spec.reasons import Code, Reason
from airflow_mv.core.spec.stored import shown
from airflow_mv.core.spec.table_metadata import Snapshot, TableMetadata, ancestors, snapshots_between
from airflow_mv.core.spec.times import from_ms, to_ms
from airflow_mv.errors import CatalogUnavailableError, MaterializedViewError, NotFoundError, NotMaterializedError
from airflow_mv.foundation.documents import short_id
from airflow_mv.foundation.redaction import shortened

log = logging.getLogger(__name__)

T = TypeVar("T")
K = TypeVar("K")

#: If a catalog fails so often in a row, it does not respond: the next requests would also fail.
MAX_UNANSWERED = 3

#: Of a stale view, so many reasons of at most so many characters are repeated at the views that read it.
_MAX_REASONS = 2
_MAX_REASON = 300
#: Maximum of views that a path to a stale view names.
_MAX_PATH = 5
#: Maximum of views that are not fresh and are kept for each view, the nearest ones.
_MAX_INPUTS = 8
#: The most of them that are reported as reasons.
_MAX_INPUT_REASONS = 3
#: Maximum of views that are followed to the first base commit that a view lacks.
_MAX_FOLLOWED = 32
_CYCLE = "views that read each other are never all fresh"
_NORMAL = frozenset({Code.FRESH, Code.ONLY_REPLACED})


@dataclass(frozen=True, slots=True)
class StaleInput:
    """A materialized view that a view reads, directly or through others, and that is not fresh.

    Args:
        state: Its state by its own base tables.
        through: The views between its reader and it, the one that the reader reads first.
    """

    view: Identifier
    state: State
    why: str
    through: tuple[Identifier, ...] = ()

    @property
    def reason(self) -> Reason:
        """The reason for the reader's state."""
        path = [str(view) for view in self.through]
        if len(path) > _MAX_PATH:
            path[1:-1] = [f"{len(path) - 2} views"]
        through = f" through {' → '.join(path)}" if path else ""
        code = Code.BASE_UNREADABLE if self.state == State.UNKNOWN else Code.INPUT_STALE
        return Reason(code, f"{self.view}, which it reads{through}, is {self.state} ({self.why})")

    def read_by(self, view: Identifier) -> StaleInput:
        """Return the same for the readers of a view that reads it."""
        return replace(self, through=(view, *self.through))


@dataclass(frozen=True, slots=True)
class ObservedChain(Observation):
    """The observation of a view, with the freshness of the materialized views that it reads.

    Args:
        inputs: Those that are not fresh, the nearest first. A refresh of the view alone does not change them, so its
            decision is made without them.
        behind: The lag through them.
    """

    inputs: tuple[StaleInput, ...] = ()
    behind: Lag = field(default_factory=lambda: Lag(State.UNKNOWN))

    @classmethod
    def of(cls, seen: Observation, inputs: tuple[StaleInput, ...], behind: Lag) -> Self:
        """Add them to a view's own observation."""
        own = {item.name: getattr(seen, item.name) for item in fields(Observation)}
        return cls(**own, inputs=inputs, behind=behind)


def inputs_of(view: Observation) -> tuple[StaleInput, ...]:
    """Return the materialized views that a view reads and that are not fresh, as far as they were observed."""
    return view.inputs if isinstance(view, ObservedChain) else ()


def lag(view: Observation) -> Lag:
    """Return the lag of a view."""
    if isinstance(view, ObservedChain):
        return view.behind
    freshness = view.freshness
    if freshness.of_rows != State.STALE:
        return Lag(freshness.of_rows)
    tables = {table.identifier: table for table in view.tables}
    parts = [part for part in freshness.parts if part.part.computed]
    changes = [change for part in parts for change in part.base_tables] if freshness.parts else freshness.base_tables
    found: dict[str, TableLag] = {}
    for change in changes:
        if change.changed:
            one = table_lag(change, tables[change.identifier])
            found[one.identifier] = longer(found.get(one.identifier), one)
    return Lag(State.STALE, tuple(found.values()), whole=len(parts) == len(freshness.parts))


def longer(known: TableLag | None, other: TableLag) -> TableLag:
    """Return the earlier of the first missing commits of two parts of a view."""
    if known is None:
        return other
    since = min((item.since for item in (known, other) if item.since), default=None)
    return TableLag(other.identifier, since, exact=known.exact and other.exact)


def table_lag(change: BaseTableChange, observed: ObservedTable) -> TableLag:
    """Return the first commit to a base table that rows of its recorded snapshot do not contain."""
    table = observed.table
    if table is None or change.range.kind == Kind.UNKNOWN:
        return TableLag(change.identifier, None, exact=False)
    old = None if change.range.kind == Kind.RECREATED else change.recorded
    missing = snapshots_between(table, old, change.current)
    if missing:
        return TableLag(change.identifier, from_ms(_first(missing, observed.same_rows)), exact=True)
    left = _left(table, old)
    if left is not None:
        return TableLag(change.identifier, from_ms(left), exact=True)
    # The first commit has expired. The oldest retained one is not in the view either.
    known = [item.timestamp_ms for item in ancestors(table, change.current)]
    return TableLag(change.identifier, from_ms(min(known, default=table.last_updated_ms)), exact=False)


def _first(missing: Sequence[Snapshot], same_rows: Collection[int]) -> int:
    """Return the time of the first of these commits that may have changed rows."""
    changing = [item for item in missing if changes_rows(item, same_rows)]
    return min(item.timestamp_ms for item in changing or missing)


def _left(table: TableMetadata, snapshot_id: int | None) -> int | None:
    """Return when a table that was rolled back, or set to another branch, left a snapshot, from its log."""
    if snapshot_id is None or table.find(snapshot_id) is None:
        return None
    log = table.snapshot_log
    places = [place for place, entry in enumerate(log) if entry.snapshot_id == snapshot_id]
    after = log[places[-1] + 1 :] if places else []
    return after[0].timestamp_ms if after else None


@dataclass(frozen=True, slots=True)
class ReadCache(Reads):
    """Reads that are shared by observations of several views. Nothing is computed from them.

    Another catalog that has failed several times in a row is not asked again: each view that reads its tables would
    wait for it.

    Args:
        errors: The errors in a row, by catalog.
    """

    rereads: ClassVar[bool] = True
    errors: dict[str, list[CatalogUnavailableError]] = field(default_factory=dict)

    def asked(self, catalog: str, ask: Callable[[], Answer]) -> Answer:
        """Return what another catalog answers.

        Raises:
            CatalogUnavailableError: It has failed :data:`MAX_UNANSWERED` times in a row: its last error.
        """
        errors = self.errors.get(catalog, [])
        if len(errors) >= MAX_UNANSWERED:
            raise errors[-1].with_traceback(None)
        try:
            answer = ask()
        except CatalogUnavailableError as error:
            self.errors.setdefault(catalog, []).append(error)
            raise
        self.errors.pop(catalog, None)
        return answer


@dataclass(frozen=True, slots=True)
class _Verdict:
    """The freshness of a materialized view, for the views that read it.

    Args:
        names: The names in the catalog that have its rows: its own, and that of its storage table.
        stale: The view itself and the views that it reads, as far as they are not fresh, as its readers see them.
        pointers: See :class:`airflow_mv.core.freshness.observe.Observation`.
        head: The snapshot with its rows.
    """

    names: frozenset[Identifier] = frozenset()
    stale: tuple[StaleInput, ...] = ()
    behind: Lag = field(default_factory=lambda: Lag(State.UNKNOWN))
    pointers: Mapping[Identifier, str] | None = None
    head: int | None = None

    def moved_from(self, table: ObservedTable) -> bool:
        """Whether a table was read when the view had other rows."""
        is_known = self.behind.state != State.UNKNOWN and not self.names.isdisjoint({table.name})
        return is_known and table.head != self.head


#: A table that only looks like a storage table.
_ORDINARY = _Verdict(behind=Lag(State.FRESH))


@dataclass
class _Step:
    """A view on the way down a chain.

    Args:
        seen: Its observation by its own base tables.
        span: The interval that was observed.
        again: Whether it was observed again.
    """

    catalog: MaterializedViewCatalog
    seen: Observation
    span: Span | None = None
    again: bool = False

    def __post_init__(self) -> None:
        self.view = self.seen.view.identifier
        found = self.seen.tables if _follows_inputs(self.seen.freshness) else ()
        #: The tables with rows of materialized views that its state depends on.
        self.inputs = tuple(table for table in found if table.view is not None and table.view != self.view)


@dataclass
class Chains:
    """Observes views through the materialized views that they read. Each of these is observed once.

    Args:
        expected: The views that are going to be observed. One that was observed before its turn is not read again.
        reads: What was read before.
    """

    expected: set[Identifier] = field(default_factory=set)
    reads: ReadCache = field(default_factory=ReadCache)
    _verdicts: dict[Identifier, _Verdict] = field(default_factory=dict)
    _early: dict[Identifier, Observation] = field(default_factory=dict)

    def observe(
        self, catalog: MaterializedViewCatalog, view: str | Identifier | LoadedView, *, span: Span | None = None
    ) -> Observation:
        """Observe a view.

        Args:
            view: Its name, or the view as it was loaded.
            span: Consider only the rows of this interval, and all rows of the views that it reads.

        Raises:
            ConfigurationError, NotMaterializedError: See :func:`airflow_mv.core.freshness.observe.observe`.
            CatalogUnavailableError: A catalog of one of the views or base tables does not respond.
        """
        return self.through(catalog, observe(catalog, view, reads=self.reads, span=span), span=span)

    def early(self, view: Identifier) -> Observation | None:
        """Return the observation of an expected view that was made for a view that reads it, once."""
        self.expected.discard(view)
        return self._early.pop(view, None)

    def stale(self, catalog: MaterializedViewCatalog, table: ObservedTable) -> tuple[StaleInput, ...]:
        """Return what is not fresh of a table's rows: the view whose rows it has, and the views that this one reads."""
        view = _read_view(table)
        if view not in self._verdicts:
            self.observe(catalog.home_of(view), view)
        return self._verdict_on(table).stale

    def through(self, catalog: MaterializedViewCatalog, seen: Observation, *, span: Span | None = None) -> Observation:
        """Return the observation of a view with the freshness of the materialized views that it reads.

        Args:
            seen: Its observation by its own base tables.
            span: The interval that was observed.
        """
        path = [_Step(catalog, seen, span)]
        while True:
            step, begun = path[-1], {item.view for item in path}
            below = next((at for at in step.inputs if at.view not in self._verdicts and at.view not in begun), None)
            if below is not None:
                path += self._below(step, below)
            elif self._is_outdated(step):
                seen = observe(step.catalog, step.view, reads=self.reads, span=step.span)
                path[-1] = _Step(step.catalog, seen, step.span, again=True)
            else:
                found = self._combined(path.pop())
                if step.span is None:
                    self._keep(step, found)
                if not path:
                    return found

    def _below(self, step: _Step, table: ObservedTable) -> list[_Step]:
        """Observe a view that another one reads. If it cannot be read, that is the verdict."""
        view = _read_view(table)
        try:
            catalog = step.catalog.home_of(view)
            return [_Step(catalog, observe(catalog, view, reads=self.reads))]
        except MaterializedViewError as error:
            if error.retryable:
                raise
            unreadable = StaleInput(view, State.UNKNOWN, shortened(str(error), _MAX_REASON))
            # The storage table of a dropped view is an ordinary table.
            gone = isinstance(error, (NotFoundError, NotMaterializedError)) and table.identifier != str(view)
            self._verdicts[view] = _Verdict(frozenset() if gone else frozenset({view}), (unreadable,))
        return []

    def _is_outdated(self, step: _Step) -> bool:
        """Whether a view was read before a refresh of an input that was judged later. What was read then is forgotten.

        Rows of the earlier refresh would pass for rows of the later one.
        """
        judged = [(table, self._verdicts.get(_read_view(table))) for table in step.inputs]
        moved = [table for table, verdict in judged if verdict is not None and verdict.moved_from(table)]
        for table in moved:
            self.reads.tables.pop(table.name, None)
        return bool(moved) and not step.again

    def _combined(self, step: _Step) -> Observation:
        """Return the observation of a view whose inputs are judged."""
        seen, nearest, pointers = step.seen, dict[Identifier, StaleInput](), step.seen.pointers
        for table in step.inputs:
            verdict = self._verdict_on(table)
            for item in verdict.stale:
                known = nearest.get(item.view)
                nearest[item.view] = min(known or item, item, key=lambda each: len(each.through))
            pointers = None if pointers is None or verdict.pointers is None else {**verdict.pointers, **pointers}
        if not step.inputs:
            return seen
        stale = sorted(nearest.values(), key=lambda item: (item.state != State.UNKNOWN, len(item.through)))
        freshness = with_inputs(seen.freshness, stale[:_MAX_INPUTS])
        found = replace(seen, freshness=freshness, pointers=pointers)
        return ObservedChain.of(found, tuple(stale[:_MAX_INPUTS]), self._behind(step, freshness.of_rows))

    def _verdict_on(self, table: ObservedTable) -> _Verdict:
        """Return the verdict on the view whose rows a table has; one that is begun already reads its own reader."""
        view, name = _read_view(table), table.name
        verdict = self._verdicts.get(view)
        if verdict is None:
            return _Verdict(frozenset({name}), (StaleInput(view, State.UNKNOWN, _CYCLE),))
        return verdict if name in verdict.names else _ORDINARY

    def _keep(self, step: _Step, found: Observation) -> None:
        """Keep the verdict on a view for its other readers, and the observation if it is going to be asked for."""
        view, own = step.view, step.seen.freshness
        behind = lag(found)
        stale = [item.read_by(view) for item in inputs_of(found)]
        if own.state != State.FRESH:
            stale.insert(0, StaleInput(view, own.state, _why(own)))
            if own.state != State.STALE or not found.storage.intact:
                behind = replace(behind, tables=(*behind.tables, TableLag(str(view), None, exact=False)))
        names = frozenset(name for name in (view, found.storage.name) if name is not None)
        head = found.storage.rows_snapshot
        self._verdicts[view] = _Verdict(names, tuple(stale[:_MAX_INPUTS]), behind, found.pointers, head)
        if view in self.expected:
            self._early[view] = found

    # -- the lag ---------------------------------------------------------------------------------

    def _behind(self, step: _Step, of_rows: State) -> Lag:
        """Return the lag by the base tables at the ends of the chain, which a refresh of an input does not shorten."""
        if of_rows != State.STALE:
            return Lag(of_rows)
        own, freshness = lag(step.seen), step.seen.freshness
        parts = [part.base_tables for part in freshness.parts if part.part.computed] or [freshness.base_tables]
        changes = [change for part in parts for change in part]
        named, found = {table.identifier for table in step.inputs}, dict[str, TableLag]()
        lags = [item for item in own.tables if item.identifier not in named]
        for table in step.inputs:
            own_changes = [change for change in changes if change.identifier == table.identifier]
            lags += self._of_input(step.catalog, table, own_changes, _MAX_FOLLOWED)
        for item in lags:
            found[item.identifier] = longer(found.get(item.identifier), item)
        whole = own.whole and all(self._verdict_on(table).behind.whole for table in step.inputs)
        return Lag(State.STALE, tuple(found.values()) or own.tables, whole=whole)

    def _of_input(
        self, catalog: MaterializedViewCatalog, table: ObservedTable, changes: Iterable[BaseTableChange], left: int
    ) -> list[TableLag]:
        """Return the base commits that rows lack which were read from a view: also those that the view itself lacks."""
        found = [*self._verdict_on(table).behind.tables]
        for change in changes:
            if not change.changed:
                continue
            try:
                missing = self._missing(catalog, _read_view(table), change.recorded, left)
            except MaterializedViewError as error:
                if error.retryable:
                    raise
                missing = None  # a table that an earlier refresh has read no longer exists
            found += [replace(table_lag(change, table), exact=False)] if missing is None else missing
        return found

    def _missing(
        self, catalog: MaterializedViewCatalog, view: Identifier, snapshot: int | None, left: int
    ) -> list[TableLag] | None:
        """Return the base commits that the rows of an earlier refresh lack; ``None`` if its record has expired.

        Args:
            catalog: Where the lookup begins.
            snapshot: The snapshot of its storage table with the rows.
            left: How many more views may be followed.
        """
        home = catalog.home_of(view)
        loaded = home.load(view)
        storage = home.load_storage(loaded)
        records = readable_refreshes(loaded, storage)
        heads = snapshots_of(storage, records)
        record = next((item for item in reversed(records) if heads[item.refresh_id] == snapshot), None)
        if record is None or snapshot is None or not left:
            return None
        names = dict.fromkeys(
            Identifier.parse(item.identifier) for part in parts_of(record) for item in part.base_tables
        )
        observed = {item.identifier: item for item in observe_tables(home, names, record, reads=self.reads)[0]}
        found: list[TableLag] = []
        for recorded in (item for part in parts_of(record) if part.computed for item in part.base_tables):
            table = observed[recorded.identifier]
            change = compare(recorded, table)
            if table.view is not None and table.view in self._verdicts:
                found += self._of_input(home, table, [change], left - 1)
            elif change.changed or table.error is not None:
                found.append(table_lag(change, table))
        return found


def annotated(
    catalog: MaterializedViewCatalog, inputs: RefreshInputs, plan: RefreshPlan, pins: SnapshotSet | None
) -> RefreshPlan:
    """Return a plan with what is only reported: the lag, and the materialized views that are read but are not fresh.

    Args:
        inputs: What the refresh is planned on.
        pins: What the run has read. Views that it has refreshed are as fresh as its snapshots.
    """
    missing = [table.since for table in lag(inputs.observation).tables if table.since is not None]
    stale = () if inputs.options.as_of is not None else _stale_inputs(catalog, inputs.observation, pins)
    return replace(plan, behind_since_ms=to_ms(min(missing)) if missing else None, reasons=(*plan.reasons, *stale))


def _stale_inputs(catalog: MaterializedViewCatalog, seen: Observation, pins: SnapshotSet | None) -> tuple[Reason, ...]:
    known = set() if pins is None else pins.refreshed
    tables = tuple(table for table in seen.tables if table.view is not None and table.view not in known)
    chains, found = Chains(), dict[Identifier, StaleInput]()
    for table in tables:
        try:
            stale = chains.stale(catalog, table)
        except MaterializedViewError as error:
            log.info("Could not find out whether %s is fresh: %s", table.view, error)
            continue
        for item in stale:
            found.setdefault(item.view, item)
    return tuple(item.reason for item in found.values())


def readers_of(
    catalog: MaterializedViewCatalog, tables: Collection[Identifier], compute: Callable[[Observation], T]
) -> dict[Identifier, T]:
    """Return a value for each materialized view of a catalog that reads one of some tables.

    A view that cannot be read is left out, with a warning.

    Args:
        compute: Takes the observation of a view.
    """
    wanted = set(tables)

    def of_reader(seen: Observation) -> tuple[T] | None:
        return None if wanted.isdisjoint(table.name for table in seen.tables) else (compute(seen),)

    found: dict[Identifier, T] = {}
    for result in observe_each(catalog, catalog.list(), of_reader, plain=lambda _: None):
        if result.error is not None:
            log.warning("Could not read %s, so what it reads is unknown: %s", result.item, result.error)
        elif result.value is not None:
            (found[result.item],) = result.value
    return found


def observe_each(
    catalog: MaterializedViewCatalog,
    views: Iterable[Identifier],
    compute: Callable[[Observation], T],
    *,
    plain: Callable[[LoadedView], T] | None = None,
    span: Span | None = None,
) -> Iterator[ItemResult[Identifier, T]]:
    """Observe several views of a catalog and compute a value for each. Views and tables that they share are read once.

    Args:
        views: Their names.
        compute: Takes the observation of a view.
        plain: Takes a plain view, if the views were listed and not named. Without it a plain view is an error.
        span: Consider only the rows of this interval.
    """
    chains = Chains(set(views) if isinstance(views, Sequence) else set())

    def observed(view: Identifier) -> T:
        if span is None and (early := chains.early(view)) is not None:
            return compute(early)
        loaded = catalog.load(view)
        if plain is not None and loaded.settings is None and not loaded.was_materialized:
            return plain(loaded)
        return compute(chains.observe(catalog, loaded, span=span))

    return for_each(views, observed)


def _read_view(table: ObservedTable) -> Identifier:
    return table.name if table.view is None else table.view


def _why(freshness: Freshness) -> str:
    """Return the reasons of a view's state for the views that read it."""
    reasons = [reason.message for reason in freshness.reasons if reason.code not in _NORMAL]
    return shown("; ".join(reasons[:_MAX_REASONS]))


# ------------------------------------------------------------------ the documents of `airflow-mv status`


def status(catalog: MaterializedViewCatalog, view: str | Identifier, *, interval: Span | None = None) -> ViewStatus:
    """Return the freshness of a view. Reads metadata only.

    Args:
        interval: Consider only the rows of this interval.

    Raises:
        ViewNotFoundError, NotMaterializedError, InvalidMetadataError, MetadataFileNotFoundError: The
            view cannot be read.
    """
    return ViewStatus(Chains().observe(catalog, view, span=interval))


def statuses(
    catalog: MaterializedViewCatalog,
    views: Iterable[Identifier],
    *,
    interval: Span | None = None,
) -> list[dict[str, Any]]:
    """Return the freshness documents of several views; a base table that they share is read once.

    Args:
        views: Their names.
        interval: Consider only the rows of this interval.

    Raises:
        MaterializedViewError: One of them cannot be read.
    """
    results = observe_each(catalog, views, lambda seen: ViewStatus(seen).to_dict(), span=interval)
    return [result.get() for result in results]


@dataclass(frozen=True, slots=True)
class ViewStatus:
    """The freshness of a view; :meth:`to_dict` is the document of ``airflow-mv status``."""

    observation: Observation

    @property
    def state(self) -> State:
        """The view's freshness."""
        return self.observation.freshness.state

    @property
    def reasons(self) -> tuple[Reason, ...]:
        """The reasons."""
        return self.observation.freshness.reasons

    def __repr__(self) -> str:
        seen = self.observation
        where = f", {seen.interval}" if seen.interval else ""
        refresh_id = seen.record.refresh_id if seen.record else None
        return f"<status of {seen.view.identifier}{where}: {self.state}, refresh {short_id(refresh_id)}>"

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON document."""
        record, expiring = self.observation.record, expiries(self.observation)
        return {
            "view": str(self.observation.view.identifier),
            "catalog": self.observation.view.identifier.catalog,
            "state": str(self.state),
            "refresh_id": record.refresh_id if record else None,
            "refreshed_at": timestamp(record.refreshed_at_ms) if record else None,
            "version_id": self.observation.view.metadata.current_version_id,
            "base_tables": [
                {**change.to_dict(), "expires_at": _text(expiring.get(change.identifier))}
                for change in self.observation.freshness.base_tables
            ],
            "reasons": [reason.to_dict() for reason in self.reasons],
            "interval": self.observation.interval.to_dict() if self.observation.interval else None,
            "intervals": [
                {
                    **item.part.interval.to_dict(),
                    "refresh_id": item.part.refresh_id,
                    "refreshed_at": timestamp(item.part.refreshed_at_ms),
                    "fresh": item.is_fresh and not inputs_of(self.observation),
                }
                for item in self.observation.freshness.parts
                if item.part.interval is not None
            ],
        }


def _text(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat()


def timestamp(milliseconds: int | None) -> str | None:
    """Return ms since the epoch as ISO 8601 in UTC."""
    return None if milliseconds is None else from_ms(milliseconds).isoformat()


def expiries(seen: Observation) -> dict[str, datetime]:
    """Return when the recorded snapshots of a view's base tables may expire, by base table, where that is known.

    A snapshot that is still current is not among them. A view that is recomputed at each refresh needs none.

    Args:
        seen: The observation of the view.
    """
    if seen.view.materialized.refresh_strategy == "full":
        return {}
    tables = {table.identifier: table.table for table in seen.tables}
    found: dict[str, datetime] = {}
    for change in seen.freshness.base_tables:
        table = tables[change.identifier]
        if table is not None and change.recorded is not None and change.recorded != change.current:
            moment = expires_ms(table, change.recorded)
            found |= {} if moment is None else {change.identifier: from_ms(moment)}
    return found


def outdated_views(catalog: MaterializedViewCatalog, pointers: Mapping[K, Mapping[Identifier, str]]) -> list[K]:
    """Return the views that have to be observed again, because one of their pointers has changed.

    This includes views with a pointer that another catalog does not return: their own observation has the reason.

    Args:
        catalog: Where they are. If it returns no pointers, all views are outdated.
        pointers: For each view those of its last observation, see :class:`Observation`.

    Raises:
        MaterializedViewError: The catalog itself fails.
    """
    names = list(dict.fromkeys(name for each in pointers.values() for name in each))
    now: dict[Identifier, str] = {}
    for own in located_together(names):
        try:
            now |= pointers_of(catalog, own)
        except MaterializedViewError:
            if own[0].catalog == catalog.name:
                raise
    return [view for view, each in pointers.items() if any(now.get(name) != at for name, at in each.items())]


def with_inputs(freshness: Freshness, inputs: Sequence[StaleInput]) -> Freshness:
    """Return the verdict for a view that reads materialized views that are not fresh."""
    if not inputs or not _follows_inputs(freshness):
        return freshness
    unknown = any(item.state == State.UNKNOWN for item in inputs)
    kept = tuple(reason for reason in freshness.reasons if reason.code != Code.FRESH)
    reasons = (*kept, *(item.reason for item in inputs[:_MAX_INPUT_REASONS]))
    if len(inputs) > _MAX_INPUT_REASONS:
        reasons += (Reason(Code.INPUT_STALE, f"{len(inputs) - _MAX_INPUT_REASONS} more input views are not fresh"),)
    found = replace(freshness, reasons=reasons)
    if freshness.rows is not None:
        return replace(found, rows=State.STALE)
    return replace(found, state=State.UNKNOWN if unknown else State.STALE)


def _follows_inputs(freshness: Freshness) -> bool:
    """Whether the state depends on that of the materialized views that the view reads."""
    return freshness.of_rows in (State.FRESH, State.STALE)
