# SPDX-License-Identifier: Apache-2.0
"""Base tables and their changes."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.core.spec.materialized_view import NO_SNAPSHOT

if TYPE_CHECKING:
    from tests.protocol.simulation.world import World


@dataclass
class BaseTable:
    """A base table of one name; its history is longer than what the table's metadata retains.

    Args:
        identifier: Its name.
        uuid: A table that is dropped and recreated has a new one.
        snapshots: The retained snapshots by id, oldest first.
        head: The current snapshot, or :data:`NO_SNAPSHOT`.
        heads: All current snapshots that the name has had, in order.
        rows: A number for the rows of each snapshot: a compaction has that of its parent.
        files: The number of written metadata files.
    """

    identifier: Identifier
    uuid: int = 0
    snapshots: dict[int, dict[str, Any]] = field(default_factory=dict)
    head: int = NO_SNAPSHOT
    heads: list[int] = field(default_factory=lambda: [NO_SNAPSHOT])
    rows: dict[int, int] = field(default_factory=lambda: {NO_SNAPSHOT: 0})
    files: int = 0

    @property
    def location(self) -> str:
        """The table's folder."""
        return f"s3://w/{self.identifier.name}-{self.uuid}"

    def commit(self, world: World, operation: str) -> None:
        """Add a snapshot: ``append``, ``overwrite``, or ``replace`` for a compaction."""
        number = world.next_snapshot()
        parent = None if self.head == NO_SNAPSHOT else self.head
        self.snapshots[number] = {
            "snapshot-id": number, "sequence-number": number, "timestamp-ms": world.now,
            **({"parent-snapshot-id": parent} if parent else {}), "summary": self._summary(operation),
        }  # fmt: skip
        self.rows[number] = self.rows[self.head] if operation == "replace" else number
        self._move(world, number)

    def _summary(self, operation: str) -> dict[str, str]:
        """Describe a commit of one file with one row, which replaces another one unless it is appended."""
        before = int(self.snapshots.get(self.head, {}).get("summary", {}).get("total-records", 0))
        removed = 0 if operation == "append" else min(1, before)
        added = removed if operation == "replace" else 1
        found = {"operation": operation, "total-delete-files": "0"}
        for what in ("records", "data-files"):
            numbers = {f"added-{what}": added, f"deleted-{what}": removed, f"total-{what}": before + added - removed}
            found |= {key: str(number) for key, number in numbers.items()}
        return found

    def roll_back(self, world: World) -> bool:
        """Make an older retained snapshot current again; return whether there is one."""
        parent = self.snapshots.get(self.head, {}).get("parent-snapshot-id")
        if parent not in self.snapshots:
            return False
        self._move(world, parent)
        return True

    def expire(self, world: World) -> bool:
        """Expire every snapshot but the current one; return whether there were others."""
        kept = {number: item for number, item in self.snapshots.items() if number == self.head}
        if len(kept) == len(self.snapshots):
            return False
        self.snapshots = kept
        self._write(world)
        return True

    def recreate(self, world: World) -> None:
        """Drop the table and create another one with its name, without rows."""
        self.uuid += 1
        self.snapshots = {}
        self._move(world, NO_SNAPSHOT)

    def forget_files(self, world: World) -> bool:
        """Delete the metadata files before the current one, as the table's own maintenance does."""
        current = world.rows[self.identifier].location
        old = [name for name in world.files if name.startswith(f"s3://w/{self.identifier.name}-") and name != current]
        for name in old:
            del world.files[name]
        return bool(old)

    def _move(self, world: World, head: int) -> None:
        self.head = head
        self.heads.append(head)
        self._write(world)

    def _write(self, world: World) -> None:
        from tests.protocol.simulation.world import Row

        self.files += 1
        name = f"{self.location}/metadata/{self.files:05d}.metadata.json"
        world.put(name, json.dumps(self._document(world)).encode())
        row = world.rows.get(self.identifier)
        world.rows[self.identifier] = Row(name, "TABLE", row.location if row else None)

    def _document(self, world: World) -> dict[str, Any]:
        return {
            "format-version": 2,
            "table-uuid": f"{self.identifier.name}-{self.uuid}",
            "location": self.location,
            "last-updated-ms": world.now,
            "current-schema-id": 0,
            "schemas": [],
            "current-snapshot-id": None if self.head == NO_SNAPSHOT else self.head,
            "snapshots": list(self.snapshots.values()),
        }
