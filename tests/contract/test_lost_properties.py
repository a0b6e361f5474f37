# SPDX-License-Identifier: Apache-2.0
"""Another program removes or changes properties by which a table is a view, or the storage table of one."""

from __future__ import annotations

import json
import re

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

from airflow_mv.actions import create_view as create
from airflow_mv.common.status import status
from airflow_mv.core.catalog import MaterializedViewCatalog
from airflow_mv.core.define.definition import Definition
from airflow_mv.core.freshness.state import State
from airflow_mv.core.spec.materialized_view import (
    DEFINITION_ID_PROPERTY,
    DEFINITION_PROPERTY,
    LOG_PROPERTY,
    PROPERTY,
    STORAGE_OF_PROPERTY,
    STORAGE_TABLE_PROPERTY,
    STORAGE_TABLE_UUID_PROPERTY,
)
from airflow_mv.core.spec.reasons import Code
from airflow_mv.core.spec.view import with_view_properties
from airflow_mv.errors import AlreadyExistsError, InvalidMetadataError, NotMaterializedError, ViewNotFoundError
from airflow_mv.extras.adopt import adopt
from airflow_mv.extras.fleet.all_views import statuses_of_catalogs
from airflow_mv.extras.maintenance.drop import drop
from airflow_mv.extras.maintenance.repair import repair
from tests.builders import QUERY, Lake, without_properties
from tests.contract.support import EAST, NORTH, SOUTH, VIEW
from tests.homes import in_homes

ROWS = [NORTH, SOUTH]
IN_TABLE = in_homes(lambda name: name.endswith("-table"))
IN_CATALOG = in_homes(lambda name: not name.endswith("-pointed"))
#: What makes a table a view.
NAMES = ([DEFINITION_PROPERTY], [STORAGE_OF_PROPERTY], [DEFINITION_PROPERTY, STORAGE_OF_PROPERTY])
ALL = [DEFINITION_PROPERTY, DEFINITION_ID_PROPERTY, STORAGE_OF_PROPERTY, PROPERTY, LOG_PROPERTY]


def stored(home: Lake) -> Table:
    """The table with the rows, whatever its properties say."""
    names = [name for _, name in home.iceberg.list_tables("sales")]
    name = next(name for name in ("daily__storage", "daily") if name in names)
    return home.iceberg.load_table(f"sales.{name}")


def removed(home: Lake, *keys: str) -> None:
    with stored(home).transaction() as change:
        change.remove_properties(*keys)


def changed(home: Lake, *keys: str) -> None:
    with stored(home).transaction() as change:
        change.set_properties(dict.fromkeys(keys, "sales.other"))


def documents(home: Lake) -> list[tuple[str, str, str]]:
    """What ``status --all`` of another process says."""
    catalog = MaterializedViewCatalog(home.iceberg)
    found = statuses_of_catalogs({"lake": lambda: catalog}).documents
    return [(item["view"], item["state"], item["reasons"][0]["message"]) for item in found]


@pytest.fixture
def home(every_home: Lake) -> Lake:
    every_home.table()
    every_home.view()
    every_home.refresh()
    every_home.append()
    every_home.refresh()
    return every_home


