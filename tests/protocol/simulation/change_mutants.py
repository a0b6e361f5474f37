# SPDX-License-Identifier: Apache-2.0
"""Planted faults of the loop and of changes other than refreshes: each breaks one rule of the publication protocol."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from airflow_mv.core.catalog.sql import RowSwap
from airflow_mv.core.publish import protocol
from airflow_mv.core.publish.protocol import Change, Verdict
from airflow_mv.core.publish.storage_change import StorageChange
from airflow_mv.core.publish.view_change import ViewChange
from airflow_mv.errors import CommitError, CommitStateUnknownError
from airflow_mv.extras.compact import _Compaction as Compaction
from airflow_mv.extras.maintenance.repair import _RowRepair as RowRepair
from tests.protocol.simulation.actors import Actor, start_expiring, start_rolling_back
from tests.protocol.simulation.mutants import Patch
from tests.protocol.simulation.world import World


def giving_up_deletes_files_that_may_land(world: World, patch: Patch) -> None:
    """After the last round the written files are deleted, although an outcome is unknown."""
    original = protocol._given_up

    def given_up(change: Change[Any]) -> CommitError:
        change.clean_up()
        return original(change)

    patch.setattr(protocol, "_given_up", given_up)


def last_refusal_is_a_proof(world: World, patch: Patch) -> None:
    """After the last refusal it is not checked whether an earlier copy has landed. One try makes this likely."""
    patch.setattr(protocol, "TRIES", 1)
    patch.setattr(protocol, "_last_load", lambda _: None)


def lost_answer_is_a_success(world: World, patch: Patch) -> None:
    """A change of a view whose answer was lost counts as published."""
    original = ViewChange.send

    def send(self: ViewChange, state: Any) -> bool:
        try:
            return original(self, state)
        except CommitStateUnknownError:
            return True

    patch.setattr(ViewChange, "send", send)


def refusal_is_a_success(world: World, patch: Patch) -> None:
    """A change of a view that was refused counts as published."""
    original = ViewChange.send
    patch.setattr(ViewChange, "send", lambda self, state: original(self, state) or True)


def repair_is_published_on_any_base(world: World, patch: Patch) -> None:
    """A repair is published even if the view has changed since it was read."""

    def send(self: RowRepair, row: Any) -> bool:
        return self._catalog.swap(self._name, row.location, self._new)

    patch.setattr(RowRepair, "may_land", lambda _, row: row is not None)
    patch.setattr(RowRepair, "send", send)


def conversion_is_published_on_any_base(world: World, patch: Patch) -> None:
    """The rows of a view that was read earlier are swapped, whatever they are by then."""
    original = world.catalog.pointers.swap_rows

    def swap_rows(swaps: Sequence[RowSwap]) -> bool:
        rows = {item.name: world.rows.get(item.name) for item in swaps}
        now = {name: (row.kind, row.location) if row else None for name, row in rows.items()}
        return original([replace(item, before=now[item.name]) for item in swaps])

    patch.setattr(world.catalog.pointers, "swap_rows", swap_rows)


def unknown_conversion_is_a_conflict(world: World, patch: Patch) -> None:
    """After a lost answer to a conversion its files are deleted."""
    original = world.catalog.pointers.swap_rows

    def swap_rows(swaps: Sequence[RowSwap]) -> bool:
        try:
            return original(swaps)
        except CommitStateUnknownError:
            for item in swaps:
                if item.after is not None:
                    world.catalog.files.delete(item.after[1])
            raise

    patch.setattr(world.catalog.pointers, "swap_rows", swap_rows)


def compaction_is_published_on_any_base(world: World, patch: Patch) -> None:
    """Compacted rows are published although others were published since; the commit requires what is there by then."""

    def judge(self: Compaction, state: Any) -> Verdict:
        verdict = StorageChange.judge(self, state)
        self._base = state.storage.base
        return verdict

    patch.setattr(Compaction, "judge", judge)


#: Those of a conversion.
CONVERSION_MUTANTS = (conversion_is_published_on_any_base, unknown_conversion_is_a_conflict)
#: Each with the actions of others that happen more often than usual.
CHANGE_MUTANTS: dict[Callable[[World, Patch], None], tuple[Actor, ...]] = {
    giving_up_deletes_files_that_may_land: (start_expiring, start_rolling_back),
    last_refusal_is_a_proof: (),
    lost_answer_is_a_success: (),
    refusal_is_a_success: (),
    repair_is_published_on_any_base: (),
}
