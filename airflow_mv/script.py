# SPDX-License-Identifier: Apache-2.0
"""What a Spark driver is asked and what it answers. Standard library only: it ships to the driver.

A :class:`Script` is a list of steps. A :class:`SqlStep` is a statement that any session runs; the
named steps are the few things plain SQL cannot say. No secret is ever part of a script.

Two names are a run's own: its staging catalog and its branch. In the SQL of a script :data:`STAGING` and
:data:`BRANCH` stand for them; :meth:`Script.bound` puts the run's names in. Both are random and of this process only,
so no SQL of a view's owner contains one. In JSON a text that names one is a list of parts.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from typing import Any, TypeVar

from airflow_mv.documents import json_object, json_objects, read
from airflow_mv.errors import InvalidMetadataError
from airflow_mv.quoting import quote

#: What the statements of a check call the staged rows.
ROWS = "`__rows`"
#: Offending rows that are kept of a failed check.
MOST_ROWS = 20
#: Characters that are kept of a value in such a row.
LONGEST_VALUE = 200


@dataclass(frozen=True, slots=True)
class StagedCheck:
    """One check, in Spark SQL over :data:`ROWS`, or a function.

    Args:
        name: What people call it.
        severity: ``error``: nothing is published where it fails. ``warn``: it is only told.
        expected: What must hold, for people.
        observed: An aggregate expression for what is there instead; its text is shown.
        passes: An aggregate expression for the verdict. NULL is no.
        offending: A query for the rows that break it; empty where no single row does.
        function: ``module:function`` instead of SQL; it gets the staged rows as a DataFrame.
    """

    name: str
    severity: str
    expected: str
    observed: str = ""
    passes: str = ""
    offending: str = ""
    function: str = ""


@dataclass(frozen=True, slots=True)
class StagedChecks:
    """All checks of a refresh.

    Args:
        rows: A query for the staged rows.
        checks: The checks.
        digest: Stands for what is checked: an outcome counts under the very checks that it was judged by.
    """

    rows: str
    checks: tuple[StagedCheck, ...]
    digest: str

    def statement(self, checks: tuple[StagedCheck, ...]) -> str:
        """Return one aggregation that computes some of the checks: for each what is there, and the verdict."""
        columns = ",\n  ".join(f"CAST({check.observed} AS STRING), {check.passes}" for check in checks)
        # Without an aggregate of its own, as queries in queries have none, a SELECT gives a row for each row.
        return self.over(f"SELECT {columns},\n  count(*)\nFROM {ROWS}")

    def over(self, query: str) -> str:
        """Return a query over :data:`ROWS` as Spark can run it."""
        return f"WITH {ROWS} AS (\n{self.rows}\n)\n{query}"

    def describe(self) -> str:
        """Return what is asked of Spark."""
        told = [f"-- {check.name}: {check.expected}".replace("\n", " ") for check in self.checks]
        asked = tuple(check for check in self.checks if check.passes)
        told += [self.statement(asked)] if asked else []
        told += [f"{check.function}(<DataFrame of {self.rows}>)" for check in self.checks if check.function]
        return "\n".join(told)

    @classmethod
    def read(cls, value: Any) -> StagedChecks | None:
        """Read what ``dataclasses.asdict`` made of such an object, or of ``None``.

        Raises:
            InvalidMetadataError: It is something else.
        """
        if value is None:
            return None
        (document,) = json_objects([value], "script", "checks")
        checks = [read(StagedCheck, raw, "check") for raw in json_objects(document.get("checks"), "script", "checks")]
        return read(cls, {**document, "checks": checks}, "script")


@dataclass(frozen=True, slots=True)
class CheckResult:
    """What came of one check.

    Args:
        name: The check.
        severity: As in :class:`StagedCheck`.
        passed: The verdict.
        expected: What must hold, for people.
        observed: What was there.
        problem: Why it could not be computed, where it could not.
        columns: Columns of ``rows``.
        rows: Some of the rows that broke it, each value as text.
    """

    name: str
    severity: str
    passed: bool
    expected: str
    observed: str | None = None
    problem: str | None = None
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[str | None, ...], ...] = ()

    @property
    def stops(self) -> bool:
        """Whether nothing may be published because of it."""
        return not self.passed and self.severity != "warn"

    def summary(self) -> dict[str, str]:
        """Return the short form for documents and records: no rows, which are data of the view."""
        return {
            "name": self.name,
            "result": "passed" if self.passed else "warned" if self.severity == "warn" else "failed",
            "expected": self.expected,
            "observed": self.observed or self.problem or "",
        }

    def record(self) -> dict[str, str]:
        """Return what the refresh's record keeps; there may be many checks, and many records."""
        told = self.summary()
        return {key: told[key] for key in ("name", "result", *(() if self.passed else ("observed",)))}

    def lines(self, most_rows: int = MOST_ROWS) -> list[str]:
        """Return what people read: a sentence, and a line for each of some rows.

        Args:
            most_rows: Rows at most.
        """
        found = f"it could not be computed: {self.problem}" if self.problem else f"found {self.observed}"
        named = [zip(self.columns, row, strict=False) for row in self.rows[:most_rows]]
        shown = [", ".join(f"{name}={'NULL' if value is None else value}" for name, value in row) for row in named]
        return [f"check {self.name!r}: wanted {self.expected}; {found}", *(f"  row {line}" for line in shown)]


