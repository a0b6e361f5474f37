# SPDX-License-Identifier: Apache-2.0
"""Query the registry by SQL: DuckDB over Arrow.

DuckDB gets the rows, and no access to files, networks or extensions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow_mv.errors import ConfigurationError, InvalidQueryError
from airflow_mv.extras.registry.filters import refreshed_since
from airflow_mv.extras.registry.questions import QUESTIONS
from airflow_mv.extras.registry.registry import Registry

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

#: The most memory of a query, and its threads.
_LIMITS = {"memory_limit": "1GB", "threads": "2"}


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of a query."""

    columns: list[str]
    rows: list[tuple[Any, ...]]

    def documents(self) -> list[dict[str, Any]]:
        """Return each row as a JSON object."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]


def ask(registry: Registry, question: str, *, days: int = 30) -> Answer:
    """Answer one of the questions.

    Args:
        question: Its name, a key of :data:`QUESTIONS`.
        days: How many days it is about, up to now.

    Raises:
        ConfigurationError: There is no such question, or DuckDB is not installed.
    """
    return ask_each(registry, (question,), days=days)[question]


def ask_each(
    registry: Registry, questions: Collection[str], *, days: int = 30, most_rows: int | None = None
) -> dict[str, Answer]:
    """Answer several questions from one read of each table.

    Args:
        questions: Their names, keys of :data:`QUESTIONS`.
        days: How many days they are about, up to now.
        most_rows: The most rows to read of a table; ``None``: all.

    Raises:
        ConfigurationError: There is no such question, or DuckDB is not installed.
        InvalidQueryError: A table has more rows of that time.
    """
    if unknown := sorted(set(questions) - set(QUESTIONS)):
        raise ConfigurationError(f"{unknown[0]!r} is not a named query; there are: {', '.join(QUESTIONS)}")
    since = datetime.now(UTC) - timedelta(days=days)
    found = {name: QUESTIONS[name].sql for name in questions}
    tables = _tables(registry, " ".join(found.values()), since, most_rows)
    with _database(tables) as database:
        return {name: _run(database, sql, {"since": since}) for name, sql in found.items()}


def query(registry: Registry, sql: str) -> Answer:
    """Run a query over the tables ``views``, ``refreshes`` and ``tables``.

    Args:
        sql: One SELECT, in DuckDB's SQL.

    Raises:
        InvalidQueryError: It is not one, or it fails. The message has DuckDB's reason.
        ConfigurationError: DuckDB is not installed.
    """
    with _database({}) as database:
        _require_select(database, sql)
    with _database(_tables(registry, sql, None, None)) as database:
        return _run(database, sql, {})


@contextmanager
def _database(tables: Mapping[str, pa.Table]) -> Iterator[duckdb.DuckDBPyConnection]:
    """Open a database that has these tables and can read nothing else.

    Raises:
        InvalidQueryError: DuckDB refuses what is done with it.
        ConfigurationError: DuckDB is not installed.
    """
    duckdb = _duckdb()
    with duckdb.connect(config={"enable_external_access": "false", **_LIMITS}) as database:
        database.execute("SET python_enable_replacements = false")
        database.execute("SET TimeZone = 'UTC'")
        for name, rows in tables.items():
            database.register(name, rows)
        database.execute("SET lock_configuration = true")
        try:
            yield database
        except duckdb.Error as error:
            raise InvalidQueryError(f"the query of the registry failed: {str(error).strip()}") from None


def _run(database: duckdb.DuckDBPyConnection, sql: str, parameters: Mapping[str, Any]) -> Answer:
    used = {key: value for key, value in parameters.items() if f"${key}" in sql}
    found = database.sql(sql, params=used or None).to_arrow_table()
    rows = zip(*(column.to_pylist() for column in found.columns), strict=True)
    return Answer(list(found.column_names), list(rows))


def _duckdb() -> Any:
    try:
        import duckdb
    except ImportError:
        raise ConfigurationError("queries of the registry need DuckDB: pip install 'airflow-mv[registry]'") from None
    return duckdb


def _require_select(database: duckdb.DuckDBPyConnection, sql: str) -> None:
    statements = database.extract_statements(sql)
    if len(statements) != 1 or statements[0].type.name != "SELECT":
        raise InvalidQueryError("a query of the registry is one SELECT: nothing is changed by SQL")


def _tables(registry: Registry, sql: str, since: datetime | None, most_rows: int | None) -> dict[str, pa.Table]:
    """Read the tables whose names occur in a query. Of questions (with ``since``), only the columns that they use."""
    text, found = sql.lower(), {}
    for component in registry.components.values():
        kind = component.kind
        if kind.name not in text:
            continue
        columns, where = None, None
        if since is not None:
            columns = [name for name in kind.model.model_fields if name in text]
        if since is not None and kind.moment is not None:
            where = refreshed_since(since)
        found[kind.name] = component.read(where, columns, most=most_rows)
    return found
