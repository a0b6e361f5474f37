# SPDX-License-Identifier: Apache-2.0
"""The kinds of base tables: how one is named in SQL, and the type of its record.

Source: "Iceberg Materialized View Spec", Design 1, section "Base table". A kind that is named by path also has a
reader in :mod:`airflow_mv.catalog.path_tables`, which finds its current state.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

#: A name by path has the format and the path, and perhaps one more part, such as ``branch_x``.
_PATH_PARTS = (2, 3)
_ABSOLUTE = re.compile(r"/|[A-Za-z][A-Za-z0-9+.-]*:/")
_SELECTOR = re.compile(r"(?P<kind>branch|tag|snapshot_id|at_timestamp)_(?P<value>.+)", re.DOTALL)
_NUMBER = re.compile(r"[0-9]{1,19}")


@dataclass(frozen=True, slots=True)
class BaseTableKind:
    """A kind of base tables.

    Args:
        type: The ``type`` of its record.
        data_source: The first part of its names in SQL, which are like ``iceberg.`/path/to/table```; empty if a name
            begins with a catalog.
        registered: Whether the job reads it through a metadata file, which it registers in its staging catalog.
            Otherwise Spark finds it by its own name.
    """

    type: str
    data_source: str = ""
    registered: bool = False


METASTORE = BaseTableKind("iceberg-metastore")
ICEBERG_BY_PATH = BaseTableKind("iceberg-filesystem", "iceberg", registered=True)
DELTA_BY_PATH = BaseTableKind("deltalake-filesystem", "delta")
#: The kinds that are named by path, by their format.
BY_FORMAT = {kind.data_source: kind for kind in (ICEBERG_BY_PATH, DELTA_BY_PATH)}
#: The format in the names of tables that are recorded with a type.
FORMATS = {kind.type: kind.data_source for kind in BY_FORMAT.values()}


def kind_of(parts: Sequence[str]) -> BaseTableKind:
    """Return the kind of the table that a name means.

    Args:
        parts: The parts of the name as written, without backticks.
    """
    by_path = len(parts) in _PATH_PARTS and _ABSOLUTE.match(parts[1])
    return BY_FORMAT.get(parts[0].lower(), METASTORE) if by_path else METASTORE


@dataclass(frozen=True, slots=True)
class Selector:
    """The part of a name that selects a state of a table, as in ``lake.sales.orders.branch_audit``.

    Args:
        kind: ``branch``, ``tag``, ``snapshot_id`` or ``at_timestamp``. Spark reads any branch or tag by either of the
            first two.
        value: The name of the branch or tag, the snapshot's id, or milliseconds since the epoch.
    """

    kind: str
    value: str

    @property
    def name(self) -> str:
        """The last part of the name."""
        return f"{self.kind}_{self.value}"

    @property
    def pins(self) -> bool:
        """Whether it always selects the same rows. A branch and a tag can be moved."""
        return self.kind in ("snapshot_id", "at_timestamp")


def selector_of(name: str) -> Selector | None:
    """Return what the last part of a name may select.

    Args:
        name: The part. A table may have such a name, too.
    """
    match = _SELECTOR.fullmatch(name)
    if match is None:
        return None
    found = Selector(match["kind"], match["value"])
    return None if found.pins and not _NUMBER.fullmatch(found.value) else found
