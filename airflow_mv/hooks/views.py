# SPDX-License-Identifier: Apache-2.0
"""The hook: materialized views behind an Airflow connection."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from contextlib import closing
from datetime import datetime, timedelta
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import BaseHook

from airflow_mv.core.spec.identifiers import Identifier, split_namespace
from airflow_mv.errors import (
    MaterializedViewError,
    ViewNotFoundError,
)
from airflow_mv.hooks.iceberg import DEFAULT_ICEBERG_CONN_ID, CatalogConnection, mask
from airflow_mv.hooks.spark import DEFAULT_SPARK_CONN_ID, spark_target

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyspark.sql import SparkSession

    from airflow_mv.common.status import ViewStatus
    from airflow_mv.core.catalog import Layout, LoadedView, MaterializedViewCatalog
    from airflow_mv.core.refresh import RefreshOptions, SnapshotSet
    from airflow_mv.core.refresh.plan import RefreshPlan
    from airflow_mv.core.script import Outcome
    from airflow_mv.core.spec.choices import OnChange
    from airflow_mv.core.spec.interval import Span
    from airflow_mv.extras.convert import Conversion
    from airflow_mv.extras.define import DefinitionResult
    from airflow_mv.extras.explain.explain import Explanation
    from airflow_mv.extras.fleet.coverage import Coverage
    from airflow_mv.extras.fresh.result import FreshResult
    from airflow_mv.extras.history.rollback import RollbackResult, VersionRollbackResult
    from airflow_mv.extras.read import ReadResult
    from airflow_mv.extras.registry.registry import Registry
    from airflow_mv.extras.spark.session import InProcessStager
    from airflow_mv.extras.spark.settings import SparkSettings


class MaterializedViewHook(BaseHook):
    """Materialized views behind an Airflow connection of type ``iceberg``.

    The connection is the Apache Iceberg provider's own, and its ``IcebergHook`` opens the catalog; Spark is
    configured from the same properties, so nothing is written twice. Two things are added to what that hook
    does with a connection:

    * The catalog is opened under the *name that the view begins with* (``lake`` in ``lake.sales.daily``): rows of
      a SQL catalog carry that name, and Spark's catalog has the same one. Set the extra ``catalog_name`` to bind
      the connection to one name; views may then be written without it, and other names are refused.
    * For a SQL catalog (``{"type": "sql", "uri": "postgresql://host/db", "warehouse": …}``) login and password of
      the connection are put into the URI, so the extra needs no secret.

    Base tables may be in other catalogs. The connection's extra ``catalogs`` maps catalog names to connections,
    as in ``{"raw": "iceberg_raw"}``. A catalog that neither it nor the argument ``catalogs`` names is looked up in
    pyiceberg's own configuration.

    Args:
        iceberg_conn_id: Connection of the catalog.
        spark_conn_id: Connection (``spark`` or ``spark_connect``) for jobs that run in this process.
        catalogs: Connections of other catalogs by catalog name; they override those of the connection's extra.
    """

    conn_name_attr: ClassVar[str] = "iceberg_conn_id"
    default_conn_name: ClassVar[str] = DEFAULT_ICEBERG_CONN_ID
    conn_type: ClassVar[str] = "iceberg"
    hook_name: ClassVar[str] = "Iceberg materialized views"

    def __init__(
        self,
        iceberg_conn_id: str = DEFAULT_ICEBERG_CONN_ID,
        spark_conn_id: str = DEFAULT_SPARK_CONN_ID,
        catalogs: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__()
        #: What the connection says, without opening a catalog.
        self.connection = CatalogConnection(iceberg_conn_id, catalogs)
        self.iceberg_conn_id = iceberg_conn_id
        self.spark_conn_id = spark_conn_id
        self._opened: dict[str, MaterializedViewCatalog] = {}
        self._opening = threading.RLock()

    # -- catalogs ------------------------------------------------------------------------------

    def catalog_for(self, view: str) -> MaterializedViewCatalog:
        """Open the catalog that a view is in, under the name that the view begins with.

        Raises:
            ConfigurationError: The connection is missing or wrong.
            CatalogUnavailableError: The catalog does not respond.
        """
        return self.catalog_named(self.connection.identify(view).catalog)

    def catalog_named(self, name: str) -> MaterializedViewCatalog:
        """Open the connection's catalog under a name, once per hook.

        Raises:
            ConfigurationError, CatalogUnavailableError: See :meth:`catalog_for`.
        """
        with self._opening:
            if name not in self._opened:
                from airflow_mv.core.catalog import MaterializedViewCatalog

                opened = MaterializedViewCatalog(self.iceberg_catalog(name))
                opened.openers = {
                    other: partial(_open, other, conn_id) for other, conn_id in self.connection.others().items()
                }
                self._opened[name] = opened
            return self._opened[name]

    def close(self) -> None:
        """Close the connections of the catalogs that were opened; a later call opens new ones."""
        for catalog in list(self._opened.values()):
            catalog.close()

    def iceberg_catalog(self, name: str) -> Catalog:
        """Open the pyiceberg catalog of the connection under a name, through ``IcebergHook``.

        Raises:
            ConfigurationError, CatalogUnavailableError: See :meth:`catalog_for`.
        """
        return self.connection.open(name)

    def spark_settings(self, view: str) -> SparkSettings:
        """Return what a Spark session needs to reach the view's catalog. Its ``secrets`` are masked in logs."""
        from airflow_mv.extras.spark.session import settings_of

        settings = settings_of(self.catalog_for(view))
        mask(settings.secrets)
        return settings

    def get_conn(self) -> MaterializedViewCatalog:
        """Return the catalog of a connection that is bound to one name by the extra ``catalog_name``."""
        return self.catalog_named(self.connection.bound_name() or self.iceberg_conn_id)

    def test_connection(self) -> tuple[bool, str]:
        """List the catalog's namespaces, through ``IcebergHook``."""
        try:
            tested: tuple[bool, str] = self.connection.hook(
                self.connection.bound_name() or self.iceberg_conn_id
            ).test_connection()
        except MaterializedViewError as error:
            return False, str(error)
        return tested

    # -- views ---------------------------------------------------------------------------------

    def status(self, view: str, *, interval: Span | None = None) -> ViewStatus:
        """Return whether a view, or an interval of it, is fresh, with the reasons."""
        from airflow_mv.common.status import status

        return status(self.catalog_for(view), self.connection.identify(view), interval=interval)

    def plan(self, view: str, options: RefreshOptions | None = None, *, pins: SnapshotSet | None = None) -> RefreshPlan:
        """Plan a refresh; metadata only. See :func:`airflow_mv.core.refresh.plan_refresh`."""
        from airflow_mv.actions import plan_view

        return plan_view(self.catalog_for(view), self.connection.identify(view), options, pins=pins)

    def coverage(self, view: str, *, start: datetime | None = None, end: datetime | None = None) -> Coverage:
        """Return which intervals of a view are fresh, stale, or were never computed. Reads metadata only.

        Args:
            start: The first moment, an aware time; by default that of the first recorded interval.
            end: The first moment after it; by default the end of the last recorded interval, or now.

        Raises:
            ConfigurationError: The view has no interval column, or the times are no intervals of it.
        """
        from airflow_mv.extras.fleet.coverage import coverage

        return coverage(self.catalog_for(view), self.connection.identify(view), start=start, end=end)

    def explain(self, view: str, sql: str | None = None) -> Explanation:
        """Return how a view would be refreshed after each kind of change of its base tables, and a cheaper query.

        Args:
            view: The view; with ``sql`` it need not exist.
            sql: A query; ``None``: that of the existing view.
        """
        from airflow_mv.extras.explain.explain import explain

        return explain(self.catalog_for(view), self.connection.identify(view), sql)

    def define(
        self, view: str, sql: str | None, *, on_change: OnChange = "apply", **definition: Any
    ) -> DefinitionResult:
        """Create a view, or give an existing one this definition; see :func:`airflow_mv.extras.define.define`.

        Args:
            sql: The query; ``None`` keeps that of the existing view.
            on_change: ``apply``, ``rebuild`` or ``fail``: what happens if the view exists with another definition.
            **definition: As for :class:`airflow_mv.operators.CreateMaterializedViewOperator`, such as ``time_travel``.

        Raises:
            AlreadyExistsError: A difference is refused; the message lists all of them. Nothing was changed.
        """
        from airflow_mv.actions import define_view
        from airflow_mv.core.define.definition import Definition

        wanted = Definition(sql, **definition)
        with closing(LazyStager(self, view)) as stager:
            return define_view(
                self.catalog_for(view), self.connection.identify(view), wanted, stager=stager, on_change=on_change
            )

    def adopt(self, view: str, sql: str, **definition: Any) -> LoadedView:
        """Make the existing table of a name a materialized view of a query. Its first refresh replaces the rows.

        Args:
            view: The table's name.
            sql: The query.
            **definition: As for :class:`airflow_mv.operators.CreateMaterializedViewOperator`, such as ``time_travel``.

        Raises:
            AlreadyExistsError: The name is a view's.
            UnsupportedError: The table does not fit. The message names everything that differs.
        """
        from airflow_mv.actions import adopt_table
        from airflow_mv.core.define.definition import Definition
        from airflow_mv.extras.readers import for_readers

        catalog = self.catalog_for(view)
        with closing(LazyStager(self, view)) as stager:
            wanted = for_readers(Definition(sql, **definition), catalog, view)
            return adopt_table(catalog, self.connection.identify(view), wanted, stager=stager)

    def versions(self, view: str, *, at: datetime | None = None) -> list[dict[str, Any]]:
        """Return the retained versions of a view's definition, oldest first.

        Args:
            at: Only the version that was current at this time; a time without a zone is UTC.

        Raises:
            SnapshotNotFoundError: The view's version log begins later.
        """
        from airflow_mv.extras.history.versions import versions

        return versions(self.catalog_for(view), self.connection.identify(view), at=at)

    def rollback_version(self, view: str, version_id: int) -> VersionRollbackResult:
        """Make an earlier version of a view's definition current again; the next refresh recomputes its rows.

        Raises:
            VersionNotFoundError: The view does not retain the version.
        """
        from airflow_mv.extras.history.rollback import rollback_version

        return rollback_version(self.catalog_for(view), self.connection.identify(view), version_id)

    def convert(self, view: str, layout: Layout) -> Conversion:
        """Move a view to another layout: ``pointed``, ``registered`` or ``table``. Rows, history and settings stay.

        Raises:
            UnsupportedError: The catalog cannot do it, or the view cannot have the layout.
        """
        from airflow_mv.extras.convert import convert

        return convert(self.catalog_for(view), self.connection.identify(view), layout)

    def registry(self, catalog: str) -> Registry:
        """Return a catalog's registry, whose components are read and changed by keys: ``registry.refreshes.read(…)``.

        :func:`airflow_mv.extras.registry.query.query` runs SQL over it.

        Raises:
            ConfigurationError: The catalog has none.
        """
        from airflow_mv.extras.registry.registry import require_registry

        return require_registry(self.catalog_named(catalog))

    def views_of(self, namespace: str) -> list[str]:
        """Return the full names of the materialized views of a namespace.

        A table whose store does not respond is left out, with a warning in the log.

        Args:
            namespace: ``catalog.namespace``.
        """
        from airflow_mv.common.each import left_out, materialized_views

        name, inner = split_namespace(namespace)
        catalog = self.catalog_named(name)
        views = [str(view) for view in materialized_views(catalog, inner)]
        for error in left_out(catalog, inner):
            self.log.warning("%s", error)
        return views

    def maintain(
        self, view: str, *, older_than: timedelta | None = None, dry_run: bool = False, compact: bool = False
    ) -> dict[str, Any]:
        """Expire old snapshots of a view's storage table, and delete orphan files that are proven to be the view's.

        Args:
            older_than: Only what has been unneeded for this long; by default three days.
            dry_run: Whether to report only.
            compact: Whether to rewrite small files before, and files with deleted rows. If there are many, a Spark job
                runs in this process or over Connect.

        Returns:
            The document of ``airflow-mv maintain --json``.
        """
        from airflow_mv.actions import maintain_view
        from airflow_mv.core.publish.refresh import DEFAULT_GRACE

        catalog, grace = self.catalog_for(view), DEFAULT_GRACE if older_than is None else older_than
        with closing(LazyStager(self, view)) as stager:
            return maintain_view(
                catalog,
                self.connection.identify(view),
                older_than=grace,
                dry_run=dry_run,
                stager=stager if compact else None,
                report=self.log.info,
            )

    def verify(self, view: str, *, interval: Span | None = None, sample: float | None = None) -> dict[str, Any]:
        """Compare a view's stored rows with a recompute at the recorded snapshots, in this process or over Connect.

        Args:
            interval: Only the rows of this interval.
            sample: Only this percentage of the rows.

        Raises:
            VerificationError: They differ. The message has a row.
        """
        from airflow_mv.extras.maintenance.verify import Part, verify

        part = Part(interval, sample)
        with closing(in_process_stager(self, view)) as stager:
            found = verify(
                self.catalog_for(view), self.connection.identify(view), session=lambda: stager.session, part=part
            )
        found.require_equal()
        return found.to_dict()

    def verify_files(self, view: str) -> dict[str, Any]:
        """Check that all files of a view's retained snapshots exist, with the recorded sizes and counts. Without Spark.

        Raises:
            VerificationError: A file is missing or broken.
        """
        from airflow_mv.extras.maintenance.verify import verify_files

        found = verify_files(self.catalog_for(view), self.connection.identify(view), report=self.log.info)
        found.require_intact()
        return found.to_dict()

    def rollback(self, view: str, refresh_id: str) -> RollbackResult:
        """Make an earlier refresh of a view current again.

        Raises:
            RefreshNotFoundError: The history holds no such refresh, or its rows have expired.
        """
        from airflow_mv.extras.history.rollback import rollback

        return rollback(self.catalog_for(view), self.connection.identify(view), refresh_id)

    def drop(self, view: str, *, purge: bool = False, missing_ok: bool = False) -> dict[str, Any]:
        """Remove a view from the catalog.

        Args:
            purge: Whether to also delete the files that are proven to be the view's.
            missing_ok: Whether a view that does not exist is no error.

        Returns:
            ``view``, ``dropped``, and with ``purge`` ``deleted_files`` and ``deleted_bytes``.
        """
        from airflow_mv.extras.maintenance.drop import drop
        from airflow_mv.extras.maintenance.drop import purge as purge_view

        catalog, identifier = self.catalog_for(view), self.connection.identify(view)
        try:
            files = purge_view(catalog, identifier) if purge else None
            if files is None:
                drop(catalog, identifier)
        except ViewNotFoundError:
            if not missing_ok:
                raise
            return {"view": str(identifier), "dropped": False}
        deleted = {"deleted_files": len(files.files), "deleted_bytes": files.size_bytes} if files else {}
        return {"view": str(identifier), "dropped": True, **deleted}

    def read(
        self,
        view: str,
        *,
        as_of: datetime | None = None,
        refresh_id: str | None = None,
        sequence_number: int | None = None,
        snapshot_id: int | None = None,
        bases_as_of: datetime | None = None,
        options: Mapping[str, int | str] = MappingProxyType({}),
        limit: int | None = None,
        refresh: bool = True,
    ) -> ReadResult:
        """Find a view's stored rows, and log which refresh they are of. They are read when they are asked for.

        Stale rows are returned if the view allows it; otherwise the view is refreshed first.

        Args:
            as_of: The rows as the view had them at this time; a time without a zone is UTC.
            refresh_id: The rows of this recorded refresh.
            sequence_number: The rows of the recorded refresh with this sequence number.
            snapshot_id: The rows in this snapshot of the storage table.
            bases_as_of: The rows that were computed from the base tables as they were at this time, or before it.
            options: ``snapshot-id``, or ``as-of-timestamp`` in milliseconds, as for Spark's reader.
            limit: At most this many rows.
            refresh: Whether a refresh may run first. If not, a view that needs one is refused.

        Returns:
            Rows with the methods ``to_pandas()``, ``to_arrow()``, ``to_polars()``, ``to_duckdb()`` and
            ``to_arrow_batch_reader()``, a stream for rows that do not fit into memory.

        Raises:
            StaleViewError: A refresh is needed, but not allowed.
            RefreshNotFoundError: The history holds no such refresh.
        """
        from airflow_mv.actions import refresh_with_inputs
        from airflow_mv.extras.history.time_travel import TimeTravel
        from airflow_mv.extras.read import read_rows, readable

        catalog, identifier = self.catalog_for(view), self.connection.identify(view)
        wanted = TimeTravel(as_of, refresh_id, sequence_number, snapshot_id, bases_as_of).with_options(options).given
        with closing(LazyStager(self, view)) as stager:

            def refreshed(name: Identifier) -> None:
                refresh_with_inputs(catalog, [name], stager=stager)

            found = readable(catalog, identifier, wanted, refresh=refreshed if refresh else None)
        return read_rows(catalog, found, limit=limit)

    def read_fresh(self, view: str, *, limit: int | None = None) -> FreshResult:
        """Return the rows that a view's query has now: the stored rows with what changed since.

        They are computed in Spark by this call, in this process or over Connect. Nothing is refreshed or written.

        Args:
            limit: At most this many rows.

        Returns:
            Rows with the methods of those of :meth:`read`, which are in memory, and how they were computed: ``mode``
            and ``reasons``.

        Raises:
            JobError: Spark failed.
        """
        from airflow_mv.actions import fetch_fresh

        with closing(in_process_stager(self, view)) as spark:
            return fetch_fresh(self.catalog_for(view), self.connection.identify(view), lambda: spark.session, limit)


