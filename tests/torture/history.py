# SPDX-License-Identifier: Apache-2.0
"""The history of the pointer that publishes a view, recorded by the database itself, and its invariants."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pyarrow as pa
from pyiceberg.table import StaticTable
from sqlalchemy import Engine, text

from airflow_mv.core.catalog import LoadedView, stored_layout
from airflow_mv.core.catalog.tables import view_in_table
from airflow_mv.core.spec.table_metadata import TableMetadata, ancestors, parse_table
from tests.builders import Lake, State

_TABLE = (
    "CREATE TABLE pointer_history (number {serial}, name varchar(255), before varchar(1000), now varchar(1000), "
    "base varchar(1000))"
)
_NOTE = (
    "INSERT INTO pointer_history (name, before, now, base) VALUES (OLD.table_name, OLD.metadata_location, "
    "NEW.metadata_location, NEW.previous_metadata_location)"
)
_SQLITE = (
    _TABLE.format(serial="INTEGER PRIMARY KEY AUTOINCREMENT"),
    f"CREATE TRIGGER note AFTER UPDATE ON iceberg_tables BEGIN {_NOTE}; END",
)
_POSTGRES = (
    _TABLE.format(serial="serial PRIMARY KEY"),
    f"CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {_NOTE}; RETURN NEW; END $$",
    "CREATE TRIGGER note AFTER UPDATE ON iceberg_tables FOR EACH ROW EXECUTE FUNCTION note()",
)


@dataclass(frozen=True, slots=True)
class Move:
    """One change of a row's pointer, recorded by a trigger.

    Args:
        before: The pointer before it.
        now: The pointer after it.
        base: The pointer that the writer expected.
    """

    before: str
    now: str
    base: str


def watch(engine: Engine) -> None:
    """Let the database record every move of a view's or a table's pointer from now on."""
    with engine.begin() as connection:
        for statement in _SQLITE if engine.dialect.name == "sqlite" else _POSTGRES:
            connection.execute(text(statement))


def moves(engine: Engine, name: str = "daily") -> list[Move]:
    """All moves of a row since :func:`watch`, oldest first."""
    query = text("SELECT before, now, base FROM pointer_history WHERE name = :name ORDER BY number")
    with engine.connect() as connection:
        return [Move(*row) for row in connection.execute(query, {"name": name})]


def row_of(lake: Lake, name: str = "daily") -> str:
    """The row whose moves publish: that of the storage table or, if it is in no catalog, the view's own."""
    table = lake.catalog.load(f"sales.{name}").storage_table
    return name if table is None else table.name


def checked(lake: Lake, name: str = "daily", *, base: str = "orders") -> list[State]:
    """Check a view's complete history, and return the states that readers got.

    Nothing lost: each move starts where the one before ended, from the base that its writer named. Nothing
    duplicated: file names and refresh ids are unique. Nothing missing: every file exists and is readable. No going
    back: a refresh never has older base snapshots than the one before. Content: the rows of every refresh are
    the query's at the snapshots that it recorded.
    """
    for row in {name, row_of(lake, name)}:
        found = moves(lake.iceberg.engine, row)
        assert [move for move in found if move.base != move.before] == []
        assert [pair for pair in pairwise(found) if pair[0].now != pair[1].before] == []
        locations = [found[0].before, *(move.now for move in found)] if found else []
        assert [name for name, count in Counter(locations).items() if count > 1] == []
    states = states_of(lake, name)
    now = lake.catalog.load(f"sales.{name}")
    assert not states or lake.catalog.load_storage(now).location == states[-1].storage.location
    refreshes = published(states)
    _check_identity(refreshes)
    _check_order(lake, refreshes, base)
    for state in refreshes:
        check_content(lake, state, base)
    return states


def states_of(lake: Lake, name: str = "daily", *, since: int = 0) -> list[State]:
    """The states that readers got since a number of moves, with the state before the first of them."""
    row = row_of(lake, name)
    found = moves(lake.iceberg.engine, row)[since:]
    if not found:
        return []
    layout = stored_layout(lake.catalog.load(f"sales.{name}")).layout
    state = _pointed_state if layout == "pointed" else _table_state
    return [state(lake, name, location) for location in (found[0].before, *(move.now for move in found))]


def _pointed_state(lake: Lake, name: str, location: str) -> State:
    view = lake.catalog.load_at(lake.catalog.identify(f"sales.{name}"), location)
    return State(view, lake.catalog.load_storage(view))


def _table_state(lake: Lake, name: str, location: str) -> State:
    table = parse_table(lake.catalog.files.read(location, what="storage table file"), source=location)
    view = _holder(lake, name, location, table)
    folders = lake.catalog.folders.of(view)
    return State(view, stored_layout(view).opened(view, location, table, folders, what=location))


def _holder(lake: Lake, name: str, location: str, table: TableMetadata) -> LoadedView:
    """The view that a table holds, or the view beside it, which a refresh does not change."""
    return view_in_table(lake.catalog.identify(f"sales.{name}"), location, table) or lake.catalog.load(f"sales.{name}")


def published(states: list[State]) -> list[State]:
    """The states that a refresh made: those with another storage table than before."""
    made = [(before, now) for before, now in pairwise(states) if now.storage.base != before.storage.base]
    for before, now in made:
        # A refresh is computed on the state before it, and on no other.
        if now.storage.name is None:
            assert before.storage.location in {entry.metadata_file for entry in now.storage.table.metadata_log}
        else:
            line = {item.snapshot_id for item in ancestors(now.storage.table, now.storage.table.head)}
            assert before.storage.table.head in {*line, None}
    return [now for _, now in made]


def _check_identity(refreshes: list[State]) -> None:
    ids = Counter(state.record.refresh_id for state in refreshes if state.record)
    assert [refresh_id for refresh_id, count in ids.items() if count > 1] == [], "a refresh was published twice"
    assert sum(ids.values()) == len(refreshes)


def _check_order(lake: Lake, refreshes: list[State], base: str) -> None:
    numbers = {item.snapshot_id: item.sequence_number for item in lake.load(base).metadata.snapshots}
    seen = [numbers[snapshot_of(state)] for state in refreshes]
    assert seen == sorted(seen), "a refresh went back to an older base snapshot"


def snapshot_of(state: State) -> int:
    """The base snapshot of a state's rows."""
    assert state.record
    (snapshot_id,) = state.record.snapshots.values()
    return snapshot_id


def check_content(lake: Lake, state: State, base: str = "orders") -> None:
    """The stored rows are those of the query, as another engine computes them."""
    stored = StaticTable.from_metadata(state.storage.location).scan().to_arrow()
    assert counted(stored) == expected(lake, base, snapshot_of(state))


def expected(lake: Lake, base: str, snapshot_id: int) -> Counter[tuple[Any, ...]]:
    """The rows of the default query at a base snapshot."""
    rows = lake.load(base).scan(snapshot_id=snapshot_id).to_arrow()
    grouped = rows.group_by("region").aggregate([("id", "count"), ("amount", "sum")])
    return counted(grouped.select(["region", "id_count", "amount_sum"]))


def counted(rows: pa.Table) -> Counter[tuple[Any, ...]]:
    """Rows as a multiset."""
    return Counter(tuple(row.values()) for row in rows.to_pylist())
