# SPDX-License-Identifier: Apache-2.0
"""The checks of a refresh: compiled to queries that a job runs on its staged rows, and the verdict on the results.

The SQL of a check is validated like a view's own: it must be one condition or one query, and may read only the
staged rows and the view's base tables at the refresh's snapshots. Names of columns are checked here, before Spark.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal

from sqlglot import exp

from airflow_mv.checks import CHECKS_PROPERTY, Check, Value, read_checks
from airflow_mv.core.freshness.observe import Observation
from airflow_mv.core.freshness.state import State
from airflow_mv.core.ivm.functions import is_aggregate
from airflow_mv.core.refresh.inputs import RefreshInputs
from airflow_mv.core.refresh.plan import RefreshPlan
from airflow_mv.core.refresh.statements import place_names
from airflow_mv.core.script import ROWS, STORAGE, CheckResult, Outcome, Script, StagedCheck, StagedChecks, staged
from airflow_mv.core.spec.identifiers import Identifier, quote, string_literal
from airflow_mv.core.sql.interval_columns import condition
from airflow_mv.core.sql.query import NestedView, PinnedTable, parse_query, parse_tree, pin_query
from airflow_mv.core.sql.types import refuse_metadata_columns
from airflow_mv.errors import CheckFailedError, ConfigurationError, InvalidQueryError, JobError

log = logging.getLogger(__name__)

#: Limits of the message of a failed refresh: rows per check, and checks. The log has more.
_ROWS_IN_MESSAGE = 5
_CHECKS_IN_MESSAGE = 10
_SIGNS = {"geq_to": (">=",), "greater_than": (">",), "leq_to": ("<=",), "less_than": ("<",), "equal_to": (">=", "<=")}
#: Limits that can be violated by a single row.
_LOWER, _UPPER = ("geq_to", "greater_than", "equal_to"), ("leq_to", "less_than", "equal_to")


def all_checks(observation: Observation, given: Sequence[Check]) -> tuple[Check, ...]:
    """Return the view's own checks and those of the call.

    Args:
        given: The checks of the call.

    Raises:
        ConfigurationError: The view's property is invalid.
    """
    loaded = observation.view
    stored = stored_checks(loaded.metadata.properties, view=str(loaded.identifier))
    return tuple(dict.fromkeys((*stored, *given)))


def checks_to_run(inputs: RefreshInputs, checks: Sequence[Check]) -> StagedChecks | None:
    """Compile checks for a refresh. The checks of an interval read only its rows.

    Args:
        inputs: What the refresh is planned from.

    Raises:
        ConfigurationError: A check names a column that the view does not have.
        InvalidQueryError: The SQL of a check is invalid.
    """
    if not checks:
        return None
    observation = inputs.observation
    loaded, storage, schema = observation.view, observation.storage, observation.view.metadata.schema_
    interval = observation.interval
    before = ""
    if storage.rows_snapshot is not None and _has_rows_to_compare(observation):
        before = f"{storage.target.table} VERSION AS OF {storage.rows_snapshot}"
    subject = CheckContext(
        view=str(loaded.identifier),
        columns=schema.names,
        table=storage.target.written,
        before=before,
        where=condition(interval, schema.fields) if interval else "",
        tables=inputs.pinned_tables(),
        views=observation.dependencies.nested,
        default_catalog=loaded.default_catalog,
        default_namespace=loaded.default_namespace,
    )
    return compile_checks(checks, subject)


def require_fitting(properties: Mapping[str, str], *, view: str, columns: Sequence[str]) -> None:
    """Refuse a view's own checks if they do not fit its columns. The tables that they read are not checked here.

    Args:
        properties: The view's new properties.
        columns: The view's columns.

    Raises:
        ConfigurationError, InvalidQueryError: See :func:`checks_to_run`.
    """
    compile_checks(stored_checks(properties, view=view), CheckContext(view, columns, table=staged(STORAGE)))


def reads_staged_views(observation: Observation, checks: Sequence[Check]) -> bool:
    """Whether a check's query may read a base table that the job has to register: a pointed materialized view."""
    staged_views = place_names(observation.places).files
    return bool(staged_views) and any(check.kind == "sql" for check in checks)


def has_passed(script: Script, outcome: Outcome) -> bool:
    """Whether the staged rows have passed exactly the checks of this script; for a script without checks, had none."""
    wanted = script.checks.digest if script.checks else ""
    return outcome.checks_digest == wanted and not any(result.stops for result in outcome.checks)


