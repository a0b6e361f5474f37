# SPDX-License-Identifier: Apache-2.0
"""View metadata: version 1 is read and written, the older draft is read, invalid files are refused."""

from __future__ import annotations

import gzip
import json
import uuid
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_mv.core.spec.stored import MAX_BYTES
from airflow_mv.core.spec.view import (
    ViewMetadata,
    new_view,
    parse_view,
    replace_version,
    roll_back,
    with_view_properties,
)
from airflow_mv.errors import InvalidMetadataError, NewerFormatError, UnsupportedError

DATA = Path(__file__).parent / "data"
FILE = "file:///lake/sales/daily/metadata/00001-x.gz.metadata.json"
JAVA = json.loads((DATA / "view_java.json").read_text())
DRAFT = json.loads((DATA / "view_draft_2.json").read_text())
LONG = {"type": "struct", "fields": [{"id": 7, "name": "n", "required": True, "type": "long"}]}


def read(document: dict[str, Any] | bytes) -> ViewMetadata:
    data = document if isinstance(document, bytes) else json.dumps(document).encode()
    return parse_view(data, view="lake.sales.daily", location=FILE)


def a_view(**properties: str) -> ViewMetadata:
    return new_view(
        view_uuid="u-1",
        location="file:///lake/sales/daily",
        schema=LONG,
        sql="SELECT 1 AS n",
        default_catalog="lake",
        default_namespace=("sales",),
        properties=properties,
        summary={"engine-name": "test"},
        now_ms=1000,
    )


def replaced(
    view: ViewMetadata, sql: str | dict[str, str], *, now_ms: int = 2000, schema: dict[str, Any] = LONG
) -> ViewMetadata:
    return replace_version(
        view,
        schema=schema,
        sql=sql,
        default_catalog="lake",
        default_namespace=("sales",),
        summary={"engine-name": "test"},
        now_ms=now_ms,
    )


def column(name: str, kind: Any = "long") -> dict[str, Any]:
    return {"type": "struct", "fields": [{"id": 1, "name": name, "required": False, "type": kind}]}


def with_changes(document: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """A copy with top-level fields set (``_`` for ``-``), or removed for ``...``."""
    changed = json.loads(json.dumps(document))
    for name, value in changes.items():
        key = name.replace("_", "-")
        if value is ...:
            del changed[key]
        else:
            changed[key] = value
    return changed


# -- version 1 ---------------------------------------------------------------------------------


def test_a_file_as_java_writes_it_is_read_plain_and_gzipped() -> None:
    plain = read(JAVA)
    assert plain == read(gzip.compress(json.dumps(JAVA).encode()))
    assert plain.schema_.names == ("region", "amounts")
    assert plain.sql(view="v").startswith("SELECT region")
    assert plain.current_version.default_namespace == ("sales",)


def test_reading_and_writing_a_java_file_changes_nothing() -> None:
    assert json.loads(read(JAVA).to_bytes()) == JAVA


def test_gzip_is_written_only_if_the_view_s_property_requests_it() -> None:
    """Other writers choose the codec by the property, so this package must not change it."""
    gzipped = with_view_properties(read(JAVA), {"write.metadata.compression-codec": "gzip"})
    assert gzipped.file_suffix == ".gz.metadata.json"
    assert read(gzipped.to_bytes()) == gzipped
    assert gzipped.to_bytes()[:2] == b"\x1f\x8b"
    assert read(JAVA).file_suffix == ".metadata.json"


names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=10)
extras = st.dictionaries(names.map(lambda text: f"x-{text}"), st.none() | st.integers() | names, max_size=2)


@settings(max_examples=100, deadline=None)
@given(extras, extras, extras, extras, st.dictionaries(names, names, max_size=3))
def test_unknown_fields_survive_at_every_level(
    top: dict[str, Any],
    version: dict[str, Any],
    text: dict[str, Any],
    entry: dict[str, Any],
    properties: dict[str, str],
) -> None:
    document = with_changes(JAVA, properties=properties) | top
    document["versions"][0] |= version
    document["versions"][0]["representations"][0] |= text
    document["version-log"][0] |= entry
    document["schemas"][0] |= top
    document["schemas"][0]["fields"][0] |= entry
    again = with_view_properties(read(document), {"ours": "1"})
    assert json.loads(again.to_bytes()) == {**document, "properties": {**properties, "ours": "1"}}


