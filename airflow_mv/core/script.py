# SPDX-License-Identifier: Apache-2.0
"""The script that a Spark driver runs, and the outcome that it returns. Standard library only: the driver uses it.

A :class:`Script` is a list of steps. A :class:`SqlStep` is a statement that any session can run; the other steps do
what plain SQL cannot express. A script never contains a secret.

Each run has its own staging catalog and its own branch. In the SQL of a script the placeholders :data:`STAGING` and
:data:`BRANCH` stand for their names; :meth:`Script.bound` replaces them. The placeholders are random in each process,
so that the SQL of a view's owner cannot contain one. In JSON a text with a placeholder is a list of parts.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from typing import Any, TypeVar

from airflow_mv.core.spec.identifiers import quote, string_literal
from airflow_mv.errors import AccessDeniedError, InvalidMetadataError, JobError
from airflow_mv.foundation.documents import document_of, json_object, read
from airflow_mv.version import __version__

#: The name of the staged rows in the statements of a check.
ROWS = "`__rows`"
#: With more affected keys or groups than this an incremental refresh falls back.
MAX_KEYS = 100_000
#: The most offending rows that are reported for a failed check.
MAX_ROWS = 20
#: The most characters of a value in such a row.
MAX_VALUE_LENGTH = 200
#: How far the clock of a writer, and so a time that it publishes, may be ahead of the store's clock. Java Iceberg
#: tolerates one minute: half of it is left for a host whose clock is behind.
MAX_AHEAD_MS = 30_000
#: Summary keys of a snapshot: the refresh that wrote it; ``true`` if that was its last statement; the code and the
#: reason if the job has recomputed all rows instead of an incremental refresh.
REFRESH_ID_KEY = "airflow-mv.refresh-id"
COMPLETE_KEY = "airflow-mv.complete"
FALLBACK_KEY = "airflow-mv.fallback"
#: A script must depend on its input only, not on a session. With these settings INSERT OVERWRITE replaces the whole
#: table, `${…}` in a quoted name is not a variable, and the time zone and the meaning of a backslash in a literal are
#: the same everywhere (keys are written as literals). The last three are Spark 4's defaults, and not Spark 3.5's.
SESSION_CONFS = (
    ("spark.sql.sources.partitionOverwriteMode", "static"),
    ("spark.sql.variable.substitute", "false"),
    ("spark.sql.session.timeZone", "UTC"),
    ("spark.sql.parser.escapedStringLiterals", "false"),
    ("spark.sql.ansi.enabled", "true"),
    ("spark.sql.legacy.timeParserPolicy", "CORRECTED"),
    ("spark.sql.legacy.ctePrecedencePolicy", "CORRECTED"),
)
#: In a storage table with few columns a row group is small: so many bytes for each column, as the writer holds them.
_ROW_GROUP_BYTES, _MAX_ROW_GROUP_BYTES = "write.parquet.row-group-size-bytes", 128 * 2**20
_ROW_GROUP_BYTES_OF_A_COLUMN = 160 * 2**10
#: The rows that a snapshot has added and removed, by the keys of its summary.
_ROW_COUNTS = ("added-records", "deleted-records", "added-position-deletes", "removed-position-deletes")
#: Spark writes the settings below this prefix into the summary of each snapshot that a session makes.
SNAPSHOT_PROPERTY = "spark.sql.iceberg.snapshot-property."
_DIGEST = "#sha256="
#: How Java's clients of stores and catalogs refuse an account, in the error of a Spark job.
_DENIED = re.compile(
    r"Status Code: 40[13]\b|\b(AccessDenied|AccessControl|Forbidden)Exception\b|AuthorizationPermissionMismatch"
    r"|\b403 Forbidden\b|\(Permission denied\)",
    re.ASCII,
)
#: The same status, where another try may have other credentials or a right clock.
_OUTDATED = re.compile(r"(?i)expired|does not exist|difference between the request time")


def script_beside(outcome_location: str) -> str:
    """Return where a script is written: beside its outcome."""
    return f"{outcome_location.removesuffix('.json')}.script.json"


def submitted_script(location: str, text: str) -> str:
    """Return what a driver is given: a script's location with the digest of its text, so that it runs no other one."""
    return f"{location}{_DIGEST}{hashlib.sha256(text.encode()).hexdigest()}"


