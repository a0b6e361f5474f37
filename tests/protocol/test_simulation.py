# SPDX-License-Identifier: Apache-2.0
"""Seeded schedules of racing, failing and dying refreshers: none breaks an invariant, and each planted fault does."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from airflow_mv import commit
from airflow_mv.catalog import MaterializedViewCatalog
from airflow_mv.catalog.files import join
from airflow_mv.commit import Verdict
from airflow_mv.errors import CommitStateUnknownError
from airflow_mv.spec.view import ViewMetadata
from tests.protocol.simulation import SimulatedFiles, Violation, World, simulate

SCHEDULES = 300
MANY = 10_000
#: A fault that few schedules meet is still to be met within so many.
SEARCH = 3_000


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


def test_no_schedule_loses_doubles_or_mixes_up_a_refresh() -> None:
    """Invariants I1 to I9 and I13 after every change of the pointer."""
    landed = sum(len(simulate(seed).landed) for seed in range(SCHEDULES))
    assert landed > SCHEDULES, "the schedules hardly refresh anything: they prove nothing"


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_no_schedule_of_many_loses_doubles_or_mixes_up_a_refresh() -> None:
    """The same with four refreshers."""
    for seed in range(MANY):
        simulate(seed, tasks=4)


def test_one_seed_is_one_schedule() -> None:
    """What a seed has found once, it finds again."""

    def course(world: World) -> tuple[object, ...]:
        return world.steps, world.swaps, len(world.landed), world.snapshots

    assert [course(simulate(seed)) for seed in range(5)] == [course(simulate(seed)) for seed in range(5)]


# -- planted faults: a simulation that stops finding one has rotted ------------------------------------


def blind_write(world: World) -> None:
    """The swap forgets its base."""
    world.catalog._pointers.blind = True  # type: ignore[union-attr]


def write_by_version_number(world: World) -> None:
    """Metadata files are named by number: two writers take one name."""
    files = world.catalog.files
    assert isinstance(files, SimulatedFiles)
    files.write_once = False

    def write_metadata(metadata: ViewMetadata, *, number: int) -> str:
        location = join(metadata.location, "metadata", f"{number:05d}.metadata.json")
        files.write(location, metadata.to_bytes())
        return location

    world.catalog.write_metadata = write_metadata  # type: ignore[method-assign]


def replaced(name: str, make: Callable[[object], object]) -> Callable[[pytest.MonkeyPatch], None]:
    return lambda patch: patch.setattr(commit, name, make(getattr(commit, name)))


def matched_is_ignored(original: Callable[..., bool]) -> Callable[..., bool]:
    """The row count is not looked at (iceberg-rust #384)."""

    def swap(*args: object) -> bool:
        original(*args)
        return True

    return swap


def conflict_without_a_look(original: Callable[..., bool]) -> Callable[..., bool]:
    """An error or no matched row counts as "did not land": the files are deleted, the refresh is given up."""

    def swap(catalog: MaterializedViewCatalog, attempt: commit._Try, *args: object) -> bool:
        try:
            if original(catalog, attempt, *args):
                return True
        except CommitStateUnknownError:
            pass
        for location in (attempt.view_location, attempt.storage_location):
            catalog.files.delete(location or "")
        attempt.base = attempt.view_location = attempt.storage_location = None
        return False

    return swap


def any_storage_will_do(original: Callable[..., Verdict]) -> Callable[..., Verdict]:
    """The base is read again just before the swap (trino #31257): a staged refresh goes onto any newer state."""

    def judge(*args: object, **kwargs: object) -> Verdict:
        verdict = original(*args, **kwargs)
        return Verdict.READY if verdict in (Verdict.SUPERSEDED, Verdict.REPLAN) else verdict

    return judge


def never_landed(original: Callable[..., bool]) -> Callable[..., bool]:
    """Nobody looks whether an earlier try has landed."""
    return lambda *args: False


WORLDS = [blind_write, write_by_version_number]
PATCHES = {
    "_swap:matched_is_ignored": replaced("_swap", matched_is_ignored),  # type: ignore[arg-type]
    "_swap:conflict_without_a_look": replaced("_swap", conflict_without_a_look),  # type: ignore[arg-type]
    "judge:any_storage_will_do": replaced("judge", any_storage_will_do),  # type: ignore[arg-type]
    "has_landed:never": replaced("has_landed", never_landed),  # type: ignore[arg-type]
}


@contextmanager
def found_within(schedules: int) -> Iterator[Callable[[Callable[[], object]], None]]:
    """Yield a loop that ends at the first violation."""

    def search(one: Callable[[], object]) -> None:
        for _ in range(schedules):
            try:
                one()
            except Violation:
                return
        pytest.fail(f"not found within {schedules} schedules")

    yield search


@pytest.mark.parametrize("prepare", WORLDS, ids=lambda fault: str(fault.__name__))
def test_a_fault_of_the_store_or_catalog_is_found(prepare: Callable[[World], None]) -> None:
    seeds = iter(range(SEARCH))
    with found_within(SEARCH) as search:
        search(lambda: simulate(next(seeds), prepare=prepare))


@pytest.mark.parametrize("name", PATCHES)
def test_a_fault_of_the_committer_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    PATCHES[name](monkeypatch)
    seeds = iter(range(SEARCH))
    with found_within(SEARCH) as search:
        search(lambda: simulate(next(seeds)))
