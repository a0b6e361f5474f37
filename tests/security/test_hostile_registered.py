# SPDX-License-Identifier: Apache-2.0
"""The registered layout has other writers: a hostile record, summary, branch or table name does no harm.

A storage table in the catalog can be changed by anyone who may write to it, and the view names it as text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import replace
from typing import Any

import pytest

from airflow_mv.common.refresh_state import REFRESH_STATE_KEY
from airflow_mv.common.status import status
from airflow_mv.core.freshness.state import State
from airflow_mv.core.publish import PublishOutcome
from airflow_mv.core.publish import publish as publish_staged
from airflow_mv.core.refresh import plan_refresh
from airflow_mv.core.refresh.run import publish, stage
from airflow_mv.core.script import REFRESH_ID_KEY
from airflow_mv.core.spec.materialized_view import (
    PROPERTY,
    STORAGE_TABLE_PROPERTY,
    STORAGE_TABLE_UUID_PROPERTY,
    staging_branch,
)
from airflow_mv.errors import InvalidMetadataError, JobError, MaterializedViewError, StaleViewError
from airflow_mv.extras.read import readable
from tests.branches import create_branch
from tests.cli.support import call
from tests.faults import Clock, FaultyCatalog, after
from tests.security.conftest import VIEW, Shop, error_of, refused_or_works
from tests.security.test_catalog_rows import LOCATIONS
from tests.security.test_hostile_metadata import NOT_THERE, REFUSED

Document = dict[str, Any]
LOOKS = ("status", "plan", "history", "read")


def record_of(shop: Shop) -> Document:
    """The storage table's current record."""
    state = shop.lake.storage().state
    assert state is not None
    return state.document()


def refs_of(shop: Shop) -> dict[str, int]:
    """Each branch and tag of the storage table with its snapshot."""
    return {name: ref.snapshot_id for name, ref in shop.lake.storage().table.refs.items()}


def with_theirs(shop: Shop) -> None:
    """Add a branch of another user to the storage table."""
    create_branch(shop.storage_table(), "theirs", shop.lake.storage().table.head)


# -- the storage table's row and file ------------------------------------------------------------


@pytest.mark.parametrize("way", [name for name in LOCATIONS if name != "NULL"])
def test_i19_a_storage_table_s_row_with_a_foreign_location_is_refused_by_name(registered_shop: Shop, way: str) -> None:
    """Nothing is fetched, and no content of a file is shown."""
    shop = registered_shop
    location, message = LOCATIONS[way]
    shop.point(location, shop.storage_row)
    errors = refused_or_works(*LOOKS, "refresh")
    assert len(errors) == len(LOOKS) + 1
    for error in errors:
        assert VIEW in error or shop.storage_row in error
        assert re.search(f"{message}|not valid table metadata|does not exist|is not in the catalog", error), error
        assert "root:" not in error


@pytest.mark.parametrize("way", ["empty", "gzip, cut", "UTF-16", "two documents"])
def test_i18_bytes_of_a_storage_table_in_the_catalog_that_are_not_metadata_are_refused_with_the_name(
    registered_shop: Shop, way: str
) -> None:
    """As in the pointed layout; here the catalog's row names the file."""
    shop = registered_shop
    change, message = REFUSED[way]
    data = change(json.dumps(shop.storage_document).encode())
    shop.with_storage(data, "a.gz.metadata.json" if "gzip" in way else "a.metadata.json")
    for error in refused_or_works(*LOOKS, "refresh"):
        assert shop.storage_row in error
        assert re.search(message, error), error
    error_of(call("status", VIEW))


@pytest.mark.parametrize("kind", ["VIEW", "view", "", "MATERIALIZED VIEW"])
def test_i17_a_storage_table_s_row_with_another_type_is_refused(registered_shop: Shop, kind: str) -> None:
    """As for views. A row without a type is a table, as older writers leave it."""
    shop = registered_shop
    shop.point(shop.storage_file, shop.storage_row, iceberg_type=kind)
    rows = shop.lake.rows_of_catalog()
    for error in refused_or_works(*LOOKS, "refresh"):
        assert VIEW in error
    assert shop.lake.rows_of_catalog() == rows
    shop.point(shop.storage_file, shop.storage_row, iceberg_type=None)
    assert refused_or_works(*LOOKS) == []


