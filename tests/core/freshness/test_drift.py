# SPDX-License-Identifier: Apache-2.0
"""Columns of base tables that are dropped, renamed or retyped: a view that reads them is invalid, and never fresh."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.table.update.schema import UpdateSchema
from pyiceberg.types import DoubleType, FloatType

from airflow_mv.actions import refresh_views
from airflow_mv.common.status import lag
from airflow_mv.core.define.create import create
from airflow_mv.core.define.definition import Definition
from airflow_mv.core.freshness.observe import observe
from airflow_mv.core.freshness.state import State
from airflow_mv.core.refresh import RefreshOptions
from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.core.spec.reasons import Code, Mode
from airflow_mv.core.sql.query import parse_query
from airflow_mv.core.sql.types import is_same_for, uses_of_column
from airflow_mv.errors import (
    ConfigurationError,
    InvalidQueryError,
    MaterializedViewError,
    RefreshRefusedError,
    StaleViewError,
)
from airflow_mv.extras.fleet.readiness import Readiness, readiness
from airflow_mv.extras.read import readable
from tests.builders import Lake, lake

VIEW = "sales.daily"
QUERY = "SELECT k, max(f) AS most FROM lake.sales.t GROUP BY k"
T = pa.schema([("k", pa.int64()), ("f", pa.float32()), ("unused", pa.int64())])
Alter = Callable[[UpdateSchema], Any]
CHANGES: dict[Code, tuple[Alter, str]] = {
    Code.COLUMN_DROPPED: (lambda to: to.delete_column("f"), "lake.sales.t: the column f was dropped"),
    Code.COLUMN_RENAMED: (lambda to: to.rename_column("f", "g"), "lake.sales.t: the column f was renamed to g"),
    Code.COLUMN_RETYPED: (
        lambda to: to.update_column("f", DoubleType()),
        "lake.sales.t: the type of the column f changed from float to double",
    ),
}


@pytest.fixture
def home(sqlite_uri: str, warehouse: Path) -> Iterator[Lake]:
    with lake(sqlite_uri, warehouse) as found:
        found.iceberg.create_table("sales.t", schema=T)
        write(found, f=0.5)
        yield found


def write(home: Lake, **values: float) -> None:
    """Append a row with the table's present columns."""
    table = home.load("t")
    row = {"k": 1, "unused": 7, **values}
    table.append(pa.Table.from_pylist([row], schema=table.schema().as_arrow()))


def alter(home: Lake, change: Alter) -> None:
    with home.load("t").update_schema() as update:
        change(update)


def view(home: Lake, policy: str | None = None, **definition: Any) -> None:
    home.view(sql=QUERY, properties={"airflow-mv.on-schema-change": policy} if policy else {}, **definition)
    home.refresh()


def seen(home: Lake) -> tuple[State, list[Code]]:
    freshness = observe(home.catalog, VIEW).freshness
    return freshness.state, [reason.code for reason in freshness.reasons]


@pytest.mark.parametrize("code", CHANGES)
def test_a_column_that_changed_without_a_snapshot_makes_the_view_invalid_until_its_rows_have_the_new_one(
    home: Lake, code: Code
) -> None:
    """A refresh from the snapshot before the change, with its columns, does not hide it."""
    change, said = CHANGES[code]
    view(home)
    alter(home, change)
    for _ in range(2):
        assert seen(home) == (State.INVALID, [code])
        observation = observe(home.catalog, VIEW)
        assert observation.freshness.reasons[0].message == said
        assert readiness(observation.freshness.state, lag(observation)) == Readiness.INVALID
        with pytest.raises(StaleViewError, match=said):
            readable(home.catalog, VIEW)
        with pytest.raises(RefreshRefusedError, match=f"is invalid: {said}.*No commit was made since") as refused:
            home.refresh()
        assert not refused.value.retryable
    if code == Code.COLUMN_RETYPED:  # DuckDB does not know the function that keeps filters from renamed columns
        assert home.refresh(options=RefreshOptions(full=True)).mode == Mode.FULL
        assert home.read() == [{"k": 1, "most": 0.5}]
        assert seen(home) == (State.INVALID, [code])


