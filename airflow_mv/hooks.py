# SPDX-License-Identifier: Apache-2.0
"""The door between Airflow and the rest: connections become catalogs and Spark targets, errors become Airflow's."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import quote, quote_plus, unquote, urlsplit

from airflow.sdk import BaseHook, Connection
from airflow.sdk.exceptions import AirflowFailException, AirflowNotFoundException
from airflow.sdk.log import mask_secret

from airflow_mv.errors import CatalogUnavailableError, ConfigurationError, MaterializedViewError
from airflow_mv.spec.identifiers import Identifier

if TYPE_CHECKING:
    import pandas as pd
    from airflow.providers.apache.iceberg.hooks.iceberg import IcebergHook
    from pyiceberg.catalog import Catalog

    from airflow_mv.catalog import MaterializedViewCatalog
    from airflow_mv.catalog.spark import SparkSettings
    from airflow_mv.plan.planner import RefreshPlan
    from airflow_mv.planning import RefreshOptions
    from airflow_mv.reading import ReadResult
    from airflow_mv.results import RefreshResult, ViewStatus
    from airflow_mv.script import Outcome
    from airflow_mv.stagers import InProcessStager

DEFAULT_ICEBERG_CONN_ID = "iceberg_default"
DEFAULT_SPARK_CONN_ID = "spark_default"
#: Extra key of an ``iceberg`` connection: the name that Spark and the catalog's rows know it by.
CATALOG_NAME = "catalog_name"

_SQL_SCHEMES = frozenset({"sqlite", "postgresql", "postgres", "mysql", "mariadb", "mssql", "oracle"})
_SPARK_TYPES = frozenset({"spark", "k8s", "yarn", "local"})


@contextmanager
def airflow_errors() -> Iterator[None]:
    """Turn errors that a retry cannot mend into Airflow's "fail without retry"; the others pass.

    Raises:
        AirflowFailException: In place of an error that is not retryable.
    """
    try:
        yield
    except MaterializedViewError as error:
        if error.retryable:
            raise
        raise AirflowFailException(f"{type(error).__name__}: {error}") from None


class MaterializedViewHook(BaseHook):
    """Materialized views behind an Airflow connection of type ``iceberg``.

    The connection is the Apache Iceberg provider's own, and its ``IcebergHook`` opens the catalog; Spark is
    configured from the same properties, so nothing is written twice. Two things are added to what that hook
    does with a connection:

    * The catalog is opened under the *name that the view begins with* (``lake`` in ``lake.sales.daily``): rows of
      a SQL catalog carry that name, and Spark's catalog has the same one. Set the extra ``catalog_name`` to bind
      the connection to one name; views may then be written without it, and other names are refused.
    * For a SQL catalog (``{"type": "sql", "uri": "postgresql://host/db", "warehouse": …}``) login and password of
      the connection go into the URI, so that no secret stands in the extra.

    Args:
        iceberg_conn_id: Connection of the catalog.
        spark_conn_id: Connection (``spark`` or ``spark_connect``) for what must be run in this process.
    """

    conn_name_attr: ClassVar[str] = "iceberg_conn_id"
    default_conn_name: ClassVar[str] = DEFAULT_ICEBERG_CONN_ID
    conn_type: ClassVar[str] = "iceberg"
    hook_name: ClassVar[str] = "Iceberg materialized views"

    def __init__(
        self, iceberg_conn_id: str = DEFAULT_ICEBERG_CONN_ID, spark_conn_id: str = DEFAULT_SPARK_CONN_ID
    ) -> None:
        super().__init__()
        self.iceberg_conn_id = iceberg_conn_id
        self.spark_conn_id = spark_conn_id
        self._opened: dict[str, MaterializedViewCatalog] = {}
        self._connection: Connection | None = None

    # -- catalogs ------------------------------------------------------------------------------

    def identify(self, view: str) -> Identifier:
        """Parse a view's name; its catalog may be left out where the connection has the extra ``catalog_name``.

        Raises:
            InvalidIdentifierError: It is no name.
            ConfigurationError: It is of another catalog than the connection's.
        """
        bound = self._bound_name()
        identifier = Identifier.parse(view, default_catalog=bound)
        if bound not in (None, identifier.catalog):
            raise ConfigurationError(
                f"view {view} is in catalog {identifier.catalog!r}, but connection {self.iceberg_conn_id!r} is for "
                f"{bound!r} (extra {CATALOG_NAME!r}); name another connection in iceberg_conn_id"
            )
        return identifier

    def catalog_for(self, view: str) -> MaterializedViewCatalog:
        """Open the catalog that a view is in, under the name that the view begins with.

        Raises:
            ConfigurationError: The connection is missing or wrong.
            CatalogUnavailableError: The catalog does not answer.
        """
        return self.catalog_named(self.identify(view).catalog)

    def catalog_named(self, name: str) -> MaterializedViewCatalog:
        """Open the connection's catalog under a name; once for a hook.

        Raises:
            ConfigurationError, CatalogUnavailableError: See :meth:`catalog_for`.
        """
        if name not in self._opened:
            from airflow_mv.catalog import MaterializedViewCatalog

            self._opened[name] = MaterializedViewCatalog(self.iceberg_catalog(name))
        return self._opened[name]

    def iceberg_catalog(self, name: str) -> Catalog:
        """Open the pyiceberg catalog of the connection under a name, through ``IcebergHook``.

        Raises:
            ConfigurationError, CatalogUnavailableError: See :meth:`catalog_for`.
        """
        from sqlalchemy.exc import DBAPIError

        try:
            catalog = self._iceberg_hook(name).catalog
        except (MaterializedViewError, AirflowFailException):
            raise
        except (DBAPIError, OSError) as error:
            cause = str(getattr(error, "orig", None) or error).strip().partition("\n")[0]
            raise CatalogUnavailableError(
                f"connection {self.iceberg_conn_id!r}: the catalog does not answer: {type(error).__name__}: {cause}"
            ) from None
        except Exception as error:
            raise ConfigurationError(
                f"connection {self.iceberg_conn_id!r}: its catalog cannot be opened: {type(error).__name__}: {error}"
            ) from error
        _mask(catalog.properties)
        return catalog

    def spark_settings(self, view: str) -> SparkSettings:
        """Return what a Spark session needs to reach the view's catalog. Its ``secrets`` are masked in logs."""
        from airflow_mv.stagers import settings_of

        settings = settings_of(self.catalog_for(view))
        _mask(settings.secrets)
        return settings

    def get_conn(self) -> MaterializedViewCatalog:
        """Return the catalog of a connection that is bound to one name by the extra ``catalog_name``."""
        return self.catalog_named(self._bound_name() or self.iceberg_conn_id)

    def test_connection(self) -> tuple[bool, str]:
        """List the catalog's namespaces, through ``IcebergHook``."""
        try:
            tested: tuple[bool, str] = self._iceberg_hook(self._bound_name() or self.iceberg_conn_id).test_connection()
        except MaterializedViewError as error:
            return False, str(error)
        return tested

    # -- views ---------------------------------------------------------------------------------

    def status(self, view: str) -> ViewStatus:
        """Say whether a view is fresh, and why not. See :func:`airflow_mv.status.status`."""
        from airflow_mv.status import status

        return status(self.catalog_for(view), self.identify(view))

    def plan(self, view: str, options: RefreshOptions | None = None) -> RefreshPlan:
        """Plan a refresh; metadata only. See :func:`airflow_mv.planning.plan_refresh`."""
        from airflow_mv.planning import plan_refresh

        return plan_refresh(self.catalog_for(view), self.identify(view), options)

    def publish(self, plan: RefreshPlan, outcome: Outcome | None) -> RefreshResult | None:
        """Publish a staged plan; ``None`` where it must be planned again. See :func:`airflow_mv.refresh.publish`."""
        from airflow_mv.refresh import publish

        return publish(self.catalog_for(str(plan.view)), plan, outcome)

    def stager(self, view: str) -> InProcessStager:
        """Return what runs scripts in this process: over Spark Connect, or in a session on the connection's master.

        Close it when done. No session is opened before the first script.

        Raises:
            ConfigurationError: The Spark connection is missing or wrong.
        """
        from airflow_mv.stagers import InProcessStager

        target = spark_target(self.spark_conn_id)
        if target.missing:
            self.log.info(target.notice)
        return InProcessStager(self.catalog_for(view), master=target.master, remote=target.remote, report=self.log.info)

    def read(
        self,
        view: str,
        *,
        as_of: datetime | None = None,
        refresh_id: str | None = None,
        limit: int | None = None,
        refresh: bool = True,
    ) -> ReadResult:
        """Stream a view's stored rows as Arrow batches, and say in the log which refresh they are of.

        Stale rows are given where the view allows it; else the view is refreshed first.

        Args:
            view: The view.
            as_of: The rows as the view had them then.
            refresh_id: The rows of this recorded refresh.
            limit: At most this many rows.
            refresh: Whether a refresh may be run first; if not, a view that would need one is refused.

        Returns:
            Rows to be read once, from ``.batches`` (a ``pyarrow.RecordBatchReader``).

        Raises:
            StaleViewError: A refresh would be needed and is not wanted.
        """
        from airflow_mv.reading import read_arrow, readable

        catalog, identifier = self.catalog_for(view), self.identify(view)
        with closing(_Lazy(self, view)) as stager:
            found = readable(
                catalog, identifier, as_of=as_of, refresh_id=refresh_id, stager=stager if refresh else None
            )
        return read_arrow(catalog, found, limit=limit)

    def read_pandas(self, view: str, **options: Any) -> Iterator[pd.DataFrame]:
        """Stream a view's stored rows as pandas frames, one for each Arrow batch: never all in memory.

        Args:
            view: The view.
            **options: As for :meth:`read`.
        """
        return (batch.to_pandas() for batch in self.read(view, **options).batches)

    # -- the connection ------------------------------------------------------------------------

    def _bound_name(self) -> str | None:
        name = self._completed().extra_dejson.get(CATALOG_NAME)
        return str(name) if name else None

    def _completed(self) -> Connection:
        if self._connection is None:
            self._connection = _completed(self.iceberg_conn_id)
        return self._connection

    def _iceberg_hook(self, name: str) -> IcebergHook:
        from airflow.providers.apache.iceberg.hooks.iceberg import IcebergHook

        given = self._completed()
        extra = {key: value for key, value in given.extra_dejson.items() if key != CATALOG_NAME}
        connection = Connection(
            conn_id=name,
            conn_type=given.conn_type,
            host=given.host,
            login=given.login,
            password=given.password,
            extra=json.dumps(extra),
        )

        class NamedIcebergHook(IcebergHook):
            """The provider's hook, whose catalog has the name that Spark knows it by instead of the connection's."""

            @classmethod
            def get_connection(cls, conn_id: str) -> Connection:  # noqa: ARG003
                return connection

        return NamedIcebergHook(name)


