# SPDX-License-Identifier: Apache-2.0
"""A deterministic simulation of refreshers that race, fail and die, around the real planner and committer.

Catalog rows and files are in memory. Every call to them switches to a scheduler, which a seed drives: it
chooses who goes on, and whether the call is applied, fails before or after, is applied later, or kills its
caller. Between two calls others commit to base tables, replace the view or set its properties, and overlapping
tries of one task start. After each change of the view's pointer the invariants are checked. One seed is one
schedule.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import greenlet

from airflow_mv.catalog import LoadedStorage, MaterializedViewCatalog
from airflow_mv.commit import Effects, PublishOutcome, publish
from airflow_mv.errors import CatalogUnavailableError, CommitError, CommitStateUnknownError, MetadataFileNotFoundError
from airflow_mv.plan.planner import Mode, RefreshPlan
from airflow_mv.planning import plan_refresh
from airflow_mv.refresh import stage
from airflow_mv.script import Outcome, Script
from airflow_mv.spec.identifiers import Identifier
from airflow_mv.spec.materialized_view import PROPERTY
from airflow_mv.spec.view import new_view, replace_version, with_view_properties

VIEW = Identifier("lake", ("s",), "v")
BASES = tuple(Identifier("lake", ("s",), name) for name in ("a", "b"))
COLUMNS = {"type": "struct", "schema-id": 0, "fields": [{"id": 1, "name": "k", "required": False, "type": "int"}]}
STORAGE = "file:///w/v/storage"
_REGISTERED = re.compile(r"metadata_file => '([^']+)'")
_PINNED = re.compile(r"`lake`\.`s`\.`(\w)` VERSION AS OF (\d+)")
_VERSION = re.compile(r"/\* version (\d+) \*/")


class Violation(AssertionError):
    """An invariant does not hold."""


class Killed(BaseException):
    """The process dies here: nothing catches it, no `finally` of ours may count."""


class StoreError(OSError):
    """The file store gave no answer."""


def query(version: int) -> str:
    """The view's SQL; the comment tells the rows' version to whoever runs it."""
    return f"SELECT k FROM lake.s.a UNION ALL SELECT k FROM lake.s.b /* version {version} */"


@dataclass
class World:
    """Catalog rows, files and the clock, and who may see them when."""

    seed: int
    faults: float = 0.1
    steps: int = 0
    now: int = 1_700_000_000_000
    files: dict[str, bytes] = field(default_factory=dict)
    pointers: dict[Identifier, str] = field(default_factory=dict)
    late: list[tuple[int, Callable[[], Any]]] = field(default_factory=list)
    landed: list[str] = field(default_factory=list)
    refuted: set[str] = field(default_factory=set)
    swaps: int = 0
    applying: bool = False

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.main = greenlet.getcurrent()
        self.catalog = SimulatedCatalog(self)
        self.snapshots = dict.fromkeys(BASES, 0)
        for base in BASES:
            self.append(base)
        self.files[f"{STORAGE}/metadata/00000-start.metadata.json"] = json.dumps(table(STORAGE, [])).encode()
        settings = json.dumps({"storage-table-location": f"{STORAGE}/metadata/00000-start.metadata.json"})
        view = new_view(
            view_uuid="view",
            location="file:///w/v",
            schema=COLUMNS,
            sql=query(1),
            default_catalog="lake",
            default_namespace=("s",),
            properties={PROPERTY: settings},
            summary={},
            now_ms=self.now,
        )
        self.pointers[VIEW] = self.catalog.write_metadata(view, number=0)

    # -- one call to the outside -------------------------------------------------------------------

    def call(self, apply: Callable[[], Any], *, error: type[Exception], may_be_late: bool = False) -> Any:
        """Let the scheduler decide the fate of a call. What a call does is one step, its checks included."""
        if self.applying or greenlet.getcurrent() is self.main:
            return apply()
        self.main.switch()
        if self.random.random() >= self.faults:
            return self._apply(apply)
        fate = self.random.choice(
            ["before", "after", "kill before", "kill after", *(["late"] * 3 if may_be_late else [])]
        )
        if fate == "late":
            self.late.append((self.steps + self.random.randint(1, 40), apply))
            raise error("no answer")
        if fate.endswith("after"):
            self._apply(apply)
        raise Killed if fate.startswith("kill") else error("no answer")

    def _apply(self, apply: Callable[[], Any]) -> Any:
        self.applying = True
        try:
            return apply()
        finally:
            self.applying = False

    # -- what others do ----------------------------------------------------------------------------

    def append(self, base: Identifier) -> None:
        """Someone commits to a base table."""
        self.snapshots[base] += 1
        name = f"file:///w/{base.name}/metadata/{self.snapshots[base]:05d}.metadata.json"
        snapshots = [
            {"snapshot-id": n, "parent-snapshot-id": n - 1 or None, "sequence-number": n, "timestamp-ms": n,
             "summary": {"operation": "append"}} for n in range(1, self.snapshots[base] + 1)
        ]  # fmt: skip
        self.files[name] = json.dumps(table(f"file:///w/{base.name}", snapshots)).encode()
        self.pointers[base] = name

    def replace_view(self) -> None:
        """Someone gives the view another definition."""
        loaded = self.catalog.load(VIEW)
        number = max(version.version_id for version in loaded.metadata.versions) + 1
        replaced = replace_version(
            loaded.metadata, schema=COLUMNS, sql=query(number), default_catalog="lake", default_namespace=("s",),
            summary={}, now_ms=self.now,
        )  # fmt: skip
        self.catalog.replace(loaded, replaced)

    def set_property(self) -> None:
        """Someone comments on the view."""
        loaded = self.catalog.load(VIEW)
        self.catalog.replace(loaded, with_view_properties(loaded.metadata, {"comment": str(self.steps)}))

    # -- the invariants ----------------------------------------------------------------------------

    def swapped(self, base: str, new: str) -> None:
        """Check what a change of the pointer left. Named as in the reliability notes."""
        self.swaps += 1
        if self.pointers[VIEW] != base:
            raise Violation("I1: the swap did not start from the current pointer")
        before = self.storage()
        self.pointers[VIEW] = new
        try:
            after = self.storage()
        except MetadataFileNotFoundError as error:
            raise Violation(f"I2: a live file is missing: {error}") from None
        if after.location != before.location:
            self._refreshed(before, after)

    def _refreshed(self, before: LoadedStorage, after: LoadedStorage) -> None:
        if after.state is None:
            raise Violation("I8: a refresh without a record")
        record, view = after.state.current, self.catalog.load(VIEW)
        if record.refresh_id in self.landed:
            raise Violation("I3: a refresh landed twice")
        if record.refresh_id in self.refuted:
            raise Violation("I5: a refresh that was called impossible landed")
        self.landed.append(record.refresh_id)
        content = json.loads(after.table.find(after.table.head or 0).summary["content"])  # type: ignore[union-attr]
        if content["pins"] != record.snapshots:
            raise Violation(f"I6: rows of {content['pins']}, recorded {record.snapshots}")
        if not content["version"] == record.version_id == view.metadata.current_version_id:
            raise Violation("I9: rows of another definition than the view's")
        old = before.state.current.snapshots if before.state else {}
        if any(record.snapshots[name] < snapshot for name, snapshot in old.items()):
            raise Violation("I7: a base table went back")

    def storage(self) -> LoadedStorage:
        """The storage table that the pointer leads to."""
        return self.catalog.load_storage(self.catalog.load(VIEW))


class SimulatedCatalog(MaterializedViewCatalog):
    """The real catalog over a world's rows and files."""

    def __init__(self, world: World) -> None:
        self.name = "lake"
        self.properties = {}
        self.files = cast("Any", SimulatedFiles(world))
        self._pointers = cast("Any", SimulatedPointers(world))
        self._others = {"lake": self}