def location_of(submitted: str) -> str:
    """Return the location in what a driver is given; "" if there is no digest."""
    return submitted.rpartition(_DIGEST)[0]


@dataclass(frozen=True, slots=True)
class StagedCheck:
    """One check, in Spark SQL over :data:`ROWS`, or a function.

    Args:
        severity: ``error``: nothing is published if the check fails. ``warn``: a failure is only reported.
        expected: What must hold, for messages.
        observed: An aggregate expression for the observed value, for messages.
        passes: An aggregate expression for the result. NULL means that the check failed.
        offending: A query for the offending rows; empty if the check is not about single rows.
        function: ``module:function`` instead of SQL; it takes the staged rows as a DataFrame.
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
        digest: A digest of the checks. An outcome is valid only for the checks that it was tested with.
    """

    rows: str
    checks: tuple[StagedCheck, ...]
    digest: str

    def statement(self, checks: tuple[StagedCheck, ...]) -> str:
        """Return one aggregation with the observed value and the result of each given check."""
        columns = ",\n  ".join(f"CAST({check.observed} AS STRING), {check.passes}" for check in checks)
        # The count makes this an aggregation even if the checks are scalar subqueries, which contain no aggregate here.
        return self.over(f"SELECT {columns},\n  count(*)\nFROM {ROWS}")

    def over(self, query: str) -> str:
        """Return a query over :data:`ROWS` as Spark can run it."""
        return f"WITH {ROWS} AS (\n{self.rows}\n)\n{query}"

    def describe(self) -> str:
        """Return the statements of the checks."""
        parts = [f"-- {check.name}: {check.expected}".replace("\n", " ") for check in self.checks]
        asked = tuple(check for check in self.checks if check.passes)
        parts += [self.statement(asked)] if asked else []
        parts += [f"{check.function}(<DataFrame of {self.rows}>)" for check in self.checks if check.function]
        return "\n".join(parts)


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of one check.

    Args:
        name: The check.
        severity: As in :class:`StagedCheck`.
        passed: Whether it passed.
        expected: What must hold, for messages.
        observed: The observed value.
        problem: Why the check could not be computed, if it could not.
        columns: The columns of ``rows``.
        rows: Some of the offending rows, each value as text.
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
        """Whether the result prevents publication."""
        return not self.passed and self.severity != "warn"

    def summary(self) -> dict[str, str]:
        """Return the short form for documents and records. It has no rows, because they are data of the view."""
        return {
            "name": self.name,
            "result": "passed" if self.passed else "warned" if self.severity == "warn" else "failed",
            "expected": self.expected,
            "observed": self.observed or self.problem or "",
        }

    def record(self) -> dict[str, str]:
        """Return the form that the refresh record keeps: small, since there may be many checks and records."""
        summary = self.summary()
        return {key: summary[key] for key in ("name", "result", *(() if self.passed else ("observed",)))}

    def lines(self, most_rows: int = MAX_ROWS) -> list[str]:
        """Return the result as text: a sentence, and a line for each of some offending rows.

        Args:
            most_rows: The maximum number of rows.
        """
        found = f"it could not be computed: {self.problem}" if self.problem else f"found {self.observed}"
        named = [zip(self.columns, row, strict=False) for row in self.rows[:most_rows]]
        shown = [", ".join(f"{name}={'NULL' if value is None else value}" for name, value in row) for row in named]
        return [f"check {self.name!r}: expected {self.expected}; {found}", *(f"  row {line}" for line in shown)]


#: The staging catalog's name as it is shown: the Spark catalog that holds a storage table while a job works on it.
STAGING_CATALOG = "airflow_mv_staging"
#: Placeholder for that catalog's name in SQL.
STAGING = f"{STAGING_CATALOG}_{secrets.token_hex(16)}"
#: Placeholder for the name of the branch that a run writes to.
BRANCH = f"airflow_mv_branch_{secrets.token_hex(16)}"
_NAMES = {STAGING: "staging", BRANCH: "branch"}
_PLACEHOLDERS = {name: placeholder for placeholder, name in _NAMES.items()}
_PLACEHOLDER = re.compile(f"({STAGING}|{BRANCH})")
#: The first part of a quoted name.
_FIRST_PART = re.compile(r"`(?:[^`]|``)+`")
STAGING_NAMESPACE = "staged"
#: The storage table's name in the staging catalog.
STORAGE = "storage"
#: The :attr:`Outcome.error_class` of a driver whose clock is wrong.
CLOCK = "AIRFLOW_MV.CLOCK"
#: Columns that Iceberg adds to each table. Compaction, or an upgrade of the table, changes their values while its rows
#: stay the same. Iceberg (1.12) reads no table that has a column of such a name itself.
METADATA_COLUMNS = frozenset(
    {"_file", "_pos", "_deleted", "_spec_id", "_partition", "_row_id", "_last_updated_sequence_number"}
)
#: The extra column of a delta view: how many copies of the row were added (positive) or removed (negative).
WEIGHT = "__w"