def test_a_new_view_has_the_operation_create() -> None:
    """The format: `summary.operation` is `create` or `replace`."""
    view = a_view()
    assert view.current_version.summary["operation"] == "create"
    assert replaced(view, "SELECT 2 AS n").current_version.summary["operation"] == "replace"
    assert json.loads(view.to_bytes())["format-version"] == 1
    assert (view.current_version_id, [entry.version_id for entry in view.version_log]) == (1, [1])


def test_the_spark_text_is_used_if_there_are_other_dialects() -> None:
    document = with_changes(JAVA)
    ours = document["versions"][0]["representations"][0]
    document["versions"][0]["representations"] = [{"type": "sql", "sql": "trino", "dialect": "trino"}, ours]
    assert read(document).sql(view="v") == ours["sql"]
    document["versions"][0]["representations"].pop()
    with pytest.raises(InvalidMetadataError, match=r"lake.sales.daily.*'spark'.*trino"):
        read(document).sql(view="lake.sales.daily")


def test_metadata_files_are_written_where_the_view_s_property_says() -> None:
    """Java does the same: an engine that collects orphan files uses this folder."""
    assert a_view().metadata_folder == "file:///lake/sales/daily/metadata"
    assert a_view(**{"write.metadata.path": "file:///elsewhere/"}).metadata_folder == "file:///elsewhere"


def test_setting_properties_does_not_change_the_version() -> None:
    view = with_view_properties(a_view(a="1", b="2"), {"b": "3", "c": "4"})
    assert view.properties == {"a": "1", "b": "3", "c": "4"}
    assert view.versions == a_view().versions


# -- changes -----------------------------------------------------------------------------------


def test_a_replaced_view_has_a_new_version_and_keeps_the_old_one() -> None:
    view = replaced(a_view(comment="x"), "SELECT 'a' AS s", schema=column("s", "string"))
    assert view.current_version_id == 2
    assert [item.version_id for item in view.versions] == [1, 2]
    assert view.schema_.names == ("s",)
    assert view.properties == {"comment": "x"}
    assert [(entry.version_id, entry.timestamp_ms) for entry in view.version_log] == [(1, 1000), (2, 2000)]


def test_the_same_definition_is_the_same_version() -> None:
    """A new version would mark all refreshed rows as outdated."""
    view = a_view()
    assert replaced(view, "SELECT 1 AS n") is view
    assert replaced(view, "SELECT 1 AS n", schema=column("n")) is view  # field ids and nullability are ignored


def test_another_column_type_is_another_definition() -> None:
    assert replaced(a_view(), "SELECT 1 AS n", schema=column("n", "int")).current_version_id == 2


def test_versions_and_their_log_are_bounded() -> None:
    """As in Iceberg: the log starts after its last entry of a dropped version."""
    view = a_view()
    for number in range(14):
        view = replaced(view, f"SELECT {number + 2} AS n")
    assert [item.version_id for item in view.versions] == list(range(6, 16))
    assert [entry.version_id for entry in view.version_log] == list(range(6, 16))


def test_the_bound_on_versions_is_a_property() -> None:
    view = a_view(**{"version.history.num-entries": "2"})
    for number in range(4):
        view = replaced(view, f"SELECT {number + 2} AS n")
    assert [item.version_id for item in view.versions] == [4, 5]


@pytest.mark.parametrize("text", ["0", "-3", "many", "", "²"])
def test_an_invalid_bound_on_versions_never_drops_the_current_version(text: str) -> None:
    view = replaced(a_view(**{"version.history.num-entries": text}), "SELECT 2 AS n")
    assert view.current_version.version_id == 2


