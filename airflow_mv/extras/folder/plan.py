# SPDX-License-Identifier: Apache-2.0
"""Compare a folder of definitions with a catalog, and make the catalog what the folder says."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Protocol

from sqlglot import exp

from airflow_mv.core.catalog import LoadedView, MaterializedViewCatalog
from airflow_mv.core.catalog.layouts import all_refreshes
from airflow_mv.core.define.create import possible
from airflow_mv.core.define.definition import Definition, check_properties
from airflow_mv.core.refresh.checks import require_fitting
from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.core.sql.query import ParsedQuery, parse_query, spark_sql
from airflow_mv.errors import MaterializedViewError, ViewNotFoundError
from airflow_mv.extras.folder.files import ViewFile, in_order


class Action(StrEnum):
    """The action that makes a view what its file says."""

    CREATE = "create"
    """There is no such view."""
    RENAME = "rename"
    """The view has another name; its uuid and rows stay. Other differences are applied after it."""
    METADATA = "metadata"
    """Settings, properties or checks change; the rows are kept."""
    IN_PLACE = "in-place"
    """The view gets a new version whose rows are the same: they are kept."""
    REBUILD = "rebuild"
    """The definition changes, and the next refresh recomputes all rows."""
    UNCHANGED = "unchanged"
    """Nothing."""
    UNMANAGED = "unmanaged"
    """No file defines the view: it is left alone."""
    DROP = "drop"
    """No file defines the view, and such views are dropped."""
    REFUSED = "refused"
    """The file's definition is not possible."""


class Difference(Protocol):
    """One difference between a definition and a view, see :class:`airflow_mv.extras.define.Difference`."""

    @property
    def effect(self) -> str:
        """``metadata``, ``rebuild`` or ``kept``."""

    @property
    def keeps_rows(self) -> bool:
        """Whether it gives the view a new version with the same rows, which are kept."""

    def to_dict(self) -> dict[str, str | None]:
        """Return the JSON form."""


@dataclass(frozen=True, slots=True)
class Touched:
    """A view that a change concerns: the changed one itself, or one that reads it.

    Args:
        owner: Its property ``owner``.
        dags: The DAGs that its recorded refreshes were made by.
    """

    view: Identifier
    owner: str | None = None
    dags: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {"view": str(self.view), "owner": self.owner, "dags": list(self.dags)}


@dataclass(frozen=True, slots=True)
class Change:
    """The part of a plan for one view.

    Args:
        file: The file that defines it; ``None`` if none does.
        differences: How the view differs from its file.
        reason: Why it is refused.
        readers: The views that read it, if its rows or its columns may change.
        before: The view's present name, if it is renamed.
        loses: Its columns that the file's query does not have.
        cost: What a recompute of all rows is expected to cost: the fields ``bytes_read``, ``seconds`` and
            ``expected_seconds`` of an estimate, see :func:`airflow_mv.extras.costs.with_expected`.
        touched: The view and its readers, as far as they exist.
    """

    view: Identifier
    action: Action
    file: ViewFile | None = None
    differences: Sequence[Difference] = ()
    reason: str | None = None
    readers: Sequence[Identifier] = ()
    before: Identifier | None = None
    loses: Sequence[str] = ()
    cost: Mapping[str, Any] | None = None
    touched: Sequence[Touched] = ()

    @property
    def drift(self) -> list[Difference]:
        """Settings that the view has and its file does not name. They are kept."""
        return [item for item in self.differences if item.effect == "kept"]

    @property
    def rebuilds(self) -> bool:
        """Whether the next refresh recomputes all rows."""
        return any(item.effect == "rebuild" and not item.keeps_rows for item in self.differences)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "view": str(self.view),
            "action": str(self.action),
            "renamed_from": str(self.before) if self.before else None,
            "file": str(self.file.path) if self.file else None,
            "differences": [item.to_dict() for item in self.differences],
            "rebuilds": self.rebuilds,
            "reason": self.reason,
            "readers": [str(view) for view in self.readers],
            "loses": list(self.loses),
            "cost": self.cost and dict(self.cost),
            "touched": [item.to_dict() for item in self.touched],
        }


