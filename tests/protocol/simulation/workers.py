# SPDX-License-Identifier: Apache-2.0
"""The processes that work on the view: Spark, the tries of a scheduler's tasks, and maintenance."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import greenlet

from airflow_mv.core.publish.protocol import Effects
from airflow_mv.core.refresh.plan import RefreshPlan, RefreshResult
from airflow_mv.core.refresh.run import refresh
from airflow_mv.core.script import REFRESH_ID_KEY, CreateStorageStep, Outcome, Script
from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.core.spec.materialized_view import NO_SNAPSHOT
from airflow_mv.errors import InvalidMetadataError, MaterializedViewError
from tests.protocol.simulation.queries import columns_of
from tests.protocol.simulation.tables import empty_table, stage_on_branch
from tests.protocol.simulation.world import MINUTE, TRY_LIMIT, VIEW, Job, Killed, Row, Violation, World

_REGISTERED = re.compile(r"metadata_file => '([^']+)'")
_PINNED = re.compile(r"`lake`\.`s`\.`(\w)` (?:VERSION AS OF (\d+)|TABLESAMPLE \(0 ROWS\))")
_START = re.compile(r"CREATE BRANCH \S+ AS OF VERSION (\d+)")
_VERSION = re.compile(r"/\* version (\d+) \*/")


@dataclass
class Spark:
    """Executes a script: reads the registered file and the pinned snapshots, writes the next file.

    Args:
        world: The simulated world.
        process: The process that submits scripts; the driver runs on the same host.
    """

    world: World
    process: Process

    def __call__(self, script: Script) -> Outcome:
        plan = self.process.plan
        assert plan is not None
        job = (*script.statements, *(record.properties["table-uuid"] for record in plan.records))
        self._check_needed(job)
        self.process.submitted.add(script.refresh_id)
        try:
            return self._run(script, job)
        except (OSError, MaterializedViewError) as error:
            return Outcome(script.refresh_id, None, error=str(error))

    def _check_needed(self, job: Job) -> None:
        for location, left_at in self.world.staged.get(job, {}).items():
            if left_at < self.process.planned_at and self.world.is_staged(location, job):
                raise Violation("a refresh that is staged is computed again")

    def _run(self, script: Script, job: Job) -> Outcome:
        files, text = self.world.catalog.files, "\n".join(script.statements)
        if script.branch is not None:
            return self._stage_on_branch(script, text)
        location = _REGISTERED.search(text)[1]  # type: ignore[index]
        document = json.loads(files.read(location, what="registered file"))
        now = self.process.now_ms()
        if now < document["last-updated-ms"] - MINUTE:
            return Outcome(script.refresh_id, None, error="Invalid update timestamp: the driver's clock is behind")
        pins = self._read(text)
        if pins is None:
            return Outcome(script.refresh_id, None, error="Cannot find snapshot")
        version = int(_VERSION.search(text)[1])  # type: ignore[index]
        content = json.dumps({"pins": pins, "version": version})
        staged = self._staged(document, location, content, now, script.refresh_id)
        if "CREATE OR REPLACE TABLE" in text:
            schema = {**columns_of(text), "schema-id": document["current-schema-id"] + 1}
            staged |= {
                "schemas": [*document["schemas"], schema],
                "current-schema-id": schema["schema-id"],
                "snapshot-log": staged["snapshot-log"][-1:],
            }
        name = f"{document['location']}/metadata/{self._number(location):05d}-{self._token()}.metadata.json"
        files.write(name, json.dumps(staged).encode())
        self.world.left_by[name] = job
        return Outcome(script.refresh_id, name, rows_written=1)

    def _stage_on_branch(self, script: Script, text: str) -> Outcome:
        pins = self._read(text)
        if pins is None:
            return Outcome(script.refresh_id, None, error="Cannot find snapshot")
        content = json.dumps({"pins": pins, "version": int(_VERSION.search(text)[1])})  # type: ignore[index]
        start = _START.search(text)
        return stage_on_branch(
            self.world, script, content, int(start[1]) if start else None, lambda folder: self._write(folder, content)
        )

    def _write(self, folder: str, content: str) -> str:
        """Write the data of a snapshot, and the file that lists it."""
        data, listing = f"{folder}/data/{self._token()}.parquet", f"{folder}/metadata/snap-{self._token()}.avro"
        self.world.catalog.files.write(data, content.encode())
        self.world.catalog.files.write(listing, json.dumps([data]).encode())
        return listing

    def _read(self, text: str) -> dict[str, int] | None:
        """Read the pinned snapshots of the base tables as they are now."""
        pins = {f"lake.s.{name}": int(snapshot or NO_SNAPSHOT) for name, snapshot in _PINNED.findall(text)}
        located = self.world.catalog.locate([Identifier.parse(name) for name in pins])
        for identifier, place in located.items():
            table = json.loads(self.world.catalog.files.read(place.metadata_location, what="base table"))
            retained = {item["snapshot-id"] for item in table["snapshots"]}
            if pins[str(identifier)] not in retained | {NO_SNAPSHOT}:
                self.world.events["pinned snapshot had expired"] += 1
                return None
        return pins

    def _staged(
        self, document: dict[str, Any], registered: str, content: str, now: int, refresh_id: str
    ) -> dict[str, Any]:
        listing = self._write(document["location"], content)
        number = document["last-sequence-number"] + 1
        snapshot = {
            "snapshot-id": self.world.next_snapshot(),
            "sequence-number": number,
            "timestamp-ms": now,
            "summary": {
                "operation": "overwrite",
                "content": content,
                "files": listing,
                REFRESH_ID_KEY: refresh_id,
            },
        }
        logged = {"metadata-file": registered, "timestamp-ms": document["last-updated-ms"]}
        return {
            **document,
            "last-sequence-number": number,
            "last-updated-ms": now,
            "snapshots": [*document["snapshots"], snapshot],
            "snapshot-log": [
                *document["snapshot-log"], {"timestamp-ms": now, "snapshot-id": snapshot["snapshot-id"]},
            ],
            "current-snapshot-id": snapshot["snapshot-id"],
            "refs": {name: ref for name, ref in document["refs"].items() if name != "main"},
            "metadata-log": [*document["metadata-log"], logged],
        }  # fmt: skip

    def _token(self) -> str:
        return f"{self.world.random.getrandbits(64):016x}"

    def _number(self, location: str) -> int:
        return int(location.rsplit("/", 1)[-1].split("-", 1)[0]) + 1


class Rewriter(Spark):
    """Executes the script of a compaction: other files with the same rows, in a snapshot that replaces the last one."""

    def __call__(self, script: Script) -> Outcome:
        try:
            return self._rewrite(script)
        except (OSError, MaterializedViewError) as error:
            return Outcome(script.refresh_id, None, error=str(error))

    def _rewrite(self, script: Script) -> Outcome:
        files, text = self.world.catalog.files, "\n".join(script.statements)
        if script.branch is not None:
            if (row := self.world.rows.get(self.world.storage_name)) is None:
                return Outcome(script.refresh_id, None, error="Table does not exist")
            base, document = int(_START.search(text)[1]), json.loads(files.read(row.location, what="storage table"))  # type: ignore[index]
        else:
            location = _REGISTERED.search(text)[1]  # type: ignore[index]
            document = json.loads(files.read(location, what="registered file"))
            base = document["current-snapshot-id"]
        found = [item for item in document["snapshots"] if item["snapshot-id"] == base]
        if not found:
            return Outcome(script.refresh_id, None, error="Cannot find snapshot")
        content = found[0]["summary"]["content"]
        if script.branch is not None:
            return stage_on_branch(
                self.world, script, content, base, lambda folder: self._write(folder, content), "replace"
            )
        now = self.process.now_ms()
        if now < document["last-updated-ms"] - MINUTE:
            return Outcome(script.refresh_id, None, error="Invalid update timestamp: the driver's clock is behind")
        staged = self._staged(document, location, content, now, script.refresh_id)
        staged["snapshots"][-1] |= {"parent-snapshot-id": base}
        staged["snapshots"][-1]["summary"]["operation"] = "replace"
        name = f"{document['location']}/metadata/{self._number(location):05d}-{self._token()}.metadata.json"
        files.write(name, json.dumps(staged).encode())
        return Outcome(script.refresh_id, name, rows_written=1)


@dataclass
class Analyser:
    """Executes the script of a creation: adds an empty table with the columns of the query to the catalog.

    Args:
        world: The simulated world.
    """

    world: World

    def __call__(self, script: Script) -> Outcome:
        step = script.steps[-1]
        assert isinstance(step, CreateStorageStep)
        assert step.location is not None
        name = Identifier("lake", VIEW.namespace, step.table.rpartition("`.`")[2].rstrip("`"))
        document = {**empty_table(step.location, self.world.now), "schemas": [columns_of(step.query)]}
        first = f"{step.location}/metadata/00000-columns.metadata.json"
        self.world.put(first, json.dumps(document).encode())
        self.world.rows[name] = Row(first, "TABLE")
        return Outcome(script.refresh_id, first)


@dataclass(eq=False)
class Process:
    """One process: it continues from call to call until it ends, is killed, or times out.

    Args:
        world: The simulated world.
        role: What it does.
        body: The function that it runs.
        skew: The difference of its host's clock from the store's.
        started: When it was started.
        failed: The error it failed with.
        plan: The refresh that it planned last.
        planned_at: The tick of that plan.
        submitted: The refreshes that it submitted to Spark.
        killed: Whether it was killed from outside.
    """

    world: World
    role: str
    body: Callable[[Process], None]
    skew: int = 0
    started: int = 0
    failed: str | None = None
    plan: RefreshPlan | None = None
    planned_at: int = 0
    submitted: set[str] = field(default_factory=set)
    killed: bool = False

    def __post_init__(self) -> None:
        self.started = self.world.now
        self.greenlet = greenlet.greenlet(self._run)
        self.world.roles[self.greenlet] = self.role

    @property
    def effects(self) -> Effects:
        """The effects of this process, with its host's clock."""
        return Effects(now_ms=self.now_ms, sleep=lambda _: None, jitter=self.world.random.random)

    def now_ms(self) -> int:
        """The clock of this host."""
        return self.world.now + self.skew

    @property
    def over(self) -> bool:
        """Whether it has ended."""
        return self.killed or bool(self.greenlet.dead)

    @property
    def calls_next(self) -> str | None:
        """The call that it is about to make; ``None`` before its start."""
        return self.world.next_call.get(self.greenlet)

    @property
    def too_old(self) -> bool:
        """Whether it has exceeded its execution timeout."""
        return self.world.now - self.started > TRY_LIMIT

    def step(self) -> None:
        """Continue to the next call; a process that runs for too long is killed instead."""
        if self.too_old:
            self.world.events[f"{self.role}: timed out"] += 1
            self.kill()
        else:
            self.greenlet.switch()

    def kill(self) -> None:
        """Kill it, as SIGKILL does."""
        self.killed = True
        self.world.dead.add(self.greenlet)
        if self.greenlet:
            self.greenlet.throw(Killed)

    def _run(self) -> None:
        self.failed = "killed"
        try:
            self.body(self)
            self.failed = None
        except Killed:
            pass
        except InvalidMetadataError as error:
            raise Violation(f"I2: a process reads invalid metadata: {error}") from error
        except (MaterializedViewError, OSError) as error:
            self.failed = type(error).__name__
        finally:
            if self.failed:
                self.world.events[f"{self.role} failed: {self.failed}"] += 1


