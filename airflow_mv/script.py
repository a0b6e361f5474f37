# SPDX-License-Identifier: Apache-2.0
"""What a Spark driver is asked and what it answers. Standard library only: it ships to the driver.

A :class:`Script` is a list of steps. A :class:`SqlStep` is a statement that any session runs; the
named steps are the few things plain SQL cannot say. No secret is ever part of a script.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

#: Spark catalog that holds a storage table while a job works on it; nobody else sees it.
STAGING_CATALOG = "airflow_mv_staging"
STAGING_NAMESPACE = "staged"


@dataclass(frozen=True, slots=True)
class SqlStep:
    """One Spark SQL statement."""

    sql: str

    def describe(self) -> str:
        """Return the statement itself."""
        return self.sql


@dataclass(frozen=True, slots=True)
class CreateStorageStep:
    """Create the empty staged table ``table`` with the columns of ``query``, by Spark's own analysis.

    Args:
        table: Quoted Spark name in the staging catalog.
        query: The view's SQL, pinned or not; it is analysed, never run.
        location: The storage table's directory.
        partition_by: Quoted partition transforms, e.g. ``days(`day`)``.
        properties: Table properties.
    """

    table: str
    query: str
    location: str
    partition_by: tuple[str, ...] = ()
    properties: tuple[tuple[str, str], ...] = ()

    def describe(self) -> str:
        """Return the statement with the columns left to Spark."""
        partitioning = f" PARTITIONED BY ({', '.join(self.partition_by)})" if self.partition_by else ""
        return (
            f"CREATE TABLE {self.table} (<columns of the query>) USING iceberg{partitioning} LOCATION '{self.location}'"
        )


Step = SqlStep | CreateStorageStep
_STEPS: dict[str, type[Any]] = {"sql": SqlStep, "create-storage": CreateStorageStep}
_KINDS = {cls: kind for kind, cls in _STEPS.items()}


@dataclass(frozen=True, slots=True)
class Script:
    """What one refresh (or one creation) asks of Spark.

    Args:
        view: The view, for messages.
        refresh_id: Stamped on every snapshot the job writes (summary key ``airflow-mv.refresh-id``).
        table: Quoted Spark name of the staged storage table in :data:`STAGING_CATALOG`.
        steps: Run in order; the first failure ends the job.
        outcome_location: Where a submitted driver leaves its :class:`Outcome`, or ``None``.
        confs: Session settings (never catalog credentials) the statements rely on.
        nested: How many base tables are materialized views; they are staged as ``base_0``, ``base_1``, …
    """

    view: str
    refresh_id: str
    table: str
    steps: tuple[Step, ...]
    outcome_location: str | None = None
    confs: tuple[tuple[str, str], ...] = ()
    nested: int = 0

    @property
    def statements(self) -> tuple[str, ...]:
        """The steps as text, as they run; a run gives the staging catalog a name of its own behind this one."""
        return tuple(step.describe() for step in self.steps)

    def to_json(self) -> str:
        """Serialise; :meth:`from_json` reads it back equal."""
        document = asdict(self)
        document["steps"] = [{"kind": _KINDS[type(step)], **asdict(step)} for step in self.steps]
        return json.dumps(document)

    @classmethod
    def from_json(cls, text: str) -> Script:
        """Read what :meth:`to_json` wrote."""
        document = json.loads(text)
        steps = []
        for raw in document.pop("steps"):
            kind = _STEPS[raw.pop("kind")]
            steps.append(kind(**{key: _tuples(value) for key, value in raw.items()}))
        return cls(steps=tuple(steps), **{key: _tuples(value) for key, value in document.items()})


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the job did.

    Args:
        refresh_id: The script's.
        metadata_location: The staged storage table's newest metadata file, or ``None`` after a failure.
        rows_written: Rows added by the job's snapshots.
        step_seconds: Wall-clock seconds of each step that ran.
        error: Spark's reason in one paragraph, or ``None``.
        error_class: Spark's error condition (e.g. ``UNRESOLVED_COLUMN.WITH_SUGGESTION``), where it names one.
        query_error: Whether the reason lies in the view's SQL, so that a retry cannot help.
        application_id: The Spark application.
    """

    refresh_id: str
    metadata_location: str | None
    rows_written: int = 0
    step_seconds: tuple[float, ...] = ()
    error: str | None = None
    error_class: str | None = None
    query_error: bool = False
    application_id: str | None = None

    def to_json(self) -> str:
        """Serialise; :meth:`from_json` reads it back equal."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Outcome:
        """Read what :meth:`to_json` wrote.

        Raises:
            ValueError: If the text is not such a document (a half-written file).
        """
        try:
            document = json.loads(text)
            return cls(**{key: _tuples(value) for key, value in document.items()})
        except (TypeError, AttributeError) as error:
            raise ValueError(f"not an outcome document: {error}") from error


def _tuples(value: Any) -> Any:
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value