@dataclass(frozen=True, slots=True)
class TableRead:
    """A table that the view's query may read.

    Args:
        table: Quoted Spark name.
        snapshot: The snapshot. ``None`` if the query names none: a table that was never written, of which it takes no
            row.
    """

    table: str
    snapshot: int | None


@dataclass(frozen=True, slots=True)
class SqlStep:
    """One Spark SQL statement.

    Args:
        query: The view's query that is part of the statement. It may only read :attr:`Script.reads`. Empty for none.
        view: Quoted name of the temporary view that the statement creates, from :func:`temporary`; empty for none.
        registers: Name and metadata file of the table that the statement registers in the staging catalog; empty for
            none. In a classic session it is registered directly, which takes a fifth of the statement's time.
    """

    sql: str
    query: str = ""
    view: str = ""
    registers: tuple[str, ...] = ()

    def describe(self) -> str:
        """Return the statement itself."""
        return self.sql


def with_row_groups(properties: Iterable[tuple[str, str]], columns: int) -> dict[str, str]:
    """Return the initial properties of a storage table with the size of its row groups, unless they have one.

    An incremental refresh finds stored rows by value. Engines read whole row groups, and skip those that have no such
    value by their statistics. With Iceberg's 128 MiB a file is often one row group.

    Args:
        properties: The other properties.
        columns: How many columns the table has.
    """
    size = min(columns * _ROW_GROUP_BYTES_OF_A_COLUMN, _MAX_ROW_GROUP_BYTES)
    return {_ROW_GROUP_BYTES: str(size), **dict(properties)}


@dataclass(frozen=True, slots=True)
class CreateStorageStep:
    """Create the empty staged table ``table`` with the columns that Spark's analysis of ``query`` gives.

    Args:
        table: Quoted Spark name, in the staging catalog or in the view's own.
        query: The view's SQL; it is analysed, never run. It may only read :attr:`Script.reads`.
        location: The storage table's directory; ``None`` leaves it to the catalog.
        partition_by: Quoted partition transforms, e.g. ``days(`day`)``.
        comments: The comment of each column that has another one than the query's.
    """

    table: str
    query: str
    location: str | None
    partition_by: tuple[str, ...] = ()
    properties: tuple[tuple[str, str], ...] = ()
    comments: tuple[tuple[str, str], ...] = ()

    def describe(self) -> str:
        """Return the statement with the columns left to Spark."""
        partitioning = f" PARTITIONED BY ({', '.join(self.partition_by)})" if self.partition_by else ""
        location = f" LOCATION '{self.location}'" if self.location else ""
        return f"CREATE TABLE {self.table} (<columns of the query>) USING iceberg{partitioning}{location}"


@dataclass(frozen=True, slots=True)
class DeterminismStep:
    """Check that a query is deterministic, and that its regenerated SQL is equivalent; otherwise the run falls back.

    Args:
        query: The view's SQL; it is analysed, never run. It may only read :attr:`Script.reads`.
        again: The query's regenerated SQL, which must have an equivalent plan; may be empty.
    """

    query: str
    again: str = ""

    def describe(self) -> str:
        """Return a description of the check."""
        return "<check that the query is deterministic, and that the statements below mean the same>"