def judge(plan: RefreshPlan, outcome: Outcome) -> None:
    """Log the checks of a staged refresh that only warn, and raise if another one failed.

    The error has the checks that failed, with some rows. The log has what does not fit into it, and nothing twice.

    Raises:
        CheckFailedError, JobError: See :func:`require_passed`.
    """
    results = outcome.checks if plan.script and plan.script.checks else ()
    for result in results:
        if not result.passed and not result.stops:
            log.warning("%s", "\n".join(result.lines()))
    for number, result in enumerate(result for result in results if result.stops):
        more = result.lines()[0 if number >= _CHECKS_IN_MESSAGE else 1 + _ROWS_IN_MESSAGE :]
        if more:
            log.error("More of check %r:\n%s", result.name, "\n".join(more))
    require_passed(plan, outcome)


def require_passed(plan: RefreshPlan, outcome: Outcome) -> None:
    """Refuse to publish rows that have not passed their checks. The staged rows stay for inspection.

    Raises:
        CheckFailedError: With some of the rows that violate the checks.
        JobError: The job has not run these checks.
    """
    if plan.script is None or has_passed(plan.script, outcome):
        return
    failed = [result for result in outcome.checks if result.stops]
    if not failed:
        raise JobError(
            f"view {plan.view}: the Spark job has not run the plan's checks, so nothing was published. Does its driver "
            "run this version of airflow-mv, with the script of this plan?"
        )
    lines = [_shown(result) for result in failed[:_CHECKS_IN_MESSAGE]]
    if len(failed) > _CHECKS_IN_MESSAGE:
        lines.append(f"and {len(failed) - _CHECKS_IN_MESSAGE} more checks, which are in the log")
    message = "\n".join([
        f"view {plan.view}: {len(failed)} of {len(outcome.checks)} checks failed, so nothing was published and readers "
        "keep the rows that they have",
        *lines,
        f"The checked rows are kept for inspection: {_place(plan, outcome)}",
    ])  # fmt: skip
    raise CheckFailedError(message, results=tuple(failed))


def _shown(result: CheckResult) -> str:
    more = len(result.rows) - _ROWS_IN_MESSAGE
    lines = result.lines(_ROWS_IN_MESSAGE)
    return "\n".join([*lines, *([f"  and {more} more in the log"] if more > 0 else [])])


def _place(plan: RefreshPlan, outcome: Outcome) -> str:
    if outcome.branch is not None:
        return f"branch {outcome.branch} of {plan.storage_table}"
    return f"the Iceberg table with the metadata file {outcome.metadata_location}"


def _has_rows_to_compare(observation: Observation) -> bool:
    """Whether all of the stored rows are older rows of the same definition. Those of some intervals are too few."""
    freshness = observation.freshness
    is_ours = freshness.state not in (State.NEVER_REFRESHED, State.DEFINITION_CHANGED)
    return is_ours and all(item.part.computed for item in freshness.parts)


def stored_checks(properties: Mapping[str, str], *, view: str) -> tuple[Check, ...]:
    """Read the checks in a view's property. Functions are refused: who may set a property must not be able to run code.

    Args:
        properties: The view's properties.
        view: The view's name, for messages.

    Raises:
        ConfigurationError: A check is not valid, or is a function.
    """
    text, source = properties.get(CHECKS_PROPERTY), f"view {view}, property {CHECKS_PROPERTY}"
    if text is None:
        return ()
    found = read_checks(text, source=source)
    for check in found:
        if check.kind == "python":
            raise ConfigurationError(
                f"{source}: {check.name} is a function, which a property must not name; give it to the operator"
            )
    return found


# ------------------------------------------------------------------ checks as queries on the staged rows


