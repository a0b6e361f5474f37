# SPDX-License-Identifier: Apache-2.0
"""The process whose power is cut: it creates a view, and refreshes, rolls back, compacts and maintains it with Spark.

Before each commit of the database it writes a file with all rows that the commit leaves.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, event

from airflow_mv.core.catalog import MaterializedViewCatalog
from airflow_mv.extras import compact as compaction
from airflow_mv.extras.compact import compact
from airflow_mv.extras.history.rollback import rollback
from airflow_mv.extras.maintenance.orphans import maintain
from tests.engine.support import LAKE, Lake, configure, open_spark

QUERY = "SELECT day, sum(amount) AS amount, count(*) AS rows FROM {ns}.orders GROUP BY day"
NAMESPACE = "cut"


def main(folder: str, layout: Any) -> None:
    """Run all commands once.

    Args:
        folder: Has the warehouse and the database.
        layout: The view's layout.
    """
    home, marks = Path(folder), Path(folder, "marks")
    marks.mkdir()
    configure(home, LAKE)
    catalog = MaterializedViewCatalog(LAKE)
    lake = Lake(open_spark(catalog), catalog, NAMESPACE)
    lake.files.create_namespace(NAMESPACE)
    lake.table("orders", "day integer, amount bigint", "(1, 10), (2, 20), (3, 5)")
    os.sync()  # what other programs have made is on disk
    number = 0

    def mark(connection: Connection) -> None:
        nonlocal number
        if not str(connection.engine.url.database).endswith(f"{LAKE}.db"):
            return
        number += 1
        found = connection.exec_driver_sql("SELECT * FROM iceberg_tables").mappings().fetchall()
        (marks / f"{number:03d}").write_text(json.dumps([dict(row) for row in found]))

    event.listen(Engine, "commit", mark)
    lake.create("daily", QUERY, layout=layout, refresh_strategy="incremental", time_travel=True, partition_by=("day",))
    first = lake.refresh("daily")
    for rows in ("(2, 1), (4, 7)", "(4, 1)", "(5, 2)"):
        lake.insert("orders", rows)
        lake.refresh("daily")
    rollback(catalog, lake("daily"), first.refresh_id or "")
    lake.refresh("daily", full=True)
    compaction.MIN_FILES = 0
    compact(catalog, lake("daily"), stager=lake.stager)
    shutil.copytree(home / LAKE, home / "before")  # maintenance deletes files that earlier cuts leave
    maintain(catalog, lake("daily"), older_than=timedelta(0))
    lake.spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
