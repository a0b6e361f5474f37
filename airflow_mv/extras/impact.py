# SPDX-License-Identifier: Apache-2.0
"""The effects of a change of a base table's columns on the views that read it, before the change is made."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from airflow_mv.common.status import observe_each
from airflow_mv.core.catalog import MaterializedViewCatalog
from airflow_mv.core.freshness.observe import ChangedColumn, Observation
from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.core.spec.properties import on_schema_change
from airflow_mv.core.spec.reasons import Code, Reason
from airflow_mv.core.sql.types import spark_type, uses_in
from airflow_mv.errors import MaterializedViewError, NotFoundError, UnsupportedError
from airflow_mv.foundation.words import did_you_mean

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
    """The effect of a change on one view.

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
    """A view with what it reads, and what the change does to it by itself; ``None`` if it does not read the table."""

    view: Identifier
    reads: frozenset[Identifier]
    impact: Impact | None
    owner: str | None


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
    return sorted([*impacts, *_with_readers(found)], key=lambda item: item.view)


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
    before, after = spark_type(field["type"]), _type_text(change.to)
    if not _is_promotion(before, after):
        raise UnsupportedError(
            f"{table}: Iceberg does not change the type of {name} from {before} to {after} in place. It changes int to "
            "bigint, float to double, and a decimal to one of more digits and the same scale"
        )
    text = f"{table}: the type of the column {name} changed from {before} to {after}"
    return ChangedColumn(field, {**field, "type": after}, Reason(Code.COLUMN_RETYPED, text))


def _type_text(written: str) -> str:
    """Return the name of a type as :func:`spark_type` writes it."""
    text = re.sub(r"\s*([(),])\s*", r"\1", written.strip().casefold()).replace(",", ", ")
    return {"long": "bigint", "integer": "int"}.get(text, text)


def _is_promotion(before: str, after: str) -> bool:
    one, two = _DECIMAL.fullmatch(before), _DECIMAL.fullmatch(after)
    if one and two:
        return one[2] == two[2] and int(one[1]) < int(two[1])
    return (before, after) in _PROMOTIONS


def _reader(seen: Observation, table: Identifier, changed: ChangedColumn) -> _Reader:
    reads = frozenset(item.name for item in seen.tables)
    owner = seen.view.metadata.properties.get("owner")
    own = _own_impact(seen, table, changed, owner) if table in reads else None
    return _Reader(seen.view.identifier, reads, own, owner)


def _own_impact(seen: Observation, table: Identifier, changed: ChangedColumn, owner: str | None) -> Impact:
    """Return what the change does to a view that reads the table."""
    view, properties = seen.view.identifier, seen.view.metadata.properties
    queries = (
        (seen.query, seen.view.metadata.schema_.names),
        *((nested.query, nested.columns) for nested in seen.dependencies.views),
    )
    try:
        policy = on_schema_change(properties, view=str(view))
    except MaterializedViewError as error:
        return Impact(view, "unknown", str(error), owner)
    uses = uses_in(queries, table, changed.column)
    if policy != "fail" and not changed.matters(uses):
        return Impact(view, "unaffected", f"it does not read {changed.column}", owner)
    if policy == "rebuild":
        why = "on-schema-change is rebuild: the next refresh analyses its query again"
        return Impact(view, "rebuilt", why, owner)
    why = f"it reads {changed.column}" if uses else "on-schema-change is fail: every change of a column counts"
    return Impact(view, "invalid", why, owner)


def _with_readers(views: Sequence[_Reader]) -> Iterator[Impact]:
    """Yield what the change does to each view by itself, or through the views that it reads."""
    found = {item.view: item.impact for item in views if item.impact is not None}
    concerned = {view for view, own in found.items() if own.effect in ("invalid", "rebuilt")}
    # In each round the views that read those of the round before; a chain has an end.
    while more := [item for item in views if item.view not in concerned and item.reads & concerned]:
        for item in more:
            through = ", ".join(sorted(item.reads & concerned))
            found[item.view] = Impact(item.view, "reads-invalid", f"it reads {through}", item.owner)
        concerned |= {item.view for item in more}
    yield from found.values()
