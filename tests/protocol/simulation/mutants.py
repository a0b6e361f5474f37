# SPDX-License-Identifier: Apache-2.0
"""Planted faults: wrong protocols that real systems had or could have. The simulation must detect each of them.

Each is applied to the world of a schedule, with a patch that ends with the test.
"""

from __future__ import annotations

import itertools
import json
import uuid
from collections.abc import Callable
from typing import Any

import pytest

from airflow_mv.core.catalog.catalog import next_number
from airflow_mv.core.catalog.locations import join
from airflow_mv.core.publish import pointed
from airflow_mv.core.publish import refresh as publishing
from airflow_mv.core.publish.protocol import Verdict
from airflow_mv.core.refresh import choose as planning
from airflow_mv.core.refresh import run
from airflow_mv.core.script import Outcome, Script
from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.core.spec.materialized_view import PROPERTY
from airflow_mv.core.spec.view import ViewMetadata, parse_view
from airflow_mv.errors import CommitConflictError, CommitStateUnknownError
from airflow_mv.extras.maintenance import expire, orphans
from tests.protocol.simulation.actors import Actor, night, start_collecting, start_expiring, start_rolling_back
from tests.protocol.simulation.workers import Spark
from tests.protocol.simulation.world import BASES, GRACE, World

Patch = pytest.MonkeyPatch
Swap = Callable[[Identifier, str, str], bool]


# -- the answer to the swap ----------------------------------------------------------------------------


def unknown_is_conflict(world: World, patch: Patch) -> None:
    """A lost answer is taken as a failure, and the files are deleted (pyiceberg behind a JdbcCatalog)."""
    original = _swap(world)

    def swap(view: Identifier, base: str, new: str, **_: str) -> bool:
        try:
            return original(view, base, new)
        except CommitStateUnknownError:
            _give_up(world, new)

    patch.setattr(world.catalog, "swap", swap)


def client_pool_resends_the_swap(world: World, patch: Patch) -> None:
    """The connection pool sends the swap again and trusts the second answer (Iceberg's JdbcClientPool)."""
    original = _swap(world)

    def swap(view: Identifier, base: str, new: str, **_: str) -> bool:
        try:
            return original(view, base, new)
        except CommitStateUnknownError:
            if original(view, base, new):
                return True
            _give_up(world, new)

    patch.setattr(world.catalog, "swap", swap)


def blind_retry_with_a_new_identity(world: World, patch: Patch) -> None:
    """After a lost answer the same rows are published again on the current state, with another refresh id."""
    original = _swap(world)

    def swap(view: Identifier, base: str, new: str, **_: str) -> bool:
        try:
            return original(view, base, new)
        except CommitStateUnknownError:
            return original(view, *_under_another_name(world, view, new))

    patch.setattr(world.catalog, "swap", swap)


def pointer_at_base_is_a_failure(world: World, patch: Patch) -> None:
    """After a lost answer with the pointer at the base, the files are deleted, although the swap may still land."""
    original = _swap(world)

    def swap(view: Identifier, base: str, new: str, **_: str) -> bool:
        try:
            return original(view, base, new)
        except CommitStateUnknownError:
            if world.catalog.load(view).metadata_location != base:
                raise
            _give_up(world, new)

    patch.setattr(world.catalog, "swap", swap)


def rowcount_ignored(world: World, patch: Patch) -> None:
    """The number of matched rows is ignored (iceberg-rust #384)."""
    original = _swap(world)
    patch.setattr(world.catalog, "swap", lambda *arguments: original(*arguments) or True)


def blind_write(world: World, patch: Patch) -> None:
    """The swap has no base condition."""
    world.catalog._pointers.blind = True  # type: ignore[union-attr]


def base_read_just_before_the_swap(world: World, patch: Patch) -> None:
    """The swap's base is not the one that the plan was made from (trino #31257)."""
    original = _swap(world)

    def swap(view: Identifier, base: str, new: str, **_: str) -> bool:
        return original(view, world.catalog.load(view).metadata_location, new)

    patch.setattr(world.catalog, "swap", swap)


def no_matched_row_is_a_proof(world: World, patch: Patch) -> None:
    """A change whose swap matched no row is taken as not landed, and its file is deleted. A proxy sent it twice."""

    def replace(view: Any, metadata: ViewMetadata) -> bool:
        new = world.catalog.write_metadata(metadata, number=next_number(view.metadata_location))
        matched = world.catalog.swap(view.identifier, view.metadata_location, new)
        if not matched:
            world.catalog.files.delete(new)
        return matched

    patch.setattr(world.catalog, "replace", replace)


# -- names -----------------------------------------------------------------------------------------------