#: What people read for the Spark catalog that holds a storage table while a job works on it; nobody else sees it.
STAGING_CATALOG = "airflow_mv_staging"
#: Stands for that catalog's name in SQL.
STAGING = f"{STAGING_CATALOG}_{secrets.token_hex(16)}"
#: Stands for the name of the branch that a run writes to.
BRANCH = f"airflow_mv_branch_{secrets.token_hex(16)}"
_NAMES = {STAGING: "staging", BRANCH: "branch"}
_PLACEHOLDERS = {name: placeholder for placeholder, name in _NAMES.items()}
_PLACEHOLDER = re.compile(f"({STAGING}|{BRANCH})")
STAGING_NAMESPACE = "staged"
#: The storage table's name there.
STORAGE = "storage"
#: The :attr:`Outcome.error_class` of a driver whose clock is wrong.
CLOCK = "AIRFLOW_MV.CLOCK"
#: A delta view's column beside the table's: how many rows came (positive) or went (negative).
WEIGHT = "__w"


@dataclass(frozen=True, slots=True)
class SqlStep:
    """One Spark SQL statement.

    Args:
        sql: The statement.
        query: A view's query that is a part of it, which may read nothing but its pinned tables; may be empty.
        view: Quoted name of the temporary view that it creates, from :func:`temporary`; empty for none.
    """

    sql: str
    query: str = ""
    view: str = ""

    def describe(self) -> str:
        """Return the statement itself."""
        return self.sql


@dataclass(frozen=True, slots=True)
class CreateStorageStep:
    """Create the empty staged table ``table`` with the columns of ``query``, by Spark's own analysis.

    Args:
        table: Quoted Spark name, in the staging catalog or in the view's own.
        query: The view's SQL, pinned or not; it is analysed, never run.
        location: The storage table's directory; ``None`` leaves it to the catalog.
        partition_by: Quoted partition transforms, e.g. ``days(`day`)``.
        properties: Table properties.
        pinned: Whether the query names each table at a snapshot, so that it may read nothing else.
    """

    table: str
    query: str
    location: str | None
    partition_by: tuple[str, ...] = ()
    properties: tuple[tuple[str, str], ...] = ()
    pinned: bool = False

    def describe(self) -> str:
        """Return the statement with the columns left to Spark."""
        partitioning = f" PARTITIONED BY ({', '.join(self.partition_by)})" if self.partition_by else ""
        location = f" LOCATION '{self.location}'" if self.location else ""
        return f"CREATE TABLE {self.table} (<columns of the query>) USING iceberg{partitioning}{location}"


