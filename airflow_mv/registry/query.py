# SPDX-License-Identifier: Apache-2.0
"""Ask the registry: SQL by DuckDB over Arrow, and the questions that most people have.

DuckDB gets the rows, and no access to files, networks or extensions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from airflow_mv.errors import ConfigurationError, InvalidQueryError
from airflow_mv.registry.filters import refreshed_since
from airflow_mv.registry.registry import Registry
from airflow_mv.registry.tables import Component

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

#: The most memory of a query, and its threads.
_LIMITS = {"memory_limit": "1GB", "threads": "2"}


@dataclass(frozen=True, slots=True)
class Question:
    """A question that the registry answers.

    Args:
        about: What it answers, in one line.
        sql: The query. ``$since`` is the beginning of the time that it is about.
    """

    about: str
    sql: str


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of a query.

    Args:
        columns: The columns' names.
        rows: The rows.
    """

    columns: list[str]
    rows: list[tuple[Any, ...]]

    def documents(self) -> list[dict[str, Any]]:
        """Return each row as a JSON object."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]


_COST = "round(sum(coalesce(executor_seconds, job_seconds, seconds)), 1)"
_COSTS = f"count(*) AS refreshes, {_COST} AS cost_seconds, round(sum(seconds), 1) AS seconds, \
sum(bytes_read) AS bytes_read, sum(rows_written) AS rows_written"
_RECENT = "FROM refreshes WHERE refreshed_at >= $since"

#: The questions, by the name of their command.
QUESTIONS: Mapping[str, Question] = MappingProxyType(
    {
        "lagging": Question(
            "Views that are not fresh, those with the longest lag first.",
            "SELECT view, state, lag_seconds, refreshed_at, explanation FROM views WHERE state <> 'fresh' "
            "ORDER BY lag_seconds DESC NULLS FIRST, view",
        ),
        "late": Question(
            "Views whose lag exceeds their freshness SLO.",
            "SELECT view, lag_seconds, max_staleness_seconds, owner FROM views "
            "WHERE lag_seconds > max_staleness_seconds ORDER BY lag_seconds - max_staleness_seconds DESC, view",
        ),
        "fallbacks": Question(
            "Incremental views that were recomputed in full, how often, and why the last time.",
            "SELECT view, count(*) AS fallbacks, max(refreshed_at) AS last_at, arg_max(fallback, refreshed_at) AS why "
            f"{_RECENT} AND fallback IS NOT NULL GROUP BY view ORDER BY fallbacks DESC, view",
        ),
        "costs": Question(
            "What the refreshes of each view cost.",
            f"SELECT view, {_COSTS} {_RECENT} GROUP BY view ORDER BY cost_seconds DESC NULLS LAST, view",
        ),
        "costs-by-dag": Question(
            "What the refreshes cost by the DAG that asked for them.",
            f"SELECT dag_id, {_COSTS} {_RECENT} GROUP BY dag_id ORDER BY cost_seconds DESC NULLS LAST, dag_id",
        ),
        "costs-by-owner": Question(
            "What the refreshes cost by the owner of the view.",
            f"SELECT owner, {_COSTS} FROM refreshes LEFT JOIN (SELECT view, owner FROM views) USING (view) "
            "WHERE refreshes.refreshed_at >= $since GROUP BY owner ORDER BY cost_seconds DESC NULLS LAST, owner",
        ),
        "saved": Question(
            "How much job time incremental refreshes saved, by the estimates of full ones.",
            "SELECT view, count(*) AS refreshes, round(sum(job_seconds), 1) AS job_seconds, "
            "round(sum(full_seconds), 1) AS full_seconds, "
            f"round(sum(full_seconds) - sum(job_seconds), 1) AS saved_seconds {_RECENT} AND mode <> 'full' "
            "AND full_seconds IS NOT NULL AND job_seconds IS NOT NULL GROUP BY view ORDER BY saved_seconds DESC, view",
        ),
        "modes": Question(
            "How often each view was refreshed in which mode.",
            f"SELECT view, mode, count(*) AS refreshes, round(avg(seconds), 1) AS seconds {_RECENT} "
            "GROUP BY view, mode ORDER BY view, mode",
        ),
        "slowest": Question(
            "The slowest refreshes.",
            f"SELECT view, refreshed_at, mode, round(seconds, 1) AS seconds, rows_written, dag_id, run_id {_RECENT} "
            "AND seconds IS NOT NULL ORDER BY seconds DESC, view LIMIT 20",
        ),
        "idle": Question(
            "Views without a refresh in that time.",
            f"SELECT view, state, refreshed_at, owner FROM views WHERE view NOT IN (SELECT view {_RECENT}) "
            "ORDER BY refreshed_at NULLS FIRST, view",
        ),
    }
)


def ask(registry: Registry, question: str, *, days: int = 30) -> Answer:
    """Answer one of the questions.

    Args:
        registry: The registry.
        question: Its name, a key of :data:`QUESTIONS`.
        days: How many days it is about, up to now.

    Raises:
        ConfigurationError: There is no such question, or DuckDB is not installed.
    """
    if question not in QUESTIONS:
        raise ConfigurationError(f"{question!r} is not a question; there are: {', '.join(QUESTIONS)}")
    since = datetime.now(UTC) - timedelta(days=days)
    return _run(registry, QUESTIONS[question].sql, {"since": since}, since)


def query(registry: Registry, sql: str) -> Answer:
    """Run a query over the tables ``views`` and ``refreshes``.

    Args:
        registry: The registry.
        sql: One SELECT, in DuckDB's SQL.

    Raises:
        InvalidQueryError: It is not one, or it fails. The message has DuckDB's reason.
        ConfigurationError: DuckDB is not installed.
    """
    return _run(registry, sql, {}, None)


def _run(registry: Registry, sql: str, parameters: Mapping[str, Any], since: datetime | None) -> Answer:
    duckdb = _duckdb()
    with duckdb.connect(config={"enable_external_access": "false", **_LIMITS}) as database:
        database.execute("SET python_enable_replacements = false")
        database.execute("SET TimeZone = 'UTC'")
        try:
            _require_select(database, sql)
            for name, rows in _tables(registry, sql, since).items():
                database.register(name, rows)
            database.execute("SET lock_configuration = true")
            used = {key: value for key, value in parameters.items() if f"${key}" in sql}
            found = database.execute(sql, used or None)
            columns = [item[0] for item in found.description or ()]
            return Answer(columns, found.fetchall())
        except duckdb.Error as error:
            raise InvalidQueryError(f"the query of the registry failed: {str(error).strip()}") from None


def _duckdb() -> Any:
    try:
        import duckdb
    except ImportError:
        raise ConfigurationError("queries of the registry need DuckDB: pip install 'airflow-mv[registry]'") from None
    return duckdb


def _require_select(database: duckdb.DuckDBPyConnection, sql: str) -> None:
    statements = database.extract_statements(sql)
    if len(statements) != 1 or statements[0].type.name not in ("SELECT", "EXPLAIN"):
        raise InvalidQueryError("a query of the registry is one SELECT: nothing is changed by SQL")


def _tables(registry: Registry, sql: str, since: datetime | None) -> dict[str, pa.Table]:
    """Read the tables whose names occur in a query. Of a question (with ``since``), only the columns that it uses."""
    text, found = sql.lower(), {}
    components: tuple[Component[Any], ...] = (registry.views, registry.refreshes)
    for component in components:
        kind = component.kind
        if kind.name not in text:
            continue
        columns, where = None, None
        if since is not None:
            columns = [name for name in kind.model.model_fields if name in text]
        if since is not None and kind.moment is not None:
            where = refreshed_since(since)
        found[kind.name] = component.read(where, columns)
    return found