@dataclass(frozen=True, slots=True)
class CheckContext:
    """The rows that the checks of a refresh read, and the tables that they may read.

    Args:
        table: Quoted Spark name by which the refresh writes to the storage table.
        before: The storage table with the rows of the last refresh; empty if there are no rows of this definition.
        where: The condition that the rows of an interval pass; empty for all rows.
        tables: The snapshots of the view's base tables that the refresh reads; ``None`` if unknown yet.
        views: The nested plain views that the view reads.
    """

    view: str
    columns: Sequence[str]
    table: str
    before: str = ""
    where: str = ""
    tables: Mapping[Identifier, PinnedTable] | None = None
    views: Mapping[Identifier, NestedView] = field(default_factory=dict)
    default_catalog: str = ""
    default_namespace: tuple[str, ...] = ()

    def rows(self, table: str) -> str:
        """Return a query for the rows of a table that are checked."""
        return f"SELECT * FROM {table}{f' WHERE {self.where}' if self.where else ''}"

    def pinned(self, text: str, label: str) -> str:
        """Return the query of a check with the view's base tables pinned.

        Args:
            text: The query. It reads the staged rows as :data:`~airflow_mv.core.script.ROWS`.
            label: Its name in error messages.

        Raises:
            InvalidQueryError: It is not one query, or reads something else.
        """
        if self.tables is None:
            refuse_metadata_columns(parse_tree(text, view=label), text, label, self.columns)
            return text
        query = parse_query(
            text,
            view=label,
            default_catalog=self.default_catalog,
            default_namespace=self.default_namespace,
            given=(ROWS.strip("`"),),
        )
        refuse_metadata_columns(query.tree, text, label, self.columns)
        for reference in query.references:
            if reference.identifier not in self.tables and reference.identifier not in self.views:
                raise InvalidQueryError(
                    f"{label}: it reads {reference.identifier}; a check may read {{rows}} and what the view itself "
                    f"reads: {', '.join(sorted(map(str, (*self.tables, *self.views))))}"
                )
        return pin_query(query, tables=self.tables, views=self.views)


def compile_checks(checks: Sequence[Check], subject: CheckContext) -> StagedChecks | None:
    """Return the queries that a job runs on the staged rows; ``None`` without checks.

    Raises:
        ConfigurationError: A check names a column that the view does not have.
        InvalidQueryError: The SQL of a check is not a condition or query, or reads other tables.
    """
    if not checks:
        return None
    documents = json.dumps([check.document() for check in checks], sort_keys=True)
    digest = hashlib.sha256(documents.encode("utf-8", "surrogatepass")).hexdigest()[:32]
    return StagedChecks(
        subject.rows(subject.table), tuple(_Compiler(check, subject).staged() for check in checks), digest
    )