class _Lazy:
    """A stager that looks the Spark connection up only if something must be run."""

    def __init__(self, hook: MaterializedViewHook, view: str) -> None:
        self._hook = hook
        self._view = view
        self._stager: InProcessStager | None = None

    def __call__(self, script: Any) -> Outcome:
        self._stager = self._stager or self._hook.stager(self._view)
        return self._stager(script)

    def close(self) -> None:
        if self._stager is not None:
            self._stager.close()


@dataclass(frozen=True, slots=True)
class SparkTarget:
    """Where a Spark connection leads.

    Args:
        conn_id: The connection.
        master: A Spark master, for ``spark-submit`` or a session in this process.
        remote: A Spark Connect URL instead; it may hold a token.
        deploy_mode: ``client``, ``cluster`` or ``None``.
        binary: ``spark-submit`` by the name that the connection gives it.
        missing: Whether there is no such connection, so that the default is used.
    """

    conn_id: str
    master: str | None = None
    remote: str | None = None
    deploy_mode: str | None = None
    binary: str | None = None
    missing: bool = False

    @property
    def notice(self) -> str:
        """What to tell where the connection is missing."""
        return (
            f"There is no connection {self.conn_id!r}: Spark runs on this worker, with master local[*]. To run it "
            f"elsewhere: airflow connections add {self.conn_id} --conn-type spark --conn-host spark://host:7077"
        )


