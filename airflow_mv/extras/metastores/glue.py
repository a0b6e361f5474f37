# SPDX-License-Identifier: Apache-2.0
"""AWS Glue."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from botocore.config import Config
from botocore.session import Session
from pyiceberg.catalog import BOTOCORE_SESSION
from pyiceberg.catalog.glue import GLUE_MAX_RETRIES, GlueCatalog

from airflow_mv.core.catalog.configured import CONNECT_SECONDS
from airflow_mv.extras.metastores.entries import MetastoreEntries, metadata_location

#: Seconds for one answer of AWS Glue, and how often a request without an answer is repeated. All copies of a change
#: name the version that they replace, so one at most is applied.
_SECONDS = 20.0
_RETRIES = 3


#: The fields of Glue's entry of a table that a client may send back.
_FIELDS = ("Name", "Description", "Owner", "Retention", "StorageDescriptor", "PartitionKeys", "TableType")


def opened(name: str, properties: Mapping[str, Any]) -> GlueCatalog:
    """Return a Glue catalog with timeouts."""
    session = Session()
    session.set_default_client_config(Config(connect_timeout=CONNECT_SECONDS, read_timeout=_SECONDS))
    retries = int(properties.get(GLUE_MAX_RETRIES, _RETRIES))
    catalog = GlueCatalog(name, **{**properties, GLUE_MAX_RETRIES: retries, BOTOCORE_SESSION: session})
    catalog.properties = dict(properties)
    return catalog


class GlueTables(MetastoreEntries):
    """The entries of a Glue catalog.

    Args:
        catalog: pyiceberg's catalog.
    """

    service = "AWS Glue"

    def __init__(self, catalog: GlueCatalog) -> None:
        super().__init__(catalog)
        self._glue = catalog.glue

    def _parameters(self, database: str, name: str) -> Mapping[str, Any] | None:
        try:
            entry: Mapping[str, Any] = self._glue.get_table(DatabaseName=database, Name=name)["Table"]
        except self._glue.exceptions.EntityNotFoundException:
            return None
        return entry.get("Parameters")

    def _swap(self, database: str, name: str, base: str, parameters: dict[str, str]) -> bool:
        try:
            entry: Mapping[str, Any] = self._glue.get_table(DatabaseName=database, Name=name)["Table"]
            if metadata_location(entry.get("Parameters", {})) != base:
                return False
            fields = {key: entry[key] for key in _FIELDS if key in entry}
            changed = {**fields, "Parameters": {**entry["Parameters"], **parameters}}
            self._glue.update_table(DatabaseName=database, TableInput=changed, VersionId=entry["VersionId"])
        except (self._glue.exceptions.EntityNotFoundException, self._glue.exceptions.ConcurrentModificationException):
            return False
        return True

    def _entries(self, database: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
        try:
            for page in self._glue.get_paginator("get_tables").paginate(DatabaseName=database):
                for entry in page["TableList"]:
                    yield entry["Name"], entry.get("Parameters", {})
        except self._glue.exceptions.EntityNotFoundException:
            return


def entries_of(catalog: GlueCatalog) -> GlueTables:
    """Return the entries of a catalog."""
    return GlueTables(catalog)
