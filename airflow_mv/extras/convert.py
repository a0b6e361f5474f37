# SPDX-License-Identifier: Apache-2.0
"""Move a view to another layout. Rows, refresh records, settings, history and uuid stay."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from airflow_mv.core.catalog import (
    STORED_LAYOUTS,
    Layout,
    LoadedView,
    MaterializedViewCatalog,
    stored_layout,
    stored_table,
)
from airflow_mv.core.catalog.files import discard
from airflow_mv.core.catalog.sql import RowSwap
from airflow_mv.core.publish.layout import Converted, Entries, Unconverted
from airflow_mv.core.publish.layouts import LAYOUTS, layout_of_view
from airflow_mv.core.publish.protocol import Change, Effects, Verdict, commit
from airflow_mv.core.publish.refresh import Current, load_current
from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.core.spec.storage_settings import FORMAT_VERSION, STORAGE_PREFIX, storage_properties
from airflow_mv.core.sql.types import unknown_type
from airflow_mv.errors import AlreadyExistsError, CommitStateUnknownError, ConfigurationError, UnsupportedError

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Conversion:
    """The result of a conversion.

    Args:
        view: The view.
        layout: Its layout now.
        before: Its layout before.
    """

    view: Identifier
    layout: Layout
    before: Layout

    @property
    def changed(self) -> bool:
        """Whether it had another layout."""
        return self.layout != self.before

    def to_dict(self) -> dict[str, Any]:
        """Return what the command line prints."""
        return {"view": str(self.view), "layout": self.layout, "before": self.before}


def convert(
    catalog: MaterializedViewCatalog, view: str | Identifier, layout: Layout, *, effects: Effects | None = None
) -> Conversion:
    """Move a view to another layout, in one transaction of the catalog's database. No row is computed or copied.

    A refresh that was planned before is planned again. If the view has the layout already, nothing is changed; so a
    conversion can be repeated if its outcome is unknown.

    Args:
        catalog: Where the view is.
        view: The view.
        layout: The layout that it gets.
        effects: Clock, sleep and jitter.

    Raises:
        ConfigurationError: There is no such layout.
        UnsupportedError: The catalog cannot do it, or the view cannot have the layout.
        AlreadyExistsError: The name of the new storage table is taken.
        CommitConflictError, CommitStateUnknownError: See :func:`airflow_mv.core.publish.protocol.commit`.
    """
    identifier = catalog.identify(view)
    if layout not in STORED_LAYOUTS:
        raise ConfigurationError(f"there is no layout {layout!r}; there are: {', '.join(sorted(STORED_LAYOUTS))}")
    loaded = catalog.load(identifier)
    catalog.load_storage(loaded)
    before = stored_layout(loaded).name
    if before != layout:
        _ConvertView(catalog, loaded, layout, effects).publish()
        log.info("%s has the layout %s now, and had %s before", identifier, layout, before)
    return Conversion(identifier, layout, before)


class _ConvertView(Change[Current]):
    """The conversion of a view. It has landed if the view has the layout.

    Args:
        catalog: Where the view is.
        view: The view.
        layout: The layout that it gets.
        effects: Clock, sleep and jitter.
    """

    def __init__(
        self, catalog: MaterializedViewCatalog, view: LoadedView, layout: Layout, effects: Effects | None
    ) -> None:
        super().__init__(f"view {view.identifier}", f"its conversion to the layout {layout!r}", effects)
        self._catalog, self._view, self._uuid = catalog, view.identifier, view.metadata.view_uuid
        self._layout = layout
        self._base: Entries | None = None
        self._converted: Converted | None = None
        self._taken: AlreadyExistsError | None = None

    def load(self) -> Current:
        """Load the view and its storage table."""
        return load_current(self._catalog, self._view, self._uuid)

    def judge(self, state: Current) -> Verdict:
        """``SUPERSEDED`` if the name of the new storage table is taken."""
        if stored_layout(state.view).name == self._layout:
            return Verdict.LANDED
        if self._taken is not None:
            return Verdict.SUPERSEDED
        self._require_possible(state)
        return Verdict.READY

    def _require_possible(self, state: Current) -> None:
        """Refuse what cannot be converted.

        Raises:
            UnsupportedError: With the reason.
        """
        who = f"view {self._view} cannot get the layout {self._layout!r}"
        if not self._catalog.is_sql:
            raise UnsupportedError(
                f"{who}: the server of catalog {self._catalog.name!r} cannot swap a view and a table of one name in "
                "one step, and readers would find neither in between. Drop the view and create it with this layout, "
                "or create one of another name"
            )
        if self._layout not in self._catalog.layouts:
            raise UnsupportedError(f"{who}: catalog {self._catalog.name!r} does not support it")
        if state.view.adopted_at is not None:
            raise UnsupportedError(f"{who}: its table was adopted, and belongs to others under this name")
        if state.storage.record is None or state.storage.rows_snapshot is None:
            raise UnsupportedError(f"{who} before its first refresh: refresh it, or drop it and create it again")
        most = STORED_LAYOUTS[self._layout].max_format_version
        chosen = storage_properties(state.view.metadata.properties, view=str(self._view)).get(FORMAT_VERSION, "2")
        if max(state.storage.table.format_version, int(chosen)) > most:
            raise UnsupportedError(
                f"{who}: its storage table has a newer format version than {most}, or gets one by "
                f"{STORAGE_PREFIX}{FORMAT_VERSION}, and pyiceberg commits no newer one to a table of the catalog"
            )
        kind = unknown_type(state.storage.table)
        if kind is not None and not STORED_LAYOUTS[self._layout].swaps_pointers:
            raise UnsupportedError(
                f"{who}: a column has, or had, the type {kind}, with which pyiceberg cannot read a table of the catalog"
            )

    def send(self, state: Current) -> bool:
        """Write the new metadata files, once for each base, and swap the catalog's rows in one transaction."""
        base = layout_of_view(state.view).entries(state.view, state.storage)
        if self._converted is None or self._base != base:
            # The old base has moved: a swap from it can never be applied any more, so its files can be deleted.
            self._discard()
            self._converted, self._base = self._written(state), base
        after = self._converted.entries
        names = sorted({*base, *after})
        try:
            return self._catalog.pointers.swap_rows([RowSwap(name, base.get(name), after.get(name)) for name in names])
        except AlreadyExistsError as error:
            self._taken = error  # perhaps by an earlier copy: the next loaded state shows it
            return False

    def _written(self, state: Current) -> Converted:
        document = stored_table(self._catalog, state.view, state.storage)
        plain = layout_of_view(state.view).released(state.storage, document)
        source = Unconverted(state.view, state.storage, plain, self.effects.now_ms())
        return LAYOUTS[self._layout].converted(self._catalog, source)

    def may_land(self, state: Current) -> bool:
        """Whether the catalog's rows are as they were when the conversion was sent."""
        return layout_of_view(state.view).entries(state.view, state.storage) == self._base

    def clean_up(self) -> None:
        """Delete the written files. After a lost answer they stay: the taken name may become free, and a copy land."""
        if not self.unknown:
            self._discard()

    def _discard(self) -> None:
        converted, self._converted = self._converted, None
        for location in converted.files if converted is not None else ():
            discard(self._catalog.files, location)

    def publish(self) -> None:
        """Run the protocol."""
        if commit(self).verdict == Verdict.SUPERSEDED and self._taken is not None:
            if self.unknown:
                raise CommitStateUnknownError(
                    f"{self._taken}. Before that the catalog did not respond to the conversion ({self.unknown[-1]}), "
                    f"so {self._view} may still be converted; nothing was deleted, run it again to settle it"
                )
            raise self._taken