def metadata_named_by_version_number(world: World, patch: Patch) -> None:
    """Two writers choose the same file name."""
    files: Any = world.catalog.files
    patch.setattr(files, "write_once", False)

    def write_metadata(metadata: ViewMetadata, *, number: int) -> str:
        location = join(metadata.location, "metadata", f"{number:05d}.metadata.json")
        files.write(location, metadata.to_bytes())
        return location

    patch.setattr(world.catalog, "write_metadata", write_metadata)


def refresh_id_per_try(world: World, patch: Patch) -> None:
    """The refresh id is not derived from the input, so a retry does not find the rows that an earlier try staged."""
    patch.setattr(planning, "refresh_id", lambda **_: str(uuid.uuid4()))


# -- verdicts --------------------------------------------------------------------------------------------


def landed_refresh_is_not_detected(world: World, patch: Patch) -> None:
    """It is not detected that an earlier try has landed."""
    patch.setattr(publishing, "has_landed", lambda *_, **__: False)


def any_storage_state_is_accepted(world: World, patch: Patch) -> None:
    """A staged refresh is published on any newer state of the storage table."""
    _judge(patch, lambda verdict, *_: Verdict.READY if verdict in (Verdict.SUPERSEDED, Verdict.REPLAN) else verdict)


def new_definition_is_ignored(world: World, patch: Patch) -> None:
    """A refresh is published although the view's definition changed meanwhile."""

    def judge(verdict: Verdict, plan: Any, view: Any, storage: Any) -> Verdict:
        same = storage.base == plan.storage_base
        return Verdict.READY if verdict == Verdict.REPLAN and same else verdict

    _judge(patch, judge)


def superseded_by_any_later_refresh(world: World, patch: Patch) -> None:
    """A refresh that was published after ours was planned is taken as newer."""
    patch.setattr(publishing, "_covers", lambda *_: True)


def superseded_by_rows_that_were_rolled_back(world: World, patch: Patch) -> None:
    """A base snapshot after ours counts as newer, although the table was rolled back from it."""

    def at_or_after(catalog: Any, theirs: Any, ours: Any) -> bool:
        return bool(theirs.snapshot_reference >= ours.snapshot_reference)

    patch.setattr(publishing, "_at_or_after", at_or_after)


# -- refresh records -------------------------------------------------------------------------------------


def recorded_snapshots_are_not_those_that_were_read(world: World, patch: Patch) -> None:
    """The job reads the snapshots that are current when it runs."""
    original = Spark._read

    def read(self: Spark, text: str) -> dict[str, int] | None:
        found = original(self, text)
        return found and {str(base): world.bases[base].head for base in BASES}

    patch.setattr(Spark, "_read", read)


def staged_rows_of_another_state_are_published(world: World, patch: Patch) -> None:
    """The outcome of a job is written to one location for all refreshes of the view."""
    original = planning.refresh_script

    def refresh_script(**arguments: Any) -> Script:
        folder = arguments["storage"].location
        return original(**{**arguments, "outcome_location": join(folder, "staged", "latest.json")})

    def find_staged(catalog: Any, plan: Any) -> Outcome | None:
        text = catalog.files.read_text(plan.script.outcome_location)
        return Outcome.from_json(text) if text else None

    patch.setattr(planning, "refresh_script", refresh_script)
    patch.setattr(run, "find_staged", find_staged)
    patch.setattr(pointed, "check_staged", lambda *_: None)
    patch.setattr(pointed, "staged_snapshot", lambda plan, staged, source: staged.find(staged.head))


def times_from_the_local_clock(world: World, patch: Patch) -> None:
    """Metadata gets the writer's local time, although another host's clock was ahead."""
    original = pointed.with_properties

    def with_properties(document: dict[str, Any], **arguments: Any) -> dict[str, Any]:
        return {**original(document, **arguments), "last-updated-ms": arguments["now_ms"]}

    patch.setattr(pointed, "with_properties", with_properties)


def store_s_clock_is_not_read(world: World, patch: Patch) -> None:
    """A worker or driver whose clock is ahead publishes its times."""
    patch.setattr(pointed, "is_ahead", lambda *_: False)


# -- maintenance -----------------------------------------------------------------------------------------


def collection_without_grace(world: World, patch: Patch) -> None:
    """Files that are unreachable now are deleted now."""
    world.grace = 0


def collection_by_a_skewed_clock(world: World, patch: Patch) -> None:
    """A file's age is measured by the clock of the collecting host, which is ahead of the others."""
    files: Any = world.catalog.files
    original, ahead = files.now_ms, itertools.cycle((0, 2 * GRACE))
    patch.setattr(files, "now_ms", lambda base: original(base) + next(ahead))


