# SPDX-License-Identifier: Apache-2.0
"""Invalid arguments and invalid stored data: one line with the error and the fix, an exit code, no change."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.sql import IcebergTables
from sqlalchemy import update
from sqlalchemy.orm import Session

from airflow_mv.core.spec.materialized_view import PROPERTY
from airflow_mv.core.spec.stored import decode, encode
from airflow_mv.core.spec.view import with_view_properties
from tests.cli.support import call
from tests.engine.fixtures import new_lake
from tests.engine.support import LAKE, Lake

DAILY = "SELECT day, sum(amount) AS amount FROM {ns}.orders GROUP BY day"


@pytest.fixture(scope="module")
def shop(lake_folder: Path) -> Lake:
    """A refreshed view, a plain view and a table; every test restores what it breaks."""
    lake = new_lake(lake_folder)
    lake.table("orders", "day integer, amount bigint", "(1, 10), (1, 20), (2, 30)")
    lake.create("daily", DAILY)
    lake.refresh("daily")
    lake.run("CREATE VIEW {ns}.plain AS SELECT 1 AS one")
    return lake


@pytest.fixture
def broken(shop: Lake) -> Any:
    """Point the view ``daily`` or the table ``orders`` at another file, and restore it afterwards."""
    before = {name: _pointer(shop, name) for name in ("daily", "orders")}

    def point(name: str, location: str) -> None:
        _point(shop, name, location)

    yield point
    for name, location in before.items():
        _point(shop, name, location)


@pytest.mark.parametrize("command", ["status", "plan", "refresh", "history", "read", "show", "verify"])
@pytest.mark.parametrize(
    ("view", "code", "message"),
    [
        ("nope.sales.daily", 1, r"no catalog 'nope' is configured \(configured: .*lake.*PYICEBERG_CATALOG__NOPE__TYPE"),
        ("lake.nope.daily", 1, r"there is no view lake\.nope\.daily in catalog 'lake'"),
        ("lake.{ns}.orders", 1, r"orders is a table, not a view"),
        (
            "lake.{ns}.plain",
            1,
            r"plain is a plain view, not a materialized one; `airflow-mv create .*turns it into one",
        ),
        ("daily", 2, r"`daily` has too few parts: write catalog\.namespace\.name"),
        ("lake..daily", 2, r"part at character 6 is empty"),
        ("lake.a b.daily", 2, r"put the part with ' ' at character 7 in backticks"),
        ("lake.s.`x", 2, r"backtick at character 8 is unbalanced"),
        ("", 2, r"'' is not a name"),
    ],
)
def test_a_missing_view_or_catalog_is_named(shop: Lake, command: str, view: str, code: int, message: str) -> None:
    """Unknown catalog, unknown view, a table, a plain view, no name; for every command."""
    ended = call(command, view.replace("{ns}", shop.namespace), "--json")
    assert ended.code == code
    assert re.search(message, ended.error)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["status"], "name views"),
        (["status", "lake.a.b", "--all"], "name views"),
        (["refresh"], "name views"),
        (["create", "lake.a.b", "--sql", "SELECT 1", "--sql-file", __file__], "exclude each other"),
        (["create", "lake.a.b", "--sql-file", "/nowhere.sql"], "does not exist"),
        (["create", "lake.a.b", "--sql", "SELECT 1", "--property", "x"], "KEY=VALUE"),
        (["create", "lake.a.b", "--sql", "SELECT 1", "--refresh-strategy", "magic"], "'magic' is not one of"),
        (["refresh", "lake.a.b", "--on-fallback", "magic"], "'magic' is not one of"),
        (["refresh", "lake.a.b", "--master", "local", "--remote", "sc://x"], "exclude each other"),
        (["refresh", "lake.a.b", "--as-of", "tomorrow"], "'tomorrow' is not a time"),
        (["read", "lake.a.b", "--bases-as-of", "yesterday"], "'yesterday' is not a time"),
        (["read", "lake.a.b", "--as-of", "yesterday"], "'yesterday' is not a time"),
        (["status", "lake.a.b", "--interval", "x", "y"], "'x' is not a time"),
        (["verify", "lake.a.b", "--interval", "x", "y"], "'x' is not a time"),
        (["read", "lake.a.b", "--limit", "-1"], "-1 is not in the range"),
        (["status", "--namespace", "lake"], "is not a namespace with its catalog"),
        (["no-such-command"], "No such command"),
    ],
)
def test_wrong_usage_ends_with_two(shop: Lake, arguments: list[str], message: str) -> None:
    """No catalog is opened and nothing is started."""
    ended = call(*arguments)
    assert (ended.code, ended.stdout) == (2, "")
    assert message in " ".join(ended.stderr.split())


@pytest.mark.parametrize("command", ["create", "explain"])
def test_a_file_with_a_query_is_text_in_utf_8(shop: Lake, tmp_path: Path, command: str) -> None:
    """Editors write a byte order mark, and PowerShell writes UTF-16."""
    file, sql = tmp_path / "daily.sql", DAILY.replace("{ns}", f"{LAKE}.{shop.namespace}") + " -- Größe"
    wrong = {
        sql.encode("utf-16"): "UTF-8 is expected, and this is UTF-16",
        sql.encode("utf-16-le"): "UTF-8 is expected, and byte",
        sql.replace("ö", "o").replace("ß", "s").encode("utf-16-be"): "zero bytes, as UTF-16 has",
        sql.encode("latin-1"): r"UTF-8 is expected, and byte \d+ is not",
        str(file).encode(): "this is the name of a file, not a query: give --sql-file",
    }
    for content, message in wrong.items():
        file.write_bytes(content)
        ended = call(command, shop("read"), "--sql-file", str(file))
        assert (ended.code, len(ended.error.splitlines()) <= 3) == (1, True)
        assert re.search(message, ended.error), ended.error
    file.write_bytes(sql.encode("utf-8-sig"))
    assert call(command, shop(f"read_{command}"), "--sql-file", str(file)).code == 0


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("SELEC day FROM {ns}.orders", r"SELEC"),
        ("SELECT day FROM {ns}.orders WHERE (amount > 1", r"amount > 1|line 1"),
        ("SELECT day FROM {ns}.orders; DROP TABLE {ns}.orders", r"one query|statement"),
        ("DROP TABLE {ns}.orders", r"DROP"),
        ("INSERT INTO {ns}.orders VALUES (1, 1)", r"INSERT|query"),
        ("", r"query|empty"),
        ("SELECT day FROM {ns}.missing", r"missing does not exist in catalog 'lake'"),
        ("SELECT day FROM nowhere.sales.orders", r"no catalog 'nowhere' is configured"),
        ("SELECT * FROM {ns}.broken", r"read each other in a cycle.*broken"),
        ("SELECT dya FROM {ns}.orders", r"cannot resolve the column dya; did you mean 'day'"),
    ],
)
def test_invalid_sql_is_refused_with_the_position(shop: Lake, sql: str, message: str) -> None:
    """Neither a view is created nor a table changed; the message quotes the invalid text."""
    ended = call("create", shop("broken"), "--sql", sql.replace("{ns}", f"{LAKE}.{shop.namespace}"), "--json")
    assert ended.code == 1
    assert shop("broken") in ended.error
    assert re.search(message, ended.error), ended.error
    assert not shop.catalog.exists(shop("broken"))
    assert shop.files.load_table((shop.namespace, "orders"))


HOSTILE = [
    ("{", "not valid JSON"),
    ("", "not valid JSON"),
    ('{"storage-table-location": "file:/x', "not valid JSON"),
    ("[]", "expected a JSON object"),
    ("[" * 100_000, "nested too deeply|not valid JSON"),
    ("{}", r"'storage-table-location' of its property materialized_view_metadata names"),
    ('{"storage-table-location": 5}', r"'storage-table-location'"),
    ('{"storage-table-location": ""}', r"'storage-table-location'"),
    ('{"storage-table-location": "a", "storage-table-location": "b"}', r"occurs twice"),
    ('{"storage-table-location": "/x", "allow-stale-data": "yes"}', r"'allow-stale-data'"),
    ('{"storage-table-location": "/x", "refresh-strategy": "magic"}', r"'refresh-strategy'"),
    ('{"storage-table-location": "http://127.0.0.1:1/x"}', r"scheme 'http' is not supported"),
    ('{"storage-table-location": "file:///a/../../etc/passwd"}', r"leads out of its folder"),
    ('{"storage-table-location": "relative/x"}', r"not an absolute location"),
    ('{"storage-table-location": "file:///etc/passwd"}', r"lies outside of this catalog's folders"),
    ('{"storage-table-location": "file:///nowhere/x.json"}', r"lies outside of this catalog's folders"),
    ('{"storage-table-location": "/x\\u001b[31m"}', r"is not a location"),
    ('{"storage-table-location": "file:///nowhere/\\u009b31m\\ud800"}', r"Invalid JSON"),
]


@pytest.mark.parametrize(("text", "message"), HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_text_in_the_view_s_property_is_refused_with_its_name(
    shop: Lake, broken: Callable[[str, str], None], text: str, message: str
) -> None:
    """The property is untrusted input: it is never followed out of the store and never printed unescaped."""
    view = shop.view("daily")
    document = {**view.metadata.document(), "properties": {**view.metadata.properties, PROPERTY: text}}
    broken("daily", _written(shop, encode(document)))
    for command in ("status", "refresh", "read"):
        ended = call(command, shop("daily"), "--json")
        assert ended.code == 1
        assert shop("daily") in ended.error
        assert re.search(message, ended.error), ended.error
        assert not re.search(r"root:|[\x00-\x09\x0b-\x1f\x7f-\x9f]", ended.stderr)
        assert len(ended.error) < 1500


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"refreshes": [{}], "current-refresh-id": "x"}', '{"refreshes": 1, "current-refresh-id": "x"}']
)
def test_hostile_text_in_the_storage_table_s_property_is_refused_with_its_name(
    shop: Lake, broken: Callable[[str, str], None], text: str
) -> None:
    """The same for the other of the two records."""
    view = shop.view("daily")
    location = view.materialized.storage_table_location
    document = decode(shop.catalog.files.read(location, what="storage"), source="storage")
    document["properties"][PROPERTY] = text
    _storage(shop, broken, encode(document))
    ended = call("status", shop("daily"), "--json")
    assert ended.code == 1
    assert re.search(rf"view {shop('daily')}, storage table file .*property {PROPERTY}", ended.error)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not valid JSON"),
        (b'{"format-version": 1, "view-uuid"', "not valid JSON"),
        (b"\x1f\x8b\x08\x00broken", "gzip"),
        (b"\xff\xfe\x00", "not valid JSON"),
        (b'{"format-version": 2}', r"'format-version': 2 is not supported \(only 1\)"),
        (b'{"format-version": "1"}', r"'format-version': '1' is not supported"),
        (b'{"format-version": 1}', r"field"),
    ],
)
def test_a_broken_view_file_is_refused_with_its_name(
    shop: Lake, broken: Callable[[str, str], None], data: bytes, message: str
) -> None:
    """Truncated, of an unsupported version, or without any metadata."""
    location = _written(shop, data)
    broken("daily", location)
    ended = call("status", shop("daily"))
    assert ended.code == 1
    assert shop("daily") in ended.error
    assert location in ended.error
    assert re.search(message, ended.error), ended.error


def test_an_unsupported_format_of_the_storage_table_or_a_base_table_is_named(
    shop: Lake, broken: Callable[[str, str], None]
) -> None:
    """A file of a newer format version is refused, not guessed."""
    good = _pointer(shop, "daily")
    _storage(shop, broken, _newer(shop, shop.view("daily").materialized.storage_table_location))
    ended = call("status", shop("daily"))
    assert ended.code == 1
    assert re.search(r"format-version.*9", ended.error)

    broken("daily", good)
    broken("orders", _written(shop, _newer(shop, _pointer(shop, "orders"))))
    for command in ("status", "plan"):
        ended = call(command, shop("daily"))
        assert ended.code == 1
        assert re.search(rf"{shop('orders')}.*format-version.*9", ended.error), ended.error


def test_missing_files_are_named(shop: Lake, broken: Callable[[str, str], None]) -> None:
    """The view's file, and a base table's, which makes the state unknown."""
    good = _pointer(shop, "daily")
    broken("daily", "file:///nowhere/00001-x.metadata.json")
    ended = call("status", shop("daily"))
    assert ended.code == 1
    assert "the file file:///nowhere/00001-x.metadata.json does not exist" in ended.error

    broken("daily", good)
    broken("orders", "file:///nowhere/00002-x.metadata.json")
    (document,) = call("status", shop("daily"), "--json").json
    assert (document["state"], document["reasons"][0]["code"]) == ("unknown", "BASE_UNREADABLE")
    ended = call("refresh", shop("daily"), "--json")
    assert ended.code == 1
    assert "00002-x.metadata.json does not exist" in ended.error


def test_a_missing_data_file_is_an_error_and_not_a_traceback(lake: Lake) -> None:
    """The line names the view."""
    lake.table("orders", "day integer, amount bigint", "(1, 10)")
    lake.create("daily", DAILY)
    lake.refresh("daily")
    for file in lake.stored_files("daily"):
        file.unlink()
    ended = call("read", lake("daily"), "--json")
    assert ended.code == 1
    assert f"view {lake('daily')}: a data file of refresh" in ended.error
    assert call("refresh", lake("daily"), "--full").code == 0
    assert call("read", lake("daily"), "--json").json["rows"] == [[1, 10]]


def test_a_missing_base_table_makes_the_state_unknown_and_the_refresh_fail(lake: Lake) -> None:
    """The table may be restored later, so the stored rows are kept."""
    lake.table("orders", "day integer, amount bigint", "(1, 10)")
    lake.create("daily", DAILY)
    lake.refresh("daily")
    lake.files.drop_table((lake.namespace, "orders"))

    ended = call("status", lake("daily"), "--check", "--json")
    assert (ended.code, ended.json[0]["state"]) == (3, "unknown")
    ended = call("refresh", lake("daily"), "--json")
    assert ended.code == 1
    assert f"base table {lake('orders')} does not exist in catalog 'lake'" in ended.error
    assert lake.rows("daily") == [(1, 10)]


ODD_NAMES = ["it's; DROP TABLE x--", 'a.b "c"', "back`tick", "größe_名前😀", "../-x/%41", "a b"]


def test_odd_names_of_views_columns_and_tables_are_supported_throughout(lake: Lake) -> None:
    """Quotes, dots, spaces, semicolons, slashes, Unicode are quoted in SQL, paths and JSON."""
    for name in ODD_NAMES:
        view = f"{LAKE}.{lake.namespace}.`{name.replace('`', '``')}`"
        sql = f"SELECT 1 AS `{name.replace('`', '``')}`, 'x' AS other"
        made = call("create", view, "--sql", sql, "--refresh", "--json")
        assert made.code == 0, made.stderr
        shown = made.json["view"]
        read = call("read", shown, "--json").json
        assert (read["columns"], read["rows"]) == ([name, "other"], [[1, "x"]])
    listed = call("status", "--namespace", f"{LAKE}.{lake.namespace}", "--json").json
    assert [item["state"] for item in listed] == ["fresh"] * len(ODD_NAMES)


def test_a_view_over_tables_with_odd_names_is_refreshed(lake: Lake) -> None:
    """Base tables keep their names in the refresh record, and are found by them."""
    for number, name in enumerate(("it's", "a b;c", "ünï")):
        lake.run(f"CREATE TABLE {{ns}}.`{name}` USING iceberg AS SELECT {number} AS n")
    names = " UNION ALL ".join(f"SELECT n FROM {{ns}}.`{name}`" for name in ("it's", "a b;c", "ünï"))
    lake.create("all", names)
    lake.refresh("all")
    assert lake.rows("all") == [(0,), (1,), (2,)]
    lake.run("INSERT INTO {ns}.`a b;c` VALUES (7)")
    (document,) = call("status", lake("all"), "--json").json
    assert [table["identifier"] for table in document["base_tables"] if table["changed"]] == [lake("`a b;c`")]


def test_invalid_names_are_refused(lake: Lake) -> None:
    """Control characters, and names longer than any store accepts."""
    for name in ("a\nb", "\x1b[31m", "x" * 300):
        ended = call("create", f"{LAKE}.{lake.namespace}.`{name}`", "--sql", "SELECT 1 AS one")
        assert ended.code == 2
        assert "\x1b" not in ended.stderr


def test_a_name_can_be_created_only_once(shop: Lake) -> None:
    """The second create is refused, whether a view or a table has the name."""
    for name in ("daily", "plain", "orders"):
        ended = call("create", shop(name), "--sql", "SELECT 1 AS one", "--json")
        assert ended.code == 1
        assert re.search(rf"{name} exists already", ended.error)
    assert shop.rows("daily") == [(1, 30), (2, 30)]


def _pointer(lake: Lake, name: str) -> str:
    if name == "daily":
        return lake.view(name).metadata_location
    return lake.files.load_table((lake.namespace, name)).metadata_location


def _newer(lake: Lake, location: str) -> bytes:
    """A table's metadata in a future format version."""
    document = decode(lake.catalog.files.read(location, what="table"), source="table")
    return encode({**document, "format-version": 9})


def _point(lake: Lake, name: str, location: str) -> None:
    statement = (
        update(IcebergTables)
        .where(IcebergTables.table_namespace == lake.namespace, IcebergTables.table_name == name)
        .values(metadata_location=location)
    )
    with Session(lake.files.engine) as session:
        session.execute(statement)
        session.commit()


def _written(lake: Lake, data: bytes) -> str:
    location = f"{lake.files.properties['warehouse']}/broken-{uuid.uuid4()}.metadata.json"
    lake.catalog.files.write(location, data)
    return location


def _storage(lake: Lake, broken: Callable[[str, str], None], data: bytes) -> None:
    """Point the view at a storage metadata file with this content."""
    view = lake.view("daily")
    settings = view.materialized.repointed(_written(lake, data))
    metadata = with_view_properties(view.metadata, {PROPERTY: json.dumps(settings.document())})
    broken("daily", _written(lake, metadata.to_bytes()))