@dataclass
class SimulatedPointers:
    """Rows of a catalog's database."""

    world: World
    blind: bool = False

    def get(self, view: Identifier) -> tuple[str | None, str | None]:
        return (
            self.world.call(lambda: self.world.pointers.get(view), error=CatalogUnavailableError),
            "VIEW",
        )

    def locate(self, wanted: Sequence[Identifier]) -> dict[Identifier, tuple[str, str]]:
        def look() -> dict[Identifier, tuple[str, str]]:
            return {item: (self.world.pointers[item], "TABLE") for item in wanted}

        return cast("dict[Identifier, tuple[str, str]]", self.world.call(look, error=CatalogUnavailableError))

    def swap(self, view: Identifier, base: str, new: str) -> bool:
        def apply() -> bool:
            if self.world.pointers[view] != base and not self.blind:
                return False
            self.world.swapped(base, new)
            return True

        return bool(self.world.call(apply, error=CommitStateUnknownError, may_be_late=True))


@dataclass
class SimulatedFiles:
    """A file store."""

    world: World
    write_once: bool = True

    def read(self, location: str, *, what: str) -> bytes:
        def get() -> bytes:
            if location not in self.world.files:
                raise MetadataFileNotFoundError(f"{what}: {location}")
            return self.world.files[location]

        return cast("bytes", self.world.call(get, error=StoreError))

    def read_text(self, location: str) -> str | None:
        try:
            return self.read(location, what="file").decode()
        except MetadataFileNotFoundError:
            return None

    def write(self, location: str, data: bytes) -> None:
        def put() -> None:
            if self.write_once and location in self.world.files:
                raise Violation(f"I10: {location} is written twice")
            self.world.files[location] = data

        self.world.call(put, error=StoreError)

    def replace_text(self, location: str, text: str) -> None:
        self.world.call(lambda: self.world.files.__setitem__(location, text.encode()), error=StoreError)

    def delete(self, location: str) -> None:
        self.world.call(lambda: self.world.files.pop(location, None), error=StoreError)


