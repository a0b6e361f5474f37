# SPDX-License-Identifier: Apache-2.0
"""Connections of type ``iceberg``: complete them, open them under a catalog name, and mask their secrets."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseHook, Connection
from airflow.sdk.log import mask_secret

from airflow_mv.core.catalog.configured import LAYOUT_PROPERTY
from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.errors import CatalogUnavailableError, ConfigurationError
from airflow_mv.extras.registry.settings import PLACE
from airflow_mv.hooks.connections import find_connection, missing_connection
from airflow_mv.tasks.older_airflow import conf

if TYPE_CHECKING:
    from airflow.providers.apache.iceberg.hooks.iceberg import IcebergHook
    from pyiceberg.catalog import Catalog

    from airflow_mv.extras.fleet.known import PropertiesOf

DEFAULT_ICEBERG_CONN_ID = "iceberg_default"
#: Extra key of an ``iceberg`` connection: the catalog's name in Spark and in the catalog's rows.
CATALOG_NAME = "catalog_name"
#: Extra key of an ``iceberg`` connection: the connections of other catalogs that its views read, by catalog name.
CATALOGS = "catalogs"
_SQL_SCHEMES = frozenset({"sqlite", "postgresql", "postgres", "mysql", "mariadb", "mssql", "oracle"})


def iceberg_hook(given: Connection, name: str) -> IcebergHook:
    """Return the provider's hook for a completed connection, with a catalog of this name."""
    from airflow.providers.apache.iceberg.hooks.iceberg import IcebergHook

    extra = {key: value for key, value in given.extra_dejson.items() if key not in (CATALOG_NAME, CATALOGS)}
    connection = Connection(
        conn_id=name,
        conn_type=given.conn_type,
        host=given.host,
        login=given.login,
        password=given.password,
        extra=json.dumps(extra),
    )

    class NamedIcebergHook(IcebergHook):
        """The provider's hook. Its catalog has the name that Spark uses, not the connection's."""

        @classmethod
        def get_connection(cls, conn_id: str) -> Connection:  # noqa: ARG003
            return connection

    return NamedIcebergHook(name)


def completed(conn_id: str) -> Connection:
    """Load an ``iceberg`` connection, with the URI of a SQL catalog completed by login and password.

    Where its extra has no layout of new views, or no registry, Airflow's options in ``[airflow_mv]`` are taken.
    """
    given = find_connection(conn_id)
    if given is None:
        raise missing_connection(
            conn_id,
            "iceberg_conn_id",
            '--conn-type iceberg --conn-extra \'{"type": "sql", "uri": "…", "warehouse": "…"}\'',
        )
    if given.conn_type != "iceberg":
        raise ConfigurationError(
            f"connection {conn_id!r} (iceberg_conn_id) is of type {given.conn_type!r}; iceberg is needed"
        )
    extra = {key: _text(value) for key, value in given.extra_dejson.items() if value is not None}
    uri = given.host or extra.get("uri", "")
    scheme = str(uri).partition(":")[0].partition("+")[0].lower()
    extra.setdefault("type", "sql" if scheme in _SQL_SCHEMES and "py-catalog-impl" not in extra else "rest")
    host = given.host
    if extra["type"] == "sql" and uri:
        extra["uri"], host = _with_login(conn_id, str(uri), given), None
    for key, text in _options().items():
        extra.setdefault(key, text)
    mask(extra)
    return Connection(
        conn_id=conn_id,
        conn_type=given.conn_type,
        host=host,
        login=given.login,
        password=given.password,
        extra=json.dumps(extra),
    )


def _options() -> dict[str, str]:
    """Return the catalog properties that Airflow's options in ``[airflow_mv]`` set."""
    found = {
        key: conf.get("airflow_mv", option, fallback="")
        for option, key in (("layout", LAYOUT_PROPERTY), ("registry", PLACE))
    }
    return {key: text for key, text in found.items() if text}


def layers_of(conn_id: str) -> dict[str, str]:
    """Return where each catalog property of a connection comes from: from itself, or from Airflow's options.

    Args:
        conn_id: The connection.

    Raises:
        ConfigurationError: There is no such connection.
    """
    options = dict.fromkeys(_options(), "option of [airflow_mv]")
    completed(conn_id)
    own = BaseHook.get_connection(conn_id).extra_dejson
    return {
        **options,
        **dict.fromkeys((key for key, value in own.items() if value is not None), f"connection {conn_id}"),
    }


def other_catalogs(connection: Connection) -> dict[str, str]:
    """Return the connections of other catalogs that a connection names, by catalog name.

    Raises:
        ConfigurationError: Its extra is not such a mapping.
    """
    found = connection.extra_dejson.get(CATALOGS, {})
    if not isinstance(found, dict) or not all(isinstance(value, str) and value for value in found.values()):
        raise ConfigurationError(
            f"connection {connection.conn_id!r}, extra {CATALOGS!r}: it must map names of catalogs to connections, "
            'like {"raw": "iceberg_raw"}'
        )
    return found