@dataclass(frozen=True, slots=True)
class DeterminismStep:
    """Refuse incremental work on a query that may give other rows from the same snapshots, or is not what is written.

    Args:
        query: The view's SQL, pinned or not; it is analysed, never run.
        again: The same query, written again as the script's statements are, which must mean the same; may be empty.
        pinned: Whether the query names each table at a snapshot, so that it may read nothing else.
    """

    query: str
    again: str = ""
    pinned: bool = False

    def describe(self) -> str:
        """Return what is asked of Spark."""
        return "<ask whether the query gives the same rows each time, and means the same as it is written below>"


@dataclass(frozen=True, slots=True)
class DeltaStep:
    """Make the temporary view ``view``: the net change of a base table, each row with its signed number ``__w``.

    Args:
        view: Quoted name, from :func:`temporary`.
        table: Quoted Spark name of the base table.
        start: The snapshot whose rows the view has stored; ``None`` for an empty table.
        end: The snapshot to come to; ``None`` for an empty table.
        columns: The columns that the view reads, by their names at ``end``, unquoted.
        kind: ``append`` (only where every snapshot between is an append or a replace, on one line),
            ``diff`` of the scan tasks, or ``values`` of two pinned reads. Over Spark Connect a diff is ``values``.
        where: A predicate on the table's columns that every row must pass to matter to the view; may be empty.
        uses: How often the statements behind read it: one read of an append is not materialised.
        only_added: Whether the statements behind are right only where no row went.
        joined: Those of ``columns`` that the statements behind equate with columns of other relations.
    """

    view: str
    table: str
    start: int | None
    end: int | None
    columns: tuple[str, ...]
    kind: str = "diff"
    where: str = ""
    uses: int = 1
    only_added: bool = False
    joined: tuple[str, ...] = ()

    def describe(self) -> str:
        """Return what the view holds."""
        columns = ", ".join(quote(column) for column in (*self.columns, WEIGHT))
        where = f" where {self.where}" if self.where else ""
        span = f"{self.start or 'nothing'} to {self.end or 'nothing'}"
        return f"CREATE TEMPORARY VIEW {self.view} ({columns}) AS\n<{self.kind} of {self.table}, {span}{where}>"


@dataclass(frozen=True, slots=True)
class ReplaceKeysStep:
    """Recompute the stored rows of the affected keys: delete these keys, insert the query's rows of them.

    Args:
        table: Quoted name of the staged storage table.
        query: The view's SQL, pinned to the new snapshots; its columns are the storage table's, by position.
        columns: The storage table's columns, unquoted, in order.
        affected: A query for the affected keys, by position; it may repeat them.
        keys: The columns of ``columns`` that are the key; none: if ``affected`` has a row, all rows are replaced.
        not_null: Those keys that are never NULL, neither stored nor new.
        how: ``merge`` or ``delete`` (and insert) write what changes, ``overwrite`` rewrites the storage table.
        most_keys: With more affected keys than this the run falls back.
        constants: Queries for one boolean each. Where one is true, nearly every row is affected: the run falls back.
        affected_unless: Stands for ``affected`` where all ``constants`` are false; empty for ``affected`` itself.
    """

    table: str
    query: str
    columns: tuple[str, ...]
    affected: str
    keys: tuple[str, ...]
    not_null: tuple[str, ...] = ()
    how: str = "merge"
    most_keys: int = 100_000
    constants: tuple[str, ...] = ()
    affected_unless: str = ""

    def describe(self) -> str:
        """Return the statement, with names for its parts."""
        keys = ", ".join(quote(key) for key in self.keys)
        return f"{self.how.upper()} {self.table} BY KEYS ({keys}) IN (\n{self.affected}\n) FROM (\n{self.query}\n)"