@pytest.mark.parametrize("code", [Code.COLUMN_DROPPED, Code.COLUMN_RENAMED])
def test_a_query_that_does_not_fit_the_new_columns_is_an_error_that_no_retry_repeats(home: Lake, code: Code) -> None:
    view(home, allow_stale_data=True)
    alter(home, CHANGES[code][0])
    write(home, **({"g": 2.0} if code == Code.COLUMN_RENAMED else {}))
    assert seen(home) == (State.INVALID, [code, Code.BASE_CHANGED])
    for policy in ({}, {"full": True}):
        with pytest.raises(MaterializedViewError) as error:
            home.refresh(options=RefreshOptions(**policy))
        assert isinstance(error.value, InvalidQueryError)
        assert not error.value.retryable
    assert readable(home.catalog, VIEW).state == State.INVALID  # earlier results, as the view allows


def dropped_and_added(to: UpdateSchema) -> None:
    to.delete_column("f")
    to.add_column("g", FloatType())


def renamed_and_moved(to: UpdateSchema) -> None:
    to.rename_column("f", "g")
    to.move_first("f")


def moved(to: UpdateSchema) -> None:
    to.move_first("f")


@pytest.mark.parametrize("sql", ["SELECT * FROM t", "SELECT * FROM plain"])
@pytest.mark.parametrize("change", [dropped_and_added, renamed_and_moved])
@pytest.mark.parametrize("policy", ["ignore-unused", "rebuild"])
def test_no_other_column_takes_the_place_of_one_behind_a_star(
    home: Lake, sql: str, change: Callable[[UpdateSchema], None], policy: str
) -> None:
    """Rows are written by position, and the types fit."""
    home.plain_view("plain", "SELECT * FROM t", T.names)
    home.view(sql=sql, properties={"airflow-mv.on-schema-change": policy})
    home.refresh()
    with home.load("t").update_schema() as update:
        change(update)
    write(home, g=9.5)
    for policies in ({}, {"full": True}):
        with pytest.raises(
            InvalidQueryError, match=r"\* in the query stood for .* at the snapshots to read: f of lake"
        ):
            home.refresh(options=RefreshOptions(**policies))
    assert home.read() == [{"k": 1, "f": 0.5, "unused": 7}]


def test_columns_behind_a_star_may_get_other_places_and_names(home: Lake) -> None:
    home.view(sql="SELECT * FROM t AS t")
    with home.load("t").update_schema() as update:
        moved(update)
    write(home, f=1.5)
    home.refresh()
    assert home.read() == [{"k": 1, "f": 0.5, "unused": 7}, {"k": 1, "f": 1.5, "unused": 7}]
    home.view("next", "SELECT * FROM t AS t")
    alter(home, lambda to: to.rename_column("f", "g"))
    write(home, g=2.5)
    home.refresh("sales.next")
    assert [row["f"] for row in home.read("sales.next")] == [0.5, 1.5, 2.5]


def replaced(home: Lake, name: str = "daily", **definition: Any) -> list[str]:
    """The names of a view's columns after a replace."""
    view = f"sales.{name}"
    create(home.catalog, view, Definition(**{"sql": None, **definition}), stager=home.stager, replace=True)
    home.refresh(view)
    assert [tuple(row) for row in home.read(view)][-1:] == [home.catalog.load(view).metadata.schema_.names]
    return [*home.catalog.load(view).metadata.schema_.names]


def test_a_query_that_is_given_again_has_the_present_columns_behind_its_star(home: Lake) -> None:
    """Names that were chosen for the view stay, as long as the query has as many columns."""
    star = "SELECT * FROM t AS t"
    home.view(sql=star)
    home.view("chosen", star, columns=["a", "b", "c"])
    home.plain_view("plain", "SELECT k, f FROM t AS t", ["k", "f"])
    home.view("over", "SELECT * FROM plain p")
    dropped = {"k": 1, "unused": 7}
    alter(home, lambda to: to.add_column("more", FloatType()))
    write(home, f=1.5, more=0.5)
    assert replaced(home) == ["k", "f", "unused"]
    assert replaced(home, sql=star + ";\n") == ["k", "f", "unused", "more"]
    alter(home, lambda to: to.delete_column("f"))
    write(home, more=2.5)
    assert replaced(home, "chosen", sql=star) == ["a", "b", "c"]
    with pytest.raises(InvalidQueryError, match=r"\* in the query stood for"):
        replaced(home, allow_stale_data=True)
    assert replaced(home, sql=star) == [*dropped, "more"]
    home.plain_view("plain", "SELECT k, unused, more FROM t AS t", [*dropped, "more"])
    assert replaced(home, "over", sql="SELECT * FROM plain p") == [*dropped, "more"]
    alter(home, lambda to: to.add_column("last", FloatType()))
    write(home, more=2.5, last=3.5)
    assert replaced(home, "chosen", sql=star) == [*dropped, "more", "last"]