def test_a_storage_table_s_row_with_a_view_s_file_is_refused(registered_shop: Shop) -> None:
    """Including the view's own file, which would be a pointer to itself."""
    shop = registered_shop
    shop.point(shop.view_file, shop.storage_row)
    for error in refused_or_works(*LOOKS, "refresh"):
        assert "this is a view's metadata file, not a table's" in error


# -- the record, a table property ----------------------------------------------------------------


def _with(document: Document, **changes: Any) -> Document:
    return {**document, **{key.replace("_", "-"): value for key, value in changes.items()}}


def _with_reference(document: Document, value: object) -> Document:
    (refresh,) = document["refreshes"]
    (table,) = refresh["base-tables"]
    return _with(document, refreshes=[{**refresh, "base-tables": [{**table, "snapshot-reference": value}]}])


RECORDS: dict[str, Callable[[Document], str]] = {
    "no JSON": lambda _: "{",
    "a list": lambda _: "[]",
    "5,000 deep": lambda _: '{"x": ' + "[" * 5000 + "]" * 5000 + "}",
    "a key twice": lambda document: '{"x": 1, "x": 2, ' + json.dumps(document)[1:],
    "NaN": lambda document: json.dumps(_with_reference(document, float("nan"))),
    "2^64": lambda document: json.dumps(_with_reference(document, 2**64)),
    "half a surrogate": lambda document: json.dumps(_with(document, current_refresh_id="\ud800")),
    "no current refresh": lambda document: json.dumps(_with(document, current_refresh_id="nowhere")),
    "an empty id": lambda document: json.dumps(_with(document, current_refresh_id="")),
    "a refresh twice": lambda document: json.dumps(_with(document, refreshes=document["refreshes"] * 2)),
    "an empty refresh": lambda document: json.dumps(_with(document, refreshes=[{}])),
    "no list of refreshes": lambda document: json.dumps(_with(document, refreshes=1)),
}


@pytest.mark.parametrize("way", RECORDS)
def test_i18_a_hostile_record_in_the_catalog_s_storage_table_is_refused_with_its_name(
    registered_shop: Shop, way: str
) -> None:
    """By every command that reads it and by a refresh, which publishes nothing."""
    shop = registered_shop
    shop.with_storage_properties({PROPERTY: RECORDS[way](record_of(shop))})
    rows = shop.lake.rows_of_catalog()
    errors = refused_or_works(*LOOKS)
    assert len(errors) == len(LOOKS)
    assert all(VIEW in error and PROPERTY in error for error in errors), errors
    with pytest.raises(InvalidMetadataError, match=PROPERTY):
        shop.lake.refresh()
    assert shop.lake.rows_of_catalog() == rows


IDS = ('x"; DROP TABLE t --', "a`.`b", "../../x", "{{ 7*7 }}", "%s", "main", "at", "theirs", "\u202e", "x" * 10_000)


@pytest.mark.parametrize("identity", IDS, ids=range(len(IDS)))
def test_i23_a_foreign_refresh_id_never_selects_a_branch_or_tag_of_others(registered_shop: Shop, identity: str) -> None:
    """Tags and branches are named by refresh ids: the next refresh must drop only those of refreshes."""
    shop = registered_shop
    document = record_of(shop)
    refreshes = [{**document["refreshes"][0], "refresh-id": identity}]
    text = json.dumps(_with(document, refreshes=refreshes, current_refresh_id=identity))
    shop.with_storage_properties({PROPERTY: text})
    with_theirs(shop)
    (document,) = call("status", VIEW, "--json").json
    assert document["state"] == "stale"
    before = refs_of(shop)
    shop.lake.append()
    assert shop.lake.refresh().outcome == "refreshed"
    assert refs_of(shop)["theirs"] == before["theirs"]
    assert (status(shop.lake.catalog, VIEW).state, len(shop.lake.read())) == (State.FRESH, 3)


