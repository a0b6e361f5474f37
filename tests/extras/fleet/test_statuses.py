# SPDX-License-Identifier: Apache-2.0
"""The status of many views at once: shared base tables are read once, and each view has the same status as alone."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations
from pathlib import Path

import pytest

from airflow_mv.common.status import status, statuses
from airflow_mv.core.catalog import MaterializedViewCatalog
from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.errors import CatalogUnavailableError
from airflow_mv.extras.fleet.all_views import statuses_of_catalogs
from tests.builders import Lake, lake


@pytest.fixture
def home(sqlite_uri: str, warehouse: Path) -> Iterator[Lake]:
    """Three views of one base table: refreshed at its current snapshot, refreshed before the last append, and never."""
    with lake(sqlite_uri, warehouse) as found:
        found.table()
        views = [found.view("behind"), found.view("fresh"), found.view("new")]
        found.refresh(views[0])
        found.append()
        found.refresh(views[1])
        yield found


def test_views_that_are_observed_together_have_the_same_state_in_any_order(home: Lake) -> None:
    """The first view may need only the shared table's pointer, and the next one its history."""
    views = [home.catalog.identify(f"sales.{name}") for name in ("behind", "fresh", "new")]
    alone = {view: status(home.catalog, view).to_dict() for view in views}
    assert [alone[view]["state"] for view in views] == ["stale", "fresh", "never-refreshed"]

    for order in permutations(views):
        assert statuses(home.catalog, order) == [alone[view] for view in order]


def test_a_table_has_one_snapshot_for_all_views_that_are_observed_together(home: Lake) -> None:
    """A commit between two reads of one run is not seen by some of the views only."""
    views = [home.catalog.identify(f"sales.{name}") for name in ("fresh", "behind")]
    head = home.head()

    def one_by_one() -> Iterator[Identifier]:
        yield views[0]
        home.append()
        yield views[1]

    first, second = statuses(home.catalog, one_by_one())

    assert (first["state"], second["state"]) == ("fresh", "stale")
    assert [document["base_tables"][0]["current"] for document in (first, second)] == [str(head), str(head)]


@pytest.mark.parametrize("first", ["fresh", "behind", "new"])
def test_a_view_that_is_refreshed_meanwhile_has_lost_no_snapshot(home: Lake, first: str) -> None:
    """The shared table was read before the commit that the refresh has read, by its pointer or with its history."""
    views = [home.catalog.identify(f"sales.{name}") for name in (first, "behind", "fresh", "new")]

    def one_by_one() -> Iterator[Identifier]:
        yield views[0]
        home.append()
        for view in views[1:]:
            home.refresh(view)
            yield view

    documents = list(statuses(home.catalog, one_by_one()))
    assert [document["state"] for document in documents[1:]] == ["fresh"] * 3
    assert {document["base_tables"][0]["current"] for document in documents[1:]} == {str(home.head())}


def test_a_catalog_of_base_tables_that_does_not_respond_is_waited_for_a_few_times_only(
    home: Lake, tmp_path: Path
) -> None:
    """Not by each of a thousand views, while other views wait to be read."""
    home.views_of_another_catalog(tmp_path, 5)
    opened = []

    def opens() -> MaterializedViewCatalog:
        opened.append(1)
        raise CatalogUnavailableError("catalog 'west' does not respond")

    down = MaterializedViewCatalog(home.iceberg)
    down.openers = {"west": opens}
    found = statuses_of_catalogs({"lake": lambda: down})
    states = {document["view"].rpartition(".")[2]: document["state"] for document in found.documents}
    known = {"behind": "stale", "fresh": "fresh", "new": "never-refreshed"}
    assert states == {**known, **{f"far{number}": "unknown" for number in range(5)}}
    assert {str(error) for error in found.errors} == {"catalog 'west' does not respond"}
    assert len(opened) == 3


def test_views_whose_tables_have_not_moved_open_no_table_file(home: Lake) -> None:
    """The freshness of a thousand views is decided by pointers."""
    home.refresh("sales.behind")
    views = [home.catalog.identify(f"sales.{name}") for name in ("behind", "fresh")]
    Path(home.load().metadata_location.removeprefix("file://")).unlink()

    assert [document["state"] for document in statuses(home.catalog, views)] == ["fresh", "fresh"]


def test_the_document_of_an_unreadable_view_has_the_fields_of_others(home: Lake) -> None:
    """A program that reads all documents must not fail at the broken view's."""
    Path(home.catalog.load("sales.behind").metadata_location.removeprefix("file://")).write_text("{")

    broken, fresh, _ = statuses_of_catalogs({"lake": lambda: home.catalog}).documents

    assert (broken["state"], broken["interval"], broken["intervals"]) == ("unknown", None, [])
    assert broken.keys() == fresh.keys()
