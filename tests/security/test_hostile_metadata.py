# SPDX-License-Identifier: Apache-2.0
"""Each broken or hostile metadata file gives one clear error on the command line, or is accepted."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from airflow_mv.core.refresh import plan_refresh
from airflow_mv.core.refresh.run import publish, stage
from airflow_mv.core.spec.materialized_view import PROPERTY
from airflow_mv.errors import MaterializedViewError, ViewNotFoundError
from tests.builders import metadata_files
from tests.cli.support import call
from tests.security.conftest import VIEW, Shop, error_of, refused_or_works

Document = dict[str, Any]
NUMBERS = (
    "9223372036854775808",
    "18446744073709551616",
    "1e308",
    "NaN",
    "-1",
    "1.5",
    '"1"',
    "null",
    "true",
    "[]",
    "{}",
)
BOMB = gzip.compress(b" " * (1 << 28), compresslevel=1)


def encoded(document: Document) -> bytes:
    return json.dumps(document).encode()


def with_version(document: Document, **changes: Any) -> Document:
    return {**document, "versions": [{**document["versions"][0], **changes}]}


def with_sql(document: Document, *texts: str) -> Document:
    return with_version(document, representations=[{"type": "sql", "sql": item, "dialect": "spark"} for item in texts])


# -- bytes -------------------------------------------------------------------------------------

WORKS: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "gzip": (gzip.compress, "a.gz.metadata.json"),
    "gzip, as Iceberg named it before": (gzip.compress, "a.metadata.json.gz"),
    "gzip with trailing junk": (lambda data: gzip.compress(data) + b"junk", "a.gz.metadata.json"),
    "white space around": (lambda data: b"\n " + data + b"\n", "a.metadata.json"),
}
REFUSED: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "empty": (lambda data: b"", "not valid JSON|not valid table metadata"),
    "gzip bomb": (lambda data: BOMB, "larger than"),
    "gzip of gzip": (lambda data: gzip.compress(gzip.compress(data)), "not valid"),
    "gzip, cut": (lambda data: gzip.compress(data)[:-9], "truncated gzip"),
    "byte order mark": (lambda data: b"\xef\xbb\xbf" + data, "not valid"),
    "UTF-16": (lambda data: data.decode().encode("utf-16"), "not valid"),
    "invalid UTF-8": (lambda data: data.replace(b'"location"', b'"loc\xff"', 1), "not valid"),
    "NUL": (lambda data: data.replace(b"format", b"\0format", 1), "not valid"),
    "5,000 deep": (lambda data: data[:-1] + b', "x": ' + b"[" * 5000 + b"]" * 5000 + b"}", "not valid"),
    "two documents": (lambda data: data + data, "not valid"),
}


@pytest.mark.parametrize("target", ["with_view", "with_storage"])
@pytest.mark.parametrize("way", WORKS)
def test_i18_files_that_java_can_read_are_accepted(shop: Shop, target: str, way: str) -> None:
    """Iceberg's REST server compresses views by default, and other writers may do so."""
    document = shop.document if target == "with_view" else shop.storage_document
    change, name = WORKS[way]
    getattr(shop, target)(change(encoded(document)), name)
    # pyiceberg supports only one of the two names, and no trailing data.
    read = ["read"] if target == "with_view" or way in ("gzip", "white space around") else []
    assert refused_or_works("status", "plan", "show", "history", *read) == []


@pytest.mark.parametrize("target", ["with_view", "with_storage"])
def test_i18_gzip_data_and_the_file_s_name_must_agree(shop: Shop, target: str) -> None:
    """Iceberg and pyiceberg decide by the name, so no other reader could open the file."""
    data = encoded(shop.document if target == "with_view" else shop.storage_document)
    for content, name in ((gzip.compress(data), "a.metadata.json"), (data, "a.gz.metadata.json")):
        getattr(shop, target)(content, name)
        errors = refused_or_works("status", "refresh", "read")
        assert len(errors) == 3
        assert all("gzip data must be in a file named *.gz.metadata.json" in error for error in errors)