def test_a_column_that_the_query_does_not_name_matters_only_to_the_policy_fail(home: Lake) -> None:
    view(home)
    home.view("strict", QUERY, properties={"airflow-mv.on-schema-change": "fail"})
    home.refresh("sales.strict")
    alter(home, lambda to: to.add_column("added", DoubleType()))
    assert observe(home.catalog, "sales.strict").freshness.state == State.FRESH
    alter(home, lambda to: to.delete_column("unused"))
    assert seen(home) == (State.FRESH, [Code.FRESH])
    assert observe(home.catalog, "sales.strict").freshness.state == State.INVALID
    with pytest.raises(
        RefreshRefusedError, match=r"the column unused was dropped, and airflow-mv\.on-schema-change is"
    ):
        home.refresh("sales.strict")
    table = home.load("t")
    table.append(pa.Table.from_pylist([{"k": 2, "f": 1.5}], schema=table.schema().as_arrow()))
    home.refresh("sales.strict", options=RefreshOptions(full=True))
    assert observe(home.catalog, "sales.strict").freshness.state == State.FRESH


def test_with_the_policy_rebuild_a_retyped_column_gives_the_view_a_new_version(home: Lake) -> None:
    view(home, "rebuild", column_comments={"k": "the key"})
    alter(home, CHANGES[Code.COLUMN_RETYPED][0])
    with pytest.raises(RefreshRefusedError, match="the type of the column f changed from float to double"):
        home.refresh()  # the snapshot has the old type, so there is nothing to rebuild
    write(home, f=0.1)
    home.action = refresh_views
    assert home.refresh().mode == Mode.FULL
    metadata = home.catalog.load(VIEW).metadata
    assert (metadata.current_version_id, metadata.schema_.fields[1]["type"]) == (2, "double")
    assert metadata.schema_.fields[0]["doc"] == "the key"
    assert seen(home)[0] == State.FRESH
    assert home.read() == [{"k": 1, "most": 0.5}]


def test_an_unknown_policy_is_an_error_that_names_the_property(home: Lake) -> None:
    with pytest.raises(ConfigurationError, match=r"on-schema-change: 'ignore' is not ignore-unused, rebuild or fail"):
        view(home, "ignore")


NAMED = (
    "SELECT f FROM t",
    "SELECT x.F AS g FROM lake.sales.t AS x",
    "SELECT 1 AS one FROM t WHERE `f` > 1",
    "SELECT k FROM t JOIN u USING (f)",
    "SELECT * FROM t",
    "SELECT u.k, t.* FROM t, u",
    "SELECT g FROM (SELECT f + 1 AS g FROM t) q",
    "SELECT count(*) AS n FROM u WHERE k IN (SELECT max(k) FROM t WHERE f = 1)",
    "SELECT f.x AS x FROM t",
    "SELECT t.f.x AS x FROM t",
    "SELECT k, sum(k) OVER (ORDER BY f) AS s FROM t",
)
NOT_NAMED = (
    "SELECT k FROM t",
    "SELECT u.f FROM t, lake.sales.u",
    "SELECT count(*) AS n FROM t",
    "SELECT u.*, t.k FROM t, u",
    "SELECT 'f' AS g FROM t",
    "SELECT f FROM u",
)


@pytest.mark.parametrize(("text", "named"), [*((text, True) for text in NAMED), *((text, False) for text in NOT_NAMED)])
def test_a_query_names_a_column_of_a_table(text: str, named: bool) -> None:
    query = parse_query(text, view="v", default_catalog="lake", default_namespace=("sales",))
    assert bool(uses_of_column(query, Identifier.parse("lake.sales.t"), "f", ("k", "f", "n"))) == named


