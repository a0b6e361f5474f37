# SPDX-License-Identifier: Apache-2.0
"""Schema, partition spec and sort order that a job has added to a table when it wrote rows with other columns.

Source: Iceberg ``format/spec.md``, "Table Metadata Fields", and the REST specification's updates and requirements of a
table commit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from airflow_mv.errors import InvalidMetadataError


@dataclass(frozen=True, slots=True)
class NewColumns:
    """Rows with other columns, for one commit to the table. The values are as stored in metadata files.

    Args:
        schemas: The added schemas.
        schema_id: The new current schema.
        specs: The added partition specs.
        spec_id: The new default partition spec.
        snapshots: The added snapshots, oldest first. Their sequence numbers are those after the file that the job
            started from: see :meth:`fits`.
        required: What the table must have, because ids were assigned after it: ``current-schema-id``,
            ``last-column-id``, ``default-spec-id`` and ``last-partition-id``.
    """

    schemas: tuple[Mapping[str, Any], ...]
    schema_id: int
    specs: tuple[Mapping[str, Any], ...]
    spec_id: int
    snapshots: tuple[Mapping[str, Any], ...]
    required: Mapping[str, int]

    def fits(self, last_sequence_number: int) -> bool:
        """Whether no other snapshot was added to the table since, also on a branch.

        A table must have no snapshot with a higher sequence number than its last one, or Iceberg cannot read it.
        """
        return all(int(item.get("sequence-number", 0)) > last_sequence_number for item in self.snapshots)


_REQUIRED = ("current-schema-id", "last-column-id", "default-spec-id", "last-partition-id")


def new_columns(before: Mapping[str, Any], after: Mapping[str, Any], *, source: str) -> NewColumns:
    """Return what a job has added.

    Args:
        before: The decoded metadata file that the job started from.
        after: The one that it has written.

    Raises:
        InvalidMetadataError: A needed field is missing in one of them.
    """
    try:
        return NewColumns(
            _added(before, after, "schemas", "schema-id"),
            int(after["current-schema-id"]),
            _added(before, after, "partition-specs", "spec-id"),
            int(after["default-spec-id"]),
            _added(before, after, "snapshots", "snapshot-id"),
            {key: int(before[key]) for key in _REQUIRED if before.get(key) is not None},
        )
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidMetadataError(f"{source}: {type(error).__name__}: {error}") from None


def _added(before: Mapping[str, Any], after: Mapping[str, Any], key: str, name: str) -> tuple[Mapping[str, Any], ...]:
    known = {item[name] for item in before.get(key, ())}
    return tuple(item for item in after.get(key, ()) if item[name] not in known)