@pytest.mark.parametrize("changes", NOT_THERE)
def test_a_record_in_the_catalog_with_unknown_tables_or_snapshots_makes_the_view_stale(
    registered_shop: Shop, changes: Document
) -> None:
    """As in the pointed layout."""
    shop = registered_shop
    document = record_of(shop)
    (table,) = document["refreshes"][0]["base-tables"]
    table.update({key.replace("_", "-"): value for key, value in changes.items()})
    shop.with_storage_properties({PROPERTY: json.dumps(document)})
    assert call("status", VIEW, "--json").json[0]["state"] == "stale"
    assert call("plan", VIEW, "--json").json["mode"] == "full"


# -- a snapshot's summary ------------------------------------------------------------------------

SUMMARIES: dict[str, dict[str, str]] = {
    "counts that are none": {"added-records": "many", "deleted-records": "", "total-records": "NaN"},
    "counts that are too large": {"added-records": str(2**70), "added-files-size": "-1"},
    "the draft's words, no JSON": {REFRESH_STATE_KEY: "{"},
    "the draft's words, 5,000 deep": {REFRESH_STATE_KEY: '{"x": ' + "[" * 5000 + "]" * 5000 + "}"},
    "the draft's words, a key twice": {REFRESH_STATE_KEY: '{"view-version-id": 1, "view-version-id": 2}'},
    "for a terminal": {REFRESH_STATE_KEY: "\x1b[31m\x9b", "engine-name": "\x1b]0;x\x07"},
    "a template": {REFRESH_STATE_KEY: "{{ 7*7 }}", "engine-name": "%s {0}"},
    "a refresh id that is none": {REFRESH_ID_KEY: "'; DROP TABLE t --"},
}


@pytest.mark.parametrize("way", SUMMARIES)
def test_i18_a_hostile_summary_is_shown_as_text_or_omitted_and_the_next_refresh_fixes_it(
    registered_shop: Shop, way: str
) -> None:
    """Any engine that writes to the table chooses the summary of its snapshot."""
    shop = registered_shop
    shop.with_storage_snapshot(SUMMARIES[way])
    assert refused_or_works("status", "plan", "history", "show") == []
    shown = call("show", VIEW)
    assert not any(char < " " and char != "\n" for char in shown.stdout), shown.stdout
    with pytest.raises(StaleViewError, match="another writer has changed the storage table"):
        readable(shop.lake.catalog, VIEW)
    assert shop.lake.refresh().outcome == "refreshed"
    assert (status(shop.lake.catalog, VIEW).state, len(shop.lake.read())) == (State.FRESH, 2)


def test_i04_a_foreign_snapshot_with_our_refresh_id_does_not_count_as_fresh_rows(registered_shop: Shop) -> None:
    """It is committed between the read and the commit; freshness depends on the record and its tag."""
    shop = registered_shop
    shop.lake.append()
    plan = plan_refresh(shop.lake.catalog, shop.lake.catalog.identify(VIEW))
    outcome = stage(shop.lake.catalog, plan, shop.lake.stager)
    assert outcome is not None
    catalog = FaultyCatalog(
        shop.lake.iceberg, after(lambda: shop.with_storage_snapshot({REFRESH_ID_KEY: plan.refresh_id}))
    )
    ended = publish_staged(catalog, plan, outcome.staged, effects=Clock().effects)
    assert ended.outcome != PublishOutcome.COMMITTED
    assert status(shop.lake.catalog, VIEW).state == State.STALE
    assert shop.lake.refresh().outcome == "refreshed"
    assert (status(shop.lake.catalog, VIEW).state, len(shop.lake.read())) == (State.FRESH, 3)


# -- the branch, which a job names ---------------------------------------------------------------

BRANCHES = ("main", "theirs", "", "airflow_mv_", "another's", "x`; DROP TABLE t --", "its own without a run")