USES = {
    "SELECT f['k'].a FROM t": {("k", "a")},
    "SELECT t.f[0].A.b, f.c FROM t": {(None, "a", "b"), ("c",)},
    "SELECT (f).a FROM t": {("a",)},
    "SELECT sales.t.f.a FROM t": {("a",)},
    "SELECT f.a, size(f) AS n FROM t": {("a",), ()},
    "SELECT f.* FROM t": {()},
    "SELECT transform(f, x -> x.a) AS a FROM t": {()},
    "SELECT f.a, to_json(struct(*)) AS j FROM t": {("a",), ()},
    "SELECT f.a FROM t NATURAL JOIN u": {("a",), ()},
    "SELECT count(*) AS n, max(f.a) AS a FROM t": {("a",)},
    "SELECT e.a, e.b.c FROM t LATERAL VIEW explode(f) x AS e": {(None, "a"), (None, "b", "c")},
    "SELECT e.a FROM t LATERAL VIEW OUTER posexplode(t.f.g) x AS p, e": {("g", None, "a")},
    "SELECT key FROM t LATERAL VIEW explode(f) x AS key, value": {()},
    "SELECT f.a FROM t LATERAL VIEW explode(f) f AS f": {(), ("a",)},
    "SELECT q.e FROM (SELECT f.a AS e FROM t) q": {("a",)},
}


@pytest.mark.parametrize("text", USES)
def test_the_accesses_of_a_query_to_a_nested_column(text: str) -> None:
    query = parse_query(text, view="v", default_catalog="lake", default_namespace=("sales",))
    assert uses_of_column(query, Identifier.parse("lake.sales.t"), "f", ("a",)) == USES[text]


def nested(number: int, *fields: Any) -> dict[str, Any]:
    """The field ``f`` of a schema: a struct with a map, a list and a number."""
    return {"id": number, "name": "f", "required": False, "type": {"type": "struct", "fields": list(fields)}}


def field(number: int, name: str, kind: Any = "int", **more: Any) -> dict[str, Any]:
    return {"id": number, "name": name, "required": False, "type": kind, **more}


def struct(*fields: Any) -> dict[str, Any]:
    return {"type": "struct", "fields": list(fields)}


def map_of(key: int, value: int, kind: Any, *, of: str = "string") -> dict[str, Any]:
    return {"type": "map", "key-id": key, "key": of, "value-id": value, "value": kind, "value-required": False}


def list_of(element: int, kind: Any) -> dict[str, Any]:
    return {"type": "list", "element-id": element, "element": kind, "element-required": False}


THEN = nested(1, field(2, "m", map_of(3, 4, struct(field(5, "a")))), field(6, "l", list_of(7, struct(field(8, "p")))))
ADDED = nested(
    1,
    field(9, "z"),
    field(6, "l", list_of(7, struct(field(10, "z"), field(8, "p", doc="a price")))),
    field(2, "m", map_of(3, 4, struct(field(5, "a"), field(11, "z")))),
)
A, P = ("m", "k", "a"), ("l", None, "p")


@pytest.mark.parametrize(
    ("now", "uses", "same"),
    [
        (ADDED, {A, P, ("l", "p")}, True),
        (ADDED, {()}, False),
        (ADDED, {A, ("m",)}, False),
        (ADDED, {("m", "k")}, False),
        (nested(1, field(2, "m", map_of(3, 4, struct(field(12, "a"))))), {A}, False),  # dropped and added again
        (nested(1, field(2, "m", map_of(3, 4, struct(field(5, "b"))))), {A}, False),
        (nested(1, field(2, "m", map_of(3, 4, struct(field(5, "a", "long"))))), {A}, False),
        (nested(1, field(2, "m", map_of(3, 13, struct(field(5, "a"))))), {A}, False),
        (nested(1, field(2, "m", map_of(3, 4, struct(field(5, "a")), of="int"))), {A}, False),
        (nested(1, field(2, "m", map_of(3, 4, struct(field(5, "a"))))), {A}, True),
        (nested(1, field(2, "m", map_of(3, 4, struct(field(5, "a"))))), {P}, False),
        (nested(1, field(2, "m", map_of(3, 4, struct(field(5, "a"), field(14, "A"))))), {A}, False),
        (nested(15, *THEN["type"]["fields"]), {A}, False),
        (field(1, "f", "string"), {A}, False),
    ],
)
def test_a_nested_column_is_the_same_for_a_query_if_the_fields_that_it_reads_are(
    now: dict[str, Any], uses: set[Any], same: bool
) -> None:
    assert is_same_for(THEN, now, uses) == same
    assert is_same_for(now, THEN, uses) == same