@dataclass(frozen=True, slots=True)
class DeltaStep:
    """Create the temporary view ``view``: the net change of a base table, each row with a signed count ``__w``.

    Args:
        view: Quoted name, from :func:`temporary`.
        table: Quoted Spark name of the base table.
        start: The recorded snapshot, which the stored rows were computed from; ``None`` for an empty table.
        end: The new snapshot; ``None`` for an empty table.
        columns: The columns that the view reads, by their names at ``end``, unquoted.
        kind: ``append`` (only where every snapshot between is an append or a replace, on one line),
            ``diff`` of the scan tasks, or ``values`` of two pinned reads. Over Spark Connect a diff is Iceberg's
            changelog, a comparison of changed files, or ``values``.
        where: A predicate on the table's columns that every row relevant to the view satisfies; may be empty.
        uses: How often later statements read it: an append that is read once is not materialized.
        only_added: Whether later statements are correct only if no row was removed.
        joined: Those of ``columns`` that later statements equate with columns of other relations.
        bounded: Whether these relations are so large that the bounds of ``joined`` are worth a query: with them Spark
            skips files and row groups there.
        near: Matches of the table's rows with changes of other tables, made by earlier steps: a column, the view of
            the change, its column.
        near_views: Further views to create, as ``new`` or ``old`` and a quoted name: at least all rows of that version
            that have one of these matches.
        merge_on_read_files: How many data and delete files both snapshots have, if one has delete files; else, or if
            that is not known, ``None``. Over Spark Connect, few of them are read before anything else is known.
        partial: Those of ``columns`` whose types differ at the two snapshots. Later statements read only nested fields
            of them that are the same at both.
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
    bounded: bool = False
    near: tuple[tuple[str, str, str], ...] = ()
    near_views: tuple[tuple[str, str], ...] = ()
    merge_on_read_files: int | None = None
    partial: tuple[str, ...] = ()

    def describe(self) -> str:
        """Return a description of the view's content."""
        columns = ", ".join(map(quote, (*self.columns, WEIGHT)))
        where = f" where {self.where}" if self.where else ""
        span = " to ".join("nothing" if item is None else str(item) for item in (self.start, self.end))
        text = f"CREATE TEMPORARY VIEW {self.view} ({columns}) AS\n<{self.kind} of {self.table}, {span}{where}>"
        near = " or ".join(f"{quote(column)} is in {view}.{quote(other)}" for column, view, other in self.near)
        more = (
            f"CREATE TEMPORARY VIEW {view} AS\n<{version} rows of {self.table} where {near}>"
            for version, view in self.near_views
        )
        return "\n".join([text, *more])


@dataclass(frozen=True, slots=True)
class ReplaceKeysStep:
    """Recompute the stored rows of the affected keys: delete these keys, insert the query's rows of them.

    Args:
        table: Quoted name of the staged storage table.
        query: The view's SQL, pinned to the new snapshots; its columns are the storage table's, by position.
        columns: The storage table's columns, unquoted, in order.
        affected: A query for the affected keys, by position; it may repeat them.
        keys: The columns of ``columns`` that are the key. If empty, all rows are replaced when ``affected`` has a row.
        not_null: Those keys that are never NULL, in stored and new rows.
        how: ``positions`` deletes the rows where they are and inserts the new ones, or as ``delete`` if they are too
            many; ``delete`` uses Spark's DELETE; ``overwrite`` rewrites the storage table.
        most_keys: With more affected keys than this the run falls back.
        constants: Queries for one boolean each. If one is true, nearly every row is affected, and the run falls back.
        affected_unless: Replaces ``affected`` if all ``constants`` are false; empty to keep ``affected``.
    """

    table: str
    query: str
    columns: tuple[str, ...]
    affected: str
    keys: tuple[str, ...]
    not_null: tuple[str, ...] = ()
    how: str = "positions"
    most_keys: int = MAX_KEYS
    constants: tuple[str, ...] = ()
    affected_unless: str = ""

    def describe(self) -> str:
        """Return the statement, with names for its parts."""
        keys = ", ".join(map(quote, self.keys))
        return f"{self.how.upper()} {self.table} BY KEYS ({keys}) IN (\n{self.affected}\n) FROM (\n{self.query}\n)"