class _Compiler:
    """Compiles one check."""

    def __init__(self, check: Check, subject: CheckContext) -> None:
        self._check = check
        self._subject = subject
        self._label = f"view {subject.view}, check {check.name!r}"
        self._columns = tuple(self._column(name) for name in check.columns)
        if check.where:
            _condition(check.where, subject.columns, self._label, aggregates=False)

    def staged(self) -> StagedCheck:
        """Return the query that the job runs."""
        builders: dict[str, Callable[[], StagedCheck]] = {
            "not_null": self._not_null,
            "unique": self._unique,
            "accepted_values": self._accepted_values,
            "row_count": self._row_count,
            "row_count_change": self._row_count_change,
            "condition": self._condition,
            "sql": self._sql,
            "column": self._column_check,
            "python": self._python,
        }
        return builders[self._check.kind]()

    # -- kinds ---------------------------------------------------------------------------------

    def _not_null(self) -> StagedCheck:
        broken = " OR ".join(f"{column} IS NULL" for column in self._columns)
        return self._no_row(f"no NULL in {self._names}", broken)

    def _accepted_values(self) -> StagedCheck:
        accepted = ", ".join(map(_literal, self._check.values)) or "NULL"
        column = self._columns[0]
        shown = f"in ({accepted})" if len(accepted) <= 200 else "among the accepted values"
        return self._no_row(
            f"{self._names} {shown}", f"{column} IS NOT NULL AND ({column} IN ({accepted})) IS NOT TRUE"
        )

    def _unique(self) -> StagedCheck:
        count = f"{self._over(f'count({self._key})')} - {self._over(f'count(DISTINCT {self._key})')}"
        return self._staged(
            f"no duplicates in ({self._names})",
            observed=f"concat('duplicate rows: ', {count})",
            passes=f"{count} = 0",
            offending=self._repeated(),
        )

    def _row_count(self) -> StagedCheck:
        limits = dict(self._check.limits)
        signs = {"at_least": ">=", "at_most": "<="}
        count = self._over("count(*)")
        return self._staged(
            "rows: " + " and ".join(f"{key.replace('_', ' ')} {value:,}" for key, value in limits.items()),
            observed=f"concat('rows: ', {count})",
            passes=" AND ".join(f"{count} {signs[key]} {value}" for key, value in limits.items()),
        )

    def _row_count_change(self) -> StagedCheck:
        limits = {key: Decimal(str(value)) for key, value in self._check.limits}
        expected = "rows: " + " and ".join(f"{key.replace('_', ' ')} {value:%}" for key, value in limits.items())
        count = self._over("count(*)")
        if not self._subject.before:
            observed = f"concat('rows: ', {count}, ', no earlier rows')"
            return self._staged(expected, observed=observed, passes="true")
        where = f" WHERE ({self._check.where}\n)" if self._check.where else ""
        before = f"(SELECT count(*) FROM ({self._subject.rows(self._subject.before)}){where})"
        bounds = {
            "at_most_down": lambda share: f"{count} >= {1 - share:f} * {before}",
            "at_most_up": lambda share: f"{count} <= {1 + share:f} * {before}",
        }
        passes = " AND ".join(bounds[key](value) for key, value in limits.items())
        return self._staged(
            expected,
            observed=f"concat('rows: ', {count}, ', before: ', {before})",
            passes=f"{before} = 0 OR ({passes})",
        )

    def _condition(self) -> StagedCheck:
        text = self._check.text
        tree = _condition(text, self._subject.columns, self._label, aggregates=True)
        if not any(is_aggregate(node) for node in tree.walk()):
            return self._no_row(f"{_brief(text)}, of each row", f"(\n{text}\n) IS NOT TRUE")
        verdict = f"(\n{text}\n)" if not self._check.where else self._subquery(f"(\n{text}\n)")
        return self._is_true(f"{_brief(text)}, of all rows", verdict)

    def _sql(self) -> StagedCheck:
        text = self._check.text
        if "{rows}" not in text:
            raise InvalidQueryError(f"{self._label}: its query must read the staged rows as {{rows}}: {_brief(text)}")
        verdict = f"(\n{self._subject.pinned(text.replace('{rows}', ROWS), self._label)}\n)"
        return self._is_true(f"a true value from {_brief(text)}", verdict)

    def _column_check(self) -> StagedCheck:
        what, column, limits = self._check.text, self._columns[0], dict(self._check.limits)
        measures = {
            "null_check": f"count_if({column} IS NULL)",
            "unique_check": f"count({column}) - count(DISTINCT {column})",
            "distinct_check": f"count(DISTINCT {column})",
            "min": f"min({column})",
            "max": f"max({column})",
        }
        measured = measures[what] if not self._check.where else self._subquery(measures[what])
        terms = _comparisons(limits)
        passes = " AND ".join(f"({measured}) {term}" for both in terms.values() for term in both)
        # Without values, min and max are NULL, which does not violate the limit.
        optional = f"({measured}) IS NULL OR ({passes})" if what in ("min", "max") else passes
        expected = ", ".join(f"{key} {value}" for key, value in limits.items())
        return self._staged(
            f"{what} of {self._names} {expected}",
            observed=f"({measured})",
            passes=optional,
            offending=self._breaking(what, column, terms),
        )

    def _python(self) -> StagedCheck:
        return self._staged(
            "true from the function, or no rows",
            function=self._check.text,
            offending=f"SELECT * FROM {ROWS}{self._where()}",
        )

    # -- parts ---------------------------------------------------------------------------------

    def _staged(self, expected: str, **fields: str) -> StagedCheck:
        return StagedCheck(self._check.name, self._check.severity, expected, **fields)

    def _is_true(self, expected: str, verdict: str) -> StagedCheck:
        return self._staged(expected, observed=verdict, passes=f"{verdict} IS TRUE")

    @property
    def _names(self) -> str:
        return ", ".join(self._check.columns)

    @property
    def _key(self) -> str:
        return ", ".join(self._columns)

    def _no_row(self, expected: str, broken: str) -> StagedCheck:
        broken = f"({self._check.where}\n) AND ({broken})" if self._check.where else broken
        return self._staged(
            expected,
            observed=f"concat('violating rows: ', count_if({broken}))",
            passes=f"count_if({broken}) = 0",
            offending=f"SELECT * FROM {ROWS} WHERE {broken}",
        )

    def _repeated(self) -> str:
        complete = " AND ".join(f"{column} IS NOT NULL" for column in self._columns)
        return (
            f"SELECT {self._key}, count(*) AS `number of rows` FROM {ROWS}{self._where(complete)} "
            f"GROUP BY {self._key} HAVING count(*) > 1"
        )

    def _breaking(self, what: str, column: str, terms: Mapping[str, Sequence[str]]) -> str:
        if what == "null_check":
            return f"SELECT * FROM {ROWS}{self._where(f'{column} IS NULL')}"
        if what == "unique_check":
            return self._repeated()
        if what == "distinct_check":
            return ""
        side, end = (_LOWER, 0) if what == "min" else (_UPPER, -1)
        chosen = [both[end] for key, both in terms.items() if key in side]
        if not chosen:
            return ""
        broken = " OR ".join(f"({column} {term}) IS FALSE" for term in chosen)
        return f"SELECT * FROM {ROWS}{self._where(f'({broken})')}"

    def _where(self, also: str = "") -> str:
        parts = [*([f"({self._check.where}\n)"] if self._check.where else []), *([also] if also else [])]
        return f" WHERE {' AND '.join(parts)}" if parts else ""

    def _over(self, aggregate: str) -> str:
        return f"{aggregate} FILTER (WHERE {self._check.where}\n)" if self._check.where else aggregate

    def _subquery(self, aggregate: str) -> str:
        return f"(SELECT {aggregate} FROM {ROWS}{self._where()})"

    def _column(self, name: str) -> str:
        same = [column for column in self._subject.columns if column.lower() == name.lower()]
        if name not in same and len(same) != 1:
            known = ", ".join(self._subject.columns)
            raise ConfigurationError(f"{self._label}: the view has no column {name!r}; it has {known}")
        return quote(name if name in same else same[0])