def spark_target(conn_id: str) -> SparkTarget:
    """Say where a Spark connection leads.

    Args:
        conn_id: A connection of type ``spark`` or ``spark_connect``. The default one may be missing: then it is
            ``local[*]``, and not YARN as the Spark provider would have it.

    Raises:
        ConfigurationError: The connection is missing, or is of another type.
    """
    try:
        connection = BaseHook.get_connection(conn_id)
    except AirflowNotFoundException:
        if conn_id == DEFAULT_SPARK_CONN_ID:
            return SparkTarget(conn_id, master="local[*]", missing=True)
        raise ConfigurationError(
            f"there is no connection {conn_id!r} (spark_conn_id). Add it: airflow connections add {conn_id} "
            "--conn-type spark --conn-host 'local[*]' (spark://host:7077, yarn, k8s://…), or --conn-type spark_connect"
        ) from None
    if connection.conn_type == "spark_connect":
        from airflow.providers.apache.spark.hooks.spark_connect import SparkConnectHook

        return SparkTarget(conn_id, remote=SparkConnectHook(conn_id).get_connection_url())
    if connection.conn_type not in _SPARK_TYPES:
        raise ConfigurationError(
            f"connection {conn_id!r} (spark_conn_id) is of type {connection.conn_type!r}; it must be spark or "
            "spark_connect"
        )
    extra = connection.extra_dejson
    return SparkTarget(
        conn_id,
        master=_master(connection),
        deploy_mode=extra.get("deploy-mode"),
        binary=extra.get("spark-binary"),
    )


