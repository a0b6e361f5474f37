# SPDX-License-Identifier: Apache-2.0
"""Translate a store's errors into the errors of this package, which name the file and its role."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from airflow_mv.errors import (
    CatalogUnavailableError,
    ConfigurationError,
    InvalidMetadataError,
    MaterializedViewError,
    MetadataFileNotFoundError,
)


@contextmanager
def named(location: str, what: str) -> Iterator[None]:
    """Translate a store's errors into errors that name the file and its role."""
    try:
        yield
    except FileExistsError:
        raise
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
        raise MetadataFileNotFoundError(
            f"{what}: the file {location} does not exist ({type(error).__name__}). It was deleted, or the "
            "catalog points at another store: restore the file, or correct the catalog's properties"
        ) from None
    except PermissionError as error:
        raise ConfigurationError(f"{what}: no permission for {location}: {error.strerror or error}") from None
    except OSError as error:
        raise CatalogUnavailableError(f"{what}: the store of {location} did not respond: {error}") from None
    except (ValueError, ImportError) as error:
        raise ConfigurationError(f"{what}: {location} cannot be opened: {type(error).__name__}: {error}") from None


@contextmanager
def parsed(location: str, what: str) -> Iterator[None]:
    """Translate pyiceberg's errors on broken files as well, see :func:`named`."""
    with named(location, what):
        try:
            yield
        except (OSError, ImportError, MaterializedViewError):
            raise
        except Exception as error:  # noqa: BLE001 (broken Avro files raise many kinds of errors)
            raise InvalidMetadataError(f"{what}: {location} cannot be read: {type(error).__name__}: {error}") from None
