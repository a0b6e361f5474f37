# SPDX-License-Identifier: Apache-2.0
"""Run a script, or read its rows, in this process: in a local session, a cluster's client mode, or over Connect."""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_mv.core.catalog import LoadedStorage, MaterializedViewCatalog
from airflow_mv.core.catalog.layouts import frame_of
from airflow_mv.core.catalog.spark import SparkSettings, spark_settings
from airflow_mv.core.script import Outcome, Script, Stager
from airflow_mv.core.spec.identifiers import DELTA_BY_PATH
from airflow_mv.errors import ConfigurationError, JobError, MaterializedViewError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from airflow_mv.core.spec.identifiers import Identifier

log = logging.getLogger(__name__)


def settings_of(catalog: MaterializedViewCatalog) -> SparkSettings:
    """Return the Spark configuration of a catalog and of all catalogs that were opened through it.

    It has what Delta tables need if a view that was looked at reads one.
    """
    opened = catalog.opened().items()
    settings = [spark_settings(name, home.properties, stores=home.files.vended_stores) for name, home in opened]
    merged = functools.reduce(SparkSettings.merge, settings)
    return merged.with_delta(catalog.properties) if DELTA_BY_PATH.data_source in catalog.formats else merged


def session_stager(
    catalog: MaterializedViewCatalog, spark: SparkSession, *, report: Callable[[str], None] = log.info
) -> Stager:
    """Return a stager that runs scripts in an existing session."""

    def stage(script: Script) -> Outcome:
        from airflow_mv.core.job.driver import run
        from airflow_mv.core.job.session import with_catalogs

        settings = settings_of(catalog)
        session = with_catalogs(spark, {**settings.confs, **settings.secrets})
        access = catalog.files.vended_properties(script.outcome_location) if script.outcome_location else {}
        return run(session, script, report=report, store_ms=_store_clock(catalog, script), access=access)

    return stage


def _store_clock(catalog: MaterializedViewCatalog, script: Script) -> Callable[[], int] | None:
    """Return a function that reads the clock of the store of a script's outcome; ``None`` if the script stores none."""
    if script.outcome_location is None:
        return None
    folder = script.outcome_location.rpartition("/")[0]

    def store_ms() -> int:
        try:
            return catalog.files.now_ms(folder)
        except MaterializedViewError as error:
            log.warning("Could not read the clock of the object store of %s: %s", folder, error)
            return sys.maxsize

    return store_ms


@contextmanager
def spark_errors(what: str) -> Iterator[None]:
    """Translate the errors of Spark, which have no common base.

    Args:
        what: What Spark does, for the message.

    Raises:
        JobError: Spark's reason, without its stack trace.
    """
    try:
        yield
    except MaterializedViewError:
        raise
    except Exception as error:  # noqa: BLE001
        from airflow_mv.core.job.driver import reason

        raise JobError(f"{what}: {reason(error)}") from None


def stored_rows(spark: SparkSession, view: Identifier, storage: LoadedStorage, snapshot_id: int | None) -> DataFrame:
    """Return a storage table's rows at a snapshot, by the table's name if it has one; ``None`` for the current rows.

    Args:
        spark: A session that knows the view's catalog, classic or Connect.
    """
    from airflow_mv.core.job.reader import TableReader
    from airflow_mv.core.job.session import made_active

    with made_active(spark), spark_errors(f"reading the rows of view {view}"):
        frame: DataFrame = frame_of(storage, TableReader(spark, view.catalog, snapshot_id))
        return frame


class InProcessStager:
    """Runs scripts in a session that is opened for the first script. If no script runs, Spark does not start.

    Args:
        catalog: Its configuration becomes the session's.
        master: A Spark master; by default a local one.
        remote: A Spark Connect URL (``sc://…``) instead.
        report: Receives progress messages.
    """

    def __init__(
        self,
        catalog: MaterializedViewCatalog,
        *,
        master: str | None = None,
        remote: str | None = None,
        report: Callable[[str], None] = log.info,
    ) -> None:
        self._catalog = catalog
        self._master = master
        self._remote = remote
        self._report = report
        self._session: SparkSession | None = None
        self._ours = False

    def __call__(self, script: Script) -> Outcome:
        """Run a script."""
        return session_stager(self._catalog, self.session, report=self._report)(script)

    @property
    def session(self) -> SparkSession:
        """The session. It is opened on first use."""
        if self._session is None:
            import pyspark

            from airflow_mv.core.job.session import active_session, open_session
            from airflow_mv.core.job.submit import spark_versions

            self._ours = active_session() is None
            if self._ours and not self._remote and find_spec("pyspark.core") is None:
                raise ConfigurationError(
                    f"this environment has no Spark, only the client of Spark Connect, {pyspark.__version__}. Install "
                    "the extra airflow-mv[spark], use a Spark Connect server, or refresh from Airflow with another "
                    "environment's spark-submit (spark_binary). `airflow-mv doctor` shows what works here"
                )
            scala = None if self._remote else spark_versions(Path(pyspark.__file__).parent)[1]
            settings = settings_of(self._catalog).on(None if self._remote else pyspark.__version__, scala)
            self._session = open_session(
                settings.session_confs(), master=self._master, remote=self._remote, report=self._report
            )
        return self._session

    def close(self) -> None:
        """Stop the session if it was opened here. A session that existed before keeps running."""
        if self._session is not None and self._ours:
            self._session.stop()
        self._session = None