@pytest.mark.parametrize("target", ["with_view", "with_storage"])
@pytest.mark.parametrize("way", REFUSED)
def test_i18_bytes_that_are_not_metadata_are_refused_with_the_file_s_name(shop: Shop, target: str, way: str) -> None:
    """The error names the view and the file."""
    document = shop.document if target == "with_view" else shop.storage_document
    change, message = REFUSED[way]
    getattr(shop, target)(change(encoded(document)), "a.gz.metadata.json" if "gzip" in way else "a.metadata.json")
    for error in refused_or_works("status", "plan", "show", "refresh", "read"):
        assert VIEW in error
        assert "metadata.json" in error
        assert re.search(message, error), error
    assert error_of(call("status", VIEW))


@pytest.mark.parametrize("target", ["with_view", "with_storage"])
def test_i18_truncated_files_are_refused(shop: Shop, target: str) -> None:
    """As if the store had lost the end of a write."""
    data = encoded(shop.document if target == "with_view" else shop.storage_document)
    for part in range(20):
        getattr(shop, target)(data[: len(data) * part // 20])
        (error,) = refused_or_works("status")
        assert VIEW in error


def test_i18_a_key_that_occurs_twice_in_a_view_file_is_refused(shop: Shop) -> None:
    """Two readers could use different values."""
    shop.with_view(b'{"location": "file:///elsewhere", ' + encoded(shop.document)[1:])
    (error,) = refused_or_works("status")
    assert "key 'location' occurs twice" in error


def test_i18_a_key_that_occurs_twice_in_a_storage_table_s_file_is_refused(shop: Shop) -> None:
    """The rule is the same as for views; otherwise it would be read, and refused only when a refresh is published."""
    shop.with_storage(b'{"from-the-future": {"a": 1, "a": 2}, ' + encoded(shop.storage_document)[1:])
    assert ["key 'a' occurs twice" in error for error in refused_or_works("status", "read", "refresh")] == [True] * 3


# -- keys and values ---------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["with_view", "with_storage"])
def test_i18_each_key_missing_null_of_another_type_or_added_is_refused_or_works(shop: Shop, target: str) -> None:
    """At the top level and one below; there is never a traceback, and never a change."""
    document = shop.document if target == "with_view" else shop.storage_document
    seen = {"works": 0, "refused": 0}
    for variant in _variants(document):
        getattr(shop, target)(variant)
        errors = refused_or_works("status")
        seen["refused" if errors else "works"] += 1
        assert all(VIEW in error for error in errors), errors
    assert seen["refused"] > 20, seen
    assert seen["works"] > 10, seen


def _variants(document: Document) -> list[Document]:
    found: list[Document] = [{**document, "unknown": {"deep": [1]}}]
    for key in document:
        rest = {name: value for name, value in document.items() if name != key}
        found.append(rest)
        found += [{**document, key: value} for value in (None, "text", 7, [], {}, [7], {"a": 7})]
    for key, items in document.items():
        if isinstance(items, list) and items and isinstance(items[0], dict):
            for name in items[0]:
                found.append({**document, key: [{k: v for k, v in items[0].items() if k != name}, *items[1:]]})
                found.append({**document, key: [{**items[0], name: None}, *items[1:]]})
    return found


@pytest.mark.parametrize("number", NUMBERS)
def test_i18_odd_numbers_for_ids_and_times_are_refused_or_work(shop: Shop, number: str) -> None:
    """2^63, 2^64, 1e308, NaN, -1 and values that are not numbers."""
    view, storage = encoded(shop.document).decode(), encoded(shop.storage_document).decode()
    for key in ("format-version", "current-version-id", "version-id", "schema-id", "timestamp-ms"):
        changed = re.sub(rf'"{key}": [^,}}\]]+', f'"{key}": {number}', view)
        shop.with_view(changed.encode())
        assert all(VIEW in error for error in refused_or_works("status", "plan"))
    keys = (
        "format-version",
        "last-updated-ms",
        "current-snapshot-id",
        "snapshot-id",
        "sequence-number",
        "timestamp-ms",
    )
    for key in keys:
        shop.with_storage(re.sub(rf'"{key}": [^,}}\]]+', f'"{key}": {number}', storage).encode())
        assert all(VIEW in error for error in refused_or_works("status", "plan"))


@pytest.mark.parametrize("version", [0, 2, "1", 1.0, True])
def test_i18_another_format_version_of_a_view_is_refused_by_name(shop: Shop, version: object) -> None:
    """An unsupported version is never guessed."""
    shop.with_view({**shop.document, "format-version": version})
    (error,) = refused_or_works("status")
    assert "'format-version'" in error


# -- inconsistent documents --------------------------------------------------------------------

PAIR = {"type": "sql", "sql": "SELECT 1", "dialect": "spark"}
UNFIT: dict[str, tuple[Callable[[Document], Document], str]] = {
    "current version absent": (lambda d: {**d, "current-version-id": 99}, "current-version-id 99 is not in versions"),
    "version id twice": (lambda d: {**d, "versions": d["versions"] * 2}, "a version-id occurs twice"),
    "schema id dangling": (lambda d: with_version(d, **{"schema-id": 77}), "schema-id 77"),
    "no schemas": (lambda d: {**d, "schemas": []}, "schema-id"),
    "empty SQL": (lambda d: with_sql(d, ""), "no SQL in the dialect 'spark'"),
    "another dialect only": (
        lambda d: with_version(d, representations=[{**PAIR, "dialect": "trino"}]),
        r"no SQL in the dialect 'spark' \(it has: trino\)",
    ),
    "two texts of one dialect": (lambda d: with_sql(d, "SELECT 1", "SELECT 2"), "two texts"),
    "10 MiB SQL": (lambda d: with_sql(d, "SELECT '" + "x" * 10_485_760 + "'"), "at most 1048576"),
    "SQL with half a surrogate": (lambda d: with_sql(d, "SELECT '\ud800'"), "not Unicode text|not valid|Invalid JSON"),
    "reads itself": (lambda d: with_sql(d, "SELECT * FROM lake.sales.daily"), "cycle.*lake.sales.daily"),
    "location elsewhere": (lambda d: {**d, "location": "file:///elsewhere/v"}, "outside of this catalog's folders"),
    "metadata path elsewhere": (
        lambda d: {**d, "properties": {**d["properties"], "write.metadata.path": "file:///elsewhere"}},
        "outside of this catalog's folders",
    ),
    "a table's file": (lambda d: {"format-version": 1, "table-uuid": "t", "location": d["location"]}, "a table's"),
}


@pytest.mark.parametrize("way", UNFIT)
def test_an_inconsistent_view_file_is_refused_with_its_name(shop: Shop, way: str) -> None:
    """The error names the inconsistent part."""
    change, message = UNFIT[way]
    shop.with_view(change(shop.document))
    errors = refused_or_works("status", "refresh")
    assert len(errors) == 2
    for error in errors:
        assert VIEW in error
        assert re.search(message, error), error


ODD_BUT_FINE: dict[str, Callable[[Document], Document]] = {
    "log out of order": lambda d: {**d, "version-log": [{"timestamp-ms": 9, "version-id": 1}, *d["version-log"]]},
    "log of the future": lambda d: {**d, "version-log": [{"timestamp-ms": 2**62, "version-id": 1}]},
    "log of an unknown version": lambda d: {**d, "version-log": [{"timestamp-ms": 1, "version-id": 4711}]},
    "another view uuid": lambda d: {**d, "view-uuid": "00000000-0000-0000-0000-000000000000"},
    "5,000 versions": lambda d: {
        **d, "versions": [*d["versions"], *({**d["versions"][0], "version-id": n} for n in range(2, 5_001))]
    },
    "SQL of other dialects beside": lambda d: with_version(
        d, representations=[{**PAIR, "dialect": "trino"}, *d["versions"][0]["representations"]]
    ),
}  # fmt: skip


@pytest.mark.parametrize("way", ODD_BUT_FINE)
def test_an_odd_but_complete_view_file_is_accepted(shop: Shop, way: str) -> None:
    """Other writers may write unusual files."""
    shop.with_view(ODD_BUT_FINE[way](shop.document))
    assert refused_or_works("status", "plan", "history", "show") == []


def test_rows_are_not_published_to_a_view_that_was_recreated_during_the_refresh(shop: Shop) -> None:
    """A view that was dropped and recreated has another uuid, and the rows are of the earlier one."""
    shop.lake.append()
    plan = plan_refresh(shop.lake.catalog, shop.lake.catalog.identify(VIEW))
    outcome = stage(shop.lake.catalog, plan, shop.lake.stager)
    shop.with_view({**shop.document, "view-uuid": "00000000-0000-0000-0000-000000000000"})
    with pytest.raises(ViewNotFoundError, match="dropped and created again"):
        publish(shop.lake.catalog, plan, outcome)


# -- storage metadata --------------------------------------------------------------------------


def with_refresh(shop: Shop, **changes: Any) -> Document:
    """The storage metadata with changed fields of the first base table of its current refresh."""
    document = shop.storage_document
    state = json.loads(document["properties"][PROPERTY])
    state["refreshes"][-1]["base-tables"][0].update({key.replace("_", "-"): value for key, value in changes.items()})
    return {**document, "properties": {**document["properties"], PROPERTY: json.dumps(state)}}


NOT_THERE: list[Document] = [
    {"identifier": "lake.nowhere.gone"},
    {"identifier": "elsewhere.a.b"},
    {"identifier": VIEW},
    {"identifier": "not a name at all `"},
    {"snapshot_reference": -7, "properties": {}},
    {"snapshot_reference": 2**62, "properties": {"metadata-location": "file:///etc/passwd"}},
]


@pytest.mark.parametrize("changes", NOT_THERE)
def test_a_record_with_unknown_tables_or_snapshots_makes_the_view_stale(shop: Shop, changes: Document) -> None:
    """Unknown tables, negative snapshots, the view itself: the rows are those of other inputs."""
    shop.with_storage(with_refresh(shop, **changes))
    (document,) = call("status", VIEW, "--json").json
    assert document["state"] == "stale"
    assert call("plan", VIEW, "--json").json["mode"] == "full"


def test_a_storage_file_that_is_a_view_file_is_refused(shop: Shop) -> None:
    """Including the view's own file, which would be a pointer to itself."""
    for location in (shop.view_file, shop.put({**shop.document, "properties": {}}, "plain.metadata.json")):
        shop.with_settings({"storage-table-location": location})
        (error,) = refused_or_works("status")
        assert "this is a view's metadata file, not a table's" in error


def test_a_storage_file_of_a_base_table_never_changes_that_table(shop: Shop) -> None:
    """The view was pointed at another table's file: only the view is written, that table's pointer is not changed."""
    before, rows = shop.lake.load(), shop.lake.load().scan().to_arrow().num_rows
    shop.with_settings({"storage-table-location": shop.table_file})
    assert refused_or_works("status", "plan") == []
    shop.lake.append()
    moved = shop.lake.load().metadata_location
    with suppress(MaterializedViewError):
        shop.lake.refresh()
    assert shop.lake.load().metadata_location == moved != before.metadata_location
    assert shop.lake.load().scan().to_arrow().num_rows == rows + 1


def test_a_staged_file_of_another_table_is_not_published(shop: Shop) -> None:
    """Its uuid is not the storage table's, because files were exchanged."""
    shop.lake.append()
    plan = plan_refresh(shop.lake.catalog, shop.lake.catalog.identify(VIEW))
    outcome = stage(shop.lake.catalog, plan, shop.lake.stager)
    shop.with_storage({**shop.storage_document, "table-uuid": "00000000-0000-0000-0000-000000000000"})
    assert publish(shop.lake.catalog, plan, outcome) is None
    assert metadata_files(shop.document["location"])


@pytest.mark.parametrize("size", [500, pytest.param(10_000, marks=pytest.mark.slow)])
def test_a_long_history_is_read(shop: Shop, size: int) -> None:
    """With time travel the history grows with each refresh."""
    document = shop.storage_document
    state = json.loads(document["properties"][PROPERTY])
    records = [{**state["refreshes"][0], "refresh-id": f"r{number}"} for number in range(size)]
    state["refreshes"] = [*records, *state["refreshes"]]
    shop.with_storage({**document, "properties": {**document["properties"], PROPERTY: json.dumps(state)}})
    assert refused_or_works("status", "history") == []
