# SPDX-License-Identifier: Apache-2.0
"""Changes to the product for the simulation: pure parsers cache their results, and few tries are enough."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest

from airflow_mv.core.catalog import locations
from airflow_mv.core.publish import protocol
from airflow_mv.core.spec import definition_text, materialized_view, table_metadata, view
from airflow_mv.core.sql import query
from airflow_mv.extras import compact
from airflow_mv.extras.maintenance import orphans
from tests.protocol.simulation import checks
from tests.protocol.simulation.world import GRACE

_PURE: tuple[Callable[..., Any], ...] = (
    view.parse_view,
    definition_text.parse_definition,
    table_metadata.parse_table,
    materialized_view.parse_settings,
    materialized_view.parse_storage_state,
    query.parse_query,
    locations.check_location,
    locations.allowed_folders,
    locations.check_confined,
)


#: How many tries a change has: few, so that giving up happens, too.
TRIES = 3


@contextmanager
def simulating() -> Iterator[None]:
    """Within this context the product parses the same bytes only once, gives up early and logs no warnings."""
    logging.disable(logging.WARNING)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(protocol, "TRIES", TRIES)
        patch.setattr(compact, "ROUNDS", 1)
        patch.setattr(compact, "MIN_FILES", 0)  # the content of manifests is not simulated
        patch.setattr(orphans, "DEFAULT_GRACE", timedelta(milliseconds=GRACE))
        patch.setattr(orphans, "past_files", checks.past_files)
        patch.setattr(orphans, "snapshot_files", checks.files_of)
        for original in _PURE:
            remembered = _remembering(original)
            for name, module in list(sys.modules.items()):
                if name.startswith("airflow_mv") and getattr(module, original.__name__, None) is original:
                    patch.setattr(module, original.__name__, remembered)
        yield
    logging.disable(logging.NOTSET)


def _remembering(original: Callable[..., Any]) -> Callable[..., Any]:
    known: dict[Any, Any] = {}

    def parse(*given: Any, **more: Any) -> Any:
        # Where a definition was read from only appears in messages: each commit leads to another file with it.
        named = {**more, "location": ""} if original is definition_text.parse_definition else more
        key = (*map(_key, given), *named.values())
        if key not in known:
            if len(known) > _MANY:
                known.clear()
            known[key] = original(*given, **more)
        return known[key]

    return parse


_MANY = 20_000


def _key(value: Any) -> Any:
    if isinstance(value, query.ParsedQuery):
        return value.text
    return tuple(sorted(value.items())) if isinstance(value, dict) else value