def test_the_newest_versions_are_kept_whatever_their_order() -> None:
    """Java lists the current version first, then the others from new to old."""
    view = a_view(**{"version.history.num-entries": "3"})
    for number in range(3):
        view = replaced(view, f"SELECT {number + 2} AS n")
    turned = read({**view.document(), "versions": view.document()["versions"][::-1]})
    again = replaced(turned, "SELECT 9 AS n")
    assert sorted(item.version_id for item in again.versions) == [3, 4, 5]


def test_schemas_of_dropped_versions_are_dropped_too() -> None:
    """Otherwise the file grows with each replace."""
    view = a_view(**{"version.history.num-entries": "2"})
    for number in range(5):
        view = replaced(view, f"SELECT 1 AS c{number}", schema=column(f"c{number}"))
    assert [schema.names for schema in view.schemas] == [("c3",), ("c4",)]
    assert view.schema_.names == ("c4",)


def test_a_rollback_adds_an_entry_to_the_log() -> None:
    view = roll_back(replaced(a_view(), "SELECT 2 AS n"), 1, now_ms=3000)
    assert view.current_version_id == 1
    assert view.sql(view="v") == "SELECT 1 AS n"
    assert [(entry.version_id, entry.timestamp_ms) for entry in view.version_log] == [(1, 1000), (2, 2000), (1, 3000)]
    assert replaced(view, "SELECT 3 AS n", now_ms=4000).current_version_id == 3


def test_replacing_with_an_older_definition_reuses_its_version() -> None:
    """As in Java: rows that were refreshed for this version are valid again."""
    view = replaced(replaced(a_view(), "SELECT 2 AS n"), "SELECT 1 AS n", now_ms=3000)
    assert view.current_version_id == 1
    assert [item.version_id for item in view.versions] == [1, 2]
    assert [entry.version_id for entry in view.version_log] == [1, 2, 1]


def test_an_older_text_with_other_columns_or_names_is_a_new_version() -> None:
    view = replaced(a_view(), "SELECT 2 AS n")
    assert replaced(view, "SELECT 1 AS n", schema=column("n", "int")).current_version_id == 3
    assert replaced(a_view(), {"spark": "SELECT 1 AS n", "trino": "SELECT 1 AS n"}).current_version_id == 2


def test_the_text_of_another_dialect_is_dropped_only_if_the_view_allows_it() -> None:
    """As in Java: other engines could no longer read the view."""
    view = replaced(a_view(), {"spark": "SELECT 1 AS n", "Trino": "SELECT 1 AS n"})
    assert replaced(view, "SELECT 1 AS n") is view
    with pytest.raises(UnsupportedError, match=r"trino.*replace\.drop-dialect\.allowed"):
        replaced(view, "SELECT 2 AS n")
    with pytest.raises(UnsupportedError, match="trino"):
        roll_back(view, 1, now_ms=3000)
    allowed = with_view_properties(view, {"replace.drop-dialect.allowed": "true"})
    assert replaced(allowed, "SELECT 2 AS n").current_version.texts == {"spark": "SELECT 2 AS n"}


def test_a_rollback_to_a_version_that_is_not_kept_is_refused() -> None:
    with pytest.raises(InvalidMetadataError, match="9"):
        roll_back(a_view(), 9, now_ms=3000)


def test_times_in_the_log_never_decrease() -> None:
    assert replaced(a_view(), "SELECT 2 AS n", now_ms=1).version_log[-1].timestamp_ms == 1000


# -- the older draft ---------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "columns"), [("view_draft_1", ("c1", "c2")), ("view_draft_2", ("my_cnt",))])
def test_the_examples_of_the_older_draft_are_read(name: str, columns: tuple[str, ...]) -> None:
    view = read((DATA / f"{name}.json").read_bytes())
    version = view.current_version
    assert (version.default_catalog, version.default_namespace) == ("iceberg", ("anorwood",))
    assert view.schema_.names == columns