def _with_login(conn_id: str, uri: str, connection: Connection) -> str:
    """Put a connection's login and password into a database URI that has none."""
    from sqlalchemy import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        url = make_url(uri)
    except (ArgumentError, ValueError):
        raise ConfigurationError(
            f"connection {conn_id!r}: 'uri' is not a database URL; write it like postgresql://host:5432/database"
        ) from None
    if url.host is None:  # a file: SQLite
        return uri
    url = url.set(username=url.username or connection.login, password=url.password or connection.password)
    return url.render_as_string(hide_password=False)


def _text(value: Any) -> Any:
    """Return a JSON value as pyiceberg expects it: scalars as text."""
    if isinstance(value, bool):
        return str(value).lower()
    return value if isinstance(value, dict | list) else str(value)


def mask(properties: Mapping[str, Any]) -> None:
    """Mask every secret value in logs, also in its URL-encoded form. Airflow would warn of one that is too short."""
    from airflow_mv.foundation.redaction import hide_secrets

    shortest = conf.getint("logging", "min_length_masked_secret", fallback=5)
    for form in hide_secrets(properties):
        if len(form) >= shortest:
            mask_secret(form)


class CatalogConnection:
    """An ``iceberg`` connection, and those of the other catalogs that its views read.

    Args:
        conn_id: The connection.
        catalogs: Connections of other catalogs by catalog name; they override those of the connection's extra.
    """

    def __init__(self, conn_id: str, catalogs: Mapping[str, str] | None = None) -> None:
        self.conn_id = conn_id
        self._catalogs = dict(catalogs or {})
        self._completed: Connection | None = None
        self._parsed: Mapping[str, Any] | None = None

    def bound_name(self) -> str | None:
        """Return the name of the catalog that the connection is for; ``None`` if any is possible.

        Raises:
            ConfigurationError: The connection is missing or wrong.
        """
        name = self.extra().get(CATALOG_NAME)
        return str(name) if name else None

    def identify(self, view: str) -> Identifier:
        """Parse a view's name; its catalog may be left out where the connection has the extra ``catalog_name``.

        Raises:
            InvalidIdentifierError: It is not a name.
            ConfigurationError: It is of another catalog than the connection's.
        """
        bound = self.bound_name()
        identifier = Identifier.parse(view, default_catalog=bound)
        if bound not in (None, identifier.catalog):
            raise ConfigurationError(
                f"view {view} is in catalog {identifier.catalog!r}, but connection {self.conn_id!r} is for "
                f"{bound!r} (extra {CATALOG_NAME!r}); name another connection in iceberg_conn_id"
            )
        return identifier

    def open(self, name: str) -> Catalog:
        """Open the pyiceberg catalog of the connection under a name, through ``IcebergHook``.

        Raises:
            ConfigurationError: The connection is missing or wrong.
            CatalogUnavailableError: The catalog does not respond.
        """
        from airflow_mv.core.catalog.catalog import catalog_errors

        given = {**self.extra(), "password": self._connection().password or ""}
        with catalog_errors(f"connection {self.conn_id!r}: the catalog", given):
            catalog = self.hook(name).catalog
        mask(catalog.properties)
        return catalog

    def hook(self, name: str) -> IcebergHook:
        """Return the provider's hook, with a catalog of this name."""
        return iceberg_hook(self._connection(), name)

    def extra(self) -> Mapping[str, Any]:
        """Return the connection's extra. Airflow parses and masks it at each access, which is done once here."""
        if self._parsed is None:
            self._parsed = self._connection().extra_dejson
        return self._parsed

    def others(self) -> dict[str, str]:
        """Return the connections of other catalogs by catalog name."""
        return {**other_catalogs(self._connection()), **self._catalogs}

    def properties_from(self, name: str) -> PropertiesOf:
        """Return a function that has the properties of catalogs by name, without opening them.

        Args:
            name: The name of the connection's own catalog. The others are those that its views may read.
        """
        from airflow_mv.core.catalog.configured import configured

        def properties_of(catalog: str) -> Mapping[str, Any] | None:
            if catalog == name:
                return self.extra()
            conn_id = self.others().get(catalog)
            # It may be of one view only, whose own look raises it.
            with suppress(ConfigurationError, CatalogUnavailableError):
                return configured().get(catalog) if conn_id is None else completed(conn_id).extra_dejson
            return None

        return properties_of

    def content(self) -> object:
        """Return the content of the connection and of those of other catalogs. It is equal until one is edited.

        Raises:
            ConfigurationError: The connection is missing or wrong.
        """
        known: list[object] = [_fields(self._connection())]
        for name, conn_id in sorted(self.others().items()):
            try:
                known.append((name, _fields(completed(conn_id))))
            except (ConfigurationError, CatalogUnavailableError):  # it may never be needed
                known.append((name, None))
        return known

    def _connection(self) -> Connection:
        if self._completed is None:
            self._completed = completed(self.conn_id)
        return self._completed


def _fields(connection: Connection) -> tuple[object, ...]:
    return (connection.conn_type, connection.host, connection.login, connection.password, connection.extra)