def table(location: str, snapshots: list[dict[str, Any]]) -> dict[str, Any]:
    """Table metadata with these snapshots, the last one current."""
    return {
        "format-version": 2,
        "table-uuid": location,
        "location": location,
        "last-sequence-number": len(snapshots),
        "last-updated-ms": 0,
        "current-schema-id": 0,
        "schemas": [COLUMNS],
        "current-snapshot-id": snapshots[-1]["snapshot-id"] if snapshots else None,
        "snapshots": snapshots,
        "properties": {},
    }


@dataclass
class Spark:
    """Does what the script says: reads the registered file, writes the next one; rows are the pins themselves."""

    world: World

    def __call__(self, script: Script) -> Outcome:
        registered, query = script.statements[0], script.statements[-1]
        location = _REGISTERED.search(registered)[1]  # type: ignore[index]
        files = self.world.catalog.files
        document = json.loads(files.read(location, what="registered file"))
        pins = {f"lake.s.{name}": int(snapshot) for name, snapshot in _PINNED.findall(query)}
        version = int(_VERSION.search(query)[1])  # type: ignore[index]
        number = document["last-sequence-number"] + 1
        snapshot = {
            "snapshot-id": self.world.random.getrandbits(60),
            "sequence-number": number,
            "timestamp-ms": self.world.now,
            "summary": {"operation": "overwrite", "content": json.dumps({"pins": pins, "version": version})},
        }
        staged = {
            **document,
            "last-sequence-number": number,
            "snapshots": [*document["snapshots"], snapshot],
            "current-snapshot-id": snapshot["snapshot-id"],
            "metadata-log": [*document.get("metadata-log", []), {"metadata-file": location, "timestamp-ms": 0}],
        }
        name = f"{STORAGE}/metadata/{number:05d}-{self.world.random.getrandbits(64):x}.metadata.json"
        files.write(name, json.dumps(staged).encode())
        return Outcome(script.refresh_id, name, rows_written=1)


@dataclass
class Task:
    """One task of a scheduler: tries until one succeeds; tries may overlap."""

    world: World
    tries: int = 0
    running: list[greenlet.greenlet] = field(default_factory=list)
    done: bool = False

    def start(self) -> None:
        """Start another try."""
        self.tries += 1
        self.running.append(greenlet.greenlet(self._try))

    def step(self, which: greenlet.greenlet) -> None:
        """Let a try go on to its next call."""
        which.switch()
        if which.dead:
            self.running.remove(which)

    def _try(self) -> None:
        try:
            for _ in range(6):
                if self._refresh() is not None:
                    self.done = True
                    return
        except (Killed, CommitError, CatalogUnavailableError, StoreError):
            return

    def _refresh(self) -> PublishOutcome | None:
        world = self.world
        effects = Effects(now_ms=lambda: world.now, sleep=lambda _: None, jitter=world.random.random)
        plan: RefreshPlan = plan_refresh(world.catalog, VIEW)
        if plan.mode == Mode.NOOP:
            return PublishOutcome.ALREADY_COMMITTED
        outcome = stage(world.catalog, plan, Spark(world))
        location = outcome.metadata_location if outcome else None
        published = publish(world.catalog, plan, location, effects=effects, tries=5)
        if published.outcome == PublishOutcome.REPLAN:
            world.refuted.add(plan.refresh_id)
            return None
        if published.outcome != PublishOutcome.SUPERSEDED and plan.refresh_id not in world.landed:
            raise Violation("I4: success was reported for a refresh that has not landed")
        return published.outcome


def simulate(seed: int, *, prepare: Callable[[World], None] | None = None, tasks: int = 3, limit: int = 900) -> World:
    """Run one schedule to its end; afterwards, without faults, the view must become fresh.

    Raises:
        Violation: An invariant does not hold.
    """
    world = World(seed)
    if prepare:
        prepare(world)
    try:
        _run(world, [Task(world) for _ in range(tasks)], limit)
    except MetadataFileNotFoundError as error:
        raise Violation(f"I2: someone reads a file that is missing: {error}") from None
    return world


def _run(world: World, waiting: list[Task], limit: int) -> None:
    while world.steps < limit and not all(task.done or (task.tries >= 5 and not task.running) for task in waiting):
        _advance(world, waiting)
    for task in waiting:
        task.running.clear()
    for _, apply in world.late:
        apply()
    world.faults = 0.0
    last = Task(world)
    last.start()
    while last.running:
        last.step(last.running[0])
    if not last.done:
        raise Violation("I13: without faults and contenders a refresh does not end")


def _advance(world: World, tasks: list[Task]) -> None:
    world.steps += 1
    world.now += world.random.randint(0, 5)
    due = [item for item in world.late if item[0] <= world.steps]
    world.late = [item for item in world.late if item[0] > world.steps]
    for _, apply in due:
        apply()
    chance = world.random.random()
    if chance < 0.02:
        world.append(world.random.choice(BASES))
    elif chance < 0.025:
        world.replace_view()
    elif chance < 0.035:
        world.set_property()
    else:
        task = world.random.choice(tasks)
        if not task.running or (task.tries < 5 and world.random.random() < 0.005):
            if task.done or task.tries >= 5:
                return
            task.start()
        task.step(world.random.choice(task.running))