@dataclass(frozen=True, slots=True)
class FolderPlan:
    """The actions that make a catalog what a folder says, in their order.

    Args:
        reads: The tables and views that the query of each file names.
    """

    changes: tuple[Change, ...]
    reads: Mapping[Identifier, tuple[Identifier, ...]]

    @property
    def to_do(self) -> list[Change]:
        """The changes that do something."""
        return [change for change in self.changes if change.action in _DOES]

    @property
    def refused(self) -> list[Change]:
        """The views whose files are refused."""
        return [change for change in self.changes if change.action == Action.REFUSED]

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        counts = {str(action): sum(change.action == action for change in self.changes) for action in Action}
        return {"counts": counts, "changes": [change.to_dict() for change in self.changes]}


_DOES = (Action.CREATE, Action.RENAME, Action.METADATA, Action.IN_PLACE, Action.REBUILD, Action.DROP)
#: The effects of differences, the strongest first, by the action that they need.
_EFFECTS = (Action.REBUILD, Action.IN_PLACE, Action.METADATA)


@dataclass(frozen=True, slots=True)
class Callbacks:
    """Functions that a caller adds to a plan.

    Args:
        compare: Returns the differences between a view and a definition.
        cost: Returns what a recompute of all rows by a definition is expected to cost, see :attr:`Change.cost`.
        require_renamable: Raises if a view cannot get another name.
    """

    compare: Callable[[MaterializedViewCatalog, LoadedView, Definition], Sequence[Difference]]
    cost: Callable[[MaterializedViewCatalog, LoadedView, Definition], Mapping[str, Any] | None] = lambda *_: None
    require_renamable: Callable[[MaterializedViewCatalog, LoadedView, Identifier], None] = lambda *_: None


def plan_folder(
    catalog: MaterializedViewCatalog,
    files: Sequence[ViewFile],
    *,
    callbacks: Callbacks,
    materialized: Collection[Identifier],
    prune: bool = False,
) -> FolderPlan:
    """Compare files with a catalog. Only metadata is read.

    Args:
        callbacks: What the caller adds.
        materialized: The materialized views of the namespaces that the files are about.
        prune: Whether views that no file defines are dropped.

    Raises:
        ConfigurationError: Views read each other in a circle.
        MaterializedViewError: The catalog does not respond.
    """
    return _Planning(catalog, files, callbacks, frozenset(materialized)).plan(prune=prune)


