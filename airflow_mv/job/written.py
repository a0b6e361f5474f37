# SPDX-License-Identifier: Apache-2.0
"""What a run has written, by the metadata of the table it wrote to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from airflow_mv.job.storage import literal
from airflow_mv.job.work import Work
from airflow_mv.script import Script

#: In the summary of each snapshot of a run: the refresh id.
STAMP = "airflow-mv.refresh-id"
_FIGURES = ("added-records", "deleted-records", "added-position-deletes")


def written(work: Work, table: str, script: Script) -> dict[str, Any]:
    """Return ``metadata_location``, ``rows_written`` and ``rows_deleted`` of an outcome.

    Args:
        work: The run's.
        table: The quoted name by which the session knows the table.
        script: What was run.
    """
    if work.jvm is None:
        location, summaries = _by_statements(work, table, script)
    else:
        location, summaries = _by_metadata(work.table(table), script)
    added, *removed = (sum(int(summary.get(key) or 0) for summary in summaries) for key in _FIGURES)
    return {"metadata_location": location, "rows_written": added, "rows_deleted": sum(removed)}


def _by_metadata(table: Any, script: Script) -> tuple[str, list[Mapping[str, str]]]:
    """A Spark statement takes longer than all that is asked here."""
    table.refresh()
    return str(table.operations().current().metadataFileLocation()), list(_own(table, script))


def _own(table: Any, script: Script) -> Iterator[Mapping[str, str]]:
    """Yield the summaries of the run's snapshots, the newest first; a delete of whole files carries no stamp."""
    snapshot = table.currentSnapshot() if script.branch is None else table.snapshot(script.branch)
    while snapshot is not None:
        summary = snapshot.summary()
        stamp = summary.get(STAMP)
        if stamp == script.refresh_id:
            yield summary
        elif stamp is not None:
            return  # of an earlier refresh, as is all before it
        snapshot = None if snapshot.parentId() is None else table.snapshot(snapshot.parentId())


def _by_statements(work: Work, table: str, script: Script) -> tuple[str, list[Mapping[str, str]]]:
    # In the log's order the current file is last. By timestamp it need not be: writers' clocks differ.
    location = str(work.query(f"SELECT file FROM {table}.metadata_log_entries").collect()[-1][0])
    rows = work.query(f"SELECT snapshot_id, parent_id, summary FROM {table}.snapshots").collect()
    if script.branch is not None:
        # Other runs of the same refresh have written to the table, too.
        name = literal(script.branch)
        refs = work.query(f"SELECT snapshot_id FROM {table}.refs WHERE name = {name}").collect()
        parents, own, snapshot = {row[0]: row[1] for row in rows}, set(), refs[0][0]
        while snapshot is not None:
            own.add(snapshot)
            snapshot = parents.get(snapshot)
        rows = [row for row in rows if row[0] in own]
    return location, [row[2] for row in rows if row[2].get(STAMP) == script.refresh_id]
