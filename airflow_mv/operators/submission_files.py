# SPDX-License-Identifier: Apache-2.0
"""Pass a script to a remote driver and read its outcome, through files beside the storage table."""

from __future__ import annotations

import hashlib
import logging
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.errors import ConfigurationError, MaterializedViewError

if TYPE_CHECKING:
    from airflow_mv.core.catalog import MaterializedViewCatalog
    from airflow_mv.core.catalog.files import StoredFile
    from airflow_mv.core.script import Script

log = logging.getLogger(__name__)


@contextmanager
def handed_over(catalog: MaterializedViewCatalog, script: Script) -> Iterator[Script]:
    """Yield the script with a location for its outcome; script and outcome of a creation are deleted at the end.

    A script that creates a storage table has no such location by itself. Where a server chooses the folders of tables,
    an empty table of the catalog gives one for the time of the run, with the server's access to it.
    """
    from airflow_mv.core.script import CreateStorageStep

    if script.outcome_location is not None:
        yield script
        return
    folder = next(step.location for step in script.steps if isinstance(step, CreateStorageStep))
    if folder is not None:
        with _answered_in(catalog, script, folder) as answered:
            yield answered
        return
    view = catalog.identify(script.view)
    name = Identifier(view.catalog, view.namespace, f"{view.name[:200]}__script_{script.refresh_id[:8]}")
    with _temporary_table(catalog, name, view) as location, _answered_in(catalog, script, location) as answered:
        yield replace(answered, stored=name.sql())


@contextmanager
def _answered_in(catalog: MaterializedViewCatalog, script: Script, folder: str) -> Iterator[Script]:
    """Yield the script with a location for its outcome in a folder, and delete both files at the end."""
    from airflow_mv.core.catalog.files import discard
    from airflow_mv.core.script import script_beside

    found = replace(script, outcome_location=f"{folder}/staged/{script.refresh_id}.json")
    try:
        yield found
    finally:
        for file in (str(found.outcome_location), script_beside(str(found.outcome_location))):
            discard(catalog.files, file)


def write_script(catalog: MaterializedViewCatalog, script: Script) -> str:
    """Write a script beside its outcome, and delete the files of a failed try.

    Returns:
        Its location with its digest, as the driver takes it.

    Raises:
        ConfigurationError: A check is a function that a remote driver cannot import.
    """
    from airflow_mv.core.catalog.files import discard
    from airflow_mv.core.publish.layout import read_outcome
    from airflow_mv.core.refresh.checks import has_passed
    from airflow_mv.core.script import script_beside, submitted_script

    _require_importable(script)
    outcome_location = str(script.outcome_location)
    left = read_outcome(catalog, script)
    if left is not None and (left.error is not None or not has_passed(script, left)):
        discard(catalog.files, outcome_location)  # or it is overwritten
    location, text = script_beside(outcome_location), script.to_json()
    catalog.files.replace_text(location, text)
    return submitted_script(location, text)


def job_arguments(catalog: MaterializedViewCatalog, script: Script, submitted: str) -> list[str]:
    """Return the arguments of the job's main file.

    Args:
        submitted: From :func:`write_script`.
    """
    return [submitted, catalog.name, *([script.stored] if script.stored else [])]


def _require_importable(script: Script) -> None:
    """Refuse functions of a DAG file: Airflow loads it as a module that no other process can import."""
    for check in script.checks.checks if script.checks else ():
        if check.function.startswith(("__main__:", "unusual_prefix_")):
            raise ConfigurationError(
                f"view {script.view}, check {check.name!r}: its function is in the DAG file, which Spark's driver does "
                "not have. Put it into a module, ship that with py_files, and name it 'module:function'; or use a "
                "connection of type spark_connect, where checks run in the task"
            )


def ship(catalog: MaterializedViewCatalog, folder: str) -> tuple[str, str]:
    """Upload the job package to a folder of the view's store, once per content and half of the grace.

    Returns:
        Locations of the main file and of the zip for ``--py-files``. Maintenance does not delete them for at least
        half of the grace from now on.
    """
    from airflow_mv.extras.spark.submit import build_package, main_file

    with tempfile.TemporaryDirectory(prefix="airflow-mv-") as scratch:
        package = build_package(Path(scratch)).read_bytes()
    main = main_file().read_bytes()
    there = _lasting(catalog, folder)
    return (
        _put(catalog, there, f"{folder}/airflow_mv_job-{_digest(main)}", ".py", main),
        _put(catalog, there, f"{folder}/airflow_mv-{_digest(package)}", ".zip", package),
    )


def _digest(data: bytes) -> str:
    """Return the digest by which maintenance recognizes a job package."""
    return hashlib.sha256(data).hexdigest()[:12]


def _lasting(catalog: MaterializedViewCatalog, folder: str) -> list[StoredFile]:
    """Return the files of a folder that no collection will delete soon."""
    from airflow_mv.core.publish.refresh import oldest_lasting_ms

    found = list(catalog.files.list(folder))
    oldest = oldest_lasting_ms(catalog, folder) if found else 0
    return [file for file in found if file.modified_ms > oldest]


def _put(catalog: MaterializedViewCatalog, there: list[StoredFile], stem: str, suffix: str, data: bytes) -> str:
    """Return a complete file of this content that is young enough: an existing one, or a new one."""
    for file in there:
        if file.location.startswith(stem) and file.location.endswith(suffix) and file.size_bytes == len(data):
            return file.location
    # A new name: a collection that has just listed the older file may delete it.
    location = f"{stem}-{uuid.uuid4().hex[:8]}{suffix}"
    catalog.files.write(location, data)
    return location


@contextmanager
def _temporary_table(catalog: MaterializedViewCatalog, name: Identifier, owner: Identifier) -> Iterator[str]:
    """Create an empty table in a folder that the catalog chooses, yield the folder, and drop the table at the end.

    A process that is killed in between leaves the table.

    Args:
        owner: The view for which it is created.

    Raises:
        AlreadyExistsError: The name is taken.
        CatalogUnavailableError: The catalog did not respond.
    """
    from pyiceberg.schema import Schema
    from pyiceberg.types import BooleanType, NestedField

    from airflow_mv.core.catalog.answers import answered
    from airflow_mv.core.catalog.tables import taken
    from airflow_mv.core.spec.materialized_view import STORAGE_OF_PROPERTY

    schema = Schema(NestedField(1, "nothing", BooleanType()))
    properties = {STORAGE_OF_PROPERTY: owner.within_catalog}
    with taken(f"a table or view {name} exists already"), answered(catalog.name, f"creating table {name}"):
        table = catalog.iceberg.create_table((*name.namespace, name.name), schema, properties=properties)
    try:
        yield table.location()
    finally:
        try:
            catalog.tables.drop(name, uuid=str(table.metadata.table_uuid), owner=owner)
        except MaterializedViewError as error:
            log.warning("Could not drop the unused empty table %s: %s", name, error)
