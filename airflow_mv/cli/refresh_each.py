# SPDX-License-Identifier: Apache-2.0
"""``airflow-mv refresh --namespace`` and ``--all``: every view on its own, in the order of their dependencies."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from airflow_mv.cli import show as render
from airflow_mv.cli.context import print_json, progress, this_user
from airflow_mv.common.each import for_each, left_out
from airflow_mv.core.spec.units import counted
from airflow_mv.errors import RefreshRefusedError

if TYPE_CHECKING:
    from airflow_mv.core.catalog import MaterializedViewCatalog
    from airflow_mv.core.refresh import RefreshOptions
    from airflow_mv.core.refresh.plan import RefreshResult
    from airflow_mv.core.spec.identifiers import Identifier
    from airflow_mv.errors import MaterializedViewError
    from airflow_mv.extras.spark.session import InProcessStager

_WHOLE = "only intervals of it were ever computed; a refresh of the namespace computes all its rows"


def refresh_each(
    catalog: MaterializedViewCatalog,
    views: Sequence[Identifier],
    options: RefreshOptions,
    stager: InProcessStager,
    *,
    as_json: bool,
    yes: bool = False,
) -> None:
    """Refresh views of one Spark application and one set of base snapshots; a failure does not stop the others.

    Args:
        yes: Recompute the views that have only separate intervals. Otherwise the user is asked, on a terminal.

    Raises:
        MaterializedViewError: The first failure, after all views. A table that was left out, since its store did not
            respond, is one.
    """
    from airflow_mv.actions import maintain_after_refresh, refresh_views
    from airflow_mv.core.freshness.state import SnapshotSet
    from airflow_mv.extras.pins import pin_base_tables

    refused = () if yes else _not_confirmed(catalog, views, options, as_json=as_json)
    pins = SnapshotSet()
    place = {str(view): number for number, view in enumerate(pin_base_tables(catalog, views).views if views else ())}
    ordered = sorted(views, key=lambda view: place.get(str(view), len(place)))

    def one(view: Identifier) -> RefreshResult:
        _require_confirmed(view, refused)
        (result,) = refresh_views(catalog, [view], stager=stager, options=options, pins=pins, requester=this_user())
        maintain_after_refresh(catalog, result.view, published=result.published, stager=stager, report=progress)
        return result

    errors: list[MaterializedViewError] = []
    documents = []
    for number, found in enumerate(for_each(ordered, one), 1):
        progress(f"{number} of {len(ordered)}: {found.item} {found.error or found.get().outcome}")
        if found.error is not None:
            errors.append(found.error)
            continue
        documents.append(found.get().to_dict())
        if not as_json:
            render.result(documents[-1])
    if as_json:
        print_json(documents)
    left = left_out(catalog)
    for error in left[0 if errors else 1 :]:
        progress(str(error))
    errors += left
    failed = len(ordered) - len(documents)
    counts = Counter(str(document["outcome"]) for document in documents) + Counter(failed=failed)
    summary = ", ".join(f"{count} {word}" for word, count in sorted(counts.items()))
    progress(f"{counted(len(ordered), 'view')}: {summary or 'none to refresh'}")
    if errors:
        raise errors[0]


def _not_confirmed(
    catalog: MaterializedViewCatalog, views: Sequence[Identifier], options: RefreshOptions, *, as_json: bool
) -> tuple[Identifier, ...]:
    """Return the views that have only separate intervals, unless the user wants all their rows."""
    if options.interval is not None:
        return ()
    found = for_each(views, lambda view: catalog.load_storage(catalog.load(view)).record)
    partial = tuple(item.item for item in found if item.value is not None and item.value.only_intervals)
    if not partial or as_json or not may_ask():
        return partial
    for view in partial:
        progress(f"view {view}: {_WHOLE}. {_instead(view)}")
    return () if click.confirm("Compute all rows of these views?", err=True) else partial


def _instead(view: Identifier) -> str:
    return f"`airflow-mv refresh {view} --interval START END` computes one interval"


def may_ask() -> bool:
    """Whether there is a terminal to answer a question."""
    return sys.stdin.isatty()


def _require_confirmed(view: Identifier, refused: Sequence[Identifier]) -> None:
    if view in refused:
        raise RefreshRefusedError(f"view {view}: {_WHOLE}, which needs --yes. {_instead(view)}")