def _open(name: str, conn_id: str) -> MaterializedViewCatalog:
    return MaterializedViewHook(conn_id).catalog_named(name)


def in_process_stager(hook: MaterializedViewHook, view: str) -> InProcessStager:
    """Return a stager that runs in this process: over Spark Connect, or in a session on the connection's master.

    Close it when done. No session is opened before the first script.

    Raises:
        ConfigurationError: The Spark connection is missing or wrong.
    """
    from airflow_mv.extras.spark.session import InProcessStager

    target = spark_target(hook.spark_conn_id)
    if target.missing:
        hook.log.info(target.notice)
    return InProcessStager(hook.catalog_for(view), master=target.master, remote=target.remote, report=hook.log.info)


class LazyStager:
    """A stager that reads the Spark connection only if a script has to run."""

    def __init__(self, hook: MaterializedViewHook, view: str) -> None:
        self._hook = hook
        self._view = view
        self._stager: InProcessStager | None = None

    def __call__(self, script: Any) -> Outcome:
        """Run a script."""
        return self._opened(script)

    @property
    def session(self) -> SparkSession:
        """The session of the scripts."""
        return self._opened.session

    @property
    def _opened(self) -> InProcessStager:
        self._stager = self._stager or in_process_stager(self._hook, self._view)
        return self._stager

    def close(self) -> None:
        """Close the session, if it was opened."""
        if self._stager is not None:
            self._stager.close()