@dataclass
class _Planning:
    """The comparison of a folder with a catalog.

    Args:
        queries: The parsed query of each file.
        broken: Why the query of a file cannot be parsed.
        renames: The present name of the view of each file, if it is renamed.
        gone: The new name of each view that is renamed, by its present one.
    """

    catalog: MaterializedViewCatalog
    files: Sequence[ViewFile]
    callbacks: Callbacks
    materialized: frozenset[Identifier]
    queries: dict[Identifier, ParsedQuery] = field(default_factory=dict)
    broken: dict[Identifier, str] = field(default_factory=dict)
    renames: dict[Identifier, Identifier | None] = field(default_factory=dict)
    gone: dict[Identifier, Identifier] = field(default_factory=dict)
    _outside: dict[Identifier, ParsedQuery] | None = None
    _by_uuid: dict[str, Identifier] | None = None

    def plan(self, *, prune: bool) -> FolderPlan:
        """Return the plan."""
        for file in self.files:
            try:
                self.queries[file.view] = _parsed(file.view, file.sql)
            except MaterializedViewError as error:
                self.broken[file.view] = str(error)
        reads = {view: tuple(_reads(query)) for view, query in self.queries.items()}
        ordered = in_order(self.files, lambda file: reads.get(file.view, ()))
        self.renames = before = {file.view: self._before(file) for file in ordered}
        self.gone = {name: view for view, name in before.items() if name is not None and name not in before}
        changes: list[Change] = []
        for file in ordered:
            change = self._change(file, before[file.view])
            lost = self._lost_input(file.view, changes)
            changes.append(change if lost is None else Change(file.view, Action.REFUSED, file, reason=lost))
        known = {file.view for file in self.files} | self.gone.keys()
        for view in sorted(self.materialized - known, key=str):
            changes.append(self._unmanaged(view, prune=prune))
        return FolderPlan(tuple(changes), reads)

    def _before(self, file: ViewFile) -> Identifier | None:
        """Return the present name of a view that is renamed: by its file's ``renamed_from``, or by equal uuids."""
        if (file.renamed_from is None and file.uuid is None) or file.view in self.materialized:
            return None
        if file.renamed_from is not None:
            had = _existing(self.catalog, file.renamed_from)
            if had is not None and had.settings is not None:
                return file.renamed_from
        if file.uuid is None:
            return None
        if self._by_uuid is None:
            self._by_uuid = {self.catalog.load(view).metadata.view_uuid: view for view in self.materialized}
        return self._by_uuid.get(file.uuid)

    def _change(self, file: ViewFile, before: Identifier | None) -> Change:
        definition, view = file.definition, file.view
        if view in self.broken:
            return Change(view, Action.REFUSED, file, reason=self.broken[view])
        try:
            check_properties(definition.properties, view=str(view))
            existing = _existing(self.catalog, before or view)
            if existing is not None and existing.settings is None:
                reason = "a plain view has this name: drop it, or give the file another name"
                return Change(view, Action.REFUSED, file, reason=reason)
            if before is not None and existing is not None:
                self._require_renamable(existing, file, before)
            possible(self.catalog, view, existing, definition)
            if existing is None:
                return Change(view, Action.CREATE, file)
            if definition.given_checks is not None:
                names = definition.columns or existing.metadata.schema_.names
                require_fitting(definition.given_properties, view=str(view), columns=tuple(names))
            found = self.callbacks.compare(self.catalog, existing, definition)
        except MaterializedViewError as error:
            return Change(view, Action.REFUSED, file, reason=str(error))
        effects = {Action.IN_PLACE if item.keeps_rows else item.effect for item in found}
        action = next((item for item in _EFFECTS if item in effects), Action.UNCHANGED)
        change = Change(view, Action.RENAME if before else action, file, found, before=before)
        return self._with_consequences(change, existing) if change.action != Action.UNCHANGED else change

    def _require_renamable(self, existing: LoadedView, file: ViewFile, before: Identifier) -> None:
        self.callbacks.require_renamable(self.catalog, existing, file.view)
        others = [item for item in self.files if item.view == before]
        others += [item for item in self.files if item is not file and self.renames[item.view] == before]
        if others:
            raise ViewNotFoundError(f"{before} cannot be renamed to {file.view}: {others[0].path} defines it")

    def _with_consequences(self, change: Change, existing: LoadedView) -> Change:
        """Add to a change what it costs, and whom it concerns."""
        names = [change.view, *([change.before] if change.before else [])]
        readers = list(dict.fromkeys(reader for name in names for reader in self._readers(name)))
        cost = None
        if change.rebuilds and change.file is not None:
            cost = self.callbacks.cost(self.catalog, existing, change.file.definition)
        found = [_touched(self.catalog, change.view, existing)]
        for reader in readers:
            if (loaded := _existing(self.catalog, reader)) is not None and loaded.settings is not None:
                found.append(_touched(self.catalog, reader, loaded))
        loses = self._loses(change, existing)
        return replace(change, readers=readers, cost=cost, touched=found, loses=loses)

    def _loses(self, change: Change, existing: LoadedView) -> list[str]:
        """Return the columns that a view has and its file's query has not, as far as the text shows it."""
        query, file = self.queries.get(change.view), change.file
        if file is None or query is None or not change.rebuilds:
            return []
        names = file.definition.columns or getattr(query.tree, "named_selects", ())
        if not names or "*" in names:
            return []
        now = {name.lower() for name in names}
        return [name for name in existing.metadata.schema_.names if name.lower() not in now]

    def _lost_input(self, view: Identifier, changes: Sequence[Change]) -> str | None:
        """Return why a view cannot be computed after other changes: a name or a column that it reads is gone."""
        query = self.queries.get(view)
        if query is None:
            return None
        reads = _reads(query)
        for name in reads:
            if name in self.gone:
                return f"it reads {name}, which is renamed to {self.gone[name]}"
        loses = next((item.loses for item in changes if [item.view] == reads), ())
        lost = [name for name in loses if _names_column(query, name)]
        return f"it reads the column {lost[0]} of {reads[0]}, which no longer has it" if lost else None

    def _unmanaged(self, view: Identifier, *, prune: bool) -> Change:
        readers = [name for name, query in self.queries.items() if view in _reads(query)]
        if prune and readers:
            reason = f"{', '.join(map(str, readers))} reads it, so it is not dropped"
            return Change(view, Action.REFUSED, reason=reason, readers=readers)
        return Change(view, Action.DROP if prune else Action.UNMANAGED, readers=readers)

    def _readers(self, view: Identifier) -> list[Identifier]:
        """Return the views of the folder, and of the same namespaces, that read a view."""
        if self._outside is None:
            names = self.materialized - {file.view for file in self.files} - self.gone.keys()
            self._outside = dict(_stored_queries(self.catalog, sorted(names, key=str)))
        queries = {**self.queries, **self._outside}
        return [name for name, query in queries.items() if view in _reads(query)]