@dataclass(frozen=True, slots=True)
class MergeAdditiveStep:
    """Add signed aggregates to the stored ones: the changed groups are aggregated again from both.

    Args:
        table: Quoted name of the staged storage table.
        columns: The storage table's columns, unquoted, in order.
        keys: Those of them that are the group's key; none for one row over all.
        changes: A query for the changed groups and their partial aggregates; its columns are the storage
            table's, by position, one row a key.
        combine: A query for the new rows of the changed groups, by position, over ``__stored`` (the stored rows of
            these groups, or all) and ``__delta`` (the rows of ``changes``).
        not_null: Those keys that are never NULL, neither stored nor new.
        how: ``merge`` or ``delete`` (and insert) write what changes, ``overwrite`` rewrites the storage table.
        most_keys: With more changed groups than this the run falls back.
        weighted: Whether ``changes`` has one column more, :data:`WEIGHT`: how many copies came or went.
    """

    table: str
    columns: tuple[str, ...]
    keys: tuple[str, ...]
    changes: str
    combine: str
    not_null: tuple[str, ...] = ()
    how: str = "merge"
    most_keys: int = 100_000
    weighted: bool = False

    @property
    def combines_all(self) -> bool:
        """Whether all stored rows are combined with the change and written: no join has to find those of the keys.

        Groups that nothing happened to come out as they were. Rows are no groups: -0.0 and 0.0 are two of them, and
        combined they would be one.
        """
        return not self.keys or (self.how == "overwrite" and not self.weighted)

    def describe(self) -> str:
        """Return the statement, with names for its parts."""
        keys = ", ".join(quote(key) for key in self.keys)
        written, stored = f"{self.how.upper()} {self.table} BY KEYS ({keys})", f"{self.table} of these keys"
        if self.combines_all:
            written, stored = f"OVERWRITE {self.table}", f"all of {self.table}"
        return f"{written} FROM (\nWITH `__stored` AS ({stored}), `__delta` AS (\n{self.changes}\n)\n{self.combine}\n)"


Step = SqlStep | CreateStorageStep | DeterminismStep | DeltaStep | ReplaceKeysStep | MergeAdditiveStep
_STEPS: dict[str, type[Any]] = {
    "sql": SqlStep,
    "create-storage": CreateStorageStep,
    "determinism": DeterminismStep,
    "delta": DeltaStep,
    "replace-keys": ReplaceKeysStep,
    "merge-additive": MergeAdditiveStep,
}
_KINDS = {cls: kind for kind, cls in _STEPS.items()}


@dataclass(frozen=True, slots=True)
class Script:
    """What one refresh (or one creation) asks of Spark.

    Args:
        view: The view, for messages.
        refresh_id: Stamped on every snapshot the job writes (summary key ``airflow-mv.refresh-id``).
        table: Quoted Spark name of the storage table: in :data:`STAGING`, or where the catalog has it.
        steps: Run in order; the first failure ends the job.
        outcome_location: Where a submitted driver leaves its :class:`Outcome`, or ``None``.
        confs: Session settings (never catalog credentials) the statements rely on.
        nested: How many base tables are materialized views; they are staged as ``base_0``, ``base_1``, …
        incremental: Whether ``steps`` bring the stored rows from the recorded snapshots to the new ones.
        fallback: Steps to run instead when one of ``steps`` finds that it cannot go on; without any the run ends.
        branch: The branch of a storage table that the statements write to. They name it :data:`BRANCH`, since each run
            has a branch of its own, with this name and a suffix.
        checks: What is asked of the rows when all is staged.
        query: The query whose rows are stored, where their types must be those of the view.
        types: The types of the view's columns, as Spark writes them, in order.
    """

    view: str
    refresh_id: str
    table: str
    steps: tuple[Step, ...]
    outcome_location: str | None = None
    confs: tuple[tuple[str, str], ...] = ()
    nested: int = 0
    incremental: bool = False
    fallback: tuple[Step, ...] = ()
    branch: str | None = None
    checks: StagedChecks | None = None
    query: str = ""
    types: tuple[tuple[str, str], ...] = ()

    @property
    def is_staged(self) -> bool:
        """Whether the storage table is in the staging catalog, which is the run's own; asked before :meth:`bound`."""
        return self.table.startswith(f"{quote(STAGING)}.")

    @property
    def statements(self) -> tuple[str, ...]:
        """The steps as text, as they run; a run adds a suffix to the names of the staging catalog and of the branch."""
        shown = self.bound(STAGING_CATALOG, self.branch)
        asked = (shown.checks.describe(),) if shown.checks else ()
        return (*(step.describe() for step in shown.steps), *asked)

    def bound(self, staging: str, branch: str | None) -> Script:
        """Return the script with the names of one run.

        Args:
            staging: The run's staging catalog.
            branch: The run's branch, if it has one.
        """
        names = {STAGING: staging, BRANCH: branch or ""}
        bound = _in_all_texts(self, lambda text: _PLACEHOLDER.sub(lambda found: names[found[0]], text))
        return replace(bound, branch=branch)

    def to_json(self) -> str:
        """Serialise; :meth:`from_json` reads it back equal."""
        document = asdict(self)
        for name in ("steps", "fallback"):
            document[name] = [{"step": _KINDS[type(step)], **asdict(step)} for step in getattr(self, name)]
        return json.dumps(_to_parts(document))

    @classmethod
    def from_json(cls, text: str) -> Script:
        """Read what :meth:`to_json` wrote.

        Raises:
            InvalidMetadataError: The text is not such a document.
        """
        document = _from_parts(json_object(text, "script"))
        for name in ("steps", "fallback"):
            document[name] = [_step(raw) for raw in json_objects(document.get(name, []), "script", name)]
        document["checks"] = StagedChecks.read(document.get("checks"))
        return read(cls, document, "script")