def refresher(process: Process) -> None:
    """Refresh the view, as one try of a task does, and report the outcome."""
    world = process.world

    def planned(plan: RefreshPlan) -> None:
        world.ledger.planned(plan, process.plan)
        process.plan, process.planned_at = plan, world.ticks

    spark = Spark(world, process)
    result: RefreshResult = refresh(world.catalog, [VIEW], stager=spark, on_plan=planned, effects=process.effects)[0]
    assert process.plan is not None
    world.ledger.ended(process.plan, result)
    if process.plan.script and result.outcome == "refreshed" and result.refresh_id not in process.submitted:
        world.events["staged rows of an earlier try published"] += 1


@dataclass
class Task:
    """A task of a scheduler: it tries until one try succeeds, then runs again; tries may overlap."""

    world: World
    tries: int = 0
    running: list[Process] = field(default_factory=list)
    #: The time after which it gives up.
    limit: int = 4

    def start(self) -> None:
        """Start another try."""
        if self.running:
            self.world.events["overlapping tries"] += 1
        self.tries += 1
        self.running.append(Process(self.world, "refresh", refresher, self.world.some_skew()))

    def step(self) -> None:
        """Let one of the tries continue, or start one."""
        if not self.running:
            self.start()
        process = self.world.pick(self.running)
        process.step()
        if process.over:
            self.running.remove(process)
            if process.failed is None or self.tries >= self.limit:
                self.tries = 0