def test_a_draft_is_written_as_version_1_and_keeps_its_own_fields() -> None:
    again = json.loads(read(DRAFT).to_bytes())
    version = again["versions"][1]
    assert (version["schema-id"], version["default-namespace"]) == (2, ["anorwood"])
    assert version["parent-version-id"] == 1
    assert again["current-schema-id"] == 2
    assert read(again) == read(DRAFT)


def test_field_aliases_and_docs_of_a_draft_become_the_schema() -> None:
    document = with_changes(DRAFT, current_version_id=1)
    document["versions"][0]["representations"][0] |= {"field-aliases": ["a", "b"], "field-docs": ["first", None]}
    fields = read(document).schema_.fields
    assert [(field["name"], field["doc"]) for field in fields] == [("a", "first"), ("b", "")]
    assert len(read(document).schemas) == 3
    assert read(read(document).to_bytes()) == read(document)


def test_field_docs_without_aliases_are_preserved() -> None:
    document = with_changes(DRAFT, current_version_id=1)
    document["versions"][0]["representations"][0]["field-docs"] = ["first", "second"]
    view = read(document)
    assert [field["doc"] for field in view.schema_.fields] == ["first", "second"]
    assert read(view.to_bytes()) == view


@pytest.mark.parametrize("aliases", [["only one"], "ab", 5, {"a": 1}, [1, 2]])
def test_aliases_that_do_not_match_the_columns_are_refused(aliases: object) -> None:
    document = with_changes(DRAFT, current_version_id=1)
    document["versions"][0]["representations"][0]["field-aliases"] = aliases
    with pytest.raises(InvalidMetadataError, match=r"lake.sales.daily"):
        read(document)


@pytest.mark.parametrize("schemas", [5, {}, [7], [{"schema-id": "1", "fields": []}], [{"schema-id": 1, "fields": 3}]])
def test_aliases_with_invalid_schemas_are_refused(schemas: object) -> None:
    document = with_changes(DRAFT, current_version_id=1, schemas=schemas)
    document["versions"][0]["representations"][0]["field-aliases"] = ["a", "b"]
    with pytest.raises(InvalidMetadataError, match="field-aliases"):
        read(document)


# -- validation --------------------------------------------------------------------------------


def version(**changes: Any) -> list[dict[str, Any]]:
    return [with_changes(JAVA["versions"][0], **changes)]


BROKEN = [
    (with_changes(JAVA, format_version="1"), "format-version"),
    (with_changes(JAVA, format_version=...), "format-version"),
    (with_changes(JAVA, format_version=True), "format-version"),
    (with_changes(JAVA, location=...), "location"),
    (with_changes(JAVA, current_version_id=...), "current-version-id"),
    (with_changes(JAVA, current_version_id=3), "current-version-id 3 is not in versions"),
    (with_changes(JAVA, versions=[]), "versions"),
    (with_changes(JAVA, versions=[7]), r"versions\.0"),
    (with_changes(JAVA, versions={}), "versions"),
    (with_changes(JAVA, versions=version() + version()), "version-id occurs twice"),
    (with_changes(JAVA, versions=version(timestamp_ms=...)), r"versions\.0\.timestamp-ms"),
    (with_changes(JAVA, versions=version(timestamp_ms=2**64)), r"versions\.0\.timestamp-ms"),
    (with_changes(JAVA, versions=version(representations=...)), r"versions\.0\.representations"),
    (with_changes(JAVA, versions=version(representations=[7])), r"versions\.0\.representations\.0"),
    (with_changes(JAVA, versions=version(schema_id=9)), "schema-id 9"),
    (with_changes(JAVA, versions=version(schema_id={})), r"versions\.0\.schema-id"),
    (with_changes(JAVA, version_log=...), "version-log"),
    (with_changes(JAVA, version_log=[{"version-id": 1}]), r"version-log\.0\.timestamp-ms"),
    (with_changes(JAVA, schemas=[]), "schema-id 0"),
    (with_changes(JAVA, schemas=[{"type": "struct", "fields": [{"id": 1}]}]), r"schemas\.0"),
    (with_changes(JAVA, schemas=[{"type": "struct", "fields": [{"id": 1, "name": "a"}]}]), r"schemas\.0"),
    (with_changes(JAVA, properties={"a": 1}), r"properties\.a"),
    ({"format-version": 1, "table-uuid": "t", "location": "file:///t"}, "table's metadata file"),
]