@dataclass(frozen=True, slots=True)
class Delta:
    """What was read to know the change of one base table.

    Args:
        table: Quoted Spark name.
        ways: How: ``append``, ``diff`` (rows of changed files, cancelled), ``deleted`` (rows that delete files
            hide), ``lineage`` (row ids), ``values`` (both snapshots whole), ``whole`` (one of them is empty);
            none where nothing had to be read.
        old_tasks: Files that only the old snapshot reads, or reads with other delete files.
        new_tasks: Files that only the new one reads so.
        old_bytes: Bytes of the first.
        new_bytes: Bytes of the second.
        rows_read: Rows in these files by their metadata; ``None`` where the files are not known.
        rows: Rows of the net change, gone and come, or those of files that only came; ``None`` if neither is known.
    """

    table: str
    ways: tuple[str, ...] = ()
    old_tasks: int = 0
    new_tasks: int = 0
    old_bytes: int = 0
    new_bytes: int = 0
    rows_read: int | None = None
    rows: int | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the job did.

    Args:
        refresh_id: The script's.
        metadata_location: The storage table's newest metadata file, or ``None`` after a failure.
        rows_written: Rows added by the job's snapshots.
        step_seconds: Wall-clock seconds of each step that ran.
        error: Spark's reason in one paragraph, or ``None``.
        error_class: Spark's error condition (e.g. ``UNRESOLVED_COLUMN.WITH_SUGGESTION``), where it names one.
        query_error: Whether the reason lies in the view's SQL, so that a retry cannot help.
        application_id: The Spark application.
        mode: What ran: ``full``, ``incremental``, or ``none`` where nothing was to be written or the run gave up.
        way: How rows were written: ``statement`` (plain SQL), ``merge``, ``delete``, ``overwrite``, or ``none``.
        fallback: Why incremental work was not possible, as a code (see ``job/delta.py``), or ``None``.
        fallback_reason: The same in a sentence.
        rows_deleted: Rows that the job's snapshots removed, by copying their files without them or by deletes.
        keys: Affected keys or changed groups, where they were counted.
        deltas: What was read of each changed base table.
        branch: The branch of the storage table that holds the staged rows, in the registered layout.
        checks: What came of the checks of the staged rows.
        checks_digest: The digest of these checks; empty where none were run.
    """

    refresh_id: str
    metadata_location: str | None
    rows_written: int = 0
    step_seconds: tuple[float, ...] = ()
    error: str | None = None
    error_class: str | None = None
    query_error: bool = False
    application_id: str | None = None
    mode: str = "full"
    way: str = "statement"
    fallback: str | None = None
    fallback_reason: str | None = None
    rows_deleted: int = 0
    keys: int | None = None
    deltas: tuple[Delta, ...] = ()
    branch: str | None = None
    checks: tuple[CheckResult, ...] = ()
    checks_digest: str = ""

    @property
    def staged(self) -> str | None:
        """Where the staged rows are: a branch of the storage table, or its newest metadata file; ``None`` for none."""
        return None if self.way == "none" else self.branch or self.metadata_location

    def to_json(self) -> str:
        """Serialise; :meth:`from_json` reads it back equal."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Outcome:
        """Read what :meth:`to_json` wrote.

        Raises:
            InvalidMetadataError: The text is not such a document (a half-written file).
        """
        document = json_object(text, "outcome")
        for name, kind in (("deltas", Delta), ("checks", CheckResult)):
            found = json_objects(document.get(name, []), "outcome", name)
            document[name] = [read(kind, raw, "outcome") for raw in found]
        return read(cls, document, "outcome")


