# SPDX-License-Identifier: Apache-2.0
"""Planted faults of the loop and of changes other than refreshes: each breaks one rule of the publication protocol."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from airflow_mv.errors import CommitError, CommitStateUnknownError
from airflow_mv.maintenance.repair import _RowRepair as RowRepair
from airflow_mv.publish import protocol
from airflow_mv.publish.protocol import Change
from airflow_mv.publish.view_change import ViewChange
from tests.protocol.simulation.actors import Actor, start_expiring, start_rolling_back
from tests.protocol.simulation.mutants import Patch
from tests.protocol.simulation.world import World


def giving_up_deletes_what_may_land(world: World, patch: Patch) -> None:
    """After the last round what was written is deleted, although an outcome is unknown."""
    original = protocol._given_up

    def given_up(change: Change[Any]) -> CommitError:
        change.clean_up()
        return original(change)

    patch.setattr(protocol, "_given_up", given_up)


def the_last_refusal_is_a_proof(world: World, patch: Patch) -> None:
    """After the last refusal nobody looks whether an earlier copy has landed. With one try it is met soon."""
    patch.setattr(protocol, "TRIES", 1)
    patch.setattr(protocol, "_last_look", lambda _: None)


def no_answer_is_a_success(world: World, patch: Patch) -> None:
    """A change of a view whose answer was lost counts as done."""
    original = ViewChange.send

    def send(self: ViewChange, state: Any) -> bool:
        try:
            return original(self, state)
        except CommitStateUnknownError:
            return True

    patch.setattr(ViewChange, "send", send)


def a_refusal_is_a_success(world: World, patch: Patch) -> None:
    """A change of a view that was refused counts as done."""
    original = ViewChange.send
    patch.setattr(ViewChange, "send", lambda self, state: original(self, state) or True)


def a_repair_goes_onto_any_base(world: World, patch: Patch) -> None:
    """A repair is published over whatever was published since it looked."""

    def send(self: RowRepair, row: Any) -> bool:
        return self._catalog.swap(self._name, row.location, self._new)

    patch.setattr(RowRepair, "may_land", lambda _, row: row is not None)
    patch.setattr(RowRepair, "send", send)


#: Each with what others then do more often than usual.
CHANGE_MUTANTS: dict[Callable[[World, Patch], None], tuple[Actor, ...]] = {
    giving_up_deletes_what_may_land: (start_expiring, start_rolling_back),
    the_last_refusal_is_a_proof: (),
    no_answer_is_a_success: (),
    a_refusal_is_a_success: (),
    a_repair_goes_onto_any_base: (),
}
