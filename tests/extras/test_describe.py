# SPDX-License-Identifier: Apache-2.0
"""What is described of a view: its refreshes, and those that failed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_mv.actions import create_view as create
from airflow_mv.core.define.definition import Definition
from airflow_mv.errors import InvalidQueryError
from airflow_mv.extras.describe import history, with_failures
from tests.builders import Lake, lake


@pytest.fixture
def home(sqlite_uri: str, warehouse: Path) -> Iterator[Lake]:
    with lake(sqlite_uri, warehouse) as found:
        found.table()
        yield found


def test_the_history_lists_every_refresh_oldest_first(home: Lake) -> None:
    home.view(time_travel=True)
    assert history(home.catalog, "sales.daily") == []
    first = home.refresh()
    home.append()
    second = home.refresh()
    listed = history(home.catalog, "sales.daily")
    assert [(item["refresh_id"], item["current"], item["rows_written"]) for item in listed] == [
        (first.refresh_id, False, 2),
        (second.refresh_id, True, 3),
    ]
    assert listed[0]["reasons"][0]["code"] == "NEVER_REFRESHED"
    assert listed[1]["sequence_number"] > listed[0]["sequence_number"]


def test_the_history_has_the_refreshes_that_failed_and_why(home: Lake) -> None:
    """As long as maintenance keeps their files; not those that succeeded later, with the same input."""
    overflowing = Definition(
        "SELECT id * 9223372036854775807 AS number FROM lake.sales.orders", refresh_strategy="full"
    )
    view = create(home.catalog, "sales.daily", overflowing, stager=home.stager).identifier
    with pytest.raises(InvalidQueryError, match="Overflow in multiplication"):
        home.refresh()
    (failed,) = with_failures(home.catalog, view, history(home.catalog, view))
    assert "Overflow in multiplication" in failed["error"]
    assert (failed["refreshed_at"], failed["current"]) == (None, False)
    assert failed["failed_at"]

    create(
        home.catalog,
        view,
        Definition("SELECT 1 AS number FROM lake.sales.orders"),
        stager=home.stager,
        replace=True,
    )
    done = home.refresh()
    listed = with_failures(home.catalog, view, history(home.catalog, view))
    assert [(item["refresh_id"], bool(item["error"])) for item in listed] == [
        (failed["refresh_id"], True),
        (done.refresh_id, False),
    ]
