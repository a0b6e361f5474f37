# SPDX-License-Identifier: Apache-2.0
"""Find stored rows once, with their files and positions, and delete them there: no stored row is read or written again.

Spark's DELETE would read the stored rows a second time and, where the storage table is copy-on-write, write all rows of
each file that has one of them. Readers pay for deleted rows, so this is for few of them: before too many rows of some
files are deleted, a DELETE writes the files without them.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from airflow_mv.core.job.context import JobContext, incomparable, list_of
from airflow_mv.core.job.gather import PLACE
from airflow_mv.core.job.session import settings_below
from airflow_mv.core.script import SNAPSHOT_PROPERTY
from airflow_mv.core.spec.identifiers import quote

#: The driver holds the places of at most so many rows, in at most so many files.
_MAX_ROWS, _MAX_FILES = 200_000, 200
#: From so many delete files on, those of a data file are merged; at most so many may also apply to other data files.
_MERGED, _MAX_SHARED = 5, 10
#: Of more than so many rows at most one in ten of all stored rows is deleted by position.
_ANY_SHARE, _ONE_IN = 1_000, 10
#: Of the rows of the files at most this share is deleted, as in Iceberg's ``rewrite_data_files`` by default.
_MAX_DELETED = 0.3


@dataclass(frozen=True, slots=True)
class Located:
    """Stored rows that the driver holds, with their places.

    Args:
        view: Quoted name of a relation with the columns that were asked for, of these rows.
        places: A Java list with the place of each.
        deletes: The Java helper that deletes them.
    """

    view: str
    places: Any
    deletes: Any

    def delete(self, context: JobContext) -> None:
        """Delete the rows from the storage table, in one commit."""
        if self.places.size():
            summary = context.java.find("java.util.HashMap")()
            for key, value in settings_below(context.spark, SNAPSHOT_PROPERTY).items():
                summary.put(key, value)
            self.deletes.commit(self.places, summary, _MERGED)


def position_deletes(context: JobContext, table: str, columns: Sequence[str], keys: Sequence[str]) -> Any:
    """Plan the storage table, to delete rows by position.

    Args:
        table: Its quoted name, perhaps with a branch.
        columns: The columns that are wanted of the rows.
        keys: Those whose bounds are wanted.

    Returns:
        The Java helper; ``None`` if rows are to be deleted by a statement.
    """
    if context.jvm is None or {name.lower() for name in columns} & set(PLACE):
        return None
    stored = context.java.stored(table, context.branch)
    if not (_allows(stored) and context.java.compiles("PositionDeletes", stored)):
        return None
    return context.java.helper("PositionDeletes", stored, context.branch, list_of(context, keys))


def locate(context: JobContext, deletes: Any, rows: str) -> Located | None:
    """Find stored rows; ``None`` if they are to be deleted by a statement.

    Args:
        deletes: What :func:`position_deletes` returned.
        rows: A query for the rows: the wanted columns, then :data:`PLACE`.
    """
    frame = context.query(rows)
    # Maps change their order in the driver.
    found = context.collect_locally(frame, _MAX_ROWS) if incomparable(frame.schema, ("map",)) is None else None
    if found is None:
        return None
    places = found.frame.select(*PLACE)._jdf.collectAsList()
    many = found.rows > max(_ANY_SHARE, deletes.rows() // _ONE_IN)
    if many or not deletes.suits(places, _MAX_FILES, _MAX_SHARED, _ANY_SHARE, _MAX_DELETED):
        return None
    view = quote(f"airflow_mv_stored_{uuid.uuid4().hex[:12]}")
    context.view(view, found.frame.drop(*PLACE))
    return Located(view, places, deletes)


def _allows(table: Any) -> bool:
    """Whether a storage table may get delete files: its owner has not asked for other ones, or for none."""
    properties = table.properties()
    formats = (properties.get("write.format.default"), properties.get("write.delete.format.default"))
    return properties.get("write.delete.mode") != "copy-on-write" and not {*formats} - {None, "parquet"}
