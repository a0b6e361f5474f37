# SPDX-License-Identifier: Apache-2.0
"""Planted faults of the registered layout; see :mod:`tests.protocol.simulation.mutants`."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from airflow_mv.core.catalog import LoadedStorage, LoadedView, TableChange
from airflow_mv.core.publish import registered
from airflow_mv.core.publish.registered import RegisteredAttempt
from airflow_mv.core.publish.table import TableAttempt
from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.core.spec.materialized_view import ADOPTED_TAG, DEFINITION_PROPERTY, StorageState
from airflow_mv.core.spec.new_columns import NewColumns, new_columns
from airflow_mv.errors import CommitConflictError, CommitStateUnknownError
from airflow_mv.extras.history import rollback
from tests.protocol.simulation.actors import Actor, append, replace_view, start_redefining, start_setting
from tests.protocol.simulation.mutants import (
    Patch,
    any_storage_state_is_accepted,
    landed_refresh_is_not_detected,
    new_definition_is_ignored,
    recorded_snapshots_are_not_those_that_were_read,
    superseded_by_any_later_refresh,
)
from tests.protocol.simulation.world import World


def commit_without_requirements(world: World, patch: Patch) -> None:
    """The commit to the storage table has no requirements."""
    world.catalog.tables.checks = False  # type: ignore[attr-defined]


def unknown_commit_is_conflict(world: World, patch: Patch) -> None:
    """After a lost answer to the table's commit the staged snapshot's files are deleted (Iceberg's JdbcCatalog)."""
    tables: Any = world.catalog.tables
    original = tables.commit

    def commit_table(name: Identifier, uuid: str, change: Any) -> str | None:
        try:
            return original(name, uuid, change)
        except CommitStateUnknownError:
            table = json.loads(world.files[world.rows[world.storage_name].location].data)
            for snapshot in table["snapshots"]:
                if snapshot["snapshot-id"] in change.tags.values():
                    world.catalog.files.delete(snapshot["summary"]["files"])
            raise CommitConflictError("the commit did not land") from None

    patch.setattr(tables, "commit", commit_table)


def refused_commit_is_a_success(world: World, patch: Patch) -> None:
    """A refused commit of the table is taken as a success."""
    original = RegisteredAttempt.send
    patch.setattr(RegisteredAttempt, "send", lambda *args: original(*args) or "somewhere")


def main_and_tag_are_not_required(world: World, patch: Patch) -> None:
    """The commit requires only its own branch, not the state that the refresh was planned on."""
    change = RegisteredAttempt.change

    def weaker(self: RegisteredAttempt, *args: Any) -> Any:
        found = change(self, *args)
        wanted = {ref: item for ref, item in found.requires.items() if not ref.startswith(("main", "airflow_mv_at_"))}
        return replace(found, requires=wanted)

    patch.setattr(RegisteredAttempt, "change", weaker)


def rollback_is_repeated(world: World, patch: Patch) -> None:
    """A rollback leaves no mark: after a lost answer it is repeated on top of a newer refresh."""
    original = rollback.rolled_back

    def rolled_back(*arguments: Any) -> StorageState:
        return original(*arguments).model_copy(update={"rollbacks": ()})

    patch.setattr(rollback, "rolled_back", rolled_back)


def new_columns_are_added_after_any_snapshot(world: World, patch: Patch) -> None:
    """Rows with other columns are added although another snapshot has taken their sequence number meanwhile."""
    patch.setattr(NewColumns, "fits", lambda *_: True)


def new_columns_are_not_made_current(world: World, patch: Patch) -> None:
    """Rows with other columns are published under the columns of the earlier definition."""

    def added(*arguments: Any, **more: Any) -> NewColumns:
        found = new_columns(*arguments, **more)
        return replace(found, schema_id=found.required["current-schema-id"])

    patch.setattr(registered, "new_columns", added)


#: Each with the actions of others that happen more often than usual.
REGISTERED_MUTANTS: dict[Callable[[World, Patch], None], tuple[Actor, ...]] = dict.fromkeys((
    commit_without_requirements,
    unknown_commit_is_conflict,
    recorded_snapshots_are_not_those_that_were_read,
    superseded_by_any_later_refresh,
    any_storage_state_is_accepted,
    landed_refresh_is_not_detected,
    refused_commit_is_a_success,
    main_and_tag_are_not_required,
), ()) | {
    new_definition_is_ignored: (replace_view,),
    new_columns_are_added_after_any_snapshot: (replace_view, append),
    new_columns_are_not_made_current: (replace_view,),
}  # fmt: skip


def the_definition_is_not_required(world: World, patch: Patch) -> None:
    """A refresh is published whatever the view's definition is by then."""
    change = TableAttempt.change

    def weaker(self: TableAttempt, view: LoadedView, storage: LoadedStorage) -> Any:
        found, tag = change(self, view, storage), view.holder.tag if view.holder else ""
        return replace(found, requires={ref: item for ref, item in found.requires.items() if ref != tag})

    patch.setattr(TableAttempt, "change", weaker)


def a_definition_replaces_any_other(world: World, patch: Patch) -> None:
    """A change of the definition requires nothing of the earlier one."""
    tables: Any = world.catalog.tables
    original = tables.commit

    def commit(name: Identifier, uuid: str, change: TableChange) -> str | None:
        anything = DEFINITION_PROPERTY in change.properties
        return original(name, uuid, replace(change, requires={}) if anything else change)  # type: ignore[no-any-return]

    patch.setattr(tables, "commit", commit)


def an_adoption_ignores_the_writes_of_others(world: World, patch: Patch) -> None:
    """An adoption does not require the rows that the table had when it was loaded."""
    tables: Any = world.catalog.tables
    original = tables.commit

    def commit(name: Identifier, uuid: str, change: TableChange) -> str | None:
        wanted = {ref: item for ref, item in change.requires.items() if ref != "main" or ADOPTED_TAG not in change.tags}
        return original(name, uuid, replace(change, requires=wanted))  # type: ignore[no-any-return]

    patch.setattr(tables, "commit", commit)


#: The same for the layout ``table``.
TABLE_MUTANTS: dict[Callable[[World, Patch], None], tuple[Actor, ...]] = {
    the_definition_is_not_required: (replace_view,),
    a_definition_replaces_any_other: (start_redefining, start_setting),
}
