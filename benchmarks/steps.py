# SPDX-License-Identifier: Apache-2.0
"""Where the time of a refresh goes: a catalog and a stager whose public calls are on a clock."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow_mv.core.catalog import LoadedStorage, LoadedView, Located, MaterializedViewCatalog
from airflow_mv.core.catalog.files import MetadataFiles
from airflow_mv.core.job.context import JobContext
from airflow_mv.core.script import (
    CreateStorageStep,
    DeltaStep,
    DeterminismStep,
    MergeAdditiveStep,
    Outcome,
    ReplaceKeysStep,
    Script,
    SqlStep,
    Step,
)
from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.core.spec.table_metadata import TableMetadata
from airflow_mv.core.spec.view import ViewMetadata
from airflow_mv.extras.spark.session import session_stager

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyspark.sql import SparkSession

#: What a call counts as, by phase; what no call claims is the phase's own.
_NAMES: Mapping[str, Mapping[str, str]] = {
    "plan": {"load": "load view", "locate": "load base tables", "own": "compile"},
    "stage": {"file": "outcome file", "own": "own"},
    "publish": {
        "load": "load view",
        "file": "storage metadata file",
        "view": "view metadata file",
        "swap": "swap",
        "own": "encode, check",
    },
}

_KINDS: Mapping[type[Any], str] = {
    CreateStorageStep: "create",
    DeterminismStep: "is it deterministic",
    ReplaceKeysStep: "replace keys",
    MergeAdditiveStep: "merge",
}
#: What the job's larger steps consist of, by the method that does it.
_PARTS: Mapping[str, str] = {"collect_locally": "rows to the driver", "run": "statement that writes"}


@dataclass(slots=True)
class Steps:
    """Seconds by step. A call inside a call that is being timed belongs to the outer one."""

    seconds: dict[str, float] = field(default_factory=dict)
    _phase: str = ""
    _claimed: float = 0.0
    _open: bool = False

    def reset(self) -> None:
        """Start a new run."""
        self.seconds = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        self._phase, self._claimed = name, 0.0
        started = time.perf_counter()
        try:
            yield
        finally:
            own = time.perf_counter() - started - self._claimed
            self._phase = ""
            self._count(f"{name}: {_NAMES[name]['own']}", own)

    @contextmanager
    def call(self, kind: str) -> Iterator[None]:
        name = _NAMES.get(self._phase, {}).get(kind)
        if name is None or self._open:
            yield
            return
        self._open = True
        started = time.perf_counter()
        try:
            yield
        finally:
            self._open = False
            self.add(name, time.perf_counter() - started)

    def add(self, name: str, seconds: float) -> None:
        """Count a part of the present phase."""
        self._claimed += seconds
        self._count(f"{self._phase}: {name}", seconds)

    def part(self, name: str, seconds: float) -> None:
        """Count what a step is made of, which is in the step's own seconds already."""
        self._count(name, seconds)

    def _count(self, key: str, seconds: float) -> None:
        self.seconds[key] = self.seconds.get(key, 0.0) + seconds


class TimedFiles(MetadataFiles):
    """Metadata files on a clock."""

    def __init__(self, properties: Mapping[str, str], steps: Steps) -> None:
        super().__init__(properties)
        self._steps = steps

    def read(self, location: str, *, what: str) -> bytes:
        with self._steps.call("file"):
            return super().read(location, what=what)

    def write(self, location: str, data: bytes) -> None:
        with self._steps.call("file"):
            super().write(location, data)

    def replace_text(self, location: str, text: str) -> None:
        with self._steps.call("file"):
            super().replace_text(location, text)


class TimedCatalog(MaterializedViewCatalog):
    """A catalog on a clock."""

    def __init__(self, catalog: Catalog) -> None:
        super().__init__(catalog)
        self.steps = Steps()
        self.files = TimedFiles(self.properties, self.steps)

    def load(self, view: str | Identifier) -> LoadedView:
        with self.steps.call("load"):
            return super().load(view)

    def load_storage(self, view: LoadedView) -> LoadedStorage:
        with self.steps.call("load"):
            return super().load_storage(view)

    def locate(self, identifiers: Sequence[Identifier]) -> dict[Identifier, Located]:
        with self.steps.call("locate"):
            return super().locate(identifiers)

    def table_metadata(self, identifier: Identifier, located: Located, **more: Any) -> TableMetadata:
        with self.steps.call("locate"):
            return super().table_metadata(identifier, located, **more)

    def write_metadata(self, metadata: ViewMetadata, *, number: int) -> str:
        with self.steps.call("view"):
            return super().write_metadata(metadata, number=number)

    def swap(self, view: Identifier, base: str, new: str) -> bool:
        with self.steps.call("swap"):
            return super().swap(view, base, new)


def timed_stager(catalog: TimedCatalog, spark: SparkSession) -> Callable[[Script], Outcome]:
    """Return a stager that adds the seconds of the job's steps, and of what is around them."""

    def stage(script: Script) -> Outcome:
        reports: list[float] = []
        started = time.perf_counter()
        outcome = session_stager(catalog, spark, report=lambda _: reports.append(time.perf_counter()))(script)
        total = time.perf_counter() - started
        if outcome.error is not None:
            return outcome
        before = reports[0] - started if reports else 0.0
        told = outcome.step_seconds if outcome.fallback is None else ()
        for step, seconds in zip(script.steps, told, strict=False):
            catalog.steps.add(_kind(step), seconds)
        catalog.steps.add("set up the session", before)
        catalog.steps.add("find the result, clean up", total - before - sum(outcome.step_seconds))
        return outcome

    return stage


def _kind(step: Step) -> str:
    if isinstance(step, SqlStep):
        return {"CALL": "register", "INSERT": "insert"}.get(step.sql.split(None, 1)[0], "other statements")
    if isinstance(step, DeltaStep):
        return f"change of {step.table.rsplit('`.`', 1)[-1].strip('`')}"
    return _KINDS[type(step)]


@contextmanager
def inside(steps: Steps) -> Iterator[None]:
    """Put on a clock what the job's larger steps do: bring the affected keys to the driver, and write.

    Each is a part of the step that it is in, and stands beside it as ``of which``.
    """
    kept = {name: getattr(JobContext, name) for name in _PARTS}

    def timed(name: str, part: str) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            started = time.perf_counter()
            try:
                return kept[name](*arguments, **named)
            finally:
                steps.part(f"stage: of which {part}", time.perf_counter() - started)

        return call

    for name, part in _PARTS.items():
        setattr(JobContext, name, timed(name, part))
    try:
        yield
    finally:
        for name, method in kept.items():
            setattr(JobContext, name, method)
