# SPDX-License-Identifier: Apache-2.0
"""A process that looks at all views once, as Airflow's processes do, and writes what that has cost.

``python -m benchmarks.looks LOOK FILE VIEWS [--count]``. The file gets the seconds of CPU until Airflow is imported,
and with ``--count`` the queries and the metadata files, which takes time itself.
"""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import suppress
from pathlib import Path


def status(_: int) -> None:
    """``airflow-mv status --all``, as a command."""
    from airflow_mv.cli.main import main

    with suppress(SystemExit):
        main(["status", "--all", "lake", "--json"])


def alerts(views: int) -> None:
    """The check of a task of ``freshness_alerts_dag``."""
    from airflow_mv.extras.fleet.alerts import freshness_slos
    from airflow_mv.operators import FreshnessAlertOperator

    operator = FreshnessAlertOperator(task_id="late", namespace="lake", max_staleness="1 h")
    found = [slo for watched in operator.watched() for slo in freshness_slos(watched, None)]
    assert len(found) == views


def sensors(views: int) -> None:
    """The first period of a triggerer that has just started, with a sensor for each view."""
    from airflow_mv.hooks import MaterializedViewHook
    from airflow_mv.triggers.views import FreshnessRequest, ViewFreshness, read_views

    found = read_views(
        MaterializedViewHook(), {FreshnessRequest(f"lake.bench.v{number}"): None for number in range(views)}
    )
    assert all(isinstance(result, ViewFreshness) for result in found.values())


def page(views: int) -> None:
    """The first look at the page of an api-server that has just started."""
    from airflow_mv.hooks import MaterializedViewHook
    from airflow_mv.plugin.survey import Survey

    hook = MaterializedViewHook()
    properties_of = hook.connection.properties_from("lake")
    found = Survey("lake", lambda: hook.catalog_named("lake"), 3600, properties_of=properties_of).found(wait=600)
    assert (len(found.rows), found.looking) == (views, None)


LOOKS = {look.__name__: look for look in (status, alerts, sensors, page)}


def _count() -> dict[str, int]:
    from sqlalchemy import Engine, event

    from airflow_mv.core.catalog.files import MetadataFiles

    counts, inner = {"queries": 0, "files": 0}, MetadataFiles.read

    def query(*_: object) -> None:
        counts["queries"] += 1

    def read(files: MetadataFiles, location: str, *, what: str) -> bytes:
        counts["files"] += 1
        return inner(files, location, what=what)

    event.listen(Engine, "before_cursor_execute", query)
    MetadataFiles.read = read  # type: ignore[method-assign]
    return counts


def main(look: str, file: str, views: str, *options: str) -> None:
    """Look once."""
    if look != "status":
        import airflow.sdk
        import airflow.triggers.base  # noqa: F401
    found: dict[str, float] = {"airflow": time.process_time()}
    counts = _count() if options else {}
    LOOKS[look](int(views))
    Path(file).write_text(json.dumps({**found, **counts}))
    if look != "status":
        os._exit(0)  # as Airflow ends the process of a task; the others go on


if __name__ == "__main__":
    main(*sys.argv[1:])
