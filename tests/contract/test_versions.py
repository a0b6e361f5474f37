# SPDX-License-Identifier: Apache-2.0
"""The versions of a definition: listed, found by time, and made current again."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from airflow_mv.actions import create_view as create
from airflow_mv.common.status import status
from airflow_mv.core.define.definition import Definition
from airflow_mv.core.freshness.state import State
from airflow_mv.errors import SnapshotNotFoundError, StaleViewError, VersionNotFoundError
from airflow_mv.extras.history.rollback import rollback_version
from airflow_mv.extras.history.versions import versions
from airflow_mv.extras.read import readable
from airflow_mv.version import __version__
from tests.builders import QUERY, Lake
from tests.contract.support import NORTH, SOUTH, VIEW

OTHER = "SELECT region, min(id) AS first FROM lake.sales.orders GROUP BY region"


def time_of(text: str) -> datetime:
    return datetime.fromisoformat(text)


def test_an_earlier_definition_is_made_current_and_rows_of_another_one_are_never_shown(every_home: Lake) -> None:
    every_home.table()
    every_home.view(allow_stale_data=True)
    create(every_home.catalog, VIEW, Definition(OTHER), stager=every_home.stager, replace=True)
    every_home.refresh()
    done = rollback_version(every_home.catalog, VIEW, 1)
    assert done.to_dict() == {"view": f"lake.{VIEW}", "version_id": 1, "before": 2, "outcome": "rolled-back"}
    assert status(every_home.catalog, VIEW).state == State.DEFINITION_CHANGED
    with pytest.raises(StaleViewError):
        readable(every_home.catalog, VIEW)
    every_home.refresh()
    assert every_home.read() == [NORTH, SOUTH]
    assert rollback_version(every_home.catalog, VIEW, 1).to_dict()["outcome"] == "already-current"
    assert rollback_version(every_home.catalog, VIEW, 2).version_id == 2  # it can be undone
    with pytest.raises(VersionNotFoundError, match=r"does not retain version 9; it has: 1, 2"):
        rollback_version(every_home.catalog, VIEW, 9)


def test_versions_tell_what_somebody_saw_at_a_time(every_home: Lake) -> None:
    every_home.table()
    every_home.view(dialects=["trino"])
    create(every_home.catalog, VIEW, Definition(OTHER), stager=every_home.stager, replace=True)
    rollback_version(every_home.catalog, VIEW, 1)
    first, second = versions(every_home.catalog, VIEW)
    assert [item["version_id"] for item in (first, second) if item["current"]] == [1]
    assert first["operation"] in ("create", None)  # a REST server may keep none
    assert second["operation"] == "replace"
    engine = f"airflow-mv {__version__}"
    assert (first["engine"] in (engine, None), second["engine"]) == (True, engine)
    assert first["texts"]["spark"] == QUERY
    assert set(second["texts"]) == {"spark", "trino"}
    assert [(item["name"], item["type"]) for item in second["columns"]] == [("region", "string"), ("first", "bigint")]

    created, again = map(time_of, first["current_since"])
    (replaced,) = map(time_of, second["current_since"])
    seen = [
        versions(every_home.catalog, VIEW, at=at)[0]["version_id"]
        for at in (
            created,
            replaced - timedelta(milliseconds=1),
            replaced,
            again,
            datetime.now(UTC) + timedelta(days=1),
        )
    ]
    assert seen == [1, 1, 2 if replaced < again else 1, 1, 1]
    before = (created - timedelta(milliseconds=1)).astimezone(UTC).replace(tzinfo=None)
    with pytest.raises(
        SnapshotNotFoundError, match=f"its version log begins at {created.isoformat()}".replace("+", r"\+")
    ):
        versions(every_home.catalog, VIEW, at=before)