def _master(connection: Connection) -> str:
    """Return the master as the Spark provider reads it: a whole URL in the host, or a URI taken apart."""
    host = connection.host or ""
    whole = connection.conn_type == "spark" and host and ("://" in host or not connection.port)
    master = host if whole else f"{connection.conn_type}://{host}"
    return f"{master}:{connection.port}" if connection.port else master


def _completed(conn_id: str) -> Connection:
    """Load an ``iceberg`` connection, with the URI of a SQL catalog completed by login and password."""
    try:
        given = BaseHook.get_connection(conn_id)
    except AirflowNotFoundException:
        raise ConfigurationError(
            f"there is no connection {conn_id!r} (iceberg_conn_id). Add it: airflow connections add {conn_id} "
            '--conn-type iceberg --conn-extra \'{"type": "sql", "uri": "…", "warehouse": "…"}\''
        ) from None
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
    _mask(extra)
    return Connection(
        conn_id=conn_id,
        conn_type=given.conn_type,
        host=host,
        login=given.login,
        password=given.password,
        extra=json.dumps(extra),
    )


def _with_login(conn_id: str, uri: str, connection: Connection) -> str:
    """Put a connection's login and password into a database URI that has none."""
    from sqlalchemy import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        url = make_url(uri)
    except (ArgumentError, ValueError):
        raise ConfigurationError(
            f"connection {conn_id!r}: 'uri' is no database URL; write it like postgresql://host:5432/database"
        ) from None
    if url.host is None:  # a file: SQLite
        return uri
    url = url.set(username=url.username or connection.login, password=url.password or connection.password)
    return url.render_as_string(hide_password=False)


def _text(value: Any) -> Any:
    """Return a JSON value as pyiceberg takes it: text, where it is no structure."""
    if isinstance(value, bool):
        return str(value).lower()
    return value if isinstance(value, dict | list) else str(value)


def _mask(properties: Mapping[str, Any]) -> None:
    """Have every secret value masked in logs, also as it stands in a URL."""
    from airflow_mv.catalog.spark import is_secret

    for key, value in properties.items():
        if isinstance(value, Mapping):
            _mask(value)
            continue
        text = str(value)
        secrets = [password] if (password := _password(text)) else []
        if key != "uri" and is_secret(key, text):
            secrets += [text, *([text.partition(":")[2]] if key.endswith("credential") else [])]
        for secret in secrets:
            for form in {secret, unquote(secret), quote(secret, safe=""), quote_plus(secret), quote(secret, safe=" +")}:
                mask_secret(form)


def _password(text: str) -> str | None:
    try:
        return urlsplit(text).password if "://" in text else None
    except ValueError:
        return None
