# SPDX-License-Identifier: Apache-2.0
"""What a change of a base table's columns would do to the views that read it, before the change is made."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from airflow_mv.core.catalog import MaterializedViewCatalog
from airflow_mv.core.freshness.observe import ChangedColumn, Observation
from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.core.spec.properties import on_schema_change
from airflow_mv.core.spec.reasons import Code, Reason
from airflow_mv.core.sql.types import spark_type, uses_in
from airflow_mv.errors import ConfigurationError, MaterializedViewError, NotFoundError, UnsupportedError
from airflow_mv.status import observe_each
from airflow_mv.words import did_you_mean

Effect = Literal["invalid", "rebuilt", "unaffected", "reads-invalid", "unknown"]
_DECIMAL = re.compile(r"decimal\((\d+), ?(\d+)\)")
#: The changes of a type that Iceberg makes in place. Source: Iceberg ``format/spec.md``, "Schema Evolution".
_PROMOTIONS = {("int", "bigint"), ("float", "double")}


@dataclass(frozen=True, slots=True)
class ColumnChange:
    """A change of one column.

    Args:
        kind: What is done.
        to: The new name or type.
    """

    kind: Literal["drop", "rename", "retype"]
    column: str
    to: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.column}{f' to {self.to}' if self.to else ''}"


@dataclass(frozen=True, slots=True)
class Impact:
    """What a change does to one view.

    Args:
        effect: ``invalid``: refreshes are refused until the query is adapted. ``rebuilt``: its property
            ``on-schema-change`` lets the next refresh analyse the query again and recompute all rows.
            ``reads-invalid``: it reads a view that becomes invalid or is rebuilt. ``unknown``: the view cannot be read.
        why: In a sentence.
        owner: The view property ``owner``.
    """

    view: Identifier
    effect: Effect
    why: str
    owner: str | None = None

    def to_dict(self) -> dict[str, str | None]:
        """Return the JSON form."""
        return {"view": str(self.view), "effect": self.effect, "why": self.why, "owner": self.owner}


@dataclass(frozen=True, slots=True)
class _Reader:
    """A view with what it reads, and how a change of the table concerns it."""

    view: Identifier
    reads: frozenset[Identifier]
    impact: Impact | None


def impact(catalog: MaterializedViewCatalog, table: str | Identifier, change: ColumnChange) -> list[Impact]:
    """Return what a change of a table's column does to each view of the catalog that reads it, also through views.

    Only metadata is read. A query that names the column without a table counts as reading it.

    Raises:
        NotFoundError: There is no such table or column.
        UnsupportedError: Iceberg does not make this change of a type.
    """
    name = catalog.identify(table)
    changed = _changed(name, _field(catalog, name, change.column), change)
    found: list[_Reader] = []
    impacts: list[Impact] = []
    for result in observe_each(
        catalog, catalog.list(), lambda seen: _reader(seen, name, changed), plain=lambda _: None
    ):
        if result.error is not None:
            impacts.append(Impact(result.item, "unknown", str(result.error)))
        elif result.value is not None:
            found.append(result.value)
    impacts += [item.impact for item in found if item.impact is not None]
    return sorted([*impacts, *_through(found)], key=lambda item: str(item.view))


def _field(catalog: MaterializedViewCatalog, table: Identifier, column: str) -> Mapping[str, Any]:
    located = catalog.locate([table]).get(table)
    if located is None or located.kind != "table":
        raise NotFoundError(f"there is no table {table}")
    fields = catalog.table_metadata(table, located).current_schema.get("fields", ())
    names = [str(item["name"]) for item in fields]
    found = next((item for item in fields if str(item["name"]).casefold() == column.casefold()), None)
    if found is None:
        raise NotFoundError(f"{table} has no column {column!r}{did_you_mean(column, names)}; it has {', '.join(names)}")
    return dict(found)


def _changed(table: Identifier, field: Mapping[str, Any], change: ColumnChange) -> ChangedColumn:
    """Return the column before and after the change, as a status would find it."""
    name = str(field["name"])
    if change.kind == "drop":
        return ChangedColumn(field, None, Reason(Code.COLUMN_DROPPED, f"{table}: the column {name} was dropped"))
    if change.kind == "rename":
        text = f"{table}: the column {name} was renamed to {change.to}"
        return ChangedColumn(field, None, Reason(Code.COLUMN_RENAMED, text))
    before, after = (
        spark_type(field["type"]),
        " ".join(change.to.casefold().split()).replace(",", ", ").replace(",  ", ", "),
    )
    after = {"long": "bigint", "integer": "int"}.get(after, after)
    if not _is_promotion(before, after):
        raise UnsupportedError(
            f"{table}: Iceberg does not change the type of {name} from {before} to {after} in place. It changes int to "
            "bigint, float to double, and a decimal to one of more digits and the same scale"
        )
    text = f"{table}: the type of the column {name} changed from {before} to {after}"
    return ChangedColumn(field, {**field, "type": change.to}, Reason(Code.COLUMN_RETYPED, text))


def _is_promotion(before: str, after: str) -> bool:
    one, two = _DECIMAL.fullmatch(before), _DECIMAL.fullmatch(after)
    if one and two:
        return one[2] == two[2] and int(one[1]) < int(two[1])
    return (before, after) in _PROMOTIONS


def _reader(seen: Observation, table: Identifier, changed: ChangedColumn) -> _Reader:
    view, properties = seen.view.identifier, seen.view.metadata.properties
    reads = frozenset(item.name for item in seen.tables)
    if table not in reads:
        return _Reader(view, reads, None)
    owner = properties.get("owner")
    queries = (
        (seen.query, seen.view.metadata.schema_.names),
        *((nested.query, nested.columns) for nested in seen.dependencies.views),
    )
    try:
        policy = on_schema_change(properties, view=str(view))
    except (ConfigurationError, MaterializedViewError) as error:
        return _Reader(view, reads, Impact(view, "unknown", str(error), owner))
    uses = uses_in(queries, table, changed.column)
    if policy != "fail" and not changed.matters(uses):
        return _Reader(view, reads, Impact(view, "unaffected", f"it does not read {changed.column}", owner))
    if policy == "rebuild":
        why = "on-schema-change is rebuild: the next refresh analyses its query again"
        return _Reader(view, reads, Impact(view, "rebuilt", why, owner))
    why = f"it reads {changed.column}" if uses else "on-schema-change is fail: every change of a column counts"
    return _Reader(view, reads, Impact(view, "invalid", why, owner))


def _through(readers: list[_Reader]) -> Iterator[Impact]:
    """Yield the views that read, also through others, a view that becomes invalid or is rebuilt."""
    concerned = {
        item.view for item in readers if item.impact is not None and item.impact.effect in ("invalid", "rebuilt")
    }
    reached = dict.fromkeys(concerned)
    own = {item.view for item in readers if item.impact is not None}
    more = True
    while more:
        more = False
        for item in readers:
            through = sorted(item.reads & reached.keys(), key=str)
            if through and item.view not in reached:
                reached[item.view], more = None, True
                if item.view not in own:
                    yield Impact(item.view, "reads-invalid", f"it reads {', '.join(map(str, through))}")