def collection_trusts_its_first_read(world: World, patch: Patch) -> None:
    """A publication during the listing of files is ignored."""
    original = orphans._reach
    reached: list[Any] = []

    def reach(*arguments: Any) -> Any:
        reached.append(original(*arguments))
        return reached[-1]

    patch.setattr(orphans, "_reach", reach)
    patch.setattr(orphans, "_state", lambda *_: reached[-1].state)
    # A file must be recorded as unreachable for the grace, and files near their collection are not resumed: each rule
    # alone makes such a publication rare.
    patch.setattr(orphans.DeletionLog, "since_ms", lambda *_, **__: 0)
    patch.setattr(pointed, "oldest_lasting_ms", lambda *_: -1)


def expiry_drops_the_current_snapshot(world: World, patch: Patch) -> None:
    """The newest snapshot is kept, which is not the current one after a rollback."""
    original = expire.kept_snapshots

    def kept(table: Any, **arguments: Any) -> dict[int, str]:
        newest = max(((item.sequence_number, item.snapshot_id) for item in table.snapshots), default=(0, 0))[1]
        return {number: why for number, why in original(table, **arguments).items() if number == newest}

    patch.setattr(expire, "kept_snapshots", kept)


#: Each with the actions of others that happen more often than usual.
MUTANTS: dict[Callable[[World, Patch], None], tuple[Actor, ...]] = dict.fromkeys((
    unknown_is_conflict,
    client_pool_resends_the_swap,
    blind_retry_with_a_new_identity,
    blind_write,
    rowcount_ignored,
    refresh_id_per_try,
    collection_without_grace,
    collection_by_a_skewed_clock,
    base_read_just_before_the_swap,
    metadata_named_by_version_number,
    pointer_at_base_is_a_failure,
    landed_refresh_is_not_detected,
    any_storage_state_is_accepted,
    new_definition_is_ignored,
    superseded_by_any_later_refresh,
    superseded_by_rows_that_were_rolled_back,
    recorded_snapshots_are_not_those_that_were_read,
    staged_rows_of_another_state_are_published,
    times_from_the_local_clock,
    store_s_clock_is_not_read,
), ()) | {
    no_matched_row_is_a_proof: (start_expiring, start_rolling_back),
    collection_trusts_its_first_read: (start_collecting, night),
    expiry_drops_the_current_snapshot: (start_expiring, start_rolling_back),
}  # fmt: skip


# -- helpers ---------------------------------------------------------------------------------------------


def _swap(world: World) -> Swap:
    return world.catalog.swap


def _judge(patch: Patch, change: Callable[..., Verdict]) -> None:
    original = publishing.judge

    def judge(plan: Any, view: Any, storage: Any, **more: Any) -> Verdict:
        return change(original(plan, view, storage, **more), plan, view, storage)

    patch.setattr(publishing, "judge", judge)


def _named(world: World, view_location: str) -> tuple[ViewMetadata, str]:
    """The metadata that a swap would install, and the storage metadata file that it names."""
    data = world.catalog.files.read(view_location, what="view")
    metadata = parse_view(data, view="v", location=view_location)
    return metadata, json.loads(metadata.properties[PROPERTY])["storage-table-location"]


def _give_up(world: World, new: str) -> Any:
    """Delete what a swap would have installed, and report that it will never land."""
    for location in (new, _named(world, new)[1]):
        world.catalog.files.delete(location)
    raise CommitConflictError("the swap did not land")


def _under_another_name(world: World, view: Identifier, new: str) -> tuple[str, str]:
    """Write what a swap would have installed again, with another refresh id, on top of the current state."""
    loaded = world.catalog.load(view)
    metadata, storage_location = _named(world, new)
    document = json.loads(world.catalog.files.read(storage_location, what="storage"))
    record = json.loads(document["properties"][PROPERTY])
    other = str(uuid.uuid4())
    for item in record["refreshes"]:
        if item["refresh-id"] == record["current-refresh-id"]:
            item["refresh-id"] = other
    record["current-refresh-id"] = other
    document["properties"][PROPERTY] = json.dumps(record)
    again = join(document["location"], "metadata", f"{next_number(storage_location):05d}-{other}.metadata.json")
    world.catalog.files.write(again, json.dumps(document).encode())
    settings = {**json.loads(metadata.properties[PROPERTY]), "storage-table-location": again}
    changed = ViewMetadata.read(
        {**metadata.document(), "properties": {**metadata.properties, PROPERTY: json.dumps(settings)}}, source="again"
    )
    return loaded.metadata_location, world.catalog.write_metadata(changed, number=next_number(loaded.metadata_location))
