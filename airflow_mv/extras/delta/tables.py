# SPDX-License-Identifier: Apache-2.0
"""Find and read Delta tables, which are named by path: ``delta.`/path/to/table```.

``deltalake`` (delta-rs) reads the table's version, schema and files, also from checkpoints. The commit files of the log
are read by the catalog's ``FileIO``, since ``deltalake`` does not return the actions of one commit.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from airflow_mv.core.catalog.files import MetadataFiles, is_refusal
from airflow_mv.core.catalog.loaded import Located
from airflow_mv.core.catalog.locations import join
from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.core.spec.table_metadata import TableMetadata
from airflow_mv.errors import (
    AccessDeniedError,
    CatalogUnavailableError,
    ConfigurationError,
    InvalidMetadataError,
    MaterializedViewError,
    MetadataFileNotFoundError,
)
from airflow_mv.extras.delta.log import Commit, history, parse_commit, read_schema
from airflow_mv.foundation.redaction import shortened

if TYPE_CHECKING:
    from deltalake import DeltaTable

#: The newest commits of a table that are known. A view that read an older version is recomputed in full.
MAX_COMMITS = 1000
_TOGETHER = 16
#: A commit's file, and when it was written: a table that was dropped and created again has the same names of files.
_POINTER = re.compile(r"(?P<file>.*/(?P<version>[0-9]{20})\.json)#(?P<written>[0-9]+)", re.DOTALL)
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
#: What ``deltalake`` calls the properties of pyiceberg. Later rows override earlier ones.
_OPTIONS = (
    ("client.region", "AWS_REGION"),
    ("s3.region", "AWS_REGION"),
    ("client.access-key-id", "AWS_ACCESS_KEY_ID"),
    ("s3.access-key-id", "AWS_ACCESS_KEY_ID"),
    ("client.secret-access-key", "AWS_SECRET_ACCESS_KEY"),
    ("s3.secret-access-key", "AWS_SECRET_ACCESS_KEY"),
    ("client.session-token", "AWS_SESSION_TOKEN"),
    ("s3.session-token", "AWS_SESSION_TOKEN"),
    ("s3.endpoint", "AWS_ENDPOINT_URL"),
    ("s3.anonymous", "AWS_SKIP_SIGNATURE"),
    ("adls.account-name", "AZURE_STORAGE_ACCOUNT_NAME"),
    ("adls.account-key", "AZURE_STORAGE_ACCOUNT_KEY"),
    ("adls.sas-token", "AZURE_STORAGE_SAS_TOKEN"),
    ("adls.tenant-id", "AZURE_STORAGE_TENANT_ID"),
    ("adls.client-id", "AZURE_STORAGE_CLIENT_ID"),
    ("adls.client-secret", "AZURE_STORAGE_CLIENT_SECRET"),
)
#: Commits that this process has read, by the table's id and the file. They never change.
_commits: dict[tuple[str, str], Commit] = {}
_MAX_KEPT = 20_000
_lock = threading.Lock()


def locate(files: MetadataFiles, properties: Mapping[str, str], identifier: Identifier) -> Located | None:
    """Locate a Delta table: its pointer is the file of its last commit.

    Args:
        properties: The properties of the catalog whose access to stores is used.
        identifier: The table, whose path is allowed.

    Returns:
        ``None`` if there is no table in the folder.

    Raises:
        ConfigurationError: ``deltalake`` is not installed, or the store refuses access.
        CatalogUnavailableError: The store did not respond.
        InvalidMetadataError: ``deltalake`` cannot read the table.
    """
    table = _open(properties, identifier, None)
    if table is None:
        return None
    file = _file(identifier, table.version())
    return Located("table", f"{file}#{files.modified_ms(file)}")


def read(files: MetadataFiles, properties: Mapping[str, str], identifier: Identifier, pointer: str) -> TableMetadata:
    """Return the history of a Delta table up to a pointer.

    Args:
        properties: As in :func:`locate`.
        pointer: From :func:`locate`.

    Raises:
        MetadataFileNotFoundError: The table no longer has this version.
        ConfigurationError, CatalogUnavailableError, InvalidMetadataError: As in :func:`locate`.
    """
    match = _POINTER.fullmatch(pointer)
    if match is None or match["file"] != _file(identifier, int(match["version"])):
        raise InvalidMetadataError(f"base table {identifier}: {pointer!r} is not one of its commits")
    version = int(match["version"])
    table = _open(properties, identifier, version)
    if table is None or files.modified_ms(match["file"]) != int(match["written"]):
        raise MetadataFileNotFoundError(
            f"base table {identifier}: version {version} no longer exists: the table was recreated"
        )
    table_id = str(table.metadata().id)
    commits = _read_commits(files, identifier, table_id, version)
    if not commits:
        raise MetadataFileNotFoundError(f"base table {identifier}: the commit {match['file']} no longer exists")
    setting = next((commit.version for commit in commits if commit.schema is not None), 0)
    first = None if setting == 0 else _open(properties, identifier, setting - 1, lost=True)
    return history(
        commits,
        location=identifier.path or "",
        table_id=table_id,
        schema=_schema(table, identifier),
        totals=_totals(table),
        first_schema=None if first is None else _schema(first, identifier),
    )


def storage_options(properties: Mapping[str, str]) -> dict[str, str]:
    """Return the options of ``deltalake`` for the stores of a catalog.

    Args:
        properties: pyiceberg's properties of the catalog.
    """
    found = {option: properties[key] for key, option in _OPTIONS if key in properties}
    if found.get("AWS_ENDPOINT_URL", "").startswith("http:"):
        found["AWS_ALLOW_HTTP"] = "true"
    # Credentials in properties never end up in an error: `deltalake` names addresses only.
    return {**found, "timeout": "20s", "connect_timeout": "10s", "max_retries": "3", "retry_timeout": "60s"}


# ------------------------------------------------------------------------------------------- deltalake
def _open(
    properties: Mapping[str, str], identifier: Identifier, version: int | None, *, lost: bool = False
) -> DeltaTable | None:
    """Open a table; ``None`` if there is none.

    Args:
        version: The version; ``None`` for the last one.
        lost: Return ``None`` also for a version whose log is no longer complete.
    """
    delta = _library(identifier)
    options = storage_options(properties)
    with _errors(identifier, delta):
        try:
            table: DeltaTable = delta.DeltaTable(identifier.path or "", version, storage_options=options)
        except delta.exceptions.TableNotFoundError:
            return None
        except delta.exceptions.DeltaError:
            if lost:
                return None
            raise
    return table


def _library(identifier: Identifier) -> Any:
    try:
        import deltalake
        import deltalake.exceptions
    except ImportError as error:
        raise ConfigurationError(
            f"base table {identifier}: Delta tables are read with the package deltalake, which cannot be imported "
            f"({error}): install airflow-mv[delta]"
        ) from None
    return deltalake


@contextmanager
def _errors(identifier: Identifier, delta: Any) -> Iterator[None]:
    try:
        yield
    except MaterializedViewError:
        raise
    except OSError as error:
        text = _text(error)
        if is_refusal(error):
            raise AccessDeniedError(f"base table {identifier}: the store refused access: {text}") from None
        raise CatalogUnavailableError(f"base table {identifier}: the store did not respond: {text}") from None
    except (delta.exceptions.DeltaError, ValueError) as error:
        raise InvalidMetadataError(f"base table {identifier}: not a readable Delta table: {_text(error)}") from None


def _text(error: Exception) -> str:
    return shortened(" ".join(_COLOUR.sub("", str(error)).split()), 300)


def _schema(table: DeltaTable, identifier: Identifier) -> dict[str, Any]:
    return read_schema(table.schema().to_json(), source=f"base table {identifier}")


def _totals(table: DeltaTable) -> dict[str, int | None]:
    import pyarrow as pa

    files = pa.table(table.get_add_actions(flatten=True))
    rows = files["num_records"].to_pylist() if "num_records" in files.column_names else [None] * files.num_rows
    sizes = files["size_bytes"].to_pylist()
    return {"records": _sum(rows), "files-size": _sum(sizes), "data-files": files.num_rows}


def _sum(numbers: Sequence[int | None]) -> int | None:
    return None if any(number is None for number in numbers) else sum(number or 0 for number in numbers)


# --------------------------------------------------------------------------------------------- commits
def _file(identifier: Identifier, version: int) -> str:
    return join(identifier.path or "", "_delta_log", f"{version:020}.json")


def _read_commits(files: MetadataFiles, identifier: Identifier, table_id: str, version: int) -> list[Commit]:
    """Return the newest commits up to a version, oldest first. The log of older ones may have been cleaned up."""
    found: list[Commit] = []
    oldest = max(version - MAX_COMMITS + 1, 0)
    with ThreadPoolExecutor(_TOGETHER) as pool:
        for last in range(version, oldest - 1, -_TOGETHER):
            wanted = range(last, max(last - _TOGETHER, oldest - 1), -1)
            for commit in pool.map(lambda item: _commit(files, identifier, table_id, item), wanted):
                if commit is None:
                    return found[::-1]
                found.append(commit)
    return found[::-1]


def _commit(files: MetadataFiles, identifier: Identifier, table_id: str, version: int) -> Commit | None:
    file, what = _file(identifier, version), f"base table {identifier}, commit"
    known = _commits.get((table_id, file))
    if known is not None:
        return known
    try:
        data = files.read(file, what=what)
    except MetadataFileNotFoundError:
        return None
    commit = parse_commit(data, version, source=f"{what} {file}")
    with _lock:
        if len(_commits) >= _MAX_KEPT:
            _commits.clear()
        _commits[(table_id, file)] = commit
    return commit