@IN_TABLE
@pytest.mark.parametrize("keys", [*NAMES, ALL], ids=lambda keys: str(len(keys)) + keys[0][-4:])
@pytest.mark.parametrize("lose", [removed, changed])
def test_i32_a_view_that_has_lost_its_properties_is_listed_and_one_command_puts_it_back(
    home: Lake, keys: list[str], lose: object, caplog: pytest.LogCaptureFixture
) -> None:
    before = dict(stored(home).properties)
    (removed if lose is removed else changed)(home, *keys)
    with stored(home).transaction() as change:  # other commits follow
        change.set_properties({"comment": "theirs"})
    (found,) = documents(home)
    assert found[:2] == (f"lake.{VIEW}", "unknown")
    assert "repair lake.sales.daily" in found[2]
    for act in (
        lambda: status(home.catalog, VIEW),
        lambda: create(home.catalog, VIEW, Definition(QUERY), stager=home.stager, replace=True),
        home.refresh,
    ):
        with pytest.raises(InvalidMetadataError, match="repair lake"):
            act()
    with pytest.raises(AlreadyExistsError, match="is a view already"):
        adopt(home.catalog, VIEW, Definition(QUERY), stager=home.stager)
    (finding,) = repair(home.catalog, VIEW).findings
    assert finding.repairable
    assert keys[0] in finding.what
    assert repair(home.catalog, VIEW, act=True).done
    assert "; restored: " in caplog.text
    assert dict(stored(home).properties) == {**before, "comment": "theirs"}
    assert status(home.catalog, VIEW).state == State.FRESH
    assert home.refresh().mode == "noop"
    assert home.read() == [EAST, *ROWS]


@IN_TABLE
@pytest.mark.parametrize("keys", NAMES, ids=lambda keys: str(len(keys)) + keys[0][-4:])
def test_a_view_that_has_lost_its_properties_can_be_dropped(home: Lake, keys: list[str]) -> None:
    removed(home, *keys)
    assert drop(home.catalog, VIEW).left is None
    assert not home.iceberg.table_exists("sales.daily")


@IN_TABLE
def test_the_message_says_until_when_it_was_a_view(home: Lake) -> None:
    removed(home, DEFINITION_PROPERTY)
    with pytest.raises(InvalidMetadataError, match=rf"was a view until 20\d\d-.*{re.escape(DEFINITION_PROPERTY)}"):
        home.catalog.load(VIEW)


@IN_TABLE
def test_a_view_without_any_earlier_metadata_file_says_that_it_was_a_view(home: Lake) -> None:
    if not isinstance(home.iceberg, SqlCatalog):
        pytest.skip("the files are the same in other catalogs")
    removed(home, DEFINITION_PROPERTY)
    table = stored(home)
    for entry in table.metadata.metadata_log:
        home.catalog.files.delete(entry.metadata_file)
    assert documents(home)[0][:2] == (f"lake.{VIEW}", "unknown")
    with pytest.raises(InvalidMetadataError, match=r"was a view: .*no earlier metadata file has it"):
        home.catalog.load(VIEW)


@IN_TABLE
def test_a_renamed_view_without_its_properties_is_an_ordinary_table(home: Lake) -> None:
    removed(home, DEFINITION_PROPERTY)
    home.iceberg.rename_table("sales.daily", "sales.moved")
    assert documents(home) == []
    with pytest.raises(ViewNotFoundError):
        home.catalog.load("sales.moved")


@IN_CATALOG
@pytest.mark.parametrize("lose", [removed, changed])
def test_a_lost_refresh_record_is_found_and_put_back_without_a_recompute(home: Lake, lose: object) -> None:
    if lose is removed:
        removed(home, PROPERTY, LOG_PROPERTY)
        found = status(home.catalog, VIEW)
        assert (found.state, found.reasons[0].code) == (State.NEVER_REFRESHED, Code.STORAGE_ALTERED)
        assert home.refresh().mode == "noop"
    else:
        changed(home, PROPERTY)
        with pytest.raises(InvalidMetadataError, match=f"{PROPERTY}.*repair"):
            status(home.catalog, VIEW)
        assert repair(home.catalog, VIEW, act=True).done
    assert status(home.catalog, VIEW).state == State.FRESH
    assert len(json.loads(stored(home).properties[PROPERTY])["refreshes"]) == 1


@IN_CATALOG
@pytest.mark.parametrize("lose", [removed, changed])
def test_the_log_of_past_refreshes_is_found_and_put_back(home: Lake, lose: object) -> None:
    log = stored(home).properties[LOG_PROPERTY]
    (removed if lose is removed else changed)(home, LOG_PROPERTY)
    found = status(home.catalog, VIEW)
    assert (found.state, found.reasons[0].code) == (State.FRESH, Code.STORAGE_ALTERED)
    assert home.refresh().mode == "noop"
    assert stored(home).properties[LOG_PROPERTY] == log
    assert Code.STORAGE_ALTERED not in {reason.code for reason in status(home.catalog, VIEW).reasons}