@pytest.mark.parametrize(("document", "named"), BROKEN)
def test_an_error_names_the_invalid_field_the_view_and_the_file(document: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidMetadataError, match=named) as caught:
        read(document)
    assert "lake.sales.daily" in str(caught.value)
    assert FILE in str(caught.value)


@pytest.mark.parametrize(
    "newer",
    [
        with_changes(JAVA, format_version=2),
        {"format-version": 2, "of-another": "form"},
        with_changes(JAVA, schemas=[{"type": "tree", "fields": []}]),
        with_changes(JAVA, location=..., roots=["file:///t"]),
        with_changes(JAVA, versions=version(representations=..., plan={})),
    ],
)
def test_a_complete_file_of_a_newer_program_is_not_broken(newer: dict[str, Any]) -> None:
    """A later version, a value that is none of the known ones, or another field where a required one was."""
    with pytest.raises(NewerFormatError, match=r"lake\.sales\.daily, file .*upgrade airflow-mv"):
        read(newer)


def test_a_table_s_file_is_not_that_of_a_newer_view() -> None:
    """Tables have later format versions than views. A view that is converted meanwhile may point at one."""
    with pytest.raises(InvalidMetadataError, match="table's metadata file") as error:
        read({"format-version": 2, "table-uuid": str(uuid.uuid4()), "location": "file:///t"})
    assert not isinstance(error.value, NewerFormatError)


GOOD = json.dumps(JAVA).encode()
PACKED = gzip.compress(GOOD, mtime=0)
HOSTILE = {
    "empty": b"",
    "not JSON": b"SELECT 1",
    "a list": b"[]",
    "invalid UTF-8": GOOD.replace(b"spark", b"sp\xffrk"),
    "UTF-16": GOOD.decode().encode("utf-16"),
    "a byte order mark": b"\xef\xbb\xbf" + GOOD,
    "NaN": GOOD.replace(b"1730000000000", b"NaN", 1),
    "a key twice": b'{"location": "file:///other", ' + GOOD[1:],
    "nested 180 deep in a schema": GOOD.replace(b'"type": "long"', b'"type": ' + b"[" * 180 + b"]" * 180, 1) + b"x",
    "nested 450 deep": GOOD[:-1] + b', "x": ' + b"[" * 450 + b"]" * 450 + b"}",
    "nested 900 deep in a version": GOOD.replace(b'"version-id": 1', b'"x": ' + b'{"a":' * 900 + b"1" + b"}" * 900, 1),
    "nested 5,000 deep": GOOD[:-1] + b', "x": ' + b"[" * 5000 + b"]" * 5000 + b"}",
    "gzip, truncated": PACKED[:-20],
    "gzip, only its head": PACKED[:12],
    "gzip, broken": PACKED[:30] + b"\xff\xff\xff" + PACKED[33:],
    "gzip of gzip": gzip.compress(PACKED),
}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_bytes_are_refused_with_one_error_that_names_view_and_file(data: bytes) -> None:
    with pytest.raises(InvalidMetadataError) as caught:
        read(data)
    assert "lake.sales.daily" in str(caught.value)
    assert FILE in str(caught.value)


def test_a_gzip_bomb_is_not_decompressed() -> None:
    bomb = gzip.compress(b" " * (MAX_BYTES + 1000), compresslevel=1)
    assert len(bomb) < 2_000_000
    with pytest.raises(InvalidMetadataError, match="larger than"):
        read(bomb)


@pytest.mark.parametrize("part", range(20))
@pytest.mark.parametrize("whole", [GOOD, PACKED], ids=["plain", "gzip"])
def test_truncated_files_are_refused(whole: bytes, part: int) -> None:
    with pytest.raises(InvalidMetadataError):
        read(whole[: len(whole) * part // 20])
