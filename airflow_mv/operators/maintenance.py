# SPDX-License-Identifier: Apache-2.0
"""Maintain, verify, roll back, convert and drop materialized views from tasks. The hook has the same as methods."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Unpack

from airflow.sdk import Context

from airflow_mv.core.spec.interval import Span
from airflow_mv.core.spec.times import duration, parse_time
from airflow_mv.errors import ConfigurationError
from airflow_mv.hooks import DEFAULT_ICEBERG_CONN_ID, DEFAULT_SPARK_CONN_ID, MaterializedViewHook
from airflow_mv.retries import RetriedOperator, task_errors
from airflow_mv.tasks.links import show_link
from airflow_mv.tasks.literals import CheckedOperator
from airflow_mv.tasks.scope import NONE, count, percentage

if TYPE_CHECKING:
    from airflow_mv.core.spec.choices import LayoutName
    from airflow_mv.tasks.keywords import TaskKeywords


class _ViewsOperator(CheckedOperator, RetriedOperator):
    """A task on one view that submits no Spark job.

    Args:
        view: ``catalog.namespace.name`` (templated).
        iceberg_conn_id: Connection of type ``iceberg`` (templated).
        **kwargs: All that ``BaseOperator`` takes.
    """

    template_fields: Sequence[str] = ("view", "iceberg_conn_id")
    ui_color: str = "#dfe3ea"

    def __init__(
        self,
        *,
        view: str,
        iceberg_conn_id: str = DEFAULT_ICEBERG_CONN_ID,
        **kwargs: Unpack[TaskKeywords],
    ) -> None:
        super().__init__(**kwargs)
        self.view = view
        self.iceberg_conn_id = iceberg_conn_id

    def execute(self, context: Context) -> dict[str, Any]:
        """Run it.

        Raises:
            MaterializedViewError: It failed. Only an error that another try may solve is retried.
        """
        with task_errors(self):
            hook = MaterializedViewHook(self.iceberg_conn_id, getattr(self, "spark_conn_id", DEFAULT_SPARK_CONN_ID))
            show_link(context, hook.connection.identify(self.view))
            return self.run_on(hook)

    def run_on(self, hook: MaterializedViewHook) -> dict[str, Any]:
        """Do the work, and return its document."""
        raise NotImplementedError


class MaintainMaterializedViewOperator(_ViewsOperator):
    """Expire old snapshots of a view's storage table, and delete orphan files that are proven to be the view's.

    With ``compact`` its files are compacted before.

    Returns (XCom) the counts of ``airflow-mv maintain --json``. The names of files are in the log.

    Args:
        view: ``catalog.namespace.name`` (templated).
        older_than: Only what has been unneeded for this long (templated): a ``timedelta``, seconds, or a text like
            ``3 d``. At least twice the longest refresh; by default three days.
        report_only: Whether to change nothing, and only log what would be done.
        compact: Whether to rewrite small files before, and files with deleted rows. If there are many, a Spark job runs
            in the worker: in a session on the connection's master, or over Spark Connect.
        spark_conn_id: Connection of type ``spark`` or ``spark_connect`` (templated), for ``compact``.
        iceberg_conn_id: Connection of type ``iceberg`` (templated).
        **kwargs: All that ``BaseOperator`` takes.
    """

    template_fields: Sequence[str] = (*_ViewsOperator.template_fields, "older_than", "spark_conn_id")

    def __init__(
        self,
        *,
        view: str,
        iceberg_conn_id: str = DEFAULT_ICEBERG_CONN_ID,
        older_than: timedelta | float | str | None = None,
        report_only: bool = False,
        compact: bool = False,
        spark_conn_id: str = DEFAULT_SPARK_CONN_ID,
        **kwargs: Unpack[TaskKeywords],
    ) -> None:
        super().__init__(view=view, iceberg_conn_id=iceberg_conn_id, **kwargs)
        self.older_than = older_than
        self.report_only = report_only
        self.compact = compact
        self.spark_conn_id = spark_conn_id
        self.check_literals()

    def run_on(self, hook: MaterializedViewHook) -> dict[str, Any]:
        """Maintain the view."""
        document = hook.maintain(
            self.view,
            older_than=duration(self.older_than, what="older_than"),
            dry_run=self.report_only,
            compact=self.compact,
        )
        if (compaction := document.get("compaction")) is not None:
            self.log.info("%s: compaction: %s (%s)", document["view"], compaction["outcome"], compaction["why"])
        for location in document.pop("files"):
            self.log.info("  %s %s", "would delete" if self.report_only else "deleted", location)
        for location, why in document.pop("unproven").items():
            self.log.info("  left %s: %s", location, why)
        expired, branches = len(document["expired_snapshots"]), len(document["dropped_branches"])
        self.log.info(
            "%s: %d snapshots expired, %d branches of killed refreshes dropped, %d files deleted, %d bytes",
            *(document["view"], expired, branches, document["deleted_files"], document["deleted_bytes"]),
        )
        return {key: value for key, value in document.items() if key not in ("proofs", "waiting")}


class VerifyMaterializedViewOperator(_ViewsOperator):
    """Compare a view's stored rows with a recompute at the recorded snapshots. The task fails if they differ.

    It runs in the worker: in a session on the connection's master, or over Spark Connect. It costs as much as a full
    refresh. With ``files`` only the stored files are checked, without Spark.

    Returns (XCom) the document of ``airflow-mv verify``.

    Args:
        view: ``catalog.namespace.name`` (templated).
        spark_conn_id: Connection of type ``spark`` or ``spark_connect`` (templated).
        files: Whether to check the files instead: existence, sizes and counts.
        sample: Only this percentage of the rows (templated), the same rows in each run.
        interval_start: Only the rows of an interval: its start (templated), included, ISO 8601.
        interval_end: Its end (templated), excluded.
        iceberg_conn_id: Connection of type ``iceberg`` (templated).
        **kwargs: All that ``BaseOperator`` takes.
    """

    template_fields: Sequence[str] = (
        *_ViewsOperator.template_fields,
        "spark_conn_id",
        "sample",
        "interval_start",
        "interval_end",
    )

    def __init__(
        self,
        *,
        view: str,
        iceberg_conn_id: str = DEFAULT_ICEBERG_CONN_ID,
        spark_conn_id: str = DEFAULT_SPARK_CONN_ID,
        files: bool = False,
        sample: float | str | None = None,
        interval_start: Any = None,
        interval_end: Any = None,
        **kwargs: Unpack[TaskKeywords],
    ) -> None:
        super().__init__(view=view, iceberg_conn_id=iceberg_conn_id, **kwargs)
        self.spark_conn_id = spark_conn_id
        self.files = files
        self.sample = sample
        self.interval_start = interval_start
        self.interval_end = interval_end
        self.check_literals()

    def run_on(self, hook: MaterializedViewHook) -> dict[str, Any]:
        """Verify the view.

        Raises:
            VerificationError: The rows differ, or a file is missing or broken.
        """
        document = hook.verify_files(self.view) if self.files else self._compared(hook)
        self.log.info("%s: %s", self.view, "the files are complete" if self.files else "the stored rows are right")
        return document

    def _compared(self, hook: MaterializedViewHook) -> dict[str, Any]:
        start, end = (None if item in NONE else item for item in (self.interval_start, self.interval_end))
        if (start is None) != (end is None):
            raise ConfigurationError(f"task {self.task_id}: give both interval_start and interval_end, or neither")
        interval = None if start is None else Span(parse_time(start), parse_time(end))
        return hook.verify(self.view, interval=interval, sample=percentage(self.sample, field="sample"))


class RollbackMaterializedViewOperator(_ViewsOperator):
    """Make an earlier refresh of a view, or an earlier version of its definition, current again.

    After a rollback to a refresh, the next refresh brings the view up to date: pause its DAG if the older rows are to
    stay. After a rollback to a version, rows of another definition are not returned until the next refresh.

    Returns (XCom) the document of ``airflow-mv rollback``.

    Args:
        view: ``catalog.namespace.name`` (templated).
        refresh_id: The refresh, by its id in the history (templated).
        version_id: The version, as ``airflow-mv versions`` lists it (templated). Give either this or ``refresh_id``.
        iceberg_conn_id: Connection of type ``iceberg`` (templated).
        **kwargs: All that ``BaseOperator`` takes.

    Raises:
        ConfigurationError: Both are given, or neither.
    """

    template_fields: Sequence[str] = (*_ViewsOperator.template_fields, "refresh_id", "version_id")

    def __init__(
        self,
        *,
        view: str,
        refresh_id: str | None = None,
        version_id: int | str | None = None,
        iceberg_conn_id: str = DEFAULT_ICEBERG_CONN_ID,
        **kwargs: Unpack[TaskKeywords],
    ) -> None:
        super().__init__(view=view, iceberg_conn_id=iceberg_conn_id, **kwargs)
        if (refresh_id is None) == (version_id is None):
            raise ConfigurationError(f"task {self.task_id}: give either refresh_id or version_id")
        self.refresh_id = refresh_id
        self.version_id = version_id
        self.check_literals()

    def run_on(self, hook: MaterializedViewHook) -> dict[str, Any]:
        """Roll the view back."""
        if self.refresh_id is not None:
            document = hook.rollback(self.view, self.refresh_id).to_dict()
            self.log.info("%s: %s, the current refresh is %s", self.view, document["outcome"], self.refresh_id)
            return document
        version_id = count(self.version_id, field="version_id", unit="versions")
        document = hook.rollback_version(self.view, version_id or 0).to_dict()
        self.log.info("%s: %s, it is at version %s", self.view, document["outcome"], document["version_id"])
        return document


class ConvertMaterializedViewOperator(_ViewsOperator):
    """Move a view to another layout, in one step. Rows, history and settings stay. SQL catalogs only.

    No row is computed or copied. A view that has the layout already is no error, so the task may be repeated.

    Returns (XCom) the document of ``airflow-mv convert``.

    Args:
        view: ``catalog.namespace.name`` (templated).
        layout: ``pointed``, ``registered`` or ``table`` (templated).
        iceberg_conn_id: Connection of type ``iceberg`` (templated).
        **kwargs: All that ``BaseOperator`` takes.
    """

    template_fields: Sequence[str] = (*_ViewsOperator.template_fields, "layout")

    def __init__(
        self,
        *,
        view: str,
        layout: LayoutName,
        iceberg_conn_id: str = DEFAULT_ICEBERG_CONN_ID,
        **kwargs: Unpack[TaskKeywords],
    ) -> None:
        super().__init__(view=view, iceberg_conn_id=iceberg_conn_id, **kwargs)
        self.layout = layout
        self.check_literals()

    def run_on(self, hook: MaterializedViewHook) -> dict[str, Any]:
        """Convert the view.

        Raises:
            UnsupportedError: The catalog cannot do it, or the view cannot have the layout.
        """
        done = hook.convert(self.view, self.layout)
        before = f"it had {done.before} before" if done.changed else "as before"
        self.log.info("%s: it has the layout %s now, %s", self.view, done.layout, before)
        return done.to_dict()


class DropMaterializedViewOperator(_ViewsOperator):
    """Remove a view from the catalog. A view that does not exist is no error, so the task may be repeated.

    Returns (XCom) the view, whether it was there, and how many files were deleted.

    Args:
        view: ``catalog.namespace.name`` (templated).
        purge: Whether to also delete the files that are proven to be the view's.
        iceberg_conn_id: Connection of type ``iceberg`` (templated).
        **kwargs: All that ``BaseOperator`` takes.
    """

    def __init__(
        self,
        *,
        view: str,
        purge: bool = False,
        iceberg_conn_id: str = DEFAULT_ICEBERG_CONN_ID,
        **kwargs: Unpack[TaskKeywords],
    ) -> None:
        super().__init__(view=view, iceberg_conn_id=iceberg_conn_id, **kwargs)
        self.purge = purge
        self.check_literals()

    def run_on(self, hook: MaterializedViewHook) -> dict[str, Any]:
        """Drop the view."""
        document = hook.drop(self.view, purge=self.purge, missing_ok=True)
        self.log.info("%s: %s", self.view, "dropped" if document["dropped"] else "does not exist")
        return document