@dataclass(frozen=True, slots=True)
class MergeAdditiveStep:
    """Combine signed aggregates of the change with the stored ones, for the changed groups.

    Args:
        table: Quoted name of the staged storage table.
        columns: The storage table's columns, unquoted, in order.
        keys: The grouping columns among ``columns``; none for an aggregate without GROUP BY.
        changes: A query for the changed groups and their partial aggregates; its columns are the storage
            table's, by position, with one row for each key.
        combine: A query for the new rows of the changed groups, by position, over ``__stored`` (the stored rows of
            these groups, or all) and ``__delta`` (the rows of ``changes``).
        not_null: Those keys that are never NULL, in stored and new rows.
        how: ``positions`` deletes the rows where they are and inserts the new ones, or as ``delete`` if they are too
            many; ``delete`` uses Spark's DELETE; ``overwrite`` rewrites the storage table.
        most_keys: With more changed groups than this the run falls back.
        weighted: Whether ``changes`` has the additional column :data:`WEIGHT`, with the signed count of copies.
    """

    table: str
    columns: tuple[str, ...]
    keys: tuple[str, ...]
    changes: str
    combine: str
    not_null: tuple[str, ...] = ()
    how: str = "positions"
    most_keys: int = MAX_KEYS
    weighted: bool = False

    @property
    def combines_all(self) -> bool:
        """Whether all stored rows are combined with the change and written, with no join on the changed keys.

        Unchanged groups keep their values. This is wrong for rows (``weighted``): -0.0 and 0.0 are two rows, which
        would become one group.
        """
        return not self.keys or (self.how == "overwrite" and not self.weighted)

    def describe(self) -> str:
        """Return the statement, with names for its parts."""
        keys = ", ".join(map(quote, self.keys))
        written, stored = f"{self.how.upper()} {self.table} BY KEYS ({keys})", f"{self.table} of these keys"
        if self.combines_all:
            written, stored = f"OVERWRITE {self.table}", f"all of {self.table}"
        return f"{written} FROM (\nWITH `__stored` AS ({stored}), `__delta` AS (\n{self.changes}\n)\n{self.combine}\n)"


@dataclass(frozen=True, slots=True)
class RewriteStep:
    """Write the rows of small data files, and those of files with deleted rows, into new data files.

    Args:
        table: Quoted Spark name of the table, with its catalog.
        branch: The branch of the table that is rewritten; empty for its current rows.
        options: Options of Iceberg's procedure ``rewrite_data_files``.
        sorts: Whether the rows are sorted by the table's sort order.
    """

    table: str
    branch: str = ""
    options: tuple[tuple[str, str], ...] = ()
    sorts: bool = False

    def describe(self) -> str:
        """Return the statement."""
        catalog = _FIRST_PART.match(self.table)
        branch = f", branch => {string_literal(self.branch)}" if self.branch else ""
        strategy = ", strategy => 'sort'" if self.sorts else ""
        options = ", ".join(string_literal(text) for option in self.options for text in option)
        return (
            f"CALL {catalog[0] if catalog else ''}.system.rewrite_data_files(table => {string_literal(self.table)}"
            f"{branch}{strategy}, options => map({options}))"
        )


Step = SqlStep | CreateStorageStep | DeterminismStep | DeltaStep | ReplaceKeysStep | MergeAdditiveStep | RewriteStep
_STEPS: dict[str, type[Any]] = {
    "sql": SqlStep,
    "create-storage": CreateStorageStep,
    "determinism": DeterminismStep,
    "delta": DeltaStep,
    "replace-keys": ReplaceKeysStep,
    "merge-additive": MergeAdditiveStep,
    "rewrite": RewriteStep,
}
_KINDS = {cls: kind for kind, cls in _STEPS.items()}


