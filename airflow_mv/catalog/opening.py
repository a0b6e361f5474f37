# SPDX-License-Identifier: Apache-2.0
"""Open a catalog of pyiceberg's configuration by its name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.utils.config import Config
from sqlalchemy.exc import SQLAlchemyError

from airflow_mv.catalog.secrets import quiet_warnings, without_secrets
from airflow_mv.errors import CatalogNotFoundError, ConfigurationError, InvalidMetadataError


def open_configured(name: str) -> Catalog:
    """Open a configured catalog.

    Raises:
        CatalogNotFoundError: There is none of this name.
        ConfigurationError: It cannot be opened. The message holds no secret of its properties.
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
    try:
        with quiet_warnings(properties):
            return load_catalog(name)
    except InvalidMetadataError:
        raise
    except SQLAlchemyError as error:
        raise ConfigurationError(f"catalog {name!r} cannot be opened: {type(error).__name__}; check its uri") from None
    except Exception as error:  # noqa: BLE001 (each catalog type has its own)
        cause = without_secrets(str(error), properties)
        raise ConfigurationError(f"catalog {name!r} cannot be opened: {type(error).__name__}: {cause}") from None