def _parsed(view: Identifier, sql: str) -> ParsedQuery:
    return parse_query(sql, default_catalog=view.catalog, default_namespace=view.namespace, view=str(view))


def _reads(query: ParsedQuery) -> list[Identifier]:
    """Return the tables and views that a query names."""
    return list(dict.fromkeys(reference.identifier for reference in query.references))


def _names_column(query: ParsedQuery, name: str) -> bool:
    """Whether a query certainly reads a column of its only input: it does not give the name to something else."""
    named = {item.alias_or_name.lower() for item in query.tree.find_all(exp.Alias, exp.TableAlias)}
    read = {item.name.lower() for item in query.tree.find_all(exp.Column)}
    return name.lower() in read - named


def _stored_queries(
    catalog: MaterializedViewCatalog, views: Sequence[Identifier]
) -> Iterator[tuple[Identifier, ParsedQuery]]:
    """Yield the queries of views as they are. One that cannot be read is left out: no change depends on it."""
    for view in views:
        try:
            loaded = catalog.load(view)
            sql, context = spark_sql(loaded.metadata, view=str(view)), loaded.context
            yield (
                view,
                parse_query(sql, default_catalog=context.catalog, default_namespace=context.namespace, view=str(view)),
            )
        except MaterializedViewError:
            continue


def _touched(catalog: MaterializedViewCatalog, name: Identifier, view: LoadedView) -> Touched:
    """Return who is concerned by a change of a view, as far as its metadata names them."""
    try:
        records = all_refreshes(view, catalog.load_storage(view))
    except MaterializedViewError:
        records = ()
    dags = (record.requested_by.get("dag-id") for record in records)
    return Touched(name, view.metadata.properties.get("owner"), tuple(dict.fromkeys(dag for dag in dags if dag)))


def _existing(catalog: MaterializedViewCatalog, view: Identifier) -> LoadedView | None:
    try:
        return catalog.load(view)
    except ViewNotFoundError:
        return None


@dataclass(frozen=True, slots=True)
class Applied:
    """The result for one view.

    Args:
        outcome: ``done``, ``failed`` or ``skipped``.
        lines: What was done, or why not.
        error: The error, if it failed.
    """

    change: Change
    outcome: str
    lines: Sequence[str] = ()
    error: MaterializedViewError | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {**self.change.to_dict(), "outcome": self.outcome, "lines": list(self.lines)}


def apply_plan(
    plan: FolderPlan,
    *,
    define: Callable[[Identifier, Definition], Sequence[str]],
    drop: Callable[[Identifier], object],
    rename: Callable[[Identifier, Identifier], object],
) -> Iterator[Applied]:
    """Do what a plan says, view by view; each view changes as a whole or not at all.

    A view that reads a view whose change failed is skipped; the others go on. If the process ends, a new plan has what
    is left.

    Args:
        define: Creates a view or gives it a definition; returns what was done, in sentences.
        drop: Drops a view.
        rename: Gives a view another name.
    """
    failed: set[Identifier] = {change.view for change in plan.refused}
    for change in plan.to_do:
        blocked = sorted(set(plan.reads.get(change.view, ())) & failed, key=str)
        if blocked:
            failed.add(change.view)
            yield Applied(change, "skipped", [f"skipped, because {blocked[0]} was not changed"])
            continue
        try:
            if change.action == Action.DROP:
                drop(change.view)
                yield Applied(change, "done", [f"dropped {change.view}"])
                continue
            done: list[str] = []
            if change.before is not None:
                rename(change.before, change.view)
                done.append(f"renamed {change.before} to {change.view}")
            if change.file is not None:
                yield Applied(change, "done", [*done, *define(change.view, change.file.definition)])
        except MaterializedViewError as error:
            failed.add(change.view)
            yield Applied(change, "failed", [str(error)], error)
