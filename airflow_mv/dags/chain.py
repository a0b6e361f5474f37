# SPDX-License-Identifier: Apache-2.0
"""The views of a chain as a DAG file declares them, and their order, without access to a catalog.

A DAG file is read every few seconds, on a machine that may reach no catalog. So the order is derived from the file
itself: from the views' SQL, or from ``after``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.core.sql.order import in_order
from airflow_mv.errors import ConfigurationError

if TYPE_CHECKING:
    from airflow_mv.tasks.keywords import CreateKeywords, RefreshKeywords

_NO_TASK_ID = re.compile(r"[^\w-]+")
_TEMPLATE = ("{{", "{%")


@dataclass(frozen=True, slots=True)
class ChainedView:
    """One view of a chain.

    Args:
        name: ``catalog.namespace.name``.
        sql: Its query. With it, the chain creates a missing view, and derives what the view reads.
        after: Views of the chain that it reads and that cannot be derived from ``sql``: there is none, it is a
            template, or it reads them through plain views.
        refresh: Arguments of its ``RefreshMaterializedViewOperator``.
        create: Arguments of its ``CreateMaterializedViewOperator``.
    """

    name: str
    sql: str | None = None
    after: Sequence[str] = ()
    refresh: RefreshKeywords | None = None
    create: CreateKeywords | None = None


#: Views with their SQL, or with the views that they read. Or a list of names and :class:`ChainedView`.
Views = Mapping[str, str | Sequence[str]] | Sequence[str | ChainedView]


@dataclass(frozen=True, slots=True)
class Chain:
    """Views in order.

    Args:
        views: The views, each after those that it reads.
        reads: The views of the chain that each view reads.
    """

    views: Mapping[Identifier, ChainedView]
    reads: Mapping[Identifier, tuple[Identifier, ...]]

    @property
    def task_names(self) -> dict[Identifier, str]:
        """The views' task names: the view's name, with its namespace if there are several.

        Raises:
            ConfigurationError: Two views would have the same one.
        """
        single = len({(view.catalog, view.namespace) for view in self.views}) == 1
        names = {view: _NO_TASK_ID.sub("_", view.name if single else ".".join(view.parts[1:])) for view in self.views}
        for view, name in names.items():
            other = next(item for item in names if names[item] == name)
            if other != view:
                raise ConfigurationError(
                    f"views {other} and {view} would both have the task {name!r}: put them into separate chains"
                )
        return names


def read_chain(views: Views) -> Chain:
    """Put views in order.

    Args:
        views: See :data:`Views`.

    Raises:
        InvalidIdentifierError: A name is not full.
        InvalidQueryError: A view's SQL is not readable, or the views read each other in a cycle.
        ConfigurationError: A view is named twice, or ``after`` names a view outside the chain.
    """
    given = [_of_mapping(*item) for item in views.items()] if isinstance(views, Mapping) else [*map(_of_item, views)]
    named: dict[Identifier, ChainedView] = {}
    for view in given:
        identifier = Identifier.parse(view.name)
        if identifier in named:
            raise ConfigurationError(f"view {identifier} is named twice")
        named[identifier] = view
    if not named:
        raise ConfigurationError("a chain needs at least one view")
    reads = {identifier: _reads(identifier, view, named) for identifier, view in named.items()}
    return Chain({identifier: named[identifier] for identifier in in_order(reads)}, reads)


def _of_mapping(name: str, value: str | Sequence[str]) -> ChainedView:
    return ChainedView(name, sql=value) if isinstance(value, str) else ChainedView(name, after=tuple(value))


def _of_item(item: str | ChainedView) -> ChainedView:
    return item if isinstance(item, ChainedView) else ChainedView(item)


def _reads(view: Identifier, chained: ChainedView, views: Mapping[Identifier, ChainedView]) -> tuple[Identifier, ...]:
    before = [Identifier.parse(name) for name in chained.after]
    for name in before:
        if name not in views:
            raise ConfigurationError(f"view {view}: after names {name}, which is not a view of the chain")
    if chained.sql is not None and not any(mark in chained.sql for mark in _TEMPLATE):
        from airflow_mv.core.sql.query import base_tables, parse_query

        query = parse_query(chained.sql, view=str(view), default_catalog=view.catalog, default_namespace=view.namespace)
        before += [table for table in base_tables(query, {}).tables if table in views and table != view]
    return tuple(dict.fromkeys(before))