@dataclass(frozen=True, slots=True)
class Script:
    """The work of one refresh (or one creation) in Spark.

    Args:
        refresh_id: Written into every snapshot of the job (summary key ``airflow-mv.refresh-id``).
        table: Quoted Spark name of the storage table, in :data:`STAGING` or in its catalog.
        steps: Run in order; the first failure ends the job.
        outcome_location: The file to which a submitted driver writes its :class:`Outcome`, or ``None``.
        confs: Session settings (never catalog credentials) the statements rely on.
        nested: How many base tables are materialized views; they are staged as ``base_0``, ``base_1``, …
        incremental: Whether ``steps`` are an incremental refresh.
        fallback: Steps to run instead if one of ``steps`` cannot continue; without any the run ends.
        branch: The branch of a storage table that the statements write to. They name it :data:`BRANCH`, since each run
            has a branch of its own, with this name and a suffix.
        checks: The checks of the staged rows.
        query: The query whose column types are compared with ``types``; empty for no comparison.
        types: The types of the view's columns, as Spark writes them, in order.
        reads: All that the view's query may read.
        package: The version of this package that wrote the script. A driver may have installed another one.
        stored: Quoted Spark name of the storage table if a catalog holds it, whichever table the statements write to.
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
    reads: tuple[TableRead, ...] = ()
    package: str = __version__
    stored: str = ""

    @property
    def is_staged(self) -> bool:
        """Whether the storage table is in the run's staging catalog. Valid before :meth:`bound` only."""
        return self.table.startswith(f"{quote(STAGING)}.")

    @property
    def statements(self) -> tuple[str, ...]:
        """The steps as text. A run adds a suffix to the names of the staging catalog and of the branch."""
        shown = self.bound(STAGING_CATALOG, self.branch)
        asked = (shown.checks.describe(),) if shown.checks else ()
        return (*(step.describe() for step in shown.steps), *asked)

    def bound(self, staging: str, branch: str | None) -> Script:
        """Return the script with the placeholders replaced by the names of one run.

        Args:
            branch: The run's branch, if it has one.
        """
        names = {STAGING: staging, BRANCH: branch or ""}
        bound = _in_all_texts(self, lambda text: _PLACEHOLDER.sub(lambda found: names[found[0]], text))
        return replace(bound, branch=branch)

    def to_json(self) -> str:
        """Serialise; :meth:`from_json` reads it back equal."""
        return json.dumps(self.document())

    def document(self) -> dict[str, Any]:
        """Return the JSON form; :meth:`of` reads it back equal."""
        steps = {cls: lambda step, kind=kind: {"step": kind, **document_of(step)} for cls, kind in _KINDS.items()}
        found: dict[str, Any] = _to_parts(document_of(self, steps))
        return found

    @classmethod
    def from_json(cls, text: str) -> Script:
        """Read what :meth:`to_json` wrote.

        Raises:
            InvalidMetadataError: The text is not such a document.
        """
        return cls.of(json_object(text, "script"))

    @classmethod
    def of(cls, document: Any) -> Script:
        """Read what :meth:`document` returned.

        Raises:
            InvalidMetadataError: It is not such a document.
        """
        return read(cls, _from_parts(document), "script", {Step: _step})


@dataclass(frozen=True, slots=True)
class Delta:
    """The files and rows that were read to compute the change of one base table.

    Args:
        table: Quoted Spark name.
        read_by: The methods: ``append``, ``diff`` (rows of changed files, cancelled), ``deleted`` (rows that delete
            files hide), ``gathered`` (with rows that match other changes), ``lineage`` (row ids), ``changelog``
            (Iceberg's scan of changed files), ``files`` (changed files, by their names), ``feed`` (a Delta table's
            change data feed), ``values`` (both snapshots whole), ``whole`` (one of them is empty); empty if nothing
            had to be read.
        old_tasks: Files that only the old snapshot reads, or that it reads with other delete files.
        new_tasks: The same for the new snapshot.
        old_bytes: Bytes of ``old_tasks``.
        new_bytes: Bytes of ``new_tasks``.
        rows_read: Rows in these files by their metadata; ``None`` if the files are not known.
        rows: Removed and added rows of the net change, or the rows of appended files; ``None`` if neither is known.
    """

    table: str
    read_by: tuple[str, ...] = ()
    old_tasks: int = 0
    new_tasks: int = 0
    old_bytes: int = 0
    new_bytes: int = 0
    rows_read: int | None = None
    rows: int | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a job.

    Args:
        metadata_location: The storage table's newest metadata file, or ``None`` after a failure.
        rows_written: Rows added by the job's snapshots.
        step_seconds: Wall-clock seconds of each step that ran.
        executor_seconds: Seconds that Spark's executors worked for steps and checks; ``None`` if unknown.
        error: Spark's reason in one paragraph, or ``None``.
        error_class: Spark's error condition (e.g. ``UNRESOLVED_COLUMN.WITH_SUGGESTION``), if the error has one.
        sql_state: Spark's SQLSTATE, if the error has one. Those of class 22 are errors of values in the rows.
        query_error: Whether the view's SQL caused the error, so that a retry cannot help.
        application_id: The Spark application.
        mode: What ran: ``full``, ``incremental``, or ``none`` if nothing was to be written or the run ended early.
        written_by: How rows were written: ``statement`` (plain SQL), ``positions``, ``delete``,
            ``overwrite``, ``rewrite`` (the same rows in other files), or ``none``.
        fallback: The reason code of a fallback (see ``job/delta.py``), or ``None``.
        fallback_reason: The same in a sentence.
        rows_deleted: Rows that the job's snapshots removed, by rewritten files or by delete files.
        keys: The number of affected keys or changed groups, if they were counted.
        deltas: What was read of each changed base table.
        branch: The branch of the storage table that holds the staged rows, in the registered layout.
        checks: The results of the checks of the staged rows.
        checks_digest: The digest of these checks; empty if none were run.
    """

    refresh_id: str
    metadata_location: str | None
    rows_written: int = 0
    step_seconds: tuple[float, ...] = ()
    executor_seconds: float | None = None
    error: str | None = None
    error_class: str | None = None
    sql_state: str | None = None
    query_error: bool = False
    application_id: str | None = None
    mode: str = "full"
    written_by: str = "statement"
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
        return None if self.written_by == "none" else self.branch or self.metadata_location

    def to_json(self) -> str:
        """Serialise; :meth:`from_json` reads it back equal."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Outcome:
        """Read what :meth:`to_json` wrote.

        Raises:
            InvalidMetadataError: The text is not such a document (a half-written file).
        """
        return read(cls, json_object(text, "outcome"), "outcome")


