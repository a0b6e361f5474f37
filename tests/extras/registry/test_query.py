# SPDX-License-Identifier: Apache-2.0
"""Questions to the registry: SQL over its two tables and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from airflow_mv.errors import InvalidQueryError
from airflow_mv.extras.registry.model import ViewRow
from airflow_mv.extras.registry.query import QUESTIONS, ask, query
from airflow_mv.extras.registry.registry import Registry, require_registry
from airflow_mv.extras.registry.settings import PLACE
from tests.builders import lake
from tests.extras.registry.support import refresh_row

NOW = datetime.now(UTC)
DAILY, WEEKLY, IDLE = "lake.sales.daily", "lake.sales.weekly", "lake.web.clicks"


def refresh(number: int, view: str, days_ago: float, **fields: object) -> object:
    return refresh_row(number, view, refreshed_at=NOW - timedelta(days=days_ago), **fields)


REFRESHES = [
    refresh(1, DAILY, 1, mode="append", job_seconds=2.0, seconds=3.0, full_seconds=10.0, dag_id="a", rows_written=5),
    refresh(2, DAILY, 2, mode="full", job_seconds=9.0, seconds=11.0, executor_seconds=30.0, dag_id="a", fallback="old"),
    refresh(3, DAILY, 1.5, mode="full", job_seconds=9.5, seconds=12.0, dag_id="b", fallback="a left join"),
    refresh(4, WEEKLY, 3, mode="merge", job_seconds=1.0, seconds=1.5, full_seconds=4.0, dag_id="b", bytes_read=100),
    refresh(5, WEEKLY, 90, mode="full", job_seconds=500.0, seconds=600.0, fallback="long ago"),
]


def view(name: str, **fields: object) -> ViewRow:
    namespace = name.split(".")[1]
    return ViewRow(catalog="lake", namespace=namespace, view=name, checked_at=NOW, **fields)  # type: ignore[arg-type]


VIEWS = [
    view(DAILY, state="stale", lag_seconds=7200.0, max_staleness_seconds=3600.0, owner="finance"),
    view(WEEKLY, state="fresh", lag_seconds=0.0, max_staleness_seconds=3600.0, owner="finance"),
    view(IDLE, state="stale", lag_seconds=60.0, owner="web"),
]
#: What people should read: the first columns of each answer.
WANTED = {
    "lagging": [(DAILY, "stale", 7200.0), (IDLE, "stale", 60.0)],
    "late": [(DAILY, 7200.0, 3600.0, "finance")],
    "fallbacks": [(DAILY, 2, NOW - timedelta(days=1.5), "a left join")],
    "costs": [(DAILY, 3, 41.5, 26.0), (WEEKLY, 1, 1.0, 1.5, 100)],
    "costs-by-dag": [("a", 2, 32.0, 14.0), ("b", 2, 10.5, 13.5)],
    "costs-by-owner": [("finance", 4, 42.5, 27.5)],
    "saved": [(DAILY, 1, 2.0, 10.0, 8.0), (WEEKLY, 1, 1.0, 4.0, 3.0)],
    "modes": [(DAILY, "append", 1, 3.0), (DAILY, "full", 2, 11.5), (WEEKLY, "merge", 1, 1.5)],
    "slowest": [(DAILY, NOW - timedelta(days=1.5), "full", 12.0), (DAILY, NOW - timedelta(days=2), "full", 11.0)],
    "idle": [(IDLE, "stale", None, "web")],
}


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    """A registry with a few rows."""
    warehouse = tmp_path_factory.mktemp("warehouse")
    with lake("sqlite://", warehouse, **{PLACE: f"{warehouse}/registry"}) as home:
        registry = require_registry(home.catalog)
        registry.refreshes.upsert(REFRESHES)  # type: ignore[arg-type]
        registry.views.upsert(VIEWS)
        yield registry


def test_each_question_has_its_answer(filled: Registry) -> None:
    assert WANTED.keys() == QUESTIONS.keys()
    for question, wanted in WANTED.items():
        rows = ask(filled, question, days=30).rows
        if question == "slowest":
            rows = rows[:2]
        assert [row[: len(want)] for row, want in zip(rows, wanted, strict=True)] == wanted, question


def test_a_query_reads_the_two_tables_and_nothing_else(filled: Registry, tmp_path: Path) -> None:
    secret = tmp_path / "secret.csv"
    secret.write_text("a\n1\n")
    text = "SELECT v.owner, count(*) AS n FROM refreshes JOIN views v USING (view) GROUP BY ALL ORDER BY n"
    assert query(filled, text).documents() == [{"owner": "finance", "n": 5}]
    assert query(filled, "DESCRIBE views").rows[0][0] == "catalog"
    for hostile in (
        f"SELECT * FROM read_csv('{secret}')",
        f"FROM '{secret}'",
        f"COPY refreshes TO '{tmp_path}/out.csv'",
        f"ATTACH '{tmp_path}/new.db'",
        "INSTALL httpfs",
        "SET enable_external_access = true",
        "DELETE FROM refreshes",
        "SELECT 1; SELECT 2",
        "SELECT * FROM filled",
        "SELECT",
        "",
    ):
        with pytest.raises(InvalidQueryError, match="query of the registry"):
            query(filled, hostile)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["secret.csv"]
