# SPDX-License-Identifier: Apache-2.0
"""Results for each of several views or catalogs: a failure of one does not hide the others."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar, cast

from airflow_mv.errors import CatalogUnavailableError, MaterializedViewError, UnexpectedError

if TYPE_CHECKING:
    from airflow_mv.catalog import MaterializedViewCatalog
    from airflow_mv.spec.identifiers import Identifier

log = logging.getLogger(__name__)

K = TypeVar("K")
T = TypeVar("T")

#: If a catalog fails for so many views in a row, it does not respond: the next ones would fail, too.
MOST_UNANSWERED = 3


@dataclass(frozen=True, slots=True)
class ItemResult(Generic[K, T]):
    """The result for one of several items: a view or a catalog.

    Args:
        item: Its name.
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
    decides by the error's class what it means, and stops the iteration if the next items would fail, too.

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

    All code that reads the views of a whole catalog goes through here. A catalog of base tables that does not respond
    is a fault of the views that read it.

    Args:
        catalog: The catalog.
        results: The results.

    Raises:
        CatalogUnavailableError: The catalog does not respond: the next views would fail, too.
    """
    unanswered = 0
    for result in results:
        yield result
        away = _own_error(catalog, result.item) if isinstance(result.error, CatalogUnavailableError) else None
        unanswered = 0 if away is None else unanswered + 1
        if away is not None and unanswered == MOST_UNANSWERED:
            raise away


def _own_error(catalog: MaterializedViewCatalog, view: Identifier) -> CatalogUnavailableError | None:
    """Return the error of the view's own catalog; ``None`` if only the catalog of a base table does not respond."""
    (result,) = for_each([view], catalog.load)
    return result.error if isinstance(result.error, CatalogUnavailableError) else None