def rows_changed(summaries: Iterable[Mapping[str, str]]) -> tuple[int, int]:
    """Return how many rows snapshots have written and deleted.

    A deletion vector, or a delete file that replaces others, contains the earlier deletes of a data file. So they are
    counted as removed and as added.

    Args:
        summaries: The snapshots' summaries. Spark omits zeros.
    """
    items = list(summaries)

    def total(key: str) -> int:
        numbers = (item.get(key) or "" for item in items)  # Java's maps ignore a default
        return sum(int(number) for number in numbers if number.isdecimal())

    added, *deleted, again = map(total, _ROW_COUNTS)
    return added, max(sum(deleted) - again, 0)


def job_error(text: str, location: str = "") -> JobError | AccessDeniedError:
    """Return the error of a failed Spark job: that of a refused account if its text says so.

    Args:
        text: The message, with Spark's reason.
        location: The folder below which the job writes.
    """
    if _DENIED.search(text) is None or _OUTDATED.search(text) is not None:
        return JobError(text)
    below = f"below {location}" if location else "in the view's folder"
    return AccessDeniedError(
        f"{text}. The account of Spark's driver or executors has no permission: it has to read and list the files of "
        f"the base tables, and to read, list and write {below}",
        location,
    )


def _step(raw: dict[str, Any]) -> Step:
    step: Step = read(_STEPS[raw["step"]], {key: value for key, value in raw.items() if key != "step"}, "script")
    return step


#: Runs a script and returns its outcome.
Stager = Callable[[Script], Outcome]


def temporary(name: str) -> str:
    """Return the quoted name of a temporary view in a script. Each run has its own temporary views."""
    return quote(f"{STAGING}-{name}")


def staged(name: str) -> str:
    """Return the quoted Spark name of a table in the staging catalog."""
    return ".".join(map(quote, (STAGING, STAGING_NAMESPACE, name)))


@dataclass(frozen=True, slots=True)
class Target:
    """The storage table as the statements of a refresh name it.

    Args:
        table: Quoted name of the stored rows.
        written: Quoted name that the statements write to.
        registers: The metadata file that the job first registers in the staging catalog; empty for a table of a
            catalog.
        branch: Whether the statements write to a branch, which the job creates first.
        start: The snapshot that the branch starts from; ``None`` for a table that was never written.
    """

    table: str
    written: str
    registers: str = ""
    branch: bool = False
    start: int | None = None

    @property
    def opening(self) -> tuple[SqlStep, ...]:
        """The steps before the first statement that reads or writes the table."""
        if self.registers:
            return (register(STORAGE, self.registers),)
        if self.branch:
            start = f" AS OF VERSION {self.start}" if self.start is not None else ""
            return (SqlStep(f"ALTER TABLE {self.table} CREATE BRANCH {quote(BRANCH)}{start}"),)
        return ()


def register(name: str, location: str) -> SqlStep:
    """Return the step that registers a metadata file in the staging catalog.

    Args:
        name: The table's name there.
    """
    table, file = string_literal(f"{STAGING_NAMESPACE}.{name}"), string_literal(location)
    statement = f"CALL {quote(STAGING)}.system.register_table(table => {table}, metadata_file => {file})"
    return SqlStep(statement, registers=(name, location))


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
    """Reverse :func:`_to_parts`.

    Raises:
        InvalidMetadataError: A list of parts is not valid.
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