def _comparisons(limits: Mapping[str, Value]) -> dict[str, list[str]]:
    """Return each limit as comparison terms, the lower one first. A tolerance widens the range."""
    compared = {key: value for key, value in limits.items() if key != "tolerance"}
    if "tolerance" not in limits:
        return {key: [f"{sign} {_literal(value)}" for sign in _SIGNS[key]] for key, value in compared.items()}
    share = Decimal(str(limits["tolerance"]))
    terms: dict[str, list[str]] = {}
    for key, value in compared.items():
        number = Decimal(str(value))
        margin = abs(number) * share
        terms[key] = [f"{sign} {number - margin if sign[0] == '>' else number + margin:f}" for sign in _SIGNS[key]]
    return terms


def _condition(text: str, columns: Sequence[str], label: str, *, aggregates: bool) -> exp.Expr:
    """Parse a condition on rows: one expression over the view's columns."""
    # On separate lines, so that a comment at its end does not hide our text.
    tree = parse_tree(f"SELECT (\n{text}\n) FROM {ROWS}", view=label)
    found = tree.expressions[0] if isinstance(tree, exp.Select) and len(tree.expressions) == 1 else None
    plain = {key for key, value in tree.args.items() if value} <= {"expressions", "from_", "kind"}
    if not isinstance(found, exp.Paren) or not plain:
        raise InvalidQueryError(f"{label}: this is not one condition on the view's columns: {_brief(text)}")
    for node in found.walk():
        _refuse(node, text, label, aggregates=aggregates)
    known = {column.lower() for column in columns}
    for column in found.find_all(exp.Column):
        if column.parts[0].name.lower() not in known:
            raise ConfigurationError(
                f"{label}: the view has no column {column.parts[0].name!r}; it has {', '.join(columns)}"
            )
    return found


def _refuse(node: exp.Expr, text: str, label: str, *, aggregates: bool) -> None:
    if isinstance(node, exp.Query | exp.Table):
        raise InvalidQueryError(
            f"{label}: a condition must not read a table; write it as a query, SELECT … FROM {{rows}}: {_brief(text)}"
        )
    if isinstance(node, exp.Window):
        raise InvalidQueryError(f"{label}: a window function needs a query, SELECT … FROM {{rows}}: {_brief(text)}")
    if not aggregates and is_aggregate(node):
        raise InvalidQueryError(
            f"{label}: a condition that selects rows must not have an aggregate function: {_brief(text)}"
        )


def _literal(value: Value) -> str:
    if isinstance(value, str):
        return string_literal(value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def _brief(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 200 else f"{line[:199]}…"