@pytest.mark.parametrize("superseded", [False, True])
@pytest.mark.parametrize("branch", BRANCHES)
def test_i19_a_branch_of_another_refresh_is_neither_published_nor_dropped(
    registered_shop: Shop, branch: str, superseded: bool
) -> None:
    """After a publication without a commit the branch is dropped: a job's report must not choose which one."""
    shop = registered_shop
    with_theirs(shop)
    earlier = plan_refresh(shop.lake.catalog, shop.lake.catalog.identify(VIEW))
    shop.lake.append()
    plan = plan_refresh(shop.lake.catalog, shop.lake.catalog.identify(VIEW))
    outcome = stage(shop.lake.catalog, plan, shop.lake.stager)
    assert outcome is not None
    names = {
        "another's": f"{staging_branch(earlier.refresh_id)}_01234567",
        "its own without a run": staging_branch(plan.refresh_id),
    }
    create_branch(shop.storage_table(), names["another's"], shop.lake.storage().table.head)
    if superseded:
        shop.lake.append((8, "west", 1))
        shop.lake.refresh()
    before, rows = refs_of(shop), shop.lake.read()
    refused = pytest.raises((InvalidMetadataError, JobError), match=r"lake\.sales\.daily")
    # Without a branch the report names a metadata file. It is only read if it is to be published.
    with refused if branch or not superseded else nullcontext():
        publish(shop.lake.catalog, plan, replace(outcome, branch=names.get(branch, branch)), effects=Clock().effects)
    assert (refs_of(shop), shop.lake.read()) == (before, rows)


# -- the storage table's name, a view property ---------------------------------------------------

NAMES = (
    "", ".", "a..b", "`", "`a", "sales", "x" * 5000, "\x1b[31m.a", "sales.`\ud7ff\x00`", "..", "../../etc.passwd",
    "sales.orders", "lake.sales.orders", "sales.daily", "sales.`orders'; DROP TABLE iceberg_tables --`",
    'sales.`"`', "sales.`a``b`", "sales.`%`", "sales.`order_`", "sales.ORDERS", "sales.orders.snapshots",
    "sales.`orders$snapshots`", "{{ 7*7 }}.a", "sales.`{{ 7*7 }}`", "http://127.0.0.1:1/x", "/etc/passwd",
)  # fmt: skip


@pytest.mark.parametrize("name", NAMES, ids=range(len(NAMES)))
def test_i19_a_storage_table_s_name_selects_that_view_s_table_or_none(registered_shop: Shop, name: str) -> None:
    """No base table, no other catalog, no other SQL; and nothing is dropped or deleted."""
    shop = registered_shop
    orders = shop.lake.load()
    named = {STORAGE_TABLE_PROPERTY: name, STORAGE_TABLE_UUID_PROPERTY: str(orders.metadata.table_uuid)}
    shop.with_view_properties(named)
    rows, files = shop.lake.rows_of_catalog(), sorted((shop.folder / "warehouse").rglob("*"))
    errors = refused_or_works(*LOOKS, "refresh", "maintain")
    assert len(errors) == len(LOOKS) + 2
    assert all(VIEW in error for error in errors), errors
    assert VIEW in error_of(call("drop", VIEW, "--yes", "--purge", "--json"))
    assert sorted((shop.folder / "warehouse").rglob("*")) == files
    assert shop.lake.rows_of_catalog() == rows
    call("drop", VIEW, "--yes")
    left = {row[:3] for row in shop.lake.rows_of_catalog()}
    assert {row[:3] for row in rows} - left <= {("lake", "sales", "daily")}


def test_i19_a_view_without_its_storage_table_s_name_is_not_refreshed(
    registered_shop: Shop,
) -> None:
    """Without the name it looks like the pointed layout, whose file here belongs to a table of the catalog."""
    shop = registered_shop
    properties = {
        key: value for key, value in shop.document["properties"].items() if not key.startswith("airflow-mv.storage")
    }
    table = shop.storage_table()
    shop.with_view({**shop.document, "properties": properties})
    with suppress(MaterializedViewError):
        shop.lake.refresh()
    assert shop.lake.iceberg.load_table(table.name()).metadata_location == table.metadata_location
