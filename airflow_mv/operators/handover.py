# SPDX-License-Identifier: Apache-2.0
"""Hand a script to a driver elsewhere and take its outcome back, through files beside the storage table."""

from __future__ import annotations

import hashlib
import tempfile
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_mv.script import CreateStorageStep, Outcome, Script

if TYPE_CHECKING:
    from airflow_mv.catalog import MaterializedViewCatalog


def answerable(script: Script) -> Script:
    """Return the script with a place for its outcome; one that creates a storage table has none by itself."""
    if script.outcome_location is not None:
        return script
    location = next(step.location for step in script.steps if isinstance(step, CreateStorageStep))
    return replace(script, outcome_location=f"{location}/staged/{script.refresh_id}.json")


def write_script(catalog: MaterializedViewCatalog, script: Script) -> str:
    """Write a script beside its outcome, and take away what a failed try left there.

    Returns:
        Its location.
    """
    outcome_location = str(script.outcome_location)
    left = read_outcome(catalog, script)
    if left is not None and left.error is not None:
        catalog.files.delete(outcome_location)
    location = f"{outcome_location.removesuffix('.json')}.script.json"
    catalog.files.replace_text(location, script.to_json())
    return location


def read_outcome(catalog: MaterializedViewCatalog, script: Script) -> Outcome | None:
    """Read what the driver left; ``None`` where there is nothing, or nothing whole."""
    text = catalog.files.read_text(script.outcome_location) if script.outcome_location else None
    try:
        return Outcome.from_json(text) if text else None
    except ValueError:
        return None


def ship(catalog: MaterializedViewCatalog, folder: str) -> tuple[str, str]:
    """Put the job package into a folder of the view's store, once for each content.

    Returns:
        Locations of the main file and of the zip for ``--py-files``.
    """
    from airflow_mv.job.submit import build_package, main_file

    with tempfile.TemporaryDirectory(prefix="airflow-mv-") as scratch:
        package = build_package(Path(scratch)).read_bytes()
    main = main_file().read_bytes()
    digest = hashlib.sha256(package).hexdigest()[:12]
    locations = f"{folder}/airflow_mv_job-{digest}.py", f"{folder}/airflow_mv-{digest}.zip"
    for location, data in zip(locations, (main, package), strict=True):
        with suppress(FileExistsError):
            catalog.files.write(location, data)
    return locations