@in_homes(lambda name: name.endswith("-registered"))
@pytest.mark.parametrize("lose", [removed, changed])
def test_a_storage_table_that_does_not_name_its_view_is_put_back(home: Lake, lose: object) -> None:
    (removed if lose is removed else changed)(home, STORAGE_OF_PROPERTY)
    with pytest.raises(InvalidMetadataError, match=f"{re.escape(STORAGE_OF_PROPERTY)}.*repair lake.sales.daily --yes"):
        status(home.catalog, VIEW)
    assert repair(home.catalog, VIEW, act=True).done
    assert status(home.catalog, VIEW).state == State.FRESH
    (removed if lose is removed else changed)(home, STORAGE_OF_PROPERTY)
    assert drop(home.catalog, VIEW).left is None
    assert not home.iceberg.table_exists("sales.daily__storage")


@IN_TABLE
def test_the_id_of_a_definition_is_found_and_put_back(home: Lake) -> None:
    removed(home, DEFINITION_ID_PROPERTY)
    assert Code.STORAGE_ALTERED in {reason.code for reason in status(home.catalog, VIEW).reasons}
    home.refresh()
    holder = home.catalog.load(VIEW).holder
    assert holder is not None
    assert holder.tagged is not None


@IN_TABLE
def test_a_listing_reads_no_other_file_of_an_ordinary_table(home: Lake, reads: list[str]) -> None:
    """Only a table with the tag of a definition, and without the properties, has its earlier files read."""
    catalog = MaterializedViewCatalog(home.iceberg)
    reads.clear()
    catalog.list()
    assert len(reads) <= len(home.iceberg.list_tables("sales"))


# -- a view beside its table ---------------------------------------------------------------------------


def without(home: Lake, key: str, value: str | None) -> None:
    """The view after another program has removed a property of it, or has changed it."""
    view = home.catalog.load(VIEW)
    changed = without_properties(view.metadata, key)
    if value is not None:
        changed = with_view_properties(changed, {key: value})
    assert home.catalog.replace(view, changed)


@in_homes(lambda name: name.endswith("-registered"))
@pytest.mark.parametrize("value", [None, "sales.other"])
@pytest.mark.parametrize("key", [STORAGE_TABLE_PROPERTY, STORAGE_TABLE_UUID_PROPERTY])
def test_a_view_that_does_not_name_its_storage_table_is_put_back(home: Lake, key: str, value: str | None) -> None:
    put_back_and_dropped(home, key, value)


@in_homes(lambda name: name.endswith(("-registered", "-pointed")))
def test_a_view_that_has_lost_its_settings_was_materialized_and_is_put_back(home: Lake) -> None:
    without(home, PROPERTY, None)
    with pytest.raises(NotMaterializedError, match=r"was a materialized view.*repair lake\.sales\.daily"):
        create(home.catalog, VIEW, Definition(None), stager=home.stager)
    assert repair(home.catalog, VIEW, act=True).done
    put_back_and_dropped(home, PROPERTY, None)


def put_back_and_dropped(home: Lake, key: str, value: str | None) -> None:
    before = home.catalog.load(VIEW).metadata.properties
    without(home, key, value)
    (found,) = documents(home)
    assert found[:2] == (f"lake.{VIEW}", "unknown")
    assert "repair lake.sales.daily" in found[2]
    assert repair(home.catalog, VIEW, act=True).done
    assert home.catalog.load(VIEW).metadata.properties == before
    assert status(home.catalog, VIEW).state == State.FRESH
    assert home.read() == [EAST, *ROWS]
    without(home, key, value)
    assert drop(home.catalog, VIEW).left is None
    assert home.iceberg.list_tables("sales") == [("sales", "orders")]
