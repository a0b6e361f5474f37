# SPDX-License-Identifier: Apache-2.0
"""Open a catalog of pyiceberg's configuration by its name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.utils.config import Config
from sqlalchemy.exc import DBAPIError

from airflow_mv.catalog.answers import AWAY
from airflow_mv.catalog.bounded import opening
from airflow_mv.catalog.secrets import quiet_warnings, without_secrets
from airflow_mv.errors import (
    CatalogNotFoundError,
    CatalogUnavailableError,
    ConfigurationError,
    MaterializedViewError,
)


def open_configured(name: str) -> Catalog:
    """Open a configured catalog.

    Raises:
        CatalogNotFoundError: There is none of this name.
        ConfigurationError, CatalogUnavailableError: See :func:`catalog_errors`.
    """
    known: Mapping[str, Any] = Config().config.get("catalog") or {}  # type: ignore[assignment]
    properties = {key.lower(): value for key, value in known.items()}.get(name.lower())
    if properties is None:
        listed = ", ".join(sorted(known)) or "none"
        underscore = " (pyiceberg takes '_' in a variable's name for '-')" if "_" in name else ""
        raise CatalogNotFoundError(
            f"no catalog {name!r} is configured (configured: {listed}). Set PYICEBERG_CATALOG__{name.upper()}__TYPE "
            f"and its other properties{underscore}, write a .pyiceberg.yaml, or name an Airflow connection "
            "with --conn-id"
        )
    with catalog_errors(f"catalog {name!r}", properties):
        return load_catalog(name)


@contextmanager
def catalog_errors(what: str, properties: Mapping[str, Any]) -> Iterator[None]:
    """Turn what opening a catalog raises into our errors; neither they nor warnings hold a secret of its properties.

    Args:
        what: What is opened, for the message.
        properties: Its properties.

    Raises:
        CatalogUnavailableError: It does not answer.
        ConfigurationError: It cannot be opened.
    """
    try:
        with quiet_warnings(properties), opening():
            yield
    except MaterializedViewError:
        raise
    except (DBAPIError, OSError, *AWAY) as error:
        said = str(getattr(error, "orig", None) or error).strip().partition("\n")[0]
        notes = getattr(getattr(error, "orig", None) or error, "__notes__", ())
        cause = without_secrets(": ".join((said, *notes)), properties)
        raise CatalogUnavailableError(f"{what} does not answer: {type(error).__name__}: {cause}") from None
    except Exception as error:  # noqa: BLE001 (each catalog type has its own)
        cause = without_secrets(str(error), properties)
        raise ConfigurationError(f"{what} cannot be opened: {type(error).__name__}: {cause}") from None
