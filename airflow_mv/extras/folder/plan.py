# SPDX-License-Identifier: Apache-2.0
"""Compare a folder of definitions with a catalog, and make the catalog what the folder says."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from airflow_mv.core.catalog import LoadedView, MaterializedViewCatalog
from airflow_mv.core.define.create import possible
from airflow_mv.core.define.definition import Definition, check_properties
from airflow_mv.core.refresh.checks import require_fitting
from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.core.sql.query import parse_query
from airflow_mv.errors import MaterializedViewError, ViewNotFoundError
from airflow_mv.extras.folder.files import ViewFile, in_order


class Action(StrEnum):
    """What has to be done so that a view is what its file says."""

    CREATE = "create"
    """There is no such view."""
    METADATA = "metadata"
    """Settings, properties or checks change; the rows are kept."""
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

    def to_dict(self) -> dict[str, str | None]:
        """Return the JSON form."""


@dataclass(frozen=True, slots=True)
class Change:
    """What a plan does with one view.

    Args:
        file: The file that defines it; ``None`` if none does.
        differences: How the view differs from its file.
        reason: Why it is refused.
        readers: The views of the folder that read it, if its rows or its columns may change.
    """

    view: Identifier
    action: Action
    file: ViewFile | None = None
    differences: Sequence[Difference] = ()
    reason: str | None = None
    readers: Sequence[Identifier] = ()

    @property
    def drift(self) -> list[Difference]:
        """What the view has and its file does not say. It is kept."""
        return [item for item in self.differences if item.effect == "kept"]

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "view": str(self.view),
            "action": str(self.action),
            "file": str(self.file.path) if self.file else None,
            "differences": [item.to_dict() for item in self.differences],
            "reason": self.reason,
            "readers": [str(view) for view in self.readers],
        }


@dataclass(frozen=True, slots=True)
class FolderPlan:
    """What has to be done so that a catalog is what a folder says, in the order in which it is done.

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


_DOES = (Action.CREATE, Action.METADATA, Action.REBUILD, Action.DROP)


def plan_folder(
    catalog: MaterializedViewCatalog,
    files: Sequence[ViewFile],
    *,
    compare: Callable[[MaterializedViewCatalog, LoadedView, Definition], Sequence[Difference]],
    materialized: Collection[Identifier],
    prune: bool = False,
) -> FolderPlan:
    """Compare files with a catalog. Only metadata is read.

    Args:
        compare: Returns the differences between a view and a definition.
        materialized: The materialized views of the namespaces that the files are about.
        prune: Whether views that no file defines are dropped.

    Raises:
        ConfigurationError: Views read each other in a circle.
        MaterializedViewError: The catalog does not respond.
    """
    references, broken = _references(files)
    ordered = in_order(files, lambda file: references.get(file.view, ()))
    changes = []
    for file in ordered:
        if file.view in broken:
            changes.append(Change(file.view, Action.REFUSED, file, reason=broken[file.view]))
            continue
        change = _change(catalog, file, compare)
        if change.action in (Action.CREATE, Action.UNCHANGED, Action.REFUSED):
            changes.append(change)
            continue
        readers = [name for name, read in references.items() if file.view in read]
        changes.append(Change(file.view, change.action, file, change.differences, readers=readers))
    others = sorted(set(materialized) - {file.view for file in files}, key=str)
    for view in others:
        readers = [name for name, read in references.items() if view in read]
        if prune and readers:
            reason = f"{', '.join(map(str, readers))} reads it, so it is not dropped"
            changes.append(Change(view, Action.REFUSED, reason=reason, readers=readers))
        else:
            changes.append(Change(view, Action.DROP if prune else Action.UNMANAGED, readers=readers))
    return FolderPlan(tuple(changes), references)


def _references(
    files: Sequence[ViewFile],
) -> tuple[dict[Identifier, tuple[Identifier, ...]], dict[Identifier, str]]:
    """Return the tables and views that each query names, and why a query cannot be parsed."""
    found, broken = {}, {}
    for file in files:
        name = file.view
        try:
            query = parse_query(
                file.sql, default_catalog=name.catalog, default_namespace=name.namespace, view=str(name)
            )
        except MaterializedViewError as error:
            broken[name] = str(error)
        else:
            found[name] = tuple(dict.fromkeys(reference.identifier for reference in query.references))
    return found, broken


def _change(
    catalog: MaterializedViewCatalog,
    file: ViewFile,
    compare: Callable[[MaterializedViewCatalog, LoadedView, Definition], Sequence[Difference]],
) -> Change:
    definition, view = file.definition, file.view
    try:
        check_properties(definition.properties, view=str(view))
        existing = _existing(catalog, view)
        if existing is not None and existing.settings is None:
            reason = "a plain view has this name: drop it, or give the file another name"
            return Change(view, Action.REFUSED, file, reason=reason)
        possible(catalog, view, existing, definition)
        if existing is None:
            return Change(view, Action.CREATE, file)
        if definition.given_checks is not None:
            names = definition.columns or existing.metadata.schema_.names
            require_fitting(definition.given_properties, view=str(view), columns=tuple(names))
        found = compare(catalog, existing, definition)
    except MaterializedViewError as error:
        return Change(view, Action.REFUSED, file, reason=str(error))
    effects = {item.effect for item in found}
    action = next((item for item in (Action.REBUILD, Action.METADATA) if item.value in effects), Action.UNCHANGED)
    return Change(view, action, file, found)


def _existing(catalog: MaterializedViewCatalog, view: Identifier) -> LoadedView | None:
    try:
        return catalog.load(view)
    except ViewNotFoundError:
        return None


@dataclass(frozen=True, slots=True)
class Applied:
    """What was done with one view.

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
) -> Iterator[Applied]:
    """Do what a plan says, view by view; each view changes as a whole or not at all.

    A view that reads a view whose change failed is skipped; the others go on. If the process ends, a new plan has what
    is left.

    Args:
        define: Creates a view or gives it a definition; returns what was done, in sentences.
        drop: Drops a view.
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
            elif change.file is not None:
                yield Applied(change, "done", define(change.view, change.file.definition))
        except MaterializedViewError as error:
            failed.add(change.view)
            yield Applied(change, "failed", [str(error)], error)
