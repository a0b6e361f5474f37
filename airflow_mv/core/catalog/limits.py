# SPDX-License-Identifier: Apache-2.0
"""pyiceberg's catalogs with a timeout for every wait for a server, a database or a store.

Those for a database are in :mod:`airflow_mv.core.catalog.database_limits`, which imports nothing of pyiceberg.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any, TypeVar

from pyiceberg.catalog import AVAILABLE_CATALOGS, Catalog, CatalogType
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.catalog.sql import DEFAULT_POOL_PRE_PING_VALUE
from pyiceberg.exceptions import NotInstalledError
from pyiceberg.io import FileIO
from pyiceberg.table import Table, TableProperties
from pyiceberg.table.metadata import TableMetadata as PyIcebergTable
from pyiceberg.types import strtobool
from requests import Session

from airflow_mv.core.catalog.configured import (
    STORE_LIMITS,
    response_timeout,
    store_timeout,
)
from airflow_mv.core.catalog.database_limits import bounded_engine, guard
from airflow_mv.core.catalog.files import GuardedIO
from airflow_mv.core.catalog.locations import PLACES, on_disk
from airflow_mv.core.catalog.metastores import metastore_module
from airflow_mv.core.catalog.pyiceberg_compat import (
    LoadFileIO,
    PreparedRestCatalog,
    PreparedSqlCatalog,
    on_loaded_tables,
    wrap_file_io,
)
from airflow_mv.core.catalog.rest_session import bound_session
from airflow_mv.core.catalog.store_deadlines import within
from airflow_mv.core.catalog.vended import Vended, VendedCredentials, without_classes
from airflow_mv.errors import InvalidMetadataError

_opening: ContextVar[bool] = ContextVar("airflow_mv_opening", default=False)


class BoundedSqlCatalog(PreparedSqlCatalog):
    """A SQL catalog with few connections and with timeouts."""

    def prepare(self) -> None:
        """Limit connections and waits."""
        ping = strtobool(self.properties.get("pool_pre_ping", DEFAULT_POOL_PRE_PING_VALUE))
        self.engine = bounded_engine(self.engine)
        guard(self.engine, response_timeout(self.properties), pre_ping=ping)
        # The following code takes a lost connection for missing tables, and would try to create them.
        self.engine.connect().close()


class BoundedRestCatalog(PreparedRestCatalog):
    """A REST catalog with timeouts."""

    def prepare(self, session: Session) -> None:
        """Limit waits and sizes."""
        bound_session(session, response_timeout(self.properties))


@contextmanager
def opening() -> Iterator[None]:
    """Make pyiceberg create catalogs with timeouts, in this thread, until the block ends."""
    token = _opening.set(True)
    try:
        yield
    finally:
        _opening.reset(token)


def _bounded_glue(name: str, **properties: Any) -> Catalog:
    """Return a Glue catalog. Its client may not be installed."""
    try:
        module = metastore_module("glue")
    except ImportError:
        raise NotInstalledError("AWS Glue's client is not installed: pip install 'pyiceberg[glue]'") from None
    if module is None:
        raise NotInstalledError("this installation cannot open AWS Glue: the extra metastores is missing")
    catalog: Catalog = module.opened(name, properties)
    return catalog


def _where_opened(make: Any, bounded: Callable[..., Catalog], name: str, properties: Any) -> Catalog:
    return bounded(name, **properties) if _opening.get() else make(name, properties)


_BOUNDED_KINDS = {
    CatalogType.SQL: BoundedSqlCatalog,
    CatalogType.REST: BoundedRestCatalog,
    CatalogType.GLUE: _bounded_glue,
}
for _kind, _bounded in _BOUNDED_KINDS.items():
    # Other code in this process that opens catalogs gets pyiceberg's own classes.
    AVAILABLE_CATALOGS[_kind] = partial(_where_opened, AVAILABLE_CATALOGS[_kind], _bounded)


# ---------------------------------------------------- Tables that open their files by the catalog's properties only


Result = TypeVar("Result")


def restrain(catalog: Catalog) -> None:
    """Make a catalog's tables open their files with the catalog's properties only, and with deadlines.

    A REST server's answer mixes the table's properties with the server's own (credentials for this table), so for REST
    only properties that name a class are removed.
    """
    mixed, seconds = isinstance(catalog, RestCatalog), store_timeout(catalog.properties)
    missing = {key: value for key, value in STORE_LIMITS.items() if key not in catalog.properties}

    def restrained(inner: LoadFileIO) -> LoadFileIO:
        def load(properties: Mapping[str, str], location: str | None) -> FileIO:
            io = inner({**missing, **(without_classes(properties) if mixed else {})}, location)
            if location is not None and on_disk(location):
                return io

            def with_io(location: str, what: str, act: Callable[[FileIO], Result]) -> Result:  # noqa: ARG001
                return within(location, seconds, lambda: act(io))

            return GuardedIO(with_io, seconds, io.properties)

        return load

    wrap_file_io(catalog, restrained)


def note_tables(catalog: RestCatalog, vended: VendedCredentials) -> None:
    """Keep the credentials that a REST server vends with each table that is loaded or created from now on.

    Args:
        vended: Where they are kept.
    """

    def seen(
        name: tuple[str, ...],
        table: PyIcebergTable,
        config: Mapping[str, str],
        prefixes: Mapping[str, Mapping[str, str]],
    ) -> None:
        what = f"table {'.'.join((catalog.name, *name))}"
        places = (table.properties[key] for key in PLACES & table.properties.keys())
        vended.note(Vended(what, config, prefixes, partial(catalog.load_table, name)), (table.location, *places))

    on_loaded_tables(catalog, seen)


def require_no_writer(table: Table, name: object) -> None:
    """Refuse to change a table whose properties name a class: pyiceberg would load it to locate the metadata file.

    Raises:
        InvalidMetadataError: There is such a property.
    """
    key = TableProperties.WRITE_PY_LOCATION_PROVIDER_IMPL
    if key in table.properties and not isinstance(table.catalog, RestCatalog):
        raise InvalidMetadataError(
            f"table {name}: its property {key!r} "
            "names a class, and classes that a table names are never loaded. Remove the property"
        )
