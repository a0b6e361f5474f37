# SPDX-License-Identifier: Apache-2.0
"""Explain how a view would be refreshed, before it is created or at any time later. Reads metadata only."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from airflow_mv.core.catalog import LoadedView, MaterializedViewCatalog
from airflow_mv.core.define.definition import AcceptQuery
from airflow_mv.core.freshness.changes import UNCHANGED
from airflow_mv.core.freshness.state import ObservedTable
from airflow_mv.core.refresh.candidates import BaseTableInput
from airflow_mv.core.refresh.incremental import kept_columns
from airflow_mv.core.refresh.inputs import ResolvedQuery, resolve_query
from airflow_mv.core.refresh.plan import StoredCost
from airflow_mv.core.refresh.statements import place_names
from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.core.spec.properties import Policy
from airflow_mv.core.spec.reasons import Code, Mode, Reason
from airflow_mv.core.spec.units import counted
from airflow_mv.core.sql.query import ParsedQuery, spark_sql
from airflow_mv.core.sql.types import columns_of, required_columns
from airflow_mv.errors import MaterializedViewError, UnsupportedError
from airflow_mv.extras.explain.advice import Advice, advise
from airflow_mv.extras.explain.mistakes import refuse_mistakes
from airflow_mv.extras.explain.prospects import Forecast, QueryInputs, output_types, prospects
from airflow_mv.extras.explain.requirement import Requirement

log = logging.getLogger(__name__)

#: Codes of reasons that introduce others, or compare costs: they do not say why a cheaper mode is impossible.
_NOT_CAUSES = frozenset({Code.INCREMENTAL_UNAVAILABLE, Code.INCREMENTAL, Code.COST})


@dataclass(frozen=True, slots=True)
class Explanation:
    """How a view would be refreshed.

    Args:
        view: The view, or the place where the query's short names are resolved.
        columns: Name and Spark type of each column; ``None`` for a type that only Spark knows.
        prospects: What a refresh would do after each kind of change of each base table.
        advice: A query of the same columns with cheaper refreshes, if there is one.
        notes: What the answer assumes.
    """

    view: Identifier
    sql: str
    columns: tuple[tuple[str, str | None], ...]
    prospects: tuple[Forecast, ...]
    advice: Advice | None
    notes: tuple[str, ...]

    def __repr__(self) -> str:
        full = sum(item.mode == Mode.FULL for item in self.prospects)
        cheaper = ", a cheaper query is known" if self.advice else ""
        changes = counted(len(self.prospects), "kind") + " of changes"
        return f"<explanation of {self.view}: {changes}, {full} of them lead to a full refresh{cheaper}>"

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "view": str(self.view),
            "sql": self.sql,
            "columns": [{"name": name, "type": kind} for name, kind in self.columns],
            "prospects": [item.to_dict() for item in self.prospects],
            "advice": None if self.advice is None else self.advice.to_dict(),
            "notes": list(self.notes),
        }

    @property
    def why_full(self) -> list[str]:
        """Why refreshes recompute all rows and what would change that, in at most two sentences; empty if none does."""
        recomputed = [item for item in self.prospects if item.possible == Mode.FULL]
        if not recomputed:
            return []
        changes = ", ".join(dict.fromkeys(str(item.change) for item in recomputed))
        tables = ", ".join(dict.fromkeys(str(item.table) for item in recomputed))
        lines = [f"all rows are recomputed after {changes} of {tables}: {'; '.join(_causes(recomputed))}"]
        if self.advice is not None:
            sql = " ".join(self.advice.sql.split())
            lines.append(f"this query would need it less often: {sql} ({'; '.join(self.advice.differs)})")
        return lines


def explain(
    catalog: MaterializedViewCatalog,
    view: str | Identifier,
    sql: str | None = None,
    *,
    context: Identifier | None = None,
    advice: bool = True,
) -> Explanation:
    """Return how a view would be refreshed, and a query with cheaper refreshes. No Spark runs.

    Args:
        catalog: Where the view is, or would be.
        view: Its name; with ``sql`` it need not exist.
        sql: A query; ``None``: that of the existing view.
        context: A view in whose catalog and namespace the query's short names are resolved; by default this one.
        advice: Whether to look for a query with cheaper refreshes.

    Raises:
        InvalidQueryError: The query cannot be read, or Spark would refuse it.
        BaseTableNotFoundError: A base table cannot be read.
        NotMaterializedError: Without ``sql``: the view is a plain one.
    """
    identifier = catalog.identify(view)
    if sql is None:
        return _of_view(catalog, catalog.load(identifier), advice=advice)
    resolved = resolve_query(catalog, sql, None, context or identifier, view=str(identifier))
    setting = _setting(resolved, str(identifier))
    refuse_mistakes(resolved, setting.relations)
    output = output_types(setting, resolved.query)
    size = "until the view is refreshed, its size is estimated from its base tables"
    if isinstance(output, Reason):
        # Each prospect has the reason, whatever the columns are.
        return _explanation(identifier, setting, resolved.query, (), (size,), advice=advice)
    return _explanation(identifier, setting, resolved.query, output, (size, *_unknown(output)), advice=advice)


def _of_view(catalog: MaterializedViewCatalog, loaded: LoadedView, *, advice: bool) -> Explanation:
    name, metadata, storage = str(loaded.identifier), loaded.metadata, catalog.load_storage(loaded)
    columns = metadata.schema_.names
    resolved = resolve_query(catalog, spark_sql(metadata, view=name), columns, loaded.context, view=name)
    setting = _setting(resolved, name)
    setting = replace(setting, policy=Policy.of(metadata.properties, view=name))
    notes = []
    if storage.record is None:
        notes.append("until the view is refreshed, its size is estimated from its base tables")
    else:
        size, rows = (read(storage.rows_snapshot) for read in (storage.table.bytes_at, storage.table.rows_at))
        if size is not None:
            setting = replace(setting, stored=StoredCost(size, rows or 0), factors=storage.record.factors)
    if loaded.materialized.refresh_strategy == "full":
        notes.append("the view's refresh strategy is full: this is what the strategy incremental would do")
    output = columns_of({"fields": metadata.schema_.fields})
    return _explanation(loaded.identifier, setting, resolved.query, output, notes, advice=advice)


def _setting(resolved: ResolvedQuery, view: str) -> QueryInputs:
    return QueryInputs(
        view=view,
        bases=tuple(_base(resolved, *pair) for pair in zip(resolved.dependencies.tables, resolved.tables, strict=True)),
        tables=resolved.metadata,
        views=resolved.dependencies.nested,
        pinned=lambda query: resolved.pin(query).sql,
    )


def _base(resolved: ResolvedQuery, identifier: Identifier, observed: ObservedTable) -> BaseTableInput:
    """Return an unchanged base table as it will be for the next refresh, whose snapshot has the current columns."""
    table = resolved.metadata[identifier]
    now, then = table.current_schema, table.schema_at(observed.head)
    return BaseTableInput(
        identifier=identifier,
        sql=place_names(resolved.places).sql.get(identifier, identifier.sql()),
        columns=columns_of(now),
        recorded=observed.head,
        target=observed.head,
        range=UNCHANGED,
        total_bytes=table.bytes_at(observed.head),
        kept=kept_columns(then, now),
        not_null=required_columns(then) & required_columns(now),
        has_row_ids=table.has_row_ids,
    )


def _explanation(
    view: Identifier,
    setting: QueryInputs,
    query: ParsedQuery,
    output: Sequence[tuple[str, str | None]],
    notes: Iterable[str],
    *,
    advice: bool,
) -> Explanation:
    found = prospects(setting, query, output)
    wanted = advice and any(item.possible in (Mode.REPLACE_KEYS, Mode.FULL) for item in found)
    helpful = advise(setting, query, found) if wanted else None
    return Explanation(view, query.text, tuple(output), found, helpful, tuple(notes))


def _unknown(output: Sequence[tuple[str, str | None]]) -> Iterator[str]:
    names = [name for name, kind in output if kind is None]
    if names:
        text = ", ".join(names)
        yield f"shows the worst case: without Spark the type of {text} cannot be resolved; add a CAST"


def _causes(items: Iterable[Forecast]) -> list[str]:
    return list(
        dict.fromkeys(reason.message for item in items for reason in item.reasons if reason.code not in _NOT_CAUSES)
    )


def why_recomputed(catalog: MaterializedViewCatalog, view: LoadedView) -> list[str]:
    """Return why refreshes of an incremental view recompute all rows, and what would change that; often empty."""
    if view.materialized.refresh_strategy == "full":
        return []
    try:
        if not explain(catalog, view.identifier, advice=False).why_full:
            return []
        return explain(catalog, view.identifier).why_full
    except MaterializedViewError as error:  # the view exists; what is said about it must not fail
        log.info("Could not predict the refresh modes of %s: %s", view.identifier, error)
        return []


# ------------------------------------------------------------------------------------ requirements
def accepts_modes(texts: Iterable[str]) -> AcceptQuery:
    """Return what refuses a query, or an existing view, whose refreshes would be more expensive than required.

    Args:
        texts: The requirements, as :meth:`Requirement.read` takes them.

    Raises:
        ConfigurationError: One of them is no requirement.
    """
    return partial(_require_modes, tuple(map(Requirement.read, texts)))


def _require_modes(
    requirements: Sequence[Requirement],
    catalog: MaterializedViewCatalog,
    view: Identifier,
    sql: str | None,
    *,
    context: Identifier | None,
) -> None:
    if not requirements:
        return
    if _broken(explain(catalog, view, sql, context=context, advice=False), requirements):
        require(explain(catalog, view, sql, context=context), requirements)


def _broken(explanation: Explanation, requirements: Sequence[Requirement]) -> list[Forecast]:
    return [item for item in explanation.prospects if not all(_meets(item, wanted) for wanted in requirements)]


def _meets(item: Forecast, wanted: Requirement) -> bool:
    return wanted.allows(item.change, item.possible)


def require(explanation: Explanation, requirements: Sequence[Requirement]) -> None:
    """Refuse a view whose refreshes would be more expensive than required.

    Args:
        explanation: How it would be refreshed.

    Raises:
        UnsupportedError: Says which refreshes, and why.
    """
    broken = _broken(explanation, requirements)
    if not broken:
        return
    found = "; ".join(f"{item.change} of {item.table} needs {item.possible}" for item in broken)
    wanted = ", ".join(map(str, requirements))
    why = "; ".join([*_causes(broken), *_unknown(explanation.columns)])
    advice = explanation.advice
    fits = advice is not None and all(_meets(item, each) for item in advice.prospects for each in requirements)
    text = f". This query would meet it: {' '.join(advice.sql.split())}" if advice is not None and fits else ""
    raise UnsupportedError(
        f"view {explanation.view} does not meet the requirement {wanted}: {found}, because {why}{text}"
    )