def _step(raw: dict[str, Any]) -> Step:
    kind = raw.get("step")
    if not isinstance(kind, str) or kind not in _STEPS:
        raise InvalidMetadataError("not a script document: field 'step' of a step")
    step: Step = read(_STEPS[kind], {key: value for key, value in raw.items() if key != "step"}, "script")
    return step


def temporary(name: str) -> str:
    """Return the quoted name of a temporary view in a script; each run has views of its own."""
    return quote(f"{STAGING}-{name}")


def staged(name: str) -> str:
    """Return the quoted Spark name of a table in the staging catalog."""
    return ".".join(quote(part) for part in (STAGING, STAGING_NAMESPACE, name))


@dataclass(frozen=True, slots=True)
class Target:
    """The storage table as the statements of a refresh name it.

    Args:
        table: Quoted name of the stored rows.
        written: Quoted name that the statements write to.
        registers: The metadata file that the job registers first, in the staging catalog; empty for a table that the
            session finds in its catalog.
        branch: Whether the statements write to a branch, which the job creates first.
        start: The snapshot that the branch starts from; ``None`` for a table that was never written.
    """

    table: str
    written: str
    registers: str = ""
    branch: bool = False
    start: int | None = None


_Value = TypeVar("_Value")


def _in_all_texts(value: _Value, change: Callable[[str], str]) -> _Value:
    """Return a document of dataclasses and tuples with every text changed."""
    found: Any = value
    if isinstance(value, str):
        found = change(value)
    elif isinstance(value, tuple):
        found = tuple(_in_all_texts(item, change) for item in value)
    elif is_dataclass(value) and not isinstance(value, type):
        found = replace(
            value, **{item.name: _in_all_texts(getattr(value, item.name), change) for item in fields(value)}
        )
    return found  # type: ignore[no-any-return]


def _to_parts(value: Any) -> Any:
    """Return a JSON value in which each text with a placeholder is a list of texts and names."""
    if isinstance(value, dict):
        return {key: _to_parts(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_to_parts(item) for item in value]
    if isinstance(value, str) and _PLACEHOLDER.search(value):
        parts = filter(None, _PLACEHOLDER.split(value))
        return {"parts": [{"name": _NAMES[part]} if part in _NAMES else part for part in parts]}
    return value


def _from_parts(value: Any) -> Any:
    """Return what :func:`_to_parts` was given.

    Raises:
        InvalidMetadataError: A list of parts has something else in it.
    """
    try:
        if isinstance(value, dict):
            if value.keys() == {"parts"}:
                return "".join(map(_part, _listed(value["parts"])))
            return {key: _from_parts(item) for key, item in value.items()}
        return [_from_parts(item) for item in value] if isinstance(value, list) else value
    except (KeyError, TypeError, RecursionError):
        raise InvalidMetadataError("not a script document: field 'parts' of a text") from None


def _listed(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError
    return value


def _part(part: Any) -> str:
    return part if isinstance(part, str) else _PLACEHOLDERS[part["name"]]
