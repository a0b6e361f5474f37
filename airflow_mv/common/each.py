# SPDX-License-Identifier: Apache-2.0
"""Results for each of several views or catalogs: a failure of one does not hide the others."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar, cast

from airflow_mv.errors import (
    CatalogUnavailableError,
    MaterializedViewError,
    StoreUnavailableError,
    UnexpectedError,
)

if TYPE_CHECKING:
    from airflow_mv.core.catalog import MaterializedViewCatalog
    from airflow_mv.core.spec.identifiers import Identifier

log = logging.getLogger(__name__)

K = TypeVar("K")
T = TypeVar("T")

#: If a catalog fails for so many views in a row, it does not respond: the next ones would also fail.
MAX_UNANSWERED = 3
#: Tables that a message names.
_NAMED = 5


@dataclass(frozen=True, slots=True)
class ItemResult(Generic[K, T]):
    """The result for one of several items: a view or a catalog.

    Args:
        value: What was computed; ``None`` after an error.
        error: The error; an :class:`UnexpectedError` has the original one as its cause.
    """

    item: K
    value: T | None = None
    error: MaterializedViewError | None = None

    def get(self) -> T:
        """Return the value.

        Raises:
            MaterializedViewError: The error.
        """
        if self.error is not None:
            unexpected = isinstance(self.error, UnexpectedError)
            raise (self.error.__cause__ if unexpected else None) or self.error
        return cast("T", self.value)


def for_each(items: Iterable[K], compute: Callable[[K], T]) -> Iterator[ItemResult[K, T]]:
    """Compute a value for each view or catalog. A failure of one item does not affect the others.

    All code that reads several views goes through here. It alone decides which errors belong to one item. The caller
    decides by the error's class what it means, and stops the iteration if the next items would also fail.

    Args:
        items: Their names.
        compute: Takes one of them.
    """
    for item in items:
        yield _computed(item, compute)


def _computed(item: K, compute: Callable[[K], T]) -> ItemResult[K, T]:
    try:
        return ItemResult(item, compute(item))
    except MaterializedViewError as error:
        return ItemResult(item, error=error)
    except Exception as error:
        log.exception("%s: unexpected error", item)
        unexpected = UnexpectedError(f"{item}: unexpected {type(error).__name__}; the log has its trace")
        unexpected.__cause__ = error
        return ItemResult(item, error=unexpected)


def while_answered(
    catalog: MaterializedViewCatalog, results: Iterable[ItemResult[Identifier, T]]
) -> Iterator[ItemResult[Identifier, T]]:
    """Yield results of views until their catalog has failed for several of them in a row.

    All code that reads the views of a whole catalog goes through here. A catalog of base tables, or a store, that does
    not respond is a fault of the views that need it.

    Raises:
        CatalogUnavailableError: The catalog does not respond: the next views would also fail.
    """
    unanswered = 0
    for result in results:
        yield result
        away = _own_error(catalog, result.item) if isinstance(result.error, CatalogUnavailableError) else None
        unanswered = 0 if away is None else unanswered + 1
        if away is not None and unanswered == MAX_UNANSWERED:
            raise away


def _own_error(catalog: MaterializedViewCatalog, view: Identifier) -> CatalogUnavailableError | None:
    """Return the error of the view's own catalog; ``None`` if only another catalog or a store does not respond."""
    (result,) = for_each([view], catalog.load)
    error = result.error
    return (
        error if isinstance(error, CatalogUnavailableError) and not isinstance(error, StoreUnavailableError) else None
    )


def left_out(catalog: MaterializedViewCatalog, namespace: tuple[str, ...] | None = None) -> list[StoreUnavailableError]:
    """Return an error for each store whose tables the listings of a catalog have left out.

    A view may be a table, so it is unknown whether such a table is a view. All code that lists the views of a catalog
    reports these errors.

    Args:
        namespace: Only the tables of this namespace.
    """
    from airflow_mv.core.catalog.store_deadlines import store_name  # only needed after a failure

    by_store: dict[str, list[tuple[Identifier, StoreUnavailableError]]] = {}
    for name, error in sorted(catalog.table_views.unread.items(), key=lambda item: item[0]):
        if isinstance(error, StoreUnavailableError) and namespace in (None, name.namespace):
            by_store.setdefault(store_name(error.location) or "", []).append((name, error))
    return [_left_out(found) for found in by_store.values()]


def _left_out(found: Sequence[tuple[Identifier, StoreUnavailableError]]) -> StoreUnavailableError:
    (_, first), *more = found
    text = f"{first}. It may be a view, and was left out"
    if more:
        names = ", ".join(f"{name} ({error.location})" for name, error in more[:_NAMED])
        others = f" and {len(more) - _NAMED} others" if len(more) > _NAMED else ""
        text = f"{text}; so were {names}{others} of the same store"
    return StoreUnavailableError(text, first.location)


def materialized_views(catalog: MaterializedViewCatalog, namespace: str | tuple[str, ...] | None) -> list[Identifier]:
    """List the materialized views of a namespace, including those with broken metadata. Plain views are left out.

    Args:
        catalog: Where the namespace is.
        namespace: The namespace, without its catalog; ``None`` for all of the catalog.

    Raises:
        NotFoundError: There is no such namespace.
        CatalogUnavailableError: The catalog does not respond.
    """
    found = []
    for result in for_each(catalog.list(namespace), catalog.load):
        raise_if_retryable(result.error)
        # If it cannot be read, its own refresh reports why.
        if result.value is None or result.value.settings is not None:
            found.append(result.item)
    return found


def raise_if_retryable(error: MaterializedViewError | None) -> None:
    """Raise an error that a retry of the whole run may fix, such as an unavailable catalog. No view causes it.

    A store that does not respond is a fault of the views that need it.
    """
    if error is not None and error.retryable and not isinstance(error, StoreUnavailableError):
        raise error
